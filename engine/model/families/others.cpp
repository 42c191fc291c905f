// This file reads StableLM 2, GLM-4, OLMo 2, Cohere (Command R and R7B), and Llama 4's text part without experts.
#include <prologue/engine/model/families/families.h>
#include <prologue/engine/model/families/read_config.h>

namespace prologue {

void read_stablelm(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.norm_kind = NormKind::layer;
  spec.ropes = {read_huggingface_rope(c, spec, {.partial_rotary_factor = 0.25})};
  if (c.flag("use_parallel_residual", false)) {
    spec.shape = BlockShape::parallel;
    spec.names.mlp_norm.clear();
  }
  if (!c.flag("qk_layernorm", false)) return;
  spec.head_norm = {NormPlacement::before_rope, NormKind::layer, NormScope::head, spec.norm_eps};
  spec.names.q_norm = of_layer("self_attn.q_layernorm.norms.{h}");
  spec.names.k_norm = of_layer("self_attn.k_layernorm.norms.{h}");
}

void read_glm4(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {.partial_rotary_factor = 0.5, .style = RopeStyle::interleaved})};
  spec.names.attention_post_norm = of_layer("post_self_attn_layernorm");
  spec.names.mlp_post_norm = of_layer("post_mlp_layernorm");
  spec.names.gate.clear();
  spec.names.up.clear();
  spec.names.gate_up = of_layer("mlp.gate_up_proj");
}

void read_olmo2(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {})};
  spec.head_norm = {NormPlacement::before_rope, NormKind::rms, NormScope::token, spec.norm_eps};
  spec.names.attention_norm.clear();
  spec.names.attention_post_norm = of_layer("post_attention_layernorm");
  spec.names.mlp_norm.clear();
  spec.names.mlp_post_norm = of_layer("post_feedforward_layernorm");
  spec.names.q_norm = of_layer("self_attn.q_norm");
  spec.names.k_norm = of_layer("self_attn.k_norm");
}

void read_cohere(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.tied_lm_head = c.flag("tie_word_embeddings", true);
  spec.norm_kind = NormKind::layer;
  spec.shape = BlockShape::parallel;
  spec.names.mlp_norm.clear();
  spec.logit_scale = static_cast<float>(c.number("logit_scale", 0.0625));
  spec.ropes = {read_huggingface_rope(c, spec, {.theta = 500000.0, .style = RopeStyle::interleaved})};
  if (!c.flag("use_qk_norm", false)) return;
  spec.head_norm = {NormPlacement::before_rope, NormKind::layer, NormScope::head, spec.norm_eps};
  spec.names.q_norm = of_layer("self_attn.q_norm");
  spec.names.k_norm = of_layer("self_attn.k_norm");
}

void read_cohere2(ConfigReader& c, ModelSpec& spec) {
  read_cohere(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {.style = RopeStyle::interleaved})};
  const int64_t pattern = c.size("sliding_window_pattern", 4);
  read_sliding_layers(c, spec, [=](int64_t layer) { return (layer + 1) % pattern != 0; });
  spec.kinds[0].rope = -1;  // the layers that see everything rotate nothing
}

void read_llama4(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.config.intermediate_size = c.size("intermediate_size_mlp", 16384);
  std::vector<int64_t> expert_layers;
  if (c.has("moe_layers")) expert_layers = c.integers("moe_layers");
  if (!c.has("moe_layers") || !expert_layers.empty()) {
    c.fail(unsupported(c.name("moe_layers"), ": layers with experts are not supported, so the list must be there and empty"));
  }
  spec.ropes = {read_huggingface_rope(c, spec, {.theta = 500000.0, .style = RopeStyle::interleaved})};
  if (c.flag("use_qk_norm", true)) spec.head_norm = {NormPlacement::after_rope, NormKind::rms, NormScope::head, spec.norm_eps};
  const std::string mlp = of_layer("feed_forward.");
  spec.names.gate = mlp + "gate_proj";
  spec.names.up = mlp + "up_proj";
  spec.names.down = mlp + "down_proj";
  // Layers of kind 0 are rotated, in chunks. Layers of kind 1 are neither, and scale Q by its position.
  if (c.has("attention_chunk_size")) spec.kinds[0].chunk = c.size("attention_chunk_size");
  LayerKind without;
  without.rope = -1;
  without.head_norms = false;
  if (c.flag("attn_temperature_tuning", true)) {
    without.q_scale.by_position = PositionScale::llama4;
    without.q_scale.a = static_cast<float>(c.number("attn_scale", 0.1));
    without.q_scale.b = static_cast<float>(c.number("floor_scale", 8192.0));
  }
  spec.kinds.push_back(without);
  read_unrotated_layers(c, spec);
}

}  // namespace prologue
