// Reads weights in MXFP4 of Hugging Face checkpoints (quant_method mxfp4): the experts of GPT-OSS.
//
//   x_blocks  U8 [experts, rows, cols / 32, 16]   byte i of 16 has the codes of channels 2 i (low bits) and 2 i + 1 of a block of 32
//   x_scales  U8 [experts, rows, cols / 32]       e: a value is 2^(e - 127) * the number of float4_e2m1 that its code is
//
// (OCP Microscaling Formats, version 1.0.)
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// A weight [experts, rows, cols]. As a tensor of a checkpoint it has the type GgmlType::mxfp4: blocks as GGUF files have them.
class PackedMxfp4 {
 public:
  enum class Part { blocks, scales };
  // Reads bytes [begin, begin + size) of one of the tensors.
  using Read = std::function<Status(Part part, int64_t begin, int64_t size, void* out)>;

  // data_loss: the shapes are not those above, are empty, or not of the same weight; unsupported: another type than U8. `path` is for messages.
  static Result<PackedMxfp4> create(const std::string& path, const TensorInfo& blocks, const TensorInfo& scales);

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size_bytes() const { return num_blocks_ * kBlockBytes; }
  // Copies bytes [begin, begin + size) of the tensor of type mxfp4. invalid_argument: the range is not within the data. data_loss: a scale is
  // NaN (255).
  Status read(int64_t begin, int64_t size, void* out, const Read& read) const;

 private:
  static constexpr int64_t kBlockBytes = 17, kCodeBytes = 16;

  PackedMxfp4() = default;

  std::string path_, name_;
  std::vector<int64_t> shape_;
  int64_t num_blocks_ = 0;
};

}  // namespace prologue
