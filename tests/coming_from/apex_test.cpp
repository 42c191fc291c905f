#include <prologue/kernels/rotary/rotary.h>

#include "tests/coming_from/golden.h"

namespace prologue::test {
namespace {

#include "apex.inc"

PROLOGUE_COMING_FROM(Apex);

// cos and sin cast to the tensor's type, and each product rounded to it, in the 16-bit forms; float32: cos and sin to an ulp.
double tolerance(FloatType type) {
  return type == FloatType::bf16 ? std::ldexp(6.0, -9) : type == FloatType::f16 ? std::ldexp(6.0, -12) : std::ldexp(6.0, -24);
}

struct Outcome {
  Bytes out;
  Fault fault;
};

Outcome run(Backend backend, const Golden& g, int64_t rows, bool transpose_output_memory) {
  const FloatType type = g.array("out").type;
  const bool thd = g.flag("thd");
  Arena arena(backend);
  ApexRope call;
  call.dtype = type;
  call.b = thd ? static_cast<int64_t>(g.numbers.at("cu_seqlens").size()) - 1 : g.integer("b");
  call.s = thd ? g.integers("cu_seqlens").back() : g.integer("s");
  call.h = g.integer("h");
  call.d = g.integer("d");
  call.d2 = g.integer("d2");
  call.rows = rows;
  call.t_strides = thd ? batch_major_strides(call.s, call.h, call.d) : sequence_major_strides(call.b, call.h, call.d);
  const Bytes t = encode(type, fill(1, (thd ? 1 : call.b) * call.s * call.h * call.d));
  call.t = arena.input(t);
  auto* out = arena.output<unsigned char>(static_cast<int64_t>(t.size()));
  call.out = out;
  if (g.has("cos")) {
    call.cos_ = arena.input(encode(FloatType::f32, g.array("cos").values));
    call.sin_ = arena.input(encode(FloatType::f32, g.array("sin").values));
  } else {
    const int64_t s = g.integer("s");
    Values freqs = g.flag("backward") ? widen(fill(2, s * call.d2 / 2), call.d2 / 2, false) : fill(2, s * call.d2);
    for (double& f : freqs) f *= 3.0;
    call.freqs = arena.input(std::vector<float>(freqs.begin(), freqs.end()));
  }
  if (thd) call.cu_seqlens = arena.input(g.integers<int32_t>("cu_seqlens"));
  call.transpose_output_memory = transpose_output_memory;
  call.backward = g.flag("backward");
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) { return apex_fused_rope(call, faults, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(out), read_fault(arena, faults)};
}

// [s, b, row] as [b, s, row].
Values transposed(const Values& values, int64_t s, int64_t b) {
  const int64_t row = static_cast<int64_t>(values.size()) / (s * b);
  Values result;
  for (int64_t n = 0; n < b; ++n) {
    for (int64_t t = 0; t < s; ++t) {
      result.insert(result.end(), values.begin() + (t * b + n) * row, values.begin() + (t * b + n + 1) * row);
    }
  }
  return result;
}

TEST_P(Apex, Goldens) {
  for (const Golden& g : read_goldens("apex")) {
    if (g.name.find("2d") == 0) continue;
    SCOPED_TRACE(g.name);
    const GoldenArray& want = g.array("out");
    const Outcome result = run(GetParam(), g, g.integer("s"), false);
    expect_golden(result.out, want, tolerance(want.type));
    EXPECT_EQ(result.fault.code, FaultCode::none);
    if (g.flag("thd")) continue;
    expect_values(run(GetParam(), g, g.integer("s"), true).out, want.type,
                  transposed(want.values, g.integer("s"), g.integer("b")), tolerance(want.type));
  }
}

TEST_P(Apex, TwoDimensions) {
  for (const Golden& g : read_goldens("apex")) {
    if (g.name.find("2d") != 0) continue;
    SCOPED_TRACE(g.name);
    const FloatType type = g.array("out").type;
    Arena arena(GetParam());
    ApexRope2d call;
    call.dtype = call.cos_dtype = type;
    call.b = g.integer("b");
    call.img_h = g.integer("img_h");
    call.img_w = g.integer("img_w");
    call.h = g.integer("h");
    call.d = g.integer("d");
    call.rows_h = g.integer("rows_h");
    call.rows_w = g.integer("rows_w");
    const int64_t tokens = call.img_h * call.img_w;
    call.t_strides = batch_major_strides(tokens, call.h, call.d);
    const Bytes t = encode(type, fill(1, call.b * tokens * call.h * call.d));
    call.t = arena.input(t);
    auto* out = arena.output<unsigned char>(static_cast<int64_t>(t.size()));
    call.out = out;
    const auto table = [&](const char* key) { return arena.input(encode(type, g.array(key).values)); };
    call.cos_h = table("cos_h");
    call.sin_h = table("sin_h");
    call.cos_w = table("cos_w");
    call.sin_w = table("sin_w");
    std::vector<int32_t> h_of_token, w_of_token;
    for (int64_t token = 0; token < tokens; ++token) {
      h_of_token.push_back(static_cast<int32_t>(token / call.img_w));
      w_of_token.push_back(static_cast<int32_t>(token % call.img_w));
    }
    call.h_of_token = arena.input(h_of_token);
    call.w_of_token = arena.input(w_of_token);
    call.backward = g.flag("backward");
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status = arena.run([&](const Execution& execution) { return apex_fused_rope_2d(call, faults, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_golden(arena.read(out), g.array("out"), type == FloatType::f32 ? 0.0 : tolerance(type));
  }
}

// Rows that freqs does not have are read out of bounds by theirs.
TEST_P(Apex, TokensPastFreqsAreReported) {
  for (const Golden& g : read_goldens("apex")) {
    if (g.name.find("2d") == 0 || g.flag("thd")) continue;
    SCOPED_TRACE(g.name);
    const Outcome result = run(GetParam(), g, 2, false);
    Values want = g.array("out").values;
    const auto row = static_cast<int64_t>(want.size()) / g.integer("s");
    std::fill(want.begin() + 2 * row, want.end(), 0.0);
    expect_values(result.out, g.array("out").type, want, tolerance(g.array("out").type));
    EXPECT_EQ(result.fault.code, FaultCode::position_out_of_range);
    EXPECT_EQ(result.fault.token, 2);
    EXPECT_EQ(result.fault.count, 2u);  // of two sequences
  }
}

}  // namespace
}  // namespace prologue::test
