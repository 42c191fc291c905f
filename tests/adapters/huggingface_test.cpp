#include <prologue/adapters/huggingface.h>

#include "tests/adapters/golden.h"

namespace prologue::test {
namespace {

namespace ours = adapters::huggingface;

PROLOGUE_ADAPTER(HuggingFace);

// transformers rounds both products and the sum to the model's type.
double tolerance(DType type) { return type == DType::bf16 ? std::ldexp(4.0, -9) : 0.0; }

// Runs the block of the page over the tensors of a call.
Status page(const ours::ApplyRotaryPosEmb& c, const Execution& execution) {
  const void *const q = c.q, *const k = c.k, *const cos = c.cos, *const sin = c.sin;
  void *const q_embed = c.q_embed, *const k_embed = c.k_embed;
  const DType dtype = c.dtype;
  const int64_t batch = c.batch, seq_len = c.seq_len, num_heads = c.num_heads, num_key_value_heads = c.num_key_value_heads,
                head_dim = c.head_dim, rotary_ndims = c.rotary_ndims;
#include "huggingface.inc"
  return status;
}

TEST(HuggingFaceCall, IsChecked) {
  ours::ApplyRotaryPosEmb call;
  EXPECT_EQ(ours::apply_rotary_pos_emb(call, {}).message(), "huggingface: rotary_ndims is 0: give the columns of cos");
  call.unsqueeze_dim = 3;
  EXPECT_EQ(ours::apply_rotary_pos_emb(call, {}).message(), "huggingface: unsqueeze_dim is 3: it must be 1 or 2");
  EXPECT_EQ(ours::gptj_rotary({}, nullptr, {}).message(), "huggingface: position_ids is null: they must be given");
}

TEST_P(HuggingFace, Goldens) {
  for (const Golden& g : read_goldens("huggingface")) {
    if (g.name.find("gptj") == 0) continue;
    SCOPED_TRACE(g.name);
    const DType type = g.array("q_out").type;
    Arena arena(GetParam());
    ours::ApplyRotaryPosEmb call;
    call.dtype = type;
    call.batch = g.integer("b");
    call.seq_len = g.integer("s");
    call.num_heads = g.integer("hq");
    call.num_key_value_heads = g.integer("hk");
    call.head_dim = g.integer("d");
    call.rotary_ndims = g.integer("rotary_ndims");
    call.unsqueeze_dim = g.integer("unsqueeze_dim");
    call.cos_per_batch = !g.flag("shared");
    const int64_t tokens = call.batch * call.seq_len;
    call.q = arena.input(encode(type, fill(1, tokens * call.num_heads * call.head_dim)));
    call.k = arena.input(encode(type, fill(2, tokens * call.num_key_value_heads * call.head_dim)));
    auto* q = arena.output<unsigned char>(tokens * call.num_heads * call.head_dim * dtype_size(type));
    auto* k = arena.output<unsigned char>(tokens * call.num_key_value_heads * call.head_dim * dtype_size(type));
    call.q_embed = q;
    call.k_embed = k;
    const int64_t half = call.rotary_ndims / 2, rows = (call.cos_per_batch ? call.batch : 1) * call.seq_len;
    call.cos = arena.input(encode(type, widen(fill(3, rows * half), half, false)));
    call.sin = arena.input(encode(type, widen(fill(4, rows * half), half, false)));
    const Status status = arena.run([&](const Execution& execution) {
      // If it is the page's call, it runs as on the page.
      return call.unsqueeze_dim == 1 && call.cos_per_batch ? page(call, execution) : ours::apply_rotary_pos_emb(call, execution);
    });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_golden(arena.read(q), g.array("q_out"), tolerance(type));
    expect_golden(arena.read(k), g.array("k_out"), tolerance(type));
  }
}

TEST_P(HuggingFace, Gptj) {
  for (const Golden& g : read_goldens("huggingface")) {
    if (g.name.find("gptj") != 0) continue;
    SCOPED_TRACE(g.name);
    const DType type = g.array("q_out").type;
    Arena arena(GetParam());
    ours::Gptj call;
    call.dtype = type;
    call.batch = g.integer("b");
    call.seq_len = g.integer("s");
    call.num_heads = g.integer("hq");
    call.num_kv_heads = g.integer("hk");
    call.head_dim = g.integer("d");
    call.rotary_dim = g.integer("rotary_dim");
    call.max_positions = g.integer("max_positions");
    const int64_t tokens = call.batch * call.seq_len;
    call.q = arena.input(encode(type, fill(1, tokens * call.num_heads * call.head_dim)));
    call.k = arena.input(encode(type, fill(2, tokens * call.num_kv_heads * call.head_dim)));
    auto* q = arena.output<unsigned char>(tokens * call.num_heads * call.head_dim * dtype_size(type));
    auto* k = arena.output<unsigned char>(tokens * call.num_kv_heads * call.head_dim * dtype_size(type));
    call.q_out = q;
    call.k_out = k;
    call.embed_positions = arena.input(encode(type, fill(3, call.max_positions * call.rotary_dim)));
    call.position_ids = index_view(arena.input(g.integers("position_ids")));
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status = arena.run([&](const Execution& execution) { return ours::gptj_rotary(call, faults, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_golden(arena.read(q), g.array("q_out"), tolerance(type));
    expect_golden(arena.read(k), g.array("k_out"), tolerance(type));
  }
}

}  // namespace
}  // namespace prologue::test
