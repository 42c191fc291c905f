// Llama and models with the same architecture (SmolLM2, Llama 2 and 3, Mistral without its window, ...).
#include <algorithm>
#include <cmath>

#include <prologue/engine/model/architectures.h>
#include <prologue/engine/tokenizer/utf8.h>
#include <prologue/kernels/attention_prologue/hadamard.h>
#include <prologue/layers/decoder_layer.h>

namespace prologue {

namespace {

constexpr int64_t kMaxLayers = 1024;

Result<int64_t> positive(const GgufFile& file, const std::string& key, int64_t fallback = 0) {
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t value, fallback > 0 ? file.get_or<int64_t>(key, fallback) : file.get<int64_t>(key));
  constexpr int64_t kLargest = int64_t{1} << 31;
  if (value < 1 || value >= kLargest)
    return data_loss(file.path(), ": ", key, " is ", value, ": it must be between 1 and ", kLargest - 1);
  return value;
}

// Keys that other models of this architecture use. This loader supports only the value that means "off".
Status refuse_unsupported(const GgufFile& file) {
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t experts, file.get_or<int64_t>("llama.expert_count", 0));
  if (experts != 0)
    return unsupported(file.path(), ": llama.expert_count is ", experts, ": mixtures of experts are not supported");
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t experts_used, file.get_or<int64_t>("llama.expert_used_count", 0));
  if (experts_used != 0)
    return unsupported(file.path(), ": llama.expert_used_count is ", experts_used, ": mixtures of experts are not supported");
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t window, file.get_or<int64_t>("llama.attention.sliding_window", 0));
  if (window != 0)
    return unsupported(file.path(), ": llama.attention.sliding_window is ", window, ": only 0 (none) is supported");
  return {};
}

struct LlamaConfig : ModelConfig {
  float norm_eps = 0.0f;
  RopeConfig rope;
};

// Reads the keys as llama.cpp does: a scaling without a type is linear, a factor that is missing or 0 means 1, and attn_factor
// multiplies the attention factor that YaRN computes from its factor.
Result<RopeScaling> read_rope_scaling(const GgufFile& file, int64_t context_length) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::string type, file.get_or<std::string>("llama.rope.scaling.type", "linear"));
  if (type == "none") return RopeScaling{};
  if (type != "linear" && type != "yarn") {
    return unsupported(file.path(), ": llama.rope.scaling.type is ", in_quotes(type),
                       ": only \"none\", \"linear\" and \"yarn\" are supported");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const double stated_factor, file.get_or<double>("llama.rope.scaling.factor", 0.0));
  const double factor = stated_factor == 0.0 ? 1.0 : stated_factor;
  if (type == "linear") return RopeScaling(LinearRope{factor});
  YarnRope yarn;
  yarn.factor = factor;
  PROLOGUE_ASSIGN_OR_RETURN(yarn.original_max_position,
                            positive(file, "llama.rope.scaling.original_context_length", context_length));
  PROLOGUE_ASSIGN_OR_RETURN(const double attention_factor, file.get_or<double>("llama.rope.scaling.attn_factor", 1.0));
  PROLOGUE_ASSIGN_OR_RETURN(const double log_multiplier, file.get_or<double>("llama.rope.scaling.yarn_log_multiplier", 0.0));
  const double divisor = log_multiplier == 0.0 ? 1.0 : yarn_mscale(factor, log_multiplier);
  yarn.attention_factor = attention_factor * yarn_mscale(factor, 1.0) / divisor;
  return RopeScaling(yarn);
}

Result<LlamaConfig> read_config(const GgufFile& file) {
  PROLOGUE_RETURN_IF_ERROR(refuse_unsupported(file));
  LlamaConfig config;
  config.architecture = "llama";
  PROLOGUE_ASSIGN_OR_RETURN(config.name, file.get_or<std::string>("general.name", "unnamed"));
  PROLOGUE_ASSIGN_OR_RETURN(config.num_layers, positive(file, "llama.block_count"));
  if (config.num_layers > kMaxLayers) {  // the time to plan the graph grows with the square of its nodes
    return unsupported(file.path(), ": llama.block_count is ", config.num_layers, ": at most ", kMaxLayers, " are supported");
  }
  PROLOGUE_ASSIGN_OR_RETURN(config.context_length, positive(file, "llama.context_length"));
  PROLOGUE_ASSIGN_OR_RETURN(config.hidden_size, positive(file, "llama.embedding_length"));
  PROLOGUE_ASSIGN_OR_RETURN(config.intermediate_size, positive(file, "llama.feed_forward_length"));
  PROLOGUE_ASSIGN_OR_RETURN(config.num_q_heads, positive(file, "llama.attention.head_count"));
  PROLOGUE_ASSIGN_OR_RETURN(config.num_kv_heads, positive(file, "llama.attention.head_count_kv", config.num_q_heads));
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return data_loss(file.path(), ": llama.attention.head_count is ", config.num_q_heads,
                     ": it must be a multiple of head_count_kv ", config.num_kv_heads);
  }
  if (!file.has("llama.attention.key_length") && config.hidden_size % config.num_q_heads != 0) {
    return data_loss(file.path(), ": llama.embedding_length is ", config.hidden_size, ": it must be a multiple of the ",
                     config.num_q_heads, " heads");
  }
  const int64_t default_head_dim = std::max<int64_t>(1, config.hidden_size / config.num_q_heads);
  PROLOGUE_ASSIGN_OR_RETURN(config.head_dim, positive(file, "llama.attention.key_length", default_head_dim));
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t value_length, positive(file, "llama.attention.value_length", config.head_dim));
  if (value_length != config.head_dim) {
    return unsupported(file.path(), ": llama.attention.value_length is ", value_length, ": it must equal the key length ",
                       config.head_dim);
  }
  if (config.head_dim % 2 != 0 || config.head_dim > 256) {
    return unsupported(file.path(), ": the head dimension is ", config.head_dim, ": it must be even and at most 256");
  }
  PROLOGUE_ASSIGN_OR_RETURN(config.norm_eps, file.get<float>("llama.attention.layer_norm_rms_epsilon"));
  if (!(config.norm_eps >= 0.0f) || !std::isfinite(config.norm_eps)) {
    return data_loss(file.path(), ": llama.attention.layer_norm_rms_epsilon is ", config.norm_eps,
                     ": it must be a small positive number");
  }
  PROLOGUE_ASSIGN_OR_RETURN(config.rope.theta, file.get_or<double>("llama.rope.freq_base", 10000.0));
  PROLOGUE_ASSIGN_OR_RETURN(config.rope.rotary_dim, positive(file, "llama.rope.dimension_count", config.head_dim));
  if (config.rope.rotary_dim > config.head_dim) {
    return data_loss(file.path(), ": llama.rope.dimension_count is ", config.rope.rotary_dim, ": a head has only ",
                     config.head_dim, " channels");
  }
  PROLOGUE_ASSIGN_OR_RETURN(config.rope.scaling, read_rope_scaling(file, config.context_length));
  config.rope.style = RopeStyle::interleaved;  // GGUF holds the Q and K rows of this architecture in Meta's order
  return config;
}

Status read_freq_factors(const GgufFile& file, RopeConfig& rope) {
  if (!file.has_tensor("rope_freqs.weight")) return {};
  PROLOGUE_ASSIGN_OR_RETURN(const GgufTensor* tensor, file.tensor("rope_freqs.weight", {rope.rotary_dim / 2}));
  if (tensor->type != GgmlType::f32) {
    return unsupported(file.path(), ": rope_freqs.weight has type ", ggml_type_name(tensor->type), ": it must be F32");
  }
  rope.freq_factors.resize(static_cast<size_t>(rope.rotary_dim / 2));
  return file.read(*tensor, 0, tensor->size_bytes, rope.freq_factors.data());
}

}  // namespace

Result<Model> load_llama(WeightLoader& loader, const ModelOptions& options) {
  const GgufFile& file = loader.file();
  PROLOGUE_ASSIGN_OR_RETURN(LlamaConfig config, read_config(file));
  PROLOGUE_RETURN_IF_ERROR(read_freq_factors(file, config.rope));
  if (options.hadamard_block != 0) {
    PROLOGUE_RETURN_IF_ERROR(
        check_hadamard_block(file.path().c_str(), "the Hadamard block", options.hadamard_block, config.head_dim));
  }

  PROLOGUE_ASSIGN_OR_RETURN(const GgufTensor* embedding_tensor, file.tensor("token_embd.weight"));
  config.vocab_size = embedding_tensor->num_rows();
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t stated_vocab, positive(file, "llama.vocab_size", config.vocab_size));
  if (stated_vocab != config.vocab_size) {
    return data_loss(file.path(), ": llama.vocab_size is ", stated_vocab, ", but token_embd.weight has ", config.vocab_size,
                     " rows");
  }

  Model model;
  model.dtype = loader.dtype();
  // Schemes that depend on the length use the context length; the table grows to the longest sequence that will run (ModelRunner).
  PROLOGUE_ASSIGN_OR_RETURN(const RopeFrequencies frequencies,
                            rope_frequencies(config.rope, config.context_length, RopePrecision::reference));
  PROLOGUE_ASSIGN_OR_RETURN(RopeTable table,
                            RopeTable::create(config.rope.style, frequencies, 1, RopePrecision::reference, loader.execution()));
  model.rope_tables.push_back(std::make_unique<RopeTable>(std::move(table)));

  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = config.num_q_heads * config.head_dim;
  const int64_t kv_rows = config.num_kv_heads * config.head_dim;
  PROLOGUE_ASSIGN_OR_RETURN(const Weight embedding, loader.load("token_embd.weight", config.vocab_size, hidden));
  Weight lm_head = embedding;  // tied, unless the file has output.weight
  if (file.has_tensor("output.weight")) {
    PROLOGUE_ASSIGN_OR_RETURN(lm_head, loader.load("output.weight", config.vocab_size, hidden));
  }

  GraphBuilder g(model.dtype);
  const Value residual = g.embedding("residual", embedding, 1.0f);
  Value previous;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string block = str_cat("blk.", i, ".");
    DecoderLayer layer;
    layer.norm_eps = config.norm_eps;
    PROLOGUE_ASSIGN_OR_RETURN(layer.attention_norm, loader.load(block + "attn_norm.weight", 1, hidden));
    layer.attention.layer = i;
    layer.attention.num_q_heads = config.num_q_heads;
    layer.attention.num_kv_heads = config.num_kv_heads;
    layer.attention.head_dim = config.head_dim;
    layer.attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
    layer.attention.rope = model.rope_tables.front().get();
    layer.attention.hadamard_block = options.hadamard_block;
    PROLOGUE_ASSIGN_OR_RETURN(
        layer.attention.qkv_weight,
        loader.load_stacked(
            {{block + "attn_q.weight", q_rows}, {block + "attn_k.weight", kv_rows}, {block + "attn_v.weight", kv_rows}}, hidden));
    if (file.has_tensor(block + "attn_q.bias")) {
      PROLOGUE_ASSIGN_OR_RETURN(layer.attention.qkv_bias, loader.load_joined({{block + "attn_q.bias", q_rows},
                                                                              {block + "attn_k.bias", kv_rows},
                                                                              {block + "attn_v.bias", kv_rows}}));
    }
    PROLOGUE_ASSIGN_OR_RETURN(layer.attention.output_weight, loader.load(block + "attn_output.weight", hidden, q_rows));
    PROLOGUE_ASSIGN_OR_RETURN(layer.mlp_norm, loader.load(block + "ffn_norm.weight", 1, hidden));
    PROLOGUE_ASSIGN_OR_RETURN(layer.mlp.up_weight,
                              loader.load_stacked({{block + "ffn_gate.weight", config.intermediate_size},
                                                   {block + "ffn_up.weight", config.intermediate_size}},
                                                  hidden));
    PROLOGUE_ASSIGN_OR_RETURN(layer.mlp.down_weight, loader.load(block + "ffn_down.weight", hidden, config.intermediate_size));

    const GraphBuilder::Scope scope(g, str_cat("layers.", i));
    previous = layer.build(g, residual, previous);
  }
  PROLOGUE_ASSIGN_OR_RETURN(const Weight final_norm, loader.load("output_norm.weight", 1, hidden));
  Value x = g.add_norm("final_norm", previous, residual, {NormKind::rms, final_norm, {}, config.norm_eps});
  x = g.select_logit_rows("last_tokens", x);
  const Value logits = g.linear("lm_head", x, lm_head, {}, DType::f32);
  PROLOGUE_ASSIGN_OR_RETURN(model.graph, std::move(g).finish(logits));
  model.config = config;
  return model;
}

}  // namespace prologue
