// What the prologue can do, as the README's matrix shows it: each row with the cases that prove it.
// attention_prologue_features_test runs them on every backend and in every type, and holds the README to the table made from
// them.
#pragma once

#include <string>
#include <vector>

#include "tests/support/prologue_case.h"

namespace prologue::test {

struct PrologueFeature {
  const char* name;  // of the test
  const char* text;  // in the README
  std::vector<PrologueCase> cases;
};

const std::vector<PrologueFeature>& prologue_features();

// The matrix as Markdown.
std::string prologue_feature_table();

}  // namespace prologue::test
