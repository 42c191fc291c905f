// Cuts a template into tokens, with trim_blocks and lstrip_blocks as `transformers` sets them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace prologue::jinja {

struct Token {
  enum class Type { text, output_begin, output_end, block_begin, block_end, name, string, integer, real, symbol, end };
  Type type = Type::end;
  std::string text;  // of a string: its value; of a number: its digits
  int line = 1;
};

// Throws Failure: the line, and what is wrong. `source` is valid UTF-8.
std::vector<Token> split_into_tokens(std::string_view source);

// Returns "line 3: ", as the errors of a template begin.
std::string at_line(int line);

}  // namespace prologue::jinja
