#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/end_step_sequence.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

namespace {

constexpr int kThreads = 1024;

// Returns the code of the first faulty token of sequence s. Called by every thread of a warp.
__device__ uint8_t first_fault(const EndStepParams& p, int64_t s) {
  const int64_t end = row_at(p, s + 1);
  for (int64_t begin = row_at(p, s); begin < end; begin += 32) {
    const int64_t t = begin + threadIdx.x % 32;
    const int code = t < end ? p.token_faults[t] : 0;
    const uint32_t faulty = __ballot_sync(0xffffffffu, code != 0);
    if (faulty != 0) return static_cast<uint8_t>(__shfl_sync(0xffffffffu, code, __ffs(static_cast<int>(faulty)) - 1));
  }
  return 0;
}

// There is one block: faults are cleared when all sequences have read theirs. The tokens are divided over its threads, and a thread
// advances a sequence, or counts a chain. Faults are rare: a warp for each sequence looks for them only if there is one.
__global__ void __launch_bounds__(kThreads) end_step_kernel(const __grid_constant__ EndStepParams p) {
  wait_for_previous_kernels();
  bool faulty = false;
  for (int64_t t = threadIdx.x; t < p.num_tokens; t += kThreads) faulty |= p.token_faults[t] != 0;
  if (__syncthreads_or(faulty) != 0) {
    for (int64_t s = threadIdx.x / 32; s < p.num_seqs; s += kThreads / 32) {
      const uint8_t code = first_fault(p, s);
      if (threadIdx.x % 32 == 0) p.seq_faults[s] = code;
    }
    __syncthreads();
    for (int64_t t = threadIdx.x; t < p.num_tokens; t += kThreads) p.token_faults[t] = 0;
  } else {
    for (int64_t s = threadIdx.x; s < p.num_seqs; s += kThreads) p.seq_faults[s] = 0;
  }
  for (int64_t r = threadIdx.x; r < p.num_rows; r += kThreads) count_chain(p, r);
  if (p.advance == 0) return;
  for (int64_t s = threadIdx.x; s < p.num_seqs; s += kThreads) advance_sequence(p, s);
}

}  // namespace

Status end_step(const EndStepParams& params, const Execution& execution) {
  LaunchAttributes attributes(1, params.overlaps);
  return launch("end_step", end_step_kernel, {1, kThreads, 0, attributes.span()}, execution.stream, params);
}

}  // namespace prologue::cuda
