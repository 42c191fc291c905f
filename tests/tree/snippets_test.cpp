// Code on a page is code that is compiled. A page marks a block with
//   <!-- snippet: PATH NAME -->
// and the block after it must be what PATH holds between "// snippet: NAME" and "// end snippet", less the indentation. (In Python the
// markers begin with #.)
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/source_path.h"

namespace {

namespace fs = std::filesystem;

// The lines between the markers in a source; empty where there are none.
std::string snippet(std::istream& source, const std::string& name) {
  std::string text;
  size_t indentation = std::string::npos;
  for (std::string line; std::getline(source, line);) {
    const size_t first = line.find_first_not_of(' ');
    const std::string code = first == std::string::npos ? "" : line.substr(first);
    if ((code == "// end snippet" || code == "# end snippet") && indentation != std::string::npos) return text;
    if (indentation != std::string::npos) text += (code.empty() ? "" : line.substr(std::min(first, indentation))) + "\n";
    if (code == "// snippet: " + name || code == "# snippet: " + name) indentation = first;
  }
  return {};
}

// What follows the marker on a page, without its fence.
std::string fenced(std::istream& page) {
  std::string line, text;
  if (!std::getline(page, line) || (line != "```cpp" && line != "```c" && line != "```python")) return {};
  while (std::getline(page, line) && line != "```") text += line + "\n";
  return text;
}

TEST(Tree, SnippetsOnPagesAreTheSources) {
  const fs::path root = prologue::test::source_path(".");
  std::vector<fs::path> pages = {root / "README.md"};
  for (const auto& entry : fs::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  int in_readme = 0, in_docs = 0;
  for (const fs::path& path : pages) {
    std::ifstream page(path);
    const std::string begin = "<!-- snippet: ", end = " -->";
    for (std::string line; std::getline(page, line);) {
      if (line.rfind(begin, 0) != 0) continue;
      const std::string marker = line.substr(begin.size(), line.size() - begin.size() - end.size());
      const size_t space = marker.find(' ');
      ASSERT_NE(space, std::string::npos) << path << ": " << line;
      std::ifstream source(root / marker.substr(0, space));
      const std::string want = snippet(source, marker.substr(space + 1));
      EXPECT_FALSE(want.empty()) << path << ": there is no " << marker;
      EXPECT_EQ(fenced(page), want) << path << ": " << marker;
      ++(path.filename() == "README.md" ? in_readme : in_docs);
    }
  }
  EXPECT_GE(in_readme, 1);
  EXPECT_GE(in_docs, 2);
}

}  // namespace
