// A PagePool has the page numbers of a paged KV cache: a reference count for each, a list of the free ones, and a list of the cached ones
// in the order of their last use. It does not know the memory, the sequences or the tokens. One owner uses it, from one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

// A page is in one of three states:
//   free        nobody holds it, and its contents are worth nothing
//   referenced  its count is above 0: so many block tables have it
//   cached      its count is 0, but a node of a prefix index has it: it can be acquired again, or evicted
// A node is a number >= 0 that the owner of the index chose; the pool stores it and gives it back. A referenced page may have
// one too. Every function but create() and check_integrity() takes constant time and allocates nothing.
class PROLOGUE_API PagePool {
 public:
  PagePool() = default;  // no pages
  // Pages are numbered 0 .. num_pages - 1, as int32. invalid_argument: num_pages is not in 0..2^31 - 1.
  static Result<PagePool> create(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t num_free() const { return num_free_; }
  int64_t num_cached() const { return num_cached_; }
  int64_t num_available() const { return num_free_ + num_cached_; }   // what allocate() can still return
  int64_t num_used() const { return num_pages() - num_available(); }  // count above 0
  int64_t num_shared() const { return num_shared_; }                  // count above 1
  int64_t num_evictions() const { return num_evictions_; }            // since create()

  // These return 0 and -1 for a page that does not exist.
  int32_t count(int32_t page) const { return exists(page) ? at(page).count : 0; }
  int32_t node(int32_t page) const { return exists(page) ? at(page).node : -1; }

  struct Taken {
    int32_t page = -1;
    int32_t evicted_node = -1;  // the node that had the page until now; the caller removes the page from it
  };
  // Returns a page with count 1 and no node: the free page that was freed last (its contents may be in a cache), else the cached page whose
  // last use is longest ago, which is evicted. page = -1: all pages are referenced. Callers should expect this and handle it.
  Taken allocate();
  // Adds one to the count. invalid_argument: the page does not exist or is free.
  Status acquire(int32_t page);
  // Takes one off the count. A page that nobody holds any more is cached, as the one used last, if it has a node; else it is
  // free.
  // invalid_argument: the page does not exist or is not referenced.
  Status release(int32_t page);

  // Gives a referenced page to a node. invalid_argument: the page does not exist, is not referenced or has a node; node is
  // negative.
  Status set_node(int32_t page, int32_t node);
  // Makes the cached page whose last use is longest ago free. page = -1: there is none.
  Taken evict();

  // Checks that each page is in the list of its state, once, and that the numbers of pages agree with the lists.
  Status check_integrity() const;

 private:
  struct Page {
    int32_t count = 0;
    int32_t node = -1;
    int32_t previous = -1;  // in the list of cached pages
    int32_t next = -1;      // in the list of cached or of free pages
  };
  bool exists(int32_t page) const { return page >= 0 && page < num_pages(); }
  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  void make_free(int32_t page);
  void append_to_cached(int32_t page);
  void remove_from_cached(int32_t page);
  Status check_lists() const;

  std::vector<Page> pages_;
  int32_t first_free_ = -1;
  int32_t oldest_ = -1;  // of the cached pages
  int32_t newest_ = -1;
  int64_t num_free_ = 0;
  int64_t num_cached_ = 0;
  int64_t num_shared_ = 0;
  int64_t num_evictions_ = 0;
};

}  // namespace prologue
