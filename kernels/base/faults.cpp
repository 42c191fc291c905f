#include <atomic>

#include <prologue/kernels/base/faults.h>

namespace prologue {

const char* fault_code_name(FaultCode code) {
  switch (code) {
    case FaultCode::none: return "none";
    case FaultCode::position_out_of_range: return "position out of range";
    case FaultCode::slot_out_of_range: return "slot out of range";
    case FaultCode::token_id_out_of_range: return "token id out of range";
    case FaultCode::page_out_of_range: return "page out of range";
    case FaultCode::sequence_too_long: return "sequence longer than its bound or its pages, or of unknown length";
    case FaultCode::query_rows_out_of_range: return "query rows out of range";
    case FaultCode::logits_not_a_number: return "a logit is not a number";
  }
  return "unknown";
}

void record_fault(FaultRecord* record, int64_t token, FaultCode code) {
  if (record == nullptr) return;
  const uint64_t fault = encode_fault(token, code);
  std::atomic_ref<uint64_t> first(record->first);
  uint64_t seen = first.load(std::memory_order_relaxed);
  while (seen < fault && !first.compare_exchange_weak(seen, fault, std::memory_order_relaxed)) {
  }
  std::atomic_ref<uint64_t>(record->count).fetch_add(1, std::memory_order_relaxed);
}

}  // namespace prologue
