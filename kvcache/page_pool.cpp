#include <cstdint>
#include <utility>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kvcache/page_pool.h>

namespace prologue {

Result<PagePool> PagePool::create(int64_t num_pages) {
  if (num_pages < 0 || num_pages > INT32_MAX) {
    return invalid_argument("num_pages is ", num_pages, ": it must be between 0 and ", INT32_MAX);
  }
  return catch_out_of_memory([&]() -> Result<PagePool> {
    PagePool pool;
    pool.pages_.resize(static_cast<size_t>(num_pages));
    for (int64_t page = num_pages - 1; page >= 0; --page) pool.make_free(static_cast<int32_t>(page));
    return pool;
  });
}

void PagePool::make_free(int32_t page) {
  at(page).next = first_free_;
  first_free_ = page;
  ++num_free_;
}

void PagePool::append_to_cached(int32_t page) {
  at(page).previous = newest_;
  at(page).next = -1;
  (newest_ >= 0 ? at(newest_).next : oldest_) = page;
  newest_ = page;
  ++num_cached_;
}

void PagePool::remove_from_cached(int32_t page) {
  const auto [previous, next] = std::pair(at(page).previous, at(page).next);
  (previous >= 0 ? at(previous).next : oldest_) = next;
  (next >= 0 ? at(next).previous : newest_) = previous;
  --num_cached_;
}

PagePool::Taken PagePool::allocate() {
  Taken taken;
  if (first_free_ < 0) taken.evicted_node = evict().evicted_node;
  taken.page = first_free_;
  if (taken.page < 0) return taken;
  first_free_ = at(taken.page).next;
  --num_free_;
  at(taken.page).count = 1;
  return taken;
}

PagePool::Taken PagePool::evict() {
  Taken taken;
  if (oldest_ < 0) return taken;
  taken.page = oldest_;
  taken.evicted_node = std::exchange(at(taken.page).node, -1);
  remove_from_cached(taken.page);
  make_free(taken.page);
  ++num_evictions_;
  return taken;
}

Status PagePool::acquire(int32_t page) {
  if (!exists(page) || (at(page).count == 0 && at(page).node < 0)) {
    return invalid_argument("page ", page, " is acquired, but it is free (the pool has pages 0 to ", num_pages() - 1, ")");
  }
  if (at(page).count == 0) remove_from_cached(page);
  if (++at(page).count == 2) ++num_shared_;
  return {};
}

Status PagePool::release(int32_t page) {
  if (count(page) == 0) {
    return invalid_argument("page ", page, " is released, but nobody holds it (the pool has pages 0 to ", num_pages() - 1, ")");
  }
  if (--at(page).count == 1) --num_shared_;
  if (at(page).count > 0) return {};
  if (at(page).node >= 0) {
    append_to_cached(page);
  } else {
    make_free(page);
  }
  return {};
}

Status PagePool::set_node(int32_t page, int32_t node) {
  if (node < 0) return invalid_argument("node is ", node, ": it must not be negative");
  if (count(page) == 0) return invalid_argument("page ", page, " is given to a node, but nobody holds it");
  if (at(page).node >= 0)
    return invalid_argument("page ", page, " is given to node ", node, ", but node ", at(page).node, " has it");
  at(page).node = node;
  return {};
}

Status PagePool::check_integrity() const {
  return catch_out_of_memory([&] { return check_lists(); });
}

Status PagePool::check_lists() const {
  std::vector<bool> listed(pages_.size(), false);
  const auto take = [&](int32_t page, const char* list) -> Status {
    if (!exists(page)) return data_loss("the list of ", list, " pages holds page ", page, " of a pool of ", num_pages());
    if (listed[static_cast<size_t>(page)]) return data_loss("page ", page, " is in a list twice");
    listed[static_cast<size_t>(page)] = true;
    if (at(page).count > 0) return data_loss("page ", page, " is both ", list, " and referenced");
    return {};
  };
  int64_t num_free = 0, num_cached = 0, num_used = 0, num_shared = 0;
  for (int32_t page = first_free_; page >= 0; page = at(page).next, ++num_free) {
    PROLOGUE_RETURN_IF_ERROR(take(page, "free"));
    if (at(page).node >= 0) return data_loss("page ", page, " is free, but node ", at(page).node, " has it");
  }
  int32_t previous = -1;
  for (int32_t page = oldest_; page >= 0; previous = page, page = at(page).next, ++num_cached) {
    PROLOGUE_RETURN_IF_ERROR(take(page, "cached"));
    if (at(page).node < 0) return data_loss("page ", page, " is cached, but no node has it");
    if (at(page).previous != previous) return data_loss("cached page ", page, " does not know page ", previous, " before it");
  }
  if (newest_ != previous) return data_loss("page ", newest_, " is not the last cached page, but page ", previous);
  for (const Page& page : pages_) {
    num_used += page.count > 0 ? 1 : 0;
    num_shared += page.count > 1 ? 1 : 0;
  }
  if (num_free != num_free_ || num_cached != num_cached_ || num_shared != num_shared_ || num_used != this->num_used()) {
    return data_loss("the pool counts ", num_free_, " free, ", num_cached_, " cached, ", this->num_used(), " used and ",
                     num_shared_, " shared pages, but there are ", num_free, ", ", num_cached, ", ", num_used, " and ",
                     num_shared);
  }
  return {};
}

}  // namespace prologue
