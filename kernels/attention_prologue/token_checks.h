// Checks of where tokens are: of slot_mapping_len, for the fused operation and for kv_write, and of the lengths of sequences.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
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

// For a call that derives something.
inline Status check_lengths(const char* operation, const TokenPlaces& places) {
  if (places.cache_lens == nullptr && places.seq_lens == nullptr) {
    return invalid_argument(operation, ": cache_lens is null, and so is seq_lens: what is derived needs one of them");
  }
  if (places.cache_lens == nullptr || places.seq_lens == nullptr) return {};
  return invalid_argument(operation, ": cache_lens and seq_lens are both given: a sequence has one length");
}

}  // namespace prologue
