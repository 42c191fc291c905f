#include <prologue/kernels/token_ops/add.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class AddTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

enum class Out { apart, a, b };

// The rows are `stride` apart. What is between them must keep its contents.
template <class T>
void check(Backend backend, int64_t num_tokens, int64_t width, int64_t padding, Out where, int64_t misalign, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "T = " << num_tokens << ", width " << width << ", padding " << padding << ", out "
                                  << static_cast<int>(where));
  Random random(seed);
  const int64_t stride = width + padding, b_stride = where == Out::b ? stride : width + 2 * padding;
  const std::vector<T> a = random.normals<T>(num_tokens * stride), b = random.normals<T>(num_tokens * b_stride);
  Arena arena(backend);
  T* out = where == Out::a   ? arena.inout(a, misalign)
           : where == Out::b ? arena.inout(b, misalign)
                             : arena.output<T>(num_tokens * stride, misalign);
  std::vector<T> want = where == Out::a ? a : where == Out::b ? b : poisoned<T>(num_tokens * stride);
  AddParams p;
  p.num_tokens = num_tokens;
  p.width = width;
  p.dtype = FloatFormat<T>::dtype;
  p.a = where == Out::a ? out : arena.input(a, misalign);
  p.a_stride = stride;
  p.b = where == Out::b ? out : arena.input(b, misalign);
  p.b_stride = b_stride;
  p.out = out;
  p.out_stride = stride;
  const Status status = arena.run([&](const Execution& execution) { return add(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const float x = to_float(a[static_cast<size_t>(t * stride + i)]), y = to_float(b[static_cast<size_t>(t * b_stride + i)]);
      want[static_cast<size_t>(t * stride + i)] = from_float<T>(x + y);
    }
  }
  const std::vector<T> got = arena.read(out);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_TRUE(got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0);
}

template <class T>
void check_curated_cases(Backend backend) {
  uint64_t seed = 1;
  for (const int64_t num_tokens : {0, 1, 3, 65}) {
    for (const int64_t width : {1, 15, 64, 513, 2304}) {
      for (const Out where : {Out::apart, Out::a, Out::b}) {
        ++seed;
        check<T>(backend, num_tokens, width,
                 seed % 3 == 0   ? 0
                 : seed % 3 == 1 ? 8
                                 : 5,
                 where, seed % 5 == 0 ? static_cast<int64_t>(sizeof(T)) : 0, seed);
      }
    }
  }
}

TEST_P(AddTest, IsTheSumRoundedOnceFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(AddTest, IsTheSumRoundedOnceBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(AddTest, IsTheSumRoundedOnceFloat16) { check_curated_cases<Float16>(GetParam()); }

TEST_P(AddTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  using P = AddParams;
  const auto after = [](const void* pointer, int64_t elements) {
    return const_cast<float*>(static_cast<const float*>(pointer)) + elements;
  };
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_tokens = -2; }, kInvalid, "num_tokens is -2: it must lie in 0..2147483648"},
      {[](P& p) { p.width = 0; }, kInvalid, "width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.a = nullptr; }, kInvalid, "a is null"},
      {[](P& p) { p.b = nullptr; }, kInvalid, "b is null"},
      {[](P& p) { p.out = nullptr; }, kInvalid, "out is null"},
      {[](P& p) { p.a_stride = -4; }, kInvalid, "a has the stride -4: strides must not be negative"},
      {[](P& p) { p.out_stride = 3; }, kInvalid,
       "out has the stride 3 where 4 elements lie: rows that are written must not overlap"},
      {[&](P& p) { p.out = after(p.a, 1); }, kInvalid, "out overlaps a"},
      {[&](P& p) { p.out = after(p.b, 1); }, kInvalid, "out overlaps b"},
      {[&](P& p) { p.out = after(p.b, 0), p.b_stride = 0; }, kInvalid, "out overlaps b"},
  };
  expect_refusals("add", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p{2, 4, DType::f32, arena.input(std::vector<float>(8)), 4, arena.input(std::vector<float>(8)), 4, arena.output<float>(8),
        4};
    change(p);
    return refused(arena.run([&](const Execution& execution) { return add(p, execution); }), arena);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, AddTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
