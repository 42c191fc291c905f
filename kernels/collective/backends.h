// Internal functions that the collectives call.
//   validate        every check of the operation that one rank can make
//   run_validated   runs a call that validate() accepts; checks nothing but that the ranks call the same
//   cpu::, cuda::   the backends; the call is valid and not empty
#pragma once

#include <memory>
#include <vector>

#include <prologue/kernels/collective/all_gather.h>
#include <prologue/kernels/collective/all_reduce.h>
#include <prologue/kernels/collective/communicator.h>

namespace prologue {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

PROLOGUE_API Status validate(const AllReduceParams& params, const Communicator& communicator, const Execution& execution);
PROLOGUE_API Status validate(const AllGatherParams& params, const Communicator& communicator, const Execution& execution);

PROLOGUE_API Status run_validated(const AllReduceParams& params, Communicator& communicator, const Execution& execution);
PROLOGUE_API Status run_validated(const AllGatherParams& params, Communicator& communicator, const Execution& execution);

// invalid_argument if the communicator's device is not the execution's.
Status check_communicator(const char* operation, const Communicator& communicator, const Execution& execution);

// The error of a group whose ranks in `absent` (a bit for each) did not come to a collective.
Status did_not_come(uint32_t absent, double wait_seconds);
// The error of a group that a caller ended with `status`: that, if it is one.
Status error_of_abort(const Status& status);

// The first column of a rank, and how many it has.
struct Columns {
  int64_t begin, count;
};
inline Columns columns_of(const AllGatherParams& params, int64_t rank) {
  const int64_t begin = rank * params.part_width;
  return {begin, params.width - begin < params.part_width ? params.width - begin : params.part_width};
}

namespace cpu {
Result<Communicators> create_communicators(int64_t num_ranks, const CommunicatorOptions& options);
Status all_reduce(const AllReduceParams& params, Communicator& communicator, const Execution& execution);
Status all_gather(const AllGatherParams& params, Communicator& communicator, const Execution& execution);
}  // namespace cpu

namespace cuda {
Result<Communicators> create_communicators(int64_t num_ranks, const CommunicatorOptions& options);
Status all_reduce(const AllReduceParams& params, Communicator& communicator, const Execution& execution);
Status all_gather(const AllGatherParams& params, Communicator& communicator, const Execution& execution);
int64_t all_gather_workspace_bytes(const AllGatherParams& params, const Communicator& communicator);
}  // namespace cuda

}  // namespace prologue
