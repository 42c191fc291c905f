#include <prologue/kernels/token_ops/scale_logits.h>

#include <cmath>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

Status validate(const ScaleLogitsParams& p, const Execution& execution) {
  constexpr const char* kName = "scale_logits";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_rows", p.num_rows, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  PROLOGUE_RETURN_IF_ERROR(check_finite(kName, "scale", p.scale));
  if (!(p.soft_cap >= 0.0f) || std::isinf(p.soft_cap)) {
    return invalid_argument(kName, ": soft_cap is ", p.soft_cap, ": it must be finite and not negative");
  }
  if (p.soft_cap > 0.0f && !std::isfinite(p.scale / p.soft_cap)) {
    return invalid_argument(kName, ": scale is ", p.scale, " and soft_cap is ", p.soft_cap, ": their quotient must be finite");
  }
  if (p.num_rows == 0) return {};
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("x", p.x, p.num_rows * p.width, sizeof(float))));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("out", p.out, p.num_rows * p.width, sizeof(float)), "x"));
  return regions.check_all_apart();
}

Status run_validated(const ScaleLogitsParams& params, const Execution& execution) {
  if (params.num_rows == 0) return {};
  return dispatch(execution, cpu::scale_logits, cuda::scale_logits, params);
}

Status scale_logits(const ScaleLogitsParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
