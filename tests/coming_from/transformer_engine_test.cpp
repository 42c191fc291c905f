#include <prologue/kernels/rotary/rotary.h>

#include <string_view>
#include <vector>

#include "tests/coming_from/golden.h"

namespace prologue::test {
namespace {

#include "transformer_engine.inc"

PROLOGUE_COMING_FROM(TransformerEngine);

TEST_P(TransformerEngine, Goldens) {
  constexpr std::string_view kFormats[] = {"sbhd", "bshd", "thd"};
  for (const Golden& g : read_goldens("transformer_engine")) {
    SCOPED_TRACE(g.name);
    const FloatType type = g.array("out").type;
    const bool thd = g.integer("tensor_format") == 2;
    const int cp_size = static_cast<int>(g.integer("cp_size"));
    Arena arena(GetParam());
    TeApplyRotaryPosEmb call;
    call.dtype = type;
    call.tensor_format = kFormats[g.integer("tensor_format")];
    const auto cu_seqlens = g.integers<int32_t>("cu_seqlens");
    call.s = thd ? cu_seqlens.back() / cp_size : g.integer("s");
    call.b = thd ? static_cast<int64_t>(cu_seqlens.size()) - 1 : g.integer("b");
    call.h = g.integer("h");
    call.d = g.integer("d");
    call.s2 = g.integer("s2");
    call.d2 = g.integer("d2");
    call.interleaved = g.flag("interleaved");
    call.backward = g.flag("backward");
    const Bytes t = encode(type, fill(1, (thd ? 1 : call.b) * call.s * call.h * call.d));
    call.t = arena.input(t);
    auto* out = arena.output<unsigned char>(static_cast<int64_t>(t.size()));
    call.out = out;
    Values freqs = widen(fill(2, call.s2 * call.d2 / 2), call.d2 / 2, call.interleaved);
    for (double& f : freqs) f *= 3.0;
    call.freqs = arena.input(std::vector<float>(freqs.begin(), freqs.end()));
    if (!g.numbers.at("start_positions").empty()) call.start_positions = arena.input(g.integers<int32_t>("start_positions"));
    if (thd) call.cu_seqlens = arena.input(cu_seqlens);
    if (cp_size > 1) {
      std::vector<int32_t> lengths = {static_cast<int32_t>(call.s)};
      if (thd) {
        lengths.clear();
        for (size_t i = 1; i < cu_seqlens.size(); ++i) lengths.push_back((cu_seqlens[i] - cu_seqlens[i - 1]) / cp_size);
      }
      call.cp_positions = arena.input(te_cp_positions(lengths, cp_size, static_cast<int>(g.integer("cp_rank"))));
    }
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status = arena.run([&](const Execution& execution) { return te_apply_rotary_pos_emb(call, faults, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    // The unfused form casts cos and sin to the tensor's type and rounds every product to it.
    const double tolerance = std::ldexp(6.0, type == FloatType::bf16 ? -9 : type == FloatType::f16 ? -12 : -24);
    expect_golden(arena.read(out), g.array("out"), tolerance);
    EXPECT_EQ(read_fault(arena, faults).code, FaultCode::none);
  }
}

}  // namespace
}  // namespace prologue::test
