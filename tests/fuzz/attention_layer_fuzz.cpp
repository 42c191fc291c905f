// Calls layers/attention_layer.h with any struct: nothing is written after an error, and no constant is ever written.
#include <prologue/layers/attention_layer.h>

#include "tests/fuzz/prologue_parts.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("attention_layer");
  static const std::unique_ptr<GemmContext> context = std::move(GemmContext::create(Device::cpu)).value();
  Choices choices(data, size);
  MemoryMap map(choices);
  AttentionLayerParams p;
  const bool knows_lengths = decode_prologue(choices, map, p.prologue, true);
  decode_fault_records(choices, map, p.prologue);
  const AttentionPrologueParams& q = p.prologue;
  PagedAttentionParams& a = p.attention;
  a.scale = choices.real(0.25f);
  a.soft_cap = choices.chance(3) ? choices.real(5.0f) : 0.0f;
  a.window = choices.chance(2) ? 0 : choices.size(1, 9);
  a.chunk = choices.chance(3) ? choices.size(0, 9) : 0;
  a.ring_size = q.places.ring_size;
  a.max_seqlen_q = choices.hostile() ? choices.absurd() : choices.integer(1, 8);
  a.max_seq_len = choices.hostile() ? choices.absurd() : choices.integer(1, 24);
  p.hidden_size = choices.size(1, 40);
  p.hidden_stride = choices.stride(p.hidden_size);
  const bool same = choices.chance(3);
  p.out_stride = same ? p.hidden_stride : choices.stride(p.hidden_size);
  const int64_t bits = bits_of(q.dtype), v_width = q.cache.v.head_dim > 0 ? q.cache.v.head_dim : q.head_dim;
  const int64_t q_width = times(q.num_q_heads, q.head_dim),
                qkv_width = plus(q_width, times(q.num_kv_heads, plus(q.head_dim, v_width)));
  const DType type = float_type_of(q.dtype);
  const int hidden =
      map.array("hidden_states", p.hidden_states, rows(q.num_tokens, p.hidden_stride, p.hidden_size, bits), Use::read, type);
  map.array("qkv_weight", p.qkv_weight, dense(times(qkv_width, p.hidden_size), bits / 8), Use::read, type);
  map.array("output_weight", p.output_weight, dense(times(p.hidden_size, times(q.num_q_heads, v_width)), bits / 8), Use::read,
            type);
  if (choices.chance(2)) map.optional("output_bias", p.output_bias, dense(p.hidden_size, bits / 8), Use::read, type);
  map.in_place(map.array("out", p.out, rows(q.num_tokens, p.out_stride, p.hidden_size, bits), Use::write), hidden, same);
  if (choices.chance(3)) {
    a.sinks_type = weight_type(choices);
    const DType of = float_type_of(resolve_dtype(a.sinks_type, q.dtype));
    map.optional("sinks", a.sinks, dense(q.num_q_heads, dtype_size(of)), Use::read, of);
  }
  if (!knows_lengths) {
    map.array("seq_lens", a.seq_lens, dense(q.places.num_seqs, 4), Use::read);
  } else if (choices.hostile()) {
    map.optional("seq_lens", a.seq_lens, dense(q.places.num_seqs, 4), Use::read);
  }
  const Result<int64_t> needed = attention_layer_workspace_bytes(p, Device::cpu);
  if (needed.ok()) {
    p.workspace_bytes = choices.hostile() ? *needed - choices.integer(1, 200) : *needed;
    Extent workspace = dense(p.workspace_bytes, 1);
    workspace.alignment = 64;
    map.array("workspace", p.workspace, workspace, Use::write);
  }
  if (!map.allocate()) return 0;
  fill_prologue(choices, q);
  for (int64_t s = 0; present(a.seq_lens) && s < q.places.num_seqs; ++s) {
    const bool known = present(q.places.cu_seqlens_q) && present(q.places.cache_lens) && !choices.chance(8);
    const int64_t rows_of = known ? get_index(q.places.cu_seqlens_q, 4, s + 1) - get_index(q.places.cu_seqlens_q, 4, s) : 0;
    set_index(a.seq_lens, 4, s, known ? get_index(q.places.cache_lens, 4, s) + rows_of : index_value(choices, 0, 9));
  }

  map.freeze();
  const Execution where = execution(choices);
  AttentionPrologueParams inner = q;  // q, k and v are in the workspace, which is permitted as a whole
  inner.k.data = inner.v.data = p.workspace;
  inner.q_out = {};
  if (inner.places.cache_lens == nullptr && inner.places.seq_lens == nullptr) inner.places.seq_lens = a.seq_lens;
  if (q.num_tokens == 0) map.forgive();
  map.permit(p.workspace, 0, p.workspace_bytes);
  for (int64_t t = 0; present(p.out) && t < q.num_tokens; ++t)
    permit_rows(map, p.out, t, p.out_stride, 1, 0, p.hidden_size, bits);
  if (needed.ok() && q.num_tokens > 0) permit_prologue(map, inner);
  const Status status = attention_layer(p, *context, where);
  map.check(status);
  tally.count(status.ok());
  return 0;
}
