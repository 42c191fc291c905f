// Plans the memory of activations: values whose lifetimes do not overlap use the same memory.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/layers/graph/graph.h>

namespace prologue {

struct MemoryPlan {
  std::vector<int64_t> offsets;  // per value, in bytes from the start of the buffer; -1 = a view, or never used
  int64_t total_bytes = 0;
  int64_t bytes_without_sharing = 0;
};

// A value lives from the first node that uses it to the last one; the graph's output lives to the end. Offsets are multiples of 256
// bytes. invalid_argument: a number of rows is not in 0..2^31 - 1. resource_exhausted: the values need more than 2^60 bytes.
PROLOGUE_API Result<MemoryPlan> plan_memory(const Graph& graph, int64_t max_tokens, int64_t max_logit_rows);

}  // namespace prologue
