#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/shared/any_type.h>
#include <prologue/kernels/moe/backends.h>
#include <prologue/kernels/moe/moe_route_math.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kWarps = 4;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline uint64_t warp_max(uint64_t value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// There is a warp per token. Lane i has the logits i, i + 32, ...; once the experts are chosen, it has the i-th of them.
__global__ void __launch_bounds__(32 * kWarps) moe_route_kernel(const __grid_constant__ MoeRouteParams p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= p.num_tokens) return;
  const int num_experts = static_cast<int>(p.num_experts), top_k = static_cast<int>(p.top_k);
  const auto logit_at = [&](int i) { return float_at<float>(p.dtype, p.logits, t * p.logits_stride + i); };

  uint64_t mine = 0, last = ~uint64_t{0}, first = 0;
  for (int j = 0; j < top_k; ++j) {
    uint64_t best = 0;
    for (int i = lane; i < num_experts; i += 32) {
      const uint64_t key = expert_key(logit_at(i), i);
      if (key <= last && key > best) best = key;
    }
    best = warp_max(best);
    if (j == 0) first = best;
    if (lane == j) mine = best;
    last = best - 1;
  }
  const float largest = logit_of(first);
  const bool routed = can_route(largest);
  float weight = expert_term(p.weighting, logit_of(mine), largest);

  const auto sum_of_weights = [&] {
    float sum = 0.0f;
    for (int j = 0; j < top_k; ++j) sum = add_rounded(sum, __shfl_sync(kAllLanes, weight, j));
    return sum;
  };
  if (p.weighting == ExpertWeighting::top_k_then_softmax) weight = divide_rounded(weight, sum_of_weights());
  if (p.weighting == ExpertWeighting::softmax_then_top_k) {
    float sum = 0.0f;
    for (int i = lane; i < num_experts; i += 32) sum = add_rounded(sum, expert_term(p.weighting, logit_at(i), largest));
#pragma unroll
    for (int offset = kExpertSums / 2; offset > 0; offset /= 2) sum = add_rounded(sum, __shfl_xor_sync(kAllLanes, sum, offset));
    weight = divide_rounded(weight, sum);
    if (p.normalize) weight = divide_rounded(weight, sum_of_weights());
  }
  if (lane >= top_k) return;
  p.expert_ids[t * top_k + lane] = routed ? expert_of(mine) : lane;
  p.expert_weights[t * top_k + lane] = routed ? weight : __int_as_float(0x7fc00000);
}

}  // namespace

Status moe_route(const MoeRouteParams& params, const Execution& execution) {
  const int64_t blocks = divide_up(params.num_tokens, kWarps);
  return launch("moe_route", moe_route_kernel, {grid_extent(blocks), 32 * kWarps}, execution.stream, params);
}

}  // namespace prologue::cuda
