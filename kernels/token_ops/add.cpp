#include <prologue/kernels/token_ops/add.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

Status validate(const AddParams& p, const Execution& execution) {
  constexpr const char* kName = "add";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  if (p.num_tokens == 0) return {};
  const auto rows = [&](const char* name, const void* data, int64_t stride) {
    return heads_region(name, HeadsView{data, stride, 0}, p.num_tokens, 1, p.width, p.dtype);
  };
  const Region b = rows("b", p.b, p.b_stride), out = rows("out", p.out, p.out_stride);
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(rows("a", p.a, p.a_stride)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(b));
  PROLOGUE_RETURN_IF_ERROR(regions.write(out, same_region(out, b) ? "b" : "a"));
  return regions.check_all_apart();
}

Status run_validated(const AddParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::add, cuda::add, params);
}

Status add(const AddParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
