#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/tokenizer/regex.h>

namespace prologue {
namespace {

constexpr size_t kMaxPatternBytes = 16384;

// These are the classes of Oniguruma for PCRE2, without the brackets. \s of PCRE2 also has U+180E; its \w, and with it \b, have other
// characters.
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
// The last are letters in circles and squares. Outside of sets, Oniguruma's \w, and with it \b, has superscripts and fractions, too.
#define PROLOGUE_WORD R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})"
constexpr std::string_view kWordInSet = PROLOGUE_WORD;
constexpr std::string_view kWord = PROLOGUE_WORD R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
#undef PROLOGUE_WORD
constexpr std::string_view kHexDigit = "0-9a-fA-F";

// Translates Oniguruma's syntax to PCRE2's. What would mean something else is an error.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern), pattern_(pattern) {}

  Result<std::string> translate() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        PROLOGUE_RETURN_IF_ERROR(escape());
      } else if (in_class_) {
        PROLOGUE_RETURN_IF_ERROR(in_class());
      } else {
        PROLOGUE_RETURN_IF_ERROR(outside());
      }
    }
    return std::move(out_);
  }

 private:
  Status refuse(std::string_view what) const {
    return unsupported("the regular expression ", in_quotes(pattern_), " has ", what, ", which is not supported");
  }
  bool starts_with(std::string_view text) const { return rest_.substr(0, text.size()) == text; }
  void copy(size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(std::min(count, rest_.size()));
  }
  void put(size_t count, std::string_view text) {
    out_ += text;
    rest_.remove_prefix(count);
  }
  Status put_class(std::string_view members, bool negated) {
    if (in_class_ && negated) return refuse("a negated class within a set");
    put(2, in_class_ ? std::string(members) : str_cat(negated ? "[^" : "[", members, "]"));
    return ok_status();
  }

  Status escape() {
    if (rest_.size() < 2) return refuse("a backslash at its end");
    const char letter = rest_[1];
    const bool is_letter = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    const bool is_digit = letter >= '0' && letter <= '9';
    switch (letter) {
      case 's': return put_class(kSpace, false);
      case 'w': return put_class(in_class_ ? kWordInSet : kWord, false);
      case 'W': return put_class(kWord, true);
      case 'h': return put_class(kHexDigit, false);
      case 'H': return put_class(kHexDigit, true);
      case 'S':
        if (!in_class_) return put_class(kSpace, true);
        copy(2);  // the difference is U+180E
        return ok_status();
      case 'b':
      case 'B':
        if (in_class_) break;
        put(2, str_cat("(?:(?<=[", kWord, "])(?", letter == 'b' ? "!" : "=", "[", kWord, "])|(?<![", kWord, "])(?",
                       letter == 'b' ? "=" : "!", "[", kWord, "]))"));
        return ok_status();
      case 'v': put(2, "\\x0b"); return ok_status();
      case 'u':
        if (rest_.size() < 6) return refuse("an incomplete \\u");
        put(6, str_cat("\\x{", rest_.substr(2, 4), "}"));
        return ok_status();
      default: break;
    }
    constexpr std::string_view kSame = "dDpPtrnfeax";  // mean the same everywhere
    constexpr std::string_view kAssertions = "AzZ";
    if (is_digit || (is_letter && kSame.find(letter) == std::string_view::npos &&
                     (in_class_ || kAssertions.find(letter) == std::string_view::npos))) {
      return refuse(str_cat("\\", rest_.substr(1, 1)));
    }
    const size_t brace = (letter == 'p' || letter == 'P' || letter == 'x') && rest_.substr(2, 1) == "{" ? rest_.find('}') : 1;
    copy(brace == std::string_view::npos ? rest_.size() : brace + 1);  // \p{L}: these braces are no interval
    return ok_status();
  }

  Status in_class() {
    if (starts_with("&&")) return refuse("an intersection of sets (&&)");
    if (starts_with("[:")) {
      const size_t end = rest_.find(":]");
      if (end == std::string_view::npos) return refuse("an unfinished [:");
      copy(end + 2);
      return ok_status();
    }
    if (rest_[0] == '[') return refuse("a set within a set");
    if (rest_[0] == ']') in_class_ = false;
    copy(1);
    return ok_status();
  }

  Status outside() {
    if (rest_[0] == '[') {
      in_class_ = true;
      copy(starts_with("[^") ? 2 : 1);
      if (starts_with("]")) return refuse("a set that begins with ]");
      return ok_status();
    }
    if (starts_with("(*")) return refuse("(*");
    if (starts_with("(?")) {
      constexpr std::array<std::string_view, 10> kGroups = {"(?:", "(?=",  "(?!",   "(?<=", "(?<!",
                                                            "(?>", "(?i:", "(?-i:", "(?i)", "(?-i)"};
      const auto known = std::find_if(kGroups.begin(), kGroups.end(), [&](std::string_view group) { return starts_with(group); });
      if (known == kGroups.end()) return refuse(str_cat("the group ", rest_.substr(0, 4)));
      copy(known->size());
      return ok_status();
    }
    if (starts_with("{,")) return refuse("an interval without a lower limit");
    // To Oniguruma {2}+ repeats the interval, to PCRE2 it does not give back what it matched.
    if (starts_with("}+")) return refuse("a + after an interval");
    copy(1);
    return ok_status();
  }

  std::string_view rest_;
  std::string_view pattern_;
  std::string out_;
  bool in_class_ = false;
};

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

bool begins_character(std::string_view text, size_t at) {
  return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

size_t after_character(std::string_view text, size_t at) {
  do ++at;
  while (!begins_character(text, at));
  return at;
}

}  // namespace

struct Regex::Code {
  Code() = default;
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  pcre2_code* code = nullptr;
};

Result<Regex> Regex::create(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return unsupported("a regular expression of the tokenizer has ", pattern.size(), " bytes: at most ", kMaxPatternBytes,
                       " are supported");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const std::string translated, Translator(pattern).translate());
  const auto code = std::make_shared<Code>();  // before what an exception would not release
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) return Status::out_of_memory();
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code->code == nullptr) {
    if (error == PCRE2_ERROR_HEAP_FAILED) return Status::out_of_memory();
    return unsupported("the regular expression ", in_quotes(pattern), " is not supported: PCRE2 says: ", error_text(error));
  }
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);  // where that is not possible, PCRE2 interprets
  return Regex(code);
}

RegexScratch::RegexScratch() : context_(pcre2_match_context_create(nullptr)), data_(pcre2_match_data_create(1, nullptr)) {
  if (context_ != nullptr) pcre2_set_heap_limit(context_, 256 << 10);  // KiB
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
}

// PCRE2 sees a window of the text. If the match depends on what comes after the window, it is made larger, and only the beginning of the
// match is tried again. So the size of the windows is a measure of the work, and work that is much more than the text is an error.
Status Regex::find_each(std::string_view text, RegexScratch& scratch, const std::function<bool(const Match&)>& use) const {
  constexpr size_t kWindow = 128;
  if (scratch.context_ == nullptr || scratch.data_ == nullptr) return Status::out_of_memory();
  const auto too_much_work = [&](size_t begin) {
    return resource_exhausted("a regular expression of the tokenizer takes too long at byte ", begin, " of a text of ",
                              text.size(), " bytes: its time must be proportional to the length of the text");
  };
  size_t work_left = 64 * text.size() + (size_t{1} << 20);
  size_t last_end = std::string_view::npos;
  size_t begin = 0, window = kWindow;
  while (begin < text.size()) {
    size_t end = text.size() - begin <= window ? text.size() : begin + window;
    while (!begins_character(text, end)) ++end;
    uint32_t options = PCRE2_NO_UTF_CHECK | (end < text.size() ? PCRE2_PARTIAL_HARD : 0);
    if (window > kWindow) {
      options |= PCRE2_ANCHORED;
      if (end - begin > work_left) return too_much_work(begin);
      work_left -= end - begin;
    }
    pcre2_set_match_limit(scratch.context_, static_cast<uint32_t>(std::min<size_t>(8 * (end - begin) + 512, UINT32_MAX)));
    const auto match = [&](uint32_t how) {
      return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), end, begin, options | how, scratch.data_,
                         scratch.context_);
    };
    int found = match(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(scratch.data_);
    if (found == PCRE2_ERROR_PARTIAL) {
      window = 4 * (end - ends[0] > kWindow ? end - ends[0] : kWindow);
      begin = ends[0];
      continue;
    }
    if (found == PCRE2_ERROR_NOMEMORY) return Status::out_of_memory();
    if (found == PCRE2_ERROR_MATCHLIMIT || found == PCRE2_ERROR_HEAPLIMIT) return too_much_work(begin);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
      return resource_exhausted("PCRE2 failed at byte ", begin, " of a text of ", text.size(), " bytes: ", error_text(found));
    }
    const bool is_match = found >= 0;
    const bool is_empty = is_match && ends[0] == ends[1];
    if (is_match && !(is_empty && ends[0] == last_end)) {
      last_end = ends[1];
      if (!use({ends[0], ends[1]})) return ok_status();
    }
    if (is_match && !is_empty) {
      begin = ends[1];
    } else if (is_match || window > kWindow) {
      begin = after_character(text, is_match ? ends[0] : begin);
    } else {
      begin = end;  // no match begins in the window
    }
    window = kWindow;
  }
  return ok_status();
}

}  // namespace prologue
