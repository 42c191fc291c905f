#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <string>

#include <prologue/engine/tokenizer/pre_tokenizer.h>
#include <prologue/engine/tokenizer/utf8.h>

namespace prologue {
namespace {

// Unicode's White_Space, for use in brackets. This is what \s means in the models' patterns; \s of PCRE2 also includes U+180E.
#define PROLOGUE_SPACE R"(\t-\r\x{85}\p{Z})"

struct NamedPattern {
  std::string_view name;
  const char* pattern;
  bool whole_pieces_first;
};

// Every character is matched by some alternative, so there are no gaps between matches. No group is repeated, and a repeat of a
// single class that fails is not tried again from the same position, so the time is linear.
constexpr std::array<NamedPattern, 4> kPatterns = {{
    // The model's pre-tokenizer first makes every digit a piece, then splits the text between digits as GPT-2 does. This is one
    // pattern for both: a digit takes no space with it, and all the spaces before a digit stay together, because they are at the end
    // of the text between digits.
    {"smollm",
     R"('s|'t|'re|'ve|'m|'ll|'d|\p{N}| ?\p{L}+| ?[^)" PROLOGUE_SPACE R"(\p{L}\p{N}]+)"
     "|[" PROLOGUE_SPACE "]+(?![^" PROLOGUE_SPACE R"(\p{N}]))"
     "|[" PROLOGUE_SPACE "]+",
     false},
    {"gpt-2",
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" PROLOGUE_SPACE R"(\p{L}\p{N}]+)"
     "|[" PROLOGUE_SPACE "]+(?![^" PROLOGUE_SPACE "])"
     "|[" PROLOGUE_SPACE "]+",
     false},
    {"llama-bpe",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^)" PROLOGUE_SPACE R"(\p{L}\p{N}]+[\r\n]*)"
     "|[" PROLOGUE_SPACE R"(]*[\r\n]+)"
     "|[" PROLOGUE_SPACE "]+(?![^" PROLOGUE_SPACE "])"
     "|[" PROLOGUE_SPACE "]+",
     true},
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^)" PROLOGUE_SPACE R"(\p{L}\p{N}]+[\r\n]*)"
     "|[" PROLOGUE_SPACE R"(]*[\r\n]+)"
     "|[" PROLOGUE_SPACE "]+(?![^" PROLOGUE_SPACE "])"
     "|[" PROLOGUE_SPACE "]+",
     false},
}};

#undef PROLOGUE_SPACE

struct MatchData {
  explicit MatchData(const pcre2_code* code)
      : context(pcre2_match_context_create(nullptr)), data(pcre2_match_data_create_from_pattern(code, nullptr)) {
    // The default limit counts steps; a very long run of spaces would exceed it.
    if (context != nullptr) pcre2_set_match_limit(context, UINT32_MAX);
  }
  ~MatchData() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  MatchData(const MatchData&) = delete;
  MatchData& operator=(const MatchData&) = delete;

  pcre2_match_context* context;
  pcre2_match_data* data;
};

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct PreTokenizer::Pattern {
  Pattern() = default;
  ~Pattern() { pcre2_code_free(code); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  pcre2_code* code = nullptr;
};

Result<PreTokenizer> PreTokenizer::create(std::string_view name) {
  std::string names;
  for (const NamedPattern& named : kPatterns) {
    names += str_cat(names.empty() ? "" : ", ", named.name);
    if (named.name != name) continue;
    int error = 0;
    PCRE2_SIZE offset = 0;
    const auto pattern = std::make_shared<Pattern>();
    pattern->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(named.pattern), PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
    if (pattern->code == nullptr && error == PCRE2_ERROR_HEAP_FAILED) return Status::out_of_memory();
    if (pattern->code == nullptr) {
      return unsupported("PCRE2 cannot compile the pre-tokenizer ", name, " (", error_text(error), " at offset ", offset,
                         "): it must be built with Unicode support");
    }
    pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE);  // without JIT, matching is interpreted, with the same results
    return PreTokenizer(pattern, named.whole_pieces_first);
  }
  return unsupported("the pre-tokenizer ", in_quotes(name), " (tokenizer.ggml.pre) is not supported: supported are ", names);
}

Status PreTokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  if (text.empty()) return ok_status();
  const MatchData match(pattern_->code);
  if (match.context == nullptr || match.data == nullptr) return Status::out_of_memory();
  for (size_t begin = 0; begin < text.size();) {
    const int matches = pcre2_match(pattern_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                                    PCRE2_NO_UTF_CHECK, match.data, match.context);
    if (matches == PCRE2_ERROR_NOMEMORY) return Status::out_of_memory();
    if (matches < 0) {
      return resource_exhausted("PCRE2 failed at byte ", begin, " of a text of ", text.size(), " bytes: ", error_text(matches));
    }
    const size_t end = pcre2_get_ovector_pointer(match.data)[1];
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return ok_status();
}

}  // namespace prologue
