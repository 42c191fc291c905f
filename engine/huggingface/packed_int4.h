// Reads quantised weights of Hugging Face checkpoints that have codes of 4 bits in groups: value = scale * (code - zero point).
//
//   quant_method         tensors of x.weight [n, k], in groups of g channels (g = -1: one group for each row)
//   gptq                 x.qweight [k / 8, n], x.qzeros [k / g, n / 8], x.scales [k / g, n], x.g_idx [k] (may be missing)
//   awq                  x.qweight [k, n / 8], x.qzeros [k / g, n / 8], x.scales [k / g, n]
//   compressed-tensors   x.weight_packed [n, k / 8], x.weight_scale [n, k / g], x.weight_shape [2] (may be missing); where it is not symmetric
//   (pack-quantized)     x.weight_zero_point [n / 8, k / g]; with an order of channels x.weight_g_idx [k]
//
// Codes and zero points are 4 bits each in words of int32, the first one in the lowest bits, along the dimension that is divided by 8. (AWQ:
// number i of a word is in its nibble [0, 4, 1, 5, 2, 6, 3, 7][i].) Zero points of gptq are stored less 1, but not with checkpoint_format gptq_v2.
// Without zero points they are 8. Channel c is in the group g_idx[c], or c / g.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// Says what quantization_config says about codes of 4 bits.
struct Int4Config {
  enum class Method { none, gptq, awq, compressed_tensors };
  Method method = Method::none;
  std::vector<int64_t> group_sizes;   // that a tensor may have; -1: one group for each row
  bool zero_points_less_one = false;  // as stored
  bool needs_zero_points = false;     // they may not be missing
  bool needs_group_indices = false;   // nor these
};

// Names what a weight is made of: "x" and the suffix. "" where a method has no such tensor.
struct Int4Names {
  std::string codes, scales, zero_points, group_indices, shape;
};
Int4Names int4_names(Int4Config::Method method, std::string_view module);

// Holds the tensors that a weight is made of. null: it is not there.
struct Int4Tensors {
  const TensorInfo* codes = nullptr;
  const TensorInfo* scales = nullptr;
  const TensorInfo* zero_points = nullptr;
  const TensorInfo* group_indices = nullptr;
  const TensorInfo* shape = nullptr;
};

// A quantised weight [rows, cols]. As a tensor of a checkpoint it has the type `type`: blocks (GgmlType::i4_32, i4_64, i4_128: the largest that
// divides a group), if rows are whole blocks, groups are in the channels' order, and every scale is a float16 exactly; float32 otherwise.
class PackedInt4 {
 public:
  enum class Part { codes, scales, zero_points, group_indices, shape };
  // Reads bytes [begin, begin + size) of one of the tensors.
  using Read = std::function<Status(Part part, int64_t begin, int64_t size, void* out)>;

  // Reads all but the codes once, to check them. data_loss: a tensor is missing, or has another shape; a scale is not finite; a group does not
  // exist. unsupported: a tensor has another type. `path` is for messages.
  static Result<PackedInt4> create(const std::string& path, const Int4Config& config, const Int4Tensors& tensors,
                                   const Read& read);

  GgmlType type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t size_bytes() const;
  // Copies bytes [begin, begin + size) of the tensor of type type(). invalid_argument: the range is not within the data.
  Status read(int64_t begin, int64_t size, void* out, const Read& read) const;

 private:
  // Holds some rows, the first of which is a multiple of 8.
  struct Rows {
    int64_t first = 0, count = 0;
    std::vector<uint32_t> codes;  // words, as in the file
    std::vector<float> scales;    // [count, groups]
    std::vector<uint8_t> zeros;   // the same
  };

  PackedInt4() = default;
  Status set_shape(const Int4Config& config, const Int4Tensors& tensors, const Read& read);
  Status set_groups(const Int4Config& config, const Int4Tensors& tensors, const Read& read);
  Status check_scales(const Int4Tensors& tensors, const Read& read);
  Status read_scales(int64_t first, int64_t count, const Read& read, std::vector<float>& scales) const;
  Status read_zeros(int64_t first, int64_t count, const Read& read, std::vector<uint8_t>& zeros) const;
  Status read_rows(int64_t first, int64_t count, const Read& read, Rows& rows) const;
  // Sets codes[count, cols] to those of rows [first, first + count) of `rows`; first is a multiple of 8 after rows.first.
  void unpack_codes(const Rows& rows, int64_t first, int64_t count, uint8_t* codes) const;
  void write_row(const uint8_t* codes, const float* scales, const uint8_t* zeros, uint8_t* out) const;
  int64_t row_bytes() const;

  std::string path_, name_;
  Int4Config::Method method_ = Int4Config::Method::none;
  GgmlType type_ = GgmlType::f32, scale_type_ = GgmlType::f16;
  int64_t rows_ = 0, cols_ = 0;
  int64_t group_size_ = 0, num_groups_ = 0;
  int zero_point_offset_ = 0;
  bool has_zero_points_ = false;
  std::vector<int32_t> group_of_;  // of each channel, where they are not in order
};

}  // namespace prologue
