#include <prologue/engine/tokenizer/bpe.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/tokenizer/byte_alphabet.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue {
// ---- The tables ----

Result<Bpe> Bpe::create(const TokenizerData& data, const Vocabulary& vocabulary) {
  Bpe bpe(vocabulary);
  bpe.byte_level_ = data.byte_level;
  bpe.whole_pieces_first_ = data.whole_pieces_first;
  bpe.byte_fallback_ = data.byte_fallback;
  bpe.fuse_unknown_ = data.fuse_unknown;
  bpe.unknown_id_ = data.unknown_id;
  if (bpe.byte_level_) {
    bpe.index_bytes();
  } else {
    bpe.byte_ids_ = vocabulary.byte_ids();
  }
  PROLOGUE_RETURN_IF_ERROR(data.model == TokenizerModel::spm_bpe ? bpe.read_scores(data) : bpe.read_merges(data));
  if (const Merge* twice = bpe.index_merges()) {
    return data_loss("merge ", twice->rank, ", ",
                     in_quotes(str_cat(vocabulary.text(twice->left), " ", vocabulary.text(twice->right))), ", is there twice");
  }
  return bpe;
}

void Bpe::index_bytes() {
  const ByteAlphabet alphabet;
  byte_ids_.fill(-1);
  for (int32_t id = 0; id < vocabulary_->size(); ++id) {
    if (vocabulary_->type(id) != TokenType::normal) continue;
    const std::optional<std::string> bytes = alphabet.decode(vocabulary_->text(id));
    if (!bytes) continue;
    if (bytes->size() == 1) byte_ids_[static_cast<unsigned char>(bytes->front())] = id;
    if (whole_pieces_first_) tokens_by_bytes_.emplace(*bytes, id);
  }
}

Status Bpe::read_merges(const TokenizerData& data) {
  if (data.merges.size() > std::numeric_limits<int32_t>::max()) {
    return data_loss("there are ", data.merges.size(), " merges: the number must fit 31 bits");
  }
  merges_.reserve(data.merges.size());
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const TokenMerge& merge = data.merges[rank];
    std::array<int32_t, 3> ids{};
    bool has_marker = false;
    const std::array<std::string, 3> texts = {merge.left, merge.right, merge.left + merge.right};
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::optional<int32_t> id = vocabulary_->find(texts[i]);
      if (!id) {
        return data_loss("merge ", rank, ", ", in_quotes(str_cat(merge.left, " ", merge.right)), ", needs the token ",
                         in_quotes(texts[i]), ", which the vocabulary lacks");
      }
      const TokenType type = vocabulary_->type(*id);
      has_marker = has_marker || type == TokenType::control || type == TokenType::unknown;
      ids[i] = *id;
    }
    // A marker never comes from plain text, so nothing merges into it or from it.
    if (!has_marker) merges_.push_back({ids[0], ids[1], static_cast<int32_t>(rank), ids[2]});
  }
  return ok_status();
}

// SentencePiece looks up the joined text of two neighbours. Here all pairs that make up a token are merges from the beginning, in the
// order of the tokens' scores.
Status Bpe::read_scores(const TokenizerData& data) {
  constexpr size_t kMaxTokenBytes = 1024;  // the work is the square of a token's length
  PROLOGUE_RETURN_IF_ERROR(vocabulary_->check_scores(data.scores));
  std::vector<double> scores = data.scores;
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (int32_t id = 0; id < vocabulary_->size(); ++id) {
    if (vocabulary_->type(id) != TokenType::normal) continue;
    const std::string_view text = vocabulary_->text(id);
    if (text.size() > kMaxTokenBytes) {
      return unsupported("token ", id, ", ", in_quotes(text), ", has ", text.size(), " bytes: at most ", kMaxTokenBytes,
                         " are supported");
    }
    const double score = data.scores[static_cast<size_t>(id)];
    const auto rank = std::lower_bound(scores.begin(), scores.end(), score, std::greater<>()) - scores.begin();
    for (size_t size = first_character(text).size; size < text.size(); size += first_character(text.substr(size)).size) {
      const std::optional<int32_t> left = vocabulary_->find_text(text.substr(0, size));
      if (!left) continue;
      const std::optional<int32_t> right = vocabulary_->find_text(text.substr(size));
      if (right) merges_.push_back({*left, *right, static_cast<int32_t>(rank), id});
    }
  }
  return ok_status();
}

// Returns a merge whose pair has another one before it; null: there is none.
const Bpe::Merge* Bpe::index_merges() {
  const auto pair = [](const Merge& merge) { return std::pair(merge.left, merge.right); };
  const auto before = [&](const Merge& a, const Merge& b) { return pair(a) != pair(b) ? pair(a) < pair(b) : a.rank < b.rank; };
  std::sort(merges_.begin(), merges_.end(), before);
  const auto same = [&](const Merge& a, const Merge& b) { return pair(a) == pair(b); };
  if (const auto twice = std::adjacent_find(merges_.begin(), merges_.end(), same); twice != merges_.end()) return &twice[1];
  merges_begin_.assign(static_cast<size_t>(vocabulary_->size()) + 1, 0);
  for (const Merge& merge : merges_) ++merges_begin_[static_cast<size_t>(merge.left) + 1];
  std::partial_sum(merges_begin_.begin(), merges_begin_.end(), merges_begin_.begin());
  return nullptr;
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return nullptr;
  const Merge* const end = merges_.data() + merges_begin_[static_cast<size_t>(left) + 1];
  const Merge* const found = std::lower_bound(merges_.data() + merges_begin_[static_cast<size_t>(left)], end, right,
                                              [](const Merge& merge, int32_t wanted) { return merge.right < wanted; });
  return found != end && found->right == right ? found : nullptr;
}

// ---- Encoding ----

void Bpe::encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const {
  if (whole_pieces_first_) {
    if (const std::optional<int32_t> whole = find_whole(piece)) {
      ids.push_back(*whole);
      return;
    }
  }
  split_into_symbols(piece, workspace);
  merge_symbols(workspace);
  const auto& symbols = workspace.symbols;
  for (size_t i = 0; i < symbols.size(); i = static_cast<size_t>(symbols[i].next)) {
    if (symbols[i].id >= 0) ids.push_back(symbols[i].id);
  }
}

std::optional<int32_t> Bpe::find_whole(std::string_view piece) const {
  if (!byte_level_) return vocabulary_->find_text(piece);
  const auto found = tokens_by_bytes_.find(piece);
  return found == tokens_by_bytes_.end() ? std::nullopt : std::optional(found->second);
}

void Bpe::split_into_symbols(std::string_view piece, Workspace& workspace) const {
  auto& symbols = workspace.symbols;
  symbols.clear();
  const auto push = [&](int32_t id) {
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  };
  const auto push_bytes = [&](std::string_view bytes) {
    for (const char byte : bytes) push(byte_ids_[static_cast<unsigned char>(byte)]);
  };
  if (byte_level_) return push_bytes(piece);

  bool after_unknown = false;
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, first_character(piece).size);
    piece.remove_prefix(character.size());
    const std::optional<int32_t> id = vocabulary_->find_text(character);
    const bool is_known = id || (byte_fallback_ && std::all_of(character.begin(), character.end(), [&](char byte) {
                                   return byte_ids_[static_cast<unsigned char>(byte)] >= 0;
                                 }));
    if (id) {
      push(*id);
    } else if (is_known) {
      push_bytes(character);
    } else if (!(after_unknown && fuse_unknown_)) {
      push(unknown_id_);
    }
    after_unknown = !is_known;
  }
}

// Adds the merge of the symbol at `left` with the symbol to its right, if there is one.
void Bpe::push_merge(int32_t left, Workspace& workspace) const {
  const Workspace::Symbol& symbol = workspace.symbols[static_cast<size_t>(left)];
  if (symbol.next >= static_cast<int32_t>(workspace.symbols.size())) return;
  const Merge* const merge = find_merge(symbol.id, workspace.symbols[static_cast<size_t>(symbol.next)].id);
  if (merge == nullptr) return;
  const uint64_t order = static_cast<uint64_t>(merge->rank) << 32 | static_cast<uint32_t>(left);
  workspace.candidates.push({order, left, merge->result});
}

void Bpe::merge_symbols(Workspace& workspace) const {
  auto& symbols = workspace.symbols;
  const auto size = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < size; ++i) push_merge(i, workspace);
  while (!workspace.candidates.empty()) {
    const Workspace::Candidate candidate = workspace.candidates.top();
    workspace.candidates.pop();
    Workspace::Symbol& left = symbols[static_cast<size_t>(candidate.left)];
    if (left.next >= size) continue;
    Workspace::Symbol& right = symbols[static_cast<size_t>(left.next)];
    // The symbols may have other ids now. They are still merged if that makes the same token, as in `tokenizers`, and in llama.cpp, which
    // compares their text.
    const Merge* const merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->result != candidate.result) continue;
    left.id = candidate.result;
    right.id = -1;
    left.next = right.next;
    if (left.next < size) symbols[static_cast<size_t>(left.next)].previous = candidate.left;
    if (left.previous >= 0) push_merge(left.previous, workspace);
    push_merge(candidate.left, workspace);
  }
}

}  // namespace prologue
