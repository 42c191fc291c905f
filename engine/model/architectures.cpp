#include <prologue/engine/model/architectures.h>
#include <prologue/engine/tokenizer/utf8.h>

#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {

namespace {

constexpr Architecture kArchitectures[] = {
    {"llama", load_llama},
};

std::string names() {
  std::string list;
  for (const Architecture& architecture : kArchitectures) list += (list.empty() ? "" : ", ") + std::string(architecture.name);
  return list;
}

// Checks, before the first weight is read, that the weights fit in memory, as they are or in the compute type.
Status check_memory(const GgufFile& file, DType dtype, bool keep_quantized, Device device) {
  double needed = 0.0;
  for (const GgufTensor& tensor : file.tensors()) {
    const bool keep = keep_quantized && ggml_type_info(tensor.type) != nullptr && ggml_type_info(tensor.type)->block_elements > 1;
    needed += keep ? static_cast<double>(tensor.size_bytes)
                   : static_cast<double>(tensor.num_elements()) * static_cast<double>(dtype_size(dtype));
  }
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t available, available_bytes(device));
  if (needed <= static_cast<double>(available)) return {};
  return resource_exhausted(file.path(), ": its weights need ", static_cast<int64_t>(needed * 1e-6), " MB as ", dtype_name(dtype),
                            ", but only ", available / 1000000, " MB of ", device == Device::cpu ? "memory" : "GPU memory",
                            " are available");
}

Result<Model> load_known(const GgufFile& file, DType dtype, const Execution& execution, std::function<void(double)> progress,
                         const ModelOptions& options) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::string name, file.get<std::string>("general.architecture"));
  for (const Architecture& architecture : kArchitectures) {
    if (name != architecture.name) continue;
    PROLOGUE_RETURN_IF_ERROR(check_memory(file, dtype, options.keep_quantized, execution.device));
    WeightLoader loader(file, dtype, execution, std::move(progress), options.keep_quantized);
    PROLOGUE_ASSIGN_OR_RETURN(Model model, architecture.load(loader, options));
    for (const std::string& prefix : {name + ".", std::string("split."), std::string("adapter.")}) {
      for (const std::string& key : file.unused_keys(prefix)) {
        return unsupported(file.path(), ": the key ", printable(key), " changes the result, and the ", name,
                           " loader does not know it");
      }
    }
    for (const std::string& tensor : file.unused_tensors()) {
      return unsupported(file.path(), ": the tensor ", printable(tensor), " belongs to the model, and the ", name,
                         " loader does not know it");
    }
    PROLOGUE_RETURN_IF_ERROR(file.check_unchanged());
    model.weights = loader.take_weights();
    model.weight_formats = loader.formats();
    return model;
  }
  return unsupported(file.path(), ": the architecture is ", in_quotes(name), ": supported are ", names());
}

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

Result<Model> load_model(const GgufFile& file, DType dtype, const Execution& execution, std::function<void(double)> progress,
                         const ModelOptions& options) {
  return catch_out_of_memory([&] { return load_known(file, dtype, execution, std::move(progress), options); });
}

}  // namespace prologue
