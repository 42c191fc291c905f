#include <prologue/engine/huggingface/model_directory.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <system_error>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/checkpoint/name_list.h>
#include <prologue/engine/gguf/dequantize.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfig = uint64_t{16} << 20;
constexpr uint64_t kMaxIndex = uint64_t{64} << 20;
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kModelOptConfig = "hf_quant_config.json";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string file_in(const std::string& directory, std::string_view name) { return (fs::path(directory) / name).string(); }

// A symbolic link that leads nowhere exists here: opening it gives the better message.
bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

bool is_within(std::string_view name) {
  const fs::path path(name);
  return !name.empty() && name.find('\0') == name.npos && path.is_relative() && path.has_filename() &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

bool is_integral(double value) { return std::abs(value) <= 9007199254740992.0 && value == std::floor(value); }

// Converts one JSON value. False: it has another type.
bool convert(const Json& json, int64_t& value) {
  const auto* number = json.get_if<double>();
  if (number != nullptr && is_integral(*number)) {
    value = static_cast<int64_t>(*number);
    return true;
  }
  const auto* integer = json.get_if<int64_t>();
  if (integer != nullptr) value = *integer;
  return integer != nullptr;
}
bool convert(const Json& json, double& value) {
  const auto* number = json.get_if<double>();
  const auto* integer = json.get_if<int64_t>();
  if (number != nullptr) value = *number;
  if (integer != nullptr) value = static_cast<double>(*integer);
  return number != nullptr || integer != nullptr;
}
template <class T>
bool convert(const Json& json, T& value) {
  const T* found = json.get_if<T>();
  if (found != nullptr) value = *found;
  return found != nullptr;
}

// Does the same for a list's item: flags count as integers.
template <class T>
bool convert_item(const Json& json, T& value) {
  return convert(json, value);
}
bool convert_item(const Json& json, int64_t& value) {
  const bool* flag = json.get_if<bool>();
  if (flag != nullptr) value = *flag ? 1 : 0;
  return flag != nullptr || convert(json, value);
}

bool is_type_of_scales(GgmlType type) { return type == GgmlType::f32 || type == GgmlType::f16 || type == GgmlType::bf16; }

constexpr const char* expected(const int64_t&) { return "an integer"; }
constexpr const char* expected(const double&) { return "a number"; }
constexpr const char* expected(const bool&) { return "a boolean"; }
constexpr const char* expected(const std::string&) { return "a string"; }

std::string found_text(const Json& json) {
  const auto* number = json.get_if<double>();
  return number == nullptr ? json.kind() : str_cat(*number);
}

}  // namespace

// ---- config.json ----

const Json* HuggingFaceDirectory::value(std::string_view key) const {
  constexpr std::string_view kGeneration = "generation_config.";
  const Json* at = &config_;
  if (key.starts_with(kGeneration)) {
    at = &generation_config_;
    key.remove_prefix(kGeneration.size());
  } else if (text_config_ != nullptr && text_config_->find(key.substr(0, key.find('.'))) != nullptr) {
    at = text_config_;
  }
  for (bool last = false; at != nullptr && !last;) {
    const size_t dot = key.find('.');
    at = at->find(key.substr(0, dot));
    last = dot == key.npos;
    if (!last) key.remove_prefix(dot + 1);
  }
  return at == nullptr || at->get_if<std::monostate>() != nullptr ? nullptr : at;
}

template <class T>
Result<T> HuggingFaceDirectory::get(std::string_view key) const {
  return catch_out_of_memory([&]() -> Result<T> {
    const Json* json = this->value(key);
    if (json == nullptr) return not_found(path_, ": config.json has no key ", in_quotes(key));
    T value{};
    if (convert(*json, value)) return value;
    return data_loss(path_, ": ", in_quotes(key), " in config.json is ", found_text(*json), ": ", expected(value),
                     " is expected");
  });
}

template <class T>
Result<std::vector<T>> HuggingFaceDirectory::get_list(std::string_view key) const {
  return catch_out_of_memory([&]() -> Result<std::vector<T>> {
    const Json* json = value(key);
    if (json == nullptr) return not_found(path_, ": config.json has no key ", in_quotes(key));
    const auto* list = json->get_if<Json::List>();
    if (list == nullptr) {
      return data_loss(path_, ": ", in_quotes(key), " in config.json is ", found_text(*json), ": a list is expected");
    }
    std::vector<T> values;
    for (const Json& item : *list) {
      T value{};
      if (!convert_item(item, value)) {
        return data_loss(path_, ": item ", values.size(), " of ", in_quotes(key), " in config.json is ", found_text(item), ": ",
                         expected(value), " is expected");
      }
      values.push_back(std::move(value));
    }
    return values;
  });
}

Result<int64_t> HuggingFaceDirectory::integer(std::string_view key) const { return get<int64_t>(key); }
Result<double> HuggingFaceDirectory::number(std::string_view key) const { return get<double>(key); }
Result<bool> HuggingFaceDirectory::flag(std::string_view key) const { return get<bool>(key); }
Result<std::string> HuggingFaceDirectory::text(std::string_view key) const { return get<std::string>(key); }
Result<std::vector<int64_t>> HuggingFaceDirectory::integers(std::string_view key) const { return get_list<int64_t>(key); }
Result<std::vector<double>> HuggingFaceDirectory::numbers(std::string_view key) const { return get_list<double>(key); }
Result<std::vector<std::string>> HuggingFaceDirectory::texts(std::string_view key) const { return get_list<std::string>(key); }

// ---- Weights ----

Result<std::unique_ptr<HuggingFaceDirectory>> HuggingFaceDirectory::open(const std::string& directory) {
  return catch_out_of_memory([&]() -> Result<std::unique_ptr<HuggingFaceDirectory>> {
    std::unique_ptr<HuggingFaceDirectory> opened(new HuggingFaceDirectory());
    opened->directory_ = directory;
    opened->path_ = printable_path(directory);
    const std::string config_path = file_in(directory, "config.json");
    if (!exists(config_path)) {
      return not_found(opened->path_,
                       ": there is no config.json: a GGUF file or the directory of a Hugging Face model is expected");
    }
    PROLOGUE_ASSIGN_OR_RETURN(opened->config_, read_json_file(config_path, kMaxConfig));
    if (opened->config_.get_if<Json::Object>() == nullptr) {
      return data_loss(opened->path_, ": config.json is ", opened->config_.kind(), ": an object is expected");
    }
    if (const std::string generation = file_in(directory, "generation_config.json"); exists(generation)) {
      PROLOGUE_ASSIGN_OR_RETURN(opened->generation_config_, read_json_file(generation, kMaxConfig));
    }
    const Json* text_config = opened->config_.find("text_config");
    if (text_config != nullptr && text_config->get_if<Json::Object>() != nullptr) opened->text_config_ = text_config;
    PROLOGUE_RETURN_IF_ERROR(opened->open_files());
    opened->add_tensors();
    PROLOGUE_ASSIGN_OR_RETURN(const QuantizationConfig config, opened->quantization_config());
    opened->quantizes_activations_ = config.has_float8 && config.quantizes_activations;
    PROLOGUE_RETURN_IF_ERROR(opened->add_scales(config));
    PROLOGUE_RETURN_IF_ERROR(opened->add_int4(config.int4));
    PROLOGUE_RETURN_IF_ERROR(opened->add_nvfp4(config.nvfp4));
    if (config.has_mxfp4) PROLOGUE_RETURN_IF_ERROR(opened->add_mxfp4());
    return opened;
  });
}

Status HuggingFaceDirectory::open_files() {
  if (const std::string weights = file_in(directory_, kWeights); exists(weights)) {
    PROLOGUE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(weights));
    files_.push_back(std::move(file));
    return {};
  }
  if (const std::string index = file_in(directory_, kIndex); exists(index)) return open_shards(index);
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!exists(file_in(directory_, pickle))) continue;
    return unsupported(path_, ": the weights are in PyTorch's format (", pickle,
                       "), which can run code: convert them to safetensors");
  }
  return not_found(path_, ": there is neither ", kWeights, " nor ", kIndex);
}

Status HuggingFaceDirectory::open_shards(const std::string& index_path) {
  PROLOGUE_ASSIGN_OR_RETURN(const Json index, read_json_file(index_path, kMaxIndex));
  const Json* map = index.find("weight_map");
  const auto* entries = map == nullptr ? nullptr : map->get_if<Json::Object>();
  if (entries == nullptr) return data_loss(path_, ": ", kIndex, " has no weight_map that is an object");

  std::map<std::string, size_t> files;  // shard -> index of files_
  for (const auto& [name, file] : *entries) {
    const auto* shard = file.get_if<std::string>();
    if (shard == nullptr)
      return data_loss(path_, ": ", kIndex, ": the file of ", in_quotes(name), " is ", file.kind(), ": a string is expected");
    if (!is_within(*shard)) {
      return data_loss(path_, ": ", kIndex, ": the file of ", in_quotes(name), " is ", in_quotes(*shard),
                       ": it must be the name of a file within the directory");
    }
    files.emplace(*shard, 0);
  }

  std::vector<std::string> missing;
  for (auto& [shard, number] : files) {
    auto file = SafetensorsFile::open(file_in(directory_, shard));
    if (!file.ok() && file.status().code() != StatusCode::not_found) return file.status();
    if (!file.ok()) {
      missing.push_back(shard);
      continue;
    }
    number = files_.size();
    files_.push_back(std::move(file).value());
  }
  if (!missing.empty()) return not_found(path_, ": ", kIndex, " names files that are missing: ", name_list(missing));

  std::vector<std::string> twice, absent, unlisted;
  std::unordered_map<std::string_view, size_t> file_of;  // tensor -> index of files_
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const SafetensorsTensor& tensor : files_[i].tensors()) {
      if (!file_of.emplace(tensor.name, i).second) twice.push_back(tensor.name);
      if (map->find(tensor.name) == nullptr) unlisted.push_back(tensor.name);
    }
  }
  if (!twice.empty()) return data_loss(path_, ": more than one shard has the tensors ", name_list(twice));
  for (const auto& [name, file] : *entries) {
    const auto found = file_of.find(name);
    if (found == file_of.end() || found->second != files.at(*file.get_if<std::string>())) absent.push_back(name);
  }
  if (!absent.empty())
    return data_loss(path_, ": not in the shards in which ", kIndex, " says they are: the tensors ", name_list(absent));
  if (!unlisted.empty()) return data_loss(path_, ": in a shard, but not in ", kIndex, ": the tensors ", name_list(unlisted));
  return {};
}

void HuggingFaceDirectory::add_tensors() {
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const SafetensorsTensor& tensor : files_[i].tensors()) {
      const GgmlType type = tensor.dtype == "F32"    ? GgmlType::f32
                            : tensor.dtype == "F16"  ? GgmlType::f16
                            : tensor.dtype == "BF16" ? GgmlType::bf16
                            : tensor.dtype == "F64"  ? GgmlType::f64
                                                     : kUnreadableType;
      index_.emplace(tensor.name, tensors_.size());
      tensors_.push_back({tensor.name, type, tensor.dtype, tensor.shape, tensor.size_bytes});
      stored_.push_back({i, &tensor, nullptr, {}, nullptr, nullptr, nullptr, {}});
    }
  }
  used_.assign(tensors_.size(), false);
}

Status HuggingFaceDirectory::add_scales(const QuantizationConfig& config) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_float = config.has_float8 && tensors_[i].type_name == "F8_E4M3";
    const bool is_integer = config.has_int8 && tensors_[i].type_name == "I8";
    if ((is_float || is_integer) && !scale_names(tensors_[i].name).empty()) PROLOGUE_RETURN_IF_ERROR(add_scales(i, is_float));
  }
  return {};
}

// Joins tensor `number`, a quantised weight, with its scales.
Status HuggingFaceDirectory::add_scales(size_t number, bool is_float) {
  TensorInfo& weight = tensors_[number];
  Stored& stored = stored_[number];
  const std::vector<std::string> names = scale_names(weight.name);
  for (const std::string& name : names) {
    const auto found = index_.find(name);
    if (found == index_.end()) continue;
    const TensorInfo& scale = tensors_[found->second];
    PROLOGUE_ASSIGN_OR_RETURN(std::vector<float> scales, read_scales(found->second));
    PROLOGUE_ASSIGN_OR_RETURN(QuantizedTensor tensor, QuantizedTensor::create(path_, weight.name, is_float, weight.shape,
                                                                              scale.name, scale.shape, std::move(scales)));
    weight.type = tensor.type();
    weight.size_bytes = tensor.size_bytes();
    weight.scaling = tensor.scaling();
    stored.quantized = std::make_unique<QuantizedTensor>(std::move(tensor));
    stored.scales.push_back(found->second);
    break;
  }
  if (stored.quantized == nullptr) {
    return data_loss(path_, ": tensor ", printable(weight.name), " has type ", weight.type_name,
                     ", but its scales are missing: neither ", printable(names[0]), " nor ", printable(names[1]), " is there");
  }
  for (const std::string& name : ignored_scale_names(weight.name)) {
    if (const auto found = index_.find(name); found != index_.end()) stored.scales.push_back(found->second);
  }
  return {};
}

Status HuggingFaceDirectory::add_int4(const Int4Config& config) {
  const std::string suffix = int4_names(config.method, "").codes;
  for (size_t i = 0; i < tensors_.size() && !suffix.empty(); ++i) {
    const std::string_view name = tensors_[i].name;
    if (name.ends_with(suffix)) PROLOGUE_RETURN_IF_ERROR(add_int4(config, i, name.substr(0, name.size() - suffix.size())));
  }
  return {};
}

// Makes tensor `number`, the codes of a module's weight, that weight.
Status HuggingFaceDirectory::add_int4(const Int4Config& config, size_t number, std::string_view module) {
  Stored& stored = stored_[number];
  const Int4Names names = int4_names(config.method, module);
  const auto find = [&](const std::string& name, PackedInt4::Part part) -> const TensorInfo* {
    const auto found = name.empty() ? index_.end() : index_.find(name);  // empty: the method has no such tensor
    if (found == index_.end()) return nullptr;
    stored.parts[static_cast<size_t>(part)] = found->second;
    if (found->second != number) stored.scales.push_back(found->second);
    return &tensors_[found->second];
  };
  using Part = PackedInt4::Part;
  const Int4Tensors parts = {find(names.codes, Part::codes), find(names.scales, Part::scales),
                             find(names.zero_points, Part::zero_points), find(names.group_indices, Part::group_indices),
                             find(names.shape, Part::shape)};
  PROLOGUE_ASSIGN_OR_RETURN(
      PackedInt4 weight,
      PackedInt4::create(path_, config, parts, [&](PackedInt4::Part part, int64_t begin, int64_t size, void* out) {
        return read_part(stored, static_cast<size_t>(part), begin, size, out);
      }));
  stored.int4 = std::make_unique<PackedInt4>(std::move(weight));
  const std::string& name = names_.emplace_back(str_cat(module, ".weight"));
  if (index_.count(name) != 0) {
    return data_loss(path_, ": there are both ", printable(name), " and ", printable(names.codes), ", which is the same weight");
  }
  for (const std::string& ignored : ignored_scale_names(name)) {
    if (const auto found = index_.find(ignored); found != index_.end()) stored.scales.push_back(found->second);
  }
  if (const auto found = index_.find(str_cat(module, ".bias"));
      found != index_.end() && is_type_of_scales(tensors_[found->second].type)) {
    PROLOGUE_ASSIGN_OR_RETURN(const std::vector<float> bias, read_scales(found->second));
    if (std::all_of(bias.begin(), bias.end(), [](float value) { return value == 0.0f; })) stored.scales.push_back(found->second);
  }
  present(number, {name,
                   stored.int4->type(),
                   tensors_[number].type_name,
                   {stored.int4->rows(), stored.int4->cols()},
                   stored.int4->size_bytes()});
  return {};
}

Status HuggingFaceDirectory::add_mxfp4() {
  constexpr std::string_view kBlocks = "_blocks";
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo& blocks = tensors_[i];
    if (!blocks.name.ends_with(kBlocks)) continue;
    const std::string& name = names_.emplace_back(blocks.name.substr(0, blocks.name.size() - kBlocks.size()));
    const auto scales = index_.find(str_cat(name, "_scales"));
    if (scales == index_.end() || stored_[scales->second].mxfp4 != nullptr) {
      return data_loss(path_, ": tensor ", printable(blocks.name), " has no scales: ", printable(name), "_scales is missing");
    }
    if (index_.count(name) != 0) {
      return data_loss(path_, ": there are both ", printable(name), " and ", printable(blocks.name),
                       ", which is the same weight");
    }
    Stored& stored = stored_[i];
    PROLOGUE_ASSIGN_OR_RETURN(PackedMxfp4 weight, PackedMxfp4::create(path_, blocks, tensors_[scales->second]));
    stored.mxfp4 = std::make_unique<PackedMxfp4>(std::move(weight));
    stored.parts[static_cast<size_t>(PackedMxfp4::Part::blocks)] = i;
    stored.parts[static_cast<size_t>(PackedMxfp4::Part::scales)] = scales->second;
    stored.scales.push_back(scales->second);
    present(i, {name, GgmlType::mxfp4, blocks.type_name, stored.mxfp4->shape(), stored.mxfp4->size_bytes()});
  }
  return {};
}

Result<QuantizationConfig> HuggingFaceDirectory::quantization_config() const {
  const Json* const config = value("quantization_config");
  const std::string of_modelopt = file_in(directory_, kModelOptConfig);
  if (config != nullptr || !exists(of_modelopt)) return read_quantization_config(config, path_);
  PROLOGUE_ASSIGN_OR_RETURN(const Json modelopt, read_json_file(of_modelopt, kMaxConfig));
  return read_modelopt_config(modelopt.find("quantization"), path_);
}

Status HuggingFaceDirectory::add_nvfp4(Nvfp4Method method) {
  if (method == Nvfp4Method::none) return {};
  const std::string_view suffix = method == Nvfp4Method::modelopt ? ".weight" : ".weight_packed";
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const std::string_view name = tensors_[i].name;
    if (!name.ends_with(suffix) || (method == Nvfp4Method::modelopt && tensors_[i].type_name != "U8")) continue;
    PROLOGUE_RETURN_IF_ERROR(add_nvfp4(method, i, name.substr(0, name.size() - suffix.size())));
  }
  return {};
}

// Makes tensor `number`, the codes of a module's weight, that weight.
Status HuggingFaceDirectory::add_nvfp4(Nvfp4Method method, size_t number, std::string_view module) {
  const bool divides = method == Nvfp4Method::compressed_tensors;
  Stored& stored = stored_[number];
  const std::string codes(tensors_[number].name);
  const std::string names[] = {str_cat(module, ".weight_scale"),
                               str_cat(module, divides ? ".weight_global_scale" : ".weight_scale_2")};
  for (const std::string& name : names) {
    const auto found = index_.find(name);
    if (found == index_.end()) {
      return data_loss(path_, ": tensor ", printable(codes), " is in NVFP4, but ", printable(name), " is missing");
    }
    stored.scales.push_back(found->second);
  }
  const TensorInfo& of_tensor = tensors_[stored.scales[1]];
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<float> factors, read_scales(stored.scales[1]));
  if (factors.size() != 1) {
    return data_loss(path_, ": tensor ", printable(of_tensor.name), " has shape ", shape_text(of_tensor.shape),
                     ": one scale is expected");
  }
  const float factor = divides ? 1.0f / factors[0] : factors[0];
  if (!std::isfinite(factor) || !std::isfinite(factors[0])) {
    return data_loss(path_, ": tensor ", printable(of_tensor.name), " is ", factors[0], ": a scale must be finite",
                     divides ? ", and its reciprocal, too" : "");
  }
  PROLOGUE_ASSIGN_OR_RETURN(Nvfp4Weight weight,
                            Nvfp4Weight::of_pairs(path_, tensors_[number], tensors_[stored.scales[0]], factor));
  stored.nvfp4 = std::make_unique<Nvfp4Weight>(std::move(weight));
  stored.parts[static_cast<size_t>(Nvfp4Weight::Part::codes)] = number;
  stored.parts[static_cast<size_t>(Nvfp4Weight::Part::scales)] = stored.scales[0];
  const std::string& name = names_.emplace_back(str_cat(module, ".weight"));
  if (divides && index_.count(name) != 0) {
    return data_loss(path_, ": there are both ", printable(name), " and ", printable(codes), ", which is the same weight");
  }
  for (const std::string& ignored : ignored_scale_names(name)) {
    if (const auto found = index_.find(ignored); found != index_.end()) stored.scales.push_back(found->second);
  }
  present(number, {name, stored.nvfp4->type(), tensors_[number].type_name, stored.nvfp4->shape(), stored.nvfp4->size_bytes()});
  return {};
}

void HuggingFaceDirectory::present(size_t number, TensorInfo as) {
  index_.erase(tensors_[number].name);
  index_.emplace(as.name, number);
  tensors_[number] = std::move(as);
}

Status HuggingFaceDirectory::read_part(const Stored& stored, size_t part, int64_t begin, int64_t size, void* out) const {
  const Stored& of_part = stored_[stored.parts[part]];
  return files_[of_part.file].read(*of_part.tensor, begin, size, out);
}

Result<std::vector<float>> HuggingFaceDirectory::read_scales(size_t number) const {
  const TensorInfo& scale = tensors_[number];
  if (!is_type_of_scales(scale.type)) {
    return unsupported(path_, ": tensor ", printable(scale.name), " has type ", printable(scale.type_name),
                       ": scales of weights must be F32, F16 or BF16");
  }
  std::vector<std::byte> bytes(static_cast<size_t>(scale.size_bytes));
  std::vector<float> values(static_cast<size_t>(scale.num_elements()));
  PROLOGUE_RETURN_IF_ERROR(read(scale, 0, scale.size_bytes, bytes.data()));
  PROLOGUE_RETURN_IF_ERROR(dequantize_rows(scale.type, bytes.data(), 1, scale.num_elements(), DType::f32, values.data(), 1));
  return values;
}

const TensorInfo* HuggingFaceDirectory::tensor(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return nullptr;
  used_[found->second] = true;
  for (const size_t scale : stored_[found->second].scales) used_[scale] = true;
  return &tensors_[found->second];
}

std::vector<std::string> HuggingFaceDirectory::unused_tensors() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!used_[i]) names.emplace_back(tensors_[i].name);
  }
  return names;
}

Status HuggingFaceDirectory::read(const TensorInfo& tensor, int64_t begin, int64_t size, void* out) const {
  const Stored& stored = stored_[static_cast<size_t>(&tensor - tensors_.data())];
  const SafetensorsFile& file = files_[stored.file];
  const auto read_packed = [&](const auto& weight) {
    return catch_out_of_memory([&] {
      return weight.read(begin, size, out, [&](auto part, int64_t first, int64_t count, void* bytes) {
        return read_part(stored, static_cast<size_t>(part), first, count, bytes);
      });
    });
  };
  if (stored.int4 != nullptr) return read_packed(*stored.int4);
  if (stored.mxfp4 != nullptr) return read_packed(*stored.mxfp4);
  if (stored.nvfp4 != nullptr) return read_packed(*stored.nvfp4);
  if (stored.quantized == nullptr) return file.read(*stored.tensor, begin, size, out);
  return catch_out_of_memory([&] {
    return stored.quantized->read(begin, size, out, [&](int64_t first, int64_t count, void* codes) {
      return file.read(*stored.tensor, first, count, codes);
    });
  });
}

Status HuggingFaceDirectory::check_unchanged() const {
  for (const SafetensorsFile& file : files_) PROLOGUE_RETURN_IF_ERROR(file.check_unchanged());
  return {};
}

}  // namespace prologue
