#include <prologue/kernels/collective/communicator.h>

#include <cmath>

#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/collective/backends.h>

namespace prologue {

namespace {

Status check_gpus(const std::vector<int32_t>& gpus, int64_t num_ranks) {
  if (gpus.empty()) return {};
  if (static_cast<int64_t>(gpus.size()) != num_ranks) {
    return invalid_argument("communicator: gpus has ", gpus.size(), " entries: it must have one for each of the ", num_ranks,
                            " ranks, or none");
  }
  for (size_t i = 0; i < gpus.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (gpus[i] == gpus[j]) {
        return invalid_argument("communicator: gpus has GPU ", gpus[i], " for rank ", j, " and rank ", i,
                                ": each rank needs a GPU of its own");
      }
    }
  }
  return {};
}

}  // namespace

Status check_communicator(const char* operation, const Communicator& communicator, const Execution& execution) {
  if (communicator.device() == execution.device) return {};
  return invalid_argument(operation, ": the communicator was made for ", device_name(communicator.device()),
                          ", but the execution's device is ", device_name(execution.device));
}

Status did_not_come(uint32_t absent, double wait_seconds) {
  return catch_out_of_memory([&] {
    std::string ranks;
    int count = 0;
    for (int64_t r = 0; r < kMaxRanks; ++r) {
      if ((absent >> r & 1u) == 0) continue;
      const bool last = absent >> r == 1u;
      ranks += str_cat(count++ == 0 ? "" : last ? " and " : ", ", r);
    }
    return device_error("communicator: rank", count == 1 ? " " : "s ", ranks, " did not come to a collective within ",
                        wait_seconds, " s");
  });
}

Status error_of_abort(const Status& status) {
  return status.ok() ? device_error("communicator: the group was ended by abort()") : status;
}

Result<std::vector<std::unique_ptr<Communicator>>> create_communicators(Device device, int64_t num_ranks,
                                                                        const CommunicatorOptions& options) {
  return catch_out_of_memory([&]() -> Result<Communicators> {
    PROLOGUE_RETURN_IF_ERROR(check_device("communicator", device));
    PROLOGUE_RETURN_IF_ERROR(check_range("communicator", "num_ranks", num_ranks, 1, kMaxRanks));
    if (!std::isfinite(options.wait_seconds) || options.wait_seconds <= 0.0) {
      return invalid_argument("communicator: wait_seconds is ", options.wait_seconds, ": it must be a finite number above 0");
    }
    if (device == Device::cpu) return cpu::create_communicators(num_ranks, options);
    PROLOGUE_RETURN_IF_ERROR(check_gpus(options.gpus, num_ranks));
    return cuda::create_communicators(num_ranks, options);
  });
}

}  // namespace prologue
