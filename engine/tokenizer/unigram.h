// The unigram model writes a piece as the tokens whose scores have the largest sum.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <prologue/engine/tokenizer/tokenizer_data.h>
#include <prologue/engine/tokenizer/vocabulary.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

class Unigram {
 public:
  // The vocabulary must outlive it at its address. data_loss: a score is missing or not a number. unsupported: a token has more than
  // 1 KiB.
  static Result<Unigram> create(const TokenizerData& data, const Vocabulary& vocabulary);

  // Appends the tokens of `piece` (valid UTF-8). Of equal sums the first found wins: the one whose last token is longest. The time is
  // at most proportional to the length of the piece times that of the longest token.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  static uint64_t edge(int32_t node, unsigned char byte) { return static_cast<uint64_t>(node) << 8 | byte; }
  int32_t add_child(int32_t node, unsigned char byte);
  int32_t child(int32_t node, unsigned char byte) const;  // -1: none
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  explicit Unigram(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}

  const Vocabulary* vocabulary_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  int32_t unknown_id_ = -1;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  // This is a trie over the tokens' texts. Node 0 is its root.
  std::vector<int32_t> tokens_of_nodes_;  // -1: no token ends here
  std::array<int32_t, 256> children_of_root_{};
  std::unordered_map<uint64_t, int32_t> edges_;  // of the other nodes
};

}  // namespace prologue
