#include <prologue/engine/gguf/gguf_checkpoint.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/checkpoint/name_list.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {
namespace {

constexpr const char* kSplitCount = "split.count";
constexpr const char* kSplitNumber = "split.no";  // from 0 on
constexpr const char* kSplitTensors = "split.tensors.count";

// Returns how the name of a part ends; parts are counted from 1 there.
std::string part_suffix(int64_t part, int64_t count) {
  char suffix[64];
  std::snprintf(suffix, sizeof suffix, "-%05lld-of-%05lld.gguf", static_cast<long long>(part), static_cast<long long>(count));
  return suffix;
}

}  // namespace

Result<std::unique_ptr<GgufCheckpoint>> GgufCheckpoint::open(const std::string& path) {
  return catch_out_of_memory([&]() -> Result<std::unique_ptr<GgufCheckpoint>> {
    PROLOGUE_ASSIGN_OR_RETURN(GgufFile file, GgufFile::open(path));
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t count, file.get_or<int64_t>(kSplitCount, 0));
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t number, file.get_or<int64_t>(kSplitNumber, 0));
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t num_tensors, file.get_or<int64_t>(kSplitTensors, 0));
    if (count < 0 || count > std::numeric_limits<uint16_t>::max() || number < 0 || (count > 0 && number >= count)) {
      return data_loss(file.path(), ": ", kSplitNumber, " is ", number, " and ", kSplitCount, " is ", count,
                       ": the first must be below the second, and that at most ", std::numeric_limits<uint16_t>::max());
    }
    if (count > 1 && number != 0) {
      const std::string suffix = part_suffix(number + 1, count);
      const std::string first = path.ends_with(suffix)
                                    ? printable_path(path.substr(0, path.size() - suffix.size()) + part_suffix(1, count))
                                    : "the one whose name ends with " + part_suffix(1, count);
      return invalid_argument(file.path(), ": this is part ", number + 1, " of ", count, " of a model: give the first part, ",
                              first);
    }
    std::unique_ptr<GgufCheckpoint> opened(new GgufCheckpoint());
    PROLOGUE_RETURN_IF_ERROR(opened->add_part(std::move(file)));
    if (count > 1) PROLOGUE_RETURN_IF_ERROR(opened->open_parts(path, count));
    if (count > 1 && num_tensors != static_cast<int64_t>(opened->tensors_.size())) {
      return data_loss(opened->path(), ": ", kSplitTensors, " is ", num_tensors, ", but the ", count, " parts have ",
                       opened->tensors_.size(), " tensors");
    }
    PROLOGUE_RETURN_IF_ERROR(opened->add_scales());
    return opened;
  });
}

GgufCheckpoint::GgufCheckpoint(GgufFile file) {
  (void)add_part(std::move(file));  // a file's names are distinct
  (void)add_scales();
}

Status GgufCheckpoint::open_parts(const std::string& path, int64_t count) {
  const std::string suffix = part_suffix(1, count);
  if (!path.ends_with(suffix)) {
    return invalid_argument(this->path(), ": this is the first of ", count, " parts of a model: its name must end with ", suffix,
                            ", so that the others are found");
  }
  const std::string stem = path.substr(0, path.size() - suffix.size());
  std::vector<std::string> missing;
  for (int64_t part = 2; part <= count; ++part) {
    const std::string name = stem + part_suffix(part, count);
    auto file = GgufFile::open(name);
    if (!file.ok() && file.status().code() != StatusCode::not_found) return file.status();
    if (!file.ok()) {
      missing.push_back(std::filesystem::path(name).filename().string());
      continue;
    }
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t its_count, file->get<int64_t>(kSplitCount));
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t its_number, file->get<int64_t>(kSplitNumber));
    if (its_count != count || its_number != part - 1) {
      return data_loss(file->path(), ": by its keys ", kSplitNumber, " and ", kSplitCount, " this is part ", its_number + 1,
                       " of ", its_count, ", but by its name part ", part, " of ", count);
    }
    if (missing.empty()) PROLOGUE_RETURN_IF_ERROR(add_part(std::move(file).value()));
  }
  if (missing.empty()) return {};
  return not_found(this->path(), ": this is the first of ", count,
                   " parts of a model, and parts are missing: ", name_list(missing));
}

Status GgufCheckpoint::add_part(GgufFile file) {
  const size_t part = parts_.size();
  parts_.push_back(std::move(file));  // the addresses of the tensors stay
  for (const GgufTensor& tensor : parts_.back().tensors()) {
    if (!index_.emplace(tensor.name, tensors_.size()).second) {
      return data_loss(parts_.back().path(), ": an earlier part of the model has the tensor ", printable(tensor.name), ", too");
    }
    tensors_.push_back({tensor.name, tensor.type, ggml_type_info(tensor.type)->name,
                        std::vector<int64_t>(tensor.dims.rbegin(), tensor.dims.rend()), tensor.size_bytes});
    stored_.push_back({part, &tensor, nullptr, {}});
    if (tensor.type == GgmlType::nvfp4) tensors_.back().type = kUnreadableType;  // until add_scales()
  }
  return {};
}

Status GgufCheckpoint::add_scales() {
  constexpr std::string_view kWeight = ".weight";
  for (size_t i = 0; i < tensors_.size(); ++i) {
    TensorInfo& tensor = tensors_[i];
    Stored& stored = stored_[i];
    if (stored.tensor->type != GgmlType::nvfp4) continue;
    std::vector<float> scales = {1.0f};
    if (tensor.name.ends_with(kWeight)) {
      const std::string_view module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
      if (const auto found = index_.find(str_cat(module, ".scale")); found != index_.end()) {
        PROLOGUE_ASSIGN_OR_RETURN(scales, read_scales(tensor, found->second));
        stored.scales.push_back(found->second);
      }
      if (const auto found = index_.find(str_cat(module, ".input_scale")); found != index_.end()) {
        stored.scales.push_back(found->second);
      }
    }
    stored.nvfp4 = std::make_unique<Nvfp4Weight>(Nvfp4Weight::of_ggml(path(), tensor, std::move(scales)));
    tensor.type = stored.nvfp4->type();
    tensor.size_bytes = stored.nvfp4->size_bytes();
  }
  return {};
}

Result<std::vector<float>> GgufCheckpoint::read_scales(const TensorInfo& weight, size_t number) const {
  const TensorInfo& scale = tensors_[number];
  if (scale.type != GgmlType::f32) {
    return unsupported(path(), ": tensor ", printable(scale.name), " has type ", scale.type_name,
                       ": scales of tensors in NVFP4 must be F32");
  }
  const int64_t count = scale.num_elements(), experts = weight.shape.size() == 3 ? weight.shape[0] : 1;
  if (count != 1 && count != experts) {
    return data_loss(path(), ": tensor ", printable(scale.name), " has shape ", shape_text(scale.shape), ": for ",
                     printable(weight.name), " ", shape_text(weight.shape), " one scale",
                     experts > 1 ? str_cat(" or ", experts, " are") : std::string(" is"), " expected");
  }
  std::vector<float> scales(static_cast<size_t>(count));
  PROLOGUE_RETURN_IF_ERROR(read(scale, 0, scale.size_bytes, scales.data()));
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isfinite(scales[i])) continue;
    return data_loss(path(), ": element ", i, " of tensor ", printable(scale.name), " is ", scales[i],
                     ": a scale must be finite");
  }
  return scales;
}

Result<double> GgufCheckpoint::number(std::string_view key) const {
  if (const auto integer = file().get<int64_t>(key); integer.ok()) return static_cast<double>(*integer);
  return file().get<double>(key);
}

Result<std::vector<int64_t>> GgufCheckpoint::integers(std::string_view key) const {
  return catch_out_of_memory([&]() -> Result<std::vector<int64_t>> {
    if (const auto flags = file().get<std::vector<bool>>(key); flags.ok()) {
      return std::vector<int64_t>(flags->begin(), flags->end());
    }
    return file().get<std::vector<int64_t>>(key);
  });
}

Result<std::vector<double>> GgufCheckpoint::numbers(std::string_view key) const {
  return catch_out_of_memory([&]() -> Result<std::vector<double>> {
    if (const auto integers = file().get<std::vector<int64_t>>(key); integers.ok()) {
      return std::vector<double>(integers->begin(), integers->end());
    }
    return file().get<std::vector<double>>(key);
  });
}

const TensorInfo* GgufCheckpoint::tensor(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return nullptr;
  const Stored& stored = stored_[found->second];
  (void)parts_[stored.part].tensor(name);  // which counts it as used
  for (const size_t scale : stored.scales) (void)parts_[stored_[scale].part].tensor(tensors_[scale].name);
  return &tensors_[found->second];
}

std::vector<std::string> GgufCheckpoint::unused_tensors() const {
  std::vector<std::string> names;
  for (const GgufFile& part : parts_) {
    for (std::string& name : part.unused_tensors()) names.push_back(std::move(name));
  }
  return names;
}

Status GgufCheckpoint::read(const TensorInfo& tensor, int64_t begin, int64_t size, void* out) const {
  const Stored& stored = stored_[static_cast<size_t>(&tensor - tensors_.data())];
  const GgufFile& file = parts_[stored.part];
  if (stored.nvfp4 == nullptr) return file.read(*stored.tensor, begin, size, out);
  return catch_out_of_memory([&] {
    return stored.nvfp4->read(begin, size, out, [&](Nvfp4Weight::Part, int64_t first, int64_t count, void* bytes) {
      return file.read(*stored.tensor, first, count, bytes);
    });
  });
}

Status GgufCheckpoint::check_unchanged() const {
  for (const GgufFile& part : parts_) PROLOGUE_RETURN_IF_ERROR(part.check_unchanged());
  return {};
}

}  // namespace prologue
