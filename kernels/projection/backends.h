// Declares what implements projection(). Internal.
//   run_validated   runs a call that validate() accepts; checks nothing
//   run_separately  the same, with one launch for each of its operations
//   choose          the one kernel for such a call; nothing: it runs separately
#pragma once

#include <optional>

#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/projection/way.h>

namespace prologue {

PROLOGUE_API Status run_validated(const ProjectionParams& params, GemmContext& context, const Execution& execution);
PROLOGUE_API Status run_validated(const ProjectionParams& params, KeptLaunch<ProjectionParams>& kept, GemmContext& context,
                                  const Execution& execution);
PROLOGUE_API Status run_separately(const ProjectionParams& params, GemmContext& context, const Execution& execution);

// Steps of up to so many tokens of most models are faster with projections in one kernel, on this device; 0: none are.
PROLOGUE_API int64_t most_tokens_of_one_projection(Device device);

namespace cuda {
int64_t most_tokens_of_one_projection();
PROLOGUE_API std::optional<Launch> choose(const ProjectionParams& params);
// Returns of how many tokens each launch should be, where a call with packed weights has too many for one, but not many more; otherwise 0.
PROLOGUE_API int64_t tokens_of_packed_launch(const ProjectionParams& params);
// Checks nothing. `chosen` is of any operation.
PROLOGUE_API Status launch(const Launch& chosen, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
