#include <prologue/engine/template/value.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/template/characters.h>
#include <prologue/engine/template/failure.h>
#include <prologue/engine/template/renderer.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue::jinja {

const Text* Value::text() const {
  const auto* text = get_if<std::shared_ptr<const Text>>();
  return text == nullptr ? nullptr : text->get();
}
Sequence* Value::sequence() const {
  const auto* sequence = get_if<std::shared_ptr<Sequence>>();
  return sequence == nullptr ? nullptr : sequence->get();
}
const Dict* Value::dict() const {
  const auto* dict = get_if<std::shared_ptr<const Dict>>();
  return dict == nullptr ? nullptr : dict->get();
}

Value make_text(Text text) { return {std::make_shared<const Text>(std::move(text))}; }
Value make_text(std::string_view bytes) { return make_text(Text(bytes)); }
Value make_undefined(std::string why) { return {Undefined{std::make_shared<const std::string>(std::move(why))}}; }

// ---- Containers ----

Nesting nesting(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->nested;
  if (const Dict* dict = value.dict()) return dict->nested();
  if (const auto* method = value.get_if<std::shared_ptr<const Method>>()) return {nesting((*method)->self).depth + 1, true};
  const bool is_object = value.get_if<std::shared_ptr<Loop>>() != nullptr || value.get_if<Macro*>() != nullptr ||
                         value.get_if<Namespace*>() != nullptr;
  return {0, is_object};
}

namespace {

void add_nesting(Nesting& sum, const Value& value) {
  const Nesting inner = nesting(value);
  if (inner.depth >= kMaxNesting) {
    fail_as(StatusCode::resource_exhausted, "lists and dicts are nested more than ", kMaxNesting, " deep");
  }
  sum.depth = std::max(sum.depth, inner.depth + 1);
  sum.has_objects = sum.has_objects || inner.has_objects;
}

}  // namespace

Value make_sequence(Sequence::Type type, std::vector<Value> items) {
  auto sequence = std::make_shared<Sequence>();
  sequence->type = type;
  for (const Value& item : items) add_nesting(sequence->nested, item);
  sequence->items = std::move(items);
  return {std::move(sequence)};
}

Value make_dict(Dict dict) { return {std::make_shared<const Dict>(std::move(dict))}; }

void Dict::set(Value key, Value value) {
  add_nesting(nested_, key);
  add_nesting(nested_, value);
  const auto [found, is_new] = index_.try_emplace(hash_key(key), entries_.size());
  if (is_new) {
    entries_.push_back({std::move(key), std::move(value)});
  } else {
    entries_[found->second].value = std::move(value);
  }
}

const Value* Dict::find(const Value& key) const {
  const auto found = index_.find(hash_key(key));
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index_.find(str_cat("s", key));
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

namespace {

// Returns the whole number that a bool, an integer or a double stands for.
std::optional<int64_t> whole_number(const Value& value) {
  if (const bool* boolean = value.get_if<bool>()) return *boolean ? 1 : 0;
  if (const int64_t* integer = value.get_if<int64_t>()) return *integer;
  if (const double* real = value.get_if<double>(); real != nullptr && std::trunc(*real) == *real && std::fabs(*real) < 9e18) {
    return static_cast<int64_t>(*real);
  }
  return std::nullopt;
}

std::optional<double> number(const Value& value) {
  if (const double* real = value.get_if<double>()) return *real;
  if (const auto whole = whole_number(value)) return static_cast<double>(*whole);
  return std::nullopt;
}

}  // namespace

std::string hash_key(const Value& value) {
  if (const Text* text = value.text()) return str_cat("s", text->bytes());
  if (const auto whole = whole_number(value)) return str_cat("i", *whole);
  if (const double* real = value.get_if<double>()) return str_cat("f", float_text(*real));
  if (value.is_none()) return "n";
  if (value.is_undefined()) return "u";
  if (const Sequence* sequence = value.sequence(); sequence != nullptr && sequence->type == Sequence::Type::tuple) {
    std::string key = "t";
    for (const Value& item : sequence->items) {
      const std::string inner = hash_key(item);
      key += str_cat(inner.size(), ":", inner);
    }
    return key;
  }
  fail("a key of a dict is of the type '", type_name(value), "', which has no hash: it must be a string, a number or none");
}

// ---- Kinds and truth ----

const char* type_name(const Value& value) {
  struct Names {
    const char* operator()(const Undefined&) const { return "Undefined"; }
    const char* operator()(const None&) const { return "NoneType"; }
    const char* operator()(bool) const { return "bool"; }
    const char* operator()(int64_t) const { return "int"; }
    const char* operator()(double) const { return "float"; }
    const char* operator()(const std::shared_ptr<const Text>&) const { return "str"; }
    const char* operator()(const std::shared_ptr<Sequence>& sequence) const {
      constexpr const char* kNames[] = {"list", "tuple", "range", "generator", "dict_keys", "dict_values", "dict_items"};
      return kNames[static_cast<size_t>(sequence->type)];
    }
    const char* operator()(const std::shared_ptr<const Dict>&) const { return "dict"; }
    const char* operator()(const std::shared_ptr<Loop>&) const { return "LoopContext"; }
    const char* operator()(const std::shared_ptr<const Method>&) const { return "method"; }
    const char* operator()(Macro*) const { return "Macro"; }
    const char* operator()(Namespace*) const { return "Namespace"; }
    const char* operator()(const Function&) const { return "function"; }
  };
  return std::visit(Names{}, value.data);
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto whole = whole_number(value)) return *whole != 0;
  if (const Text* text = value.text()) return !text->empty();
  if (const Sequence* sequence = value.sequence()) {
    return sequence->type == Sequence::Type::generator || !sequence->items.empty();
  }
  if (const Dict* dict = value.dict()) return !dict->entries().empty();
  return true;
}

// ---- Comparing ----

bool equals(const Value& a, const Value& b, const Spend& spend) {
  if (a.data.index() != b.data.index()) {
    const auto x = number(a), y = number(b);
    return x && y && *x == *y;
  }
  spend(1);
  if (a.is_undefined() || a.is_none()) return true;
  if (const int64_t* x = a.get_if<int64_t>()) return *x == *b.get_if<int64_t>();
  if (const auto x = number(a)) return *x == *number(b);
  if (const Text* x = a.text()) {
    const Text* y = b.text();
    if (x->size() != y->size()) return false;
    spend(x->size());
    return x->bytes() == y->bytes();
  }
  if (const Sequence* x = a.sequence()) {
    const Sequence* y = b.sequence();
    if (x == y) return true;
    if (x->type != y->type || x->type == Sequence::Type::generator || x->items.size() != y->items.size()) return false;
    for (size_t i = 0; i < x->items.size(); ++i) {
      if (!equals(x->items[i], y->items[i], spend)) return false;
    }
    return true;
  }
  if (const Dict* x = a.dict()) {
    const Dict* y = b.dict();
    if (x->entries().size() != y->entries().size()) return false;
    for (const Dict::Entry& entry : x->entries()) {
      const Value* other = y->find(entry.key);
      if (other == nullptr || !equals(entry.value, *other, spend)) return false;
    }
    return true;
  }
  if (const auto* x = a.get_if<std::shared_ptr<Loop>>()) return *x == *b.get_if<std::shared_ptr<Loop>>();
  if (const auto* x = a.get_if<Macro*>()) return *x == *b.get_if<Macro*>();
  if (const auto* x = a.get_if<Namespace*>()) return *x == *b.get_if<Namespace*>();
  if (const auto* x = a.get_if<Function>()) return x->name == b.get_if<Function>()->name;
  const auto &x = *a.get_if<std::shared_ptr<const Method>>(), &y = *b.get_if<std::shared_ptr<const Method>>();
  return x->name == y->name && equals(x->self, y->self, spend);
}

int compare(const Value& a, const Value& b, const char* operation, const Spend& spend) {
  spend(1);
  if (const auto x = whole_number(a), y = whole_number(b); x && y) return *x < *y ? -1 : *x > *y ? 1 : 0;
  if (const auto x = number(a), y = number(b); x && y) return *x < *y ? -1 : *x > *y ? 1 : 0;
  if (const Text* x = a.text(), *y = b.text(); x != nullptr && y != nullptr) {
    spend(std::min(x->size(), y->size()));
    return x->bytes().compare(y->bytes());  // UTF-8 has the order of its code points
  }
  const Sequence *x = a.sequence(), *y = b.sequence();
  if (x != nullptr && y != nullptr && x->type == y->type &&
      (x->type == Sequence::Type::list || x->type == Sequence::Type::tuple)) {
    for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      if (!equals(x->items[i], y->items[i], spend)) return compare(x->items[i], y->items[i], operation, spend);
    }
    return x->items.size() < y->items.size() ? -1 : x->items.size() > y->items.size() ? 1 : 0;
  }
  for (const Value* value : {&a, &b}) {
    if (const Undefined* undefined = value->get_if<Undefined>()) fail(*undefined->why);
  }
  fail("'", operation, "' is not supported between '", type_name(a), "' and '", type_name(b), "'");
}

// ---- Printing ----

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));  // "-1.25e+02"
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string result, digits;
  for (const char byte : text.substr(0, e)) {
    if (byte == '-') result += byte;
    if (byte >= '0' && byte <= '9') digits += byte;
  }
  if (exponent < 0) return result + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  return result + digits.substr(0, whole) + "." + (digits.size() > whole ? digits.substr(whole) : "0");
}

namespace {

void write_text_repr(const Text& text, Text& out) {
  const bool has_single = text.bytes().find('\'') != std::string::npos, has_double = text.bytes().find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  const std::string_view quotes(&quote, 1);
  const auto hex = [](char32_t character, const char* prefix, int digits) {
    constexpr char kHex[] = "0123456789abcdef";
    std::string escape = prefix;
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) escape += kHex[(character >> shift) & 15];
    return escape;
  };
  out.append(quotes, false);
  const std::string_view bytes = text.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const Character character = first_character(bytes.substr(at));
    const char32_t c = character.code_point;
    const bool from_caller = text.from_caller_at(at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.append(c == '\\' ? "\\\\" : "\\'", from_caller);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out.append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", from_caller);
    } else if (is_printable(c)) {
      out.append(bytes.substr(at, character.size), from_caller);
    } else {
      out.append(c < 0x100 ? hex(c, "\\x", 2) : c < 0x10000 ? hex(c, "\\u", 4) : hex(c, "\\U", 8), from_caller);
    }
    at += character.size;
  }
  out.append(quotes, false);
}

void write_dict_repr(const Dict& dict, Text& out, const Spend& spend) {
  out.append("{", false);
  const char* separator = "";
  for (const Dict::Entry& entry : dict.entries()) {
    out.append(separator, false);
    separator = ", ";
    write_repr(entry.key, out, spend);
    out.append(": ", false);
    write_repr(entry.value, out, spend);
  }
  out.append("}", false);
}

void write_sequence_repr(const Sequence& sequence, Text& out, const Spend& spend) {
  if (sequence.type == Sequence::Type::generator) return out.append("<generator object>", false);
  if (sequence.type == Sequence::Type::range) {
    const int64_t first = sequence.items.empty() ? 0 : *sequence.items[0].get_if<int64_t>();
    const int64_t step = sequence.items.size() < 2 ? 1 : *sequence.items[1].get_if<int64_t>() - first;
    const int64_t end = sequence.items.empty() ? 0 : *sequence.items.back().get_if<int64_t>() + (step < 0 ? -1 : 1);
    return out.append(step == 1 ? str_cat("range(", first, ", ", end, ")") : str_cat("range(", first, ", ", end, ", ", step, ")"),
                      false);
  }
  const bool is_tuple = sequence.type == Sequence::Type::tuple, is_view = !is_tuple && sequence.type != Sequence::Type::list;
  if (is_view) out.append(str_cat(type_name({std::make_shared<Sequence>(Sequence{.type = sequence.type})}), "("), false);
  out.append(is_tuple ? "(" : "[", false);
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out.append(", ", false);
    write_repr(sequence.items[i], out, spend);
  }
  if (is_tuple && sequence.items.size() == 1) out.append(",", false);
  out.append(is_tuple ? ")" : "]", false);
  if (is_view) out.append(")", false);
}

}  // namespace

void write(const Value& value, Text& out, const Spend& spend) {
  if (const Text* text = value.text()) {
    spend(text->size() + 1);
    return out.append(*text);
  }
  if (value.is_undefined()) return;
  write_repr(value, out, spend);
}

void write_repr(const Value& value, Text& out, const Spend& spend) {
  spend(16);
  if (const Text* text = value.text()) {
    spend(4 * text->size());
    return write_text_repr(*text, out);
  }
  if (value.is_undefined()) return out.append("Undefined", false);
  if (value.is_none()) return out.append("None", false);
  if (const bool* boolean = value.get_if<bool>()) return out.append(*boolean ? "True" : "False", false);
  if (const int64_t* integer = value.get_if<int64_t>()) return out.append(std::to_string(*integer), false);
  if (const double* real = value.get_if<double>()) return out.append(float_text(*real), false);
  if (const Sequence* sequence = value.sequence()) return write_sequence_repr(*sequence, out, spend);
  if (const Dict* dict = value.dict()) return write_dict_repr(*dict, out, spend);
  out.append(str_cat("<", type_name(value), ">"), false);
}

}  // namespace prologue::jinja
