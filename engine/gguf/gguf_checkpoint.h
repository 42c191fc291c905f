// A GGUF file as a checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/gguf/gguf.h>

namespace prologue {

// Shapes are the file's dimensions in reverse. A key that is absent, or of another type, gets the error of GgufFile::get.
class GgufCheckpoint final : public Checkpoint {
 public:
  static Result<std::unique_ptr<GgufCheckpoint>> open(const std::string& path);
  explicit GgufCheckpoint(GgufFile file);

  const GgufFile& file() const { return file_; }

  Format format() const override { return Format::gguf; }
  const std::string& path() const override { return file_.path(); }
  Result<std::string> architecture() const override { return text("general.architecture"); }

  bool has(std::string_view key) const override { return file_.has(key); }
  Result<int64_t> integer(std::string_view key) const override { return file_.get<int64_t>(key); }
  Result<double> number(std::string_view key) const override;
  Result<bool> flag(std::string_view key) const override { return file_.get<bool>(key); }
  Result<std::string> text(std::string_view key) const override { return file_.get<std::string>(key); }
  Result<std::vector<int64_t>> integers(std::string_view key) const override;
  Result<std::vector<double>> numbers(std::string_view key) const override;
  Result<std::vector<std::string>> texts(std::string_view key) const override { return file_.get<std::vector<std::string>>(key); }
  std::vector<std::string> unused_keys(std::string_view prefix) const override { return file_.unused_keys(prefix); }

  std::span<const TensorInfo> tensors() const override { return tensors_; }
  bool has_tensor(std::string_view name) const override { return file_.has_tensor(name); }
  const TensorInfo* tensor(std::string_view name) const override;
  std::vector<std::string> unused_tensors() const override { return file_.unused_tensors(); }
  Status read(const TensorInfo& tensor, int64_t begin, int64_t size, void* out) const override;
  Status check_unchanged() const override { return file_.check_unchanged(); }

 private:
  GgufFile file_;
  std::vector<TensorInfo> tensors_;  // in the file's order
};

}  // namespace prologue
