// Runs a template. Filters, tests and methods are functions in files of their own, which call back into the renderer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <prologue/engine/template/syntax.h>
#include <prologue/engine/template/template.h>
#include <prologue/engine/template/value.h>

namespace prologue::jinja {

// Holds the names that a loop, a macro or a block sets; others are looked for in the parent.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> names;
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

struct Macro {
  const MacroSyntax* syntax;
  std::shared_ptr<Scope> scope;  // where it was defined
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

// Describes a {% for %} that runs: its items are taken one by one, and the condition is evaluated then.
struct Loop {
  const Statement* statement = nullptr;
  std::shared_ptr<Scope> scope;  // outside of the loop
  std::shared_ptr<Sequence> items;
  size_t taken = 0;  // of the items
  bool filters = false;
  int64_t index0 = -1;
  int depth0 = 0;
  std::optional<Value> next, current, previous, changed;
  std::optional<int64_t> length;
};

struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};

class Renderer {
 public:
  explicit Renderer(const RenderOptions& options);
  ~Renderer();
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;

  Text run(const std::vector<Statement>& body, const Variables& variables);
  int line() const { return line_; }  // that was run last

  // ---- For filters, tests and methods ----

  void step() { spend_steps(1); }
  void spend_steps(size_t steps);
  const Spend& spend() const { return spend_; }
  Value make(Text text);
  Value make(std::string_view text) { return make(Text(text)); }
  Value make_list(std::vector<Value> items, Sequence::Type type = Sequence::Type::list);
  Value make_tuple(Value a, Value b);

  Text text_of(const Value& value);  // str(value)
  // Returns the items of an iterable value. A generator is empty afterwards.
  std::vector<Value> items_of(const Value& value);
  // Returns len(value); none: it has no length.
  std::optional<size_t> length_of(const Value& value) const;
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value slice(const Value& object, const Value& begin, const Value& end, const Value& step);
  Value binary(std::string_view operation, const Value& a, const Value& b);
  bool contains(const Value& container, const Value& value);
  Value call(const Value& callee, Arguments arguments);
  Value filter(std::string_view name, const Value& input, const Arguments& arguments);
  bool test(std::string_view name, const Value& input, const Arguments& arguments);
  // Returns loop.length and the like, or nothing if there is no such attribute.
  std::optional<Value> loop_attribute(const std::shared_ptr<Loop>& loop, std::string_view name);

 private:
  enum class Flow { normal, break_, continue_ };
  class Deeper;
  class Captured;

  Flow run_body(const std::vector<Statement>& body);
  Flow run_statement(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_for(const Statement& statement);
  Flow run_loop(const std::shared_ptr<Loop>& loop);
  Flow run_with(const Statement& statement);
  Flow run_set_block(const Statement& statement);
  Flow run_filter_block(const Statement& statement);
  Flow run_in_scope(const std::vector<Statement>& body);
  void run_call_block(const Statement& statement);
  void write_output(const Statement& statement);
  void append_output(const Text& text);

  Value evaluate(const Expression& expression);
  Value look_up(const std::string& name);
  Value evaluate_list(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_item(const Expression& expression);
  Value evaluate_unary(const Expression& expression);
  Value evaluate_logic(const Expression& expression);
  Value evaluate_arithmetic(const Expression& expression);
  Value evaluate_comparison(const Expression& expression);
  Value evaluate_concatenation(const Expression& expression);
  Value evaluate_condition(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_filter(const Expression& expression);
  Value evaluate_test(const Expression& expression);
  Arguments evaluate_arguments(const std::vector<Argument>& arguments);

  void assign(const Expression& target, Value value, Scope& scope);
  std::optional<Value> next_item(Loop& loop);
  int64_t loop_length(Loop& loop);
  Value call_function(std::string_view name, Arguments arguments);
  Value call_macro(const Macro& macro, Arguments arguments);
  Value call_loop(const Loop& loop, const Arguments& arguments);
  Value make_range(const Arguments& arguments);
  Value make_namespace(const Arguments& arguments);
  Dict make_dict_from(const Arguments& arguments);
  std::string now_as(const Text& format) const;

  const RenderOptions& options_;
  const Spend spend_;
  size_t steps_ = 0, bytes_ = 0;
  int depth_ = 0, line_ = 0;
  std::unordered_map<std::string_view, const Value*> variables_;
  std::shared_ptr<Scope> scope_;
  Text* out_ = nullptr;
  const Value* filter_input_ = nullptr;  // of a filter block
  // Values point to these, and both can be part of a cycle.
  std::vector<std::unique_ptr<Macro>> macros_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

// Holds text that grows, and is counted while it does.
class Builder {
 public:
  explicit Builder(Renderer& renderer) : renderer_(renderer) {}
  void append(const Text& text) { append_part(text, 0, text.size()); }
  void append_part(const Text& text, size_t begin, size_t end);
  void append(std::string_view text, bool from_caller = false);
  void repeat(const Text& text, int64_t count);
  const Text& text() const { return text_; }
  Text take() { return std::move(text_); }

 private:
  void count();
  Renderer& renderer_;
  Text text_;
  size_t counted_ = 0;
};

// Holds the arguments of a function with these parameters, in their order. Fails if one is missing, unknown or given twice.
class Parameters {
 public:
  Parameters(std::string_view function, const Arguments& arguments, std::initializer_list<const char*> names,
             size_t num_required = 0);
  const Value* find(size_t i) const { return values_[i]; }
  const Value& value(size_t i) const { return *values_[i]; }
  bool flag(size_t i, bool fallback = false) const { return values_[i] == nullptr ? fallback : is_true(*values_[i]); }
  int64_t integer(size_t i, int64_t fallback) const;
  const Text& text(size_t i) const;

 private:
  std::string_view function_;
  std::vector<const char*> names_;
  std::vector<const Value*> values_;
};

// A bool counts as an integer. Fails, with what the value is of.
int64_t to_integer(const Value& value, std::string_view what);
const Text& to_text(const Value& value, std::string_view what);
// Fails if it is undefined, as every use of such a value but printing and comparing does.
void check_defined(const Value& value);

// ---- filters.cpp, tests.cpp, methods.cpp, format.cpp, json.cpp ----

bool is_filter(std::string_view name);
Value apply_filter(Renderer& renderer, std::string_view name, const Value& input, const Arguments& arguments);
bool is_test(std::string_view name);
bool apply_test(Renderer& renderer, std::string_view name, const Value& input, const Arguments& arguments);

// Returns what Python's type of the value has under this name, called or not.
enum class MethodKind { none, safe, changes };
MethodKind find_method(const Value& object, std::string_view name);
Value call_method(Renderer& renderer, const Method& method, const Arguments& arguments);

Text format_percent(Renderer& renderer, const Text& format, const Value& values);        // format % values
Text format_braces(Renderer& renderer, const Text& format, const Arguments& arguments);  // format.format(...)
Text to_json(Renderer& renderer, const Value& value, const Arguments& arguments);

Text html_escaped(Renderer& renderer, const Text& text);
Text change_case(Renderer& renderer, const Text& text, std::string (*change)(char32_t));
Text capitalized(Renderer& renderer, const Text& text);
// Characters of `chars` are removed; null: white space.
Text strip(const Text& text, const Text* chars, bool left, bool right);
Text replace(Renderer& renderer, const Text& text, const Text& from, const Text& to, int64_t most);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
std::optional<int64_t> parse_integer(std::string_view text, int64_t base);
std::optional<double> parse_float(std::string_view text);
double round_half_even(double value, int64_t digits);

}  // namespace prologue::jinja
