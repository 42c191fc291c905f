#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/sampling_math.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kBinsPerThread = kBins / kThreads;

struct Candidate {
  double score;
  int32_t token;
};

struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

struct Better {  // ties to the lower id
  __device__ Candidate operator()(const Candidate& a, const Candidate& b) const {
    return a.score > b.score || (a.score == b.score && a.token < b.token) ? a : b;
  }
};

using ReduceWords = cub::BlockReduce<uint64_t, kThreads>;
using ReduceCandidates = cub::BlockReduce<Candidate, kThreads>;
using ScanWords = cub::BlockScan<uint64_t, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;

struct Shared {
  union {
    ReduceWords::TempStorage words;
    ReduceCandidates::TempStorage candidates;
    ScanWords::TempStorage scan;
  };
  uint64_t first;  // the largest rank key
  struct {
    uint64_t above;  // weight of the digits above the chosen one
    uint32_t digit;
    uint32_t tokens;  // that have it
  } choice;
  uint32_t count[kBins];
  uint32_t mass_low[kBins];  // a 64-bit sum in two words: shared memory adds words natively
  uint32_t mass_high[kBins];
};

// The block's logits and its filters so far: tokens whose rank key is at least `lowest` are kept.
struct Row {
  const float* logits;
  int vocab_size;
  float largest;
  float temperature;
  uint64_t lowest;
  Adjustments adjustments;

  __device__ float scaled(float logit) const { return scaled_logit(logit, largest, temperature); }

  // Calls f(token, adjusted logit) for every token of this thread, with kAhead loads in flight (and as many copies of f in the code).
  template <int kAhead, class F>
  __device__ void for_each(const F& f) const {
    for (int base = threadIdx.x; base < vocab_size; base += kAhead * kThreads) {
      float ahead[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) ahead[i] = base + i * kThreads < vocab_size ? logits[base + i * kThreads] : 0.0f;
      if (changes_logits(adjustments)) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (base + i * kThreads < vocab_size) ahead[i] = adjusted_logit(adjustments, base + i * kThreads, ahead[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (base + i * kThreads < vocab_size) f(base + i * kThreads, ahead[i]);
      }
    }
  }
};

// The kept tokens in order are cut where their weight reaches a target: `limit` tokens or, where that is 0, top_p of their
// probability mass. Returns the rank key of the last one, found digit by digit from the top with histograms of integers, so
// that the order in which threads add does not matter.
__device__ uint64_t cut(Shared& shared, const Row& row, int limit, float top_p) {
  const bool by_mass = limit == 0;
  uint64_t target = static_cast<uint64_t>(limit);
  uint64_t prefix = 0;
  uint64_t above = 0;
  int low_bit = 64;
  while (low_bit > 0) {
    const int bits = min(kDigitBits, low_bit);
    const int high_bit = low_bit;
    low_bit -= bits;
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads)
      shared.count[bin] = shared.mass_low[bin] = shared.mass_high[bin] = 0;
    __syncthreads();
    row.for_each<8>([&](int token, float logit) {
      const uint64_t key = rank_key(logit, token);
      if (key < row.lowest || (high_bit < 64 && key >> high_bit != prefix)) return;
      const uint32_t digit = static_cast<uint32_t>(key >> low_bit) & ((1u << bits) - 1);
      atomicAdd(&shared.count[digit], 1u);
      const uint64_t mass = by_mass ? probability_mass(row.scaled(logit)) : 0;
      if (mass == 0) return;
      const uint32_t low = static_cast<uint32_t>(mass);
      const uint32_t carry = atomicAdd(&shared.mass_low[digit], low) > ~low ? 1 : 0;
      const uint32_t high = static_cast<uint32_t>(mass >> 32) + carry;
      if (high != 0) atomicAdd(&shared.mass_high[digit], high);
    });
    __syncthreads();

    // Thread t has the t-th pair of digits from the top.
    uint64_t weight[kBinsPerThread];
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      const int digit = kBins - 1 - (static_cast<int>(threadIdx.x) * kBinsPerThread + i);
      weight[i] = by_mass ? static_cast<uint64_t>(shared.mass_high[digit]) << 32 | shared.mass_low[digit] : shared.count[digit];
      sum += weight[i];
    }
    uint64_t before = 0;
    uint64_t total = 0;
    ScanWords(shared.scan).ExclusiveSum(sum, before, total);
    if (target == 0) target = top_p_target(total, top_p);
    before += above;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      const int digit = kBins - 1 - (static_cast<int>(threadIdx.x) * kBinsPerThread + i);
      if (before < target && target <= before + weight[i]) {
        shared.choice = {before, static_cast<uint32_t>(digit), shared.count[digit]};
      }
      before += weight[i];
    }
    __syncthreads();
    prefix = prefix << bits | shared.choice.digit;
    above = shared.choice.above;
    const bool all_taken = !by_mass && above + shared.choice.tokens == target;
    const bool done = shared.choice.tokens == 1 || all_taken;
    __syncthreads();  // before the choice and the histograms are written again
    if (done) break;
  }
  const uint64_t key = prefix << low_bit;
  return key > row.lowest ? key : row.lowest;
}

// By one thread, when all have read the counts for the last time.
__device__ void finish(const SamplingParams& p, const SamplingRow& request, int32_t token) {
  p.tokens[blockIdx.x] = token;
  if (request.counts != nullptr) request.counts[token] = counted(request.counts[token]);
}

// One block per row; its threads stride over the tokens.
__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ SamplingParams p) {
  __shared__ Shared shared;
  const SamplingRow request = p.rows[blockIdx.x];
  Row row = {p.logits + static_cast<int64_t>(blockIdx.x) * p.logits_stride,
             static_cast<int>(p.vocab_size),
             0.0f,
             request.temperature,
             0,
             adjustments_of(request)};

  uint64_t first = 0;
  bool nan_given = false;
  row.for_each<8>([&](int token, float logit) {
    first = Larger()(first, rank_key(logit, token));
    if (logit != logit) nan_given = nan_given || row.logits[token] != row.logits[token];
  });
  first = ReduceWords(shared.words).Reduce(first, Larger());
  if (threadIdx.x == 0) {
    shared.first = first;
    if (p.row_faults != nullptr) p.row_faults[blockIdx.x] = static_cast<uint8_t>(FaultCode::none);
  }
  __syncthreads();
  if (nan_given && p.row_faults != nullptr) p.row_faults[blockIdx.x] = static_cast<uint8_t>(FaultCode::logits_not_a_number);
  first = shared.first;
  const int32_t first_token = ranked_token(first);
  const bool any_number = first >> 32 != 0;
  if (is_greedy(request) || !any_number) {
    if (threadIdx.x == 0) finish(p, request, any_number ? first_token : 0);
    return;
  }
  row.largest = adjusted_logit(row.adjustments, first_token, row.logits[first_token]);

  if (request.top_k > 0 && request.top_k < row.vocab_size) row.lowest = cut(shared, row, request.top_k, 0.0f);
  if (!(request.top_p >= 1.0f)) row.lowest = cut(shared, row, 0, request.top_p);

  Candidate best = {-INFINITY, INT_MAX};
  row.for_each<2>([&](int token, float logit) {
    if (rank_key(logit, token) < row.lowest) return;
    const float scaled = row.scaled(logit);
    if (!passes_min_p(scaled, request.min_p)) return;
    const uint32_t random = token_random(request, token);
    // -log(u) >= 1 - u >= 2^-(c + 1), c the leading zeros of 2^32 - 1 - random: a bound that spares most logarithms.
    if (scaled + 0.69315 * (__clz(static_cast<int>(~random)) + 1) < best.score) return;
    best = Better()(best, {gumbel_score(scaled, random), token});
  });
  best = ReduceCandidates(shared.candidates).Reduce(best, Better());
  if (threadIdx.x == 0) finish(p, request, best.token);
}

}  // namespace

Status sample(const SamplingParams& params, const Execution& execution) {
  return launch("sample", sample_kernel, {grid_extent(params.num_rows), kThreads}, execution.stream, params);
}

}  // namespace prologue::cuda
