// Sequences over pages: which page holds which token of which sequence. All layers share one block table; the memory is
// KvStorage. Host-side bookkeeping only; a step's block_table and slot_mapping arrays are made from it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <prologue/kernels/base/status.h>
#include <prologue/kvcache/page_pool.h>

namespace prologue {

using SequenceId = int64_t;

class PROLOGUE_API KvCache {
 public:
  KvCache(int64_t num_pages, int64_t page_size);

  int64_t page_size() const { return page_size_; }
  int64_t num_pages() const { return pool_.num_pages(); }
  int64_t num_free_pages() const { return pool_.num_free(); }
  int64_t pages_for(int64_t num_tokens) const { return (num_tokens + page_size_ - 1) / page_size_; }

  // A new, empty sequence.
  SequenceId add_sequence();
  // Makes sure that the sequence's pages hold `num_tokens` tokens in all. On resource_exhausted nothing has changed.
  Status reserve(SequenceId sequence, int64_t num_tokens);
  // Adds `num_tokens` to the sequence's length, reserving what is missing. On resource_exhausted nothing has changed.
  Status append(SequenceId sequence, int64_t num_tokens);
  // Gives all pages of the sequence back.
  Status free(SequenceId sequence);

  int64_t length(SequenceId sequence) const { return sequences_.at(sequence).length; }
  const std::vector<int32_t>& pages(SequenceId sequence) const { return sequences_.at(sequence).pages; }
  // page * page_size + offset of the token at `position`, which must be within the reserved pages.
  int64_t slot(SequenceId sequence, int64_t position) const;

  // Every page belongs to the pool's free list or to exactly one sequence, and every sequence has the pages its length needs.
  Status check_integrity() const;

 private:
  struct Sequence {
    int64_t length = 0;
    std::vector<int32_t> pages;
  };
  Result<Sequence*> find(SequenceId sequence);

  int64_t page_size_;
  PagePool pool_;
  SequenceId next_id_ = 0;
  std::map<SequenceId, Sequence> sequences_;
};

}  // namespace prologue
