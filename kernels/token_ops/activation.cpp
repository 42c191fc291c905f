#include <prologue/kernels/token_ops/activation.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

Status validate(const ActivationParams& p, const Execution& execution) {
  constexpr const char* kName = "activation";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  if (p.kind < Activation::silu || p.kind > Activation::clamped_swiglu) {
    return unsupported(kName, ": kind is ", static_cast<int32_t>(p.kind),
                       ": supported are silu, gelu_tanh, gelu, relu, relu2 and clamped_swiglu");
  }
  if (p.kind == Activation::clamped_swiglu) {
    if (!p.gated) return invalid_argument(kName, ": kind is clamped_swiglu, but gated is false: it needs gate and up");
    PROLOGUE_RETURN_IF_ERROR(check_positive(kName, "limit", p.limit));
    PROLOGUE_RETURN_IF_ERROR(check_finite(kName, "alpha", p.alpha));
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "groups", p.groups, 1, kMaxGroups));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  if (p.num_tokens == 0) return {};
  const int64_t out_width = p.groups * p.width;
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(
      regions.read(heads_region("x", HeadsView{p.x, p.x_stride, 0}, p.num_tokens, 1, (p.gated ? 2 : 1) * out_width, p.dtype)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("out", p.out, p.num_tokens * out_width, dtype_size(p.dtype))));
  return regions.check_all_apart();
}

Status run_validated(const ActivationParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::activation, cuda::activation, params);
}

Status activation(const ActivationParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
