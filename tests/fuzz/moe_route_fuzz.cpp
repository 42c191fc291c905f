// Calls kernels/moe/moe_route.h with any struct.
#include <prologue/kernels/moe/moe_route.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("moe_route");
  Choices choices(data, size);
  MemoryMap map(choices);
  MoeRouteParams p;
  p.num_tokens = choices.size(0, 6);
  p.num_experts = choices.size(1, 40);
  p.top_k = choices.size(1, p.num_experts < 1 || p.num_experts > 8 ? 8 : p.num_experts);
  p.dtype = activation_type(choices);
  p.weighting = choices.enumerator(ExpertWeighting::sigmoid);
  p.normalize = p.weighting == ExpertWeighting::softmax_then_top_k ? choices.chance(2) : choices.hostile();
  p.logits_stride = choices.stride(p.num_experts);
  const int64_t count = times(p.num_tokens, p.top_k);
  map.array("logits", p.logits, rows(p.num_tokens, p.logits_stride, p.num_experts, 8 * dtype_size(p.dtype)), Use::read,
            float_type_of(p.dtype));
  map.array("expert_ids", p.expert_ids, dense(count, 4), Use::write);
  map.array("expert_weights", p.expert_weights, dense(count, 4), Use::write);
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.expert_ids, 0, times(count, 4));
  map.permit(p.expert_weights, 0, times(count, 4));
  const Status status = moe_route(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
