// The README's matrix of features: every row runs, on every backend and in every type, and the matrix is the one that the rows
// make.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <tuple>

#include "tests/support/prologue_features.h"
#include "tests/support/source_path.h"

namespace prologue::test {
namespace {

// ---- the rows ---------------------------------------------------------------------------------------------------------------

using Row = std::tuple<size_t, Backend>;

class PrologueFeatureTest : public ::testing::TestWithParam<Row> {};

std::string row_name(const ::testing::TestParamInfo<Row>& info) {
  return str_cat(prologue_features()[std::get<0>(info.param)].name, "_", backend_name(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Rows, PrologueFeatureTest,
                         ::testing::Combine(::testing::Range(size_t{0}, prologue_features().size()),
                                            ::testing::ValuesIn(all_backends())),
                         row_name);

TEST_P(PrologueFeatureTest, MatchesTheOracle) {
  const auto& [row, backend] = GetParam();
  PROLOGUE_REQUIRE_BACKEND(backend);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const PrologueCase& listed : prologue_features()[row].cases) {
      with_host_type(dtype, [&, on = backend](auto type) {
        using T = decltype(type);
        const PrologueCase c = fit_to_type<T>(listed);
        SCOPED_TRACE(str_cat(dtype_name(dtype), " ", c.describe()));
        const PrologueData<T> data = make_data<T>(c);
        PlacedPrologue<T> placed(on, c, data);
        const Status status = placed.run();
        ASSERT_TRUE(status.ok()) << status.message();
        placed.expect_matches(oracle::attention_prologue(oracle_input(c, data)));
      });
    }
  }
}

// ---- the README -------------------------------------------------------------------------------------------------------------

const std::string kReadme = source_path("README.md");
constexpr const char* kBegin = "<!-- features: written by a test -->\n";
constexpr const char* kEnd = "<!-- end of features -->\n";

std::string without_third_column(const std::string& table) {
  std::stringstream lines(table);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    size_t begin = 0;
    for (int i = 0; i < 3 && begin != std::string::npos; ++i) begin = line.find('|', begin + (i > 0 ? 1 : 0));
    if (begin != std::string::npos) line.erase(begin, line.find('|', begin + 1) - begin);
    result += line + "\n";
  }
  return result;
}

TEST(PrologueFeatures, ReadmeShowsThem) {
  std::stringstream stream;
  stream << std::ifstream(kReadme).rdbuf();
  std::string readme = stream.str();
  size_t begin = readme.find(kBegin);
  const size_t end = readme.find(kEnd);
  ASSERT_TRUE(begin < end && end != std::string::npos) << "README.md has no place for the table";
  begin += std::strlen(kBegin);
  const std::string table = prologue_feature_table();
  const std::string shown = readme.substr(begin, end - begin);
  if (!built_with_cuda()) {  // what is lean is not known
    EXPECT_EQ(without_third_column(shown), without_third_column(table));
    return;
  }
  if (shown == table) return;
  if (std::getenv("PROLOGUE_UPDATE_README") == nullptr) {
    FAIL() << "README.md shows other features than the tests have. To update it:\n"
              "  PROLOGUE_UPDATE_README=1 <build>/tests/kernels_attention_prologue_features_test --gtest_filter='*Readme*'";
  }
  std::ofstream(kReadme) << readme.replace(begin, end - begin, table);
}

}  // namespace
}  // namespace prologue::test
