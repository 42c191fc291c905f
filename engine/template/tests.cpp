// This file has the tests of jinja2: what follows "is".
#include <algorithm>
#include <array>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/template/characters.h>
#include <prologue/engine/template/failure.h>
#include <prologue/engine/template/renderer.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue::jinja {
namespace {

// Every letter that has a case is in this one, and there is one: str.islower(), str.isupper().
bool has_case(const Text& text, bool (*wanted)(char32_t), bool (*other)(char32_t)) {
  bool any = false;
  for (std::string_view rest = text.bytes(); !rest.empty();) {
    const Character c = first_character(rest);
    if (other(c.code_point)) return false;
    any = any || wanted(c.code_point);
    rest.remove_prefix(c.size);
  }
  return any;
}

bool is_sequence(const Value& value) {
  if (value.text() != nullptr || value.dict() != nullptr || value.is_undefined()) return true;
  const Sequence* sequence = value.sequence();
  return sequence != nullptr && (sequence->type == Sequence::Type::list || sequence->type == Sequence::Type::tuple ||
                                 sequence->type == Sequence::Type::range);
}

bool is_iterable(const Value& value) {
  return value.text() != nullptr || value.dict() != nullptr || value.sequence() != nullptr || value.is_undefined() ||
         value.get_if<std::shared_ptr<Loop>>() != nullptr;
}

bool is_callable(const Value& value) {
  return value.get_if<Function>() != nullptr || value.get_if<Macro*>() != nullptr ||
         value.get_if<std::shared_ptr<const Method>>() != nullptr || value.get_if<std::shared_ptr<Loop>>() != nullptr ||
         value.is_undefined();
}

bool is_same(const Value& a, const Value& b) {
  if (a.data.index() != b.data.index()) return false;
  if (const auto* text = a.get_if<std::shared_ptr<const Text>>()) return *text == *b.get_if<std::shared_ptr<const Text>>();
  if (a.sequence() != nullptr) return a.sequence() == b.sequence();
  if (a.dict() != nullptr) return a.dict() == b.dict();
  return equals(a, b, [](size_t) {});
}

// These tests compare the order of two values, under all of their names.
struct OrderTest {
  std::string_view name;
  const char* operation;
};
constexpr std::array kOrderTests = {
    OrderTest{"==", "=="}, OrderTest{"eq", "=="}, OrderTest{"equalto", "=="},    OrderTest{"!=", "!="}, OrderTest{"ne", "!="},
    OrderTest{">", ">"},   OrderTest{"gt", ">"},  OrderTest{"greaterthan", ">"}, OrderTest{">=", ">="}, OrderTest{"ge", ">="},
    OrderTest{"<", "<"},   OrderTest{"lt", "<"},  OrderTest{"lessthan", "<"},    OrderTest{"<=", "<="}, OrderTest{"le", "<="}};

const OrderTest* find_order_test(std::string_view name) {
  const auto found = std::find_if(kOrderTests.begin(), kOrderTests.end(), [&](const OrderTest& t) { return t.name == name; });
  return found == kOrderTests.end() ? nullptr : &*found;
}

bool apply_order_test(Renderer& renderer, const OrderTest& test, const Value& a, const Arguments& arguments) {
  const Parameters parameters(test.name, arguments, {"other"}, 1);
  const std::string_view operation = test.operation;
  const Value& b = parameters.value(0);
  if (operation == "==" || operation == "!=") return equals(a, b, renderer.spend()) == (operation == "==");
  const int order = compare(a, b, test.operation, renderer.spend());
  return operation == ">" ? order > 0 : operation == ">=" ? order >= 0 : operation == "<" ? order < 0 : order <= 0;
}

constexpr std::array<std::string_view, 24> kTests = {"boolean",  "callable", "defined", "divisibleby", "escaped",   "even",
                                                     "false",    "filter",   "float",   "in",          "integer",   "iterable",
                                                     "lower",    "mapping",  "none",    "number",      "odd",       "sameas",
                                                     "sequence", "string",   "test",    "true",        "undefined", "upper"};

int64_t whole(const Value& value, std::string_view name) { return to_integer(value, str_cat("the input of the test ", name)); }

}  // namespace

bool is_test(std::string_view name) {
  return find_order_test(name) != nullptr || std::find(kTests.begin(), kTests.end(), name) != kTests.end();
}

bool apply_test(Renderer& renderer, std::string_view name, const Value& input, const Arguments& arguments) {
  if (const OrderTest* test = find_order_test(name)) return apply_order_test(renderer, *test, input, arguments);
  if (!is_test(name)) fail_as(StatusCode::unsupported, "there is no test ", in_quotes(name, 40));
  if (name == "in") return renderer.contains(Parameters(name, arguments, {"seq"}, 1).value(0), input);
  if (name == "sameas") return is_same(input, Parameters(name, arguments, {"other"}, 1).value(0));
  if (name == "divisibleby") {
    const Value rest = renderer.binary("%", input, Parameters(name, arguments, {"num"}, 1).value(0));
    return !is_true(rest);
  }
  const Parameters none(name, arguments, {});
  if (name == "defined") return !input.is_undefined();
  if (name == "undefined") return input.is_undefined();
  if (name == "none") return input.is_none();
  if (name == "string") return input.text() != nullptr;
  if (name == "mapping") return input.dict() != nullptr;
  if (name == "sequence") return is_sequence(input);
  if (name == "iterable") return is_iterable(input);
  if (name == "number") return input.is_number();
  if (name == "boolean") return input.get_if<bool>() != nullptr;
  if (name == "integer") return input.get_if<int64_t>() != nullptr;
  if (name == "float") return input.get_if<double>() != nullptr;
  if (name == "true") return input.get_if<bool>() != nullptr && *input.get_if<bool>();
  if (name == "false") return input.get_if<bool>() != nullptr && !*input.get_if<bool>();
  if (name == "callable") return is_callable(input);
  if (name == "escaped") return input.text() != nullptr && input.text()->is_markup();
  if (name == "lower") return has_case(renderer.text_of(input), is_lower, is_upper);
  if (name == "upper") return has_case(renderer.text_of(input), is_upper, is_lower);
  if (name == "filter") return input.text() != nullptr && is_filter(input.text()->bytes());
  if (name == "test") return input.text() != nullptr && is_test(input.text()->bytes());
  if (const double* real = input.get_if<double>()) {
    const Value rest = renderer.binary("%", {*real}, {int64_t{2}});
    return *rest.get_if<double>() == (name == "odd" ? 1.0 : 0.0);
  }
  return (whole(input, name) % 2 != 0) == (name == "odd");
}

}  // namespace prologue::jinja
