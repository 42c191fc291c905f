// The families of models are here: how the configuration and the tensor names of their files map to a ModelSpec. There is one source file
// for each group of relatives; docs/adding-a-model.md says how to add one.
#pragma once

#include <span>

#include <prologue/engine/checkpoint/config_reader.h>
#include <prologue/engine/model/model_spec.h>

namespace prologue {

struct Family {
  const char* name;                  // model_type of config.json, or general.architecture of a GGUF file
  Checkpoint::Format format;
  // Fills in the specification. The reader keeps errors; a key that changes the result and is not supported must be one.
  void (*read)(ConfigReader& config, ModelSpec& spec);
};

std::span<const Family> families();

void read_llama(ConfigReader& c, ModelSpec& spec);
void read_mistral(ConfigReader& c, ModelSpec& spec);
void read_mixtral(ConfigReader& c, ModelSpec& spec);
void read_smollm3(ConfigReader& c, ModelSpec& spec);
void read_llama_gguf(ConfigReader& c, ModelSpec& spec);
void read_smollm3_gguf(ConfigReader& c, ModelSpec& spec);

void read_qwen2(ConfigReader& c, ModelSpec& spec);
void read_qwen3(ConfigReader& c, ModelSpec& spec);
void read_qwen3_moe(ConfigReader& c, ModelSpec& spec);
void read_qwen2_vl(ConfigReader& c, ModelSpec& spec);
void read_qwen3_vl(ConfigReader& c, ModelSpec& spec);
void read_qwen2_gguf(ConfigReader& c, ModelSpec& spec);
void read_qwen3_gguf(ConfigReader& c, ModelSpec& spec);
void read_qwen3_moe_gguf(ConfigReader& c, ModelSpec& spec);

void read_gemma2(ConfigReader& c, ModelSpec& spec);
void read_gemma3(ConfigReader& c, ModelSpec& spec);
void read_gemma2_gguf(ConfigReader& c, ModelSpec& spec);
void read_gemma3_gguf(ConfigReader& c, ModelSpec& spec);

void read_gpt_oss(ConfigReader& c, ModelSpec& spec);
void read_gpt_oss_gguf(ConfigReader& c, ModelSpec& spec);
void read_gpt_neox(ConfigReader& c, ModelSpec& spec);
void read_gpt_neox_gguf(ConfigReader& c, ModelSpec& spec);
void read_gptj(ConfigReader& c, ModelSpec& spec);

void read_phi(ConfigReader& c, ModelSpec& spec);
void read_phi3(ConfigReader& c, ModelSpec& spec);
void read_phi2_gguf(ConfigReader& c, ModelSpec& spec);
void read_phi3_gguf(ConfigReader& c, ModelSpec& spec);

void read_stablelm(ConfigReader& c, ModelSpec& spec);
void read_glm4(ConfigReader& c, ModelSpec& spec);
void read_olmo2(ConfigReader& c, ModelSpec& spec);
void read_cohere(ConfigReader& c, ModelSpec& spec);
void read_cohere2(ConfigReader& c, ModelSpec& spec);
void read_llama4(ConfigReader& c, ModelSpec& spec);

}  // namespace prologue
