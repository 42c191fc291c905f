#include <prologue/engine/huggingface/quantized_tensor.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/checkpoint/name_list.h>
#include <prologue/engine/gguf/dequantize.h>
#include <prologue/kernels/base/divide_up.h>

namespace prologue {
namespace {

constexpr const char* kSupported =
    "supported are fp8 (e4m3), fbgemm_fp8, mxfp4, compressed-tensors of 8 bits (float-quantized, int-quantized, naive-quantized) "
    "and of 4 (pack-quantized, nvfp4-pack-quantized), gptq and awq of 4 bits, and modelopt's NVFP4";
constexpr const char* kNvfp4Format = "nvfp4-pack-quantized";
constexpr int64_t kBlock = 128;
constexpr std::string_view kWeight = ".weight";

// Returns a member that is a string; "" if there is none, or null.
Result<std::string> text_of(const Json& object, std::string_view name, const std::string& path) {
  const Json* value = object.find(name);
  if (value == nullptr || value->get_if<std::monostate>() != nullptr) return std::string();
  if (const auto* text = value->get_if<std::string>()) return *text;
  return data_loss(path, ": ", in_quotes(name), " in quantization_config is ", value->kind(), ": a string is expected");
}

// Returns a member that is an integer; `otherwise` if there is none, or null.
Result<int64_t> integer_of(const Json& object, std::string_view name, int64_t otherwise, const std::string& path) {
  const Json* value = object.find(name);
  if (value == nullptr || value->get_if<std::monostate>() != nullptr) return otherwise;
  if (const auto* integer = value->get_if<int64_t>()) return *integer;
  return data_loss(path, ": ", in_quotes(name), " in quantization_config is ", value->kind(), ": an integer is expected");
}

// The same for a flag.
Result<bool> flag_of(const Json& object, std::string_view name, bool otherwise, const std::string& path) {
  const Json* value = object.find(name);
  if (value == nullptr || value->get_if<std::monostate>() != nullptr) return otherwise;
  if (const auto* flag = value->get_if<bool>()) return *flag;
  return data_loss(path, ": ", in_quotes(name), " in quantization_config is ", value->kind(), ": a boolean is expected");
}

// Returns group_size: -1, one group for each row, or a number of channels.
Result<int64_t> group_size_of(const Json& object, const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t size, integer_of(object, "group_size", -1, path));
  if (size == -1 || size > 0) return size;
  return data_loss(path, ": group_size in quantization_config is ", size, ": it must be -1 or at least 1");
}

bool is_absent(const Json* value) {
  const auto* object = value == nullptr ? nullptr : value->get_if<Json::Object>();
  return value == nullptr || value->get_if<std::monostate>() != nullptr || (object != nullptr && object->empty());
}

// Blocks must be 128 x 128.
Status check_block_shape(const Json* shape, const char* name, const std::string& path) {
  if (is_absent(shape)) return {};
  const auto* list = shape->get_if<Json::List>();
  const bool is_supported = list != nullptr && list->size() == 2 && std::all_of(list->begin(), list->end(), [](const Json& side) {
                              const auto* length = side.get_if<int64_t>();
                              return length != nullptr && *length == kBlock;
                            });
  if (is_supported) return {};
  return unsupported(path, ": ", name, " in quantization_config is not [128, 128]: no other blocks are supported");
}

// Whether input_activations of compressed-tensors are those of GemmParams::quantize_x.
Result<bool> are_quantized_dynamically(const Json* activations, const std::string& weight_strategy, const std::string& path) {
  if (is_absent(activations)) return false;
  PROLOGUE_ASSIGN_OR_RETURN(const std::string type, text_of(*activations, "type", path));
  PROLOGUE_ASSIGN_OR_RETURN(const std::string strategy, text_of(*activations, "strategy", path));
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t num_bits, integer_of(*activations, "num_bits", 8, path));
  const Json* dynamic = activations->find("dynamic");  // true, false or "local"
  const bool* is_dynamic = dynamic == nullptr ? nullptr : dynamic->get_if<bool>();
  if (num_bits != 8 || type != "float" || is_dynamic == nullptr || !*is_dynamic) return false;
  if (weight_strategy != "block") return strategy == "token";
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t group_size, integer_of(*activations, "group_size", kBlock, path));
  return strategy == "group" && group_size == kBlock;
}

// Reads one of the config_groups of compressed-tensors.
Status read_group(const JsonMember& group, const std::string& path, QuantizationConfig& quantization) {
  const std::string what = str_cat(path, ": config_groups.", printable(group.name), " in quantization_config");
  const Json* weights = group.value.find("weights");
  if (is_absent(weights)) return {};
  PROLOGUE_ASSIGN_OR_RETURN(const std::string type, text_of(*weights, "type", path));
  PROLOGUE_ASSIGN_OR_RETURN(const std::string strategy, text_of(*weights, "strategy", path));
  const Json* bits = weights->find("num_bits");
  const auto* num_bits = bits == nullptr ? nullptr : bits->get_if<int64_t>();
  if (num_bits == nullptr || *num_bits != 8 || (type != "float" && type != "int")) {
    return unsupported(what, " has weights of ", num_bits == nullptr ? std::string("an unknown number of") : str_cat(*num_bits),
                       " bits and type ", in_quotes(type), ": supported are 8 bits, 'float' or 'int'");
  }
  if (strategy != "tensor" && strategy != "channel" && strategy != "block") {
    return unsupported(what, " has weights with the strategy ", in_quotes(strategy),
                       ": supported are 'tensor', 'channel' and 'block'");
  }
  const Json* symmetric = weights->find("symmetric");
  if (symmetric != nullptr && symmetric->get_if<bool>() != nullptr && !*symmetric->get_if<bool>()) {
    return unsupported(what, " has weights that are not symmetric: zero points are not supported");
  }
  if (strategy == "block") {
    PROLOGUE_RETURN_IF_ERROR(check_block_shape(weights->find("block_structure"), "block_structure", path));
  }
  if (type == "float") {  // all groups must say so
    PROLOGUE_ASSIGN_OR_RETURN(const bool dynamic,
                              are_quantized_dynamically(group.value.find("input_activations"), strategy, path));
    quantization.quantizes_activations = dynamic && (quantization.quantizes_activations || !quantization.has_float8);
  }
  (type == "float" ? quantization.has_float8 : quantization.has_int8) = true;
  return {};
}

// Reads one of the config_groups of compressed-tensors with the format pack-quantized.
Status read_packed_group(const JsonMember& group, const std::string& path, Int4Config& config) {
  const std::string what = str_cat(path, ": config_groups.", printable(group.name), " in quantization_config");
  const Json* weights = group.value.find("weights");
  if (is_absent(weights)) return {};
  PROLOGUE_ASSIGN_OR_RETURN(const std::string type, text_of(*weights, "type", path));
  PROLOGUE_ASSIGN_OR_RETURN(const std::string strategy, text_of(*weights, "strategy", path));
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t num_bits, integer_of(*weights, "num_bits", 0, path));
  if (num_bits != 4 || type != "int") {
    return unsupported(what, " has weights of ", num_bits, " bits and type ", in_quotes(type),
                       ": with the format 'pack-quantized' 4 bits and 'int' are supported");
  }
  if (strategy != "group" && strategy != "channel") {
    return unsupported(what, " has weights with the strategy ", in_quotes(strategy), ": supported are 'group' and 'channel'");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t group_size, group_size_of(*weights, path));
  PROLOGUE_ASSIGN_OR_RETURN(const bool symmetric, flag_of(*weights, "symmetric", true, path));
  if (strategy == "group" && group_size < 0) {
    return data_loss(what, " has weights with the strategy 'group', but no group_size");
  }
  const int64_t size = strategy == "group" ? group_size : -1;
  if (!config.group_sizes.empty() && config.needs_zero_points == symmetric) {
    return unsupported(what, " is ", symmetric ? "symmetric" : "not symmetric", ", and another group is", symmetric ? " not" : "",
                       ": all groups must be alike");
  }
  config.needs_zero_points = !symmetric;
  if (std::find(config.group_sizes.begin(), config.group_sizes.end(), size) != config.group_sizes.end()) return {};
  constexpr size_t kMostSizes = 16;
  if (config.group_sizes.size() == kMostSizes) {
    return unsupported(path, ": config_groups in quantization_config have more than ", kMostSizes, " sizes of groups");
  }
  config.group_sizes.push_back(size);
  return {};
}

// Reads one of the config_groups of compressed-tensors with the format nvfp4-pack-quantized.
Status read_nvfp4_group(const JsonMember& group, const std::string& path) {
  const std::string what = str_cat(path, ": config_groups.", printable(group.name), " in quantization_config");
  PROLOGUE_ASSIGN_OR_RETURN(const std::string format, text_of(group.value, "format", path));
  if (!format.empty() && format != kNvfp4Format) {
    return unsupported(what, " has the format ", in_quotes(format), ": with ", kNvfp4Format, " all groups must have it");
  }
  const Json* weights = group.value.find("weights");
  if (is_absent(weights)) return {};
  PROLOGUE_ASSIGN_OR_RETURN(const std::string type, text_of(*weights, "type", path));
  PROLOGUE_ASSIGN_OR_RETURN(const std::string strategy, text_of(*weights, "strategy", path));
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t num_bits, integer_of(*weights, "num_bits", 0, path));
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t group_size, integer_of(*weights, "group_size", 16, path));
  PROLOGUE_ASSIGN_OR_RETURN(const bool symmetric, flag_of(*weights, "symmetric", true, path));
  if (num_bits == 4 && type == "float" && strategy == "tensor_group" && group_size == 16 && symmetric) return {};
  return unsupported(what, " has weights of ", num_bits, " bits and type ", in_quotes(type), " with the strategy ",
                     in_quotes(strategy), symmetric ? "" : ", not symmetric,", " in groups of ", group_size, ": with the format ",
                     in_quotes(kNvfp4Format), " 4 bits, 'float', 'tensor_group' and 16 are supported");
}

Result<QuantizationConfig> read_gptq(const Json& config, const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t bits, integer_of(config, "bits", 0, path));
  if (bits != 4) {
    return unsupported(path, ": quantization_config in config.json is gptq of ", bits, " bits: supported are 4");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const std::string format, text_of(config, "checkpoint_format", path));
  if (!format.empty() && format != "gptq" && format != "gptq_v2") {
    return unsupported(path, ": quantization_config in config.json is gptq with the checkpoint_format ", in_quotes(format),
                       ": supported are 'gptq' and 'gptq_v2'");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const bool is_marlin, flag_of(config, "is_marlin_format", false, path));
  if (is_marlin) return unsupported(path, ": quantization_config in config.json has is_marlin_format, which is not supported");
  QuantizationConfig quantization;
  quantization.int4.method = Int4Config::Method::gptq;
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t group_size, group_size_of(config, path));
  PROLOGUE_ASSIGN_OR_RETURN(quantization.int4.needs_group_indices, flag_of(config, "desc_act", false, path));
  quantization.int4.group_sizes = {group_size};
  quantization.int4.zero_points_less_one = format != "gptq_v2";
  quantization.int4.needs_zero_points = true;
  return quantization;
}

Result<QuantizationConfig> read_awq(const Json& config, const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t bits, integer_of(config, "bits", 4, path));
  if (bits != 4) {
    return unsupported(path, ": quantization_config in config.json is awq of ", bits, " bits: supported are 4");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const std::string version, text_of(config, "version", path));
  if (!version.empty() && version != "gemm" && version != "GEMM") {
    return unsupported(path, ": quantization_config in config.json is awq of the version ", in_quotes(version),
                       ": supported is 'gemm'");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const std::string backend, text_of(config, "backend", path));
  if (!backend.empty() && backend != "autoawq") {
    return unsupported(path, ": quantization_config in config.json is awq of the backend ", in_quotes(backend),
                       ": supported is 'autoawq'");
  }
  QuantizationConfig quantization;
  quantization.int4.method = Int4Config::Method::awq;
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t group_size, group_size_of(config, path));
  quantization.int4.group_sizes = {group_size};
  quantization.int4.needs_zero_points = true;
  return quantization;
}

Result<QuantizationConfig> read_compressed_tensors(const Json& config, const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::string format, text_of(config, "format", path));
  const bool is_packed = format == "pack-quantized";
  const bool is_nvfp4 = format == kNvfp4Format;
  if (!is_packed && !is_nvfp4 && format != "float-quantized" && format != "int-quantized" && format != "naive-quantized") {
    return unsupported(path, ": quantization_config is compressed-tensors with the format ", in_quotes(format), ": ", kSupported);
  }
  for (const char* other : {"sparsity_config", "transform_config"}) {
    const Json* value = config.find(other);
    if (is_absent(value)) continue;
    PROLOGUE_ASSIGN_OR_RETURN(const std::string kind, text_of(*value, "format", path));
    if (kind == "dense") continue;
    return unsupported(path, ": quantization_config has ", other, ", which is not supported");
  }
  const Json* groups = config.find("config_groups");
  const auto* members = groups == nullptr ? nullptr : groups->get_if<Json::Object>();
  if (members == nullptr) return data_loss(path, ": quantization_config has no config_groups that is an object");
  QuantizationConfig quantization;
  if (is_nvfp4) quantization.nvfp4 = Nvfp4Method::compressed_tensors;
  if (is_packed) quantization.int4.method = Int4Config::Method::compressed_tensors;
  for (const JsonMember& group : *members) {
    PROLOGUE_RETURN_IF_ERROR(is_packed  ? read_packed_group(group, path, quantization.int4)
                             : is_nvfp4 ? read_nvfp4_group(group, path)
                                        : read_group(group, path, quantization));
  }
  if (is_packed && quantization.int4.group_sizes.empty()) {
    return data_loss(path, ": quantization_config has no config_groups with weights");
  }
  return quantization;
}

}  // namespace

Result<QuantizationConfig> read_modelopt_config(const Json* quantization, const std::string& path) {
  if (is_absent(quantization)) return QuantizationConfig{};
  if (quantization->get_if<Json::Object>() == nullptr) {
    return data_loss(path, ": the configuration of modelopt is ", quantization->kind(), ": an object is expected");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const std::string algorithm, text_of(*quantization, "quant_algo", path));
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t group_size, integer_of(*quantization, "group_size", 16, path));
  if (algorithm != "NVFP4") {
    return unsupported(path, ": quantization_config is modelopt with the quant_algo ", in_quotes(algorithm),
                       ": supported is 'NVFP4'");
  }
  if (group_size != 16) {
    return unsupported(path, ": quantization_config is modelopt's NVFP4 in groups of ", group_size, ": supported is 16");
  }
  QuantizationConfig config;
  config.nvfp4 = Nvfp4Method::modelopt;
  return config;
}

Result<QuantizationConfig> read_quantization_config(const Json* config, const std::string& path) {
  if (is_absent(config)) return QuantizationConfig{};
  if (config->get_if<Json::Object>() == nullptr) {
    return data_loss(path, ": quantization_config in config.json is ", config->kind(), ": an object is expected");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const std::string method, text_of(*config, "quant_method", path));
  if (method == "compressed-tensors") return read_compressed_tensors(*config, path);
  if (method == "modelopt") return read_modelopt_config(config, path);
  if (method == "gptq") return read_gptq(*config, path);
  if (method == "awq") return read_awq(*config, path);
  if (method == "mxfp4") {
    QuantizationConfig quantization;
    quantization.has_mxfp4 = true;
    return quantization;
  }
  if (method != "fp8" && method != "fbgemm_fp8") {
    return unsupported(path, ": quantization_config in config.json has the quant_method ", in_quotes(method), ": ", kSupported);
  }
  PROLOGUE_ASSIGN_OR_RETURN(const std::string fmt, text_of(*config, "fmt", path));
  if (!fmt.empty() && fmt != "e4m3") {
    return unsupported(path, ": quantization_config in config.json has the fmt ", in_quotes(fmt), ": ", kSupported);
  }
  PROLOGUE_RETURN_IF_ERROR(check_block_shape(config->find("weight_block_size"), "weight_block_size", path));
  QuantizationConfig quantization;
  quantization.has_float8 = true;
  PROLOGUE_ASSIGN_OR_RETURN(const std::string scheme, text_of(*config, "activation_scheme", path));
  quantization.quantizes_activations = method == "fbgemm_fp8" || scheme.empty() || scheme == "dynamic";
  return quantization;
}

std::vector<std::string> scale_names(std::string_view weight) {
  if (!weight.ends_with(kWeight)) return {};
  return {str_cat(weight, "_scale_inv"), str_cat(weight, "_scale")};
}

std::vector<std::string> ignored_scale_names(std::string_view weight) {
  if (!weight.ends_with(kWeight)) return {};
  const std::string_view module = weight.substr(0, weight.size() - kWeight.size());
  std::vector<std::string> names;
  for (const char* of_module :
       {".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale"})
    names.push_back(str_cat(module, of_module));
  const size_t attention = module.rfind('.');
  for (const auto& [projection, scale] : {std::pair("k_proj", "k_scale"), std::pair("v_proj", "v_scale")}) {
    if (attention != module.npos && module.substr(attention + 1) == projection) {
      names.push_back(str_cat(module.substr(0, attention + 1), scale));
    }
  }
  return names;
}

Result<QuantizedTensor> QuantizedTensor::create(const std::string& path, std::string_view name, bool is_float,
                                                const std::vector<int64_t>& shape, std::string_view scale_name,
                                                const std::vector<int64_t>& scale_shape, std::vector<float> scales) {
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) {
    return unsupported(path, ": tensor ", printable(name), " is quantised and has shape ", shape_text(shape),
                       ": two dimensions of at least 1 are supported");
  }
  QuantizedTensor tensor;
  tensor.path_ = path;
  tensor.name_ = printable(name);
  tensor.is_float_ = is_float;
  const int64_t rows = tensor.rows_ = shape[0], cols = tensor.cols_ = shape[1];
  using Shape = std::vector<int64_t>;
  const Shape blocks = {divide_up(rows, kBlock), divide_up(cols, kBlock)};
  if (scale_shape == Shape{} || scale_shape == Shape{1} || scale_shape == Shape{1, 1}) {
    tensor.rows_of_scale_ = rows, tensor.cols_of_scale_ = cols;
  } else if (scale_shape == Shape{rows} || scale_shape == Shape{rows, 1}) {
    tensor.cols_of_scale_ = cols;
  } else if (scale_shape == blocks) {
    tensor.rows_of_scale_ = tensor.cols_of_scale_ = kBlock, tensor.scales_of_row_ = blocks[1];
  } else {
    return data_loss(path, ": tensor ", printable(scale_name), " has shape ", shape_text(scale_shape), ": for ", printable(name),
                     " ", shape_text(shape), " one scale, ", shape_text({rows, 1}), " or ", shape_text(blocks), " is expected");
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!std::isfinite(scales[i])) {
      return data_loss(path, ": element ", i, " of tensor ", printable(scale_name), " is ", scales[i],
                       ": a scale must be finite");
    }
  }
  tensor.scales_ = std::move(scales);
  return tensor;
}

GgmlType QuantizedTensor::type() const {
  if (cols_ % kBlock != 0) return GgmlType::f32;
  return is_float_ ? GgmlType::f8_e4m3 : GgmlType::i8;
}

WeightScaling QuantizedTensor::scaling() const {
  if (type() != GgmlType::f8_e4m3) return WeightScaling::blocks;
  return cols_of_scale_ == cols_ ? WeightScaling::rows : WeightScaling::squares;
}

int64_t QuantizedTensor::size_bytes() const {
  const GgmlTypeInfo& info = *ggml_type_info(type());
  return rows_ * cols_ / info.block_elements * info.block_bytes;
}

Status QuantizedTensor::check_codes(const uint8_t* codes, int64_t first, int64_t count) const {
  if (!is_float_) return {};
  const auto is_nan = [](uint8_t code) { return (code & 0x7f) == 0x7f; };
  uint8_t any = 0;  // without a branch, which compilers make vectors of
  for (int64_t i = 0; i < count; ++i) any |= is_nan(codes[i]) ? 1 : 0;
  if (any == 0) return {};
  const int64_t at = first + (std::find_if(codes, codes + count, is_nan) - codes);
  return data_loss(path_, ": element [", at / cols_, ", ", at % cols_, "] of tensor ", name_, " is NaN: weights must be numbers");
}

Status QuantizedTensor::read(int64_t begin, int64_t size, void* out, const ReadCodes& read_codes) const {
  if (begin < 0 || size < 0 || begin > size_bytes() || size > size_bytes() - begin) {
    return invalid_argument(path_, ": bytes ", begin, " to ", begin, " + ", size, " of tensor ", name_, " are not within its ",
                            size_bytes());
  }
  // A piece is as many whole units as the codes that are read at once have: a block, or a value in float32.
  constexpr int64_t kCodesAtOnce = int64_t{1} << 20;
  const GgmlTypeInfo& info = *ggml_type_info(type());
  const int64_t end = begin + size, end_unit = divide_up(end, info.block_bytes);
  std::vector<uint8_t> codes;
  for (int64_t first = begin / info.block_bytes; first < end_unit;) {
    const int64_t units = std::min(kCodesAtOnce / info.block_elements, end_unit - first);
    const int64_t first_code = first * info.block_elements, num_codes = units * info.block_elements;
    codes.resize(static_cast<size_t>(num_codes));
    PROLOGUE_RETURN_IF_ERROR(read_codes(first_code, num_codes, codes.data()));
    PROLOGUE_RETURN_IF_ERROR(check_codes(codes.data(), first_code, num_codes));
    for (int64_t unit = 0; unit < units; ++unit) {
      uint8_t bytes[4 + kBlock];
      const uint8_t* const of_unit = codes.data() + unit * info.block_elements;
      float scale = scale_at(first_code + unit * info.block_elements);
      if (info.block_elements == 1) {
        scale *= is_float_ ? e4m3_value(*of_unit) : static_cast<float>(static_cast<int8_t>(*of_unit));
      } else {
        std::memcpy(bytes + sizeof scale, of_unit, static_cast<size_t>(kBlock));
      }
      std::memcpy(bytes, &scale, sizeof scale);
      const int64_t at = (first + unit) * info.block_bytes, from = std::max(begin, at), to = std::min(end, at + info.block_bytes);
      std::memcpy(static_cast<uint8_t*>(out) + (from - begin), bytes + (from - at), static_cast<size_t>(to - from));
    }
    first += units;
  }
  return {};
}

}  // namespace prologue
