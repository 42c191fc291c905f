// Computes attention of new tokens over a paged KV cache that already holds their K and V (the prologue wrote them): prefill, decode, or
// both in one batch. Attention is causal and grouped-query. The operation reads every type and layout of cache that the prologue writes.
//
// Sequence s owns the n query rows [cu_seqlens_q[s], cu_seqlens_q[s+1]). They are the last n of its seq_lens[s] tokens. Row j is
// the token at position p0 = seq_lens[s] - n + j. It attends to the positions first <= p <= p0. `first` is the largest of
//   0;  p0 - window + 1, unless window is 0;  the beginning of its chunk, p0 / chunk * chunk, unless chunk is 0 (Llama 4)
// Position p is in the page that entry r / page_size of the sequence in page_table says, at offset r % page_size, where r =
// p % ring_size (ring_size = 0: r = p).
// Query head h reads kv head h / (num_q_heads / num_kv_heads).
//
//   score_p       = scale * <q[t, h, :], K[p]>;  with a soft cap: soft_cap * tanh(score_p / soft_cap)
//   out[t, h, :]  = sum_p exp(score_p - m) V[p] / (sum_p exp(score_p - m) + exp(sinks[h] - m)), m being the largest score or sink
//
//   q             [T, num_q_heads, head_dim] dtype, strided; T = cu_seqlens_q[num_seqs] <= num_tokens; rows past T are padding
//   out           [T, num_q_heads, v_head_dim] dtype, strided; must not overlap anything that is read; padding is not written
//   kv            one layer's cache (views.h) of any type, scaling and strides, read only; K and V may have formats of their own.
//                 They may overlap (MLA: V is the first channels of K). kv.k.head_dim = head_dim; kv.v.head_dim is any even
//                 number up to 576. An element of a quantised cache is its stored number times its scale, plus its zero point
//   sinks         [num_q_heads] of sinks_type: a score of each q head that has no key and no value (GPT-OSS). It is neither scaled
//                 nor capped. Finite; -infinity is no sink. null = none: the last term of the denominator is missing
//   page_table    the pages of the sequences (views.h): a block table or CSR; only entries that a row needs are read
//   cu_seqlens_q  [num_seqs + 1] int32, non-decreasing, from 0 to at most num_tokens; a sequence without rows is allowed
//   seq_lens      [num_seqs] int32, tokens of the sequence AFTER this step's tokens were added; a negative entry counts as 0.
//                 Null if page_table.kv_last_page_len says them: exactly one of the two must be given, and with a ring seq_lens
//   max_seqlen_q  upper bound of the query rows of one sequence; a host value
//   max_seq_len   upper bound of seq_lens, at most 2^30; a host value, with CSR and with a ring too: all tokens of a sequence count, not
//                 only those that a ring holds or a block table has room for. A longer sequence is a fault (below), and without `faults`
//                 its zeros are all that shows it. The size of the launch depends on both bounds, so they must hold for every replay of a
//                 captured graph
//   num_decode_seqs  0..num_seqs; a host value, which must hold for every replay too. The first num_decode_seqs sequences have at
//                 most one row each, whatever max_seqlen_q is. It chooses kernels (see Numerics), so a result may change by rounding
//   counters      [kPagedAttentionCounters], zeros; the call leaves zeros. Calls that may run at the same time need counters of their
//                 own. Without them the call clears some in its workspace, which costs another node in the stream. Only CUDA uses them
//   past_is_ready  a promise that lets the call on Hopper GPUs begin while the launch before it in the stream still runs: that launch (a
//                 prologue, say) is a kernel that writes no more of what this call reads than q and the K and V of the call's own rows,
//                 at the last positions of their sequences, which no other sequence reads. Everything else (lengths, page table, earlier
//                 positions, scales that are not of a token, sinks) was complete before that launch began. Decode then reads the keys of
//                 earlier positions, prefill looks for its work. CUDA: only with counters
//   late_signal   the launch after this one in the stream, if it has a programmatic edge, may begin when decode on Hopper GPUs has read
//                 its keys, and not as soon as it waits for no other kernel. For a launch of many blocks, which would take the places of
//                 others (an output projection, say). It changes no result, and nothing where latent attention is decoded
//   early_signal  the same launch may begin as soon as decode on Hopper GPUs has begun. For a launch that holds its weights until there are
//                 results (a small output projection, say); it takes precedence over late_signal
//   token_faults  [num_tokens]: a FaultCode is written for each row that becomes zeros because of a fault, nothing for other rows
//                 (so the caller clears it); null = not wanted
//
// Ring. It holds the last ring_size positions, including those of this step. So the first row of a step finds its whole window
// only if window + max_seqlen_q - 1 <= ring_size. Anything larger is an error, unless max_seq_len <= ring_size. In place of the
// window counts the chunk if that is smaller, or if there is no window.
//
// Guards. Arrays on the device are checked by the kernel when it reads them. Whatever they hold, nothing outside of the arrays
// above is touched. For each of these faults the rows become zeros and are recorded, with the query row as token:
//   query_rows_out_of_range  a sequence with more than max_seqlen_q rows (of the first num_decode_seqs: more than one), or whose
//                            entries do not satisfy 0 <= cu_seqlens_q[s] <= cu_seqlens_q[s+1] <= num_tokens: its rows inside
//                            [0, num_tokens), or if there are none one fault for the sequence, with token = its last entry clamped
//                            to 0..num_tokens (not in token_faults). Rows before cu_seqlens_q[0]. If cu_seqlens_q decreases, rows
//                            from the smallest entry that follows a larger one on may hold anything, and so may their faults
//   sequence_too_long        seq_lens > max_seq_len, or min(seq_lens, ring_size) > the sequence's pages * page_size (none if its
//                            entries of kv_indptr are bad). Also if its length should come from kv_last_page_len and these
//                            entries are bad, or its last page is not 1..page_size tokens long
//   page_out_of_range        an entry of the page table outside [0, num_pages): only the rows that need it
// A row that attends to nothing (seq_lens is less than the number of rows) becomes zeros, with sinks too. This is not a fault. Neither is
// a row all of whose scores are -infinity, its sink too: no key has a weight, and the row becomes zeros.
//
// Numerics.
//   Scores, softmax and sums are float32. Scales are multiplied in float32. The result is rounded once, at the store. A score that float32
//   cannot hold is an infinity; a key with a score of -infinity has the weight 0.
//   16-bit types on CUDA may use tensor cores. They accumulate in float32. Probabilities are rounded to dtype before the second
//   product; in decode over a quantised cache to float16, whatever dtype is, so what is below 2^-14 of the largest loses digits and what
//   is up to 2^-25 of it is 0 (docs/numerics.md). The V of a position that one row must not see but another row of the same
//   block needs may be multiplied by 0. Then a NaN in it reaches both rows. Over a quantised cache with a scale for each token,
//     prefill  rounds V to dtype, as a cache of dtype would hold it;
//     decode   rounds the product of probability and scale to float16, relative to the largest product of the row so far, and keeps
//              the codes as they are. (q becomes float16, times a power of two for each row that lets its largest element fill
//              float16: what bfloat16 has beyond that is 2^-38 of it.) Scales of V below 2^-90 may count as 0.
//   Over a block-scaled cache decode in 16-bit types uses tensor cores if K and V are both MXFP8, or each MXFP4 or NVFP4. Weights are rounded
//   as over codes with scales of tokens; a block whose scale is below 2^-15 of the largest of its head may lose digits (docs/numerics.md).
//   Zero points are applied to sums where that saves work. On the CPU an element is code * scale + zero point, rounded once to
//   float32. On CUDA decode, and prefill with tensor cores, take a score as <q, codes> * scale of K + zero point of K * sum(q):
//   the first product is rounded, then one fused multiply-add; sum(q) is float32, once for each row. Decode takes
//   out = (sum_p (w_p * scale of V) * code + sum_p w_p * zero point of V) / sum_p w_p, w_p being exp(score_p - the maximum so far)
//   (with tensor cores w_p * scale rounded as above in both sums): the second sum is rescaled with the first one when the maximum
//   changes and when warps are combined, and before a part of a sequence is stored the two are added. Prefill takes V, without
//   tensor cores K too, as fma(code, scale, zero point).
//   The kernels of CUDA: if max_seqlen_q is at most 4, decode runs all sequences. Otherwise decode runs the first num_decode_seqs
//   and prefill the others, in two launches, and the rows of the first ones have the bits of a call with these sequences alone,
//   the same max_seq_len and max_seqlen_q = 1.
//   On Hopper GPUs (compute capability 9.0) prefill in 16-bit types has kernels of its own, for heads of up to 256 channels and a positive
//   `scale`. Over a cache of dtype: for what TMA can copy, pages of a power of two of at least 8 slots, a ring of whole pages or of a
//   multiple of 64 slots, and heads and strides that are multiples of 16 bytes. Over a quantised one, whatever the formats of K and V are
//   and the pages: for head dims and strides of multiples of 16 numbers, data aligned to as many, and less than 2^31 times 16 of them.
//   Other calls run as on other GPUs. Results differ by rounding.
//   So has decode of latent attention (MLA): one kv head of 576 channels, V being its first 512, over a cache of dtype, bfloat16 or
//   float16, with pages and a ring of multiples of 16 slots, a positive scale, and the same multiples of 16 bytes. Of few
//   long sequences it is two launches, the second of which adds up.
//   Decode, and prefill of few rows there, may split a sequence into parts and combine them through the workspace, in a way that
//   depends on the batch. So the result is deterministic, but not batch-invariant, unless:
//   batch_invariant  the bits of a row depend only on q of that row, the K and V that it sees and the sinks: not on the other rows and
//                    sequences of the call, nor on how the rows of its sequence are divided into steps (token by token, chunks,
//                    all at once), nor on num_tokens, num_seqs, max_* and num_decode_seqs. On CUDA every row runs in the prefill
//                    kernels then, without splits and without a workspace; a decode step of few long sequences is slower. The
//                    calls that are compared have equal strides and formats, the same GPU model, and base addresses that are
//                    alike multiples of 16 bytes or not. On CUDA V must be finite (above). On the CPU it holds always, and costs
//                    nothing
//
// num_tokens = 0 or num_seqs = 0 is a no-op. The operation never allocates or synchronises, and is safe under graph capture. On
// the CPU each thread needs less than 112 KiB of stack.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// CUDA needs so many counters if several blocks work on one sequence.
inline constexpr int64_t kPagedAttentionCounters = 264;

struct PagedAttentionParams {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
  int64_t num_q_heads = 0;
  int64_t head_dim = 0;  // of q and K: even, 2..576
  DType dtype = DType::unset;
  float scale = 0.0f;     // of the scores; usually 1 / sqrt(head_dim)
  float soft_cap = 0.0f;  // 0 = none
  int64_t window = 0;     // tokens that a row sees, including its own; 0 = all up to its own
  int64_t chunk = 0;      // a row sees only tokens of its own chunk of so many positions; 0 = no chunks
  int64_t ring_size = 0;  // in tokens, as in TokenPlaces; 0 = every position has its own slot
  HeadsView q;
  PagedKvView kv;
  const void* sinks = nullptr;      // [num_q_heads]; null = none
  DType sinks_type = DType::unset;  // dtype (unset means that) or float32
  PageTable page_table;
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* seq_lens = nullptr;
  int64_t max_seqlen_q = 0;
  int64_t max_seq_len = 0;
  int64_t num_decode_seqs = 0;   // so many sequences, the first ones, have at most one row each
  bool batch_invariant = false;  // a row's bits do not depend on the rest of the batch
  bool past_is_ready = false;    // the launch before this one writes q and the rows' own K and V at most
  bool late_signal = false;      // the launch after this one may begin when the keys have been read, not before
  bool early_signal = false;     // the launch after this one may begin as soon as this one has begun
  MutableHeadsView out;
  void* workspace = nullptr;  // device scratch of paged_attention_workspace_bytes, aligned to 16; null if that is 0
  int64_t workspace_bytes = 0;
  uint32_t* counters = nullptr;  // [kPagedAttentionCounters] on the device; null = not given
  FaultRecord* faults = nullptr;
  uint8_t* token_faults = nullptr;  // [num_tokens]: a FaultCode is written for each faulty row; null = not wanted
  uint64_t reserved[8] = {};        // zeros: docs/versioning.md
};

// Returns the bytes of workspace that are enough for every call whose num_tokens, num_seqs, max_seqlen_q and max_seq_len are not larger
// than these and whose other members, num_decode_seqs aside, are equal. 0 on the CPU and with batch_invariant.
PROLOGUE_API int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params, Device device);

// Makes all checks of paged_attention(), and runs nothing.
PROLOGUE_API Status validate(const PagedAttentionParams& params, Device device);
PROLOGUE_API Status paged_attention(const PagedAttentionParams& params, const Execution& execution);

}  // namespace prologue
