// Tests a linear layer with what surrounds it, on small whole numbers, so that every order of a sum gives the same product, exactly. Then
// the operation must give what float64 gives, rounded where the contract says so, and the bits of the separate operations, whatever it
// consists of. A second test holds ordinary numbers to float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/projection.h>
#ifdef PROLOGUE_HAS_CUDA
#include <prologue/kernels/projection/instances.h>
#endif

#include "tests/oracle/token_ops.h"
#include "tests/oracle/weight_blocks.h"
#include "tests/support/arena.h"
#include "tests/support/combinations.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"
#include "tests/support/weight_blocks.h"

namespace prologue::test {
namespace {

struct Case {
  int64_t num_tokens = 3, n = 48, k = 96, x_padding = 0, y_padding = 0;
  bool normed = false, weighted = true, float_weights = false, bias = false, adds = false, activates = false, gated = false;
  Activation kind = Activation::silu;
  bool float_y = false;
  bool whole = true;  // small whole numbers
  // The formats of packed weights, with as many rows each (the first has what is left); none: they are dense.
  std::vector<WeightFormat> packed = {};

  int64_t rows() const { return activates && gated ? 2 * n : n; }
  int64_t x_stride() const { return k + x_padding; }
  int64_t y_stride() const { return n + y_padding; }
  std::string describe() const {
    return str_cat("T=", num_tokens, " n=", n, "+", y_padding, " k=", k, "+", x_padding, " norm=", normed, weighted,
                   float_weights, " bias=", bias, " adds=", adds, " activates=", activates, gated,
                   " kind=", static_cast<int>(kind), " float_y=", float_y,
                   packed.empty() ? "" : " packed=", packed.empty() ? "" : weight_format_name(packed.front()));
  }
  // The rows of a segment, a multiple of 16.
  int64_t rows_of_segment(size_t segment) const {
    const int64_t segments = static_cast<int64_t>(packed.size()), equal = rows() / segments / 16 * 16;
    return segment == 0 ? rows() - (segments - 1) * equal : equal;
  }
};

struct Data {
  std::vector<float> x, norm_weight, weight, bias, y;
  std::vector<std::vector<uint8_t>> blocks;  // of the segments of packed weights; `weight` has their values
};

// Makes packed weights.
void make_blocks(const Case& c, Data& d) {
  d.weight.clear();
  for (size_t s = 0; s < c.packed.size(); ++s) {
    const WeightFormat format = c.packed[s];
    const int64_t rows = c.rows_of_segment(s), row_bytes = c.k / weight_block_elements(format) * weight_block_bytes(format);
    d.blocks.push_back(c.whole ? whole_blocks(format, rows, c.k, s + 3) : random_blocks(format, rows, c.k, s + 3));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < c.k; ++i) {
        d.weight.push_back(static_cast<float>(oracle::weight_value(format, d.blocks.back().data() + row * row_bytes, i).value()));
      }
    }
  }
}

Data make_data(const Case& c) {
  Random random(static_cast<uint64_t>(c.num_tokens * 1000 + c.k));
  Data d;
  if (!c.whole) {
    d.x = random.normals<float>(c.num_tokens * c.k);
    d.norm_weight = random.normals<float>(c.k);
    d.weight = random.normals<float>(c.rows() * c.k);
    d.bias = random.normals<float>(c.rows());
    d.y = random.normals<float>(c.num_tokens * c.y_stride());
    for (std::vector<float>* values : {&d.x, &d.norm_weight, &d.weight, &d.bias, &d.y}) {
      for (float& value : *values) value = to_float(from_float<BFloat16>(value));
    }
    if (!c.packed.empty()) make_blocks(c, d);
    return d;
  }
  const auto whole = [&](int64_t count, int low, int high) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(random.integer(low, high)));
    return values;
  };
  for (int64_t t = 0; t < c.num_tokens; ++t) {  // a row has one magnitude: 1 / sqrt(mean of squares) is a power of two
    const float magnitude = c.normed && t % 2 != 0 ? 4.0f : 1.0f;
    for (int64_t i = 0; i < c.k; ++i) d.x.push_back(random.integer(0, 1) == 0 ? magnitude : -magnitude);
  }
  d.norm_weight = whole(c.k, 1, 2);
  d.weight.resize(static_cast<size_t>(c.rows() * c.k));
  for (int64_t row = 0; row < c.rows(); ++row) {
    for (int i = 0; i < 24; ++i)
      d.weight[static_cast<size_t>(row * c.k + random.integer(0, c.k - 1))] = static_cast<float>(random.integer(-2, 2));
  }
  d.bias = whole(c.rows(), -8, 8);
  if (c.float_y) {  // sums that 16 bits do not hold
    for (float& bias : d.bias) bias *= 4096.0f;
  }
  d.y = whole(c.num_tokens * c.y_stride(), -50, 50);
  if (!c.packed.empty()) make_blocks(c, d);
  return d;
}

template <class T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> out;
  for (const float value : values) out.push_back(from_float<T>(value));
  return out;
}

// Holds the case in memory.
template <class T>
struct Placed {
  Arena arena;
  ProjectionParams params;

  Placed(Backend backend, const Case& c, const Data& d) : arena(backend) {
    params.num_tokens = c.num_tokens, params.n = c.n, params.k = c.k, params.dtype = FloatFormat<T>::dtype;
    std::vector<float> x(static_cast<size_t>(c.num_tokens * c.x_stride()), std::nanf(""));
    for (int64_t t = 0; t < c.num_tokens; ++t) std::copy_n(d.x.begin() + t * c.k, c.k, x.begin() + t * c.x_stride());
    params.x = arena.input(rounded<T>(x));
    params.x_stride = c.x_stride();
    params.norm.given = c.normed ? 1 : 0;
    params.norm.eps = 0.0f;
    if (c.normed && c.weighted) {
      params.norm.weight_type = c.float_weights ? DType::f32 : DType::unset;
      params.norm.weight =
          c.float_weights ? static_cast<const void*>(arena.input(d.norm_weight)) : arena.input(rounded<T>(d.norm_weight));
    }
    for (size_t s = 0; s < c.packed.size(); ++s) {
      const int64_t rows = c.rows_of_segment(s);
      constexpr int64_t kOffAlignment = 16;  // not aligned to more
      params.packed.segments[params.packed.num_segments++] = {
          arena.input(packed_blocks(c.packed[s], rows, c.k, d.blocks[s]), kOffAlignment), c.packed[s], rows};
    }
    if (c.packed.empty()) params.weight = arena.input(rounded<T>(d.weight));
    if (c.bias) params.bias = arena.input(rounded<T>(d.bias));
    params.activation.given = c.activates ? 1 : 0;
    params.activation.kind = c.kind;
    params.activation.gated = c.gated;
    params.y_dtype = c.float_y ? DType::f32 : DType::unset;
    params.y = c.float_y ? static_cast<void*>(arena.inout(d.y)) : arena.inout(rounded<T>(d.y));
    params.y_stride = c.y_stride();
    params.adds = c.adds ? 1 : 0;
    params.workspace_bytes = projection_workspace_bytes(params);
    params.workspace = arena.workspace(params.workspace_bytes);
  }

  std::vector<float> y() {
    if (params.y_dtype == DType::f32) return arena.read(static_cast<const float*>(params.y));
    std::vector<float> values;
    for (const T value : arena.read(static_cast<const T*>(params.y))) values.push_back(to_float(value));
    return values;
  }
};

// The contract says this of whole numbers: products and sums are exact, so only activations may be a unit in the last place off, or 1e-6 of
// what they multiply.
template <class T>
void expect_oracle(const Case& c, const Data& d, const std::vector<float>& got) {
  const auto in_type = [&](double x) {
    return c.float_y ? double{static_cast<float>(x)} : static_cast<double>(to_float(from_float<T>(static_cast<float>(x))));
  };
  const auto activated = [&](double gate, double up) {
    switch (c.kind) {
      case Activation::silu: return oracle::silu(gate) * up;
      case Activation::gelu_tanh: return oracle::gelu_tanh(gate) * up;
      case Activation::gelu: return oracle::gelu(gate) * up;
      case Activation::relu: return std::max(gate, 0.0) * up;
      case Activation::relu2: return std::max(gate, 0.0) * std::max(gate, 0.0) * up;
      case Activation::clamped_swiglu: return oracle::clamped_swiglu(gate, up, 7.0, 1.702f);
    }
    return 0.0;
  };
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const float* const x = &d.x[static_cast<size_t>(t * c.k)];
    const double inverse = c.normed ? 1.0 / std::fabs(double{x[0]}) : 1.0;  // all elements of a row have one magnitude
    std::vector<double> normed(x, x + c.k);
    for (int64_t i = 0; i < c.k; ++i) {
      normed[static_cast<size_t>(i)] *= inverse;
      if (c.normed && c.weighted) normed[static_cast<size_t>(i)] *= double{d.norm_weight[static_cast<size_t>(i)]};
    }
    const auto product = [&](int64_t row) {
      const float* const weight = &d.weight[static_cast<size_t>(row * c.k)];
      double sum = c.bias ? double{d.bias[static_cast<size_t>(row)]} : 0.0;
      for (int64_t i = 0; i < c.k; ++i) sum += normed[static_cast<size_t>(i)] * double{weight[i]};
      return in_type(sum);
    };
    for (int64_t i = 0; i < c.y_stride(); ++i) {
      const auto at = static_cast<size_t>(t * c.y_stride() + i);
      const double before = in_type(d.y[at]);
      if (i >= c.n) {
        ASSERT_EQ(got[at], before) << "beyond the row";
        continue;
      }
      double want = product(i), bound = 0.0;
      if (c.activates) {
        const double gate = want, up = c.gated ? product(c.n + i) : 1.0, exact = activated(gate, up);
        want = in_type(exact), bound = ulp<T>(exact) + 1e-6 * std::max(1.0, std::fabs(gate * up));
      }
      if (c.adds) want = in_type(before + want), bound += bound == 0.0 ? 0.0 : ulp<T>(want);
      if (got[at] == want) continue;  // both may be infinite
      ASSERT_NEAR(got[at], want, bound) << "token " << t << ", channel " << i;
    }
  }
}

const std::vector<Case>& cases() {
  static const std::vector<Case> list = [] {
    std::vector<Case> all;
    const auto add = [&](auto change) {
      Case c;
      change(c);
      all.push_back(c);
    };
    add([](Case&) {});
    add([](Case& c) { c.adds = true, c.x_padding = 8; });
    add([](Case& c) { c.adds = c.bias = true, c.y_padding = 4; });
    add([](Case& c) { c.bias = true, c.y_padding = 16; });
    add([](Case& c) { c.float_y = c.bias = true, c.y_padding = 4; });
    add([](Case& c) { c.float_y = c.normed = true; });
    add([](Case& c) { c.float_y = c.normed = c.bias = c.float_weights = true; });
    add([](Case& c) { c.normed = c.activates = c.gated = true; });
    add([](Case& c) { c.activates = c.gated = true; });
    add([](Case& c) { c.normed = c.adds = true, c.weighted = false; });
    for (const Activation kind :
         {Activation::silu, Activation::gelu_tanh, Activation::gelu, Activation::relu, Activation::relu2}) {
      add([&](Case& c) { c.activates = c.bias = true, c.kind = kind; });
      add([&](Case& c) { c.activates = c.gated = c.normed = c.float_weights = true, c.kind = kind; });
    }
    add([](Case& c) { c.activates = c.gated = c.bias = true, c.kind = Activation::clamped_swiglu; });
    add([](Case& c) { c.activates = c.gated = c.adds = c.normed = true; });
    // Packed weights, which the CPU multiplies otherwise (gemm.h; quantized_gemm_test.cpp).
    for (const WeightFormat format : kWeightFormats) {
      add([&](Case& c) { c.packed = {format}, c.normed = true; });
      add([&](Case& c) {
        c.packed = {format, format}, c.activates = c.gated = c.normed = true;
        c.float_weights = format == WeightFormat::q8_0 || format == WeightFormat::q4_k;
      });
    }
    add([](Case& c) { c.packed = {WeightFormat::q4_k}, c.adds = true, c.x_padding = 8; });
    add([](Case& c) { c.packed = {WeightFormat::q8_0}, c.float_y = c.bias = true, c.y_padding = 4; });
    add([](Case& c) { c.packed = {WeightFormat::q4_k, WeightFormat::q5_0, WeightFormat::q6_k}, c.bias = true; });
    add([](Case& c) { c.packed = {WeightFormat::q4_1, WeightFormat::q8_0, WeightFormat::q5_1, WeightFormat::q4_0}; });
    add([](Case& c) { c.packed = {WeightFormat::q4_0, WeightFormat::q8_0}, c.activates = c.gated = c.normed = true; });
    add([](Case& c) { c.packed = {WeightFormat::f8_e4m3, WeightFormat::i8, WeightFormat::q4_0}, c.bias = true; });
    add([](Case& c) { c.packed = {WeightFormat::q2_k, WeightFormat::mxfp4, WeightFormat::q3_k}, c.bias = true; });
    add([](Case& c) { c.packed = {WeightFormat::iq4_nl, WeightFormat::iq4_xs}, c.adds = true; });
    add([](Case& c) { c.packed = {WeightFormat::nvfp4, WeightFormat::mxfp4, WeightFormat::q6_k}, c.bias = true; });
    add([](Case& c) { c.packed = {WeightFormat::i4_64, WeightFormat::i4_128, WeightFormat::i4_32}, c.bias = true; });
    return all;
  }();
  return list;
}

struct Sizes {
  int64_t num_tokens, n, k;
};
// The rows fill no cluster, one, and several with some left over; the blocks of a cluster share k evenly and not, it has whole boxes of 64
// and not, and it fills a ring several times.
constexpr Sizes kSizes[] = {{1, 16, 32},    {1, 400, 512},  {7, 144, 288},   {8, 128, 1088}, {8, 272, 96},
                            {16, 48, 640},  {2, 160, 416},  {10, 80, 192},   {33, 304, 448}, {64, 528, 192},
                            {6, 272, 992},  {24, 112, 320}, {40, 32, 4096},  {24, 256, 512}, {65, 48, 128},
                            {1, 208, 2048}, {5, 96, 768},   {16, 144, 1280}, {2, 272, 768}};

// Whether a case can have the sizes.
bool can_have(const Case& c, const Sizes& sizes) {
  for (const WeightFormat format : c.packed) {
    if (sizes.k % weight_block_elements(format) != 0) return false;
  }
  return sizes.n * (c.gated ? 2 : 1) >= 16 * static_cast<int64_t>(c.packed.size()) &&
         (sizes.k <= 2048 || c.normed || !c.packed.empty());
}

class ProjectionTest : public ::testing::TestWithParam<std::tuple<DType, Backend>> {};
std::string test_name(const ::testing::TestParamInfo<std::tuple<DType, Backend>>& info) {
  return str_cat(dtype_name(std::get<0>(info.param)), "_", backend_name(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(All, ProjectionTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::f16, DType::bf16),
                                            ::testing::ValuesIn(all_backends())),
                         test_name);

TEST_P(ProjectionTest, IsTheOracleAndHasTheBitsOfTheSeparateOperations) {
  const auto& [dtype, backend] = GetParam();
  PROLOGUE_REQUIRE_BACKEND(backend);
  if (dtype != DType::f32) PROLOGUE_EMULATE_ONCE(backend);
  const auto context = GemmContext::create(backend_device(backend));
  ASSERT_TRUE(context.ok()) << context.status().message();
  size_t number = 0;  // of cases with packed weights, one in three of which runs
  for (Case c : cases()) {
    for (const Sizes& sizes : kSizes) {
      if (!can_have(c, sizes) || (sizes.k > 512 && !c.normed && c.packed.empty())) continue;
      if (!c.packed.empty() && ++number % 3 != 0) continue;
      if (backend_device(backend) == Device::cpu && !c.packed.empty()) continue;
      c.num_tokens = sizes.num_tokens, c.n = sizes.n, c.k = sizes.k;
      if (c.activates && !c.adds) c.y_padding = 0;
      SCOPED_TRACE(c.describe());
      const Data data = make_data(c);
      with_host_type(dtype, [&, on = backend](auto type) {
        using T = decltype(type);
        Placed<T> want(on, c, data), got(on, c, data);
        ASSERT_TRUE(
            want.arena.run([&](const Execution& execution) { return run_separately(want.params, **context, execution); }).ok());
        const Status status =
            got.arena.run([&](const Execution& execution) { return projection(got.params, **context, execution); });
        ASSERT_TRUE(status.ok()) << status.message();
        const std::vector<float> a = got.y(), b = want.y();
        expect_oracle<T>(c, data, a);
        for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << "element " << i;
      });
    }
  }
}

// A kept launch is chosen again exactly if a parameter differs.
TEST(KeptLaunch, IsChosenAgainIfAParameterDiffers) {
  KeptLaunch<ProjectionParams> kept;
  int choices = 0;
  const auto choose = [&](const ProjectionParams& p) {
    ++choices;
    std::optional<cuda::Launch> launch;
    if (p.num_tokens <= 8) launch.emplace().blocks = p.num_tokens;
    return launch;
  };
  const auto blocks = [&](const ProjectionParams& p) {
    const std::optional<cuda::Launch>& launch = kept.of(p, choose);
    return launch ? launch->blocks : 0;
  };
  ProjectionParams p;
  p.num_tokens = 3, p.x = &kept;
  EXPECT_EQ(blocks(p), 3);
  EXPECT_EQ(blocks(p), 3);
  EXPECT_EQ(choices, 1);
  p.x = &choices;
  EXPECT_EQ(blocks(p), 3);
  EXPECT_EQ(choices, 2);
  p.num_tokens = 9;  // what is kept may be that there is no launch
  EXPECT_EQ(blocks(p), 0);
  EXPECT_EQ(blocks(p), 0);
  EXPECT_EQ(choices, 3);
  p.overlaps = true;
  EXPECT_EQ(blocks(p), 0);
  EXPECT_EQ(choices, 4);
}

// Who decides that 8 tokens of 8B take the ring, and its neighbours (policy.h).
TEST(ProjectionPolicy, SaysFromHowManyTokensOnRingsAreFaster) {
  EXPECT_EQ(tokens_of_rings(4096, 4096), 2);       // output of 8B
  EXPECT_EQ(tokens_of_rings(2 * 14336, 4096), 2);  // gate and up of 8B
  EXPECT_EQ(tokens_of_rings(2048, 2048), 8);       // output of 1B
  EXPECT_EQ(tokens_of_rings(2048, 8192), 8);       // down of 1B: few rows
  EXPECT_EQ(tokens_of_rings(576, 576), 9);         // SmolLM2 135M
}

TEST(ProjectionPolicy, FillsTheGpuInAsFewWavesAsItCan) {
  EXPECT_EQ(policy::ring_rows(4096, 1, 256, false, 132), 32);    // 128 blocks
  EXPECT_EQ(policy::ring_rows(14336, 2, 256, false, 132), 112);  // gate and up of 8B: 128 blocks of 224 rows
  EXPECT_EQ(policy::ring_rows(14336, 2, 256, true, 132), 56);    // two blocks on an SM
  EXPECT_EQ(policy::ring_heads_of_block(48, 8, 132), 3);         // 8B: 128 blocks of 48 rows
  EXPECT_EQ(policy::ring_heads_of_block(48, 133, 132), 0);
  EXPECT_FALSE(policy::ring_divides_k(16, 8192, true));
  EXPECT_TRUE(policy::ring_divides_k(16, 8192, false));  // down of 1B
  EXPECT_FALSE(policy::ring_divides_k(32, 8192, false));
}

// The order of some divisions of packed weights, as measured.
TEST(ProjectionPolicy, DividesPackedWeightsAsMeasured) {
  const auto cost = [](int64_t num_tokens, int64_t rows, int64_t k, int64_t row_tiles, int64_t blocks, int64_t blocks_of_sm) {
    const int64_t slices = k / 32, splits = 8 / row_tiles;
    return policy::cost_of_packed_output({num_tokens, (rows + 16 * row_tiles - 1) / (16 * row_tiles) * blocks, blocks,
                                          blocks_of_sm, slices / blocks, slices / blocks / splits});
  };
  EXPECT_LT(cost(1, 2 * 14336, 4096, 8, 1, 3), cost(1, 2 * 14336, 4096, 8, 2, 3));  // gate and up of 8B: 29.3 us, 31.6
  EXPECT_LT(cost(1, 2 * 14336, 4096, 8, 1, 3), cost(1, 2 * 14336, 4096, 8, 4, 3));
  EXPECT_LT(cost(1, 4096, 14336, 4, 2, 3), cost(1, 4096, 14336, 8, 8, 3));          // down: 16.5, 20.9
  EXPECT_LT(cost(8, 2 * 14336, 4096, 8, 2, 2), cost(8, 2 * 14336, 4096, 8, 1, 1));  // 8 tokens: 39.7, 45.9
  EXPECT_LT(cost(8, 4096, 4096, 4, 2, 3), cost(8, 4096, 4096, 2, 1, 2));            // output: 7.7, 11.0
  EXPECT_LT(cost(16, 4096, 14336, 8, 8, 2), cost(16, 4096, 14336, 4, 4, 1));        // down, 16 tokens: 45.3, 50.8
  EXPECT_TRUE(policy::packed_heads_fit(48 * 4));
  EXPECT_FALSE(policy::packed_heads_fit(48 * 8));
}

// The same of the way called unpacking.
TEST(ProjectionPolicy, DividesUnpackingAsMeasured) {
  const auto cost = [](int64_t num_tokens, int64_t rows, int64_t k, int64_t groups, int64_t blocks) {
    int64_t splits = 1;
    while (groups * splits * 2 <= 16) splits *= 2;
    return policy::cost_of_unpacking(
        {num_tokens, (rows + 16 * groups - 1) / (16 * groups) * blocks, blocks, k / 32 / blocks / splits, groups * splits});
  };
  EXPECT_LT(cost(16, 2 * 14336, 4096, 14, 1), cost(16, 2 * 14336, 4096, 14, 2));  // gate and up of 8B: 44.4 us, above 50
  EXPECT_LT(cost(8, 2 * 14336, 4096, 14, 1), cost(8, 2 * 14336, 4096, 12, 1));    // 33.8, 47
  EXPECT_LT(cost(16, 4096, 14336, 2, 1), cost(16, 4096, 14336, 4, 2));            // down: 21.3, 23.2
  EXPECT_LT(cost(16, 4096, 14336, 4, 2), cost(16, 4096, 14336, 12, 4));           // 23.2, 31.0
  EXPECT_LT(cost(64, 4096, 14336, 4, 2), cost(64, 4096, 14336, 4, 4));            // 28.2, 59.2
  EXPECT_LT(cost(16, 4096, 4096, 2, 1), cost(16, 4096, 4096, 12, 4));             // output: 9.2, 12.4
}

TEST(ProjectionPolicy, LeavesShortPromptsToSeparateOperations) {
  const auto worth = [](int64_t num_tokens, int64_t n, int64_t k) {
    const policy::PromptSizes sizes = {num_tokens, n, k};
    const int64_t tiles = (num_tokens + 255) / 256 * ((n + 255) / 256);
    return policy::tiles_are_worth_it(sizes, {256, k / 64, tiles, false, 66}, 132);
  };
  EXPECT_FALSE(worth(255, 2 * 14336, 4096));
  EXPECT_FALSE(worth(4096, 1536, 4096));
  EXPECT_FALSE(worth(4096, 8192, 1024));
  EXPECT_TRUE(worth(4096, 2 * 14336, 4096));
}

#ifdef PROLOGUE_HAS_CUDA
// A new way needs a test of its own in this file.
TEST(ProjectionWays, AreTheseSix) {
  EXPECT_EQ(cuda::projection_ways(), (std::vector<std::string>{"vector", "ring", "integer", "unpacking", "registers", "tiles"}));
}

TEST(ProjectionWays, PackedWeightsTakeSeveralLaunchesForFewMoreTokens_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  if (most_tokens_of_one_projection(Device::cuda) == 0) GTEST_SKIP() << "the GPU has no code for it";
  const auto at_once = [](int64_t num_tokens, std::vector<WeightFormat> packed, bool batch_invariant = false, int64_t k = 96) {
    Case c;
    c.num_tokens = num_tokens, c.packed = std::move(packed), c.k = k;
    Placed<BFloat16> placed(Backend::cuda, c, make_data(c));
    placed.params.batch_invariant = batch_invariant;
    return cuda::tokens_of_packed_launch(placed.params);
  };
  EXPECT_EQ(at_once(16, {WeightFormat::q8_0}), 0);
  EXPECT_EQ(at_once(17, {WeightFormat::q8_0}), 16);
  EXPECT_EQ(at_once(64, {WeightFormat::q8_0}), 16);
  EXPECT_EQ(at_once(65, {WeightFormat::q8_0}), 0);
  EXPECT_EQ(at_once(64, {WeightFormat::q8_0}, false, 128), 16);  // not asked where one launch does it
  EXPECT_EQ(at_once(65, {WeightFormat::q8_0}, false, 128), 64);
  EXPECT_EQ(at_once(128, {WeightFormat::q8_0}, false, 128), 64);
  EXPECT_EQ(at_once(129, {WeightFormat::q8_0}, false, 128), 0);
  EXPECT_EQ(at_once(40, {}), 0);
  EXPECT_EQ(at_once(40, {WeightFormat::q8_0}, true), 0);
}

// Nothing is launched, so the arrays may be shorter than the sizes say.
TEST(ProjectionWays, AreChosenBySize_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  if (most_tokens_of_one_projection(Device::cuda) <= 8) GTEST_SKIP() << "the GPU has no code for the ring";
  const auto launch_of = [](int64_t num_tokens, int64_t n, int64_t k, bool gated, bool packed = false,
                            WeightFormat format = WeightFormat::q8_0, bool normed = false) {
    Case c;
    c.activates = c.gated = gated, c.normed = normed;
    if (packed) c.packed = {format}, c.k = format == WeightFormat::q4_k ? 256 : 128;
    Placed<BFloat16> placed(Backend::cuda, c, make_data(c));
    ProjectionParams& p = placed.params;
    p.num_tokens = num_tokens, p.n = p.y_stride = n, p.k = p.x_stride = k;
    if (packed) p.packed.segments[0].rows = gated ? 2 * n : n;
    return cuda::choose(p);
  };
  const auto way_of = [&](int64_t num_tokens, int64_t n, int64_t k, bool gated, bool packed = false,
                          WeightFormat format = WeightFormat::q8_0) {
    const std::optional<cuda::Launch> launch = launch_of(num_tokens, n, k, gated, packed, format);
    return std::string(launch ? launch->way : "separate");
  };
  // Almost every SM has a block.
  const auto shape_of = [&](int64_t num_tokens, int64_t n, int64_t k, bool gated, bool normed) {
    const auto launch = launch_of(num_tokens, n, k, gated, true, WeightFormat::q4_k, normed);
    return std::tuple(launch->blocks, launch->threads, launch->cluster_blocks);
  };
  EXPECT_EQ(shape_of(16, 4096, 14336, false, false), std::tuple(128, 544, 1));  // down of 8B
  EXPECT_EQ(shape_of(16, 4096, 4096, false, false), std::tuple(128, 544, 1));   // output
  EXPECT_EQ(shape_of(8, 12288, 4096, true, true), std::tuple(128, 640, 1));     // gate and up of Qwen3 8B
  EXPECT_EQ(shape_of(16, 5120, 17408, false, false), std::tuple(107, 544, 1));  // down of 14B
  EXPECT_EQ(shape_of(64, 4096, 14336, false, false), std::tuple(128, 544, 2));
  EXPECT_EQ(std::get<1>(shape_of(8, 14336, 4096, true, true)), 640);  // gate and up of 8B
  EXPECT_EQ(way_of(1, 14336, 4096, true), "vector");                  // gate and up of 8B
  EXPECT_EQ(way_of(1, 2048, 8192, false), "vector");                  // down of 1B
  EXPECT_EQ(way_of(1, 4096, 14336, false), "registers");              // of 8B: its rows are too long for a block
  EXPECT_EQ(way_of(1, 4096, 4096, false), "registers");               // output
  EXPECT_EQ(way_of(8, 4096, 4096, false), "ring");
  EXPECT_EQ(way_of(8, 14336, 4096, true), "ring");
  EXPECT_EQ(way_of(7, 2048, 2048, false), "registers");  // output of 1B
  EXPECT_EQ(way_of(8, 2048, 2048, false), "ring");
  EXPECT_EQ(way_of(8, 576, 576, false), "registers");  // SmolLM2
  EXPECT_EQ(way_of(64, 576, 576, false), "ring");
  EXPECT_EQ(way_of(65, 4096, 4096, false), "separate");
  EXPECT_EQ(way_of(65, 14336, 4096, true), "separate");
  EXPECT_EQ(way_of(4096, 14336, 4096, true), "tiles");
  EXPECT_EQ(way_of(4096, 4096, 14336, false), "separate");
  EXPECT_EQ(way_of(1, 14336, 4096, true, true), "integer");  // packed weights
  EXPECT_EQ(way_of(2, 4096, 14336, false, true), "integer");
  EXPECT_EQ(way_of(3, 14336, 4096, true, true), "registers");
  EXPECT_EQ(way_of(4, 14336, 4096, true, true), "unpacking");
  EXPECT_EQ(way_of(4, 14336, 4096, true, true, WeightFormat::q4_k), "registers");
  EXPECT_EQ(way_of(5, 14336, 4096, true, true, WeightFormat::q4_k), "unpacking");
  EXPECT_EQ(way_of(3, 4096, 14336, false, true), "unpacking");
  EXPECT_EQ(way_of(1, 576, 576, false, true), "registers");
  EXPECT_EQ(way_of(1, 14336, 4096, true, true, WeightFormat::f8_e4m3), "registers");
  EXPECT_EQ(way_of(8, 2048, 8192, false, true), "registers");  // down of 1B
  EXPECT_EQ(way_of(9, 2048, 8192, false, true), "unpacking");
  EXPECT_EQ(way_of(16, 2048, 2048, false, true), "registers");
  EXPECT_EQ(way_of(64, 2048, 2048, false, true), "unpacking");
  EXPECT_EQ(way_of(65, 2048, 2048, false, true), "separate");
}

// Returns the instances of all ways but that of one token, which has a test of its own.
std::vector<cuda::KernelInstance<ProjectionParams>> instances_of(const ProjectionParams& params) {
  std::vector<cuda::KernelInstance<ProjectionParams>> list;
  for (const char* way : {"ring", "integer", "unpacking", "registers", "tiles"}) {
    for (auto& instance : cuda::instances_of(way, params)) list.push_back(std::move(instance));
  }
  return list;
}

TEST(ProjectionInstances, EveryOneHasTheBitsOfTheSeparateOperations_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  const auto context = GemmContext::create(Device::cuda);
  ASSERT_TRUE(context.ok()) << context.status().message();
  const int64_t most_tokens = most_tokens_of_one_projection(Device::cuda);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::set<std::string> ran;
    const auto kernel_of = [](const std::string& instance) { return instance.substr(0, instance.rfind(',')); };
    const auto check = [&](Case c, const Sizes& sizes, bool all) {
      if (sizes.num_tokens > most_tokens || !can_have(c, sizes)) return;
      c.num_tokens = sizes.num_tokens, c.n = sizes.n, c.k = sizes.k;
      if (c.activates && !c.adds) c.y_padding = 0;
      const Data data = make_data(c);
      with_host_type(dtype, [&](auto type) {
        using T = decltype(type);
        Placed<T> want(Backend::cuda, c, data);
        std::vector<size_t> chosen;
        {
          const auto instances = instances_of(want.params);
          // More tokens of packed weights want whole boxes of x and tiles of one format.
          EXPECT_FALSE(instances.empty() && (c.packed.empty() || c.num_tokens <= 16)) << c.describe();
          for (size_t i = 0; i < instances.size(); ++i) {
            if (all || !ran.contains(kernel_of(instances[i].name))) chosen.push_back(i);
          }
        }
        if (chosen.empty()) return;
        ASSERT_TRUE(
            want.arena.run([&](const Execution& execution) { return run_separately(want.params, **context, execution); }).ok());
        for (const size_t i : chosen) {
          Placed<T> got(Backend::cuda, c, data);
          const auto instance = instances_of(got.params)[i];
          SCOPED_TRACE(str_cat(instance.name, " ", c.describe()));
          const Status status =
              got.arena.run([&](const Execution& execution) { return instance.launch(got.params, execution.stream); });
          ASSERT_TRUE(status.ok()) << status.message();
          const std::vector<float> a = got.y(), b = want.y();
          for (size_t j = 0; j < a.size(); ++j) ASSERT_EQ(a[j], b[j]) << "element " << j;
          ran.insert(kernel_of(instance.name));
        }
      });
    };
    // Every case and every size in turn, in one type or the other; then what runs a kernel that none of these does.
    const size_t every = tests_all_combinations() ? 1 : 10, turn = dtype == DType::f16 ? 0 : 5 % every;
    size_t number = 0;
    for (const Case& c : cases()) {
      for (const Sizes& sizes : kSizes) {
        if (++number % every == turn) check(c, sizes, true);
      }
    }
    std::vector<std::string> missing;
    for (const std::string way : {"ring", "integer", "unpacking", "registers", "tiles"}) {
      const std::vector<std::string> shipped = cuda::projection_instances(way, dtype);
      EXPECT_FALSE(shipped.empty());
      if (most_tokens > 8 || way == "registers" || way == "integer") {
        missing.insert(missing.end(), shipped.begin(), shipped.end());
      } else {  // which this GPU does not have
        for (const std::string& name : shipped) EXPECT_FALSE(ran.contains(name)) << name << " ran";
      }
    }
    const auto all_ran = [&] {
      std::erase_if(missing, [&](const std::string& name) { return ran.contains(name); });
      return missing.empty();
    };
    for (const Case& c : cases()) {
      for (const Sizes& sizes : kSizes) {
        if (!all_ran()) check(c, sizes, false);
      }
    }
    EXPECT_TRUE(all_ran()) << missing.front() << " did not run";
  }
}

// There is one token. A row takes less than a part of a warp, several parts, and as many as there can be; there are blocks whose rows are
// beyond the last.
TEST(ProjectionVector, HasTheBitsOfTheSeparateOperations_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  if (most_tokens_of_one_projection(Device::cuda) == 0) GTEST_SKIP() << "the GPU has no code for it";
  const auto context = GemmContext::create(Device::cuda);
  ASSERT_TRUE(context.ok()) << context.status().message();
  constexpr Sizes kOneToken[] = {{1, 16, 32}, {1, 48, 576}, {1, 80, 1536}, {1, 144, 2048}, {1, 64, 4064}, {1, 16, 8192}};
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::set<std::string> ran;
    size_t number = 0;
    for (Case c : cases()) {
      ++number;
      for (const Sizes& sizes : kOneToken) {
        if (!c.packed.empty()) continue;
        if (++number % 2 == (dtype == DType::f16 ? 0 : 1) && !tests_all_combinations()) continue;  // in one type or the other
        c.num_tokens = 1, c.n = sizes.n, c.k = sizes.k;
        if (c.activates && !c.adds) c.y_padding = 0;
        const Data data = make_data(c);
        with_host_type(dtype, [&](auto type) {
          using T = decltype(type);
          Placed<T> want(Backend::cuda, c, data);
          ASSERT_TRUE(
              want.arena.run([&](const Execution& execution) { return run_separately(want.params, **context, execution); }).ok());
          for (const auto& listed : cuda::instances_of("vector", want.params)) {
            Placed<T> got(Backend::cuda, c, data);
            SCOPED_TRACE(str_cat(listed.name, " ", c.describe()));
            const Status status =
                got.arena.run([&](const Execution& execution) { return listed.launch(got.params, execution.stream); });
            ASSERT_TRUE(status.ok()) << status.message();
            const std::vector<float> a = got.y(), b = want.y();
            for (size_t j = 0; j < a.size(); ++j) ASSERT_EQ(a[j], b[j]) << "element " << j;
            ran.insert(listed.name);
          }
        });
      }
    }
    EXPECT_EQ(ran.size(), 5u * 4u);  // rows of a warp, warps of a row
  }
}

// projection() chooses one kernel for the case, which has the bits of the separate operations.
void expect_one_kernel_with_the_bits_of_separate_ones(const Case& c) {
  SCOPED_TRACE(c.describe());
  const auto context = GemmContext::create(Device::cuda);
  ASSERT_TRUE(context.ok()) << context.status().message();
  const Data data = make_data(c);
  Placed<BFloat16> want(Backend::cuda, c, data), got(Backend::cuda, c, data);
  EXPECT_TRUE(cuda::choose(got.params));
  ASSERT_TRUE(want.arena.run([&](const Execution& execution) { return run_separately(want.params, **context, execution); }).ok());
  ASSERT_TRUE(got.arena.run([&](const Execution& execution) { return projection(got.params, **context, execution); }).ok());
  const std::vector<float> a = got.y(), b = want.y();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << "element " << i;
}

// Runs the kernel that projection() chooses for one token of real models.
TEST(ProjectionVector, HasTheBitsOfTheSeparateOperationsAtRealSizes_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
#ifdef PROLOGUE_CUDA_EMULATED
  GTEST_SKIP() << "for a GPU";
#endif
  if (most_tokens_of_one_projection(Device::cuda) == 0) GTEST_SKIP() << "the GPU has no code for it";
  for (const Sizes& sizes : {Sizes{1, 4096, 4096}, Sizes{1, 14336, 4096}, Sizes{1, 2048, 2048}, Sizes{1, 8192, 2048},
                             Sizes{1, 2048, 8192}, Sizes{1, 576, 576}, Sizes{1, 1536, 576}, Sizes{1, 576, 1536}}) {
    Case c;
    c.num_tokens = sizes.num_tokens, c.n = sizes.n, c.k = sizes.k;
    c.normed = c.activates = c.gated = sizes.n > sizes.k, c.adds = !c.gated;
    expect_one_kernel_with_the_bits_of_separate_ones(c);
  }
}

// Prompts. Tiles that are full and not, along both sides; k of less than a stage, and of more than the ring holds.
TEST(ProjectionTiles, HaveTheBitsOfTheSeparateOperations_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  if (most_tokens_of_one_projection(Device::cuda) <= 8) GTEST_SKIP() << "the GPU has no code for the tiles";
  const auto context = GemmContext::create(Device::cuda);
  ASSERT_TRUE(context.ok()) << context.status().message();
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Activation kind : {Activation::silu, Activation::gelu_tanh, Activation::clamped_swiglu}) {
      for (const Sizes& sizes : {Sizes{130, 144, 520}, Sizes{257, 272, 64}, Sizes{300, 16, 40}, Sizes{129, 128, 1032}}) {
        Case c;
        c.num_tokens = sizes.num_tokens, c.n = sizes.n, c.k = sizes.k, c.activates = c.gated = true, c.kind = kind,
        c.y_padding = 0;
        SCOPED_TRACE(c.describe());
        const Data data = make_data(c);
        with_host_type(dtype, [&](auto type) {
          using T = decltype(type);
          Placed<T> want(Backend::cuda, c, data), got(Backend::cuda, c, data);
          ASSERT_TRUE(
              want.arena.run([&](const Execution& execution) { return run_separately(want.params, **context, execution); }).ok());
          const auto instances = cuda::instances_of("tiles", got.params);
          ASSERT_EQ(instances.size(), 1u);
          const Status status =
              got.arena.run([&](const Execution& execution) { return instances[0].launch(got.params, execution.stream); });
          ASSERT_TRUE(status.ok()) << status.message();
          const std::vector<float> a = got.y(), b = want.y();
          expect_oracle<T>(c, data, a);
          for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << "element " << i;
        });
      }
    }
  }
}

// Runs the kernel that projection() chooses for prompts of real models, with waves of tiles that are full, divided, and neither.
TEST(ProjectionTiles, HaveTheBitsOfTheSeparateOperationsAtRealSizes_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
#ifdef PROLOGUE_CUDA_EMULATED
  GTEST_SKIP() << "for a GPU";
#endif
  if (most_tokens_of_one_projection(Device::cuda) <= 8) GTEST_SKIP() << "the GPU has no code for the tiles";
  for (const Sizes& sizes : {Sizes{1024, 7168, 4096}, Sizes{1500, 8192, 2048}, Sizes{2049, 8192, 2048}}) {
    Case c;
    c.num_tokens = sizes.num_tokens, c.n = sizes.n, c.k = sizes.k, c.activates = c.gated = true, c.y_padding = 0;
    expect_one_kernel_with_the_bits_of_separate_ones(c);
  }
}

// A layer of many short rows takes another choice of blocks than a layer's matrices do (policy.h, has_too_many_blocks()).
TEST(ProjectionInstances, LmHeadOfASmallModelHasTheBitsOfTheSeparateOperations_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  for (const int64_t num_tokens : {1, 5, 12}) {
    if (num_tokens > most_tokens_of_one_projection(Device::cuda)) break;
    Case c;
    c.num_tokens = num_tokens, c.n = 49152, c.k = 576, c.normed = c.bias = c.float_y = true;
    expect_one_kernel_with_the_bits_of_separate_ones(c);
  }
}

// Rings that are filled several times, by every instance, and nothing but its kernel: for compute-sanitizer.
TEST(ProjectionRing, IsFilledSeveralTimes_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
#ifdef PROLOGUE_CUDA_EMULATED
  GTEST_SKIP() << "for a GPU: the walk over every instance fills rings several times, too";
#endif
  if (most_tokens_of_one_projection(Device::cuda) <= 8) GTEST_SKIP() << "the GPU has no code for the ring";
  Case c;
  c.activates = c.gated = c.adds = true;
  std::set<std::string> ran;
  const Sizes of_sharers = {40, 80, 4096};  // without a norm: blocks may share k
  for (const Sizes& sizes : {Sizes{12, 144, 448}, Sizes{11, 80, 4096}, Sizes{27, 208, 704}, Sizes{64, 144, 1984}, of_sharers}) {
    c.num_tokens = sizes.num_tokens, c.n = sizes.n, c.k = sizes.k, c.normed = c.num_tokens != of_sharers.num_tokens;
    const Data data = make_data(c);
    const size_t count = cuda::instances_of("ring", Placed<BFloat16>(Backend::cuda, c, data).params).size();
    for (size_t i = 0; i < count; ++i) {
      Placed<BFloat16> placed(Backend::cuda, c, data);
      const auto instance = cuda::instances_of("ring", placed.params)[i];
      SCOPED_TRACE(str_cat(instance.name, " ", c.describe()));
      const Status status =
          placed.arena.run([&](const Execution& execution) { return instance.launch(placed.params, execution.stream); });
      ASSERT_TRUE(status.ok()) << status.message();
      expect_oracle<BFloat16>(c, data, placed.y());
      ran.insert(instance.name.substr(0, instance.name.rfind(',')));
    }
  }
  EXPECT_EQ(ran.size(), 5u);
}

// Tests what projection() chooses from 2 to 64 tokens: blocks with all of k, two on an SM, and pairs that share it. On a GPU it runs at
// real sizes.
TEST(ChosenProjection, HasTheBitsOfTheSeparateOperations_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  if (most_tokens_of_one_projection(Device::cuda) <= 8) GTEST_SKIP() << "the GPU has no code for the ring";
  std::vector<Sizes> all = {{17, 48, 4096}, {20, 32, 4160}};
#ifndef PROLOGUE_CUDA_EMULATED
  for (const int64_t num_tokens : {8, 16, 33, 64}) {
    for (const auto& [n, k] : {std::pair(2048, 8192), std::pair(4096, 4096), std::pair(576, 1536), std::pair(8192, 2048)}) {
      all.push_back({num_tokens, n, k});
    }
  }
#endif
  for (const Sizes& sizes : all) {
    Case c;
    c.num_tokens = sizes.num_tokens, c.n = sizes.n, c.k = sizes.k;
    c.normed = c.activates = c.gated = sizes.n > sizes.k, c.adds = !c.gated;
    expect_one_kernel_with_the_bits_of_separate_ones(c);
  }
}
#endif

// ---- ordinary numbers -------------------------------------------------------------------------------------------------------

class ProjectionSumTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, ProjectionSumTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return std::string(backend_name(backend.param)); });

// Holds a call to float64. The bound: a sum of n products in float32, each with an error of 2^-24 of the sum of their magnitudes, a norm whose
// products are rounded to dtype once or twice, and one rounding of the result. Codes of packed weights may have 128 more, which a product with
// the sum of x takes off; with more than 16 tokens the weights are rounded to dtype.
template <class T>
void expect_product_of_norm(const Case& c, const Data& d, const std::vector<float>& got) {
  constexpr bool kIsFloat16 = FloatFormat<T>::dtype == DType::f16;
  const double rounding = std::ldexp(1.0, kIsFloat16 ? -11 : -8), base = kIsFloat16 ? 1024.0 : 128.0;
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    double squares = 0.0;
    for (int64_t i = 0; i < c.k; ++i) squares += std::pow(double{d.x[static_cast<size_t>(t * c.k + i)]}, 2);
    const double inverse = c.normed ? 1.0 / std::sqrt(squares / static_cast<double>(c.k)) : 1.0;
    for (int64_t row = 0; row < c.n; ++row) {
      double want = 0.0, magnitude = 0.0, of_codes = 0.0;
      for (int64_t i = 0; i < c.k; ++i) {
        const double w = c.normed && c.weighted ? double{d.norm_weight[static_cast<size_t>(i)]} : 1.0;
        const double x = inverse * d.x[static_cast<size_t>(t * c.k + i)] * w;
        const double product = x * d.weight[static_cast<size_t>(row * c.k + i)];
        want += product, magnitude += std::fabs(product);
        if (c.packed.empty()) continue;
        const WeightFormat format = c.packed.front();
        const int64_t row_bytes = c.k / weight_block_elements(format) * weight_block_bytes(format);
        const auto value = oracle::weight_value(format, d.blocks.front().data() + row * row_bytes, i);
        of_codes += std::fabs(x * value.scale) * base + std::fabs(x * value.minimum);
      }
      const double sum = std::ldexp(static_cast<double>(c.k), -24);
      const bool rounds_weights = !c.packed.empty() && c.num_tokens > 16;
      // The roundings of the norm and of the weights are random: their sum is far below that of their magnitudes.
      const double rounded = (c.normed ? rounding / 4 : 0.0) + (rounds_weights ? rounding / 4 : 0.0);
      const double bound = std::fabs(want) * rounding + magnitude * (sum + rounded) + of_codes * std::ldexp(1.0, -20) + 1e-6;
      ASSERT_NEAR(double{got[static_cast<size_t>(t * c.n + row)]}, want, bound);
    }
  }
}

void expect_product_of_norm(Backend backend, GemmContext& context, Case c) {
  c.n = 96, c.k = 512, c.whole = false;
  SCOPED_TRACE(c.describe());
  const Data d = make_data(c);
  Placed<BFloat16> placed(backend, c, d);
  const Status status =
      placed.arena.run([&](const Execution& execution) { return projection(placed.params, context, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  expect_product_of_norm<BFloat16>(c, d, placed.y());
}

#ifdef PROLOGUE_HAS_CUDA
// One and two tokens of packed weights are multiplied as whole numbers: results in float32 differ from float64 by what three digits of x
// lose, 2^-22 of the largest of 32, and by what some hundred additions in float32 round. Two digits would lose 2^8 times as much. (The errors
// are random, so the root of their mean square is compared, over all rows.)
template <class T>
void expect_three_digits(GemmContext& context, WeightFormat format, int64_t num_tokens) {
  Case c;
  c.num_tokens = num_tokens, c.n = 2144, c.k = 256, c.whole = false, c.float_y = true,
  c.packed = {format};  // tiles: 2 of a block
  SCOPED_TRACE(c.describe());
  Data d = make_data(c);
  for (size_t i = 0; i < d.x.size(); ++i) {
    float& x = d.x[i];
    if (i % 32 == 7) x *= 128.0f;  // next to which the others are small
    if (i % static_cast<size_t>(c.k) / 32 == 3) x = 0.0f;
    x = static_cast<float>(to_float(from_float<T>(x)));
  }
  Placed<T> placed(Backend::cuda, c, d);
  const std::optional<cuda::Launch> launch = cuda::choose(placed.params);
  ASSERT_TRUE(launch && std::string(launch->way) == "integer");
  const Status status =
      placed.arena.run([&](const Execution& execution) { return projection(placed.params, context, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<float> got = placed.y();
  const int64_t row_bytes = c.k / weight_block_elements(format) * weight_block_bytes(format);
  double errors = 0.0, expected = 0.0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float* const x = d.x.data() + t * c.k;
    for (int64_t row = 0; row < c.n; ++row) {
      double sum = 0.0, parts = 0.0;
      for (int64_t first = 0; first < c.k; first += 32) {
        double largest = 0.0, weights = 0.0;
        for (int64_t i = first; i < first + 32; ++i) {
          const auto weight = oracle::weight_value(format, d.blocks.front().data() + row * row_bytes, i);
          const double value = weight.value(), minimum = weight.minimum;
          sum += value * x[i];
          largest = std::max(largest, std::fabs(double{x[i]})), weights += value * value + minimum * minimum;
          parts += std::pow((std::fabs(value - minimum) + std::fabs(minimum)) * x[i], 2);
        }
        expected += std::pow(std::ldexp(largest, -22), 2) * weights;
      }
      expected += std::ldexp(100.0 * parts, -48);
      errors += std::pow(double{got[static_cast<size_t>(t * c.n + row)]} - sum, 2);
    }
  }
  EXPECT_LE(std::sqrt(errors), 3.0 * std::sqrt(expected));
}

TEST(ProjectionIntegers, HaveThreeDigits_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  const auto context = GemmContext::create(Device::cuda);
  ASSERT_TRUE(context.ok());
  if (cuda::projection_instances("integer", DType::bf16).empty() || most_tokens_of_one_projection(Device::cuda) == 0)
    GTEST_SKIP() << "the GPU has no code for it";
  for (const WeightFormat format : kWeightFormats) {
    if (format == WeightFormat::f8_e4m3) continue;
    for (const int64_t num_tokens : {1, 2}) {
      expect_three_digits<BFloat16>(**context, format, num_tokens);
      expect_three_digits<Float16>(**context, format, num_tokens);
    }
  }
}
#endif

#ifdef PROLOGUE_HAS_CUDA
// Up to 16 tokens the way called unpacking multiplies codes as they are: with three groups of rows in a block, whose warps divide a stage, and
// with six and two blocks that divide k.
template <class T>
void expect_product_of_codes(const Case& c) {
  SCOPED_TRACE(c.describe());
  const Data d = make_data(c);
  for (const char* division : {", 3 x 1", ", 6 x 2"}) {
    Placed<T> placed(Backend::cuda, c, d);
    const auto instances = cuda::instances_of("unpacking", placed.params);
    const auto instance =
        std::find_if(instances.begin(), instances.end(), [&](const auto& each) { return each.name.ends_with(division); });
    ASSERT_NE(instance, instances.end());
    SCOPED_TRACE(instance->name);
    const Status status =
        placed.arena.run([&](const Execution& execution) { return instance->launch(placed.params, execution.stream); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_product_of_norm<T>(c, d, placed.y());
  }
}

TEST(ProjectionCodes, HaveTheProductOfTheNorm_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  if (cuda::projection_instances("unpacking", DType::bf16).empty() || most_tokens_of_one_projection(Device::cuda) <= 16)
    GTEST_SKIP() << "the GPU has no code for it";
  for (const WeightFormat format : kWeightFormats) {
    for (const int64_t num_tokens : {3, 9, 16}) {
      Case c;
      c.num_tokens = num_tokens, c.n = 112, c.k = 768, c.whole = false, c.packed = {format};
      c.normed = num_tokens != 9, c.weighted = num_tokens != 3 || format != WeightFormat::q4_k;
      c.float_weights = format == WeightFormat::q5_k;
      expect_product_of_codes<BFloat16>(c);
      expect_product_of_codes<Float16>(c);
    }
  }
}

// With more tokens weights are rounded: a token whose x is 1 in one channel, and 0 in the others, shows each as it is multiplied. One without a
// minimum is rounded once. Another one is a sum of its code's distance from the middle of the codes and of a bias, which is rounded, too
// (weights/unpacked.cuh). The norm's weight multiplies it, which rounds it once more.
template <class T>
void expect_rounded_weights(WeightFormat format, bool normed) {
  constexpr bool kIsFloat16 = FloatFormat<T>::dtype == DType::f16;
  constexpr WeightFormat kWithMinimum[] = {WeightFormat::q4_1, WeightFormat::q5_1,  WeightFormat::q4_k,  WeightFormat::q5_k,
                                           WeightFormat::q2_k, WeightFormat::i4_32, WeightFormat::i4_64, WeightFormat::i4_128};
  const bool has_minimum = std::find(std::begin(kWithMinimum), std::end(kWithMinimum), format) != std::end(kWithMinimum);
  const bool is_of_5_bits = format == WeightFormat::q5_1 || format == WeightFormat::q5_k;
  const double rounding = std::ldexp(1.01, kIsFloat16 ? -11 : -8), centre = format == WeightFormat::q2_k ? 2.0
                                                                            : is_of_5_bits               ? 16.0
                                                                                                         : 8.0;
  Case c;
  c.num_tokens = 40, c.n = 96, c.k = 768, c.whole = false, c.float_y = true, c.packed = {format}, c.normed = normed;
  SCOPED_TRACE(c.describe());
  Data d = make_data(c);
  const auto channel_of = [&](int64_t t) { return t * 37 % c.k; };
  std::fill(d.x.begin(), d.x.end(), 0.0f);
  for (int64_t t = 0; t < c.num_tokens; ++t) d.x[static_cast<size_t>(t * c.k + channel_of(t))] = 1.0f;
  Placed<T> placed(Backend::cuda, c, d);
  const auto instances = cuda::instances_of("unpacking", placed.params);
  ASSERT_FALSE(instances.empty());
  const Status status =
      placed.arena.run([&](const Execution& execution) { return instances.front().launch(placed.params, execution.stream); });
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<float> got = placed.y();
  const int64_t row_bytes = c.k / weight_block_elements(format) * weight_block_bytes(format);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const auto channel = static_cast<size_t>(channel_of(t));
    const double inverse = normed ? 1.0 / std::sqrt(1.0 / static_cast<double>(c.k) + double{placed.params.norm.eps}) : 1.0;
    const double of_norm = normed ? inverse * d.norm_weight[channel] : 1.0;
    const double least = kIsFloat16 ? 0x1p-24 * (inverse + std::fabs(of_norm)) : 0.0;  // below float16's normal numbers
    for (int64_t row = 0; row < c.n; ++row) {
      const auto value = oracle::weight_value(format, d.blocks.front().data() + row * row_bytes, static_cast<int64_t>(channel));
      const double weight = d.weight[static_cast<size_t>(row * c.k) + channel];
      const double bias = has_minimum ? std::fabs(centre * value.scale - value.minimum) : 0.0;
      const double off = std::fabs(weight) * rounding * (normed ? 2.0 : 1.0) +
                         (kIsFloat16 ? std::fabs(value.scale) * 0x1p-16 : 2.0 * rounding * bias);
      ASSERT_NEAR(double{got[static_cast<size_t>(t * c.n + row)]}, weight * of_norm, off * std::fabs(of_norm) + least)
          << "token " << t << ", row " << row;
    }
  }
}

TEST(ProjectionRounded, HasEachWeightRounded_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  if (cuda::projection_instances("unpacking", DType::bf16).empty() || most_tokens_of_one_projection(Device::cuda) <= 16)
    GTEST_SKIP() << "the GPU has no code for it";
  for (const WeightFormat format : kWeightFormats) {
    for (const bool normed : {false, true}) {
      expect_rounded_weights<BFloat16>(format, normed);
      expect_rounded_weights<Float16>(format, normed);
    }
  }
}
#endif

TEST_P(ProjectionSumTest, IsTheProductOfTheNorm) {
  PROLOGUE_REQUIRE_BACKEND(GetParam());
  const auto context = GemmContext::create(backend_device(GetParam()));
  ASSERT_TRUE(context.ok());
  for (const bool normed : {false, true}) {
    for (const int64_t num_tokens : {1, 7, 40}) {
      Case c;
      c.num_tokens = num_tokens, c.normed = normed;
      expect_product_of_norm(GetParam(), **context, c);
      if (backend_device(GetParam()) == Device::cpu) continue;  // it quantises x: quantized_gemm_test.cpp
      for (const WeightFormat format : kWeightFormats) {
        c.packed = {format};
        expect_product_of_norm(GetParam(), **context, c);
      }
    }
  }
}

// ---- bad calls --------------------------------------------------------------------------------------------------------------

TEST(ProjectionRefusals, NameTheValueAndTheRule) {
  Case c;
  c.normed = c.activates = c.gated = c.bias = true;
  const auto context = GemmContext::create(Device::cpu);
  const auto refuse = [&](const char* sentence, void (*change)(ProjectionParams&)) {
    SCOPED_TRACE(sentence);
    Placed<BFloat16> placed(Backend::cpu, c, make_data(c));
    change(placed.params);
    const Status status =
        placed.arena.run([&](const Execution& execution) { return projection(placed.params, **context, execution); });
    EXPECT_NE(status.message().find(sentence), std::string::npos) << status.message();
    EXPECT_TRUE(placed.arena.untouched());
  };
  using P = ProjectionParams;
  refuse("dtype is", [](P& p) { p.dtype = DType::int8; });
  refuse("num_tokens is -1", [](P& p) { p.num_tokens = -1; });
  refuse("n is 0", [](P& p) { p.n = 0; });
  refuse("k is 0", [](P& p) { p.k = 0; });
  refuse("x_stride is 95: it must be at least k", [](P& p) { p.x_stride = 95; });
  refuse("x_stride is 100: where there is a norm it must be k", [](P& p) { p.x_stride = 100; });
  refuse("y_stride is 47", [](P& p) { p.y_stride = 47; });
  refuse("y_stride is 52: where there is an activation it must be n", [](P& p) { p.y_stride = 52; });
  refuse("y_dtype is float32: it must be dtype, which is bfloat16, where there is an activation or a residual",
         [](P& p) { p.y_dtype = DType::f32; });
  refuse("y_dtype is float16: it must be dtype, which is bfloat16, or float32",
         [](P& p) { p.activation.given = 0, p.y_dtype = DType::f16; });
  refuse("y_dtype is", [](P& p) { p.y_dtype = static_cast<DType>(77); });
  refuse("kind", [](P& p) { p.activation.kind = static_cast<Activation>(17); });
  refuse("workspace has 0 bytes", [](P& p) { p.workspace = nullptr; });
  refuse("workspace has 100 bytes", [](P& p) { p.workspace_bytes = 100; });
  refuse("x is null", [](P& p) { p.x = nullptr; });
  refuse("weight is null", [](P& p) { p.weight = nullptr; });
  refuse("y is null", [](P& p) { p.y = nullptr; });
  refuse("eps is -1", [](P& p) { p.norm.eps = -1.0f; });
  refuse("weight_type is int4", [](P& p) { p.norm.weight_type = DType::int4; });
  refuse("overlap", [](P& p) { p.y = const_cast<void*>(p.x); });
  refuse("overlap", [](P& p) { p.y = p.workspace; });
  refuse("overlap", [](P& p) { p.workspace = const_cast<void*>(p.weight); });
  refuse("packed.num_segments is 1: the weights are the segments, and weight must be null", [](P& p) {
    p.packed.num_segments = 1, p.packed.segments[0] = {p.weight, WeightFormat::q8_0, 2 * p.n};
  });
  refuse("the segments have 48 rows: n is 96", [](P& p) {
    p.packed.num_segments = 1, p.packed.segments[0] = {p.weight, WeightFormat::q8_0, p.n}, p.weight = nullptr;
  });
  refuse("k is 96: q4_k needs a multiple of 256", [](P& p) {
    p.packed.num_segments = 1, p.packed.segments[0] = {p.weight, WeightFormat::q4_k, 2 * p.n}, p.weight = nullptr;
  });
  refuse("overlap", [](P& p) {
    p.packed.num_segments = 1, p.packed.segments[0] = {p.workspace, WeightFormat::q8_0, 2 * p.n}, p.weight = nullptr;
  });
}

}  // namespace
}  // namespace prologue::test
