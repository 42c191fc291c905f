// Internal functions that paged_attention() calls after validate() of paged_attention.h has made all checks.
//   run_validated   runs a call that validate() accepts; checks nothing
//   add_regions     adds every array that a call with valid sizes reads or writes, for code that checks several operations together
//   cpu::, cuda::   the backends; the call is valid and not empty, and the types that may be unset are resolved
#pragma once

#include <prologue/kernels/paged_attention/paged_attention.h>

namespace prologue {

class RegionChecks;

PROLOGUE_API Status run_validated(const PagedAttentionParams& params, const Execution& execution);
PROLOGUE_API Status add_regions(const PagedAttentionParams& params, Device device, RegionChecks& regions);

namespace cpu {
Status paged_attention(const PagedAttentionParams& params, const Execution& execution);
}
namespace cuda {
Status paged_attention(const PagedAttentionParams& params, const Execution& execution);
int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params);
}  // namespace cuda

}  // namespace prologue
