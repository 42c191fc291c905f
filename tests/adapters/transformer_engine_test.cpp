#include <prologue/adapters/transformer_engine.h>

#include <string_view>
#include <vector>

#include "tests/adapters/golden.h"

namespace prologue::test {
namespace {

namespace ours = adapters::transformer_engine;

PROLOGUE_ADAPTER(TransformerEngine);

// Runs the block of the page over the tensors of a call.
Status page(const ours::ApplyRotaryPosEmb& c, FaultRecord* faults, const Execution& execution) {
  const void* const t = c.t;
  void* const out = c.out;
  const DType dtype = c.dtype;
  const int64_t s = c.s, b = c.b, h = c.h, d = c.d, s2 = c.s2, d2 = c.d2;
  const float* const freqs = c.freqs;
  const IndexView start_positions = c.start_positions;
#include "transformer_engine.inc"
  return status;
}

TEST(TransformerEngineCall, IsChecked) {
  const int32_t numbers[2] = {};
  ours::ApplyRotaryPosEmb call;
  call.tensor_format = "bhsd";
  EXPECT_EQ(ours::apply_rotary_pos_emb(call, nullptr, {}).message(),
            "transformer_engine: tensor_format is 'bhsd': supported are sbhd, bshd and thd");
  call.tensor_format = "thd";
  EXPECT_EQ(ours::apply_rotary_pos_emb(call, nullptr, {}).message(), "transformer_engine: cu_seqlens is null: thd needs it");
  call.cp_positions = call.start_positions = index_view(numbers);
  EXPECT_EQ(ours::apply_rotary_pos_emb(call, nullptr, {}).message(),
            "transformer_engine: start_positions is given, and so is cp_positions: it is one or the other");
  int32_t positions[2] = {};
  const int32_t odd[] = {3};
  EXPECT_EQ(ours::cp_positions_of(odd, 1, 2, 0, positions).message(),
            "transformer_engine: seqlens[0] is 3: it must be even and lie in 0..1073741823");
  EXPECT_EQ(ours::cp_positions_of(odd, 1, 2, 2, positions).message(),
            "transformer_engine: cp_rank is 2: it must lie in 0..cp_size - 1, 1");
}

TEST_P(TransformerEngine, Goldens) {
  constexpr std::string_view kFormats[] = {"sbhd", "bshd", "thd"};
  for (const Golden& g : read_goldens("transformer_engine")) {
    SCOPED_TRACE(g.name);
    const DType type = g.array("out").type;
    const bool thd = g.integer("tensor_format") == 2;
    const int cp_size = static_cast<int>(g.integer("cp_size"));
    Arena arena(GetParam());
    ours::ApplyRotaryPosEmb call;
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
    if (!g.numbers.at("start_positions").empty())
      call.start_positions = index_view(arena.input(g.integers<int32_t>("start_positions")));
    if (thd) call.cu_seqlens = index_view(arena.input(cu_seqlens));
    if (cp_size > 1) {
      std::vector<int32_t> lengths = {static_cast<int32_t>(call.s)};
      if (thd) {
        lengths.clear();
        for (size_t i = 1; i < cu_seqlens.size(); ++i) lengths.push_back((cu_seqlens[i] - cu_seqlens[i - 1]) / cp_size);
      }
      std::vector<int32_t> positions(static_cast<size_t>(call.s));
      const Status made = ours::cp_positions_of(lengths.data(), static_cast<int64_t>(lengths.size()), cp_size,
                                                static_cast<int32_t>(g.integer("cp_rank")), positions.data());
      ASSERT_TRUE(made.ok()) << made.message();
      call.cp_positions = index_view(arena.input(positions));
    }
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status = arena.run([&](const Execution& execution) {
      const bool as_on_page = call.tensor_format == "bshd" && !call.interleaved && !call.backward && cp_size == 1;
      return as_on_page ? page(call, faults, execution) : ours::apply_rotary_pos_emb(call, faults, execution);
    });
    ASSERT_TRUE(status.ok()) << status.message();
    // The unfused form casts cos and sin to the tensor's type and rounds every product to it.
    const double tolerance = std::ldexp(6.0, type == DType::bf16 ? -9 : type == DType::f16 ? -12 : -24);
    expect_golden(arena.read(out), g.array("out"), tolerance);
    EXPECT_EQ(read_fault(arena, faults).code, FaultCode::none);
  }
}

}  // namespace
}  // namespace prologue::test
