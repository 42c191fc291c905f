#include <algorithm>
#include <iterator>

#include <prologue/engine/rope_sets.h>

namespace prologue {

namespace {

constexpr int64_t kMostLengths = 8;  // of the whole context, for which there are rows at the same time

}  // namespace

int64_t rope_length_class(const Model& model, int64_t sequence_length) {
  int64_t length_class = 0;  // between the class of every table and the length, so it has the frequencies of both
  for (const auto& table : model.rope_tables) length_class = std::max(length_class, table->length_class(sequence_length));
  return length_class;
}

RopeSets::RopeSets(const Model& model, int64_t context, int64_t max_seqs) {
  const auto keep = [&](int64_t length) {
    sets_.push_back({length, num_rows_, context, 0, 0, true, false});
    num_rows_ += context;
  };
  keep(0);
  const int64_t longest = rope_length_class(model, context);
  if (longest == 0) return;
  const auto has_many = [](const auto& table) { return table->has_many_lengths(); };
  if (std::any_of(model.rope_tables.begin(), model.rope_tables.end(), has_many)) {
    num_rows_ += context * std::clamp<int64_t>(max_seqs, 1, kMostLengths);
  } else {
    keep(longest);
  }
}

RopeSet* RopeSets::acquire(int64_t length_class, int64_t num_positions) {
  const auto fits = [&](const RopeSet& set) { return set.length == length_class && set.num_rows >= num_positions; };
  const auto found = std::find_if(sets_.begin(), sets_.end(), fits);
  RopeSet* set = found != sets_.end() ? &*found : allocate(length_class, num_positions);
  while (set == nullptr) {
    auto oldest = sets_.end();
    for (auto each = sets_.begin(); each != sets_.end(); ++each) {
      if (each->kept || each->num_users > 0) continue;
      if (oldest == sets_.end() || each->last_used < oldest->last_used) oldest = each;
    }
    if (oldest == sets_.end()) return nullptr;
    sets_.erase(oldest);
    set = allocate(length_class, num_positions);
  }
  ++set->num_users;
  set->last_used = ++num_acquired_;
  return set;
}

// Places a set in the first gap that is large enough.
RopeSet* RopeSets::allocate(int64_t length_class, int64_t num_rows) {
  int64_t row = 0;
  for (auto next = sets_.begin();; ++next) {
    const int64_t end = next == sets_.end() ? num_rows_ : next->first_row;
    if (end - row >= num_rows) return &*sets_.insert(next, {length_class, row, num_rows, 0, 0, false, false});
    if (next == sets_.end()) return nullptr;
    row = next->first_row + next->num_rows;
  }
}

}  // namespace prologue
