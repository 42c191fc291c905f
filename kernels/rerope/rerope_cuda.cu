// blockIdx.x is the key; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head, lanes being padded to a power of two; the rows
// threadIdx.y walk the heads. A head of more than 32 lanes has a block to itself.
#include <algorithm>
#include <bit>
#include <type_traits>

#include <prologue/kernels/attention_prologue/steps/hadamard.h>
#include <prologue/kernels/rerope/backends.h>
#include <prologue/kernels/rerope/rerope_key.h>
#include <prologue/kernels/attention_prologue/steps/head_lanes.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>

namespace prologue::cuda {

namespace {

constexpr int64_t kThreads = 128;  // of a block, if a head has no more

struct ReropeArgs {
  ReropeParams params;
  RotaryFrequencies frequencies;
  PageDivider pages;
  BlockLayout layout;
  float hadamard_factor = 1.0f;
  int alignment = 1;  // of every head, in bytes
};
static_assert(sizeof(ReropeArgs) <= 4096, "a kernel's parameters have 4 KiB");

// Computed angles take much code: there is one copy of it.
__device__ __noinline__ PairRotation<float> moving_rotation_on_device(const ReropeArgs& p, int64_t from, int64_t to, int pair) {
  return moving_rotation(p.params.rope, &p.frequencies, from, to, pair);
}

// The rotations of a key in shared memory. A gap after each eight of them keeps lanes that read several neighbours each from the same banks.
class SharedRotations {
 public:
  __device__ void set(int pair, const PairRotation<float>& by) { entries_[at(pair)].by = by; }
  __device__ PairRotation<float> get(int pair) const { return entries_[at(pair)].by; }

 private:
  struct alignas(16) Entry {
    PairRotation<float> by;
  };
  __device__ static int at(int pair) { return pair + pair / 8; }
  Entry entries_[kMaxRotaryPairs + kMaxRotaryPairs / 8];
};

// Holds a thread's unit of a head as it is stored, and its scale. 4 bits with V = 1: a byte, of which the channel has one half.
template <int kBits, int V>
struct StoredUnit {
  static constexpr int kBytes = V * kBits < 8 ? 1 : V * kBits / 8;
  Bytes<kBytes> a;
  Bytes<kBytes> b;
  AsymmetricScale scale;
};

// Moves one key. V channels are a vector, kBits those of an element.
template <int kBits, int V>
class KeyMove {
 public:
  using Stored = StoredUnit<kBits, V>;

  __device__ KeyMove(const ReropeArgs& args, const ReropeKey& key, const UnitChannels& place)
      : p_(args), k_(args.params.cache.k), key_(key), place_(place) {}

  __device__ Stored load(int head) const {
    Stored unit = {};
    if (head >= p_.params.cache.num_kv_heads) return unit;
    const char* from = head_at(head);
    with_alignment(p_.alignment, [&](auto piece) {
      const auto vector = [&](int channel) {
        return load_pieces<Stored::kBytes, false, decltype(piece)::value>(from + channel * kBits / 8);
      };
      if (place_.has_a) unit.a = vector(place_.a);
      if (place_.has_b) unit.b = vector(place_.b);
    });
    if constexpr (kBits <= 8) unit.scale = stored_scale(k_.format, scale_of_key(k_, key_, head));
    return unit;
  }

  __device__ UnitValues<V> values_of(const Stored& unit) const {
    const DType type = k_.format.type;
    if constexpr (kBits == 32) {
      return widen<float, V>({unit.a, unit.b});
    } else if constexpr (kBits == 16) {
      return type == DType::f16 ? widen<__half, V>({unit.a, unit.b}) : widen<__nv_bfloat16, V>({unit.a, unit.b});
    } else {
      UnitValues<V> values;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        values.x[i] = value_of(unit.a, place_.a, i, unit.scale, type);
        values.x[V + i] = value_of(unit.b, place_.b, i, unit.scale, type);
      }
      return values;
    }
  }

  // Each block of channels times H / sqrt(block).
  __device__ void hadamard_transform(UnitValues<V>& x, const BlockLanes<V>& lanes) const {
    const int block = static_cast<int>(p_.params.hadamard_block);
    if (block == 0) return;
#pragma unroll
    for (int distance = 1; distance < V; distance *= 2) {
      if (distance < block) butterflies<V>(x, distance);
    }
#pragma unroll 1
    for (int distance = V; distance < block; distance *= 2) lanes.butterflies(x, distance);
    multiply<V>(x, p_.hadamard_factor);
  }

  // Stores a unit; `scale` is the one that the head was stored with. All threads of the block must be here.
  __device__ void store(int head, const UnitValues<V>& values, AsymmetricScale scale, const BlockLanes<V>& lanes, bool active,
                        uint8_t* codes) const {
    const DType type = k_.format.type;
    const UnitChannels& place = lanes.place;
    char* to = active ? head_at(head) : nullptr;
    if constexpr (kBits == 32) store_unit<false, float, V>(to, place, narrow<float, V>(values), p_.alignment);
    if constexpr (kBits == 16) {
      if (type == DType::f16) store_unit<false, __half, V>(to, place, narrow<__half, V>(values), p_.alignment);
      if (type == DType::bf16) store_unit<false, __nv_bfloat16, V>(to, place, narrow<__nv_bfloat16, V>(values), p_.alignment);
    }
    if constexpr (kBits <= 8) {
      if (k_.format.scaling == KvScaling::token_head) {
        scale = computed(values, lanes);
        if (active && lanes.lane == 0) {
          float* const stored = scale_of_key(k_, key_, head);
          stored[0] = scale.scale;
          if (type == DType::uint4) stored[1] = scale.zero_point;
        }
      }
      if constexpr (kBits == 8) store_unit_8<V>(to, place, quantise<V>(values, scale.reciprocal, type), p_.alignment);
      if constexpr (kBits == 4) store_packed(to, values, scale, lanes, codes);
    }
  }

 private:
  __device__ char* head_at(int head) const {
    const PageStrides& s = k_.strides;
    return static_cast<char*>(k_.data) + (key_.page * s.page + key_.offset * s.token + head * s.head) * kBits / 8;
  }

  __device__ static float value_of(const Bytes<Stored::kBytes>& vector, int channel, int i, const AsymmetricScale& scale,
                                   DType type) {
    const int bit = kBits == 4 && V == 1 ? channel % 2 * 4 : i * kBits;
    return decoded(static_cast<uint8_t>(vector.words[bit / 32] >> (bit % 32)), scale, type);
  }

  __device__ AsymmetricScale computed(const UnitValues<V>& values, const BlockLanes<V>& lanes) const {
    const DType type = k_.format.type;
    if (type == DType::uint4) {
      const OrderedRange range = ordered_range<V>(values, lanes.place);
      return scale_of_range({lanes.largest(range.inverted_smallest), lanes.largest(range.largest)});
    }
    const UnitValues<V> heads[1] = {values};
    AsymmetricScale scale;
    HeadScale scales[1];
    lanes.largest(
        heads, [&](uint32_t largest) { return computed_scale(largest, kv_largest(type)); }, scales);
    static_cast<HeadScale&>(scale) = scales[0];
    return scale;
  }

  // Two neighbours share a byte. With V = 1 they are in two threads, and `codes` holds those of the head; otherwise both are in one vector.
  __device__ void store_packed(char* to, const UnitValues<V>& values, const AsymmetricScale& scale, const BlockLanes<V>& lanes,
                               uint8_t* codes) const {
    const DType type = k_.format.type;
    const UnitChannels& place = lanes.place;
    if constexpr (V == 1) {
      __syncthreads();
      if (place.has_a) codes[place.a] = quantize(values.x[0], scale, type);
      if (place.has_b) codes[place.b] = quantize(values.x[1], scale, type);
      __syncthreads();
      const auto byte_of = [&](int channel) { to[channel / 2] = static_cast<char>(codes[channel] | codes[channel + 1] << 4); };
      if (place.has_a && place.a % 2 == 0) byte_of(place.a);
      if (place.has_b && place.b % 2 == 0) byte_of(place.b);
    } else {
      const auto pack_codes = [&](const float* x) {
        Bytes<Stored::kBytes> bytes = {};
#pragma unroll
        for (int i = 0; i < V; ++i) bytes.words[0] |= static_cast<uint32_t>(quantize(x[i], scale, type)) << (4 * i);
        return bytes;
      };
      with_alignment(p_.alignment, [&](auto piece) {
        constexpr int kPiece = decltype(piece)::value;
        if (place.has_a) store_pieces<Stored::kBytes, false, kPiece>(to + place.a / 2, pack_codes(values.x));
        if (place.has_b) store_pieces<Stored::kBytes, false, kPiece>(to + place.b / 2, pack_codes(values.x + V));
      });
    }
  }

  const ReropeArgs& p_;
  const PagedHeads& k_;
  const ReropeKey& key_;
  const UnitChannels& place_;
};

// The threads of a block first compute the rotations of its key together; shared memory holds them. The next head is loaded while the current
// one is computed.
template <int kBits, int V>
__global__ void __launch_bounds__(kMaxLanes) rerope_kernel(const __grid_constant__ ReropeArgs p) {
  __shared__ SharedRotations rotations;
  __shared__ float exchange[2][kMaxLanes];
  __shared__ uint8_t codes[kBits == 4 && V == 1 ? 2 * kMaxLanes : 1];
  const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
  const int row = static_cast<int>(threadIdx.y), rows = static_cast<int>(blockDim.y), thread = row * lanes + lane;
  const int heads = static_cast<int>(p.params.cache.num_kv_heads);

  const ReropeKey key = resolve_key(p.params, p.pages, blockIdx.x);
  if (key.fault != FaultCode::none && thread == 0) {
    cuda::record_fault(p.params.faults, p.params.token_faults, blockIdx.x, key.fault);
  }
  if (!key.moves) return;

  UnitChannels place = channels_of_unit<V>(lane, p.layout);
  const bool rotated = place.pair >= 0;
  if (!rotated && !rewrites_whole_heads(p.params)) place.has_a = place.has_b = false;
  const KeyMove<kBits, V> move(p, key, place);
  StoredUnit<kBits, V> next = move.load(row);
  for (int i = thread; i < p.layout.rotary_dim / 2; i += rows * lanes) {
    const int32_t axis = axis_of_pair(p.params.rope, i);
    const int64_t from = position_on_axis(key.from, axis), to = position_on_axis(key.to, axis);
    rotations.set(i, moving_rotation_on_device(p, from, to, i));
  }
  __syncthreads();

  for (int first = 0; first < heads; first += rows) {
    const int head = first + row;
    const bool active = head < heads;
    UnitChannels of_head = place;
    if (!active) of_head.has_a = of_head.has_b = false;
    const BlockLanes<V> group = block_lanes<V>(lane, lanes, thread, exchange, of_head, p.layout);
    const AsymmetricScale scale = next.scale;
    UnitValues<V> values = move.values_of(next);
    next = move.load(head + rows);
    move.hadamard_transform(values, group);
    if (rotated) rotate<V>(values.x, p.layout.style, [&](int i) { return rotations.get(place.pair + i); });
    move.hadamard_transform(values, group);
    move.store(head, values, scale, group, active, codes + (kBits == 4 && V == 1 ? row * lanes * 2 : 0));
  }
}

// Every vector of `vector` channels is whole, and is of rotated channels or of others.
bool vectors_fit(const ReropeParams& p, int64_t vector) {
  const Rope& rope = p.rope;
  return rope.rotary_dim / (2 * rope.num_blocks) % vector == 0 && rope.rotary_offset % vector == 0 &&
         (p.cache.k.head_dim - rope.rotary_dim) % vector == 0;
}

// Returns the bytes that the address of every head is a multiple of, at most 16.
int alignment_of(const ReropeParams& p) {
  const PagedHeads& k = p.cache.k;
  const int64_t bits = dtype_bits(k.format.type);
  auto all = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(k.data)) | 16;
  const auto add = [&](int64_t count, int64_t stride) {
    if (count > 1) all |= static_cast<uint64_t>(stride * bits / 8);
  };
  add(p.cache.num_pages, k.strides.page);
  add(p.cache.page_size, k.strides.token);
  add(p.cache.num_kv_heads, k.strides.head);
  return 1 << std::countr_zero(all);
}

template <int kBits, int V>
Status launch_vectors(const ReropeArgs& args, const Execution& execution) {
  const int64_t units = units_of(args.layout, V), heads = args.params.cache.num_kv_heads;
  const auto lanes = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(units)));
  int64_t rows = std::clamp<int64_t>(kThreads / lanes, 1, heads);
  if (lanes < 32) rows = (rows + 32 / lanes - 1) / (32 / lanes) * (32 / lanes);  // whole warps
  const dim3 block(static_cast<unsigned>(lanes), static_cast<unsigned>(lanes > 32 ? 1 : rows));
  return launch("rerope", rerope_kernel<kBits, V>, {dim3(static_cast<unsigned>(args.params.num_keys)), block}, execution.stream,
                args);
}

template <int kBits>
Status launch_elements(const ReropeArgs& args, const Execution& execution) {
  if (vectors_fit(args.params, 8)) return launch_vectors<kBits, 8>(args, execution);
  if (vectors_fit(args.params, 2)) return launch_vectors<kBits, 2>(args, execution);
  return launch_vectors<kBits, 1>(args, execution);
}

}  // namespace

Status rerope(const ReropeParams& p, const RotaryFrequencies& frequencies, const Execution& execution) {
  const Rope& rope = p.rope;
  const BlockLayout layout = {{static_cast<int32_t>(p.cache.k.head_dim), static_cast<int32_t>(rope.rotary_dim),
                               static_cast<int32_t>(rope.rotary_offset), rope.style},
                              static_cast<int32_t>(rope.num_blocks)};
  const ReropeArgs args = {
      p, frequencies, page_divider(p.cache.page_size), layout, hadamard_factor(p.hadamard_block), alignment_of(p)};
  switch (dtype_bits(p.cache.k.format.type)) {
    case 32: return launch_elements<32>(args, execution);
    case 16: return launch_elements<16>(args, execution);
    case 8: return launch_elements<8>(args, execution);
    default: return launch_elements<4>(args, execution);
  }
}

}  // namespace prologue::cuda
