#include <prologue/engine/tokenizer/bpe.h>

#include <algorithm>
#include <limits>
#include <optional>

#include <prologue/engine/tokenizer/byte_alphabet.h>
#include <prologue/engine/tokenizer/unicode.h>
#include <prologue/engine/tokenizer/utf8.h>

namespace prologue {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

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
  PROLOGUE_RETURN_IF_ERROR(data.model == TokenizerModel::spm_bpe ? bpe.index_scores(data) : bpe.index_merges(data));
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

Status Bpe::index_merges(const TokenizerData& data) {
  if (data.merges.size() > std::numeric_limits<int32_t>::max()) {
    return data_loss("there are ", data.merges.size(), " merges: the number must fit 31 bits");
  }
  merges_.reserve(data.merges.size());
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const TokenMerge& merge = data.merges[rank];
    const auto shown = [&] { return in_quotes(str_cat(merge.left, " ", merge.right)); };
    std::array<int32_t, 3> ids{};
    const std::array<std::string, 3> texts = {merge.left, merge.right, merge.left + merge.right};
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::optional<int32_t> id = vocabulary_->find(texts[i]);
      if (!id) {
        return data_loss("merge ", rank, ", ", shown(), ", needs the token ", in_quotes(texts[i]),
                         ", which the vocabulary lacks");
      }
      // Otherwise plain text could become a marker.
      if (const TokenType type = vocabulary_->type(*id); type == TokenType::control || type == TokenType::unknown) {
        return data_loss("merge ", rank, ", ", shown(), ", has to do with the control token ", in_quotes(texts[i]));
      }
      ids[i] = *id;
    }
    if (!merges_.emplace(pair_key(ids[0], ids[1]), Merge{static_cast<int32_t>(rank), ids[2]}).second) {
      return data_loss("merge ", rank, ", ", shown(), ", is there twice");
    }
  }
  return ok_status();
}

// SentencePiece looks up the joined text of two neighbours. Here all pairs that make up a token are merges from the beginning, in the
// order of the tokens' scores.
Status Bpe::index_scores(const TokenizerData& data) {
  constexpr size_t kMaxTokenBytes = 1024;  // the work is the square of a token's length
  PROLOGUE_RETURN_IF_ERROR(vocabulary_->check_scores(data.scores));
  std::vector<double> scores = data.scores;
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  merges_.reserve(2 * data.scores.size());
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
      if (right) merges_.emplace(pair_key(*left, *right), Merge{static_cast<int32_t>(rank), id});
    }
  }
  return ok_status();
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
  const uint64_t pair = pair_key(symbol.id, workspace.symbols[static_cast<size_t>(symbol.next)].id);
  const auto merge = merges_.find(pair);  // never found with an id of -1
  if (merge == merges_.end()) return;
  const uint64_t order = static_cast<uint64_t>(merge->second.rank) << 32 | static_cast<uint32_t>(left);
  workspace.candidates.push({order, pair, left, merge->second.result});
}

void Bpe::merge_symbols(Workspace& workspace) const {
  auto& symbols = workspace.symbols;
  const auto size = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < size; ++i) push_merge(i, workspace);
  while (!workspace.candidates.empty()) {
    const Workspace::Candidate merge = workspace.candidates.top();
    workspace.candidates.pop();
    Workspace::Symbol& left = symbols[static_cast<size_t>(merge.left)];
    if (left.next >= size) continue;
    Workspace::Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (!still_makes(merge.result, merge.pair, pair_key(left.id, right.id))) continue;
    left.id = merge.result;
    right.id = -1;
    left.next = right.next;
    if (left.next < size) symbols[static_cast<size_t>(left.next)].previous = merge.left;
    if (left.previous >= 0) push_merge(left.previous, workspace);
    push_merge(merge.left, workspace);
  }
}

// Whether the symbols of a candidate, which may have other ids now, still make the same token: as in `tokenizers`, and as in llama.cpp,
// which compares their text.
bool Bpe::still_makes(int32_t result, uint64_t pair, uint64_t pair_now) const {
  if (pair == pair_now) return true;
  const auto merge = merges_.find(pair_now);
  return merge != merges_.end() && merge->second.result == result;
}

}  // namespace prologue
