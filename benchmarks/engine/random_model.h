// Writes model files with random weights: as fast to run as the real model of the same shape, and made in seconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <prologue/kernels/base/status.h>

namespace prologue::bench {

struct ModelShape {
  std::string name;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t ffn_size = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  float rope_theta = 0.0f;
  bool tied_output = false;   // the embedding is the LM head, too
  std::string pre_tokenizer;  // tokenizer.ggml.pre
};

// Returns smollm2 (SmolLM2 135M), 1b (Llama 3.2 1B), 8b (Llama 3.1 8B), and tiny, which is no real model, to try a program. Llama 3's
// frequency factors are left out.
std::span<const ModelShape> model_shapes();

// Writes a GGUF file of the architecture llama. Matrices are bfloat16, normally distributed and scaled so that activations stay near one;
// norm weights are ones. The vocabulary has three control tokens (end of text, and ChatML's two), the 256 bytes, and fillers of five
// characters that no text is encoded to; there are no merges. The same shape and seed give the same bytes, whatever `num_threads` is.
// invalid_argument: the vocabulary has fewer than 259 tokens. data_loss: the file cannot be written.
Status write_random_model(const ModelShape& shape, uint64_t seed, const std::string& path, int32_t num_threads);

}  // namespace prologue::bench
