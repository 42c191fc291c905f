// blockIdx.x is the token; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head, lanes being padded to a power
// of two; the rows threadIdx.y of all blockIdx.y walk the heads of q, k, v and the groups. A head of more than 32 lanes has a block to
// itself, a norm over the whole token a block for the token.
//
// This kernel does everything that attention_prologue.h describes, decided at run time.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/steps/query_factor.h>
#include <prologue/kernels/base/shared/angle.h>
#include <prologue/kernels/base/shared/block_scale.h>
#include <prologue/kernels/base/shared/rope_pairs.h>
#include <prologue/kernels/attention_prologue/sequence_search.cuh>
#include <prologue/kernels/attention_prologue/steps/head_steps.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/base/device/pending_index.cuh>

namespace prologue::cuda {

// Loads the index arrays' entries of a token. All loads are in flight before the first is used. The whole warp works for one token.
struct TokenIndices {
  const TokenArgs& p;
  int64_t t;
  int lane_of_warp;
  uint32_t position_step, slot_step;
  PendingIndex positions[kMaxAxes] = {};
  PendingIndex at_slot = {0xffffffffu, 0xffffffffu};

  __device__ TokenIndices(const TokenArgs& args, int64_t token, int lane)
      : p(args), t(token), lane_of_warp(lane), position_step(step_of(args.positions)), slot_step(step_of(args.slots)) {
#pragma unroll
    for (int axis = 0; axis < kMaxAxes; ++axis) {
      const int64_t row = axis < p.num_axes ? axis : 0;
      if (p.positions.data != nullptr) positions[axis] = load(p.positions, position_step, row * p.position_axis_stride + t);
    }
    if (p.slots.data != nullptr && t < p.slots_given) at_slot = load(p.slots, slot_step, t);
  }

  __device__ static uint32_t step_of(const IndexView& view) { return view.type == DType::int64 ? 8 : 4; }
  __device__ static PendingIndex load(const IndexView& view, uint32_t step, int64_t i) {
    return load_index(static_cast<const char*>(view.data), step, static_cast<uint64_t>(i));
  }
  __device__ int64_t position(int axis) const { return positions[axis].value(position_step); }
  __device__ int64_t slot() const { return at_slot.value(slot_step); }
  __device__ TokenSequence sequence() const { return find_sequence(p.sequences, t, lane_of_warp); }
  __device__ PageRow page_row(const TokenSequence& sequence) const { return prologue::page_row(p.page_table, sequence.index); }
  __device__ int64_t position_offset(const TokenSequence& sequence) const { return position_offset_of(p, sequence); }
};

// Loads cos and sin of a unit's pairs from rows of the type Stored: the token's row, or the rows of its positions on the pairs' axes.
template <class Stored, int V>
__device__ inline UnitAngles<V> angles_of_rows(const Rope& rope, const ResolvedToken& token, int64_t t, int pair) {
  const int column = pair % pairs_of_block(rope);  // of the first pair; all are of one block
  const auto* cos = static_cast<const Stored*>(rope.cos.data) + column;
  const auto* sin = static_cast<const Stored*>(rope.sin.data) + column;
  const bool per_token = rope.source == RopeSource::per_token;
  if (per_token || rope.num_axes == 1 || rope.pair_axis == nullptr) {
    const int64_t row = per_token ? t : position_on_axis(token.positions, axis_of_pair(rope, pair));
    return load_angles<V>(cos + row * rope.cos.row_stride, sin + row * rope.sin.row_stride);
  }
  UnitAngles<V> angles;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int64_t row = position_on_axis(token.positions, rope.pair_axis[pair + i]);
    angles.cos[i] = to_float(cos[row * rope.cos.row_stride + i]);
    angles.sin[i] = to_float(sin[row * rope.sin.row_stride + i]);
  }
  return angles;
}

template <int V>
__device__ inline UnitAngles<V> angles_of_token(const Rope& rope, const ResolvedToken& token, int64_t t, int pair) {
  UnitAngles<V> angles;
  if (rope.source == RopeSource::inv_freq) {
    const auto* inv_freq = static_cast<const float*>(rope.inv_freq) + pair % pairs_of_block(rope);
    const auto factor = static_cast<float>(rope.attention_factor);
#pragma unroll 1
    for (int i = 0; i < V; ++i) {
      const int64_t position = position_on_axis(token.positions, axis_of_pair(rope, pair + i));
      const CosSin value = cos_sin_of(static_cast<int32_t>(position), inv_freq[i]);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (j != i) continue;
        angles.cos[j] = multiply_rounded(value.cos, factor);
        angles.sin[j] = multiply_rounded(value.sin, factor);
      }
    }
  } else if (rope.type == DType::f16) {
    angles = angles_of_rows<__half, V>(rope, token, t, pair);
  } else if (rope.type == DType::bf16) {
    angles = angles_of_rows<__nv_bfloat16, V>(rope, token, t, pair);
  } else {
    angles = angles_of_rows<float, V>(rope, token, t, pair);
  }
  if (rope.inverse != 0) {
#pragma unroll
    for (int i = 0; i < V; ++i) angles.sin[i] = -angles.sin[i];
  }
  return angles;
}

// Holds what all heads of a token have in common.
template <int V>
struct GeneralToken : ResolvedToken {
  UnitAngles<V> angles_of_pairs;  // of the heads that rope number `rope` rotates; -1: none yet
  int rope = -1;
  float query_factor;
  bool scales_query;
  float sums[2];  // of the squares of all heads of q and of k, where the norm is over the token
};

// Loads a unit of an array of float32.
template <int V>
__device__ inline UnitValues<V> load_floats(const char* values, const UnitChannels& place) {
  constexpr int kFloats = V < 4 ? V : 4;  // of a load
  UnitValues<V> unit = {};
  const auto load = [&](int channel, float* to) {
#pragma unroll
    for (int i = 0; i < V; i += kFloats) {
      const Bytes<kFloats* 4> floats = load_bytes<kFloats * 4, false>(reinterpret_cast<const float*>(values) + channel + i);
#pragma unroll
      for (int j = 0; j < kFloats; ++j) to[i + j] = __uint_as_float(floats.words[j]);
    }
  };
  if (place.has_a) load(place.a, unit.x);
  if (place.has_b) load(place.b, unit.x + V);
  return unit;
}

// Returns what may be done for the token in the heads of a tensor.
__device__ inline Token token_of_tensor(const GeneralArgs& p, const ResolvedToken& token, int tensor) {
  return tensor < 3 ? static_cast<const Token&>(token) : token_of_rope(token, p.ropes[p.extras[tensor].rope]);
}

// Returns the head of a row; the rows are the heads of all tensors, one after another.
__device__ inline TensorHead head_of_row(const GeneralArgs& p, int row) {
  int tensor = 0;
  while (row >= p.tensors[tensor].heads) row -= p.tensors[tensor++].heads;
  return {tensor, row};
}

// Holds a thread's unit of a head, whose data are in flight. If a head does not exist (`active` is false), it has no channels.
template <class T, int V>
struct GeneralHead {
  TensorHead at;
  UnitChannels place;
  Unit<T, V> data;

  __device__ GeneralHead(const GeneralArgs& p, int64_t t, const TensorHead& head, bool active, int lane)
      : at(head), place(channels_of_unit<V>(lane, p.extras[head.tensor].layout)) {
    if (!active) place.has_a = place.has_b = false;
    const TensorArgs<int64_t>& tensor = p.tensors[at.tensor];
    const TensorExtras& extras = p.extras[at.tensor];
    const char* in = tensor.in + t * tensor.in_token + at.head * tensor.in_head;
    UnitChannels from = place;
    if (extras.rotated_in != nullptr) {
      if (place.pair >= 0) in = extras.rotated_in + t * extras.rotated_token + at.head * extras.rotated_head;
      from.a = channel_apart(place, place.a, extras.layout);
      from.b = channel_apart(place, place.b, extras.layout);
    }
    data = load_unit<false, T, V>(in, from);
  }
};

// Says which steps a head has.
template <class T, int V>
struct GeneralSteps : NoSteps<T, V> {
  const GeneralArgs& p;
  const TensorExtras& extras;
  const GeneralToken<V>& token;
  Token state;
  TensorHead at;
  UnitChannels place;
  Unit<T, V> data;

  // Loads cos and sin into the token, if it has not those of the head.
  __device__ GeneralSteps(const GeneralArgs& args, GeneralToken<V>& of, int64_t t, const GeneralHead<T, V>& head)
      : p(args),
        extras(args.extras[head.at.tensor]),
        token(of),
        state(token_of_tensor(args, of, head.at.tensor)),
        at(head.at),
        place(head.place),
        data(head.data) {
    if (!rotates() || state.zero || of.rope == extras.rope) return;
    of.angles_of_pairs = angles_of_token<V>(p.ropes[extras.rope], of, t, place.pair);
    of.rope = extras.rope;
  }

  __device__ Unit<T, V> load(const char* values) const { return load_unit<false, T, V>(values, place); }
  __device__ UnitValues<V> values(int) const { return widen<T, V>(data); }
  static constexpr bool kHasEveryStep = true;
  __device__ const HeadPlan& plan() const { return extras.plan; }
  __device__ bool biased() const { return plan().bias != nullptr; }
  __device__ Unit<T, V> bias(int) const {
    return load(static_cast<const char*>(plan().bias) + at.head * plan().width * static_cast<int64_t>(sizeof(T)));
  }
  __device__ NormPlacement norm() const { return plan().norm.placement; }
  __device__ bool layer_norm() const { return plan().norm.kind == NormKind::layer; }
  __device__ bool norm_of_token() const { return plan().norm.scope == NormScope::token; }
  __device__ float token_sum() const { return at.tensor == 1 ? token.sums[1] : token.sums[0]; }
  __device__ float inverse_count() const { return plan().inverse_count; }
  __device__ float eps() const { return plan().norm.eps; }
  __device__ bool weighted() const { return plan().norm.weight != nullptr; }
  __device__ UnitValues<V> weights(const void* values) const {
    const bool floats = plan().norm.weight_type == DType::f32;
    const int64_t size = floats ? 4 : static_cast<int64_t>(sizeof(T));
    const char* of_head = static_cast<const char*>(values) + at.head * plan().norm.weight_head_stride * size;
    return floats ? load_floats<V>(of_head, place) : widen<T, V>(load(of_head));
  }
  __device__ UnitValues<V> weight() const { return norm_factors<V>(weights(plan().norm.weight), plan().norm.weight_offset); }
  __device__ bool norm_biased() const { return plan().norm.bias != nullptr; }
  __device__ UnitValues<V> norm_bias() const { return weights(plan().norm.bias); }
  __device__ bool rotates() const { return extras.rotates != 0 && state.rotated && place.pair >= 0; }
  __device__ UnitAngles<V> angles() const { return token.angles_of_pairs; }
  __device__ RopeStyle style() const { return extras.layout.style; }
  __device__ bool scales() const { return at.tensor == 0 ? token.scales_query : plan().constant != 1.0f; }
  __device__ float factor() const { return at.tensor == 0 ? token.query_factor : plan().constant; }
  __device__ HeadActivation activation() const { return plan().activation; }
  __device__ bool rounds() const { return plan().rounds != 0; }

  // Otherwise the head is a copy.
  __device__ bool changes() const { return prologue::changes(plan()) || rotates() || scales(); }
};

template <class T, int V>
__device__ inline void store_as_dtype(char* to, const UnitValues<V>& values, const GeneralSteps<T, V>& steps, bool zero) {
  Unit<T, V> unit = steps.changes() ? narrow<T, V>(values) : steps.data;
  if (zero) unit = Unit<T, V>();
  store_unit<false, T, V>(to, steps.place, unit);
}

template <class T, int V>
__device__ inline void store_as_float(char* to, const UnitValues<V>& values, const GeneralSteps<T, V>& steps, bool zero) {
  const UnitValues<V> stored = zero ? UnitValues<V>{} : values;
  switch (steps.extras.store) {
    case DType::f32: return store_unit<false, float, V>(to, steps.place, narrow<float, V>(stored));
    case DType::f16: return store_unit<false, __half, V>(to, steps.place, narrow<__half, V>(stored));
    case DType::bf16: return store_unit<false, __nv_bfloat16, V>(to, steps.place, narrow<__nv_bfloat16, V>(stored));
    default: return store_as_dtype<T, V>(to, values, steps, zero);
  }
}

// Two neighbours share a byte, and may be in different threads: `codes` holds those of a head, shared by its lanes. All threads of
// the block must be here.
template <class T, int V>
__device__ inline void store_packed(char* to, const UnitValues<V>& values, const GeneralSteps<T, V>& steps,
                                    const AsymmetricScale& scale, bool stores, uint8_t* codes, int lane, int lanes) {
  const UnitChannels& place = steps.place;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (place.has_a) codes[place.a + i] = quantize(values.x[i], scale, steps.extras.store);
    if (place.has_b) codes[place.b + i] = quantize(values.x[V + i], scale, steps.extras.store);
  }
  __syncthreads();
  if (!stores) return;
  for (int i = lane; i < steps.extras.layout.head_dim / 2; i += lanes) {
    to[i] = static_cast<char>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

// Computes the scale and zero point of a head of uint4. All threads of the block must be here.
template <class T, int V>
__device__ inline AsymmetricScale computed_asymmetric_scale(const UnitValues<V>& values, const GeneralSteps<T, V>& steps,
                                                            const BlockLanes<V>& lanes) {
  const OrderedRange range = ordered_range<V>(values, steps.place);
  return scale_of_range({lanes.largest(range.inverted_smallest), lanes.largest(range.largest)});
}

// Stores a head in a block-scaled format. `largest` has an element for each block of the head, `codes` one for each channel; both are shared
// by its lanes. All threads of the block must be here, whatever the format of their head is.
template <class T, int V>
__device__ inline void store_blocks(char* to, const UnitValues<V>& values, const GeneralSteps<T, V>& steps, bool stores,
                                    uint32_t* largest, uint8_t* codes, int lane, int lanes) {
  const TensorExtras& extras = steps.extras;
  const UnitChannels& place = steps.place;
  const KvFormat format = {extras.store, extras.block_scaling};
  const bool blocked = extras.scale_from == ScaleFrom::blocks;
  const int head_dim = extras.layout.head_dim, channels = static_cast<int>(block_channels(format)), num_blocks = head_dim / channels;
  const float tensor_scale = blocked ? tensor_scale_of(format, reinterpret_cast<const float*>(extras.scale)) : 1.0f;
  const auto for_each_channel = [&](const auto& visit) {
    if (!blocked) return;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (place.has_a) visit(place.a + i, values.x[i]);
      if (place.has_b) visit(place.b + i, values.x[V + i]);
    }
  };
  __syncthreads();
  for (int i = lane; blocked && i < num_blocks; i += lanes) largest[i] = 0;
  __syncthreads();
  for_each_channel([&](int channel, float x) { atomicMax(&largest[channel / channels], magnitude_bits(x)); });
  __syncthreads();
  for_each_channel([&](int channel, float x) {
    const BlockScale scale = block_scale_of(largest[channel / channels], format, tensor_scale);
    codes[channel] = quantize_in_block(x, scale.reciprocal, extras.store);
  });
  __syncthreads();
  if (!blocked || !stores) return;
  uint8_t* const scales =
      extras.block_scale + steps.token.page * extras.scale_page + static_cast<int64_t>(steps.at.head) * extras.scale_head;
  for (int i = lane; i < num_blocks; i += lanes) {
    const int64_t at = block_scale_offset(extras.block_scale_layout, extras.scale_token, steps.token.offset, i, num_blocks);
    scales[at] = block_scale_of(largest[i], format, tensor_scale).code;
  }
  const bool packed = extras.store == DType::fp4_e2m1;
  for (int i = lane; i < (packed ? head_dim / 2 : head_dim); i += lanes) {
    to[i] = static_cast<char>(packed ? codes[2 * i] | codes[2 * i + 1] << 4 : codes[i]);
  }
}

inline constexpr int kMaxGeneralThreads = kMaxLanes;

struct GeneralShared {
  float sums[2][kMaxLanes];
  uint8_t codes[kMaxGeneralThreads * 16];  // of 4 bits, before two of them share a byte; of blocks
  uint32_t largest[kMaxGeneralThreads];    // magnitudes of blocks, as bits
};

// Stores a head into the cache, or into `out`, q_out or q8_out. `reached` says whether this head's slot is to be written. All threads of the
// block must be here.
template <class T, int V>
__device__ inline void store_head(const GeneralSteps<T, V>& steps, const UnitValues<V> (&values)[1], int64_t t, bool reached,
                                  const BlockLanes<V>& lanes, uint8_t* codes, uint32_t* largest) {
  const GeneralArgs& p = steps.p;
  const TensorHead& at = steps.at;
  const TensorArgs<int64_t>& tensor = p.tensors[at.tensor];
  const TensorExtras& extras = steps.extras;
  const bool zero = steps.state.zero;
  int64_t page = 0, offset = t;
  if (extras.cached != 0) {
    uint32_t in_page = steps.token.offset;
    page = steps.token.page;
    if (reached) split_again(p.token.pages, extras.pages, page, in_page);
    offset = in_page;
  }
  char* to = tensor.out + page * tensor.out_page + offset * tensor.out_token + at.head * tensor.out_head;
  char* scale_at = extras.scale + page * extras.scale_page + offset * extras.scale_token + at.head * extras.scale_head;

  AsymmetricScale scale;  // its zero point: 0 except for uint4
  HeadScale& symmetric = scale;
  if (extras.scale_from == ScaleFrom::computed && extras.store == DType::uint4) {
    scale = computed_asymmetric_scale<T, V>(values[0], steps, lanes);
  } else if (extras.scale_from == ScaleFrom::computed) {
    HeadScale scales[1];
    lanes.largest(
        values, [&](uint32_t largest) { return computed_scale(largest, kv_largest(extras.store)); }, scales);
    symmetric = scales[0];
  }
  const bool blocked = extras.scale_from == ScaleFrom::blocks;
  const bool quantised = extras.store >= DType::fp8_e4m3 && !blocked, packed = is_packed(extras.store);
  if (reached && quantised) {
    if (zero) {
      symmetric = {0.0f, 0.0f};
    } else if (extras.scale_from == ScaleFrom::given) {
      symmetric = given_scale(*reinterpret_cast<const float*>(extras.scale + at.head * extras.scale_head));
    }
    if (extras.scale_from == ScaleFrom::computed && lanes.lane == 0) {
      float* const stored = reinterpret_cast<float*>(scale_at);
      stored[0] = scale.scale;
      if (extras.store == DType::uint4) stored[1] = scale.zero_point;
    }
  }
  if (reached && !quantised && !blocked) store_as_float<T, V>(to, values[0], steps, zero);
  if (reached && quantised && !packed) {
    store_unit_8<V>(to, steps.place, quantise<V>(values[0], scale.reciprocal, extras.store));
  }
  if (p.packs != 0) {
    store_packed<T, V>(to, values[0], steps, scale, reached && packed, codes, lanes.lane, lanes.count);
  }
  if (p.has_blocks != 0) {
    store_blocks<T, V>(to, values[0], steps, reached, largest, codes, lanes.lane, lanes.count);
  }
}

// Returns the sum of squares over all heads of q (tensor 0) or k (1) of the token, one head after another. `rows` is the number of heads of
// the block.
template <class T, int V, class LanesOf>
__device__ inline float token_sum(const GeneralArgs& p, GeneralToken<V>& token, int64_t t, int tensor, const LanesOf& lanes_of,
                                  float (&of_rows)[kMaxLanes], int lane, int row, int rows) {
  const int heads = p.tensors[tensor].heads;
  float total = 0.0f;
  for (int first = 0; first < heads; first += rows) {
    const GeneralHead<T, V> head(p, t, {tensor, first + row}, first + row < heads, lane);
    const GeneralSteps<T, V> steps(p, token, t, head);
    UnitValues<V> values[1];
    begin_head<T, V>(values, steps, steps.norm());
    float sum[1];
    lanes_of(steps).sum(
        values, SumOfSquares(), [](float x) { return x; }, sum);
    __syncthreads();
    if (lane == 0) of_rows[row] = sum[0];
    __syncthreads();
    for (int i = 0; i < min(rows, heads - first); ++i) total = add_rounded(total, of_rows[i]);
    __syncthreads();
  }
  return total;
}

template <class T, int V>
__global__ void __launch_bounds__(kMaxGeneralThreads) general_prologue_kernel(const __grid_constant__ GeneralArgs p) {
  wait_for_previous_kernels();  // the launch overlaps them
  __shared__ GeneralShared shared;
  const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
  const int row = static_cast<int>(threadIdx.y), rows = static_cast<int>(blockDim.y), thread = row * lanes + lane;
  const int64_t t = blockIdx.x;
  const auto lanes_of = [&](const GeneralSteps<T, V>& steps) {
    return block_lanes<V>(lane, lanes, thread, shared.sums, steps.place, steps.extras.layout);
  };

  int num_rows = 0;
  for (int i = 0; i < p.num_tensors; ++i) num_rows += p.tensors[i].heads;
  const int step = static_cast<int>(gridDim.y) * rows;
  int first = static_cast<int>(blockIdx.y) * rows;
  const auto head_of_first = [&] {
    const bool active = first + row < num_rows;
    return GeneralHead<T, V>(p, t, active ? head_of_row(p, first + row) : TensorHead{0, 0}, active, lane);
  };
  GeneralHead<T, V> head = head_of_first();  // its loads need no index

  GeneralToken<V> token;
  static_cast<ResolvedToken&>(token) = resolve_token(p.token, TokenIndices(p.token, t, thread % 32), t);
  if (token.padding) return;
  if (blockIdx.y == 0 && thread == 0) {
    FaultCode fault = token.fault;
    for (int i = 3; i < p.num_tensors && fault == FaultCode::none; ++i) fault = token_of_tensor(p, token, i).fault;
    if (fault != FaultCode::none) cuda::record_fault(p.faults, p.token_faults, t, fault);
  }
  token.scales_query = p.q_scale.constant != 1.0f || p.q_scale.by_position != PositionScale::none;
  token.query_factor = token.scales_query ? query_factor(p.q_scale, token.positions[0]) : 1.0f;
#pragma unroll
  for (int tensor = 0; tensor < 2; ++tensor) {
    const HeadNorm& norm = p.extras[tensor].plan.norm;
    if (norm.placement != NormPlacement::none && norm.scope == NormScope::token && !token.zero) {
      token.sums[tensor] = token_sum<T, V>(p, token, t, tensor, lanes_of, shared.sums[1], lane, row, rows);
    }
  }

  while (first < num_rows) {
    const bool active = first + row < num_rows;
    const GeneralSteps<T, V> steps(p, token, t, head);
    const TensorHead at = steps.at;
    first += step;
    if (first < num_rows) head = head_of_first();
    const BlockLanes<V> group = lanes_of(steps);
    UnitValues<V> values[1];
    finish_head<T, V>(values, steps, group);
    const TensorExtras& extras = steps.extras;
    if (active && extras.second_out != nullptr) {
      store_as_dtype<T, V>(extras.second_out + t * extras.second_token + at.head * extras.second_head, values[0], steps,
                           steps.state.zero);
    }
    const bool reached = active && p.tensors[at.tensor].out != nullptr && (extras.cached == 0 || steps.state.reaches_cache);
    store_head<T, V>(steps, values, t, reached, group, shared.codes + row * lanes * 2 * V,
                     shared.largest + row * lanes);
  }
}

}  // namespace prologue::cuda
