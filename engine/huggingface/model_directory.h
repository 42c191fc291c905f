// Reads a model's directory as Hugging Face's transformers writes it: config.json, and model.safetensors or the shards that
// model.safetensors.index.json names.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/checkpoint/nvfp4_weight.h>
#include <prologue/engine/huggingface/json.h>
#include <prologue/engine/huggingface/packed_mxfp4.h>
#include <prologue/engine/huggingface/quantized_tensor.h>
#include <prologue/engine/huggingface/safetensors.h>

namespace prologue {

// A key is a path of member names in config.json, with dots between them. If config.json has an object "text_config", as multimodal models
// have, a key whose first name occurs there (null included) is looked up there, and any other key at the top: model_type then is that of the
// text model, and top-level values such as tie_word_embeddings are still found. "vision_config.depth" and "text_config.model_type" work, too.
//
// "generation_config.KEY" is KEY of generation_config.json, if that file is there.
//
// Types are strict: no number is a flag, no text a number. A number without a fraction (4.0) is an integer. null means that the key is absent.
//
// A quantised weight and its scales (quantized_tensor.h) are one tensor, of the type f8_e4m3 or i8, or, if its rows are not whole blocks, f32.
// The scales count as used when the weight does. A weight x.weight of 4 bits (packed_int4.h) is one tensor, too: i4_32, i4_64, i4_128 or f32. What
// it is made of counts as used with it, and so does x.bias if it is all zeros, which GPTQ's files have where models have none. x_blocks and
// x_scales in MXFP4 (packed_mxfp4.h) are the tensor x. A weight x.weight in NVFP4 is one of the type nvfp4_blocks or f32.
//
// Files may be symbolic links. Names in the index must be within the directory.
class HuggingFaceDirectory final : public Checkpoint {
 public:
  // not_found: there is no config.json, no weights, or a shard is missing. unsupported: the weights are in PyTorch's pickle format, or
  // quantised in a way that is not supported. data_loss: a file is inconsistent, or the index and the shards disagree about the tensors.
  static Result<std::unique_ptr<HuggingFaceDirectory>> open(const std::string& directory);

  const std::string& directory() const { return directory_; }  // as it was given to open()
  const Json& config() const { return config_; }

  Format format() const override { return Format::huggingface; }
  const std::string& path() const override { return path_; }
  Result<std::string> architecture() const override { return text("model_type"); }

  bool has(std::string_view key) const override { return value(key) != nullptr; }
  Result<int64_t> integer(std::string_view key) const override;
  Result<double> number(std::string_view key) const override;
  Result<bool> flag(std::string_view key) const override;
  Result<std::string> text(std::string_view key) const override;
  Result<std::vector<int64_t>> integers(std::string_view key) const override;
  Result<std::vector<double>> numbers(std::string_view key) const override;
  Result<std::vector<std::string>> texts(std::string_view key) const override;
  std::vector<std::string> unused_keys(std::string_view) const override { return {}; }
  bool quantizes_activations() const override { return quantizes_activations_; }

  std::span<const TensorInfo> tensors() const override { return tensors_; }
  bool has_tensor(std::string_view name) const override { return index_.count(name) != 0; }
  const TensorInfo* tensor(std::string_view name) const override;
  std::vector<std::string> unused_tensors() const override;
  Status read(const TensorInfo& tensor, int64_t begin, int64_t size, void* out) const override;
  Status check_unchanged() const override;

 private:
  static constexpr size_t kNumInt4Parts = 5;
  struct Stored {
    size_t file;  // index of files_
    const SafetensorsTensor* tensor;
    std::unique_ptr<QuantizedTensor> quantized;  // null: as the file has it
    std::vector<size_t> scales;                  // and what else counts as used with the weight: indices of tensors_
    std::unique_ptr<PackedInt4> int4;            // null: it is none
    std::unique_ptr<PackedMxfp4> mxfp4;          // null: it is none
    std::unique_ptr<Nvfp4Weight> nvfp4;          // null: it is none
    size_t parts[kNumInt4Parts] = {};            // of `int4`, `mxfp4` or `nvfp4`: indices of stored_
  };

  HuggingFaceDirectory() = default;
  Status open_files();
  Status open_shards(const std::string& index_path);
  void add_tensors();
  Status add_scales(const QuantizationConfig& config);
  Status add_scales(size_t number, bool is_float);
  Status add_int4(const Int4Config& config);
  Status add_int4(const Int4Config& config, size_t number, std::string_view module);
  Status add_mxfp4();
  Status add_nvfp4(Nvfp4Method method);
  Status add_nvfp4(Nvfp4Method method, size_t number, std::string_view module);
  Result<QuantizationConfig> quantization_config() const;
  void present(size_t number, TensorInfo as);  // instead of what the file has
  // `part` numbers a tensor of `parts`.
  Status read_part(const Stored& stored, size_t part, int64_t begin, int64_t size, void* out) const;
  Result<std::vector<float>> read_scales(size_t number) const;

  const Json* value(std::string_view key) const;  // null: absent or null
  template <class T>
  Result<T> get(std::string_view key) const;
  template <class T>
  Result<std::vector<T>> get_list(std::string_view key) const;

  std::string directory_, path_;
  Json config_, generation_config_;
  bool quantizes_activations_ = false;
  const Json* text_config_ = nullptr;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;  // file by file
  std::vector<Stored> stored_;       // of each of them
  std::unordered_map<std::string_view, size_t> index_;
  std::deque<std::string> names_;  // of tensors that no file has under their name
  mutable std::vector<bool> used_;
};

}  // namespace prologue
