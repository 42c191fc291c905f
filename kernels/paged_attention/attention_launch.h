// This file has what several families of kernels (attention_families.h) need for a launch: sizes of the call, and the kernels' arguments.
// Internal, for CUDA.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/paged_attention/attention_instances.cuh>

namespace prologue::cuda {

inline constexpr int64_t kMultiprocessors = 132;  // that launches fill: a constant, so that every GPU gives the same bits
inline constexpr int64_t kMaxGrid = INT_MAX;
// Kernels count the packed rows of a sequence, and the rows of a tile beyond the last, in an int.
inline constexpr int64_t kMaxPackedRows = INT_MAX - 1024;
inline constexpr int64_t kMaxBoxStride = (int64_t{1} << 40) / 2;  // of TMA, in elements

// Returns how many query heads use the same kv head.
inline int64_t group_of(const PagedAttentionParams& params) { return params.num_q_heads / params.kv.num_kv_heads; }

// Returns query heads of a kv head times rows of a sequence.
inline int64_t max_packed_rows(const PagedAttentionParams& params) {
  return std::min(params.max_seqlen_q, params.num_tokens) * group_of(params);
}

inline int64_t largest_head_dim(const PagedAttentionParams& params) { return std::max(params.head_dim, v_head_dim(params.kv)); }

// Returns the most positions that the rows of one sequence see.
int64_t max_keys(const PagedAttentionParams& params);

inline bool one_format(const PagedKvView& kv) {
  return kv.k.format.type == kv.v.format.type && kv.k.format.scaling == kv.v.format.scaling;
}

// Whether K or V is block-scaled: only kernels that are made for that read it.
inline bool has_block_scales(const PagedKvView& kv) { return is_block_scaled(kv.k.format) || is_block_scaled(kv.v.format); }

// Whether every head of q, out and the cache consists of whole groups, as the kernels load them: 16 bytes, or 8 codes of a quantised cache.
bool groups_are_whole(const PagedAttentionParams& params);

AttentionArgs make_args(const PagedAttentionParams& params);

// Returns the number of prefill blocks: one for each kv head and each tile of tile_rows packed rows of the sequences from first_seq on.
int64_t prefill_blocks(const PagedAttentionParams& params, int64_t first_seq, int64_t tile_rows);

Status too_large(int64_t blocks);

const char* cache_name(PrefillCache cache);

}  // namespace prologue::cuda
