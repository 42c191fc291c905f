// blockIdx.x is the token; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head; the rows threadIdx.y of all blockIdx.y walk
// the heads of q, k and v, kUnits neighbouring heads of one tensor each. The lanes of a head are a power of two of one warp, warps are full,
// and each keeps to one tensor.
//
// This schedule does what attention_prologue.h describes, for one call: what is fixed of the call (CallFacts) is constant where a kernel is
// compiled on demand, and what the call does not need is then not there. Where the kernels are emulated, the facts are arguments, so that
// one instance runs every call. The loads are in the order of the chain index -> row of cos and sin, as in lean/steps_schedule.cuh.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/described/args.h>
#include <prologue/kernels/attention_prologue/described/call_facts.h>
#include <prologue/kernels/attention_prologue/steps/query_factor.h>
#include <prologue/kernels/base/shared/angle.h>
#include <prologue/kernels/base/shared/block_scale.h>
#include <prologue/kernels/attention_prologue/lean/steps.cuh>
#include <prologue/kernels/attention_prologue/sequence_search.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/base/device/pending_index.cuh>

namespace prologue::cuda {

// Where the facts are constants. What loops over the tensors is computed by the compiler, so that nothing keeps the facts in memory.
template <PackedFacts kPacked>
struct KnownFacts {
  using Args = DescribedArgs;
  static constexpr CallFacts kFacts = __builtin_bit_cast(CallFacts, kPacked);
  static constexpr bool kCooperate = lanes_cooperate(kFacts);
  static constexpr bool kMayHaveBlocks = has_blocks(kFacts);
  template <int kUnits, int kHints>
  static constexpr bool kGroups = groups_tokens(kFacts, kUnits, kHints);
  template <int V>
  static constexpr int kLanes = lanes_of_head(kFacts, V);
  template <int V>
  static constexpr bool kInOrder = in_order(kFacts, V);

  __device__ static constexpr CallFacts of(const Args&) { return kFacts; }
  template <int V>
  __device__ static constexpr int lanes(const Args&) {
    return kLanes<V>;
  }
  template <int V>
  __device__ static constexpr bool ordered(const Args&) {
    return kInOrder<V>;
  }
  __device__ static constexpr bool cooperate(const Args&) { return kCooperate; }
  template <int kUnits, int kHints>
  __device__ static constexpr bool groups(const Args&) {
    return kGroups<kUnits, kHints>;
  }
};

struct ArgsWithFacts : DescribedArgs {
  CallFacts facts;
};

// Where they are arguments.
struct FactsOfArgs {
  using Args = ArgsWithFacts;
  static constexpr bool kMayHaveBlocks = true;
  __device__ static const CallFacts& of(const Args& p) { return p.facts; }
  template <int V>
  __device__ static int lanes(const Args& p) {
    return lanes_of_head(p.facts, V);
  }
  template <int V>
  __device__ static bool ordered(const Args& p) {
    return in_order(p.facts, V);
  }
  __device__ static bool cooperate(const Args& p) { return lanes_cooperate(p.facts); }
  template <int kUnits, int>
  __device__ static bool groups(const Args& p) {
    return kUnits == 1 && p.group.tokens != 0;
  }
};

// A selection of members, of which those that are the same for all tensors stay constants.
__device__ inline HeadFacts facts_of_tensor(const CallFacts& facts, int tensor) {
  HeadFacts head = facts.heads[2];
  if (tensor == 1) head = facts.heads[1];
  if (tensor == 0) head = facts.heads[0];
  return head;
}

// ---- the token ----------------------------------------------------------------------------------------------------------------

__device__ inline TokenArgs token_args_of(const DescribedArgs& p, const CallFacts& facts) {
  TokenArgs known = p.token;
  known.positions = {p.positions, facts.positions};
  known.slots = {p.slots, facts.slots};
  known.max_position = p.max_position;
  known.num_slots = p.num_slots;
  known.narrow_slots = 1;
  known.num_axes = facts.num_axes;
  known.past_table = facts.past_table;
  known.derive_position = facts.derives_position;
  known.derive_slot = facts.derives_slot;
  const bool derives = facts.derives_position != 0 || facts.derives_slot != 0;
  known.sequences = {p.num_seqs, facts.length_of, derives ? p.cu_seqlens_q : nullptr, p.lengths};
  known.needs_pages = facts.derives_slot != 0 || (derives && facts.length_of == LengthOf::last_page) ? 1 : 0;
  if (facts.lists_pages == 0) known.page_table.kv_indptr = nullptr;
  known.pages = p.pages;
  if (facts.in_ring == 0) known.ring_size = 0;
  known.position_offsets.type = facts.position_offsets;
  if (facts.position_offsets == DType::unset) known.position_offsets.data = nullptr;
  known.position_offset_per_seq = facts.offset_per_sequence;
  return known;
}

// Loads the entries of a token, and of the sequence that it has in a step of single tokens. All loads are in flight before the first is used.
// The whole warp works for one token.
struct DescribedIndices {
  const TokenArgs& p;
  const CallFacts& facts;
  int64_t t;
  int lane_of_warp;
  PendingIndex positions[kMaxAxes] = {};
  PendingIndex at_slot = {0xffffffffu, 0xffffffffu};
  TokenSequence guess = {};
  int32_t guessed_begin = 0, guessed_end = 0;  // of its pages
  int64_t guessed_offset = 0;

  __device__ DescribedIndices(const TokenArgs& args, const CallFacts& of_call, int64_t token, int lane)
      : p(args), facts(of_call), t(token), lane_of_warp(lane) {
    if (facts.derives_position != 0 || facts.derives_slot != 0) {
      guess = sequence_at(p.sequences, static_cast<int>(min(t, static_cast<int64_t>(p.sequences.num_seqs) - 1)));
      if (p.needs_pages != 0 && facts.lists_pages != 0) {
        guessed_begin = p.page_table.kv_indptr[guess.index], guessed_end = p.page_table.kv_indptr[guess.index + 1];
      }
      if (facts.position_offsets != DType::unset) guessed_offset = position_offset_of(p, guess);
    }
    if (facts.positions != DType::unset) {
      positions[0] = load(p.positions, facts.positions, t);
#pragma unroll
      for (int axis = 1; axis < kMaxAxes; ++axis) {
        positions[axis] =
            axis < facts.num_axes ? load(p.positions, facts.positions, axis * p.position_axis_stride + t) : positions[0];
      }
    }
    if (facts.slots != DType::unset && (facts.fewer_slots == 0 || t < p.slots_given)) at_slot = load(p.slots, facts.slots, t);
  }

  __device__ static uint32_t step_of(DType type) { return type == DType::int64 ? 8 : 4; }
  __device__ static PendingIndex load(const IndexView& view, DType type, int64_t i) {
    return load_index(static_cast<const char*>(view.data), step_of(type), static_cast<uint64_t>(i));
  }
  __device__ int64_t position(int axis) const { return positions[axis].value(step_of(facts.positions)); }
  __device__ int64_t slot() const { return at_slot.value(step_of(facts.slots)); }
  __device__ TokenSequence sequence() const {
    return guess.begin <= t && t < guess.end ? guess : search_sequence(p.sequences, t, lane_of_warp);
  }
  __device__ PageRow page_row(const TokenSequence& sequence) const {
    if (facts.lists_pages == 0) return table_row(p.page_table, sequence.index);
    int32_t begin = guessed_begin, end = guessed_end;
    if (sequence.index != guess.index) {
      begin = p.page_table.kv_indptr[sequence.index], end = p.page_table.kv_indptr[sequence.index + 1];
    }
    return listed_row(p.page_table, begin, end);
  }
  __device__ int64_t position_offset(const TokenSequence& sequence) const {
    return sequence.index == guess.index ? guessed_offset : position_offset_of(p, sequence);
  }
};

// The column of a unit's first pair in the row of its block, whose pairs the unit does not leave.
__device__ inline int column_of(const CallFacts& facts, int pair) {
  return facts.num_blocks == 1 ? pair : pair % (facts.rotary_dim / (2 * facts.num_blocks));
}

// Calls f(i, position) for each pair of a unit: that on the pair's axis.
template <int V, class F>
__device__ inline void with_positions(const DescribedArgs& p, const CallFacts& facts, const ResolvedToken& token, int pair,
                                      const F& f) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    int axis = 0;
    if (facts.num_axes > 1)
      axis = facts.has_pair_axis != 0 ? p.pair_axis[pair + i] : pair / (facts.rotary_dim / (2 * facts.num_blocks));
    f(i, static_cast<uint32_t>(facts.num_axes > 1 ? position_on_axis(token.positions, axis) : token.positions[0]));
  }
}

// Loads cos and sin of a unit's pairs from rows of the type Stored.
template <class Stored, int V, bool kKeep>
__device__ inline UnitAngles<V> angles_of_rows(const DescribedArgs& p, const CallFacts& facts, const ResolvedToken& token,
                                               uint32_t t, int pair) {
  const int column = column_of(facts, pair);
  const auto row = [&](const char* table, uint32_t stride, uint32_t number) {
    return reinterpret_cast<const Stored*>(table + wide_product(stride, number)) + column;
  };
  if (facts.source == RopeSource::table && facts.num_axes > 1 && facts.has_pair_axis != 0) {
    UnitAngles<V> angles;
    with_positions<V>(p, facts, token, pair, [&](int i, uint32_t position) {
      angles.cos[i] = to_float(row(p.cos, p.cos_row, position)[i]);
      angles.sin[i] = to_float(row(p.sin, p.sin_row, position)[i]);
    });
    return angles;
  }
  uint32_t number = t;
  if (facts.source == RopeSource::table) {
    with_positions<1>(p, facts, token, pair, [&](int, uint32_t position) { number = position; });
  }
  return load_angles<V, kKeep>(row(p.cos, p.cos_row, number), row(p.sin, p.sin_row, number));
}

// Those of all pairs of a head, which the threads of a block compute together: each pair once.
struct ComputedAngles {
  float cos[kMaxHeadDim / 2];
  float sin[kMaxHeadDim / 2];
};

// All threads of the block must be here.
__device__ inline void compute_angles(const DescribedArgs& p, const CallFacts& facts, const ResolvedToken& token,
                                      ComputedAngles& angles) {
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  for (int pair = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); pair < facts.rotary_dim / 2; pair += threads) {
    with_positions<1>(p, facts, token, pair, [&](int, uint32_t position) {
      const CosSin value = cos_sin_of(static_cast<int32_t>(position), p.inv_freq[column_of(facts, pair)]);
      angles.cos[pair] = multiply_rounded(value.cos, p.attention_factor);
      angles.sin[pair] = multiply_rounded(value.sin, p.attention_factor);
    });
  }
  __syncthreads();
}

// `kKeep` as in lean/token.cuh.
template <int V, bool kKeep>
__device__ inline UnitAngles<V> angles_of_token(const DescribedArgs& p, const CallFacts& facts, const ResolvedToken& token,
                                                uint32_t t, int pair, const ComputedAngles& computed) {
  UnitAngles<V> angles;
  if (facts.source == RopeSource::inv_freq) {
    angles = load_angles<V>(computed.cos + pair, computed.sin + pair);
  } else if (facts.table == DType::f16) {
    angles = angles_of_rows<__half, V, kKeep>(p, facts, token, t, pair);
  } else if (facts.table == DType::bf16) {
    angles = angles_of_rows<__nv_bfloat16, V, kKeep>(p, facts, token, t, pair);
  } else {
    angles = angles_of_rows<float, V, kKeep>(p, facts, token, t, pair);
  }
  if (facts.inverse != 0) {
#pragma unroll
    for (float& sin : angles.sin) sin = -sin;
  }
  return angles;
}

// ---- the heads of a thread ------------------------------------------------------------------------------------------------------

// Where a thread's heads are, and what is fixed of them.
template <class T, int V>
struct DescribedHeads {
  const CallFacts& facts;
  const HeadFacts& head;
  const DescribedTensor& tensor;
  const UnitChannels& place;
  const BlockLayout& layout;
  uint32_t first;
  bool is_q;

  // Heads past the last read the last.
  __device__ uint32_t existing(int n) const {
    return min(first + static_cast<uint32_t>(n), static_cast<uint32_t>(tensor.heads - 1));
  }

  template <bool kHinted>
  __device__ Unit<T, V> load(uint32_t t, int n) const {
    const char* in = tensor.in + wide_product(tensor.in_token, t) + existing(n) * tensor.in_head;
    UnitChannels from = place;
    if (head.apart != 0) {
      if (place.pair >= 0) in = tensor.rotated_in + wide_product(tensor.rotated_token, t) + existing(n) * tensor.rotated_head;
      from.a = channel_apart(place, place.a, layout);
      from.b = channel_apart(place, place.b, layout);
    }
    return load_unit<kHinted, T, V>(in, from, head.in_alignment);
  }
  __device__ Unit<T, V> bias(int n) const {
    return load_unit<false, T, V>(
        tensor.bias + existing(n) * static_cast<uint32_t>(head.width) * static_cast<uint32_t>(sizeof(T)), place);
  }
  // Of the norm: its weight or its bias, of the heads from number n on.
  __device__ WeightUnit<T, V> weight(const char* values, int n) const {
    WeightUnit<T, V> unit;
    unit.load(head.weights_of_head != 0 ? values + existing(n) * tensor.weight_head : values, place, head.float_weights != 0);
    return unit;
  }
  __device__ float given_scale(int n) const {
    return *reinterpret_cast<const float*>(tensor.scale + existing(n) * tensor.scale_head);
  }
};

// The constants of the heads that a thread computes at once.
template <class T, int V, int kHeads>
struct HeadConstants {
  Unit<T, V> bias[kHeads];
  WeightUnit<T, V> weight;
  WeightUnit<T, V> norm_bias;
};

// Says which steps kHeads heads from number `first` of a thread on have. If `kEarly`, the loads of constants are in flight before the token is
// known; otherwise they are loaded where they are used, which takes fewer registers. Calling `Angles` returns cos and sin.
template <class T, int V, int kHeads, bool kEarly, class Angles>
struct DescribedSteps : NoSteps<T, V> {
  static constexpr bool kHasEveryStep = true;
  const DescribedHeads<T, V>& of;
  const HeadFacts& head;
  int first;
  const Unit<T, V>* data;
  const HeadConstants<T, V, kHeads>& early;
  const Angles& load_angles;
  bool rotated;
  float scale;
  float sum_of_token = 0.0f;

  __device__ DescribedSteps(const DescribedHeads<T, V>& heads, int number, const Unit<T, V>* loaded,
                            const HeadConstants<T, V, kHeads>& constants, const Angles& angles, bool rotates, float factor)
      : of(heads),
        head(heads.head),
        first(number),
        data(loaded),
        early(constants),
        load_angles(angles),
        rotated(rotates),
        scale(factor) {}

  __device__ UnitValues<V> values(int n) const { return widen<T, V>(data[n]); }
  __device__ bool biased() const { return head.biased != 0; }
  __device__ Unit<T, V> bias(int n) const { return kEarly ? early.bias[n] : of.bias(first + n); }
  __device__ NormPlacement norm() const { return head.norm; }
  __device__ bool layer_norm() const { return head.kind == NormKind::layer; }
  __device__ bool norm_of_token() const { return head.scope == NormScope::token; }
  __device__ float token_sum() const { return sum_of_token; }
  __device__ float inverse_count() const { return of.tensor.inverse_count; }
  __device__ float eps() const { return of.tensor.eps; }
  __device__ bool weighted() const { return head.weighted != 0; }
  __device__ UnitValues<V> weight() const {
    const WeightUnit<T, V> unit = kEarly ? early.weight : of.weight(of.tensor.weight, first);
    return norm_factors<V>(unit.values(head.float_weights != 0), of.tensor.weight_offset);
  }
  __device__ bool norm_biased() const { return head.norm_biased != 0; }
  __device__ UnitValues<V> norm_bias() const {
    return (kEarly ? early.norm_bias : of.weight(of.tensor.norm_bias, first)).values(head.float_weights != 0);
  }
  __device__ bool rotates() const { return rotated; }
  __device__ UnitAngles<V> angles() const { return load_angles(); }
  __device__ RopeStyle style() const { return of.facts.style; }
  __device__ HeadPlan plan() const {
    HeadPlan plan;
    plan.hadamard_block = head.hadamard_block;
    plan.hadamard_factor = of.tensor.hadamard_factor;
    return plan;
  }
  __device__ bool scales() const { return head.scaled != 0; }
  __device__ float factor() const { return scale; }
  __device__ bool rounds() const { return of.facts.rounds != 0; }

  // Otherwise the heads are copies.
  __device__ bool changes() const {
    return biased() || norm() != NormPlacement::none || rotated || scales() || head.hadamard_block != 0;
  }
};

// Where a thread stores its unit of heads of one tensor: the token's row of q, or its slot of the cache.
template <class T, int V>
struct DescribedStore {
  const DescribedHeads<T, V>& of;
  const HeadFacts& head;
  bool inside;
  bool writes;
  bool zero;
  uint32_t page;
  uint32_t offset;

  __device__ DescribedStore(const DescribedHeads<T, V>& heads, const ResolvedToken& token, uint32_t t, bool has_unit)
      : of(heads),
        head(heads.head),
        inside(has_unit),
        writes(has_unit && head.has_out != 0 && (heads.is_q || token.reaches_cache)),
        zero(token.zero),
        page(heads.is_q ? 0 : static_cast<uint32_t>(token.page)),
        offset(heads.is_q ? t : token.offset) {}

  __device__ bool is_head(int n) const { return static_cast<int>(of.first) + n < of.tensor.heads; }
  __device__ bool stores(int n) const { return writes && is_head(n); }
  __device__ char* row(int n) const {
    return of.tensor.out + wide_product(of.tensor.out_page, page) + wide_product(of.tensor.out_token, offset) +
           (of.first + static_cast<uint32_t>(n)) * of.tensor.out_head;
  }
  __device__ float* scale_of(int n) const {
    return reinterpret_cast<float*>(of.tensor.scale + wide_product(of.tensor.scale_page, page) +
                                    wide_product(of.tensor.scale_token, offset) +
                                    (of.first + static_cast<uint32_t>(n)) * of.tensor.scale_head);
  }

  // Stores a head in k_out or v_out.
  __device__ void store_second(int n, uint32_t t, const Unit<T, V>& unit) const {
    if (!inside || !is_head(n)) return;
    char* to = of.tensor.second_out + wide_product(of.tensor.second_token, t) +
               (of.first + static_cast<uint32_t>(n)) * of.tensor.second_head;
    store_unit<false, T, V>(to, of.place, zero ? Unit<T, V>() : unit, head.second_alignment);
  }

  // Stores a head that is not quantised. `unit` has it in the type of the data.
  template <bool kHinted>
  __device__ void store(int n, const UnitValues<V>& values, const Unit<T, V>& unit) const {
    if (!stores(n)) return;
    const UnitValues<V> stored = zero ? UnitValues<V>() : values;
    switch (head.store) {
      case DType::f32: return store_unit<false, float, V>(row(n), of.place, narrow<float, V>(stored), head.out_alignment);
      case DType::f16: return store_unit<false, __half, V>(row(n), of.place, narrow<__half, V>(stored), head.out_alignment);
      case DType::bf16:
        return store_unit<false, __nv_bfloat16, V>(row(n), of.place, narrow<__nv_bfloat16, V>(stored), head.out_alignment);
      default: break;
    }
    const Unit<T, V> as_data = zero ? Unit<T, V>() : unit;
    if (kHinted && of.is_q) return store_unit<true, T, V>(row(n), of.place, as_data, head.out_alignment);
    store_unit<false, T, V>(row(n), of.place, as_data, head.out_alignment);
  }

  // Stores kHeads heads from head `first` on in a block-scaled format. All lanes of the heads must be here; a block is of neighbouring lanes, in each
  // half of the head.
  template <int kHeads>
  __device__ void store_blocks(int first, const UnitValues<V> (&values)[kHeads]) const {
    const KvFormat format = {head.store, head.block_scaling};
    const int channels = static_cast<int>(block_channels(format)), lanes_of_block = channels / V;
    const int lane = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x) % 32;
    const float tensor_scale = tensor_scale_of(format, reinterpret_cast<const float*>(of.tensor.scale));
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      UnitValues<V> scaled;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const x = values[n].x + half * V;
        uint32_t largest = 0;
#pragma unroll
        for (int i = 0; i < V; ++i) largest = max(largest, magnitude_bits(x[i]));
        for (int apart = 1; apart < lanes_of_block; apart *= 2)
          largest = max(largest, __shfl_xor_sync(kWholeWarp, largest, apart));
        const BlockScale scale = block_scale_of(zero ? 0 : largest, format, tensor_scale);
        const bool nothing = zero || scale.reciprocal == 0.0f;
#pragma unroll
        for (int i = 0; i < V; ++i) scaled.x[half * V + i] = nothing ? 0.0f : multiply_rounded(x[i], scale.reciprocal);
        if (lane % lanes_of_block != 0 || !stores(first + n)) continue;
        uint8_t* const scales = of.tensor.block_scale + wide_product(of.tensor.scale_page, page) +
                                (of.first + static_cast<uint32_t>(first + n)) * of.tensor.scale_head;
        const int block = (half == 0 ? of.place.a : of.place.b) / channels;
        scales[block_scale_offset(head.block_scale_layout, of.tensor.scale_token, offset, block, head.width / channels)] =
            scale.code;
      }
      if (!stores(first + n)) continue;
      if (head.store == DType::fp8_e4m3) {
        store_unit_8<V>(row(first + n), of.place, to_8_bits<V>(scaled, head.store), head.out_alignment);
      } else if constexpr (V > 1) {
        const auto codes = [](const float* x) {
          Bytes<V / 2> bytes = {};
#pragma unroll
          for (int i = 0; i < V; ++i) bytes.words[0] |= uint32_t{to_fp4_e2m1(x[i])} << (4 * i);
          return bytes;
        };
        store_bytes<V / 2, false>(row(first + n) + of.place.a / 2, codes(scaled.x));
        store_bytes<V / 2, false>(row(first + n) + of.place.b / 2, codes(scaled.x + V));
      }
    }
  }

  // Stores kHeads heads from head `first` on in 8 or 4 bits. All lanes of the heads must be here.
  template <int kHeads, class Lanes>
  __device__ void store_quantised(int first, const UnitValues<V> (&values)[kHeads], const float (&given)[kHeads],
                                  const Lanes& lanes) const {
    AsymmetricScale scales[kHeads];
    if (head.store == DType::uint4) {
      lanes.asymmetric_scales(values, of.place, scales);
    } else if (head.scale_from == ScaleFrom::computed) {
      HeadScale computed[kHeads];
      lanes.largest(
          values, [&](uint32_t largest) { return computed_scale(largest, kv_largest(head.store)); }, computed);
#pragma unroll
      for (int n = 0; n < kHeads; ++n) static_cast<HeadScale&>(scales[n]) = computed[n];
    } else if (head.scale_from == ScaleFrom::given) {
#pragma unroll
      for (int n = 0; n < kHeads; ++n) static_cast<HeadScale&>(scales[n]) = given_scale(given[n]);
    }
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      if (zero) scales[n].scale = scales[n].reciprocal = scales[n].zero_point = 0.0f;
      if (head.scale_from == ScaleFrom::computed && lanes.lane == 0 && stores(first + n)) {
        float* const stored = scale_of(first + n);  // of any stride: not one vector
        stored[0] = scales[n].scale;
        if (head.store == DType::uint4) stored[1] = scales[n].zero_point;
      }
      if (is_packed(head.store)) {
        if constexpr (V > 1) {
          if (stores(first + n)) store_unit_4<V>(row(first + n), of.place, values[n], scales[n], head.store);
        }
      } else {
        const UnitBytes<V> bytes = quantise<V>(values[n], scales[n].reciprocal, head.store);
        if (stores(first + n)) store_unit_8<V>(row(first + n), of.place, bytes, head.out_alignment);
      }
    }
  }
};

// kTogether: the heads of a thread are computed at once, so that what their lanes do together they do once. This needs heads whose
// channels are in order, and one norm for all of them. A block has at most kThreads threads; so many blocks share an SM.
template <class T, int V, int kUnits, bool kTogether, int kHints, int kThreads, int kBlocks, class Facts>
__global__ void __launch_bounds__(kThreads, kBlocks) described_prologue_kernel(const __grid_constant__ typename Facts::Args p) {
  wait_for_previous_kernels();  // the launch overlaps them
  constexpr bool kHintedLoads = (kHints & kEvictFirstLoads) != 0;
  constexpr bool kHintedStores = (kHints & kEvictFirstStores) != 0;
  constexpr bool kEarly = kUnits == 1 && !kHintedStores;  // few tokens
  constexpr int kAtOnce = kTogether ? kUnits : 1;
  const auto& facts = Facts::of(p);
  const bool over_token = normed_over_token(facts), mixed = kUnits > 1 || over_token;  // a block works on several tensors
  const bool groups = Facts::template groups<kUnits, kHints>(p);
  TensorHead at = {0, 0};
  uint32_t t = blockIdx.x;
  if (groups) t = token_of_group(p, at);

  const TokenArgs token_args = token_args_of(p, facts);
  const DescribedIndices indices(token_args, facts, t, static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x) % 32);

  const int lane = static_cast<int>(threadIdx.x) & (Facts::template lanes<V>(p) - 1);
  if (!groups) {
    at = mixed ? heads_of<kUnits, true>(p, blockIdx.y, threadIdx.y, blockDim.y)
               : heads_of<kUnits, false>(p, blockIdx.y, threadIdx.y, blockDim.y);
  }
  const HeadFacts head = facts_of_tensor(facts, at.tensor);
  const BlockLayout layout = layout_of(head);
  // Where channels are in order, idle lanes do what lane 0 does, but store nothing.
  const bool ordered = kTogether || (V > 1 && Facts::template ordered<V>(p)),
             inside = !ordered || lane < facts.heads[0].width / (2 * V);
  const UnitChannels place = channels_of_unit<V>(inside ? lane : 0, layout);
  const DescribedHeads<T, V> heads = {facts,         head, p.tensors[at.tensor], place, layout, static_cast<uint32_t>(at.head),
                                      at.tensor == 0};

  Unit<T, V> data[kUnits];
#pragma unroll
  for (int n = 0; n < kUnits; ++n) data[n] = heads.template load<kHintedLoads>(t, n);
  HeadConstants<T, V, kAtOnce> constants;
  float scales[kAtOnce] = {};
  if (kEarly) {
    if (head.biased != 0) constants.bias[0] = heads.bias(0);
    if (head.norm != NormPlacement::none && head.weighted != 0) constants.weight = heads.weight(heads.tensor.weight, 0);
    if (head.norm != NormPlacement::none && head.norm_biased != 0) constants.norm_bias = heads.weight(heads.tensor.norm_bias, 0);
    if (head.scale_from == ScaleFrom::given) scales[0] = heads.given_scale(0);
  }

  __syncwarp();  // keeps the assembler from moving loads behind the wait for an index
  SlotFacts slot;
  ResolvedToken token = resolve_positions(token_args, indices, t, slot);
  if (token.padding && !groups) return;
  const bool padding = groups && token.padding;  // other tokens of the warp go on
  const bool rotated = head.rotates != 0 && place.pair >= 0 && token.rotated && !token.zero && !padding;
  __shared__ ComputedAngles computed;
  if (facts.source == RopeSource::inv_freq && token.rotated && !token.zero) compute_angles(p, facts, token, computed);
  const bool late_angles = kUnits > 1 && head.norm != NormPlacement::none;  // the norm needs their registers
  UnitAngles<V> early_angles;
  if (rotated && !late_angles) early_angles = angles_of_token<V, (kUnits > 1)>(p, facts, token, t, place.pair, computed);
  const auto angles = [&] {
    return late_angles ? angles_of_token<V, (kUnits > 1)>(p, facts, token, t, place.pair, computed) : early_angles;
  };
  float factor = 1.0f;
  if (head.scaled != 0 && heads.is_q) {
    QueryScale scale = p.q_scale;
    scale.by_position = facts.by_position;
    factor = query_factor(scale, token.positions[0]);
  } else if (head.scaled != 0) {
    factor = heads.tensor.constant;
  }
  resolve_slot(token_args, indices, slot, token);

  const DescribedStore<T, V> store(heads, token, t, inside && !padding);
  const auto with_lanes = [&](const auto& lanes) {
#pragma unroll
    for (int first = 0; first < kUnits; first += kAtOnce) {
      DescribedSteps<T, V, kAtOnce, kEarly, decltype(angles)> steps(heads, first, data + first, constants, angles, rotated,
                                                                    factor);
      if constexpr (kUnits == 1) {
        if (over_token) steps.sum_of_token = sum_token<T, V>(p, steps, lanes, at.tensor);
      }
      if (!kEarly && head.scale_from == ScaleFrom::given) {
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) scales[n] = heads.given_scale(first + n);
      }
      UnitValues<V> values[kAtOnce];
      finish_head<T, V>(values, steps, lanes);
      const auto as_data = [&](int n) { return steps.changes() ? narrow<T, V>(values[n]) : data[first + n]; };
      if (head.has_second_out != 0) {
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) store.store_second(first + n, t, as_data(n));
      }
      if constexpr (Facts::kMayHaveBlocks) {  // a larger body keeps the compiler from making constants of the facts
        if (head.scale_from == ScaleFrom::blocks) {
          store.template store_blocks<kAtOnce>(first, values);
          continue;
        }
      }
      if (dtype_is_quantized(head.store)) {
        store.store_quantised(first, values, scales, lanes);
      } else {
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) store.template store<kHintedStores>(first + n, values[n], as_data(n));
      }
    }
  };
  const WarpLanes<V> whole = {lane, Facts::template lanes<V>(p), inside};
  if constexpr (kTogether) {
    with_lanes(whole);
  } else if constexpr (V == 1) {
    with_lanes(LayoutLanes<V, BlockLayout>{whole, place, layout});
  } else if (ordered || !Facts::cooperate(p)) {
    with_lanes(whole);
  } else {
    with_lanes(LayoutLanes<V, BlockLayout>{whole, place, layout});
  }
  const bool records = groups ? records_faults(p, at) : (blockIdx.y | threadIdx.y | threadIdx.x) == 0;
  if (token.fault != FaultCode::none && !padding && records) {
    cuda::record_fault(p.faults, p.token_faults, t, token.fault);
  }
}

}  // namespace prologue::cuda
