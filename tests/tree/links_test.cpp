// Pages point at what is there: every relative link leads to a file and, after #, to one of its headings; every path in backticks
// that begins with a folder of the tree exists, and so does every page that code names. And the README is short.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tree/pages.h"

namespace {

namespace fs = std::filesystem;

using prologue::test::pages;

// The lines of a page outside of its fenced blocks.
std::vector<std::string> prose(const fs::path& page) {
  std::vector<std::string> lines;
  bool fenced = false;
  for (const std::string& line : prologue::test::lines_of(page)) {
    if (line.find("```") != std::string::npos) {
      fenced = !fenced;
    } else if (!fenced) {
      lines.push_back(line);
    }
  }
  return lines;
}

// A heading as the end of a link: lower case, spaces become dashes, punctuation goes.
std::string slug(const std::string& heading) {
  std::string result;
  for (const char c : heading) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-') {
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (c == ' ') {
      result += '-';
    }
  }
  return result;
}

std::set<std::string> anchors(const fs::path& page) {
  std::set<std::string> found;
  for (const std::string& line : prose(page)) {
    const size_t level = line.find_first_not_of('#');
    if (level > 0 && level != std::string::npos && line[level] == ' ') found.insert(slug(line.substr(level + 1)));
  }
  return found;
}

// Every first group of the expression on a page.
std::vector<std::string> matches(const fs::path& page, const std::regex& expression) {
  std::vector<std::string> found;
  for (const std::string& line : prose(page)) {
    for (auto it = std::sregex_iterator(line.begin(), line.end(), expression); it != std::sregex_iterator(); ++it)
      found.push_back((*it)[1]);
  }
  return found;
}

TEST(Tree, LinksLeadSomewhere) {
  const std::regex link(R"(\]\(([^)\s]+)\))");
  int count = 0;
  for (const fs::path& page : pages()) {
    for (const std::string& target : matches(page, link)) {
      if (target.find("://") != std::string::npos) continue;
      ++count;
      const size_t hash = target.find('#');
      const fs::path file = hash == 0 ? page : page.parent_path() / target.substr(0, hash);
      EXPECT_TRUE(fs::exists(file)) << page << " links to " << target;
      if (hash != std::string::npos && fs::exists(file)) {
        EXPECT_EQ(anchors(file).count(target.substr(hash + 1)), 1u) << page << " links to " << target;
      }
    }
  }
  EXPECT_GT(count, 30);
}

TEST(Tree, PathsOnPagesExist) {
  const std::regex path(
      R"(`((?:adapters|benchmarks|cmake|docs|engine|examples|kernels|kvcache|layers|scripts|tests)/[A-Za-z0-9_./-]*[A-Za-z0-9_/])`)");
  const fs::path root = prologue::test::source_path(".");
  int count = 0;
  for (const fs::path& page : pages()) {
    for (const std::string& name : matches(page, path)) {
      ++count;
      EXPECT_TRUE(fs::exists(root / name)) << page << " names " << name;
    }
  }
  EXPECT_GT(count, 30);
}

// The pages that a line of code names, as "docs/X.md": a comment says where more is written.
std::vector<std::string> pages_named_in(const std::string& line) {
  static const std::regex page(R"((?:^|[^A-Za-z0-9_./-])((?:docs|benchmarks|tests|examples)/[A-Za-z0-9_./-]*\.md)\b)");
  std::vector<std::string> found;
  if (line.find(".md") == std::string::npos) return found;
  for (auto it = std::sregex_iterator(line.begin(), line.end(), page); it != std::sregex_iterator(); ++it)
    found.push_back((*it)[1]);
  return found;
}

TEST(Tree, PagesThatCodeNamesExist) {
  const fs::path root = prologue::test::source_path(".");
  const auto is_source = [](const fs::path& path) {
    if (path.parent_path().filename() == "tree") return false;  // tests with names of pages that are not there
    for (const char* end : {"", ".h", ".c", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt"}) {
      if (path.extension() == end) return true;
    }
    return false;
  };
  int count = 0;
  for (const fs::path& source : prologue::test::files_of_tree(is_source)) {
    for (const std::string& line : prologue::test::lines_of(source)) {
      for (const std::string& page : pages_named_in(line)) {
        ++count;
        EXPECT_TRUE(fs::exists(root / page)) << source << " names " << page;
      }
    }
  }
  EXPECT_GT(count, 20);
  EXPECT_EQ(pages_named_in("// measured (docs/tuning/rotary.md), as docs/x.md says."),
            (std::vector<std::string>{"docs/tuning/rotary.md", "docs/x.md"}));
  EXPECT_EQ(pages_named_in("https://example.com/docs/x.md and mydocs/x.md"), std::vector<std::string>());
}

// The words of a page outside of its tables, its code and its comments.
int count_words(const std::vector<std::string>& prose) {
  int count = 0;
  for (const std::string& line : prose) {
    if (line.rfind("|", 0) == 0 || line.rfind("    ", 0) == 0 || line.rfind("<!--", 0) == 0) continue;
    std::istringstream words(line);
    count += static_cast<int>(std::distance(std::istream_iterator<std::string>(words), {}));
  }
  return count;
}

TEST(Tree, ReadmeIsReadInOneGo) {
  const std::vector<std::string> lines = prose(prologue::test::source_path("README.md"));
  EXPECT_LE(count_words(lines), 1200);
  const auto at = [&](const char* heading) { return std::find(lines.begin(), lines.end(), heading); };
  ASSERT_NE(at("## Requirements"), lines.end());
  EXPECT_LT(at("## What it is not"), at("## Requirements"));
  EXPECT_EQ(count_words({"two words", "| a table |", "    code", "<!-- a comment -->", "- three **more** words"}), 6);
}

TEST(Tree, HeadingsBecomeAnchors) {
  EXPECT_EQ(slug("Kinds of fault, and what covers each"), "kinds-of-fault-and-what-covers-each");
  EXPECT_EQ(slug("Tables: `exact` and `reference`"), "tables-exact-and-reference");
}

}  // namespace
