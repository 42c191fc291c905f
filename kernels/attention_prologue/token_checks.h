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

// The call must derive something.
inline Status check_lengths(const char* operation, const TokenPlaces& places) {
  const char* given[3] = {};
  int count = 0;
  if (places.cache_lens != nullptr) given[count++] = "cache_lens";
  if (places.seq_lens != nullptr) given[count++] = "seq_lens";
  if (places.page_table.kv_last_page_len != nullptr) given[count++] = "kv_last_page_len";
  if (count == 1) return {};
  if (count > 1)
    return invalid_argument(operation, ": ", given[0], " and ", given[1], " are both given: a sequence has one length");
  return invalid_argument(
      operation, ": cache_lens, seq_lens and kv_last_page_len are all null: what is derived needs the lengths of sequences");
}

}  // namespace prologue
