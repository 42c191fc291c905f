#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>

#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/rotary/rotary.h>

#include "tests/golden/rotary/rotary_goldens.h"
#include "tests/support/combinations.h"
#include "tests/support/prologue_results.h"
#include "tests/support/random.h"
#include "tests/support/sparse_memory.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class AttentionPrologueTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, AttentionPrologueTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

// ---- the oracle itself ------------------------------------------------------------------------------------------------------

TEST(AttentionPrologueOracle, AgreesWithTheReferenceFormulas) {
  for (const golden::RotaryGolden& g : golden::kRotaryGoldens) {
    SCOPED_TRACE(g.name);
    oracle::PrologueInput in;
    in.num_tokens = static_cast<int64_t>(g.table.size()) / g.rotary_dim;
    in.num_q_heads = g.num_heads;
    in.head_dim = g.head_dim;
    in.rotary_dim = g.rotary_dim;
    in.interleaved = g.interleaved;
    in.q = to_doubles(g.x);
    in.table = to_doubles(g.table);
    in.max_position = in.num_tokens;
    for (int64_t t = 0; t < in.num_tokens; ++t) in.positions.push_back(t);
    const oracle::PrologueOutput out = oracle::attention_prologue(in);
    for (int64_t t = 0; t < in.num_tokens; ++t) {
      for (int64_t i = 0; i < g.num_heads * g.head_dim; ++i) {
        const oracle::Element& want = out.q[static_cast<size_t>(t)][static_cast<size_t>(i)];
        const double got = static_cast<double>(g.y[static_cast<size_t>(t * g.num_heads * g.head_dim + i)]);
        EXPECT_NEAR(got, want.value, 2.0 * 0x1p-24 * want.scale) << t << ", " << i;
      }
    }
  }
}

// ---- every case against the oracle ------------------------------------------------------------------------------------------

template <class T>
void expect_oracle(Backend backend, const PrologueCase& listed) {
  const PrologueCase c = fit_to_type<T>(listed);
  SCOPED_TRACE(c.describe());
  const PrologueData<T> data = make_data<T>(c);
  PlacedPrologue<T> placed(backend, c, data);
  const Status status = placed.run();
  ASSERT_TRUE(status.ok()) << status.message();
  expect_matches(placed, oracle::attention_prologue(oracle_input(c, data)));
}

constexpr char kThreadsEqualTheCpu[] = "EqualsTheCpuBitForBit compares these cases with the CPU's";

// Calls check(type, case) with each case in one of the three types. The first has the type number `turn`: each of the comparisons below sees
// a case in another one. With PROLOGUE_TEST_ALL all see it in all.
template <class F>
void for_types_in_turn(const std::vector<PrologueCase>& cases, size_t turn, const F& check) {
  for (const PrologueCase& c : cases) {
    if (tests_all_combinations()) {
      for_each_type([&](auto type) { check(type, c); });
    } else {
      with_host_type(kFloatTypes[turn++ % 3], [&](auto type) { check(type, c); });
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(AttentionPrologueTest, MatchesTheOracle) {
  if (GetParam() == Backend::cpu_threads) GTEST_SKIP() << kThreadsEqualTheCpu;
  for_each_type([&](auto type) {
    for (const PrologueCase& c : prologue_cases()) {
      expect_oracle<decltype(type)>(GetParam(), c);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST_P(AttentionPrologueTest, MatchesTheOracleFeatureByFeature) {
  if (GetParam() == Backend::cpu_threads) GTEST_SKIP() << kThreadsEqualTheCpu;
  for_types_in_turn(feature_cases(), 0, [&](auto type, const PrologueCase& c) { expect_oracle<decltype(type)>(GetParam(), c); });
}

// Any option may come with any other. A failure names the seed: random_case(seed) is the case.
TEST_P(AttentionPrologueTest, MatchesTheOracleOnRandomStructs) {
  const uint64_t count = GetParam() == Backend::cpu ? 2400 : 300;
  for (uint64_t seed = 1; seed <= count; ++seed) {
    with_host_type(kFloatTypes[seed % 3], [&](auto type) { expect_oracle<decltype(type)>(GetParam(), random_case(seed)); });
    if (::testing::Test::HasFailure()) return;
  }
}

// The CPU is the reference of every other backend, and of itself with more threads: the same bits.
TEST_P(AttentionPrologueTest, EqualsTheCpuBitForBit) {
  if (GetParam() == Backend::cpu) GTEST_SKIP() << "it is what the others are compared with";
  const auto check = [&](auto type, const PrologueCase& listed) {
    using T = decltype(type);
    const PrologueCase c = fit_to_type<T>(listed);
    SCOPED_TRACE(c.describe());
    const PrologueData<T> data = make_data<T>(c);
    PlacedPrologue<T> cpu(Backend::cpu, c, data);
    PlacedPrologue<T> placed(GetParam(), c, data);
    ASSERT_TRUE(cpu.run().ok());
    ASSERT_TRUE(placed.run().ok());
    expect_same_bits(placed, cpu);
  };
  for_types_in_turn(prologue_cases(), 0, check);
  for_types_in_turn(feature_cases(), 1, check);
  for (uint64_t seed = 5001; seed <= 5200 && !::testing::Test::HasFailure(); ++seed) {
    with_host_type(kFloatTypes[seed % 3], [&](auto type) { check(type, random_case(seed)); });
  }
}

// Says whether the unfused stages can do the case as well.
bool has_stages(const PrologueCase& c) {
  return c.groups.empty() && c.source == RopeSource::table && (c.num_axes == 1 || !c.bad_indices) && !c.has_sequences() &&
         c.q_scale.constant == 1.0f && c.q_scale.by_position == PositionScale::none && !c.q8 && !c.k_out && !c.v_out &&
         c.cached && c.num_q_heads > 0 && c.num_kv_heads > 0 && c.with_k && c.with_v;
}

// The fused operation gives the same bits as add_bias + qk_norm + rotary + qk_norm + hadamard + query_scale + kv_write: always with
// Rounding::per_step, and with once where the stages' stores do not round (float32).
TEST_P(AttentionPrologueTest, EqualsTheUnfusedStagesBitForBit) {
  int64_t compared = 0;
  const auto check = [&](auto type, const PrologueCase& listed) {
    using T = decltype(type);
    PrologueCase c = fit_to_type<T>(listed);
    if (!has_stages(c)) return;
    ++compared;
    c.per_step = sizeof(T) == 2 || c.seed % 2 == 0;
    c.token_faults = false;  // the stages have none
    for (const CaseNorm& norm : {c.norm_of_q(), c.norm_of_k()}) {
      if (norm.placement == NormPlacement::after_rope)
        c.bad_indices = false;  // the stages would norm the zeros of a bad position
    }
    SCOPED_TRACE(c.describe());
    const PrologueData<T> data = make_data<T>(c);
    PlacedPrologue<T> fused(GetParam(), c, data);
    const Status done = fused.run();
    ASSERT_TRUE(done.ok()) << done.message();

    PlacedPrologue<T> unfused(GetParam(), c, data);
    Arena& arena = unfused.arena();
    const AttentionPrologueParams p = unfused.params();
    T* q = arena.inout(data.q);
    T* k = arena.inout(data.k);
    T* v = arena.inout(data.v);
    const int64_t q_heads = c.num_q_heads, kv_heads = c.num_kv_heads;
    const auto dense = [](T* x, int64_t heads, int64_t dim) { return MutableHeadsView{x, heads * dim, dim}; };
    const Status status = unfused.run([&](const Execution& execution) {
      const auto bias = [&](T* x, int64_t width, const void* terms) {
        if (terms == nullptr) return Status();
        return add_bias({c.num_tokens, width, p.dtype, x, width, terms, x, width}, execution);
      };
      const auto norm = [&](T* x, int64_t heads, const HeadNorm& of, const MutableHeadsView& y) {
        QkNormParams n;
        n.num_tokens = c.num_tokens, n.num_heads = heads, n.head_dim = c.head_dim, n.dtype = p.dtype;
        n.x = as_input(dense(x, heads, c.head_dim)), n.y = y, n.norm = of;
        n.positions = p.places.positions;
        return qk_norm(n, execution);
      };
      const auto norm_v = [&] {
        QkNormParams n;
        n.num_tokens = c.num_tokens, n.num_heads = kv_heads, n.head_dim = c.v_width(), n.dtype = p.dtype;
        n.y = dense(v, kv_heads, c.v_width()), n.x = as_input(n.y), n.norm = p.v_norm;
        return qk_norm(n, execution);
      };
      const auto norm_if = [&](NormPlacement placement, T* x, int64_t heads, const HeadNorm& of, const MutableHeadsView& y) {
        return of.placement == placement ? norm(x, heads, of, y) : Status();
      };
      const auto rotate = [&](T* x, int64_t heads, const MutableHeadsView& y) {
        RotaryParams r;
        r.seq_len = c.num_tokens, r.head_dim = c.head_dim, r.dtype = p.dtype;
        r.num_tensors = 1, r.tensors[0] = rotary_tensor(as_input(dense(x, heads, c.head_dim)), y, heads);
        r.rope = p.rope;
        r.rope.past_table = c.past_table == PastTable::record ? PastTable::zero : c.past_table;  // kv_write records it
        r.positions.ids = p.places.positions;
        r.positions.axis_stride = p.places.position_axis_stride;
        return rotary(r, execution);
      };
      const auto transform = [&](const MutableHeadsView& x, int64_t heads, int64_t dim, int64_t block) {
        HadamardParams h;
        h.num_tokens = c.num_tokens, h.num_heads = heads, h.head_dim = dim, h.dtype = p.dtype;
        h.x = as_input(x), h.y = x, h.block = block, h.positions = p.places.positions;
        return block == 0 ? Status() : hadamard(h, execution);
      };
      const auto multiply = [&](const MutableHeadsView& x, int64_t dim, float constant) {
        QueryScaleParams s;
        s.num_tokens = c.num_tokens, s.num_heads = kv_heads, s.head_dim = dim, s.dtype = p.dtype;
        s.x = as_input(x), s.y = x, s.q_scale.constant = constant, s.positions = p.places.positions;
        return query_scale(s, execution);
      };
      PROLOGUE_RETURN_IF_ERROR(bias(q, q_heads * c.head_dim, p.bias.q));
      PROLOGUE_RETURN_IF_ERROR(bias(k, kv_heads * c.head_dim, p.bias.k));
      PROLOGUE_RETURN_IF_ERROR(bias(v, kv_heads * c.v_width(), p.bias.v));
      if (c.v_norm) PROLOGUE_RETURN_IF_ERROR(norm_v());
      const MutableHeadsView q_heads_of = dense(q, q_heads, c.head_dim), k_heads_of = dense(k, kv_heads, c.head_dim);
      const auto before = NormPlacement::before_rope, after = NormPlacement::after_rope;
      PROLOGUE_RETURN_IF_ERROR(norm_if(before, q, q_heads, p.q_norm, q_heads_of));
      PROLOGUE_RETURN_IF_ERROR(norm_if(before, k, kv_heads, p.k_norm, k_heads_of));
      PROLOGUE_RETURN_IF_ERROR(rotate(q, q_heads, p.q_norm.placement == after ? q_heads_of : p.q_out));
      PROLOGUE_RETURN_IF_ERROR(rotate(k, kv_heads, k_heads_of));
      PROLOGUE_RETURN_IF_ERROR(norm_if(after, q, q_heads, p.q_norm, p.q_out));
      PROLOGUE_RETURN_IF_ERROR(norm_if(after, k, kv_heads, p.k_norm, k_heads_of));
      PROLOGUE_RETURN_IF_ERROR(transform(p.q_out, q_heads, c.head_dim, c.hadamard_block));
      PROLOGUE_RETURN_IF_ERROR(transform(k_heads_of, kv_heads, c.head_dim, c.hadamard_block));
      PROLOGUE_RETURN_IF_ERROR(transform(dense(v, kv_heads, c.v_width()), kv_heads, c.v_width(), c.v_hadamard_block));
      PROLOGUE_RETURN_IF_ERROR(multiply(k_heads_of, c.head_dim, p.k_constant));
      PROLOGUE_RETURN_IF_ERROR(multiply(dense(v, kv_heads, c.v_width()), c.v_width(), p.v_constant));
      return kv_write(
          {c.num_tokens, kv_heads, c.head_dim, p.dtype, as_input(dense(k, kv_heads, c.head_dim)),
           as_input(dense(v, kv_heads, c.v_width())), p.cache, p.places.slot_mapping, p.places.positions, c.max_position,
           p.faults, c.num_axes, p.places.position_axis_stride, c.past_table, p.places.slot_mapping_len},
          execution);
    });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_same_bits(unfused, fused);
  };
  for_types_in_turn(prologue_cases(), 1, check);
  for_types_in_turn(feature_cases(), 2, check);
  for (uint64_t seed = 10001; seed <= 12000 && !::testing::Test::HasFailure(); ++seed) {
    with_host_type(kFloatTypes[seed % 3], [&](auto type) { check(type, random_case(seed)); });
  }
  EXPECT_GT(compared, 700);
}

// A group is what a call with nothing but its heads computes: as Q, or as K in its cache.
TEST_P(AttentionPrologueTest, GroupsEqualCallsOfTheirOwn) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    PrologueCase c = plain_case(37);
    c.groups = minimax_indexer();
    c.groups[0].style = RopeStyle::interleaved, c.groups[0].hadamard_block = 16, c.groups[0].q_scale.constant = 0.3f;
    c.groups[1].norm = NormPlacement::after_rope, c.groups[1].page_size = 16;
    const PrologueData<T> data = make_data<T>(c);
    PlacedPrologue<T> whole(GetParam(), c, data);
    ASSERT_TRUE(whole.run().ok());
    const auto alone = [&](const PrologueCase& group, const PrologueData<T>& of_group, bool as_k) {
      PrologueCase part = group;
      part.num_tokens = c.num_tokens, part.page_size = 16, part.packed = false, part.cached = as_k, part.k_out = false;
      if (as_k) part.num_q_heads = 0, part.num_kv_heads = group.num_q_heads, part.with_v = false;
      PrologueData<T> part_data = data;
      part_data.q = as_k ? std::vector<T>() : of_group.q, part_data.k = as_k ? of_group.q : std::vector<T>(), part_data.v = {};
      part_data.q_bias = part_data.k_bias = part_data.v_bias = {};
      (as_k ? part_data.k_weight : part_data.q_weight) = of_group.q_weight;
      part_data.table = of_group.table;
      part_data.groups.clear();
      auto placed = std::make_unique<PlacedPrologue<T>>(GetParam(), part, part_data);
      EXPECT_TRUE(placed->run().ok());
      return placed;
    };
    const auto q = alone(c.groups[0], data.groups[0], false), k = alone(c.groups[1], data.groups[1], true);
    const HeadGroup *const of_q = &whole.params().groups[0], *const of_k = &whole.params().groups[1];
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      expect_bits(whole.row(of_q->out, of_q->num_heads, of_q->head_dim, t), q->q_row(t), "the group as Q");
      const int64_t slot = data.slots[static_cast<size_t>(t)];
      const int64_t at = slot / 16 * of_k->cache.strides.page + slot % 16 * of_k->cache.strides.token;
      std::vector<T> row;
      append_values(
          whole.bytes_at(static_cast<const T*>(of_k->cache.data) + at, of_k->head_dim * static_cast<int64_t>(sizeof(T))), row);
      expect_bits(row, k->cache_row(false, slot), "the group as K");
    }
  });
}

// vLLM's cache of DeepSeek V3.2's indexer: a page has the codes of its tokens, 128 bytes each, and then their scales, 4 bytes each.
TEST_P(AttentionPrologueTest, WritesTheIndexerCacheOfDeepSeek) {
  using T = BFloat16;
  PrologueCase c = plain_case(70);
  c.page_size = 64, c.groups = deepseek_indexer();
  const PrologueData<T> data = make_data<T>(c);
  PlacedPrologue<T> placed(GetParam(), c, data);
  const Status status = placed.run();
  ASSERT_TRUE(status.ok()) << status.message();
  const PagedHeads& cache = placed.params().groups[1].cache;
  const oracle::PrologueOutput want = oracle::attention_prologue(oracle_input(c, data));
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const int64_t slot = data.slots[static_cast<size_t>(t)], in_page = slot % 64;
    const auto* const page = static_cast<const unsigned char*>(cache.data) + slot / 64 * (64 * 128 + 64 * 4);
    const std::vector<unsigned char> codes = placed.bytes_at(page + in_page * 128, 128);
    float scale;
    std::memcpy(&scale, placed.bytes_at(page + 64 * 128 + in_page * 4, 4).data(), 4);
    for (size_t i = 0; i < 128; ++i) {
      const double value = want.groups[1].q[static_cast<size_t>(t)][i].value;
      const double got = static_cast<double>(from_fp8_e4m3(codes[i])) * static_cast<double>(scale);
      EXPECT_NEAR(got, value, std::max(std::fabs(value) / 16.0, static_cast<double>(scale) * 0x1p-9) * 1.001) << t << ", " << i;
    }
  }
}

// Q, K and V of a call with groups have the bits of the call without them; a call may also have groups only, and no head_dim.
TEST_P(AttentionPrologueTest, GroupsLeaveTheOthersAsTheyAre) {
  PrologueCase c = plain_case(33);
  c.norm = NormPlacement::before_rope;
  const PrologueData<float> plain_data = make_data<float>(c);
  PlacedPrologue<float> plain(GetParam(), c, plain_data);
  ASSERT_TRUE(plain.run().ok());
  c.groups = deepseek_indexer();
  const PrologueData<float> data = make_data<float>(c);
  PlacedPrologue<float> with(GetParam(), c, data);
  ASSERT_TRUE(with.run().ok());
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    expect_bits(with.q_row(t), plain.q_row(t), "q");
    const int64_t slot = data.slots[static_cast<size_t>(t)];
    for (const bool is_v : {false, true}) expect_bits(with.cache_row(is_v, slot), plain.cache_row(is_v, slot), "cache");
  }

  c.num_q_heads = c.num_kv_heads = c.rotary_dim = c.max_position = 0, c.norm = NormPlacement::none;
  PlacedPrologue<float> only(GetParam(), c, make_data<float>(c));
  only.params().head_dim = 0;
  const Status status = only.run();
  ASSERT_TRUE(status.ok()) << status.message();
  expect_matches(only, oracle::attention_prologue(oracle_input(c, only.data())));
}

// With Rounding::per_step what is quantised is what would be stored: K as in k_out, Q (scaled, and rounded once more) as in
// q_out.
TEST_P(AttentionPrologueTest, PerStepQuantizesRoundedValues) {
  using T = BFloat16;
  PrologueCase c;
  c.num_tokens = 40, c.bad_indices = false, c.per_step = true, c.norm = NormPlacement::before_rope, c.bias_k = true;
  c.q_scale.constant = 0.37f, c.k_out = c.v_out = true, c.kv_type = DType::fp8_e5m2, c.scaling = KvScaling::tensor;
  PrologueData<T> data = make_data<T>(c);
  data.k_scale = data.v_scale = {1.0f}, data.q_scale = 1.0f;
  PlacedPrologue<T> plain(GetParam(), c, data);
  ASSERT_TRUE(plain.run().ok());
  c.q8 = KvScaling::tensor;
  PlacedPrologue<T> quantized(GetParam(), c, data);
  ASSERT_TRUE(quantized.run().ok());
  const AttentionPrologueParams& p = plain.params();
  const QuantizedQuery& q8 = quantized.params().q8_out;
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const std::vector<T> q = plain.q_row(t), k = plain.row(p.k_out, c.num_kv_heads, c.head_dim, t);
    for (int64_t h = 0; h < c.num_kv_heads; ++h) {
      const std::vector<unsigned char> bytes = plain.cache_bytes(false, data.slots[static_cast<size_t>(t)], h);
      for (int64_t i = 0; i < c.head_dim; ++i) {
        EXPECT_EQ(bytes[static_cast<size_t>(i)], to_fp8_e5m2(to_float(k[static_cast<size_t>(h * c.head_dim + i)]))) << t;
      }
    }
    for (int64_t h = 0; h < c.num_q_heads; ++h) {
      const std::vector<unsigned char> bytes =
          quantized.bytes_at(static_cast<unsigned char*>(q8.data) + t * q8.token_stride + h * q8.head_stride, c.head_dim);
      for (int64_t i = 0; i < c.head_dim; ++i) {
        EXPECT_EQ(bytes[static_cast<size_t>(i)], to_fp8_e4m3(to_float(q[static_cast<size_t>(h * c.head_dim + i)]))) << t;
      }
    }
    if (HasFailure()) return;
  }
}

// ---- properties -------------------------------------------------------------------------------------------------------------

// What attention makes of Q and K does not change: the matrix is orthogonal.
TEST_P(AttentionPrologueTest, HadamardKeepsTheProductsOfQAndK) {
  PrologueCase c = plain_case(3);
  c.num_q_heads = c.num_kv_heads = 2, c.head_dim = 128, c.rotary_dim = 96, c.k_out = true;
  const PrologueData<float> data = make_data<float>(c);
  PlacedPrologue<float> plain(GetParam(), c, data);
  ASSERT_TRUE(plain.run().ok());
  for (const int64_t block : {2, 16, 128}) {
    c.hadamard_block = block;
    PlacedPrologue<float> transformed(GetParam(), c, data);
    ASSERT_TRUE(transformed.run().ok());
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      const auto of = [&](const PlacedPrologue<float>& placed, std::vector<float>& q, std::vector<float>& k) {
        q = placed.q_row(t), k = placed.row(placed.params().k_out, c.num_kv_heads, c.head_dim, t);
      };
      std::vector<float> q, k, new_q, new_k;
      of(plain, q, k), of(transformed, new_q, new_k);
      EXPECT_NE(k, new_k);
      for (int64_t h = 0; h < c.num_q_heads; ++h) {
        double want = 0.0, got = 0.0, terms = 0.0;
        for (int64_t i = h * c.head_dim; i < (h + 1) * c.head_dim; ++i) {
          const auto at = static_cast<size_t>(i);
          want += static_cast<double>(q[at]) * static_cast<double>(k[at]);
          got += static_cast<double>(new_q[at]) * static_cast<double>(new_k[at]);
          terms += std::fabs(static_cast<double>(new_q[at]) * static_cast<double>(new_k[at]));
        }
        EXPECT_NEAR(got, want, 1e-5 * terms) << block << ", " << t << ", " << h;
      }
    }
  }
}

TEST_P(AttentionPrologueTest, PositionZeroIsTheIdentity) {
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    PrologueCase c = plain_case(7);
    c.style = style;
    c.bias_q = c.bias_k = c.bias_v = false;
    PrologueData<float> data = make_data<float>(c);
    std::fill(data.positions.begin(), data.positions.end(), 0);
    PlacedPrologue<float> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      const auto q = data.q.begin() + t * c.num_q_heads * c.head_dim;
      EXPECT_EQ(placed.q_row(t), std::vector<float>(q, q + c.num_q_heads * c.head_dim)) << t;
      const auto k = data.k.begin() + t * c.num_kv_heads * c.head_dim;
      EXPECT_EQ(placed.cache_row(false, data.slots[static_cast<size_t>(t)]),
                std::vector<float>(k, k + c.num_kv_heads * c.head_dim))
          << t;
    }
  }
}

TEST_P(AttentionPrologueTest, KeepsTheNormOfEveryPair) {
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    PrologueCase c = plain_case(33);
    c.style = style;
    c.rotary_dim = 48;
    c.bias_q = false;
    const PrologueData<float> data = make_data<float>(c);
    PlacedPrologue<float> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    const bool neox = style == RopeStyle::neox;
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      const std::vector<float> row = placed.q_row(t);
      for (int64_t h = 0; h < c.num_q_heads; ++h) {
        for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
          const size_t a = static_cast<size_t>(h * c.head_dim + (neox ? i : 2 * i));
          const size_t b = static_cast<size_t>(h * c.head_dim + (neox ? i + c.rotary_dim / 2 : 2 * i + 1));
          const size_t base = static_cast<size_t>(t * c.num_q_heads * c.head_dim);
          const double before = std::hypot(static_cast<double>(data.q[base + a]), static_cast<double>(data.q[base + b]));
          const double after = std::hypot(static_cast<double>(row[a]), static_cast<double>(row[b]));
          EXPECT_NEAR(after, before, 1e-6 * before);
        }
      }
    }
  }
}

// <R_m q, R_n k> depends on m - n only: the same q and k, moved along together.
TEST_P(AttentionPrologueTest, ScoresDependOnTheDistance) {
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    PrologueCase c = plain_case(9);
    c.style = style;
    c.num_q_heads = c.num_kv_heads = 1;
    PrologueData<float> data = make_data<float>(c);
    for (int64_t t = 1; t < c.num_tokens; ++t) {
      std::copy_n(data.q.begin(), c.head_dim, data.q.begin() + t * c.head_dim);
      std::copy_n(data.k.begin(), c.head_dim, data.k.begin() + t * c.head_dim);
    }
    for (int64_t t = 0; t < c.num_tokens; ++t) data.positions[static_cast<size_t>(t)] = 3 * t + 2;
    PlacedPrologue<float> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    const auto score = [&](int64_t m, int64_t n) {
      const std::vector<float> q = placed.q_row(m);
      const std::vector<float> k = placed.cache_row(false, data.slots[static_cast<size_t>(n)]);
      double sum = 0.0;
      for (size_t i = 0; i < q.size(); ++i) sum += static_cast<double>(q[i]) * static_cast<double>(k[i]);
      return sum;
    };
    for (int64_t t = 0; t + 4 < c.num_tokens; ++t) EXPECT_NEAR(score(t + 4, t), score(4, 0), 2e-5) << t;
    EXPECT_GT(std::fabs(score(4, 0) - score(5, 0)), 1e-3);  // and it does depend on it
  }
}

template <class T>
void expect_same_rows(PlacedPrologue<T>& a, int64_t token_a, PlacedPrologue<T>& b, int64_t token_b, int64_t slot_a,
                      int64_t slot_b) {
  expect_bits(a.q_row(token_a), b.q_row(token_b), "q");
  expect_bits(a.cache_row(false, slot_a), b.cache_row(false, slot_b), "k");
  expect_bits(a.cache_row(true, slot_a), b.cache_row(true, slot_b), "v");
}

// Returns the tokens [first, last) of a case as a case of their own, in the order given.
template <class T>
PrologueData<T> select_tokens(const PrologueCase& c, const PrologueData<T>& data, const std::vector<int64_t>& tokens) {
  PrologueData<T> out = data;
  out.q.clear(), out.k.clear(), out.v.clear(), out.positions.clear(), out.slots.clear();
  const auto append = [](std::vector<T>& to, const std::vector<T>& from, int64_t width, int64_t t) {
    to.insert(to.end(), from.begin() + t * width, from.begin() + (t + 1) * width);
  };
  for (const int64_t t : tokens) {
    append(out.q, data.q, c.num_q_heads * c.head_dim, t);
    append(out.k, data.k, c.num_kv_heads * c.head_dim, t);
    append(out.v, data.v, c.num_kv_heads * c.head_dim, t);
    out.positions.push_back(data.positions[static_cast<size_t>(t)]);
    out.slots.push_back(data.slots[static_cast<size_t>(t)]);
  }
  return out;
}

// A token's bits depend on nothing but the token: permuted, in two batches, and one by one they are the same.
TEST_P(AttentionPrologueTest, IsBatchInvariant) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    const PrologueCase c = plain_case(600);  // more than one mapping of the CUDA backend
    const PrologueData<T> data = make_data<T>(c);
    PlacedPrologue<T> whole(GetParam(), c, data);
    ASSERT_TRUE(whole.run().ok());

    const auto check = [&](const std::vector<int64_t>& tokens) {
      PrologueCase part = c;
      part.num_tokens = static_cast<int64_t>(tokens.size());
      PlacedPrologue<T> placed(GetParam(), part, select_tokens(c, data, tokens));
      ASSERT_TRUE(placed.run().ok());
      for (size_t i = 0; i < tokens.size(); i += 1 + tokens.size() / 16) {
        const int64_t slot = data.slots[static_cast<size_t>(tokens[i])];
        expect_same_rows(placed, static_cast<int64_t>(i), whole, tokens[i], slot, slot);
      }
    };
    std::vector<int64_t> order(static_cast<size_t>(c.num_tokens));
    std::iota(order.begin(), order.end(), 0);
    check(order);  // twice the same
    check({order.begin(), order.begin() + 100});
    check({order.begin() + 100, order.end()});
    for (const int64_t t : {0, 7, 599}) check({t});
    Random(5).shuffle(order);
    check(order);
  });
}

TEST_P(AttentionPrologueTest, KeepsNanAndInfinityInTheirPairs) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    PrologueCase c = plain_case(3);
    c.rotary_dim = 32;
    c.bias_q = c.bias_k = c.bias_v = false;
    PrologueData<T> data = make_data<T>(c);
    const float inf = std::numeric_limits<float>::infinity();
    data.q[5] = from_float<T>(inf);                                       // pair (5, 21) of head 0
    data.q[40] = from_float<T>(std::numeric_limits<float>::quiet_NaN());  // behind rotary_dim
    data.v[1] = from_float<T>(-inf);
    PlacedPrologue<T> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    const std::vector<T> q = placed.q_row(0);
    for (size_t i = 0; i < q.size(); ++i) EXPECT_EQ(std::isfinite(to_float(q[i])), i != 5 && i != 21 && i != 40) << i;
    EXPECT_EQ(to_float(placed.cache_row(true, data.slots[0])[1]), -inf);
  });
}

// Every bit pattern there is, signalling NaNs too: what nothing changes is copied, not converted back and forth.
TEST_P(AttentionPrologueTest, CopiesAreBitwise) {
  const auto check = [&](auto type) {
    using T = decltype(type);
    PrologueCase c = plain_case(2048);
    c.num_q_heads = c.num_kv_heads = 1;
    c.head_dim = 48, c.rotary_dim = 16, c.rotary_offset = 8;
    c.k_out = c.v_out = true;
    c.bias_q = c.bias_k = c.bias_v = false;
    for (const bool per_step : {false, true}) {
      c.per_step = per_step;
      PrologueData<T> data = make_data<T>(c);
      uint16_t bits = 0;
      for (auto* tensor : {&data.q, &data.k, &data.v}) {
        for (size_t i = 0; i < tensor->size(); ++i) {
          if (i % 48 < 8 || i % 48 >= 24) (*tensor)[i].bits = bits++;
        }
      }
      PlacedPrologue<T> placed(GetParam(), c, data);
      ASSERT_TRUE(placed.run().ok());
      const AttentionPrologueParams& p = placed.params();
      for (int64_t t = 0; t < c.num_tokens; t += 1) {
        const int64_t slot = data.slots[static_cast<size_t>(t)];
        const auto compare = [&](const std::vector<T>& got, const std::vector<T>& tensor, bool whole, const char* what) {
          const auto part = [&](const T* from, int64_t first, int64_t last) { return std::vector<T>(from + first, from + last); };
          const T* want = tensor.data() + t * 48;
          expect_bits(part(got.data(), 0, whole ? 48 : 8), part(want, 0, whole ? 48 : 8), what);
          expect_bits(part(got.data(), 24, 48), part(want, 24, 48), what);
        };
        compare(placed.q_row(t), data.q, false, "q");
        compare(placed.row(p.k_out, 1, 48, t), data.k, false, "k_out");
        compare(placed.row(p.v_out, 1, 48, t), data.v, true, "v_out");
        compare(placed.cache_row(false, slot), data.k, false, "k");
        compare(placed.cache_row(true, slot), data.v, true, "v");
        if (::testing::Test::HasFailure()) return;
      }
    }
  };
  check(Float16{});
  check(BFloat16{});
}

// ---- far apart --------------------------------------------------------------------------------------------------------------

TEST_P(AttentionPrologueTest, ReachesBeyondTwoToThe31Elements) {
  constexpr int64_t kFar = (int64_t{1} << 31) + 64;  // elements of bfloat16: 4 GiB between tokens, and between pages
  constexpr int64_t kHeads = 2, kDim = 64, kTokens = 2;
  using T = BFloat16;
  SparseMemory qkv(GetParam(), (kFar + 4096) * 2), cache(GetParam(), (kFar + 4096) * 2);
  if (qkv.data() == nullptr || cache.data() == nullptr) GTEST_SKIP() << "no room for two arrays of 4 GiB";

  const Backend backend = GetParam();
  Execution execution;
  execution.device = backend_device(backend);
  Random random(3);
  const std::vector<T> values = random.normals<T>(kTokens * 3 * kHeads * kDim);
  const std::vector<float> table = make_table(8, kDim);
  PrologueCase c;  // only to have the oracle's input
  c.num_tokens = kTokens, c.num_q_heads = c.num_kv_heads = kHeads, c.max_position = 8;
  PrologueData<T> data;
  data.table = table;
  data.positions = {3, 7};
  data.slots = {16, 3};  // page 1, offset 0; page 0, offset 3
  data.num_pages = 2;
  for (int64_t t = 0; t < kTokens; ++t) {
    const T* row = values.data() + t * 3 * kHeads * kDim;
    data.q.insert(data.q.end(), row, row + kHeads * kDim);
    data.k.insert(data.k.end(), row + kHeads * kDim, row + 2 * kHeads * kDim);
    data.v.insert(data.v.end(), row + 2 * kHeads * kDim, row + 3 * kHeads * kDim);
    ASSERT_TRUE(copy_to_device(static_cast<T*>(qkv.data()) + t * kFar, row, 3 * kHeads * kDim * 2, execution).ok());
  }
  const oracle::PrologueOutput want = oracle::attention_prologue(oracle_input(c, data));

  Arena arena(backend == Backend::cuda_graph ? Backend::cuda
                                             : backend);  // a capture replays over the same memory: nothing new here
  AttentionPrologueParams p;
  p.num_tokens = kTokens, p.num_q_heads = p.num_kv_heads = kHeads, p.head_dim = kDim, p.dtype = DType::bf16;
  set_packed_qkv(p, qkv.data(), kFar);
  p.q_out = {qkv.data(), kFar, kDim};
  p.rope.rotary_dim = kDim;
  set_cos_sin_table(p.rope, arena.input(table), DType::f32, p.rope.max_position);
  p.rope.max_position = 8;
  p.rope.past_table = PastTable::zero;
  p.places.positions = index_view(arena.input(data.positions));
  p.places.slot_mapping = index_view(arena.input(data.slots));
  T* cache_base = static_cast<T*>(cache.data());
  p.cache.k.data = cache_base;
  p.cache.v.data = cache_base + 16 * kHeads * kDim;
  p.cache.k.format.type = p.cache.v.format.type = DType::bf16;
  p.cache.num_pages = 2;
  p.cache.page_size = 16;
  p.cache.num_kv_heads = kHeads;
  p.cache.k.head_dim = kDim;
  p.cache.k.strides = p.cache.v.strides = {kFar - 4096, kHeads * kDim, kDim};
  const Status status = arena.run([&](const Execution& e) { return attention_prologue(p, e); });
  ASSERT_TRUE(status.ok()) << status.message();

  const auto expect_row = [&](const T* from, const oracle::Row& row, const char* what) {
    std::vector<T> got(row.size());
    ASSERT_TRUE(copy_to_host(got.data(), from, static_cast<int64_t>(got.size()) * 2, execution).ok());
    std::vector<Reference> reference;
    for (const oracle::Element& element : row) reference.push_back({element.value, element.scale});
    expect_close(got, reference, kDim, what);
  };
  for (int64_t t = 0; t < kTokens; ++t) {
    expect_row(static_cast<T*>(qkv.data()) + t * kFar, want.q[static_cast<size_t>(t)], "q");
    const int64_t slot = data.slots[static_cast<size_t>(t)];
    const int64_t at = slot / 16 * (kFar - 4096) + slot % 16 * kHeads * kDim;
    expect_row(static_cast<T*>(p.cache.k.data) + at, want.k[static_cast<size_t>(t)], "k");
    expect_row(static_cast<T*>(p.cache.v.data) + at, want.v[static_cast<size_t>(t)], "v");
  }
}

// K and V may have formats of their own: each is stored as if both had its format.
TEST_P(AttentionPrologueTest, KAndVHaveFormatsOfTheirOwn) {
  constexpr int64_t kTokens = 7, kHeads = 3, kDim = 64, kPages = 3, kPageSize = 4;
  constexpr int64_t kRow = 3 * kHeads * kDim, kSlots = kPages * kPageSize, kElements = kSlots * kHeads * kDim;
  const std::vector<BFloat16> qkv = Random(11).normals<BFloat16>(kTokens * kRow);
  const std::vector<int64_t> slots = {5, 0, -1, 11, 3, 7, 6};
  struct Stored {
    std::vector<uint8_t> data[2];
    std::vector<float> scales[2];
  };
  const auto write = [&](KvFormat k, KvFormat v) {
    Arena arena(GetParam());
    AttentionPrologueParams p;
    p.num_tokens = kTokens, p.num_q_heads = p.num_kv_heads = kHeads, p.head_dim = kDim, p.dtype = DType::bf16;
    set_packed_qkv(p, arena.input(qkv), kRow);
    p.q_out = {arena.output<BFloat16>(kTokens * kHeads * kDim), kHeads * kDim, kDim};
    p.places.slot_mapping = index_view(arena.input(slots));
    p.faults = arena.inout(std::vector<FaultRecord>(1));
    p.cache.num_pages = kPages, p.cache.page_size = kPageSize, p.cache.num_kv_heads = kHeads, p.cache.k.head_dim = kDim;
    p.cache.k.format = k, p.cache.v.format = v;
    uint8_t* data[2];
    float* scales[2];
    PagedHeads* const sides[2] = {&p.cache.k, &p.cache.v};
    for (int i = 0; i < 2; ++i) {
      const std::vector<uint8_t> untouched(static_cast<size_t>(kElements * dtype_bits(sides[i]->format.type) / 8), 0xa5);
      sides[i]->data = data[i] = arena.inout(untouched);
      sides[i]->strides = nhd_strides(kPageSize, kHeads, kDim);
      sides[i]->scale = scales[i] = arena.inout(std::vector<float>(kSlots * kHeads * 2, 0.03f));
      sides[i]->scale_strides = nhd_strides(kPageSize, kHeads, sides[i]->format.type == DType::uint4 ? 2 : 1);
    }
    const Status status = arena.run([&](const Execution& execution) { return attention_prologue(p, execution); });
    EXPECT_TRUE(status.ok()) << status.message();
    Stored stored;
    for (int i = 0; i < 2; ++i) stored.data[i] = arena.read(data[i]), stored.scales[i] = arena.read(scales[i]);
    return stored;
  };
  constexpr KvFormat kFormats[] = {{DType::bf16, KvScaling::none},       {DType::f32, KvScaling::none},
                                   {DType::fp8_e4m3, KvScaling::tensor}, {DType::int8, KvScaling::token_head},
                                   {DType::int4, KvScaling::token_head}, {DType::uint4, KvScaling::token_head}};
  for (const KvFormat& k : kFormats) {
    const Stored all_k = write(k, k);
    for (const KvFormat& v : kFormats) {
      SCOPED_TRACE(str_cat("K ", dtype_name(k.type), ", V ", dtype_name(v.type)));
      const Stored mixed = write(k, v), all_v = write(v, v);
      EXPECT_EQ(mixed.data[0], all_k.data[0]);
      EXPECT_EQ(mixed.scales[0], all_k.scales[0]);
      EXPECT_EQ(mixed.data[1], all_v.data[1]);
      EXPECT_EQ(mixed.scales[1], all_v.scales[1]);
    }
  }
}

// A cache whose view leaves its type unset holds dtype: a 16-bit prologue writes 16-bit channels, and nothing after them.
TEST_P(AttentionPrologueTest, ACacheHoldsDtypeUnlessItSaysOtherwise) {
  EXPECT_EQ(PagedKvView().k.format.type, DType::unset);
  for_each_type([&](auto type) {
    using T = decltype(type);
    const PrologueCase c = plain_case(9);
    const PrologueData<T> data = make_data<T>(c);
    PlacedPrologue<T> placed(GetParam(), c, data);
    EXPECT_EQ(placed.params().cache.k.format.type, DType::unset);
    const Status status = placed.run();
    ASSERT_TRUE(status.ok()) << status.message();
    expect_matches(placed, oracle::attention_prologue(oracle_input(c, data)));
  });
}

// ---- what looks wrong and is not --------------------------------------------------------------------------------------------

// A call without tokens looks at nothing, not even at pointers that are null.
TEST_P(AttentionPrologueTest, AcceptsNoTokensAtAll) {
  AttentionPrologueParams p;
  p.num_q_heads = p.num_kv_heads = 1;
  p.head_dim = p.rope.rotary_dim = 64, p.dtype = DType::f32;
  Execution execution;
  execution.device = backend_device(GetParam());
  const Status status = attention_prologue(p, execution);
  EXPECT_TRUE(status.ok()) << status.message();
}

// Columns of one packed buffer are no overlap, in place or into another row's free columns.
TEST_P(AttentionPrologueTest, AcceptsColumnsOfOneBuffer) {
  PrologueCase c = plain_case(6);
  c.row_padding = c.num_q_heads * c.head_dim;  // q_out behind v in the same rows
  c.in_place = true;
  const PrologueData<float> data = make_data<float>(c);
  PlacedPrologue<float> placed(GetParam(), c, data);
  AttentionPrologueParams& p = placed.params();
  p.q_out.data = static_cast<float*>(p.q_out.data) + (c.num_q_heads + 2 * c.num_kv_heads) * c.head_dim;
  const Status status = placed.run();
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace prologue::test
