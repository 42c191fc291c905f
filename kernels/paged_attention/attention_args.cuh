// This file has what all attention kernels have in common: the rows and pages of a sequence, positions as slots of the cache, scores, scales.
#pragma once

#include <prologue/kernels/base/shared/block_scale.h>
#include <prologue/kernels/base/shared/page_table.h>
#include <prologue/kernels/base/shared/tanh.h>
#include <prologue/kernels/paged_attention/attention_args.h>
#include <prologue/kernels/base/device/cuda_types.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

// ---------------------------------------------------------------------------------------------------------------------
// Sequences, rows and pages

// Holds the query rows of a sequence. There are none if its entries in cu_seqlens_q, which nothing has checked before, are not valid.
struct QueryRows {
  int first = 0;
  int count = 0;
  bool valid = true;
};

__device__ inline QueryRows query_rows_of(const PagedAttentionParams& p, int64_t s) {
  const int first = p.cu_seqlens_q[s];
  const int end = p.cu_seqlens_q[s + 1];
  const int64_t max_rows = s < p.num_decode_seqs ? 1 : p.max_seqlen_q;
  const bool valid = first >= 0 && first <= end && end <= p.num_tokens && end - first <= max_rows;
  return {first, valid ? end - first : 0, valid};
}

// Whether the first block of a sequence has rows to clear, or a fault to record.
__device__ inline bool has_bad_rows(const QueryRows& rows, int64_t s) { return !rows.valid || (s == 0 && rows.first > 0); }

// Writes zeros and records a fault for the rows that are not valid: those of such a sequence, and those before the first sequence. One
// block for each kv head does it, so rows that the launch has no blocks for are cleared too: `threads` of its threads.
__device__ inline void clear_bad_rows(const AttentionArgs& args, int64_t s, int kv_head, int thread, int threads) {
  const PagedAttentionParams& p = args.p;
  const bool valid = query_rows_of(p, s).valid;
  const auto row_of = [&](int64_t entry) { return max(int64_t{0}, min(entry, p.num_tokens)); };
  const int64_t first = row_of(p.cu_seqlens_q[s]);
  const int64_t end = row_of(p.cu_seqlens_q[s + 1]);
  const int64_t bad_begin = s == 0 ? 0 : first;
  const int64_t bad_end = valid ? first : max(first, end);
  const int64_t width = static_cast<int64_t>(args.group) * args.v_head_dim;
#pragma unroll 1  // it runs for bad calls only
  for (int64_t i = thread; i < (bad_end - bad_begin) * width; i += threads) {
    const int64_t head = static_cast<int64_t>(kv_head) * args.group + i % width / args.v_head_dim;
    const int64_t row = (bad_begin + i / width) * p.out.token_stride + head * p.out.head_stride;
    store_element(p.dtype, p.out.data, row + i % args.v_head_dim, 0.0f);
  }
  if (kv_head != 0) return;
#pragma unroll 1
  for (int64_t row = bad_begin + thread; row < bad_end; row += threads) {
    cuda::record_fault(p.faults, p.token_faults, row, FaultCode::query_rows_out_of_range);
  }
  if (bad_begin >= bad_end && thread == 0) cuda::record_fault(p.faults, end, FaultCode::query_rows_out_of_range);
}
__device__ inline void clear_bad_rows(const AttentionArgs& args, int64_t s, int kv_head) {
  clear_bad_rows(args, s, kv_head, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

struct Sequence {
  int first_row = 0;  // its first query row
  int num_rows = 0;
  bool bad_rows = false;  // has_bad_rows
  int length = 0;         // tokens in the cache; 0 if that is not valid
  bool too_long = false;
  const int32_t* pages = nullptr;

  // Query row j attends to the positions below this.
  __device__ int limit(int j) const { return max(0, length - num_rows + j + 1); }
};

// Returns the first position that a row with this limit attends to.
__device__ inline int lowest(const AttentionArgs& args, int limit) {
  return max((limit - 1) / args.chunk * args.chunk, limit - args.window);
}

// A row attends to `count` positions from `first` on.
struct VisibleKeys {
  int first = 0;
  unsigned count = 0;

  VisibleKeys() = default;
  __device__ VisibleKeys(const AttentionArgs& args, int limit)
      : first(lowest(args, limit)), count(static_cast<unsigned>(limit - first)) {}
  __device__ bool hold(int position) const { return static_cast<unsigned>(position - first) < count; }
};

__device__ inline Sequence sequence_at(const AttentionArgs& args, int64_t s) {
  const PagedAttentionParams& p = args.p;
  Sequence sequence;
  const int of_seq_lens = p.seq_lens != nullptr ? p.seq_lens[s] : 0;  // first, so that all loads are in flight together
  const QueryRows rows = query_rows_of(p, s);
  sequence.first_row = rows.first;
  sequence.num_rows = rows.count;
  sequence.bad_rows = has_bad_rows(rows, s);
  const PageRow row = page_row(p.page_table, s);
  const int64_t length =
      p.seq_lens != nullptr ? of_seq_lens : length_of_pages(row, p.page_table.kv_last_page_len[s], p.kv.page_size);
  const int64_t slots = p.ring_size > 0 ? min(length, p.ring_size) : length;
  sequence.too_long = length == kUnknownLength || length > p.max_seq_len || slots > row.count * p.kv.page_size;
  sequence.length = sequence.too_long ? 0 : static_cast<int>(max(int64_t{0}, length));
  sequence.pages = row.pages;
  return sequence;
}

// Where a position would be if the sequence's pages were contiguous.
__device__ inline int logical_slot_of(const AttentionArgs& args, int position) { return position % args.ring_size; }

__device__ inline int page_index(const AttentionArgs& args, int logical_slot) { return logical_slot / args.page_size; }

// Holds a token's slot in the cache. The page is negative if there is none.
struct CacheSlot {
  int64_t page;
  int64_t offset;

  __device__ int64_t in(const PageStrides& strides) const { return page * strides.page + offset * strides.token; }
};

__device__ inline CacheSlot cache_slot(const AttentionArgs& args, int page, int logical_slot) {
  if (page < 0 || page >= args.p.kv.num_pages) return {-1, 0};
  return {page, logical_slot % args.page_size};
}

// Returns exp2(x - maximum). The maximum may still be that of no score.
__device__ inline float weight_of(float x, float maximum) { return exp2f(x - (maximum == -INFINITY ? 0.0f : maximum)); }

// Returns a scaled score after the soft cap.
__device__ inline float capped(const AttentionArgs& args, float score) { return args.cap_log2 * tanh_f32(score); }

// Does the same in a few instructions, to about 2^-21 of the cap: tanh(x) = 1 - 2 / (1 + exp(2 x)). That is enough for 16-bit operands.
__device__ inline float capped_roughly(const AttentionArgs& args, float score) {
  constexpr float kTwoLog2E = 2.8853900817779268f;
  return fmaf(-2.0f * args.cap_log2, __fdividef(1.0f, 1.0f + exp2f(kTwoLog2E * score)), args.cap_log2);
}

// Returns what is added to the sum of a row's weights, relative to their maximum, for its sink: 0 without sinks. It is infinity where the
// sink is so much larger that the row is zeros, and where no key has a weight.
__device__ inline float sink_weight(const PagedAttentionParams& p, int64_t q_head, float maximum) {
  constexpr float kLog2E = 1.4426950408889634f;
  if (maximum == -INFINITY) return INFINITY;
  return p.sinks == nullptr ? 0.0f : exp2f(load_element(p.sinks_type, p.sinks, q_head) * kLog2E - maximum);
}

// A faulty row is zeros, and recorded by the one thread that owns its first head.
__device__ inline void record_row_fault(const AttentionArgs& args, const Sequence& sequence, int j) {
  cuda::record_fault(args.p.faults, args.p.token_faults, sequence.first_row + j,
                     sequence.too_long ? FaultCode::sequence_too_long : FaultCode::page_out_of_range);
}

// Returns which rows of a tile see a position, one bit per row.
template <int kRows>
__device__ inline uint64_t rows_that_see(const AttentionArgs& args, const Sequence& sequence, int first_packed, int position) {
  uint64_t rows = 0;
#pragma unroll 1
  for (int r = 0; r < kRows; ++r) {
    const int packed = first_packed + r;
    const bool exists = packed < sequence.num_rows * args.group;
    if (exists && VisibleKeys(args, sequence.limit(packed / args.group)).hold(position)) rows |= uint64_t{1} << r;
  }
  return rows;
}

// ---------------------------------------------------------------------------------------------------------------------
// Scales of a quantised cache. Kernels for one format look only at the format of K.

// Returns the scale that all positions have, or 1 if every token has its own.
__device__ inline float shared_scale(const KvFormat& format, const float* scale, int kv_head) {
  if (format.scaling == KvScaling::tensor) return scale[0];
  return format.scaling == KvScaling::head ? scale[kv_head] : 1.0f;
}

__device__ inline float token_scale(const float* scale, const PageStrides& strides, const CacheSlot& slot, int kv_head) {
  return scale[slot.in(strides) + kv_head * strides.head];
}

// Returns what the codes of the block that `channel` is in are multiplied by, or 1 if the format is not block-scaled.
__device__ inline float block_factor_at(const PagedHeads& side, int head_dim, const CacheSlot& slot, int kv_head, int channel) {
  const KvFormat& format = side.format;
  if (!is_block_scaled(format)) return 1.0f;
  const int channels = static_cast<int>(block_channels(format));
  const int64_t at = block_scale_offset(side.block_scale_layout, side.scale_strides.token, slot.offset, channel / channels,
                                        head_dim / channels);
  const uint8_t code = side.block_scale[slot.page * side.scale_strides.page + kv_head * side.scale_strides.head + at];
  return block_factor(code, format, tensor_scale_of(format, side.scale));
}

// A zero point of uint4 is stored after its scale.
__device__ inline float token_zero_point(const float* scale, const PageStrides& strides, const CacheSlot& slot, int kv_head) {
  return scale[slot.in(strides) + kv_head * strides.head + 1];
}

}  // namespace prologue::cuda
