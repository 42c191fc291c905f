#include <prologue/kernels/moe/moe_gemm.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/packed_weight.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/moe/backends.h>

namespace prologue {

namespace {

constexpr const char* kName = "moe_gemm";

Status check_sizes(const MoeGemmParams& p) {
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_experts", p.num_experts, 1, kMaxExperts));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "top_k", p.top_k, 1, kMaxExpertsPerToken));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, (int64_t{1} << 30) / p.top_k));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "n", p.n, 1, int64_t{1} << 20));
  return check_range(kName, "k", p.k, 1, kMaxWidth);
}

// Checks packed weights, and what else a call with them needs.
Status check_packed(const MoeGemmParams& p, Device device) {
  PROLOGUE_RETURN_IF_ERROR(check_packed_weight(kName, p.packed, p.weight, p.n, p.k, device));
  for (int32_t s = 0; s < p.packed.num_segments; ++s) {
    if (p.packed.segments[s].rows % kPackedGroupRows == 0) continue;
    return unsupported(kName, ": packed.segments[", s, "].rows is ", p.packed.segments[s].rows, ": it must be a multiple of ",
                       kPackedGroupRows);
  }
  if (p.packed.num_segments == 0 || device == Device::cpu) return {};
  if (reinterpret_cast<uintptr_t>(p.x) % static_cast<uintptr_t>(kPackedDataAlignment) == 0) return {};
  return invalid_argument(kName, ": x is at ", p.x, ": with packed weights it must be aligned to ", kPackedDataAlignment,
                          " bytes on CUDA");
}

int64_t workspace_bytes(const MoeGemmParams& p, Device device) {
  return device == Device::cuda ? cuda::moe_gemm_workspace_bytes(p) : cpu::moe_gemm_workspace_bytes(p);
}

}  // namespace

int64_t moe_gemm_workspace_bytes(const MoeGemmParams& params, Device device) {
  return check_sizes(params).ok() && params.num_tokens > 0 ? workspace_bytes(params, device) : 0;
}

Status validate(const MoeGemmParams& p, const GemmContext& context, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  if (context.device() != execution.device) {
    return invalid_argument(kName, ": the context was made for ", device_name(context.device()),
                            ", but the execution's device is ", device_name(execution.device));
  }
  PROLOGUE_RETURN_IF_ERROR(check_sizes(p));
  if (p.num_tokens == 0) return {};
  PROLOGUE_RETURN_IF_ERROR(check_packed(p, execution.device));
  const int64_t rows = p.num_tokens * p.top_k, size = dtype_size(p.dtype), needed = workspace_bytes(p, execution.device);
  if (needed > 0 && (p.workspace == nullptr || p.workspace_bytes < needed)) {
    return invalid_argument(kName, ": workspace has ", p.workspace == nullptr ? 0 : p.workspace_bytes, " bytes: this call needs ",
                            needed, " (see moe_gemm_workspace_bytes)");
  }
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("x", p.x, (p.x_per_choice ? rows : p.num_tokens) * p.k, size)));
  for (int32_t s = 0; s < p.packed.num_segments; ++s) {
    const PackedRows& of = p.packed.segments[s];
    const int64_t bytes = p.num_experts * packed_weight_bytes(of.format, of.rows, p.k);
    if (of.data == nullptr && bytes > 0) return invalid_argument(kName, ": packed.segments[", s, "].data is null");
    PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("a segment", of.data, bytes, 1)));
  }
  const int64_t dense_elements = p.packed.num_segments > 0 ? 0 : p.num_experts * p.n * p.k;
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("weight", p.weight, dense_elements, size)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("bias", p.bias, p.bias == nullptr ? 0 : p.num_experts * p.n, size)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("expert_ids", p.expert_ids, rows, sizeof(int32_t))));
  PROLOGUE_RETURN_IF_ERROR(
      regions.read(array_region("row_scale", p.row_scale, p.row_scale == nullptr ? 0 : rows, sizeof(float))));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("y", p.y, rows * p.n, size)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("workspace", p.workspace, needed / 16, 16)));  // needed: a multiple of 16
  return regions.check_all_apart();
}

Status run_validated(const MoeGemmParams& params, GemmContext& context, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::moe_gemm, cuda::moe_gemm, params, context);
}

Status moe_gemm(const MoeGemmParams& params, GemmContext& context, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, context, execution));
  return run_validated(params, context, execution);
}

}  // namespace prologue
