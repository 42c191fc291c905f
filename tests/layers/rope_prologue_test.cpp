// The scaling schemes as the kernel sees them: frequencies that it computes cos and sin from, or a table made of the same ones.
#include <gtest/gtest.h>

#include <algorithm>

#include <prologue/layers/rope/position_axes.h>
#include <prologue/layers/rope/rope_table.h>

#include "tests/support/prologue_results.h"

namespace prologue::test {
namespace {

constexpr int64_t kOriginal = 4096;

struct Scheme {
  const char* name;
  RopeScaling scaling;
  int64_t length = 0;  // of the sequence
  std::vector<float> freq_factors = {};
};

std::vector<Scheme> schemes(int64_t rotary_dim) {
  const auto half = static_cast<size_t>(rotary_dim / 2);
  std::vector<double> short_factors(half), long_factors(half);
  for (size_t i = 0; i < half; ++i)
    short_factors[i] = 1.0 + 0.01 * static_cast<double>(i), long_factors[i] = 2.0 + static_cast<double>(i);
  const LongRope longrope{short_factors, long_factors, kOriginal, 32.0};
  YarnRope yarn, deepseek, gpt_oss;
  yarn.factor = deepseek.factor = gpt_oss.factor = 32.0;
  yarn.original_max_position = deepseek.original_max_position = gpt_oss.original_max_position = kOriginal;
  yarn.attention_factor = 1.3;
  deepseek.mscale = 1.0, deepseek.mscale_all_dim = 0.7;
  gpt_oss.beta_fast = 16.0, gpt_oss.beta_slow = 2.0, gpt_oss.truncate = false;
  return {{"default", DefaultRope{}},
          {"linear", LinearRope{4.0}},
          {"dynamic, long", DynamicNtkRope{2.0, kOriginal}, 2 * kOriginal},
          {"YaRN", yarn},
          {"YaRN, mscale", deepseek},
          {"YaRN, not truncated", gpt_oss},
          {"LongRoPE, one below the original context", longrope, kOriginal - 1},
          {"LongRoPE, the original context", longrope, kOriginal},
          {"LongRoPE, one above the original context", longrope, kOriginal + 1},
          {"Llama 3", Llama3Rope{8.0, 1.0, 4.0, kOriginal}},
          {"proportional", ProportionalRope{0.25}},
          {"frequency factors", DefaultRope{}, 0, std::vector<float>(half, 3.0f)}};
}

RopeFrequencies frequencies_of(const Scheme& scheme, int64_t rotary_dim) {
  RopeConfig config;
  config.rotary_dim = rotary_dim;
  config.scaling = scheme.scaling;
  config.freq_factors = scheme.freq_factors;
  auto result = rope_frequencies(config, scheme.length, RopePrecision::reference);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

// Rotates Q and K of one head at positions within the stretched context.
PrologueCase long_case(int64_t rotary_dim) {
  PrologueCase c;
  c.num_tokens = 24, c.num_q_heads = 1, c.num_kv_heads = 1, c.head_dim = rotary_dim, c.rotary_dim = rotary_dim;
  c.bad_indices = false, c.max_position = 2 * kOriginal;
  return c;
}

class RopePrologueTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, RopePrologueTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

TEST_P(RopePrologueTest, SchemesRotateAlikeAsFrequenciesAndAsTables) {
  for (const int64_t rotary_dim : {64, 96}) {
    for (const Scheme& scheme : schemes(rotary_dim)) {
      SCOPED_TRACE(str_cat(scheme.name, ", rotary_dim ", rotary_dim));
      const RopeFrequencies frequencies = frequencies_of(scheme, rotary_dim);
      PrologueCase c = long_case(rotary_dim);
      c.source = RopeSource::inv_freq;
      c.attention_factor = static_cast<float>(frequencies.attention_factor);
      PrologueData<float> data = make_data<float>(c);
      data.inv_freq.assign(frequencies.inv_freq.begin(), frequencies.inv_freq.end());  // float32 values: nothing is lost
      PlacedPrologue<float> computed(GetParam(), c, data);
      ASSERT_TRUE(computed.run().ok());
      expect_matches(computed, oracle::attention_prologue(oracle_input(c, data)));

      c.source = RopeSource::table;
      data.inv_freq.clear();
      data.table = *rope_cos_sin(frequencies, c.max_position, RopePrecision::exact);
      PlacedPrologue<float> tabled(GetParam(), c, data);
      ASSERT_TRUE(tabled.run().ok());
      expect_matches(tabled, oracle::attention_prologue(oracle_input(c, data)));

      // cos and sin differ by an ulp or so, the products and the sum are rounded.
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        const std::vector<float> a = computed.q_row(t), b = tabled.q_row(t);
        for (size_t i = 0; i < a.size(); ++i) {
          const size_t half = a.size() / 2, pair = i % half, row = static_cast<size_t>(t) * a.size();
          const float scale = (std::fabs(data.q[row + pair]) + std::fabs(data.q[row + pair + half])) * c.attention_factor;
          EXPECT_NEAR(a[i], b[i], 4.0f * 0x1p-24f * scale) << t << ", " << i;
        }
      }
      if (HasFailure()) return;
    }
  }
}

// A pinned set of factors serves the whole sequence: chunks on either side of the original context rotate as one pass would, and a
// table that grows past it keeps its rows. (With factors chosen chunk by chunk they would not: the two sets differ.)
TEST_P(RopePrologueTest, PinnedFactorsCrossTheOriginalContext) {
  constexpr int64_t kDim = 64;
  const auto all = schemes(kDim);
  const Scheme& below = all[7];
  const Scheme& above = all[8];
  ASSERT_NE(frequencies_of(below, kDim).inv_freq, frequencies_of(above, kDim).inv_freq);
  const RopeFrequencies pinned = frequencies_of(above, kDim);

  Execution execution;
  execution.device = backend_device(GetParam());
  auto table = RopeTable::create(RopeStyle::neox, pinned, kOriginal - 4, RopePrecision::reference, execution);
  ASSERT_TRUE(table.ok()) << table.status().message();
  ASSERT_TRUE(table->reserve(kOriginal + 20, execution).ok());
  PrologueCase c = long_case(kDim);
  PrologueData<float> data = make_data<float>(c);
  data.table.resize(static_cast<size_t>(table->max_position() * kDim));
  ASSERT_TRUE(copy_to_host(data.table.data(), table->cos_sin(), static_cast<int64_t>(data.table.size()) * 4, execution).ok());
  EXPECT_EQ(data.table, *rope_cos_sin(pinned, table->max_position(), RopePrecision::reference));

  c.max_position = table->max_position();
  for (int64_t t = 0; t < c.num_tokens; ++t) data.positions[static_cast<size_t>(t)] = kOriginal - 8 + t;
  PlacedPrologue<float> whole(GetParam(), c, data), chunks(GetParam(), c, data);
  ASSERT_TRUE(whole.run().ok());
  const AttentionPrologueParams& p = chunks.params();
  const Status status = chunks.run([&](const Execution& e) {
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 8}, {8, 1}, {9, 15}}) {
      AttentionPrologueParams chunk = p;
      const auto at = [&, from = first](auto* data_of, int64_t stride) {
        return static_cast<decltype(data_of)>(static_cast<char*>(const_cast<void*>(static_cast<const void*>(data_of))) +
                                              from * stride);
      };
      chunk.num_tokens = count;
      for (HeadsView* view : {&chunk.q, &chunk.k, &chunk.v}) view->data = at(view->data, 4 * view->token_stride);
      chunk.q_out.data = at(chunk.q_out.data, 4 * chunk.q_out.token_stride);
      chunk.places.positions.data = at(chunk.places.positions.data, 4);
      chunk.places.slot_mapping.data = at(chunk.places.slot_mapping.data, 8);
      PROLOGUE_RETURN_IF_ERROR(attention_prologue(chunk, e));
    }
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
  expect_same_bits(chunks, whole);
}

// Qwen2-VL's and Qwen3-VL's sections, and two axes, as layers/rope lays them out.
TEST_P(RopePrologueTest, AxesOfTheModelsRotateTheirPairs) {
  const Result<std::vector<uint8_t>> axes[] = {mrope_pair_axis({16, 24, 24}, false), mrope_pair_axis({24, 20, 20}, true),
                                               two_axis_pair_axis(128)};
  for (const auto& pair_axis : axes) {
    ASSERT_TRUE(pair_axis.ok());
    PrologueCase c = long_case(128);
    c.source = RopeSource::inv_freq;
    c.num_axes = 1 + *std::max_element(pair_axis->begin(), pair_axis->end());
    PrologueData<float> data = make_data<float>(c);
    data.pair_axis = *pair_axis;
    PlacedPrologue<float> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    expect_matches(placed, oracle::attention_prologue(oracle_input(c, data)));
  }
}

}  // namespace
}  // namespace prologue::test
