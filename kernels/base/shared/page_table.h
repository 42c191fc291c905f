// This file has the pages of a sequence, whichever form a PageTable has. Whatever its arrays hold, nothing outside of them is read.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/host_device.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// pages[0 .. count)
struct PageRow {
  const int32_t* pages = nullptr;
  int64_t count = 0;
  bool valid = true;  // otherwise the sequence's entries of kv_indptr are bad, and it has no pages
};

// Returns the pages of a sequence whose entries of kv_indptr are these.
PROLOGUE_HOST_DEVICE inline PageRow listed_row(const PageTable& table, int64_t begin, int64_t end) {
  PageRow row;
  row.valid = begin >= 0 && begin <= end && end <= table.num_kv_indices;
  if (!row.valid) return row;
  row.pages = table.kv_indices + begin;
  row.count = end - begin;
  return row;
}

// Returns those of sequence s in the form of rows.
PROLOGUE_HOST_DEVICE inline PageRow table_row(const PageTable& table, int64_t s) {
  PageRow row;
  row.pages = table.block_table + s * table.block_table_stride;
  row.count = table.max_pages_per_seq;
  return row;
}

PROLOGUE_HOST_DEVICE inline PageRow page_row(const PageTable& table, int64_t s) {
  if (table.kv_indptr == nullptr) return table_row(table, s);
  return listed_row(table, table.kv_indptr[s], table.kv_indptr[s + 1]);
}

inline constexpr int64_t kUnknownLength = INT64_MIN;

// Returns the tokens of a sequence, from the number of its pages and its entry of kv_last_page_len; kUnknownLength if these are bad.
PROLOGUE_HOST_DEVICE inline int64_t length_of_pages(const PageRow& row, int64_t last_page_len, int64_t page_size) {
  if (!row.valid) return kUnknownLength;
  if (row.count == 0) return 0;
  if (last_page_len < 1 || last_page_len > page_size) return kUnknownLength;
  return (row.count - 1) * page_size + last_page_len;
}

}  // namespace prologue
