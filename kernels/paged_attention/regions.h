// This file lists the arrays of paged attention, for code that checks several operations together (layers/attention_layer).
#pragma once

#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

namespace prologue {

// Adds every array that a call with valid sizes reads or writes.
PROLOGUE_API Status add_regions(const PagedAttentionParams& params, Device device, RegionChecks& regions);

}  // namespace prologue
