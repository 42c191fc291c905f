#include <prologue/adapters/paddle.h>

#include <functional>

#include "tests/adapters/golden.h"

namespace prologue::test {
namespace {

namespace ours = adapters::paddle;

PROLOGUE_ADAPTER(Paddle);

// Runs the block of the page over the tensors of a call.
Status page(const ours::FusedRope& c, FaultRecord* faults, const Execution& execution) {
  const void *const q = c.in[0], *const k = c.in[1], *const sin = c.sin, *const cos = c.cos;
  void *const out_q = c.out[0], *const out_k = c.out[1];
  const DType dtype = c.dtype;
  const int64_t q_heads = c.num_heads[0], k_heads = c.num_heads[1], batch_size = c.batch_size, seq_len = c.seq_len,
                head_dim = c.head_dim, rows = c.sin_dims.sizes[0];
  const int64_t* const position_ids = c.position_ids;
#include "paddle.inc"
  return status;
}

struct Outcome {
  std::vector<Bytes> out;
  Fault fault;
};

Outcome run(Backend backend, const Golden& g, const std::vector<const GoldenArray*>& want, int64_t rows, bool neox,
            bool as_on_page = false) {
  const DType type = want[0]->type;
  const auto heads = g.integers("heads");
  Arena arena(backend);
  ours::FusedRope call;
  call.dtype = type;
  call.batch_size = g.integer("batch");
  call.seq_len = g.integer("seq_len");
  call.head_dim = g.integer("head_dim");
  call.use_neox_rotary_style = neox;
  call.time_major = g.flag("time_major");
  call.rotary_emb_base = static_cast<float>(g.number("rotary_emb_base"));
  call.grad = g.flag("grad");
  std::vector<unsigned char*> outs;
  for (size_t i = 0; i < want.size(); ++i) {
    const int64_t count = call.batch_size * call.seq_len * heads[i] * call.head_dim;
    call.in[i] = arena.input(encode(type, fill(i + 1, count)));
    outs.push_back(arena.output<unsigned char>(count * dtype_size(type)));
    call.out[i] = outs[i];
    call.num_heads[i] = heads[i];
  }
  if (g.flag("tables")) {
    const int64_t half = call.head_dim / 2;
    call.sin_dims = call.cos_dims = {2, {rows, call.head_dim}};
    const auto table = [&](uint64_t seed) {
      const int64_t columns = g.has("uneven") ? call.head_dim : half;  // a value of its own in every column, or one a pair
      const Values values = fill(seed, g.integer("rows") * columns);
      return arena.input(encode(type, columns == half ? widen(values, half, neox) : values));
    };
    call.cos = table(4);
    call.sin = table(5);
    if (call.time_major) call.sin_dims = call.cos_dims = {4, {1, rows, 1, call.head_dim}};  // the other form they may have
  }
  if (g.has("position_ids")) {
    call.position_ids = arena.input(g.integers<int64_t>("position_ids"));
    call.position_ids_dims = {2, {call.batch_size, call.seq_len}};
  }
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) {
    return as_on_page ? page(call, faults, execution) : ours::fused_rope(call, faults, execution);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  Outcome result{{}, read_fault(arena, faults)};
  for (const unsigned char* out : outs) result.out.push_back(arena.read(out));
  return result;
}

std::vector<const GoldenArray*> outputs(const Golden& g) {
  std::vector<const GoldenArray*> want;
  for (const char* key : {"out_q", "out_k", "out_v"}) {
    if (g.has(key)) want.push_back(&g.array(key));
  }
  return want;
}

TEST_P(Paddle, Goldens) {
  for (const Golden& g : read_goldens("paddle")) {
    SCOPED_TRACE(g.name);
    const auto want = outputs(g);
    const Outcome result = run(GetParam(), g, want, g.integer("rows"), g.flag("use_neox_rotary_style"));
    for (size_t i = 0; i < want.size(); ++i) {
      // Computed cos and sin are within 2^-24 of the transcription's, which are float64.
      expect_golden(result.out[i], *want[i], g.flag("tables") ? 0.0 : std::ldexp(3.0, -24));
    }
    EXPECT_EQ(result.fault.code, FaultCode::none);
  }
}

TEST_P(Paddle, AsOnThePage) {
  int cases = 0;
  for (const Golden& g : read_goldens("paddle")) {
    if (g.name.find("qk_neox0_time_major0_ids_grad0") != 0) continue;
    SCOPED_TRACE(g.name);
    const auto want = outputs(g);
    const Outcome result = run(GetParam(), g, want, g.integer("rows"), false, true);
    for (size_t i = 0; i < want.size(); ++i) expect_golden(result.out[i], *want[i]);
    ++cases;
  }
  EXPECT_EQ(cases, 1);
}

// Where q holds nothing, theirs returns at once, and so does ours.
TEST_P(Paddle, NothingIsDoneWithoutQ) {
  const DType type = DType::f32;
  Arena arena(GetParam());
  ours::FusedRope call;
  call.dtype = type;
  call.batch_size = 1, call.seq_len = 2, call.head_dim = 4;
  call.num_heads[1] = 1;
  call.in[1] = arena.input(encode(type, fill(1, 8)));
  auto* out = arena.output<unsigned char>(32);
  call.out[1] = out;
  const Status status = arena.run([&](const Execution& execution) { return ours::fused_rope(call, nullptr, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(arena.read(out), Bytes(32, kPoison));
}

TEST(PaddleCall, IsChecked) {
  const auto message = [](const std::function<void(ours::FusedRope&)>& change) {
    static const float kNumbers[8] = {};
    static const int64_t kIds[2] = {};
    ours::FusedRope call;
    call.in[0] = call.sin = call.cos = kNumbers;
    call.num_heads[0] = call.batch_size = 1;
    call.seq_len = 2, call.head_dim = 4;
    call.sin_dims = call.cos_dims = {2, {2, 4}};
    call.position_ids = kIds;
    call.position_ids_dims = {2, {1, 2}};
    change(call);
    return ours::fused_rope(call, nullptr, {}).message();
  };
  using C = ours::FusedRope;
  EXPECT_EQ(message([](C& c) { c.in[0] = nullptr; }), "paddle: q is null: only k and v may be left out");
  EXPECT_EQ(message([](C& c) { c.cos = nullptr; }), "paddle: sin is given, but cos is null: give both, or none");
  EXPECT_EQ(message([](C& c) { c.sin_dims.rank = 3; }), "paddle: sin has 3 dimensions: it must have 2 or 4");
  EXPECT_EQ(message([](C& c) { c.cos_dims.sizes[0] = 3; }), "paddle: sin and cos have different shapes: they must be equal");
  EXPECT_EQ(message([](C& c) {
              c.sin_dims = c.cos_dims = {4, {1, 2, 2, 4}};
            }),
            "paddle: sin is [1, .., 2, ..]: with 4 dimensions it must be [1, rows, 1, head_dim]");
  EXPECT_EQ(message([](C& c) { c.sin_dims = c.cos_dims = {2, {2, 8}}; }), "paddle: sin has 8 columns: it must have head_dim, 4");
  EXPECT_EQ(message([](C& c) {
              c.sin_dims = c.cos_dims = {2, {1, 4}};
            }),
            "paddle: sin has 1 rows: it must have at least seq_len, 2");
  EXPECT_EQ(message([](C& c) {
              c.sin_dims = c.cos_dims = {2, {3, 4}}, c.position_ids = nullptr;
            }),
            "paddle: sin has 3 rows: it must have seq_len, 2");
  EXPECT_EQ(message([](C& c) {
              c.position_ids_dims = {2, {1, 1}};
            }),
            "paddle: position_ids must be [batch_size, seq_len], [1, 2]");
  EXPECT_EQ(message([](C& c) { c.num_heads[1] = 65537; }), "paddle: k's heads is 65537: it must lie in 0..65536");
}

// An id past the table is read out of bounds by theirs.
TEST_P(Paddle, IdsPastTheTableAreReported) {
  for (const Golden& g : read_goldens("paddle")) {
    if (!g.has("position_ids") || g.flag("time_major")) continue;
    SCOPED_TRACE(g.name);
    const auto want = outputs(g);
    const Outcome result = run(GetParam(), g, want, 8, g.flag("use_neox_rotary_style"));  // token 0 has id 8
    for (size_t i = 0; i < want.size(); ++i) {
      Values values = want[i]->values;
      std::fill_n(values.begin(), g.integers("heads")[i] * g.integer("head_dim"), 0.0);
      expect_values(result.out[i], want[i]->type, values);
    }
    EXPECT_EQ(result.fault.code, FaultCode::position_out_of_range);
    EXPECT_EQ(result.fault.token, 0);
    EXPECT_EQ(result.fault.count, 1u);
  }
}

// Paddle refuses half-split pairs without tables: here they have the usual frequencies.
TEST_P(Paddle, HalfSplitWithoutTables) {
  for (const Golden& g : read_goldens("paddle")) {
    if (g.flag("tables") || g.flag("time_major") || g.array("out_q").type != DType::f32) continue;
    SCOPED_TRACE(g.name);
    const int64_t head_dim = g.integer("head_dim"), heads = g.integers("heads")[0], seq_len = g.integer("seq_len");
    const Values x = fill(1, g.integer("batch") * seq_len * heads * head_dim);
    const Values want = rotate_heads(x, head_dim, 0, head_dim, false, [&](int64_t head, int64_t pair) {
      const double position = static_cast<double>(head / heads % seq_len);
      const double angle =
          position * std::pow(g.number("rotary_emb_base"), -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
      return std::pair(std::cos(angle), g.flag("grad") ? -std::sin(angle) : std::sin(angle));
    });
    const Outcome result = run(GetParam(), g, outputs(g), 0, false);
    expect_values(result.out[0], DType::f32, want, std::ldexp(3.0, -24));
  }
}

}  // namespace
}  // namespace prologue::test
