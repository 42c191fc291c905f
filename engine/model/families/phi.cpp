// This file reads Phi 1 and 2 (partly rotated heads, biases, parallel block) and Phi 3 and 4 (LongRoPE, fused weights).
#include <prologue/engine/model/families/families.h>
#include <prologue/engine/model/families/read_config.h>

namespace prologue {

void read_phi(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.norm_kind = NormKind::layer;
  spec.gated_mlp = false;
  spec.activation = activation_of(c, "hidden_act", "gelu_new");
  spec.shape = BlockShape::parallel;
  c.only("qk_layernorm", false);
  spec.ropes = {read_huggingface_rope(c, spec, {.partial_rotary_factor = 0.5})};
  spec.names.final_norm = "model.final_layernorm";
  spec.names.mlp_norm.clear();
  spec.names.attention_output = of_layer("self_attn.dense");
  spec.names.gate.clear();
  spec.names.up = of_layer("mlp.fc1");
  spec.names.down = of_layer("mlp.fc2");
}

void read_phi3(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {})};
  if (c.has("sliding_window")) spec.kinds[0].window = c.size("sliding_window");
  spec.names.q.clear();
  spec.names.k.clear();
  spec.names.v.clear();
  spec.names.qkv = of_layer("self_attn.qkv_proj");
  spec.names.gate.clear();
  spec.names.up.clear();
  spec.names.gate_up = of_layer("mlp.gate_up_proj");
}

void read_phi2_gguf(ConfigReader& c, ModelSpec& spec) {
  read_gguf_model(c, spec, RopeStyle::neox, NormKind::layer);
  spec.gated_mlp = false;
  spec.activation = Activation::gelu_tanh;
  spec.shape = BlockShape::parallel;
  spec.names.mlp_norm.clear();
  spec.names.gate.clear();
}

void read_phi3_gguf(ConfigReader& c, ModelSpec& spec) {
  read_gguf_model(c, spec, RopeStyle::neox);
  spec.names.gate.clear();
  spec.names.gate_up = spec.names.up;  // its name in these files
  spec.names.up.clear();
  read_gguf_window(c, spec, [](int64_t) { return true; });
}

}  // namespace prologue
