#include <prologue/kernels/collective/all_reduce.h>

#include <gtest/gtest.h>

#include <cmath>
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

class AllReduceTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

struct Case {
  int64_t num_tokens = 0, width = 0;
  bool adds = false, in_place = false;
  int64_t misalign = 0;  // elements, of ranks 0, 2, ...
  bool overlaps = false;
};

// Returns what each rank has in y.
template <class T>
std::vector<std::vector<T>> run(Backend backend, const Ranks& ranks, const Case& c, const std::vector<std::vector<T>>& parts,
                                const std::vector<T>& before) {
  std::vector<std::vector<T>> got(parts.size());
  ranks.run([&](int64_t rank) {
    const std::vector<T>& part = parts[static_cast<size_t>(rank)];
    const int64_t misalign = rank % 2 == 0 ? c.misalign * static_cast<int64_t>(sizeof(T)) : 0;
    Arena arena(backend);
    T* y = c.in_place ? arena.inout(part, misalign)
           : c.adds   ? arena.inout(before, misalign)
                      : arena.output<T>(c.num_tokens * c.width, misalign);
    AllReduceParams p;
    p.num_tokens = c.num_tokens;
    p.width = c.width;
    p.dtype = FloatFormat<T>::dtype;
    p.adds = c.adds ? 1 : 0;
    p.x = c.in_place ? y : arena.input(part, misalign);
    p.y = y;
    p.overlaps = c.overlaps;
    ranks.meet();
    const Status status = arena.run([&](const Execution& execution) { return all_reduce(p, ranks[rank], execution); });
    ranks.meet();
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(ranks[rank].status().ok()) << ranks[rank].status().message();
    got[static_cast<size_t>(rank)] = arena.read(y);
  });
  return got;
}

// rounds_once: not where NCCL adds up, which may round after each term.
template <class T>
void check(Backend backend, const Ranks& ranks, const Case& c, uint64_t seed, bool rounds_once = true) {
  SCOPED_TRACE(testing::Message() << ranks.size() << " ranks, T = " << c.num_tokens << ", width " << c.width << ", adds "
                                  << c.adds << ", in place " << c.in_place << ", misaligned by " << c.misalign);
  Random random(seed);
  std::vector<std::vector<T>> parts;
  for (int64_t r = 0; r < ranks.size(); ++r) parts.push_back(random.normals<T>(c.num_tokens * c.width));
  const std::vector<T> before = c.adds ? random.normals<T>(c.num_tokens * c.width) : std::vector<T>();
  const std::vector<std::vector<T>> got = run(backend, ranks, c, parts, before);
  const double rounding = std::ldexp(1.0, 23 - FloatFormat<T>::mantissa_bits);  // half an ulp, in 2^-24 of the value
  const double steps = kDefaultSteps + (rounds_once ? 0.0 : static_cast<double>(ranks.size() + 1) * rounding);
  expect_close(got[0], oracle::all_reduce(parts, before), c.width, "y", steps, rounds_once);
  for (const std::vector<T>& y : got) {
    ASSERT_EQ(y.size(), got[0].size());
    EXPECT_TRUE(y.empty() || std::memcmp(y.data(), got[0].data(), y.size() * sizeof(T)) == 0);
  }
}

template <class T>
void check_curated_cases(Backend backend) {
  uint64_t seed = 1;
  for (const int64_t num_ranks : group_sizes(backend)) {
    const Ranks ranks(backend, num_ranks);
    for (const int64_t num_tokens : {0, 1, 5, 64}) {
      for (const int64_t width : {1, 15, 576, 1031}) {
        Case c;
        ++seed;
        c.num_tokens = num_tokens, c.width = width;
        c.adds = seed % 3 == 0, c.in_place = seed % 3 == 1;
        c.misalign = seed % 5 == 0 ? 1 : 0;
        c.overlaps = seed % 2 == 0;
        check<T>(backend, ranks, c, seed);
      }
    }
    for (const bool adds : {false, true}) check<T>(backend, ranks, {1, 4096, adds, !adds, 0, true}, ++seed);
  }
}

TEST_P(AllReduceTest, IsTheSumRoundedOnceFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(AllReduceTest, IsTheSumRoundedOnceBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(AllReduceTest, IsTheSumRoundedOnceFloat16) { check_curated_cases<Float16>(GetParam()); }

// A group of one rank, whose kernels wait for nobody: scripts/test_gpu runs it under compute-sanitizer.
template <class T>
void check_one_rank(Backend backend) {
  const Ranks ranks(backend, 1);
  uint64_t seed = 1;
  for (const int64_t width : {1, 15, 4096, 300001}) {
    for (const bool adds : {false, true}) check<T>(backend, ranks, {1, width, adds, !adds, width % 2}, ++seed);
  }
}

TEST_P(AllReduceTest, OneRankFloat32) { check_one_rank<float>(GetParam()); }
TEST_P(AllReduceTest, OneRankBFloat16) { check_one_rank<BFloat16>(GetParam()); }
TEST_P(AllReduceTest, OneRankFloat16) { check_one_rank<Float16>(GetParam()); }

// More bytes than the kernels push: read from the other ranks' memory and written to it, or by NCCL.
template <class T>
void check_many_bytes(Backend backend) {
  for (const bool nccl : {false, true}) {
    for (const bool peer_memory : {true, false}) {
      if (backend_device(backend) == Device::cpu && (nccl || !peer_memory)) continue;  // these are CUDA's
      CommunicatorOptions options;
      options.use_nccl = nccl, options.use_peer_memory = peer_memory;
      for (const int64_t num_ranks : group_sizes(backend, options)) {
        const Ranks ranks(backend, num_ranks, options);
        const int64_t width = 4099, tokens = AllReduceParams::kFewBytes / static_cast<int64_t>(sizeof(T)) / width + 2;
        const bool rounds_once = peer_memory || num_ranks == 1;
        check<T>(backend, ranks, {tokens, width, false, false}, 1, rounds_once);
        check<T>(backend, ranks, {tokens, width, true, false, 1}, 2, rounds_once);
        check<T>(backend, ranks, {tokens, width, false, true, 0, true}, 3, rounds_once);
        check<T>(backend, ranks, {tokens, width, true, false}, 5, rounds_once);
        check<T>(backend, ranks, {3, 700, true, false}, 4, rounds_once);  // few bytes, which go by NCCL if there is nothing else
      }
    }
  }
}

TEST_P(AllReduceTest, ManyBytesFloat32) { check_many_bytes<float>(GetParam()); }
TEST_P(AllReduceTest, ManyBytesBFloat16) { check_many_bytes<BFloat16>(GetParam()); }
TEST_P(AllReduceTest, ManyBytesFloat16) { check_many_bytes<Float16>(GetParam()); }

// More than what all threads of the largest grid load at once.
TEST_P(AllReduceTest, MoreBytesThanThreads) {
  PROLOGUE_EMULATE_ONCE(GetParam());
  if (!Ranks::why_not(GetParam(), 2).empty()) GTEST_SKIP() << Ranks::why_not(GetParam(), 2);
  const Ranks ranks(GetParam(), 2);
  check<BFloat16>(GetParam(), ranks, {700, 6501, true, false}, 1);
}

// Sums whose value depends on the order: the ranks in theirs, then y.
TEST_P(AllReduceTest, AddsInTheOrderOfTheRanks) {
  for (const int64_t num_ranks : group_sizes(GetParam())) {
    const Ranks ranks(GetParam(), num_ranks);
    for (const Case& c : {Case{3, 700, false}, Case{3, 700, true}, Case{2, 70001, false}, Case{2, 70001, true}}) {
      Random random(static_cast<uint64_t>(num_ranks));
      std::vector<std::vector<float>> parts;
      for (int64_t r = 0; r < num_ranks; ++r) parts.push_back(random.normals<float>(c.num_tokens * c.width));
      const std::vector<float> before = random.normals<float>(c.num_tokens * c.width);
      std::vector<float> want = parts[0];
      const auto add = [&](const std::vector<float>& terms) {
        for (size_t i = 0; i < terms.size(); ++i) want[i] += terms[i];
      };
      for (size_t r = 1; r < parts.size(); ++r) add(parts[r]);
      if (c.adds) add(before);
      for (const std::vector<float>& y : run(GetParam(), ranks, c, parts, before)) EXPECT_EQ(y, want);
    }
  }
}

// One call after another, of different sizes, some of which need other pieces.
TEST_P(AllReduceTest, ManyCallsFollowEachOther) {
  for (const int64_t num_ranks : group_sizes(GetParam())) {
    const Ranks ranks(GetParam(), num_ranks);
    ranks.run([&](int64_t rank) {
      Random random(17);  // the same on all ranks
      Arena arena(GetParam());
      constexpr int kCalls = 40;
      std::vector<AllReduceParams> calls;
      std::vector<std::pair<float*, float>> results;
      for (int i = 0; i < kCalls; ++i) {
        AllReduceParams p;
        p.num_tokens = random.integer(1, 3), p.width = random.integer(1, 3000), p.dtype = DType::f32;
        if (i % 7 >= 5) p.num_tokens = random.integer(64, 80), p.width = random.integer(2050, 2100);  // many bytes
        const size_t count = static_cast<size_t>(p.num_tokens * p.width);
        const auto part = [&](int64_t r) { return static_cast<float>((i + 1) * (r + 1)); };
        p.x = arena.input(std::vector<float>(count, part(rank)));
        float* y = arena.output<float>(static_cast<int64_t>(count));
        p.y = y;
        p.overlaps = i % 2 == 1;
        float sum = 0.0f;
        for (int64_t r = 0; r < num_ranks; ++r) sum += part(r);
        calls.push_back(p);
        results.emplace_back(y, sum);
      }
      ranks.meet();
      const Status status = arena.run([&](const Execution& execution) {
        for (const AllReduceParams& p : calls) PROLOGUE_RETURN_IF_ERROR(all_reduce(p, ranks[rank], execution));
        return Status();
      });
      ranks.meet();
      EXPECT_TRUE(status.ok()) << status.message();
      for (const auto& [y, sum] : results) {
        for (const float value : arena.read(y)) ASSERT_EQ(value, sum);
      }
    });
  }
}

TEST_P(AllReduceTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  using P = AllReduceParams;
  const auto after = [](const void* pointer, int64_t elements) {
    return const_cast<float*>(static_cast<const float*>(pointer)) + elements;
  };
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_tokens = -2; }, kInvalid, "num_tokens is -2: it must lie in 0..2147483648"},
      {[](P& p) { p.width = 0; }, kInvalid, "width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.x = nullptr; }, kInvalid, "x is null"},
      {[](P& p) { p.y = nullptr; }, kInvalid, "y is null"},
      {[&](P& p) { p.x = reinterpret_cast<const char*>(p.x) + 1; }, kInvalid, ""},
      {[&](P& p) { p.y = after(p.x, 1); }, kInvalid, "y overlaps x"},
      {[&](P& p) { p.y = after(p.x, 0), p.adds = 1; }, kInvalid, "y overlaps x"},
  };
  const Ranks ranks(GetParam(), 1);
  ranks.run([&](int64_t) {
    expect_refusals("all_reduce", refusals, [&](const auto& change) {
      Arena arena(GetParam());
      P p;
      p.num_tokens = 2, p.width = 4, p.dtype = DType::f32;
      p.x = arena.input(std::vector<float>(8)), p.y = arena.output<float>(8);
      change(p);
      return refused(arena.run([&](const Execution& execution) { return all_reduce(p, ranks[0], execution); }), arena);
    });
  });
}

TEST(AllReduce, RefusesAnotherDevice) {
  const Ranks ranks(Backend::cpu, 1);
  Execution execution;
  execution.device = Device::cuda;
  const Status status = all_reduce({}, ranks[0], execution);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "all_reduce: the communicator was made for cpu, but the execution's device is cuda");
}

INSTANTIATE_TEST_SUITE_P(Backends, AllReduceTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
