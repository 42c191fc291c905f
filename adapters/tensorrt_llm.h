// Takes a call of TensorRT-LLM: invokeQKVPreprocessing. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/attention_prologue/attention_prologue.h>

namespace prologue::adapters::tensorrt_llm {

struct QkvPreprocessing {
  void* qkv_input = nullptr;  // [token_num, (head_num + 2 * kv_head_num) * size_per_head], Q rotated in place
  void* q_output = nullptr;   // or rotated to here, dense: separate_q_kv_output
  const void* qkv_bias = nullptr;
  DType dtype = DType::f16;
  int64_t token_num = 0;
  int64_t head_num = 0;
  int64_t kv_head_num = 0;
  int64_t size_per_head = 0;
  int64_t batch_size = 0;
  const int32_t* cu_seq_lens = nullptr;              // [batch_size + 1]
  const int32_t* cache_seq_lens = nullptr;           // [batch_size]: tokens after this step
  const int32_t* past_seq_lens = nullptr;            // or, instead: cache_seq_lens minus the tokens of this step
  const float* rotary_embedding_inv_freq = nullptr;  // [rotary_embedding_dim / 2], scaling included
  int64_t rotary_embedding_dim = 0;
  int64_t rotary_embedding_max_positions = 0;
  bool gptj = false;       // PositionEmbeddingType::kROPE_GPTJ
  void* k_pool = nullptr;  // KVBlockArray: [num_blocks, kv_head_num, tokens_per_block, size_per_head]
  void* v_pool = nullptr;
  int64_t num_blocks = 0;
  int64_t tokens_per_block = 0;
  const int32_t* block_table = nullptr;  // [batch_size, max_blocks_per_seq]
  int64_t max_blocks_per_seq = 0;
  int64_t cyclic_kv_cache_len = 0;       // 0: not cyclic
  DType cache_type = DType::f16;         // KvCacheDataType BASE, INT8, FP8
  float* kv_scale_quant_orig = nullptr;  // [1], for K and V
};

inline Status qkv_preprocessing(const QkvPreprocessing& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("tensorrt_llm", {{"head_num", call.head_num, detail::kHeads},
                                                                {"kv_head_num", call.kv_head_num, detail::kHeads},
                                                                {"size_per_head", call.size_per_head, detail::kDim},
                                                                {"tokens_per_block", call.tokens_per_block, int64_t{1} << 20}}));
  if (call.cu_seq_lens == nullptr) return invalid_argument("tensorrt_llm: cu_seq_lens is null: positions are derived from it");
  const int64_t hidden_size = (call.head_num + 2 * call.kv_head_num) * call.size_per_head;
  AttentionPrologueParams params;
  params.num_tokens = call.token_num;
  params.num_q_heads = call.head_num;
  params.num_kv_heads = call.kv_head_num;
  params.head_dim = call.size_per_head;
  params.dtype = call.dtype;
  set_packed_qkv(params, call.qkv_input, hidden_size);
  if (call.qkv_bias != nullptr) {
    const auto* bias = static_cast<const char*>(call.qkv_bias);
    const int64_t head_bytes = call.size_per_head * dtype_size(call.dtype);
    params.bias = {bias, bias + call.head_num * head_bytes, bias + (call.head_num + call.kv_head_num) * head_bytes};
  }
  params.q_out = call.q_output != nullptr
                     ? MutableHeadsView{call.q_output, call.head_num * call.size_per_head, call.size_per_head}
                     : MutableHeadsView{call.qkv_input, hidden_size, call.size_per_head};
  params.rope.style = call.gptj ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = call.rotary_embedding_dim;
  params.rope.source = RopeSource::inv_freq;
  params.rope.type = DType::f32;
  params.rope.inv_freq = call.rotary_embedding_inv_freq;
  params.rope.max_position = call.rotary_embedding_max_positions;
  params.places.num_seqs = call.batch_size;
  params.places.cu_seqlens_q = call.cu_seq_lens;
  params.places.seq_lens = call.cache_seq_lens;
  params.places.cache_lens = call.past_seq_lens;
  params.places.page_table.block_table = call.block_table;
  params.places.page_table.block_table_stride = params.places.page_table.max_pages_per_seq = call.max_blocks_per_seq;
  params.places.ring_size = call.cyclic_kv_cache_len;
  params.cache.k.data = call.k_pool;
  params.cache.v.data = call.v_pool;
  params.cache.k.format.type = params.cache.v.format.type = call.cache_type;
  params.cache.num_pages = call.num_blocks;
  params.cache.page_size = call.tokens_per_block;
  params.cache.num_kv_heads = call.kv_head_num;
  params.cache.k.head_dim = call.size_per_head;
  params.cache.k.strides = params.cache.v.strides = {call.kv_head_num * call.tokens_per_block * call.size_per_head,
                                                     call.size_per_head, call.tokens_per_block * call.size_per_head};
  if (!dtype_is_activation(call.cache_type)) {
    params.cache.k.format.scaling = params.cache.v.format.scaling = KvScaling::tensor;
    params.cache.k.scale = params.cache.v.scale = call.kv_scale_quant_orig;
  }
  params.faults = faults;
  return attention_prologue(params, execution);
}

}  // namespace prologue::adapters::tensorrt_llm
