// What is behind qkv_prologue(). Internal.
//   run_validated   runs a call that validate() accepts; checks nothing
//   run_separately  the same, with one launch for each of its operations
#pragma once

#include <prologue/kernels/qkv_prologue/qkv_prologue.h>

namespace prologue {

PROLOGUE_API Status run_validated(const QkvPrologueParams& params, GemmContext& context, const Execution& execution);
PROLOGUE_API Status run_separately(const QkvPrologueParams& params, GemmContext& context, const Execution& execution);

// Whether this device has a kernel that is the projection and the prologue of a prompt.
PROLOGUE_API bool has_qkv_gemm(Device device);

namespace cuda {
bool has_qkv_gemm();
// Whether one kernel can do the call. `params`: resolved.
bool qkv_prologue_is_one_kernel(const QkvPrologueParams& params);
// By that kernel.
PROLOGUE_API Status qkv_prologue(const QkvPrologueParams& params, const Execution& execution);
// The same for one kernel behind the norm: hidden_states are what the norm makes, and there is none.
bool qkv_gemm_is_one_kernel(const QkvPrologueParams& params);
Status qkv_gemm(const QkvPrologueParams& params, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
