#include <prologue/engine/template/renderer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <limits>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/template/failure.h>
#include <prologue/engine/template/lexer.h>
#include <prologue/engine/template/parser.h>
#include <prologue/engine/tokenizer/unicode.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue::jinja {
namespace {

using Kind = Expression::Kind;

constexpr int kMaxRunDepth = 500;      // of statements and expressions in each other, through macros too
constexpr int64_t kMaxRange = 100000;  // as in jinja2's sandbox
constexpr size_t kMaxSourceBytes = size_t{4} << 20;
constexpr size_t kValueBytes = 160;  // that a value takes besides its text, about

// `value` is read after the operation that may overflow has written it.
int64_t checked(bool overflows, const int64_t& value) {
  if (overflows) fail_as(StatusCode::unsupported, "an integer does not fit in 64 bits");
  return value;
}

// Returns an index, counted from the end if it is negative, clamped to [low, high].
int64_t slice_end(const Value& value, int64_t length, int64_t fallback, int64_t low, int64_t high) {
  if (value.is_none()) return fallback;
  int64_t index = to_integer(value, "an end of a slice");
  if (index < 0) index = index < -length ? -1 : index + length;
  return std::clamp(index, low, high);
}

double to_double(const Value& value) {
  if (const double* real = value.get_if<double>()) return *real;
  return static_cast<double>(to_integer(value, "a number"));
}

double floor_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0.0 && (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  bool overflows = false;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) overflows = overflows || __builtin_mul_overflow(result, base, &result);
    if (exponent > 1) overflows = __builtin_mul_overflow(base, base, &base) || overflows;
  }
  return checked(overflows, result);
}

Value integer_arithmetic(std::string_view operation, int64_t a, int64_t b) {
  int64_t result = 0;
  if (operation == "+") return {checked(__builtin_add_overflow(a, b, &result), result)};
  if (operation == "-") return {checked(__builtin_sub_overflow(a, b, &result), result)};
  if (operation == "*") return {checked(__builtin_mul_overflow(a, b, &result), result)};
  if (operation == "**" && b >= 0) return {integer_power(a, b)};
  if (operation == "**") {
    if (a == 0) fail("0 has no negative power");
    return {std::pow(static_cast<double>(a), static_cast<double>(b))};
  }
  if (b == 0) fail("division by zero");
  if (operation == "/") return {static_cast<double>(a) / static_cast<double>(b)};
  if (b == -1) {
    if (operation == "%") return {int64_t{0}};
    return {checked(__builtin_sub_overflow(int64_t{0}, a, &result), result)};
  }
  const int64_t rest = a % b;
  const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);
  return operation == "%" ? Value{rounds_down ? rest + b : rest} : Value{a / b - (rounds_down ? 1 : 0)};
}

Value real_arithmetic(std::string_view operation, double a, double b) {
  if (operation == "+") return {a + b};
  if (operation == "-") return {a - b};
  if (operation == "*") return {a * b};
  if (operation == "**") {
    const double power = std::pow(a, b);
    if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) fail("the power is too large");
    if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) fail("a root of a negative number is no number");
    return {power};
  }
  if (b == 0.0) fail("division by zero");
  if (operation == "/") return {a / b};
  if (operation == "%") return {floor_modulo(a, b)};
  return {std::floor((a - floor_modulo(a, b)) / b + 0.5)};
}

}  // namespace

// ---- Small parts ----

const Value* Scope::find(std::string_view name) const {
  for (const auto& [known, value] : names) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  for (auto& [known, old] : names) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

void Builder::count() {
  const size_t now = text_.size() + sizeof(Run) * text_.runs().size();
  renderer_.spend()(now - counted_);
  counted_ = now;
}

void Builder::append_part(const Text& text, size_t begin, size_t end) {
  text_.append_part(text, begin, end);
  count();
}

void Builder::append(std::string_view text, bool from_caller) {
  text_.append(text, from_caller);
  count();
}

void Builder::repeat(const Text& text, int64_t count) {
  if (text.empty()) return;
  for (int64_t i = 0; i < count; ++i) {
    renderer_.step();
    append(text);
  }
}

Parameters::Parameters(std::string_view function, const Arguments& arguments, std::initializer_list<const char*> names,
                       size_t num_required)
    : function_(function), names_(names), values_(names.size()) {
  if (arguments.values.size() > names.size()) {
    fail(function, " takes at most ", names.size(), names.size() == 1 ? " argument, not " : " arguments, not ",
         arguments.values.size());
  }
  for (size_t i = 0; i < arguments.values.size(); ++i) values_[i] = &arguments.values[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) fail(function, " has no parameter ", in_quotes(name, 40));
    const Value*& slot = values_[static_cast<size_t>(found - names.begin())];
    if (slot != nullptr) fail(function, " got two values for ", in_quotes(name, 40));
    slot = &value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (values_[i] == nullptr) fail(function, " needs a value for ", *(names.begin() + i));
  }
}

int64_t Parameters::integer(size_t i, int64_t fallback) const {
  return values_[i] == nullptr ? fallback : to_integer(*values_[i], str_cat(names_[i], " of ", function_));
}

const Text& Parameters::text(size_t i) const { return to_text(*values_[i], str_cat(names_[i], " of ", function_)); }

void check_defined(const Value& value) {
  if (const Undefined* undefined = value.get_if<Undefined>()) fail(*undefined->why);
}

int64_t to_integer(const Value& value, std::string_view what) {
  if (const int64_t* integer = value.get_if<int64_t>()) return *integer;
  if (const bool* boolean = value.get_if<bool>()) return *boolean ? 1 : 0;
  check_defined(value);
  fail(what, " is of the type '", type_name(value), "': it must be an integer");
}

const Text& to_text(const Value& value, std::string_view what) {
  if (const Text* text = value.text()) return *text;
  check_defined(value);
  fail(what, " is of the type '", type_name(value), "': it must be a string");
}

// ---- The frame ----

class Renderer::Deeper {
 public:
  explicit Deeper(Renderer& renderer) : renderer_(renderer) {
    if (++renderer_.depth_ > kMaxRunDepth) {
      --renderer_.depth_;
      fail_as(StatusCode::resource_exhausted, "macros and loops are nested too deep");
    }
  }
  ~Deeper() { --renderer_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Renderer& renderer_;
};

// While it exists, output goes into a text of its own, and names into a scope of their own, in that of `scope`.
class Renderer::Captured {
 public:
  Captured(Renderer& renderer, std::shared_ptr<Scope> scope)
      : renderer_(renderer), out_(renderer.out_), scope_(std::move(renderer.scope_)) {
    renderer.out_ = &text;
    renderer.scope_ = std::make_shared<Scope>(Scope{std::move(scope), {}});
  }
  ~Captured() {
    renderer_.out_ = out_;
    renderer_.scope_ = std::move(scope_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  Text text;

 private:
  Renderer& renderer_;
  Text* out_;
  std::shared_ptr<Scope> scope_;
};

Renderer::Renderer(const RenderOptions& options)
    : options_(options), spend_([this](size_t bytes) {
        bytes_ += bytes;
        if (bytes_ > options_.limits.bytes) {
          fail_as(StatusCode::resource_exhausted, "the template handles more than ", options_.limits.bytes, " bytes");
        }
      }) {}

Renderer::~Renderer() {
  for (const auto& macro : macros_) macro->scope.reset();
}

void Renderer::spend_steps(size_t steps) {
  steps_ += steps;
  if (steps_ > options_.limits.steps) {
    fail_as(StatusCode::resource_exhausted, "the template takes more than ", options_.limits.steps, " steps");
  }
}

Text Renderer::run(const std::vector<Statement>& body, const Variables& variables) {
  for (const auto& [name, value] : variables) variables_[name] = &value;
  Text out;
  out_ = &out;
  scope_ = std::make_shared<Scope>();
  run_body(body);
  return out;
}

Value Renderer::make(Text text) {
  spend_(text.size() + sizeof(Run) * text.runs().size() + kValueBytes);
  return make_text(std::move(text));
}

Value Renderer::make_list(std::vector<Value> items, Sequence::Type type) {
  spend_(items.size() * sizeof(Value) + kValueBytes);
  spend_steps(items.size() / 8);
  return make_sequence(type, std::move(items));
}

Value Renderer::make_tuple(Value a, Value b) {
  std::vector<Value> items;
  items.push_back(std::move(a));
  items.push_back(std::move(b));
  return make_list(std::move(items), Sequence::Type::tuple);
}

Text Renderer::text_of(const Value& value) {
  Text text;
  write(value, text, spend_);
  return text;
}

void Renderer::append_output(const Text& text) {
  if (out_->size() + text.size() > options_.limits.output_bytes) {
    fail_as(StatusCode::resource_exhausted, "the template writes more than ", options_.limits.output_bytes, " bytes");
  }
  out_->append(text);
}

// ---- Statements ----

Renderer::Flow Renderer::run_body(const std::vector<Statement>& body) {
  for (const Statement& statement : body) {
    if (const Flow flow = run_statement(statement); flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Renderer::Flow Renderer::run_statement(const Statement& statement) {
  const Deeper deeper(*this);
  step();
  line_ = statement.line;
  using SKind = Statement::Kind;
  switch (statement.kind) {
    case SKind::text:
      spend_(statement.text.size());
      append_output(Text(statement.text));
      return Flow::normal;
    case SKind::output: write_output(statement); return Flow::normal;
    case SKind::for_: return run_for(statement);
    case SKind::if_: return run_if(statement);
    case SKind::set: assign(statement.targets[0], evaluate(statement.expressions[0]), *scope_); return Flow::normal;
    case SKind::set_block: return run_set_block(statement);
    case SKind::with: return run_with(statement);
    case SKind::macro:
      spend_(kValueBytes);
      macros_.push_back(std::make_unique<Macro>(Macro{statement.macro.get(), scope_}));
      scope_->set(statement.macro->name, {macros_.back().get()});
      return Flow::normal;
    case SKind::call: run_call_block(statement); return Flow::normal;
    case SKind::filter: return run_filter_block(statement);
    case SKind::scope: return run_in_scope(statement.body);
    case SKind::break_: return Flow::break_;
    case SKind::continue_: return Flow::continue_;
  }
  return Flow::normal;
}

void Renderer::write_output(const Statement& statement) {
  for (const Expression& expression : statement.expressions) append_output(text_of(evaluate(expression)));
}

Renderer::Flow Renderer::run_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (is_true(evaluate(branch.condition))) return run_body(branch.body);
  }
  return run_body(statement.otherwise);
}

Renderer::Flow Renderer::run_in_scope(const std::vector<Statement>& body) {
  const std::shared_ptr<Scope> outside = scope_;
  scope_ = std::make_shared<Scope>(Scope{outside, {}});
  const Flow flow = run_body(body);
  scope_ = outside;
  return flow;
}

Renderer::Flow Renderer::run_with(const Statement& statement) {
  auto inside = std::make_shared<Scope>(Scope{scope_, {}});
  for (size_t i = 0; i < statement.targets.size(); ++i) assign(statement.targets[i], evaluate(statement.expressions[i]), *inside);
  const std::shared_ptr<Scope> outside = std::exchange(scope_, std::move(inside));
  const Flow flow = run_body(statement.body);
  scope_ = outside;
  return flow;
}

Renderer::Flow Renderer::run_set_block(const Statement& statement) {
  Value value;
  {
    Captured captured(*this, scope_);
    if (const Flow flow = run_body(statement.body); flow != Flow::normal) return flow;
    value = make(std::move(captured.text));
  }
  const Value* const before = std::exchange(filter_input_, &value);
  Value filtered = evaluate(statement.expressions[0]);
  filter_input_ = before;
  assign(statement.targets[0], std::move(filtered), *scope_);
  return Flow::normal;
}

Renderer::Flow Renderer::run_filter_block(const Statement& statement) {
  Value value;
  {
    Captured captured(*this, scope_);
    if (const Flow flow = run_body(statement.body); flow != Flow::normal) return flow;
    value = make(std::move(captured.text));
  }
  const Value* const before = std::exchange(filter_input_, &value);
  const Value filtered = evaluate(statement.expressions[0]);
  filter_input_ = before;
  append_output(text_of(filtered));
  return Flow::normal;
}

void Renderer::run_call_block(const Statement& statement) {
  const Expression& call_of = statement.expressions[0];
  const Value callee = evaluate(call_of.operands[0]);
  Arguments arguments = evaluate_arguments(call_of.arguments);
  spend_(kValueBytes);
  macros_.push_back(std::make_unique<Macro>(Macro{statement.macro.get(), scope_}));
  arguments.named.emplace_back("caller", Value{macros_.back().get()});
  append_output(text_of(call(callee, std::move(arguments))));
}

void Renderer::assign(const Expression& target, Value value, Scope& scope) {
  if (target.kind == Kind::name) return scope.set(target.name, std::move(value));
  if (target.kind == Kind::namespace_attribute) {
    const Value object = look_up(target.name);
    auto* const* const space = object.get_if<Namespace*>();
    if (space == nullptr) fail("cannot assign to an attribute of ", target.name, ", which is not a namespace");
    if (target.attribute[0] == '_') fail("a namespace has no attributes that begin with _: ", target.attribute);
    for (auto& [name, old] : (*space)->attributes) {
      if (name == target.attribute) {
        old = std::move(value);
        return;
      }
    }
    (*space)->attributes.emplace_back(target.attribute, std::move(value));
    return;
  }
  const std::vector<Value> items = items_of(value);
  if (items.size() != target.operands.size()) {
    fail(items.size() < target.operands.size() ? "not enough" : "too many", " values to unpack: expected ",
         target.operands.size(), ", got ", items.size());
  }
  for (size_t i = 0; i < items.size(); ++i) assign(target.operands[i], items[i], scope);
}

// ---- Loops ----

namespace {

// Returns the items of a loop. Those of a list are shared; a generator's are taken.
std::shared_ptr<Sequence> loop_items(Renderer& renderer, const Value& value) {
  if (const auto* sequence = value.get_if<std::shared_ptr<Sequence>>()) {
    if ((*sequence)->type != Sequence::Type::generator) return *sequence;
  }
  return *renderer.make_list(renderer.items_of(value)).get_if<std::shared_ptr<Sequence>>();
}

}  // namespace

Renderer::Flow Renderer::run_for(const Statement& statement) {
  auto loop = std::make_shared<Loop>();
  spend_(kValueBytes);
  loop->statement = &statement;
  loop->scope = scope_;
  loop->items = loop_items(*this, evaluate(statement.expressions[0]));
  loop->filters = statement.expressions.size() > 1;
  return run_loop(loop);
}

Renderer::Flow Renderer::run_loop(const std::shared_ptr<Loop>& loop) {
  const Statement& statement = *loop->statement;
  const std::shared_ptr<Scope> outside = scope_;
  Flow flow = Flow::normal;
  bool any = false;  // iteration that ran to its end: a body that was left does not keep jinja2 from the else
  while (flow != Flow::break_) {
    std::optional<Value> item = loop->next ? std::exchange(loop->next, std::nullopt) : next_item(*loop);
    if (!item) break;
    ++loop->index0;
    loop->previous = std::exchange(loop->current, *item);
    scope_ = std::make_shared<Scope>(Scope{loop->scope, {}});
    scope_->set("loop", {loop});
    assign(statement.targets[0], std::move(*item), *scope_);
    flow = run_body(statement.body);
    any = any || flow == Flow::normal;
  }
  scope_ = outside;
  loop->scope.reset();  // a name outside may still hold the loop: nothing may point round in a circle
  return any ? Flow::normal : run_in_scope(statement.otherwise);
}

std::optional<Value> Renderer::next_item(Loop& loop) {
  while (loop.taken < loop.items->items.size()) {
    step();
    Value item = loop.items->items[loop.taken++];
    if (!loop.filters) return item;
    const std::shared_ptr<Scope> outside = std::exchange(scope_, std::make_shared<Scope>(Scope{loop.scope, {}}));
    assign(loop.statement->targets[0], item, *scope_);
    const bool passes = is_true(evaluate(loop.statement->expressions[1]));
    scope_ = outside;
    if (passes) return item;
  }
  return std::nullopt;
}

int64_t Renderer::loop_length(Loop& loop) {
  if (loop.length) return *loop.length;
  if (!loop.filters) {
    loop.length = static_cast<int64_t>(loop.items->items.size());
    return *loop.length;
  }
  std::vector<Value> rest;
  while (std::optional<Value> item = next_item(loop)) rest.push_back(std::move(*item));
  loop.length = static_cast<int64_t>(rest.size()) + loop.index0 + 1 + (loop.next ? 1 : 0);
  loop.items = *make_list(std::move(rest)).get_if<std::shared_ptr<Sequence>>();
  loop.taken = 0;
  loop.filters = false;
  return *loop.length;
}

std::optional<Value> Renderer::loop_attribute(const std::shared_ptr<Loop>& loop, std::string_view name) {
  const auto peek = [&]() -> const std::optional<Value>& {
    if (!loop->next) loop->next = next_item(*loop);
    return loop->next;
  };
  if (name == "index0") return Value{loop->index0};
  if (name == "index") return Value{loop->index0 + 1};
  if (name == "first") return Value{loop->index0 == 0};
  if (name == "last") return Value{!peek()};
  if (name == "length") return Value{loop_length(*loop)};
  if (name == "revindex") return Value{loop_length(*loop) - loop->index0};
  if (name == "revindex0") return Value{loop_length(*loop) - loop->index0 - 1};
  if (name == "depth0") return Value{int64_t{loop->depth0}};
  if (name == "depth") return Value{int64_t{loop->depth0} + 1};
  if (name == "previtem") return loop->index0 > 0 ? *loop->previous : make_undefined("there is no previous item");
  if (name == "nextitem") return peek() ? *peek() : make_undefined("there is no next item");
  if (name == "cycle" || name == "changed") return Value{std::make_shared<const Method>(Method{{loop}, std::string(name)})};
  return std::nullopt;
}

Value Renderer::call_loop(const Loop& loop, const Arguments& arguments) {
  if (!loop.statement->recursive) fail("a loop that is called must have the word 'recursive'");
  const Parameters parameters("loop", arguments, {"iterable"}, 1);
  auto inner = std::make_shared<Loop>();
  spend_(kValueBytes);
  inner->statement = loop.statement;
  inner->scope = loop.scope;
  inner->items = loop_items(*this, parameters.value(0));
  inner->filters = loop.statement->expressions.size() > 1;
  inner->depth0 = loop.depth0 + 1;
  Captured captured(*this, loop.scope);
  run_loop(inner);
  return make(std::move(captured.text));
}

// ---- Expressions ----

Value Renderer::look_up(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* found = scope->find(name)) return *found;
  }
  if (const auto found = variables_.find(name); found != variables_.end()) return *found->second;
  static constexpr std::array<std::string_view, 5> kFunctions = {"range", "namespace", "dict", "raise_exception", "strftime_now"};
  const auto function = std::find(kFunctions.begin(), kFunctions.end(), name);
  if (function != kFunctions.end()) return {Function{*function}};
  return make_undefined(str_cat(in_quotes(name, 40), " is undefined"));
}

Value Renderer::evaluate(const Expression& expression) {
  const Deeper deeper(*this);
  step();
  line_ = expression.line;
  switch (expression.kind) {
    case Kind::constant: return expression.constant;
    case Kind::name: return look_up(expression.name);
    case Kind::list:
    case Kind::tuple: return evaluate_list(expression);
    case Kind::dict: return evaluate_dict(expression);
    case Kind::attribute: return attribute(evaluate(expression.operands[0]), expression.name);
    case Kind::item: return evaluate_item(expression);
    case Kind::slice: fail("a slice is only possible between [ and ]");
    case Kind::negative:
    case Kind::positive:
    case Kind::not_: return evaluate_unary(expression);
    case Kind::and_:
    case Kind::or_: return evaluate_logic(expression);
    case Kind::arithmetic: return evaluate_arithmetic(expression);
    case Kind::comparison: return evaluate_comparison(expression);
    case Kind::concatenation: return evaluate_concatenation(expression);
    case Kind::condition: return evaluate_condition(expression);
    case Kind::call: return evaluate_call(expression);
    case Kind::filter: return evaluate_filter(expression);
    case Kind::test: return evaluate_test(expression);
    case Kind::body: return *filter_input_;
    case Kind::namespace_attribute: break;
  }
  fail("this expression has no value");
}

Value Renderer::evaluate_list(const Expression& expression) {
  std::vector<Value> items;
  for (const Expression& operand : expression.operands) items.push_back(evaluate(operand));
  return make_list(std::move(items), expression.kind == Kind::tuple ? Sequence::Type::tuple : Sequence::Type::list);
}

Value Renderer::evaluate_dict(const Expression& expression) {
  Dict dict;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    Value key = evaluate(expression.operands[i]);
    spend_(2 * kValueBytes);
    dict.set(std::move(key), evaluate(expression.operands[i + 1]));
  }
  return make_dict(std::move(dict));
}

Value Renderer::evaluate_item(const Expression& expression) {
  const Value object = evaluate(expression.operands[0]);
  const Expression& key = expression.operands[1];
  if (key.kind != Kind::slice) return item(object, evaluate(key));
  const Value begin = evaluate(key.operands[0]), end = evaluate(key.operands[1]), step = evaluate(key.operands[2]);
  return slice(object, begin, end, step);
}

Value Renderer::evaluate_unary(const Expression& expression) {
  const Value operand = evaluate(expression.operands[0]);
  if (expression.kind == Kind::not_) return {!is_true(operand)};
  check_defined(operand);
  if (!operand.is_number()) {
    fail("bad operand type for unary ", expression.kind == Kind::negative ? "-" : "+", ": '", type_name(operand), "'");
  }
  if (expression.kind == Kind::negative) {
    if (const double* real = operand.get_if<double>()) return {-*real};
    return integer_arithmetic("-", 0, to_integer(operand, "a number"));
  }
  if (operand.get_if<bool>() != nullptr) return {to_integer(operand, "a number")};
  return operand;
}

Value Renderer::evaluate_logic(const Expression& expression) {
  Value value;
  for (const Expression& operand : expression.operands) {
    value = evaluate(operand);
    if (is_true(value) == (expression.kind == Kind::or_)) break;
  }
  return value;
}

Value Renderer::evaluate_arithmetic(const Expression& expression) {
  Value value = evaluate(expression.operands[0]);
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    value = binary(expression.operators[i - 1], value, evaluate(expression.operands[i]));
  }
  return value;
}

Value Renderer::evaluate_comparison(const Expression& expression) {
  Value left = evaluate(expression.operands[0]);
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    Value right = evaluate(expression.operands[i]);
    const std::string& operation = expression.operators[i - 1];
    bool holds = false;
    if (operation == "==" || operation == "!=") {
      holds = equals(left, right, spend_) == (operation == "==");
    } else if (operation == "in" || operation == "not in") {
      holds = contains(right, left) == (operation == "in");
    } else {
      const int order = compare(left, right, operation.c_str(), spend_);
      holds = operation == "<" ? order < 0 : operation == "<=" ? order <= 0 : operation == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return {false};
    left = std::move(right);
  }
  return {true};
}

Value Renderer::evaluate_concatenation(const Expression& expression) {
  Builder result(*this);
  for (const Expression& operand : expression.operands) result.append(text_of(evaluate(operand)));
  return make(result.take());
}

Value Renderer::evaluate_condition(const Expression& expression) {
  if (is_true(evaluate(expression.operands[0]))) return evaluate(expression.operands[1]);
  if (expression.operands.size() > 2) return evaluate(expression.operands[2]);
  return make_undefined("the condition of an 'if' without an 'else' is false");
}

Value Renderer::evaluate_call(const Expression& expression) {
  const Value callee = evaluate(expression.operands[0]);
  Arguments arguments = evaluate_arguments(expression.arguments);
  line_ = expression.line;
  return call(callee, std::move(arguments));
}

Value Renderer::evaluate_filter(const Expression& expression) {
  const Value input = evaluate(expression.operands[0]);
  const Arguments arguments = evaluate_arguments(expression.arguments);
  line_ = expression.line;
  return filter(expression.name, input, arguments);
}

Value Renderer::evaluate_test(const Expression& expression) {
  const Value input = evaluate(expression.operands[0]);
  const Arguments arguments = evaluate_arguments(expression.arguments);
  line_ = expression.line;
  return {test(expression.name, input, arguments)};
}

Arguments Renderer::evaluate_arguments(const std::vector<Argument>& arguments) {
  Arguments result;
  for (const Argument& argument : arguments) {
    const Value value = evaluate(argument.value[0]);
    switch (argument.kind) {
      case Argument::Kind::positional: result.values.push_back(value); break;
      case Argument::Kind::keyword: result.named.emplace_back(argument.name, value); break;
      case Argument::Kind::list:
        for (Value& item : items_of(value)) result.values.push_back(std::move(item));
        break;
      case Argument::Kind::dict: {
        check_defined(value);
        const Dict* dict = value.dict();
        if (dict == nullptr) fail("what follows ** is of the type '", type_name(value), "': it must be a dict");
        for (const Dict::Entry& entry : dict->entries()) {
          result.named.emplace_back(to_text(entry.key, "a name after **").bytes(), entry.value);
        }
        break;
      }
    }
  }
  return result;
}

// ---- Operations ----

std::vector<Value> Renderer::items_of(const Value& value) {
  if (Sequence* sequence = value.sequence()) {
    spend_(sequence->items.size() * sizeof(Value));
    if (sequence->type != Sequence::Type::generator) return sequence->items;
    const size_t begin = std::exchange(sequence->next, sequence->items.size());
    return {sequence->items.begin() + static_cast<std::ptrdiff_t>(begin), sequence->items.end()};
  }
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const Dict* dict = value.dict()) {
    spend_(dict->entries().size() * sizeof(Value));
    for (const Dict::Entry& entry : dict->entries()) items.push_back(entry.key);
  } else if (const Text* text = value.text()) {
    for (size_t at = 0; at < text->size();) {
      const size_t size = first_character(std::string_view(text->bytes()).substr(at)).size;
      items.push_back(make(text->part(at, at + size)));
      spend_(sizeof(Value));
      at += size;
    }
  } else {
    fail("'", type_name(value), "' is not iterable");
  }
  return items;
}

std::optional<size_t> Renderer::length_of(const Value& value) const {
  if (const Text* text = value.text()) return text->num_characters();
  if (const Dict* dict = value.dict()) return dict->entries().size();
  if (value.is_undefined()) return 0;
  const Sequence* sequence = value.sequence();
  if (sequence != nullptr && sequence->type != Sequence::Type::generator) return sequence->items.size();
  return std::nullopt;
}

bool Renderer::contains(const Value& container, const Value& value) {
  if (const Text* text = container.text()) {
    check_defined(value);
    const Text& part = to_text(value, "what is looked for in a string");
    spend_(text->size());
    return find_first(text->bytes(), part.bytes(), 0).has_value();
  }
  if (const Dict* dict = container.dict()) return dict->find(value) != nullptr;
  for (const Value& item : items_of(container)) {
    step();
    if (equals(item, value, spend_)) return true;
  }
  return false;
}

namespace {

// Returns "'dict object' has no attribute 'x'".
Value missing(const Value& object, const Value& key) {
  const std::string owner = object.is_none() ? "None" : str_cat(type_name(object), " object");
  if (const Text* name = key.text())
    return make_undefined(str_cat("'", owner, "' has no attribute ", in_quotes(name->bytes(), 40)));
  Text element;
  if (const int64_t* index = key.get_if<int64_t>()) element.append(std::to_string(*index), false);
  return make_undefined(str_cat(owner, " has no element ", element.bytes()));
}

}  // namespace

Value Renderer::attribute(const Value& object, std::string_view name) {
  check_defined(object);
  if (const auto* space = object.get_if<Namespace*>()) {
    for (const auto& [known, value] : (*space)->attributes) {
      if (known == name) return value;
    }
  }
  if (const auto* loop = object.get_if<std::shared_ptr<Loop>>()) {
    if (std::optional<Value> value = loop_attribute(*loop, name)) return *value;
  }
  if (const auto* macro = object.get_if<Macro*>(); macro != nullptr && name == "name") return make((*macro)->syntax->name);
  if (const Sequence* sequence = object.sequence(); sequence != nullptr && sequence->is_group) {
    if (name == "grouper" || name == "list") return sequence->items[name == "list" ? 1 : 0];
  }
  const MethodKind method = find_method(object, name);
  if (method == MethodKind::safe) return {std::make_shared<const Method>(Method{object, std::string(name)})};
  if (method == MethodKind::changes || name.substr(0, 2) == "__") {
    return make_undefined(
        str_cat("access to attribute ", in_quotes(name, 40), " of '", type_name(object), "' object is unsafe."));
  }
  if (const Dict* dict = object.dict()) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return missing(object, make_text(name));
}

Value Renderer::item(const Value& object, const Value& key) {
  check_defined(object);
  if (const Dict* dict = object.dict()) {
    const bool has_hash = key.dict() == nullptr && (key.sequence() == nullptr || key.sequence()->type == Sequence::Type::tuple);
    if (const Value* found = has_hash ? dict->find(key) : nullptr) return *found;
  } else if (key.get_if<int64_t>() != nullptr || key.get_if<bool>() != nullptr) {
    int64_t index = to_integer(key, "an index");
    const Text* text = object.text();
    const Sequence* sequence = object.sequence();
    const bool has_index =
        sequence != nullptr && (sequence->type == Sequence::Type::list || sequence->type == Sequence::Type::tuple ||
                                sequence->type == Sequence::Type::range);
    const int64_t length = text != nullptr ? static_cast<int64_t>(text->num_characters())
                           : has_index     ? static_cast<int64_t>(sequence->items.size())
                                           : 0;
    if (index < 0) index += length;
    if (index >= 0 && index < length) {
      if (has_index) return sequence->items[static_cast<size_t>(index)];
      spend_steps(text->size() / 256);
      const size_t begin = text->position_of(static_cast<size_t>(index));
      return make(text->part(begin, begin + first_character(std::string_view(text->bytes()).substr(begin)).size));
    }
  }
  if (const Text* name = key.text()) {
    const bool is_dict = object.dict() != nullptr;  // whose keys have been counted
    if (!is_dict || find_method(object, name->bytes()) != MethodKind::none) return attribute(object, name->bytes());
  }
  return missing(object, key);
}

Value Renderer::slice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  check_defined(object);
  const Text* text = object.text();
  const Sequence* sequence = object.sequence();
  const bool has_order = text != nullptr || (sequence != nullptr &&
                                             (sequence->type == Sequence::Type::list || sequence->type == Sequence::Type::tuple ||
                                              sequence->type == Sequence::Type::range));
  if (!has_order) fail("a value of the type '", type_name(object), "' has no slices");
  const int64_t length = static_cast<int64_t>(text != nullptr ? text->num_characters() : sequence->items.size());
  const int64_t by = step.is_none() ? 1 : to_integer(step, "the step of a slice");
  if (by == 0) fail("the step of a slice is 0");
  const int64_t low = by < 0 ? -1 : 0, high = by < 0 ? length - 1 : length;
  const int64_t first = slice_end(begin, length, by < 0 ? length - 1 : 0, low, high);
  const int64_t last = slice_end(end, length, by < 0 ? -1 : length, low, high);
  if (text != nullptr && by == 1) {
    if (first >= last) return make("");
    spend_steps(text->size() / 256);
    return make(text->part(text->position_of(static_cast<size_t>(first)), text->position_of(static_cast<size_t>(last))));
  }
  const std::vector<Value> all = items_of(object);
  std::vector<Value> items;
  for (int64_t i = first; by > 0 ? i < last : i > last;) {
    items.push_back(all[static_cast<size_t>(i)]);
    if (by > 0 ? i > length - by : i < -by) break;  // the next one is outside, and may not even fit
    i += by;
  }
  if (text != nullptr) {
    Builder result(*this);
    for (const Value& item : items) result.append(*item.text());
    return make(result.take());
  }
  return make_list(std::move(items), sequence->type);
}

Value Renderer::binary(std::string_view operation, const Value& a, const Value& b) {
  if (operation == "%" && a.text() != nullptr) return make(format_percent(*this, *a.text(), b));
  check_defined(a);
  check_defined(b);
  if (a.is_number() && b.is_number()) {
    if (a.get_if<double>() != nullptr || b.get_if<double>() != nullptr)
      return real_arithmetic(operation, to_double(a), to_double(b));
    return integer_arithmetic(operation, to_integer(a, "a number"), to_integer(b, "a number"));
  }
  const Text *x = a.text(), *y = b.text();
  if (operation == "+" && x != nullptr && y != nullptr) {
    const bool is_markup = x->is_markup() || y->is_markup();
    Builder sum(*this);
    for (const Text* text : {x, y}) sum.append(is_markup && !text->is_markup() ? html_escaped(*this, *text) : *text);
    Text text = sum.take();
    if (is_markup) text.set_markup();
    return make(std::move(text));
  }
  const auto is_list = [](const Value& value) {
    const Sequence* sequence = value.sequence();
    return sequence != nullptr && (sequence->type == Sequence::Type::list || sequence->type == Sequence::Type::tuple);
  };
  if (operation == "+" && is_list(a) && is_list(b) && a.sequence()->type == b.sequence()->type) {
    std::vector<Value> items = items_of(a);
    for (Value& item : items_of(b)) items.push_back(std::move(item));
    return make_list(std::move(items), a.sequence()->type);
  }
  if (operation == "*" && (b.get_if<int64_t>() != nullptr || b.get_if<bool>() != nullptr) && (x != nullptr || is_list(a))) {
    const int64_t count = to_integer(b, "a number");
    if (x != nullptr) {
      Builder product(*this);
      product.repeat(*x, count);
      return make(product.take());
    }
    std::vector<Value> items;
    for (int64_t i = 0; i < count && !a.sequence()->items.empty(); ++i) {
      step();
      for (Value& item : items_of(a)) items.push_back(std::move(item));
    }
    return make_list(std::move(items), a.sequence()->type);
  }
  if (operation == "*" && (y != nullptr || is_list(b)) && (a.get_if<int64_t>() != nullptr || a.get_if<bool>() != nullptr)) {
    return binary("*", b, a);
  }
  fail("unsupported operand types for ", operation, ": '", type_name(a), "' and '", type_name(b), "'");
}

// ---- Calls ----

Value Renderer::call(const Value& callee, Arguments arguments) {
  const Deeper deeper(*this);
  check_defined(callee);
  if (const Function* function = callee.get_if<Function>()) return call_function(function->name, std::move(arguments));
  if (const auto* method = callee.get_if<std::shared_ptr<const Method>>()) return call_method(*this, **method, arguments);
  if (const auto* macro = callee.get_if<Macro*>()) return call_macro(**macro, std::move(arguments));
  if (const auto* loop = callee.get_if<std::shared_ptr<Loop>>()) return call_loop(**loop, arguments);
  fail("'", type_name(callee), "' is not callable");
}

Value Renderer::call_macro(const Macro& macro, Arguments arguments) {
  const MacroSyntax& syntax = *macro.syntax;
  const auto take_named = [&](const std::string& name) -> std::optional<Value> {
    for (auto named = arguments.named.begin(); named != arguments.named.end(); ++named) {
      if (named->first != name) continue;
      Value value = std::move(named->second);
      arguments.named.erase(named);
      return value;
    }
    return std::nullopt;
  };
  Captured captured(*this, macro.scope);
  for (size_t i = 0; i < syntax.parameters.size(); ++i) {
    const Parameter& parameter = syntax.parameters[i];
    std::optional<Value> named = take_named(parameter.name);
    if (named && i < arguments.values.size()) {
      fail("macro ", in_quotes(syntax.name, 40), " got two values for ", in_quotes(parameter.name, 40));
    }
    if (i < arguments.values.size()) {
      scope_->set(parameter.name, arguments.values[i]);
    } else if (named) {
      scope_->set(parameter.name, std::move(*named));
    } else if (!parameter.default_value.empty()) {
      scope_->set(parameter.name, evaluate(parameter.default_value[0]));
    } else {
      scope_->set(parameter.name, make_undefined(str_cat("parameter ", in_quotes(parameter.name, 40), " was not provided")));
    }
  }
  if (syntax.uses_caller) {
    std::optional<Value> caller = take_named("caller");
    scope_->set("caller", caller ? std::move(*caller) : make_undefined("No caller defined"));
  }
  if (syntax.uses_kwargs) {
    Dict kwargs;
    for (auto& [name, value] : arguments.named) kwargs.set(make(Text(name, true)), std::move(value));
    scope_->set("kwargs", make_dict(std::move(kwargs)));
  } else if (!arguments.named.empty()) {
    fail("macro ", in_quotes(syntax.name, 40), " takes no keyword argument ", in_quotes(arguments.named[0].first, 40));
  }
  std::vector<Value> more;
  for (size_t i = syntax.parameters.size(); i < arguments.values.size(); ++i) more.push_back(arguments.values[i]);
  if (syntax.uses_varargs) {
    scope_->set("varargs", make_list(std::move(more), Sequence::Type::tuple));
  } else if (!more.empty()) {
    fail("macro ", in_quotes(syntax.name, 40), " takes not more than ", syntax.parameters.size(), " arguments");
  }
  run_body(syntax.body);
  return make(std::move(captured.text));
}

Value Renderer::call_function(std::string_view name, Arguments arguments) {
  if (name == "range") return make_range(arguments);
  if (name == "namespace") return make_namespace(arguments);
  if (name == "dict") return make_dict(make_dict_from(arguments));
  const Parameters parameters(name, arguments, {name == "strftime_now" ? "format" : "message"}, 1);
  if (name == "strftime_now") return make(now_as(parameters.text(0)));
  fail(printable(text_of(parameters.value(0)).bytes(), 1000));
}

Value Renderer::make_range(const Arguments& arguments) {
  const Parameters parameters("range", arguments, {"start", "stop", "step"}, 1);
  const bool has_stop = parameters.find(1) != nullptr;
  const int64_t begin = has_stop ? parameters.integer(0, 0) : 0, end = parameters.integer(has_stop ? 1 : 0, 0);
  const int64_t by = parameters.integer(2, 1);
  if (by == 0) fail("the step of range is 0");
  std::vector<Value> items;
  for (int64_t i = begin; by > 0 ? i < end : i > end;) {
    if (items.size() == static_cast<size_t>(kMaxRange)) {
      fail_as(StatusCode::resource_exhausted, "range has more than ", kMaxRange, " items");
    }
    items.push_back({i});
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  spend_steps(items.size());
  return make_list(std::move(items), Sequence::Type::range);
}

Dict Renderer::make_dict_from(const Arguments& arguments) {
  if (arguments.values.size() > 1) fail("dict takes at most one value that has no name");
  Dict dict;
  if (!arguments.values.empty()) {
    const Value& from = arguments.values[0];
    check_defined(from);
    if (const Dict* other = from.dict()) {
      spend_(other->entries().size() * kValueBytes);
      dict = *other;
    } else {
      for (const Value& pair : items_of(from)) {
        std::vector<Value> both = items_of(pair);
        if (both.size() != 2) fail("dict needs pairs: one has ", both.size(), " items");
        spend_(kValueBytes);
        dict.set(std::move(both[0]), std::move(both[1]));
      }
    }
  }
  spend_(arguments.named.size() * kValueBytes);
  for (const auto& [name, value] : arguments.named) dict.set(make(Text(name, true)), value);
  return dict;
}

Value Renderer::make_namespace(const Arguments& arguments) {
  auto space = std::make_unique<Namespace>();
  spend_(kValueBytes);
  const Dict attributes = make_dict_from(arguments);
  for (const Dict::Entry& entry : attributes.entries()) {
    const std::string& name = to_text(entry.key, "an attribute of a namespace").bytes();
    if (name.substr(0, 1) == "_") fail("a namespace has no attributes that begin with _: ", in_quotes(name, 40));
    space->attributes.emplace_back(name, entry.value);
  }
  namespaces_.push_back(std::move(space));
  return {namespaces_.back().get()};
}

std::string Renderer::now_as(const Text& format) const {
  std::tm now = {};
  if (options_.now) {
    now = *options_.now;
  } else {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &now);
  }
  if (format.empty()) return {};
  if (format.size() > 256) fail("the format of strftime_now has ", format.size(), " bytes: at most 256 are supported");
  std::array<char, 4096> buffer;
  const size_t size = std::strftime(buffer.data(), buffer.size(), format.bytes().c_str(), &now);
  return replace_invalid_bytes({buffer.data(), size});
}

Value Renderer::filter(std::string_view name, const Value& input, const Arguments& arguments) {
  const Deeper deeper(*this);
  step();
  return apply_filter(*this, name, input, arguments);
}

bool Renderer::test(std::string_view name, const Value& input, const Arguments& arguments) {
  const Deeper deeper(*this);
  step();
  return apply_test(*this, name, input, arguments);
}

// ---- Template ----

Template::Template(std::vector<Statement> body) : body_(std::make_shared<const std::vector<Statement>>(std::move(body))) {}

Result<Template> Template::parse(std::string_view source) {
  return catch_out_of_memory([&]() -> Result<Template> {
    if (source.size() > kMaxSourceBytes) {
      return unsupported("the template has ", source.size(), " bytes: at most ", kMaxSourceBytes, " are supported");
    }
    try {
      return Template(jinja::parse(replace_invalid_bytes(source)));
    } catch (const Failure& failure) {
      return Status(failure.code, failure.message);
    }
  });
}

Result<Text> Template::render(const Variables& variables, const RenderOptions& options) const {
  return catch_out_of_memory([&]() -> Result<Text> {
    Renderer renderer(options);
    try {
      return renderer.run(*body_, variables);
    } catch (const Failure& failure) {
      return Status(failure.code, at_line(renderer.line()) + failure.message);
    }
  });
}

}  // namespace prologue::jinja
