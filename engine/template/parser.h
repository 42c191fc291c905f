// Makes the tree of a template.
#pragma once

#include <string_view>
#include <vector>

#include <prologue/engine/template/syntax.h>

namespace prologue::jinja {

inline constexpr int kMaxSyntaxDepth = 120;  // of expressions, and of blocks

// Throws Failure: the line, and what is wrong. `source` is valid UTF-8.
std::vector<Statement> parse(std::string_view source);

}  // namespace prologue::jinja
