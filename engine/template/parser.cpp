#include <prologue/engine/template/parser.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/template/failure.h>
#include <prologue/engine/template/lexer.h>

namespace prologue::jinja {
namespace {

using Type = Token::Type;
using Kind = Expression::Kind;

std::string described(const Token& token) {
  switch (token.type) {
    case Type::text: return "text";
    case Type::output_begin: return "'{{'";
    case Type::output_end: return "'}}'";
    case Type::block_begin: return "'{%'";
    case Type::block_end: return "'%}'";
    case Type::end: return "the end of the template";
    default: return in_quotes(token.text, 40);
  }
}

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(split_into_tokens(source)) {}

  std::vector<Statement> run() {
    std::vector<Statement> body = statements({});
    if (current().type != Type::end) fail_at(current(), "unexpected ", described(current()));
    return body;
  }

 private:
  // Counts how deep the parser is in blocks or expressions.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser.level_ > kMaxSyntaxDepth) {
        parser.fail_at(parser.current(), "blocks and expressions are nested more than ", kMaxSyntaxDepth, " deep");
      }
    }
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  template <class... Parts>
  [[noreturn]] void fail_at(const Token& token, const Parts&... parts) const {
    fail_as(StatusCode::data_loss, at_line(token.line), parts...);
  }

  // ---- Tokens ----

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is_name(std::string_view name) const { return current().type == Type::name && current().text == name; }
  bool is_symbol(std::string_view symbol) const { return current().type == Type::symbol && current().text == symbol; }
  bool take_name(std::string_view name) {
    const bool found = is_name(name);
    if (found) take();
    return found;
  }
  bool take_symbol(std::string_view symbol) {
    const bool found = is_symbol(symbol);
    if (found) take();
    return found;
  }
  void expect_symbol(std::string_view symbol) {
    if (!take_symbol(symbol)) fail_at(current(), "expected '", symbol, "', found ", described(current()));
  }
  Token expect(Type type, const char* what) {
    if (current().type != type) fail_at(current(), "expected ", what, ", found ", described(current()));
    return take();
  }
  std::string expect_name(const char* what) { return expect(Type::name, what).text; }

  // ---- Statements ----

  // Parses up to a block that begins with one of `ends`, whose name is the current token then.
  std::vector<Statement> statements(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    std::vector<Statement> body;
    while (current().type != Type::end) {
      const Token token = take();
      if (token.type == Type::text) {
        body.push_back({.kind = Statement::Kind::text, .line = token.line, .text = token.text});
      } else if (token.type == Type::output_begin) {
        Statement output{.kind = Statement::Kind::output, .line = token.line};
        output.expressions.push_back(expression_list());
        expect(Type::output_end, "'}}'");
        body.push_back(std::move(output));
      } else {
        if (current().type == Type::name && std::find(ends.begin(), ends.end(), current().text) != ends.end()) return body;
        body.push_back(statement());
        expect(Type::block_end, "'%}'");
      }
    }
    if (ends.size() > 0) fail_at(current(), "the template ends before {% ", *(ends.end() - 1), " %}");
    return body;
  }

  std::vector<Statement> block(std::initializer_list<std::string_view> ends) {
    take_symbol(":");
    expect(Type::block_end, "'%}'");
    return statements(ends);
  }
  std::vector<Statement> whole_block(std::string_view end) {
    std::vector<Statement> body = block({end});
    take();
    return body;
  }

  Statement statement() {
    const Token tag = expect(Type::name, "the name of a tag");
    Statement result{.line = tag.line};
    const std::string& name = tag.text;
    if (name == "for") {
      parse_for(result);
    } else if (name == "if") {
      parse_if(result);
    } else if (name == "set") {
      parse_set(result);
    } else if (name == "with") {
      parse_with(result);
    } else if (name == "macro") {
      parse_macro(result);
    } else if (name == "call") {
      parse_call_block(result);
    } else if (name == "filter") {
      result.kind = Statement::Kind::filter;
      result.expressions.push_back(filters({.kind = Kind::body, .line = tag.line}, /*first_is_open=*/true));
      result.body = whole_block("endfilter");
    } else if (name == "print") {
      result.kind = Statement::Kind::output;
      while (current().type != Type::block_end) {
        if (!result.expressions.empty()) expect_symbol(",");
        result.expressions.push_back(expression());
      }
    } else if (name == "break" || name == "continue") {
      if (num_loops_ == 0) fail_at(tag, "{% ", name, " %} is not in a loop");
      result.kind = name == "break" ? Statement::Kind::break_ : Statement::Kind::continue_;
    } else if (name == "generation") {
      result.kind = Statement::Kind::scope;
      const int loops = std::exchange(num_loops_, 0);
      result.body = whole_block("endgeneration");
      num_loops_ = loops;
    } else if (name == "block") {
      result.kind = Statement::Kind::scope;
      const std::string block_name = expect_name("the name of a block");
      take_name("scoped");
      result.body = whole_block("endblock");
      take_name(block_name);
    } else if (name == "autoescape") {
      result.kind = Statement::Kind::scope;
      expression();
      result.body = whole_block("endautoescape");
    } else if (name == "include" || name == "import" || name == "from" || name == "extends") {
      fail_as(StatusCode::unsupported, at_line(tag.line), "{% ", name, " %} needs other templates, which a model does not have");
    } else {
      fail_at(tag, "unknown tag ", in_quotes(name, 40));
    }
    return result;
  }

  void parse_for(Statement& result) {
    result.kind = Statement::Kind::for_;
    result.targets.push_back(target_list({"in"}, false));
    if (!take_name("in")) fail_at(current(), "expected 'in', found ", described(current()));
    result.expressions.push_back(tuple(/*with_condition=*/false, {"recursive"}, false));
    if (take_name("if")) result.expressions.push_back(expression());
    result.recursive = take_name("recursive");
    ++num_loops_;
    result.body = block({"else", "endfor"});
    --num_loops_;
    if (take().text == "else") result.otherwise = whole_block("endfor");
  }

  void parse_if(Statement& result) {
    result.kind = Statement::Kind::if_;
    for (;;) {
      Expression condition = tuple(/*with_condition=*/false, {}, false);
      std::vector<Statement> body = block({"elif", "else", "endif"});
      result.branches.push_back({std::move(condition), std::move(body)});
      const Token end = take();
      if (end.text == "elif") continue;
      if (end.text == "else") result.otherwise = whole_block("endif");
      return;
    }
  }

  void parse_set(Statement& result) {
    result.targets.push_back(target_list({}, true));
    if (take_symbol("=")) {
      result.kind = Statement::Kind::set;
      result.expressions.push_back(expression_list());
      return;
    }
    result.kind = Statement::Kind::set_block;
    result.expressions.push_back(filters({.kind = Kind::body, .line = result.line}, false));
    result.body = whole_block("endset");
  }

  void parse_with(Statement& result) {
    result.kind = Statement::Kind::with;
    while (current().type != Type::block_end) {
      if (!result.targets.empty()) expect_symbol(",");
      result.targets.push_back(target_list({}, false));
      expect_symbol("=");
      result.expressions.push_back(expression());
    }
    result.body = whole_block("endwith");
  }

  void parse_signature(MacroSyntax& macro) {
    expect_symbol("(");
    while (!is_symbol(")")) {
      if (!macro.parameters.empty()) expect_symbol(",");
      const Token name = expect(Type::name, "the name of a parameter");
      Parameter parameter{name.text, {}};
      if (take_symbol("=")) {
        parameter.default_value.push_back(expression());
      } else if (!macro.parameters.empty() && !macro.parameters.back().default_value.empty()) {
        fail_at(name, "a parameter without a default follows one with a default");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    expect_symbol(")");
  }

  void parse_macro_body(MacroSyntax& macro, std::string_view end) {
    macros_.push_back(&macro);
    const int loops = std::exchange(num_loops_, 0);
    macro.body = whole_block(end);
    num_loops_ = loops;
    macros_.pop_back();
  }

  void parse_macro(Statement& result) {
    result.kind = Statement::Kind::macro;
    auto macro = std::make_shared<MacroSyntax>();
    macro->name = expect_name("the name of a macro");
    parse_signature(*macro);
    parse_macro_body(*macro, "endmacro");
    result.macro = std::move(macro);
  }

  void parse_call_block(Statement& result) {
    result.kind = Statement::Kind::call;
    auto macro = std::make_shared<MacroSyntax>();
    macro->name = "caller";
    if (is_symbol("(")) parse_signature(*macro);
    result.expressions.push_back(expression());
    if (result.expressions[0].kind != Kind::call) fail_at(current(), "a call block needs a call");
    parse_macro_body(*macro, "endcall");
    result.macro = std::move(macro);
  }

  // ---- Targets of assignments ----

  // Parses a name, several names with commas, or with_attributes: name.attribute.
  Expression target_list(std::initializer_list<std::string_view> ends, bool with_attributes) {
    const Level level(*this);
    const Token begin = current();
    std::vector<Expression> targets;
    bool is_tuple = false;
    while (!ends_tuple(ends)) {
      if (!targets.empty()) {
        if (!take_symbol(",")) break;
        is_tuple = true;
        if (ends_tuple(ends) || is_symbol("=")) break;
      }
      targets.push_back(target(with_attributes));
    }
    if (targets.empty()) fail_at(begin, "expected a name to assign to, found ", described(begin));
    if (!is_tuple) return std::move(targets[0]);
    return with_depth({.kind = Kind::tuple, .line = begin.line, .operands = std::move(targets)});
  }

  Expression target(bool with_attributes) {
    if (take_symbol("(")) {
      Expression inner = target_list({}, with_attributes);
      expect_symbol(")");
      return inner;
    }
    const Token token = expect(Type::name, "a name to assign to");
    for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
      if (token.text == reserved) fail_at(token, "cannot assign to ", reserved);
    }
    if (with_attributes && take_symbol(".")) {
      return {
          .kind = Kind::namespace_attribute, .line = token.line, .name = token.text, .attribute = expect_name("an attribute")};
    }
    return {.kind = Kind::name, .line = token.line, .name = token.text};
  }

  // ---- Expressions, from the weakest operator to the strongest ----

  // Sets the depth of the tree, which bounds all that walks through it.
  Expression with_depth(Expression made) const {
    int depth = 0;
    for (const Expression& operand : made.operands) depth = std::max(depth, operand.depth);
    for (const Argument& argument : made.arguments) depth = std::max(depth, argument.value[0].depth);
    made.depth = depth + 1;
    if (made.depth > kMaxSyntaxDepth) fail_at(current(), "an expression is nested more than ", kMaxSyntaxDepth, " deep");
    return made;
  }
  Expression made(Kind kind, int line, std::vector<Expression> operands) const {
    return with_depth({.kind = kind, .line = line, .operands = std::move(operands)});
  }
  template <class... Operands>
  static std::vector<Expression> list_of(Operands... operands) {
    std::vector<Expression> list;
    (list.push_back(std::move(operands)), ...);
    return list;
  }

  bool ends_tuple(std::initializer_list<std::string_view> ends) const {
    if (current().type == Type::output_end || current().type == Type::block_end || is_symbol(")")) return true;
    return current().type == Type::name && std::find(ends.begin(), ends.end(), current().text) != ends.end();
  }

  Expression tuple(bool with_condition, std::initializer_list<std::string_view> ends, bool may_be_empty) {
    const Token begin = current();
    std::vector<Expression> items;
    bool is_tuple = false;
    for (;;) {
      if (!items.empty()) expect_symbol(",");
      if (ends_tuple(ends)) break;
      items.push_back(with_condition ? expression() : or_expression());
      if (!is_symbol(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (!items.empty()) return std::move(items[0]);
      if (!may_be_empty) fail_at(current(), "expected an expression, found ", described(current()));
    }
    return made(Kind::tuple, begin.line, std::move(items));
  }
  Expression expression_list() { return tuple(true, {}, false); }

  Expression expression() {
    const Level level(*this);
    const int line = current().line;
    Expression result = or_expression();
    while (take_name("if")) {
      std::vector<Expression> operands = list_of(or_expression(), std::move(result));
      if (take_name("else")) operands.push_back(expression());
      result = made(Kind::condition, line, std::move(operands));
    }
    return result;
  }

  Expression or_expression() {
    const int line = current().line;
    std::vector<Expression> operands = list_of(and_expression());
    while (take_name("or")) operands.push_back(and_expression());
    return operands.size() == 1 ? std::move(operands[0]) : made(Kind::or_, line, std::move(operands));
  }

  Expression and_expression() {
    const int line = current().line;
    std::vector<Expression> operands = list_of(not_expression());
    while (take_name("and")) operands.push_back(not_expression());
    return operands.size() == 1 ? std::move(operands[0]) : made(Kind::and_, line, std::move(operands));
  }

  Expression not_expression() {
    if (!is_name("not")) return comparison();
    const Level level(*this);
    const int line = take().line;
    return made(Kind::not_, line, list_of(not_expression()));
  }

  Expression comparison() {
    const int line = current().line;
    std::vector<Expression> operands = list_of(sum());
    std::vector<std::string> operators;
    for (;;) {
      if (current().type == Type::symbol &&
          (is_symbol("==") || is_symbol("!=") || is_symbol("<") || is_symbol("<=") || is_symbol(">") || is_symbol(">="))) {
        operators.push_back(take().text);
      } else if (take_name("in")) {
        operators.emplace_back("in");
      } else if (is_name("not") && following().type == Type::name && following().text == "in") {
        take();
        take();
        operators.emplace_back("not in");
      } else {
        break;
      }
      operands.push_back(sum());
    }
    if (operators.empty()) return std::move(operands[0]);
    Expression result = made(Kind::comparison, line, std::move(operands));
    result.operators = std::move(operators);
    return result;
  }

  template <class Operand>
  Expression chain(std::initializer_list<std::string_view> symbols, const Operand& operand) {
    const int line = current().line;
    std::vector<Expression> operands = list_of(operand());
    std::vector<std::string> operators;
    while (current().type == Type::symbol && std::find(symbols.begin(), symbols.end(), current().text) != symbols.end()) {
      operators.push_back(take().text);
      operands.push_back(operand());
    }
    if (operators.empty()) return std::move(operands[0]);
    Expression result = made(Kind::arithmetic, line, std::move(operands));
    result.operators = std::move(operators);
    return result;
  }

  Expression sum() {
    return chain({"+", "-"}, [&] { return concatenation(); });
  }

  Expression concatenation() {
    const int line = current().line;
    std::vector<Expression> operands = list_of(product());
    while (take_symbol("~")) operands.push_back(product());
    return operands.size() == 1 ? std::move(operands[0]) : made(Kind::concatenation, line, std::move(operands));
  }

  Expression product() {
    return chain({"*", "/", "//", "%"}, [&] { return chain({"**"}, [&] { return unary(true); }); });
  }

  Expression unary(bool with_filters) {
    const Level level(*this);
    const int line = current().line;
    Expression result;
    if (is_symbol("-") || is_symbol("+")) {
      const Kind kind = take().text == "-" ? Kind::negative : Kind::positive;
      result = made(kind, line, list_of(unary(false)));
    } else {
      result = primary();
    }
    result = postfix(std::move(result));
    if (!with_filters) return result;
    for (;;) {
      if (is_symbol("|")) {
        result = filters(std::move(result), false);
      } else if (is_name("is")) {
        result = test(std::move(result));
      } else if (is_symbol("(")) {
        result = call(std::move(result));
      } else {
        return result;
      }
    }
  }

  Expression constant(int line, Value value) const {
    return {.kind = Kind::constant, .line = line, .constant = std::move(value)};
  }

  Expression primary() {
    const Token token = take();
    switch (token.type) {
      case Type::name: return name(token);
      case Type::string: {
        std::string text = token.text;
        while (current().type == Type::string) text += take().text;
        return constant(token.line, make_text(text));
      }
      case Type::integer: return constant(token.line, {integer(token)});
      case Type::real: return constant(token.line, {std::strtod(token.text.c_str(), nullptr)});
      default: break;
    }
    if (token.type == Type::symbol && token.text == "(") {
      Expression result = tuple(true, {}, /*may_be_empty=*/true);
      expect_symbol(")");
      return result;
    }
    if (token.type == Type::symbol && token.text == "[") return list(token);
    if (token.type == Type::symbol && token.text == "{") return dict(token);
    fail_at(token, "expected an expression, found ", described(token));
  }

  Expression name(const Token& token) {
    if (token.text == "true" || token.text == "True") return constant(token.line, {true});
    if (token.text == "false" || token.text == "False") return constant(token.line, {false});
    if (token.text == "none" || token.text == "None") return constant(token.line, {None{}});
    for (MacroSyntax* macro : macros_) {
      if (token.text == "varargs") macro->uses_varargs = true;
      if (token.text == "kwargs") macro->uses_kwargs = true;
      if (token.text == "caller") macro->uses_caller = true;
    }
    return {.kind = Kind::name, .line = token.line, .name = token.text};
  }

  int64_t integer(const Token& token) const {
    const std::string& digits = token.text;
    const bool has_prefix = digits.size() > 1 && digits[0] == '0' && (digits[1] < '0' || digits[1] > '9');
    const char prefix = has_prefix ? static_cast<char>(digits[1] | 0x20) : '\0';
    const uint64_t base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    if (!has_prefix && digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos) {
      fail_at(token, "the number ", in_quotes(digits, 40), " begins with 0");
    }
    uint64_t value = 0;
    for (const char byte : std::string_view(digits).substr(has_prefix ? 2 : 0)) {
      const uint64_t digit = static_cast<uint64_t>(byte <= '9' ? byte - '0' : (byte | 0x20) - 'a' + 10);
      if (digit >= base) fail_at(token, "the number ", in_quotes(digits, 40), " has the digit '", byte, "'");
      if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value) ||
          value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail_as(StatusCode::unsupported, at_line(token.line), "the number ", in_quotes(digits, 40), " does not fit in 64 bits");
      }
    }
    return static_cast<int64_t>(value);
  }

  Expression list(const Token& begin) {
    std::vector<Expression> items;
    while (!is_symbol("]")) {
      if (!items.empty()) expect_symbol(",");
      if (is_symbol("]")) break;
      items.push_back(expression());
    }
    expect_symbol("]");
    return made(Kind::list, begin.line, std::move(items));
  }

  Expression dict(const Token& begin) {
    std::vector<Expression> items;
    while (!is_symbol("}")) {
      if (!items.empty()) expect_symbol(",");
      if (is_symbol("}")) break;
      items.push_back(expression());
      expect_symbol(":");
      items.push_back(expression());
    }
    expect_symbol("}");
    return made(Kind::dict, begin.line, std::move(items));
  }

  Expression postfix(Expression result) {
    for (;;) {
      if (is_symbol(".")) {
        const Token dot = take();
        const Token attribute = take();
        if (attribute.type == Type::name) {
          result = made(Kind::attribute, dot.line, list_of(std::move(result)));
          result.name = attribute.text;
        } else if (attribute.type == Type::integer) {
          result = made(Kind::item, dot.line, list_of(std::move(result), constant(dot.line, {integer(attribute)})));
        } else {
          fail_at(attribute, "expected a name or a number after '.', found ", described(attribute));
        }
      } else if (is_symbol("[")) {
        result = subscript(std::move(result));
      } else if (is_symbol("(")) {
        result = call(std::move(result));
      } else {
        return result;
      }
    }
  }

  Expression subscript(Expression object) {
    const int line = take().line;
    std::vector<Expression> keys;
    while (!is_symbol("]")) {
      if (!keys.empty()) expect_symbol(",");
      keys.push_back(key());
    }
    expect_symbol("]");
    Expression whole = keys.size() == 1 ? std::move(keys[0]) : made(Kind::tuple, line, std::move(keys));
    return made(Kind::item, line, list_of(std::move(object), std::move(whole)));
  }

  // Parses a key, or a slice begin:end:step.
  Expression key() {
    const int line = current().line;
    const auto part = [&] {
      return is_symbol(":") || is_symbol("]") || is_symbol(",") ? constant(line, {None{}}) : expression();
    };
    Expression begin = part();
    if (!take_symbol(":")) return begin;
    Expression end = part();
    Expression step = take_symbol(":") ? part() : constant(line, {None{}});
    return made(Kind::slice, line, list_of(std::move(begin), std::move(end), std::move(step)));
  }

  std::vector<Argument> call_arguments() {
    const Token begin = current();
    expect_symbol("(");
    std::vector<Argument> arguments;
    const auto has = [&](Argument::Kind kind) {
      return std::any_of(arguments.begin(), arguments.end(), [&](const Argument& a) { return a.kind == kind; });
    };
    using AKind = Argument::Kind;
    while (!is_symbol(")")) {
      if (!arguments.empty()) {
        expect_symbol(",");
        if (is_symbol(")")) break;
      }
      Argument argument;
      bool valid = !has(AKind::dict);
      if (take_symbol("*")) {
        argument.kind = AKind::list;
        valid = valid && !has(AKind::list);
      } else if (take_symbol("**")) {
        argument.kind = AKind::dict;
      } else if (current().type == Type::name && following().type == Type::symbol && following().text == "=") {
        argument.kind = AKind::keyword;
        argument.name = take().text;
        take();
      } else {
        valid = valid && !has(AKind::list) && !has(AKind::keyword);
      }
      if (!valid) fail_at(begin, "the arguments of a call are not in order: values, then names, then * and **");
      argument.value.push_back(expression());
      arguments.push_back(std::move(argument));
    }
    expect_symbol(")");
    return arguments;
  }

  Expression call(Expression callee) {
    const int line = current().line;
    Expression result{.kind = Kind::call, .line = line, .operands = list_of(std::move(callee))};
    result.arguments = call_arguments();
    return with_depth(std::move(result));
  }

  std::string dotted_name(const char* what) {
    std::string name = expect_name(what);
    while (take_symbol(".")) name += "." + expect_name(what);
    return name;
  }

  // first_is_open: the first filter has no | before it.
  Expression filters(Expression input, bool first_is_open) {
    while (first_is_open || is_symbol("|")) {
      if (!first_is_open) take();
      first_is_open = false;
      Expression result{.kind = Kind::filter, .line = current().line, .operands = list_of(std::move(input))};
      result.name = dotted_name("the name of a filter");
      if (is_symbol("(")) result.arguments = call_arguments();
      input = with_depth(std::move(result));
    }
    return input;
  }

  Expression test(Expression input) {
    const int line = take().line;
    const bool negated = take_name("not");
    Expression result{.kind = Kind::test, .line = line, .operands = list_of(std::move(input))};
    result.name = dotted_name("the name of a test");
    const bool begins_argument = current().type == Type::string || current().type == Type::integer ||
                                 current().type == Type::real || is_symbol("[") || is_symbol("{") ||
                                 (current().type == Type::name && !is_name("else") && !is_name("or") && !is_name("and"));
    if (is_symbol("(")) {
      result.arguments = call_arguments();
    } else if (begins_argument) {
      if (is_name("is")) fail_at(current(), "tests cannot follow each other with 'is'");
      Argument argument;
      argument.value.push_back(postfix(primary()));
      result.arguments.push_back(std::move(argument));
    }
    result = with_depth(std::move(result));
    return negated ? made(Kind::not_, line, list_of(std::move(result))) : result;
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
  int num_loops_ = 0;                 // round the current statement
  std::vector<MacroSyntax*> macros_;  // likewise
};

}  // namespace

std::vector<Statement> parse(std::string_view source) { return Parser(source).run(); }

}  // namespace prologue::jinja
