#include <prologue/engine/gguf/gguf_checkpoint.h>

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
    if (count <= 1) return opened;
    PROLOGUE_RETURN_IF_ERROR(opened->open_parts(path, count));
    if (num_tensors != static_cast<int64_t>(opened->tensors_.size())) {
      return data_loss(opened->path(), ": ", kSplitTensors, " is ", num_tensors, ", but the ", count, " parts have ",
                       opened->tensors_.size(), " tensors");
    }
    return opened;
  });
}

GgufCheckpoint::GgufCheckpoint(GgufFile file) { (void)add_part(std::move(file)); }  // a file's names are distinct

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
    stored_.push_back({part, &tensor});
  }
  return {};
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
  (void)parts_[stored_[found->second].part].tensor(name);  // which counts it as used
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
  return parts_[stored.part].read(*stored.tensor, begin, size, out);
}

Status GgufCheckpoint::check_unchanged() const {
  for (const GgufFile& part : parts_) PROLOGUE_RETURN_IF_ERROR(part.check_unchanged());
  return {};
}

}  // namespace prologue
