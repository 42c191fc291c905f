// Internal functions that mla_prologue() calls.
//   validate        every check of the operation
//   run_validated   runs a call that validate() accepts; checks nothing
//   cpu::, cuda::   the backends; the call is valid and not empty, and resolved
#pragma once

#include <prologue/kernels/mla_prologue/mla_prologue.h>

namespace prologue {

PROLOGUE_API Status validate(const MlaPrologueParams& params, const Execution& execution);
PROLOGUE_API Status run_validated(const MlaPrologueParams& params, const Execution& execution);

namespace cpu {
Status mla_prologue(const MlaPrologueParams& params, const Execution& execution);
}
namespace cuda {
Status mla_prologue(const MlaPrologueParams& params, const Execution& execution);
}

}  // namespace prologue
