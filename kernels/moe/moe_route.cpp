#include <prologue/kernels/moe/moe_route.h>

#include <algorithm>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/moe/backends.h>

namespace prologue {

Status validate(const MoeRouteParams& p, const Execution& execution) {
  constexpr const char* kName = "moe_route";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  if (p.weighting < ExpertWeighting::softmax_then_top_k || p.weighting > ExpertWeighting::sigmoid) {
    return unsupported(kName, ": weighting is ", static_cast<int32_t>(p.weighting),
                       ": supported are softmax_then_top_k, top_k_then_softmax and sigmoid");
  }
  if (p.normalize && p.weighting != ExpertWeighting::softmax_then_top_k) {
    return invalid_argument(kName, ": normalize is set, but weighting is not softmax_then_top_k");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_experts", p.num_experts, 1, kMaxExperts));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "top_k", p.top_k, 1, std::min(p.num_experts, kMaxExpertsPerToken)));
  if (p.num_tokens == 0) return {};
  const int64_t count = p.num_tokens * p.top_k;
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(
      regions.read(heads_region("logits", HeadsView{p.logits, p.logits_stride, 0}, p.num_tokens, 1, p.num_experts, p.dtype)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("expert_ids", p.expert_ids, count, sizeof(int32_t))));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("expert_weights", p.expert_weights, count, sizeof(float))));
  return regions.check_all_apart();
}

Status run_validated(const MoeRouteParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::moe_route, cuda::moe_route, params);
}

Status moe_route(const MoeRouteParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
