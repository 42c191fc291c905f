// Regular expressions of tokenizers: Oniguruma's syntax, and a time that is proportional to the text. And Unicode's normal forms.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <prologue/engine/tokenizer/regex.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue {
namespace {

Result<std::vector<std::string>> find(const std::string& pattern, const std::string& text) {
  PROLOGUE_ASSIGN_OR_RETURN(const Regex regex, Regex::create(pattern));
  RegexScratch scratch;
  std::vector<Regex::Match> matches;
  PROLOGUE_RETURN_IF_ERROR(regex.find_each(text, scratch, [&](const Regex::Match& match) {
    matches.push_back(match);
    return true;
  }));
  std::vector<std::string> found;
  for (const Regex::Match& match : matches) found.push_back(text.substr(match.begin, match.end - match.begin));
  return found;
}

using Strings = std::vector<std::string>;

Strings letters(const std::string& text) {
  Strings all;
  for (const char byte : text) all.emplace_back(1, byte);
  return all;
}

TEST(Regex, FindsFromLeftToRight) {
  EXPECT_EQ(*find("a+|b", "xaaabya"), (Strings{"aaa", "b", "a"}));
  EXPECT_EQ(*find("a", ""), Strings{});
  EXPECT_EQ(*find(R"(\d{1,3}(?=(?:\d{3})*\b))", "1234567"), (Strings{"1", "234", "567"}));
  // \b is where \w begins or ends: marks, Roman numerals, superscripts and letters in circles are in words.
  EXPECT_EQ(*find(R"(1\b)", "1\ufe0f 1\u2167 1\u00b2 1\u24b6 1\u2460 1."), (Strings{"1", "1"}));
  EXPECT_EQ(*find(R"(\B.)", "ab\u00bc"), (Strings{"b", "\u00bc"}));
  EXPECT_EQ(*find("(?<=a)b", "ab b"), (Strings{"b"}));
  EXPECT_EQ(*find("(?i:é)", "É"), (Strings{"É"}));
  EXPECT_EQ(*find("^.", "a\nb"), (Strings{"a", "b"}));  // ^ is at each line's beginning
  EXPECT_EQ(*find("x*", "axxb"), (Strings{"", "xx"}));
}

TEST(Regex, ClassesAreUnicodes) {
  EXPECT_EQ(*find(R"(\s)", "a\u00a0b\u3000\u180e\u200b"), (Strings{"\u00a0", "\u3000"}));
  EXPECT_EQ(*find(R"([\s]+)", "\u0085\u2028 x\u180e"), (Strings{"\u0085\u2028 "}));
  EXPECT_EQ(*find(R"(\S)", "\u180e "), (Strings{"\u180e"}));
  EXPECT_EQ(*find(R"(\w+)", "né_\u0301٣ ½ \u24b6 \u2460"), (Strings{"né_\u0301٣", "½", "\u24b6"}));
  EXPECT_EQ(*find(R"([\w]+)", "né_\u0301٣ ½ \u24b6 \u2460"), (Strings{"né_\u0301٣", "\u24b6"}));  // as Oniguruma has it
  EXPECT_EQ(*find(R"([^\w])", "a-"), (Strings{"-"}));
  EXPECT_EQ(*find(R"(\h+\v)", "beef\x0b"), (Strings{"beef\x0b"}));
  EXPECT_EQ(*find(R"(\u00e9|\x{4e00})", "é一"), (Strings{"é", "一"}));
  EXPECT_EQ(*find(R"([[:digit:]\]]+)", "1]"), (Strings{"1]"}));
}

TEST(Regex, RefusesWhatMeansSomethingElse) {
  for (const char* pattern : {R"(\p{N}{1,3}+)",  "a{,3}",   "[a[bc]]", "[a&&b]",  R"([\W])",    R"(\K)", R"(\Q)", R"(\R)",
                              R"(\1)",           R"(a\)",   "(*UTF)a", "(?m:.)",  "(?<name>a)", "(?R)",  "(a",    "[]a]",
                              R"(\p{Nonsense})", R"(\u12)", "[a",      "[[:alpha"}) {
    const Status status = Regex::create(pattern).status();
    EXPECT_EQ(status.code(), StatusCode::unsupported) << pattern;
    EXPECT_NE(status.message().find("the regular expression '"), std::string::npos) << pattern;
  }
  EXPECT_EQ(Regex::create("a{2}+").status().message(),
            "the regular expression 'a{2}+' has a + after an interval, which is not supported");
  EXPECT_EQ(Regex::create(std::string(20000, 'a')).status().code(), StatusCode::unsupported);
}

// Matches that are longer than a window, begin near its end, or depend on what is behind it.
TEST(Regex, FindsTheSameInLongTexts) {
  for (const size_t size : {1, 60, 63, 64, 65, 126, 127, 128, 129, 500, 511, 513, 5000, 100000}) {
    const std::string run(size, 'a');
    EXPECT_EQ(*find("a+", run), (Strings{run})) << size;
    EXPECT_EQ(*find("a+", " " + run + "b" + run), (Strings{run, run})) << size;
    if (size < 600) {  // looks at the whole run each time
      EXPECT_EQ(*find("a+(?!a|b)|[ab]", run + "b"), letters(run + "b")) << size;
    }
    EXPECT_EQ(*find("xy", run + "xy" + run), (Strings{"xy"})) << size;
    EXPECT_EQ(*find("(?<=x)y$", run + "xy"), (Strings{"y"})) << size;
    EXPECT_EQ(*find(R"(\s+(?!\S)|\s+)", std::string(size, ' ') + "a"),
              size == 1 ? (Strings{" "}) : (Strings{std::string(size - 1, ' '), " "}))
        << size;
    std::string accents;
    while (accents.size() < size) accents += "é";
    EXPECT_EQ(*find("é+", "x" + accents), (Strings{accents})) << size;
  }
}

// Each of these takes a time that is quadratic or exponential in the length of the text.
TEST(Regex, EndsWithAnErrorIfItTakesTooLong) {
  const std::string text(1 << 20, 'a');
  for (const char* pattern : {"a*b", "a++b|a", "(?>a*)b|a", "a(?=a*)", "(a+)+b", "(a|a)*b", "(?=(a+)+b)a|a", "a(?=.*)"}) {
    const auto found = find(pattern, text);
    ASSERT_FALSE(found.ok()) << pattern;
    EXPECT_EQ(found.status().code(), StatusCode::resource_exhausted) << pattern;
    EXPECT_NE(found.status().message().find("takes too long"), std::string::npos) << found.status().message();
  }
  EXPECT_TRUE(find("a*b", std::string(1000, 'a')).ok());
}

TEST(UnicodeForms, AreThoseOfTheStandard) {
  EXPECT_EQ(normalized("e\u0301", UnicodeForm::nfc), "é");
  EXPECT_EQ(normalized("é", UnicodeForm::nfd), "e\u0301");
  EXPECT_EQ(normalized("ﬁ²Ａ", UnicodeForm::nfkc), "fi2A");
  EXPECT_EQ(normalized("ﬁ²Ａ", UnicodeForm::nfc), "ﬁ²Ａ");
  EXPECT_EQ(normalized("각", UnicodeForm::nfd), "\u1100\u1161\u11a8");
  EXPECT_EQ(normalized("\u1100\u1161\u11a8", UnicodeForm::nfc), "각");
  EXPECT_EQ(normalized("a\u0323\u0301 a\u0301\u0323", UnicodeForm::nfd),
            "a\u0323\u0301 a\u0323\u0301");                                  // in the order of their classes
  EXPECT_EQ(normalized("\u0958", UnicodeForm::nfc), "\u0915\u093c");         // not composed again
  EXPECT_EQ(normalized("\ufdfa", UnicodeForm::nfkd), "صلى الله عليه وسلم");  // the longest
  EXPECT_EQ(normalized(std::string("a\0b", 3), UnicodeForm::nfc), std::string("a\0b", 3));
}

TEST(UnicodeForms, TakeLongRunsOfMarks) {
  std::string marks = "é";
  for (int i = 0; i < 200000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  EXPECT_EQ(normalized(marks, UnicodeForm::nfd).size(), marks.size() + 1);
  EXPECT_EQ(normalized(normalized(marks, UnicodeForm::nfc), UnicodeForm::nfc), normalized(marks, UnicodeForm::nfc));
}

TEST(UnicodeForms, KnowWhiteSpaceAndWords) {
  for (const char32_t space : {U'\t', U'\r', U' ', U'\x85', U'\xa0', U'\u1680', U'\u2028', U'\u3000'})
    EXPECT_TRUE(is_white_space(space));
  for (const char32_t other : {U'\x1c', U'a', U'\u180e', U'\u200b', U'\ufeff'}) EXPECT_FALSE(is_white_space(other));
  for (const char32_t word : {U'a', U'_', U'é', U'漢', U'٣', U'\u0301', U'Ⅷ'}) EXPECT_TRUE(is_word_character(word));
  for (const char32_t other : {U' ', U'-', U'½', U'²'}) EXPECT_FALSE(is_word_character(other));
  EXPECT_EQ(stripped("\u3000 a \n", {.left = true, .right = true}), "a");
  EXPECT_EQ(stripped(" a ", {.left = false, .right = true}), " a");
  EXPECT_EQ(stripped(" \n", {.left = true, .right = true}), "");
}

}  // namespace
}  // namespace prologue
