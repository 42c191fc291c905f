// The page numbers of a paged KV cache: which are free and which are taken. It does not know the memory or the sequences.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

class PROLOGUE_API PagePool {
 public:
  PagePool() = default;             // no pages
  PagePool(PagePool&&) = default;  // no copies: a copy's free list would have to allocate in release()
  PagePool& operator=(PagePool&&) = default;
  // Pages are numbered 0 .. num_pages - 1, as int32. invalid_argument: num_pages is not in 0..2^31 - 1.
  static Result<PagePool> create(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(taken_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // Takes `count` free pages and appends their numbers to `pages`. After an error nothing has changed. resource_exhausted: fewer
  // pages are free; callers should expect this and handle it. invalid_argument: `count` is negative.
  Status allocate(int64_t count, std::vector<int32_t>& pages);
  // Returns pages to the pool. invalid_argument: a page is not taken or is listed twice; then nothing is released.
  Status release(const std::vector<int32_t>& pages);

  // Checks that the free list and the taken flags agree.
  Status check_integrity() const;

 private:
  Status check_lists() const;

  std::vector<int32_t> free_;  // a stack, reserved for all pages; the page released last is reused first (cache-warm)
  std::vector<bool> taken_;
};

}  // namespace prologue
