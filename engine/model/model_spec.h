// What a model is, in one form for all families and file formats: a family's reader fills it in (engine/model/families), and build_model
// makes the graph and loads the tensors that it names.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <prologue/engine/model/model.h>
#include <prologue/layers/decoder_layer.h>
#include <prologue/layers/rope/rope_scaling.h>

namespace prologue {

struct RopeSpec {
  RopeConfig config;
  std::vector<int64_t> mrope_sections;  // empty: one position for each token
  bool mrope_interleaved = false;
};

// One kind of layer. Most models have one or two.
struct LayerKind {
  int64_t window = 0;      // tokens that a token sees, its own included; 0 = all before it
  int64_t chunk = 0;       // a token sees those of its own chunk of so many positions; 0 = no chunks
  int32_t rope = 0;        // index of ModelSpec::ropes; -1: nothing is rotated
  bool head_norms = true;  // has the norms of Q and K, if the model has them
  bool experts = false;    // its MLP is a mixture of experts
  QueryScale q_scale = {};
};

// How the rows of Q, K and V lie in a tensor that holds all three.
enum class QkvRows { q_k_v, by_head, by_kv_head };  // by_head: q, k and v of head 0, of head 1, ... (GPT-NeoX)

struct ExpertsSpec {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t intermediate_size = 0;
  MoeRouting routing = {};  // kernels/token_ops/moe_route.h
};

// Names of modules, "{}" standing for the layer: a module `m` has the tensor m.weight and may have m.bias. Empty: there is no such module.
struct ModuleNames {
  std::string embedding, final_norm, lm_head;  // lm_head: not in the files if it is tied to the embedding
  std::string attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;
  std::string q, k, v;  // or
  std::string qkv;
  std::string attention_output;
  std::string q_norm, k_norm;
  std::string sinks;  // the tensor itself
  std::string gate, up;  // or
  std::string gate_up;   // or, of an MLP without gate, `up`
  std::string down;
  std::string router;
  std::string expert_gate, expert_up, expert_down;  // "{e}" stands for the expert, or without it one tensor [experts, rows, cols]
  std::string experts_gate_up, experts_gate_up_bias, experts_down, experts_down_bias;  // the tensors themselves, [experts, cols, rows]
  std::string rope_freqs;  // the tensor itself: ggml's frequency factors
};

struct ModelSpec {
  ModelConfig config;
  int64_t v_head_dim = 0;

  float embedding_scale = 1.0f;
  NormKind norm_kind = NormKind::rms;
  float norm_eps = 1e-5f;
  float norm_weight_offset = 0.0f;  // added to norm weights when they are loaded (Gemma in Hugging Face's files: 1)
  BlockShape shape = BlockShape::sequential;  // layers/decoder_layer.h
  float residual_scale = 1.0f;

  float attention_scale = 0.0f;
  float attention_soft_cap = 0.0f;
  HeadNorm head_norm = {};  // of Q and K; its pointers stay null
  QkvRows qkv_rows = QkvRows::q_k_v;

  Activation activation = Activation::silu;
  bool gated_mlp = true;
  float activation_limit = 0.0f, activation_alpha = 0.0f;  // of the clamped SwiGLU
  ExpertsSpec experts;

  bool tied_lm_head = false;
  float logit_scale = 1.0f;
  float logit_soft_cap = 0.0f;

  std::vector<RopeSpec> ropes;
  std::vector<LayerKind> kinds;
  std::vector<int32_t> kind_of_layer;  // [num_layers], index of `kinds`

  ModuleNames names;
};

}  // namespace prologue
