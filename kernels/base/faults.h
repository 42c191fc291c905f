// A FaultRecord holds bad indices found while an operation runs. The index arrays are on the device, so they cannot be checked before a
// launch. An operation skips the faulty token and records it here. CUDA-graph replays add to the record. Its owner reads it at the next
// synchronisation that is needed anyway, and clears it.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/export.h>

namespace prologue {

enum class FaultCode : int32_t {
  none = 0,
  position_out_of_range,    // position >= max_position of the rope table
  slot_out_of_range,        // slot >= num_pages * page_size
  token_id_out_of_range,    // id outside the embedding table
  page_out_of_range,        // an entry of the page table outside the cache
  sequence_too_long,        // a sequence longer than its bound, or than its pages hold, or whose length is bad
  query_rows_out_of_range,  // cu_seqlens_q: rows before its first entry, outside of q, or more than max_seqlen_q
  logits_not_a_number,      // sample: a row of logits has a NaN
};

PROLOGUE_API const char* fault_code_name(FaultCode code);

// All zeros means "no fault". Operations update it atomically. The first fault is the one with the lowest token index, in
// whatever order the threads run.
struct alignas(16) FaultRecord {
  uint64_t first = 0;  // ~((token << 8) | code) of the lowest faulty token; 0 = none (so atomicMax keeps the lowest)
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

// Records a fault on the CPU. Several threads may call it at once. A null record drops the fault.
PROLOGUE_API void record_fault(FaultRecord* record, int64_t token, FaultCode code);

// Does the same, and writes the code to token_faults[token], if given.
inline void record_fault(FaultRecord* record, uint8_t* token_faults, int64_t token, FaultCode code) {
  record_fault(record, token, code);
  if (token_faults != nullptr) token_faults[token] = static_cast<uint8_t>(code);
}

}  // namespace prologue
