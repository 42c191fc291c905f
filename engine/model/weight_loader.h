// Loads tensors of a model file as weights on a device: dequantises them, converts them to the compute type, and concatenates those
// that one GEMM uses together. On the CPU it can leave matrices quantised as they are: then it only packs them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <prologue/engine/gguf/gguf.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/layers/graph/graph.h>

namespace prologue {

class WeightLoader {
 public:
  // `progress` is called with the fraction of the file's tensor bytes that has been read. With keep_quantized (CPU only) a matrix whose
  // tensors are all quantised is packed.
  WeightLoader(const GgufFile& file, DType dtype, const Execution& execution, std::function<void(double)> progress,
               bool keep_quantized = false);

  // The tensor as [rows, cols]; its dimensions must be exactly these. A vector has rows = 1.
  Result<Weight> load(const std::string& name, int64_t rows, int64_t cols);
  // Several tensors as one weight, concatenated along the rows.
  struct Part {
    std::string name;
    int64_t rows;
  };
  Result<Weight> load_stacked(const std::vector<Part>& parts, int64_t cols);
  // Several vectors, concatenated.
  Result<Weight> load_joined(const std::vector<Part>& parts);

  const GgufFile& file() const { return file_; }
  DType dtype() const { return dtype_; }
  const Execution& execution() const { return execution_; }
  std::vector<Buffer> take_weights() { return std::move(blocks_); }
  // Those of the packed weights so far, each once.
  const std::vector<WeightFormat>& formats() const { return formats_; }

 private:
  Result<Weight> load_tensors(const std::vector<const GgufTensor*>& tensors, int64_t rows, int64_t cols);
  bool can_pack(const std::vector<const GgufTensor*>& tensors) const;
  Result<Weight> pack_tensors(const std::vector<const GgufTensor*>& tensors, int64_t rows, int64_t cols);
  void count(int64_t num_bytes);
  // Memory that the model will own, 256-byte aligned. It is part of a large block, so that small weights do not waste huge pages.
  Result<unsigned char*> allocate(int64_t num_bytes);

  const GgufFile& file_;
  DType dtype_;
  Execution execution_;
  std::function<void(double)> progress_;
  bool keep_quantized_;
  std::vector<WeightFormat> formats_;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
  std::vector<std::byte> source_;       // a piece of a tensor as the file has it
  std::vector<unsigned char> staging_;  // the same, dequantised, before the copy to another device
  std::vector<Buffer> blocks_;
  int64_t block_used_ = 0;  // bytes of the last block
};

}  // namespace prologue
