// Declares what implements qkv_prologue(). Internal.
//   run_validated   runs a call that validate() accepts; checks nothing
//   run_separately  the same, with one launch for each of its operations
//   choose          the one kernel for such a call (Launch::follows_norm: for what follows its norm); nothing: it runs separately
#pragma once

#include <optional>

#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/way.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>

namespace prologue {

PROLOGUE_API Status run_validated(const QkvPrologueParams& params, GemmContext& context, const Execution& execution);
PROLOGUE_API Status run_validated(const QkvPrologueParams& params, KeptLaunch<QkvPrologueParams>& kept, GemmContext& context,
                                  const Execution& execution);
PROLOGUE_API Status run_separately(const QkvPrologueParams& params, GemmContext& context, const Execution& execution);

// Chooses for Device::cuda.
PROLOGUE_API std::optional<cuda::Launch> choose(const QkvPrologueParams& params);

// Says whether this device has a kernel that is the projection and the prologue of a prompt.
PROLOGUE_API bool has_qkv_gemm(Device device);

namespace cuda {
bool has_qkv_gemm();
// `without_norm` is the call that follows the norm. Its hidden_states are the norm's result, and it has no norm itself.
std::optional<Launch> choose(const QkvPrologueParams& params, const QkvPrologueParams& without_norm);
}  // namespace cuda

}  // namespace prologue
