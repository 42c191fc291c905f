// The arrays of the prologue, for whoever checks several operations together (layers/attention_layer).
#pragma once

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/view_checks.h>

namespace prologue {

// Everything that a call with valid sizes reads and writes.
PROLOGUE_API Status add_regions(const AttentionPrologueParams& params, RegionChecks& regions);

}  // namespace prologue
