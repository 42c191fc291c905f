// What is behind projection_chain(). Internal.
//   run_validated   runs a call that validate() accepts; checks nothing
//   run_separately  the same, each operation by itself
#pragma once

#include <prologue/kernels/projection_chain/projection_chain.h>

namespace prologue {

PROLOGUE_API Status run_validated(const ProjectionChainParams& params, GemmContext& context, const Execution& execution);
PROLOGUE_API Status run_separately(const ProjectionChainParams& params, GemmContext& context, const Execution& execution);

namespace cuda {
// Whether one kernel can do the projections.
PROLOGUE_API bool projection_chain_is_one_kernel(const ProjectionChainParams& params);
// By that kernel.
PROLOGUE_API Status projection_chain(const ProjectionChainParams& params, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
