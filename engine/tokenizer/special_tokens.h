// Finds the special tokens of a vocabulary in a text. The time is proportional to the length of the text, for every set of tokens.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

struct SpecialToken {
  std::string_view text;  // not empty
  int32_t id;
  bool always;              // also found without parse_special
  bool strip_left = false;  // AddedToken's
  bool strip_right = false;
  bool single_word = false;
};

// Finds the texts of all special tokens. unsupported: they are more than 4 MiB.
Status check_special_bytes(size_t bytes);

class SpecialTokens {
 public:
  // The texts must differ from each other; they are needed only during the call. unsupported: they have more than 4 MiB in total.
  static Result<SpecialTokens> create(std::span<const SpecialToken> tokens);

  struct Match {
    size_t begin;
    size_t size;
    int32_t id;
  };
  // Appends the tokens in `text` (valid UTF-8) from left to right. If several begin at the same byte, the longest is taken. The search
  // continues after its end. A match contains the white space that its token takes with it.
  void find(std::string_view text, bool parse_special, std::vector<Match>& matches) const;

 private:
  // This is Aho-Corasick over the reversed texts. The searched text is read backwards too, so the node reached at a byte gives the longest
  // token that begins there.
  struct Node {
    int32_t parent;
    int32_t depth;
    int32_t failure = 0;                        // the longest proper suffix of this node's path that is a path itself
    std::array<int32_t, 2> longest = {-1, -1};  // by parse_special: token whose whole text is a suffix of the path, or -1
    unsigned char byte;
  };
  static uint64_t edge(int32_t node, unsigned char byte) { return static_cast<uint64_t>(node) << 8 | byte; }
  int32_t next(int32_t node, unsigned char byte) const;

  struct Entry {
    int32_t size;
    int32_t id;
    bool strip_left;
    bool strip_right;
    bool single_word;
  };
  std::vector<Entry> tokens_;
  std::vector<Node> nodes_;
  std::array<int32_t, 256> children_of_root_{};  // 0: none
  std::unordered_map<uint64_t, int32_t> edges_;  // of the other nodes
};

}  // namespace prologue
