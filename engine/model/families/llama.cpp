// This file reads Llama 2 and 3 and models with the same architecture: Mistral and Mixtral, SmolLM 2 and 3.
#include <prologue/engine/model/families/families.h>
#include <prologue/engine/model/families/read_config.h>

namespace prologue {

void read_llama(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {})};
}

void read_mistral(ConfigReader& c, ModelSpec& spec) {
  read_llama(c, spec);
  if (c.has("sliding_window")) spec.kinds[0].window = c.size("sliding_window");
}

void read_mixtral(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {.theta = 1e6})};
  if (c.has("sliding_window")) spec.kinds[0].window = c.size("sliding_window");
  spec.kinds[0].experts = true;
  spec.experts.num_experts = c.size("num_local_experts", 8);
  spec.experts.experts_per_token = c.size("num_experts_per_tok", 2);
  check_experts(c, spec);
  spec.experts.intermediate_size = spec.config.intermediate_size;
  spec.experts.weighting = ExpertWeighting::softmax_then_top_k;
  spec.experts.normalize = true;
  const std::string experts = of_layer("block_sparse_moe.");
  spec.names.router = experts + "gate";
  spec.names.expert_gate = experts + "experts.{e}.w1";
  spec.names.expert_up = experts + "experts.{e}.w3";
  spec.names.expert_down = experts + "experts.{e}.w2";
}

void read_smollm3(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {.theta = 2e6})};
  c.only("use_sliding_window", false);
  spec.kinds.push_back(spec.kinds[0]);
  spec.kinds[1].rope = -1;
  read_unrotated_layers(c, spec);
}

void read_llama_gguf(ConfigReader& c, ModelSpec& spec) {
  read_gguf_model(c, spec, RopeStyle::interleaved);  // the rows of Q and K are in Meta's order
  read_gguf_window(c, spec, [](int64_t) { return true; });
}

void read_smollm3_gguf(ConfigReader& c, ModelSpec& spec) {
  read_gguf_model(c, spec, RopeStyle::interleaved);
  spec.kinds.push_back(spec.kinds[0]);
  spec.kinds[1].rope = -1;
  for (size_t i = 3; i < spec.kind_of_layer.size(); i += 4) spec.kind_of_layer[i] = 1;
}

}  // namespace prologue
