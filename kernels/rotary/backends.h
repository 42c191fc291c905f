// Internal functions that rotary() calls.
//   validate        every check of the operation
//   run_validated   runs a call that validate() accepts; checks nothing
//   cpu::, cuda::   the backends; the call is valid and not empty
#pragma once

#include <prologue/kernels/rotary/rotary.h>

namespace prologue {

PROLOGUE_API Status validate(const RotaryParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const RotaryParams& params, const Execution& execution);

// Computes the frequencies of a rotation from theta. Other sources need none: then nothing is written.
void compute_frequencies(const Rope& rope, RotaryFrequencies& frequencies);

namespace cpu {
Status rotary(const RotaryParams& params, const RotaryFrequencies& frequencies, const Execution& execution);
}
namespace cuda {
Status rotary(const RotaryParams& params, const RotaryFrequencies& frequencies, const Execution& execution);
}

}  // namespace prologue
