// The arrays of the prologue, for code that checks several operations together (layers/attention_layer).
#pragma once

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/host/view_checks.h>

namespace prologue {

// Adds every array that a call with valid sizes reads or writes.
PROLOGUE_API Status add_regions(const AttentionPrologueParams& params, RegionChecks& regions);

}  // namespace prologue
