#include <prologue/kernels/rotary/rotary.h>

#include <string_view>

#include "tests/coming_from/golden.h"

namespace prologue::test {
namespace {

#include "oneflow.inc"

PROLOGUE_COMING_FROM(Oneflow);

constexpr std::string_view kLayouts[] = {"BMHK", "BHMK", "MBHK", "BM(HK)", "MB(HK)", "BM(H2K)", "MB(H2K)", "BM(H3K)", "MB(H3K)"};

struct Outcome {
  Bytes out;
  Fault fault;
};

Outcome run(Backend backend, const Golden& g, int64_t rows) {
  const FloatType type = g.array("out").type;
  Arena arena(backend);
  OneflowRotary call;
  call.dtype = type;
  call.b = g.integer("b");
  call.m = g.integer("m");
  call.h = g.integer("h");
  call.k = g.integer("k");
  call.x_layout = kLayouts[g.integer("x_layout")];
  call.output_layout = kLayouts[g.integer("output_layout")];
  call.tensor_index = g.integer("tensor_index");
  call.rotary_emb_dim = g.integer("rotary_emb_dim");
  call.mode = g.flag("plane") ? "plane" : "interval";
  call.base = g.number("base");
  call.rotary_size = g.integer("rotary_size");
  const int64_t dense = call.b * call.m * call.h * call.k;
  const int64_t packed = call.x_layout.find('2') != call.x_layout.npos   ? 2
                         : call.x_layout.find('3') != call.x_layout.npos ? 3
                                                                         : 1;
  call.x = arena.input(encode(type, fill(1, packed * dense)));
  auto* out = arena.output<unsigned char>(dense * float_type_size(type));
  call.out = out;
  if (g.flag("tables")) {
    const int64_t half = call.rotary_size / call.rotary_emb_dim / 2;
    call.rows = rows;
    call.cos = arena.input(encode(type, widen(fill(2, g.integer("rows") * half), half, !g.flag("plane"))));
    call.sin = arena.input(encode(type, widen(fill(3, g.integer("rows") * half), half, !g.flag("plane"))));
  }
  if (g.has("position_ids")) {
    if (g.flag("plane")) {
      call.position_ids = arena.input(g.integers<int64_t>("position_ids"));
    } else {
      call.position_ids = arena.input(g.integers<int32_t>("position_ids"));
    }
  }
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status =
      arena.run([&](const Execution& execution) { return oneflow_fused_apply_rotary_emb(call, faults, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(out), read_fault(arena, faults)};
}

TEST_P(Oneflow, Goldens) {
  for (const Golden& g : read_goldens("oneflow")) {
    SCOPED_TRACE(g.name);
    const Outcome result = run(GetParam(), g, g.integer("rows"));
    expect_golden(result.out, g.array("out"), g.flag("tables") ? 0.0 : std::ldexp(3.0, -24));
    EXPECT_EQ(result.fault.code, FaultCode::none);
  }
}

// Of either stream.
TEST_P(Oneflow, IdsPastTheTableAreReported) {
  for (const Golden& g : read_goldens("oneflow")) {
    if (!g.has("position_ids") || !g.flag("tables") || g.integer("output_layout") != 0) continue;
    SCOPED_TRACE(g.name);
    // Ids of 8: token 0 in the first stream, and token (1, 2) in the second.
    const bool two = g.integer("rotary_emb_dim") == 2;
    Values want = g.array("out").values;
    const int64_t row = g.integer("h") * g.integer("k");
    std::fill_n(want.begin(), row, 0.0);
    if (two) std::fill_n(want.end() - row, row, 0.0);
    const Outcome result = run(GetParam(), g, 8);
    expect_values(result.out, g.array("out").type, want);
    EXPECT_EQ(result.fault.code, FaultCode::position_out_of_range);
    EXPECT_EQ(result.fault.token, 0);
    EXPECT_EQ(result.fault.count, two ? 2u : 1u);
  }
}

}  // namespace
}  // namespace prologue::test
