// This file has the page table of a batch for attention, as rows of a block table or as CSR.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <prologue/kernels/base/views.h>

#include "tests/oracle/paged_attention.h"
#include "tests/support/arena.h"

namespace prologue::test {

// Gives the pages as CSR, those that a sequence needs and no more, and with `lengths` the lengths by the last pages.
template <class T>
void use_csr(oracle::AttentionInputs<T>& in, bool lengths) {
  in.kv_indptr = {0};
  in.kv_indices.clear(), in.kv_last_page_len.clear();
  for (size_t s = 0; s < in.seq_lens.size(); ++s) {
    const int64_t length = std::max<int64_t>(0, in.seq_lens[s]);
    const int64_t slots = in.ring_size > 0 ? std::min(length, in.ring_size) : length;
    const int64_t pages = std::min((slots + in.page_size - 1) / in.page_size, in.max_pages_per_seq);
    const auto row = in.block_table.begin() + static_cast<int64_t>(s) * in.block_table_stride;
    in.kv_indices.insert(in.kv_indices.end(), row, row + pages);
    in.kv_indptr.push_back(static_cast<int32_t>(in.kv_indices.size()));
    if (lengths) in.kv_last_page_len.push_back(static_cast<int32_t>(pages > 0 ? length - (pages - 1) * in.page_size : 0));
  }
}

template <class T>
PageTable place_pages(Arena& arena, const oracle::AttentionInputs<T>& in) {
  PageTable table;
  if (in.kv_indptr.empty()) {
    table.block_table = arena.input(in.block_table);
    table.block_table_stride = in.block_table_stride;
    table.max_pages_per_seq = in.max_pages_per_seq;
    return table;
  }
  std::vector<int32_t> indices = in.kv_indices;
  indices.insert(indices.end(), 2, 0);  // readable by mistake, and wrong
  table.kv_indptr = arena.input(in.kv_indptr);
  table.kv_indices = arena.input(indices);
  table.num_kv_indices = static_cast<int64_t>(in.kv_indices.size());
  if (!in.kv_last_page_len.empty()) table.kv_last_page_len = arena.input(in.kv_last_page_len);
  return table;
}

}  // namespace prologue::test
