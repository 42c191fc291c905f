// Puts the ranks' columns of rows side by side (communicator.h), on every rank:
//
//   y[t, r * part_width + i] = x_r[t, i]    for each rank r and its columns i
//
//   x  [num_tokens, own width] dtype, rows contiguous: this rank's columns. Rank r has part_width of them, the last one what is left of
//      `width`, which is from 1 to part_width
//   y  [num_tokens, width] dtype, rows contiguous; must not overlap x
//   workspace  all_gather_workspace_bytes bytes on the device, aligned to 16; scratch. May be null if that is 0. NCCL needs it
//
// All ranks call it with the same num_tokens, width, part_width and dtype, in the same order among their collectives. Values are copied:
// the bits stay as they are. What all_reduce.h says about graphs, errors and waiting holds here, too. CUDA, more than 524288 bytes of a rank's
// columns: the GPUs write y of the other ranks; what all_reduce.h says about such memory holds for y.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/collective/communicator.h>

namespace prologue {

struct AllGatherParams {
  int64_t num_tokens = 0;
  int64_t width = 0;
  int64_t part_width = 0;
  DType dtype = DType::unset;  // f32, f16 or bf16
  const void* x = nullptr;
  void* y = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

// Returns the workspace size that is enough for every call with the same widths and dtype, and not more tokens.
PROLOGUE_API int64_t all_gather_workspace_bytes(const AllGatherParams& params, const Communicator& communicator);

PROLOGUE_API Status all_gather(const AllGatherParams& params, Communicator& communicator, const Execution& execution);

}  // namespace prologue
