#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include <gtest/gtest.h>

#include <functional>

#include <prologue/kernels/attention_prologue/stages.h>
#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/rotary/rotary.h>

#include "tests/golden/rotary/rotary_goldens.h"
#include "tests/support/prologue_case.h"
#include "tests/support/sparse_memory.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class AttentionPrologueTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, AttentionPrologueTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

template <class F>
void for_each_type(F&& f) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(dtype_name(dtype));
    with_host_type(dtype, f);
  }
}

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
  placed.expect_matches(oracle::attention_prologue(oracle_input(c, data)));
}

void expect_oracle_for_each_type(Backend backend, const std::vector<PrologueCase>& cases) {
  for_each_type([&](auto type) {
    for (const PrologueCase& c : cases) {
      expect_oracle<decltype(type)>(backend, c);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST_P(AttentionPrologueTest, MatchesTheOracle) { expect_oracle_for_each_type(GetParam(), prologue_cases()); }

TEST_P(AttentionPrologueTest, MatchesTheOracleFeatureByFeature) { expect_oracle_for_each_type(GetParam(), feature_cases()); }

// Anything with anything. A failure names the seed: random_case(seed) is the case.
TEST_P(AttentionPrologueTest, MatchesTheOracleOnRandomStructs) {
  const uint64_t count = GetParam() == Backend::cpu ? 2400 : 300;
  for (uint64_t seed = 1; seed <= count; ++seed) {
    with_host_type(kFloatTypes[seed % 3], [&](auto type) { expect_oracle<decltype(type)>(GetParam(), random_case(seed)); });
    if (::testing::Test::HasFailure()) return;
  }
}

// The CPU is the reference of every other backend, and of itself with more threads: the same bits.
TEST_P(AttentionPrologueTest, EqualsTheCpuBitForBit) {
  const auto check = [&](auto type, const PrologueCase& listed) {
    using T = decltype(type);
    const PrologueCase c = fit_to_type<T>(listed);
    SCOPED_TRACE(c.describe());
    const PrologueData<T> data = make_data<T>(c);
    PlacedPrologue<T> cpu(Backend::cpu, c, data);
    PlacedPrologue<T> placed(GetParam(), c, data);
    ASSERT_TRUE(cpu.run().ok());
    ASSERT_TRUE(placed.run().ok());
    placed.expect_same_bits(cpu);
  };
  for_each_type([&](auto type) {
    for (const auto* cases : {&prologue_cases(), &feature_cases()}) {
      for (const PrologueCase& c : *cases) {
        check(type, c);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
  for (uint64_t seed = 5001; seed <= 5200 && !::testing::Test::HasFailure(); ++seed) {
    with_host_type(kFloatTypes[seed % 3], [&](auto type) { check(type, random_case(seed)); });
  }
}

// What the unfused stages can do as well.
bool has_stages(const PrologueCase& c) {
  return c.source == RopeSource::table && c.rotary_offset == 0 && !c.inverse && c.num_axes == 1 && !c.has_sequences() &&
         c.q_scale.constant == 1.0f && c.q_scale.by_position == PositionScale::none && !c.q8 && !c.k_out && !c.v_out &&
         c.cached && c.num_q_heads > 0 && c.num_kv_heads > 0 && c.with_k && c.with_v;
}

// Fused against add_bias + qk_norm + rotary + qk_norm + kv_write, the same bits: with Rounding::per_step always, with once where
// the stages' stores do not round (float32).
TEST_P(AttentionPrologueTest, EqualsTheUnfusedStagesBitForBit) {
  int64_t compared = 0;
  const auto check = [&](auto type, const PrologueCase& listed) {
    using T = decltype(type);
    PrologueCase c = fit_to_type<T>(listed);
    if (!has_stages(c)) return;
    ++compared;
    c.per_step = sizeof(T) == 2 || c.seed % 2 == 0;
    c.token_faults = false;                                          // the stages have none
    if (c.norm == NormPlacement::after_rope) c.bad_indices = false;  // the stages would norm the zeros of a bad position
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
      const auto norm_both = [&](const MutableHeadsView& q_to) {
        PROLOGUE_RETURN_IF_ERROR(norm(q, q_heads, p.q_norm, q_to));
        return norm(k, kv_heads, p.k_norm, dense(k, kv_heads, c.head_dim));
      };
      const auto turn = [&](T* x, int64_t heads, const MutableHeadsView& y) {
        RotaryParams r;
        r.seq_len = c.num_tokens, r.head_dim = c.head_dim, r.dtype = p.dtype;
        r.num_tensors = 1, r.tensors[0] = rotary_tensor(as_input(dense(x, heads, c.head_dim)), y, heads);
        r.rope.style = c.style, r.rope.rotary_dim = c.rotary_dim;
        set_cos_sin_table(r.rope, p.rope.cos.data, DType::f32, c.max_position);
        r.rope.past_table = c.past_table == PastTable::record ? PastTable::zero : c.past_table;  // kv_write records it
        r.positions.ids = p.places.positions;
        return rotary(r, execution);
      };
      PROLOGUE_RETURN_IF_ERROR(bias(q, q_heads * c.head_dim, p.bias.q));
      PROLOGUE_RETURN_IF_ERROR(bias(k, kv_heads * c.head_dim, p.bias.k));
      PROLOGUE_RETURN_IF_ERROR(bias(v, kv_heads * c.v_width(), p.bias.v));
      if (c.v_norm) PROLOGUE_RETURN_IF_ERROR(norm_v());
      if (c.norm == NormPlacement::before_rope) PROLOGUE_RETURN_IF_ERROR(norm_both(dense(q, q_heads, c.head_dim)));
      const bool norm_follows = c.norm == NormPlacement::after_rope;
      PROLOGUE_RETURN_IF_ERROR(turn(q, q_heads, norm_follows ? dense(q, q_heads, c.head_dim) : p.q_out));
      PROLOGUE_RETURN_IF_ERROR(turn(k, kv_heads, dense(k, kv_heads, c.head_dim)));
      if (norm_follows) PROLOGUE_RETURN_IF_ERROR(norm_both(p.q_out));
      return kv_write({c.num_tokens, kv_heads, c.head_dim, p.dtype, as_input(dense(k, kv_heads, c.head_dim)),
                       as_input(dense(v, kv_heads, c.v_width())), p.cache, p.places.slot_mapping, p.places.positions,
                       c.max_position, p.faults, 1, 0, c.past_table},
                      execution);
    });
    ASSERT_TRUE(status.ok()) << status.message();
    unfused.expect_same_bits(fused);
  };
  for_each_type([&](auto type) {
    for (const auto* cases : {&prologue_cases(), &feature_cases()}) {
      for (const PrologueCase& c : *cases) {
        check(type, c);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
  for (uint64_t seed = 10001; seed <= 12000 && !::testing::Test::HasFailure(); ++seed) {
    with_host_type(kFloatTypes[seed % 3], [&](auto type) { check(type, random_case(seed)); });
  }
  EXPECT_GT(compared, 700);
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

PrologueCase plain_case(int64_t num_tokens) {
  PrologueCase c;
  c.num_tokens = num_tokens;
  c.bad_indices = false;
  c.bias_q = c.bias_k = c.bias_v = true;
  return c;
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
  PlacedPrologue<T>::expect_bits(a.q_row(token_a), b.q_row(token_b), "q");
  PlacedPrologue<T>::expect_bits(a.cache_row(false, slot_a), b.cache_row(false, slot_b), "k");
  PlacedPrologue<T>::expect_bits(a.cache_row(true, slot_a), b.cache_row(true, slot_b), "v");
}

// The tokens [first, last) of a case as a case of their own, in the order given.
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
          PlacedPrologue<T>::expect_bits(part(got.data(), 0, whole ? 48 : 8), part(want, 0, whole ? 48 : 8), what);
          PlacedPrologue<T>::expect_bits(part(got.data(), 24, 48), part(want, 24, 48), what);
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

// ---- the plan ---------------------------------------------------------------------------------------------------------------

// A plan is the operation without its checks: the same bits, for any number of tokens up to its own.
TEST_P(AttentionPrologueTest, RunsAsPlanned) {
  for (uint64_t seed = 20001; seed <= 20060; ++seed) {
    PrologueCase c = random_case(seed);
    if (c.num_tokens == 0) continue;
    SCOPED_TRACE(c.describe());
    with_host_type(kFloatTypes[seed % 3], [&](auto type) {
      using T = decltype(type);
      c = fit_to_type<T>(c);
      const PrologueData<T> data = make_data<T>(c);
      PlacedPrologue<T> direct(GetParam(), c, data), planned(GetParam(), c, data);
      ASSERT_TRUE(direct.run().ok());
      Execution execution;
      execution.device = backend_device(GetParam());
      auto plan = AttentionProloguePlan::create(planned.params(), c.num_tokens, execution);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const std::string kernel = plan->kernel();
      EXPECT_TRUE(execution.device == Device::cpu ? kernel == "cpu" : kernel == "lean" || kernel == "general") << kernel;
      const Status status = planned.run([&](const Execution& e) { return plan->run(planned.params(), e); });
      ASSERT_TRUE(status.ok()) << status.message();
      planned.expect_same_bits(direct);
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(AttentionPrologueTest, PlansForFewerTokensToo) {
  const PrologueCase c = plain_case(64);
  const PrologueData<BFloat16> data = make_data<BFloat16>(c);
  for (const int64_t tokens : {0, 1, 63, 64}) {
    PlacedPrologue<BFloat16> direct(GetParam(), c, data), planned(GetParam(), c, data);
    Execution execution;
    execution.device = backend_device(GetParam());
    auto plan = AttentionProloguePlan::create(planned.params(), 64, execution);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    direct.params().num_tokens = planned.params().num_tokens = tokens;
    ASSERT_TRUE(direct.run().ok());
    ASSERT_TRUE(planned.run([&](const Execution& e) { return plan->run(planned.params(), e); }).ok());
    planned.expect_same_bits(direct);
  }
}

TEST_P(AttentionPrologueTest, PlansOnlyWhatIsValid) {
  const PrologueCase c = plain_case(4);
  PlacedPrologue<float> placed(GetParam(), c, make_data<float>(c));
  Execution execution;
  execution.device = backend_device(GetParam());
  AttentionPrologueParams& p = placed.params();
  const auto message = [&](int64_t max_tokens) {
    return AttentionProloguePlan::create(p, max_tokens, execution).status().message();
  };
  EXPECT_EQ(message(0), "attention_prologue plan: max_tokens is 0: it must lie in 1..2147483647");
  auto plan = AttentionProloguePlan::create(p, 4, execution);
  ASSERT_TRUE(plan.ok());
  p.head_dim = 3;
  EXPECT_EQ(message(4), "attention_prologue: head_dim is 3: supported is every even number in 2..576");
  p.head_dim = 64;
  const Status status = placed.run([&](const Execution& e) {
    p.num_tokens = 5;
    EXPECT_EQ(plan->run(p, e).message(), "attention_prologue plan: num_tokens is 5: it must lie in 0..4, that of the plan");
    p.num_tokens = 4;
    Execution on_cpu;
    EXPECT_EQ(AttentionProloguePlan().run(p, on_cpu).message(),
              "attention_prologue plan: num_q_heads is 8: it must be that of the plan, 0");
    Execution other = e;
    other.device = e.device == Device::cpu ? Device::cuda : Device::cpu;
    EXPECT_EQ(plan->run(p, other).message(), str_cat("attention_prologue plan: device is ", device_name(other.device),
                                                     ": the plan was made for ", device_name(e.device)));
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(placed.arena().untouched());
}

// A run with other constants than the plan's, or with a pointer more or less: an error that names it, and nothing is written.
TEST_P(AttentionPrologueTest, PlansCheckWhatARunBrings) {
  using P = AttentionPrologueParams;
  PrologueCase c = plain_case(4);
  c.norm = NormPlacement::before_rope;
  c.derive_positions = c.derive_slots = true;
  PlacedPrologue<float> placed(GetParam(), c, make_data<float>(c));
  const P good = placed.params();
  Execution made_on;
  made_on.device = backend_device(GetParam());
  const auto plan = AttentionProloguePlan::create(good, 4, made_on);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const struct {
    std::function<void(P&)> change;
    std::string message;
  } runs[] = {
      {[](P& p) { p.num_q_heads = 4; }, "num_q_heads is 4: it must be that of the plan, 8"},
      {[](P& p) { p.dtype = DType::bf16; }, "dtype is bfloat16: it must be that of the plan, float32"},
      {[](P& p) { p.q.head_stride = 128; }, "q.head_stride is 128: it must be that of the plan, 64"},
      {[](P& p) { p.q.data = nullptr; }, "q is null, but the plan was made with it"},
      {[](P& p) { p.q_out.data = nullptr; }, "q_out is null, but the plan was made with it"},
      {[](P& p) { p.k_out = p.q_out; }, "k_out is given, but the plan was made without it"},
      {[](P& p) { p.k_norm.bias = p.k.data; }, "k_norm.bias is given, but the plan was made without it"},
      {[](P& p) { p.q_norm.eps = p.k_norm.eps = 0.5f; }, "q_norm.eps is 0.5: it must be that of the plan, 1e-06"},
      {[](P& p) { p.q_norm.weight = nullptr; }, "q_norm.weight is null, but the plan was made with it"},
      {[](P& p) { p.v_norm.placement = NormPlacement::before_rope; }, "v_norm.placement is 1: it must be that of the plan, 0"},
      {[](P& p) { p.rope.rotary_dim = 32; }, "rope.rotary_dim is 32: it must be that of the plan, 64"},
      {[](P& p) { p.rope.cos.data = nullptr; }, "rope.cos is null, but the plan was made with it"},
      {[](P& p) { p.rope.max_position = 99; }, "rope.max_position is 99: it must be that of the plan, 40"},
      {[](P& p) { p.rope.past_table = PastTable::identity; }, "rope.past_table is 2: it must be that of the plan, 0"},
      {[](P& p) { p.places.block_table = nullptr; }, "block_table is null, but the plan was made with it"},
      {[](P& p) { p.places.num_seqs += 1; }, "@num_seqs"},
      {[](P& p) { p.places.num_seqs = 0; }, "@num_seqs"},
      {[](P& p) { p.q_scale.constant = 2.0f; }, "q_scale.constant is 2: it must be that of the plan, 1"},
      {[](P& p) { p.cache.k.format.type = p.cache.v.format.type = DType::int8; },
       "cache.k.format.type is int8: it must be that of the plan, float32"},
      {[](P& p) { p.cache.k.data = nullptr; }, "cache.k is null, but the plan was made with it"},
      {[](P& p) { p.cache.v.strides.page *= 2; }, "@cache.v.page stride"},
      {[](P& p) { p.faults = nullptr; }, "faults is null, but the plan was made with it"},
  };
  const Status status = placed.run([&](const Execution& e) {
    for (const auto& run : runs) {
      P p = good;
      run.change(p);
      const Status refused = plan->run(p, e);
      EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
      if (run.message[0] != '@') {
        EXPECT_EQ(refused.message(), "attention_prologue plan: " + run.message);
      } else {
        EXPECT_EQ(refused.message().rfind("attention_prologue plan: " + run.message.substr(1) + " is ", 0), 0u)
            << refused.message();
      }
    }
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(placed.arena().untouched());
}

// A cache whose view leaves its type unset holds dtype: a 16-bit prologue writes 16-bit channels, and nothing behind them.
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
    placed.expect_matches(oracle::attention_prologue(oracle_input(c, data)));
  });
}

// ---- refusals ---------------------------------------------------------------------------------------------------------------

struct Refusal {
  const char* name;
  std::function<void(AttentionPrologueParams&)> change;
  StatusCode code;
  std::string message;  // what follows "attention_prologue: "
};

std::vector<Refusal> refusals() {
  using P = AttentionPrologueParams;
  const auto invalid = StatusCode::invalid_argument;
  const auto missing = StatusCode::unsupported;
  const auto shifted = [](const void* data, int64_t bytes) { return static_cast<const char*>(data) + bytes; };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  return {
      // Sizes and types.
      {"negative token count", [](P& p) { p.num_tokens = -1; }, invalid, "num_tokens is -1: it must lie in 0..2147483647"},
      {"negative q heads", [](P& p) { p.num_q_heads = -1; }, invalid, "num_q_heads is -1: it must lie in 0..65536"},
      {"too many kv heads", [](P& p) { p.num_kv_heads = 65537; }, invalid, "num_kv_heads is 65537: it must lie in 0..65536"},
      {"no heads", [](P& p) { p.num_q_heads = p.num_kv_heads = 0; }, invalid,
       "num_q_heads and num_kv_heads are both 0: nothing is asked for"},
      {"unknown type", [](P& p) { p.dtype = kNoType; }, missing,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {"odd head_dim", [](P& p) { p.head_dim = 63; }, missing, "head_dim is 63: supported is every even number in 2..576"},
      {"large head_dim", [](P& p) { p.head_dim = 578; }, missing, "head_dim is 578: supported is every even number in 2..576"},
      {"odd v_head_dim", [](P& p) { p.cache.v.head_dim = 7; }, missing,
       "cache.v.head_dim is 7: supported is every even number in 2..576, or 0 = head_dim"},
      {"unknown rounding", [](P& p) { p.rounding = static_cast<Rounding>(2); }, missing,
       "rounding is 2: supported are once and per_step"},

      // Rotation.
      {"unknown style", [](P& p) { p.rope.style = static_cast<RopeStyle>(2); }, missing,
       "the rope style is 2: supported are neox and interleaved"},
      {"odd rotary_dim", [](P& p) { p.rope.rotary_dim = 7; }, invalid,
       "rotary_dim is 7: it must be even and lie in 0..head_dim, 64"},
      {"rotary_dim above head_dim", [](P& p) { p.rope.rotary_dim = 66; }, invalid,
       "rotary_dim is 66: it must be even and lie in 0..head_dim, 64"},
      {"rotary_offset behind the end", [](P& p) { p.rope.rotary_offset = 2; }, invalid,
       "rope.rotary_offset is 2: it must be even and lie in 0..head_dim - rotary_dim, 0"},
      {"odd rotary_offset", [](P& p) { p.rope.rotary_dim = 32, p.rope.rotary_offset = 3; }, invalid,
       "rope.rotary_offset is 3: it must be even and lie in 0..head_dim - rotary_dim, 32"},
      {"unknown source", [](P& p) { p.rope.source = static_cast<RopeSource>(3); }, missing,
       "rope.source is 3: supported are table, per_token and inv_freq"},
      {"no table rows", [](P& p) { p.rope.max_position = 0; }, invalid,
       "rope.max_position is 0: it must lie in 1..1099511627776"},
      {"positions too large to compute",
       [](P& p) {
         p.rope.source = RopeSource::inv_freq;
         p.rope.inv_freq = p.rope.cos.data;
         p.rope.max_position = (1 << 20) + 1;
       },
       invalid, "rope.max_position is 1048577: it must lie in 1..1048576"},
      {"no table", [](P& p) { p.rope.cos.data = nullptr; }, invalid, "rope.cos is null"},
      {"a table without a rotary_dim", [](P& p) { p.rope.rotary_dim = 0; }, invalid,
       "rope.rotary_dim is 0, but rope.cos is given: set rotary_dim, or leave it null"},
      {"inv_freq without a rotary_dim",
       [](P& p) {
         const void* inv_freq = p.rope.cos.data;
         p.rope = {}, p.rope.source = RopeSource::inv_freq, p.rope.inv_freq = inv_freq;
       },
       invalid, "rope.rotary_dim is 0, but rope.inv_freq is given: set rotary_dim, or leave it null"},
      {"a bound and nowhere to record", [](P& p) { p.faults = nullptr; }, invalid,
       "faults is null, but max_position is 40: give a FaultRecord, or set past_table to zero or identity"},
      {"a bound without rotation and nowhere to record", [](P& p) { p.rope = {}, p.rope.max_position = 7, p.faults = nullptr; },
       invalid, "faults is null, but max_position is 7: give a FaultRecord, or set past_table to zero or identity"},
      {"unknown policy", [](P& p) { p.rope.past_table = static_cast<PastTable>(3); }, missing,
       "past_table is 3: supported are record, zero and identity"},
      {"no gathered rows", [](P& p) { p.rope.cos.data = nullptr, p.rope.source = RopeSource::per_token; }, invalid,
       "rope.cos is null"},
      {"no inv_freq", [](P& p) { p.rope.source = RopeSource::inv_freq; }, invalid, "rope.inv_freq is null"},
      {"attention_factor of NaN",
       [=](P& p) {
         p.rope.source = RopeSource::inv_freq;
         p.rope.attention_factor = kInf;
       },
       invalid, "rope.attention_factor is inf: it must be finite"},
      {"table aligned to 2",
       [=](P& p) {
         set_cos_sin_table(p.rope, shifted(static_cast<const float*>(p.rope.cos.data), 2), DType::f32, p.rope.max_position);
       },
       invalid, "rope.cos lies at @: it must be aligned to 4 bytes"},
      {"five axes", [](P& p) { p.rope.num_axes = 5; }, invalid, "rope.num_axes is 5: it must lie in 1..4"},
      {"axes at no distance",
       [](P& p) {
         p.rope.num_axes = 3, p.rope.pair_axis = static_cast<const uint8_t*>(p.places.slot_mapping.data);
         p.places.position_axis_stride = AttentionPrologueParams().places.position_axis_stride;
       },
       invalid, "position_axis_stride is not set, but num_axes is 3: set it, to 0 where all share one row"},
      {"no pair_axis", [](P& p) { p.rope.num_axes = 3; }, invalid, "rope.pair_axis is null, but rope.num_axes is 3"},

      // Norms and the Q scale.
      {"unknown placement", [](P& p) { p.q_norm.placement = p.k_norm.placement = static_cast<NormPlacement>(3); }, missing,
       "q_norm.placement is 3: supported are none, before_rope and after_rope"},
      {"unknown kind", [](P& p) { p.q_norm.kind = p.k_norm.kind = static_cast<NormKind>(-1); }, missing,
       "q_norm.kind is -1: supported are rms and layer"},
      {"unknown scope", [](P& p) { p.q_norm.scope = p.k_norm.scope = static_cast<NormScope>(2); }, missing,
       "q_norm.scope is 2: supported are head and token"},
      {"a weight for no norm", [](P& p) { p.q_norm.weight = p.q.data; }, invalid,
       "q_norm has a weight or bias, but its placement is none"},
      {"no eps",
       [](P& p) { p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope, p.q_norm.eps = p.k_norm.eps = 0.0f; },
       invalid, "q_norm.eps is 0: it must be finite and greater than 0"},
      {"no eps for V", [](P& p) { p.v_norm.placement = NormPlacement::before_rope, p.v_norm.eps = -1.0f; }, invalid,
       "v_norm.eps is -1: it must be finite and greater than 0"},
      {"endless weight_offset",
       [=](P& p) {
         p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope,
         p.q_norm.weight_offset = p.k_norm.weight_offset = -kInf;
       },
       invalid, "q_norm.weight_offset is -inf: it must be finite"},
      {"LayerNorm over a token",
       [](P& p) {
         p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope;
         p.q_norm.kind = p.k_norm.kind = NormKind::layer;
         p.q_norm.scope = p.k_norm.scope = NormScope::token;
       },
       missing, "q_norm.scope is token and q_norm.kind is layer: over a whole token there is rms only"},
      {"RMS norm with a bias",
       [](P& p) { p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope, p.k_norm.bias = p.q.data; }, invalid,
       "k_norm has a bias, but its kind is rms: only layer has one"},
      {"weights at odd strides",
       [](P& p) { p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope, p.k_norm.weight_head_stride = 32; },
       invalid, "k_norm.weight_head_stride is 32: it must be 0 or head_dim, 64"},
      {"endless constant", [=](P& p) { p.q_scale.constant = kInf; }, invalid, "q_scale.constant is inf: it must be finite"},
      {"unknown position scale", [](P& p) { p.q_scale.by_position = static_cast<PositionScale>(9); }, missing,
       "q_scale.by_position is 9: supported are none, llama4 and logn"},
      {"llama4 over nothing",
       [](P& p) {
         p.q_scale = {1.0f, PositionScale::llama4, 0.1f, 0.0f};
       },
       invalid, "q_scale.b is 0: it must be finite and greater than 0"},
      {"logn to the base 1",
       [](P& p) {
         p.q_scale = {1.0f, PositionScale::logn, 0.0f, 1.0f};
       },
       invalid, "q_scale.b is 1: for logn it must be greater than 1"},

      // Places.
      {"no positions", [](P& p) { p.places.positions = {}; }, invalid, "positions is null"},
      {"no positions for the Q scale",
       [](P& p) {
         p.places.positions = {};
         p.rope = {};
         p.q_scale.by_position = PositionScale::llama4;
       },
       invalid, "positions is null"},
      {"positions of no type", [](P& p) { p.places.positions.type = kNoType; }, invalid,
       "positions.type is the unknown type 99: it must be int32 or int64"},
      {"no slots", [](P& p) { p.places.slot_mapping = {}; }, invalid, "slot_mapping is null"},
      {"slots of no type", [](P& p) { p.places.slot_mapping.type = kNoType; }, invalid,
       "slot_mapping.type is the unknown type 99: it must be int32 or int64"},
      {"no sequences", [](P& p) { p.places.slot_mapping = {}, p.places.cu_seqlens_q = static_cast<const int32_t*>(p.q.data); },
       invalid, "num_seqs is 0: it must lie in 1..2147483647"},
      {"no cache_lens",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = static_cast<const int32_t*>(p.q.data);
         p.places.num_seqs = 1;
       },
       invalid, "cache_lens is null"},
      {"no block_table",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = p.places.cache_lens = static_cast<const int32_t*>(p.q.data);
         p.places.num_seqs = p.places.max_pages_per_seq = 1;
       },
       invalid, "block_table is null"},
      {"negative ring",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = p.places.cache_lens = p.places.block_table = static_cast<const int32_t*>(p.q.data);
         p.places.num_seqs = p.places.max_pages_per_seq = 1;
         p.places.ring_size = -1;
       },
       invalid, "ring_size is -1: it must lie in 0..1099511627776"},
      {"position_offsets of no type",
       [](P& p) {
         p.places.positions = {};
         p.places.cu_seqlens_q = p.places.cache_lens = static_cast<const int32_t*>(p.q.data);
         p.places.position_offsets = index_view(p.places.cache_lens);
         p.places.position_offsets.type = kNoType;
         p.places.num_seqs = 1;
       },
       invalid, "position_offsets.type is the unknown type 99: it must be int32 or int64"},

      // Inputs.
      {"no q", [](P& p) { p.q.data = nullptr; }, invalid, "q is null"},
      {"neither k nor v", [](P& p) { p.k.data = p.v.data = nullptr; }, invalid, "k and v are both null, but num_kv_heads is 2"},
      {"negative stride", [](P& p) { p.q.token_stride = -64; }, invalid, "q has the stride -64: strides must not be negative"},
      {"endless stride", [](P& p) { p.v.head_stride = INT64_MAX / 3; }, invalid,
       "v reaches further than 2^60 bytes: its strides are too large"},
      {"bias at an odd byte", [=](P& p) { p.bias.k = shifted(p.bias.k, 1); }, invalid,
       "bias.k lies at @: it must be aligned to 4 bytes"},

      // Outputs.
      {"no q_out", [](P& p) { p.q_out.data = nullptr; }, invalid, "q_out is null"},
      {"q_out heads overlap", [](P& p) { p.q_out.head_stride = 32; }, invalid,
       "q_out has the stride 32 where 64 elements lie: rows that are written must not overlap"},
      {"q_out tokens overlap", [](P& p) { p.q_out.token_stride = 100; }, invalid,
       "q_out has the stride 100 where 512 elements lie: rows that are written must not overlap"},
      {"Q twice", [](P& p) { p.q8_out.data = p.q_out.data; }, invalid,
       "q_out and q8_out are both given: Q leaves as one of them"},
      {"fp8 Q without a scale",
       [](P& p) {
         p.q8_out = {p.q_out.data, 512, 64, KvScaling::tensor, nullptr}, p.q_out.data = nullptr;
       },
       invalid, "q8_out.scale is null"},
      {"fp8 Q scaled by head",
       [](P& p) {
         p.q8_out = {p.q_out.data, 512, 64, KvScaling::head, nullptr}, p.q_out.data = nullptr;
       },
       missing, "q8_out.scaling is 2: supported are tensor and token_head"},
      {"fp8 Q heads overlap",
       [](P& p) {
         p.q8_out = {p.q_out.data, 512, 63, KvScaling::tensor, p.cache.k.scale}, p.q_out.data = nullptr;
       },
       invalid, "q8_out has the stride 63 where 64 elements lie: rows that are written must not overlap"},
      {"k_out without k", [](P& p) { p.k_out = p.q_out, p.k.data = nullptr; }, invalid, "k_out is given, but k is null"},
      {"k_out over q_out", [](P& p) { p.k_out = p.q_out; }, invalid, "q_out overlaps k_out"},
      {"V taken from a K that is written over",
       [](P& p) {
         p.k_out = {const_cast<void*>(p.k.data), p.k.token_stride, p.k.head_stride};
         p.v = p.k;
       },
       invalid, "k_out overlaps v"},

      // The cache.
      {"unknown cache type", [](P& p) { p.cache.k.format.type = p.cache.v.format.type = kNoType; }, missing,
       "cache.k.format.type is the unknown type 99: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4 and "
       "uint4"},
      {"unknown scaling", [](P& p) { p.cache.k.format.scaling = p.cache.v.format.scaling = static_cast<KvScaling>(4); }, missing,
       "cache.k.format.scaling is 4: supported are none, tensor, head and token_head"},
      {"a float cache with scales", [](P& p) { p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::head; }, invalid,
       "cache.k.format.scaling is given, but the type is float32: float types have no scales"},
      {"an integer cache without scales", [](P& p) { p.cache.k.format.type = p.cache.v.format.type = DType::int4; }, invalid,
       "cache.k.format.scaling is none, but the type is int4: integer types need scales"},
      {"zero points that are not computed",
       [](P& p) {
         p.cache.k.format = p.cache.v.format = {DType::uint4, KvScaling::head};
       },
       invalid,
       "cache.k.format.type is uint4, but the scaling is not token_head: each token and head needs a scale and a zero point"},
      {"int4 at half a byte",
       [](P& p) {
         p.cache.k.format.type = p.cache.v.format.type = DType::int4,
         p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::tensor, p.cache.v.strides.head = 65;
       },
       invalid, "a stride of cache.v is 65: it must be even, two channels of int4 share a byte"},
      {"no V scale",
       [](P& p) {
         p.cache.k.format.type = p.cache.v.format.type = DType::int8,
         p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::tensor,
         p.cache.k.scale = static_cast<float*>(const_cast<void*>(p.rope.cos.data));
       },
       invalid, "cache.v.scale is null"},
      {"no room for scales",
       [](P& p) {
         p.cache.k.format.type = p.cache.v.format.type = DType::fp8_e4m3;
         p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::token_head;
         p.cache.k.scale = static_cast<float*>(const_cast<void*>(p.rope.cos.data));
       },
       invalid, "cache.k.scale has the stride 0 where 1 elements lie: rows that are written must not overlap"},
      {"no pages", [](P& p) { p.cache.num_pages = 0; }, invalid, "cache.num_pages is 0: it must lie in 1..1099511627776"},
      {"empty pages", [](P& p) { p.cache.page_size = 0; }, invalid, "cache.page_size is 0: it must lie in 1..1048576"},
      {"cache of other heads", [](P& p) { p.cache.num_kv_heads = 3; }, invalid,
       "cache.num_kv_heads is 3: it must be num_kv_heads, 2"},
      {"cache of another head_dim", [](P& p) { p.cache.k.head_dim = 128; }, invalid,
       "cache.k.head_dim is 128: it must be head_dim, 64"},
      {"no K cache", [](P& p) { p.cache.k.data = nullptr; }, invalid, "cache.k is null, and so is k_out: k has nowhere to go"},
      {"no V cache", [](P& p) { p.cache.v.data = nullptr; }, invalid, "cache.v is null, and so is v_out: v has nowhere to go"},
      {"pages overlap", [](P& p) { p.cache.k.strides.page = 64; }, invalid,
       "cache.k has the stride 64 where 128 elements lie: rows that are written must not overlap"},
      {"K is V", [](P& p) { p.cache.v.data = p.cache.k.data; }, invalid, "cache.k overlaps cache.v"},
      {"V half over K", [](P& p) { p.cache.v.data = static_cast<float*>(p.cache.k.data) + 32; }, invalid,
       "cache.k overlaps cache.v"},
      {"scales in the data",
       [](P& p) {
         p.cache.k.format.type = p.cache.v.format.type = DType::int8;
         p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::token_head;
         p.cache.k.scale = static_cast<float*>(p.cache.k.data), p.cache.v.scale = static_cast<float*>(p.cache.v.data);
         p.cache.k.scale_strides = p.cache.v.scale_strides = {32, 2, 1};
       },
       invalid, "cache.k overlaps cache.k.scale"},

      // Aliasing.
      {"fault record at an odd byte",
       [=](P& p) { p.faults = reinterpret_cast<FaultRecord*>(reinterpret_cast<char*>(p.faults) + 8); }, invalid,
       "faults lies at @: it must be aligned to 16 bytes"},
      {"token_faults in q_out", [](P& p) { p.token_faults = static_cast<uint8_t*>(p.q_out.data); }, invalid,
       "q_out overlaps token_faults"},
      {"q_out over k", [](P& p) { p.q_out.data = const_cast<void*>(p.k.data); }, invalid, "q_out overlaps q"},
      {"q_out half over q",
       [](P& p) {
         p.q_out = {const_cast<void*>(p.q.data), p.q.token_stride, p.q.head_stride};
         p.q_out.data = static_cast<char*>(p.q_out.data) + 64 * 4;
       },
       invalid, "q_out overlaps q"},
      {"q_out over K's columns",
       [](P& p) {
         p.q.data = p.v.data;
         p.num_q_heads = 2;
         p.q_out = {const_cast<void*>(p.k.data), p.k.token_stride, p.k.head_stride};
       },
       invalid, "q_out overlaps k"},
      {"cache over v", [](P& p) { p.cache.v.data = const_cast<void*>(p.v.data), p.cache.num_pages = p.cache.page_size = 1; },
       invalid, "cache.v overlaps q"},
      {"cache over the table",
       [](P& p) {
         p.rope.max_position = 1;
         set_cos_sin_table(p.rope, static_cast<const float*>(p.cache.k.data), DType::f32, p.rope.max_position);
       },
       invalid, "cache.k overlaps rope.cos"},
      {"q_out over the slots", [](P& p) { p.places.slot_mapping.data = p.q_out.data; }, invalid, "q_out overlaps slot_mapping"},
      {"q_out over the positions", [](P& p) { p.places.positions.data = p.q_out.data; }, invalid, "q_out overlaps positions"},
      {"cache over a bias", [](P& p) { p.bias.v = p.cache.v.data; }, invalid, "cache.v overlaps bias.v"},
  };
}

TEST_P(AttentionPrologueTest, RefusesWithASentence) {
  PrologueCase c = plain_case(4);
  const PrologueData<float> data = make_data<float>(c);
  for (const Refusal& refusal : refusals()) {
    SCOPED_TRACE(refusal.name);
    PlacedPrologue<float> placed(GetParam(), c, data);
    refusal.change(placed.params());
    const Status status = placed.run();
    EXPECT_EQ(status.code(), refusal.code);
    std::string message = status.message();
    if (const size_t at = message.find("lies at 0x"); at != std::string::npos && refusal.message.find('@') != std::string::npos) {
      message = message.substr(0, at + 8) + "@" + message.substr(message.find(':', at));  // an address
    }
    EXPECT_EQ(message, "attention_prologue: " + refusal.message);
    EXPECT_TRUE(placed.arena().untouched());
  }
}

TEST(AttentionPrologue, RefusesAnUnknownDevice) {
  Execution execution;
  execution.device = static_cast<Device>(4);
  const Status status = attention_prologue({}, execution);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "attention_prologue: device is 4: it must be cpu or cuda");
}

TEST(AttentionPrologue, SaysWhenCudaIsNotBuilt) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  const PrologueCase c = plain_case(1);
  PlacedPrologue<float> placed(Backend::cpu, c, make_data<float>(c));
  Execution execution;
  execution.device = Device::cuda;
  const Status status = attention_prologue(placed.params(), execution);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "attention_prologue: device is cuda, but this library was built without CUDA");
}

// No tokens: nothing is looked at, not even pointers that are null.
TEST_P(AttentionPrologueTest, AcceptsNoTokensAtAll) {
  AttentionPrologueParams p;
  p.num_q_heads = p.num_kv_heads = 1;
  p.head_dim = p.rope.rotary_dim = 64;
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

// Thousands of structs with a few absurd members: refused or accepted, never a crash. What validate() accepts is not run: its
// memory does not exist.
TEST(AttentionPrologue, RandomStructsNeverCrash) {
  PrologueCase c = plain_case(4);
  c.norm = NormPlacement::before_rope;
  c.derive_positions = c.derive_slots = true;
  c.k_out = c.v_out = c.token_faults = true;
  c.kv_type = DType::int8;
  c.scaling = KvScaling::token_head;
  const PrologueData<float> data = make_data<float>(c);
  PlacedPrologue<float> placed(Backend::cpu, c, data);
  const AttentionPrologueParams good = placed.params();
  Random random(77);
  const auto number = [&]() -> int64_t {
    switch (random.integer(0, 4)) {
      case 0: return random.integer(-3, 3);
      case 1: return random.integer(0, 1) == 0 ? INT64_MAX : INT64_MIN;
      case 2: return int64_t{1} << random.integer(0, 62);
      case 3: return static_cast<int64_t>(random.bits());
      default: return random.integer(0, 300);
    }
  };
  const auto pointer = [&](const void* old) -> void* {
    const auto at = reinterpret_cast<uintptr_t>(old);
    switch (random.integer(0, 3)) {
      case 0: return nullptr;
      case 1: return reinterpret_cast<void*>(at + static_cast<uintptr_t>(random.integer(0, 5)));
      case 2: return reinterpret_cast<void*>(UINTPTR_MAX - static_cast<uintptr_t>(random.integer(0, 64)));
      default: return const_cast<void*>(good.q.data);
    }
  };
  int refused = 0;
  const auto try_one = [&](const Execution& execution) {
    AttentionPrologueParams p = good;
    const std::vector<int64_t*> numbers = {&p.num_tokens,
                                           &p.num_q_heads,
                                           &p.num_kv_heads,
                                           &p.head_dim,
                                           &p.q.token_stride,
                                           &p.q.head_stride,
                                           &p.k.token_stride,
                                           &p.k.head_stride,
                                           &p.v.token_stride,
                                           &p.v.head_stride,
                                           &p.q_out.token_stride,
                                           &p.q_out.head_stride,
                                           &p.k_out.token_stride,
                                           &p.k_out.head_stride,
                                           &p.v_out.token_stride,
                                           &p.v_out.head_stride,
                                           &p.q8_out.token_stride,
                                           &p.q8_out.head_stride,
                                           &p.rope.rotary_dim,
                                           &p.rope.rotary_offset,
                                           &p.rope.max_position,
                                           &p.rope.num_axes,
                                           &p.q_norm.weight_head_stride,
                                           &p.k_norm.weight_head_stride,
                                           &p.places.position_axis_stride,
                                           &p.places.num_seqs,
                                           &p.places.block_table_stride,
                                           &p.places.max_pages_per_seq,
                                           &p.places.ring_size,
                                           &p.cache.num_pages,
                                           &p.cache.page_size,
                                           &p.cache.num_kv_heads,
                                           &p.cache.k.head_dim,
                                           &p.cache.v.head_dim,
                                           &p.cache.k.strides.page,
                                           &p.cache.k.strides.token,
                                           &p.cache.k.strides.head,
                                           &p.cache.v.strides.page,
                                           &p.cache.v.strides.token,
                                           &p.cache.v.strides.head,
                                           &p.cache.k.scale_strides.page,
                                           &p.cache.k.scale_strides.token,
                                           &p.cache.k.scale_strides.head,
                                           &p.cache.v.scale_strides.page,
                                           &p.cache.v.scale_strides.token,
                                           &p.cache.v.scale_strides.head};
    const auto any_of = [&](const auto& list) {
      return list[static_cast<size_t>(random.integer(0, static_cast<int64_t>(std::size(list)) - 1))];
    };
    const auto replace = [&](auto& at) { at = static_cast<std::decay_t<decltype(at)>>(pointer(at)); };
    const auto scramble = [&](auto& value) { value = static_cast<std::decay_t<decltype(value)>>(random.integer(-2, 7)); };
    for (int64_t changes = random.integer(1, 4); changes > 0; --changes) {
      const int64_t kind = random.integer(0, 9);
      if (kind < 4) {
        *any_of(numbers) = number();
      } else if (kind < 7) {
        switch (random.integer(0, 29)) {
          case 0: replace(p.q.data); break;
          case 1: replace(p.k.data); break;
          case 2: replace(p.v.data); break;
          case 3: replace(p.q_out.data); break;
          case 4: replace(p.k_out.data); break;
          case 5: replace(p.v_out.data); break;
          case 6: replace(p.q8_out.data); break;
          case 7: replace(p.q8_out.scale); break;
          case 8: replace(p.cache.k.data); break;
          case 9: replace(p.cache.v.data); break;
          case 10: replace(p.cache.k.scale); break;
          case 11: replace(p.cache.v.scale); break;
          case 12: replace(p.rope.cos.data); break;
          case 13: replace(p.rope.inv_freq); break;
          case 14: replace(p.rope.pair_axis); break;
          case 15: replace(p.places.positions.data); break;
          case 16: replace(p.places.slot_mapping.data); break;
          case 17: replace(p.places.cu_seqlens_q); break;
          case 18: replace(p.places.cache_lens); break;
          case 19: replace(p.places.block_table); break;
          case 20: replace(p.places.position_offsets.data); break;
          case 21: replace(p.bias.q); break;
          case 22: replace(p.q_norm.weight); break;
          case 23: replace(p.k_norm.bias); break;
          case 24: replace(p.token_faults); break;
          case 25: replace(p.bias.k); break;
          case 26: replace(p.bias.v); break;
          case 27: replace(p.k_norm.weight); break;
          case 28: replace(p.q_norm.bias); break;
          default: replace(p.faults); break;
        }
      } else {
        switch (random.integer(0, 21)) {
          case 0: scramble(p.dtype); break;
          case 1: scramble(p.cache.k.format.type); break;
          case 2: scramble(p.cache.k.format.scaling); break;
          case 3: scramble(p.places.positions.type); break;
          case 4: scramble(p.places.slot_mapping.type); break;
          case 5: scramble(p.rope.style); break;
          case 6: scramble(p.rope.source); break;
          case 7: scramble(p.q_norm.placement); break;
          case 8: scramble(p.q_norm.kind); break;
          case 9: scramble(p.q_norm.scope); break;
          case 10: scramble(p.q_scale.by_position); break;
          case 11: scramble(p.rounding); break;
          case 12: scramble(p.q8_out.scaling); break;
          case 13: scramble(p.q_norm.eps); break;
          case 14: scramble(p.q_scale.b); break;
          case 15: scramble(p.places.position_offsets.type); break;
          case 16: p.places.position_offset_per_seq = !p.places.position_offset_per_seq; break;
          case 17: p.v_norm.placement = NormPlacement::before_rope, scramble(p.v_norm.eps); break;
          case 18: p.q_norm.weight_offset = p.k_norm.weight_offset = std::numeric_limits<float>::infinity(); break;
          case 19: p.rope.attention_factor = std::numeric_limits<float>::infinity(); break;
          case 20: scramble(p.rope.past_table); break;
          default: p.q_scale.constant = std::numeric_limits<float>::quiet_NaN(); break;
        }
      }
    }
    const Status verdict = validate(p);
    if (verdict.ok()) return;
    ++refused;
    const Status status = attention_prologue(p, execution);
    EXPECT_EQ(status.code(), verdict.code());
    EXPECT_EQ(status.message(), verdict.message());
  };
  const Status status = placed.run([&](const Execution& execution) {
    for (int round = 0; round < 60000; ++round) try_one(execution);
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(placed.arena().untouched());
  EXPECT_GT(refused, 30000);
}

}  // namespace
}  // namespace prologue::test
