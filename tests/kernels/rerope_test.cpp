#include <prologue/kernels/rerope/rerope.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "tests/oracle/quantize.h"
#include "tests/oracle/rerope.h"
#include "tests/support/refusals.h"
#include "tests/support/rerope_case.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class ReropeTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, ReropeTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

oracle::Quantized quantized_of(DType type) {
  switch (type) {
    case DType::fp8_e4m3: return oracle::Quantized::e4m3;
    case DType::fp8_e5m2: return oracle::Quantized::e5m2;
    case DType::int8: return oracle::Quantized::int8;
    case DType::int4: return oracle::Quantized::int4;
    default: return oracle::Quantized::uint4;
  }
}

// Reads a head as numbers.
std::vector<double> head_of(const ReropeCase& c, const std::vector<uint8_t>& bytes, const std::vector<float>& scales, int64_t at,
                            int64_t scale_at) {
  std::vector<double> values;
  for (int64_t d = at; d < at + c.head_dim; ++d) {
    const auto i = static_cast<size_t>(d);
    const auto element = [&](auto type) {
      std::memcpy(static_cast<void*>(&type), bytes.data() + i * sizeof type, sizeof type);
      return static_cast<double>(to_float(type));
    };
    if (c.type == DType::f32) values.push_back(element(float()));
    if (c.type == DType::f16) values.push_back(element(Float16()));
    if (c.type == DType::bf16) values.push_back(element(BFloat16()));
    if (!dtype_is_quantized(c.type)) continue;
    const uint8_t code = dtype_bits(c.type) == 4 ? static_cast<uint8_t>(bytes[i / 2] >> (i % 2 * 4) & 15) : bytes[i];
    const double scale = scales.empty() ? 1.0 : static_cast<double>(scales[static_cast<size_t>(scale_at)]);
    const double zero_point = c.type == DType::uint4 ? static_cast<double>(scales[static_cast<size_t>(scale_at + 1)]) : 0.0;
    values.push_back(oracle::value_of_code(code, quantized_of(c.type)) * scale + zero_point);
  }
  return values;
}

// Returns half of the distance between the numbers of the type around x.
double half_step(DType type, double x, double scale) {
  const auto of_float = [&](int digits, int least) {
    return std::ldexp(0.5, std::max(std::ilogb(std::max(std::fabs(x / scale), 1e-300)) - digits, least)) * scale;
  };
  switch (type) {
    case DType::f32: return of_float(23, -149);
    case DType::f16: return of_float(10, -24);
    case DType::bf16: return of_float(7, -133);
    case DType::fp8_e4m3: return of_float(3, -9);
    case DType::fp8_e5m2: return of_float(2, -16);
    default: return 0.5 * scale;
  }
}

bool past(const PlacedRerope& placed, const std::vector<int64_t>& positions, int64_t key) {
  for (int64_t axis = 0; axis < placed.c.num_axes; ++axis) {
    if (placed.c.max_position > 0 && placed.position(positions, axis, key) >= placed.c.max_position) return true;
  }
  return false;
}

std::vector<oracle::MovedPair> pairs_of(const PlacedRerope& placed, int64_t key) {
  const ReropeCase& c = placed.c;
  const int64_t pairs = c.rotary_dim / (2 * c.num_blocks);
  std::vector<oracle::MovedPair> moved;
  for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
    const int64_t block = i / pairs, column = i % pairs, first = c.rotary_offset + 2 * pairs * block;
    const bool neox = c.style == RopeStyle::neox;
    const auto matrix = [&](const std::vector<int64_t>& positions) {
      oracle::PairMatrix m;
      if (past(placed, positions, key)) return m;  // only of identity
      const int64_t axis = placed.axes[static_cast<size_t>(i)] < c.num_axes ? placed.axes[static_cast<size_t>(i)] : 0;
      const int64_t position = placed.position(positions, axis, key);
      const auto load = [&](int64_t at, double& cos, double& sin) {
        const auto n = static_cast<size_t>(position * placed.columns + at);
        const double angle = static_cast<double>(position) * placed.frequencies[static_cast<size_t>(column)];
        cos = c.attention_factor * (c.rows_given() ? placed.cos[n] : std::cos(angle));
        sin = c.attention_factor * (c.rows_given() ? placed.sin[n] : std::sin(angle));
      };
      const bool full = c.rows_given() && c.width == RopeWidth::full;
      load(full && !neox ? 2 * column : column, m.cos_a, m.sin_a);
      load(!full ? column : neox ? column + pairs : 2 * column + 1, m.cos_b, m.sin_b);
      if (c.inverse && c.own_sine) m.sin_a = -m.sin_a, m.sin_b = -m.sin_b;
      if (c.inverse && !c.own_sine) {
        const double sin_a = m.sin_a;
        m.sin_a = -m.sin_b, m.sin_b = -sin_a;
      }
      return m;
    };
    moved.push_back({first + (neox ? column : 2 * column), first + (neox ? column + pairs : 2 * column + 1), matrix(placed.from),
                     matrix(placed.to)});
  }
  return moved;
}

enum class Expected { skipped, position_fault, slot_fault, unmoved, moved };

Expected expected_of(const PlacedRerope& placed, int64_t key) {
  const ReropeCase& c = placed.c;
  const int64_t slot = placed.slots[static_cast<size_t>(key)];
  bool same = true, negative = slot < 0;
  for (int64_t axis = 0; axis < c.num_axes; ++axis) {
    const int64_t from = placed.position(placed.from, axis, key), to = placed.position(placed.to, axis, key);
    same &= from == to, negative |= from < 0 || to < 0;
  }
  const bool from_past = past(placed, placed.from, key), to_past = past(placed, placed.to, key);
  if (negative) return Expected::skipped;
  if ((from_past || to_past) && c.past_table != PastTable::identity) return Expected::position_fault;
  if (slot >= c.num_pages * c.page_size) return Expected::slot_fault;
  return same || (from_past && to_past) ? Expected::unmoved : Expected::moved;
}

void expect_oracle(Backend backend, const ReropeCase& c) {
  SCOPED_TRACE(c.describe());
  PlacedRerope placed(backend, c);
  const Status status = placed.run();
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<uint8_t> got_bytes = placed.arena.read(static_cast<const uint8_t*>(placed.p.cache.k.data));
  const std::vector<float> got_scales = placed.scales.empty() ? placed.scales : placed.arena.read(placed.p.cache.k.scale);
  std::vector<uint8_t> may_change(got_bytes.size(), 0), scale_may_change(got_scales.size(), 0);
  const std::vector<uint8_t> token_faults = placed.arena.read(placed.p.token_faults);
  const bool whole = c.hadamard_block != 0 || c.scaling == KvScaling::token_head;
  const int64_t bits = dtype_bits(c.type);
  uint64_t faults = 0;
  for (int64_t key = 0; key < c.num_keys; ++key) {
    const Expected expected = expected_of(placed, key);
    const int fault = expected == Expected::position_fault ? static_cast<int>(FaultCode::position_out_of_range)
                      : expected == Expected::slot_fault   ? static_cast<int>(FaultCode::slot_out_of_range)
                                                           : 0;
    ASSERT_EQ(token_faults[static_cast<size_t>(key)], fault) << key;
    faults += fault != 0 ? 1 : 0;
    if (expected != Expected::moved) continue;
    const std::vector<oracle::MovedPair> pairs = pairs_of(placed, key);
    double growth = 1.0;  // of a pair, by the factors
    for (const auto& pair : pairs) {
      growth = std::max(growth, std::hypot(pair.to.cos_a, pair.to.sin_a) / std::hypot(pair.from.cos_a, pair.from.sin_a));
    }
    for (int64_t h = 0; h < c.num_heads; ++h) {
      const int64_t slot = placed.slots[static_cast<size_t>(key)], at = placed.element_at(slot, h),
                    scale_at = placed.scale_at(slot, h);
      const std::vector<double> before = head_of(c, placed.bytes, placed.scales, at, scale_at);
      const std::vector<double> got = head_of(c, got_bytes, got_scales, at, scale_at);
      const std::vector<double> want = oracle::moved_head(before, pairs, c.hadamard_block);
      double norm = 0.0, largest = 0.0;
      for (const double x : before) norm += x * x;
      for (const double x : want) largest = std::max(largest, std::fabs(x));
      norm = std::sqrt(norm) * growth;
      const double scale = got_scales.empty() ? 1.0 : static_cast<double>(got_scales[static_cast<size_t>(scale_at)]);
      const double limit = dtype_is_quantized(c.type) ? oracle::largest_value(quantized_of(c.type)) * scale : 1e300;
      if (c.scaling == KvScaling::token_head && c.type != DType::uint4) {
        ASSERT_NEAR(scale, largest / oracle::largest_value(quantized_of(c.type)), 1e-5 * scale);
      }
      for (int64_t d = 0; d < c.head_dim; ++d) {
        const auto i = static_cast<size_t>(d);
        const double x = c.type == DType::uint4 ? want[i] : std::clamp(want[i], -limit, limit);
        const double step = half_step(c.type, x, scale);
        ASSERT_NEAR(got[i], x, step * (1 + 1e-6) + 64 * 0x1p-24 * norm) << "key " << key << " head " << h << " channel " << d;
        if (whole || (d >= c.rotary_offset && d < c.rotary_offset + c.rotary_dim)) {
          for (int64_t byte = (at + d) * bits / 8; byte < std::max((at + d) * bits / 8 + 1, (at + d + 1) * bits / 8); ++byte) {
            may_change[static_cast<size_t>(byte)] = 1;
          }
        }
      }
      for (int64_t i = 0; i < scales_of_head({c.type, c.scaling}); ++i) scale_may_change[static_cast<size_t>(scale_at + i)] = 1;
    }
  }
  EXPECT_EQ(decode_fault(placed.arena.read(placed.p.faults)[0]).count, faults);
  for (size_t i = 0; i < got_bytes.size(); ++i)
    ASSERT_TRUE(may_change[i] == 1 || got_bytes[i] == placed.bytes[i]) << "byte " << i;
  for (size_t i = 0; i < got_scales.size(); ++i) {
    ASSERT_TRUE(scale_may_change[i] == 1 || got_scales[i] == placed.scales[i]) << "scale " << i;
  }
  if (backend == Backend::cpu) return;
  PlacedRerope on_cpu(Backend::cpu, c);
  ASSERT_TRUE(on_cpu.run().ok());
  const auto same = placed.arena.written(), cpu = on_cpu.arena.written();
  ASSERT_EQ(same.size(), cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) ASSERT_TRUE(same[i].bytes == cpu[i].bytes) << "not the bits of the CPU, array " << i;
}

struct Format {
  DType type;
  KvScaling scaling;
};
const Format kFormats[] = {{DType::f32, KvScaling::none},        {DType::f16, KvScaling::none},
                           {DType::bf16, KvScaling::none},       {DType::fp8_e4m3, KvScaling::none},
                           {DType::fp8_e4m3, KvScaling::tensor}, {DType::fp8_e4m3, KvScaling::token_head},
                           {DType::fp8_e5m2, KvScaling::head},   {DType::fp8_e5m2, KvScaling::token_head},
                           {DType::int8, KvScaling::tensor},     {DType::int8, KvScaling::head},
                           {DType::int8, KvScaling::token_head}, {DType::int4, KvScaling::head},
                           {DType::int4, KvScaling::token_head}, {DType::uint4, KvScaling::token_head}};

// What a head looks like: of vectors of 8, 2 and 1 channels, of more lanes than a warp has, with a tail on one or both sides.
struct Shape {
  int64_t head_dim, rotary_dim, rotary_offset, num_blocks, hadamard_block;
};
const Shape kShapes[] = {{64, 64, 0, 1, 0},  {64, 64, 0, 1, 64},   {128, 64, 64, 1, 32}, {20, 12, 4, 1, 0},
                         {20, 20, 0, 1, 4},  {6, 6, 0, 1, 0},      {6, 2, 2, 1, 2},      {46, 38, 6, 1, 0},
                         {48, 48, 0, 3, 16}, {192, 64, 128, 2, 0}, {132, 132, 0, 1, 4},  {158, 158, 0, 1, 2}};

TEST_P(ReropeTest, EveryFormatAndShape) {
  uint64_t seed = 0;
  for (const Format& format : kFormats) {
    for (const Shape& shape : kShapes) {
      ReropeCase c;
      c.type = format.type, c.scaling = format.scaling;
      c.head_dim = shape.head_dim, c.rotary_dim = shape.rotary_dim, c.rotary_offset = shape.rotary_offset;
      c.num_blocks = shape.num_blocks, c.hadamard_block = shape.hadamard_block;
      c.seed = ++seed;
      c.style = seed % 2 == 0 ? RopeStyle::neox : RopeStyle::interleaved;
      c.num_heads = 1 + static_cast<int64_t>(seed % 5);
      c.bad = seed % 3 == 0, c.heads_first = seed % 4 < 2, c.int64_indices = seed % 4 == 1;
      expect_oracle(GetParam(), c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ReropeTest, EveryRope) {
  for (const RopeSource source : {RopeSource::table, RopeSource::inv_freq, RopeSource::theta, RopeSource::angles}) {
    for (int way = 0; way < 8; ++way) {
      ReropeCase c;
      c.source = source, c.seed = static_cast<uint64_t>(way) + 1;
      c.type = way % 2 == 0 ? DType::f32 : DType::bf16;
      c.head_dim = 32, c.rotary_dim = 24, c.rotary_offset = 4;
      c.style = way % 2 == 0 ? RopeStyle::neox : RopeStyle::interleaved;
      const bool given = c.rows_given();
      if (given && way >= 4) c.width = RopeWidth::full;
      if (source == RopeSource::table) c.table_type = kFloatTypes[way % 4];
      if (source == RopeSource::inv_freq || source == RopeSource::angles) c.table_type = way % 2 == 0 ? DType::f32 : DType::f64;
      if (source == RopeSource::angles) c.factor = 1.0;
      if (!given && way < 4) c.max_position = 0;
      if (way % 4 == 1) c.inverse = true;
      if (way == 5) c.inverse = c.own_sine = true;
      if (way == 2) c.num_blocks = c.num_axes = 3;
      if (way == 3 || way == 6) c.num_axes = 3, c.pair_axis = true;
      if (way == 6) c.one_row = true;
      c.attention_factor = way == 7 ? 1.25 : 1.0;
      c.bad = way == 3;
      expect_oracle(GetParam(), c);
      if (HasFatalFailure()) return;
    }
  }
}

// YaRN multiplies cos and sin by a factor (the table's, or the rope's): it is in the key already, and stays what it is.
TEST_P(ReropeTest, AFactorInTheTableCancels) {
  for (const auto& [of_table, of_rope] : std::vector<std::pair<double, double>>{{1.3466, 1.0}, {0.1, 1.0}, {1.0, 1.3466}}) {
    for (const DType type : {DType::f32, DType::bf16, DType::int8}) {
      ReropeCase c;
      c.factor = of_table, c.attention_factor = of_rope;
      c.type = type, c.scaling = type == DType::int8 ? KvScaling::token_head : KvScaling::none;
      expect_oracle(GetParam(), c);
    }
  }
}

// Past the table, `identity` neither rotates nor undoes a rotation. The other two leave the key as it is.
TEST_P(ReropeTest, PastTheTable) {
  for (const PastTable past_table : {PastTable::record, PastTable::zero, PastTable::identity}) {
    for (const int64_t axes : {1, 3}) {
      for (const DType type : {DType::f32, DType::uint4}) {
        ReropeCase c;
        c.past_table = past_table, c.bad = true, c.num_keys = 18, c.num_axes = axes, c.pair_axis = axes > 1;
        c.type = type, c.scaling = type == DType::uint4 ? KvScaling::token_head : KvScaling::none;
        c.factor = 1.2;
        expect_oracle(GetParam(), c);
      }
    }
  }
}

TEST_P(ReropeTest, AnyStridesAndAlignment) {
  uint64_t seed = 0;
  for (const Format& format : kFormats) {
    for (const int64_t hole : {2, 16}) {
      ReropeCase c;
      c.type = format.type, c.scaling = format.scaling, c.hole = hole, c.seed = ++seed;
      c.head_dim = c.rotary_dim = 32, c.num_heads = 3, c.heads_first = seed % 2 == 0;
      c.misalign = std::max<int64_t>(dtype_bits(c.type) / 8, 1) * (hole == 2 ? 1 : 4);
      expect_oracle(GetParam(), c);
    }
  }
  ReropeCase c;  // more keys than a thread's range, and large heads
  c.type = DType::bf16, c.num_pages = 40, c.page_size = 16, c.num_keys = 600, c.num_heads = 8, c.head_dim = c.rotary_dim = 64;
  expect_oracle(GetParam(), c);
  c.num_pages = 1, c.num_keys = 3, c.num_heads = 2, c.head_dim = c.rotary_dim = 1024, c.hadamard_block = 512;
  expect_oracle(GetParam(), c);
  c.head_dim = 1022, c.rotary_dim = 1022, c.hadamard_block = 2, c.type = DType::int4, c.scaling = KvScaling::token_head;
  expect_oracle(GetParam(), c);
}

TEST_P(ReropeTest, TheSamePositionTouchesNothing) {
  for (const Format& format : kFormats) {
    ReropeCase c;
    c.type = format.type, c.scaling = format.scaling, c.num_axes = 2, c.pair_axis = true, c.hadamard_block = 16;
    PlacedRerope placed(GetParam(), c);
    placed.p.to_positions = placed.p.from_positions;
    const Status status = placed.run();
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(placed.arena.untouched());
  }
}

// There and back: in float32 what it was but for the rounding of two moves.
TEST_P(ReropeTest, ThereAndBack) {
  ReropeCase c;
  c.head_dim = c.rotary_dim = 64, c.factor = 1.5;
  PlacedRerope placed(GetParam(), c);
  const Status status = placed.arena.run([&](const Execution& execution) {
    PROLOGUE_RETURN_IF_ERROR(rerope(placed.p, execution));
    ReropeParams back = placed.p;
    std::swap(back.from_positions, back.to_positions);
    return rerope(back, execution);
  });
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<float> got = placed.arena.read(static_cast<const float*>(placed.p.cache.k.data));
  for (size_t i = 0; i < got.size(); ++i) {
    float before;
    std::memcpy(&before, placed.bytes.data() + i * sizeof before, sizeof before);
    ASSERT_NEAR(got[i], before, 64 * 0x1p-24 * 4.0) << i;
  }
}

// What the prologue writes at the new position, and what it wrote at the old one after a move, differ by roundings: u = half a step of the
// cache at the norm of a pair, three and a half of them (docs/numerics.md).
TEST_P(ReropeTest, MovedKeysAreThoseOfThePrologue) {
  constexpr int64_t kKeys = 12, kHeads = 2, kDim = 64, kRows = 64, kPage = 4;
  for (const Format& format : kFormats) {
    for (const int64_t hadamard_block : {0, 64}) {
      SCOPED_TRACE(str_cat(dtype_name(format.type), " scaling=", static_cast<int>(format.scaling), " hadamard=", hadamard_block));
      Random random(7);
      Arena arena(GetParam());
      std::vector<float> table;
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = 0; i < kDim; ++i) {
          const double angle = static_cast<double>(row) * std::pow(10000.0, -static_cast<double>(i % (kDim / 2)) / (kDim / 2));
          table.push_back(static_cast<float>(1.2 * (i < kDim / 2 ? std::cos(angle) : std::sin(angle))));
        }
      }
      std::vector<int64_t> slots, from, to;
      for (int64_t i = 0; i < kKeys; ++i) slots.push_back((i * 5) % kKeys), from.push_back(i), to.push_back(i + 41);
      const std::vector<float> k = random.normals<float>(kKeys * kHeads * kDim);
      AttentionPrologueParams prologue;
      prologue.num_tokens = kKeys, prologue.num_kv_heads = kHeads, prologue.head_dim = kDim, prologue.dtype = DType::f32;
      prologue.k = {arena.input(k), kHeads * kDim, kDim};
      prologue.rope.rotary_dim = kDim;
      set_cos_sin_table(prologue.rope, arena.input(table), DType::f32, kRows);
      prologue.places.slot_mapping = index_view(static_cast<const int64_t*>(arena.input(slots)));
      prologue.hadamard_block = hadamard_block;
      prologue.faults = arena.inout(std::vector<FaultRecord>(1));
      const int64_t bytes = kKeys * kHeads * kDim * dtype_bits(format.type) / 8;
      const std::vector<float> scales(static_cast<size_t>(kKeys * kHeads * 2), dtype_is_fp8(format.type)      ? 0.02f
                                                                               : dtype_bits(format.type) == 4 ? 0.8f
                                                                                                              : 0.06f);
      PagedKvView caches[2];
      for (PagedKvView& cache : caches) {
        cache.num_pages = kKeys / kPage, cache.page_size = kPage, cache.num_kv_heads = kHeads;
        cache.k.head_dim = kDim, cache.k.format = {format.type, format.scaling};
        cache.k.strides = nhd_strides(kPage, kHeads, kDim);
        cache.k.data = arena.output<uint8_t>(bytes);
        if (format.scaling != KvScaling::none) cache.k.scale = arena.inout(scales);
        cache.k.scale_strides = nhd_strides(kPage, kHeads, std::max<int64_t>(scales_of_head(cache.k.format), 1));
      }
      const IndexView old_positions = index_view(static_cast<const int64_t*>(arena.input(from)));
      const IndexView new_positions = index_view(static_cast<const int64_t*>(arena.input(to)));
      ReropeParams p;
      p.num_keys = kKeys, p.cache = caches[0], p.rope = prologue.rope, p.slot_mapping = prologue.places.slot_mapping;
      p.from_positions = old_positions, p.to_positions = new_positions, p.hadamard_block = hadamard_block,
      p.faults = prologue.faults;
      const Status status = arena.run([&](const Execution& execution) {
        prologue.cache = caches[0], prologue.places.positions = old_positions;
        PROLOGUE_RETURN_IF_ERROR(attention_prologue(prologue, execution));
        prologue.cache = caches[1], prologue.places.positions = new_positions;
        PROLOGUE_RETURN_IF_ERROR(attention_prologue(prologue, execution));
        return rerope(p, execution);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(arena.read(p.faults)[0].count, 0u);
      ReropeCase c;
      c.type = format.type, c.scaling = format.scaling, c.head_dim = kDim;
      const auto read = [&](const PagedKvView& cache, int64_t head) {
        const std::vector<float> of_cache = cache.k.scale == nullptr ? std::vector<float>() : arena.read(cache.k.scale);
        const int64_t of_head = scales_of_head(cache.k.format);
        const int64_t scale_at = format.scaling == KvScaling::head ? head % kHeads : head * of_head;
        const std::vector<uint8_t> stored = arena.read(static_cast<const uint8_t*>(cache.k.data));
        return std::make_pair(head_of(c, stored, of_cache, head * kDim, scale_at),
                              of_cache.empty() ? 1.0 : static_cast<double>(of_cache[static_cast<size_t>(scale_at)]));
      };
      for (int64_t head = 0; head < kKeys * kHeads; ++head) {
        const auto [got, got_scale] = read(caches[0], head);
        const auto [want, want_scale] = read(caches[1], head);
        double largest = 0.0, norm = 0.0;
        for (const double x : want) largest = std::max(largest, std::fabs(x)), norm += x * x;
        // With a transform a rounding of each channel of a block reaches every other one.
        const double u = half_step(format.type, std::sqrt(2.0) * largest, std::max(got_scale, want_scale) * 1.5);
        const double bound =
            (hadamard_block != 0 ? 2.0 + std::sqrt(64.0) : 2.0 + std::sqrt(2.0)) * u + 64 * 0x1p-24 * std::sqrt(norm);
        for (size_t d = 0; d < got.size(); ++d) ASSERT_NEAR(got[d], want[d], bound) << "head " << head << " channel " << d;
      }
    }
  }
}

// Two heads of two pairs at one slot, from position 0 to 1, where the table is cos 0, sin 1: (a, b) becomes (-b, a).
struct QuarterTurn {
  explicit QuarterTurn(Backend backend) : arena(backend) {
    p.num_keys = 1;
    p.cache.num_pages = p.cache.page_size = 1, p.cache.num_kv_heads = 2;
    p.cache.k.head_dim = 4, p.cache.k.strides = {8, 8, 4}, p.rope.rotary_dim = 4;
    p.slot_mapping = p.from_positions = index_view(static_cast<const int32_t*>(arena.input(std::vector<int32_t>{0})));
    p.to_positions = index_view(static_cast<const int32_t*>(arena.input(std::vector<int32_t>{1})));
    p.faults = arena.inout(std::vector<FaultRecord>(1));
  }
  template <class T>
  std::vector<T> moved(const std::vector<T>& keys, const std::vector<float>& table = {1, 1, 0, 0, 0, 0, 1, 1}) {
    set_cos_sin_table(p.rope, arena.input(table), DType::f32, 2);
    T* const k = arena.inout(keys);
    p.cache.k.data = k;
    const Status status = arena.run([&](const Execution& execution) { return rerope(p, execution); });
    EXPECT_TRUE(status.ok()) << status.message();
    return arena.read(k);
  }
  Arena arena;
  ReropeParams p;
};

TEST_P(ReropeTest, SpecialNumbers) {
  {  // fp8: a NaN reaches its pair, and no other
    QuarterTurn call(GetParam());
    call.p.cache.k.format = {DType::fp8_e4m3, KvScaling::none};
    EXPECT_EQ(call.moved<uint8_t>({0x38, 0x7f, 0x40, 0x30, 0x38, 0x38, 0xb8, 0x00}),
              (std::vector<uint8_t>{0xc0, 0x7f, 0x38, 0x7f, 0x38, 0x00, 0x38, 0x38}));
  }
  {  // Computed scales: a head whose scale is NaN keeps it, and its zeros; so does one with scale 0
    QuarterTurn call(GetParam());
    call.p.cache.k.format = {DType::int8, KvScaling::token_head};
    float* const scales = call.arena.inout(std::vector<float>{std::nanf(""), 0.0f});
    call.p.cache.k.scale = scales, call.p.cache.k.scale_strides = {2, 2, 1};
    EXPECT_EQ(call.moved<uint8_t>(std::vector<uint8_t>(8)), std::vector<uint8_t>(8));
    EXPECT_TRUE(std::isnan(call.arena.read(scales)[0]));
    EXPECT_EQ(call.arena.read(scales)[1], 0.0f);
  }
  {  // uint4: a head of equal values has scale 0; moved, it has two values
    QuarterTurn call(GetParam());
    call.p.cache.k.format = {DType::uint4, KvScaling::token_head};
    float* const scales = call.arena.inout(std::vector<float>{0.0f, 3.0f, 0.0f, 0.0f});
    call.p.cache.k.scale = scales, call.p.cache.k.scale_strides = {4, 4, 2};
    EXPECT_EQ(call.moved<uint8_t>(std::vector<uint8_t>(4)), (std::vector<uint8_t>{0x00, 0xff, 0, 0}));
    EXPECT_EQ(call.arena.read(scales), (std::vector<float>{0.4f, -3.0f, 0.0f, 0.0f}));
  }
  {  // a pair that was multiplied by zero is lost
    QuarterTurn call(GetParam());
    call.p.cache.k.format.type = DType::f32;
    const std::vector<float> got = call.moved<float>(std::vector<float>(8, 1.0f), {0, 1, 0, 0, 0, 0, 1, 1});
    for (const size_t i : {0, 2, 4, 6}) EXPECT_TRUE(std::isnan(got[i])) << i;
    EXPECT_EQ(got[1], -1.0f);
    EXPECT_EQ(got[3], 1.0f);
  }
}

TEST_P(ReropeTest, NoKeysIsANoOp) {
  Arena arena(GetParam());
  ReropeParams p;
  p.rope.rotary_dim = p.cache.k.head_dim = 4;
  p.rope.source = RopeSource::theta, p.rope.theta = 10.0;
  p.cache.k.format.type = DType::f32;
  p.cache.num_pages = p.cache.page_size = p.cache.num_kv_heads = 1;
  const Status status = arena.run([&](const Execution& execution) { return rerope(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_P(ReropeTest, RefusesWithASentence) {
  using P = ReropeParams;
  constexpr StatusCode kUnsupported = StatusCode::unsupported;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.num_keys = -1; }, "num_keys is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.cache.num_kv_heads = 0; }, "cache.num_kv_heads is 0: it must lie in 1..65536"},
      {[](P& p) { p.cache.k.head_dim = 15; }, kUnsupported, "head_dim is 15: supported is every even number in 2..1024"},
      {[](P& p) { p.rope.rotary_dim = 18; }, "rotary_dim is 18: it must be even and lie in 0..head_dim, 16"},
      {[](P& p) { p.rope = Rope(); }, "rotary_dim is 0: keys without a rotation have no position"},
      {[](P& p) { p.rope.rotary_offset = 2; }, "rotary_offset is 2: it must be even and lie in 0..head_dim - rotary_dim, 0"},
      {[](P& p) { p.rope.num_blocks = 3; }, "num_blocks is 3: rotary_dim, 16, must be that many blocks of even width"},
      {[](P& p) { p.rope.source = RopeSource::per_token; }, kUnsupported,
       "rope.source is per_token: a key needs the rows of two positions; supported are table, inv_freq, theta and angles"},
      {[](P& p) { p.rope.source = RopeSource::angles_per_token; }, kUnsupported,
       "rope.source is angles_per_token: a key needs the rows of two positions; supported are table, inv_freq, theta and angles"},
      {[](P& p) { p.rope.attention_factor = 0.0; },
       "rope.attention_factor is 0: keys that were multiplied by it cannot be moved"},
      {[](P& p) { p.rope.type = kNoType; }, kUnsupported,
       "rope.type is the unknown type 99: supported are float32, float16, bfloat16 and float64"},
      {[](P& p) { p.rope.num_axes = 5; }, "rope.num_axes is 5: it must lie in 1..4"},
      {[](P& p) { p.rope.pair_axis = nullptr; }, "rope.pair_axis is null: num_axes, 2, must then be num_blocks, 1"},
      {[](P& p) { p.hadamard_block = 12; },
       "hadamard_block is 12: it must be a power of two in 2..512 that divides head_dim, 16"},
      {[](P& p) { p.cache.k.format.type = DType::f64; }, kUnsupported,
       "cache.k.format.type is float64: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4, uint4 and "
       "fp4_e2m1"},
      {[](P& p) { p.cache.k.format.scaling = KvScaling::tensor; },
       "cache.k.format.scaling is given, but the type is float32: float types have no scales"},
      {[](P& p) { p.cache.page_size = 0; }, "cache.page_size is 0: it must lie in 1..1048576"},
      {[](P& p) { p.slot_mapping.type = DType::int16; }, "slot_mapping.type is int16: it must be int32 or int64"},
      {[](P& p) { p.from_positions.type = kNoType; }, "from_positions.type is the unknown type 99: it must be int32 or int64"},
      {[](P& p) { p.to_positions.type = DType::uint8; }, "to_positions.type is uint8: it must be int32 or int64"},
      {[](P& p) { p.faults = nullptr; },
       "faults is null, but max_position is 50: give a FaultRecord, or set past_table to zero or identity"},
      {[](P& p) { p.position_axis_stride = P().position_axis_stride; },
       "position_axis_stride is not set, but rope.num_axes is 2: set it, to 0 where all share one row"},
      {[](P& p) { p.position_axis_stride = -2; }, "from_positions has the stride -2: strides must not be negative"},
      {[](P& p) { p.slot_mapping.data = nullptr; }, "slot_mapping is null"},
      {[](P& p) { p.from_positions.data = nullptr; }, "from_positions is null"},
      {[](P& p) { p.to_positions.data = nullptr; }, "to_positions is null"},
      {[](P& p) { p.rope.cos.data = nullptr; }, "rope.cos is null"},
      {[](P& p) { p.cache.k.data = nullptr; }, "cache.k is null"},
      {[](P& p) { p.cache.k.strides.head = 8; }, ""},
      {[](P& p) { p.cache.k.data = const_cast<void*>(p.rope.cos.data); }, "cache.k overlaps rope.cos"},
      {[](P& p) {
         p.cache.k.format = {DType::uint4, KvScaling::token_head};
       },
       "cache.k.scale is null"},
  };
  expect_refusals("rerope", refusals, [&](const auto& change) {
    ReropeCase c;
    c.num_axes = 2, c.pair_axis = true;
    PlacedRerope placed(GetParam(), c);
    change(placed.p);
    return refused(placed.run(), placed.arena);
  });
}

}  // namespace
}  // namespace prologue::test
