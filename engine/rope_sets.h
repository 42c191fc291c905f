// This file says which rows of the rope tables each sequence uses. Ropes whose frequencies depend on the length of the sequence (dynamic
// NTK, LongRoPE) have several sets of frequencies in one table: a sequence's rope position is its position plus the first row of its set.
// The length is pinned when a sequence is admitted, because the keys in the cache were rotated with one set. Host bookkeeping only:
// ModelRunner makes the rows before the step that needs them.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include <prologue/engine/model/model.h>

namespace prologue {

struct RopeSet {
  int64_t length = 0;     // the frequencies are those of this sequence length (rope_length_class)
  int64_t first_row = 0;  // the row of position 0
  int64_t num_rows = 0;
  int64_t num_users = 0;  // sequences
  int64_t last_used = 0;
  bool kept = false;    // it is there from the beginning to the end
  bool filled = false;  // its rows are made, or enqueued to be
};

// Says where the rope positions of a sequence are.
struct RopePositions {
  int64_t length_class = 0;        // of the length that is pinned
  int64_t num_prompt = 0;          // tokens
  std::vector<int32_t> positions;  // of the prompt's tokens, [axes, num_prompt]; empty: each token's index
  int64_t delta = 0;               // the position of token i after the prompt is i + delta
  int64_t steady_from = 0;         // from this token on, each is one position further than the token before it
  int64_t length = 0;              // of the sequence at most; the last token gets no position
  int64_t num_positions = 0;       // all positions are below
  uint64_t key = 0;                // of what K and V depend on; 0: on the tokens only

  int64_t position(int64_t axis, int64_t token) const {
    if (token >= num_prompt || positions.empty()) return token + delta;
    return positions[static_cast<size_t>(axis * num_prompt + token)];
  }
};

// Lengths of one class have the same frequencies in all ropes of the model; the class is the shortest of them.
int64_t rope_length_class(const Model& model, int64_t sequence_length);

class RopeSets {
 public:
  RopeSets() = default;
  // Keeps sets for sequences of up to `context` tokens, max_seqs at a time. Sets that are kept: that of short sequences, in rows 0 ..
  // context - 1, and that of long ones of LongRoPE. Dynamic NTK has a set for every length: for these there are rows of a few sequences of
  // `context` tokens, and a set that no sequence uses stays until its rows are needed.
  RopeSets(const Model& model, int64_t context, int64_t max_seqs);

  int64_t num_rows() const { return num_rows_; }
  bool has_several() const { return sets_.size() > 1 || num_rows_ > sets_.front().num_rows; }

  // Returns a set for a sequence with this length class whose positions are below num_positions, for release(). Returns null if others use
  // the rows. With num_positions <= context, one is always found once all others are released. Throws std::bad_alloc.
  RopeSet* acquire(int64_t length_class, int64_t num_positions);
  void share(RopeSet& set) { ++set.num_users; }
  void release(RopeSet& set) { --set.num_users; }

  std::list<RopeSet>& sets() { return sets_; }

 private:
  RopeSet* allocate(int64_t length_class, int64_t num_rows);

  std::list<RopeSet> sets_;  // by first_row; the first is that of short sequences
  int64_t num_rows_ = 0;
  int64_t num_acquired_ = 0;
};

}  // namespace prologue
