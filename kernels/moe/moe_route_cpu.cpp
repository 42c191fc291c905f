#include <algorithm>
#include <cmath>
#include <limits>

#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/shared/any_type.h>
#include <prologue/kernels/moe/backends.h>
#include <prologue/kernels/moe/moe_route_math.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 12;  // logits; below this, starting threads costs more than the work

void route_token(const MoeRouteParams& p, int64_t t) {
  float logits[kMaxExperts];
  for (int64_t i = 0; i < p.num_experts; ++i) logits[i] = float_at<float>(p.dtype, p.logits, t * p.logits_stride + i);
  int32_t* const ids = p.expert_ids + t * p.top_k;
  float* const weights = p.expert_weights + t * p.top_k;

  uint64_t chosen[kMaxExpertsPerToken];
  for (int64_t j = 0; j < p.top_k; ++j) {
    uint64_t best = 0;
    for (int64_t i = 0; i < p.num_experts; ++i) {
      const uint64_t key = expert_key(logits[i], static_cast<int32_t>(i));
      if ((j == 0 || key < chosen[j - 1]) && key > best) best = key;
    }
    chosen[j] = best;
  }
  const float largest = logit_of(chosen[0]);
  if (!can_route(largest)) {
    for (int64_t j = 0; j < p.top_k; ++j) ids[j] = static_cast<int32_t>(j);
    std::fill_n(weights, p.top_k, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  for (int64_t j = 0; j < p.top_k; ++j) {
    ids[j] = expert_of(chosen[j]);
    weights[j] = expert_term(p.weighting, logit_of(chosen[j]), largest);
  }
  const auto divide = [&](float sum) {
    for (int64_t j = 0; j < p.top_k; ++j) weights[j] /= sum;
  };
  const auto sum_of_weights = [&] {
    float sum = 0.0f;
    for (int64_t j = 0; j < p.top_k; ++j) sum += weights[j];
    return sum;
  };
  if (p.weighting == ExpertWeighting::top_k_then_softmax) divide(sum_of_weights());
  if (p.weighting != ExpertWeighting::softmax_then_top_k) return;
  float sums[kExpertSums] = {};
  for (int64_t i = 0; i < p.num_experts; ++i) sums[i % kExpertSums] += expert_term(p.weighting, logits[i], largest);
  for (int half = kExpertSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  divide(sums[0]);
  if (p.normalize) divide(sum_of_weights());
}

}  // namespace

Status moe_route(const MoeRouteParams& params, const Execution& execution) {
  const bool serial = params.num_tokens * params.num_experts <= kSerialElements;
  parallel_for(params.num_tokens, serial ? 1 : execution.num_threads, [&](int64_t t) { route_token(params, t); });
  return {};
}

}  // namespace prologue::cpu
