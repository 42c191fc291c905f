#include <prologue/kernels/collective/all_reduce.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/collective/backends.h>

namespace prologue {

Status validate(const AllReduceParams& p, const Communicator& communicator, const Execution& execution) {
  constexpr const char* kName = "all_reduce";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_communicator(kName, communicator, execution));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  if (p.num_tokens == 0) return {};
  const int64_t count = p.num_tokens * p.width, size = dtype_size(p.dtype);
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("x", p.x, count, size)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("y", p.y, count, size), p.adds != 0 ? "" : "x"));
  return regions.check_all_apart();
}

Status run_validated(const AllReduceParams& params, Communicator& communicator, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return catch_out_of_memory([&] { return dispatch(execution, cpu::all_reduce, cuda::all_reduce, params, communicator); });
}

Status all_reduce(const AllReduceParams& params, Communicator& communicator, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, communicator, execution));
  return run_validated(params, communicator, execution);
}

}  // namespace prologue
