// Checks docs/coming-from.md as a page: every section is in the index, holds a short call, a table and the name of its adapter, and its
// call is in a test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/support/source_path.h"

namespace {

std::string contents(const std::string& path) {
  std::ifstream file(prologue::test::source_path(path));
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// As GitHub makes it from a heading.
std::string anchor(const std::string& heading) {
  std::string result;
  for (const char c : heading) {
    if (c == ' ') result += '-';
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '-')
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

TEST(ComingFrom, EverySectionIsInTheIndexAndHoldsATestedBlock) {
  const std::string page = contents("docs/coming-from.md");
  const size_t shared = page.find("\n## What is the same everywhere");
  ASSERT_NE(shared, page.npos);
  const std::string index = page.substr(0, shared);
  std::set<std::string> names;
  int sections = 0;
  for (size_t at = page.find("\n## ", shared + 1); at != page.npos;) {
    const size_t next = page.find("\n## ", at + 1);
    const std::string section = page.substr(at + 1, next == page.npos ? page.npos : next - at);
    const std::string heading = section.substr(3, section.find('\n') - 3);
    SCOPED_TRACE(heading);
    EXPECT_NE(index.find("[" + heading + "](#" + anchor(heading) + ")"), index.npos);
    if (heading == "Their tests") break;  // the last one, of all of them
    ++sections;
    EXPECT_NE(section.find("| theirs | ours |"), section.npos);
    EXPECT_NE(section.find("\nWhat differs:\n"), section.npos);
    const size_t fence = section.find("```cpp ");
    ASSERT_NE(fence, section.npos);
    const std::string name = section.substr(fence + 7, section.find('\n', fence) - fence - 7);
    names.insert(name);
    const std::string block = section.substr(fence, section.find("\n```", fence) - fence);
    EXPECT_LE(std::count(block.begin(), block.end(), '\n'), 12) << "the page shows calls: adapters are in the header";
    EXPECT_NE(section.find("\nAdapter: `" + name + "::"), section.npos);
    EXPECT_NE(section.find("`adapters/" + name + ".h`"), section.npos);
    const std::string header = contents("adapters/" + name + ".h");
    EXPECT_NE(header.find("\nnamespace prologue::adapters::" + name + " {"), header.npos);
    at = next;
  }
  EXPECT_EQ(sections, 14);
  EXPECT_EQ(names.size(), 14u);
  for (const std::string& name : names) {
    EXPECT_NE(contents("tests/adapters/" + name + "_test.cpp").find("#include \"" + name + ".inc\""), std::string::npos)
        << name;
  }
  for (const auto& entry : std::filesystem::directory_iterator(prologue::test::source_path("tests/adapters"))) {
    const std::string file = entry.path().filename().string();
    const size_t suffix = file.find("_test.cpp");
    EXPECT_TRUE(suffix == file.npos || names.count(file.substr(0, suffix)) == 1) << file;
  }
}

}  // namespace
