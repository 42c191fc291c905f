// Internal functions that rerope() calls.
//   validate        every check of the operation
//   run_validated   runs a call that validate() accepts; checks nothing
//   cpu::, cuda::   the backends; the call is valid and not empty
#pragma once

#include <prologue/kernels/rerope/rerope.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue {

PROLOGUE_API Status validate(const ReropeParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const ReropeParams& params, const Execution& execution);

namespace cpu {
Status rerope(const ReropeParams& params, const RotaryFrequencies& frequencies, const Execution& execution);
}
namespace cuda {
Status rerope(const ReropeParams& params, const RotaryFrequencies& frequencies, const Execution& execution);
}

}  // namespace prologue
