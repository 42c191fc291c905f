// Calls kernels/qkv_prologue/qkv_prologue.h with any struct.
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>

#include <memory>

#include "tests/fuzz/projection_parts.h"
#include "tests/fuzz/prologue_parts.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("qkv_prologue");
  static const std::unique_ptr<GemmContext> context = std::move(GemmContext::create(Device::cpu)).value();
  Choices choices(data, size);
  MemoryMap map(choices);
  QkvPrologueParams p;
  AttentionPrologueParams& q = p.prologue;
  decode_prologue(choices, map, q, true);
  decode_fault_records(choices, map, q);
  p.hidden_size = choices.size(1, 40);
  p.batch_invariant = choices.chance(3);
  p.overlaps = choices.chance(2);
  decode_norm(choices, map, p.norm, p.hidden_size, q.dtype);
  p.hidden_stride = p.norm.given != 0 && !choices.hostile() ? p.hidden_size : choices.stride(p.hidden_size);
  const int64_t bits = bits_of(q.dtype), v_width = q.cache.v.head_dim > 0 ? q.cache.v.head_dim : q.head_dim;
  const int64_t width = plus(times(q.num_q_heads, q.head_dim), times(q.num_kv_heads, plus(q.head_dim, v_width)));
  const DType type = float_type_of(q.dtype);
  map.array("hidden_states", p.hidden_states, rows(q.num_tokens, p.hidden_stride, p.hidden_size, bits), Use::read, type);
  map.array("weight", p.weight, dense(times(width, p.hidden_size), bits / 8), Use::read, type);
  const HeadStrides strides = head_strides(choices, q.num_tokens, q.num_q_heads, q.head_dim);
  q.q_out = {nullptr, strides.token, strides.head};
  map.array("q_out", q.q_out.data, view_extent(q.q_out, q.num_tokens, q.num_q_heads, q.head_dim, bits), Use::write, type);
  decode_workspace(choices, map, qkv_prologue_workspace_bytes(p), p.workspace, p.workspace_bytes);
  if (!map.allocate()) return 0;
  fill_prologue(choices, q);
  PageTable& table = q.places.page_table;  // where slots are given, nothing is found in it but lengths
  if (q.places.slot_mapping.data != nullptr && table.kv_last_page_len == nullptr) {
    table.block_table = table.kv_indptr = table.kv_indices = nullptr;
  }

  map.freeze();
  AttentionPrologueParams inner = q;  // q, k and v are in the workspace, which is permitted as a whole
  inner.q.data = inner.k.data = inner.v.data = p.workspace;
  map.forgive();  // what must be refused is known to the targets of projection and of attention_prologue; here nothing is touched
  map.permit(p.workspace, 0, p.workspace_bytes);
  if (validate(p, *context, {Device::cpu, 1}).ok()) permit_prologue(map, inner);
  const Status status = qkv_prologue(p, *context, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
