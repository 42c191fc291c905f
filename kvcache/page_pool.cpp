#include <algorithm>
#include <cstdint>

#include <prologue/kernels/base/host/out_of_memory.h>
#include <prologue/kvcache/page_pool.h>

namespace prologue {

Result<PagePool> PagePool::create(int64_t num_pages) {
  if (num_pages < 0 || num_pages > INT32_MAX) {
    return invalid_argument("num_pages is ", num_pages, ": it must be between 0 and ", INT32_MAX);
  }
  return catch_out_of_memory([&]() -> Result<PagePool> {
    PagePool pool;
    pool.taken_.assign(static_cast<size_t>(num_pages), false);
    pool.free_.reserve(pool.taken_.size());
    for (int64_t page = num_pages - 1; page >= 0; --page) pool.free_.push_back(static_cast<int32_t>(page));
    return pool;
  });
}

Status PagePool::allocate(int64_t count, std::vector<int32_t>& pages) {
  if (count < 0) return invalid_argument("page count is ", count, ": it must not be negative");
  if (count > num_free()) {
    return resource_exhausted("the KV cache is out of pages: ", count, " asked for, ", num_free(), " of ", num_pages(), " free");
  }
  return catch_out_of_memory([&]() -> Status {
    pages.insert(pages.end(), free_.rbegin(), free_.rbegin() + count);
    for (auto page = free_.end() - count; page != free_.end(); ++page) taken_[static_cast<size_t>(*page)] = true;
    free_.resize(free_.size() - static_cast<size_t>(count));
    return {};
  });
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
  return catch_out_of_memory([&] { return check_lists(); });
}

Status PagePool::check_lists() const {
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
