#include <prologue/kernels/rotary/rotary.h>

#include "tests/coming_from/golden.h"

namespace prologue::test {
namespace {

#include "flash_attn.inc"

PROLOGUE_COMING_FROM(FlashAttn);

struct Outcome {
  Bytes out;
  Fault fault;
};

Outcome run(Backend backend, const Golden& g, bool inplace, int64_t seqlen_ro, int64_t max_seqlen = -1) {
  const FloatType type = g.array("out").type;
  const int64_t seqlen = g.integer("seqlen"), half = g.integer("rotary_dim") / 2;
  const bool varlen = g.flag("varlen");
  const auto offsets = g.integers<int32_t>("offsets");
  const auto long_offsets = g.integers<int64_t>("offsets");
  Arena arena(backend);
  FlashAttnRotary call;
  call.dtype = call.cos_dtype = type;
  call.batch = g.integer("batch");
  call.seqlen = varlen ? g.integers("cu_seqlens").back() : seqlen;
  call.nheads = g.integer("heads");
  call.headdim = g.integer("headdim");
  call.x_strides = call.out_strides = batch_major_strides(call.seqlen, call.nheads, call.headdim);
  const Bytes x = encode(type, fill(1, (varlen ? 1 : call.batch) * call.seqlen * call.nheads * call.headdim));
  call.inplace = inplace;
  call.x = inplace ? arena.inout(x) : arena.input(x);
  call.out = inplace ? nullptr : arena.output<unsigned char>(static_cast<int64_t>(x.size()));
  call.cos = arena.input(encode(type, fill(2, g.integer("seqlen_ro") * half)));
  call.sin = arena.input(encode(type, fill(3, g.integer("seqlen_ro") * half)));
  call.seqlen_ro = seqlen_ro;
  call.rotary_dim = 2 * half;
  if (g.integer("offset_kind") == 1) call.seqlen_offset = offsets[0];
  if (g.integer("offset_kind") == 2) call.seqlen_offsets = arena.input(offsets);
  if (g.integer("offset_kind") == 3) call.seqlen_offsets = arena.input(long_offsets);
  if (varlen) {
    call.cu_seqlens = arena.input(g.integers<int32_t>("cu_seqlens"));
    call.max_seqlen = max_seqlen < 0 ? seqlen : max_seqlen;
  }
  call.interleaved = g.flag("interleaved");
  call.conjugate = g.flag("conjugate");
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) { return flash_attn_apply_rotary(call, faults, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  const auto* out = static_cast<const unsigned char*>(inplace ? call.x : call.out);
  return {arena.read(out), read_fault(arena, faults)};
}

TEST_P(FlashAttn, Goldens) {
  for (const Golden& g : read_goldens("flash_attn")) {
    SCOPED_TRACE(g.name);
    for (const bool inplace : {false, true}) {
      const Outcome result = run(GetParam(), g, inplace, g.integer("seqlen_ro"));
      expect_golden(result.out, g.array("out"));
      EXPECT_EQ(result.fault.code, FaultCode::none);
    }
  }
}

// Past the table theirs leaves the token as it is; so it does with tokens past max_seqlen.
TEST_P(FlashAttn, WhatTheirsLeavesUnrotatedIsReported) {
  for (const Golden& g : read_goldens("flash_attn")) {
    if (g.integer("offset_kind") != 2) continue;  // sequence 0 starts at position 5
    SCOPED_TRACE(g.name);
    const int64_t row = g.integer("heads") * g.integer("headdim");
    Values want = g.array("out").values;
    const auto zero = [&](int64_t token) { std::fill_n(want.begin() + token * row, row, 0.0); };
    zero(1);
    if (!g.flag("varlen")) zero(2);  // positions 5, 6, 7: of a table of six rows the first one is left
    Outcome result = run(GetParam(), g, false, 6);
    expect_values(result.out, g.array("out").type, want);
    EXPECT_EQ(result.fault.code, FaultCode::position_out_of_range);
    EXPECT_EQ(result.fault.token, 1);
    EXPECT_EQ(result.fault.count, g.flag("varlen") ? 1u : 2u);
    if (!g.flag("varlen")) continue;
    want = g.array("out").values;
    zero(4);  // the third token of the second sequence
    result = run(GetParam(), g, false, g.integer("seqlen_ro"), 2);
    expect_values(result.out, g.array("out").type, want);
    EXPECT_EQ(result.fault.code, FaultCode::sequence_too_long);
    EXPECT_EQ(result.fault.token, 4);
  }
}

}  // namespace
}  // namespace prologue::test
