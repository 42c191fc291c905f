// This file has tojson as `transformers` has it (Python's json.dumps), and JSON as a template's value.
#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/template/failure.h>
#include <prologue/engine/template/renderer.h>
#include <prologue/engine/tokenizer/unicode.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Renderer& renderer, const Arguments& arguments)
      : renderer_(renderer),
        out_(renderer),
        parameters_("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}) {
    ascii_ = parameters_.flag(0);
    sorts_ = parameters_.flag(3);
    if (const Value* indent = parameters_.find(1); indent != nullptr && !indent->is_none()) {
      has_indent_ = true;
      Builder space(renderer);
      if (indent->text() != nullptr) {
        space.append(*indent->text());
      } else {
        space.repeat(Text(" "), parameters_.integer(1, 0));
      }
      indent_ = space.take();
    }
    between_ = Text(has_indent_ ? "," : ", ");
    after_key_ = Text(": ");
    if (const Value* separators = parameters_.find(2); separators != nullptr && !separators->is_none()) {
      const std::vector<Value> both = renderer.items_of(*separators);
      if (both.size() != 2) fail("the separators of tojson are ", both.size(), ": they must be two");
      between_ = to_text(both[0], "a separator of tojson");
      after_key_ = to_text(both[1], "a separator of tojson");
    }
  }

  Text run(const Value& value) {
    write(value, 0);
    return out_.take();
  }

 private:
  void write(const Value& value, int level) {
    renderer_.step();
    if (const Text* text = value.text()) return write_string(*text);
    if (value.is_none()) return out_.append("null");
    if (const bool* boolean = value.get_if<bool>()) return out_.append(*boolean ? "true" : "false");
    if (const int64_t* integer = value.get_if<int64_t>()) return out_.append(std::to_string(*integer));
    if (const double* real = value.get_if<double>()) return out_.append(number(*real));
    if (const Dict* dict = value.dict()) return write_dict(*dict, level);
    const Sequence* sequence = value.sequence();
    if (sequence == nullptr || (sequence->type != Sequence::Type::list && sequence->type != Sequence::Type::tuple)) {
      fail("a value of the type '", type_name(value), "' cannot be written as JSON");
    }
    if (sequence->items.empty()) return out_.append("[]");
    out_.append("[");
    for (size_t i = 0; i < sequence->items.size(); ++i) {
      if (i > 0) out_.append(between_);
      new_line(level + 1);
      write(sequence->items[i], level + 1);
    }
    new_line(level);
    out_.append("]");
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.entries().empty()) return out_.append("{}");
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (sorts_) {
      std::stable_sort(entries.begin(), entries.end(), [&](const Dict::Entry* a, const Dict::Entry* b) {
        renderer_.step();
        return compare(a->key, b->key, "<", renderer_.spend()) < 0;
      });
    }
    out_.append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(between_);
      new_line(level + 1);
      write_key(entries[i]->key);
      out_.append(after_key_);
      write(entries[i]->value, level + 1);
    }
    new_line(level);
    out_.append("}");
  }

  void write_key(const Value& key) {
    if (const Text* text = key.text()) return write_string(*text);
    if (key.is_none()) return out_.append("\"null\"");
    if (const bool* boolean = key.get_if<bool>()) return out_.append(*boolean ? "\"true\"" : "\"false\"");
    if (const int64_t* integer = key.get_if<int64_t>()) return out_.append(str_cat("\"", *integer, "\""));
    if (const double* real = key.get_if<double>()) return out_.append(str_cat("\"", number(*real), "\""));
    fail("a key of the type '", type_name(key), "' cannot be written as JSON");
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_text(value);
  }

  void new_line(int level) {
    if (!has_indent_) return;
    out_.append("\n");
    out_.repeat(indent_, level);
  }

  void write_string(const Text& text) {
    out_.append("\"");
    const std::string_view bytes = text.bytes();
    size_t copied = 0;
    for (size_t at = 0; at < bytes.size();) {
      const Character c = first_character(bytes.substr(at));
      if (const std::string escaped = escape(c.code_point); !escaped.empty()) {
        out_.append_part(text, copied, at);
        out_.append(escaped, text.from_caller_at(at));
        copied = at + c.size;
      }
      at += c.size;
    }
    out_.append_part(text, copied, bytes.size());
    out_.append("\"");
  }

  // Returns an empty string if the character is written as it is.
  std::string escape(char32_t c) const {
    const auto hex = [](uint32_t unit) {
      constexpr char kHex[] = "0123456789abcdef";
      return str_cat("\\u", kHex[unit >> 12 & 15], kHex[unit >> 8 & 15], kHex[unit >> 4 & 15], kHex[unit & 15]);
    };
    switch (c) {
      case '"': return "\\\"";
      case '\\': return "\\\\";
      case '\n': return "\\n";
      case '\r': return "\\r";
      case '\t': return "\\t";
      case '\b': return "\\b";
      case '\f': return "\\f";
      default: break;
    }
    if (c < 0x20 || (ascii_ && c >= 0x7f && c < 0x10000)) return hex(c);
    if (ascii_ && c >= 0x10000) return hex(0xd800 + ((c - 0x10000) >> 10)) + hex(0xdc00 + ((c - 0x10000) & 0x3ff));
    return {};
  }

  Renderer& renderer_;
  Builder out_;
  const Parameters parameters_;
  bool ascii_ = false, sorts_ = false, has_indent_ = false;
  Text indent_, between_, after_key_;
};

// Receives the parser's events.
class ValueBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add({None{}}); }
  bool boolean(bool value) override { return add({value}); }
  bool number_integer(int64_t value) override { return add({value}); }
  bool number_unsigned(uint64_t value) override {
    if (std::in_range<int64_t>(value)) return add({static_cast<int64_t>(value)});
    return add({static_cast<double>(value)});
  }
  bool number_float(double value, const std::string&) override { return add({value}); }
  bool string(std::string& value) override { return add(make_text(Text(replace_invalid_bytes(value), true))); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool key(std::string& name) override {
    open_.back().key = make_text(Text(replace_invalid_bytes(name), true));
    return true;
  }
  bool end_object() override {
    Value value = make_dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(value));
  }
  bool end_array() override {
    Value value = make_sequence(Sequence::Type::list, std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception&) override {
    fail_as(StatusCode::data_loss, "this is no JSON: the error is at byte ", byte);
  }

  Value take() { return std::move(root_); }

 private:
  struct Open {
    bool is_object = false;
    Value key;
    Dict dict;
    std::vector<Value> items;
  };

  bool open(bool is_object) {
    if (open_.size() >= static_cast<size_t>(kMaxNesting) / 2) {
      fail_as(StatusCode::data_loss, "the JSON is nested more than ", kMaxNesting / 2, " deep");
    }
    open_.emplace_back();
    open_.back().is_object = is_object;
    return true;
  }
  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().dict.set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Open> open_;
  Value root_;
};

}  // namespace

Text to_json(Renderer& renderer, const Value& value, const Arguments& arguments) {
  return JsonWriter(renderer, arguments).run(value);
}

Result<Value> parse_json_value(std::string_view json) {
  return catch_out_of_memory([&]() -> Result<Value> {
    ValueBuilder builder;
    try {
      nlohmann::json::sax_parse(json.begin(), json.end(), &builder);
      return builder.take();
    } catch (const Failure& failure) {
      return Status(failure.code, failure.message);
    }
  });
}

}  // namespace prologue::jinja
