// A loaded model: its weights on a device and the layer graph over them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
};

struct Model {
  ModelConfig config;
  DType dtype = DType::f32;  // of the activations, and of the weights that are not packed
  std::vector<WeightFormat> weight_formats;  // of those that are packed, each once
  Graph graph;  // unfused; its output is float32 logits [logit rows, vocab_size]

  // What the graph points to.
  std::vector<Buffer> weights;
  std::vector<std::unique_ptr<RopeTable>> rope_tables;  // they grow to the longest sequence that a runner is created for
};

}  // namespace prologue
