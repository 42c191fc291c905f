#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/tokenizer/pre_tokenizer.h>

namespace prologue {
namespace {

constexpr size_t kMaxSplitBytes = size_t{256} << 20;

// Makes pieces of the parts of a text, which are matches or what is between them.
class PieceMaker {
 public:
  PieceMaker(SplitBehavior behavior, bool invert, std::vector<std::string_view>& pieces)
      : behavior_(behavior), invert_(invert), pieces_(pieces) {}

  void begin_text() { is_first_ = true; }
  void add(std::string_view part, bool is_match) {
    if (part.empty()) return;
    is_match = is_match != invert_;
    if (!is_first_ && is_joined(is_match)) {
      pieces_.back() = std::string_view(pieces_.back().data(), pieces_.back().size() + part.size());
    } else if (!(behavior_ == SplitBehavior::removed && is_match)) {
      pieces_.push_back(part);
    }
    is_first_ = false;
    last_is_match_ = is_match;
  }

 private:
  // Whether a part is in one piece with the part before it.
  bool is_joined(bool is_match) const {
    switch (behavior_) {
      case SplitBehavior::contiguous: return last_is_match_ == is_match;
      case SplitBehavior::merged_with_previous: return is_match && !last_is_match_;
      case SplitBehavior::merged_with_next: return last_is_match_ && !is_match;
      default: return false;
    }
  }

  const SplitBehavior behavior_;
  const bool invert_;
  std::vector<std::string_view>& pieces_;
  bool is_first_ = true;
  bool last_is_match_ = false;
};

// Replaces each piece by what change(piece) returns. Fails if they get too long.
template <class Change>
Status change_pieces(TextPieces& out, const Change& change) {
  std::string changed;
  std::vector<size_t> ends;
  for (const std::string_view piece : out.pieces) {
    changed += change(piece);
    ends.push_back(changed.size());
    if (changed.size() > kMaxSplitBytes)
      return resource_exhausted("the pre-tokenizer makes the text longer than ", kMaxSplitBytes, " bytes");
  }
  out.changed = std::move(changed);
  size_t begin = 0;
  for (size_t i = 0; i < ends.size(); begin = ends[i++]) {
    out.pieces[i] = std::string_view(out.changed).substr(begin, ends[i] - begin);
  }
  return ok_status();
}

}  // namespace

Result<PreTokenizer> PreTokenizer::create(const std::vector<PreTokenizerStep>& steps) {
  if (steps.size() > kMaxTokenizerSteps) {
    return unsupported("the pre-tokenizer has ", steps.size(), " steps: at most ", kMaxTokenizerSteps, " are supported");
  }
  PreTokenizer pre_tokenizer;
  const auto add_split = [&](const SplitText& split) -> Status {
    PROLOGUE_ASSIGN_OR_RETURN(PatternFinder pattern, PatternFinder::create(split.pattern));
    pre_tokenizer.steps_.emplace_back(Split{std::move(pattern), split.behavior, split.invert});
    return ok_status();
  };
  for (const PreTokenizerStep& step : steps) {
    if (const auto* split = std::get_if<SplitText>(&step)) {
      PROLOGUE_RETURN_IF_ERROR(add_split(*split));
    } else if (std::holds_alternative<PrefixSpace>(step)) {
      pre_tokenizer.steps_.emplace_back(PrefixSpace{});
    } else {
      const auto& metaspace = std::get<Metaspace>(step);
      const std::string& by = metaspace.replacement;
      const Utf8Prefix first = by.empty() ? Utf8Prefix{Utf8Prefix::Kind::invalid, 0} : utf8_prefix(by);
      if (first.kind != Utf8Prefix::Kind::character || first.length != by.size()) {
        return data_loss("the pre-tokenizer's replacement of spaces is ", in_quotes(metaspace.replacement),
                         ": it must be one character");
      }
      pre_tokenizer.steps_.emplace_back(metaspace);
      if (metaspace.split) {
        PROLOGUE_RETURN_IF_ERROR(add_split({{metaspace.replacement}, SplitBehavior::merged_with_next}));
      }
    }
  }
  return pre_tokenizer;
}

Status PreTokenizer::split(std::string_view text, TextStart start, TextPieces& out) const {
  out.pieces.clear();
  if (!text.empty()) out.pieces.push_back(text);
  for (const Step& step : steps_) {
    if (out.pieces.empty()) return ok_status();
    if (const auto* split = std::get_if<Split>(&step)) {
      const char* const begin = out.pieces.front().data();
      PROLOGUE_RETURN_IF_ERROR(split_pieces(*split, out));
      if (!out.pieces.empty() && out.pieces.front().data() != begin) start = TextStart::segment;
    } else if (std::holds_alternative<PrefixSpace>(step)) {
      bool inside = start == TextStart::inside;
      PROLOGUE_RETURN_IF_ERROR(change_pieces(out, [&](std::string_view piece) {
        const bool adds = piece.front() != ' ' && !inside;
        inside = false;
        return str_cat(adds ? " " : "", piece);
      }));
    } else {
      PROLOGUE_RETURN_IF_ERROR(replace_spaces(std::get<Metaspace>(step), start, out));
    }
  }
  return ok_status();
}

Status PreTokenizer::split_pieces(const Split& split, TextPieces& out) {
  RegexScratch scratch;
  std::vector<std::string_view> pieces;
  PieceMaker maker(split.behavior, split.invert, pieces);
  for (const std::string_view piece : out.pieces) {
    maker.begin_text();
    size_t done = 0;
    PROLOGUE_RETURN_IF_ERROR(split.pattern.find_each(piece, scratch, [&](const Regex::Match& match) {
      maker.add(piece.substr(done, match.begin - done), false);
      maker.add(piece.substr(match.begin, match.end - match.begin), true);
      done = match.end;
      return true;
    }));
    maker.add(piece.substr(done), false);
  }
  out.pieces = std::move(pieces);
  return ok_status();
}

Status PreTokenizer::replace_spaces(const Metaspace& metaspace, TextStart start, TextPieces& out) {
  return change_pieces(out, [&](std::string_view piece) {
    std::string changed;
    for (const char byte : piece) {
      if (byte == ' ') {
        changed += metaspace.replacement;
      } else {
        changed += byte;
      }
    }
    const bool prepends = metaspace.prepend == PrependScheme::always
                              ? start != TextStart::inside
                              : metaspace.prepend == PrependScheme::first && start == TextStart::text;
    start = TextStart::segment;
    if (prepends && changed.compare(0, metaspace.replacement.size(), metaspace.replacement) != 0) {
      changed.insert(0, metaspace.replacement);
    }
    return changed;
  });
}

}  // namespace prologue
