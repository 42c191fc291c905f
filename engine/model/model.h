// A Model is a loaded model: its weights on a device and the layer graph over them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <prologue/engine/model/shard.h>
#include <prologue/engine/sampling_options.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/layers/graph/graph.h>

namespace prologue {

struct ModelConfig {
  std::string architecture;
  std::string name;  // general.name of the file
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;  // the longest sequence that the model supports
  // Says how far EngineOptions::context_length may go beyond it; 0 = not at all.
  int64_t max_context_length = 0;

  int64_t longest_context() const { return std::max(context_length, max_context_length); }
};

struct Model {
  ModelConfig config;
  DType dtype = DType::f32;                  // of the activations, and of the weights that are not packed
  std::vector<WeightFormat> weight_formats;  // of those that are packed, each once
  std::string weight_types;                  // how the matrices are held: "q4_k and q6_k", "bfloat16"
  int64_t weight_bytes = 0;                  // of all weights
  bool quantizes_activations = false;        // its files say so: Checkpoint::quantizes_activations()
  SamplingDefaults sampling;
  // Says what is unusual about the files and did not keep them from loading, one sentence each. Programs print them.
  std::vector<std::string> warnings;
  // Unfused. Its output is float32 logits [logit rows, vocab_size]; of several ranks, those of this one (ShardSizes::num_logits), and what its
  // layers compute is this rank's part of a sum.
  Graph graph;

  // [num_layers] says how many tokens a token sees at most, its own included; 0 = all before it. The pages of tokens that no later token
  // sees are given back. Empty: all layers see all.
  std::vector<int64_t> window_of_layer;
  int64_t num_position_axes = 1;  // positions of a token; more than 1 for MRoPE

  // The graph points to these.
  std::vector<Buffer> weights;
  std::vector<std::unique_ptr<RopeTable>> rope_tables;  // they grow to the longest sequence that a runner is created for
  // The weights are those of this rank, and the graph exchanges values with the others': its output is all logits. `config` is that of the whole
  // model.
  ModelShard shard = {};
};

}  // namespace prologue
