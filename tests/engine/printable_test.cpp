// Tests how text from outside is made safe for a message or a terminal.
#include <gtest/gtest.h>

#include <string>

#include <prologue/engine/base/printable.h>

namespace prologue {
namespace {

using namespace std::string_literals;

TEST(Printable, KeepsWhatIsShownAndEscapesTheRest) {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"plain, 'quoted' \\ text", "plain, 'quoted' \\ text"},
      {"\xc3\xa9 \xe6\x9d\xb1 \xf0\x9f\x99\x82", "\xc3\xa9 \xe6\x9d\xb1 \xf0\x9f\x99\x82"},
      {"\033[31mred\033[0m", "\\x1b[31mred\\x1b[0m"},
      {"a\nb\tc\rd\be\x7f"s, "a\\x0ab\\x09c\\x0dd\\x08e\\x7f"},
      {"a\0b"s, "a\\x00b"},
      {"\xc2\x9b"
       "31m\xc2\x80",
       "\\xc2\\x9b31m\\xc2\\x80"},  // C1 controls: U+009B starts an escape sequence, too
      {"\xc2\xa0", "\xc2\xa0"},     // the first character after them
      {"\xe2\x80\xae"
       "fdp.exe",
       "\\xe2\\x80\\xae"
       "fdp.exe"},  // right-to-left override
      {"\xe2\x80\xa8\xe2\x81\xa6\xe2\x80\x8f", "\\xe2\\x80\\xa8\\xe2\\x81\\xa6\\xe2\\x80\\x8f"},
      {"\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xaa", "\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xaa"},  // their neighbours
      {"\xff\xc3", "\\xff\\xc3"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},  // a surrogate
  };
  for (const auto& [text, want] : cases) {
    EXPECT_EQ(printable(text), want);
    EXPECT_EQ(in_quotes(text), "'" + want + "'");
    EXPECT_EQ(escape_controls(text), want);
  }
  EXPECT_EQ(escape_controls("a\nb\tc\rd", "\n\t"), "a\nb\tc\\x0dd");
}

TEST(Printable, IsCutAtAWholeCharacterAndSaysTheLength) {
  EXPECT_EQ(printable("123456", 6), "123456");
  EXPECT_EQ(printable("1234567", 6), "123456... (7 bytes)");
  EXPECT_EQ(in_quotes("1234567", 6), "'123456...' (7 bytes)");
  EXPECT_EQ(printable("12345\xc3\xa9", 6), "12345... (7 bytes)");
  EXPECT_EQ(printable("123\n567", 6), "123... (7 bytes)");  // an escape is not cut either
  const std::string huge(size_t{1} << 24, '\033');
  EXPECT_EQ(in_quotes(huge).size(), 96 + 5 + std::string(" (16777216 bytes)").size());
  EXPECT_EQ(printable_path(std::string(1000, 'x')), std::string(1000, 'x'));
  EXPECT_LT(printable_path(std::string(100000, 'x')).size(), 1100u);
}

}  // namespace
}  // namespace prologue
