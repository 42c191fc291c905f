#include <prologue/kernels/token_ops/gate.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

Status validate(const GateParams& p, const Execution& execution) {
  constexpr const char* kName = "gate";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  if (p.num_tokens == 0) return {};
  const auto rows = [&](const char* name, const void* data, int64_t stride) {
    return heads_region(name, HeadsView{data, stride, 0}, p.num_tokens, 1, p.width, p.dtype);
  };
  const Region gate = rows("gate", p.gate, p.gate_stride), out = rows("out", p.out, p.out_stride);
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(rows("x", p.x, p.x_stride)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(gate));
  PROLOGUE_RETURN_IF_ERROR(regions.write(out, same_region(out, gate) ? "gate" : "x"));
  return regions.check_all_apart();
}

Status run_validated(const GateParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::gate, cuda::gate, params);
}

Status gate(const GateParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
