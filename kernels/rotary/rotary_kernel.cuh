// The lean kernel does what is common: blockIdx.z and y are the sequence and the token, blockIdx.x and threadIdx.y the head of
// one tensor, threadIdx.x the unit (head_unit.cuh) within it. The general one does all: blockIdx.x is the token; the rows
// threadIdx.y of all blockIdx.y walk the heads of all tensors.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/rotary/rotary_token.h>
#include <prologue/kernels/base/head_unit.cuh>

namespace prologue::cuda {

inline constexpr int kMaxRotaryThreads = 288;  // a head of 576 channels, two a thread

// ---- a unit in its arithmetic -----------------------------------------------------------------------------------------------

template <class T>
using RotaryArithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T, int V>
__device__ inline RotaryArithmetic<T> rotary_element(const Packed<T, V>& packed, int i) {
  if constexpr (std::is_same_v<T, double>) {
    return __hiloint2double(static_cast<int>(packed.words[2 * i + 1]), static_cast<int>(packed.words[2 * i]));
  } else {
    return element<T, V>(packed, i);
  }
}

template <class T, int V>
__device__ inline Packed<T, V> rotary_pack(const RotaryArithmetic<T>* values) {
  if constexpr (std::is_same_v<T, double>) {
    Packed<T, V> packed;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      packed.words[2 * i] = static_cast<uint32_t>(__double2loint(values[i]));
      packed.words[2 * i + 1] = static_cast<uint32_t>(__double2hiint(values[i]));
    }
    return packed;
  } else {
    return pack<T, V>(values);
  }
}

// Rotates the V pairs of a unit; `turn(i)` is the rotation of its pair i.
template <class T, int V, class Turn>
__device__ inline void turn_unit(Unit<T, V>& unit, RopeStyle style, const Turn& turn) {
  using A = RotaryArithmetic<T>;
  A values[2 * V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    values[i] = rotary_element<T, V>(unit.a, i);
    values[V + i] = rotary_element<T, V>(unit.b, i);
  }
  if (style == RopeStyle::neox) {
#pragma unroll
    for (int i = 0; i < V; ++i) turn_pair<A>(values[i], values[V + i], turn(i));
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) turn_pair<A>(values[2 * i], values[2 * i + 1], turn(i));
  }
  unit.a = rotary_pack<T, V>(values);
  unit.b = rotary_pack<T, V>(values + V);
}

__device__ inline void report_rotary_fault(FaultRecord* faults, uint8_t* token_faults, int64_t t, FaultCode code) {
  cuda::record_fault(faults, t, code);
  if (token_faults != nullptr) token_faults[t] = static_cast<uint8_t>(code);
}

// ---- lean -------------------------------------------------------------------------------------------------------------------

// Strides in bytes; the host makes sure that they, and head * stride for every head, fit 32 bits.
struct LeanRotaryTensor {
  const char* x = nullptr;
  char* y = nullptr;
  uint32_t x_token = 0;
  uint32_t x_head = 0;
  uint32_t y_token = 0;
  uint32_t y_head = 0;
  int32_t heads = 0;
  int32_t turns = 0;
};

struct LeanRotaryBatch {
  int64_t x = 0;
  int64_t y = 0;
};

// One array decides the position of a token: the given positions, or the offsets (or none). What only some calls need comes last:
// a line of the constant bank that is not touched is not waited for.
struct LeanRotaryArgs {
  const char* index = nullptr;
  uint32_t index_batch = 0;  // bytes
  uint32_t index_token = 0;
  uint32_t index_step = 4;  // 4 or 8 bytes
  int32_t index_unsigned = 0;
  int32_t implicit = 0;  // position = token + offset + the entry
  int32_t per_token = 0;
  uint32_t first_token = 0;  // of the grid
  uint32_t seq_len = 0;
  int64_t offset = 0;
  int64_t last_position = INT64_MAX;  // that is not outside
  const char* cos = nullptr;
  const char* sin = nullptr;
  uint32_t cos_row = 0;
  uint32_t sin_row = 0;
  DType type = DType::f32;
  int32_t inverse = 0;
  HeadLayout layout;
  uint32_t first_block[kMaxRotaryTensors] = {};  // of blockIdx.x: a block keeps to one tensor
  LeanRotaryTensor tensors[kMaxRotaryTensors];
  LeanRotaryBatch batches[kMaxRotaryTensors];
  int64_t cos_batch = 0;
  int64_t sin_batch = 0;
  FaultRecord* faults = nullptr;
  uint8_t* token_faults = nullptr;
};

// V neighbours of a table, in 16 bytes at a time.
template <class A, class Stored, int V>
__device__ inline void load_table(const char* from, A* values) {
  constexpr int kSize = static_cast<int>(sizeof(Stored)), kEach = V * kSize > 16 ? 16 / kSize : V;
#pragma unroll
  for (int i = 0; i < V; i += kEach) {
    const Packed<Stored, kEach> packed = load_bytes<kEach * kSize, false>(from + i * kSize);
#pragma unroll
    for (int j = 0; j < kEach; ++j) values[i + j] = static_cast<A>(rotary_element<Stored, kEach>(packed, j));
  }
}

// cos and sin of V pairs, of any float type: kRuns runs of neighbours, `apart` columns from one to the next. One branch, so that
// no load waits for the conversion of another.
template <class A, int V, int kRuns>
__device__ inline void load_turns(DType type, const char* cos_row, const char* sin_row, uint32_t column, uint32_t apart, A* cos,
                                  A* sin) {
  const auto load = [&](auto stored) {
    using Stored = decltype(stored);
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const uint32_t at = (column + static_cast<uint32_t>(i) * apart) * static_cast<uint32_t>(sizeof(Stored));
      load_table<A, Stored, V / kRuns>(cos_row + at, cos + i * (V / kRuns));
      load_table<A, Stored, V / kRuns>(sin_row + at, sin + i * (V / kRuns));
    }
  };
  if (type == DType::f32) return load(float());
  if (type == DType::bf16) return load(__nv_bfloat16());
  if (type == DType::f16) return load(__half());
  return load(double());
}

// 32 x 32 -> 64 bits, one instruction.
__device__ inline uint64_t wide_product(uint32_t x, uint32_t y) { return static_cast<uint64_t>(x) * y; }

// As place_unit(), but the vectors of a unit are half of the rotated channels apart in either style (interleaved, each then holds
// V / 2 pairs), and half of the tail: neighbouring threads read and write neighbouring vectors. kWhole: there is no tail.
template <int V, RopeStyle kStyle, bool kWhole>
__device__ inline UnitPlace place_lean_unit(int unit, const HeadLayout& layout) {
  const int channel = unit * V, half = (kWhole ? layout.head_dim : layout.rotary_dim) / 2;
  const int pair = kStyle == RopeStyle::neox ? channel : channel / 2;
  if (kWhole) return {channel, channel + half, pair, true, true};
  if (channel < half) return {layout.rotary_offset + channel, layout.rotary_offset + channel + half, pair, true, true};
  const int tail = layout.head_dim - layout.rotary_dim, a = channel - half, b = a + (tail / V + 1) / 2 * V;
  const auto beside = [&](int i) { return i < layout.rotary_offset ? i : i + layout.rotary_dim; };
  return {beside(a), beside(b), -1, true, b < tail};
}

// kStreaming: what is touched is the first to leave the L2. The blocks of a token follow one another, so that memory is walked
// from end to end.
template <class T, int V, RopeStyle kStyle, bool kWhole, bool kStreaming>
__global__ void __launch_bounds__(kMaxRotaryThreads) lean_rotary_kernel(const __grid_constant__ LeanRotaryArgs p) {
  using A = RotaryArithmetic<T>;
  const uint32_t s = p.first_token + blockIdx.y, b = blockIdx.z;

  // The chain position -> table row -> result is the longest. So it starts first, and all loads of data are issued before its
  // first load returns. Padding rows are read too (they are rows of the same arrays), but not used. The two words of an entry are
  // used only afterwards: the sign of an int32 is that of its only word.
  uint32_t low = 0, high = 0;
  if (p.index != nullptr) {
    const char* at = p.index + wide_product(b, p.index_batch) + wide_product(s, p.index_token);
    low = *reinterpret_cast<const uint32_t*>(at);
    high = *reinterpret_cast<const uint32_t*>(at + (p.index_step >> 1 & 4));
  }

  const UnitPlace place = place_lean_unit<V, kStyle, kWhole>(static_cast<int>(threadIdx.x), p.layout);
  int which = 0;
#pragma unroll
  for (int i = 1; i < kMaxRotaryTensors; ++i) which += blockIdx.x >= p.first_block[i] ? 1 : 0;
  const LeanRotaryTensor& tensor = p.tensors[which];
  const int row_of_heads = static_cast<int>((blockIdx.x - p.first_block[which]) * blockDim.y + threadIdx.y);
  // Threads without a head read one that exists: a load that waits for a comparison comes late.
  const uint32_t h = static_cast<uint32_t>(min(row_of_heads, tensor.heads - 1));
  const char* x = tensor.x + wide_product(s, tensor.x_token) + h * tensor.x_head;
  if (b > 0) x += b * p.batches[which].x;
  Unit<T, V> unit = load_unit<kStreaming, T, V>(x, place);

  __syncwarp();  // keeps the assembler from moving loads of data behind the wait for the position

  // An unsigned number of 64 bits that int64 cannot hold becomes its largest value.
  if (p.index_step == 4) high = p.index_unsigned != 0 ? 0 : static_cast<uint32_t>(static_cast<int32_t>(low) >> 31);
  int64_t position = static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low);
  const bool negative = position < 0;
  if (negative & (p.index_unsigned != 0)) position = INT64_MAX;
  const bool padding = negative & (p.index_unsigned == 0) & (p.implicit == 0);
  if (p.implicit != 0) position = static_cast<int64_t>(static_cast<uint64_t>(position) + s + static_cast<uint64_t>(p.offset));
  const bool outside = !padding & ((position < 0) | (position > p.last_position));
  const uint32_t row = p.per_token != 0 ? s : (padding | outside) ? 0 : static_cast<uint32_t>(position);

  const bool rotated = kWhole || place.pair >= 0;
  A cos[V], sin[V];
  if (rotated) {
    const char* cos_row = p.cos + wide_product(row, p.cos_row);
    const char* sin_row = p.sin + wide_product(row, p.sin_row);
    if (b > 0) cos_row += b * p.cos_batch, sin_row += b * p.sin_batch;
    const uint32_t column = static_cast<uint32_t>(place.pair), apart = static_cast<uint32_t>(p.layout.rotary_dim) / 4;
    load_turns<A, V, kStyle == RopeStyle::neox ? 1 : 2>(p.type, cos_row, sin_row, column, apart, cos, sin);
    if (p.rope.inverse != 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) sin[i] = -sin[i];
    }
  }
  if (__builtin_expect(outside & ((blockIdx.x | threadIdx.y | threadIdx.x) == 0), 0)) {
    report_rotary_fault(p.faults, p.token_faults, static_cast<int64_t>(b) * p.seq_len + s, FaultCode::position_out_of_range);
  }
  if (row_of_heads >= tensor.heads | padding) return;
  if (rotated & (tensor.turns != 0)) {
    turn_unit<T, V>(unit, kStyle, [&](int i) { return PairTurn<A>{cos[i], sin[i], cos[i], sin[i]}; });
  }
  if (outside) unit = {};
  char* y = tensor.y + wide_product(s, tensor.y_token) + h * tensor.y_head;
  if (b > 0) y += b * p.batches[which].y;
  store_unit<kStreaming, T, V>(y, place, unit);
}

// ---- general ----------------------------------------------------------------------------------------------------------------

// Where the vectors of a unit are if there are several blocks of pairs. place_unit() does it for one block.
template <int V>
__device__ inline UnitPlace place_block_unit(int unit, const HeadLayout& layout, int num_blocks) {
  const int rotated = layout.rotary_dim / (2 * V);
  if (num_blocks == 1 || unit >= rotated) return place_unit<V>(unit, layout);
  const int units = rotated / num_blocks, block = unit / units, width = layout.rotary_dim / num_blocks;
  const HeadLayout one = {layout.head_dim, width, layout.rotary_offset + block * width, layout.style};
  UnitPlace place = place_unit<V>(unit % units, one);
  place.pair += block * (width / 2);
  return place;
}

template <class T, int V>
__device__ inline Unit<T, V> load_strided(const T* head, int64_t channel, const UnitPlace& place) {
  if constexpr (V == 1) {
    const UnitPlace first = {0, 0, place.pair, place.has_a, false}, second = {0, 0, place.pair, false, place.has_b};
    return {load_unit<false, T, V>(head + place.a * channel, first).a,
            load_unit<false, T, V>(head + place.b * channel, second).b};
  } else {
    return load_unit<false, T, V>(head, place);
  }
}

template <class T, int V>
__device__ inline void store_strided(T* head, int64_t channel, const UnitPlace& place, const Unit<T, V>& unit) {
  if constexpr (V == 1) {
    store_unit<false, T, V>(head + place.a * channel, {0, 0, place.pair, place.has_a, false}, unit);
    store_unit<false, T, V>(head + place.b * channel, {0, 0, place.pair, false, place.has_b}, unit);
  } else {
    store_unit<false, T, V>(head, place, unit);
  }
}

template <class A>
__device__ __noinline__ PairTurn<A> turn_of_pair_on_device(const RotaryParams& params, const RotaryFrequencies& frequencies,
                                                           const RotaryPlace& place, int pair) {
  return turn_of_pair<A>(params, &frequencies, place, pair);
}

// The heads of all tensors, one after another.
struct RotaryHead {
  int tensor;
  int head;
};

// The head `step` heads on; behind the last one its tensor is num_tensors.
__device__ inline RotaryHead rotary_head_after(const RotaryParams& p, RotaryHead at, int step) {
  at.head += step;
  while (at.tensor < p.num_tensors && at.head >= p.tensors[at.tensor].num_heads) {
    at.head -= static_cast<int>(p.tensors[at.tensor].num_heads);
    ++at.tensor;
  }
  return at;
}

// The threads of a block first compute the rotations of its token together. Shared memory holds them in four arrays: cos_a,
// sin_a, cos_b, sin_b. The next head is loaded while the current one is computed.
template <class T, int V>
__global__ void __launch_bounds__(kMaxRotaryThreads)
    general_rotary_kernel(const __grid_constant__ RotaryParams p, const __grid_constant__ RotaryFrequencies frequencies) {
  using A = RotaryArithmetic<T>;
  extern __shared__ __align__(16) char shared[];
  A* turns = reinterpret_cast<A*>(shared);
  const int pairs = static_cast<int>(p.rope.rotary_dim / 2), step = static_cast<int>(gridDim.y * blockDim.y);
  const int64_t token = blockIdx.x;
  const HeadLayout layout = {static_cast<int32_t>(p.head_dim), static_cast<int32_t>(p.rope.rotary_dim),
                             static_cast<int32_t>(p.rope.rotary_offset), p.rope.style};
  const UnitPlace place = place_block_unit<V>(static_cast<int>(threadIdx.x), layout, static_cast<int>(p.rope.num_blocks));
  const bool rotated = place.pair >= 0;
  const RotaryHead first = rotary_head_after(p, {0, 0}, static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y));

  for (int64_t batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
    const auto load = [&](const RotaryHead& at) {
      if (at.tensor >= p.num_tensors) return Unit<T, V>{};
      const RotaryTensor& tensor = p.tensors[at.tensor];
      const RotaryStrides& strides = tensor.x_strides;
      const T* x = static_cast<const T*>(tensor.x) + batch * strides.batch + token * strides.token + at.head * strides.head;
      return load_strided<T, V>(x, strides.channel, place);
    };
    Unit<T, V> next = load(first);
    const RotaryPlace where = place_rotary_token(p, batch, token);
    if (where.padding) continue;
    const bool outside = where.fault != FaultCode::none;
    if (outside && (blockIdx.y | threadIdx.y | threadIdx.x) == 0) {
      report_rotary_fault(p.faults, p.token_faults, batch * p.seq_len + token, where.fault);
    }
    __syncthreads();  // the rotations of the previous sequence have been read
    if (!outside && where.rotated) {
      for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < pairs;
           i += static_cast<int>(blockDim.x * blockDim.y)) {
        const PairTurn<A> turn = turn_of_pair_on_device<A>(p, frequencies, where, i);
        turns[i] = turn.cos_a;
        turns[pairs + i] = turn.sin_a;
        turns[2 * pairs + i] = turn.cos_b;
        turns[3 * pairs + i] = turn.sin_b;
      }
    }
    __syncthreads();

    PairTurn<A> of_unit[V];
#pragma unroll
    for (int n = 0; n < V; ++n) {
      const A* turn = turns + (rotated ? place.pair + n : 0);
      if (rotated) of_unit[n] = {turn[0], turn[pairs], turn[2 * pairs], turn[3 * pairs]};
    }
    for (RotaryHead at = first; at.tensor < p.num_tensors;) {
      const RotaryTensor& tensor = p.tensors[at.tensor];
      const RotaryStrides& strides = tensor.y_strides;
      T* y = static_cast<T*>(tensor.y) + batch * strides.batch + token * strides.token + at.head * strides.head;
      Unit<T, V> unit = next;
      at = rotary_head_after(p, at, step);
      next = load(at);
      const bool tail = tensor.rotate && !rotated;
      if (tail && p.tail == RotaryTail::leave) continue;
      if (tensor.rotate && rotated && where.rotated) turn_unit<T, V>(unit, p.rope.style, [&](int n) { return of_unit[n]; });
      if (outside || (tail && p.tail == RotaryTail::zero)) unit = {};
      store_strided<T, V>(y, strides.channel, place, unit);
    }
  }
}

}  // namespace prologue::cuda
