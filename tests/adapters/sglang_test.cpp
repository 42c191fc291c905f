#include <prologue/adapters/sglang.h>

#include "tests/adapters/serving.h"

namespace prologue::test {
namespace {

namespace ours = adapters::sglang;

using S = Serving;

PROLOGUE_ADAPTER(Sglang);

// Runs the block of the page over the tensors of a call.
Status page(const ours::ApplyRopeInplace& c, FaultRecord* faults, const Execution& execution) {
  void *const q = c.q, *const k = c.k, *const k_buffer = c.k_buffer, *const v_buffer = c.v_buffer;
  const void* const value = c.value;
  const float* const cos_sin_cache = c.cos_sin_cache;
  const DType dtype = c.dtype;
  const int64_t num_tokens = c.num_tokens, num_qo_heads = c.num_qo_heads, num_kv_heads = c.num_kv_heads, head_dim = c.head_dim,
                max_position = c.max_position, rope_dim = c.rope_dim, buffer_size = c.buffer_size;
  const IndexView positions = c.positions, cache_loc = c.cache_loc;
#include "sglang.inc"
  return status;
}

TEST(SglangCall, IsChecked) {
  const int64_t position = 0;
  ours::ApplyRopeInplace call;
  EXPECT_EQ(ours::apply_rope_inplace(call, nullptr, {}).message(), "sglang: positions is null: they must be given");
  call.positions = index_view(&position);
  EXPECT_EQ(ours::apply_rope_inplace(call, nullptr, {}).message(), "sglang: rope_dim is 0: give the width of cos_sin_cache");
  call.rope_dim = 8;
  call.value = &position;
  EXPECT_EQ(ours::apply_rope_inplace(call, nullptr, {}).message(), "sglang: cache_loc is null: with value it must be given");
}

// With fused_args the cache gets the rotated k and v; without, only q and k are rotated.
TEST_P(Sglang, RopeWithAndWithoutTheStore) {
  for (const bool fused : {false, true}) {
    for (const bool is_neox : {true, false}) {
      const Serving s;
      const std::vector<int64_t> cache_loc = {4, 0, 6, 1};
      Arena arena(GetParam());
      ours::ApplyRopeInplace call;
      call.dtype = DType::f32;
      float* q = arena.inout(floats(s.q));
      float* k = arena.inout(floats(s.k));
      call.q = q;
      call.k = k;
      call.num_tokens = S::kTokens;
      call.num_qo_heads = S::kQHeads;
      call.num_kv_heads = S::kKvHeads;
      call.head_dim = S::kHeadDim;
      call.q_stride = S::kQHeads * S::kHeadDim;
      call.k_stride = call.value_stride = S::kKvHeads * S::kHeadDim;
      call.cos_sin_cache = arena.input(floats(s.cos_sin));
      call.max_position = S::kMaxPosition;
      call.rope_dim = S::kRotaryDim;
      call.positions = index_view(arena.input(s.positions));
      call.is_neox = is_neox;
      call.buffer_size = 7;
      auto* k_buffer = arena.output<unsigned char>(7 * S::kKvHeads * S::kHeadDim * 4);
      auto* v_buffer = arena.output<unsigned char>(7 * S::kKvHeads * S::kHeadDim * 4);
      call.k_buffer = k_buffer;
      call.v_buffer = v_buffer;
      if (fused) call.value = arena.input(floats(s.v));
      call.cache_loc = index_view(arena.input(cache_loc));
      FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
      const Status status = arena.run([&](const Execution& execution) {
        return fused && is_neox ? page(call, faults, execution) : ours::apply_rope_inplace(call, faults, execution);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      const Values rotated_k = s.rotated(s.k, S::kKvHeads, !is_neox);
      EXPECT_EQ(arena.read(q), floats(s.rotated(s.q, S::kQHeads, !is_neox)));
      EXPECT_EQ(arena.read(k), floats(rotated_k));
      const std::vector<int64_t> slots = fused ? cache_loc : std::vector<int64_t>();
      const Bytes got_k = arena.read(k_buffer), got_v = arena.read(v_buffer);
      EXPECT_EQ(got_k, cached(encode(DType::f32, rotated_k), slots, got_k.size(), 4));
      EXPECT_EQ(got_v, cached(encode(DType::f32, s.v), slots, got_v.size(), 4));
    }
  }
}

}  // namespace
}  // namespace prologue::test
