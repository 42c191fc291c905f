// Calls kernels/paged_attention/paged_attention.h with any struct.
#include <prologue/kernels/paged_attention/paged_attention.h>

#include "tests/fuzz/prologue_parts.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("paged_attention");
  Choices choices(data, size);
  MemoryMap map(choices);
  PagedAttentionParams p;
  p.num_tokens = choices.size(0, 7);
  p.num_seqs = choices.size(0, 3);
  p.head_dim = choices.head_dim();
  const int64_t num_kv_heads = choices.size(1, 3);
  p.num_q_heads = choices.hostile() ? choices.absurd() : times(num_kv_heads, choices.integer(1, 4));
  p.dtype = activation_type(choices);
  p.scale = choices.real(0.25f);
  p.soft_cap = choices.chance(3) ? choices.real(5.0f) : 0.0f;
  p.window = choices.chance(2) ? 0 : choices.size(1, 9);
  p.chunk = choices.chance(3) ? choices.size(0, 9) : 0;
  p.ring_size = choices.chance(3) ? choices.size(0, 20) : 0;
  p.max_seqlen_q = choices.hostile() ? choices.absurd() : choices.integer(1, 8);
  p.max_seq_len = choices.hostile() ? choices.absurd() : choices.integer(1, 24);
  p.num_decode_seqs = choices.hostile() ? choices.absurd() : choices.integer(0, std::clamp<int64_t>(p.num_seqs, 0, 3));
  p.batch_invariant = choices.chance(3);
  decode_cache(choices, map, p.kv, p.dtype, num_kv_heads, p.head_dim, true, true, Use::read);
  const int64_t v_width = p.kv.v.head_dim > 0 ? p.kv.v.head_dim : p.kv.k.head_dim, bits = bits_of(p.dtype);
  const HeadStrides q = head_strides(choices, p.num_tokens, p.num_q_heads, p.head_dim);
  const HeadStrides out = head_strides(choices, p.num_tokens, p.num_q_heads, v_width);
  p.q = {nullptr, q.token, q.head};
  p.out = {nullptr, out.token, out.head};
  map.array("q", p.q.data, view_extent(p.q, p.num_tokens, p.num_q_heads, p.head_dim, bits), Use::read, float_type_of(p.dtype));
  map.array("out", p.out.data, view_extent(p.out, p.num_tokens, p.num_q_heads, v_width, bits), Use::write);
  if (choices.chance(3)) {
    p.sinks_type = weight_type(choices);
    const DType type = float_type_of(resolve_dtype(p.sinks_type, p.dtype));
    map.optional("sinks", p.sinks, dense(p.num_q_heads, dtype_size(type)), Use::read, type);
  }
  const bool lengths_of_pages = choices.chance(4);
  if (lengths_of_pages && !choices.hostile()) p.ring_size = 0;
  decode_page_table(choices, map, p.page_table, p.num_seqs, 4, lengths_of_pages);
  map.array("cu_seqlens_q", p.cu_seqlens_q, dense(plus(p.num_seqs, 1), 4), Use::read);
  if (!lengths_of_pages) {
    map.array("seq_lens", p.seq_lens, dense(p.num_seqs, 4), Use::read);
  } else if (choices.hostile()) {
    map.optional("seq_lens", p.seq_lens, dense(p.num_seqs, 4), Use::read);
  }
  if (!choices.chance(8)) map.optional("faults", p.faults, dense(1, sizeof(FaultRecord)), Use::write);
  if (choices.chance(2)) map.optional("counters", p.counters, dense(kPagedAttentionCounters, 4), Use::write);
  if (choices.chance(2)) map.optional("token_faults", p.token_faults, dense(p.num_tokens, 1), Use::write);
  if (!map.allocate()) return 0;
  fill_batch(choices, p.cu_seqlens_q, p.num_seqs, p.num_tokens, p.seq_lens, std::min<int64_t>(p.max_seq_len, 100));
  fill_page_table(choices, p.page_table, p.num_seqs, p.kv.num_pages, p.kv.page_size);

  map.freeze();
  const Execution where = execution(choices);
  const bool no_op = p.num_tokens == 0 || p.num_seqs == 0;
  if (no_op) map.forgive();
  map.permit(p.faults, 0, sizeof(FaultRecord));
  if (!no_op && validate(p, Device::cpu).ok()) {
    const int64_t end = valid_seqlens(p.cu_seqlens_q, p.num_seqs) ? p.cu_seqlens_q[p.num_seqs] : p.num_tokens;
    for (int64_t t = 0; t < std::min(end, p.num_tokens); ++t) {
      permit_rows(map, p.out.data, t, p.out.token_stride, p.num_q_heads, p.out.head_stride, v_width, bits);
      if (p.token_faults != nullptr) map.permit(p.token_faults, t, 1);
    }
  }
  const Status status = paged_attention(p, where);
  map.check(status);
  tally.count(status.ok());
  return 0;
}
