#include <prologue/engine/template/lexer.h>

#include <algorithm>
#include <array>
#include <optional>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/template/characters.h>
#include <prologue/engine/template/failure.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue::jinja {
namespace {

bool is_ascii_digit(char byte) { return byte >= '0' && byte <= '9'; }

bool begins_name(char32_t character) { return character == '_' || is_alpha(character); }

// Every end of a line is \n, and the last one is left out.
std::string with_plain_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text();
    add(Token::Type::end, {});
    return std::move(tokens_);
  }

 private:
  static constexpr size_t kNone = std::string_view::npos;

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail_as(StatusCode::data_loss, at_line(line_), parts...);
  }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool next_is(std::string_view text) const { return rest().substr(0, text.size()) == text; }
  void add(Token::Type type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }

  // Goes on to `position`, counting lines.
  void move_to(size_t position) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
    starts_line_ = position > at_ ? source_[position - 1] == '\n' : starts_line_;
    at_ = position;
  }
  size_t after_spaces(size_t position) const {
    while (position < source_.size()) {
      const Character character = first_character(std::string_view(source_).substr(position));
      if (!is_space(character.code_point)) break;
      position += character.size;
    }
    return position;
  }

  // Adds the text before a tag, as far as the sign after "{%" and the spaces before it leave it.
  void add_text(size_t end, char sign, bool strips_line) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      while (!text.empty() && is_space(last_character(text).code_point)) text.remove_suffix(last_character(text).size);
    } else if (sign != '+' && strips_line) {
      const size_t newline = text.rfind('\n');
      const size_t begin = newline == kNone ? 0 : newline + 1;
      if ((newline != kNone || starts_line_) && after_spaces(at_ + begin) >= end) text = text.substr(0, begin);
    }
    if (!text.empty()) add(Token::Type::text, std::string(text));
    move_to(end);
  }

  // Reads text up to a tag, and the tag.
  void read_text() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == kNone || tag + 1 >= source_.size()) return add_text(source_.size(), '+', false);
      if (source_[tag + 1] == '%' || source_[tag + 1] == '{' || source_[tag + 1] == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    add_text(tag, sign, kind != '{');
    const size_t inside = tag + 2 + (sign == '\0' ? 0 : 1);
    if (kind == '#') return skip_comment(inside);
    if (kind == '%') {
      if (const auto raw = raw_begin(inside)) return read_raw(*raw);
    }
    add(kind == '%' ? Token::Type::block_begin : Token::Type::output_begin, {});
    move_to(inside);
    read_tag(kind == '%');
  }

  char sign_at(size_t position) const {
    const bool has_sign = position < source_.size() && (source_[position] == '-' || source_[position] == '+');
    return has_sign ? source_[position] : '\0';
  }

  // Where a tag ends that begins to end at `position`: "%}" and a newline, "-%}" and white space, "+%}".
  std::optional<size_t> end_of_tag(size_t position, std::string_view end, bool trims_newline) const {
    const char sign = sign_at(position);
    if (source_.compare(position + (sign == '\0' ? 0 : 1), end.size(), end) != 0) return std::nullopt;
    const size_t after = position + (sign == '\0' ? 0 : 1) + end.size();
    if (sign == '-') return after_spaces(after);
    if (sign == '\0' && trims_newline && after < source_.size() && source_[after] == '\n') return after + 1;
    return after;
  }

  void skip_comment(size_t inside) {
    for (size_t at = inside; at < source_.size(); ++at) {
      at = source_.find('#', at);
      if (at == kNone) break;
      if (at + 1 >= source_.size() || source_[at + 1] != '}') continue;
      const bool has_sign = at > inside && sign_at(at - 1) != '\0';
      return move_to(*end_of_tag(has_sign ? at - 1 : at, "#}", true));
    }
    fail_here("a comment {# has no end #}");
  }

  // Where the text of {% raw %} begins, if this is one.
  std::optional<size_t> raw_begin(size_t inside) const {
    const size_t name = after_spaces(inside);
    if (source_.compare(name, 3, "raw") != 0) return std::nullopt;
    const size_t end = after_spaces(name + 3);
    if (sign_at(end) == '+') return std::nullopt;
    return end_of_tag(end, "%}", false);
  }

  void read_raw(size_t begin) {
    move_to(begin);
    for (size_t tag = begin; (tag = source_.find("{%", tag)) != kNone; ++tag) {
      const char sign = sign_at(tag + 2);
      const size_t name = after_spaces(tag + 2 + (sign == '\0' ? 0 : 1));
      if (source_.compare(name, 6, "endraw") != 0) continue;
      const auto end = end_of_tag(after_spaces(name + 6), "%}", true);
      if (!end) continue;
      add_text(tag, sign, true);
      return move_to(*end);
    }
    fail_here("a block {% raw %} has no end {% endraw %}");
  }

  // Reads the tokens of a tag up to its end.
  void read_tag(bool is_block) {
    std::vector<char> open;
    while (at_ < source_.size()) {
      if (open.empty()) {
        if (const auto end = is_block ? end_of_tag(at_, "%}", true) : end_of_output()) {
          add(is_block ? Token::Type::block_end : Token::Type::output_end, {});
          return move_to(*end);
        }
      }
      const Character character = first_character(rest());
      if (is_space(character.code_point)) {
        move_to(at_ + character.size);
      } else if (is_ascii_digit(source_[at_])) {
        read_number();
      } else if (begins_name(character.code_point)) {
        read_name();
      } else if (source_[at_] == '\'' || source_[at_] == '"') {
        read_string();
      } else {
        read_symbol(open);
      }
    }
  }

  std::optional<size_t> end_of_output() const { return sign_at(at_) == '+' ? std::nullopt : end_of_tag(at_, "}}", false); }

  void read_name() {
    size_t end = at_;
    while (end < source_.size()) {
      const Character character = first_character(std::string_view(source_).substr(end));
      if (!is_word_character(character.code_point)) break;
      end += character.size;
    }
    add(Token::Type::name, source_.substr(at_, end - at_));
    move_to(end);
  }

  // Reads digits with single underscores between them.
  size_t after_digits(size_t position) const {
    while (position < source_.size() &&
           (is_ascii_digit(source_[position]) ||
            (source_[position] == '_' && position + 1 < source_.size() && is_ascii_digit(source_[position + 1])))) {
      ++position;
    }
    return position;
  }

  void read_number() {
    size_t end = at_;
    bool is_real = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (source_[at_] == '0' && at_ + 1 < source_.size() && std::string_view("xXoObB").find(source_[at_ + 1]) != kNone) {
      end += 2;
      while (end < source_.size() &&
             (is_ascii_digit(source_[end]) || source_[end] == '_' || (source_[end] >= 'a' && source_[end] <= 'f') ||
              (source_[end] >= 'A' && source_[end] <= 'F'))) {
        ++end;
      }
    } else {
      end = after_digits(end);
      const auto digit_at = [&](size_t position) { return position < source_.size() && is_ascii_digit(source_[position]); };
      if (!after_dot && end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
        is_real = true;
        end = after_digits(end + 1);
      }
      if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        const bool has_sign = end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
        if (digit_at(end + (has_sign ? 2 : 1))) {
          is_real = true;
          end = after_digits(end + (has_sign ? 2 : 1));
        }
      }
    }
    std::string digits = source_.substr(at_, end - at_);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    add(is_real ? Token::Type::real : Token::Type::integer, std::move(digits));
    move_to(end);
  }

  void read_string() {
    const char quote = source_[at_];
    std::string value;
    size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] == '\\' && at + 1 < source_.size()) {
        at = read_escape(at + 1, value);
      } else {
        value += source_[at++];
      }
    }
    if (at >= source_.size()) fail_here("a string has no end: ", in_quotes(rest(), 40));
    add(Token::Type::string, std::move(value));
    move_to(at + 1);
  }

  // Reads what follows a backslash, as in Python. Returns where the string goes on.
  size_t read_escape(size_t at, std::string& value) const {
    constexpr std::string_view kLetters = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
    const char letter = source_[at];
    if (const size_t known = kLetters.find(letter); known != kNone) {
      value += kValues[known];
      return at + 1;
    }
    if (letter == '\n') return at + 1;
    const auto read_digits = [&](size_t begin, size_t most, uint32_t base, bool all) {
      char32_t character = 0;
      size_t end = begin;
      for (; end < source_.size() && end < begin + most; ++end) {
        const size_t digit = std::string_view("0123456789abcdef").find(static_cast<char>(source_[end] | 0x20));
        if (digit == kNone || digit >= base || (source_[end] < '0')) break;
        character = character * base + static_cast<char32_t>(digit);
      }
      if (all && end < begin + most)
        fail_here("a string has the escape \\", letter, " without its ", most, " hexadecimal digits");
      if (character > 0x10ffff) fail_here("a string has an escape \\U above 10ffff");
      value += utf8(character);
      return end;
    };
    if (letter >= '0' && letter <= '7') return read_digits(at, 3, 8, false);
    if (letter == 'x') return read_digits(at + 1, 2, 16, true);
    if (letter == 'u') return read_digits(at + 1, 4, 16, true);
    if (letter == 'U') return read_digits(at + 1, 8, 16, true);
    value += '\\';
    value += letter;
    return at + 1;
  }

  void read_symbol(std::vector<char>& open) {
    static constexpr std::array<std::string_view, 6> kTwo = {"//", "**", "==", "!=", ">=", "<="};
    const auto two = std::find(kTwo.begin(), kTwo.end(), rest().substr(0, 2));
    const std::string symbol(two != kTwo.end() ? *two : rest().substr(0, 1));
    if (two == kTwo.end() && std::string_view("+-/*%~[](){}><=.:|,;").find(symbol) == kNone) {
      fail_here("a tag has the unexpected character ", in_quotes(rest().substr(0, first_character(rest()).size)));
    }
    if (symbol == "(" || symbol == "[" || symbol == "{") {
      open.push_back(symbol == "(" ? ')' : symbol == "[" ? ']' : '}');
    } else if (symbol == ")" || symbol == "]" || symbol == "}") {
      if (open.empty()) fail_here("unexpected '", symbol, "'");
      if (open.back() != symbol[0]) fail_here("unexpected '", symbol, "', expected '", open.back(), "'");
      open.pop_back();
    }
    add(Token::Type::symbol, symbol);
    move_to(at_ + symbol.size());
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool starts_line_ = true;  // the last token ended with a newline, or there was none
  std::vector<Token> tokens_;
};

}  // namespace

std::string at_line(int line) { return str_cat("line ", line, ": "); }

std::vector<Token> split_into_tokens(std::string_view source) { return Lexer(source).run(); }

}  // namespace prologue::jinja
