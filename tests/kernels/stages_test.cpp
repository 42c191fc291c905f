#include <prologue/kernels/attention_prologue/stages/stages.h>

#include <gtest/gtest.h>

#include "tests/support/prologue_results.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class StagesTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, StagesTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

// ---- add_bias ---------------------------------------------------------------------------------------------------------------

struct BiasCase {
  int64_t num_tokens, width, x_padding, y_padding, misalign;
  bool in_place;
};

TEST_P(StagesTest, AddBiasMatchesTheSum) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    const std::vector<BiasCase> cases = {{0, 8, 0, 0, 0, false},    {1, 1, 0, 0, 0, false},     {2, 48, 0, 0, 0, true},
                                         {31, 46, 2, 4, 0, false},  {33, 4096, 0, 0, 0, false}, {5, 5000, 7, 3, 4, false},
                                         {257, 96, 0, 16, 8, true}, {3, 128, 8, 8, 2, false},   {600, 64, 0, 0, 0, true}};
    for (const BiasCase& c : cases) {
      SCOPED_TRACE(str_cat("T=", c.num_tokens, " width=", c.width, " misalign=", c.misalign));
      Random random(11);
      const int64_t misalign = c.misalign / static_cast<int64_t>(sizeof(T)) * static_cast<int64_t>(sizeof(T));
      const int64_t x_stride = c.width + c.x_padding;
      const int64_t y_stride = c.in_place ? x_stride : c.width + c.y_padding;
      const std::vector<T> x = random.normals<T>(c.num_tokens * x_stride);
      const std::vector<T> bias = random.normals<T>(c.width);
      Arena arena(GetParam());
      const T* x_data = c.in_place ? arena.inout(x, misalign) : arena.input(x, misalign);
      const std::vector<T> y_before = c.in_place ? x : poisoned<T>(c.num_tokens * y_stride);
      T* y_data = c.in_place ? const_cast<T*>(x_data) : arena.inout(y_before, misalign);
      const AddBiasParams params = {c.num_tokens, c.width, FloatFormat<T>::dtype, x_data, x_stride, arena.input(bias, misalign),
                                    y_data,       y_stride};
      const Status status = arena.run([&](const Execution& execution) { return add_bias(params, execution); });
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<T> y = arena.read(y_data);
      std::vector<T> got;
      std::vector<Reference> want;
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        for (int64_t i = 0; i < c.width; ++i) {
          const double a = static_cast<double>(to_float(x[static_cast<size_t>(t * x_stride + i)]));
          const double b = static_cast<double>(to_float(bias[static_cast<size_t>(i)]));
          got.push_back(y[static_cast<size_t>(t * y_stride + i)]);
          want.push_back({a + b, std::fabs(a) + std::fabs(b)});
          y[static_cast<size_t>(t * y_stride + i)] = y_before[static_cast<size_t>(t * y_stride + i)];
        }
      }
      expect_close(got, want, c.width, "y");
      expect_bits(y, y_before, "y outside its rows");
    }
  });
}

TEST_P(StagesTest, AddBiasRefusesWithASentence) {
  using P = AddBiasParams;
  const auto invalid = StatusCode::invalid_argument;
  const std::vector<Refusal<P>> refusals = {
      {"negative token count", [](P& p) { p.num_tokens = -5; }, invalid, "num_tokens is -5: it must lie in 0..2147483647"},
      {"no width", [](P& p) { p.width = 0; }, invalid, "width is 0: it must lie in 1..2147483647"},
      {"unknown type", [](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {"no x", [](P& p) { p.x = nullptr; }, invalid, "x is null"},
      {"no bias", [](P& p) { p.bias = nullptr; }, invalid, "bias is null"},
      {"no y", [](P& p) { p.y = nullptr; }, invalid, "y is null"},
      {"negative stride", [](P& p) { p.x_stride = -8; }, invalid, "x has the stride -8: strides must not be negative"},
      {"rows overlap", [](P& p) { p.y_stride = 4; }, invalid,
       "y has the stride 4 where 8 elements lie: rows that are written must not overlap"},
      {"y half over x", [](P& p) { p.y = static_cast<float*>(const_cast<void*>(p.x)) + 2; }, invalid, "y overlaps x"},
      {"y over the bias", [](P& p) { p.bias = p.y; }, invalid, "y overlaps bias"},
  };
  expect_refusals("add_bias", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    Random random(1);
    AddBiasParams params = {3,
                            8,
                            DType::f32,
                            arena.input(random.normals<float>(24)),
                            8,
                            arena.input(random.normals<float>(8)),
                            arena.output<float>(24),
                            8};
    change(params);
    return refused(arena.run([&](const Execution& execution) { return add_bias(params, execution); }), arena);
  });
}

// ---- qk_norm ----------------------------------------------------------------------------------------------------------------

TEST_P(StagesTest, QkNormRefusesWeightsOfOtherTypes) {
  const std::pair<DType, std::string> cases[] = {
      {DType::f16, "weight_type is float16: supported are float32 and dtype, bfloat16"},
      {kNoType, "weight_type is the unknown type 99: supported are float32 and dtype, bfloat16"},
      {DType::f32, "weight lies at 0x1002: it must be aligned to 4 bytes"}};
  for (const auto& [weight_type, message] : cases) {
    Arena arena(GetParam());
    QkNormParams p;
    p.num_tokens = 3, p.num_heads = 1, p.head_dim = 8, p.dtype = DType::bf16;
    p.x = {arena.input(Random(1).normals<BFloat16>(24)), 8, 8}, p.y = {arena.output<BFloat16>(24), 8, 8};
    p.norm.weight = reinterpret_cast<const void*>(0x1002);
    p.norm.weight_type = weight_type;
    const Status status = arena.run([&](const Execution& execution) { return qk_norm(p, execution); });
    EXPECT_EQ(status.message(), "qk_norm: " + message);
    EXPECT_TRUE(arena.untouched());
  }
}

// ---- hadamard ---------------------------------------------------------------------------------------------------------------

struct HadamardCase {
  int64_t num_tokens, num_heads, head_dim, block, padding = 0;
  bool in_place = false, with_positions = true;
};

TEST_P(StagesTest, HadamardMatchesTheMatrix) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    const std::vector<HadamardCase> cases = {{5, 3, 64, 64},
                                             {1, 1, 2, 2},
                                             {33, 4, 46, 2, 2, true},
                                             {9, 2, 80, 16, 4},
                                             {31, 2, 72, 8, 16},
                                             {7, 5, 128, 128, 8, true, false},
                                             {4, 1, 512, 512, 0, true},
                                             {3, 2, 576, 64},
                                             {0, 1, 8, 8},
                                             {257, 1, 256, 32, 1, false, false}};
    for (const HadamardCase& c : cases) {
      SCOPED_TRACE(str_cat("T=", c.num_tokens, " heads=", c.num_heads, " D=", c.head_dim, " block=", c.block));
      Random random(23);
      const int64_t stride = c.num_heads * c.head_dim + c.padding;
      const std::vector<T> x = random.normals<T>(c.num_tokens * stride);
      std::vector<int32_t> positions;
      for (int64_t t = 0; t < c.num_tokens; ++t) positions.push_back(t % 7 == 3 ? -1 : static_cast<int32_t>(t));
      Arena arena(GetParam());
      const T* x_data = c.in_place ? arena.inout(x) : arena.input(x);
      const std::vector<T> y_before = c.in_place ? x : poisoned<T>(c.num_tokens * stride);
      T* y_data = c.in_place ? const_cast<T*>(x_data) : arena.inout(y_before);
      HadamardParams p;
      p.num_tokens = c.num_tokens, p.num_heads = c.num_heads, p.head_dim = c.head_dim, p.dtype = FloatFormat<T>::dtype;
      p.x = {x_data, stride, c.head_dim}, p.y = {y_data, stride, c.head_dim};
      p.block = c.block;
      if (c.with_positions) p.positions = index_view(static_cast<const int32_t*>(arena.input(positions)));
      const Status status = arena.run([&](const Execution& execution) { return hadamard(p, execution); });
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<T> y = arena.read(y_data), got;
      std::vector<Reference> want;
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        if (c.with_positions && positions[static_cast<size_t>(t)] < 0) continue;
        for (int64_t i = 0; i < c.num_heads * c.head_dim; ++i) {
          const int64_t row = i % c.block, first = t * stride + i - row;
          Reference sum;
          for (int64_t column = 0; column < c.block; ++column) {
            const double value = static_cast<double>(to_float(x[static_cast<size_t>(first + column)]));
            sum.value += __builtin_parityll(static_cast<uint64_t>(row & column)) == 0 ? value : -value;
            sum.scale += std::fabs(value);
          }
          const double root = std::sqrt(static_cast<double>(c.block));
          got.push_back(y[static_cast<size_t>(t * stride + i)]);
          want.push_back({sum.value / root, sum.scale / root});
          y[static_cast<size_t>(t * stride + i)] = y_before[static_cast<size_t>(t * stride + i)];
        }
      }
      expect_close(got, want, c.num_heads * c.head_dim, "y");
      expect_bits(y, y_before, "y outside its rows");
    }
  });
}

// Sums of small whole numbers are exact, and so is the factor of a block of 4^n: the same bits as the definition, and x again after
// a second time.
TEST_P(StagesTest, HadamardIsItsOwnInverse) {
  constexpr int64_t kBlock = 256;
  std::vector<float> x;
  for (int64_t i = 0; i < kBlock; ++i) x.push_back(static_cast<float>(i % 11 - 5));
  std::vector<float> want;
  for (int64_t i = 0; i < kBlock; ++i) {
    float sum = 0.0f;
    for (int64_t j = 0; j < kBlock; ++j) {
      const float value = x[static_cast<size_t>(j)];
      sum += __builtin_parityll(static_cast<uint64_t>(i & j)) == 0 ? value : -value;
    }
    want.push_back(sum / 16.0f);
  }
  const auto transformed = [&](const std::vector<float>& of) {
    Arena arena(GetParam());
    float* y = arena.output<float>(kBlock);
    HadamardParams p;
    p.num_tokens = 1, p.num_heads = 1, p.head_dim = p.block = kBlock, p.dtype = DType::f32;
    p.x = {arena.input(of), kBlock, kBlock}, p.y = {y, kBlock, kBlock};
    EXPECT_TRUE(arena.run([&](const Execution& execution) { return hadamard(p, execution); }).ok());
    return arena.read(y);
  };
  expect_bits(transformed(x), want, "y");
  expect_bits(transformed(transformed(x)), x, "y of y");
}

TEST_P(StagesTest, HadamardRefusesWithASentence) {
  using P = HadamardParams;
  const auto invalid = StatusCode::invalid_argument;
  const std::vector<Refusal<P>> refusals = {
      {"negative token count", [](P& p) { p.num_tokens = -1; }, invalid, "num_tokens is -1: it must lie in 0..2147483647"},
      {"no heads", [](P& p) { p.num_heads = 0; }, invalid, "num_heads is 0: it must lie in 1..65536"},
      {"unknown type", [](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {"odd head_dim", [](P& p) { p.head_dim = 5; }, StatusCode::unsupported,
       "head_dim is 5: supported is every even number in 2..1024"},
      {"no block", [](P& p) { p.block = 0; }, invalid,
       "block is 0: it must be a power of two in 2..512 that divides head_dim, 8"},
      {"a block of 6", [](P& p) { p.block = 6; }, invalid,
       "block is 6: it must be a power of two in 2..512 that divides head_dim, 8"},
      {"a block longer than a head", [](P& p) { p.block = 16; }, invalid,
       "block is 16: it must be a power of two in 2..512 that divides head_dim, 8"},
      {"unknown position type", [](P& p) { p.positions.type = kNoType; }, invalid,
       "positions.type is the unknown type 99: it must be int32 or int64"},
      {"no x", [](P& p) { p.x.data = nullptr; }, invalid, "x is null"},
      {"no y", [](P& p) { p.y.data = nullptr; }, invalid, "y is null"},
      {"y half over x", [](P& p) { p.y.data = static_cast<float*>(const_cast<void*>(p.x.data)) + 2; }, invalid, "y overlaps x"},
      {"y over the positions", [](P& p) { p.positions.data = p.y.data; }, invalid, "y overlaps positions"},
  };
  expect_refusals("hadamard", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p;
    p.num_tokens = 3, p.num_heads = 1, p.head_dim = 8, p.block = 8, p.dtype = DType::f32;
    p.x = {arena.input(Random(1).normals<float>(24)), 8, 8}, p.y = {arena.output<float>(24), 8, 8};
    p.positions = index_view(static_cast<const int32_t*>(arena.input(std::vector<int32_t>{0, 1, 2})));
    change(p);
    return refused(arena.run([&](const Execution& execution) { return hadamard(p, execution); }), arena);
  });
}

// ---- query_scale ------------------------------------------------------------------------------------------------------------

struct ScaleCase {
  QueryScale scale;
  int64_t num_tokens = 5, num_heads = 3, head_dim = 64, padding = 0;
  bool in_place = false, with_positions = true;
};

double scale_in_float64(const QueryScale& s, int64_t position) {
  const double next = static_cast<double>(position) + 1.0, b = static_cast<double>(s.b);
  if (s.by_position == PositionScale::llama4) {
    return static_cast<double>(s.constant) * (1.0 + static_cast<double>(s.a) * std::log(1.0 + std::floor(next / b)));
  }
  if (s.by_position == PositionScale::logn) return static_cast<double>(s.constant) * std::max(1.0, std::log(next) / std::log(b));
  return static_cast<double>(s.constant);
}

TEST_P(StagesTest, QueryScaleMatchesTheProduct) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    const QueryScale llama4 = {1.0f, PositionScale::llama4, 0.1f, 8.0f}, logn = {0.5f, PositionScale::logn, 0.0f, 16.0f};
    const std::vector<ScaleCase> cases = {
        {{0.088388348f}},      {{0.3f}, 1, 1, 2},           {{0.3f}, 33, 4, 46, 2, true},
        {{1.0f}, 9, 2, 80, 4}, {llama4, 257, 8, 128},       {llama4, 31, 2, 48, 16, true},
        {logn, 64, 5, 96, 8},  {logn, 33, 1, 576, 0, true}, {{-2.0f}, 5, 3, 64, 0, false, false},
        {{1.0f}, 0, 1, 8}};
    for (const ScaleCase& c : cases) {
      SCOPED_TRACE(str_cat("T=", c.num_tokens, " heads=", c.num_heads, " D=", c.head_dim, " constant=", c.scale.constant));
      Random random(17);
      const int64_t stride = c.num_heads * c.head_dim + c.padding;
      const std::vector<T> x = random.normals<T>(c.num_tokens * stride);
      std::vector<int32_t> positions;
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        positions.push_back(c.with_positions && t % 7 == 3 ? -1
                                                           : static_cast<int32_t>(random.integer(0, t % 2 == 0 ? 40 : 1000000)));
      }
      Arena arena(GetParam());
      const T* x_data = c.in_place ? arena.inout(x) : arena.input(x);
      const std::vector<T> y_before = c.in_place ? x : poisoned<T>(c.num_tokens * stride);
      T* y_data = c.in_place ? const_cast<T*>(x_data) : arena.inout(y_before);
      QueryScaleParams p;
      p.num_tokens = c.num_tokens, p.num_heads = c.num_heads, p.head_dim = c.head_dim, p.dtype = FloatFormat<T>::dtype;
      p.x = {x_data, stride, c.head_dim}, p.y = {y_data, stride, c.head_dim};
      p.q_scale = c.scale;
      if (c.with_positions) p.positions = index_view(static_cast<const int32_t*>(arena.input(positions)));
      const Status status = arena.run([&](const Execution& execution) { return query_scale(p, execution); });
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<T> y = arena.read(y_data), got;
      std::vector<Reference> want;
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        const int64_t position = c.with_positions ? positions[static_cast<size_t>(t)] : 0;
        if (position < 0) continue;
        for (int64_t i = t * stride; i < t * stride + c.num_heads * c.head_dim; ++i) {
          const double value = static_cast<double>(to_float(x[static_cast<size_t>(i)])) * scale_in_float64(c.scale, position);
          got.push_back(y[static_cast<size_t>(i)]);
          want.push_back({value, std::fabs(value)});
          if (c.scale.constant == 1.0f && c.scale.by_position == PositionScale::none) {
            ASSERT_EQ(to_float(y[static_cast<size_t>(i)]), to_float(x[static_cast<size_t>(i)]));
          }
          y[static_cast<size_t>(i)] = y_before[static_cast<size_t>(i)];
        }
      }
      expect_close(got, want, c.num_heads * c.head_dim, "y");
      expect_bits(y, y_before, "y outside its rows");
    }
  });
}

TEST_P(StagesTest, QueryScaleRefusesWithASentence) {
  using P = QueryScaleParams;
  const auto invalid = StatusCode::invalid_argument;
  const std::vector<Refusal<P>> refusals = {
      {"negative token count", [](P& p) { p.num_tokens = -1; }, invalid, "num_tokens is -1: it must lie in 0..2147483647"},
      {"no heads", [](P& p) { p.num_heads = 0; }, invalid, "num_heads is 0: it must lie in 1..65536"},
      {"unknown type", [](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {"odd head_dim", [](P& p) { p.head_dim = 5; }, StatusCode::unsupported,
       "head_dim is 5: supported is every even number in 2..1024"},
      {"unknown scale", [](P& p) { p.q_scale.by_position = static_cast<PositionScale>(3); }, StatusCode::unsupported,
       "q_scale.by_position is 3: supported are none, llama4 and logn"},
      {"infinite constant", [](P& p) { p.q_scale.constant = INFINITY; }, invalid, "q_scale.constant is inf: it must be finite"},
      {"logn of 1", [](P& p) { p.q_scale.by_position = PositionScale::logn; }, invalid,
       "q_scale.b is 1: for logn it must be greater than 1"},
      {"unknown position type", [](P& p) { p.positions.type = kNoType; }, invalid,
       "positions.type is the unknown type 99: it must be int32 or int64"},
      {"no positions where they count", [](P& p) { p.positions = {}, p.q_scale.by_position = PositionScale::llama4; }, invalid,
       "positions is null"},
      {"no x", [](P& p) { p.x.data = nullptr; }, invalid, "x is null"},
      {"no y", [](P& p) { p.y.data = nullptr; }, invalid, "y is null"},
      {"y half over x", [](P& p) { p.y.data = static_cast<float*>(const_cast<void*>(p.x.data)) + 2; }, invalid, "y overlaps x"},
      {"y over the positions", [](P& p) { p.positions.data = p.y.data; }, invalid, "y overlaps positions"},
  };
  expect_refusals("query_scale", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p;
    p.num_tokens = 3, p.num_heads = 1, p.head_dim = 8, p.dtype = DType::f32;
    p.x = {arena.input(Random(1).normals<float>(24)), 8, 8}, p.y = {arena.output<float>(24), 8, 8};
    p.positions = index_view(static_cast<const int32_t*>(arena.input(std::vector<int32_t>{0, 1, 2})));
    change(p);
    return refused(arena.run([&](const Execution& execution) { return query_scale(p, execution); }), arena);
  });
}

// ---- kv_write ---------------------------------------------------------------------------------------------------------------

KvWriteParams kv_write_of(const AttentionPrologueParams& p) {
  KvWriteParams write = {p.num_tokens,          p.num_kv_heads,     p.head_dim,          p.dtype, p.k, p.v, p.cache,
                         p.places.slot_mapping, p.places.positions, p.rope.max_position, p.faults};
  write.slot_mapping_len = p.places.slot_mapping_len;
  return write;
}

TEST_P(StagesTest, KvWriteCopiesIntoTheSlots) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    for (const PrologueCase& listed : prologue_cases()) {
      PrologueCase c = fit_to_type<T>(listed);
      c.bias_q = c.bias_k = c.bias_v = false;
      for (const bool with_positions : {true, false}) {
        c.tokens_without_slot = with_positions || c.num_tokens < 2 ? 0 : 1 + static_cast<int64_t>(c.seed) % (c.num_tokens - 1);
        SCOPED_TRACE(str_cat("positions=", with_positions, " ", c.describe()));
        const PrologueData<T> data = make_data<T>(c);
        PlacedPrologue<T> placed(GetParam(), c, data);
        KvWriteParams params = kv_write_of(placed.params());
        oracle::PrologueInput in = oracle_input(c, data);
        in.rotary_dim = 0;
        if (!with_positions) {
          params.positions = {};
          in.positions.clear();
        }
        const Status status = placed.run([&](const Execution& execution) { return kv_write(params, execution); });
        ASSERT_TRUE(status.ok()) << status.message();
        oracle::PrologueOutput want = oracle::attention_prologue(in);
        std::fill(want.state.begin(), want.state.end(), oracle::TokenState::untouched);
        expect_matches(placed, want, true);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

// Positions past the table are recorded or not and not written, or they are written as if there were no bound.
TEST_P(StagesTest, KvWriteFollowsThePolicyPastTheTable) {
  for (const PastTable past_table : {PastTable::record, PastTable::zero, PastTable::identity}) {
    for (const bool no_faults : {false, true}) {
      if (no_faults && past_table == PastTable::record) continue;
      for (const int64_t axes : {1, 3}) {
        PrologueCase c;
        c.num_tokens = 60, c.max_position = 8, c.num_axes = axes, c.past_table = past_table, c.no_faults = no_faults;
        SCOPED_TRACE(c.describe());
        const PrologueData<float> data = make_data<float>(c);
        PlacedPrologue<float> placed(GetParam(), c, data);
        KvWriteParams params = kv_write_of(placed.params());
        params.num_axes = axes, params.position_axis_stride = placed.params().places.position_axis_stride;
        params.past_table = past_table;
        const Status status = placed.run([&](const Execution& execution) { return kv_write(params, execution); });
        ASSERT_TRUE(status.ok()) << status.message();
        oracle::PrologueInput in = oracle_input(c, data);
        in.rotary_dim = 0;
        oracle::PrologueOutput want = oracle::attention_prologue(in);
        std::fill(want.state.begin(), want.state.end(), oracle::TokenState::untouched);
        expect_matches(placed, want, true);
      }
    }
  }
}

// A token stands where all its axes say: one negative position is padding, one too large a fault.
TEST_P(StagesTest, KvWriteLooksAtEveryPositionAxis) {
  constexpr int64_t kTokens = 6, kHeads = 2, kDim = 8, kAxes = 3, kStride = 7, kRows = 10;
  const std::vector<float> k = Random(5).normals<float>(kTokens * kHeads * kDim),
                           v = Random(6).normals<float>(kTokens * kHeads * kDim);
  std::vector<int64_t> positions(kAxes * kStride, 3);
  positions[1] = 9;                                    // of token 1: the last one that is good
  positions[kStride + 2] = 10;                         // of token 2, second axis: too large
  positions[2 * kStride + 3] = -1;                     // of token 3, third axis: padding
  positions[4] = 10, positions[2 * kStride + 4] = -7;  // padding outweighs
  Arena arena(GetParam());
  KvWriteParams p;
  p.num_tokens = kTokens, p.num_kv_heads = kHeads, p.head_dim = kDim, p.dtype = DType::f32;
  p.k = {arena.input(k), kHeads * kDim, kDim}, p.v = {arena.input(v), kHeads * kDim, kDim};
  float* k_cache = arena.output<float>(8 * kHeads * kDim);
  float* v_cache = arena.output<float>(8 * kHeads * kDim);
  p.cache.k.data = k_cache, p.cache.v.data = v_cache, p.cache.num_pages = 2, p.cache.page_size = 4, p.cache.num_kv_heads = kHeads;
  p.cache.k.head_dim = kDim, p.cache.k.strides = p.cache.v.strides = nhd_strides(4, kHeads, kDim);
  p.slot_mapping = index_view(static_cast<const int64_t*>(arena.input(std::vector<int64_t>{7, 6, 5, 4, 3, 2})));
  p.positions = index_view(static_cast<const int64_t*>(arena.input(positions)));
  p.num_axes = kAxes, p.position_axis_stride = kStride, p.max_position = kRows;
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  p.faults = faults;
  const Status status = arena.run([&](const Execution& execution) { return kv_write(p, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<float> want_k = poisoned<float>(8 * kHeads * kDim), want_v = want_k;
  for (const int64_t t : {0, 1, 5}) {
    std::copy_n(k.begin() + t * kHeads * kDim, kHeads * kDim, want_k.begin() + (7 - t) * kHeads * kDim);
    std::copy_n(v.begin() + t * kHeads * kDim, kHeads * kDim, want_v.begin() + (7 - t) * kHeads * kDim);
  }
  expect_bits(arena.read(k_cache), want_k, "k");
  expect_bits(arena.read(v_cache), want_v, "v");
  const Fault fault = decode_fault(arena.read(faults)[0]);
  EXPECT_EQ(fault.code, FaultCode::position_out_of_range);
  EXPECT_EQ(fault.token, 2);
  EXPECT_EQ(fault.count, 1u);
}

TEST_P(StagesTest, KvWriteRefusesWithASentence) {
  using P = KvWriteParams;
  const auto invalid = StatusCode::invalid_argument;
  const auto missing = StatusCode::unsupported;
  const std::vector<Refusal<P>> refusals = {
      {"negative token count", [](P& p) { p.num_tokens = -1; }, invalid, "num_tokens is -1: it must lie in 0..2147483647"},
      {"no heads", [](P& p) { p.num_kv_heads = -2; }, invalid, "num_kv_heads is -2: it must lie in 1..65536"},
      {"unknown type", [](P& p) { p.dtype = kNoType; }, missing,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {"odd head_dim", [](P& p) { p.head_dim = 3; }, missing, "head_dim is 3: supported is every even number in 2..1024"},
      {"negative max_position", [](P& p) { p.max_position = -1; }, invalid,
       "max_position is -1: it must lie in 0..1099511627776"},
      {"unknown position type", [](P& p) { p.positions.type = kNoType; }, invalid,
       "positions.type is the unknown type 99: it must be int32 or int64"},
      {"too many axes", [](P& p) { p.num_axes = 5; }, invalid, "num_axes is 5: it must lie in 1..4"},
      {"axes at no distance", [](P& p) { p.num_axes = 2, p.position_axis_stride = P().position_axis_stride; }, invalid,
       "position_axis_stride is not set, but num_axes is 2: set it, to 0 where all share one row"},
      {"a bound and nowhere to record", [](P& p) { p.faults = nullptr; }, invalid,
       "faults is null, but max_position is 40: give a FaultRecord, or set past_table to zero or identity"},
      {"unknown policy", [](P& p) { p.past_table = static_cast<PastTable>(7); }, missing,
       "past_table is 7: supported are record, zero and identity"},
      {"a negative distance of axes", [](P& p) { p.num_axes = 2, p.position_axis_stride = -2; }, invalid,
       "positions has the stride -2: strides must not be negative"},
      {"unknown slot type", [](P& p) { p.slot_mapping.type = kNoType; }, invalid,
       "slot_mapping.type is the unknown type 99: it must be int32 or int64"},
      {"neither k nor v", [](P& p) { p.k.data = p.v.data = nullptr; }, invalid, "k and v are both null"},
      {"no slots", [](P& p) { p.slot_mapping.data = nullptr; }, invalid, "slot_mapping is null"},
      {"odd v_head_dim", [](P& p) { p.cache.v.head_dim = 3; }, missing,
       "cache.v.head_dim is 3: supported is every even number in 2..1024, or 0 = head_dim"},
      {"an integer cache without scales", [](P& p) { p.cache.k.format.type = p.cache.v.format.type = DType::int8; }, invalid,
       "cache.k.format.scaling is none, but the type is int8: integer types need scales"},
      {"a cache with scales that are not there",
       [](P& p) {
         p.cache.k.format.type = p.cache.v.format.type = DType::int8,
         p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::head;
       },
       invalid, "cache.k.scale is null"},
      {"no cache", [](P& p) { p.cache.v.data = nullptr; }, invalid, "cache.v.data is null"},
      {"cache over k", [](P& p) { p.cache.k.data = const_cast<void*>(p.k.data); }, invalid, "cache.k.data overlaps k"},
      {"more slots than tokens", [](P& p) { p.slot_mapping_len = 6; }, invalid,
       "slot_mapping_len is 6: it must lie in 0..num_tokens, 5"},
      {"a number of slots that are not given", [](P& p) { p.slot_mapping = {}, p.slot_mapping_len = 5; }, invalid,
       "slot_mapping_len is 5, but slot_mapping is null"},
      {"cache over the slots", [](P& p) { p.slot_mapping.data = p.cache.v.data; }, invalid, "cache.v.data overlaps slot_mapping"},
      {"fault record at a wrong byte", [](P& p) { p.faults = reinterpret_cast<FaultRecord*>(24); }, invalid,
       "faults lies at 0x18: it must be aligned to 16 bytes"},
  };
  PrologueCase c;
  c.packed = false;
  const PrologueData<float> data = make_data<float>(c);
  expect_refusals("kv_write", refusals, [&](const auto& change) {
    PlacedPrologue<float> placed(GetParam(), c, data);
    KvWriteParams params = kv_write_of(placed.params());
    change(params);
    return refused(placed.run([&](const Execution& execution) { return kv_write(params, execution); }), placed.arena());
  });
}

}  // namespace
}  // namespace prologue::test
