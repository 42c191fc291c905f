// This file reads Gemma 2 and 3: norms before and after each part of a layer, a scaled embedding, windows, soft caps (2), norms of Q and K
// and two rope bases (3). Norm weights are w - 1 in Hugging Face's files and w in GGUF.
#include <cmath>

#include <prologue/engine/model/families/families.h>
#include <prologue/engine/model/families/read_config.h>

namespace prologue {

namespace {

void read_gemma(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.tied_lm_head = c.flag("tie_word_embeddings", true);
  spec.norm_weight_offset = 1.0f;
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.config.hidden_size));
  spec.activation = activation_of(c, "hidden_activation", "gelu_pytorch_tanh");
  spec.attention_scale = static_cast<float>(1.0 / std::sqrt(c.number("query_pre_attn_scalar", 256.0)));
  c.only("use_bidirectional_attention", false);
  spec.names.attention_post_norm = of_layer("post_attention_layernorm");
  spec.names.mlp_norm = of_layer("pre_feedforward_layernorm");
  spec.names.mlp_post_norm = of_layer("post_feedforward_layernorm");
}

void read_gemma_gguf(ConfigReader& c, ModelSpec& spec, int64_t layers_of_27b) {
  read_gguf_model(c, spec, RopeStyle::neox);
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.config.hidden_size));
  spec.activation = Activation::gelu_tanh;
  if (spec.config.num_layers == layers_of_27b) {  // the file does not say it
    spec.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.config.hidden_size) /
                                                              static_cast<double>(spec.config.num_q_heads)));
  }
  spec.names.attention_post_norm = "blk.{}.post_attention_norm";
  spec.names.mlp_post_norm = "blk.{}.post_ffw_norm";
}

void norm_q_and_k(ModelSpec& spec, const std::string& attention, float weight_offset) {
  spec.head_norm.placement = NormPlacement::before_rope;
  spec.head_norm.eps = spec.norm_eps;
  spec.head_norm.weight_offset = weight_offset;
  spec.names.q_norm = attention + "q_norm";
  spec.names.k_norm = attention + "k_norm";
}

}  // namespace

void read_gemma2(ConfigReader& c, ModelSpec& spec) {
  read_gemma(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {})};
  if (c.has("attn_logit_softcapping")) spec.attention_soft_cap = static_cast<float>(c.number("attn_logit_softcapping"));
  if (c.has("final_logit_softcapping")) spec.logit_soft_cap = static_cast<float>(c.number("final_logit_softcapping"));
  read_sliding_layers(c, spec, [](int64_t layer) { return layer % 2 == 0; });
}

void read_gemma3(ConfigReader& c, ModelSpec& spec) {
  read_gemma(c, spec);
  if (c.has("attn_logit_softcapping")) spec.attention_soft_cap = static_cast<float>(c.number("attn_logit_softcapping"));
  if (c.has("final_logit_softcapping")) spec.logit_soft_cap = static_cast<float>(c.number("final_logit_softcapping"));
  norm_q_and_k(spec, of_layer("self_attn."), 1.0f);
  const int64_t pattern = c.size("sliding_window_pattern", 6);
  read_sliding_layers(c, spec, [=](int64_t layer) { return (layer + 1) % pattern != 0; });
  RopeSpec local;
  if (c.has("rope_parameters.sliding_attention")) {
    local = read_huggingface_rope(c, spec, {.theta = 10000.0, .layer_type = "sliding_attention"});
  } else {
    local.config.rotary_dim = spec.config.head_dim;
    local.config.theta = c.number("rope_local_base_freq", 10000.0);
  }
  spec.ropes = {read_huggingface_rope(c, spec, {.theta = 1e6, .layer_type = "full_attention"}), local};
  if (spec.kinds.size() > 1) spec.kinds[1].rope = 1;
}

void read_gemma2_gguf(ConfigReader& c, ModelSpec& spec) {
  read_gemma_gguf(c, spec, 46);
  spec.attention_soft_cap = static_cast<float>(c.number("attn_logit_softcapping", 50.0));
  spec.logit_soft_cap = static_cast<float>(c.number("final_logit_softcapping", 30.0));
  read_gguf_window(c, spec, [](int64_t layer) { return layer % 2 == 0; });
}

void read_gemma3_gguf(ConfigReader& c, ModelSpec& spec) {
  read_gemma_gguf(c, spec, 62);
  spec.logit_soft_cap = static_cast<float>(c.number("final_logit_softcapping", 0.0));
  norm_q_and_k(spec, "blk.{}.attn_", 0.0f);
  const int64_t pattern = c.size("attention.sliding_window_pattern", 6);
  read_gguf_window(c, spec, [=](int64_t layer) { return (layer + 1) % pattern != 0; });
  RopeSpec local;
  local.config.rotary_dim = spec.ropes[0].config.rotary_dim;
  local.config.theta = c.number("rope.freq_base_swa", 10000.0);
  spec.ropes.push_back(local);
  if (spec.kinds.size() > 1) spec.kinds[1].rope = 1;
}

}  // namespace prologue
