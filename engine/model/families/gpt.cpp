// This file reads GPT-NeoX (Pythia), GPT-J and GPT-OSS.
#include <variant>

#include <prologue/engine/model/families/families.h>
#include <prologue/engine/model/families/read_config.h>

namespace prologue {

void read_gpt_neox(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.norm_kind = NormKind::layer;
  spec.gated_mlp = false;
  spec.activation = activation_of(c, "hidden_act", "gelu");
  spec.shape = c.flag("use_parallel_residual", true) ? BlockShape::parallel_two_norms : BlockShape::sequential;
  spec.qkv_rows = QkvRows::by_head;
  RopeDefaults rope;
  rope.theta = c.number("rotary_emb_base", 10000.0);
  rope.partial_rotary_factor = c.number("rotary_pct", 0.25);
  spec.ropes = {read_huggingface_rope(c, spec, rope)};

  const std::string layer = "gpt_neox.layers.{}.";
  ModuleNames names;
  names.embedding = "gpt_neox.embed_in";
  names.final_norm = "gpt_neox.final_layer_norm";
  names.lm_head = c.checkpoint().has_tensor("embed_out.weight") ? "embed_out" : "lm_head";
  names.attention_norm = layer + "input_layernorm";
  names.mlp_norm = layer + "post_attention_layernorm";
  names.qkv = layer + "attention.query_key_value";
  names.attention_output = layer + "attention.dense";
  names.up = layer + "mlp.dense_h_to_4h";
  names.down = layer + "mlp.dense_4h_to_h";
  spec.names = names;
}

void read_gpt_neox_gguf(ConfigReader& c, ModelSpec& spec) {
  read_gguf_model(c, spec, RopeStyle::neox, NormKind::layer);
  spec.gated_mlp = false;
  spec.activation = Activation::gelu;
  spec.shape = c.flag("use_parallel_residual", true) ? BlockShape::parallel_two_norms : BlockShape::sequential;
  spec.names.gate.clear();
}

void read_gptj(ConfigReader& c, ModelSpec& spec) {
  set_layers(c, spec, "n_layer");
  spec.config.hidden_size = c.size("n_embd");
  spec.config.num_q_heads = spec.config.num_kv_heads = c.size("n_head");
  spec.config.intermediate_size = c.size("n_inner", 4 * spec.config.hidden_size);
  spec.config.vocab_size = c.size("vocab_size");
  spec.config.context_length = c.size("n_positions", 2048);
  set_head_dim(c, spec, width_by_heads(c, spec, "n_embd"));
  spec.tied_lm_head = c.flag("tie_word_embeddings", false);
  spec.norm_kind = NormKind::layer;
  spec.norm_eps = read_eps(c, "layer_norm_epsilon", 1e-5);
  spec.gated_mlp = false;
  spec.activation = activation_of(c, "activation_function", "gelu_new");
  spec.shape = BlockShape::parallel;
  RopeSpec rope;
  rope.config.style = RopeStyle::interleaved;
  rope.config.rotary_dim = c.size("rotary_dim", spec.config.head_dim);
  spec.ropes = {rope};

  const std::string layer = "transformer.h.{}.";
  spec.names.embedding = "transformer.wte";
  spec.names.final_norm = "transformer.ln_f";
  spec.names.lm_head = "lm_head";
  spec.names.attention_norm = layer + "ln_1";
  spec.names.q = layer + "attn.q_proj";
  spec.names.k = layer + "attn.k_proj";
  spec.names.v = layer + "attn.v_proj";
  spec.names.attention_output = layer + "attn.out_proj";
  spec.names.up = layer + "mlp.fc_in";
  spec.names.down = layer + "mlp.fc_out";
  spec.other_modules = {layer + "attn.embed_positions"};
}

namespace {

void set_gpt_oss_experts(ModelSpec& spec, double limit, double alpha) {
  spec.activation = Activation::clamped_swiglu;
  spec.activation_limit = static_cast<float>(limit);
  spec.activation_alpha = static_cast<float>(alpha);
  spec.experts.weighting = ExpertWeighting::top_k_then_softmax;
  spec.experts.normalize = false;
}
constexpr double kGptOssLimit = 7.0, kGptOssAlpha = 1.702;

}  // namespace

void read_gpt_oss(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {.theta = 150000.0})};
  spec.kinds[0].experts = true;
  read_sliding_layers(c, spec, [](int64_t layer) { return layer % 2 == 0; });
  set_gpt_oss_experts(spec, c.number("swiglu_limit", kGptOssLimit), c.number("swiglu_alpha", kGptOssAlpha));
  spec.experts.num_experts = c.size("num_local_experts");
  spec.experts.experts_per_token = c.size("num_experts_per_tok", 4);
  check_experts(c, spec);
  spec.experts.intermediate_size = spec.config.intermediate_size;
  spec.names.sinks = of_layer("self_attn.sinks");
  spec.names.router = of_layer("mlp.router");
  spec.names.experts_gate_up = of_layer("mlp.experts.gate_up_proj");
  spec.names.experts_down = of_layer("mlp.experts.down_proj");
}

// The file does not say that YaRN does not truncate, nor what the activation's constants are.
void read_gpt_oss_gguf(ConfigReader& c, ModelSpec& spec) {
  read_gguf_model(c, spec, RopeStyle::neox);
  if (spec.experts.num_experts == 0) c.fail(data_loss(c.name("expert_count"), " is 0: GPT-OSS has experts"));
  for (RopeSpec& rope : spec.ropes) {
    if (auto* const yarn = std::get_if<YarnRope>(&rope.config.scaling)) yarn->truncate = false;
  }
  read_gguf_window(c, spec, [](int64_t layer) { return layer % 2 == 0; });
  set_gpt_oss_experts(spec, kGptOssLimit, kGptOssAlpha);
  spec.names.mlp_norm = "blk.{}.post_attention_norm";
  spec.names.sinks = "blk.{}.attn_sinks.weight";
}

}  // namespace prologue
