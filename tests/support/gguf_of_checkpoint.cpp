#include "tests/support/gguf_of_checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <numbers>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include <prologue/kernels/base/status.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_reader.h"

namespace prologue::test {
namespace {

using nlohmann::json;

const std::map<std::string, std::string> kArchitectures = {
    {"LlamaForCausalLM", "llama"},   {"MistralForCausalLM", "llama"}, {"MixtralForCausalLM", "llama"},
    {"Qwen2ForCausalLM", "qwen2"},   {"Qwen3ForCausalLM", "qwen3"},   {"Qwen3MoeForCausalLM", "qwen3moe"},
    {"Gemma2ForCausalLM", "gemma2"}, {"Gemma3ForCausalLM", "gemma3"}, {"GPTNeoXForCausalLM", "gptneox"},
    {"PhiForCausalLM", "phi2"},      {"Phi3ForCausalLM", "phi3"},     {"GptOssForCausalLM", "gpt-oss"},
};

// Names are without the layer and without ".weight" or ".bias". A Gemma's norms are in kGemmaNorms.
const std::map<std::string, std::string> kNames = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"model.final_layernorm", "output_norm"},
    {"lm_head", "output"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.dense", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.fc1", "ffn_up"},
    {"mlp.fc2", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.router", "ffn_gate_inp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"experts.gate_proj", "ffn_gate_exps"},
    {"experts.up_proj", "ffn_up_exps"},
    {"experts.down_proj", "ffn_down_exps"},
    {"experts.w1", "ffn_gate_exps"},
    {"experts.w3", "ffn_up_exps"},
    {"experts.w2", "ffn_down_exps"},
    {"gpt_neox.embed_in", "token_embd"},
    {"gpt_neox.final_layer_norm", "output_norm"},
    {"embed_out", "output"},
    {"attention.query_key_value", "attn_qkv"},
    {"attention.dense", "attn_output"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.dense_4h_to_h", "ffn_down"},
};
const std::map<std::string, std::string> kGemmaNorms = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

class Conversion {
 public:
  explicit Conversion(const std::string& folder) : tensors_(stored_tensors(folder)) {
    config_ = json::parse(std::ifstream(folder + "/config.json"));
    const std::string model_class = config_.at("architectures").at(0);
    if (kArchitectures.count(model_class) == 0) throw std::runtime_error(model_class + " is not converted");
    arch_ = kArchitectures.at(model_class);
    hidden_ = number("hidden_size");
    heads_ = number("num_attention_heads");
    kv_heads_ = number("num_key_value_heads", heads_);
    head_dim_ = number("head_dim", hidden_ / heads_);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (has(key)) rope_ = config_.at(key);
    }
    for (const char* key : {"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}) {
      if (has(key) && !rope_.contains(key)) rope_[key] = config_.at(key);
    }
    if (rope_.contains("full_attention")) {
      config_["rope_local_base_freq"] = rope_.at("sliding_attention").at("rope_theta");
      rope_ = json(rope_.at("full_attention"));
    }
    if (!rope_.contains("rope_type")) rope_["rope_type"] = rope_.value("type", "default");
  }

  std::vector<std::byte> bytes() {
    writer_.add("general.architecture", arch_);
    add_sizes();
    if (arch_ == "gptneox") {
      add("rope.dimension_count", rotary_dim(config_.at("rotary_pct")));
      writer_.add(arch_ + ".use_parallel_residual", config_.value("use_parallel_residual", true));
    } else if (arch_ == "phi2") {
      if (number("intermediate_size") != 4 * hidden_)
        throw std::runtime_error("the MLP of a Phi 2 is not 4 times the hidden size");
      add("rope.dimension_count", rotary_dim(rope_.at("partial_rotary_factor")));
    } else if (arch_ == "phi3") {
      add_phi3_rope();
    } else {
      if (arch_ == "llama") add("rope.dimension_count", head_dim_);
      if (arch_ == "llama") add("vocab_size", number("vocab_size"));
      if (arch_ != "gemma2") add_rope();  // Gemma 2: the default, 10000
    }
    if (arch_ == "gemma2" || arch_ == "gemma3") add_gemma();
    if (arch_ == "gpt-oss") {
      add("attention.sliding_window", number("sliding_window"));
      add("expert_feed_forward_length", number("intermediate_size"));
    }
    if (has("num_local_experts") || has("num_experts")) {
      add("expert_count", has("num_experts") ? number("num_experts") : number("num_local_experts"));
      add("expert_used_count", number("num_experts_per_tok"));
      if (has("moe_intermediate_size")) add("expert_feed_forward_length", number("moe_intermediate_size"));
    }
    add_tokenizer();
    add_weights();
    return writer_.bytes();
  }

 private:
  bool has(const std::string& key) const { return config_.contains(key) && !config_.at(key).is_null(); }
  int64_t number(const std::string& key) const { return config_.at(key).get<int64_t>(); }
  int64_t number(const std::string& key, int64_t fallback) const { return has(key) ? number(key) : fallback; }
  int64_t rotary_dim(double factor) const { return static_cast<int64_t>(factor * static_cast<double>(hidden_)) / heads_; }

  void add(const std::string& key, int64_t value) { writer_.add(arch_ + "." + key, static_cast<uint32_t>(value)); }
  void add_float(const std::string& key, double value) { writer_.add(arch_ + "." + key, static_cast<float>(value)); }

  void add_sizes() {
    add("block_count", number("num_hidden_layers"));
    add("context_length", number("max_position_embeddings"));
    add("embedding_length", hidden_);
    add("feed_forward_length", number("intermediate_size"));
    add("attention.head_count", heads_);
    if (arch_ != "gptneox") add("attention.head_count_kv", kv_heads_);
    if (has("rms_norm_eps")) add_float("attention.layer_norm_rms_epsilon", config_.at("rms_norm_eps"));
    if (has("layer_norm_eps")) add_float("attention.layer_norm_epsilon", config_.at("layer_norm_eps"));
    if (has("head_dim") || config_.at("architectures").at(0) == "LlamaForCausalLM") {
      add("attention.key_length", head_dim_);
      add("attention.value_length", head_dim_);
    }
  }

  void add_rope() {
    if (rope_.contains("rope_theta")) add_float("rope.freq_base", rope_.at("rope_theta"));
    const std::string type = rope_.at("rope_type");
    if (type == "linear" || type == "yarn") {
      writer_.add(arch_ + ".rope.scaling.type", type);
      add_float("rope.scaling.factor", rope_.at("factor"));
    }
    if (type == "yarn") {
      add("rope.scaling.original_context_length", rope_.at("original_max_position_embeddings").get<int64_t>());
      for (const auto& [key, name] :
           {std::pair("attention_factor", "attn_factor"), {"beta_fast", "beta_fast"}, {"beta_slow", "beta_slow"}}) {
        if (rope_.contains(key)) add_float(std::string("rope.scaling.yarn_") + name, rope_.at(key));
      }
    }
    if (type == "llama3") add_tensor("rope_freqs.weight", {head_dim_ / 2}, llama3_factors());
  }

  // Returns the numbers that the frequencies are divided by.
  std::vector<float> llama3_factors() const {
    const double factor = rope_.at("factor"), low = rope_.at("low_freq_factor"), high = rope_.at("high_freq_factor"),
                 length = rope_.at("original_max_position_embeddings"), theta = rope_.at("rope_theta");
    std::vector<float> factors;
    for (int64_t i = 0; i < head_dim_; i += 2) {
      const double wavelength = 2.0 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / static_cast<double>(head_dim_));
      const double smooth = (length / wavelength - low) / (high - low);
      factors.push_back(static_cast<float>(wavelength < length / high  ? 1.0
                                           : wavelength > length / low ? factor
                                                                       : 1.0 / ((1.0 - smooth) / factor + smooth)));
    }
    return factors;
  }

  void add_phi3_rope() {
    const int64_t original = number("original_max_position_embeddings");
    const int64_t rotary = rotary_dim(rope_.value("partial_rotary_factor", 1.0));
    add("rope.scaling.original_context_length", original);
    add("rope.dimension_count", rotary);
    add_float("rope.freq_base", rope_.at("rope_theta"));
    add("attention.sliding_window", number("sliding_window", 0));
    if (!rope_.contains("long_factor")) return;
    const double scale = static_cast<double>(number("max_position_embeddings")) / static_cast<double>(original);
    add_float("rope.scaling.attn_factor",
              scale > 1.0 ? std::sqrt(1.0 + std::log(scale) / std::log(static_cast<double>(original))) : 1.0);
    add_tensor("rope_factors_long.weight", {rotary / 2}, rope_.at("long_factor").get<std::vector<float>>());
    add_tensor("rope_factors_short.weight", {rotary / 2}, rope_.at("short_factor").get<std::vector<float>>());
  }

  void add_gemma() {
    add("attention.sliding_window", number("sliding_window"));
    if (has("attn_logit_softcapping")) add_float("attn_logit_softcapping", config_.at("attn_logit_softcapping"));
    if (has("final_logit_softcapping")) add_float("final_logit_softcapping", config_.at("final_logit_softcapping"));
    if (arch_ == "gemma3") {
      add_float("rope.freq_base_swa", config_.at("rope_local_base_freq"));
      add("attention.sliding_window_pattern", number("sliding_window_pattern"));
    }
  }

  void add_tokenizer() {
    std::vector<std::string> tokens;
    for (int64_t i = 0; i < number("vocab_size"); ++i) tokens.push_back(str_cat("t", i));
    writer_.add("tokenizer.ggml.model", "gpt2");
    writer_.add("tokenizer.ggml.pre", "gpt-2");
    writer_.add("tokenizer.ggml.tokens", tokens);
    writer_.add("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), 1));
    writer_.add("tokenizer.ggml.merges", std::vector<std::string>{"t 0"});
    writer_.add("tokenizer.ggml.bos_token_id", uint32_t{1});
    writer_.add("tokenizer.ggml.eos_token_id", uint32_t{2});
  }

  void add_weights() {
    const bool tied = config_.value("tie_word_embeddings", arch_ == "gemma2" || arch_ == "gemma3");
    int64_t expert_layers = 0;
    for (const auto& [name, tensor] : tensors_) {
      if (name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attention.masked_bias") || name.ends_with(".attention.bias"))
        continue;
      if (tied && name.starts_with("lm_head")) continue;
      const size_t dot = name.rfind('.');
      std::string module = name.substr(0, dot), block;
      const std::string ending = name.substr(dot);
      if (const size_t at = module.find(".layers."); at != std::string::npos) {
        const size_t number_at = at + std::string(".layers.").size(), number_end = module.find('.', number_at);
        block = str_cat("blk.", module.substr(number_at, number_end - number_at), ".");
        module = module.substr(number_end + 1);
      }
      if (const size_t at = module.find(".experts."); at != std::string::npos) {  // those of a layer become one tensor
        const std::string expert = module.substr(at + std::string(".experts.").size());
        if (!expert.starts_with("0.")) continue;
        expert_layers += module.ends_with(".down_proj") || module.ends_with(".w2") ? 1 : 0;
        add_experts(block + kNames.at("experts." + expert.substr(2)) + ending, name);
        continue;
      }
      if (module == "self_attn" && ending == ".sinks") {
        add_tensor(block + "attn_sinks.weight", tensor.shape, read_values(tensor));
        continue;
      }
      if (module == "mlp.experts") {
        add_gpt_oss_experts(block, ending, tensor);
        continue;
      }
      if (arch_ == "gpt-oss" && module == "post_attention_layernorm") {
        add_tensor(block + "post_attention_norm" + ending, tensor.shape, read_values(tensor));
        continue;
      }
      const bool gemma_norm = arch_.starts_with("gemma") && kGemmaNorms.count(module) != 0;
      const std::string& gguf_name = gemma_norm ? kGemmaNorms.at(module) : kNames.at(module);
      add_tensor(block + gguf_name + ending, tensor.shape, converted(module, tensor));
    }
    if (arch_ == "qwen3moe" && expert_layers != number("num_hidden_layers")) throw std::runtime_error("a layer has no experts");
  }

  void add_experts(const std::string& gguf_name, const std::string& first) {
    std::vector<int64_t> shape = tensors_.at(first).shape;
    std::vector<float> values;
    const size_t at = first.find(".experts.0.") + std::string(".experts.").size();
    int64_t count = 0;
    for (;; ++count) {
      const auto tensor = tensors_.find(first.substr(0, at) + std::to_string(count) + first.substr(at + 1));
      if (tensor == tensors_.end()) break;
      const std::vector<float> expert = read_values(tensor->second);
      values.insert(values.end(), expert.begin(), expert.end());
    }
    shape.insert(shape.begin(), count);
    add_tensor(gguf_name, shape, values);
  }

  // The rows of gate and up alternate there, and the matrices are transposed.
  void add_gpt_oss_experts(const std::string& block, const std::string& ending, const StoredTensor& tensor) {
    const bool bias = ending.ends_with("_bias"), down = ending.starts_with(".down");
    const std::vector<float> values = read_values(tensor);
    const int64_t experts = tensor.shape[0], cols = bias ? 1 : tensor.shape[1], rows = tensor.shape.back(), step = down ? 1 : 2;
    for (int64_t first = 0; first < step; ++first) {
      std::vector<float> part;
      for (int64_t e = 0; e < experts; ++e) {
        for (int64_t row = first; row < rows; row += step) {
          for (int64_t col = 0; col < cols; ++col) part.push_back(values[static_cast<size_t>((e * cols + col) * rows + row)]);
        }
      }
      std::vector<int64_t> shape = {experts, rows / step};
      if (!bias) shape.push_back(cols);
      const char* const name = down ? "ffn_down_exps" : first == 0 ? "ffn_gate_exps" : "ffn_up_exps";
      add_tensor(block + name + (bias ? ".bias" : ".weight"), shape, part);
    }
  }

  std::vector<float> converted(const std::string& module, const StoredTensor& tensor) const {
    std::vector<float> values = read_values(tensor);
    if (arch_.starts_with("gemma") && module.ends_with("norm")) {
      for (float& value : values) value += 1.0f;
    }
    const int64_t row = tensor.num_elements() / tensor.shape[0];
    if (arch_ == "llama" && module == "self_attn.q_proj") return permuted(values, {heads_, 2, head_dim_ / 2, row});
    if (arch_ == "llama" && module == "self_attn.k_proj") return permuted(values, {kv_heads_, 2, head_dim_ / 2, row});
    if (module == "attention.query_key_value") return of_all_heads(values, {heads_, 3, head_dim_ * row});
    return values;
  }

  // Converts [a, b, c, d] to [a, c, b, d]: halves of a head to neighbours.
  static std::vector<float> permuted(const std::vector<float>& values, std::array<int64_t, 4> sizes) {
    const auto [heads, halves, half, row] = sizes;
    std::vector<float> out;
    for (int64_t a = 0; a < heads; ++a) {
      for (int64_t c = 0; c < half; ++c) {
        for (int64_t b = 0; b < halves; ++b) {
          const auto begin = values.begin() + static_cast<std::ptrdiff_t>(((a * halves + b) * half + c) * row);
          out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(row));
        }
      }
    }
    return out;
  }
  // Converts [heads, 3, c] to [3, heads, c]: q, k, v of each head to those of all heads.
  static std::vector<float> of_all_heads(const std::vector<float>& values, std::array<int64_t, 3> sizes) {
    return permuted(values, {1, sizes[0], sizes[1], sizes[2]});
  }

  void add_tensor(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
    std::vector<std::byte> bytes;
    for (const float value : values) append_bytes(bytes, value);
    writer_.add_tensor(name, std::vector<uint64_t>(shape.rbegin(), shape.rend()), gguf::kF32, std::move(bytes));
  }

  std::map<std::string, StoredTensor> tensors_;
  json config_;
  json rope_ = json::object();
  std::string arch_;
  int64_t hidden_ = 0, heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
  GgufWriter writer_;
};

}  // namespace

std::vector<std::byte> gguf_of_checkpoint(const std::string& folder) { return Conversion(folder).bytes(); }

}  // namespace prologue::test
