// Fills in token ids of a step that the host did not know when it prepared the step: those that the step before sampled.
//
//   token_ids[t] = tokens[from[t]]     if 0 <= from[t] < num_sampled
//                  unchanged           if from[t] < 0: the host has set it
//                  -1                  if from[t] >= num_sampled: the embedding then records token_id_out_of_range
//
//   from       [num_tokens]   int32, on the device
//   tokens     [num_sampled]  int32, on the device: the output of sample()
//   token_ids  [num_tokens]   int32, updated; must not overlap from or tokens
//
// num_tokens = 0 is a no-op. Never allocates or synchronises; safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/execution.h>

namespace prologue {

struct TakeTokensParams {
  int64_t num_tokens = 0;
  int64_t num_sampled = 0;
  const int32_t* from = nullptr;
  const int32_t* tokens = nullptr;
  int32_t* token_ids = nullptr;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status take_tokens(const TakeTokensParams& params, const Execution& execution);

}  // namespace prologue
