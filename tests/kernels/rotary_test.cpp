#include <prologue/kernels/rotary/instances.h>
#include <prologue/kernels/rotary/rotary.h>

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <type_traits>

#include "tests/golden/rotary/rotary_goldens.h"
#include "tests/support/rotary_case.h"
#include "tests/support/sparse_memory.h"
#include "tests/support/types.h"

namespace prologue::test {

RotaryCase random_rotary_case(uint64_t seed) {
  Random random(seed * 977 + 5);
  const auto chance = [&](int percent) { return random.integer(0, 99) < percent; };
  const auto pick = [&](std::initializer_list<int64_t> list) {
    return *(list.begin() + random.integer(0, static_cast<int64_t>(list.size()) - 1));
  };
  RotaryCase c;
  c.seed = seed;
  c.dtype = kFloatTypes[random.integer(0, 3)];
  c.batch = chance(50) ? 1 : random.integer(0, 3);
  c.seq_len = chance(3) ? 0 : random.integer(1, 9);
  c.head_dim = chance(60) ? pick({2, 4, 8, 16, 32, 64}) : pick({6, 24, 40, 72, 80, 96, 128, 130, 192, 256, 576});
  c.num_blocks = chance(75) ? 1 : random.integer(1, 4);
  const int64_t most = c.head_dim / (2 * c.num_blocks);
  if (most == 0) c.num_blocks = 1;
  c.rotary_dim =
      2 * c.num_blocks * (chance(50) ? c.head_dim / (2 * c.num_blocks) : random.integer(0, c.head_dim / (2 * c.num_blocks)));
  c.rotary_offset = chance(60) ? 0 : 2 * random.integer(0, (c.head_dim - c.rotary_dim) / 2);
  c.style = chance(50) ? RopeStyle::neox : RopeStyle::interleaved;
  c.inverse = chance(30);
  c.tail = chance(60) ? RotaryTail::copy : static_cast<RotaryTail>(random.integer(0, 2));

  c.tensors.clear();
  const bool plain = chance(50);
  for (int64_t i = random.integer(1, 4); i > 0; --i) {
    RotaryCaseTensor t;
    t.num_heads = random.integer(1, 5);
    t.rotate = chance(80);
    t.in_place = chance(40);
    for (RotaryLayout* layout : {&t.x, &t.y}) {
      if (plain) continue;
      std::vector<int> order = {0, 1, 2};
      random.shuffle(order);
      std::copy(order.begin(), order.end(), layout->order.begin());
      if (chance(10)) std::swap(layout->order[3], layout->order[static_cast<size_t>(random.integer(0, 2))]);
      for (size_t dim = 0; dim < 4; ++dim) {
        if (chance(dim == 3 ? 5 : 30)) layout->holes[dim] = chance(50) ? 16 : random.integer(1, 5);
      }
    }
    c.tensors.push_back(t);
  }

  c.source = chance(50) ? RopeSource::table : kSources[random.integer(0, 3)];
  const bool given = c.source == RopeSource::table || c.source == RopeSource::angles;
  c.type = kFloatTypes[random.integer(0, 3)];
  if (c.source == RopeSource::inv_freq) c.type = chance(50) ? DType::f32 : DType::f64;
  if (given) {
    c.width = chance(70) ? RopeWidth::half : RopeWidth::full;
    c.per_token = chance(30);
    c.table_per_batch = chance(20);
    c.column_stride = chance(80) ? 1 : 2;
    c.table_holes = chance(70) ? 0 : random.integer(1, 16);
  }
  c.bounded = (given && !c.per_token) || chance(60);
  c.max_position = chance(20) ? random.integer(1, 3) : random.integer(10, 60);
  if (!given && !c.bounded) c.max_position = chance(50) ? 100 : 2000;
  c.attention_factor = chance(70) ? 1.0 : 1.0 + 0.5 * random.uniform();

  c.ids_type = kIntegerTypes[random.integer(0, 7)];
  c.ids = static_cast<IdsKind>(random.integer(0, 2));
  c.ids_token_stride = chance(80) ? 1 : random.integer(1, 3);
  c.bad_ids = chance(60);
  if (c.ids == IdsKind::none) {
    c.offset = chance(60) ? 0 : random.integer(-4, 12);
    c.offsets = chance(50);
    c.one_offset = chance(30);
    if (c.batch == 1 && chance(40)) c.num_seqs = random.integer(1, 5);
    c.max_seqlen = chance(80) ? 0 : random.integer(1, 6);
  }
  if (chance(30)) {
    c.num_axes = random.integer(1, 4);
    c.pair_axis = c.num_axes != c.num_blocks || chance(50);
  }
  c.misalign = chance(70) ? 0 : random.integer(1, 5);
  c.faults = chance(90);
  c.token_faults = chance(50);
  c.plan = chance(20) && c.batch * c.seq_len > 0;
  if (chance(40)) c.past_table = static_cast<PastTable>(random.integer(0, 2));
  if (!c.faults && c.bounded && c.past_table == PastTable::record) c.past_table = PastTable::zero;
  // Without a bound a position may be anything, and an angle beyond 2^31 is NaN.
  c.extremes = c.ids == IdsKind::none && (c.bounded || c.per_token) && chance(20);
  c.inverse_by_own_sine = c.inverse && chance(30);
  return c;
}

namespace {

class RotaryTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }

  void check(const RotaryCase& c) {
    SCOPED_TRACE(c.describe());
    with_float_type(c.dtype, [&](auto type) {
      PlacedRotary<decltype(type)> placed(GetParam(), c);
      const Status status = placed.run();
      ASSERT_TRUE(status.ok()) << status.message();
      placed.expect_matches();
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RotaryTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

constexpr RotaryLayout kBatchMajor = {{0, 1, 2, 3}, {}}, kSequenceMajor = {{1, 0, 2, 3}, {}}, kHeadMajor = {{0, 2, 1, 3}, {}};

std::vector<RotaryCase> curated_cases() {
  std::vector<RotaryCase> cases;
  const auto add = [&](const std::function<void(RotaryCase&)>& change) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      RotaryCase c;
      c.dtype = dtype;
      c.seed = cases.size() + 1;
      change(c);
      cases.push_back(c);
    }
  };
  for (const int64_t seq_len : {1, 2, 33, 257}) {
    add([&](RotaryCase& c) { c.seq_len = seq_len, c.head_dim = c.rotary_dim = 128, c.tensors = {{32}, {8}}; });
  }
  add([](RotaryCase& c) { c.seq_len = 600, c.tensors = {{3}, {40}}, c.source = RopeSource::theta; });
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    for (const auto& [head_dim, rotary_dim, offset] :
         {std::array<int64_t, 3>{128, 128, 0}, {128, 64, 0}, {128, 64, 32}, {40, 16, 16}}) {
      add([&, head_dim = head_dim, rotary_dim = rotary_dim, offset = offset](RotaryCase& c) {
        c.style = style, c.head_dim = head_dim, c.rotary_dim = rotary_dim, c.rotary_offset = offset,
        c.tensors = {{5}, {2, true, true}};
      });
    }
  }
  add([](RotaryCase& c) { c.inverse = true; });
  add([](RotaryCase& c) { c.inverse = true, c.width = RopeWidth::full; });
  add([](RotaryCase& c) { c.inverse = c.inverse_by_own_sine = true, c.width = RopeWidth::full; });
  for (const RotaryTail tail : {RotaryTail::copy, RotaryTail::leave, RotaryTail::zero}) {
    add([&](RotaryCase& c) { c.head_dim = 80, c.rotary_dim = 32, c.rotary_offset = 16, c.tail = tail; });
    add([&](RotaryCase& c) { c.head_dim = 80, c.rotary_dim = 32, c.tail = tail, c.tensors = {{2, true, true}}; });
  }
  for (const RotaryLayout& layout : {kBatchMajor, kSequenceMajor, kHeadMajor}) {
    add([&](RotaryCase& c) {
      c.batch = 3,
      c.tensors = {{4, true, false, layout, kBatchMajor}, {2, true, true, layout}, {2, false, false, layout, layout}};
    });
  }
  add([](RotaryCase& c) { c.tensors = {{3, true, false, {{0, 1, 3, 2}, {}}, {{0, 1, 2, 3}, {0, 0, 0, 1}}}}; });  // channels apart
  for (int type = 0; type < 8; ++type) {
    for (const IdsKind ids : {IdsKind::shared, IdsKind::per_batch}) {
      add([&](RotaryCase& c) { c.batch = 2, c.seq_len = 40, c.ids = ids, c.ids_type = kIntegerTypes[type]; });
    }
    add([&](RotaryCase& c) {
      c.ids = IdsKind::none, c.num_seqs = 3, c.seq_len = 15, c.offsets = true, c.ids_type = kIntegerTypes[type];
    });
  }
  for (int type = 0; type < 4; ++type) {
    for (const RopeSource source : {RopeSource::table, RopeSource::angles}) {
      for (const RopeWidth width : {RopeWidth::half, RopeWidth::full}) {
        add([&](RotaryCase& c) { c.source = source, c.type = kFloatTypes[type], c.width = width; });
        add([&](RotaryCase& c) { c.source = source, c.type = kFloatTypes[type], c.width = width, c.per_token = true; });
      }
    }
  }
  add([](RotaryCase& c) { c.source = RopeSource::inv_freq; });
  add([](RotaryCase& c) { c.source = RopeSource::inv_freq, c.type = DType::f64; });
  add([](RotaryCase& c) { c.source = RopeSource::theta, c.attention_factor = 1.25, c.bounded = false; });
  add([](RotaryCase& c) { c.num_blocks = 2, c.num_axes = 2; });
  add([](RotaryCase& c) { c.num_axes = 3, c.pair_axis = true; });
  add([](RotaryCase& c) { c.ids = IdsKind::none, c.offset = 7, c.bounded = true, c.max_position = 10; });
  add([](RotaryCase& c) { c.ids = IdsKind::none, c.num_seqs = 2, c.seq_len = 12, c.max_seqlen = 3; });
  add([](RotaryCase& c) { c.rotary_dim = 0; });
  add([](RotaryCase& c) { c.head_dim = c.rotary_dim = 576, c.misalign = 1; });
  add([](RotaryCase& c) { c.tensors = {{1}, {2}, {3, false}, {4}}; });
  RotaryCase longer;  // than a grid
  longer.seq_len = 65600, longer.head_dim = longer.rotary_dim = 8, longer.tensors = {{1}};
  cases.push_back(longer);
  return cases;
}

TEST_P(RotaryTest, MatchesTheOracle) {
  for (const RotaryCase& c : curated_cases()) {
    check(c);
    RotaryCase planned = c;
    planned.plan = true;
    if (c.seed % 7 == 0) check(planned);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(RotaryTest, AnyStructMatchesTheOracle) {
  const uint64_t count = GetParam() == Backend::cpu ? 6000 : GetParam() == Backend::cuda ? 1500 : 300;
  for (uint64_t seed = 1; seed <= count; ++seed) {
    check(random_rotary_case(seed));
    if (::testing::Test::HasFailure()) return;
  }
}

// The reference formulas' own float32 values: equal up to the order in which they round.
TEST_P(RotaryTest, MatchesTheReferenceFormulas) {
  for (const golden::RotaryGolden& g : golden::kRotaryGoldens) {
    SCOPED_TRACE(g.name);
    Arena arena(GetParam());
    const int64_t tokens = static_cast<int64_t>(g.table.size()) / g.rotary_dim;
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    float* y = arena.output<float>(tokens * g.num_heads * g.head_dim);
    RotaryParams p;
    p.dtype = DType::f32;
    p.seq_len = tokens;
    p.head_dim = g.head_dim;
    p.num_tensors = 1;
    p.tensors[0] = rotary_tensor(arena.input(g.x), y, g.num_heads, batch_major_strides(tokens, g.num_heads, g.head_dim));
    p.rope.style = g.interleaved ? RopeStyle::interleaved : RopeStyle::neox;
    p.rope.rotary_dim = g.rotary_dim;
    set_cos_sin_table(p.rope, arena.input(g.table), DType::f32, tokens);
    p.rope.past_table = PastTable::zero;
    p.positions.ids = index_view(arena.input(positions));
    const Status status = arena.run([&](const Execution& execution) { return rotary(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> got = arena.read(y);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], g.y[i], 1e-6f) << i;
  }
}

// ---- properties -------------------------------------------------------------------------------------------------------------

TEST_P(RotaryTest, InverseUndoes) {
  for (const RopeSource source : {RopeSource::table, RopeSource::theta}) {
    RotaryCase c;
    c.dtype = c.type = DType::f64;
    c.bad_ids = false;
    c.source = source;
    c.num_blocks = 2;
    c.tensors = {{3}};
    PlacedRotary<double> placed(GetParam(), c);
    RotaryParams forth = placed.params();
    RotaryParams back = forth;
    double* again = placed.arena().output<double>(static_cast<int64_t>(placed.input().tensors[0].x.size()));
    back.rope.inverse = 1;
    back.tensors[0].x = forth.tensors[0].y;
    back.tensors[0].y = again;
    const Status status = placed.arena().run([&](const Execution& execution) {
      PROLOGUE_RETURN_IF_ERROR(rotary(forth, execution));
      return rotary(back, execution);
    });
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<double> got = placed.arena().read(again);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], placed.input().tensors[0].x[i], 1e-14) << i;
  }
}

// Tables cut in half, doubled, interleaved, or combined are one table.
TEST_P(RotaryTest, EveryWayToStoreATableGivesTheSameBits) {
  constexpr int64_t kRows = 9, kPairs = 8, kTokens = 9;
  Random random(3);
  const std::vector<float> x = random.normals<float>(kTokens * 2 * kPairs);
  std::vector<float> cos, sin, combined(kRows * 2 * kPairs), pairs, full_cos(kRows * 2 * kPairs), full_sin(kRows * 2 * kPairs);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kPairs; ++i) {
      cos.push_back(std::cos(static_cast<float>(r * (i + 1))));
      sin.push_back(std::sin(static_cast<float>(r * (i + 1))));
      const auto at = [&](int64_t column) { return static_cast<size_t>(r * 2 * kPairs + column); };
      combined[at(i)] = cos.back(), combined[at(kPairs + i)] = sin.back();
      pairs.push_back(cos.back()), pairs.push_back(sin.back());
      full_cos[at(i)] = full_cos[at(kPairs + i)] = cos.back();
      full_sin[at(i)] = full_sin[at(kPairs + i)] = sin.back();
    }
  }
  Arena arena(GetParam());
  const float* in = arena.input(x);
  const float* together = arena.input(pairs);
  Rope rope;
  rope.rotary_dim = 2 * kPairs;
  rope.past_table = PastTable::zero;
  std::vector<Rope> ways(4, rope);
  set_cos_and_sin(ways[0], arena.input(cos), arena.input(sin), DType::f32, kRows, kPairs, RopeWidth::half);
  set_cos_sin_table(ways[1], arena.input(combined), DType::f32, kRows);
  set_cos_and_sin(ways[2], arena.input(full_cos), arena.input(full_sin), DType::f32, kRows, 2 * kPairs, RopeWidth::full);
  ways[3] = ways[0];
  ways[3].cos = {together, 0, 2 * kPairs, 2};
  ways[3].sin = {together + 1, 0, 2 * kPairs, 2};
  std::vector<float*> out;
  for (size_t i = 0; i < ways.size(); ++i) out.push_back(arena.output<float>(kTokens * 2 * kPairs));
  const Status status = arena.run([&](const Execution& execution) {
    for (size_t i = 0; i < ways.size(); ++i) {
      RotaryParams p;
      p.dtype = DType::f32, p.seq_len = kTokens, p.head_dim = 2 * kPairs, p.num_tensors = 1;
      p.tensors[0] = rotary_tensor(in, out[i], 1, batch_major_strides(kTokens, 1, 2 * kPairs));
      p.rope = ways[i];
      PROLOGUE_RETURN_IF_ERROR(rotary(p, execution));
    }
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 1; i < ways.size(); ++i) EXPECT_EQ(arena.read(out[i]), arena.read(out[0])) << i;
}

TEST_P(RotaryTest, OffsetsBeyondTwoToThe31) {
  constexpr int64_t kFar = (int64_t{1} << 31) + 64, kHeadDim = 16;
  SparseMemory memory(GetParam(), (kFar + 3 * kHeadDim) * 4);
  if (memory.data() == nullptr) GTEST_SKIP() << "no memory";
  Random random(1);
  const std::vector<float> values = random.normals<float>(2 * kHeadDim);
  const Execution execution{backend_device(GetParam())};
  auto* data = static_cast<float*>(memory.data());
  for (int64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(copy_to_device(data + i * kFar, values.data() + i * kHeadDim, kHeadDim * 4, execution).ok());
  }
  // The same two rows as tokens, heads or sequences that lie far apart.
  for (int dim = 0; dim < 3; ++dim) {
    RotaryParams p;
    p.head_dim = p.rope.rotary_dim = kHeadDim;
    p.dtype = DType::f32, p.batch = dim == 0 ? 2 : 1, p.seq_len = dim == 1 ? 2 : 1, p.num_tensors = 1;
    const RotaryStrides strides = {kFar, kFar, kFar, 1};
    p.tensors[0] = rotary_tensor(data, data, dim == 2 ? 2 : 1, strides);
    p.rope.source = RopeSource::theta;
    p.rope.theta = 100.0;
    p.positions.offset = 3;
    RotaryParams back = p;
    back.rope.inverse = 1;
    ASSERT_TRUE(rotary(p, execution).ok());
    ASSERT_TRUE(synchronize(execution).ok());
    std::vector<float> turned(kHeadDim), again(kHeadDim);
    ASSERT_TRUE(copy_to_host(turned.data(), data + kFar, kHeadDim * 4, execution).ok());
    ASSERT_TRUE(rotary(back, execution).ok());
    ASSERT_TRUE(copy_to_host(again.data(), data + kFar, kHeadDim * 4, execution).ok());
    for (size_t i = 0; i < kHeadDim; ++i) {
      EXPECT_NEAR(again[i], values[kHeadDim + i], 1e-5f) << dim;
      EXPECT_NE(turned[i], values[kHeadDim + i]) << dim;
    }
  }
}

// ---- what is refused --------------------------------------------------------------------------------------------------------

struct Refusal {
  const char* name;
  std::function<void(RotaryParams&)> change;
  StatusCode code;
  std::string message;
};

TEST_P(RotaryTest, RefusesWithASentence) {
  using P = RotaryParams;
  const auto invalid = StatusCode::invalid_argument;
  const auto missing = StatusCode::unsupported;
  const auto float_at = [](const void* data, int64_t i) { return static_cast<float*>(const_cast<void*>(data)) + i; };
  const std::vector<Refusal> refusals = {
      {"batch", [](P& p) { p.batch = -1; }, invalid, "batch is -1: it must lie in 0..2147483647"},
      {"seq_len", [](P& p) { p.seq_len = int64_t{1} << 31; }, invalid, "seq_len is 2147483648: it must lie in 0..2147483647"},
      {"tokens", [](P& p) { p.batch = 65536, p.seq_len = 65536; }, invalid,
       "batch * seq_len is 4294967296: it must lie in 0..2147483647"},
      {"dtype", [](P& p) { p.dtype = kNoType; }, missing,
       "dtype is the unknown type 99: supported are float32, float16, bfloat16 and float64"},
      {"no tensors", [](P& p) { p.num_tensors = 0; }, invalid, "num_tensors is 0: it must lie in 1..4"},
      {"no heads", [](P& p) { p.tensors[1].num_heads = 0; }, invalid, "tensors[1].num_heads is 0: it must lie in 1..65536"},
      {"head_dim", [](P& p) { p.head_dim = 5; }, missing, "head_dim is 5: supported is every even number in 2..576"},
      {"own sine", [](P& p) { p.rope.inverse_by_own_sine = true; }, invalid,
       "inverse_by_own_sine is set, but inverse is not: it says how to take the inverse"},
      {"style", [](P& p) { p.rope.style = static_cast<RopeStyle>(-1); }, missing,
       "the rope style is -1: supported are neox and interleaved"},
      {"rotary_dim", [](P& p) { p.rope.rotary_dim = 18; }, invalid,
       "rotary_dim is 18: it must be even and lie in 0..head_dim, 16"},
      {"rotary_offset", [](P& p) { p.rope.rotary_offset = 2; }, invalid,
       "rotary_offset is 2: it must be even and lie in 0..head_dim - rotary_dim, 0"},
      {"blocks", [](P& p) { p.rope.num_blocks = 5; }, invalid, "num_blocks is 5: it must lie in 1..4"},
      {"uneven blocks", [](P& p) { p.rope.num_blocks = 3; }, invalid,
       "num_blocks is 3: rotary_dim, 16, must be that many blocks of even width"},
      {"tail", [](P& p) { p.tail = static_cast<RotaryTail>(3); }, missing, "tail is 3: supported are copy, leave and zero"},
      {"source", [](P& p) { p.rope.source = static_cast<RopeSource>(9); }, missing,
       "rope.source is 9: supported are table, per_token, inv_freq, theta, angles and angles_per_token"},
      {"width", [](P& p) { p.rope.width = static_cast<RopeWidth>(3); }, missing, "rope.width is 3: supported are half and full"},
      {"no width", [](P& p) { p.rope.width = RopeWidth::unset; }, invalid,
       "rope.width is not set: half is a column for each pair of a block, 8, full one for each channel, 16"},
      {"half-width rows as full", [](P& p) { p.rope.width = RopeWidth::full; }, invalid,
       "rope.cos has 16 columns 1 apart and 24 rows 8 apart: rows must not overlap"},
      {"columns that overlap", [](P& p) { p.rope.cos.column_stride = 9, p.rope.cos.row_stride = 1; }, invalid,
       "rope.cos has 8 columns 9 apart and 24 rows 1 apart: rows must not overlap"},
      {"a table without a rotary_dim", [](P& p) { p.rope.rotary_dim = 0; }, invalid,
       "rotary_dim is 0, but rope.cos is given: set rotary_dim, or leave it out"},
      {"frequencies without a rotary_dim",
       [](P& p) { p.rope = {}, p.rope.source = RopeSource::inv_freq, p.rope.inv_freq = p.tensors[0].x; }, invalid,
       "rotary_dim is 0, but rope.inv_freq is given: set rotary_dim, or leave it out"},
      {"theta without a rotary_dim", [](P& p) { p.rope = {}, p.rope.source = RopeSource::theta, p.rope.theta = 1e4; }, invalid,
       "rotary_dim is 0, but rope.theta is given: set rotary_dim, or leave it out"},
      {"a bound and nowhere to record", [](P& p) { p.faults = nullptr; }, invalid,
       "faults is null, but max_position is 24: give a FaultRecord, or set past_table to zero or identity"},
      {"unknown policy", [](P& p) { p.rope.past_table = static_cast<PastTable>(-1); }, missing,
       "past_table is -1: supported are record, zero and identity"},
      {"no rows", [](P& p) { p.rope.max_position = 0; }, invalid, "rope.max_position is 0: it must lie in 1..1099511627776"},
      {"bound", [](P& p) { p.rope.source = RopeSource::theta, p.rope.theta = 1e4, p.rope.max_position = -1; }, invalid,
       "rope.max_position is -1: it must lie in 0..1099511627776"},
      {"rope.type", [](P& p) { p.rope.type = kNoType; }, missing,
       "rope.type is the unknown type 99: supported are float32, float16, bfloat16 and float64"},
      {"frequencies in 16 bits", [](P& p) { p.rope.source = RopeSource::inv_freq, p.rope.type = DType::bf16; }, missing,
       "rope.type is bfloat16: for inv_freq supported are float32 and float64"},
      {"computed full", [](P& p) { p.rope.source = RopeSource::theta, p.rope.width = RopeWidth::full; }, invalid,
       "rope.width is full, but the angles are computed: they have a column for each pair"},
      {"theta", [](P& p) { p.rope.source = RopeSource::theta; }, invalid,
       "rope.theta is 0: it must be finite and greater than 0"},
      {"factor", [](P& p) { p.rope.attention_factor = HUGE_VAL; }, invalid, "rope.attention_factor is inf: it must be finite"},
      {"axes", [](P& p) { p.rope.num_axes = 5; }, invalid, "rope.num_axes is 5: it must lie in 1..4"},
      {"axes at no distance",
       [](P& p) { p.rope.num_axes = p.rope.num_blocks = 2, p.positions.axis_stride = RotaryPositions().axis_stride; }, invalid,
       "positions.axis_stride is not set, but rope.num_axes is 2: set it, to 0 where all share one row"},
      {"sequences at no distance",
       [](P& p) { p.batch = 2, p.seq_len = 2, p.positions.batch_stride = RotaryPositions().batch_stride; }, invalid,
       "positions.batch_stride is not set, but batch is 2: set it, to 0 where all share one row"},
      {"tables at no distance", [](P& p) { p.batch = 2, p.seq_len = 2, p.rope.sin.batch_stride = RopeColumns().batch_stride; },
       invalid, "rope.sin.batch_stride is not set, but batch is 2: set it, to 0 where all share one row"},
      {"axes without an axis", [](P& p) { p.rope.num_axes = 2; }, invalid,
       "rope.pair_axis is null: num_axes, 2, must then be num_blocks, 1"},
      {"ids type", [](P& p) { p.positions.ids.type = kNoType; }, invalid,
       "positions.ids.type is the unknown type 99: it must be an integer type"},
      {"offset", [](P& p) { p.positions.offset = INT64_MIN; }, invalid,
       "positions.offset is -9223372036854775808: it must lie in -1099511627776..1099511627776"},
      {"max_seqlen", [](P& p) { p.positions.max_seqlen = -1; }, invalid,
       "positions.max_seqlen is -1: it must lie in 0..2147483647"},
      {"ids and offset", [](P& p) { p.positions.offset = 1; }, invalid,
       "positions.offset is given, and so is positions.ids: it is one or the other"},
      {"ids and offsets", [](P& p) { p.positions.offsets = p.positions.ids; }, invalid,
       "positions.offsets is given, and so is positions.ids: it is one or the other"},
      {"ids and cu_seqlens", [](P& p) { p.positions.cu_seqlens = p.positions.ids; }, invalid,
       "positions.cu_seqlens is given, and so is positions.ids: it is one or the other"},
      {"ids and max_seqlen", [](P& p) { p.positions.max_seqlen = 4; }, invalid,
       "positions.max_seqlen is given, and so is positions.ids: it is one or the other"},
      {"no sequences", [](P& p) { std::swap(p.positions.ids, p.positions.cu_seqlens); }, invalid,
       "positions.num_seqs is 0: it must lie in 1..2147483647"},
      {"packed batch", [](P& p) { std::swap(p.positions.ids, p.positions.cu_seqlens), p.positions.num_seqs = 1, p.batch = 2; },
       invalid, "batch is 2, but positions.cu_seqlens is given: packed sequences have batch 1"},
      {"no x", [](P& p) { p.tensors[0].x = nullptr; }, invalid, "tensors[0].x is null"},
      {"no y", [](P& p) { p.tensors[1].y = nullptr; }, invalid, "tensors[1].y is null"},
      {"no cos", [](P& p) { p.rope.cos.data = nullptr; }, invalid, "rope.cos is null"},
      {"no sin", [](P& p) { p.rope.sin.data = nullptr; }, invalid, "rope.sin is null"},
      {"no angles", [](P& p) { p.rope.source = RopeSource::angles; }, invalid, "rope.angles is null"},
      {"no frequencies", [](P& p) { p.rope.source = RopeSource::inv_freq; }, invalid, "rope.inv_freq is null"},
      {"crooked x", [](P& p) { p.tensors[0].x = static_cast<const char*>(p.tensors[0].x) + 1; }, invalid, ""},
      {"negative stride", [](P& p) { p.tensors[0].x_strides.head = -1; }, invalid,
       "tensors[0].x has the stride -1: strides must not be negative"},
      {"far stride", [](P& p) { p.tensors[0].x_strides.head = int64_t{1} << 60; }, invalid,
       "tensors[0].x reaches further than 2^60 bytes: its strides are too large"},
      {"rows overlap", [](P& p) { p.tensors[0].y_strides.head = 2; }, invalid,
       "tensors[0].y has the stride 2 where 16 elements lie: rows that are written must not overlap"},
      {"channels overlap", [](P& p) { p.tensors[0].y_strides.channel = 0; }, invalid,
       "tensors[0].y has the stride 0 where 1 elements lie: rows that are written must not overlap"},
      {"y half over x", [&](P& p) { p.tensors[0].y = float_at(p.tensors[0].x, 2); }, invalid,
       "tensors[0].y overlaps tensors[0].x"},
      {"y over another x",
       [&](P& p) { p.tensors[0].y = float_at(p.tensors[1].x, 0), p.tensors[1].y = nullptr, p.tensors[1].num_heads = 2; }, invalid,
       ""},
      {"two outputs in one", [](P& p) { p.tensors[1].y = p.tensors[0].y; }, invalid, "tensors[0].y overlaps tensors[1].y"},
      {"y over the table", [](P& p) { p.rope.max_position = 1, p.rope.cos.data = p.tensors[0].y; }, invalid,
       "tensors[0].y overlaps rope.cos"},
      {"y over the positions", [](P& p) { p.positions.ids.data = p.tensors[0].y; }, invalid,
       "tensors[0].y overlaps positions.ids"},
      {"fault record at a wrong byte", [](P& p) { p.faults = reinterpret_cast<FaultRecord*>(8); }, invalid,
       "faults lies at 0x8: it must be aligned to 16 bytes"},
      {"token faults over y", [](P& p) { p.token_faults = static_cast<uint8_t*>(p.tensors[1].y); }, invalid,
       "tensors[1].y overlaps token_faults"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.name);
    RotaryCase c;
    c.bad_ids = false;
    PlacedRotary<float> placed(GetParam(), c);
    refusal.change(placed.params());
    const Status status = placed.run();
    EXPECT_EQ(status.code(), refusal.code);
    if (refusal.message.empty()) {
      EXPECT_FALSE(status.message().empty());
    } else {
      EXPECT_EQ(status.message(), "rotary: " + refusal.message);
    }
    EXPECT_TRUE(placed.arena().untouched());
  }
}

TEST_P(RotaryTest, PlanRunsWithOtherPointersAndFewerTokens) {
  RotaryCase c;
  c.batch = 2;
  c.seq_len = 7;
  PlacedRotary<float> large(GetParam(), c);
  c.seed = 2, c.seq_len = 3;
  PlacedRotary<float> small(GetParam(), c);
  const Execution execution{backend_device(GetParam())};
  const Result<RotaryPlan> plan = RotaryPlan::create(large.params(), execution);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(RotaryPlan::workspace_bytes(), 0);
  EXPECT_EQ(plan->params().seq_len, 7);
  const Status status = small.arena().run([&](const Execution& e) { return plan->run(small.params(), e); });
  ASSERT_TRUE(status.ok()) << status.message();
  small.expect_matches();

  RotaryParams longer = large.params();
  longer.seq_len = 8;
  EXPECT_EQ(plan->run(longer, execution).message(), "rotary plan: seq_len is 8: it must lie in 0..7, that of the plan");
  longer.seq_len = 7, longer.batch = 3;
  EXPECT_EQ(plan->run(longer, execution).message(), "rotary plan: batch is 3: it must be that of the plan, 2");
  const struct {
    std::function<void(RotaryParams&)> change;
    const char* message;
  } runs[] = {
      {[](RotaryParams& p) { p.num_tensors = 9; }, "num_tensors is 9: it must be that of the plan, 2"},
      {[](RotaryParams& p) { p.tensors[1].num_heads = 7; }, "tensors[1].num_heads is 7: it must be that of the plan, 1"},
      {[](RotaryParams& p) { p.tensors[0].x = nullptr; }, "tensors[0].x is null, but the plan was made with it"},
      {[](RotaryParams& p) { p.tensors[1].y = nullptr; }, "tensors[1].y is null, but the plan was made with it"},
      {[](RotaryParams& p) { p.tensors[0].y_strides.token = 3; },
       "tensors[0].y.token stride is 3: it must be that of the plan, 32"},
      {[](RotaryParams& p) { p.tensors[0].x_strides.head = -1; },
       "tensors[0].x.head stride is -1: it must lie in 0..1099511627776"},
      {[](RotaryParams& p) { p.rope.style = RopeStyle::interleaved; }, "rope.style is 1: it must be that of the plan, 0"},
      {[](RotaryParams& p) { p.rope.rotary_dim = 8; }, "rope.rotary_dim is 8: it must be that of the plan, 16"},
      {[](RotaryParams& p) { p.rope.inverse = true; }, "rope.inverse is 1: it must be that of the plan, 0"},
      {[](RotaryParams& p) { p.rope.width = RopeWidth::full; }, "rope.width is 2: it must be that of the plan, 1"},
      {[](RotaryParams& p) { p.rope.cos.data = nullptr; }, "rope.cos is null, but the plan was made with it"},
      {[](RotaryParams& p) { p.rope.max_position = 25; }, "rope.max_position is 25: it must be that of the plan, 24"},
      {[](RotaryParams& p) { p.rope.past_table = PastTable::zero; }, "rope.past_table is 1: it must be that of the plan, 0"},
      {[](RotaryParams& p) { p.positions.ids.data = nullptr; }, "positions.ids is null, but the plan was made with it"},
      {[](RotaryParams& p) { p.positions.ids.type = DType::uint64; },
       "positions.ids.type is uint64: it must be that of the plan, int32"},
      {[](RotaryParams& p) { p.positions.batch_stride = INT64_MAX; },
       "positions.batch_stride is 9223372036854775807: it must lie in 0..1099511627776"},
      {[](RotaryParams& p) { p.faults = nullptr; }, "faults is null, but the plan was made with it"},
  };
  for (const auto& run : runs) {
    RotaryParams changed = large.params();
    run.change(changed);
    EXPECT_EQ(plan->run(changed, execution).message(), str_cat("rotary plan: ", run.message));
  }
  const Device other = execution.device == Device::cpu ? Device::cuda : Device::cpu;
  const Status elsewhere = plan->run(large.params(), Execution{other});
  EXPECT_EQ(elsewhere.message(),
            str_cat("rotary plan: device is ", device_name(other), ": the plan was made for ", device_name(execution.device)));
  longer = large.params();
  longer.num_tensors = 9;
  EXPECT_EQ(RotaryPlan::create(longer, execution).status().message(), "rotary: num_tensors is 9: it must lie in 1..4");
  longer.num_tensors = 1, longer.seq_len = 0;
  EXPECT_EQ(RotaryPlan::create(longer, execution).status().message(),
            "rotary plan: batch * seq_len is 0: it must lie in 1..2147483647");
}

// Rows that go by token need no bound, and without one no position is too large: not the largest that each type can hold either.
TEST_P(RotaryTest, WithoutABoundNoPositionIsTooLarge) {
  constexpr int64_t kTokens = 4, kHeads = 3, kHeadDim = 64;
  const auto check_ids = [&](const auto& ids) {
    using Id = typename std::decay_t<decltype(ids)>::value_type;
    SCOPED_TRACE(str_cat(sizeof(Id), " bytes"));
    for (const bool lean : {true, false}) {  // attention_factor makes it the general kernel's
      Random random(8);
      Arena arena(GetParam());
      const std::vector<float> x = random.normals<float>(kTokens * kHeads * kHeadDim);
      RotaryParams p;
      p.dtype = DType::f32, p.seq_len = kTokens, p.head_dim = p.rope.rotary_dim = kHeadDim, p.num_tensors = 1;
      float* y = arena.output<float>(static_cast<int64_t>(x.size()));
      p.tensors[0] = rotary_tensor(arena.input(x), y, kHeads, batch_major_strides(kTokens, kHeads, kHeadDim));
      set_cos_and_sin(p.rope, arena.input(std::vector<float>(kTokens * kHeadDim / 2, 1.0f)),
                      arena.input(std::vector<float>(kTokens * kHeadDim / 2, 0.0f)), DType::f32, 0, kHeadDim / 2,
                      RopeWidth::half);
      p.rope.source = RopeSource::per_token;
      p.rope.attention_factor = lean ? 1.0 : 2.0;
      p.positions.ids = index_view(arena.input(ids));
      FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
      p.faults = faults;
      const Status status = arena.run([&](const Execution& execution) { return rotary(p, execution); });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(decode_fault(arena.read(faults)[0]).count, 0u);
      std::vector<float> want = x;  // not rotated, cos being 1, and the third token is padding where a number can be negative
      for (float& value : want) value *= lean ? 1.0f : 2.0f;
      std::vector<float> got = arena.read(y);
      if (std::is_signed_v<Id>) {
        for (int64_t i = 2 * kHeads * kHeadDim; i < 3 * kHeads * kHeadDim; ++i) {
          EXPECT_TRUE(std::isnan(got[static_cast<size_t>(i)]));
          got[static_cast<size_t>(i)] = want[static_cast<size_t>(i)];
        }
      }
      EXPECT_EQ(got, want);
    }
  };
  check_ids(std::vector<int32_t>{INT32_MAX, 0, -1, 7});
  check_ids(std::vector<int64_t>{INT64_MAX, INT64_MAX - 1, INT64_MIN, 7});
  check_ids(std::vector<uint64_t>{UINT64_MAX, uint64_t{1} << 63, 0, 7});
}

#ifdef PROLOGUE_HAS_CUDA
// Which instance a call runs in depends on its size. Here each runs that can do it, with the bits of the CPU.
template <class T>
void check_all_instances(const RotaryCase& c) {
  SCOPED_TRACE(c.describe());
  PlacedRotary<T> cpu(Backend::cpu, c), placed(Backend::cuda, c);
  ASSERT_TRUE(cpu.run().ok());
  for (const auto& instance : cuda::instances_of(placed.params())) {
    SCOPED_TRACE(instance.name);
    const Status status =
        placed.run([&](const Execution& execution) { return instance.launch(placed.params(), execution.stream); });
    ASSERT_TRUE(status.ok()) << status.message();
    placed.expect_same_bits(cpu);
    if (::testing::Test::HasFailure()) return;
  }
}

// Whole and partial heads in both styles, heads that fill no block, every kind of row of cos and sin.
std::vector<RotaryCase> instance_cases() {
  std::vector<RotaryCase> cases;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
      for (const int64_t rotary_dim : {128, 64}) {
        for (const bool per_token : {false, true}) {
          RotaryCase c;
          c.dtype = dtype, c.style = style, c.head_dim = 128, c.rotary_dim = rotary_dim, c.per_token = per_token;
          c.rotary_offset = 128 - rotary_dim, c.batch = 2, c.seq_len = 7, c.ids = IdsKind::per_batch;
          c.type = per_token ? DType::f32 : dtype;
          c.tensors = {{24}, {7, true, true}, {1, false}, {5}};
          c.seed = cases.size() + 1;
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

TEST(RotaryInstances, EachGivesTheBitsOfTheCpu_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  for (const RotaryCase& c : instance_cases()) {
    with_float_type(c.dtype, [&](auto type) { check_all_instances<decltype(type)>(c); });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RotaryInstances, EachGivesTheBitsOfTheCpuOnAnyStruct_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  for (uint64_t seed = 8001; seed <= 8300 && !::testing::Test::HasFailure(); ++seed) {
    const RotaryCase c = random_rotary_case(seed);
    if (c.batch * c.seq_len == 0) continue;  // nothing is launched
    with_float_type(c.dtype, [&](auto type) { check_all_instances<decltype(type)>(c); });
  }
}

// No GPU is needed to know what the walk reaches.
TEST(RotaryInstances, TheWalkReachesEach) {
  std::set<std::string> reached;
  for (const RotaryCase& c : instance_cases()) {
    with_float_type(c.dtype, [&](auto type) {
      PlacedRotary<decltype(type)> placed(Backend::cpu, c);
      for (const auto& instance : cuda::instances_of(placed.params())) reached.insert(instance.name);
    });
  }
  const std::vector<std::string> shipped = cuda::rotary_instances();
  EXPECT_EQ(reached, std::set<std::string>(shipped.begin(), shipped.end()));
  EXPECT_EQ(reached.size(), shipped.size()) << "two instances share a name";
}

// One token more, and another instance, or another launch of a grid, takes the rest.
TEST(RotaryInstances, BothSidesOfEveryLimit_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  const auto check_tokens = [](RotaryCase c, int64_t num_tokens) {
    c.seq_len = num_tokens;
    SCOPED_TRACE(c.describe());
    with_float_type(c.dtype, [&](auto type) {
      PlacedRotary<decltype(type)> cpu(Backend::cpu_threads, c), placed(Backend::cuda, c);
      ASSERT_TRUE(cpu.run().ok());
      ASSERT_TRUE(placed.run().ok());
      placed.expect_same_bits(cpu);
    });
  };
  for (RotaryCase c : instance_cases()) {
    if (c.per_token) continue;
    c.batch = 1, c.tensors = {{3}, {1}};
    for (const double attention_factor : {1.0, 2.0}) {  // the latter runs in the general kernel
      c.attention_factor = attention_factor;
      std::vector<int64_t> limits;
      with_float_type(c.dtype, [&](auto type) {
        PlacedRotary<decltype(type)> placed(Backend::cpu, c);
        for (const auto& instance : cuda::instances_of(placed.params())) {
          if (instance.max_tokens == INT64_MAX) break;  // what takes a call by itself ends here
          limits.push_back(instance.max_tokens);
        }
      });
      ASSERT_FALSE(limits.empty());
      for (const int64_t limit : limits) check_tokens(c, limit), check_tokens(c, limit + 1);
    }
  }
  RotaryCase c;
  c.tensors = {{1}};
  for (const int64_t num_tokens : {65535, 65536, 131071}) check_tokens(c, num_tokens);
}
#endif
// Sizes, types and strides are checked when the plan is made, pointers when it runs.
TEST_P(RotaryTest, PlanIsMadeBeforeThereIsMemory) {
  RotaryCase c;
  c.batch = 2;
  PlacedRotary<float> placed(GetParam(), c);
  RotaryParams shapes = placed.params();
  for (RotaryTensor& tensor : shapes.tensors) tensor.x = tensor.y = nullptr;
  shapes.rope.cos.data = shapes.rope.sin.data = nullptr;
  shapes.positions.ids.data = nullptr;
  shapes.faults = nullptr;
  shapes.token_faults = nullptr;
  const Execution execution{backend_device(GetParam())};
  const Result<RotaryPlan> plan = RotaryPlan::create(shapes, execution);
  ASSERT_TRUE(plan.ok()) << plan.status().message();

  RotaryParams wrong = shapes;
  wrong.tensors[1].x_strides.token = -1;
  EXPECT_EQ(RotaryPlan::create(wrong, execution).status().message(),
            "rotary: tensors[1].x has the stride -1: strides must not be negative");
  wrong = shapes;
  wrong.tensors[0].y_strides.head = 3;
  EXPECT_EQ(RotaryPlan::create(wrong, execution).status().message(),
            "rotary: tensors[0].y has the stride 3 where 16 elements lie: rows that are written must not overlap");
  wrong = shapes;
  wrong.rope.max_position = 0;
  EXPECT_EQ(RotaryPlan::create(wrong, execution).status().code(), StatusCode::invalid_argument);

  RotaryParams missing = placed.params();
  missing.tensors[0].x = nullptr;
  EXPECT_EQ(plan->run(missing, execution).message(), "rotary: tensors[0].x is null");
  RotaryParams overlapping = placed.params();
  overlapping.tensors[1].y = const_cast<void*>(overlapping.tensors[0].x);
  EXPECT_EQ(plan->run(overlapping, execution).message(), "rotary: tensors[1].y overlaps tensors[0].x");
  EXPECT_TRUE(placed.arena().untouched());
  const Status status = placed.arena().run([&](const Execution& e) { return plan->run(placed.params(), e); });
  ASSERT_TRUE(status.ok()) << status.message();
  placed.expect_matches();
}

// Whatever a struct holds, it is refused or it works; nothing crashes and nothing else is written (the arena looks).
TEST_P(RotaryTest, DamagedStructsNeverCrash) {
  if (backend_device(GetParam()) == Device::cuda) GTEST_SKIP() << "pointers that are not checked fault on a GPU";
  int refused = 0;
  constexpr int kCount = 4000;
  for (uint64_t seed = 1; seed <= kCount; ++seed) {
    RotaryCase c = random_rotary_case(seed);
    SCOPED_TRACE(c.describe());
    with_float_type(c.dtype, [&](auto type) {
      PlacedRotary<decltype(type)> placed(GetParam(), c);
      RotaryParams& p = placed.params();
      Random random(seed + 99);
      const int64_t values[] = {-1, INT64_MIN, INT64_MAX, int64_t{1} << 62, -(int64_t{1} << 40)};
      int64_t* const fields[] = {&p.batch,
                                 &p.seq_len,
                                 &p.head_dim,
                                 &p.num_tensors,
                                 &p.rope.rotary_dim,
                                 &p.rope.rotary_offset,
                                 &p.rope.num_blocks,
                                 &p.tensors[0].num_heads,
                                 &p.tensors[0].x_strides.batch,
                                 &p.tensors[0].x_strides.token,
                                 &p.tensors[0].y_strides.head,
                                 &p.tensors[0].y_strides.channel,
                                 &p.rope.max_position,
                                 &p.rope.cos.row_stride,
                                 &p.rope.sin.column_stride,
                                 &p.positions.axis_stride,
                                 &p.positions.token_stride,
                                 &p.rope.num_axes,
                                 &p.positions.max_seqlen};
      *fields[random.integer(0, std::ssize(fields) - 1)] = values[random.integer(0, std::ssize(values) - 1)];
      const Status status = placed.run();
      if (status.ok()) return;
      ++refused;
      EXPECT_EQ(status.message().rfind("rotary", 0), 0u) << status.message();
      EXPECT_TRUE(placed.arena().untouched());
    });
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(refused, kCount / 2);
}

}  // namespace
}  // namespace prologue::test
