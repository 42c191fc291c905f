// Tests attention over every cache that the prologue writes: types, scalings, layouts, windows, soft caps, rings and head dims of their
// own, held against the float64 oracle, which reads the same bytes. paged_attention_test.cpp has what concerns any cache.
#include <prologue/kernels/paged_attention/paged_attention.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/shared/quantize.h>

#include "tests/support/attention_batch.h"
#include "tests/support/combinations.h"

namespace prologue::test {
namespace {

template <class T>
std::vector<T> run_attention(Backend backend, const AttentionBatch<T>& batch, FaultRecord* record = nullptr) {
  Arena arena(backend);
  PagedAttentionParams p = place_attention(arena, batch.in, batch.cache.place(arena), backend_device(backend));
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  p.faults = faults;
  const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  if (record != nullptr) {
    *record = arena.read(faults)[0];
  } else {
    EXPECT_EQ(arena.read(faults)[0].count, 0u);
  }
  return rows_of(arena, batch.in, p);
}

template <class T>
void check(Backend backend, const AttentionCase& c, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << dtype_name(FloatFormat<T>::dtype) << " over " << dtype_name(c.type) << ", scaling "
                                  << static_cast<int>(c.scaling) << ", and " << dtype_name(c.format(false).type) << ", scaling "
                                  << static_cast<int>(c.format(false).scaling) << ", layout " << static_cast<int>(c.layout)
                                  << ", head dims " << c.head_dim << " and " << c.v_width() << ", window " << c.window
                                  << ", chunk " << c.chunk << ", sinks " << static_cast<int>(c.sinks) << ", ring " << c.ring_size
                                  << ", cap " << c.soft_cap << ", rows " << c.sequences[0].rows);
  const AttentionBatch<T> batch(c, seed);
  expect_matches_oracle(backend, batch.in, batch.cache.view, run_attention(backend, batch));
}

void check(Backend backend, const AttentionCase& c, uint64_t seed) {
  switch (seed % 3) {
    case 0: return check<float>(backend, c, seed);
    case 1: return check<BFloat16>(backend, c, seed);
    default: return check<Float16>(backend, c, seed);
  }
}

const std::vector<AttentionSequence> kDecode = {{1, 200}, {1, 33}, {2, 16}, {0, 5}, {1, 1}};
const std::vector<AttentionSequence> kPrefill = {{70, 130}, {1, 90}, {6, 3}, {33, 33}};

const std::vector<std::vector<AttentionSequence>> kDecodeAndPrefill = {kDecode, kPrefill};
const std::vector<KvLayout> kLayouts(std::begin(kKvLayouts), std::end(kKvLayouts));

// Lists every storage of an element: its type and where its scale comes from.
std::vector<std::pair<DType, KvScaling>> storages() {
  std::vector<std::pair<DType, KvScaling>> all = {
      {DType::f32, KvScaling::none}, {DType::f16, KvScaling::none}, {DType::bf16, KvScaling::none}};
  for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2, DType::int8, DType::int4}) {
    const bool is_fp8 = type == DType::fp8_e4m3 || type == DType::fp8_e5m2;
    if (is_fp8) all.emplace_back(type, KvScaling::none);
    for (const KvScaling scaling : {KvScaling::tensor, KvScaling::head, KvScaling::token_head}) all.emplace_back(type, scaling);
  }
  all.emplace_back(DType::uint4, KvScaling::token_head);
  return all;
}

// Formats of K and V that differ: the useful ones, then others, the last two in their scaling alone.
const std::vector<std::pair<KvFormat, KvFormat>> kMixtures = {
    {{DType::int8, KvScaling::token_head}, {DType::uint4, KvScaling::token_head}},
    {{DType::int8, KvScaling::token_head}, {DType::int4, KvScaling::token_head}},
    {{DType::fp8_e4m3, KvScaling::none}, {DType::uint4, KvScaling::token_head}},
    {{DType::fp8_e4m3, KvScaling::tensor}, {DType::int4, KvScaling::head}},
    {{DType::int8, KvScaling::head}, {DType::uint4, KvScaling::token_head}},
    {{DType::bf16, KvScaling::none}, {DType::int8, KvScaling::token_head}},
    {{DType::f16, KvScaling::none}, {DType::uint4, KvScaling::token_head}},
    {{DType::f32, KvScaling::none}, {DType::fp8_e5m2, KvScaling::tensor}},
    {{DType::uint4, KvScaling::token_head}, {DType::f16, KvScaling::none}},
    {{DType::uint4, KvScaling::token_head}, {DType::f32, KvScaling::none}},
    {{DType::uint4, KvScaling::token_head}, {DType::int8, KvScaling::tensor}},
    {{DType::bf16, KvScaling::none}, {DType::f32, KvScaling::none}},
    {{DType::int8, KvScaling::token_head}, {DType::int8, KvScaling::tensor}},
    {{DType::fp8_e4m3, KvScaling::head}, {DType::fp8_e4m3, KvScaling::token_head}},
};

class PagedAttentionCaches : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

// Runs every type, scaling and layout, decoding and prefill; the types of q take turns.
TEST_P(PagedAttentionCaches, EveryStorageAndLayoutMatchesTheOracle) {
  uint64_t seed = 0;
  for (const auto& [storage, layout, sequences] : combinations(storages(), kLayouts, kDecodeAndPrefill)) {
    AttentionCase c;
    c.type = storage.first, c.scaling = storage.second, c.layout = layout, c.sequences = sequences;
    if (seed % 4 == 3) c.num_q_heads = 10, c.padding_rows = 2;
    check(GetParam(), c, seed++);
  }
}

// Runs every type of q over every type of cache.
TEST_P(PagedAttentionCaches, EveryPairOfTypes) {
  for (const auto& [type, scaling] : storages()) {
    for (uint64_t dtype = 0; dtype < 3; ++dtype) {
      AttentionCase c;
      c.type = type, c.scaling = scaling, c.head_dim = 128, c.num_q_heads = 2, c.num_kv_heads = 1;
      for (const auto& sequences : {kDecode, kPrefill}) {
        c.sequences = sequences;
        check(GetParam(), c, 300 + dtype);
      }
    }
  }
}

TEST_P(PagedAttentionCaches, EveryMixtureAndLayoutMatchesTheOracle) {
  uint64_t seed = 1300;
  for (const auto& [mixture, layout, sequences] : combinations(kMixtures, kLayouts, kDecodeAndPrefill)) {
    const auto& [k, v] = mixture;
    AttentionCase c;
    c.type = k.type, c.scaling = k.scaling, c.v_format = v, c.layout = layout, c.sequences = sequences;
    if (seed % 4 == 3) c.num_q_heads = 10, c.padding_rows = 2;
    if (seed % 5 == 2) c.soft_cap = 5.0f, c.window = 40;
    check(GetParam(), c, seed++);
  }
}

// Every type of q over every mixture, at heads of several sizes; K and V of sizes of their own; split sequences.
TEST_P(PagedAttentionCaches, EveryMixtureAndType) {
  struct Dims {
    int64_t k, v;
  };
  uint64_t seed = 1500;
  for (const auto& [mixture, dtype, dims, sequences] :
       combinations(kMixtures, std::vector<uint64_t>{0, 1, 2},
                    std::vector{Dims{128, 128}, Dims{256, 64}, Dims{80, 66}, Dims{192, 128}, Dims{576, 512}},
                    std::vector<std::vector<AttentionSequence>>{{{1, 400}, {2, 20}}, {{35, 50}, {1, 9}}})) {
    const auto& [k, v] = mixture;
    AttentionCase c;
    c.type = k.type, c.scaling = k.scaling, c.v_format = v, c.head_dim = dims.k, c.v_head_dim = dims.v;
    c.num_q_heads = seed % 2 == 0 ? 2 : 5, c.num_kv_heads = 1, c.sequences = sequences;
    check(GetParam(), c, 300 + dtype + 3 * seed++);
  }
}

// A head of equal values is scale 0 and a zero point, whatever its codes: a row that sees one position is its value.
TEST_P(PagedAttentionCaches, ScaleZeroIsTheZeroPoint) {
  for (const DType k_type : {DType::uint4, DType::int8}) {
    for (const int64_t rows : {1, 6}) {  // 6: prefill, whose first rows see nothing
      for (const int64_t head_dim : {64, 66}) {
        AttentionCase c;
        c.head_dim = head_dim;
        c.type = k_type, c.scaling = KvScaling::token_head, c.v_format = {DType::uint4, KvScaling::token_head};
        c.sequences = {{rows, 1}, {rows, 1}};
        AttentionBatch<BFloat16> batch(c, 940);
        std::vector<float> want;
        for (size_t s = 0; s < 2; ++s) {
          for (int64_t h = 0; h < 2; ++h) {
            const int64_t page = batch.in.block_table[s * static_cast<size_t>(batch.in.block_table_stride)];
            float* scale = &batch.cache.v_scale[batch.cache.scale_index(false, page, 0, h)];
            scale[0] = 0.0f;
            want.push_back(scale[1] = static_cast<float>(s == 0 ? 1000 + h : -3 - h));
          }
        }
        const std::vector<BFloat16> got = run_attention(GetParam(), batch);
        for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
          const int64_t row = i / (4 * head_dim), h = i / head_dim % 4;
          const float value = row % rows == rows - 1 ? want[static_cast<size_t>(row / rows * 2 + h / 2)] : 0.0f;
          ASSERT_EQ(to_float(got[static_cast<size_t>(i)]), to_float(to_bfloat16(value))) << row << ", " << h;
        }
      }
    }
  }
}

TEST_P(PagedAttentionCaches, HeadDimsOfKAndVDiffer) {
  struct Dims {
    int64_t k, v;
  };
  uint64_t seed = 400;
  const std::vector<Dims> all_dims = {{192, 128}, {576, 512}, {64, 128},  {256, 64}, {80, 66},
                                      {2, 258},   {320, 4},   {128, 576}, {64, 40}};
  const std::vector<std::pair<DType, KvScaling>> some_storages = {
      {DType::bf16, KvScaling::none}, {DType::f32, KvScaling::none},        {DType::int8, KvScaling::token_head},
      {DType::int4, KvScaling::head}, {DType::fp8_e4m3, KvScaling::tensor}, {DType::uint4, KvScaling::token_head}};
  for (const auto& [dims, storage, sequences] : combinations(
           all_dims, some_storages, std::vector<std::vector<AttentionSequence>>{{{1, 150}, {2, 20}}, {{35, 50}, {1, 9}}})) {
    AttentionCase c;
    c.head_dim = dims.k, c.v_head_dim = dims.v, c.num_q_heads = 6, c.num_kv_heads = seed % 2 == 0 ? 2 : 1;
    c.type = storage.first, c.scaling = storage.second, c.sequences = sequences;
    check(GetParam(), c, seed++);
  }
}

// On CUDA another kernel is chosen at each of these borders: rows of a sequence, rows of a kv head, keys, head dims, alignment.
TEST_P(PagedAttentionCaches, BothSidesOfEveryBorder) {
  uint64_t seed = 1100;
  for (const auto& [head_dim, type, rows, group, length] :
       combinations(std::vector<int64_t>{64, 66, 96, 98, 128, 130, 192, 194, 256, 258},
                    std::vector{DType::bf16, DType::f32, DType::int8, DType::uint4}, std::vector<int64_t>{1, 4, 5},
                    std::vector<int64_t>{4, 5}, std::vector<int64_t>{128, 129})) {
    AttentionCase c;
    c.head_dim = head_dim + (seed % 2 == 0 || head_dim % 8 == 0 ? 0 : 6), c.type = type;
    c.scaling = dtype_is_quantized(type) ? KvScaling::token_head : KvScaling::none;
    if (type == DType::int8 && head_dim % 8 == 0) c.v_format = {DType::uint4, KvScaling::token_head};
    c.num_q_heads = group, c.num_kv_heads = 1, c.sequences = {{rows, length}, {1, 7}};
    check(GetParam(), c, seed++);
  }
}

// The cache is that of DeepSeek's MLA: one head of 576 channels, and V is the first 512 of them.
TEST_P(PagedAttentionCaches, ValuesWithinKeys) {
  for (const DType type : {DType::bf16, DType::fp8_e4m3, DType::uint4}) {
    AttentionCase c;
    c.head_dim = 576, c.v_head_dim = 512, c.num_q_heads = 16, c.num_kv_heads = 1, c.page_size = 64;
    c.type = type, c.scaling = type == DType::bf16 ? KvScaling::none : KvScaling::token_head, c.v_within_k = true;
    for (const auto& sequences : {std::vector<AttentionSequence>{{1, 300}, {1, 64}}, std::vector<AttentionSequence>{{9, 70}}}) {
      c.sequences = sequences;
      check<BFloat16>(GetParam(), c, 500);
    }
  }
}

// At, below and above the borders of tiles and pages; what lies outside is poison.
TEST_P(PagedAttentionCaches, Windows) {
  uint64_t seed = 600;
  for (const auto& [window, sequences, type] :
       combinations(std::vector<int64_t>{1, 2, 15, 16, 17, 63, 64, 65, 100, 1000},
                    std::vector<std::vector<AttentionSequence>>{{{1, 300}, {1, 16}, {3, 129}, {4, 4}},
                                                                {{90, 200}, {1, 65}, {40, 40}, {5, 3}}},
                    std::vector{DType::f32, DType::bf16, DType::int8})) {
    AttentionCase c;
    c.window = window, c.sequences = sequences, c.num_q_heads = 6;
    c.type = type, c.scaling = type == DType::int8 ? KvScaling::token_head : KvScaling::none;
    check(GetParam(), c, seed++);
  }
}

TEST_P(PagedAttentionCaches, SoftCaps) {
  uint64_t seed = 700;
  for (const auto& [cap, sequences, storage] : combinations(std::vector{0.5f, 5.0f, 50.0f}, kDecodeAndPrefill, storages())) {
    AttentionCase c;
    c.soft_cap = cap, c.sequences = sequences, c.type = storage.first, c.scaling = storage.second;
    c.scale = 1.0f;  // scores of 8, so that caps bite
    c.window = seed % 4 == 0 ? 40 : 0;
    check(GetParam(), c, seed++);
  }
}

// Chunks at, below and above the borders of tiles and pages, and sequences that end at, before and behind the end of a chunk; what
// lies outside is poison.
TEST_P(PagedAttentionCaches, Chunks) {
  uint64_t seed = 1700;
  for (const int64_t chunk : {1, 2, 15, 16, 17, 63, 64, 65, 100, 1000}) {
    const int64_t two = 2 * chunk;
    for (const auto& sequences :
         {std::vector<AttentionSequence>{{1, two}, {1, two + 1}, {3, two + 1}, {4, two + 4}, {4, 4}, {1, 1}},
          std::vector<AttentionSequence>{{90, 200}, {1, two + 1}, {40, 40}, {5, 3}, {6, two + 3}}}) {
      for (const DType type : {DType::f32, DType::bf16, DType::int8}) {
        AttentionCase c;
        c.chunk = chunk, c.sequences = sequences, c.num_q_heads = 6;
        c.type = type, c.scaling = type == DType::int8 ? KvScaling::token_head : KvScaling::none;
        if (seed % 4 == 1) c.window = 1 + chunk / 2;  // both: the window ends in the chunk, or before it
        if (seed % 4 == 3) c.window = two;
        check(GetParam(), c, seed++);
      }
    }
  }
}

// The first token of a chunk sees itself alone: it is its V.
TEST_P(PagedAttentionCaches, AChunkBeginsAnew) {
  for (const int64_t rows : {1, 3, 40}) {
    for (const int64_t chunk : {1, 16, 40, 64}) {
      AttentionCase c;
      c.type = DType::bf16, c.chunk = chunk, c.sequences = {{rows, 3 * chunk + rows}};
      const AttentionBatch<BFloat16> batch(c, 970);
      const std::vector<BFloat16> got = run_attention(GetParam(), batch);
      for (int64_t row = 0; row < rows; row += chunk) {
        const int64_t position = 3 * chunk + row;
        const int64_t page = batch.in.block_table[static_cast<size_t>(position / c.page_size)];
        for (int64_t i = 0; i < 4 * 64; ++i) {
          const double want = batch.cache.value(false, page, position % c.page_size, i / 128, i % 64);
          ASSERT_EQ(static_cast<double>(to_float(got[static_cast<size_t>(row * 256 + i)])), want) << row << ", " << i;
        }
      }
    }
  }
}

// Sinks beside every storage, caps and windows; sequences that are split, and rows that see nothing.
TEST_P(PagedAttentionCaches, Sinks) {
  uint64_t seed = 1800;
  const std::vector<AttentionSequence> split = {{1, 700}, {3, 150}};
  for (const auto& [type, scaling] : storages()) {
    for (const auto& sequences : {kDecode, kPrefill, split}) {
      for (const Sinks sinks : {Sinks::of_dtype, Sinks::of_float}) {
        AttentionCase c;
        c.sinks = sinks, c.sequences = sequences, c.type = type, c.scaling = scaling;
        if (seed % 4 == 1) c.soft_cap = 2.0f, c.scale = 1.0f;  // the sink is above the cap
        if (seed % 5 == 1) c.window = 40;
        if (seed % 5 == 3) c.chunk = 200;
        if (seed % 3 == 0) c.num_q_heads = 6;
        check(GetParam(), c, seed++);
      }
    }
  }
}

TEST_P(PagedAttentionCaches, SinksOfManyHeadsAndMixtures) {
  uint64_t seed = 1900;
  for (const auto& [k, v] : kMixtures) {
    for (const int64_t head_dim : {64, 66, 256, 576}) {
      AttentionCase c;
      c.type = k.type, c.scaling = k.scaling, c.v_format = v, c.head_dim = head_dim, c.sinks = Sinks::of_float;
      c.num_q_heads = seed % 2 == 0 ? 16 : 71, c.num_kv_heads = 1, c.sequences = {{1, 300}, {1, 9}, {2, 20}};
      if (seed % 3 == 0) c.sequences.push_back({9, 40});
      check(GetParam(), c, seed++);
    }
  }
}

// Sinks of -infinity are none, to the bit; those far above all scores leave nothing of V, and those far below them nothing of theirs.
TEST_P(PagedAttentionCaches, ExtremeSinks) {
  for (const auto& sequences : {kDecode, kPrefill, std::vector<AttentionSequence>{{1, 700}}}) {
    for (const DType type : {DType::f32, DType::bf16, DType::int8}) {
      AttentionCase c;
      c.sequences = sequences, c.type = type, c.scaling = type == DType::int8 ? KvScaling::tensor : KvScaling::none;
      AttentionBatch<BFloat16> batch(c, 980);
      const std::vector<BFloat16> without = run_attention(GetParam(), batch);
      for (const double sink : {-std::numeric_limits<double>::infinity(), -1000.0, 1000.0}) {
        batch.in.sinks.assign(4, sink);
        const std::vector<BFloat16> got = run_attention(GetParam(), batch);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(to_float(got[i]), sink < 0.0 ? to_float(without[i]) : 0.0f) << sink << ", " << i;
        }
      }
    }
  }
}

template <class T>
void check_scores_of_minus_infinity(Backend backend, const AttentionCase& c, bool overflow, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << dtype_name(FloatFormat<T>::dtype) << " over " << dtype_name(c.type) << ", overflow "
                                  << overflow << ", window " << c.window << ", sinks " << static_cast<int>(c.sinks) << ", rows "
                                  << c.sequences[0].rows);
  for (const double share : {0.32, 0.8, 1.0}) {  // 0.32: 64 keys of 200
    AttentionBatch<T> batch(c, seed);
    batch.hide_first_keys(c, overflow, [&](int64_t length) { return std::llround(share * static_cast<double>(length)); });
    const std::vector<T> got = run_attention(backend, batch);
    expect_matches_oracle(backend, batch.in, batch.cache.view, got);
    if (share == 1.0 && !overflow) {  // a key of scale 0 does not overflow
      EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](T x) { return to_float(x) == 0.0f; })) << "no key has a weight";
    }
  }
}

// Keys with scores of -infinity weigh nothing, also where the first tiles of a row, or whole parts of a sequence, have no other; where all
// keys of a row have them, it is zeros, as of scaled_dot_product_attention. (The running maximum begins at -infinity.)
TEST_P(PagedAttentionCaches, ScoresOfMinusInfinity) {
  uint64_t seed = 2000;
  for (const auto& [type, scaling] : storages()) {
    for (const auto& sequences : {std::vector<AttentionSequence>{{1, 200}, {1, 400}, {2, 150}},
                                  std::vector<AttentionSequence>{{50, 200}, {1, 90}, {5, 5}}}) {
      if (type == DType::uint4) continue;  // it holds no infinity, and its zero points are not exact
      AttentionCase c;
      c.type = type, c.scaling = scaling, c.sequences = sequences, c.num_q_heads = 2, c.num_kv_heads = 1;
      if (seed % 3 == 1) c.window = 40;  // some rows see nothing else
      if (seed % 5 == 2) c.sinks = Sinks::of_float;
      // What cannot hold an infinity in K can overflow; the others do both.
      const bool overflow = dtype_is_quantized(type) || seed % 4 < 2;
      switch (seed % 3) {
        case 0: check_scores_of_minus_infinity<float>(GetParam(), c, overflow, seed); break;
        case 1: check_scores_of_minus_infinity<BFloat16>(GetParam(), c, overflow, seed); break;
        default: check_scores_of_minus_infinity<Float16>(GetParam(), c, overflow, seed);
      }
      ++seed;
    }
  }
}

// One row attends to two keys. The first one has the largest score, 0, and V = 0; the second one has the score -`below` and V = `value`.
template <class T>
float weigh_second_key(Backend backend, DType type, float below, float value) {
  AttentionCase c;
  c.num_q_heads = c.num_kv_heads = 1, c.scale = 1.0f, c.sequences = {{1, 2}}, c.type = type;
  c.scaling = dtype_is_quantized(type) ? KvScaling::tensor : KvScaling::none;
  AttentionBatch<T> batch(c, 2200);
  for (float& scale : batch.cache.k_scale) scale = 1.0f;
  for (float& scale : batch.cache.v_scale) scale = 1.0f;
  std::fill(batch.in.q.begin(), batch.in.q.end(), T{});
  batch.in.q[0] = from_float<T>(below);
  const int64_t page = batch.in.block_table[0];
  for (int64_t key = 0; key < 2; ++key) {
    std::vector<float> k(64), v(64, key == 0 ? 0.0f : value);
    k[0] = static_cast<float>(-key);
    batch.cache.store(true, page, key, 0, k);
    batch.cache.store(false, page, key, 0, v);
  }
  return to_float(run_attention(backend, batch)[0]);
}

// Tests what docs/numerics.md says of weights that are far below the largest one.
TEST_P(PagedAttentionCaches, SmallWeights) {
  const bool on_cuda = backend_device(GetParam()) == Device::cuda;
  const float of_16_bits = weigh_second_key<BFloat16>(GetParam(), DType::bf16, 60.0f, 1.0f);
  EXPECT_NEAR(of_16_bits / std::exp(-60.0f), 1.0f, 0x1p-7f);  // bfloat16 holds it
  // Decode over codes on CUDA has weights of float16: e^-15 is 5.13 steps of 2^-24, e^-18 a quarter of one.
  for (const DType type : {DType::int8, DType::fp8_e4m3}) {
    const float want = on_cuda ? 5.0f * 0x1p-24f : std::exp(-15.0f);
    EXPECT_NEAR(weigh_second_key<BFloat16>(GetParam(), type, 15.0f, 96.0f) / 96.0f / want, 1.0f, 0x1p-8f) << dtype_name(type);
    const float small = weigh_second_key<BFloat16>(GetParam(), type, 18.0f, 96.0f);
    EXPECT_NEAR(small / 96.0f / std::exp(-18.0f), on_cuda ? 0.0f : 1.0f, 0x1p-8f) << dtype_name(type);
    EXPECT_NEAR(weigh_second_key<float>(GetParam(), type, 18.0f, 96.0f) / 96.0f / std::exp(-18.0f), 1.0f, 1e-5f);
  }
  if (on_cuda) return;
  EXPECT_NEAR(weigh_second_key<float>(GetParam(), DType::f32, 86.9f, 1e38f), 1e38f * std::exp(-86.9f), 1e-4f);
  EXPECT_EQ(weigh_second_key<float>(GetParam(), DType::f32, 87.1f, 1e38f), 0.0f);
}

// A sink whose logit is the score of the only key takes half of its value.
TEST_P(PagedAttentionCaches, ASinkIsOneMoreKey) {
  AttentionCase c;
  c.sequences = {{1, 1}};
  AttentionBatch<float> batch(c, 985);
  const std::vector<float> value = run_attention(GetParam(), batch);
  std::fill(batch.in.q.begin(), batch.in.q.end(), 0.0f);  // scores of 0
  batch.in.sinks = {0.0, std::log(3.0), -std::log(3.0), 0.0};
  const std::vector<float> got = run_attention(GetParam(), batch);
  const float share[] = {0.5f, 0.25f, 0.75f, 0.5f};
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], share[i / 64] * value[i], 1e-6f) << i;
}

// Rings have wrapped many times, never, and just now; there are pages that they do not fill.
TEST_P(PagedAttentionCaches, Rings) {
  uint64_t seed = 800;
  for (const auto& [ring, rows, type] : combinations(std::vector<int64_t>{16, 40, 100}, std::vector<int64_t>{1, 3, 13},
                                                     std::vector{DType::f32, DType::bf16, DType::fp8_e4m3})) {
    AttentionCase c;
    c.ring_size = ring, c.window = ring - rows + 1, c.num_q_heads = 6;
    c.sequences = {{rows, 1000}, {1, ring}, {rows, ring + 1}, {1, 7}, {rows, rows}};
    c.type = type, c.scaling = type == DType::fp8_e4m3 ? KvScaling::token_head : KvScaling::none;
    check(GetParam(), c, seed++);
    c.window = 5;
    if (rows + 4 <= ring) check(GetParam(), c, seed++);
  }
  for (const int64_t chunk : {1, 5, 16, 38}) {  // chunks in place of windows; beside them a window may be as wide as it likes
    for (const int64_t rows : {1, 3}) {
      AttentionCase c;
      c.ring_size = 40, c.chunk = chunk, c.window = seed % 2 == 0 ? 1000 : 0, c.num_q_heads = 6;
      c.sequences = {{rows, 1000}, {1, 40}, {rows, 41}, {1, 7}, {rows, rows}, {1, 38 * 4 + 1}, {1, 16 * 4}};
      check(GetParam(), c, seed++);
    }
  }
  AttentionCase c;  // as long as nothing has been overwritten, no window is needed
  c.ring_size = 200, c.sequences = {{1, 200}, {1, 20}};
  check(GetParam(), c, seed);
}

// A bad page is the fault of the rows whose window holds one of its positions, and of no other.
TEST_P(PagedAttentionCaches, FaultsKeepToTheirWindow) {
  for (const DType type : {DType::bf16, DType::int8, DType::f32}) {
    AttentionCase c;
    c.window = 20, c.sequences = {{60, 100}, {2, 50}}, c.type = type;
    c.scaling = type == DType::int8 ? KvScaling::tensor : KvScaling::none;
    AttentionBatch<BFloat16> batch(c, 900);
    batch.in.block_table[3] = -1;       // positions 48..63: rows 8 to 42, which stand at 48 to 82
    batch.in.block_table[5] = 1 << 20;  // 80..95: rows 40 to 59
    FaultRecord record;
    const std::vector<BFloat16> got = run_attention(GetParam(), batch, &record);
    expect_matches_oracle(GetParam(), batch.in, batch.cache.view, got);
    const Fault fault = decode_fault(record);
    EXPECT_EQ(fault.code, FaultCode::page_out_of_range);
    EXPECT_EQ(fault.token, 8);
    EXPECT_EQ(fault.count, 52u);
    EXPECT_TRUE(std::all_of(got.begin() + 8 * 4 * 64, got.begin() + 60 * 4 * 64, [](BFloat16 x) { return x.bits == 0; }));
  }
  AttentionCase chunked;  // a chunk from 64 on: a bad page before it is the fault of the rows before it
  chunked.chunk = 64, chunked.sequences = {{40, 90}, {3, 66}};
  AttentionBatch<BFloat16> of_chunks(chunked, 902);
  of_chunks.in.block_table[3] = -1;                                                              // rows 0 to 13, at 50 to 63
  of_chunks.in.block_table[static_cast<size_t>(of_chunks.in.block_table_stride) + 0] = 1 << 20;  // the row at 63
  FaultRecord of_rows;
  expect_matches_oracle(GetParam(), of_chunks.in, of_chunks.cache.view, run_attention(GetParam(), of_chunks, &of_rows));
  EXPECT_EQ(decode_fault(of_rows).token, 0);
  EXPECT_EQ(decode_fault(of_rows).count, 15u);

  AttentionCase c;  // decoding: of three rows the last one alone no longer needs the page
  c.window = 20, c.sequences = {{3, 85}};
  AttentionBatch<float> batch(c, 901);
  batch.in.block_table[3] = batch.in.block_table[4] = -1;
  FaultRecord record;
  run_attention(GetParam(), batch, &record);
  EXPECT_EQ(decode_fault(record).count, 3u);
  batch.in.block_table[4] = 0;  // positions 64 to 79
  batch.in.seq_lens[0] = 84;    // rows see 62.., 63.., 64..
  run_attention(GetParam(), batch, &record);
  EXPECT_EQ(decode_fault(record).token, 0);
  EXPECT_EQ(decode_fault(record).count, 2u);
}

// A head that held a NaN has a NaN scale (and zero point) and zeros for data: a row that sees it is NaN, a row that does not see it is
// unchanged by it.
template <class T>
void expect_nan_where_it_is_seen(Backend backend, DType k_type, DType v_type, bool in_k, int64_t rows) {
  SCOPED_TRACE(testing::Message() << dtype_name(k_type) << ", " << dtype_name(v_type) << ", in K: " << in_k << ", rows " << rows);
  AttentionCase c;
  c.type = k_type, c.scaling = KvScaling::token_head, c.v_format = {v_type, KvScaling::token_head};
  c.sequences = {{rows, 100}, {rows, 90}};
  AttentionBatch<T> batch(c, 910);
  const std::vector<T> before = run_attention(backend, batch);
  const int64_t page = batch.in.block_table[5];  // position 80 of the first sequence, kv head 1
  const KvFormat format = c.format(in_k);
  std::fill_n(&(in_k ? batch.cache.k_scale : batch.cache.v_scale)[batch.cache.scale_index(in_k, page, 0, 1)],
              scales_of_head(format), std::numeric_limits<float>::quiet_NaN());
  const std::vector<T> after = run_attention(backend, batch);
  for (size_t i = 0; i < after.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / (4 * 64), head = static_cast<int64_t>(i) / 64 % 4;
    const bool sees = row < rows && head >= 2 && 100 - rows + row >= 80;
    // Where a block of rows shares its keys, a NaN in V does not keep to those who see it.
    const bool may_leak = !in_k && row < rows && head >= 2 && backend_device(backend) == Device::cuda;
    if (sees) {
      ASSERT_TRUE(std::isnan(to_float(after[i]))) << row << ", " << head;
    } else if (!may_leak) {
      ASSERT_EQ(std::memcmp(&after[i], &before[i], sizeof(T)), 0) << row << ", " << head;
    }
  }
}

TEST_P(PagedAttentionCaches, NanScalesReachThoseWhoSeeThem) {
  for (const bool in_k : {true, false}) {
    for (const int64_t rows : {1, 70}) {
      for (const auto& [k_type, v_type] : {std::pair{DType::int8, DType::int8}, std::pair{DType::uint4, DType::uint4},
                                           std::pair{DType::int8, DType::uint4}, std::pair{DType::uint4, DType::int4}}) {
        expect_nan_where_it_is_seen<float>(GetParam(), k_type, v_type, in_k, rows);
        expect_nan_where_it_is_seen<BFloat16>(GetParam(), k_type, v_type, in_k, rows);
      }
    }
  }
}
TEST_P(PagedAttentionCaches, TwoRunsAgree) {
  AttentionCase c;
  c.type = DType::fp8_e5m2, c.scaling = KvScaling::token_head, c.window = 300, c.soft_cap = 30.0f;
  for (const auto& sequences : {std::vector<AttentionSequence>{{1, 700}, {1, 17}}, std::vector<AttentionSequence>{{90, 700}}}) {
    c.sequences = sequences;
    const AttentionBatch<BFloat16> batch(c, 920);
    const std::vector<BFloat16> a = run_attention(GetParam(), batch), b = run_attention(GetParam(), batch);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]), 0);
  }
}

// The CPU gives the same bits alone and in a batch, and for a prompt at once or in parts, with a window and scales.
TEST(PagedAttentionCachesCpu, IndependentOfBatchChunksAndThreads) {
  AttentionCase c;
  c.type = DType::int8, c.scaling = KvScaling::token_head, c.window = 50, c.soft_cap = 20.0f, c.num_q_heads = 6;
  c.sequences = {{100, 170}, {1, 90}};
  AttentionBatch<float> batch(c, 930);
  const std::vector<float> together = run_attention(Backend::cpu, batch);
  EXPECT_EQ(std::memcmp(run_attention(Backend::cpu_threads, batch).data(), together.data(), together.size() * 4), 0);
  const AttentionInputs<float> whole = batch.in;
  std::vector<float> parts;
  for (const auto& [begin, end] : {std::pair{0, 1}, std::pair{1, 38}, std::pair{38, 100}}) {
    AttentionInputs<float>& part = batch.in;
    part = whole;
    part.num_tokens = end - begin;
    part.q.assign(whole.q.begin() + begin * whole.q_token_stride, whole.q.begin() + end * whole.q_token_stride);
    part.cu_seqlens_q = {0, end - begin};
    part.seq_lens = {70 + end};
    const std::vector<float> got = run_attention(Backend::cpu, batch);
    parts.insert(parts.end(), got.begin(), got.end());
  }
  EXPECT_EQ(std::memcmp(parts.data(), together.data(), parts.size() * sizeof(float)), 0);
}

// The tests below go from end to end: the prologue writes, attention reads.

struct Journey {
  KvFormat k = {DType::f32, KvScaling::none};
  KvFormat v = {DType::f32, KvScaling::none};
  KvLayout layout = KvLayout::nhd;
  int64_t window = 0, ring_size = 0;
  std::vector<int64_t> steps = {40, 1, 1, 2};  // tokens
};

template <class T>
struct Travelled {
  std::vector<T> out;
  std::vector<T> queries;  // rotated
  AttentionCache cache;    // as it lies there at the end
  std::vector<int32_t> pages;
};

// Runs one sequence, step after step, through one cache: positions and slots are derived, heads are rotated, then attention reads them.
template <class T>
Travelled<T> travel(Backend backend, const Journey& journey) {
  constexpr int64_t kQ = 4, kKv = 2, kDim = 64, kPage = 16, kMaxPosition = 200;
  AttentionCase c;
  c.type = journey.k.type, c.scaling = journey.k.scaling, c.v_format = journey.v, c.layout = journey.layout;
  const int64_t length = std::accumulate(journey.steps.begin(), journey.steps.end(), int64_t{0});
  AttentionCache cache(c, kMaxPosition / kPage + 2);
  for (const bool is_k : {true, false}) {
    std::vector<float>& scales = is_k ? cache.k_scale : cache.v_scale;
    const KvFormat format = c.format(is_k);
    if (format.scaling != KvScaling::token_head) std::fill(scales.begin(), scales.end(), 5.0f / kv_largest(format.type));
  }
  Random random(1000);
  const int64_t width = (kQ + 2 * kKv) * kDim;
  const std::vector<T> qkv = random.normals<T>(length * width);
  std::vector<float> table(static_cast<size_t>(kMaxPosition * kDim));
  for (int64_t p = 0; p < kMaxPosition; ++p) {
    for (int64_t i = 0; i < kDim / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(2 * i) / static_cast<double>(kDim));
      table[static_cast<size_t>(p * kDim + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(p * kDim + kDim / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  std::vector<int32_t> pages(static_cast<size_t>(cache.view.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  random.shuffle(pages);
  pages.resize(static_cast<size_t>(kMaxPosition / kPage + 1));

  Arena arena(backend);
  const T* packed = arena.input(qkv);
  unsigned char* data = arena.inout(cache.data);
  float* k_scale = arena.inout(cache.k_scale);
  float* v_scale = arena.inout(cache.v_scale);
  T* q = arena.output<T>(length * kQ * kDim);
  T* out = arena.output<T>(length * kQ * kDim);
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  AttentionPrologueParams write;
  write.num_q_heads = kQ;
  write.num_kv_heads = kKv;
  write.head_dim = kDim;
  write.dtype = FloatFormat<T>::dtype;
  write.rope.rotary_dim = kDim;
  set_cos_sin_table(write.rope, arena.input(table), DType::f32, write.rope.max_position);
  write.rope.max_position = kMaxPosition;
  write.places.num_seqs = 1;
  write.places.page_table.block_table = arena.input(pages);
  write.places.page_table.block_table_stride = write.places.page_table.max_pages_per_seq = static_cast<int64_t>(pages.size());
  write.places.ring_size = journey.ring_size;
  write.cache = cache.view;
  write.cache.k.data = data;
  write.cache.v.data = data + cache.v_offset;
  write.cache.k.scale = cache.k_scale.empty() ? nullptr : k_scale;
  write.cache.v.scale = cache.v_scale.empty() ? nullptr : v_scale;
  write.faults = faults;
  PagedAttentionParams read;
  read.num_seqs = 1;
  read.num_q_heads = kQ;
  read.head_dim = kDim;
  read.dtype = write.dtype;
  read.scale = 0.125f;
  read.window = journey.window;
  read.ring_size = journey.ring_size;
  read.kv = write.cache;
  read.page_table.block_table = write.places.page_table.block_table;
  read.page_table.block_table_stride = read.page_table.max_pages_per_seq = write.places.page_table.max_pages_per_seq;
  read.max_seq_len = length;
  read.faults = faults;
  read.max_seqlen_q = *std::max_element(journey.steps.begin(), journey.steps.end());
  read.num_tokens = read.max_seqlen_q;
  read.max_seqlen_q = 1;  // the largest workspace is that of decoding
  read.workspace_bytes = paged_attention_workspace_bytes(read, backend_device(backend));
  if (read.workspace_bytes > 0) read.workspace = arena.workspace(read.workspace_bytes);
  struct Step {
    int64_t at, count;
    const int32_t *cu_seqlens_q, *cache_lens, *seq_lens;
  };
  std::vector<Step> steps;
  int64_t at = 0;
  for (const int64_t count : journey.steps) {
    steps.push_back({at, count, arena.input(std::vector<int32_t>{0, static_cast<int32_t>(count)}),
                     arena.input(std::vector<int32_t>{static_cast<int32_t>(at)}),
                     arena.input(std::vector<int32_t>{static_cast<int32_t>(at + count)})});
    at += count;
  }
  const Status status = arena.run([&](const Execution& execution) -> Status {
    for (const Step& step : steps) {
      write.num_tokens = read.num_tokens = read.max_seqlen_q = step.count;
      write.places.cu_seqlens_q = read.cu_seqlens_q = step.cu_seqlens_q;
      write.places.cache_lens = step.cache_lens;
      read.seq_lens = step.seq_lens;
      set_packed_qkv(write, packed + step.at * width, width);
      write.q_out = {q + step.at * kQ * kDim, kQ * kDim, kDim};
      PROLOGUE_RETURN_IF_ERROR(attention_prologue(write, execution));
      read.q = as_input(write.q_out);
      read.out = {out + step.at * kQ * kDim, kQ * kDim, kDim};
      PROLOGUE_RETURN_IF_ERROR(paged_attention(read, execution));
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(arena.read(faults)[0].count, 0u);
  cache.data = arena.read(data);
  if (!cache.k_scale.empty()) cache.k_scale = arena.read(k_scale);
  if (!cache.v_scale.empty()) cache.v_scale = arena.read(v_scale);
  return {arena.read(out), arena.read(q), cache, pages};
}

// Compares all steps, as one, with the oracle over the bytes that the prologue wrote.
template <class T>
void expect_matches_oracle(Backend backend, const Travelled<T>& travelled, int64_t window) {
  AttentionInputs<T> in;
  in.num_q_heads = 4;
  in.num_kv_heads = travelled.cache.view.num_kv_heads;
  in.head_dim = travelled.cache.view.k.head_dim;
  in.page_size = travelled.cache.view.page_size;
  in.num_pages = travelled.cache.view.num_pages;
  in.scale = 0.125;
  in.window = window;
  in.q = travelled.queries;
  in.q_head_stride = in.head_dim;
  in.q_token_stride = 4 * in.head_dim;
  in.num_tokens = static_cast<int64_t>(in.q.size()) / in.q_token_stride;
  in.block_table = travelled.pages;
  in.block_table_stride = in.max_pages_per_seq = static_cast<int64_t>(travelled.pages.size());
  in.cu_seqlens_q = {0, static_cast<int32_t>(in.num_tokens)};
  in.seq_lens = {static_cast<int32_t>(in.num_tokens)};
  const AttentionCache& cache = travelled.cache;
  in.key = [&](int64_t page, int64_t offset, int64_t h, int64_t d) { return cache.value(true, page, offset, h, d); };
  in.value = [&](int64_t page, int64_t offset, int64_t h, int64_t d) { return cache.value(false, page, offset, h, d); };
  in.key_zero_point = [&](int64_t page, int64_t offset, int64_t h) { return double{cache.zero_point(true, page, offset, h)}; };
  in.value_zero_point = [&](int64_t page, int64_t offset, int64_t h) { return double{cache.zero_point(false, page, offset, h)}; };
  expect_matches_oracle(backend, in, cache.view, travelled.out);
}

// Returns a bound of the largest difference of any output to attention over a float32 cache, where V has deviation 1. It is twice what was
// measured (the worst of all scalings; scales of their own for each token are mostly better than given ones).
double quality_bound(DType type) {
  switch (type) {
    case DType::f16: return 2e-3;
    case DType::bf16: return 1.6e-2;
    case DType::int8: return 0.064;
    case DType::fp8_e4m3: return 0.37;
    case DType::fp8_e5m2: return 0.64;
    case DType::int4: return 1.2;
    case DType::uint4: return 0.61;
    default: return 0.0;
  }
}

TEST_P(PagedAttentionCaches, ThePrologueWritesAndAttentionReads) {
  const std::vector<float> exact = travel<float>(GetParam(), {}).out;
  std::vector<std::pair<KvFormat, KvFormat>> formats;
  for (const auto& [type, scaling] : storages()) formats.push_back({{type, scaling}, {type, scaling}});
  formats.insert(formats.end(), std::begin(kMixtures), std::end(kMixtures));
  size_t i = 0;
  for (const auto& [k, v] : formats) {
    const Journey journey{.k = k, .v = v, .layout = kKvLayouts[i++ % 5]};
    SCOPED_TRACE(testing::Message() << dtype_name(k.type) << ", scaling " << static_cast<int>(k.scaling) << ", and "
                                    << dtype_name(v.type) << ", scaling " << static_cast<int>(v.scaling));
    const Travelled<float> travelled = travel<float>(GetParam(), journey);
    expect_matches_oracle(GetParam(), travelled, 0);
    expect_matches_oracle(GetParam(), travel<BFloat16>(GetParam(), journey), 0);
    double difference = 0.0;
    for (size_t e = 0; e < exact.size(); ++e) {
      difference = std::max(difference, static_cast<double>(std::fabs(travelled.out[e] - exact[e])));
    }
    EXPECT_LE(difference, std::max(quality_bound(k.type), quality_bound(v.type)));
  }
}

// A ring of just the right size gives the bits of a cache that keeps everything, under the same window.
TEST_P(PagedAttentionCaches, ARingGivesTheBitsOfAWholeCache) {
  for (const auto& [type, scaling] : {std::pair{DType::f32, KvScaling::none}, std::pair{DType::int8, KvScaling::token_head}}) {
    Journey journey{.k = {type, scaling}, .v = {type, scaling}, .window = 30, .steps = {5, 20, 1, 1, 11, 11, 4, 1, 11, 3, 11, 1}};
    const Travelled<float> want = travel<float>(GetParam(), journey);
    expect_matches_oracle(GetParam(), want, 30);
    journey.ring_size = 49;  // 30 + 20 - 1
    const Travelled<float> got = travel<float>(GetParam(), journey);
    EXPECT_EQ(std::memcmp(got.out.data(), want.out.data(), got.out.size() * sizeof(float)), 0) << dtype_name(type);
  }
}

// Compares K as int8 and V as int4 or uint4 with the same numbers in float32.
void expect_formats_of_their_own(Backend backend, DType v_type) {
  constexpr int64_t kTokens = 21, kPages = 4, kPageSize = 8, kHeads = 2, kQHeads = 4, kDim = 16;
  const bool zero_points = v_type == DType::uint4;
  constexpr int64_t kRows = kPages * kPageSize * kHeads;
  Random random(7);
  std::vector<uint8_t> k_codes, v_codes;
  std::vector<float> k_scale, v_scale, k_values, v_values;
  for (int64_t row = 0; row < kRows; ++row) {
    k_scale.push_back(static_cast<float>(0.001 + 0.02 * random.uniform()));
    const float scale = static_cast<float>(0.01 + 0.2 * random.uniform());
    const float zero_point = zero_points ? static_cast<float>(-3.0 * random.uniform()) : 0.0f;
    v_scale.push_back(scale);
    if (zero_points) v_scale.push_back(zero_point);
    for (int64_t d = 0; d < kDim; ++d) {
      k_codes.push_back(static_cast<uint8_t>(random.integer(-127, 127)));
      k_values.push_back(static_cast<float>(static_cast<int8_t>(k_codes.back())) * k_scale.back());
      const int64_t code = zero_points ? random.integer(0, 15) : random.integer(-7, 7);
      v_values.push_back(static_cast<float>(code) * scale + zero_point);
      if (d % 2 == 0) v_codes.push_back(static_cast<uint8_t>(code & 0x0f));
      if (d % 2 == 1) v_codes.back() = static_cast<uint8_t>(v_codes.back() | (code & 0x0f) << 4);
    }
  }
  const auto attend = [&](bool quantised, std::vector<float>& result) {
    Arena arena(backend);
    PagedAttentionParams p;
    p.num_tokens = p.num_seqs = 1, p.num_q_heads = kQHeads, p.head_dim = kDim, p.dtype = DType::f32, p.scale = 0.25f;
    p.q = {arena.input(Random(8).normals<float>(kQHeads * kDim)), kQHeads * kDim, kDim};
    float* out = arena.output<float>(kQHeads * kDim);
    p.out = {out, kQHeads * kDim, kDim};
    p.kv.num_pages = kPages, p.kv.page_size = kPageSize, p.kv.num_kv_heads = kHeads, p.kv.k.head_dim = kDim;
    p.kv.k.strides = p.kv.v.strides = nhd_strides(kPageSize, kHeads, kDim);
    p.kv.k.data = quantised ? static_cast<void*>(arena.inout(k_codes)) : arena.inout(k_values);
    p.kv.v.data = quantised ? static_cast<void*>(arena.inout(v_codes)) : arena.inout(v_values);
    if (quantised) {
      p.kv.k.format = {DType::int8, KvScaling::token_head}, p.kv.v.format = {v_type, KvScaling::token_head};
      p.kv.k.scale = arena.inout(k_scale), p.kv.v.scale = arena.inout(v_scale);
      p.kv.k.scale_strides = nhd_strides(kPageSize, kHeads, 1);
      p.kv.v.scale_strides = nhd_strides(kPageSize, kHeads, zero_points ? 2 : 1);
    }
    p.page_table.block_table = arena.input(std::vector<int32_t>{2, 0, 3});
    p.page_table.block_table_stride = p.page_table.max_pages_per_seq = 3;
    p.cu_seqlens_q = arena.input(std::vector<int32_t>{0, 1});
    p.seq_lens = arena.input(std::vector<int32_t>{kTokens});
    p.max_seqlen_q = 1, p.max_seq_len = kTokens;
    p.faults = arena.inout(std::vector<FaultRecord>(1));
    p.workspace_bytes = paged_attention_workspace_bytes(p, backend_device(backend));
    if (p.workspace_bytes > 0) p.workspace = arena.output<uint8_t>(p.workspace_bytes);
    const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
    if (status.ok()) result = arena.read(out);
    return status;
  };
  std::vector<float> want, got;
  ASSERT_TRUE(attend(false, want).ok());
  const Status status = attend(true, got);
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5f) << i;
}

TEST_P(PagedAttentionCaches, KAndVOfFormatsOfTheirOwn) {
  expect_formats_of_their_own(GetParam(), DType::int4);
  expect_formats_of_their_own(GetParam(), DType::uint4);
}

INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionCaches, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
