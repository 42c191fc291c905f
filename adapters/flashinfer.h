// Takes calls of FlashInfer: apply_rope*, rope_quantize_fp8_append_paged_kv_cache. See adapter.h and docs/coming-from.md.
#pragma once

#include <cmath>
#include <cstdint>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::flashinfer {

struct ApplyRope {
  const void* q = nullptr;  // [nnz, heads, head_dim]
  const void* k = nullptr;
  void* q_rope = nullptr;  // q and k themselves for _inplace
  void* k_rope = nullptr;
  DType dtype = DType::bf16;
  int64_t nnz = 0;
  int64_t num_q_heads = 0;
  int64_t num_k_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  bool interleave = false;  // not is_neox
  IndexView indptr = {};    // apply_rope: [batch_size + 1]
  IndexView offsets = {};   // apply_rope: [batch_size]
  int64_t batch_size = 0;
  IndexView pos_ids = {};  // apply_rope_pos_ids, ..with_cos_sin_cache: [nnz], instead of indptr and offsets
  double rope_scale = 1.0;
  double rope_theta = 1e4;
  const double* inv_freq = nullptr;      // [rotary_dim / 2], of inv_freq_of(); must be given where rope_scale is not 1
  const float* cos_sin_cache = nullptr;  // ..with_cos_sin_cache: [max_position, rotary_dim]
  int64_t max_position = 0;
};

// Runs on the host and writes rotary_dim / 2 numbers. For apply_llama31_rope, use rope_frequencies() with a Llama3Rope
// (layers/rope/rope_scaling.h).
inline Status inv_freq_of(int64_t rotary_dim, double rope_scale, double rope_theta, double* inv_freq) {
  if (rotary_dim < 2 || rotary_dim > 576 || rotary_dim % 2 != 0) {
    return invalid_argument("flashinfer: rotary_dim is ", rotary_dim, ": it must be even and lie in 2..576");
  }
  if (!(rope_scale > 0.0) || !(rope_theta > 0.0)) {
    return invalid_argument("flashinfer: rope_scale is ", rope_scale, " and rope_theta is ", rope_theta,
                            ": both must be positive");
  }
  if (inv_freq == nullptr) return invalid_argument("flashinfer: inv_freq is null");
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    inv_freq[i] = std::pow(rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim)) / rope_scale;
  }
  return {};
}

inline Status apply_rope(const ApplyRope& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("flashinfer", {{"nnz", call.nnz, detail::kTokens},
                                                              {"num_q_heads", call.num_q_heads, detail::kHeads},
                                                              {"num_k_heads", call.num_k_heads, detail::kHeads},
                                                              {"head_dim", call.head_dim, detail::kDim},
                                                              {"rotary_dim", call.rotary_dim, detail::kDim}}));
  if ((call.pos_ids.data == nullptr) == (call.indptr.data == nullptr)) {
    return invalid_argument("flashinfer: pos_ids and indptr are both ", call.indptr.data == nullptr ? "null" : "given",
                            ": give one of them");
  }
  if (call.cos_sin_cache == nullptr && call.inv_freq == nullptr && call.rope_scale != 1.0) {
    return invalid_argument("flashinfer: rope_scale is ", call.rope_scale,
                            ": inv_freq must then hold what inv_freq_of() makes of it");
  }
  const auto strides = [&](int64_t heads) { return batch_major_strides(call.nnz, heads, call.head_dim); };
  RotaryParams params;
  params.seq_len = call.nnz;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.num_tensors = 2;
  params.tensors[0] = rotary_tensor(call.q, call.q_rope, call.num_q_heads, strides(call.num_q_heads));
  params.tensors[1] = rotary_tensor(call.k, call.k_rope, call.num_k_heads, strides(call.num_k_heads));
  params.rope.style = call.interleave ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = call.rotary_dim;
  if (call.cos_sin_cache != nullptr) {
    set_cos_sin_table(params.rope, call.cos_sin_cache, DType::f32, call.max_position);
  } else if (call.inv_freq != nullptr) {
    params.rope.source = RopeSource::inv_freq;
    params.rope.type = DType::f64;
    params.rope.inv_freq = call.inv_freq;
  } else {
    params.rope.source = RopeSource::theta;
    params.rope.theta = call.rope_theta;
  }
  params.rope.width = RopeWidth::half;
  if (call.pos_ids.data != nullptr) {
    params.positions.ids = call.pos_ids;
  } else {
    params.positions.cu_seqlens = call.indptr;
    params.positions.num_seqs = call.batch_size;
    params.positions.offsets = call.offsets;
  }
  params.faults = faults;
  return rotary(params, execution);
}

struct RopeQuantizeFp8Append {
  const void* q = nullptr;  // [nnz, heads, head_dim], rope channels first; or q_nope [nnz, heads, head_dim - rope_dim]
  const void* k = nullptr;
  const void* v = nullptr;
  const void* q_rope = nullptr;  // [nnz, heads, rope_dim]; null: q has both slices
  const void* k_rope = nullptr;
  DType dtype = DType::bf16;
  int64_t nnz = 0;
  int64_t num_qo_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;
  const float* cos_sin_cache = nullptr;  // [max_position, rope_dim]
  int64_t max_position = 0;
  IndexView pos_ids = {};
  void* k_cache = nullptr;
  void* v_cache = nullptr;
  int64_t max_pages = 0;
  int64_t page_size = 16;
  bool hnd = false;  // kv_layout "HND"
  // This is the page table as FlashInfer has it, on the device. append_indptr is what batch_indices and positions are made of.
  const int32_t* append_indptr = nullptr;     // [batch_size + 1]
  const int32_t* kv_indptr = nullptr;         // [batch_size + 1]
  const int32_t* kv_indices = nullptr;        // [num_kv_indices]
  const int32_t* kv_last_page_len = nullptr;  // [batch_size]
  int64_t num_kv_indices = 0;
  int64_t batch_size = 0;
  const int64_t* slot_mapping = nullptr;  // or, instead of these: [nnz], of slots_of()
  bool is_neox = true;
  void* q_out = nullptr;      // fp8 e4m3, [nnz, num_qo_heads, head_dim]
  float* q_scale = nullptr;   // [1]: 1 / quant_scale_q
  float* kv_scale = nullptr;  // [1]: 1 / quant_scale_kv
};

// Runs on the host, once per step: converts FlashInfer's page table (CSR) to one slot for each of the nnz tokens, for batch indices that
// are not those of append_indptr. A token with a negative batch index is padding; its slot is -1.
inline Status slots_of(const int32_t* kv_indices, const int32_t* kv_indptr, int64_t batch_size, const int32_t* batch_indices,
                       const int32_t* positions, int64_t nnz, int64_t page_size, int64_t* slots) {
  if (page_size <= 0) return invalid_argument("flashinfer: page_size is ", page_size, ": it must be positive");
  for (int pass = 0; pass < 2; ++pass) {  // check, then write
    for (int64_t t = 0; t < nnz; ++t) {
      const int64_t sequence = batch_indices[t], position = positions[t];
      if (sequence < 0) {
        if (pass == 1) slots[t] = -1;
        continue;
      }
      if (sequence >= batch_size) {
        return invalid_argument("flashinfer: batch_indices[", t, "] is ", sequence, ": it must be below batch_size, ",
                                batch_size);
      }
      const int64_t pages = int64_t{kv_indptr[sequence + 1]} - kv_indptr[sequence];
      if (position < 0 || position / page_size >= pages) {
        return invalid_argument("flashinfer: positions[", t, "] is ", position, ": sequence ", sequence, " has ", pages,
                                " pages of ", page_size);
      }
      if (pass == 1) slots[t] = kv_indices[kv_indptr[sequence] + position / page_size] * page_size + position % page_size;
    }
  }
  return {};
}

inline Status rope_quantize_fp8_append(const RopeQuantizeFp8Append& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("flashinfer", {{"num_qo_heads", call.num_qo_heads, detail::kHeads},
                                                              {"num_kv_heads", call.num_kv_heads, detail::kHeads},
                                                              {"head_dim", call.head_dim, detail::kDim},
                                                              {"rope_dim", call.rope_dim, detail::kDim},
                                                              {"page_size", call.page_size, int64_t{1} << 20}}));
  if (call.pos_ids.data == nullptr) return invalid_argument("flashinfer: pos_ids is null: they must be given");
  if ((call.slot_mapping == nullptr) == (call.kv_indptr == nullptr)) {
    return invalid_argument("flashinfer: slot_mapping and kv_indptr are both ", call.kv_indptr == nullptr ? "null" : "given",
                            ": give one of them");
  }
  if (call.kv_indptr != nullptr && (call.append_indptr == nullptr || call.kv_last_page_len == nullptr)) {
    return invalid_argument("flashinfer: ", call.append_indptr == nullptr ? "append_indptr" : "kv_last_page_len",
                            " is null: with kv_indptr it must be given");
  }
  const auto view = [](const void* data, int64_t heads, int64_t dim) { return HeadsView{data, heads * dim, dim}; };
  const int64_t q_nope = call.head_dim - (call.q_rope == nullptr ? 0 : call.rope_dim);
  const int64_t k_nope = call.head_dim - (call.k_rope == nullptr ? 0 : call.rope_dim);
  AttentionPrologueParams params;
  params.num_tokens = call.nnz;
  params.num_q_heads = call.num_qo_heads;
  params.num_kv_heads = call.num_kv_heads;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.q = view(call.q, call.num_qo_heads, q_nope);
  params.k = view(call.k, call.num_kv_heads, k_nope);
  params.v = view(call.v, call.num_kv_heads, call.head_dim);
  params.q_rope = view(call.q_rope, call.num_qo_heads, call.rope_dim);
  params.k_rope = view(call.k_rope, call.num_kv_heads, call.rope_dim);
  params.q8_out.data = call.q_out;
  params.q8_out.token_stride = call.num_qo_heads * call.head_dim;
  params.q8_out.head_stride = call.head_dim;
  params.q8_out.scale = call.q_scale;
  params.rope.style = call.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = call.rope_dim;
  set_cos_sin_table(params.rope, call.cos_sin_cache, DType::f32, call.max_position);
  params.places.positions = call.pos_ids;
  params.places.slot_mapping = index_view(call.slot_mapping);
  params.places.num_seqs = call.batch_size;
  params.places.cu_seqlens_q = call.append_indptr;
  params.places.page_table.kv_indptr = call.kv_indptr;
  params.places.page_table.kv_indices = call.kv_indices;
  params.places.page_table.num_kv_indices = call.num_kv_indices;
  params.places.page_table.kv_last_page_len = call.kv_last_page_len;
  params.cache.k.data = call.k_cache;
  params.cache.v.data = call.v_cache;
  params.cache.k.format.type = params.cache.v.format.type = DType::fp8_e4m3;
  params.cache.num_pages = call.max_pages;
  params.cache.page_size = call.page_size;
  params.cache.num_kv_heads = call.num_kv_heads;
  params.cache.k.head_dim = call.head_dim;
  const int64_t page = call.page_size * call.num_kv_heads * call.head_dim;
  params.cache.k.strides = params.cache.v.strides = call.hnd ? PageStrides{page, call.head_dim, call.page_size * call.head_dim}
                                                             : nhd_strides(call.page_size, call.num_kv_heads, call.head_dim);
  params.cache.k.format.scaling = params.cache.v.format.scaling = KvScaling::tensor;
  params.cache.k.scale = params.cache.v.scale = call.kv_scale;
  params.faults = faults;
  return attention_prologue(params, execution);
}

}  // namespace prologue::adapters::flashinfer
