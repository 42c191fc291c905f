// A template is a tree of these.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <prologue/engine/template/value.h>

namespace prologue::jinja {

struct Expression;

struct Argument {
  enum class Kind { positional, keyword, list, dict };  // x, name=x, *x, **x
  Kind kind = Kind::positional;
  std::string name = {};
  std::vector<Expression> value;  // one
};

struct Expression {
  enum class Kind {
    constant,
    name,
    list,
    tuple,
    dict,       // key, value, key, value, ...
    attribute,  // operands[0].name
    item,       // operands[0][operands[1]]
    slice,      // three operands: begin, end, step
    negative,
    positive,
    not_,
    and_,  // n operands
    or_,
    arithmetic,  // n operands from left to right, with an operator before each but the first
    comparison,  // likewise: a < b < c
    concatenation,
    condition,            // operands[1] if operands[0] else operands[2], which may be missing
    call,                 // operands[0](arguments)
    filter,               // operands[0] | name(arguments)
    test,                 // operands[0] is name(arguments)
    body,                 // what a filter block filters
    namespace_attribute,  // name.attribute: only as the target of an assignment
  };
  Kind kind = Kind::constant;
  int line = 0;
  int depth = 1;  // of the tree
  std::string name = {};
  std::string attribute = {};
  Value constant = {};
  std::vector<Expression> operands = {};
  std::vector<std::string> operators = {};
  std::vector<Argument> arguments = {};
};

struct Statement;

struct Parameter {
  std::string name = {};
  std::vector<Expression> default_value;  // one, or none
};

// Describes a macro, or the body of a call block.
struct MacroSyntax {
  std::string name = {};
  std::vector<Parameter> parameters;
  std::vector<Statement> body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Branch {
  Expression condition;
  std::vector<Statement> body;
};

struct Statement {
  enum class Kind {
    text,
    output,
    for_,
    if_,
    set,
    set_block,
    with,
    macro,
    call,
    filter,
    scope,  // a block of the template, or of text that the model generated
    break_,
    continue_,
  };
  Kind kind = Kind::text;
  int line = 0;
  std::string text = {};
  std::vector<Expression> expressions =
      {};                                // output: what is written; for_: the items, and the condition of each, if there is one
  std::vector<Expression> targets = {};  // for_, set, with: what is assigned
  std::vector<Branch> branches = {};     // if_
  std::vector<Statement> body = {};
  std::vector<Statement> otherwise = {};  // of if_ and for_
  std::shared_ptr<const MacroSyntax> macro = {};
  bool recursive = false;  // for_
};

}  // namespace prologue::jinja
