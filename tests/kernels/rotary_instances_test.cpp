// Which instance of the rotary operation a call runs in depends on its size. Here each that can do a call runs it, and gives the
// bits of the CPU.
#include <gtest/gtest.h>

#ifdef PROLOGUE_HAS_CUDA

#include <set>
#include <string>
#include <vector>

#include <prologue/kernels/rotary/instances.h>
#include <prologue/kernels/rotary/rotary.h>

#include "tests/support/rotary_results.h"

namespace prologue::test {
namespace {

template <class T>
void check_all_instances(const RotaryCase& c) {
  SCOPED_TRACE(c.describe());
  PlacedRotary<T> cpu(Backend::cpu, c), placed(Backend::cuda, c);
  ASSERT_TRUE(cpu.run().ok());
  for (const auto& instance : cuda::instances_of(placed.params())) {
    SCOPED_TRACE(instance.name);
    const Status status =
        placed.run([&](const Execution& execution) { return instance.launch(placed.params(), execution.stream); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_same_bits(placed, cpu);
    if (::testing::Test::HasFailure()) return;
  }
}

// Whole and partial heads in both styles, heads that fill no block, every kind of row of cos and sin.
std::vector<RotaryCase> instance_cases() {
  std::vector<RotaryCase> cases;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
      for (const int64_t rotary_dim : {128, 64}) {
        for (const bool per_token : {false, true}) {
          RotaryCase c;
          c.dtype = dtype, c.style = style, c.head_dim = 128, c.rotary_dim = rotary_dim, c.per_token = per_token;
          c.rotary_offset = 128 - rotary_dim, c.batch = 2, c.seq_len = 7, c.ids = IdsKind::per_batch;
          c.type = per_token ? DType::f32 : dtype;
          c.tensors = {{24}, {7, true, true}, {1, false}, {5}};
          c.seed = cases.size() + 1;
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

TEST(RotaryInstances, EachGivesTheBitsOfTheCpu_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  for (const RotaryCase& c : instance_cases()) {
    with_float_type(c.dtype, [&](auto type) { check_all_instances<decltype(type)>(c); });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RotaryInstances, EachGivesTheBitsOfTheCpuOnAnyStruct_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  for (uint64_t seed = 8001; seed <= 8300 && !::testing::Test::HasFailure(); ++seed) {
    const RotaryCase c = random_rotary_case(seed);
    if (c.batch * c.seq_len == 0) continue;  // nothing is launched
    with_float_type(c.dtype, [&](auto type) { check_all_instances<decltype(type)>(c); });
  }
}

// No GPU is needed to know what the walk reaches.
TEST(RotaryInstances, TheWalkReachesEach) {
  std::set<std::string> reached;
  for (const RotaryCase& c : instance_cases()) {
    with_float_type(c.dtype, [&](auto type) {
      PlacedRotary<decltype(type)> placed(Backend::cpu, c);
      for (const auto& instance : cuda::instances_of(placed.params())) reached.insert(instance.name);
    });
  }
  const std::vector<std::string> shipped = cuda::rotary_instances();
  EXPECT_EQ(reached, std::set<std::string>(shipped.begin(), shipped.end()));
  EXPECT_EQ(reached.size(), shipped.size()) << "two instances share a name";
}

// One token more, and another instance, or another launch of a grid, takes the rest.
TEST(RotaryInstances, BothSidesOfEveryLimit_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  const auto check_tokens = [](RotaryCase c, int64_t num_tokens) {
    c.seq_len = num_tokens;
    SCOPED_TRACE(c.describe());
    with_float_type(c.dtype, [&](auto type) {
      PlacedRotary<decltype(type)> cpu(Backend::cpu_threads, c), placed(Backend::cuda, c);
      ASSERT_TRUE(cpu.run().ok());
      ASSERT_TRUE(placed.run().ok());
      expect_same_bits(placed, cpu);
    });
  };
  for (RotaryCase c : instance_cases()) {
    if (c.per_token) continue;
    c.batch = 1, c.tensors = {{3}, {1}};
    for (const double attention_factor : {1.0, 2.0}) {  // the latter runs in the general kernel
      c.attention_factor = attention_factor;
      std::vector<int64_t> limits;
      with_float_type(c.dtype, [&](auto type) {
        PlacedRotary<decltype(type)> placed(Backend::cpu, c);
        for (const auto& instance : cuda::instances_of(placed.params())) {
          if (instance.max_tokens == INT64_MAX) break;  // what takes a call by itself ends here
          limits.push_back(instance.max_tokens);
        }
      });
      ASSERT_FALSE(limits.empty());
      for (const int64_t limit : limits) check_tokens(c, limit), check_tokens(c, limit + 1);
    }
  }
  RotaryCase c;
  c.tensors = {{1}};
  for (const int64_t num_tokens : {65535, 65536, 131071}) check_tokens(c, num_tokens);
}

}  // namespace
}  // namespace prologue::test

#endif  // PROLOGUE_HAS_CUDA
