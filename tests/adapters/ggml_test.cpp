#include <prologue/adapters/ggml.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/adapters/golden.h"

namespace prologue::test {
namespace {

namespace ours = adapters::ggml;

PROLOGUE_ADAPTER(Ggml);

// Runs the blocks of the page over the tensors of a call.
Status page(const ours::Rope& c, FaultRecord* faults, const Execution& execution) {
  const void* const a = c.a;
  void* const dst = c.dst;
  const DType type = c.type;
  const IndexView b = c.b;
  const double* const inv_freq = c.inv_freq;
  const int64_t* const ne = c.ne;
  const size_t *const a_nb = c.a_nb, *const dst_nb = c.dst_nb;
#include "ggml.inc"
  return status;
}

struct Outcome {
  Bytes out;
  Fault fault;
};

enum class Form { rope, in_place, any_sign, any_sign_in_place, page };

Outcome run(Backend backend, const Golden& g, Form form) {
  const DType type = g.array("out").type;
  const auto size = static_cast<size_t>(dtype_size(type));
  const auto ne = g.integers("ne");
  const int64_t row = g.integer("row");
  ours::Model model;
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
  const auto factors = g.integers<float>("freq_factors");
  if (!factors.empty()) model.c = factors.data();
  const auto made = ours::frequencies(model);
  EXPECT_TRUE(made.ok()) << made.status().message();
  const auto b = g.integers<int32_t>("positions");

  Arena arena(backend);
  ours::Rope call;
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
  const bool in_place = form == Form::in_place || form == Form::any_sign_in_place;
  const Bytes a = encode(type, fill(1, ne[3] * ne[2] * ne[1] * row));
  unsigned char* out =
      in_place ? arena.inout(a) : arena.output<unsigned char>(ne[3] * ne[2] * ne[1] * ne[0] * static_cast<int64_t>(size));
  call.a = in_place ? out : arena.input(a);
  call.dst = out;
  call.inv_freq = arena.input(std::vector<double>(made->inv_freq, made->inv_freq + made->pairs));
  call.pair_axis = arena.input(std::vector<uint8_t>(made->pair_axis, made->pair_axis + made->pairs));
  call.attention_factor = made->attention_factor;
  call.n_offs = static_cast<int>(g.integer("offset"));
  call.back = !g.flag("forward");
  call.b = index_view(arena.input(b));
  const int64_t axes = static_cast<int64_t>(b.size()) / ne[2];
  std::vector<int64_t> forward(b.size()), backward(b.size());
  const Status split = ours::split_signs(b.data(), ne[2], axes, forward.data(), backward.data());
  EXPECT_TRUE(split.ok()) << split.message();
  const int64_t *ahead = arena.input(forward), *back = arena.input(backward);
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) {
    if (form == Form::page) return page(call, faults, execution);
    if (form == Form::rope || form == Form::in_place) return ours::rope(model, call, faults, execution);
    return ours::rope_of_any_sign(model, call, index_view(ahead), index_view(back), faults, execution);
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
    for (const Form form : {Form::rope, Form::any_sign}) {
      const Outcome result = run(GetParam(), g, form);
      expect_golden(result.out, g.array("out"), tolerance(g));
      EXPECT_EQ(result.fault.code, FaultCode::none);
    }
    if (g.integers("ne")[0] != g.integer("row")) continue;  // in place the output's rows are the input's
    expect_golden(run(GetParam(), g, Form::in_place).out, g.array("out"), tolerance(g));
  }
}

TEST_P(Ggml, AsOnThePage) {
  for (const Golden& g : read_goldens("ggml")) {
    if (g.name != "neox_forward_yarn") continue;
    expect_golden(run(GetParam(), g, Form::page).out, g.array("out"), tolerance(g));
    return;
  }
  FAIL() << "no such golden";
}

// ggml rotates negative positions the other way round. Every token is rotated, and scaled by the attention factor, once: position
// 0 too, and in place.
TEST_P(Ggml, PositionsOfAnySign) {
  int cases = 0;
  for (const char* file : {"ggml", "ggml_signs"}) {
    for (const Golden& g : read_goldens(file)) {
      if (g.name.find("negative") == g.name.npos) continue;
      SCOPED_TRACE(g.name);
      for (const Form form : {Form::any_sign, Form::any_sign_in_place}) {
        expect_golden(run(GetParam(), g, form).out, g.array("out"), tolerance(g));
      }
      const Outcome once = run(GetParam(), g, Form::rope);  // a negative position alone is padding
      const size_t token_bytes = once.out.size() / g.numbers.at("positions").size();
      EXPECT_EQ(Bytes(once.out.begin(), once.out.begin() + static_cast<int64_t>(token_bytes)), Bytes(token_bytes, kPoison));
      EXPECT_EQ(once.fault.code, FaultCode::none);
      ++cases;
    }
  }
  EXPECT_EQ(cases, 6);
}

TEST(GgmlCall, SplitSigns) {
  constexpr int32_t kLowest = -2147483647 - 1;
  const int32_t b[] = {-3, 0, 40, kLowest, 0, 0, 1, -1};  // two axes of four tokens
  int64_t forward[8] = {}, backward[8] = {};
  ASSERT_TRUE(ours::split_signs(b, 4, 2, forward, backward).ok());
  EXPECT_EQ(std::vector<int64_t>(forward, forward + 8), (std::vector<int64_t>{-1, 0, 40, -1, -1, 0, 1, -1}));
  EXPECT_EQ(std::vector<int64_t>(backward, backward + 8), (std::vector<int64_t>{3, -1, -1, 2147483648, 0, -1, -1, 1}));
  const int32_t mixed[] = {0, -3, 0, 40};
  forward[0] = 77;
  EXPECT_EQ(ours::split_signs(mixed, 2, 2, forward, backward).message(),
            "ggml: token 1 has the positions -3 and 40 on two axes: the axes of a token must have one sign");
  EXPECT_EQ(forward[0], 77);
}

TEST(GgmlCall, IsChecked) {
  const auto message = [](const std::function<void(ours::Model&)>& change) {
    ours::Model model;
    model.n_dims = 16;
    change(model);
    return ours::frequencies(model).status().message();
  };
  EXPECT_EQ(message([](ours::Model& m) { m.n_dims = 15; }), "ggml: n_dims is 15: it must be even and lie in 2..576");
  EXPECT_EQ(message([](ours::Model& m) { m.mode = 1; }),
            "ggml: mode is 1: supported are 0 (normal), 2 (neox), 8 (mrope), 24 (vision) and 40 (imrope)");
  EXPECT_EQ(message([](ours::Model& m) { m.mode = ours::mrope; }), "ggml: all sections are 0: at least one must be positive");
  EXPECT_EQ(message([](ours::Model& m) { m.mode = ours::imrope, m.sections[2] = -1; }),
            "ggml: sections[2] is -1: it must lie in 0..576");
  EXPECT_EQ(message([](ours::Model& m) { m.freq_base = 0; }), "ggml: freq_base is 0: it must be finite and greater than 0");
  EXPECT_NE(message([](ours::Model& m) { m.ext_factor = 1; }).find("n_ctx_orig 0"), std::string::npos);

  ours::Model model;
  ours::Rope rope;
  EXPECT_EQ(ours::rope(model, rope, nullptr, {}).message(), "ggml: b is null: the positions must be given");
  rope.a_nb[1] = 6;
  EXPECT_EQ(ours::rope(model, rope, nullptr, {}).message(), "ggml: a_nb[1] is 6: it must be a multiple of the element's 4 bytes");
  model.mode = ours::mrope;
  rope = {};
  const int32_t b = 0;
  rope.b = index_view(&b);
  EXPECT_EQ(ours::rope(model, rope, nullptr, {}).message(), "ggml: pair_axis is null: mode 8 needs that of frequencies()");
  EXPECT_EQ(ours::rope_of_any_sign(model, rope, index_view(&b), {}, nullptr, {}).message(),
            "ggml: backward is null: split_signs makes it");
}

}  // namespace
}  // namespace prologue::test
