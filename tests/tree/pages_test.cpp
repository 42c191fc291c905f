// How pages and comments are laid out: no line of prose is longer than kMostColumns.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "tests/tree/pages.h"

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostColumns = 150;

// Characters, not bytes, of UTF-8.
size_t columns(const std::string& line) {
  return static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

bool begins_with(const std::string& text, const std::string& begin) { return text.rfind(begin, 0) == 0; }

// Says whether a text is one word (a link whose text is one word, too), which no line can break.
bool is_one_word(const std::string& text) {
  const size_t begin = text.find_first_not_of("-*> ");
  return begin == std::string::npos || text.find(' ', begin) == std::string::npos;
}

// The numbers, from 1 on, of the lines of prose that are too long. Tables, code, headings, HTML and what cannot be broken may be longer.
std::vector<size_t> long_lines(const std::vector<std::string>& page) {
  std::vector<size_t> found;
  bool fenced = false, after_code = true;  // an indented line is code after an empty line, or after code
  for (size_t i = 0; i < page.size(); ++i) {
    const std::string& line = page[i];
    const size_t indent = line.find_first_not_of(' ');
    const std::string text = indent == std::string::npos ? std::string() : line.substr(indent);
    if (begins_with(text, "```")) fenced = !fenced;
    const bool is_code = fenced || (after_code && indent != std::string::npos && indent >= 4);
    after_code = text.empty() || is_code;
    if (is_code || begins_with(text, "|") || begins_with(text, "#") || begins_with(text, "<") || is_one_word(text)) continue;
    if (columns(line) > kMostColumns) found.push_back(i + 1);
  }
  return found;
}

// The same for the comments of a source file that begin with `mark`, on lines of their own or after code.
std::vector<size_t> long_comments(const std::vector<std::string>& source, const std::string& mark) {
  std::vector<size_t> found;
  for (size_t i = 0; i < source.size(); ++i) {
    const std::string& line = source[i];
    const size_t indent = line.find_first_not_of(' ');
    if (indent == std::string::npos) continue;
    const size_t begin = line.compare(indent, mark.size(), mark) == 0 ? indent : line.find("  " + mark + " ");
    if (begin > kMostColumns || columns(line) <= kMostColumns) continue;  // there is none, or the code before it is too long
    if (!is_one_word(line.substr(line.find(mark, begin) + mark.size()))) found.push_back(i + 1);
  }
  return found;
}

// What a comment of the file begins with; empty for files that are not sources.
std::string comment_mark(const fs::path& path) {
  const std::string end = path.extension().string();
  for (const char* c : {".h", ".c", ".cpp", ".cu", ".cuh"}) {
    if (end == c) return "//";
  }
  const bool is_script = end == ".py" || end == ".sh" || end == ".cmake" || path.filename() == "CMakeLists.txt" ||
                         (end.empty() && path.parent_path().filename() == "scripts");
  return is_script ? "#" : "";
}

TEST(Pages, LinesOfProseAreShort) {
  size_t count = 0;
  for (const fs::path& page : prologue::test::pages()) {
    ++count;
    for (const size_t line : long_lines(prologue::test::lines_of(page))) {
      ADD_FAILURE() << page << ":" << line << " has more than " << kMostColumns << " columns";
    }
  }
  EXPECT_GT(count, 60u);
}

TEST(Pages, CommentsAreShort) {
  size_t count = 0;
  for (const fs::path& source : prologue::test::files_of_tree([](const fs::path& path) { return !comment_mark(path).empty(); })) {
    ++count;
    for (const size_t line : long_comments(prologue::test::lines_of(source), comment_mark(source))) {
      ADD_FAILURE() << source << ":" << line << " has more than " << kMostColumns << " columns";
    }
  }
  EXPECT_GT(count, 500u);
}

TEST(Pages, TheRulesCanFail) {
  const std::string words(kMostColumns / 2, 'w'), prose = words + " " + words;
  const std::string link = "[text](https://example.com/" + words + words + ")";
  EXPECT_EQ(long_lines({prose}), std::vector<size_t>{1});
  EXPECT_EQ(long_lines({"- an item", "  " + prose, "      " + prose}), (std::vector<size_t>{2, 3}));
  EXPECT_EQ(long_lines({"```", prose, "```", prose}), std::vector<size_t>{4});
  EXPECT_EQ(long_lines({"    " + prose, "", "    " + prose, "    " + prose, "    " + prose}), std::vector<size_t>());
  EXPECT_EQ(long_lines({"| " + prose + " |", "# " + prose, "<img " + prose + ">", link, "- " + link}), std::vector<size_t>());
  EXPECT_EQ(long_lines({std::string("\u00e4") + prose.substr(2)}), std::vector<size_t>());  // two bytes, one column
  EXPECT_EQ(long_comments({"// " + prose, "int x;  // " + prose, "call(\"" + prose + "\");", "// " + words}, "//"),
            (std::vector<size_t>{1, 2}));
  EXPECT_EQ(long_comments({"  # " + prose, "x = '" + prose + "'"}, "#"), std::vector<size_t>{1});
  EXPECT_EQ(comment_mark("kernels/x.cuh"), "//");
  EXPECT_EQ(comment_mark("scripts/test"), "#");
  EXPECT_EQ(comment_mark("docs/x.svg"), "");
}

}  // namespace
