// Python writes values into a string by "%s" % value and by "{}".format(value). This file has both.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/template/characters.h>
#include <prologue/engine/template/failure.h>
#include <prologue/engine/template/renderer.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue::jinja {
namespace {

constexpr int64_t kMaxWidth = 100000;  // of a field

// Says how a value is written: the parts that both forms have.
struct Field {
  Text fill = Text(" ");
  char align = '\0';  // < > ^ =; \0: numbers right, others left
  char sign = '-';
  bool alternative = false;  // 0x10
  char separator = '\0';     // , or _ between groups of digits
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

int64_t read_number(std::string_view text, size_t& at, std::string_view what) {
  int64_t number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    number = number * 10 + (text[at++] - '0');
    if (number > kMaxWidth) fail_as(StatusCode::resource_exhausted, what, " of a format is more than ", kMaxWidth);
  }
  return number;
}

bool is_digit_at(std::string_view text, size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; }

void write_padded(Builder& out, const Field& field, const Text& sign, const Text& body, char align) {
  const auto length = static_cast<int64_t>(sign.num_characters() + body.num_characters());
  const int64_t missing = field.width > length ? field.width - length : 0;
  const int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  out.repeat(field.fill, left);
  out.append(sign);
  if (align == '=') out.repeat(field.fill, missing);
  out.append(body);
  if (align != '=') out.repeat(field.fill, missing - left);
}

// Returns digits with a separator between groups, counted from the right.
std::string grouped(const std::string& digits, char separator, size_t group) {
  if (separator == '\0') return digits;
  std::string result;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % group == 0) result += separator;
    result += digits[i];
  }
  return result;
}

void write_number(Builder& out, const Field& field, bool is_negative, std::string prefix, std::string whole,
                  const std::string& rest, bool is_caller) {
  Text sign(is_negative ? "-" : field.sign == '+' ? "+" : field.sign == ' ' ? " " : "");
  sign.append(prefix, false);
  const size_t group = field.type == 'x' || field.type == 'X' || field.type == 'b' || field.type == 'o' ? 4 : 3;
  const char align = field.align == '\0' ? '>' : field.align;
  std::string digits = grouped(whole, field.separator, group);
  if (field.separator != '\0' && align == '=' && field.fill.bytes() == "0") {  // the zeros are grouped, too
    while (static_cast<int64_t>(sign.size() + digits.size() + rest.size()) < field.width) {
      whole = str_cat("0", whole);
      digits = grouped(whole, field.separator, group);
    }
  }
  write_padded(out, field, sign, Text(digits + rest, is_caller), align);
}

void write_integer(Builder& out, const Field& field, int64_t value) {
  const bool is_negative = value < 0;
  uint64_t rest = is_negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const uint64_t base = field.type == 'x' || field.type == 'X' ? 16 : field.type == 'o' ? 8 : field.type == 'b' ? 2 : 10;
  const std::string_view all_digits = field.type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    digits.insert(digits.begin(), all_digits[rest % base]);
    rest /= base;
  } while (rest != 0);
  std::string prefix;
  if (field.alternative && base != 10) prefix = str_cat("0", field.type);
  if (field.precision > static_cast<int64_t>(digits.size())) {
    digits = std::string(static_cast<size_t>(field.precision) - digits.size(), '0') + digits;  // only %d has a precision
  }
  write_number(out, field, is_negative, std::move(prefix), std::move(digits), {}, false);
}

void write_real(Builder& out, const Field& field, double value) {
  const bool is_negative = std::signbit(value) && !std::isnan(value);
  const double size = std::fabs(value);
  if (field.precision > 1000) fail_as(StatusCode::resource_exhausted, "the precision of a format is more than 1000");
  std::string text;
  if (!std::isfinite(size)) {
    const bool is_large = field.type == 'F' || field.type == 'E' || field.type == 'G';
    text = std::isnan(size) ? (is_large ? "NAN" : "nan") : (is_large ? "INF" : "inf");
    return write_number(out, field, is_negative, {}, text, {}, false);
  }
  if (field.type == '\0' && field.precision < 0) {
    text = float_text(size);
  } else {
    const char type = field.type == '\0' ? 'g' : field.type == '%' ? 'f' : field.type;
    const int precision = field.precision < 0 ? 6 : static_cast<int>(field.precision);
    const std::string format = str_cat("%.*", type);
    std::array<char, 1400> buffer;
    std::snprintf(buffer.data(), buffer.size(), format.c_str(), precision, field.type == '%' ? size * 100.0 : size);
    text = buffer.data();
    if (field.type == '\0' && text.find_first_of(".en") == std::string::npos) text += ".0";
    if (field.type == '%') text += '%';
  }
  const size_t point = std::min(text.find_first_not_of("0123456789"), text.size());
  write_number(out, field, is_negative, {}, text.substr(0, point), text.substr(point), false);
}

void write_string(Builder& out, const Field& field, const Text& text) {
  const size_t end = field.precision < 0 ? text.size() : text.position_of(static_cast<size_t>(field.precision));
  if (field.width == 0) return out.append_part(text, 0, end);
  write_padded(out, field, Text(), text.part(0, end), field.align == '\0' || field.align == '=' ? '<' : field.align);
}

Text repr_of(Renderer& renderer, const Value& value) {
  Text text;
  write_repr(value, text, renderer.spend());
  return text;
}

double to_real(const Value& value) {
  if (const double* real = value.get_if<double>()) return *real;
  return static_cast<double>(to_integer(value, "a value of %f"));
}

}  // namespace

// ---- "%s" % value ----

Text format_percent(Renderer& renderer, const Text& format, const Value& values) {
  Builder out(renderer);
  const std::string_view text = format.bytes();
  const Sequence* several = values.sequence();
  if (several != nullptr && several->type != Sequence::Type::tuple) several = nullptr;
  const Dict* dict = values.dict();
  size_t used = 0;
  const auto next_value = [&]() -> const Value& {
    const size_t count = several == nullptr ? 1 : several->items.size();
    if (used >= count) fail("not enough arguments for format string");
    ++used;
    return several == nullptr ? values : several->items[used - 1];
  };
  bool named = false;
  for (size_t at = 0; at < text.size();) {
    renderer.step();
    const size_t percent = std::min(text.find('%', at), text.size());
    out.append_part(format, at, percent);
    if (percent == text.size()) break;
    at = percent + 1;
    const Value* value = nullptr;
    if (at < text.size() && text[at] == '(') {
      const size_t end = text.find(')', at);
      if (end == std::string_view::npos) fail("incomplete format key");
      if (dict == nullptr) fail("format requires a mapping");
      value = dict->find(text.substr(at + 1, end - at - 1));
      if (value == nullptr)
        fail("the format names ", in_quotes(text.substr(at + 1, end - at - 1), 40), ", which the values lack");
      named = true;
      at = end + 1;
    }
    Field field;
    for (; at < text.size(); ++at) {
      if (text[at] == '-') {
        field.align = '<';
      } else if (text[at] == '0' && field.align == '\0') {
        field.align = '=';
        field.fill = Text("0");
      } else if (text[at] == '+' || (text[at] == ' ' && field.sign != '+')) {
        field.sign = text[at];
      } else if (text[at] == '#') {
        field.alternative = true;
      } else if (text[at] != '0' && text[at] != ' ') {
        break;
      }
    }
    if (field.align == '<') field.fill = Text(" ");
    const auto read_size = [&](std::string_view what) {
      if (at >= text.size() || text[at] != '*') return read_number(text, at, what);
      ++at;
      const int64_t size = to_integer(next_value(), "the * of a format");
      if (size > kMaxWidth || size < -kMaxWidth)
        fail_as(StatusCode::resource_exhausted, what, " of a format is more than ", kMaxWidth);
      return size;
    };
    field.width = read_size("the width");
    if (field.width < 0) {
      field.width = -field.width;
      field.align = '<';
    }
    if (at < text.size() && text[at] == '.') {
      ++at;
      field.precision = std::max<int64_t>(read_size("the precision"), 0);
    }
    while (at < text.size() && (text[at] == 'l' || text[at] == 'h' || text[at] == 'L')) ++at;
    if (at >= text.size()) fail("incomplete format");
    const char type = text[at++];
    if (type == '%') {
      out.append("%");
      continue;
    }
    if (value == nullptr) value = &next_value();
    field.type = type == 'i' || type == 'u' ? 'd' : type;
    switch (field.type) {
      case 's':
      case 'r':
      case 'a': {
        if (field.align == '\0') field.align = '>';
        if (field.align == '=') {
          field.align = '>';
          field.fill = Text(" ");
        }
        write_string(out, field, field.type == 's' ? renderer.text_of(*value) : repr_of(renderer, *value));
        break;
      }
      case 'c':
        if (value->text() != nullptr) {
          write_string(out, field, *value->text());
        } else {
          write_string(out, field, Text(utf8(static_cast<char32_t>(to_integer(*value, "a value of %c")))));
        }
        break;
      case 'd':
      case 'x':
      case 'X':
      case 'o':
        if (const double* real = value->get_if<double>(); real != nullptr && field.type == 'd' && std::fabs(*real) < 9e18) {
          write_integer(out, field, static_cast<int64_t>(*real));
        } else {
          write_integer(out, field, to_integer(*value, str_cat("a value of %", field.type)));
        }
        break;
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G': write_real(out, field, to_real(*value)); break;
      default: fail("unsupported format character '", utf8(static_cast<unsigned char>(type)), "'");
    }
  }
  const bool all_used =
      several != nullptr ? used == several->items.size() : named || dict != nullptr || used == 1 || values.sequence() != nullptr;
  if (!all_used) fail("not all arguments converted during string formatting");
  return out.take();
}

// ---- "{}".format(value) ----

namespace {

Field read_specification(const Text& text) {
  Field field;
  const std::string_view bytes = text.bytes();
  const auto is_align = [&](size_t at) {
    return at < bytes.size() && (bytes[at] == '<' || bytes[at] == '>' || bytes[at] == '^' || bytes[at] == '=');
  };
  size_t at = 0;
  if (!bytes.empty()) {
    const size_t first = first_character(bytes).size;
    if (is_align(first)) {
      field.fill = text.part(0, first);
      field.align = bytes[first];
      at = first + 1;
    } else if (is_align(0)) {
      field.align = bytes[0];
      at = 1;
    }
  }
  if (at < bytes.size() && (bytes[at] == '+' || bytes[at] == '-' || bytes[at] == ' ')) field.sign = bytes[at++];
  if (at < bytes.size() && bytes[at] == '#') field.alternative = bytes[at++] == '#';
  if (at < bytes.size() && bytes[at] == '0') {
    ++at;
    if (field.align == '\0') {
      field.align = '=';
      field.fill = Text("0");
    }
  }
  field.width = read_number(bytes, at, "the width");
  if (at < bytes.size() && (bytes[at] == ',' || bytes[at] == '_')) field.separator = bytes[at++];
  if (at < bytes.size() && bytes[at] == '.') {
    if (!is_digit_at(bytes, ++at)) fail("format specifier missing precision");
    field.precision = read_number(bytes, at, "the precision");
  }
  if (at < bytes.size()) field.type = bytes[at++];
  if (at < bytes.size()) fail("invalid format specifier ", in_quotes(bytes, 40));
  return field;
}

void write_formatted(Renderer& renderer, Builder& out, const Value& value, const Text& specification) {
  if (specification.empty()) return out.append(renderer.text_of(value));
  Field field = read_specification(specification);
  const bool is_number =
      value.get_if<int64_t>() != nullptr || value.get_if<double>() != nullptr || value.get_if<bool>() != nullptr;
  const std::string_view of_integer = "dnxXob", of_real = "eEfFgGn%";
  if (is_number && value.get_if<double>() == nullptr &&
      (field.type == '\0' || of_integer.find(field.type) != std::string_view::npos)) {
    if (field.precision >= 0) fail("a precision is not allowed in an integer format");
    if (field.type == 'n') field.type = 'd';
    return write_integer(out, field, to_integer(value, "a number"));
  }
  if (is_number && (field.type == '\0' || of_real.find(field.type) != std::string_view::npos)) {
    if (field.type == 'n') field.type = 'g';
    return write_real(out, field, to_real(value));
  }
  check_defined(value);
  if (value.text() == nullptr) fail("unsupported format string passed to ", type_name(value), ".__format__");
  if (field.type != '\0' && field.type != 's') fail("unknown format code '", field.type, "' for a string");
  if (field.align == '=' && field.fill.bytes() != "0") fail("'=' alignment is not allowed in a string format");
  write_string(out, field, *value.text());
}

class BraceFormat {
 public:
  BraceFormat(Renderer& renderer, const Arguments& arguments) : renderer_(renderer), arguments_(arguments) {}

  void write(const Text& format, Builder& out, int level) {
    if (level > 2) fail("format fields are nested too deep");
    const std::string_view text = format.bytes();
    for (size_t at = 0; at < text.size();) {
      renderer_.step();
      const size_t brace = std::min(text.find_first_of("{}", at), text.size());
      out.append_part(format, at, brace);
      if (brace == text.size()) return;
      if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
        out.append_part(format, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (text[brace] == '}') fail("single '}' encountered in format string");
      at = write_field(format, brace + 1, out, level);
    }
  }

 private:
  // Returns where the text goes on after the field.
  size_t write_field(const Text& format, size_t begin, Builder& out, int level) {
    const std::string_view text = format.bytes();
    size_t end = begin;
    for (int open = 1; end < text.size(); ++end) {
      if (text[end] == '{') ++open;
      if (text[end] == '}' && --open == 0) break;
    }
    if (end >= text.size()) fail("expected '}' before end of string");
    size_t name_end = begin;
    for (bool in_brackets = false; name_end < end; ++name_end) {
      if (text[name_end] == '[') in_brackets = true;
      if (text[name_end] == ']') in_brackets = false;
      if (!in_brackets && (text[name_end] == '!' || text[name_end] == ':')) break;
    }
    Value value = find(text.substr(begin, name_end - begin));
    size_t at = name_end;
    if (at < end && text[at] == '!') {
      const char conversion = at + 1 < end ? text[at + 1] : '\0';
      if (conversion != 'r' && conversion != 's' && conversion != 'a') fail("a field has an unknown conversion after '!'");
      value = renderer_.make(conversion == 's' ? renderer_.text_of(value) : repr_of(renderer_, value));
      at += 2;
    }
    Builder specification(renderer_);
    if (at < end && text[at] == ':') {
      write(format.part(at + 1, end), specification, level + 1);
    } else if (at < end) {
      fail("expected ':' after conversion specifier");
    }
    write_formatted(renderer_, out, value, specification.text());
    return end + 1;
  }

  // Finds 0.name[key].
  Value find(std::string_view path) {
    size_t at = std::min(path.find_first_of(".["), path.size());
    const std::string_view first = path.substr(0, at);
    Value value;
    if (first.empty() || first.find_first_not_of("0123456789") == std::string_view::npos) {
      size_t digits = 0;
      const int64_t index = first.empty() ? next_++ : read_number(first, digits, "an index");
      if (index >= static_cast<int64_t>(arguments_.values.size())) fail("replacement index ", index, " out of range");
      value = arguments_.values[static_cast<size_t>(index)];
    } else {
      const auto& named = arguments_.named;
      const auto found = std::find_if(named.begin(), named.end(), [&](const auto& argument) { return argument.first == first; });
      if (found == named.end()) fail("the format names ", in_quotes(first, 40), ", which the values lack");
      value = found->second;
    }
    while (at < path.size()) {
      const bool is_key = path[at] == '[';
      const size_t end = std::min(is_key ? path.find(']', at) : path.find_first_of(".[", at + 1), path.size());
      const std::string_view name = path.substr(at + 1, end - at - 1);
      const auto index = is_key ? parse_integer(name, 10) : std::nullopt;
      value = !is_key ? renderer_.attribute(value, name) : renderer_.item(value, index ? Value{*index} : renderer_.make(name));
      check_defined(value);
      at = is_key ? end + 1 : end;
    }
    return value;
  }

  Renderer& renderer_;
  const Arguments& arguments_;
  int64_t next_ = 0;
};

}  // namespace

Text format_braces(Renderer& renderer, const Text& format, const Arguments& arguments) {
  Builder out(renderer);
  BraceFormat(renderer, arguments).write(format, out, 1);
  return out.take();
}

}  // namespace prologue::jinja
