#include <prologue/engine/tokenizer/special_tokens.h>

#include <algorithm>
#include <numeric>

#include <prologue/engine/tokenizer/unicode.h>

namespace prologue {
namespace {

bool is_within_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word_character(last_character(text.substr(0, begin)).code_point)) ||
         (end < text.size() && is_word_character(first_character(text.substr(end)).code_point));
}

}  // namespace

Status check_special_bytes(size_t bytes) {
  constexpr size_t kMostBytes = size_t{4} << 20;
  if (bytes <= kMostBytes) return {};
  return unsupported("the vocabulary's special tokens (control, unknown and user-defined) have ", bytes,
                     " bytes in all: at most ", kMostBytes, " are supported");
}

Result<SpecialTokens> SpecialTokens::create(std::span<const SpecialToken> tokens) {
  size_t bytes = 0;
  for (const SpecialToken& token : tokens) bytes += token.text.size();
  PROLOGUE_RETURN_IF_ERROR(check_special_bytes(bytes));

  SpecialTokens result;
  std::vector<Node>& nodes = result.nodes_;
  nodes.push_back({.parent = 0, .depth = 0, .byte = 0});
  for (const SpecialToken& token : tokens) {
    int32_t node = 0;
    for (auto character = token.text.rbegin(); character != token.text.rend(); ++character) {
      const auto byte = static_cast<unsigned char>(*character);
      int32_t& child = node == 0 ? result.children_of_root_[byte] : result.edges_[edge(node, byte)];
      if (child == 0) {
        child = static_cast<int32_t>(nodes.size());
        nodes.push_back({.parent = node, .depth = nodes[static_cast<size_t>(node)].depth + 1, .byte = byte});
      }
      node = child;
    }
    const auto index = static_cast<int32_t>(result.tokens_.size());
    nodes[static_cast<size_t>(node)].longest = {token.always ? index : -1, index};
    result.tokens_.push_back(
        {static_cast<int32_t>(token.text.size()), token.id, token.strip_left, token.strip_right, token.single_word});
  }

  // The failure link of a node points to a less deep node, so shallow nodes come first.
  std::vector<int32_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return nodes[static_cast<size_t>(a)].depth < nodes[static_cast<size_t>(b)].depth; });
  for (const int32_t index : order) {
    Node& node = nodes[static_cast<size_t>(index)];
    if (node.depth > 1) node.failure = result.next(nodes[static_cast<size_t>(node.parent)].failure, node.byte);
    const Node& failure = nodes[static_cast<size_t>(node.failure)];
    for (size_t kind = 0; kind < 2; ++kind) {
      if (node.longest[kind] < 0) node.longest[kind] = failure.longest[kind];
    }
  }
  return result;
}

int32_t SpecialTokens::next(int32_t node, unsigned char byte) const {
  while (node != 0) {
    if (const auto child = edges_.find(edge(node, byte)); child != edges_.end()) return child->second;
    node = nodes_[static_cast<size_t>(node)].failure;
  }
  return children_of_root_[byte];
}

void SpecialTokens::find(std::string_view text, bool parse_special, std::vector<Match>& matches) const {
  if (tokens_.empty()) return;
  struct Candidate {
    size_t begin;
    int32_t token;
  };
  std::vector<Candidate> candidates;  // from right to left
  int32_t node = 0;
  for (size_t i = text.size(); i-- > 0;) {
    node = next(node, static_cast<unsigned char>(text[i]));
    const int32_t token = nodes_[static_cast<size_t>(node)].longest[parse_special ? 1 : 0];
    if (token >= 0) candidates.push_back({i, token});
  }
  size_t free_from = 0;  // the first byte after the last match, or after the last token that was no single word
  size_t last_end = 0;   // the end of the last match
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
    if (candidate->begin < free_from) continue;
    const Entry& token = tokens_[static_cast<size_t>(candidate->token)];
    size_t begin = candidate->begin, end = begin + static_cast<size_t>(token.size);
    free_from = end;
    if (token.single_word && is_within_word(text, begin, end)) continue;
    while (token.strip_left && begin > last_end) {
      const Character character = last_character(text.substr(0, begin));
      if (!is_white_space(character.code_point)) break;
      begin -= character.size;
    }
    while (token.strip_right && end < text.size()) {
      const Character character = first_character(text.substr(end));
      if (!is_white_space(character.code_point)) break;
      end += character.size;
    }
    matches.push_back({begin, end - begin, token.id});
    free_from = last_end = end;
  }
}

}  // namespace prologue
