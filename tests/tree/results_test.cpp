// benchmarks/results: its index has every page and says which are current, and a page says what was measured with which code, where and how.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/tree/pages.h"

namespace {

namespace fs = std::filesystem;

struct Row {
  std::string page;  // as the index links it: "archive/X.md"
  std::string current;
};

bool is_archived(const std::string& page) { return page.rfind("archive/", 0) == 0; }

// The rows of the index's tables that begin with a link to a page. The last cell is "current".
std::vector<Row> rows_of(const std::vector<std::string>& index) {
  static const std::regex row(R"(\| \[[^\]]*\]\(([^)]*\.md)\).*\| ([^|]*) \|)");
  std::vector<Row> rows;
  for (const std::string& line : index) {
    std::smatch match;
    if (std::regex_match(line, match, row)) rows.push_back({match[1], match[2]});
  }
  return rows;
}

// What is wrong with the index of a folder that has these pages.
std::vector<std::string> problems_of_index(const std::vector<Row>& rows, const std::set<std::string>& pages) {
  std::vector<std::string> problems;
  std::set<std::string> named;
  for (const Row& row : rows) {
    if (!named.insert(row.page).second) problems.push_back(row.page + " is in the index twice");
    if (pages.count(row.page) == 0) problems.push_back(row.page + " does not exist");
    const bool current = row.current.rfind("yes", 0) == 0, superseded = row.current.rfind("superseded by [", 0) == 0;
    if (!current && !superseded) problems.push_back(row.page + ": current is neither yes nor superseded by a page");
    if (current && is_archived(row.page)) problems.push_back(row.page + " is archived and said to be current");
  }
  for (const std::string& page : pages) {
    if (named.count(page) == 0) problems.push_back(page + " is not in the index");
  }
  return problems;
}

// What a page does not say.
std::vector<std::string> lacks_of(const std::string& text) {
  static const std::regex commit(R"(\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7}\b)"), machine(R"(H100|H200|EPYC|x86-64)"),
      command(R"((^|\n)    \S|`(build/\S*|benchmarks/)?(bench_\w|\w+_test|\w+\.py|scripts/|generate|ctest))");
  std::vector<std::string> lacks;
  if (!std::regex_search(text, commit)) lacks.push_back("commit");
  if (!std::regex_search(text, machine)) lacks.push_back("machine");
  if (!std::regex_search(text, command)) lacks.push_back("command");
  return lacks;
}

// The pages of the archive that a page cites.
std::vector<std::string> cites_archive(const std::string& text) {
  static const std::regex link(R"(results/(archive/[^)\s`#]*)|\]\((archive/[^)#]*))");
  std::vector<std::string> found;
  if (text.find("archive/") == std::string::npos) return found;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), link); it != std::sregex_iterator(); ++it)
    found.push_back(it->str());
  return found;
}

std::string text_of(const fs::path& path) {
  std::string text;
  for (const std::string& line : prologue::test::lines_of(path)) text += line + "\n";
  return text;
}

const fs::path& folder() {
  static const fs::path path = prologue::test::source_path("benchmarks/results");
  return path;
}

std::set<std::string> pages_of_folder() {
  std::set<std::string> pages;
  for (const char* part : {"", "archive"}) {
    for (const auto& entry : fs::directory_iterator(folder() / part)) {
      if (entry.path().extension() == ".md") pages.insert(fs::relative(entry.path(), folder()).generic_string());
    }
  }
  pages.erase("README.md");
  return pages;
}

TEST(Results, IndexHasEveryPageAndSaysWhichAreCurrent) {
  const std::set<std::string> pages = pages_of_folder();
  EXPECT_GT(pages.size(), 40u);
  for (const std::string& problem : problems_of_index(rows_of(prologue::test::lines_of(folder() / "README.md")), pages)) {
    ADD_FAILURE() << problem;
  }
}

TEST(Results, PagesSayCommitMachineAndCommand) {
  for (const std::string& page : pages_of_folder()) {
    if (is_archived(page)) continue;
    for (const std::string& what : lacks_of(text_of(folder() / page))) ADD_FAILURE() << page << " has no " << what;
  }
}

TEST(Results, DataOfAPageIsBesideIt) {
  for (const auto& entry : fs::recursive_directory_iterator(folder())) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().filename().string();
    bool cited = false;
    for (const auto& page : fs::directory_iterator(entry.path().parent_path())) {
      cited = cited || (page.path().extension() == ".md" && text_of(page.path()).find(name) != std::string::npos);
    }
    EXPECT_TRUE(cited) << entry.path() << ": no page of its folder cites it";
  }
}

TEST(Results, NothingCitesTheArchive) {
  const auto is_text = [](const fs::path& path) {
    for (const char* end : {".md", ".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}) {
      if (path.extension() == end) return true;
    }
    return false;
  };
  for (const fs::path& path : prologue::test::files_of_tree(is_text)) {
    if (fs::equivalent(path, folder() / "README.md") || path.filename() == "results_test.cpp") continue;
    for (const std::string& page : cites_archive(text_of(path))) ADD_FAILURE() << path << " cites " << page;
  }
}

TEST(Results, TheRulesCanFail) {
  using Problems = std::vector<std::string>;
  const std::string index = "| [a](a.md), [JSON](a.json) | 2026-11-21 | H200 | a | yes |";
  const std::string old = "| [b](archive/b.md) | 2026-11-21 | H200 | b | superseded by [a](a.md) |";
  const std::set<std::string> pages = {"a.md", "archive/b.md"};
  const auto problems = [&](const std::vector<std::string>& lines) { return problems_of_index(rows_of(lines), pages); };
  EXPECT_EQ(problems({index, old}), Problems());
  EXPECT_EQ(problems({index}), Problems{"archive/b.md is not in the index"});
  EXPECT_EQ(problems({index, index, old}), Problems{"a.md is in the index twice"});
  EXPECT_EQ(problems({index, old, "| [c](c.md) | | | | yes |"}), Problems{"c.md does not exist"});
  EXPECT_EQ(problems({index, "| [b](archive/b.md) | | | | yes |"}), Problems{"archive/b.md is archived and said to be current"});
  EXPECT_EQ(problems({"| [a](a.md) | | | | no |", old}), Problems{"a.md: current is neither yes nor superseded by a page"});

  const std::string page = "An H200, commit 0d30854.\n\n    bench_projection --json X\n";
  EXPECT_EQ(lacks_of(page), Problems());
  EXPECT_EQ(lacks_of("An H200, the newest code, `bench_projection`"), Problems{"commit"});
  EXPECT_EQ(lacks_of("1048576 tokens, defaced: `generate`"), (Problems{"commit", "machine"}));
  EXPECT_EQ(lacks_of("A GPU, commit 0d30854, `scripts/test_gpu`"), Problems{"machine"});
  EXPECT_EQ(lacks_of("An H200, commit 0d30854"), Problems{"command"});

  EXPECT_EQ(cites_archive("[x](../benchmarks/results/archive/x.md)").size(), 1u);
  EXPECT_EQ(cites_archive("[x](archive/x.md)").size(), 1u);
  EXPECT_EQ(cites_archive("[x](../benchmarks/results/x.md)").size(), 0u);
}

}  // namespace
