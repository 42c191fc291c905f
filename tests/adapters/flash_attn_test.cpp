#include <prologue/adapters/flash_attn.h>

#include "tests/adapters/golden.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

namespace ours = adapters::flash_attn;

PROLOGUE_ADAPTER(FlashAttn);

// Runs the block of the page over the tensors of a call.
Status page(const ours::ApplyRotary& c, FaultRecord* faults, const Execution& execution) {
  void *const x = c.x, *const out = c.out;
  const void *const cos = c.cos, *const sin = c.sin;
  const DType dtype = c.dtype;
  const int64_t batch = c.batch, seqlen = c.seqlen, nheads = c.nheads, headdim = c.headdim, seqlen_ro = c.seqlen_ro,
                rotary_dim = c.rotary_dim;
#include "flash_attn.inc"
  return status;
}

struct Outcome {
  Bytes out;
  Fault fault;
};

Outcome run(Backend backend, const Golden& g, bool inplace, int64_t seqlen_ro, int64_t max_seqlen = -1, bool as_on_page = false) {
  const DType type = g.array("out").type;
  const int64_t seqlen = g.integer("seqlen"), half = g.integer("rotary_dim") / 2;
  const bool varlen = g.flag("varlen");
  const auto offsets = g.integers<int32_t>("offsets");
  const auto long_offsets = g.integers<int64_t>("offsets");
  Arena arena(backend);
  ours::ApplyRotary call;
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
  if (g.integer("offset_kind") == 2) call.seqlen_offsets = index_view(arena.input(offsets));
  if (g.integer("offset_kind") == 3) call.seqlen_offsets = index_view(arena.input(long_offsets));
  if (varlen) {
    call.cu_seqlens = index_view(arena.input(g.integers<int32_t>("cu_seqlens")));
    call.max_seqlen = max_seqlen < 0 ? seqlen : max_seqlen;
  }
  call.interleaved = g.flag("interleaved");
  call.conjugate = g.flag("conjugate");
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) {
    return as_on_page ? page(call, faults, execution) : ours::apply_rotary(call, faults, execution);
  });
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

TEST_P(FlashAttn, AsOnThePage) {
  int cases = 0;
  for (const Golden& g : read_goldens("flash_attn")) {
    if (g.flag("varlen") || g.integer("offset_kind") != 1 || !g.flag("interleaved") || g.flag("conjugate")) continue;
    SCOPED_TRACE(g.name);
    expect_golden(run(GetParam(), g, false, g.integer("seqlen_ro"), -1, true).out, g.array("out"));
    ++cases;
  }
  EXPECT_EQ(cases, 2);
}

TEST(FlashAttnCall, IsChecked) {
  const int32_t cu_seqlens[] = {0, 1};
  ours::ApplyRotary call;
  call.cu_seqlens = index_view(cu_seqlens);
  EXPECT_EQ(ours::apply_rotary(call, nullptr, {}).message(), "flash_attn: max_seqlen is 0: with cu_seqlens it must be given");
  call = {};
  call.batch = call.seqlen = 1;
  EXPECT_EQ(ours::apply_rotary(call, nullptr, {}).message(), "rotary: tensors[0].num_heads is 0: it must lie in 1..65536");
}

// The memory is as the golden's kernel left it: strides of every dimension, holes, cos and sin of another type, an empty sequence.
TEST_P(FlashAttn, Strides) {
  for (const Golden& g : read_goldens("flash_attn_strides")) {
    SCOPED_TRACE(g.name);
    const DType type = g.array("out").type;
    const auto cu_seqlens = g.integers<int32_t>("cu_seqlens");
    Arena arena(GetParam());
    ours::ApplyRotary call;
    call.dtype = type;
    call.cos_dtype = kFloatTypes[g.integer("cos_type")];
    call.batch = g.integer("batch");
    call.seqlen = g.integer("seqlen");
    call.nheads = g.integer("heads");
    call.headdim = g.integer("headdim");
    call.rotary_dim = g.integer("rotary_dim");
    call.seqlen_ro = g.integer("seqlen_ro");
    const auto strides = [&](const char* key) {
      const auto s = g.integers(key);
      return RotaryStrides{s[0], s[1], s[2], s[3]};
    };
    call.x_strides = strides("x_strides");
    call.out_strides = strides("out_strides");
    call.x = arena.input(encode(type, fill(1, g.integer("x_size"))));
    auto* out = arena.inout(encode(type, fill(9, static_cast<int64_t>(g.array("out").values.size()))));
    call.out = out;
    const int64_t table = call.seqlen_ro * call.rotary_dim / 2;
    call.cos = arena.input(encode(call.cos_dtype, fill(2, table)));
    call.sin = arena.input(encode(call.cos_dtype, fill(3, table)));
    call.seqlen_offsets = index_view(arena.input(g.integers<int32_t>("offsets")));
    if (!cu_seqlens.empty()) {
      call.cu_seqlens = index_view(arena.input(cu_seqlens));
      call.max_seqlen = 3;
    }
    call.interleaved = g.flag("interleaved");
    call.conjugate = g.flag("conjugate");
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status = arena.run([&](const Execution& execution) { return ours::apply_rotary(call, faults, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_golden(arena.read(out), g.array("out"));
    EXPECT_EQ(read_fault(arena, faults).code, FaultCode::none);
  }
}

// Past the table a token stays as it is, there and here: rows of six positions of which 5, 6 and 7 are asked for.
TEST_P(FlashAttn, PastTheTableTokensStayUnrotated) {
  for (const Golden& g : read_goldens("flash_attn")) {
    if (g.integer("offset_kind") != 2) continue;  // sequence 0 starts at position 5
    SCOPED_TRACE(g.name);
    const int64_t row = g.integer("heads") * g.integer("headdim");
    Values want = g.array("out").values;
    const Values x = fill(1, static_cast<int64_t>(want.size()));
    const int64_t tokens = g.flag("varlen") ? 1 : 2;
    std::copy_n(x.begin() + row, tokens * row, want.begin() + row);
    for (const bool inplace : {false, true}) {
      const Outcome result = run(GetParam(), g, inplace, 6);
      expect_values(result.out, g.array("out").type, want);
      EXPECT_EQ(result.fault.code, FaultCode::none);
    }
  }
}

// A token past max_seqlen of its sequence is left unwritten by theirs.
TEST_P(FlashAttn, TokensPastMaxSeqlenAreReported) {
  for (const Golden& g : read_goldens("flash_attn")) {
    if (!g.flag("varlen")) continue;
    SCOPED_TRACE(g.name);
    const int64_t row = g.integer("heads") * g.integer("headdim");
    Values want = g.array("out").values;
    std::fill_n(want.begin() + 4 * row, row, 0.0);  // the third token of the second sequence
    const Outcome result = run(GetParam(), g, false, g.integer("seqlen_ro"), 2);
    expect_values(result.out, g.array("out").type, want);
    EXPECT_EQ(result.fault.code, FaultCode::sequence_too_long);
    EXPECT_EQ(result.fault.token, 4);
  }
}

}  // namespace
}  // namespace prologue::test
