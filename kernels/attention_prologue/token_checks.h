// The checks of slot_mapping_len, for the fused operation and for kv_write.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/host/view_checks.h>

namespace prologue {

inline Status check_slot_mapping_len(const char* operation, int64_t slot_mapping_len, const IndexView& slot_mapping,
                                     int64_t num_tokens) {
  if (slot_mapping_len < 0 || slot_mapping_len > num_tokens) {
    return invalid_argument(operation, ": slot_mapping_len is ", slot_mapping_len, ": it must lie in 0..num_tokens, ", num_tokens);
  }
  if (slot_mapping_len == 0 || slot_mapping.data != nullptr) return {};
  return invalid_argument(operation, ": slot_mapping_len is ", slot_mapping_len, ", but slot_mapping is null");
}

}  // namespace prologue
