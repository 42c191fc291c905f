// This file has the values of a template's expressions. They behave as Python's do: printing, comparing, truth.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <prologue/engine/template/text.h>
#include <prologue/kernels/base/status.h>

namespace prologue::jinja {

struct Value;
class Dict;
struct Sequence;
struct Method;
struct Loop;       // renderer.h
struct Macro;      // renderer.h
struct Namespace;  // renderer.h

// Stands for a name or an attribute that does not exist. Using it fails with this message.
struct Undefined {
  std::shared_ptr<const std::string> why;
};
struct None {};
// Describes a function that templates have: range, namespace, ... The name is a literal.
struct Function {
  std::string_view name;
};

struct Value {
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<Sequence>,
                            std::shared_ptr<const Dict>, std::shared_ptr<Loop>, std::shared_ptr<const Method>, Macro*, Namespace*,
                            Function>;
  Data data = None{};

  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&data);
  }
  bool is_undefined() const { return get_if<Undefined>() != nullptr; }
  bool is_none() const { return get_if<None>() != nullptr; }
  bool is_number() const { return get_if<int64_t>() != nullptr || get_if<double>() != nullptr || get_if<bool>() != nullptr; }
  // Returns null if it is another kind of value.
  const Text* text() const;
  Sequence* sequence() const;
  const Dict* dict() const;
};

Value make_text(Text text);
Value make_text(std::string_view bytes);  // of the template
Value make_undefined(std::string why);

// Says how many containers are nested in a value, and whether a loop, macro, method or namespace is in it.
struct Nesting {
  int depth = 0;
  bool has_objects = false;
};
inline constexpr int kMaxNesting = 100;
Nesting nesting(const Value& value);

struct Sequence {
  enum class Type { list, tuple, range, generator, keys, values, items };
  Type type = Type::list;
  std::vector<Value> items = {};
  Nesting nested = {};
  size_t next = 0;        // of a generator: what has been taken cannot be taken again
  bool is_group = false;  // a tuple of the filter groupby: its items are also called grouper and list
};
// Fails if the items are nested too deep.
Value make_sequence(Sequence::Type type, std::vector<Value> items);

struct Method {
  Value self;
  std::string name;
};

// Keeps its entries in the order of insertion. It is never changed after it was made.
class Dict {
 public:
  struct Entry {
    Value key;
    Value value;
  };
  // Replaces the value of a key that is there. Fails for a key that is a list or a dict, and for values that are nested too deep.
  void set(Value key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  Nesting nested() const { return nested_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;  // by hash_key()
  Nesting nested_;
};
Value make_dict(Dict dict);

// Returns "str", "int": Python's name of the type.
const char* type_name(const Value& value);
bool is_true(const Value& value);
// Returns what equal values have in common, as the key of a dict or of a set. Fails for lists and dicts.
std::string hash_key(const Value& value);

// Returns fractions as Python prints them: 0.1, 1e+16, inf.
std::string float_text(double value);

// Called with the number of characters that a step writes or compares, so that the caller can bound the work.
using Spend = std::function<void(size_t)>;
bool equals(const Value& a, const Value& b, const Spend& spend);
// Returns a number below 0, 0 or above 0. Fails for values without an order: None and 1.
int compare(const Value& a, const Value& b, const char* operation, const Spend& spend);

// These return str(value) and repr(value).
void write(const Value& value, Text& out, const Spend& spend);
void write_repr(const Value& value, Text& out, const Spend& spend);

}  // namespace prologue::jinja
