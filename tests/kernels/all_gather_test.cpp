#include <prologue/kernels/collective/all_gather.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/oracle/collectives.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/ranks.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class AllGatherTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

// Rank r has part_width columns, the last one `last` of them. The arrays of ranks 0, 2, ... are misaligned by so many elements.
template <class T>
void check(Backend backend, const Ranks& ranks, int64_t num_tokens, int64_t part_width, int64_t last, int64_t misalign,
           uint64_t seed) {
  const int64_t num_ranks = ranks.size(), width = (num_ranks - 1) * part_width + last;
  SCOPED_TRACE(testing::Message() << num_ranks << " ranks, T = " << num_tokens << ", width " << width << " in parts of "
                                  << part_width << ", misaligned by " << misalign);
  Random random(seed);
  std::vector<std::vector<T>> parts;
  for (int64_t r = 0; r < num_ranks; ++r)
    parts.push_back(random.normals<T>(num_tokens * (r == num_ranks - 1 ? last : part_width)));
  const std::vector<T> want = oracle::all_gather(parts, num_tokens);
  ranks.run([&](int64_t rank) {
    const int64_t bytes = rank % 2 == 0 ? misalign * static_cast<int64_t>(sizeof(T)) : 0;
    Arena arena(backend);
    T* y = arena.output<T>(num_tokens * width, bytes);
    AllGatherParams p;
    p.num_tokens = num_tokens;
    p.width = width;
    p.part_width = part_width;
    p.dtype = FloatFormat<T>::dtype;
    p.x = arena.input(parts[static_cast<size_t>(rank)], bytes);
    p.y = y;
    p.workspace_bytes = all_gather_workspace_bytes(p, ranks[rank]);
    p.workspace = p.workspace_bytes > 0 ? arena.workspace(p.workspace_bytes) : nullptr;
    ranks.meet();
    const Status status = arena.run([&](const Execution& execution) { return all_gather(p, ranks[rank], execution); });
    ranks.meet();
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(ranks[rank].status().ok()) << ranks[rank].status().message();
    const std::vector<T> got = arena.read(y);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_TRUE(got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0) << "rank " << rank;
  });
}

template <class T>
void check_curated_cases(Backend backend) {
  uint64_t seed = 1;
  for (const int64_t num_ranks : group_sizes(backend)) {
    const Ranks ranks(backend, num_ranks);
    for (const int64_t num_tokens : {0, 1, 5, 64}) {
      for (const int64_t part_width : {1, 13, 64, 515}) {
        ++seed;
        const int64_t last = seed % 3 == 0 ? (part_width + 1) / 2 : part_width;
        check<T>(backend, ranks, num_tokens, part_width, last, seed % 5 == 0 ? 1 : 0, seed);
      }
    }
  }
}

TEST_P(AllGatherTest, CopiesTheColumnsFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(AllGatherTest, CopiesTheColumnsBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(AllGatherTest, CopiesTheColumnsFloat16) { check_curated_cases<Float16>(GetParam()); }

// A group of one rank, whose kernels wait for nobody: scripts/test_gpu runs it under compute-sanitizer.
TEST_P(AllGatherTest, OneRank) {
  const Ranks ranks(GetParam(), 1);
  check<float>(GetParam(), ranks, 3, 515, 515, 0, 1);
  check<BFloat16>(GetParam(), ranks, 2, 300001, 300001, 1, 2);
}

// More bytes than the kernels push: stored in the other ranks' memory, or by NCCL. The last rank has one column, or all; a row, or several.
TEST_P(AllGatherTest, ManyBytes) {
  for (const bool nccl : {false, true}) {
    for (const bool peer_memory : {true, false}) {
      if (backend_device(GetParam()) == Device::cpu && (nccl || !peer_memory)) continue;  // these are CUDA's
      CommunicatorOptions options;
      options.use_nccl = nccl, options.use_peer_memory = peer_memory;
      for (const int64_t num_ranks : group_sizes(GetParam(), options)) {
        const Ranks ranks(GetParam(), num_ranks, options);
        check<float>(GetParam(), ranks, 1, 140000, 140000, 0, 1);
        check<float>(GetParam(), ranks, 1, 140000, 1, 0, 2);
        check<BFloat16>(GetParam(), ranks, 1, 300001, 300000, 1, 3);
        check<float>(GetParam(), ranks, 64, 2050, 2050, 0, 4);
        check<float>(GetParam(), ranks, 33, 4100, 4100, 1, 8);
        check<BFloat16>(GetParam(), ranks, 5, 60000, 7, 0, 5);
        check<Float16>(GetParam(), ranks, 5, 60000, 60000, 0, 6);
        check<float>(GetParam(), ranks, 2, 100, 50, 0, 7);  // few bytes, which go by NCCL if there is nothing else
      }
    }
  }
}

// More than what all threads of the largest grid load at once.
TEST_P(AllGatherTest, MoreBytesThanThreads) {
  PROLOGUE_EMULATE_ONCE(GetParam());
  if (!Ranks::why_not(GetParam(), 2).empty()) GTEST_SKIP() << Ranks::why_not(GetParam(), 2);
  const Ranks ranks(GetParam(), 2);
  check<BFloat16>(GetParam(), ranks, 9, 240008, 240000, 0, 1);
}

TEST_P(AllGatherTest, RefusesWhatTheContractForbids) {
  using P = AllGatherParams;
  const auto after = [](const void* pointer, int64_t elements) {
    return const_cast<float*>(static_cast<const float*>(pointer)) + elements;
  };
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_tokens = -2; }, "num_tokens is -2: it must lie in 0..2147483648"},
      {[](P& p) { p.width = 0; }, "width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.part_width = 0; }, "part_width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.part_width = 3; },
       "width is 4 and part_width 3, which leaves 4 columns to the last of 1 ranks: it must have 1 to part_width columns"},
      {[](P& p) { p.x = nullptr; }, "x is null"},
      {[](P& p) { p.y = nullptr; }, "y is null"},
      {[&](P& p) { p.y = after(p.x, 1); }, "y overlaps x"},
      {[&](P& p) { p.y = after(p.x, 0); }, "y overlaps x"},
  };
  const Ranks ranks(GetParam(), 1);
  ranks.run([&](int64_t) {
    expect_refusals("all_gather", refusals, [&](const auto& change) {
      Arena arena(GetParam());
      P p;
      p.num_tokens = 2, p.width = 4, p.part_width = 4, p.dtype = DType::f32;
      p.x = arena.input(std::vector<float>(8)), p.y = arena.output<float>(8);
      change(p);
      return refused(arena.run([&](const Execution& execution) { return all_gather(p, ranks[0], execution); }), arena);
    });
  });
}

TEST(AllGather, RefusesPartsThatDoNotFit) {
  const Ranks ranks(Backend::cpu, 3);
  AllGatherParams p;
  p.num_tokens = 1, p.dtype = DType::f32;
  for (const auto& [width, part_width, last] : {std::array<int64_t, 3>{8, 4, 0}, {13, 4, 5}, {3, 4, -5}}) {
    p.width = width, p.part_width = part_width;
    const Status status = all_gather(p, ranks[0], {});
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), str_cat("all_gather: width is ", width, " and part_width ", part_width, ", which leaves ", last,
                                        " columns to the last of 3 ranks: it must have 1 to part_width columns"));
    EXPECT_EQ(all_gather_workspace_bytes(p, ranks[0]), 0);
  }
}

TEST(AllGather, RefusesAnotherDevice) {
  const Ranks ranks(Backend::cpu, 1);
  Execution execution;
  execution.device = Device::cuda;
  const Status status = all_gather({}, ranks[0], execution);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "all_gather: the communicator was made for cpu, but the execution's device is cuda");
}

INSTANTIATE_TEST_SUITE_P(Backends, AllGatherTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
