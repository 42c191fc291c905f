// This file has a KvCache and a plain model of it. Every call is made on both, and their results and pages must agree. The data is there
// too: for each slot a tag, a hash of everything that K and V of a token depend on (the extra key, and the tokens up to it). Tags are
// written where a step would write K and V, copied where it would copy pages, and read where attention would read.
//
// The model is written for being plain: maps and loops over everything. It has no code of the cache. It does not predict which free page is
// taken, but it does predict which cached page is evicted, how long every hit is, and which calls fail.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <prologue/kvcache/kv_cache.h>

namespace prologue::test {

class KvModel {
 public:
  using Fail = std::function<void(const std::string&)>;  // must not return

  KvModel(const KvCacheConfig& config, Fail fail)
      : config_(config), page_size_(config.page_size), fail_(std::move(fail)), cache_(KvCache::create(config).value()) {
    for (const KvGroup& group : config.groups) {
      groups_.emplace_back();
      groups_.back().window = group.window;
      groups_.back().pages.resize(static_cast<size_t>(group.num_pages));
      groups_.back().tags.resize(static_cast<size_t>(group.num_pages * page_size_), 0);
    }
  }

  KvCache& cache() { return cache_; }
  const std::vector<SequenceId>& live() const { return live_; }
  const std::vector<int32_t>& tokens(SequenceId id) const { return sequences_.at(id).tokens; }
  uint64_t key(SequenceId id) const { return sequences_.at(id).key; }
  bool known(SequenceId id) const { return sequences_.count(id) > 0; }
  int64_t num_groups() const { return static_cast<int64_t>(groups_.size()); }
  int64_t hit_tokens() const { return hit_tokens_; }
  int64_t num_failed() const { return num_failed_; }
  int64_t num_copies() const {
    int64_t sum = 0;
    for (const Group& group : groups_) sum += group.num_copies;
    return sum;
  }
  int64_t num_evictions() const {
    int64_t sum = 0;
    for (const Group& group : groups_) sum += group.num_evictions;
    return sum;
  }

  SequenceId add(uint64_t key) {
    const Result<SequenceId> id = cache_.add_sequence(key);
    require(id.ok(), "add_sequence failed");
    start(*id, key);
    return *id;
  }

  // The length of the hit is compared, and the data of every token that the next one sees.
  SequenceId add(const std::vector<int32_t>& tokens, int64_t max_hit_tokens, uint64_t key) {
    const int64_t asked = std::min(max_hit_tokens, static_cast<int64_t>(tokens.size()));
    const int64_t expected = longest_hit(tokens, asked, key);
    const KvCache::Match match = cache_.match({tokens.data(), asked}, key);
    require(match.num_tokens == expected, str_cat("match finds ", match.num_tokens, " tokens, not ", expected));
    const Result<SequenceId> id = cache_.add_sequence(tokens, max_hit_tokens, key);
    require(id.ok(), "add_sequence failed");
    Sequence& sequence = start(*id, key);
    for (int64_t i = 0; i < expected; ++i) push_token(sequence, tokens[static_cast<size_t>(i)]);
    sequence.num_indexed = expected / page_size_;
    for (int64_t g = 0; g < num_groups(); ++g) {
      Group& group = at(g);
      std::vector<int32_t>& table = sequence.tables[static_cast<size_t>(g)];
      table.resize(static_cast<size_t>(sequence.num_indexed), -1);
      for (int64_t i = sequence.num_indexed - 1; i >= first_seen(group, expected); --i) {
        table[static_cast<size_t>(i)] = group.index.at(sequence.history[static_cast<size_t>((i + 1) * page_size_)]);
        acquire(group, table[static_cast<size_t>(i)]);
      }
    }
    ++lookups_;
    lookup_tokens_ += static_cast<int64_t>(tokens.size());
    hit_tokens_ += expected;
    check_sequence(*id);
    return *id;
  }

  bool reserve(SequenceId id, int64_t num_tokens, bool with_windows) {
    const bool expected = has_room(sequences_.at(id), num_tokens, with_windows);
    const Status status = with_windows ? cache_.reserve(id, num_tokens) : cache_.reserve_without_window(id, num_tokens);
    require(status.ok() == expected, str_cat("reserve(", num_tokens, ") should ", expected ? "" : "not ", "work"));
    if (!expected) ++num_failed_;
    if (expected) take_room(id, num_tokens, with_windows);
    check_tables(id);
    return expected;
  }

  // Runs a step's tokens: appends to all of these sequences, then copies pages, then writes.
  void step(const std::vector<std::pair<SequenceId, std::vector<int32_t>>>& parts) {
    std::vector<std::pair<SequenceId, int64_t>> written;  // from this position
    for (const auto& [id, tokens] : parts) {
      Sequence& sequence = sequences_.at(id);
      const auto length = static_cast<int64_t>(sequence.tokens.size()), more = static_cast<int64_t>(tokens.size());
      const int64_t room = cache_.room(id).value();
      require(has_room(sequence, length + room) && !has_room(sequence, length + room + 1),
              str_cat("there is not room for ", room));
      const bool expected = has_room(sequence, length + more);
      const Status status = cache_.append(id, more);
      require(status.ok() == expected, str_cat("append(", more, ") should ", expected ? "" : "not ", "work"));
      require(expected || status.code() == StatusCode::resource_exhausted, "an append failed with another error");
      if (!expected) {
        ++num_failed_;
        check_tables(id);
        continue;
      }
      take_room(id, length + more);
      for (const int32_t token : tokens) push_token(sequence, token);
      check_tables(id);
      written.push_back({id, length});
    }
    copy_pages();
    for (const auto& [id, first] : written) write(id, first);
  }

  SequenceId fork(SequenceId id) {
    const Result<SequenceId> forked = cache_.fork(id);
    require(forked.ok() && !known(*forked), "fork failed");
    Sequence copy = sequences_.at(id);
    for (int64_t g = 0; g < num_groups(); ++g) {
      std::vector<int32_t>& table = copy.tables[static_cast<size_t>(g)];
      table.resize(static_cast<size_t>(pages_for(static_cast<int64_t>(copy.tokens.size()))));
      for (const int32_t page : table)
        if (page >= 0) acquire(at(g), page);
    }
    sequences_[*forked] = std::move(copy);
    live_.push_back(*forked);
    copy_pages();
    check_sequence(*forked);
    return *forked;
  }

  bool truncate(SequenceId id, int64_t length) {
    Sequence& sequence = sequences_.at(id);
    bool expected = true;
    for (int64_t g = 0; g < num_groups(); ++g)
      for (int64_t i = first_seen(at(g), length); i < pages_for(length); ++i)
        expected = expected && sequence.tables[static_cast<size_t>(g)][static_cast<size_t>(i)] >= 0;
    const Status status = cache_.truncate(id, length);
    require(status.ok() == expected, str_cat("truncate(", length, ") should ", expected ? "" : "not ", "work"));
    if (expected) cut(sequence, length);
    check_tables(id);
    return expected;
  }

  void free(SequenceId id) {
    require(cache_.free(id).ok(), "free failed");
    cut(sequences_.at(id), 0);
    sequences_.erase(id);
    live_.erase(std::find(live_.begin(), live_.end(), id));
  }

  // position < 0 stands for the end.
  void release_out_of_window(SequenceId id, int64_t position) {
    const Status status = position < 0 ? cache_.release_out_of_window(id) : cache_.release_out_of_window(id, position);
    require(status.ok(), "release_out_of_window failed");
    const auto length = static_cast<int64_t>(sequences_.at(id).tokens.size());
    give_back(sequences_.at(id), position < 0 ? length : std::min(position, length));
    check_tables(id);
  }

  void insert(SequenceId id, int64_t num_tokens) {
    Sequence& sequence = sequences_.at(id);
    require(cache_.insert(id, {sequence.tokens.data(), num_tokens}).ok(), "insert failed");
    if (!config_.prefix_reuse) return;
    const int64_t num_full = std::min(num_tokens, static_cast<int64_t>(sequence.tokens.size())) / page_size_;
    for (int64_t& i = sequence.num_indexed; i < num_full; ++i) {
      const uint64_t prefix = sequence.history[static_cast<size_t>((i + 1) * page_size_)];
      for (int64_t g = 0; g < num_groups(); ++g) {
        const int32_t page = sequence.tables[static_cast<size_t>(g)][static_cast<size_t>(i)];
        if (page >= 0 && at(g).page(page).prefix == 0 && at(g).index.emplace(prefix, page).second)
          at(g).page(page).prefix = prefix;
      }
    }
    if (num_full < sequence.num_indexed) return;
    check_tables(id);
  }

  void evict(int64_t g, int64_t count) {
    int64_t expected = 0;
    for (Group& group = at(g); expected < count && !group.cached.empty(); ++expected) evict_oldest(group);
    const int64_t evicted = cache_.evict(g, count);
    require(evicted == expected, str_cat("evict(", g, ", ", count, ") evicts ", evicted, ", not ", expected));
  }

  // Compares everything, and reads the data of every sequence.
  void check_all() {
    if (const Status status = cache_.check_integrity(); !status.ok()) fail_(status.message());
    for (const SequenceId id : live_) check_sequence(id);
    const KvCacheStats stats = cache_.stats();
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      int64_t used = 0, shared = 0;
      for (const Page& page : group.pages) {
        used += page.refs > 0 ? 1 : 0;
        shared += page.refs > 1 ? 1 : 0;
      }
      const auto cached = static_cast<int64_t>(group.cached.size()), all = static_cast<int64_t>(group.pages.size());
      const KvGroupStats& s = stats.groups[g];
      require(s.num_pages == all && s.used == used && s.shared == shared && s.cached == cached && s.free == all - used - cached &&
                  s.evictions == group.num_evictions && s.copies == group.num_copies,
              str_cat("statistics of group ", g, ": used ", s.used, ", shared ", s.shared, ", cached ", s.cached, ", free ",
                      s.free, ", evictions ", s.evictions, ", copies ", s.copies, "; expected ", used, ", ", shared, ", ", cached,
                      ", ", all - used - cached, ", ", group.num_evictions, ", ", group.num_copies));
    }
    require(stats.num_sequences == static_cast<int64_t>(live_.size()), "wrong number of sequences");
    require(stats.lookups == lookups_ && stats.lookup_tokens == lookup_tokens_ && stats.hit_tokens == hit_tokens_,
            "wrong statistics of hits");
  }

  // Frees and evicts everything: no page and no node may be left.
  void finish() {
    check_all();
    while (!live_.empty()) free(live_.back());
    check_all();
    for (int64_t g = 0; g < num_groups(); ++g) {
      evict(g, INT64_MAX);
      require(cache_.num_free_pages(g) == cache_.num_pages(g), "pages have leaked");
    }
    check_all();
    require(cache_.stats().num_nodes == 0, str_cat(cache_.stats().num_nodes, " nodes have leaked"));
  }

 private:
  struct Page {
    int64_t refs = 0;
    uint64_t prefix = 0;  // what it is indexed as; 0: not indexed
    int64_t last_use = 0;
  };
  struct Group {
    int64_t window = 0;
    std::vector<Page> pages;
    std::vector<uint64_t> tags;                    // of each slot
    std::unordered_map<uint64_t, int32_t> index;   // from the history up to the end of a page
    std::set<std::pair<int64_t, int32_t>> cached;  // by last use
    int64_t num_used = 0;
    int64_t num_evictions = 0;
    int64_t num_copies = 0;
    Page& page(int32_t number) { return pages[static_cast<size_t>(number)]; }
  };
  struct Sequence {
    uint64_t key = 0;
    std::vector<int32_t> tokens;
    std::vector<uint64_t> history;  // [tokens + 1]: a hash of the key and of so many tokens
    std::vector<std::vector<int32_t>> tables;
    int64_t num_indexed = 0;
  };

  static uint64_t hash(uint64_t a, uint64_t b) {
    uint64_t z = (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdull;
    z = (z ^ (z >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return (z ^ (z >> 33)) | 1;  // never 0
  }
  static uint64_t hash_of_key(uint64_t key) { return hash(0x5eed, key); }
  static uint64_t hash_of_token(uint64_t history, int32_t token) { return hash(history, static_cast<uint32_t>(token)); }

  void require(bool holds, const std::string& what) const {
    if (!holds) fail_(what);
  }
  Group& at(int64_t g) { return groups_[static_cast<size_t>(g)]; }
  int64_t pages_for(int64_t num_tokens) const { return (num_tokens + page_size_ - 1) / page_size_; }
  // Returns the first page with a position that the token at `position` sees: those above position - window.
  int64_t first_seen(const Group& group, int64_t position) const {
    const int64_t first = group.window == 0 ? 0 : std::max<int64_t>(0, position - group.window + 1);
    return first / page_size_;
  }

  Sequence& start(SequenceId id, uint64_t key) {
    require(!known(id), "an id is given twice");
    Sequence& sequence = sequences_[id];
    sequence.key = key;
    sequence.history = {hash_of_key(key)};
    sequence.tables.resize(groups_.size());
    live_.push_back(id);
    return sequence;
  }
  static void push_token(Sequence& sequence, int32_t token) {
    sequence.tokens.push_back(token);
    sequence.history.push_back(hash_of_token(sequence.history.back(), token));
  }

  int64_t longest_hit(const std::vector<int32_t>& tokens, int64_t num_tokens, uint64_t key) {
    if (!config_.prefix_reuse) return 0;
    std::vector<uint64_t> prefixes;  // of each page
    uint64_t history = hash_of_key(key);
    for (int64_t i = 0; i < num_tokens / page_size_ * page_size_; ++i) {
      history = hash_of_token(history, tokens[static_cast<size_t>(i)]);
      if ((i + 1) % page_size_ == 0) prefixes.push_back(history);
    }
    for (auto depth = static_cast<int64_t>(prefixes.size()); depth > 0; --depth) {
      bool complete = true;
      for (const Group& group : groups_)
        for (int64_t i = std::min(depth - 1, first_seen(group, depth * page_size_)); i < depth && complete; ++i)
          complete = group.index.count(prefixes[static_cast<size_t>(i)]) > 0;
      if (complete) return depth * page_size_;
    }
    return 0;
  }

  void acquire(Group& group, int32_t number) {
    Page& page = group.page(number);
    if (page.refs++ == 0) {
      require(group.cached.erase({page.last_use, number}) == 1, "a page is shared that is neither cached nor used");
      ++group.num_used;
    }
  }
  void release(Group& group, int32_t number) {
    Page& page = group.page(number);
    require(page.refs > 0, "a page is given back twice");
    if (--page.refs > 0) return;
    --group.num_used;
    page.last_use = ++clock_;
    if (page.prefix != 0) group.cached.insert({page.last_use, number});
  }
  void evict_oldest(Group& group) {
    Page& page = group.page(group.cached.begin()->second);
    group.cached.erase(group.cached.begin());
    group.index.erase(std::exchange(page.prefix, 0));
    ++group.num_evictions;
  }
  // The cache has taken this page.
  void take(Group& group, int32_t number) {
    require(number >= 0 && number < static_cast<int64_t>(group.pages.size()), str_cat("page ", number, " does not exist"));
    Page& page = group.page(number);
    require(page.refs == 0, str_cat("page ", number, " has two owners"));
    if (group.num_used + static_cast<int64_t>(group.cached.size()) == static_cast<int64_t>(group.pages.size())) {
      require(group.cached.begin()->second == number,
              str_cat("page ", number, " is evicted, not ", group.cached.begin()->second, ", which was used before it"));
      evict_oldest(group);
    }
    require(page.prefix == 0, str_cat("page ", number, " is evicted although pages are free"));
    page.refs = 1;
    ++group.num_used;
  }

  bool copies_last_page(Group& group, const std::vector<int32_t>& table, int64_t length) {
    if (length % page_size_ == 0) return false;
    const Page& page = group.page(table[static_cast<size_t>(length / page_size_)]);
    return page.refs > 1 || page.prefix != 0;
  }
  bool has_room(Sequence& sequence, int64_t num_tokens, bool with_windows = true, bool without_giving_back = false) {
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    if (num_tokens <= length) return true;
    for (int64_t g = 0; g < num_groups(); ++g) {
      Group& group = at(g);
      if (group.window > 0 && !with_windows) continue;
      const std::vector<int32_t>& table = sequence.tables[static_cast<size_t>(g)];
      const int64_t needed = std::max<int64_t>(0, pages_for(num_tokens) - static_cast<int64_t>(table.size())) +
                             (copies_last_page(group, table, length) ? 1 : 0);
      int64_t available = static_cast<int64_t>(group.pages.size()) - group.num_used;
      for (int64_t i = 0; i < first_seen(group, length); ++i) {
        const int32_t page = table[static_cast<size_t>(i)];
        if (page >= 0 && group.page(page).refs == 1 && !without_giving_back) ++available;
      }
      if (needed > available) return false;
    }
    return true;
  }
  void give_back(Sequence& sequence, int64_t position) {
    for (int64_t g = 0; g < num_groups(); ++g) {
      std::vector<int32_t>& table = sequence.tables[static_cast<size_t>(g)];
      for (int64_t i = 0; i < first_seen(at(g), position); ++i) {
        int32_t& page = table[static_cast<size_t>(i)];
        if (page >= 0) release(at(g), std::exchange(page, -1));
      }
    }
  }
  // Does what reserve() does if there is room: which pages it takes is read from the cache's tables, and judged.
  void take_room(SequenceId id, int64_t num_tokens, bool with_windows = true) {
    Sequence& sequence = sequences_.at(id);
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    if (num_tokens <= length) return;
    if (!config_.keep_until_released || !has_room(sequence, num_tokens, with_windows, true)) give_back(sequence, length);
    for (int64_t g = 0; g < num_groups(); ++g) {
      Group& group = at(g);
      if (group.window > 0 && !with_windows) continue;
      std::vector<int32_t>& table = sequence.tables[static_cast<size_t>(g)];
      const std::vector<int32_t>& got = *cache_.pages(id, g).value();
      require(static_cast<int64_t>(got.size()) >= pages_for(num_tokens), "a table is too short");
      if (copies_last_page(group, table, length)) {
        int32_t& page = table[static_cast<size_t>(length / page_size_)];
        const int32_t from = std::exchange(page, got[static_cast<size_t>(length / page_size_)]);
        take(group, page);
        const std::vector<PageCopy>& copies = cache_.copies();
        require(num_noted_ < copies.size(), "a copy is missing");
        const PageCopy& copy = copies[num_noted_++];
        require(copy.group == g && copy.from == from && copy.to == page, "a copy is not that of the shared page");
        release(group, from);
        ++group.num_copies;
      }
      for (auto i = static_cast<int64_t>(table.size()); i < pages_for(num_tokens); ++i) {
        table.push_back(got[static_cast<size_t>(i)]);
        take(group, table.back());
      }
    }
  }
  void cut(Sequence& sequence, int64_t length) {
    for (int64_t g = 0; g < num_groups(); ++g) {
      std::vector<int32_t>& table = sequence.tables[static_cast<size_t>(g)];
      for (; static_cast<int64_t>(table.size()) > pages_for(length); table.pop_back()) {
        if (table.back() >= 0) release(at(g), table.back());
      }
    }
    sequence.tokens.resize(static_cast<size_t>(length));
    sequence.history.resize(static_cast<size_t>(length) + 1);
    sequence.num_indexed = std::min(sequence.num_indexed, length / page_size_);
  }

  void copy_pages() {
    require(cache_.copies().size() == num_noted_, "a copy that nobody needs");
    for (const PageCopy& copy : cache_.copies()) {
      std::vector<uint64_t>& tags = at(copy.group).tags;
      std::copy_n(tags.begin() + copy.from * page_size_, page_size_, tags.begin() + copy.to * page_size_);
    }
    cache_.clear_copies();
    num_noted_ = 0;
  }
  void write(SequenceId id, int64_t first) {
    const Sequence& sequence = sequences_.at(id);
    for (int64_t g = 0; g < num_groups(); ++g) {
      Group& group = at(g);
      for (auto position = first; position < static_cast<int64_t>(sequence.tokens.size()); ++position) {
        const Result<int64_t> slot = cache_.slot(id, position, g);
        require(slot.ok() && *slot >= 0 && *slot < static_cast<int64_t>(group.tags.size()), "a new token has no slot");
        const Page& page = group.page(static_cast<int32_t>(*slot / page_size_));
        require(page.refs == 1 && page.prefix == 0, "a page is written that others have");
        group.tags[static_cast<size_t>(*slot)] = sequence.history[static_cast<size_t>(position) + 1];
      }
    }
  }

  void check_tables(SequenceId id) {
    const Sequence& sequence = sequences_.at(id);
    require(cache_.length(id).value() == static_cast<int64_t>(sequence.tokens.size()), "a length is wrong");
    size_t num_pages = SIZE_MAX;
    for (const std::vector<int32_t>& table : sequence.tables) num_pages = std::min(num_pages, table.size());
    require(cache_.num_reserved(id).value() == static_cast<int64_t>(num_pages) * page_size_, "reserved slots are wrong");
    for (int64_t g = 0; g < num_groups(); ++g) {
      require(*cache_.pages(id, g).value() == sequence.tables[static_cast<size_t>(g)],
              str_cat("a block table of group ", g, " is wrong"));
    }
  }
  // Also reads all data that the next token would see.
  void check_sequence(SequenceId id) {
    check_tables(id);
    if (num_noted_ > 0) return;  // copies are pending
    const Sequence& sequence = sequences_.at(id);
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    for (int64_t g = 0; g < num_groups(); ++g) {
      const Group& group = at(g);
      for (int64_t position = group.window == 0 ? 0 : std::max<int64_t>(0, length - group.window + 1); position < length;
           ++position) {
        const Result<int64_t> slot = cache_.slot(id, position, g);
        require(slot.ok(), "a token in reach has no slot");
        require(group.tags[static_cast<size_t>(*slot)] == sequence.history[static_cast<size_t>(position) + 1],
                str_cat("position ", position, " of sequence ", id, " holds another token's data in group ", g));
      }
    }
  }

  KvCacheConfig config_;
  int64_t page_size_;
  Fail fail_;
  KvCache cache_;
  std::vector<Group> groups_;
  std::map<SequenceId, Sequence> sequences_;
  std::vector<SequenceId> live_;
  size_t num_noted_ = 0;  // of the cache's copies: the model has expected so many
  int64_t clock_ = 0;
  int64_t lookups_ = 0;
  int64_t lookup_tokens_ = 0;
  int64_t hit_tokens_ = 0;
  int64_t num_failed_ = 0;
};

// Runs one random operation. `source`: test::Random or fuzz::Choices. Prompts are made of few texts, so that prefixes are found often.
template <class Source>
void random_operation(KvModel& model, Source& source) {
  const int64_t page_size = model.cache().page_size();
  const auto prompt = [&] {
    std::vector<int32_t> tokens(static_cast<size_t>(source.integer(0, 9 * page_size)));
    const int64_t text = source.integer(0, 3);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * static_cast<size_t>(text + 3) / 7) % 5);
    if (!tokens.empty() && source.integer(0, 3) == 0)
      tokens[static_cast<size_t>(source.integer(0, static_cast<int64_t>(tokens.size()) - 1))] = 7;
    return tokens;
  };
  const auto pick = [&] {
    return model.live()[static_cast<size_t>(source.integer(0, static_cast<int64_t>(model.live().size()) - 1))];
  };
  const auto length = [&](SequenceId id) { return static_cast<int64_t>(model.tokens(id).size()); };
  const int64_t action = source.integer(0, 19);
  if (model.live().empty() || (action < 2 && model.live().size() < 12)) {
    const auto key = static_cast<uint64_t>(source.integer(0, 2));
    if (source.integer(0, 7) == 0) {
      model.add(key);
      return;
    }
    const std::vector<int32_t> tokens = prompt();
    const SequenceId id = model.add(tokens, source.integer(0, static_cast<int64_t>(tokens.size()) + 1), key);
    model.step({{id, {tokens.begin() + length(id), tokens.end()}}});
    if (source.integer(0, 3) > 0) model.insert(id, length(id));
    return;
  }
  const SequenceId id = pick();
  if (action < 9) {
    std::vector<std::pair<SequenceId, std::vector<int32_t>>> parts;
    for (int64_t count = source.integer(1, 4); count > 0; --count) {
      const SequenceId part = pick();
      const bool repeated = std::any_of(parts.begin(), parts.end(), [&](const auto& other) { return other.first == part; });
      if (repeated || length(part) > 12 * page_size) continue;
      std::vector<int32_t> tokens(static_cast<size_t>(source.integer(0, 2) > 0 ? 1 : source.integer(0, 2 * page_size)));
      for (int32_t& token : tokens) token = static_cast<int32_t>(source.integer(0, 1));
      parts.emplace_back(part, std::move(tokens));
    }
    model.step(parts);
  } else if (action < 11) {
    model.insert(id, source.integer(0, length(id)));
  } else if (action < 12) {
    model.insert(id, length(id));
  } else if (action < 13) {
    if (model.live().size() < 12) model.fork(id);
  } else if (action < 15) {
    model.truncate(
        id, source.integer(0, 3) == 0 ? source.integer(0, length(id)) : std::max<int64_t>(0, length(id) - source.integer(0, 4)));
  } else if (action < 16) {
    const bool with_windows = source.integer(0, 1) == 0;
    model.reserve(id, length(id) + source.integer(-1, 3 * page_size) < 0 ? 0 : length(id) + source.integer(0, 3 * page_size),
                  with_windows);
  } else if (action < 17) {
    model.release_out_of_window(id, source.integer(-1, length(id)));
  } else if (action < 18) {
    if (source.integer(0, 3) == 0) model.evict(source.integer(0, model.num_groups() - 1), source.integer(0, 3));
  } else {
    model.free(id);
  }
}

}  // namespace prologue::test
