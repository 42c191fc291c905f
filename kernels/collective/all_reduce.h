// Adds up the ranks' parts of rows (communicator.h), on every rank:
//
//   y[t, :] = sum over ranks of x_rank[t, :]  (+ y[t, :])
//
//   x  [num_tokens, width] dtype, rows contiguous: this rank's part
//   y  [num_tokens, width] dtype, rows contiguous: the sum; may be x itself (same pointer, adds = 0), must not overlap it otherwise
//
// All ranks call it with the same num_tokens, width, dtype and adds, in the same order among their collectives; with `adds`, y must be the
// same on all ranks. Numerics: on every rank the same bits. The parts are added in float32 in the order of the ranks, then y, and the sum is
// rounded once. Only on GPUs without access to each other's memory (communicator.h) it is NCCL's sum, in its order and rounding; it is rounded
// before y is added. Deterministic at a given number of ranks and tokens.
//
// CUDA, more than 524288 bytes of x (kFewBytes): the GPUs read x and write y of the other ranks. So both are memory that all GPUs of the group can
// access, as that of cudaMalloc is and that of cudaMallocAsync is not. After an error of the group they must stay until the streams of all
// ranks have ended: another rank may still be at work on them. Alignment to 16 bytes, on all ranks, is faster.
//
// CUDA: never allocates or synchronises, and is safe under graph capture (every rank captures, and replays, the same graph). A rank that does not
// come ends the group: Communicator::status(). So a rank that cannot call it, or whose call is refused, should call abort(): the others would
// wait. On the CPU the call waits for the other ranks, and returns the group's error. num_tokens = 0 is a no-op (on all ranks).
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/collective/communicator.h>

namespace prologue {

struct AllReduceParams {
  static constexpr int64_t kFewBytes = 524288;

  int64_t num_tokens = 0;
  int64_t width = 0;
  DType dtype = DType::unset;  // f32, f16 or bf16
  int32_t adds = 0;            // y is one more term of the sum
  const void* x = nullptr;
  void* y = nullptr;
  // On GPUs from Hopper on, a call of few bytes may begin while the kernel before it in the stream runs.
  bool overlaps = false;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status all_reduce(const AllReduceParams& params, Communicator& communicator, const Execution& execution);

}  // namespace prologue
