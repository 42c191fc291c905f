#pragma once
#include <prologue/layers/graph/graph.h>
namespace prologue {
enum class ExpertWeighting : int32_t { softmax_then_top_k = 0, top_k_then_softmax, sigmoid };
struct MixtureOfExperts {
  int64_t num_experts = 0, top_k = 0;
  ExpertWeighting weighting = ExpertWeighting::softmax_then_top_k;
  bool normalize = false;
  Activation activation = Activation::silu;
  float limit = 0, alpha = 0;
  Weight router_weight, router_bias, gate_up_weight, gate_up_bias, down_weight, down_bias;
  Value build(GraphBuilder&, Value h) const { return h; }
};
}
