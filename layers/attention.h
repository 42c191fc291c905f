// The attention layer as a model writes it down: the unfused truth. What runs is this after fusion.h.
#pragma once

#include <cstdint>
#include <string>

#include <prologue/layers/graph/graph.h>

namespace prologue {

struct PROLOGUE_API Attention {
  int64_t layer = 0;  // its cache
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0.0f;  // of the scores, usually 1 / sqrt(head_dim)
  Rope rope;           // none: the layer turns nothing (NoPE)

  Weight qkv_weight;     // [(num_q_heads + 2 num_kv_heads) head_dim, hidden]: the rows of q, then k, then v
  Weight qkv_bias;       // [(num_q_heads + 2 num_kv_heads) head_dim]; may be none
  Weight output_weight;  // [hidden, num_q_heads head_dim]

  // What some models add.
  Weight q_bias = {}, k_bias = {}, v_bias = {};  // in place of qkv_bias where only some have one
  NormPlacement norm_placement = NormPlacement::none;
  HeadsNorm q_norm = {}, k_norm = {};
  VNorm v_norm = {};
  bool v_from_k = false;  // V is made of K as projected (and biased): qkv_weight has no rows of V
  QueryScale q_scale = {};

  Value build(GraphBuilder& g, Value hidden_states) const;
};

}  // namespace prologue
