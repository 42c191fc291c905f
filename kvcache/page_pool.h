// The pages of a paged KV cache as numbers: which are free, which are taken. Knows nothing of memory or sequences.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

class PROLOGUE_API PagePool {
 public:
  explicit PagePool(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(taken_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // Appends `count` pages to `pages`, or changes nothing and returns resource_exhausted: a normal result that the caller handles.
  Status allocate(int64_t count, std::vector<int32_t>& pages);
  // Every page must be taken; on an error nothing is released.
  Status release(const std::vector<int32_t>& pages);

  // The free list and the taken flags must agree.
  Status check_integrity() const;

 private:
  std::vector<int32_t> free_;  // a stack: the page released last is used first, while it is still warm
  std::vector<bool> taken_;
};

}  // namespace prologue
