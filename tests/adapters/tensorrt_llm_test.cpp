#include <prologue/adapters/tensorrt_llm.h>

#include <vector>

#include "tests/adapters/serving.h"

namespace prologue::test {
namespace {

namespace ours = adapters::tensorrt_llm;

using S = Serving;

PROLOGUE_ADAPTER(TensorRtLlm);

// Runs the block of the page over the tensors of a call.
Status page(const ours::QkvPreprocessing& c, FaultRecord* faults, const Execution& execution) {
  void *const qkv_input = c.qkv_input, *const q_output = c.q_output, *const k_pool = c.k_pool, *const v_pool = c.v_pool;
  const void* const qkv_bias = c.qkv_bias;
  const DType dtype = c.dtype;
  const DType cache_type = c.cache_type;
  const float* const inv_freq = c.rotary_embedding_inv_freq;
  const int32_t *const cu_seq_lens = c.cu_seq_lens, *const cache_seq_lens = c.cache_seq_lens, *const block_table = c.block_table;
  const int64_t token_num = c.token_num, head_num = c.head_num, kv_head_num = c.kv_head_num, size_per_head = c.size_per_head,
                batch_size = c.batch_size, rotary_embedding_dim = c.rotary_embedding_dim,
                max_positions = c.rotary_embedding_max_positions, num_blocks = c.num_blocks,
                tokens_per_block = c.tokens_per_block, max_blocks_per_seq = c.max_blocks_per_seq;
#include "tensorrt_llm.inc"
  return status;
}

TEST(TensorRtLlmCall, IsChecked) {
  EXPECT_EQ(ours::qkv_preprocessing({}, nullptr, {}).message(),
            "tensorrt_llm: cu_seq_lens is null: positions are derived from it");
  ours::QkvPreprocessing call;
  call.head_num = int64_t{1} << 62;
  EXPECT_EQ(ours::qkv_preprocessing(call, nullptr, {}).message(),
            "tensorrt_llm: head_num is 4611686018427387904: it must lie in 0..65536");
}

// There are three sequences: of three tokens after two in the cache, of none, and of one after none. Positions and pages are derived.
TEST_P(TensorRtLlm, QkvPreprocessing) {
  for (const bool bias : {false, true}) {
    for (const bool gptj : {false, true}) {
      const Serving s;
      const std::vector<double> position = {2, 3, 4, 0};
      const std::vector<int64_t> slots = {4, 5, 0, 2};  // pages of two tokens: 3 2 0 and 1
      constexpr int64_t kHidden = (S::kQHeads + 2 * S::kKvHeads) * S::kHeadDim;
      const Values qkv = fill(5, S::kTokens * kHidden), offsets = fill(6, kHidden);
      Values q, k, v;
      for (size_t i = 0; i < qkv.size(); ++i) {
        const auto column = static_cast<int64_t>(i) % kHidden;
        Values& part = column < S::kQHeads * S::kHeadDim ? q : column < kHidden - S::kKvHeads * S::kHeadDim ? k : v;
        part.push_back(qkv[i] + (bias ? offsets[static_cast<size_t>(column)] : 0.0));
      }
      const auto inv_freq = std::vector<float>{1.0f, 0.5f, 0.25f, 0.125f};
      const auto want = [&](const Values& x, int64_t heads) {
        return rotate_heads(x, S::kHeadDim, 0, S::kRotaryDim, gptj, [&](int64_t head, int64_t pair) {
          const double angle = position[static_cast<size_t>(head / heads)] * double{inv_freq[static_cast<size_t>(pair)]};
          return std::pair(std::cos(angle), std::sin(angle));
        });
      };
      Arena arena(GetParam());
      ours::QkvPreprocessing call;
      call.dtype = DType::f32;
      call.qkv_input = arena.inout(floats(qkv));
      auto* q_output = arena.output<unsigned char>(static_cast<int64_t>(q.size()) * 4);
      call.q_output = q_output;
      if (bias) call.qkv_bias = arena.input(floats(offsets));
      call.token_num = S::kTokens;
      call.head_num = S::kQHeads;
      call.kv_head_num = S::kKvHeads;
      call.size_per_head = S::kHeadDim;
      call.batch_size = 3;
      call.cu_seq_lens = arena.input(std::vector<int32_t>{0, 3, 3, 4});
      if (gptj) {
        call.past_seq_lens = arena.input(std::vector<int32_t>{2, 1, 0});
      } else {
        call.cache_seq_lens = arena.input(std::vector<int32_t>{5, 1, 1});
      }
      call.rotary_embedding_inv_freq = arena.input(inv_freq);
      call.rotary_embedding_dim = S::kRotaryDim;
      call.rotary_embedding_max_positions = 64;
      call.gptj = gptj;
      auto* k_pool = arena.output<unsigned char>(8 * S::kHeadDim * 4);
      auto* v_pool = arena.output<unsigned char>(8 * S::kHeadDim * 4);
      call.k_pool = k_pool;
      call.v_pool = v_pool;
      call.num_blocks = 4;
      call.tokens_per_block = 2;
      call.block_table = arena.input(std::vector<int32_t>{3, 2, 0, 0, 0, 0, 1, 1, 1});
      call.max_blocks_per_seq = 3;
      call.cache_type = DType::f32;
      FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
      const Status status = arena.run([&](const Execution& execution) {
        return gptj ? ours::qkv_preprocessing(call, faults, execution) : page(call, faults, execution);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(read_fault(arena, faults).code, FaultCode::none);
      const double tolerance = std::ldexp(6.0, -24);  // |x| is below 2 with the bias
      expect_values(arena.read(q_output), DType::f32, want(q, S::kQHeads), tolerance);
      const Values rotated_k = want(k, S::kKvHeads);
      const Bytes got_k = arena.read(k_pool), got_v = arena.read(v_pool);
      EXPECT_EQ(got_v, cached(encode(DType::f32, v), slots, got_v.size(), 4));
      constexpr int64_t kRow = S::kHeadDim * 4;
      for (int64_t t = 0; t < S::kTokens; ++t) {
        const auto slot = got_k.begin() + slots[static_cast<size_t>(t)] * kRow;
        const auto row = rotated_k.begin() + t * S::kHeadDim;
        expect_values(Bytes(slot, slot + kRow), DType::f32, Values(row, row + S::kHeadDim), tolerance);
      }
    }
  }
}

}  // namespace
}  // namespace prologue::test
