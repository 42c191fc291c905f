#include <prologue/kernels/token_ops/take_tokens.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

Status validate(const TakeTokensParams& p, const Execution& execution) {
  constexpr const char* kName = "take_tokens";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_sampled", p.num_sampled, 0, INT32_MAX));
  if (p.num_tokens == 0) return {};
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("from", p.from, p.num_tokens, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("tokens", p.tokens, p.num_sampled, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("token_ids", p.token_ids, p.num_tokens, 4)));
  return regions.check_all_apart();
}

Status run_validated(const TakeTokensParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::take_tokens, cuda::take_tokens, params);
}

Status take_tokens(const TakeTokensParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
