// Declares what implements the prologue and its stages. Internal.
//   validate        every check of the operation
//   run_validated   runs a call that validate() accepts; checks nothing
//   add_regions     adds every array that a call with valid sizes reads or writes, for code that checks several operations together
//   cpu::, cuda::   the backends; the call is valid and not empty, and resolved
#pragma once

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/stages/stages.h>

namespace prologue {

class RegionChecks;

// Returns the parameters with the types that unset stands for: of the cache, of the norms' weights, of q8_out.
AttentionPrologueParams resolved(const AttentionPrologueParams& params);

PROLOGUE_API Status validate(const AttentionPrologueParams& params, const Execution& execution);
PROLOGUE_API Status validate(const AddBiasParams& params, const Execution& execution);
PROLOGUE_API Status validate(const QkNormParams& params, const Execution& execution);
PROLOGUE_API Status validate(const HadamardParams& params, const Execution& execution);
PROLOGUE_API Status validate(const QueryScaleParams& params, const Execution& execution);
PROLOGUE_API Status validate(const KvWriteParams& params, const Execution& execution);

PROLOGUE_API Status run_validated(const AttentionPrologueParams& params, const Execution& execution);
// These do a valid call in two steps: the choice of a kernel, for at most params.num_tokens (null on the CPU), and a run of that kernel.
PROLOGUE_API Result<const void*> choose_kernel(const AttentionPrologueParams& params, const Execution& execution);
PROLOGUE_API Status run_kernel(const void* kernel, const AttentionPrologueParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const AddBiasParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const QkNormParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const HadamardParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const QueryScaleParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const KvWriteParams& params, const Execution& execution);

PROLOGUE_API Status add_regions(const AttentionPrologueParams& params, RegionChecks& regions);

namespace cpu {
Status attention_prologue(const AttentionPrologueParams& params, const Execution& execution);
Status add_bias(const AddBiasParams& params, const Execution& execution);
Status qk_norm(const QkNormParams& params, const Execution& execution);
Status hadamard(const HadamardParams& params, const Execution& execution);
Status query_scale(const QueryScaleParams& params, const Execution& execution);
Status kv_write(const KvWriteParams& params, const Execution& execution);
}  // namespace cpu

namespace cuda {
Status attention_prologue(const AttentionPrologueParams& params, const Execution& execution);
Status add_bias(const AddBiasParams& params, const Execution& execution);
Status qk_norm(const QkNormParams& params, const Execution& execution);
Status hadamard(const HadamardParams& params, const Execution& execution);
Status query_scale(const QueryScaleParams& params, const Execution& execution);
Status kv_write(const KvWriteParams& params, const Execution& execution);

// These do the same in two steps: the choice of a kernel for at most params.num_tokens, and launches of it.
Result<const void*> plan_attention_prologue(const AttentionPrologueParams& params);
const char* kernel_of_plan(const void* plan);
Status run_plan(const void* plan, const AttentionPrologueParams& params, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
