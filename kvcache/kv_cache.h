// Sequences over pages: which page holds which token of which sequence. All layers share one block table; the memory is
// KvStorage. Host-side bookkeeping only; a step's block_table and slot_mapping arrays are made from it.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <prologue/kernels/base/status.h>
#include <prologue/kvcache/page_pool.h>

namespace prologue {

using SequenceId = int64_t;

// A sequence that is not in the cache (never added, or freed) is not_found wherever an id is asked for.
class PROLOGUE_API KvCache {
 public:
  // invalid_argument: num_pages is not in 0..2^31 - 1, or page_size not in 1..2^31 - 1.
  static Result<KvCache> create(int64_t num_pages, int64_t page_size);

  int64_t page_size() const { return page_size_; }
  int64_t num_pages() const { return pool_.num_pages(); }
  int64_t num_free_pages() const { return pool_.num_free(); }
  // Pages that num_tokens >= 0 tokens fill, the last one perhaps in part.
  int64_t pages_for(int64_t num_tokens) const { return num_tokens / page_size_ + (num_tokens % page_size_ > 0 ? 1 : 0); }

  // A new, empty sequence.
  Result<SequenceId> add_sequence();
  // Makes sure that the sequence's pages hold `num_tokens` tokens in all. After an error nothing has changed. resource_exhausted:
  // there are not enough free pages. invalid_argument: num_tokens is negative.
  Status reserve(SequenceId sequence, int64_t num_tokens);
  // Adds `num_tokens` to the sequence's length, reserving what is missing. Errors: as of reserve().
  Status append(SequenceId sequence, int64_t num_tokens);
  // Gives all pages of the sequence back.
  Status free(SequenceId sequence);

  Result<int64_t> length(SequenceId sequence) const;
  // The sequence's pages in order; the pointer is valid until the sequence is freed.
  Result<const std::vector<int32_t>*> pages(SequenceId sequence) const;
  // page * page_size + offset of the token at `position`. invalid_argument: the position is negative or not within the reserved
  // pages.
  Result<int64_t> slot(SequenceId sequence, int64_t position) const;

  // Every page belongs to the pool's free list or to exactly one sequence, and every sequence has the pages its length needs.
  Status check_integrity() const;

 private:
  struct Sequence {
    int64_t length = 0;
    std::vector<int32_t> pages;
  };
  KvCache(PagePool pool, int64_t page_size) : page_size_(page_size), pool_(std::move(pool)) {}
  Result<const Sequence*> find(SequenceId sequence) const;
  Result<Sequence*> find(SequenceId sequence);
  Status check_owners() const;

  int64_t page_size_;
  PagePool pool_;
  SequenceId next_id_ = 0;
  std::map<SequenceId, Sequence> sequences_;
};

}  // namespace prologue
