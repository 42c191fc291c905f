// Reads a GGUF file, or the parts of one that was split, as a checkpoint.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/checkpoint/nvfp4_weight.h>
#include <prologue/engine/gguf/gguf.h>

namespace prologue {

// A tensor x.weight of the type NVFP4 has its scale in the tensor x.scale (F32: one, or one for each expert; without it, 1). Here they are one tensor
// (nvfp4_weight.h); x.scale counts as used with it, and so does x.input_scale, which is not applied: activations stay as they are.
//
// Shapes are the file's dimensions in reverse. A key that is absent, or of another type, gets the error of GgufFile::get.
class GgufCheckpoint final : public Checkpoint {
 public:
  // A file whose split.count is above 1 is a part of a model, as llama-gguf-split writes it: NAME-00001-of-00003.gguf is the first of three
  // parts and has the keys, and the others are beside it. The path is that of the first part.
  //   invalid_argument: the path is that of another part, or the name of the first is not of this form. not_found: parts are missing.
  // data_loss: the parts do not belong together. Other errors: of GgufFile::open.
  static Result<std::unique_ptr<GgufCheckpoint>> open(const std::string& path);
  explicit GgufCheckpoint(GgufFile file);  // NVFP4 tensors from the first on whose scale cannot be read are kUnreadableType

  const GgufFile& file() const { return parts_.front(); }  // which has the keys

  Format format() const override { return Format::gguf; }
  const std::string& path() const override { return file().path(); }
  Result<std::string> architecture() const override { return text("general.architecture"); }

  bool has(std::string_view key) const override { return file().has(key); }
  Result<int64_t> integer(std::string_view key) const override { return file().get<int64_t>(key); }
  Result<double> number(std::string_view key) const override;
  Result<bool> flag(std::string_view key) const override { return file().get<bool>(key); }
  Result<std::string> text(std::string_view key) const override { return file().get<std::string>(key); }
  Result<std::vector<int64_t>> integers(std::string_view key) const override;
  Result<std::vector<double>> numbers(std::string_view key) const override;
  Result<std::vector<std::string>> texts(std::string_view key) const override {
    return file().get<std::vector<std::string>>(key);
  }
  std::vector<std::string> unused_keys(std::string_view prefix) const override { return file().unused_keys(prefix); }

  std::span<const TensorInfo> tensors() const override { return tensors_; }
  bool has_tensor(std::string_view name) const override { return index_.count(name) != 0; }
  const TensorInfo* tensor(std::string_view name) const override;
  std::vector<std::string> unused_tensors() const override;
  Status read(const TensorInfo& tensor, int64_t begin, int64_t size, void* out) const override;
  Status check_unchanged() const override;

 private:
  struct Stored {
    size_t part;
    const GgufTensor* tensor;
    std::unique_ptr<Nvfp4Weight> nvfp4;  // null: as the file has it
    std::vector<size_t> scales;          // what else counts as used with it: indices of tensors_
  };

  GgufCheckpoint() = default;
  Status open_parts(const std::string& path, int64_t count);
  Status add_part(GgufFile file);
  Status add_scales();  // of NVFP4
  Result<std::vector<float>> read_scales(const TensorInfo& weight, size_t number) const;

  std::vector<GgufFile> parts_;
  std::vector<TensorInfo> tensors_;  // part by part, in the file's order
  std::vector<Stored> stored_;       // of each of them
  std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace prologue
