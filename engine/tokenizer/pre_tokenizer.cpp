#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/tokenizer/pre_tokenizer.h>

namespace prologue {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;

// A part of a text: a match, or what is between two. Not empty.
struct Part {
  std::string_view text;
  bool is_match;
};

std::vector<Part> parts_of(std::string_view text, const std::vector<Regex::Match>& matches, bool invert) {
  std::vector<Part> parts;
  size_t done = 0;
  const auto add = [&](size_t begin, size_t end, bool is_match) {
    if (begin < end) parts.push_back({text.substr(begin, end - begin), is_match != invert});
  };
  for (const Regex::Match& match : matches) {
    add(done, match.begin, false);
    add(match.begin, match.end, true);
    done = match.end;
  }
  add(done, text.size(), false);
  return parts;
}

// Whether two neighbouring parts are in one piece.
bool are_joined(const Part& left, const Part& right, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::contiguous: return left.is_match == right.is_match;
    case SplitBehavior::merged_with_previous: return right.is_match && !left.is_match;
    case SplitBehavior::merged_with_next: return left.is_match && !right.is_match;
    default: return false;
  }
}

void append_pieces(const std::vector<Part>& parts, SplitBehavior behavior, std::vector<std::string_view>& pieces) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string_view text = parts[i].text;
    if (i > 0 && are_joined(parts[i - 1], parts[i], behavior)) {
      pieces.back() = std::string_view(pieces.back().data(), pieces.back().size() + text.size());
    } else if (!(behavior == SplitBehavior::removed && parts[i].is_match)) {
      pieces.push_back(text);
    }
  }
}

// Replaces each piece by what change(piece) returns. Fails if they get too long.
template <class Change>
Status change_pieces(TextPieces& out, const Change& change) {
  std::string changed;
  std::vector<size_t> ends;
  for (const std::string_view piece : out.pieces) {
    changed += change(piece);
    ends.push_back(changed.size());
    if (changed.size() > kMaxBytes)
      return resource_exhausted("the pre-tokenizer makes the text longer than ", kMaxBytes, " bytes");
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
  std::vector<Regex::Match> matches;
  for (const std::string_view piece : out.pieces) {
    matches.clear();
    PROLOGUE_RETURN_IF_ERROR(split.pattern.find_all(piece, scratch, matches));
    append_pieces(parts_of(piece, matches, split.invert), split.behavior, pieces);
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
