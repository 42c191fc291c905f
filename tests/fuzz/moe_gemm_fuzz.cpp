// Calls kernels/moe/moe_gemm.h with any struct.
#include <prologue/kernels/moe/moe_gemm.h>

#include <prologue/kernels/base/host/packed_weight.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("moe_gemm");
  static const std::unique_ptr<GemmContext> context = std::move(GemmContext::create(Device::cpu)).value();
  Choices choices(data, size);
  MemoryMap map(choices);
  MoeGemmParams p;
  p.num_tokens = choices.chance(16) ? choices.integer(60, 80) : choices.size(0, 8);
  p.top_k = choices.size(1, 4);
  p.num_experts = choices.size(1, 6);
  p.n = choices.size(1, 40);
  p.k = choices.size(1, 40);
  p.dtype = activation_type(choices);
  const bool packed = choices.chance(3);
  if (packed) {
    p.packed.num_segments = static_cast<int32_t>(choices.hostile() ? choices.integer(-1, 5) : 1);
    PackedRows& segment = p.packed.segments[0];
    segment.format = choices.enumerator(kLastWeightFormat);
    if (!choices.hostile()) p.n = 16 * choices.integer(1, 2), p.k = weight_block_elements(segment.format) * choices.integer(1, 2);
    segment.rows = choices.hostile() ? choices.size(0, 40) : p.n;
  }
  p.x_per_choice = choices.chance(2);
  const DType type = float_type_of(p.dtype);
  const int64_t element = dtype_size(p.dtype), choices_of_all = times(p.num_tokens, p.top_k);
  map.array("x", p.x, dense(times(p.x_per_choice ? choices_of_all : p.num_tokens, p.k), element), Use::read, type);
  if (packed) {
    PackedRows& segment = p.packed.segments[0];
    const int64_t blocks = p.k / weight_block_elements(segment.format),
                  groups = segment.rows <= 0 ? 0 : (segment.rows - 1) / 16 + 1;
    map.array("a segment", segment.data,
              dense(times(times(p.num_experts, groups), times(times(16, blocks), weight_block_bytes(segment.format))), 1),
              Use::read);
  } else {
    map.array("weight", p.weight, dense(times(times(p.num_experts, p.n), p.k), element), Use::read, type);
  }
  if (choices.chance(2)) map.optional("bias", p.bias, dense(times(p.num_experts, p.n), element), Use::read, type);
  map.array("expert_ids", p.expert_ids, dense(choices_of_all, 4), Use::read);
  if (choices.chance(3)) map.optional("row_scale", p.row_scale, dense(choices_of_all, 4), Use::read);
  map.array("y", p.y, dense(times(choices_of_all, p.n), element), Use::write, type);
  const int64_t workspace = moe_gemm_workspace_bytes(p, Device::cpu);
  p.workspace_bytes = choices.hostile() ? choices.absurd() : workspace;
  map.array("workspace", p.workspace, dense(workspace / 16, 16), Use::write);
  if (!map.allocate()) return 0;
  for (int64_t r = 0; present(p.expert_ids) && r < choices_of_all; ++r) {
    set_index(p.expert_ids, 4, r, index_value(choices, -1, p.num_experts));
  }

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.y, 0, times(times(choices_of_all, p.n), element));
  map.permit(p.workspace, 0, workspace);
  const Status status = moe_gemm(p, *context, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
