#include "tests/support/source_path.h"

namespace prologue::test {

std::string source_path(const std::string& relative) { return std::string(PROLOGUE_SOURCE_DIR "/") + relative; }

}  // namespace prologue::test
