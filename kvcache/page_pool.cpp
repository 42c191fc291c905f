#include <algorithm>

#include <prologue/kvcache/page_pool.h>

namespace prologue {

PagePool::PagePool(int64_t num_pages) : taken_(static_cast<size_t>(num_pages), false) {
  free_.reserve(taken_.size());
  for (int64_t page = num_pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

Status PagePool::allocate(int64_t count, std::vector<int32_t>& pages) {
  if (count < 0) return invalid_argument("page count is ", count, ": it must not be negative");
  if (count > num_free()) {
    return resource_exhausted("the KV cache is out of pages: ", count, " asked for, ", num_free(), " of ", num_pages(), " free");
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t page = free_.back();
    free_.pop_back();
    taken_[static_cast<size_t>(page)] = true;
    pages.push_back(page);
  }
  return {};
}

Status PagePool::release(const std::vector<int32_t>& pages) {
  for (size_t i = 0; i < pages.size(); ++i) {
    const int32_t page = pages[i];
    const bool valid = page >= 0 && page < num_pages() && taken_[static_cast<size_t>(page)];
    if (valid) {
      taken_[static_cast<size_t>(page)] = false;
      continue;
    }
    for (size_t j = 0; j < i; ++j) taken_[static_cast<size_t>(pages[j])] = true;
    return invalid_argument("page ", page, " is released, but it is not taken (the pool has pages 0 to ", num_pages() - 1, ")");
  }
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
  return {};
}

Status PagePool::check_integrity() const {
  std::vector<bool> listed(taken_.size(), false);
  for (const int32_t page : free_) {
    if (page < 0 || page >= num_pages()) return data_loss("free list holds page ", page, " of a pool of ", num_pages());
    if (taken_[static_cast<size_t>(page)]) return data_loss("page ", page, " is both free and taken");
    if (listed[static_cast<size_t>(page)]) return data_loss("page ", page, " is in the free list twice");
    listed[static_cast<size_t>(page)] = true;
  }
  const int64_t num_taken = std::count(taken_.begin(), taken_.end(), true);
  if (num_taken + num_free() != num_pages()) {
    return data_loss(num_pages() - num_taken - num_free(), " pages are neither free nor taken");
  }
  return {};
}

}  // namespace prologue
