// blockIdx.x is the token; threadIdx.x the unit (head_unit.cuh) within a head; the rows threadIdx.y of all blockIdx.y walk the
// heads of q, k and v, kUnits of them each, so that a thread keeps its cos and sin for all its heads.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/token_guard.h>
#include <prologue/kernels/base/head_unit.cuh>

namespace prologue::cuda {

// One of q, k and v: where it comes from and where it goes. A row that goes out lies at
// out + page * out_page_stride + offset * out_token_stride + head * out_head_stride; q counts as one page whose offsets are
// tokens. Few tokens are a matter of latency, and every line of the constant bank that a kernel touches costs a cold miss: what
// one thread needs of a tensor is one line of 64 bytes.
struct alignas(64) TensorArgs {
  const void* in = nullptr;
  int64_t in_token_stride = 0;
  int64_t in_head_stride = 0;
  const void* bias = nullptr;
  void* out = nullptr;
  int64_t out_page_stride = 0;
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
};

struct alignas(64) PrologueArgs {
  IndexView positions;
  IndexView slots;
  const float* cos_sin_cache = nullptr;
  int64_t max_position = 0;
  int64_t num_slots = 0;
  uint32_t page_size = 1;
  int32_t num_q_heads = 0;
  TensorArgs tensors[3];  // q, k, v
  FaultRecord* faults = nullptr;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;
  RopeStyle style = RopeStyle::neox;
};

// An entry of an index array on its way: nothing looks at it before value(), so that a kernel's other loads are issued meanwhile.
// (Reading int32 or int64 behind a branch makes the branch wait for the answer.)
struct PendingIndex {
  uint32_t low;
  uint32_t high;

  __device__ int64_t value(IndexType type) const {
    return type == IndexType::int64 ? static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low)
                                    : static_cast<int64_t>(static_cast<int32_t>(low));
  }
};

// `absent` (0 or -1) is the value where there is no array.
__device__ inline PendingIndex load_index(const IndexView& view, int64_t i, int32_t absent) {
  const int wide = view.type == IndexType::int64 ? 1 : 0;
  const uint32_t* words = static_cast<const uint32_t*>(view.data) + (i << wide);
  PendingIndex index = {static_cast<uint32_t>(absent), static_cast<uint32_t>(absent)};
  if (view.data != nullptr) {
    index.low = words[0];
    index.high = words[wide];
  }
  return index;
}

// Which tensor a row of the grid works on, and the head within it.
struct HeadPlace {
  int tensor;
  int head;
};

__device__ inline HeadPlace place_head(int row, int num_q_heads, int num_kv_heads) {
  if (row < num_q_heads) return {0, row};
  row -= num_q_heads;
  return row < num_kv_heads ? HeadPlace{1, row} : HeadPlace{2, row - num_kv_heads};
}

// page and offset of a slot; a 64-bit division costs as much as a trip to the L2 and is hardly ever needed.
__device__ inline void split_slot(int64_t slot, uint32_t page_size, int64_t& page, uint32_t& offset) {
  if ((static_cast<uint64_t>(slot) >> 32) == 0) {
    const uint32_t narrow = static_cast<uint32_t>(slot);
    page = narrow / page_size;
    offset = narrow % page_size;
  } else {
    page = slot / page_size;
    offset = static_cast<uint32_t>(slot % page_size);
  }
}

// Which accesses are marked as streaming: what they touch is the first to leave the L2.
inline constexpr int kStreamNothing = 0;
inline constexpr int kStreamLoads = 1;   // q, k and v as they come in
inline constexpr int kStreamStores = 2;  // q as it goes out; attention reads K and V next

inline constexpr int kMaxThreads = 128;

// Also the standalone rotary (no K, V: num_kv_heads = 0) and the K/V write (num_q_heads = 0).
// Eight blocks on an SM let 1024 tokens run in one wave on 132 SMs.
template <class T, int V, int kUnits, int kHints, bool kBias>
__global__ void __launch_bounds__(kMaxThreads, kUnits > 1 && !kBias ? 8 : 1)
    attention_prologue_kernel(const __grid_constant__ PrologueArgs p) {
  constexpr bool kStreamingLoads = (kHints & kStreamLoads) != 0;
  constexpr bool kStreamingStores = (kHints & kStreamStores) != 0;
  const int64_t t = blockIdx.x;

  // The chain position -> table row -> result is the longest: it starts first, and every load of data is on its way before its
  // first answer. Padding rows are read too (they are rows of the same arrays), but nothing is made of them.
  const PendingIndex pending_position = load_index(p.positions, t, 0);
  const PendingIndex pending_slot = load_index(p.slots, t, -1);

  const int first_row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  const int rows = static_cast<int>(gridDim.y * blockDim.y);
  const int num_rows = p.num_q_heads + 2 * p.num_kv_heads;
  const UnitPlace place = place_unit<V>(static_cast<int>(threadIdx.x), p.head_dim, p.rotary_dim, p.style);
  Unit<T, V> data[kUnits];
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const int row = first_row + n * rows;
    if (row >= num_rows) break;
    const HeadPlace at = place_head(row, p.num_q_heads, p.num_kv_heads);
    const TensorArgs& tensor = p.tensors[at.tensor];
    const T* head = static_cast<const T*>(tensor.in) + t * tensor.in_token_stride + at.head * tensor.in_head_stride;
    data[n] = load_unit<kStreamingLoads, T, V>(head, place);
  }

  const int64_t position = pending_position.value(p.positions.type);
  const TokenGuard guard = guard_token(position, p.max_position, pending_slot.value(p.slots.type), p.num_slots);
  if (guard.fault != FaultCode::none && first_row == 0 && threadIdx.x == 0) cuda::record_fault(p.faults, t, guard.fault);
  if (guard.padding) return;

  UnitAngles<V> angles;
  const bool rotated = place.pair >= 0 && guard.position_ok;
  if (rotated) {
    const float* table_row = p.cos_sin_cache + position * p.rotary_dim + place.pair;
    angles = load_angles<V>(table_row, table_row + p.rotary_dim / 2);
  }
  int64_t page = 0;
  uint32_t offset = 0;
  if (guard.slot >= 0) split_slot(guard.slot, p.page_size, page, offset);

#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const int row = first_row + n * rows;
    if (row >= num_rows) break;
    const HeadPlace at = place_head(row, p.num_q_heads, p.num_kv_heads);
    const bool is_q = at.tensor == 0;
    if (!is_q && guard.slot < 0) break;  // what follows is K and V too
    const TensorArgs& tensor = p.tensors[at.tensor];
    T* to = static_cast<T*>(tensor.out) + (is_q ? 0 : page) * tensor.out_page_stride +
            (is_q ? t : offset) * tensor.out_token_stride + at.head * tensor.out_head_stride;
    if (!guard.position_ok) {
      data[n] = {};
    } else {
      const bool turns = rotated && at.tensor != 2;
      if (turns || (kBias && tensor.bias != nullptr)) {
        UnitValues<V> values = widen(data[n]);
        if (kBias && tensor.bias != nullptr) {
          add_bias<T, V>(values, static_cast<const T*>(tensor.bias) + at.head * static_cast<int64_t>(p.head_dim), place);
        }
        if (turns) rotate<V>(values, angles, p.style);
        data[n] = narrow<T, V>(values);
      }
    }
    if (kStreamingStores && is_q) {
      store_unit<true, T, V>(to, place, data[n]);
    } else {
      store_unit<false, T, V>(to, place, data[n]);
    }
  }
}

}  // namespace prologue::cuda
