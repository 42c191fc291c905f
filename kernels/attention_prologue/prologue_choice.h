// Says what a call needs of a CUDA kernel: how wide its vectors can be, and the features that a lean instance must have. There is no CUDA
// here.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

namespace prologue::cuda {

inline bool has_k(const AttentionPrologueParams& p) { return p.num_kv_heads > 0 && p.k.data != nullptr; }
inline bool has_v(const AttentionPrologueParams& p) { return p.num_kv_heads > 0 && p.v.data != nullptr; }
inline bool normed(const HeadNorm& norm) { return norm.placement != NormPlacement::none; }
inline bool q_normed(const AttentionPrologueParams& p) { return p.num_q_heads > 0 && normed(p.q_norm); }
inline bool k_normed(const AttentionPrologueParams& p) { return has_k(p) && normed(p.k_norm); }
// Q or K has a norm over the whole token.
inline bool normed_over_token(const AttentionPrologueParams& p) {
  return (q_normed(p) && p.q_norm.scope == NormScope::token) || (k_normed(p) && p.k_norm.scope == NormScope::token);
}

// cos and sin are the halves of one float32 table [rows, rotary_dim].
inline bool one_table(const Rope& rope) {
  const auto* cos = static_cast<const float*>(rope.cos.data);
  return rope.rotary_dim > 0 && rope_rows_are_given(rope.source) && rope.type == DType::f32 && cos != nullptr &&
         rope.sin.data == cos + rope.rotary_dim / 2 && rope.cos.row_stride == rope.rotary_dim &&
         rope.sin.row_stride == rope.rotary_dim;
}

inline constexpr int64_t kMaxBlocksOfToken = 65535;  // blockIdx.y

// Returns the most channels in one access: pointers and strides are aligned to them.
int64_t widest_vector(const AttentionPrologueParams& params);

// Returns the same for kernels that are made for a call: heads may be aligned to less.
int64_t widest_described_vector(const AttentionPrologueParams& params);

// Returns the units (head_layout.h) of the longest head.
int64_t units_of_all(const AttentionPrologueParams& params, int64_t vector);

// Returns whether every byte offset fits that lean and described kernels compute in 32 bits.
bool fits_32_bits(const AttentionPrologueParams& params);

// Returns whether a token has so few heads that many tokens had better share blocks, with one head a thread.
bool has_few_heads(const AttentionPrologueParams& params);

// Returns whether vectors of 4-bit elements can be stored in one access.
bool packs_whole_vectors(const PagedHeads& side, int64_t vector);

// The features (prologue_args.h) that a lean instance must have, or -1 where only the general kernel will do. `vector` is the number of
// channels in one access.
int features_of(const AttentionPrologueParams& params, int64_t vector);

}  // namespace prologue::cuda
