// A checkpoint is a model as its files have it: named configuration values and named tensors. A GGUF file (engine/gguf) and a Hugging Face
// directory (engine/huggingface) are read through it, so what loads a model knows neither.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/engine/gguf/ggml_type.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/weight_format.h>

namespace prologue {

// A tensor has this type if the library cannot read its type, such as int64.
inline constexpr GgmlType kUnreadableType = static_cast<GgmlType>(~uint32_t{0});

struct TensorInfo {
  std::string_view name;
  GgmlType type = kUnreadableType;  // safetensors: f32, f16, bf16, f64; f8_e4m3, i8, i4_32, ...: with scales (quantized_tensor.h)
  std::string_view type_name;       // as the format calls it: "Q4_K", "I64"
  std::vector<int64_t> shape;       // row-major: the weight of a linear layer is [out_features, in_features]
  int64_t size_bytes = 0;
  WeightScaling scaling = WeightScaling::blocks;  // of f8_e4m3

  int64_t num_elements() const {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    return count;
  }
};

// This is an open checkpoint. It records which keys and tensors were read, so that a loader can refuse those that it does not know. Const
// functions update this record, so only one thread at a time may use them; read() may be called by several.
//
// Keys are those of the format: "llama.block_count" in a GGUF file, "rope_parameters.rope_theta" (a dot for each object) in config.json.
// The functions that return a value: not_found: there is no such key, or it is null. data_loss: it has another type, or does not fit.
class Checkpoint {
 public:
  enum class Format { gguf, huggingface };

  // Opens a GGUF file, or a directory with config.json. The path of a file of such a directory (config.json, model.safetensors, its index
  // or a shard) stands for the directory. Errors: those of the format.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path);
  virtual ~Checkpoint() = default;

  virtual Format format() const = 0;
  virtual const std::string& path() const = 0;  // as messages show it
  // Says which kind of model it is: general.architecture, or model_type (that of text_config, if there is one).
  virtual Result<std::string> architecture() const = 0;

  virtual bool has(std::string_view key) const = 0;
  virtual Result<int64_t> integer(std::string_view key) const = 0;
  virtual Result<double> number(std::string_view key) const = 0;  // an integer is a number too
  virtual Result<bool> flag(std::string_view key) const = 0;
  virtual Result<std::string> text(std::string_view key) const = 0;
  virtual Result<std::vector<int64_t>> integers(std::string_view key) const = 0;  // flags count as 0 and 1
  virtual Result<std::vector<double>> numbers(std::string_view key) const = 0;
  virtual Result<std::vector<std::string>> texts(std::string_view key) const = 0;
  // Returns the keys of a GGUF file that start with `prefix` and were not read. config.json: none, because transformers ignores what a
  // model's class does not know.
  virtual std::vector<std::string> unused_keys(std::string_view prefix) const = 0;

  // Whether the files say that activations are quantised to float8 e4m3, too, with scales that are computed from them (W8A8).
  virtual bool quantizes_activations() const { return false; }

  virtual std::span<const TensorInfo> tensors() const = 0;
  virtual bool has_tensor(std::string_view name) const = 0;
  // Returns the tensor, which then counts as used, or null if there is none.
  virtual const TensorInfo* tensor(std::string_view name) const = 0;
  virtual std::vector<std::string> unused_tensors() const = 0;
  // Copies bytes [begin, begin + size) of the data of one of tensors(). invalid_argument: the range is not within the data. data_loss: the file has
  // become shorter since it was opened. device_error: the system reported a read error.
  virtual Status read(const TensorInfo& tensor, int64_t begin, int64_t size, void* out) const = 0;
  // data_loss: a file has changed since it was opened.
  virtual Status check_unchanged() const = 0;
};

}  // namespace prologue
