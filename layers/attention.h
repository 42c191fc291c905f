// Builds the unfused attention layer of a model's graph. The graph that runs is the result of the rewrite in fusion.h.
#pragma once

#include <cstdint>
#include <string>

#include <prologue/layers/graph/graph.h>

namespace prologue {

struct PROLOGUE_API Attention {
  int64_t layer = 0;  // index of its KV cache
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;  // 0: another layer writes the cache, and this one reads it: qkv_weight has the rows of q alone
  int64_t head_dim = 0;
  float scale = 0.0f;  // of the scores, usually 1 / sqrt(head_dim)
  GraphRope rope;      // none: the layer rotates nothing (NoPE)

  Weight qkv_weight;  // [(num_q_heads + num_kv_heads) head_dim + num_kv_heads v_head_dim, hidden]: the rows of q, then k, then v
  Weight qkv_bias;    // as many as the weight has rows; may be none
  Weight output_weight;  // [hidden, num_q_heads v_head_dim]

  // Only some models use these options.
  Weight output_bias = {};                       // [hidden]
  Weight q_bias = {}, k_bias = {}, v_bias = {};  // instead of qkv_bias, if only some of the three have one
  HeadsNorm q_norm = {}, k_norm = {}, v_norm = {};
  bool v_from_k = false;       // V is computed from K as projected (and biased): qkv_weight has no rows for V
  int64_t hadamard_block = 0;  // of Q and K; 0: no Hadamard transform
  int64_t v_hadamard_block = 0;  // of V, undone on attention's output; 0: none
  QueryScale q_scale = {};
  // K and V are multiplied by these, as their last step.
  float k_constant = 1.0f, v_constant = 1.0f;
  int64_t v_head_dim = 0;  // of V; 0: head_dim
  float soft_cap = 0.0f;   // of the scores; 0: none
  int64_t window = 0;      // tokens that a token sees, including its own; 0: all
  int64_t chunk = 0;       // a token sees those of its chunk of so many positions; 0: no chunks
  Weight sinks = {};       // [1, num_q_heads] of the activations' type or float32; may be none
  // What attention returns is multiplied by the sigmoid of a gate, channel by channel (Qwen3-Next, Qwen3.5). qkv_weight (and qkv_bias) then has
  // the rows of the gate last: num_q_heads * v_head_dim. (Model files that have [q | gate] for each head need their rows in this order.)
  bool gated = false;

  // Where one rank has these heads of a model (kernels/collective), and a norm is over all heads of a token (NormScope::token): how many the
  // model has, and the first of this rank. The norms' weights are those of all heads, biases are q_bias, k_bias and v_bias, V has its own rows,
  // and there is no gate. 0: no such norm.
  struct AllHeads {
    int64_t num_q_heads = 0, num_kv_heads = 0;
    int64_t first_q_head = 0, first_kv_head = 0;
  };
  AllHeads all_heads = {};

  Value build(GraphBuilder& g, Value hidden_states) const;
};

}  // namespace prologue
