// The table of docs/features.md: every row runs, on every backend and in every type, and the table is the one that the rows make.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <tuple>

#include "tests/support/prologue_features.h"
#include "tests/support/prologue_results.h"
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
    for (const auto& [label, listed] : prologue_features()[row].cases) {
      with_host_type(dtype, [&, on = backend, wanted = listed](auto type) {
        using T = decltype(type);
        const PrologueCase c = fit_to_type<T>(wanted);
        SCOPED_TRACE(str_cat(dtype_name(dtype), " ", c.describe()));
        const PrologueData<T> data = make_data<T>(c);
        PlacedPrologue<T> placed(on, c, data);
        const Status status = placed.run();
        ASSERT_TRUE(status.ok()) << status.message();
        expect_matches(placed, oracle::attention_prologue(oracle_input(c, data)));
      });
    }
  }
}

// ---- the page ---------------------------------------------------------------------------------------------------------------

const std::string kPage = source_path("docs/features.md");
constexpr const char* kBegin = "<!-- features: written by a test -->\n";
constexpr const char* kEnd = "<!-- end of features -->\n";

TEST(PrologueFeatures, ThePageShowsThem) {
  if (!built_with_cuda()) GTEST_SKIP() << "which kernels run is known to builds with CUDA";
  std::stringstream stream;
  stream << std::ifstream(kPage).rdbuf();
  std::string page = stream.str();
  size_t begin = page.find(kBegin);
  const size_t end = page.find(kEnd);
  ASSERT_TRUE(begin < end && end != std::string::npos) << kPage << " has no place for the table";
  begin += std::strlen(kBegin);
  const std::string table = prologue_feature_table();
  if (page.substr(begin, end - begin) == table) return;
  if (std::getenv("PROLOGUE_UPDATE_FEATURES") == nullptr) {
    FAIL() << "docs/features.md shows other features than the tests have. To update it:\n"
              "  PROLOGUE_UPDATE_FEATURES=1 <build>/tests/kernels_attention_prologue_features_test --gtest_filter='*ThePage*'";
  }
  std::ofstream(kPage) << page.replace(begin, end - begin, table);
}

}  // namespace
}  // namespace prologue::test
