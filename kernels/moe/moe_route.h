// Chooses the experts of each token (mixture of experts): from the router's logits, the top_k of num_experts and their weights.
//
//   softmax_then_top_k  the weights are softmax(logits) over all experts; the top_k largest are chosen. normalize: their weights
//                       are divided by their sum (Mixtral; Qwen3-MoE's norm_topk_prob)
//   top_k_then_softmax  the weights are the softmax over the logits of the chosen ones (GPT-OSS)
//   sigmoid             the weights are 1 / (1 + exp(-logit)) of the chosen ones (Llama 4)
//
//   logits          [num_tokens, num_experts] dtype, row stride logits_stride
//   expert_ids      [num_tokens, top_k] int32, contiguous: the chosen ones, the largest logit first
//   expert_weights  [num_tokens, top_k] float32, contiguous
//
// Of equal logits the one of the lower index is larger. A row that holds a NaN or +infinity, or nothing but -infinity, has the experts
// 0..top_k-1 and NaN for every weight: what a token computes from such logits is NaN, as in a model without experts.
//
// Numerics: float32; the order of every sum depends on num_experts and top_k only. CUDA and CPUs with a fused multiply-add return the same
// bits. num_tokens = 0 is a no-op. Never allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>

namespace prologue {

enum class ExpertWeighting : int32_t { softmax_then_top_k = 0, top_k_then_softmax, sigmoid };

inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxExpertsPerToken = 32;

struct MoeRouteParams {
  int64_t num_tokens = 0;
  int64_t num_experts = 0;  // 1..kMaxExperts
  int64_t top_k = 0;        // 1..min(num_experts, kMaxExpertsPerToken)
  DType dtype = DType::unset;
  ExpertWeighting weighting = ExpertWeighting::softmax_then_top_k;
  bool normalize = false;  // softmax_then_top_k only
  const void* logits = nullptr;
  int64_t logits_stride = 0;
  int32_t* expert_ids = nullptr;
  float* expert_weights = nullptr;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status moe_route(const MoeRouteParams& params, const Execution& execution);

}  // namespace prologue
