// This file has the checks of a PageTable.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/host/view_checks.h>

namespace prologue {

// Whether the sizes of block_table count. (They are checked where no pointer is set yet, too.)
inline bool has_block_table(const PageTable& table) {
  return table.kv_indptr == nullptr &&
         (table.block_table != nullptr || table.max_pages_per_seq != 0 || table.block_table_stride != 0);
}

// Checks a table that a call needs: it must have one of the two forms.
inline Status check_form(const char* operation, const PageTable& table) {
  if (table.block_table != nullptr && table.kv_indptr != nullptr) {
    return invalid_argument(operation, ": block_table and kv_indptr are both given: page_table has one of the two forms");
  }
  if (table.block_table == nullptr && table.kv_indptr == nullptr) {
    return invalid_argument(operation, ": block_table is null, and so is kv_indptr: page_table must have one of the two forms");
  }
  if (table.kv_indptr != nullptr) return check_range(operation, "num_kv_indices", table.num_kv_indices, 0, INT32_MAX);
  if (table.kv_last_page_len == nullptr) return {};
  return invalid_argument(operation, ": kv_last_page_len is given, but kv_indptr is null");
}

// Checks a call whose lengths come from kv_last_page_len.
inline Status check_no_ring(const char* operation, const PageTable& table, int64_t ring_size) {
  if (table.kv_last_page_len == nullptr || ring_size == 0) return {};
  return invalid_argument(operation, ": ring_size is ", ring_size,
                          ", but lengths come from kv_last_page_len: the pages of a ring do not tell how long a sequence is");
}

// Adds the arrays of a table that has one form.
inline Status add_page_table(const PageTable& table, int64_t num_seqs, RegionChecks& regions) {
  if (table.kv_indptr == nullptr) {
    Region rows = array_region("block_table", table.block_table, num_seqs, 4);
    rows.width = table.max_pages_per_seq * 4;
    if (__builtin_mul_overflow(table.block_table_stride, 4, &rows.strides[0])) rows.strides[0] = INT64_MAX;
    return regions.read(rows);
  }
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("kv_indptr", table.kv_indptr, num_seqs + 1, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("kv_indices", table.kv_indices, table.num_kv_indices, 4)));
  return regions.read(
      array_region("kv_last_page_len", table.kv_last_page_len, table.kv_last_page_len == nullptr ? 0 : num_seqs, 4));
}

}  // namespace prologue
