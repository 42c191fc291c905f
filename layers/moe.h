// A mixture of experts replaces the MLP of a decoder layer: a router chooses top_k of num_experts MLPs for each token, and the result is
// the weighted sum of theirs, plus that of an MLP for all tokens if a model has one.
#pragma once

#include <cstdint>

#include <prologue/layers/graph/graph.h>
#include <prologue/layers/mlp.h>

namespace prologue {

struct PROLOGUE_API MixtureOfExperts {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  ExpertWeighting weighting = ExpertWeighting::softmax_then_top_k;
  bool normalize = false;       // softmax_then_top_k only: the weights of a token's experts add up to 1
  bool weights_before = false;  // the weights multiply what goes into an expert (Llama 4), not what comes out
  Weight router_weight;         // [num_experts, hidden]
  Weight router_bias = {};      // [num_experts]; may be none
  Mlp experts;                  // of all experts: the rows of each weight are those of expert 0, then of expert 1 and so on;
                                // each bias is [num_experts, the rows of one]
  Mlp shared = {};              // of all tokens; without an up_weight there is none

  Value build(GraphBuilder& g, Value hidden_states) const;
};

}  // namespace prologue
