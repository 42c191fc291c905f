#include <prologue/adapters/oneflow.h>

#include <functional>
#include <string_view>

#include "tests/adapters/golden.h"

namespace prologue::test {
namespace {

namespace ours = adapters::oneflow;

PROLOGUE_ADAPTER(Oneflow);

constexpr std::string_view kLayouts[] = {"BMHK", "BHMK", "MBHK", "BM(HK)", "MB(HK)", "BM(H2K)", "MB(H2K)", "BM(H3K)", "MB(H3K)"};

// Runs the block of the page over the tensors of a call.
Status page(const ours::FusedApplyRotaryEmb& c, FaultRecord* faults, const Execution& execution) {
  const void *const x = c.x, *const cos = c.cos, *const sin = c.sin;
  void* const out = c.out;
  const DType dtype = c.dtype;
  const int64_t b = c.b, m = c.m, h = c.h, k = c.k, rows = c.rows, rotary_emb_dim = c.rotary_emb_dim, rotary_size = c.rotary_size;
  const IndexView position_ids = c.position_ids;
#include "oneflow.inc"
  return status;
}

struct Outcome {
  Bytes out;
  Fault fault;
};

Outcome run(Backend backend, const Golden& g, int64_t rows, bool as_on_page = false) {
  const DType type = g.array("out").type;
  Arena arena(backend);
  ours::FusedApplyRotaryEmb call;
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
  auto* out = arena.output<unsigned char>(dense * dtype_size(type));
  call.out = out;
  if (g.flag("tables")) {
    const int64_t half = call.rotary_size / call.rotary_emb_dim / 2;
    call.rows = rows;
    call.cos = arena.input(encode(type, widen(fill(2, g.integer("rows") * half), half, !g.flag("plane"))));
    call.sin = arena.input(encode(type, widen(fill(3, g.integer("rows") * half), half, !g.flag("plane"))));
  }
  if (g.has("position_ids")) {
    if (g.flag("plane")) {
      call.position_ids = index_view(arena.input(g.integers<int64_t>("position_ids")));
    } else {
      call.position_ids = index_view(arena.input(g.integers<int32_t>("position_ids")));
    }
  }
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) {
    return as_on_page ? page(call, faults, execution) : ours::fused_apply_rotary_emb(call, faults, execution);
  });
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

TEST_P(Oneflow, AsOnThePage) {
  int cases = 0;
  for (const Golden& g : read_goldens("oneflow")) {
    if (kLayouts[g.integer("x_layout")] != "BM(H3K)" || g.integer("tensor_index") != 0) continue;
    SCOPED_TRACE(g.name);
    expect_golden(run(GetParam(), g, g.integer("rows"), true).out, g.array("out"));
    ++cases;
  }
  EXPECT_EQ(cases, 1);
}

TEST(OneflowCall, IsChecked) {
  const auto message = [](const std::function<void(ours::FusedApplyRotaryEmb&)>& change) {
    ours::FusedApplyRotaryEmb call;
    change(call);
    return ours::fused_apply_rotary_emb(call, nullptr, {}).message();
  };
  using C = ours::FusedApplyRotaryEmb;
  EXPECT_EQ(message([](C& c) { c.x_layout = "HBMK"; }),
            "oneflow: x_layout is 'HBMK': supported are BMHK, BHMK, MBHK, BM(HK), MB(HK), BM(H2K), MB(H2K), BM(H3K) and MB(H3K)");
  EXPECT_EQ(message([](C& c) { c.output_layout = "BM(H3K)"; }),
            "oneflow: output_layout is 'BM(H3K)': supported are BMHK, BHMK, MBHK, BM(HK) and MB(HK)");
  EXPECT_EQ(message([](C& c) { c.x_layout = "BM(H2K)"; }), "oneflow: tensor_index is 0: for BM(H2K) it must lie in 1..2");
  EXPECT_EQ(message([](C& c) { c.x_layout = "BM(H3K)", c.tensor_index = 3; }),
            "oneflow: tensor_index is 3: for BM(H3K) it must lie in 0..2");
  EXPECT_EQ(message([](C& c) { c.mode = "half"; }), "oneflow: mode is 'half': supported are plane and interval");
  EXPECT_EQ(message([](C& c) { c.rotary_emb_dim = 0; }), "oneflow: rotary_emb_dim is 0: it must lie in 1..4");
  EXPECT_EQ(message([](C& c) { c.cos = &c; }), "oneflow: cos is given, but sin is null: give both, or none");
  EXPECT_EQ(message([](C& c) { c.k = 1000; }), "oneflow: k is 1000: it must lie in 0..576");
}

// On either axis.
TEST_P(Oneflow, IdsPastTheTableAreReported) {
  for (const Golden& g : read_goldens("oneflow")) {
    if (!g.has("position_ids") || !g.flag("tables") || g.integer("output_layout") != 0) continue;
    SCOPED_TRACE(g.name);
    // Ids of 8: token 0 on the first axis, and token (1, 2) on the second.
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
