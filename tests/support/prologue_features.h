// This file lists what the prologue can do, as docs/features.md shows it: each row with the cases that prove it.
// attention_prologue_features_test runs them on every backend and in every type, and holds the page to the table made from them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/prologue_case.h"

namespace prologue::test {

struct PrologueFeature {
  const char* name;                                         // of the test
  const char* measured;                                     // the row of bench_attention_prologue that has it
  const char* text;                                         // on the page
  std::vector<std::pair<std::string, PrologueCase>> cases;  // with what the page calls them; those of one name run in one kernel
};

const std::vector<PrologueFeature>& prologue_features();

// Returns the matrix as Markdown.
std::string prologue_feature_table();

}  // namespace prologue::test
