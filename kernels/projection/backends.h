// What is behind projection(). Internal.
//   run_validated   runs a call that validate() accepts; checks nothing
//   run_separately  the same, with one launch for each of its operations
#pragma once

#include <prologue/kernels/projection/projection.h>

namespace prologue {

PROLOGUE_API Status run_validated(const ProjectionParams& params, GemmContext& context, const Execution& execution);
PROLOGUE_API Status run_separately(const ProjectionParams& params, GemmContext& context, const Execution& execution);

namespace cuda {
// Whether one kernel can do the call.
bool projection_is_one_kernel(const ProjectionParams& params);
// By that kernel.
PROLOGUE_API Status projection(const ProjectionParams& params, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
