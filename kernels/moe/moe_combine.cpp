#include <prologue/kernels/moe/moe_combine.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/moe/backends.h>

namespace prologue {

Status validate(const MoeCombineParams& p, const Execution& execution) {
  constexpr const char* kName = "moe_combine";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "top_k", p.top_k, 1, kMaxExpertsPerToken));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  if (p.num_tokens == 0) return {};
  const int64_t size = dtype_size(p.dtype), count = p.num_tokens * p.width, choices = p.num_tokens * p.top_k;
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("y", p.y, choices * p.width, size)));
  PROLOGUE_RETURN_IF_ERROR(
      regions.read(array_region("expert_weights", p.expert_weights, p.expert_weights == nullptr ? 0 : choices, sizeof(float))));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("shared", p.shared, p.shared == nullptr ? 0 : count, size)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("out", p.out, count, size), "shared"));
  return regions.check_all_apart();
}

Status run_validated(const MoeCombineParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::moe_combine, cuda::moe_combine, params);
}

Status moe_combine(const MoeCombineParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
