// Tests what the rotary operation refuses: each check with its code and its message, and that nothing is written.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <prologue/kernels/rotary/rotary.h>

#include "tests/support/placed_rotary.h"
#include "tests/support/refusals.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class RotaryTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, RotaryTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

TEST_P(RotaryTest, RefusesWithASentence) {
  using P = RotaryParams;
  const auto invalid = StatusCode::invalid_argument;
  const auto missing = StatusCode::unsupported;
  const auto float_at = [](const void* data, int64_t i) { return static_cast<float*>(const_cast<void*>(data)) + i; };
  const std::vector<Refusal<P>> refusals = {
      {"batch", [](P& p) { p.batch = -1; }, invalid, "batch is -1: it must lie in 0..2147483647"},
      {"seq_len", [](P& p) { p.seq_len = int64_t{1} << 31; }, invalid, "seq_len is 2147483648: it must lie in 0..2147483647"},
      {"tokens", [](P& p) { p.batch = 65536, p.seq_len = 65536; }, invalid,
       "batch * seq_len is 4294967296: it must lie in 0..2147483647"},
      {"dtype", [](P& p) { p.dtype = kNoType; }, missing,
       "dtype is the unknown type 99: supported are float32, float16, bfloat16 and float64"},
      {"no tensors", [](P& p) { p.num_tensors = 0; }, invalid, "num_tensors is 0: it must lie in 1..4"},
      {"no heads", [](P& p) { p.tensors[1].num_heads = 0; }, invalid, "tensors[1].num_heads is 0: it must lie in 1..65536"},
      {"head_dim", [](P& p) { p.head_dim = 5; }, missing, "head_dim is 5: supported is every even number in 2..1024"},
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
       "rope.width is not set: half is a column for each pair of a block, 8, full one for each channel, 16; set_cos_sin_table "
       "needs "
       "rope.rotary_dim first"},
      {"a table before rotary_dim",
       [](P& p) {
         const int64_t rotary_dim = p.rope.rotary_dim;
         p.rope.rotary_dim = 0, set_cos_sin_table(p.rope, p.rope.cos.data, DType::f32, p.rope.max_position);
         p.rope.rotary_dim = rotary_dim;
       },
       invalid,
       "rope.width is not set: half is a column for each pair of a block, 8, full one for each channel, 16; set_cos_sin_table "
       "needs "
       "rope.rotary_dim first"},
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
      {"theta of wide blocks",
       [](P& p) { p.head_dim = p.rope.rotary_dim = 1024, p.rope.source = RopeSource::theta, p.rope.theta = 1e4; }, missing,
       "rotary_dim is 1024 in 1 blocks: with theta a block has at most 576 channels; give inv_freq or a table instead"},
      {"large head_dim", [](P& p) { p.head_dim = 1026; }, missing, "head_dim is 1026: supported is every even number in 2..1024"},
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
  expect_refusals("rotary", refusals, [&](const auto& change) {
    RotaryCase c;
    c.bad_ids = false;
    PlacedRotary<float> placed(GetParam(), c);
    change(placed.params());
    return refused(placed.run(), placed.arena());
  });
}

// A batch without tokens brings no sequences, and a table without rows.
TEST_P(RotaryTest, AnEmptyBatchIsANoOp) {
  PlacedRotary<float> placed(GetParam(), RotaryCase());
  RotaryParams& p = placed.params();
  p.seq_len = 0;
  p.rope.max_position = 0;
  std::swap(p.positions.ids, p.positions.cu_seqlens);
  p.positions.num_seqs = 0;
  const Status status = placed.run();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(placed.arena().untouched());
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
