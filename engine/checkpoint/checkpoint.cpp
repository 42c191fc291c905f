#include <prologue/engine/checkpoint/checkpoint.h>

#include <filesystem>
#include <system_error>

#include <prologue/engine/gguf/gguf_checkpoint.h>
#include <prologue/engine/huggingface/model_directory.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {
namespace {

namespace fs = std::filesystem;

// People name these files of a Hugging Face model when they mean its directory.
bool stands_for_directory(const std::string& name) {
  return name == "config.json" || name == "model.safetensors" || name == "model.safetensors.index.json" ||
         (name.starts_with("model-") && name.ends_with(".safetensors"));
}

Result<std::unique_ptr<Checkpoint>> open_directory(const std::string& directory) {
  PROLOGUE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> opened, HuggingFaceDirectory::open(directory));
  return opened;
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path) {
  return catch_out_of_memory([&]() -> Result<std::unique_ptr<Checkpoint>> {
    std::error_code error;
    if (fs::is_directory(path, error)) return open_directory(path);
    if (const fs::path file(path); stands_for_directory(file.filename().string()) && fs::exists(file, error)) {
      return open_directory(file.has_parent_path() ? file.parent_path().string() : ".");
    }
    PROLOGUE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> opened, GgufCheckpoint::open(path));
    return opened;
  });
}

}  // namespace prologue
