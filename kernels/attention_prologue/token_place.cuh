// The positions and the slot of a token, given or derived, and what may be done for it.
#pragma once

#include <prologue/kernels/base/token_guard.h>
#include <prologue/kernels/attention_prologue/prologue_args.cuh>

namespace prologue::cuda {

// An entry of an index array that is being loaded. Nothing uses it before value(), so a kernel's other loads are issued
// meanwhile. (A branch between int32 and int64 would have to wait for the load.)
struct PendingIndex {
  uint32_t low;
  uint32_t high;  // of an int32 the same word again: its sign is that of the index either way

  __device__ int64_t value(uint32_t step) const {
    return step == 8 ? static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low)
                     : static_cast<int64_t>(static_cast<int32_t>(low));
  }
  __device__ bool negative() const { return static_cast<int32_t>(high) < 0; }
  // For one that is not negative. (No short circuit: a branch here would wait for the load.)
  __device__ bool at_least(uint32_t limit, uint32_t step) const { return (low >= limit) | ((step == 8) & (high != 0)); }
};

__device__ inline PendingIndex load_index(const char* values, uint32_t step, uint64_t i) {
  const char* at = values + i * step;
  return {*reinterpret_cast<const uint32_t*>(at), *reinterpret_cast<const uint32_t*>(at + (step >> 1 & 4))};
}

// `absent` (0 or -1) is the value if there is no array.
__device__ inline PendingIndex load_index(const char* values, uint32_t step, uint64_t i, int32_t absent) {
  if (values == nullptr) return {static_cast<uint32_t>(absent), static_cast<uint32_t>(absent)};
  return load_index(values, step, i);
}

template <class Args>
__device__ inline void report_fault(const Args& p, int64_t t, FaultCode code) {
  cuda::record_fault(p.faults, t, code);
  if (p.token_faults != nullptr) p.token_faults[t] = static_cast<uint8_t>(code);
}

// Page and offset of a slot, or of a token of a sequence; a 64-bit division costs as much as a trip to the L2 and is hardly ever
// needed. slot >= 0.
template <class Args>
__device__ inline uint32_t page_of(const Args& p, uint32_t narrow_slot) {
  return static_cast<uint32_t>((static_cast<uint64_t>(narrow_slot) * p.page_magic) >> p.page_shift);
}

template <class Args>
__device__ inline void split_slot(const Args& p, int64_t slot, int64_t& page, uint32_t& offset) {
  if (static_cast<uint64_t>(slot) >> 31 == 0) {
    page = page_of(p, static_cast<uint32_t>(slot));
    offset = static_cast<uint32_t>(slot) - static_cast<uint32_t>(page) * p.page_size;
  } else {
    page = slot / p.page_size;
    offset = static_cast<uint32_t>(slot % p.page_size);
  }
}

inline constexpr int kMaxAxes = 4;

struct TokenPlace {
  TokenGuard guard;
  bool rotated = true;  // otherwise past the table, and the rows are not rotated
  int64_t positions[kMaxAxes] = {};
  int64_t page = 0;  // of the slot, where there is one
  uint32_t offset = 0;
};

// The sequence of token t: the last s with cu_seqlens_q[s] <= t; num_seqs for a token behind the last one. The whole warp works
// for one token. In a step of single tokens s = t, in one of a single sequence s = 0: that guess costs one trip to memory; other
// steps are searched 32 ways at a time.
struct TokenSequence {
  int index;
  int begin;
  int end;
  int cached;
};

__device__ inline TokenSequence sequence_at(const SequenceArgs& p, int i) {
  return {i, p.cu_seqlens_q[i], p.cu_seqlens_q[i + 1], p.cache_lens[i]};
}

__device__ inline TokenSequence search_sequence(const SequenceArgs& p, int64_t t) {
  // Invariant: the answer, the number of i in [1, num_seqs] with cu_seqlens_q[i] <= t, is in [low, high].
  const int lane = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x) % 32;
  int low = 0, high = p.num_seqs;
  while (low < high) {
    const int step = (high - low + 31) / 32;
    const int at = low + (lane + 1) * step;
    const uint32_t below = __ballot_sync(0xffffffffu, at <= high && p.cu_seqlens_q[at] <= t);
    const int steps = __popc(below);
    low += steps * step;
    high = min(high, low + step - 1);
  }
  return low < p.num_seqs ? sequence_at(p, low) : TokenSequence{p.num_seqs, 0, 0, 0};
}

__device__ inline TokenSequence find_sequence(const SequenceArgs& p, int64_t t) {
  if (p.num_seqs <= 0) return {p.num_seqs, 0, 0, 0};
  const TokenSequence guess = sequence_at(p, static_cast<int>(min(t, static_cast<int64_t>(p.num_seqs) - 1)));
  return guess.begin <= t && t < guess.end ? guess : search_sequence(p, t);
}

// All threads of a warp must be here, with the same t.
__device__ inline TokenPlace place_token(const GeneralArgs& args, int64_t t) {
  const PlaceExtras& p = args.places;
  TokenPlace place;
  PendingIndex pending[kMaxAxes];
#pragma unroll
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const int64_t row = axis < p.num_axes ? axis : 0;
    pending[axis] = load_index(args.positions, args.position_step, row * p.position_axis_stride + t, 0);
  }
  const PendingIndex pending_slot = load_index(args.slots, args.slot_step, t, -1);

  FaultCode slot_fault = FaultCode::none;
  int64_t derived_position = 0;
  bool has_slot = false;
  if (p.sequences.cu_seqlens_q != nullptr) {
    const TokenSequence sequence = find_sequence(p.sequences, t);
    if (sequence.index >= p.sequences.num_seqs) {
      place.guard.padding = true;
      return place;
    }
    const int64_t cached = static_cast<int64_t>(sequence.cached) + (t - sequence.begin);
    const int64_t offset = p.position_offsets.data == nullptr
                               ? 0
                               : index_at(p.position_offsets, p.position_offset_per_seq != 0 ? sequence.index : 0);
    derived_position = add_positions(cached, offset);
    if (p.derive_slot != 0) {
      const bool overwritten = p.ring_size > 0 && t + p.ring_size < sequence.end;
      const int64_t in_sequence = p.ring_size > 0 ? cached % p.ring_size : cached;
      int64_t page_of_sequence = 0;
      if (cached >= 0) split_slot(args, in_sequence, page_of_sequence, place.offset);
      if (overwritten) {
        // A later token of this step writes this slot.
      } else if (cached < 0 || page_of_sequence >= p.max_pages_per_seq) {
        slot_fault = FaultCode::sequence_too_long;
      } else {
        place.page = p.block_table[sequence.index * p.block_table_stride + page_of_sequence];
        has_slot = place.page >= 0 && place.page < p.num_pages;
        if (!has_slot) slot_fault = FaultCode::page_out_of_range;
      }
    }
  }
  bool padding = false, past_table = false;
#pragma unroll
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    place.positions[axis] = p.derive_position != 0 ? derived_position : pending[axis].value(args.position_step);
    padding = padding || (p.derive_position == 0 && place.positions[axis] < 0);
    past_table = past_table || (args.max_position > 0 && place.positions[axis] >= args.max_position);
  }
  place.rotated = !past_table;
  const bool outside = (p.derive_position != 0 && derived_position < 0) || (past_table && p.identity_past_table == 0);
  if (p.derive_slot == 0) {
    const int64_t slot = pending_slot.value(args.slot_step);
    has_slot = slot >= 0 && slot < args.num_slots;
    if (slot >= args.num_slots) slot_fault = FaultCode::slot_out_of_range;
    if (has_slot) split_slot(args, slot, place.page, place.offset);
  }
  if (padding) {
    place.guard.padding = true;
  } else if (outside) {
    place.guard.position_ok = false;
    place.guard.fault = FaultCode::position_out_of_range;
  } else {
    place.guard.fault = slot_fault;
    place.guard.slot = has_slot ? 0 : -1;
  }
  return place;
}

}  // namespace prologue::cuda
