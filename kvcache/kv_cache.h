// A KvCache has the pages of each sequence: which page holds which token. It does only host bookkeeping; the memory itself is KvStorage. A step's
// block_table and slot_mapping arrays are made from this class.
//
// One owner uses it, from one thread at a time: nothing here locks.
//
// A step of an engine:
//   KvCache::append(sequence, n)     slots for the step's tokens; pages out of a window are given back; shared pages are copied
//   KvStorage::copy_pages(copies())  on the stream of the step, before it; then clear_copies()
//   the step writes K and V          to slot(sequence, position, group), with pages(sequence, group) as block table
//   KvCache::insert(sequence, ...)   once the step is enqueued: full pages can be reused by other sequences
//   KvCache::truncate(...), free(...)
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <prologue/kernels/base/status.h>
#include <prologue/kvcache/page_pool.h>
#include <prologue/kvcache/prefix_index.h>

namespace prologue {

using SequenceId = int64_t;

inline constexpr int64_t kMaxKvGroups = 16;

// A layer group is the layers with the same window. Each group has page numbers of its own, 0 .. num_pages - 1, and each sequence has one
// block table for each group.
struct KvGroup {
  int64_t num_pages = 0;
  int64_t window = 0;  // the tokens that a token sees, its own included; 0 = all before it, and its own
};

struct KvCacheConfig {
  int64_t page_size = 0;        // tokens
  std::vector<KvGroup> groups;  // 1 to kMaxKvGroups
  bool prefix_reuse = true;     // false: insert() does nothing and no prefix is ever found
  // true: reserve() and append() give pages back that are out of a window only if there are no others. Then a caller that inserts late, and
  // calls release_out_of_window() after that, loses no prefix.
  bool keep_until_released = false;
  uint64_t format_key = 0;  // how K and V are stored; mixed into every extra key
};

// Names a page of `group` that must be copied in the memory of all the group's layers: K, V and their scales. Page `to` may have been the
// `from` of an earlier copy, so copies run in order.
struct PageCopy {
  int32_t group = 0;
  int32_t from = 0;
  int32_t to = 0;
};

// Refers to the tokens of a sequence from position 0 on, without owning them. It is made from a std::vector<int32_t>, a
// std::span<const int32_t>, or the like.
struct TokenSpan {
  const int32_t* data = nullptr;
  int64_t size = 0;

  TokenSpan() = default;
  TokenSpan(const int32_t* first, int64_t count) : data(first), size(count) {}
  template <class Tokens,
            class = std::enable_if_t<std::is_convertible_v<decltype(std::declval<const Tokens&>().data()), const int32_t*>>>
  TokenSpan(const Tokens& tokens)  // NOLINT(google-explicit-constructor)
      : data(tokens.data()), size(static_cast<int64_t>(tokens.size())) {}
};

struct KvGroupStats {
  int64_t num_pages = 0;
  int64_t used = 0;       // in a block table
  int64_t shared = 0;     // in more than one
  int64_t cached = 0;     // in none, but kept for later hits until it is evicted
  int64_t free = 0;       // num_pages = used + cached + free
  int64_t evictions = 0;  // since create(), as all below
  int64_t copies = 0;
};

struct KvCacheStats {
  std::vector<KvGroupStats> groups;
  int64_t num_sequences = 0;
  int64_t num_nodes = 0;      // of the prefix index
  int64_t lookups = 0;        // calls of add_sequence with tokens
  int64_t lookup_tokens = 0;  // their tokens
  int64_t hit_tokens = 0;     // those that were found
};

// Every function that takes a SequenceId returns not_found if that sequence is not in the cache (never added, or freed), and
// invalid_argument if a group does not exist. After an error nothing has changed, except where it says otherwise.
class PROLOGUE_API KvCache {
 public:
  // invalid_argument: page_size is not in 1..2^31 - 1, there are no or too many groups, a group's window is
  // negative, or its num_pages is not in 0..2^31 - 1.
  static Result<KvCache> create(const KvCacheConfig& config);
  // Creates a cache with one group, whose layers see all tokens.
  static Result<KvCache> create(int64_t num_pages, int64_t page_size);

  int64_t page_size() const { return page_size_; }
  int64_t num_groups() const { return static_cast<int64_t>(groups_.size()); }
  // Returns the number of pages that num_tokens >= 0 tokens need; the last page may be partly filled.
  int64_t pages_for(int64_t num_tokens) const { return num_tokens / page_size_ + (num_tokens % page_size_ > 0 ? 1 : 0); }
  // These return 0 for a group that does not exist.
  int64_t num_pages(int64_t group = 0) const { return exists(group) ? pool(group).num_pages() : 0; }
  int64_t num_free_pages(int64_t group = 0) const { return exists(group) ? pool(group).num_free() : 0; }
  int64_t num_available_pages(int64_t group = 0) const {
    return exists(group) ? pool(group).num_available() : 0;
  }  // free or cached

  // Returns the window of a group. It is 0 if its layers see all tokens, or if the group does not exist.
  int64_t window(int64_t group = 0) const { return exists(group) ? groups_[static_cast<size_t>(group)].window : 0; }

  // ---- Prefix reuse: match, lock (add_sequence), insert, evict

  struct Match {
    int64_t num_tokens = 0;  // a multiple of the page size
    int32_t node = -1;       // of the index, until the cache changes; -1 if num_tokens is 0
  };
  // Returns the longest prefix of `tokens` that a new sequence could start with: every group whose layers see all has all its pages, and
  // every group with a window has the last one, and those that the next token sees. Only sequences with this extra_key count. Changes
  // nothing, counts nothing.
  //   extra_key: what K and V depend on besides the tokens, as one number: the rope set that is pinned, an adapter, images.
  Match match(TokenSpan tokens, uint64_t extra_key = 0) const;

  // Adds an empty sequence and returns its id.
  Result<SequenceId> add_sequence(uint64_t extra_key = 0);
  // Adds a sequence that starts with the longest cached prefix of `tokens` that is not longer than max_hit_tokens, and holds
  // its pages; length() says how many tokens that is. At least the last token of a prompt must be computed to have its logits:
  // max_hit_tokens = number of tokens - 1. invalid_argument: tokens.size or max_hit_tokens is negative, or tokens.data is null
  // and size is not 0.
  Result<SequenceId> add_sequence(TokenSpan tokens, int64_t max_hit_tokens, uint64_t extra_key = 0);

  // Makes the sequence's full pages known to match() and add_sequence(). Call it when the step that writes these pages has been
  // enqueued on the stream that later steps use too.
  //   tokens: those of the sequence from position 0. Pages past their end, or past length(), are left for a later call. Pages of
  //     an earlier call are not looked at again: the work is that of the new pages.
  // If the same tokens are in the index already, this sequence's pages stay its own, outside of the index, and are free when it
  // ends.
  // invalid_argument: as add_sequence(). resource_exhausted: no memory; some of the pages may be in the index.
  Status insert(SequenceId sequence, TokenSpan tokens);

  // Makes up to `count` cached pages free, least recently used first, and returns how many. count <= 0, or a group that does not
  // exist: 0.
  int64_t evict(int64_t group, int64_t count);

  // ---- Growth

  // Makes sure that the slots of positions length() .. num_tokens - 1 exist in every group and belong to this sequence alone.
  // First gives back the pages that no token from position length() on can see (keep_until_released: if it must). A last page
  // that is partly filled and that others have too (a fork, the prefix index) is replaced by a copy: see copies(). num_tokens <= length():
  // does nothing.
  // resource_exhausted: a group has not enough free, cached or given back pages; callers should expect this and handle it.
  // invalid_argument: num_tokens is negative.
  Status reserve(SequenceId sequence, int64_t num_tokens);
  // Does the same only in the groups whose layers see all tokens: a long prompt never needs all its pages in the others at once.
  Status reserve_without_window(SequenceId sequence, int64_t num_tokens);
  // Returns how many tokens append() could add now: pages that are reserved, free, cached, or given back by it, in every group.
  Result<int64_t> room(SequenceId sequence) const;
  // Reserves for num_tokens more, and adds them to the length. Errors: as reserve(). If the slots have been reserved, and the
  // sequence was neither forked nor truncated since, append() cannot fail.
  Status append(SequenceId sequence, int64_t num_tokens);
  // Adds a sequence with the same tokens, in the same pages. Pages that are reserved past the length stay with `sequence`.
  // Whichever of the two is appended to first gets a copy of the last page, if that is partly filled. Call it once the step
  // that writes the sequence's tokens is enqueued: copies run before the next step writes.
  Result<SequenceId> fork(SequenceId sequence);
  // Takes the last tokens off, and gives back all pages that `length` tokens do not need, reserved ones too. Tokens that the
  // last append() added can always be taken off again. invalid_argument: length is negative or above length(), or tokens that
  // position `length` sees were out of a window and their pages are given back.
  Status truncate(SequenceId sequence, int64_t length);
  // Gives back the pages that no token from position length() on can see. append() does so before it takes pages; after a long
  // step this lets other sequences have them earlier. Tokens of the last append() can then no longer be taken off if that moves
  // the window back.
  Status release_out_of_window(SequenceId sequence);
  // Releases only those that no token from `position` on can see, if that is less than length(). invalid_argument: it is negative.
  Status release_out_of_window(SequenceId sequence, int64_t position);
  // Removes the sequence. Its pages that are in the prefix index are cached from now on, the last ones to be evicted first; the
  // others are free.
  Status free(SequenceId sequence);

  // Returns the copies that must be made before the next step writes, in this order. The list grows until clear_copies().
  const std::vector<PageCopy>& copies() const { return copies_; }
  void clear_copies() { copies_.clear(); }

  // ---- What a step needs

  Result<int64_t> length(SequenceId sequence) const;
  // Returns the tokens that have slots in every group. That is not less than length().
  Result<int64_t> num_reserved(SequenceId sequence) const;
  // Returns the sequence's pages in order. A page is -1 if it was given back, out of the window. The pointer is valid until the sequence is
  // freed.
  Result<const std::vector<int32_t>*> pages(SequenceId sequence, int64_t group = 0) const;
  // Returns the slot of the token at `position`: page * page_size + offset. invalid_argument: the position is negative, outside the
  // reserved pages, or in a page that was given back.
  Result<int64_t> slot(SequenceId sequence, int64_t position, int64_t group = 0) const;

  // Returns a list directly: the one function that lets std::bad_alloc through.
  KvCacheStats stats() const;
  // Checks everything that can be checked: each page's count is the number of block tables that have it, the lists of free and
  // cached pages, the prefix index, and that every sequence has the pages its length needs. For tests: it takes time and
  // memory.
  Status check_integrity() const;

 private:
  struct Group {
    PagePool pool;
    int64_t window = 0;
    int64_t num_copies = 0;
  };
  struct Table {
    std::vector<int32_t> pages;
    int64_t num_given_back = 0;  // the first pages: -1
  };
  // A sequence uses one slot of the list. A freed slot is used again, under another id.
  struct Sequence {
    std::vector<Table> tables;  // one for each group
    int64_t length = 0;
    int64_t num_indexed = 0;  // full pages whose path in the index is known
    uint64_t extra_key = 0;
    int32_t node = -1;  // the end of that path, held; -1: not in the index yet
    int32_t generation = 0;
    int32_t next_unused = -1;
    bool used = false;
  };
  KvCache() = default;
  const PagePool& pool(int64_t group) const { return groups_[static_cast<size_t>(group)].pool; }
  bool exists(int64_t group) const { return group >= 0 && group < num_groups(); }
  Result<const Sequence*> find(SequenceId sequence) const;
  Result<Sequence*> find(SequenceId sequence);
  Result<const Table*> find_table(SequenceId sequence, int64_t group) const;
  Result<int32_t> unused_slot();
  SequenceId use(int32_t slot);
  void cut(Sequence& sequence, int64_t num_pages);
  int64_t first_page_in_reach(const Group& group, int64_t length) const;
  bool must_copy_last_page(const Group& group, const Table& table, int64_t length) const;
  int64_t pages_to_take(const Group& group, const Table& table, int64_t length) const;
  Status make_room(Sequence& sequence, int64_t num_tokens, bool with_windows);
  Result<bool> prepare_room(Sequence& sequence, int64_t num_tokens, bool with_windows);
  void give_back_out_of_window(Sequence& sequence, int64_t position);
  int32_t allocate_page(size_t group);
  Status check_sequence(const Sequence& sequence, size_t slot) const;
  Status check_group(size_t group) const;

  int64_t page_size_ = 1;
  bool prefix_reuse_ = true;
  bool keep_until_released_ = false;
  std::vector<Group> groups_;
  PrefixIndex index_;
  std::vector<Sequence> sequences_;
  int32_t first_unused_ = -1;
  int64_t num_sequences_ = 0;
  std::vector<PageCopy> copies_;
  int64_t lookups_ = 0;
  int64_t lookup_tokens_ = 0;
  int64_t hit_tokens_ = 0;
};

}  // namespace prologue
