// Runs random operations, each compared with a plain model, and with the data in the pages (tests/support/kv_model.h).
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "tests/support/kv_model.h"
#include "tests/support/random.h"
#include "tests/support/sanitizers.h"

namespace prologue::test {
namespace {

// There are more than 10^6 in all where they are fast.
#if defined(NDEBUG) && !defined(PROLOGUE_ADDRESS_SANITIZER) && !defined(PROLOGUE_THREAD_SANITIZER)
constexpr int64_t kOperations = 100'000;
#else
constexpr int64_t kOperations = 3'000;
#endif

struct Row {
  const char* name;
  int64_t page_size;
  std::vector<KvGroup> groups;
  bool prefix_reuse = true;
  bool keep_until_released = false;
};

class KvCacheProperty : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(
    Caches, KvCacheProperty,
    ::testing::Values(Row{"page1_global", 1, {{30, 0}}}, Row{"page4_global", 4, {{40, 0}}}, Row{"page16_global", 16, {{25, 0}}},
                      Row{"page1_global_local", 1, {{40, 0}, {20, 3}}}, Row{"page4_global_local", 4, {{50, 0}, {30, 9}}},
                      Row{"page16_global_local", 16, {{50, 0}, {30, 33}}}, Row{"page1_two_locals", 1, {{20, 2}, {30, 5}}},
                      Row{"page4_two_locals", 4, {{25, 1}, {30, 14}}}, Row{"page16_two_locals", 16, {{25, 16}, {40, 60}}},
                      Row{"page3_local_global_local", 3, {{20, 4}, {60, 0}, {30, 8}}}, Row{"page4_tiny", 4, {{7, 0}, {5, 5}}},
                      Row{"page4_ample", 4, {{400, 0}, {300, 6}}}, Row{"page4_no_reuse", 4, {{40, 0}, {20, 6}}, false},
                      Row{"page4_keeps", 4, {{50, 0}, {30, 9}}, true, true},
                      Row{"page1_keeps", 1, {{20, 2}, {30, 5}}, true, true}),
    [](const auto& row) { return std::string(row.param.name); });

TEST_P(KvCacheProperty, RandomOperationsAgreeWithTheModel) {
  const Row& row = GetParam();
  KvCacheConfig config;
  config.page_size = row.page_size;
  config.groups = row.groups;
  config.prefix_reuse = row.prefix_reuse;
  config.keep_until_released = row.keep_until_released;
  int64_t operation = 0;
  try {
    KvModel model(config, [](const std::string& what) { throw std::runtime_error(what); });
    Random random(static_cast<uint64_t>(row.page_size) * 100 + row.groups.size());
    for (; operation < kOperations; ++operation) {
      random_operation(model, random);
      if (operation % 64 == 0) model.check_all();
    }
    // The run was worth something.
    EXPECT_EQ(model.num_copies() > 0, row.page_size > 1);
    EXPECT_EQ(model.hit_tokens() > 0, row.prefix_reuse);
    EXPECT_EQ(model.num_evictions() > 0, row.prefix_reuse);
    EXPECT_TRUE(model.num_failed() > 0 || row.name == std::string("page4_ample"));
    model.finish();
  } catch (const std::runtime_error& error) {
    FAIL() << "operation " << operation << ": " << error.what();
  }
}

}  // namespace
}  // namespace prologue::test
