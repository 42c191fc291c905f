// Internal functions that the operations on tokens call.
//   validate        every check of the operation
//   run_validated   runs a call that validate() accepts; checks nothing
//   cpu::, cuda::   the backends; the call is valid and not empty
#pragma once

#include <prologue/kernels/token_ops/activation.h>
#include <prologue/kernels/token_ops/add.h>
#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/end_step.h>
#include <prologue/kernels/token_ops/gate.h>
#include <prologue/kernels/token_ops/gather_cos_sin.h>
#include <prologue/kernels/token_ops/logprobs.h>
#include <prologue/kernels/token_ops/norm.h>
#include <prologue/kernels/token_ops/sampling.h>
#include <prologue/kernels/token_ops/scale_logits.h>
#include <prologue/kernels/token_ops/take_tokens.h>

namespace prologue {

PROLOGUE_API Status validate(const ActivationParams& params, const Execution& execution);
PROLOGUE_API Status validate(const AddParams& params, const Execution& execution);
PROLOGUE_API Status validate(const EmbeddingParams& params, const Execution& execution);
PROLOGUE_API Status validate(const EndStepParams& params, const Execution& execution);
PROLOGUE_API Status validate(const GateParams& params, const Execution& execution);
PROLOGUE_API Status validate(const GatherCosSinParams& params, const Execution& execution);
PROLOGUE_API Status validate(const LogprobsParams& params, const Execution& execution);
PROLOGUE_API Status validate(const NormParams& params, const Execution& execution);
PROLOGUE_API Status validate(const SamplingParams& params, const Execution& execution);
PROLOGUE_API Status validate(const ScaleLogitsParams& params, const Execution& execution);
PROLOGUE_API Status validate(const TakeTokensParams& params, const Execution& execution);

PROLOGUE_API Status run_validated(const ActivationParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const AddParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const EmbeddingParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const EndStepParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const GateParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const GatherCosSinParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const LogprobsParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const NormParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const SamplingParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const ScaleLogitsParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const TakeTokensParams& params, const Execution& execution);

namespace cpu {
Status activation(const ActivationParams& params, const Execution& execution);
Status add(const AddParams& params, const Execution& execution);
Status embedding(const EmbeddingParams& params, const Execution& execution);
Status end_step(const EndStepParams& params, const Execution& execution);
Status gate(const GateParams& params, const Execution& execution);
Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution);
Status logprobs(const LogprobsParams& params, const Execution& execution);
Status norm(const NormParams& params, const Execution& execution);
Status sample(const SamplingParams& params, const Execution& execution);
Status scale_logits(const ScaleLogitsParams& params, const Execution& execution);
Status take_tokens(const TakeTokensParams& params, const Execution& execution);
}  // namespace cpu

namespace cuda {
Status activation(const ActivationParams& params, const Execution& execution);
Status add(const AddParams& params, const Execution& execution);
Status embedding(const EmbeddingParams& params, const Execution& execution);
Status end_step(const EndStepParams& params, const Execution& execution);
Status gate(const GateParams& params, const Execution& execution);
Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution);
Status logprobs(const LogprobsParams& params, const Execution& execution);
Status norm(const NormParams& params, const Execution& execution);
Status sample(const SamplingParams& params, const Execution& execution);
Status scale_logits(const ScaleLogitsParams& params, const Execution& execution);
Status take_tokens(const TakeTokensParams& params, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
