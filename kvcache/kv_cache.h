// The pages of each sequence: which page holds which token. Host bookkeeping only; the memory itself is KvStorage. All layers
// share one block table. A step's block_table and slot_mapping arrays are made from this class.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <prologue/kernels/base/status.h>
#include <prologue/kvcache/page_pool.h>

namespace prologue {

using SequenceId = int64_t;

// Every function that takes a SequenceId returns not_found if that sequence is not in the cache (never added, or freed).
class PROLOGUE_API KvCache {
 public:
  // invalid_argument: num_pages is not in 0..2^31 - 1, or page_size not in 1..2^31 - 1.
  static Result<KvCache> create(int64_t num_pages, int64_t page_size);

  int64_t page_size() const { return page_size_; }
  int64_t num_pages() const { return pool_.num_pages(); }
  int64_t num_free_pages() const { return pool_.num_free(); }
  // The number of pages that num_tokens >= 0 tokens need; the last page may be partly filled.
  int64_t pages_for(int64_t num_tokens) const { return num_tokens / page_size_ + (num_tokens % page_size_ > 0 ? 1 : 0); }

  // Adds an empty sequence and returns its id.
  Result<SequenceId> add_sequence();
  // Makes sure that the sequence's pages have room for `num_tokens` tokens in total. After an error nothing has changed.
  // resource_exhausted: not enough free pages. invalid_argument: num_tokens is negative.
  Status reserve(SequenceId sequence, int64_t num_tokens);
  // Adds `num_tokens` to the sequence's length and reserves the pages that are missing. Errors: as reserve().
  Status append(SequenceId sequence, int64_t num_tokens);
  // Removes the sequence and returns all its pages to the pool.
  Status free(SequenceId sequence);

  Result<int64_t> length(SequenceId sequence) const;
  // The sequence's pages in order; the pointer is valid until the sequence is freed.
  Result<const std::vector<int32_t>*> pages(SequenceId sequence) const;
  // The slot of the token at `position`: page * page_size + offset. invalid_argument: the position is negative or outside the
  // reserved pages.
  Result<int64_t> slot(SequenceId sequence, int64_t position) const;

  // Checks that every page is in the pool's free list or belongs to exactly one sequence, and that every sequence has the pages
  // its length needs.
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
