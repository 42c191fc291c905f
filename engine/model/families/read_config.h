// All families' readers use this file: it has the keys and names that most models of a file format have. A family's reader calls one of the
// two read_*_model functions and then says where it differs.
#pragma once

#include <functional>
#include <string>

#include <prologue/engine/checkpoint/config_reader.h>
#include <prologue/engine/model/model_spec.h>

namespace prologue {

// ---- config.json

// Returns the name of a module of a layer: "model.layers.{}.NAME".
inline std::string of_layer(std::string_view name) { return str_cat("model.layers.{}.", name); }

// Reads the sizes, norm, activation, and the tensor names of LlamaForCausalLM. One kind of layer, that of all layers. Without ropes.
void read_huggingface_model(ConfigReader& c, ModelSpec& spec);

// Reads the rope that config.json describes, in rope_parameters (transformers 5) or in rope_theta, rope_scaling and partial_rotary_factor.
struct RopeDefaults {
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
  RopeStyle style = RopeStyle::neox;
  std::string layer_type = {};  // of several ropes in rope_parameters
};
RopeSpec read_huggingface_rope(ConfigReader& c, const ModelSpec& spec, const RopeDefaults& defaults);

// Kind 1 is a copy of kind 0 with the window of sliding_window, for the layers that layer_types calls "sliding_attention" (the others are
// "full_attention"); without layer_types for those that `slides` names. Without a window all layers are of kind 0.
void read_sliding_layers(ConfigReader& c, ModelSpec& spec, const std::function<bool(int64_t layer)>& slides);

// Gives kind 1 to the layers that rotate nothing: those with 0 in no_rope_layers, or every no_rope_layer_interval-th (4th).
void read_unrotated_layers(ConfigReader& c, ModelSpec& spec);

// Reads the number of layers: all of kind 0.
void set_layers(ConfigReader& c, ModelSpec& spec, std::string_view key);

// Returns the head dimension if the file does not say it: hidden_size, which is in `key`, divided by the number of heads.
int64_t width_by_heads(ConfigReader& c, const ModelSpec& spec, std::string_view key);

float read_eps(ConfigReader& c, std::string_view key, std::optional<double> fallback);

// Sets it, and the attention scale that follows from it.
void set_head_dim(ConfigReader& c, ModelSpec& spec, int64_t head_dim);

// Called after num_experts has been read: whether the kernels have so many.
void check_experts(ConfigReader& c, ModelSpec& spec);

Activation activation_of(ConfigReader& c, std::string_view key, const std::string& fallback);

// ---- GGUF

// Reads the sizes and the tensor names of llama.cpp's architectures, and the rope. One kind of layer.
void read_gguf_model(ConfigReader& c, ModelSpec& spec, RopeStyle style, NormKind norm = NormKind::rms);

// Does the same from attention.sliding_window.
void read_gguf_window(ConfigReader& c, ModelSpec& spec, const std::function<bool(int64_t layer)>& slides);

}  // namespace prologue
