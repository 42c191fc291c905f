#include <prologue/kernels/moe/moe_gemm.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/oracle/moe.h"
#include "tests/oracle/weight_blocks.h"
#include "tests/support/arena.h"
#include "tests/support/bits.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"
#include "tests/support/weight_blocks.h"

namespace prologue::test {
namespace {

class MoeGemmTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    auto context = GemmContext::create(backend_device(GetParam()));
    ASSERT_TRUE(context.ok()) << context.status().message();
    context_ = std::move(context).value();
  }
  std::unique_ptr<GemmContext> context_;
};

struct Case {
  int64_t num_tokens, top_k, num_experts, n, k;
  bool x_per_choice = false, bias = false, scale = false;
  int64_t misalign = 0;
  std::vector<WeightFormat> packed = {};  // of the segments, which have equal rows but for the first; none: dense

  int64_t segment_rows(size_t s) const {
    const int64_t count = static_cast<int64_t>(packed.size()), others = n / count / 16 * 16;
    return s == 0 ? n - (count - 1) * others : others;
  }
  int64_t rows() const { return num_tokens * top_k; }
};

template <class T>
struct Inputs {
  std::vector<T> x, weight, bias;
  std::vector<int32_t> ids;
  std::vector<float> scale;
  std::vector<std::vector<uint8_t>> blocks;  // [segment]: of its rows of all experts
};

// One id in 20 is no expert; expert 1 has about half of the rows, the last one none.
template <class T>
Inputs<T> make_inputs(const Case& c, uint64_t seed) {
  Random random(seed);
  Inputs<T> in;
  in.x = random.normals<T>((c.x_per_choice ? c.rows() : c.num_tokens) * c.k);
  if (c.packed.empty()) in.weight = random.normals<T>(c.num_experts * c.n * c.k, 0.1);
  for (size_t s = 0; s < c.packed.size(); ++s) {
    in.blocks.push_back(random_blocks(c.packed[s], c.num_experts * c.segment_rows(s), c.k, seed + s));
  }
  if (c.bias) in.bias = random.normals<T>(c.num_experts * c.n);
  if (c.scale) in.scale = random.normals<float>(c.rows());
  for (int64_t r = 0; r < c.rows(); ++r) {
    const int64_t none[] = {-1, c.num_experts, INT32_MAX, INT32_MIN};
    int64_t id = random.integer(0, 1) == 0 ? std::min<int64_t>(1, c.num_experts - 1)
                                           : random.integer(0, std::max<int64_t>(c.num_experts - 2, 0));
    if (random.integer(0, 19) == 0) id = none[random.integer(0, 3)];
    in.ids.push_back(static_cast<int32_t>(id));
  }
  return in;
}

template <class T>
std::vector<T> run_moe_gemm(Backend backend, GemmContext& context, const Case& c, const Inputs<T>& in) {
  Arena arena(backend);
  MoeGemmParams p;
  p.num_tokens = c.num_tokens;
  p.top_k = c.top_k;
  p.num_experts = c.num_experts;
  p.n = c.n;
  p.k = c.k;
  p.dtype = FloatFormat<T>::dtype;
  p.x_per_choice = c.x_per_choice;
  p.x = arena.input(in.x, c.misalign);
  if (c.packed.empty()) p.weight = arena.input(in.weight, c.misalign);
  for (size_t s = 0; s < c.packed.size(); ++s) {
    const int64_t rows = c.segment_rows(s);
    const auto packed = packed_blocks(c.packed[s], c.num_experts * rows, c.k, in.blocks[s]);
    p.packed.segments[p.packed.num_segments++] = {arena.input(packed, 16), c.packed[s], rows};
  }
  if (c.bias) p.bias = arena.input(in.bias, c.misalign);
  p.expert_ids = arena.input(in.ids, 4);
  if (c.scale) p.row_scale = arena.input(in.scale, 4);
  T* y = arena.output<T>(c.rows() * c.n, c.misalign);
  p.y = y;
  p.workspace_bytes = moe_gemm_workspace_bytes(p, backend_device(backend));
  if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
  const Status status = arena.run([&](const Execution& execution) { return moe_gemm(p, context, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return arena.read(y);
}

template <class T>
std::vector<Reference> reference(const Case& c, const Inputs<T>& in) {
  std::vector<Reference> want;
  for (int64_t r = 0; r < c.rows(); ++r) {
    const int64_t e = in.ids[static_cast<size_t>(r)];
    if (e < 0 || e >= c.num_experts) {
      want.resize(want.size() + static_cast<size_t>(c.n));
      continue;
    }
    const T* x = in.x.data() + (c.x_per_choice ? r : r / c.top_k) * c.k;
    const std::vector<Reference> row =
        oracle::expert_row(x, in.weight.data() + e * c.n * c.k, c.bias ? in.bias.data() + e * c.n : nullptr, c.n, c.k,
                           c.scale ? static_cast<double>(in.scale[static_cast<size_t>(r)]) : 1.0);
    want.insert(want.end(), row.begin(), row.end());
  }
  return want;
}

// These are the steps of gemm_test.
double steps_for(int64_t k) { return std::max(kDefaultSteps, std::sqrt(static_cast<double>(k))); }

// There are few, some and many rows per expert: this reaches every kernel, and on the CPU more rows than are copied at a time.
std::vector<Case> curated_cases(int64_t element_size) {
  std::vector<Case> cases;
  uint64_t seed = 0;
  for (const int64_t num_tokens : {0, 1, 2, 9, 33, 130}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {7, 33}, {64, 64}, {130, 96}, {70, 257}}) {
      for (const bool per_choice : {false, true}) {
        ++seed;
        cases.push_back({num_tokens, seed % 3 == 0 ? 1 : 3, seed % 4 == 0 ? 1 : 5, n, k, per_choice, seed % 2 == 0, seed % 5 < 2,
                         seed % 7 == 0 ? element_size : 0});
      }
    }
  }
  cases.push_back({3, 8, 128, 48, 40, false, true});        // more experts than rows
  cases.push_back({200, 4, 4, 16, 800, true, true, true});  // several blocks of k on the CPU
  cases.push_back({2, 32, 1024, 8, 16});
  return cases;
}

template <class T>
void check_curated_cases(Backend backend, GemmContext& context) {
  uint64_t seed = 1;
  for (const Case& c : curated_cases(static_cast<int64_t>(sizeof(T)))) {
    SCOPED_TRACE(testing::Message() << "T = " << c.num_tokens << ", top " << c.top_k << " of " << c.num_experts << ", n = " << c.n
                                    << ", k = " << c.k << (c.x_per_choice ? ", x per choice" : "") << (c.bias ? ", bias" : "")
                                    << (c.scale ? ", scale" : ""));
    const Inputs<T> in = make_inputs<T>(c, ++seed);
    expect_close(run_moe_gemm(backend, context, c, in), reference(c, in), c.n, "y", steps_for(c.k));
  }
}

TEST_P(MoeGemmTest, MatchesOracleFloat32) { check_curated_cases<float>(GetParam(), *context_); }
TEST_P(MoeGemmTest, MatchesOracleBFloat16) { check_curated_cases<BFloat16>(GetParam(), *context_); }
TEST_P(MoeGemmTest, MatchesOracleFloat16) { check_curated_cases<Float16>(GetParam(), *context_); }

// A row has the same bits alone and in any batch: in every kernel, and in any tile of it.
template <class T>
void check_batches(Backend backend, GemmContext& context, const std::vector<WeightFormat>& packed = {}) {
  for (const int64_t k : packed.empty() ? std::vector<int64_t>{80, 1000} : std::vector<int64_t>{256, 1792}) {
    Case all = {200, 2, 4, packed.empty() ? 40 : 48, k, false, true, true};
    all.packed = packed;
    const Inputs<T> in = make_inputs<T>(all, 5);
    const std::vector<T> batch = run_moe_gemm(backend, context, all, in);
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 1}, {7, 1}, {190, 7}, {100, 50}, {3, 197}}) {
      const auto part = [begin = begin, count = count](const auto& values, int64_t width) {
        return std::decay_t<decltype(values)>(values.begin() + begin * width, values.begin() + (begin + count) * width);
      };
      Case c = all;
      c.num_tokens = count;
      const Inputs<T> few = {part(in.x, k), in.weight, in.bias, part(in.ids, 2), part(in.scale, 2), in.blocks};
      const std::vector<T> got = run_moe_gemm(backend, context, c, few);
      EXPECT_TRUE(same_bits(got.data(), batch.data() + begin * 2 * c.n, count * 2 * c.n)) << begin << " " << count << ", k " << k;
    }
  }
}

TEST_P(MoeGemmTest, IndependentOfTheBatchFloat32) { check_batches<float>(GetParam(), *context_); }
TEST_P(MoeGemmTest, IndependentOfTheBatchBFloat16) { check_batches<BFloat16>(GetParam(), *context_); }

// ---- packed weights ----

// Codes of weights with a minimum are multiplied with `base` added, a number of T, which a product with the minimum takes off again: the terms of
// the sum are as large as that.
template <class T>
std::vector<Reference> packed_reference(const Case& c, const Inputs<T>& in) {
  constexpr double kBase = sizeof(T) == 4 ? 0.0 : FloatFormat<T>::mantissa_bits == 7 ? 128.0 : 1024.0;
  std::vector<double> weights(static_cast<size_t>(c.num_experts * c.n * c.k)), magnitudes(weights.size());
  for (int64_t e = 0, at = 0; e < c.num_experts; ++e) {
    for (size_t s = 0; s < c.packed.size(); ++s) {
      const int64_t rows = c.segment_rows(s);
      const int64_t row_bytes = c.k / weight_block_elements(c.packed[s]) * weight_block_bytes(c.packed[s]);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < c.k; ++i) {
          const oracle::WeightValue value =
              oracle::weight_value(c.packed[s], in.blocks[s].data() + (e * rows + row) * row_bytes, i);
          weights[static_cast<size_t>(at)] = value.value();
          const bool keeps_base =
              has_zero_point(c.packed[s]) || (minimum_at(c.packed[s]) >= 0 && c.packed[s] != WeightFormat::q2_k);
          const double base = keeps_base ? kBase : 0.0;
          magnitudes[static_cast<size_t>(at++)] =
              std::fabs(value.scale) * (std::fabs(value.code) + 2.0 * base) + std::fabs(value.minimum);
        }
      }
    }
  }
  std::vector<Reference> want;
  for (int64_t r = 0; r < c.rows(); ++r) {
    const int64_t e = in.ids[static_cast<size_t>(r)];
    std::vector<Reference> row(static_cast<size_t>(c.n));
    if (e >= 0 && e < c.num_experts) {
      row = oracle::expert_row(in.x.data() + (c.x_per_choice ? r : r / c.top_k) * c.k, weights.data() + e * c.n * c.k,
                               c.bias ? in.bias.data() + e * c.n : nullptr, c.n, c.k,
                               c.scale ? static_cast<double>(in.scale[static_cast<size_t>(r)]) : 1.0);
      for (int64_t n = 0; n < c.n; ++n) {
        double& scale = row[static_cast<size_t>(n)].scale;
        scale = c.bias ? std::fabs(static_cast<double>(to_float(in.bias[static_cast<size_t>(e * c.n + n)]))) : 0.0;
        for (int64_t i = 0; i < c.k; ++i) {
          const double x = static_cast<double>(to_float(in.x[static_cast<size_t>((c.x_per_choice ? r : r / c.top_k) * c.k + i)]));
          const double factor = c.scale ? static_cast<double>(in.scale[static_cast<size_t>(r)]) : 1.0;
          scale += std::fabs(factor * x) * magnitudes[static_cast<size_t>((e * c.n + n) * c.k + i)];
        }
      }
    }
    want.insert(want.end(), row.begin(), row.end());
  }
  return want;
}

// On the CPU x is quantised, as gemm() does it: a row is that of gemm() with its expert's weights.
template <class T>
void expect_rows_of_gemm(GemmContext& context, const Case& c, const Inputs<T>& in, const std::vector<T>& y) {
  for (int64_t r = 0; r < c.rows(); ++r) {
    const int64_t e = in.ids[static_cast<size_t>(r)];
    std::vector<float> sums(static_cast<size_t>(c.n));
    if (e >= 0 && e < c.num_experts) {
      Arena arena(Backend::cpu);
      GemmParams p;
      p.m = 1, p.n = p.y_stride = c.n, p.k = p.x_stride = c.k, p.dtype = FloatFormat<T>::dtype, p.y_dtype = DType::f32;
      p.x = in.x.data() + (c.x_per_choice ? r : r / c.top_k) * c.k;
      p.y = sums.data();
      for (size_t s = 0; s < c.packed.size(); ++s) {
        const int64_t rows = c.segment_rows(s),
                      bytes = rows * (c.k / weight_block_elements(c.packed[s])) * weight_block_bytes(c.packed[s]);
        const auto begin = in.blocks[s].begin() + e * bytes;
        p.packed.segments[p.packed.num_segments++] = {arena.input(packed_blocks(c.packed[s], rows, c.k, {begin, begin + bytes})),
                                                      c.packed[s], rows};
      }
      const Status status = gemm(p, context, {Device::cpu, 1});
      ASSERT_TRUE(status.ok()) << status.message();
      for (int64_t n = 0; n < c.n; ++n) {
        float& sum = sums[static_cast<size_t>(n)];
        if (c.scale) sum *= in.scale[static_cast<size_t>(r)];
        if (c.bias) sum += to_float(in.bias[static_cast<size_t>(e * c.n + n)]);
      }
    }
    for (int64_t n = 0; n < c.n; ++n) {
      const T want = from_float<T>(sums[static_cast<size_t>(n)]);
      ASSERT_TRUE(same_bits(&want, y.data() + r * c.n + n, 1)) << "row " << r << ", column " << n;
    }
  }
}

std::vector<Case> packed_cases() {
  std::vector<Case> cases;
  uint64_t seed = 0;
  for (const WeightFormat format : kWeightFormats) {
    const int64_t block = weight_block_elements(format);
    for (const int64_t num_tokens : {1, 9, 130}) {  // few and many rows of an expert
      ++seed;
      cases.push_back({num_tokens,
                       seed % 3 == 0 ? 1 : 3,
                       seed % 4 == 0 ? 1 : 5,
                       16 * static_cast<int64_t>(1 + seed % 3),
                       block * static_cast<int64_t>(1 + seed % 3),
                       seed % 2 == 0,
                       seed % 5 < 2,
                       seed % 4 < 2,
                       0,
                       {format}});
    }
    cases.push_back({4, 2, 3, 48, block * 5, false, true, false, 0, {format, format}});
  }
  for (const int64_t num_tokens : {1, 3, 70}) {
    cases.push_back(
        {num_tokens, 2, 4, 80, 512, false, true, true, 0, {WeightFormat::q4_k, WeightFormat::q6_k, WeightFormat::q8_0}});
    cases.push_back({num_tokens, 4, 2, 32, 1280, true, false, true, 0, {WeightFormat::f8_e4m3, WeightFormat::q5_0}});
  }
  return cases;
}

template <class T>
void check_packed_cases(Backend backend, GemmContext& context) {
  uint64_t seed = 100;
  for (const Case& c : packed_cases()) {
    SCOPED_TRACE(testing::Message() << weight_format_name(c.packed.front()) << " and " << c.packed.size() - 1
                                    << " others, T = " << c.num_tokens << ", top " << c.top_k << " of " << c.num_experts
                                    << ", n = " << c.n << ", k = " << c.k << (c.x_per_choice ? ", x per choice" : "")
                                    << (c.bias ? ", bias" : "") << (c.scale ? ", scale" : ""));
    const Inputs<T> in = make_inputs<T>(c, ++seed);
    const std::vector<T> y = run_moe_gemm(backend, context, c, in);
    if (backend_device(backend) == Device::cpu) {
      expect_rows_of_gemm(context, c, in, y);
    } else {
      expect_close(y, packed_reference(c, in), c.n, "y", steps_for(c.k), false);
    }
  }
}

TEST_P(MoeGemmTest, PackedWeightsFloat32) { check_packed_cases<float>(GetParam(), *context_); }
TEST_P(MoeGemmTest, PackedWeightsBFloat16) { check_packed_cases<BFloat16>(GetParam(), *context_); }
TEST_P(MoeGemmTest, PackedWeightsFloat16) { check_packed_cases<Float16>(GetParam(), *context_); }

TEST_P(MoeGemmTest, PackedWeightsIndependentOfTheBatch) {
  for (const std::vector<WeightFormat>& packed :
       {std::vector{WeightFormat::q4_0}, {WeightFormat::q4_k, WeightFormat::q6_k}, {WeightFormat::f8_e4m3}}) {
    check_batches<BFloat16>(GetParam(), *context_, packed);
  }
}

TEST_P(MoeGemmTest, WorkspaceForManyTokensIsEnoughForFewer) {
  for (const auto& [dtype, packed] : {std::pair{DType::f32, false}, {DType::bf16, false}, {DType::bf16, true}}) {
    int64_t before = 0;
    for (int64_t num_tokens = 1; num_tokens < 700; ++num_tokens) {
      MoeGemmParams p;
      if (packed) p.packed.num_segments = 1, p.packed.segments[0] = {nullptr, WeightFormat::q8_0, 32};
      p.num_tokens = num_tokens;
      p.top_k = 3;
      p.num_experts = 5;
      p.n = p.k = 32;
      p.dtype = dtype;
      const int64_t bytes = moe_gemm_workspace_bytes(p, backend_device(GetParam()));
      EXPECT_GE(bytes, before) << num_tokens;
      EXPECT_EQ(bytes % 16, 0);
      before = bytes;
    }
  }
}

TEST_P(MoeGemmTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  using P = MoeGemmParams;
  const auto at = [](const void* pointer) { return const_cast<void*>(pointer); };
  const auto valid_call = [](Arena& arena, Backend backend) {
    P p;
    p.num_tokens = 4;
    p.top_k = 2;
    p.num_experts = 3;
    p.n = 4;
    p.k = 8;
    p.dtype = DType::f32;
    p.x = arena.input(std::vector<float>(32));
    p.weight = arena.input(std::vector<float>(96));
    p.bias = arena.input(std::vector<float>(32));
    p.expert_ids = arena.input(std::vector<int32_t>(32));
    p.row_scale = arena.input(std::vector<float>(32));
    p.y = arena.output<float>(32);
    p.workspace_bytes = moe_gemm_workspace_bytes(p, backend_device(backend));
    p.workspace = arena.workspace(p.workspace_bytes);
    return p;
  };
  Arena sizes(GetParam());
  const int64_t needed = valid_call(sizes, GetParam()).workspace_bytes;
  const std::string needs = " bytes: this call needs " + std::to_string(needed) + " (see moe_gemm_workspace_bytes)";
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_experts = 0; }, kInvalid, "num_experts is 0: it must lie in 1..1024"},
      {[](P& p) { p.top_k = 33; }, kInvalid, "top_k is 33: it must lie in 1..32"},
      {[](P& p) { p.num_tokens = -1; }, kInvalid, "num_tokens is -1: it must lie in 0..536870912"},
      {[](P& p) { p.n = 0; }, kInvalid, "n is 0: it must lie in 1..1048576"},
      {[](P& p) { p.k = 0; }, kInvalid, "k is 0: it must lie in 1..16777216"},
      {[](P& p) { p.x = nullptr; }, kInvalid, "x is null"},
      {[](P& p) { p.weight = nullptr; }, kInvalid, "weight is null"},
      {[](P& p) { p.expert_ids = nullptr; }, kInvalid, "expert_ids is null"},
      {[](P& p) { p.y = nullptr; }, kInvalid, "y is null"},
      {[&](P& p) { p.y = at(p.x); }, kInvalid, "y overlaps x"},
      {[&](P& p) { p.y = at(p.weight); }, kInvalid, "y overlaps weight"},
      {[&](P& p) { p.y = at(p.bias); }, kInvalid, "y overlaps bias"},
      {[&](P& p) { p.y = at(p.expert_ids); }, kInvalid, "y overlaps expert_ids"},
      {[&](P& p) { p.y = at(p.row_scale); }, kInvalid, "y overlaps row_scale"},
      {[&](P& p) { p.y = p.workspace; }, kInvalid, "y overlaps workspace"},
      {[](P& p) { p.packed.num_segments = 1; }, kInvalid,
       "packed.num_segments is 1: the weights are the segments, and weight must be null"},
      {[](P& p) {
         p.weight = nullptr, p.packed.num_segments = 1, p.packed.segments[0] = {p.x, WeightFormat::q8_0, 4};
       },
       kInvalid, "k is 8: q8_0 needs a multiple of 32"},
      {[](P& p) {
         p.weight = nullptr, p.k = 32, p.packed.num_segments = 1, p.packed.segments[0] = {p.x, WeightFormat::q8_0, 4};
       },
       StatusCode::unsupported, "packed.segments[0].rows is 4: it must be a multiple of 16"},
      {[](P& p) { p.workspace = nullptr; }, "workspace has 0" + needs},
      {[](P& p) { --p.workspace_bytes; }, "workspace has " + std::to_string(needed - 1) + needs},
  };
  expect_refusals("moe_gemm", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p = valid_call(arena, GetParam());
    change(p);
    return refused(arena.run([&](const Execution& execution) { return moe_gemm(p, *context_, execution); }), arena);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MoeGemmTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
