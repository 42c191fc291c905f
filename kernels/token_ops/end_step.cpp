#include <prologue/kernels/token_ops/end_step.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

namespace {

constexpr const char* kName = "end_step";

// A region keeps only the pointer to its name, and two groups' regions must not have the same.
constexpr const char* kSlotMappings[kMaxStepGroups] = {
    "groups[0].slot_mapping", "groups[1].slot_mapping", "groups[2].slot_mapping", "groups[3].slot_mapping",
    "groups[4].slot_mapping", "groups[5].slot_mapping", "groups[6].slot_mapping", "groups[7].slot_mapping"};
constexpr const char* kBlockTables[kMaxStepGroups] = {"groups[0].block_table", "groups[1].block_table", "groups[2].block_table",
                                                      "groups[3].block_table", "groups[4].block_table", "groups[5].block_table",
                                                      "groups[6].block_table", "groups[7].block_table"};

Status check_group(const EndStepGroup& group, int64_t g, int64_t num_seqs, RegionChecks& regions) {
  const std::string name = str_cat("groups[", g, "].");
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, (name + "max_pages").c_str(), group.max_pages, 1, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, (name + "page_size").c_str(), group.page_size, 1, int64_t{1} << 20));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, (name + "num_pages").c_str(), group.num_pages, 1, int64_t{1} << 40));
  if (group.block_table_stride < group.max_pages) {
    return invalid_argument(kName, ": ", name, "block_table_stride is ", group.block_table_stride,
                            ": it must be at least max_pages, ", group.max_pages);
  }
  Region block_table = array_region(kBlockTables[g], group.block_table, num_seqs, 4);
  block_table.width = group.max_pages * 4;
  if (__builtin_mul_overflow(group.block_table_stride, 4, &block_table.strides[0])) block_table.strides[0] = INT64_MAX;
  PROLOGUE_RETURN_IF_ERROR(regions.read(block_table));
  return regions.write(array_region(kSlotMappings[g], group.slot_mapping, num_seqs, 8));
}

Status check_advance(const EndStepParams& p, RegionChecks& regions) {
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_position_axes", p.num_position_axes, 1, 4));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_groups", p.num_groups, 1, kMaxStepGroups));
  PROLOGUE_RETURN_IF_ERROR(
      check_stride_set(kName, "position_axis_stride", p.position_axis_stride, "num_position_axes", p.num_position_axes));
  for (int64_t g = 0; g < p.num_groups; ++g) PROLOGUE_RETURN_IF_ERROR(check_group(p.groups[g], g, p.num_seqs, regions));
  Region rows = array_region("rows", p.rows, p.rows == nullptr ? 0 : p.num_seqs, sizeof(SamplingRow));
  rows.alignment = alignof(SamplingRow);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("tokens", p.tokens, p.num_seqs, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("token_ids", p.token_ids, p.num_seqs, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(
      positions_region("positions", index_view(p.positions), p.num_position_axes, p.position_axis_stride, p.num_seqs)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("seq_lens", p.seq_lens, p.num_seqs, 4)));
  return regions.write(rows);
}

Status check_chains(const EndStepParams& p, RegionChecks& regions) {
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "vocab_size", p.vocab_size, 1, INT32_MAX));
  Region rows = array_region("rows", p.rows, p.num_rows, sizeof(SamplingRow));
  rows.alignment = alignof(SamplingRow);
  PROLOGUE_RETURN_IF_ERROR(regions.read(rows));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("tokens", p.tokens, p.num_rows, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("token_ids", p.token_ids, p.num_tokens, 4)));
  return regions.read(array_region("logit_rows", p.logit_rows, p.num_rows, 4));
}

}  // namespace

Status validate(const EndStepParams& p, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_seqs", p.num_seqs, 0, INT32_MAX));
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("cu_seqlens_q", p.cu_seqlens_q, p.num_seqs == 0 ? 0 : p.num_seqs + 1, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("token_faults", p.token_faults, p.num_tokens, 1)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("seq_faults", p.seq_faults, p.num_seqs, 1)));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_rows", p.num_rows, 0, p.advance != 0 ? 0 : INT32_MAX));
  if (p.advance != 0) PROLOGUE_RETURN_IF_ERROR(check_advance(p, regions));
  if (p.num_rows > 0) PROLOGUE_RETURN_IF_ERROR(check_chains(p, regions));
  return regions.check_all_apart();
}

Status run_validated(const EndStepParams& params, const Execution& execution) {
  if (params.num_tokens == 0 && params.num_seqs == 0 && params.num_rows == 0) return {};
  return dispatch(execution, cpu::end_step, cuda::end_step, params);
}

Status end_step(const EndStepParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
