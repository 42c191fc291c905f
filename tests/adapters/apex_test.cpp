#include <prologue/adapters/apex.h>

#include "tests/adapters/golden.h"

namespace prologue::test {
namespace {

namespace ours = adapters::apex;

PROLOGUE_ADAPTER(Apex);

// cos and sin cast to the tensor's type, and each product rounded to it, in the 16-bit forms; float32: cos and sin to an ulp.
double tolerance(DType type) {
  return type == DType::bf16 ? std::ldexp(6.0, -9) : type == DType::f16 ? std::ldexp(6.0, -12) : std::ldexp(6.0, -24);
}

// Runs the block of the page over the tensors of a call.
Status page(const ours::FusedRope& c, FaultRecord* faults, const Execution& execution) {
  const void* const t = c.t;
  void* const out = c.out;
  const float* const freqs = c.freqs;
  const DType dtype = c.dtype;
  const int64_t s = c.s, b = c.b, h = c.h, d = c.d, d2 = c.d2;
#include "apex.inc"
  return status;
}

struct Outcome {
  Bytes out;
  Fault fault;
};

Outcome run(Backend backend, const Golden& g, int64_t rows, bool transpose_output_memory, bool as_on_page = false) {
  const DType type = g.array("out").type;
  const bool thd = g.flag("thd");
  Arena arena(backend);
  ours::FusedRope call;
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
    call.cos_ = arena.input(encode(DType::f32, g.array("cos").values));
    call.sin_ = arena.input(encode(DType::f32, g.array("sin").values));
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
  const Status status = arena.run([&](const Execution& execution) {
    return as_on_page ? page(call, faults, execution) : ours::fused_rope(call, faults, execution);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(out), read_fault(arena, faults)};
}

// Returns [s, b, row] as [b, s, row].
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

TEST_P(Apex, AsOnThePage) {
  int cases = 0;
  for (const Golden& g : read_goldens("apex")) {
    if (g.name.find("freqs_") != 0 || g.flag("backward")) continue;
    SCOPED_TRACE(g.name);
    const GoldenArray& want = g.array("out");
    expect_golden(run(GetParam(), g, g.integer("s"), false, true).out, want, tolerance(want.type));
    ++cases;
  }
  EXPECT_EQ(cases, 6);
}

TEST(ApexCall, IsChecked) {
  const float freqs = 0.0f;
  const int32_t numbers[2] = {};
  ours::FusedRope call;
  EXPECT_EQ(ours::fused_rope(call, nullptr, {}).message(), "apex: freqs and cos_ are both null: give one of them");
  call.freqs = &freqs, call.cos_ = &freqs;
  EXPECT_EQ(ours::fused_rope(call, nullptr, {}).message(), "apex: freqs and cos_ are both given: give one of them");
  call.cos_ = nullptr, call.cu_seqlens = numbers, call.transpose_output_memory = true;
  EXPECT_EQ(ours::fused_rope(call, nullptr, {}).message(),
            "apex: transpose_output_memory is set, but so is cu_seqlens: thd has one dimension of tokens");
  call.h = -1;
  EXPECT_EQ(ours::fused_rope(call, nullptr, {}).message(), "apex: h is -1: it must lie in 0..65536");

  ours::FusedRope2d image;
  image.d = 6;
  EXPECT_EQ(ours::fused_rope_2d(image, nullptr, {}).message(), "apex: d is 6: it must be a multiple of 4");
  image.d = 8;
  image.h_of_token = index_view(numbers);
  EXPECT_EQ(ours::fused_rope_2d(image, nullptr, {}).message(), "apex: w_of_token is null: it must be given");
  image.w_of_token = index_view(numbers);
  image.img_h = image.img_w = 2, image.rows_h = 2, image.rows_w = 1;
  EXPECT_EQ(ours::fused_rope_2d(image, nullptr, {}).message(),
            "apex: the tables have 2 and 1 rows: they must have at least img_h, 2, and img_w, 2");
  image.img_h = image.img_w = 100000;
  EXPECT_EQ(ours::fused_rope_2d(image, nullptr, {}).message(),
            "apex: img_h * img_w is 10000000000: it must lie in 0..2147483647");
}

// t with a stride in every dimension, and freqs whose halves differ.
TEST_P(Apex, Strides) {
  for (const Golden& g : read_goldens("apex_strides")) {
    SCOPED_TRACE(g.name);
    const DType type = g.array("out").type;
    Arena arena(GetParam());
    ours::FusedRope call;
    call.dtype = type;
    call.s = call.rows = g.integer("s");
    call.b = g.integer("b");
    call.h = g.integer("h");
    call.d = g.integer("d");
    call.d2 = g.integer("d2");
    const auto strides = g.integers("t_strides");
    call.t_strides = {strides[1], strides[0], strides[2], strides[3]};
    call.t = arena.input(encode(type, fill(1, g.integer("t_size"))));
    auto* out = arena.output<unsigned char>(call.s * call.b * call.h * call.d * dtype_size(type));
    call.out = out;
    Values freqs = fill(2, call.s * call.d2);
    for (double& f : freqs) f *= 3.0;
    call.freqs = arena.input(std::vector<float>(freqs.begin(), freqs.end()));
    call.transpose_output_memory = g.flag("transpose_output_memory");
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status = arena.run([&](const Execution& execution) { return ours::fused_rope(call, faults, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_golden(arena.read(out), g.array("out"), std::ldexp(3.0, -24));
  }
}

// There is an empty sequence between two others, and one at the end.
TEST_P(Apex, EmptySequences) {
  const DType type = DType::f32;
  const auto rotate = [&](const std::vector<int32_t>& cu_seqlens) {
    Arena arena(GetParam());
    ours::FusedRope call;
    call.dtype = type;
    call.s = 3, call.b = static_cast<int64_t>(cu_seqlens.size()) - 1, call.h = 1, call.d = call.d2 = 4, call.rows = 3;
    call.t_strides = batch_major_strides(3, 1, 4);
    call.t = arena.input(encode(type, fill(1, 12)));
    auto* out = arena.output<unsigned char>(12 * 4);
    call.out = out;
    const Values freqs = fill(2, 12);
    call.freqs = arena.input(std::vector<float>(freqs.begin(), freqs.end()));
    call.cu_seqlens = arena.input(cu_seqlens);
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status = arena.run([&](const Execution& execution) { return ours::fused_rope(call, faults, execution); });
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(read_fault(arena, faults).code, FaultCode::none);
    return arena.read(out);
  };
  EXPECT_EQ(rotate({0, 2, 2, 3, 3}), rotate({0, 2, 3}));
}

TEST_P(Apex, TwoDimensions) {
  for (const Golden& g : read_goldens("apex")) {
    if (g.name.find("2d") != 0) continue;
    SCOPED_TRACE(g.name);
    const DType type = g.array("out").type;
    Arena arena(GetParam());
    ours::FusedRope2d call;
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
    call.h_of_token = index_view(arena.input(h_of_token));
    call.w_of_token = index_view(arena.input(w_of_token));
    call.backward = g.flag("backward");
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status = arena.run([&](const Execution& execution) { return ours::fused_rope_2d(call, faults, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_golden(arena.read(out), g.array("out"), type == DType::f32 ? 0.0 : tolerance(type));
  }
}

// Their kernel reads rows that freqs does not have out of bounds.
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
