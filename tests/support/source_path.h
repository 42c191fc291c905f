// Where the sources are: tests read goldens, the README and the tree itself from there.
#pragma once

#include <string>

namespace prologue::test {

// Returns the path of a file or folder in the source tree; `relative` starts at its top: "tests/golden/x.txt".
std::string source_path(const std::string& relative);

}  // namespace prologue::test
