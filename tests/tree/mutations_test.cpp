// The lists of scripts/mutate fit the code: each piece to be replaced is in its file exactly once, and each test exists.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <prologue/kernels/base/status.h>

#include "tests/support/source_path.h"

namespace prologue {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

int64_t count_of(const std::string& piece, const std::string& text) {
  int64_t count = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) ++count;
  return count;
}

TEST(Mutations, ListsFitTheCode) {
  int64_t num_mutations = 0;
  for (const auto& list : std::filesystem::directory_iterator(test::source_path("tests/mutations"))) {
    std::ifstream lines(list.path());
    std::map<std::string, std::string> block;
    for (std::string line; std::getline(lines, line);) {
      const size_t colon = line.find(": ");
      if (line.empty() || line[0] == '#' || colon == std::string::npos) continue;
      block[line.substr(0, colon)] = line.substr(colon + 2);
      if (block.count("new") == 0) continue;
      SCOPED_TRACE(block["file"] + ": " + block["why"]);
      EXPECT_EQ(count_of(block["old"], read(test::source_path(block["file"]))), 1) << block["old"];
      EXPECT_NE(block["old"], block["new"]);
      const std::string name = block["test"].substr(0, block["test"].find(' '));  // FOLDER_NAME_test
      const size_t folder = name.find('_');
      const std::string path = str_cat("tests/", name.substr(0, folder), "/", name.substr(folder + 1), ".cpp");
      EXPECT_TRUE(std::filesystem::exists(test::source_path(path))) << path;
      EXPECT_EQ(block.size(), 5u) << "file, test, why, old and new";
      block.clear();
      ++num_mutations;
    }
    EXPECT_TRUE(block.empty()) << "the last block has no line 'new'";
  }
  EXPECT_GE(num_mutations, 15);
}

}  // namespace
}  // namespace prologue
