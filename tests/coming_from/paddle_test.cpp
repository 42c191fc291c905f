#include <prologue/kernels/rotary/rotary.h>

#include "tests/coming_from/golden.h"

namespace prologue::test {
namespace {

#include "paddle.inc"

PROLOGUE_COMING_FROM(Paddle);

struct Outcome {
  std::vector<Bytes> out;
  Fault fault;
};

Outcome run(Backend backend, const Golden& g, const std::vector<const GoldenArray*>& want, int64_t rows, bool neox) {
  const FloatType type = want[0]->type;
  const auto heads = g.integers("heads");
  Arena arena(backend);
  PaddleFusedRope call;
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
    outs.push_back(arena.output<unsigned char>(count * float_type_size(type)));
    call.out[i] = outs[i];
    call.num_heads[i] = heads[i];
  }
  if (g.flag("tables")) {
    const int64_t half = call.head_dim / 2;
    call.rows = rows;
    call.cos = arena.input(encode(type, widen(fill(4, g.integer("rows") * half), half, neox)));
    call.sin = arena.input(encode(type, widen(fill(5, g.integer("rows") * half), half, neox)));
  }
  if (g.has("position_ids")) call.position_ids = arena.input(g.integers<int64_t>("position_ids"));
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) { return paddle_fused_rope(call, faults, execution); });
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

// Half-split pairs without tables, which Paddle refuses: the usual frequencies.
TEST_P(Paddle, HalfSplitWithoutTables) {
  for (const Golden& g : read_goldens("paddle")) {
    if (g.flag("tables") || g.flag("time_major") || g.array("out_q").type != FloatType::f32) continue;
    SCOPED_TRACE(g.name);
    const int64_t head_dim = g.integer("head_dim"), heads = g.integers("heads")[0], seq_len = g.integer("seq_len");
    const Values x = fill(1, g.integer("batch") * seq_len * heads * head_dim);
    const Values want = turned(x, head_dim, 0, head_dim, false, [&](int64_t head, int64_t pair) {
      const double position = static_cast<double>(head / heads % seq_len);
      const double angle =
          position * std::pow(g.number("rotary_emb_base"), -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
      return std::pair(std::cos(angle), g.flag("grad") ? -std::sin(angle) : std::sin(angle));
    });
    const Outcome result = run(GetParam(), g, outputs(g), 0, false);
    expect_values(result.out[0], FloatType::f32, want, std::ldexp(3.0, -24));
  }
}

}  // namespace
}  // namespace prologue::test
