#include <algorithm>
#include <limits>
#include <optional>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/tokenizer/unicode.h>
#include <prologue/engine/tokenizer/unigram.h>

namespace prologue {

Result<Unigram> Unigram::create(const TokenizerData& data, const Vocabulary& vocabulary) {
  constexpr size_t kMaxTokenBytes = 1024;  // the work at each character
  constexpr double kUnknownPenalty = 10;   // SentencePiece's
  PROLOGUE_RETURN_IF_ERROR(vocabulary.check_scores(data.scores));
  Unigram unigram(vocabulary);
  unigram.scores_ = data.scores;
  unigram.unknown_score_ = *std::min_element(data.scores.begin(), data.scores.end()) - kUnknownPenalty;
  unigram.unknown_id_ = data.unknown_id;
  unigram.byte_fallback_ = data.byte_fallback;
  unigram.fuse_unknown_ = data.fuse_unknown;
  unigram.children_of_root_.fill(-1);
  unigram.tokens_of_nodes_.push_back(-1);
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.is_text(id)) continue;
    const std::string_view text = vocabulary.text(id);
    if (text.size() > kMaxTokenBytes) {
      return unsupported("token ", id, ", ", in_quotes(text), ", has ", text.size(), " bytes: at most ", kMaxTokenBytes,
                         " are supported");
    }
    int32_t node = 0;
    for (const char byte : text) node = unigram.add_child(node, static_cast<unsigned char>(byte));
    unigram.tokens_of_nodes_[static_cast<size_t>(node)] = id;
  }
  return unigram;
}

int32_t Unigram::add_child(int32_t node, unsigned char byte) {
  int32_t& child = node == 0 ? children_of_root_[byte] : edges_.emplace(edge(node, byte), -1).first->second;
  if (child < 0) {
    child = static_cast<int32_t>(tokens_of_nodes_.size());
    tokens_of_nodes_.push_back(-1);
  }
  return child;
}

int32_t Unigram::child(int32_t node, unsigned char byte) const {
  if (node == 0) return children_of_root_[byte];
  const auto found = edges_.find(edge(node, byte));
  return found == edges_.end() ? -1 : found->second;
}

void Unigram::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  // Describes the best tokens for the text before a byte: their sum, and the last one (-1: an unknown character).
  struct Best {
    double sum = -std::numeric_limits<double>::infinity();
    size_t begin = 0;
    int32_t token = -1;
  };
  std::vector<Best> best(piece.size() + 1);
  best[0].sum = 0;
  const auto offer = [&](size_t begin, size_t end, int32_t token, double score) {
    const double sum = best[begin].sum + score;
    if (sum > best[end].sum) best[end] = {sum, begin, token};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const size_t character_end = begin + first_character(piece.substr(begin)).size;
    bool is_known = false;
    int32_t node = 0;
    for (size_t end = begin; end < piece.size();) {
      node = child(node, static_cast<unsigned char>(piece[end++]));
      if (node < 0) break;
      const int32_t token = tokens_of_nodes_[static_cast<size_t>(node)];
      if (token < 0) continue;
      offer(begin, end, token, scores_[static_cast<size_t>(token)]);
      is_known = is_known || end == character_end;
    }
    if (!is_known) offer(begin, character_end, -1, unknown_score_);
    begin = character_end;
  }

  std::vector<Best> path;  // backwards; `begin` and the next one's give the text
  for (size_t end = piece.size(); end > 0; end = best[end].begin) path.push_back(best[end]);
  std::reverse(path.begin(), path.end());
  for (size_t i = 0; i < path.size();) {
    if (path[i].token >= 0) {
      ids.push_back(path[i++].token);
      continue;
    }
    const size_t first = i++;
    while (fuse_unknown_ && i < path.size() && path[i].token < 0) ++i;
    const size_t end = i < path.size() ? path[i].begin : piece.size();
    append_unknown(piece.substr(path[first].begin, end - path[first].begin), ids);
  }
}

void Unigram::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  const auto id_of = [&](char byte) { return vocabulary_->byte_ids()[static_cast<unsigned char>(byte)]; };
  if (byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) >= 0; })) {
    for (const char byte : text) ids.push_back(id_of(byte));
  } else if (unknown_id_ >= 0) {
    ids.push_back(unknown_id_);
  }
}

}  // namespace prologue
