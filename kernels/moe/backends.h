// Internal functions that the operations of a mixture of experts call.
//   validate        every check of the operation; that of moe_gemm is public
//   run_validated   runs a call that validate() accepts; checks nothing
//   cpu::, cuda::   the backends; the call is valid and not empty
#pragma once

#include <prologue/kernels/moe/moe_combine.h>
#include <prologue/kernels/moe/moe_gemm.h>
#include <prologue/kernels/moe/moe_route.h>

namespace prologue {

PROLOGUE_API Status validate(const MoeCombineParams& params, const Execution& execution);
PROLOGUE_API Status validate(const MoeRouteParams& params, const Execution& execution);

PROLOGUE_API Status run_validated(const MoeCombineParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const MoeGemmParams& params, GemmContext& context, const Execution& execution);
PROLOGUE_API Status run_validated(const MoeRouteParams& params, const Execution& execution);

namespace cpu {
Status moe_combine(const MoeCombineParams& params, const Execution& execution);
Status moe_gemm(const MoeGemmParams& params, GemmContext& context, const Execution& execution);
int64_t moe_gemm_workspace_bytes(const MoeGemmParams& params);
Status moe_route(const MoeRouteParams& params, const Execution& execution);
}  // namespace cpu

namespace cuda {
Status moe_combine(const MoeCombineParams& params, const Execution& execution);
Status moe_gemm(const MoeGemmParams& params, GemmContext& context, const Execution& execution);
int64_t moe_gemm_workspace_bytes(const MoeGemmParams& params);
Status moe_route(const MoeRouteParams& params, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
