// blockIdx.z and y are the sequence and the token, blockIdx.x and threadIdx.y the head of one tensor, threadIdx.x the unit (head_unit.cuh)
// within it. This schedule does only the common calls; general_rotary_schedule.cuh does all.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/pending_index.cuh>
#include <prologue/kernels/rotary/rotary_unit.cuh>

namespace prologue::cuda {

// Strides are in bytes; the host makes sure that they, and head * stride for every head, fit 32 bits.
struct LeanRotaryTensor {
  const char* x = nullptr;
  char* y = nullptr;
  uint32_t x_token = 0;
  uint32_t x_head = 0;
  uint32_t y_token = 0;
  uint32_t y_head = 0;
  int32_t heads = 0;
  int32_t rotates = 0;
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

// Loads V neighbours of a table, 16 bytes at a time.
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

// Loads cos and sin of V pairs, of any float type: kRuns runs of neighbours, `apart` columns from one run to the next. There is one branch,
// so that no load waits for the conversion of another.
template <class A, int V, int kRuns>
__device__ inline void load_cos_sin(DType type, const char* cos_row, const char* sin_row, uint32_t column, uint32_t apart, A* cos,
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

// Does what channels_of_unit() does, but the vectors of a unit are half of the rotated channels apart in either style (interleaved, each
// then holds V / 2 pairs), and half of the tail: neighbouring threads read and write neighbouring vectors. kWhole says that there is no
// tail.
template <int V, RopeStyle kStyle, bool kWhole>
__device__ inline UnitChannels channels_of_lean_unit(int unit, const HeadLayout& layout) {
  const int channel = unit * V, half = (kWhole ? layout.head_dim : layout.rotary_dim) / 2;
  const int pair = kStyle == RopeStyle::neox ? channel : channel / 2;
  if (kWhole) return {channel, channel + half, pair, true, true};
  if (channel < half) return {layout.rotary_offset + channel, layout.rotary_offset + channel + half, pair, true, true};
  const int tail = layout.head_dim - layout.rotary_dim, a = channel - half, b = a + (tail / V + 1) / 2 * V;
  const auto beside = [&](int i) { return i < layout.rotary_offset ? i : i + layout.rotary_dim; };
  return {beside(a), beside(b), -1, true, b < tail};
}

// kEvictFirst: the data is the first to leave the L2. The blocks of a token follow one another, so memory is walked from end to end.
template <class T, int V, RopeStyle kStyle, bool kWhole, bool kEvictFirst>
__global__ void __launch_bounds__(kMaxRotaryThreads<V>) lean_rotary_kernel(const __grid_constant__ LeanRotaryArgs p) {
  using A = RotaryArithmetic<T>;
  const uint32_t s = p.first_token + blockIdx.y, b = blockIdx.z;

  // The chain position -> table row -> result is the longest. So it starts first, and all loads of data are issued before its
  // first load returns. Padding rows are read too (they are rows of the same arrays), but not used. The two words of an entry are
  // used only afterwards: the sign of an int32 is that of its only word.
  PendingIndex index = {0, 0};
  if (p.index != nullptr) {
    index = load_index(p.index + wide_product(b, p.index_batch) + wide_product(s, p.index_token), p.index_step, 0);
  }

  const UnitChannels place = channels_of_lean_unit<V, kStyle, kWhole>(static_cast<int>(threadIdx.x), p.layout);
  int which = 0;
#pragma unroll
  for (int i = 1; i < kMaxRotaryTensors; ++i) which += blockIdx.x >= p.first_block[i] ? 1 : 0;
  const LeanRotaryTensor& tensor = p.tensors[which];
  const int row_of_heads = static_cast<int>((blockIdx.x - p.first_block[which]) * blockDim.y + threadIdx.y);
  // Threads without a head read one that exists: a load that waits for a comparison comes late.
  const uint32_t h = static_cast<uint32_t>(min(row_of_heads, tensor.heads - 1));
  const char* x = tensor.x + wide_product(s, tensor.x_token) + h * tensor.x_head;
  if (b > 0) x += b * p.batches[which].x;
  Unit<T, V> unit = load_unit<kEvictFirst, T, V>(x, place);

  __syncwarp();  // keeps the assembler from moving loads of data after the wait for the position

  // An unsigned 64-bit number that int64 cannot hold becomes its largest value.
  if (p.index_step == 4) index.high = p.index_unsigned != 0 ? 0 : static_cast<uint32_t>(static_cast<int32_t>(index.low) >> 31);
  int64_t position = index.value(8);
  const bool negative = position < 0;
  if (negative & (p.index_unsigned != 0)) position = INT64_MAX;
  PositionFacts facts;
  facts.padding = negative & (p.index_unsigned == 0) & (p.implicit == 0);
  if (p.implicit != 0) position = static_cast<int64_t>(static_cast<uint64_t>(position) + s + static_cast<uint64_t>(p.offset));
  facts.impossible = position < 0;
  facts.past_table = position > p.last_position;
  const Token token = decide_position(facts, PastTable::record);
  const uint32_t row = p.per_token != 0 ? s : (token.padding | token.zero) ? 0 : static_cast<uint32_t>(position);

  const bool rotated = kWhole || place.pair >= 0;
  A cos[V], sin[V];
  if (rotated) {
    const char* cos_row = p.cos + wide_product(row, p.cos_row);
    const char* sin_row = p.sin + wide_product(row, p.sin_row);
    if (b > 0) cos_row += b * p.cos_batch, sin_row += b * p.sin_batch;
    const uint32_t column = static_cast<uint32_t>(place.pair), apart = static_cast<uint32_t>(p.layout.rotary_dim) / 4;
    load_cos_sin<A, V, kStyle == RopeStyle::neox ? 1 : 2>(p.type, cos_row, sin_row, column, apart, cos, sin);
    if (p.inverse != 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) sin[i] = -sin[i];
    }
  }
  if (__builtin_expect(token.zero & !token.padding & ((blockIdx.x | threadIdx.y | threadIdx.x) == 0), 0)) {
    cuda::record_fault(p.faults, p.token_faults, static_cast<int64_t>(b) * p.seq_len + s, token.fault);
  }
  if (row_of_heads >= tensor.heads | token.padding) return;
  if (rotated & (tensor.rotates != 0)) {
    rotate_unit<T, V>(unit, kStyle, [&](int i) { return PairRotation<A>{cos[i], sin[i], cos[i], sin[i]}; });
  }
  if (token.zero) unit = {};
  char* y = tensor.y + wide_product(s, tensor.y_token) + h * tensor.y_head;
  if (b > 0) y += b * p.batches[which].y;
  store_unit<kEvictFirst, T, V>(y, place, unit);
}

}  // namespace prologue::cuda
