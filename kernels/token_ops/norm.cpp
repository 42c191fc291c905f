#include <prologue/kernels/token_ops/norm.h>

#include <cmath>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

Status validate(const NormParams& p, const Execution& execution) {
  constexpr const char* kName = "norm";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  if (p.kind != NormKind::rms && p.kind != NormKind::layer) {
    return unsupported(kName, ": kind is ", static_cast<int32_t>(p.kind), ": supported are rms and layer");
  }
  const DType weight_type = resolve_dtype(p.weight_type, p.dtype);
  if (weight_type != p.dtype && weight_type != DType::f32) {
    return unsupported(kName, ": weight_type is ", dtype_text(weight_type), ": it must be dtype, ", dtype_name(p.dtype),
                       ", or float32");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  if (!(p.eps >= 0.0f) || std::isinf(p.eps)) {
    return invalid_argument(kName, ": eps is ", p.eps, ": it must be finite and not negative");
  }
  if (p.num_tokens == 0) return {};
  const int64_t size = dtype_size(p.dtype), weight_size = dtype_size(weight_type), count = p.num_tokens * p.width;
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("x", p.x, count, size)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("weight", p.weight, p.weight == nullptr ? 0 : p.width, weight_size)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("bias", p.bias, p.bias == nullptr ? 0 : p.width, weight_size)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("out", p.out, count, size), "x"));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("residual", p.residual, p.residual == nullptr ? 0 : count, size)));
  return regions.check_all_apart();
}

Status run_validated(const NormParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  NormParams p = params;
  p.weight_type = resolve_dtype(p.weight_type, p.dtype);
  return dispatch(execution, cpu::norm, cuda::norm, p);
}

Status norm(const NormParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
