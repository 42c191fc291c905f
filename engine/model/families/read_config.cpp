#include <prologue/engine/model/families/read_config.h>

#include <cmath>

#include <prologue/engine/base/printable.h>
#include <prologue/kernels/moe/moe_route.h>

namespace prologue {

namespace {

constexpr int64_t kMaxLayers = 1024;  // the time to plan the graph grows with the square of its nodes
constexpr int64_t kMaxHeads = 4096;   // a family may have tensors by the head

void check_heads(ConfigReader& c, const ModelSpec& spec, std::string_view key) {
  if (spec.config.num_q_heads % spec.config.num_kv_heads == 0) return;
  c.fail(data_loss(c.name(key), " is ", spec.config.num_q_heads, ": it must be a multiple of the ", spec.config.num_kv_heads,
                   " heads of K and V"));
}

}  // namespace

int64_t width_by_heads(ConfigReader& c, const ModelSpec& spec, std::string_view key) {
  if (spec.config.hidden_size % spec.config.num_q_heads != 0) {
    c.fail(data_loss(c.name(key), " is ", spec.config.hidden_size, ": it must be a multiple of the ", spec.config.num_q_heads, " heads"));
  }
  return std::max<int64_t>(1, spec.config.hidden_size / spec.config.num_q_heads);
}

float read_eps(ConfigReader& c, std::string_view key, std::optional<double> fallback) {
  const double eps = c.number(key, fallback);
  if (!(eps >= 0.0)) c.fail(data_loss(c.name(key), " is ", eps, ": it must be a small positive number"));
  return static_cast<float>(eps);
}

void set_layers(ConfigReader& c, ModelSpec& spec, std::string_view key) {
  spec.config.num_layers = c.size(key);
  if (spec.config.num_layers > kMaxLayers) {
    c.fail(unsupported(c.name(key), " is ", spec.config.num_layers, ": at most ", kMaxLayers, " are supported"));
    spec.config.num_layers = 1;
  }
  spec.kinds.assign(1, {});
  spec.kind_of_layer.assign(static_cast<size_t>(spec.config.num_layers), 0);
}

void set_head_dim(ConfigReader& c, ModelSpec& spec, int64_t head_dim) {
  if (head_dim % 2 != 0 || head_dim > 256) {
    c.fail(unsupported(c.checkpoint().path(), ": the head dimension is ", head_dim, ": it must be even and at most 256"));
  }
  if (spec.config.num_q_heads > kMaxHeads) {
    c.fail(unsupported(c.checkpoint().path(), ": the number of heads is ", spec.config.num_q_heads, ": at most ", kMaxHeads,
                       " are supported"));
    spec.config.num_q_heads = spec.config.num_kv_heads = 1;
  }
  spec.config.head_dim = head_dim;
  spec.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

void check_experts(ConfigReader& c, ModelSpec& spec) {
  if (spec.experts.num_experts <= kMaxExperts) return;
  c.fail(unsupported(c.checkpoint().path(), ": the number of experts is ", spec.experts.num_experts, ": at most ", kMaxExperts,
                     " are supported"));
  spec.experts.num_experts = 1;
}

Activation activation_of(ConfigReader& c, std::string_view key, const std::string& fallback) {
  const std::string name = c.text(key, fallback);
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu;
  if (name == "relu") return Activation::relu;
  if (name == "relu2") return Activation::relu2;
  c.fail(unsupported(c.name(key), " is ", in_quotes(name),
                     ": supported are silu, swish, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu and relu2"));
  return Activation::silu;
}

void read_huggingface_model(ConfigReader& c, ModelSpec& spec) {
  ModelConfig& config = spec.config;
  set_layers(c, spec, "num_hidden_layers");
  config.hidden_size = c.size("hidden_size");
  config.intermediate_size = c.size("intermediate_size");
  config.vocab_size = c.size("vocab_size");
  config.num_q_heads = c.size("num_attention_heads");
  config.num_kv_heads = c.size("num_key_value_heads", config.num_q_heads);
  check_heads(c, spec, "num_attention_heads");
  set_head_dim(c, spec, c.has("head_dim") ? c.size("head_dim") : width_by_heads(c, spec, "hidden_size"));
  config.context_length = c.size("max_position_embeddings", 2048);
  spec.norm_eps = c.has("layer_norm_eps") ? read_eps(c, "layer_norm_eps", std::nullopt) : read_eps(c, "rms_norm_eps", 1e-6);
  if (c.has("hidden_act")) spec.activation = activation_of(c, "hidden_act", "silu");
  spec.tied_lm_head = c.flag("tie_word_embeddings", false);

  ModuleNames& names = spec.names;
  names.embedding = "model.embed_tokens";
  names.final_norm = "model.norm";
  names.lm_head = "lm_head";
  names.attention_norm = of_layer("input_layernorm");
  names.q = of_layer("self_attn.q_proj");
  names.k = of_layer("self_attn.k_proj");
  names.v = of_layer("self_attn.v_proj");
  names.attention_output = of_layer("self_attn.o_proj");
  names.mlp_norm = of_layer("post_attention_layernorm");
  names.gate = of_layer("mlp.gate_proj");
  names.up = of_layer("mlp.up_proj");
  names.down = of_layer("mlp.down_proj");
}

RopeSpec read_huggingface_rope(ConfigReader& c, const ModelSpec& spec, const RopeDefaults& defaults) {
  std::string at = c.has("rope_parameters") ? "rope_parameters." : "rope_scaling.";
  if (!defaults.layer_type.empty() && c.has(at + defaults.layer_type)) at += defaults.layer_type + ".";
  const auto number = [&](const std::string& key, double fallback) { return c.number(at + key, c.number(key, fallback)); };

  RopeSpec rope;
  RopeConfig& config = rope.config;
  config.style = defaults.style;
  config.theta = number("rope_theta", defaults.theta);
  const double partial = number("partial_rotary_factor", defaults.partial_rotary_factor);
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(spec.config.head_dim) * partial);
  if (!(partial > 0.0 && partial <= 1.0) || config.rotary_dim % 2 != 0) {
    c.fail(data_loss(c.checkpoint().path(), ": partial_rotary_factor is ", partial, ": it must be above 0, at most 1, and rotate an even number of the ",
                     spec.config.head_dim, " channels of a head"));
    config.rotary_dim = spec.config.head_dim;
  }
  const int64_t pairs = config.rotary_dim / 2;
  const std::string type = c.text(at + "rope_type", c.text(at + "type", "default"));
  const auto factor = [&] { return c.number(at + "factor"); };
  const auto original = [&] {
    const char* const key = "original_max_position_embeddings";
    return c.size(key, c.size(at + key, spec.config.context_length));
  };
  const auto given = [&](const std::string& key) -> std::optional<double> {
    return c.has(at + key) ? std::optional(c.number(at + key)) : std::nullopt;
  };
  // Returns how far the context was extended, if the file does not say it.
  const auto extension = [&](int64_t from) {
    return given("factor").value_or(static_cast<double>(spec.config.context_length) / static_cast<double>(from));
  };

  if (type == "linear") {
    config.scaling = LinearRope{factor()};
  } else if (type == "dynamic") {
    config.scaling = DynamicNtkRope{factor(), spec.config.context_length};
  } else if (type == "yarn") {
    YarnRope yarn;
    yarn.original_max_position = original();
    yarn.factor = extension(yarn.original_max_position);
    yarn.beta_fast = given("beta_fast").value_or(0.0);
    yarn.beta_slow = given("beta_slow").value_or(0.0);
    if (yarn.beta_fast == 0.0) yarn.beta_fast = 32.0;  // 0 means not given there
    if (yarn.beta_slow == 0.0) yarn.beta_slow = 1.0;
    yarn.mscale = given("mscale").value_or(0.0);
    yarn.mscale_all_dim = given("mscale_all_dim").value_or(0.0);
    yarn.attention_factor = given("attention_factor");
    yarn.truncate = c.flag(at + "truncate", true);
    config.scaling = yarn;
  } else if (type == "longrope" || type == "su") {
    LongRope longrope;
    longrope.original_max_position = original();
    longrope.factor = extension(longrope.original_max_position);
    longrope.short_factors = c.numbers(at + "short_factor");
    longrope.long_factors = c.numbers(at + "long_factor");
    longrope.short_attention_factor = longrope.long_attention_factor = given("attention_factor");
    for (const auto& [key, list] : {std::pair("short_factor", &longrope.short_factors), std::pair("long_factor", &longrope.long_factors)}) {
      if (static_cast<int64_t>(list->size()) == pairs) continue;
      c.fail(data_loss(c.name(at + key), " has ", list->size(), " numbers: it must have one for each of the ", pairs, " rotated pairs"));
    }
    config.scaling = longrope;
  } else if (type == "llama3") {
    config.scaling = Llama3Rope{factor(), c.number(at + "low_freq_factor"), c.number(at + "high_freq_factor"), original()};
  } else if (type != "default" && type != "mrope") {
    c.fail(unsupported(c.name(at + "rope_type"), " is ", in_quotes(type),
                       ": supported are default, linear, dynamic, yarn, longrope, llama3 and mrope"));
  }
  return rope;
}

void read_sliding_layers(ConfigReader& c, ModelSpec& spec, const std::function<bool(int64_t layer)>& slides) {
  if (!c.has("sliding_window")) return;
  LayerKind sliding = spec.kinds[0];
  sliding.window = c.size("sliding_window");
  spec.kinds.push_back(sliding);
  std::vector<std::string> types;
  if (c.has("layer_types")) {
    types = c.texts("layer_types");
    if (types.size() != spec.kind_of_layer.size()) {
      c.fail(data_loss(c.name("layer_types"), " has ", types.size(), " entries: there are ", spec.kind_of_layer.size(), " layers"));
      types.clear();
    }
  }
  for (size_t i = 0; i < spec.kind_of_layer.size(); ++i) {
    if (!types.empty() && types[i] != "full_attention" && types[i] != "sliding_attention") {
      c.fail(unsupported(c.name("layer_types"), ": entry ", i, " is ", in_quotes(types[i]), ": supported are full_attention and sliding_attention"));
    }
    const bool slide = types.empty() ? slides(static_cast<int64_t>(i)) : types[i] == "sliding_attention";
    spec.kind_of_layer[i] = slide ? 1 : 0;
  }
}

void read_unrotated_layers(ConfigReader& c, ModelSpec& spec) {
  std::vector<int64_t> rotates;
  if (c.has("no_rope_layers")) rotates = c.integers("no_rope_layers");
  if (!rotates.empty() && rotates.size() != spec.kind_of_layer.size()) {
    c.fail(data_loss(c.name("no_rope_layers"), " has ", rotates.size(), " entries: there are ", spec.kind_of_layer.size(), " layers"));
    return;
  }
  const auto interval = static_cast<size_t>(c.size("no_rope_layer_interval", 4));
  for (size_t i = 0; i < spec.kind_of_layer.size(); ++i) {
    const bool rotated = rotates.empty() ? (i + 1) % interval != 0 : rotates[i] != 0;
    spec.kind_of_layer[i] = rotated ? 0 : 1;
  }
}

// ---- GGUF

namespace {

// Reads the keys as llama.cpp does: a scaling without a type is linear, a factor that is missing or 0 means 1, and attn_factor
// multiplies the attention factor that YaRN computes from its factor.
RopeScaling read_gguf_scaling(ConfigReader& c, const ModelSpec& spec) {
  const std::string type = c.text("rope.scaling.type", "linear");
  if (type == "none") return {};
  const double stated_factor = c.number("rope.scaling.factor", 0.0);
  const double factor = stated_factor == 0.0 ? 1.0 : stated_factor;
  const int64_t original = c.size("rope.scaling.original_context_length", spec.config.context_length);
  const double attention_factor = c.number("rope.scaling.attn_factor", 1.0);
  const double log_multiplier = c.number("rope.scaling.yarn_log_multiplier", 0.0);
  if (!spec.names.rope_long.empty()) {
    LongRope longrope;
    longrope.original_max_position = original;
    longrope.short_attention_factor = longrope.long_attention_factor = attention_factor;
    return longrope;  // the factors are tensors (build_model)
  }
  if (type == "linear") return LinearRope{factor};
  if (type != "yarn") {
    c.fail(unsupported(c.name("rope.scaling.type"), " is ", in_quotes(type), ": only \"none\", \"linear\" and \"yarn\" are supported"));
    return {};
  }
  YarnRope yarn;
  yarn.factor = factor;
  yarn.original_max_position = original;
  yarn.beta_fast = c.number("rope.scaling.yarn_beta_fast", yarn.beta_fast);
  yarn.beta_slow = c.number("rope.scaling.yarn_beta_slow", yarn.beta_slow);
  const double divisor = log_multiplier == 0.0 ? 1.0 : yarn_mscale(factor, log_multiplier);
  yarn.attention_factor = attention_factor * yarn_mscale(factor, 1.0) / divisor;
  return yarn;
}

}  // namespace

void read_gguf_model(ConfigReader& c, ModelSpec& spec, RopeStyle style, NormKind norm) {
  ModelConfig& config = spec.config;
  const Checkpoint& file = c.checkpoint();
  const auto has_module = [&](const char* name) { return file.has_tensor(std::string(name) + ".weight"); };
  set_layers(c, spec, "block_count");
  config.context_length = c.size("context_length");
  config.hidden_size = c.size("embedding_length");
  config.intermediate_size = c.size("feed_forward_length");
  config.num_q_heads = c.size("attention.head_count");
  config.num_kv_heads = c.size("attention.head_count_kv", config.num_q_heads);
  check_heads(c, spec, "attention.head_count");
  set_head_dim(c, spec, c.has("attention.key_length") ? c.size("attention.key_length") : width_by_heads(c, spec, "embedding_length"));
  const int64_t value_length = c.size("attention.value_length", config.head_dim);
  if (value_length != config.head_dim) {
    c.fail(unsupported(c.name("attention.value_length"), " is ", value_length, ": it must equal the key length ", config.head_dim));
  }
  spec.norm_kind = norm;
  spec.norm_eps = read_eps(c, norm == NormKind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", std::nullopt);
  // The number of tokens is that of the embedding.
  const TensorInfo* const embedding = file.tensor("token_embd.weight");
  config.vocab_size = embedding != nullptr && embedding->shape.size() == 2 ? embedding->shape[0] : 1;
  const int64_t stated_vocab = c.size("vocab_size", config.vocab_size);
  if (stated_vocab != config.vocab_size) {
    c.fail(data_loss(c.name("vocab_size"), " is ", stated_vocab, ", but token_embd.weight has ", config.vocab_size, " rows"));
  }

  ModuleNames& names = spec.names;
  names.embedding = "token_embd";
  names.final_norm = "output_norm";
  names.lm_head = "output";
  spec.tied_lm_head = !has_module("output");
  names.attention_norm = "blk.{}.attn_norm";
  if (has_module("blk.0.attn_qkv")) {
    names.qkv = "blk.{}.attn_qkv";
  } else {
    names.q = "blk.{}.attn_q";
    names.k = "blk.{}.attn_k";
    names.v = "blk.{}.attn_v";
  }
  names.attention_output = "blk.{}.attn_output";
  names.mlp_norm = "blk.{}.ffn_norm";
  names.gate = "blk.{}.ffn_gate";
  names.up = "blk.{}.ffn_up";
  names.down = "blk.{}.ffn_down";
  if (has_module("rope_freqs")) names.rope_freqs = "rope_freqs.weight";
  if (has_module("rope_factors_long")) {
    names.rope_long = "rope_factors_long.weight";
    names.rope_short = "rope_factors_short.weight";
  }

  RopeSpec rope;
  rope.config.style = style;
  rope.config.theta = c.number("rope.freq_base", 10000.0);
  rope.config.rotary_dim = c.size("rope.dimension_count", config.head_dim);
  if (rope.config.rotary_dim > config.head_dim) {
    c.fail(data_loss(c.name("rope.dimension_count"), " is ", rope.config.rotary_dim, ": a head has only ", config.head_dim, " channels"));
  }
  rope.config.scaling = read_gguf_scaling(c, spec);
  spec.ropes = {rope};

  const int64_t experts = c.integer("expert_count", 0);
  const int64_t used = c.integer("expert_used_count", 0);
  if (experts == 0) return;
  if (experts < 1 || used < 1 || used > experts) {
    c.fail(data_loss(c.name("expert_used_count"), " is ", used, ": it must be between 1 and expert_count ", experts));
    return;
  }
  spec.kinds[0].experts = true;
  spec.experts.num_experts = experts;
  spec.experts.experts_per_token = used;
  check_experts(c, spec);
  spec.experts.intermediate_size = c.size("expert_feed_forward_length", config.intermediate_size);
  spec.experts.weighting = ExpertWeighting::softmax_then_top_k;
  spec.experts.normalize = true;
  names.router = "blk.{}.ffn_gate_inp";
  names.expert_gate = "blk.{}.ffn_gate_exps";
  names.expert_up = "blk.{}.ffn_up_exps";
  names.expert_down = "blk.{}.ffn_down_exps";
}

void read_gguf_window(ConfigReader& c, ModelSpec& spec, const std::function<bool(int64_t layer)>& slides) {
  const int64_t window = c.integer("attention.sliding_window", 0);
  if (window == 0) return;
  if (window < 0 || window > INT32_MAX) {
    c.fail(data_loss(c.name("attention.sliding_window"), " is ", window, ": it must be between 0 and ", INT32_MAX));
    return;
  }
  spec.kinds.push_back(spec.kinds[0]);
  spec.kinds[1].window = window;
  for (size_t i = 0; i < spec.kind_of_layer.size(); ++i) spec.kind_of_layer[i] = slides(static_cast<int64_t>(i)) ? 1 : 0;
}

}  // namespace prologue
