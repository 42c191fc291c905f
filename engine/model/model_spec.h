// This file describes a model in one form for all families and file formats: a family's reader fills it in (engine/model/families), and
// build_model makes the graph and loads the tensors that it names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/engine/model/model.h>
#include <prologue/layers/decoder_layer.h>
#include <prologue/layers/rope/rope_scaling.h>

namespace prologue {

// Returns the name with each mark replaced by a number.
std::string with_number(std::string name, int64_t number, std::string_view mark = "{}");

struct RopeSpec {
  RopeConfig config;
  std::vector<int64_t> mrope_sections;  // empty: one position for each token
  bool mrope_interleaved = false;
};

// Describes one kind of layer. Most models have one or two.
struct LayerKind {
  int64_t window = 0;      // tokens that a token sees, its own included; 0 = all before it
  int64_t chunk = 0;       // a token sees those of its own chunk of so many positions; 0 = no chunks
  int32_t rope = 0;        // index of ModelSpec::ropes; -1: nothing is rotated
  bool head_norms = true;  // has the norms of Q and K, if the model has them
  bool experts = false;    // its MLP is a mixture of experts
  QueryScale q_scale = {};
};

// Says how the rows of Q, K and V are ordered in a tensor that holds all three. by_head: q, k and v of head 0, of head 1, ... (GPT-NeoX).
enum class QkvRows { q_k_v, by_head };

struct ExpertsSpec {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t intermediate_size = 0;
  ExpertWeighting weighting = ExpertWeighting::softmax_then_top_k;
  bool normalize = false;
};

// Names of modules, "{}" standing for the layer: a module `m` has the tensor m.weight and may have m.bias. Empty: there is no such module.
struct ModuleNames {
  std::string embedding, final_norm;
  std::string lm_head;  // not in the files if it is tied to the embedding
  std::string attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;
  std::string q, k, v;  // or
  std::string qkv;      // one tensor
  std::string attention_output;
  std::string q_norm, k_norm;  // with "{h}" in the name: one for each head
  std::string gate, up, down;
  std::string gate_up;  // instead of gate and up
  std::string router;
  // With "{e}" in the name one module for each expert, without it a tensor [experts, rows, cols].
  std::string expert_gate, expert_up, expert_down;
  // These are names of tensors with all experts, [experts, cols, rows], with the rows of gate and up alternating; "_bias" follows the name
  // of a bias.
  std::string experts_gate_up, experts_down;
  std::string sinks;
  std::string rope_freqs;             // ggml's frequency factors, and
  std::string rope_short, rope_long;  // those of LongRoPE

  // Returns all of them.
  std::vector<std::string*> all();
};

struct ModelSpec {
  ModelConfig config;
  float embedding_scale = 1.0f;
  NormKind norm_kind = NormKind::rms;
  float norm_eps = 1e-5f;
  float norm_weight_offset = 0.0f;            // added to norm weights when they are loaded (Gemma in Hugging Face's files: 1)
  BlockShape shape = BlockShape::sequential;  // layers/decoder_layer.h

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
  // Says how the names of tensors begin that may be in the files and are not needed ("{}": a layer).
  std::vector<std::string> other_modules;

  bool needs_no(std::string_view tensor) const;
};

}  // namespace prologue
