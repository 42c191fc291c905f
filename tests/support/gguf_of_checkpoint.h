// Converts one of the tiny checkpoints into a GGUF file as llama.cpp's convert_hf_to_gguf.py does: the same keys, names of tensors, order
// of rows and conventions of weights. All weights are F32. The tokenizer is a stand-in, "t0", "t1", ...
//
// What llama.cpp's files cannot hold is lost, as there: the windows of Llama (Mistral) and Qwen2, dynamic scaling, query_pre_attn_scalar
// of Gemma (the scale is that of the head dimension), norm_topk_prob (always on), layers without experts beside layers with them (an
// error here), the bases of GPT-NeoX and Phi 2 (10000), the MLP's size of Phi 2 (four times the hidden size: an error here).
// llama.cpp itself does not read rope.scaling.yarn_attn_factor, yarn_beta_fast and yarn_beta_slow of a Llama: it computes with the factor
// of the scale, 32 and 1.
// One key more: Gemma 3's attention.sliding_window_pattern, which llama.cpp reads and its converter leaves at 6.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace prologue::test {

// Architectures: llama (Llama, Mistral, Mixtral), qwen2, qwen3, qwen3moe, gemma2, gemma3, gptneox, phi2, phi3.
// Throws std::runtime_error for others.
std::vector<std::byte> gguf_of_checkpoint(const std::string& folder);

}  // namespace prologue::test
