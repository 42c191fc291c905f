// Encodes one piece by byte-pair encoding: of all neighbours that can be merged, merges the pair with the highest priority (the leftmost of
// equal ones), until no pair can be merged. The piece begins as its bytes, or as its characters.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <prologue/engine/tokenizer/tokenizer_data.h>
#include <prologue/engine/tokenizer/vocabulary.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

class Bpe {
 public:
  // Creates the encoder for TokenizerModel::bpe and spm_bpe. The vocabulary must outlive it at its address. data_loss: a merge needs a
  // token that the vocabulary lacks, has to do with a marker, or is there twice; a score is missing or not a number. unsupported: spm_bpe
  // with a normal token of more than 1 KiB.
  static Result<Bpe> create(const TokenizerData& data, const Vocabulary& vocabulary);

  // Owns memory for encoding, reused for each piece.
  class Workspace {
    friend class Bpe;
    struct Symbol {
      int32_t id;  // -1: left out, or merged into the symbol on its left
      int32_t previous;
      int32_t next;  // the number of symbols at the end
    };
    struct Candidate {
      uint64_t order;  // rank, then position: the merge that goes first is the smallest
      int32_t left;
      int32_t result;
      bool operator>(const Candidate& other) const { return order > other.order; }
    };
    std::vector<Symbol> symbols;  // a linked list
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  };

  // Appends the tokens of `piece` (valid UTF-8, below 2^31 bytes). The time is O(n log n), for every vocabulary.
  void encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const;

 private:
  struct HashText {  // finds a std::string by a std::string_view
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using BytesMap = std::unordered_map<std::string, int32_t, HashText, std::equal_to<>>;
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t rank;  // lower goes first
    int32_t result;
  };

  explicit Bpe(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}
  void index_bytes();
  Status read_merges(const TokenizerData& data);
  Status read_scores(const TokenizerData& data);
  const Merge* index_merges();
  const Merge* find_merge(int32_t left, int32_t right) const;
  void split_into_symbols(std::string_view piece, Workspace& workspace) const;
  void push_merge(int32_t left, Workspace& workspace) const;
  void merge_symbols(Workspace& workspace) const;
  std::optional<int32_t> find_whole(std::string_view piece) const;

  const Vocabulary* vocabulary_;
  bool byte_level_ = false;
  bool whole_pieces_first_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_id_ = -1;
  std::array<int32_t, 256> byte_ids_{};  // -1: the vocabulary lacks that byte
  BytesMap tokens_by_bytes_;             // of a byte-level vocabulary that takes whole pieces first
  std::vector<Merge> merges_;            // sorted by left, then right
  std::vector<size_t> merges_begin_;     // by left: where its merges begin; the last one: the number of merges
};

}  // namespace prologue
