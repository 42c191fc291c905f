// Writes model files with random weights: as fast to run as the real model of the same shape, and made in seconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  int64_t num_experts = 0;    // above 0: so many MLPs of ffn_size in a layer
  int64_t experts_per_token = 0;
};

// Returns smollm2 (SmolLM2 135M), 1b (Llama 3.2 1B), 8b (Llama 3.1 8B), 70b, and tiny, which is no real model, to try a program. Llama 3's
// frequency factors are left out. gpt-oss-20b and qwen3-30b-a3b have the sizes of these mixtures of experts, in a model of the architecture
// llama (Mixtral): without sinks, windows, biases and norms of heads.
std::span<const ModelShape> model_shapes();

// Returns bfloat16, the block formats of GGUF as weight_format_name has them, q4_k_m: llama.cpp's mixture of q4_k and q6_k; and f8_e4m3,
// f8_e4m3_rows, i8, i4_32, i4_64, i4_128 and nvfp4_modelopt, which are written as directories of Hugging Face.
std::vector<std::string> model_formats();

// Writes a GGUF file of the architecture llama. Matrices are normally distributed and scaled so that activations stay near one; norm weights
// are ones. In a block format the codes of the matrices are uniformly distributed, and the weights have the same standard deviation as in
// bfloat16. As in llama.cpp, rows that are not whole blocks of 256 are in q5_0, q5_1 or q8_0 in place of q4_k, q5_k or q6_k,
// and in iq4_nl in place of q2_k, q3_k or iq4_xs.
//
// f8_e4m3 and i8: `path` is a directory, with config.json, model.safetensors, tokenizer.json and tokenizer_config.json. The matrices of the layers
// have normally distributed codes, with a scale for each 128 x 128 values (quant_method fp8), or for each row (compressed-tensors: int8, and
// float8 as f8_e4m3_rows); activations of the float8 ones are quantised, too; the embedding and the head are bfloat16. i4_32, i4_64 and i4_128:
// the same in GPTQ's form, with float16 scales and the zero point 8. nvfp4_modelopt: the same in NVFP4 as ModelOpt writes it, with codes that are
// uniformly distributed.
//
// The vocabulary has three control tokens (end of text, and ChatML's two), the 256 bytes, and fillers of five characters that no text is
// encoded to; there are no merges. The same shape, format and seed give the same bytes, whatever `num_threads` is.
//
// invalid_argument: the vocabulary has fewer than 259 tokens, `format` is not one of model_formats(), or a matrix in blocks has rows that are
// not a multiple of 32 (i4_32, i4_64 and i4_128: rows or columns that are not a multiple of 8; nvfp4_modelopt: of 16). unsupported: a directory of
// a model with experts. data_loss: a file cannot be written.
Status write_random_model(const ModelShape& shape, uint64_t seed, const std::string& path, int32_t num_threads,
                          std::string_view format = "bfloat16");

}  // namespace prologue::bench
