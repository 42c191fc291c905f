// What is behind the operations on tokens. Internal.
//   validate        every check of the operation
//   run_validated   runs a call that validate() accepts; checks nothing
//   cpu::, cuda::   the backends; the call is valid and not empty
#pragma once

#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/end_step.h>
#include <prologue/kernels/token_ops/gated_activation.h>
#include <prologue/kernels/token_ops/gather_cos_sin.h>
#include <prologue/kernels/token_ops/logprobs.h>
#include <prologue/kernels/token_ops/rms_norm.h>
#include <prologue/kernels/token_ops/sampling.h>
#include <prologue/kernels/token_ops/take_tokens.h>

namespace prologue {

PROLOGUE_API Status validate(const EmbeddingParams& params, const Execution& execution);
PROLOGUE_API Status validate(const EndStepParams& params, const Execution& execution);
PROLOGUE_API Status validate(const GatedActivationParams& params, const Execution& execution);
PROLOGUE_API Status validate(const GatherCosSinParams& params, const Execution& execution);
PROLOGUE_API Status validate(const LogprobsParams& params, const Execution& execution);
PROLOGUE_API Status validate(const RmsNormParams& params, const Execution& execution);
PROLOGUE_API Status validate(const SamplingParams& params, const Execution& execution);
PROLOGUE_API Status validate(const TakeTokensParams& params, const Execution& execution);

PROLOGUE_API Status run_validated(const EmbeddingParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const EndStepParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const GatedActivationParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const GatherCosSinParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const LogprobsParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const RmsNormParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const SamplingParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const TakeTokensParams& params, const Execution& execution);

namespace cpu {
Status embedding(const EmbeddingParams& params, const Execution& execution);
Status end_step(const EndStepParams& params, const Execution& execution);
Status gated_activation(const GatedActivationParams& params, const Execution& execution);
Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution);
Status logprobs(const LogprobsParams& params, const Execution& execution);
Status rms_norm(const RmsNormParams& params, const Execution& execution);
Status sample(const SamplingParams& params, const Execution& execution);
Status take_tokens(const TakeTokensParams& params, const Execution& execution);
}  // namespace cpu

namespace cuda {
Status embedding(const EmbeddingParams& params, const Execution& execution);
Status end_step(const EndStepParams& params, const Execution& execution);
Status gated_activation(const GatedActivationParams& params, const Execution& execution);
Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution);
Status logprobs(const LogprobsParams& params, const Execution& execution);
Status rms_norm(const RmsNormParams& params, const Execution& execution);
Status sample(const SamplingParams& params, const Execution& execution);
Status take_tokens(const TakeTokensParams& params, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
