// Reads weights in NVFP4: codes of float4_e2m1, a scale of float8_e4m3fn for each 16 channels, and one (float32) for the tensor. Files have them in
// one of two layouts:
//
//   pairs   codes [rows, cols / 2] bytes: byte i has the codes of channels 2 i (low bits) and 2 i + 1; scales [rows, cols / 16] bytes
//   ggml    blocks of 64 channels, as GGUF has them: 4 scales | 4 times 8 bytes, of which byte i has channels i (low bits) and i + 8 of 16
//
// A value is (scale * scale of the tensor) * code; each product is rounded to float32.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// A weight [..., rows, cols]. As a tensor of a checkpoint it has the type `type`: GgmlType::nvfp4_blocks, if rows are whole blocks of 256 channels;
// float32 otherwise.
class Nvfp4Weight {
 public:
  enum class Part { codes, scales };  // ggml: the blocks are the codes
  // Reads bytes [begin, begin + size) of one of the tensors.
  using Read = std::function<Status(Part part, int64_t begin, int64_t size, void* out)>;

  // `of_tensor` has been made a factor. data_loss: the scales have not the shape above; unsupported: the types are not U8 and F8_E4M3, or the codes
  // have not two dimensions. `path` is for messages.
  static Result<Nvfp4Weight> of_pairs(const std::string& path, const TensorInfo& codes, const TensorInfo& scales,
                                      float of_tensor);
  // `of_tensors` has one scale, or one for each index of the first of three dimensions.
  static Nvfp4Weight of_ggml(const std::string& path, const TensorInfo& blocks, std::vector<float> of_tensors);

  GgmlType type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size_bytes() const { return num_units_ * unit_bytes_; }
  // Copies bytes [begin, begin + size) of the tensor of type type(). invalid_argument: the range is not within the data. data_loss: a scale is NaN,
  // or, of GGUF's, which have no sign, has one.
  Status read(int64_t begin, int64_t size, void* out, const Read& read) const;

 private:
  Nvfp4Weight() = default;
  void set_shape(std::vector<int64_t> shape);
  // Writes one unit.
  Status write_unit(int64_t unit, const uint8_t* codes, const uint8_t* scales, uint8_t* out) const;

  std::string path_, name_;  // of the scales
  bool is_ggml_ = false;
  GgmlType type_ = GgmlType::f32;
  std::vector<int64_t> shape_;
  std::vector<float> of_tensors_;
  // A unit is what is converted at once: a block, or 64 (pairs: 16) channels in float32.
  int64_t unit_channels_ = 0, unit_bytes_ = 0, num_units_ = 0;
};

}  // namespace prologue
