#include <prologue/kernels/token_ops/gated_activation.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

namespace {

// Together they keep every size in bytes within 64 bits.
constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr int64_t kMaxWidth = int64_t{1} << 24;

}  // namespace

Status validate(const GatedActivationParams& p, const Execution& execution) {
  constexpr const char* kName = "gated_activation";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  if (p.activation != Activation::silu && p.activation != Activation::gelu_tanh) {
    return unsupported("gated_activation: activation is ", static_cast<int32_t>(p.activation),
                       ": supported are silu and gelu_tanh");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  if (p.num_tokens == 0) return {};
  const int64_t size = dtype_size(p.dtype), count = p.num_tokens * p.width;
  const Region gate_up = array_region("gate_up", p.gate_up, 2 * count, size);
  const Region out = array_region("out", p.out, count, size);
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, gate_up));
  PROLOGUE_RETURN_IF_ERROR(check_writable(kName, out));
  return check_apart(kName, out, gate_up);
}

Status run_validated(const GatedActivationParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::gated_activation, cuda::gated_activation, params);
}

Status gated_activation(const GatedActivationParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
