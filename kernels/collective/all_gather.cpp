#include <prologue/kernels/collective/all_gather.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/collective/backends.h>

namespace prologue {

namespace {

constexpr const char* kName = "all_gather";

Status check_sizes(const AllGatherParams& p, const Communicator& communicator) {
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "part_width", p.part_width, 1, kMaxWidth));
  const int64_t last = p.width - (communicator.num_ranks() - 1) * p.part_width;
  if (last >= 1 && last <= p.part_width) return {};
  return invalid_argument(kName, ": width is ", p.width, " and part_width ", p.part_width, ", which leaves ", last,
                          " columns to the last of ", communicator.num_ranks(), " ranks: it must have 1 to part_width columns");
}

int64_t needed_workspace(const AllGatherParams& p, const Communicator& communicator) {
  return communicator.device() == Device::cuda ? cuda::all_gather_workspace_bytes(p, communicator) : 0;
}

}  // namespace

int64_t all_gather_workspace_bytes(const AllGatherParams& params, const Communicator& communicator) {
  return check_sizes(params, communicator).ok() && params.num_tokens > 0 ? needed_workspace(params, communicator) : 0;
}

Status validate(const AllGatherParams& p, const Communicator& communicator, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_communicator(kName, communicator, execution));
  PROLOGUE_RETURN_IF_ERROR(check_sizes(p, communicator));
  if (p.num_tokens == 0) return {};
  const int64_t needed = needed_workspace(p, communicator), size = dtype_size(p.dtype);
  if (needed > 0 && (p.workspace == nullptr || p.workspace_bytes < needed)) {
    return invalid_argument(kName, ": workspace has ", p.workspace == nullptr ? 0 : p.workspace_bytes, " bytes: this call needs ",
                            needed, " (see all_gather_workspace_bytes)");
  }
  RegionChecks regions(kName);
  const int64_t count = p.num_tokens * columns_of(p, communicator.rank()).count;
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("x", p.x, count, size)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("y", p.y, p.num_tokens * p.width, size)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("workspace", p.workspace, needed / 16, 16)));  // needed: a multiple of 16
  return regions.check_all_apart();
}

Status run_validated(const AllGatherParams& params, Communicator& communicator, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return catch_out_of_memory([&] { return dispatch(execution, cpu::all_gather, cuda::all_gather, params, communicator); });
}

Status all_gather(const AllGatherParams& params, Communicator& communicator, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, communicator, execution));
  return run_validated(params, communicator, execution);
}

}  // namespace prologue
