#include <prologue/kvcache/kv_cache.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace {

constexpr int kSlotBits = 32;  // of a SequenceId; above them is the generation
constexpr int32_t kMaxGeneration = INT32_MAX;

Status check_tokens(const TokenSpan& tokens) {
  if (tokens.size < 0) return invalid_argument("tokens.size is ", tokens.size, ": it must not be negative");
  if (tokens.data == nullptr && tokens.size > 0) return invalid_argument("tokens.data is null, but tokens.size is ", tokens.size);
  return {};
}

// Reserves room for `extra` more elements, so that adding them cannot fail. Grows as push_back does.
template <class T>
void make_capacity(std::vector<T>& vector, size_t extra) {
  if (vector.capacity() - vector.size() < extra) vector.reserve(std::max(vector.size() + extra, 2 * vector.capacity()));
}

}  // namespace

Result<KvCache> KvCache::create(int64_t num_pages, int64_t page_size) {
  return catch_out_of_memory([&] {
    KvCacheConfig config;
    config.page_size = page_size;
    config.groups = {{num_pages, 0}};
    return create(config);
  });
}

Result<KvCache> KvCache::create(const KvCacheConfig& config) {
  if (config.page_size < 1 || config.page_size > INT32_MAX) {
    return invalid_argument("page_size is ", config.page_size, ": it must be between 1 and ", INT32_MAX);
  }
  const auto num_groups = static_cast<int64_t>(config.groups.size());
  if (num_groups < 1 || num_groups > kMaxKvGroups) {
    return invalid_argument("the KV cache has ", num_groups, " layer groups: there must be between 1 and ", kMaxKvGroups);
  }
  return catch_out_of_memory([&]() -> Result<KvCache> {
    KvCache cache;
    cache.page_size_ = config.page_size;
    cache.prefix_reuse_ = config.prefix_reuse;
    cache.keep_until_released_ = config.keep_until_released;
    for (const KvGroup& group : config.groups) {
      if (group.window < 0) return invalid_argument("window is ", group.window, ": it must not be negative");
      PROLOGUE_ASSIGN_OR_RETURN(PagePool pool, PagePool::create(group.num_pages));
      cache.groups_.push_back({std::move(pool), group.window});
    }
    // The hashes cannot be known in advance, so nobody can write prompts whose pages all hash alike.
    const auto now = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(cache.groups_.data()));
    cache.index_ = PrefixIndex(config.page_size, num_groups, config.format_key ^ (now << 20) ^ address);
    return cache;
  });
}

// ---- Sequences

Result<const KvCache::Sequence*> KvCache::find(SequenceId sequence) const {
  const int64_t slot = sequence & UINT32_MAX;
  if (slot < static_cast<int64_t>(sequences_.size())) {
    const Sequence& entry = sequences_[static_cast<size_t>(slot)];
    if (entry.used && entry.generation == sequence >> kSlotBits) return &entry;
  }
  return not_found("sequence ", sequence, " is not in the KV cache");
}

Result<KvCache::Sequence*> KvCache::find(SequenceId sequence) {
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* entry, std::as_const(*this).find(sequence));
  return const_cast<Sequence*>(entry);
}

Result<const KvCache::Table*> KvCache::find_table(SequenceId sequence, int64_t group) const {
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* const entry, find(sequence));
  if (!exists(group)) {
    return invalid_argument("group is ", group, ": the KV cache has groups 0 to ", num_groups() - 1);
  }
  return &entry->tables[static_cast<size_t>(group)];
}

// Returns a slot with empty tables; it stays unused until use().
Result<int32_t> KvCache::unused_slot() {
  if (first_unused_ >= 0) return first_unused_;
  return catch_out_of_memory([&]() -> Result<int32_t> {
    if (sequences_.size() == INT32_MAX)
      return resource_exhausted("the KV cache has ", num_sequences_, " sequences, and no more ids");
    Sequence sequence;
    sequence.tables.resize(groups_.size());
    sequences_.push_back(std::move(sequence));
    return first_unused_ = static_cast<int32_t>(sequences_.size()) - 1;
  });
}

// Takes the slot of unused_slot() into use.
SequenceId KvCache::use(int32_t slot) {
  Sequence& sequence = sequences_[static_cast<size_t>(slot)];
  first_unused_ = std::exchange(sequence.next_unused, -1);
  sequence.used = true;
  ++num_sequences_;
  return static_cast<int64_t>(sequence.generation) << kSlotBits | slot;
}

Result<SequenceId> KvCache::add_sequence(uint64_t extra_key) {
  PROLOGUE_ASSIGN_OR_RETURN(const int32_t slot, unused_slot());
  sequences_[static_cast<size_t>(slot)].extra_key = extra_key;
  return use(slot);
}

Result<SequenceId> KvCache::add_sequence(TokenSpan tokens, int64_t max_hit_tokens, uint64_t extra_key) {
  PROLOGUE_RETURN_IF_ERROR(check_tokens(tokens));
  if (max_hit_tokens < 0) return invalid_argument("max_hit_tokens is ", max_hit_tokens, ": it must not be negative");
  PROLOGUE_ASSIGN_OR_RETURN(const int32_t slot, unused_slot());
  const Match hit = match({tokens.data, std::min(tokens.size, max_hit_tokens)}, extra_key);
  const int64_t num_pages = hit.num_tokens / page_size_;
  Sequence& sequence = sequences_[static_cast<size_t>(slot)];
  PROLOGUE_RETURN_IF_ERROR(catch_out_of_memory([&]() -> Status {
    for (Table& table : sequence.tables) table.pages.reserve(static_cast<size_t>(num_pages));
    return {};
  }));
  for (size_t g = 0; g < groups_.size(); ++g) {
    Table& table = sequence.tables[g];
    table.pages.assign(static_cast<size_t>(num_pages), -1);
    table.num_given_back = std::min(num_pages, first_page_in_reach(groups_[g], hit.num_tokens));
    int32_t node = hit.node;
    for (int64_t i = num_pages - 1; i >= table.num_given_back; --i, node = index_.parent(node)) {
      const int32_t page = index_.page(node, static_cast<int64_t>(g));
      table.pages[static_cast<size_t>(i)] = page;
      (void)groups_[g].pool.acquire(page);
    }
  }
  if (hit.node >= 0) index_.hold(hit.node);
  sequence.node = hit.node;
  sequence.num_indexed = num_pages;
  sequence.length = hit.num_tokens;
  sequence.extra_key = extra_key;
  ++lookups_;
  lookup_tokens_ += tokens.size;
  hit_tokens_ += hit.num_tokens;
  return use(slot);
}

Result<SequenceId> KvCache::fork(SequenceId sequence) {
  PROLOGUE_RETURN_IF_ERROR(find(sequence).status());
  PROLOGUE_ASSIGN_OR_RETURN(const int32_t slot, unused_slot());  // moves the sequences
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* const original, find(sequence));
  Sequence& copy = sequences_[static_cast<size_t>(slot)];
  const auto num_pages = static_cast<size_t>(pages_for(original->length));
  PROLOGUE_RETURN_IF_ERROR(catch_out_of_memory([&]() -> Status {
    for (Table& table : copy.tables) table.pages.reserve(num_pages);
    return {};
  }));
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Table& table = original->tables[g];
    copy.tables[g].pages.assign(table.pages.begin(), table.pages.begin() + static_cast<int64_t>(num_pages));
    copy.tables[g].num_given_back = table.num_given_back;
    for (size_t i = static_cast<size_t>(table.num_given_back); i < num_pages; ++i) (void)groups_[g].pool.acquire(table.pages[i]);
  }
  copy.length = original->length;
  copy.num_indexed = original->num_indexed;
  copy.extra_key = original->extra_key;
  copy.node = original->node;
  if (copy.node >= 0) index_.hold(copy.node);
  return use(slot);
}

Status KvCache::free(SequenceId sequence) {
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  cut(*entry, 0);
  if (entry->node >= 0) index_.let_go(entry->node);
  entry->node = -1;
  entry->num_indexed = entry->length = 0;
  entry->generation = entry->generation < kMaxGeneration ? entry->generation + 1 : 0;
  entry->used = false;
  entry->next_unused = std::exchange(first_unused_, static_cast<int32_t>(sequence & UINT32_MAX));
  --num_sequences_;
  return {};
}

// Gives back the pages past the first num_pages, the last one first: of cached pages the deepest are evicted first.
void KvCache::cut(Sequence& sequence, int64_t num_pages) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Table& table = sequence.tables[g];
    const int64_t kept = std::max(num_pages, table.num_given_back);
    for (auto i = static_cast<int64_t>(table.pages.size()); i-- > kept;) {
      (void)groups_[g].pool.release(table.pages[static_cast<size_t>(i)]);
    }
    if (num_pages < static_cast<int64_t>(table.pages.size())) table.pages.resize(static_cast<size_t>(num_pages));
    table.num_given_back = std::min(table.num_given_back, num_pages);
  }
}

// ---- Growth

// Returns the first page that a token at position `length` or later sees or is in.
int64_t KvCache::first_page_in_reach(const Group& group, int64_t length) const {
  return group.window == 0 ? 0 : std::max<int64_t>(0, length - group.window + 1) / page_size_;
}

// A page can be written if one sequence has it, and the prefix index does not.
bool KvCache::must_copy_last_page(const Group& group, const Table& table, int64_t length) const {
  if (length % page_size_ == 0) return false;
  const int32_t page = table.pages[static_cast<size_t>(length / page_size_)];
  return group.pool.count(page) > 1 || group.pool.node(page) >= 0;
}

// Returns the pages that reserve() finds for a sequence of this length: those that are free or cached, and those that it gives back first.
int64_t KvCache::pages_to_take(const Group& group, const Table& table, int64_t length) const {
  int64_t count = group.pool.num_available();
  for (int64_t i = table.num_given_back; i < first_page_in_reach(group, length); ++i) {
    count += group.pool.count(table.pages[static_cast<size_t>(i)]) == 1 ? 1 : 0;
  }
  return count;
}

// Checks that there are pages for reserve(), and allocates what it will need to note them. True: only with those that it gives back.
Result<bool> KvCache::prepare_room(Sequence& sequence, int64_t num_tokens, bool with_windows) {
  size_t num_copies = 0;
  bool must_give_back = false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.window > 0 && !with_windows) continue;
    Table& table = sequence.tables[g];
    const int64_t missing = std::max<int64_t>(0, pages_for(num_tokens) - static_cast<int64_t>(table.pages.size()));
    const int64_t copied = must_copy_last_page(group, table, sequence.length) ? 1 : 0;
    if (missing + copied == 0) continue;
    const int64_t available = pages_to_take(group, table, sequence.length);
    if (missing > available - copied) {
      return resource_exhausted("the KV cache is out of pages: ", missing + copied, " asked for in group ", g, ", ", available,
                                " of ", group.pool.num_pages(), " available");
    }
    must_give_back = must_give_back || missing + copied > group.pool.num_available();
    make_capacity(table.pages, static_cast<size_t>(missing));
    num_copies += static_cast<size_t>(copied);
  }
  make_capacity(copies_, num_copies);
  return must_give_back;
}

void KvCache::give_back_out_of_window(Sequence& sequence, int64_t position) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Table& table = sequence.tables[g];
    for (const int64_t end = first_page_in_reach(groups_[g], position); table.num_given_back < end; ++table.num_given_back) {
      (void)groups_[g].pool.release(std::exchange(table.pages[static_cast<size_t>(table.num_given_back)], -1));
    }
  }
}

int32_t KvCache::allocate_page(size_t group) {
  const PagePool::Taken taken = groups_[group].pool.allocate();
  if (taken.evicted_node >= 0) index_.clear_page(taken.evicted_node, static_cast<int64_t>(group));
  return taken.page;
}

Status KvCache::make_room(Sequence& sequence, int64_t num_tokens, bool with_windows) {
  if (num_tokens <= sequence.length) return {};
  PROLOGUE_ASSIGN_OR_RETURN(const bool must_give_back,
                            catch_out_of_memory([&] { return prepare_room(sequence, num_tokens, with_windows); }));
  if (must_give_back || !keep_until_released_) give_back_out_of_window(sequence, sequence.length);
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    if (group.window > 0 && !with_windows) continue;
    Table& table = sequence.tables[g];
    if (must_copy_last_page(group, table, sequence.length)) {
      int32_t& page = table.pages[static_cast<size_t>(sequence.length / page_size_)];
      const int32_t from = std::exchange(page, allocate_page(g));
      copies_.push_back({static_cast<int32_t>(g), from, page});
      ++group.num_copies;
      (void)group.pool.release(from);
    }
    const auto num_pages = static_cast<size_t>(pages_for(num_tokens));
    while (table.pages.size() < num_pages) table.pages.push_back(allocate_page(g));
  }
  return {};
}

Status KvCache::reserve(SequenceId sequence, int64_t num_tokens) {
  if (num_tokens < 0) return invalid_argument("num_tokens is ", num_tokens, ": it must not be negative");
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  return make_room(*entry, num_tokens, true);
}

Status KvCache::reserve_without_window(SequenceId sequence, int64_t num_tokens) {
  if (num_tokens < 0) return invalid_argument("num_tokens is ", num_tokens, ": it must not be negative");
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  return make_room(*entry, num_tokens, false);
}

Result<int64_t> KvCache::room(SequenceId sequence) const {
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* const entry, find(sequence));
  int64_t room = INT64_MAX;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const Table& table = entry->tables[g];
    const int64_t copied = must_copy_last_page(group, table, entry->length) ? 1 : 0;
    const int64_t num_new = pages_to_take(group, table, entry->length) - copied;
    const int64_t num_slots = (static_cast<int64_t>(table.pages.size()) + num_new) * page_size_;
    room = std::min(room, num_new < 0 ? 0 : num_slots - entry->length);
  }
  return room;
}

Status KvCache::append(SequenceId sequence, int64_t num_tokens) {
  if (num_tokens < 0) return invalid_argument("num_tokens is ", num_tokens, ": a sequence only grows");
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  if (num_tokens > INT64_MAX - entry->length) {
    return resource_exhausted("sequence ", sequence, " has ", entry->length, " tokens: ", num_tokens,
                              " more are more than any KV cache holds");
  }
  PROLOGUE_RETURN_IF_ERROR(make_room(*entry, entry->length + num_tokens, true));
  entry->length += num_tokens;
  return {};
}

Status KvCache::truncate(SequenceId sequence, int64_t length) {
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  if (length < 0 || length > entry->length) {
    return invalid_argument("length is ", length, ": it must be between 0 and ", entry->length, ", the length of sequence ",
                            sequence);
  }
  const int64_t num_pages = pages_for(length);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t first = first_page_in_reach(groups_[g], length);
    if (first < std::min(num_pages, entry->tables[g].num_given_back)) {
      return invalid_argument("length is ", length, ": the next token would see page ", first, " of group ", g, ", but sequence ",
                              sequence, " has given back its first ", entry->tables[g].num_given_back,
                              " pages, out of the window");
    }
  }
  cut(*entry, num_pages);
  entry->length = length;
  const int64_t num_full = length / page_size_;
  if (entry->num_indexed > num_full) {
    int32_t node = entry->node;
    for (; entry->num_indexed > num_full; --entry->num_indexed) node = index_.parent(node);
    index_.hold(node);
    index_.let_go(std::exchange(entry->node, node));
  }
  return {};
}

Status KvCache::release_out_of_window(SequenceId sequence) { return release_out_of_window(sequence, INT64_MAX); }

Status KvCache::release_out_of_window(SequenceId sequence, int64_t position) {
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  if (position < 0) return invalid_argument("position is ", position, ": it must not be negative");
  give_back_out_of_window(*entry, std::min(position, entry->length));
  return {};
}

// ---- Prefix reuse

KvCache::Match KvCache::match(TokenSpan tokens, uint64_t extra_key) const {
  Match best;
  if (!prefix_reuse_ || tokens.data == nullptr) return best;
  int32_t node = index_.find_root(extra_key);
  std::array<int64_t, kMaxKvGroups> first = {};  // of the pages without a gap that end at the node, in each group
  for (int64_t i = 0; node >= 0 && i < tokens.size / page_size_; ++i) {
    const int32_t* const page_tokens = tokens.data + i * page_size_;
    node = index_.find(node, index_.hash_after(node, page_tokens), page_tokens);
    if (node < 0) break;
    bool usable = true;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (index_.page(node, static_cast<int64_t>(g)) < 0) first[g] = i + 1;
      usable = usable && first[g] <= std::min(i, first_page_in_reach(groups_[g], (i + 1) * page_size_));
    }
    if (usable) best = {(i + 1) * page_size_, node};
  }
  return best;
}

Status KvCache::insert(SequenceId sequence, TokenSpan tokens) {
  PROLOGUE_RETURN_IF_ERROR(check_tokens(tokens));
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  const int64_t num_full = std::min(tokens.size, entry->length) / page_size_;
  if (!prefix_reuse_ || num_full <= entry->num_indexed) return {};
  if (entry->node < 0) {
    PROLOGUE_ASSIGN_OR_RETURN(entry->node, index_.find_or_add_root(entry->extra_key));
    index_.hold(entry->node);
  }
  for (int64_t& i = entry->num_indexed; i < num_full; ++i) {
    const int32_t* const page_tokens = tokens.data + i * page_size_;
    PROLOGUE_ASSIGN_OR_RETURN(const int32_t node,
                              index_.find_or_add(entry->node, index_.hash_after(entry->node, page_tokens), page_tokens));
    index_.hold(node);
    index_.let_go(std::exchange(entry->node, node));
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int32_t page = entry->tables[g].pages[static_cast<size_t>(i)];
      const bool page_is_free_to_join = page >= 0 && groups_[g].pool.node(page) < 0;
      if (!page_is_free_to_join || index_.page(node, static_cast<int64_t>(g)) >= 0) continue;
      (void)groups_[g].pool.set_node(page, node);
      index_.set_page(node, static_cast<int64_t>(g), page);
    }
  }
  return {};
}

int64_t KvCache::evict(int64_t group, int64_t count) {
  if (!exists(group)) return 0;
  int64_t num_evicted = 0;
  for (; num_evicted < count; ++num_evicted) {
    const PagePool::Taken taken = groups_[static_cast<size_t>(group)].pool.evict();
    if (taken.page < 0) break;
    index_.clear_page(taken.evicted_node, group);
  }
  return num_evicted;
}

// ---- What a step needs

Result<int64_t> KvCache::length(SequenceId sequence) const {
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* const entry, find(sequence));
  return entry->length;
}

Result<int64_t> KvCache::num_reserved(SequenceId sequence) const {
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* const entry, find(sequence));
  size_t num_pages = SIZE_MAX;
  for (const Table& table : entry->tables) num_pages = std::min(num_pages, table.pages.size());
  return static_cast<int64_t>(num_pages) * page_size_;
}

Result<const std::vector<int32_t>*> KvCache::pages(SequenceId sequence, int64_t group) const {
  PROLOGUE_ASSIGN_OR_RETURN(const Table* const table, find_table(sequence, group));
  return &table->pages;
}

Result<int64_t> KvCache::slot(SequenceId sequence, int64_t position, int64_t group) const {
  PROLOGUE_ASSIGN_OR_RETURN(const Table* const table, find_table(sequence, group));
  const auto num_slots = static_cast<int64_t>(table->pages.size()) * page_size_;
  if (position < 0 || position >= num_slots) {
    return invalid_argument("position is ", position, ": sequence ", sequence, " has pages for ", num_slots, " tokens");
  }
  const int64_t index = position / page_size_;
  if (index < table->num_given_back) {
    return invalid_argument("position is ", position, ": sequence ", sequence, " has given back its first ",
                            table->num_given_back, " pages of group ", group, ", out of the window");
  }
  return table->pages[static_cast<size_t>(index)] * page_size_ + position % page_size_;
}

KvCacheStats KvCache::stats() const {
  KvCacheStats stats;
  for (const Group& group : groups_) {
    stats.groups.push_back({group.pool.num_pages(), group.pool.num_used(), group.pool.num_shared(), group.pool.num_cached(),
                            group.pool.num_free(), group.pool.num_evictions(), group.num_copies});
  }
  stats.num_sequences = num_sequences_;
  stats.num_nodes = index_.num_nodes();
  stats.lookups = lookups_;
  stats.lookup_tokens = lookup_tokens_;
  stats.hit_tokens = hit_tokens_;
  return stats;
}

// ---- Integrity

Status KvCache::check_integrity() const {
  return catch_out_of_memory([&]() -> Status {
    std::vector<int32_t> holders;
    int64_t num_used = 0;
    for (size_t slot = 0; slot < sequences_.size(); ++slot) {
      if (!sequences_[slot].used) continue;
      ++num_used;
      PROLOGUE_RETURN_IF_ERROR(check_sequence(sequences_[slot], slot));
      const int32_t node = sequences_[slot].node;
      if (node < 0) continue;
      holders.resize(std::max(holders.size(), static_cast<size_t>(node) + 1), 0);
      ++holders[static_cast<size_t>(node)];
    }
    if (num_used != num_sequences_) return data_loss("the cache counts ", num_sequences_, " sequences, but there are ", num_used);
    PROLOGUE_RETURN_IF_ERROR(index_.check_integrity(holders));
    for (size_t g = 0; g < groups_.size(); ++g) PROLOGUE_RETURN_IF_ERROR(check_group(g));
    return {};
  });
}

Status KvCache::check_sequence(const Sequence& sequence, size_t slot) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Table& table = sequence.tables[g];
    const auto num_pages = static_cast<int64_t>(table.pages.size());
    if (num_pages < pages_for(sequence.length)) {
      return data_loss("the sequence in slot ", slot, " has ", sequence.length, " tokens but only ", num_pages, " pages of ",
                       page_size_);
    }
    if (table.num_given_back > std::min(num_pages, first_page_in_reach(groups_[g], sequence.length))) {
      return data_loss("the sequence in slot ", slot, " has given back ", table.num_given_back, " pages of group ", g,
                       ", but its next token sees some of them");
    }
    for (int64_t i = 0; i < num_pages; ++i) {
      const int32_t page = table.pages[static_cast<size_t>(i)];
      if (i < table.num_given_back ? page != -1 : page < 0 || page >= groups_[g].pool.num_pages()) {
        return data_loss("entry ", i, " of the sequence in slot ", slot, " is page ", page, " in group ", g);
      }
    }
  }
  int64_t depth = -1;  // of a root: 0
  for (int32_t node = sequence.node; node >= 0; node = index_.parent(node)) ++depth;
  if (std::max<int64_t>(0, depth) != sequence.num_indexed || sequence.num_indexed > sequence.length / page_size_) {
    return data_loss("the sequence in slot ", slot, " has ", sequence.length, " tokens and ", sequence.num_indexed,
                     " pages in the index, but its node is at depth ", depth);
  }
  return {};
}

Status KvCache::check_group(size_t g) const {
  const PagePool& pool = groups_[g].pool;
  PROLOGUE_RETURN_IF_ERROR(pool.check_integrity());
  std::vector<int32_t> counts(static_cast<size_t>(pool.num_pages()), 0);
  for (const Sequence& sequence : sequences_) {
    for (const int32_t page : sequence.tables[g].pages) {
      if (page >= 0) ++counts[static_cast<size_t>(page)];
    }
  }
  int64_t num_indexed = 0;
  for (int32_t page = 0; page < pool.num_pages(); ++page) {
    const int32_t count = counts[static_cast<size_t>(page)];
    if (count != pool.count(page)) {
      return data_loss("page ", page, " of group ", g, " is in ", count, " block tables, but its count is ", pool.count(page));
    }
    num_indexed += pool.node(page) >= 0 ? 1 : 0;
  }
  Status status;
  index_.for_each([&](int32_t node) {
    const int32_t page = index_.page(node, static_cast<int64_t>(g));
    if (page < 0) return;
    --num_indexed;
    if (pool.node(page) != node)
      status = data_loss("node ", node, " has page ", page, " of group ", g, ", which does not know it");
  });
  PROLOGUE_RETURN_IF_ERROR(status);
  if (num_indexed != 0) return data_loss(num_indexed, " pages of group ", g, " have a node that does not know them");
  return {};
}

}  // namespace prologue
