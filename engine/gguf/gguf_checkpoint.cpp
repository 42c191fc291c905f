#include <prologue/engine/gguf/gguf_checkpoint.h>

#include <utility>

#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {

Result<std::unique_ptr<GgufCheckpoint>> GgufCheckpoint::open(const std::string& path) {
  return catch_out_of_memory([&]() -> Result<std::unique_ptr<GgufCheckpoint>> {
    PROLOGUE_ASSIGN_OR_RETURN(GgufFile file, GgufFile::open(path));
    return std::make_unique<GgufCheckpoint>(std::move(file));
  });
}

GgufCheckpoint::GgufCheckpoint(GgufFile file) : file_(std::move(file)) {
  tensors_.reserve(file_.tensors().size());
  for (const GgufTensor& tensor : file_.tensors()) {
    tensors_.push_back({tensor.name, tensor.type, ggml_type_info(tensor.type)->name,
                        std::vector<int64_t>(tensor.dims.rbegin(), tensor.dims.rend()), tensor.size_bytes});
  }
}

Result<double> GgufCheckpoint::number(std::string_view key) const {
  if (const auto integer = file_.get<int64_t>(key); integer.ok()) return static_cast<double>(*integer);
  return file_.get<double>(key);
}

Result<std::vector<int64_t>> GgufCheckpoint::integers(std::string_view key) const {
  return catch_out_of_memory([&]() -> Result<std::vector<int64_t>> {
    if (const auto flags = file_.get<std::vector<bool>>(key); flags.ok()) {
      return std::vector<int64_t>(flags->begin(), flags->end());
    }
    return file_.get<std::vector<int64_t>>(key);
  });
}

Result<std::vector<double>> GgufCheckpoint::numbers(std::string_view key) const {
  return catch_out_of_memory([&]() -> Result<std::vector<double>> {
    if (const auto integers = file_.get<std::vector<int64_t>>(key); integers.ok()) {
      return std::vector<double>(integers->begin(), integers->end());
    }
    return file_.get<std::vector<double>>(key);
  });
}

const TensorInfo* GgufCheckpoint::tensor(std::string_view name) const {
  if (!file_.has_tensor(name)) return nullptr;
  const auto found = file_.tensor(name);
  return found.ok() ? &tensors_[static_cast<size_t>(*found - file_.tensors().data())] : nullptr;
}

Status GgufCheckpoint::read(const TensorInfo& tensor, int64_t begin, int64_t size, void* out) const {
  return file_.read(file_.tensors()[static_cast<size_t>(&tensor - tensors_.data())], begin, size, out);
}

}  // namespace prologue
