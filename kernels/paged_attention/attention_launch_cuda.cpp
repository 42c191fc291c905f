#include <prologue/kernels/paged_attention/attention_launch.h>

namespace prologue::cuda {

int64_t max_keys(const PagedAttentionParams& params) {
  int64_t keys = params.max_seq_len;
  for (const int64_t of_a_row : {params.window, params.chunk}) {
    if (of_a_row > 0) keys = std::min(keys, of_a_row + params.max_seqlen_q - 1);
  }
  return keys;
}

bool groups_are_whole(const PagedAttentionParams& p) {
  const auto aligned = [](const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; };
  const int64_t group = 16 / dtype_size(p.dtype);
  bool whole = aligned(p.q.data, 16) && aligned(p.out.data, 16);
  for (const int64_t width : {p.head_dim, v_head_dim(p.kv)}) whole = whole && width % group == 0;
  for (const int64_t stride : {p.q.token_stride, p.q.head_stride, p.out.token_stride, p.out.head_stride}) {
    whole = whole && stride % group == 0;
  }
  for (const PagedHeads* side : {&p.kv.k, &p.kv.v}) {
    const int64_t cache_bits = dtype_bits(side->format.type);
    const int64_t cache_group = cache_bits == 32 ? 4 : 8;
    whole = whole && aligned(side->data, cache_group * cache_bits / 8);
    for (const int64_t width : {p.head_dim, v_head_dim(p.kv)}) whole = whole && width % cache_group == 0;
    for (const int64_t stride : {side->strides.page, side->strides.token, side->strides.head}) {
      whole = whole && stride % cache_group == 0;
    }
  }
  return whole;
}

AttentionArgs make_args(const PagedAttentionParams& params) {
  constexpr float kLog2E = 1.4426950408889634f;
  AttentionArgs args;
  args.p = params;
  args.score_scale = params.soft_cap > 0.0f ? params.scale / params.soft_cap : params.scale * kLog2E;
  args.cap_log2 = params.soft_cap * kLog2E;
  if (params.window > 0) args.window = static_cast<int>(params.window);
  const auto divisor = [](int64_t number) { return Divisor(static_cast<int32_t>(std::min<int64_t>(number, INT32_MAX))); };
  args.chunk = divisor(params.chunk);
  args.group = divisor(group_of(params));
  args.num_kv_heads = divisor(params.kv.num_kv_heads);
  args.page_size = divisor(params.kv.page_size);
  args.ring_size = divisor(params.ring_size);
  args.v_head_dim = static_cast<int>(v_head_dim(params.kv));
  args.whole_groups = groups_are_whole(params);
  const PageStrides &k = params.kv.k.strides, &v = params.kv.v.strides;
  args.same_rows = args.v_head_dim == params.head_dim && k.page == v.page && k.token == v.token && k.head == v.head;
  return args;
}

// Every sequence's last tile may be partial, or its only one for rows to clear: at most num_seqs more than the rows fill.
int64_t prefill_blocks(const PagedAttentionParams& params, int64_t first_seq, int64_t tile_rows) {
  const int64_t num_seqs = params.num_seqs - first_seq;
  const int64_t tiles_by_rows = params.num_tokens * group_of(params) / tile_rows + num_seqs;
  const int64_t tiles_by_length = num_seqs * divide_up(max_packed_rows(params), tile_rows);
  return std::min(tiles_by_rows, tiles_by_length) * params.kv.num_kv_heads;
}

Status too_large(int64_t blocks) {
  return invalid_argument("paged_attention: num_seqs, max_seqlen_q and the heads need ", blocks, " blocks: a launch has at most ",
                          kMaxGrid);
}

const char* cache_name(PrefillCache cache) {
  return cache == PrefillCache::dtype ? "same" : cache == PrefillCache::codes ? "codes" : "any";
}

}  // namespace prologue::cuda
