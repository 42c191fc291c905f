#include <prologue/kernels/rotary/rotary.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/coming_from/golden.h"

namespace prologue::test {
namespace {

#include "ggml.inc"

PROLOGUE_COMING_FROM(Ggml);

struct Outcome {
  Bytes out;
  Fault fault;
};

// `calls`: the positions of each call, and whether it turns back.
struct Call {
  std::vector<int32_t> b;
  bool back;
};
Outcome run(Backend backend, const Golden& g, const std::vector<Call>& calls) {
  const FloatType type = g.array("out").type;
  const auto size = static_cast<size_t>(float_type_size(type));
  const auto ne = g.integers("ne");
  const int64_t row = g.integer("row");
  GgmlRopeModel model;
  model.n_dims = static_cast<int>(g.integer("n_dims"));
  model.mode = static_cast<int>(g.integer("mode"));
  for (size_t i = 0; i < 4; ++i) model.sections[i] = g.integers<int>("sections")[i];
  model.n_ctx_orig = static_cast<int>(g.integer("n_ctx_orig"));
  const auto number = [&](const char* key) { return static_cast<float>(g.number(key)); };
  model.freq_base = number("freq_base");
  model.freq_scale = number("freq_scale");
  model.ext_factor = number("ext_factor");
  model.attn_factor = number("attn_factor");
  model.beta_fast = number("beta_fast");
  model.beta_slow = number("beta_slow");
  model.c = g.integers<float>("freq_factors");
  const GgmlFrequencies frequencies = ggml_frequencies(model);

  Arena arena(backend);
  GgmlRope call;
  call.type = type;
  for (size_t i = 0; i < 4; ++i) call.ne[i] = ne[i];
  const auto strides = [&](size_t* nb, int64_t width) {
    nb[0] = size;
    nb[1] = size * static_cast<size_t>(width);
    nb[2] = nb[1] * static_cast<size_t>(ne[1]);
    nb[3] = nb[2] * static_cast<size_t>(ne[2]);
  };
  strides(call.a_nb, row);
  strides(call.dst_nb, ne[0]);
  call.a = arena.input(encode(type, fill(1, ne[3] * ne[2] * ne[1] * row)));
  auto* out = arena.output<unsigned char>(ne[3] * ne[2] * ne[1] * ne[0] * static_cast<int64_t>(size));
  call.dst = out;
  call.inv_freq = arena.input(frequencies.inv_freq);
  call.pair_axis = arena.input(frequencies.pair_axis);
  call.n_offs = static_cast<int>(g.integer("offset"));
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  std::vector<const int32_t*> b;
  for (const Call& c : calls) b.push_back(arena.input(c.b));
  const Status status = arena.run([&](const Execution& execution) -> Status {
    for (size_t i = 0; i < calls.size(); ++i) {
      call.b = b[i];
      call.back = calls[i].back;
      PROLOGUE_RETURN_IF_ERROR(ggml_rope(model, call, frequencies.attention_factor, faults, execution));
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(out), read_fault(arena, faults)};
}

// ggml multiplies its angle by theta_scale from pair to pair: pair i of position p is off by about (i + 3) * 2^-24 of an angle
// that shrinks faster than i grows, so by less than 4 * 2^-24 * p; a head's elements are at most sqrt(2) times 2 (the attention
// factors of the goldens) long.
double tolerance(const Golden& g) {
  double largest = 1.0;
  for (const double p : g.numbers.at("positions")) largest = std::max(largest, std::fabs(p));
  return 3.0 * 4.0 * std::ldexp(largest, -24);
}

TEST_P(Ggml, Goldens) {
  for (const Golden& g : read_goldens("ggml")) {
    if (g.name.find("negative") != g.name.npos) continue;
    SCOPED_TRACE(g.name);
    const Outcome result = run(GetParam(), g, {{g.integers<int32_t>("positions"), !g.flag("forward")}});
    expect_golden(result.out, g.array("out"), tolerance(g));
    EXPECT_EQ(result.fault.code, FaultCode::none);
  }
}

// ggml turns negative positions backwards; the page's way is two calls, each of which leaves the other's tokens alone.
TEST_P(Ggml, NegativePositionsInTwoCalls) {
  for (const Golden& g : read_goldens("ggml")) {
    if (g.name.find("negative") == g.name.npos) continue;
    SCOPED_TRACE(g.name);
    const auto positions = g.integers<int32_t>("positions");
    auto negated = positions;
    for (int32_t& p : negated) p = -p;
    const Outcome result = run(GetParam(), g, {{positions, false}, {negated, true}});
    expect_golden(result.out, g.array("out"), tolerance(g));
    const Outcome once = run(GetParam(), g, {{positions, false}});
    const size_t token_bytes = once.out.size() / positions.size();
    EXPECT_EQ(Bytes(once.out.begin(), once.out.begin() + static_cast<int64_t>(token_bytes)), Bytes(token_bytes, kPoison));
    EXPECT_EQ(once.fault.code, FaultCode::none);
  }
}

}  // namespace
}  // namespace prologue::test
