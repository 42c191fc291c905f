// This file has Python's methods of strings, lists, tuples, dicts and numbers that change nothing, and the attributes of a loop.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/template/characters.h>
#include <prologue/engine/template/failure.h>
#include <prologue/engine/template/renderer.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue::jinja {

// ---- What filters need, too ----

Text change_case(Renderer& renderer, const Text& text, std::string (*change)(char32_t)) {
  Builder result(renderer);
  for (size_t at = 0; at < text.size();) {
    const Character c = first_character(std::string_view(text.bytes()).substr(at));
    result.append(change(c.code_point), text.from_caller_at(at));
    at += c.size;
  }
  return result.take();
}

Text capitalized(Renderer& renderer, const Text& text) {
  Builder result(renderer);
  for (size_t at = 0; at < text.size();) {
    const Character c = first_character(std::string_view(text.bytes()).substr(at));
    result.append(at == 0 ? title(c.code_point) : lower(c.code_point), text.from_caller_at(at));
    at += c.size;
  }
  return result.take();
}

Text strip(const Text& text, const Text* chars, bool left, bool right) {
  const auto removes = [&](const Character& c, std::string_view bytes) {
    return chars == nullptr ? is_space(c.code_point) : chars->bytes().find(bytes) != std::string::npos;
  };
  const std::string_view bytes = text.bytes();
  size_t begin = 0, end = bytes.size();
  while (left && begin < end) {
    const Character c = first_character(bytes.substr(begin));
    if (!removes(c, bytes.substr(begin, c.size))) break;
    begin += c.size;
  }
  while (right && begin < end) {
    const Character c = last_character(bytes.substr(begin, end - begin));
    if (!removes(c, bytes.substr(end - c.size, c.size))) break;
    end -= c.size;
  }
  return text.part(begin, end);
}

Text replace(Renderer& renderer, const Text& text, const Text& from, const Text& to, int64_t most) {
  Builder result(renderer);
  size_t copied = 0;
  if (from.empty()) {  // between all characters, and at both ends
    for (size_t at = 0; most != 0; --most) {
      result.append(to);
      if (at >= text.size()) break;
      const size_t next = at + first_character(std::string_view(text.bytes()).substr(at)).size;
      result.append_part(text, at, next);
      copied = at = next;
    }
  } else {
    while (most != 0) {
      const auto found = find_first(text.bytes(), from.bytes(), copied);
      if (!found) break;
      result.append_part(text, copied, *found);
      result.append(to);
      copied = *found + from.size();
      --most;
    }
  }
  result.append_part(text, copied, text.size());
  return result.take();
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  const std::string_view bytes = text.bytes();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Character c = first_character(bytes.substr(at));
    if (!is_line_end(c.code_point)) {
      at += c.size;
      continue;
    }
    const size_t end = at + (bytes.substr(at, 2) == "\r\n" ? 2 : c.size);
    lines.push_back(text.part(begin, keep_ends ? end : at));
    begin = at = end;
  }
  if (begin < bytes.size()) lines.push_back(text.part(begin, bytes.size()));
  return lines;
}

namespace {

// Returns the text of a number without white space round it and without underscores between digits; empty: it has others.
std::string plain_number(std::string_view text) {
  const std::string whole(strip(Text(text), nullptr, true, true).bytes());
  std::string plain;
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto is_digit_at = [&](size_t at) {
      return at < whole.size() && std::isalnum(static_cast<unsigned char>(whole[at])) != 0;
    };
    if (whole[i] != '_') {
      plain += whole[i];
    } else if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) {
      return {};
    }
  }
  return plain;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) fail("the base of a number is ", base, ": it must be 0, or between 2 and 36");
  std::string digits = plain_number(text);
  const bool has_sign = !digits.empty() && (digits[0] == '-' || digits[0] == '+');
  const bool is_negative = has_sign && digits[0] == '-';
  if (has_sign) digits.erase(0, 1);
  if (digits.size() > 2 && digits[0] == '0') {
    const char letter = static_cast<char>(digits[1] | 0x20);
    const int64_t prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefix != 0 && (base == prefix || base == 0)) {
      base = prefix;
      digits.erase(0, 2);
    }
  }
  if (base == 0) base = 10;
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (error == std::errc::result_out_of_range) fail_as(StatusCode::unsupported, "an integer does not fit in 64 bits");
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return is_negative ? -value : value;
}

std::optional<double> parse_float(std::string_view text) {
  std::string digits = plain_number(text);
  if (digits.empty()) return std::nullopt;
  std::string lower_digits = digits;
  for (char& c : lower_digits) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  const bool has_sign = lower_digits[0] == '-' || lower_digits[0] == '+';
  const std::string name = lower_digits.substr(has_sign ? 1 : 0);
  if (name == "inf" || name == "infinity") return lower_digits[0] == '-' ? -HUGE_VAL : HUGE_VAL;
  if (name == "nan") return std::nan("");
  if (name.empty() || name.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(lower_digits.c_str(), &end);
  if (end != lower_digits.c_str() + lower_digits.size()) return std::nullopt;
  return value;
}

double round_half_even(double value, int64_t digits) {
  if (!std::isfinite(value)) return value;
  if (digits > 22) return value;
  // Rounds the exact decimal expansion, as Python does: printf rounds it correctly.
  if (digits >= 0) {
    std::array<char, 400> buffer;
    std::snprintf(buffer.data(), buffer.size(), "%.*f", static_cast<int>(digits), value);
    return std::strtod(buffer.data(), nullptr);
  }
  const double factor = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / factor) * factor;
}

namespace {

// ---- The names ----

constexpr std::array<std::string_view, 47> kTextMethods = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill"};
constexpr std::array<std::string_view, 3> kListMethods = {"copy", "count", "index"};
constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear",  "extend",  "insert",
                                                          "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 6> kDictMethods = {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault", "update"};

template <size_t N>
bool has(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// ---- Strings ----

class TextMethod {
 public:
  TextMethod(Renderer& renderer, const Text& text, std::string_view name, const Arguments& arguments)
      : renderer_(renderer), text_(text), name_(name), arguments_(arguments) {
    renderer.spend()(text.size() / 8);
  }

  Value run() {
    if (name_ == "strip" || name_ == "lstrip" || name_ == "rstrip") return run_strip();
    if (name_ == "split" || name_ == "rsplit") return run_split();
    if (name_ == "startswith" || name_ == "endswith") return run_startswith();
    if (name_ == "replace") return run_replace();
    if (name_ == "join") return run_join();
    if (name_ == "format") return make(format_braces(renderer_, text_, arguments_));
    if (name_ == "format_map") return run_format_map();
    if (name_ == "find" || name_ == "rfind" || name_ == "index" || name_ == "rindex") return run_find();
    if (name_ == "count") return run_count();
    if (name_ == "removeprefix" || name_ == "removesuffix") return run_remove();
    if (name_ == "partition" || name_ == "rpartition") return run_partition();
    if (name_ == "splitlines") return run_splitlines();
    if (name_ == "center" || name_ == "ljust" || name_ == "rjust") return run_justify();
    if (name_ == "zfill") return run_zfill();
    if (name_ == "expandtabs") return run_expandtabs();
    if (name_ == "encode" || name_ == "maketrans" || name_ == "translate") {
      fail_as(StatusCode::unsupported, "the method str.", name_, " is not supported");
    }
    const Parameters none(name_, arguments_, {});
    if (name_ == "upper") return make(change_case(renderer_, text_, upper));
    if (name_ == "lower" || name_ == "casefold") return make(change_case(renderer_, text_, lower));
    if (name_ == "capitalize") return make(capitalized(renderer_, text_));
    if (name_ == "swapcase")
      return make(change_case(renderer_, text_, [](char32_t c) { return is_upper(c) ? lower(c) : upper(c); }));
    if (name_ == "title") return run_title();
    return {answer()};
  }

 private:
  Value make(Text text) const { return renderer_.make(std::move(text)); }
  std::string_view bytes() const { return text_.bytes(); }

  Value run_strip() const {
    const Parameters parameters(name_, arguments_, {"chars"});
    const Value* chars = parameters.find(0);
    return make(
        strip(text_, chars == nullptr || chars->is_none() ? nullptr : &parameters.text(0), name_ != "rstrip", name_ != "lstrip"));
  }

  Value list_of(std::vector<Text> parts) const {
    std::vector<Value> values;
    for (Text& part : parts) values.push_back(make(std::move(part)));
    return renderer_.make_list(std::move(values));
  }

  Value run_split() const {
    const Parameters parameters(name_, arguments_, {"sep", "maxsplit"});
    const int64_t most = parameters.integer(1, -1);
    const Value* separator = parameters.find(0);
    std::vector<Text> parts;
    if (separator == nullptr || separator->is_none()) {
      parts = name_ == "split" ? words(most) : words_backwards(most);
    } else {
      const Text& by = parameters.text(0);
      if (by.empty()) fail("split by an empty string");
      parts = name_ == "split" || most < 0 ? split_by(by, most) : split_by_backwards(by, most);
    }
    return list_of(std::move(parts));
  }

  std::vector<Text> split_by(const Text& by, int64_t most) const {
    std::vector<Text> parts;
    size_t begin = 0;
    for (; most != 0; --most) {
      renderer_.step();
      const auto found = find_first(bytes(), by.bytes(), begin);
      if (!found) break;
      parts.push_back(text_.part(begin, *found));
      begin = *found + by.size();
    }
    parts.push_back(text_.part(begin, text_.size()));
    return parts;
  }

  std::vector<Text> split_by_backwards(const Text& by, int64_t most) const {
    std::vector<Text> parts;
    size_t end = text_.size();
    for (; most != 0; --most) {
      renderer_.spend()(end);
      const auto found = find_last(bytes(), by.bytes(), end);
      if (!found) break;
      parts.push_back(text_.part(*found + by.size(), end));
      end = *found;
    }
    parts.push_back(text_.part(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }

  size_t skip(size_t at, bool spaces) const {
    while (at < text_.size()) {
      const Character c = first_character(bytes().substr(at));
      if (is_space(c.code_point) != spaces) break;
      at += c.size;
    }
    return at;
  }
  size_t skip_backwards(size_t at, bool spaces) const {
    while (at > 0) {
      const Character c = last_character(bytes().substr(0, at));
      if (is_space(c.code_point) != spaces) break;
      at -= c.size;
    }
    return at;
  }

  std::vector<Text> words(int64_t most) const {
    std::vector<Text> parts;
    for (size_t begin = skip(0, true); begin < text_.size(); --most) {
      renderer_.step();
      const size_t end = most == 0 ? text_.size() : skip(begin, false);
      parts.push_back(text_.part(begin, end));
      begin = skip(end, true);
    }
    return parts;
  }

  std::vector<Text> words_backwards(int64_t most) const {
    std::vector<Text> parts;
    for (size_t end = skip_backwards(text_.size(), true); end > 0; --most) {
      renderer_.step();
      const size_t begin = most == 0 ? 0 : skip_backwards(end, false);
      parts.push_back(text_.part(begin, end));
      end = skip_backwards(begin, true);
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }

  // Returns the bytes between the arguments start and end, which are characters.
  std::pair<size_t, size_t> range(const Parameters& parameters) const {
    const auto length = static_cast<int64_t>(text_.num_characters());
    const auto position = [&](size_t i, int64_t fallback) {
      const Value* value = parameters.find(i);
      int64_t index = value == nullptr || value->is_none() ? fallback : parameters.integer(i, fallback);
      if (index < 0) index = std::max<int64_t>(index + length, 0);
      return index;
    };
    const int64_t begin = position(1, 0), end = position(2, length);
    if (begin > length || begin > end) return {1, 0};  // nothing, not even an empty text
    return {text_.position_of(static_cast<size_t>(begin)), text_.position_of(static_cast<size_t>(end))};
  }

  Value run_startswith() const {
    const Parameters parameters(name_, arguments_, {"prefix", "start", "end"}, 1);
    const auto [begin, end] = range(parameters);
    if (begin > end) return {false};
    const std::string_view part = bytes().substr(begin, end - begin);
    const auto matches = [&](const Value& affix) {
      const std::string& wanted = to_text(affix, str_cat("the argument of ", name_)).bytes();
      return name_ == "startswith" ? part.substr(0, wanted.size()) == wanted
                                   : part.size() >= wanted.size() && part.substr(part.size() - wanted.size()) == wanted;
    };
    const Value& affix = parameters.value(0);
    const Sequence* several = affix.sequence();
    if (several == nullptr || several->type != Sequence::Type::tuple) return {matches(affix)};
    return {std::any_of(several->items.begin(), several->items.end(), matches)};
  }

  Value run_replace() const {
    const Parameters parameters(name_, arguments_, {"old", "new", "count"}, 2);
    return make(replace(renderer_, text_, parameters.text(0), parameters.text(1), parameters.integer(2, -1)));
  }

  Value run_join() const {
    const Parameters parameters(name_, arguments_, {"iterable"}, 1);
    Builder result(renderer_);
    bool is_first = true;
    for (const Value& item : renderer_.items_of(parameters.value(0))) {
      renderer_.step();
      if (!is_first) result.append(text_);
      is_first = false;
      result.append(to_text(item, "an item of join"));
    }
    return make(result.take());
  }

  Value run_format_map() const {
    const Parameters parameters(name_, arguments_, {"mapping"}, 1);
    const Dict* dict = parameters.value(0).dict();
    if (dict == nullptr) fail("format_map needs a dict");
    Arguments named;
    for (const Dict::Entry& entry : dict->entries()) named.named.emplace_back(to_text(entry.key, "a key").bytes(), entry.value);
    return make(format_braces(renderer_, text_, named));
  }

  Value run_find() const {
    const Parameters parameters(name_, arguments_, {"sub", "start", "end"}, 1);
    const Text& part = parameters.text(0);
    const auto [begin, end] = range(parameters);
    std::optional<size_t> found;
    if (begin <= end) {
      const std::string_view searched = bytes().substr(0, end);
      found = name_[0] == 'r' ? find_last(searched, part.bytes(), end) : find_first(searched, part.bytes(), begin);
      if (found && *found < begin) found.reset();
    }
    if (found) return {static_cast<int64_t>(text_.character_at(*found))};
    if (name_ == "index" || name_ == "rindex") fail("substring not found");
    return {int64_t{-1}};
  }

  Value run_count() const {
    const Parameters parameters(name_, arguments_, {"sub", "start", "end"}, 1);
    const Text& part = parameters.text(0);
    const auto [begin, end] = range(parameters);
    if (begin > end) return {int64_t{0}};
    if (part.empty()) return {static_cast<int64_t>(text_.character_at(end) - text_.character_at(begin)) + 1};
    int64_t count = 0;
    std::optional<size_t> found = find_first(bytes().substr(0, end), part.bytes(), begin);
    while (found) {
      ++count;
      found = find_first(bytes().substr(0, end), part.bytes(), *found + part.size());
    }
    return {count};
  }

  Value run_remove() const {
    const Parameters parameters(name_, arguments_, {"affix"}, 1);
    const std::string& affix = parameters.text(0).bytes();
    if (name_ == "removeprefix")
      return make(text_.part(bytes().substr(0, affix.size()) == affix ? affix.size() : 0, text_.size()));
    const bool ends = text_.size() >= affix.size() && bytes().substr(text_.size() - affix.size()) == affix;
    return make(text_.part(0, text_.size() - (ends ? affix.size() : 0)));
  }

  Value run_partition() const {
    const Parameters parameters(name_, arguments_, {"sep"}, 1);
    const Text& by = parameters.text(0);
    if (by.empty()) fail("partition by an empty string");
    const bool backwards = name_ == "rpartition";
    const auto found = backwards ? find_last(bytes(), by.bytes(), text_.size()) : find_first(bytes(), by.bytes(), 0);
    std::vector<Value> parts;
    if (found) {
      parts = {make(text_.part(0, *found)), make(text_.part(*found, *found + by.size())),
               make(text_.part(*found + by.size(), text_.size()))};
    } else if (backwards) {
      parts = {make(Text()), make(Text()), make(text_)};
    } else {
      parts = {make(text_), make(Text()), make(Text())};
    }
    return renderer_.make_list(std::move(parts), Sequence::Type::tuple);
  }

  Value run_splitlines() const {
    const Parameters parameters(name_, arguments_, {"keepends"});
    return list_of(split_lines(text_, parameters.flag(0)));
  }

  Value run_justify() const {
    const Parameters parameters(name_, arguments_, {"width", "fillchar"}, 1);
    const Text fill = parameters.find(1) == nullptr ? Text(" ") : parameters.text(1);
    if (fill.num_characters() != 1) fail("the fill character must be exactly one character long");
    const auto length = static_cast<int64_t>(text_.num_characters());
    const int64_t width = parameters.integer(0, 0), missing = width > length ? width - length : 0;
    const int64_t left = name_ == "ljust" ? 0 : name_ == "rjust" ? missing : missing / 2 + (missing & width & 1);
    Builder result(renderer_);
    result.repeat(fill, left);
    result.append(text_);
    result.repeat(fill, missing - left);
    return make(result.take());
  }

  Value run_zfill() const {
    const Parameters parameters(name_, arguments_, {"width"}, 1);
    const auto length = static_cast<int64_t>(text_.num_characters());
    const int64_t width = parameters.integer(0, 0);
    const size_t sign = !text_.empty() && (bytes()[0] == '-' || bytes()[0] == '+') ? 1 : 0;
    Builder result(renderer_);
    result.append_part(text_, 0, sign);
    result.repeat(Text("0"), width > length ? width - length : 0);
    result.append_part(text_, sign, text_.size());
    return make(result.take());
  }

  Value run_expandtabs() const {
    const Parameters parameters(name_, arguments_, {"tabsize"});
    const int64_t size = parameters.integer(0, 8);
    Builder result(renderer_);
    int64_t column = 0;
    for (size_t at = 0; at < text_.size();) {
      const Character c = first_character(bytes().substr(at));
      if (c.code_point == '\t') {
        const int64_t spaces = size > 0 ? size - column % size : 0;
        result.repeat(Text(" "), spaces);
        column += spaces;
      } else {
        result.append_part(text_, at, at + c.size);
        column = c.code_point == '\n' || c.code_point == '\r' ? 0 : column + 1;
      }
      at += c.size;
    }
    return make(result.take());
  }

  Value run_title() const {
    Builder result(renderer_);
    bool in_word = false;
    for (size_t at = 0; at < text_.size();) {
      const Character c = first_character(bytes().substr(at));
      result.append(in_word ? lower(c.code_point) : title(c.code_point), text_.from_caller_at(at));
      in_word = is_upper(c.code_point) || is_lower(c.code_point);
      at += c.size;
    }
    return make(result.take());
  }

  template <class Property>
  bool all(const Property& property) const {
    for (std::string_view rest = bytes(); !rest.empty();) {
      const Character c = first_character(rest);
      if (!property(c.code_point)) return false;
      rest.remove_prefix(c.size);
    }
    return true;
  }

  bool any(bool (*property)(char32_t)) const {
    return !all([&](char32_t c) { return !property(c); });
  }

  // Answers isalpha and the like.
  bool answer() const {
    if (name_ == "isascii") return all([](char32_t c) { return c < 0x80; });
    if (name_ == "isprintable") return all(is_printable);
    if (name_ == "islower") return any(is_lower) && !any(is_upper);
    if (name_ == "isupper") return any(is_upper) && !any(is_lower);
    if (name_ == "istitle") return is_title();
    if (text_.empty()) return false;
    if (name_ == "isalpha") return all(is_alpha);
    if (name_ == "isdecimal") return all(is_decimal);
    if (name_ == "isdigit") return all(is_digit);
    if (name_ == "isnumeric") return all(is_numeric);
    if (name_ == "isspace") return all(is_space);
    if (name_ == "isalnum") return all([](char32_t c) { return is_alpha(c) || is_numeric(c); });
    const char32_t first = first_character(bytes()).code_point;  // isidentifier
    return (first == '_' || is_alpha(first)) && all(is_word_character);
  }

  bool is_title() const {
    bool in_word = false, found = false;
    const bool valid = all([&](char32_t c) {
      const bool up = is_upper(c), low = is_lower(c);
      const bool fits = up ? !in_word : !low || in_word;
      in_word = up || low;
      found = found || in_word;
      return fits;
    });
    return valid && found;
  }

  Renderer& renderer_;
  const Text& text_;
  const std::string_view name_;
  const Arguments& arguments_;
};

// ---- Containers ----

Value call_sequence_method(Renderer& renderer, const Value& self, std::string_view name, const Arguments& arguments) {
  const std::vector<Value>& items = self.sequence()->items;
  if (name == "copy") {
    const Parameters none(name, arguments, {});
    return renderer.make_list(items);
  }
  const Parameters parameters(name, arguments, {"value"}, 1);
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    renderer.step();
    if (!equals(items[i], parameters.value(0), renderer.spend())) continue;
    if (name == "index") return {static_cast<int64_t>(i)};
    ++count;
  }
  if (name == "index") fail("the value is not in the list");
  return {count};
}

Value call_dict_method(Renderer& renderer, const Value& self, std::string_view name, const Arguments& arguments) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    if (!arguments.named.empty()) fail("get takes no named arguments");
    const Parameters parameters(name, arguments, {"key", "default"}, 1);
    if (const Value* found = dict.find(parameters.value(0))) return *found;
    return parameters.find(1) == nullptr ? Value{None{}} : parameters.value(1);
  }
  if (name == "fromkeys") {
    const Parameters parameters(name, arguments, {"iterable", "value"}, 1);
    Dict made;
    for (Value& key : renderer.items_of(parameters.value(0))) {
      renderer.spend()(200);
      made.set(std::move(key), parameters.find(1) == nullptr ? Value{None{}} : parameters.value(1));
    }
    return make_dict(std::move(made));
  }
  const Parameters none(name, arguments, {});
  if (name == "copy") return self;
  std::vector<Value> items;
  for (const Dict::Entry& entry : dict.entries()) {
    items.push_back(name == "keys" ? entry.key : name == "values" ? entry.value : renderer.make_tuple(entry.key, entry.value));
  }
  return renderer.make_list(std::move(items), name == "keys"     ? Sequence::Type::keys
                                              : name == "values" ? Sequence::Type::values
                                                                 : Sequence::Type::items);
}

Value call_loop_method(Renderer& renderer, Loop& loop, std::string_view name, const Arguments& arguments) {
  if (!arguments.named.empty()) fail("loop.", name, " takes no named arguments");
  if (name == "cycle") {
    if (arguments.values.empty()) fail("no items for cycling given");
    return arguments.values[static_cast<size_t>(loop.index0) % arguments.values.size()];
  }
  Value now = renderer.make_list(arguments.values, Sequence::Type::tuple);
  if (nesting(now).has_objects) fail("loop.changed compares strings, numbers, lists and dicts only");
  const bool same = loop.changed && equals(*loop.changed, now, renderer.spend());
  loop.changed = std::move(now);
  return {!same};
}

Value call_number_method(const Value& self, std::string_view name, const Arguments& arguments) {
  const Parameters none(name, arguments, {});
  if (name == "is_integer") {
    const double value = self.get_if<double>() != nullptr ? *self.get_if<double>() : 0.0;
    return {std::isfinite(value) && std::trunc(value) == value};
  }
  uint64_t rest = static_cast<uint64_t>(std::abs(to_integer(self, "a number")));
  int64_t bits = 0;
  for (; rest != 0; rest >>= 1) ++bits;
  return {bits};
}

}  // namespace

MethodKind find_method(const Value& object, std::string_view name) {
  if (object.text() != nullptr) return has(kTextMethods, name) ? MethodKind::safe : MethodKind::none;
  if (object.dict() != nullptr) {
    return has(kDictMethods, name) ? MethodKind::safe : has(kDictChanges, name) ? MethodKind::changes : MethodKind::none;
  }
  if (const Sequence* sequence = object.sequence()) {
    const bool is_list = sequence->type == Sequence::Type::list;
    const bool has_order = is_list || sequence->type == Sequence::Type::tuple || sequence->type == Sequence::Type::range;
    if (is_list && has(kListChanges, name)) return MethodKind::changes;
    return has_order && has(kListMethods, name) && (is_list || name != "copy") ? MethodKind::safe : MethodKind::none;
  }
  if (object.get_if<double>() != nullptr && name == "is_integer") return MethodKind::safe;
  if (object.get_if<int64_t>() != nullptr && name == "bit_length") return MethodKind::safe;
  return MethodKind::none;
}

Value call_method(Renderer& renderer, const Method& method, const Arguments& arguments) {
  renderer.step();
  const Value& self = method.self;
  if (const Text* text = self.text()) return TextMethod(renderer, *text, method.name, arguments).run();
  if (self.dict() != nullptr) return call_dict_method(renderer, self, method.name, arguments);
  if (self.sequence() != nullptr) return call_sequence_method(renderer, self, method.name, arguments);
  if (const auto* loop = self.get_if<std::shared_ptr<Loop>>()) return call_loop_method(renderer, **loop, method.name, arguments);
  return call_number_method(self, method.name, arguments);
}

}  // namespace prologue::jinja
