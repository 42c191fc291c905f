// What is behind projection(). Internal.
//   run_validated   runs a call that validate() accepts; checks nothing
//   run_separately  the same, with one launch for each of its operations
#pragma once

#include <prologue/kernels/projection/projection.h>

namespace prologue {

PROLOGUE_API Status run_validated(const ProjectionParams& params, GemmContext& context, const Execution& execution);
PROLOGUE_API Status run_separately(const ProjectionParams& params, GemmContext& context, const Execution& execution);

// Steps of up to so many tokens of most models are faster with projections in one kernel, on this device; 0: none are.
PROLOGUE_API int64_t most_tokens_of_one_projection(Device device);

namespace cuda {
int64_t most_tokens_of_one_projection();
// Whether one kernel can do the call.
PROLOGUE_API bool projection_is_one_kernel(const ProjectionParams& params);
// By that kernel.
PROLOGUE_API Status projection(const ProjectionParams& params, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
