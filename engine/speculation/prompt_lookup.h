// Prompt lookup: if the last tokens of a sequence were there before, or are in its prediction, the tokens that followed there are its drafts.
// It needs no model, and guesses right where text is repeated: code that is edited, quotes, lists, tables.
#pragma once

#include <unordered_map>

#include <prologue/engine/speculation/proposer.h>

namespace prologue {

class PromptLookup : public Proposer {
 public:
  Status propose(std::span<DraftSequence> sequences) override;
  void forget(int64_t id) override { indices_.erase(id); }
  bool is_cheap() const override { return true; }

  // A match has at least kShortest tokens. kLongest are compared at most, at up to kCandidates places, the latest first.
  static constexpr int64_t kShortest = 2, kLongest = 16, kCandidates = 64;

 private:
  // Finds where the last kShortest tokens were before. Places with the same hash are a list, as in LZ77.
  struct Index {
    std::vector<int32_t> text;     // the prediction, then the tokens of the sequence
    std::vector<int32_t> latest;   // by hash: the latest place, one past its last token; 0 = none
    std::vector<int32_t> earlier;  // by place: the one before it in the list
    int64_t num_places = 0;        // those before this one are in the lists
  };
  struct Match {
    int64_t end = 0;     // one past its last token
    int64_t length = 0;  // 0 = none
  };
  static void add_tokens(Index& index, const DraftSequence& sequence);
  static Match longest_match(const Index& index);

  std::unordered_map<int64_t, Index> indices_;  // by id of the sequence
};

}  // namespace prologue
