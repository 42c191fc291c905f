#include <prologue/kernels/token_ops/rms_norm.h>

#include <cmath>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

namespace {

// Together they keep every size in bytes within 64 bits.
constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr int64_t kMaxWidth = int64_t{1} << 24;

}  // namespace

Status validate(const RmsNormParams& p, const Execution& execution) {
  constexpr const char* kName = "rms_norm";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  if (!(p.eps >= 0.0f) || std::isinf(p.eps)) {
    return invalid_argument("rms_norm: eps is ", p.eps, ": it must be finite and not negative");
  }
  if (p.num_tokens == 0) return {};
  const int64_t size = dtype_size(p.dtype), count = p.num_tokens * p.width;
  const Region x = array_region("x", p.x, count, size);
  const Region weight = array_region("weight", p.weight, p.width, size);
  const Region out = array_region("out", p.out, count, size);
  const Region residual = array_region("residual", p.residual, p.residual == nullptr ? 0 : count, size);
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, x));
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, weight));
  PROLOGUE_RETURN_IF_ERROR(check_writable(kName, out));
  PROLOGUE_RETURN_IF_ERROR(check_writable(kName, residual));
  if (!same_region(out, x)) PROLOGUE_RETURN_IF_ERROR(check_apart(kName, out, x));
  PROLOGUE_RETURN_IF_ERROR(check_apart(kName, out, weight));
  PROLOGUE_RETURN_IF_ERROR(check_apart(kName, residual, x));
  PROLOGUE_RETURN_IF_ERROR(check_apart(kName, residual, out));
  return check_apart(kName, residual, weight);
}

Status run_validated(const RmsNormParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::rms_norm, cuda::rms_norm, params);
}

Status rms_norm(const RmsNormParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
