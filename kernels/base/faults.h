// Bad indices found while an operation runs. The values live on the device, so they cannot be checked before a launch:
// an operation skips the token concerned and records it here. The record survives CUDA-graph replays; whoever owns it
// reads it at the next natural synchronisation and clears it.
#pragma once

#include <cstdint>
#include <string>

#include <prologue/kernels/base/export.h>

namespace prologue {

enum class FaultCode : int32_t {
  none = 0,
  position_out_of_range,    // position >= max_position of the rope table
  slot_out_of_range,        // slot >= num_pages * page_size
  token_id_out_of_range,    // id outside the embedding table
  page_out_of_range,        // block_table entry outside the cache
  sequence_too_long,        // seq_lens entry larger than the block table's row holds
  query_rows_out_of_range,  // cu_seqlens_q: rows before its first entry, outside of q, or more than max_seqlen_q of a sequence
};

PROLOGUE_API const char* fault_code_name(FaultCode code);

// Zero-initialised means "no fault". Operations update it atomically; the first fault is the one with the lowest token
// index, whatever order the threads ran in.
struct alignas(16) FaultRecord {
  uint64_t first = 0;  // ~((token << 8) | code) of the lowest token concerned; 0 = none (so that atomicMax keeps it)
  uint64_t count = 0;  // tokens (for paged_attention: rows) that were skipped
};

struct Fault {
  FaultCode code = FaultCode::none;
  int64_t token = -1;
  uint64_t count = 0;
};

constexpr uint64_t encode_fault(int64_t token, FaultCode code) {
  return ~((static_cast<uint64_t>(token) << 8) | static_cast<uint64_t>(code));
}

inline Fault decode_fault(const FaultRecord& record) {
  if (record.first == 0) return {};
  const uint64_t packed = ~record.first;
  return {static_cast<FaultCode>(packed & 0xffu), static_cast<int64_t>(packed >> 8), record.count};
}

// CPU twins record through this; safe to call from several threads. A null record drops the fault.
PROLOGUE_API void record_fault(FaultRecord* record, int64_t token, FaultCode code);

}  // namespace prologue
