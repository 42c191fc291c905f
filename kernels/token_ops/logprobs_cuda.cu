#include <cub/block/block_reduce.cuh>

#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/logprobs_math.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kThreads = 1024;

struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};
struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

using ReduceWords = cub::BlockReduce<uint64_t, kThreads>;

struct Shared {
  ReduceWords::TempStorage words;
  uint64_t result;
};

// Returns the result to all threads.
template <class Combine>
__device__ uint64_t reduce(Shared& shared, uint64_t value, const Combine& combine) {
  const uint64_t result = ReduceWords(shared.words).Reduce(value, combine);
  if (threadIdx.x == 0) shared.result = result;
  __syncthreads();
  return shared.result;
}

// There is one block per row; thread t has the tokens t, t + kThreads, ... and the best of them that has not been taken yet.
__global__ void __launch_bounds__(kThreads) logprobs_kernel(const __grid_constant__ LogprobsParams p) {
  __shared__ Shared shared;
  const float* logits = p.logits + static_cast<int64_t>(blockIdx.x) * p.logits_stride;
  const int vocab_size = static_cast<int>(p.vocab_size);
  const int thread = static_cast<int>(threadIdx.x);

  uint64_t best = 0;
#pragma unroll 8
  for (int token = thread; token < vocab_size; token += kThreads) best = Larger()(best, logprob_rank_key(logits[token], token));
  uint64_t taken = reduce(shared, best, Larger());
  const float largest = ranked_logit(logits[ranked_token(taken)]);

  uint64_t mass = 0;
#pragma unroll 8
  for (int token = thread; token < vocab_size; token += kThreads) mass += logprob_mass(logits[token], largest);
  mass = reduce(shared, mass, Sum());
  const double log_sum = log_of_mass(mass);

  const int64_t row = static_cast<int64_t>(blockIdx.x) * (p.top + 1);
  const auto write = [&](int64_t i, int32_t token) {
    const bool inside = token >= 0 && token < vocab_size;
    p.ids[row + i] = inside ? token : -1;
    p.logprobs[row + i] = inside ? logprob_of(logits[token], largest, log_sum) : -INFINITY;
  };
  if (thread == 0) write(0, p.tokens[blockIdx.x]);
  for (int64_t i = 1; i <= p.top; ++i) {
    if (i > 1) taken = reduce(shared, best, Larger());
    const int32_t token = taken == 0 ? -1 : ranked_token(taken);
    if (thread == 0) write(i, token);
    if (taken == 0) continue;
    // The warp of the thread that had the token finds that thread's next one.
    const int owner = token % kThreads;
    if (thread / 32 != owner / 32) continue;
    uint64_t next = 0;
    for (int other = owner + thread % 32 * kThreads; other < vocab_size; other += 32 * kThreads) {
      const uint64_t key = logprob_rank_key(logits[other], other);
      if (key < taken) next = Larger()(next, key);
    }
    for (int distance = 16; distance > 0; distance /= 2) next = Larger()(next, __shfl_xor_sync(0xffffffffu, next, distance));
    if (thread == owner) best = next;
  }
}

}  // namespace

Status logprobs(const LogprobsParams& params, const Execution& execution) {
  return launch("logprobs", logprobs_kernel, {grid_extent(params.num_rows), kThreads}, execution.stream, params);
}

}  // namespace prologue::cuda
