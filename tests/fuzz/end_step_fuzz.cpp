// Calls kernels/token_ops/end_step.h with any struct and any indices.
#include <prologue/kernels/token_ops/end_step.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("end_step");
  static constexpr const char* kSlotMappings[] = {"slot_mapping 0", "slot_mapping 1", "slot_mapping 2", "slot_mapping 3",
                                                  "slot_mapping 4", "slot_mapping 5", "slot_mapping 6", "slot_mapping 7"};
  static constexpr const char* kBlockTables[] = {"block_table 0", "block_table 1", "block_table 2", "block_table 3",
                                                 "block_table 4", "block_table 5", "block_table 6", "block_table 7"};
  Choices choices(data, size);
  MemoryMap map(choices);
  EndStepParams p;
  p.num_tokens = choices.size(0, 9);
  p.num_seqs = choices.size(0, 5);
  p.advance = choices.chance(3) ? 0 : choices.hostile() ? static_cast<int32_t>(choices.bits(4)) : 1;
  int64_t num_groups = 0;
  map.array("cu_seqlens_q", p.cu_seqlens_q, dense(p.num_seqs > 0 ? plus(p.num_seqs, 1) : p.num_seqs, 4), Use::read);
  map.array("token_faults", p.token_faults, dense(p.num_tokens, 1), Use::write);
  map.array("seq_faults", p.seq_faults, dense(p.num_seqs, 1), Use::write);
  if (p.advance != 0) {
    p.num_position_axes = choices.chance(2) ? 1 : choices.size(1, 4);
    p.position_axis_stride = p.num_position_axes == 1 && choices.chance(2) ? kUnsetStride : choices.stride(p.num_seqs);
    p.num_groups = choices.size(1, choices.chance(4) ? kMaxStepGroups : 2);
    num_groups = p.num_groups >= 0 && p.num_groups <= kMaxStepGroups ? p.num_groups : 0;  // more are refused
    map.array("tokens", p.tokens, dense(p.num_seqs, 4), Use::read);
    map.array("token_ids", p.token_ids, dense(p.num_seqs, 4), Use::write);
    map.array("positions", p.positions, rows(p.num_position_axes, p.position_axis_stride, p.num_seqs, 32), Use::write);
    map.array("seq_lens", p.seq_lens, dense(p.num_seqs, 4), Use::write);
    Extent sampling_rows = dense(p.num_seqs, sizeof(SamplingRow));
    sampling_rows.alignment = alignof(SamplingRow);
    if (choices.chance(2)) map.optional("rows", p.rows, sampling_rows, Use::write);
    for (int64_t g = 0; g < num_groups; ++g) {
      EndStepGroup& group = p.groups[g];
      group.max_pages = choices.size(1, 4);
      group.block_table_stride = choices.stride(group.max_pages);
      group.page_size = choices.size(1, 9);
      group.num_pages = choices.size(1, 9);
      map.array(kSlotMappings[g], group.slot_mapping, dense(p.num_seqs, 8), Use::write);
      map.array(kBlockTables[g], group.block_table, rows(p.num_seqs, group.block_table_stride, group.max_pages, 32), Use::read);
    }
  }
  if (!map.allocate()) return 0;
  for (int64_t i = 0; present(p.cu_seqlens_q) && i <= p.num_seqs; ++i) {
    set_index(p.cu_seqlens_q, 4, i, index_value(choices, -1, plus(p.num_tokens, 1)));
  }
  for (int64_t i = 0; present(p.token_faults) && i < p.num_tokens; ++i) {
    set_index(p.token_faults, 1, i, choices.chance(4) ? choices.byte() : 0);
  }
  for (int64_t s = 0; present(p.seq_lens) && s < p.num_seqs; ++s) set_index(p.seq_lens, 4, s, index_value(choices, -1, 40));
  for (int64_t g = 0; g < num_groups; ++g) {
    const EndStepGroup& group = p.groups[g];
    for (int64_t s = 0; present(group.block_table) && s < p.num_seqs; ++s) {
      for (int64_t i = 0; i < group.max_pages; ++i) {
        set_index(group.block_table, 4, s * group.block_table_stride + i, index_value(choices, -1, group.num_pages));
      }
    }
  }

  map.freeze();
  if (p.num_tokens == 0 && p.num_seqs == 0) map.forgive();
  map.permit(p.token_faults, 0, p.num_tokens);
  map.permit(p.seq_faults, 0, p.num_seqs);
  if (p.advance != 0) {
    map.permit(p.token_ids, 0, times(p.num_seqs, 4));
    map.permit(p.seq_lens, 0, times(p.num_seqs, 4));
    map.permit(p.rows, 0, times(p.num_seqs, sizeof(SamplingRow)));
    for (int64_t axis = 0; axis < std::clamp<int64_t>(p.num_position_axes, 0, 4); ++axis) {
      map.permit(p.positions, times(times(axis, p.position_axis_stride), 4), times(p.num_seqs, 4));
    }
    for (int64_t g = 0; g < num_groups; ++g) map.permit(p.groups[g].slot_mapping, 0, times(p.num_seqs, 8));
  }
  const Status status = end_step(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
