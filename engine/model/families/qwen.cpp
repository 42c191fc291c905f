// This file reads Qwen2 (bias of Q, K and V), Qwen3 (norms of Q and K), Qwen3-MoE, and the text parts of Qwen2-VL and Qwen3-VL (three
// position axes).
#include <prologue/engine/model/families/families.h>
#include <prologue/engine/model/families/read_config.h>

namespace prologue {

namespace {

void read_windows(ConfigReader& c, ModelSpec& spec) {
  if (!c.flag("use_sliding_window", false)) return;
  const int64_t first = c.integer("max_window_layers", 28);
  read_sliding_layers(c, spec, [=](int64_t layer) { return layer >= first; });
}

void norm_q_and_k(ModelSpec& spec, const std::string& attention) {
  spec.head_norm.placement = NormPlacement::before_rope;
  spec.head_norm.eps = spec.norm_eps;
  spec.names.q_norm = attention + "q_norm";
  spec.names.k_norm = attention + "k_norm";
}

// Reads the text part of a model that also takes images.
void read_text_part(ConfigReader& c, ModelSpec& spec, double theta, bool interleaved) {
  read_huggingface_model(c, spec);
  RopeSpec rope = read_huggingface_rope(c, spec, {.theta = theta});
  const std::string at = c.has("rope_parameters") ? "rope_parameters." : "rope_scaling.";
  if (c.has(at + "mrope_section")) {
    rope.mrope_sections = c.integers(at + "mrope_section");
    rope.mrope_interleaved = c.flag(at + "mrope_interleaved", interleaved);
  } else {
    rope.mrope_sections = interleaved ? std::vector<int64_t>{24, 20, 20} : std::vector<int64_t>{16, 24, 24};
    rope.mrope_interleaved = interleaved;
  }
  spec.ropes = {rope};
}

}  // namespace

void read_qwen2(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {})};
  read_windows(c, spec);
}

void read_qwen3(ConfigReader& c, ModelSpec& spec) {
  read_qwen2(c, spec);
  norm_q_and_k(spec, of_layer("self_attn."));
}

void read_qwen3_moe(ConfigReader& c, ModelSpec& spec) {
  read_huggingface_model(c, spec);
  spec.ropes = {read_huggingface_rope(c, spec, {})};
  norm_q_and_k(spec, of_layer("self_attn."));
  if (c.flag("use_sliding_window", false)) spec.kinds[0].window = c.size("sliding_window");
  spec.kinds.push_back(spec.kinds[0]);
  spec.kinds[1].experts = true;
  const int64_t step = c.size("decoder_sparse_step", 1);
  for (int64_t i = 0; i < spec.config.num_layers; ++i) spec.kind_of_layer[static_cast<size_t>(i)] = (i + 1) % step == 0 ? 1 : 0;
  if (c.has("mlp_only_layers")) {
    for (const int64_t dense : c.integers("mlp_only_layers")) {
      if (dense >= 0 && dense < spec.config.num_layers) spec.kind_of_layer[static_cast<size_t>(dense)] = 0;
    }
  }
  spec.experts.num_experts = c.size("num_experts", c.size("num_local_experts", 128));
  spec.experts.experts_per_token = c.size("num_experts_per_tok", 8);
  check_experts(c, spec);
  spec.experts.intermediate_size = c.size("moe_intermediate_size", 768);
  spec.experts.weighting = ExpertWeighting::softmax_then_top_k;
  spec.experts.normalize = c.flag("norm_topk_prob", false);
  spec.names.router = of_layer("mlp.gate");
  spec.names.expert_gate = of_layer("mlp.experts.{e}.gate_proj");
  spec.names.expert_up = of_layer("mlp.experts.{e}.up_proj");
  spec.names.expert_down = of_layer("mlp.experts.{e}.down_proj");
}

void read_qwen2_vl(ConfigReader& c, ModelSpec& spec) {
  read_text_part(c, spec, 1e6, false);
  read_windows(c, spec);
}

void read_qwen3_vl(ConfigReader& c, ModelSpec& spec) {
  read_text_part(c, spec, 5e5, true);
  norm_q_and_k(spec, of_layer("self_attn."));
}

void read_qwen2_gguf(ConfigReader& c, ModelSpec& spec) { read_gguf_model(c, spec, RopeStyle::neox); }

void read_qwen3_gguf(ConfigReader& c, ModelSpec& spec) {
  read_gguf_model(c, spec, RopeStyle::neox);
  norm_q_and_k(spec, "blk.{}.attn_");
}

void read_qwen3_moe_gguf(ConfigReader& c, ModelSpec& spec) {
  read_qwen3_gguf(c, spec);
  spec.experts.normalize = true;
}

}  // namespace prologue
