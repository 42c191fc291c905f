// The pages of a paged KV cache as numbers: which are free, which are taken. Knows nothing of memory or sequences.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

class PROLOGUE_API PagePool {
 public:
  PagePool() = default;  // no pages
  // Pages are numbered 0 .. num_pages - 1, as int32. invalid_argument: num_pages is not in 0..2^31 - 1.
  static Result<PagePool> create(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(taken_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // Appends `count` free pages to `pages`. After an error nothing has changed. resource_exhausted: there are fewer free pages, a
  // normal result that the caller handles. invalid_argument: `count` is negative.
  Status allocate(int64_t count, std::vector<int32_t>& pages);
  // Every page must be taken, and be listed once (else invalid_argument); on an error nothing is released.
  Status release(const std::vector<int32_t>& pages);

  // The free list and the taken flags must agree.
  Status check_integrity() const;

 private:
  Status check_lists() const;

  std::vector<int32_t> free_;  // a stack with room for all pages: the page released last is used first, while it is still warm
  std::vector<bool> taken_;
};

}  // namespace prologue
