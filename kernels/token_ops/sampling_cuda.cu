#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/sampling_math.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

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

// The tokens of a row are divided over these blocks: a cluster, or one block.
struct Parts {
  int count;
  int rank;

  __device__ void sync() const {
    if (count > 1) {
      sync_cluster();
    } else {
      __syncthreads();
    }
  }
  // Returns what `shared` holds in the block of that rank.
  template <class T>
  __device__ T of(T& shared, int other) const {
    return count > 1 ? *in_block_of_cluster(&shared, static_cast<uint32_t>(other)) : shared;
  }
};

struct Shared {
  union {
    ReduceWords::TempStorage words;
    ReduceCandidates::TempStorage candidates;
    ScanWords::TempStorage scan;
  };
  uint64_t first;         // the largest rank key of this block's tokens
  uint64_t first_of_all;  // of the row
  Candidate best;         // of this block's tokens
  struct {
    uint64_t above;  // weight of the digits above the chosen one
    uint32_t digit;
    uint32_t tokens;  // that have it
  } choice;
  uint32_t count[kBins];
  uint32_t mass_low[kBins];  // a 64-bit sum in two words: shared memory adds words natively
  uint32_t mass_high[kBins];
};

// Holds the block's logits and its filters so far: tokens whose rank key is at least `lowest` are kept.
struct Row {
  Parts parts;
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
    const int step = parts.count * kThreads;
    for (int base = parts.rank * kThreads + static_cast<int>(threadIdx.x); base < vocab_size; base += kAhead * step) {
      float ahead[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) ahead[i] = base + i * step < vocab_size ? logits[base + i * step] : 0.0f;
      if (changes_logits(adjustments)) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (base + i * step < vocab_size) ahead[i] = adjusted_logit(adjustments, base + i * step, ahead[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (base + i * step < vocab_size) f(base + i * step, ahead[i]);
      }
    }
  }
};

// The kept tokens in order are cut where their weight reaches a target: `limit` tokens or, where that is 0, top_p of their
// probability mass. Returns the rank key of the last one, found digit by digit from the top with histograms of integers, so
// that the order in which threads and blocks add does not matter. All blocks add up all histograms, and return the same.
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
    row.parts.sync();

    // Thread t has the t-th pair of digits from the top.
    uint64_t weight[kBinsPerThread] = {};
    uint32_t tokens[kBinsPerThread] = {};
    uint64_t sum = 0;
    for (int part = 0; part < row.parts.count; ++part) {
#pragma unroll
      for (int i = 0; i < kBinsPerThread; ++i) {
        const int digit = kBins - 1 - (static_cast<int>(threadIdx.x) * kBinsPerThread + i);
        const uint32_t count = row.parts.of(shared.count[digit], part);
        tokens[i] += count;
        if (!by_mass) {
          weight[i] += count;
        } else if (count > 0) {
          weight[i] += static_cast<uint64_t>(row.parts.of(shared.mass_high[digit], part)) << 32 |
                       row.parts.of(shared.mass_low[digit], part);
        }
      }
    }
#pragma unroll
    for (const uint64_t each : weight) sum += each;
    uint64_t before = 0;
    uint64_t total = 0;
    ScanWords(shared.scan).ExclusiveSum(sum, before, total);
    if (target == 0) target = top_p_target(total, top_p);
    before += above;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      const int digit = kBins - 1 - (static_cast<int>(threadIdx.x) * kBinsPerThread + i);
      if (before < target && target <= before + weight[i]) {
        shared.choice = {before, static_cast<uint32_t>(digit), tokens[i]};
      }
      before += weight[i];
    }
    __syncthreads();
    prefix = prefix << bits | shared.choice.digit;
    above = shared.choice.above;
    const bool all_taken = !by_mass && above + shared.choice.tokens == target;
    const bool done = shared.choice.tokens == 1 || all_taken;
    row.parts.sync();  // before the choice and the histograms are written again
    if (done) break;
  }
  const uint64_t key = prefix << low_bit;
  return key > row.lowest ? key : row.lowest;
}

// Called by one thread, when all have read the counts for the last time.
__device__ void finish(const SamplingParams& p, int64_t index, const SamplingRow& request, int32_t token) {
  p.tokens[index] = token;
  if (request.counts != nullptr && place_in_chain(request, index) < 0) request.counts[token] = counted(request.counts[token]);
}

// Each row has a block or a cluster of several; their threads stride over its tokens.
__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ SamplingParams p, int num_parts) {
  Shared& shared = *dynamic_shared<Shared>();
  const Parts parts = {num_parts, num_parts > 1 ? static_cast<int>(cluster_rank()) : 0};
  const int64_t index = static_cast<int>(blockIdx.x) / num_parts;
  const bool decides = parts.rank == 0 && threadIdx.x == 0;
  const SamplingRow request = p.rows[index];
  Row row = {parts, p.logits + index * p.logits_stride, static_cast<int>(p.vocab_size), 0.0f, request.temperature, 0, {}};
  let_next_kernel_start();
  wait_for_previous_kernels();
  row.adjustments = adjustments_of(p, request, index);

  uint64_t first = 0;
  bool nan_given = false;
  row.for_each<8>([&](int token, float logit) {
    first = Larger()(first, rank_key(logit, token));
    if (logit != logit) nan_given = nan_given || row.logits[token] != row.logits[token];
  });
  first = ReduceWords(shared.words).Reduce(first, Larger());
  if (threadIdx.x == 0) shared.first = first;
  if (decides && p.row_faults != nullptr) p.row_faults[index] = static_cast<uint8_t>(FaultCode::none);
  parts.sync();
  if (threadIdx.x == 0) {
    for (int part = 0; part < parts.count; ++part) first = Larger()(first, parts.of(shared.first, part));
    shared.first_of_all = first;
  }
  if (nan_given && p.row_faults != nullptr) p.row_faults[index] = static_cast<uint8_t>(FaultCode::logits_not_a_number);
  parts.sync();  // no block leaves while another reads what it has
  first = shared.first_of_all;
  const int32_t first_token = ranked_token(first);
  const bool any_number = first >> 32 != 0;
  if (is_greedy(request) || !any_number) {
    if (decides) finish(p, index, request, any_number ? first_token : 0);
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
  if (threadIdx.x == 0) shared.best = best;
  parts.sync();
  if (decides) {
    for (int part = 1; part < parts.count; ++part) best = Better()(best, parts.of(shared.best, part));
    finish(p, index, request, best.token);
  }
  parts.sync();
}

// Few rows leave most of the GPU idle: then a row has several blocks. All clusters should run at a time, which 16 clusters of eight
// seem not to do: on an H200 they took twice as long as one.
int64_t parts_of_row(int64_t num_rows) {
  constexpr int64_t kMostParts = 8, kBlocks = 64;
  if (!device_is_hopper_or_later()) return 1;
  int64_t parts = kMostParts;
  while (parts > 1 && num_rows * parts > kBlocks) parts /= 2;
  return parts;
}

}  // namespace

Status sample(const SamplingParams& params, const Execution& execution) {
  const int64_t parts = parts_of_row(params.num_rows);
  LaunchAttributes attributes(static_cast<int>(parts), params.overlaps);
  const LaunchShape shape = {grid_extent(params.num_rows * parts), kThreads, sizeof(Shared), attributes.span()};
  return launch("sample", sample_kernel, shape, execution.stream, params, static_cast<int>(parts));
}

}  // namespace prologue::cuda
