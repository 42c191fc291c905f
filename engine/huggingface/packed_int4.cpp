#include <prologue/engine/huggingface/packed_int4.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/checkpoint/name_list.h>
#include <prologue/engine/gguf/dequantize.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/dtype.h>

namespace prologue {
namespace {

using Method = Int4Config::Method;
using Dims = std::vector<int64_t>;

constexpr int64_t kCodesOfWord = 8;
constexpr uint8_t kDefaultZeroPoint = 8;
constexpr int64_t kWordBytes = 4;
constexpr int kNibbleOfAwq[kCodesOfWord] = {0, 4, 1, 5, 2, 6, 3, 7};
constexpr int64_t kValuesAtOnce = int64_t{1} << 22;

int nibble(uint32_t word, int number) { return static_cast<int>(word >> (4 * number) & 15); }

// Whether channels are neighbours in memory, as scales and words of codes are with compressed-tensors; otherwise rows are.
bool is_row_major(Method method) { return method == Method::compressed_tensors; }

// Reads bytes [begin, begin + size) of each of `lines` lines of `line_bytes`.
Status read_lines(const PackedInt4::Read& read, PackedInt4::Part part, int64_t lines, int64_t line_bytes, int64_t begin,
                  int64_t size, void* out) {
  if (size == line_bytes) return read(part, 0, lines * line_bytes, out);
  for (int64_t line = 0; line < lines; ++line) {
    PROLOGUE_RETURN_IF_ERROR(read(part, line * line_bytes + begin, size, static_cast<std::byte*>(out) + line * size));
  }
  return {};
}

Status check_type(const std::string& path, const TensorInfo& tensor, std::string_view type) {
  if (tensor.type_name == type) return {};
  return unsupported(path, ": tensor ", printable(tensor.name), " has type ", printable(tensor.type_name), ": it must be ", type);
}

Status missing(const std::string& path, const Int4Tensors& tensors, const std::string& what) {
  return data_loss(path, ": tensor ", printable(tensors.codes->name), " has codes of 4 bits, but its ", what, " are missing");
}

}  // namespace

Int4Names int4_names(Method method, std::string_view module) {
  if (method == Method::none) return {};
  if (method == Method::compressed_tensors) {
    return {str_cat(module, ".weight_packed"), str_cat(module, ".weight_scale"), str_cat(module, ".weight_zero_point"),
            str_cat(module, ".weight_g_idx"), str_cat(module, ".weight_shape")};
  }
  return {str_cat(module, ".qweight"), str_cat(module, ".scales"), str_cat(module, ".qzeros"),
          method == Method::gptq ? str_cat(module, ".g_idx") : std::string(), ""};
}

// ---- Opening ----

Result<PackedInt4> PackedInt4::create(const std::string& path, const Int4Config& config, const Int4Tensors& tensors,
                                      const Read& read) {
  PackedInt4 weight;
  weight.path_ = path;
  weight.name_ = printable(tensors.codes->name);
  weight.method_ = config.method;
  weight.zero_point_offset_ = config.zero_points_less_one ? 1 : 0;
  PROLOGUE_RETURN_IF_ERROR(weight.set_shape(config, tensors, read));
  PROLOGUE_RETURN_IF_ERROR(weight.set_groups(config, tensors, read));
  PROLOGUE_RETURN_IF_ERROR(weight.check_scales(tensors, read));
  return weight;
}

Status PackedInt4::set_shape(const Int4Config& config, const Int4Tensors& tensors, const Read& read) {
  const TensorInfo& codes = *tensors.codes;
  PROLOGUE_RETURN_IF_ERROR(check_type(path_, codes, "I32"));
  if (codes.shape.size() != 2 || codes.shape[0] < 1 || codes.shape[1] < 1) {
    return unsupported(path_, ": tensor ", name_, " is quantised and has shape ", shape_text(codes.shape),
                       ": two dimensions of at least 1 are supported");
  }
  rows_ = codes.shape[is_row_major(method_) ? 0 : 1] * (method_ == Method::awq ? kCodesOfWord : 1);
  cols_ = codes.shape[is_row_major(method_) ? 1 : 0] * (method_ == Method::awq ? 1 : kCodesOfWord);
  if (tensors.shape != nullptr) {
    const TensorInfo& shape = *tensors.shape;
    PROLOGUE_RETURN_IF_ERROR(check_type(path_, shape, "I64"));
    if (shape.shape != Dims{2}) {
      return data_loss(path_, ": tensor ", printable(shape.name), " has shape ", shape_text(shape.shape), ": [2] is expected");
    }
    int64_t dims[2] = {};
    PROLOGUE_RETURN_IF_ERROR(read(Part::shape, 0, sizeof dims, dims));
    if (dims[0] != rows_ || dims[1] > cols_ || dims[1] <= cols_ - kCodesOfWord) {
      return data_loss(path_, ": tensor ", printable(shape.name), " is ", shape_text({dims[0], dims[1]}), ": for ", name_, " ",
                       shape_text(codes.shape), " it must be ", rows_, " and ", cols_ - kCodesOfWord + 1, " to ", cols_);
    }
    cols_ = dims[1];
  }
  if (tensors.scales == nullptr) return missing(path_, tensors, "scales");
  if (tensors.zero_points == nullptr && config.needs_zero_points) return missing(path_, tensors, "zero points");
  if (tensors.group_indices == nullptr && config.needs_group_indices) {
    return missing(path_, tensors, "groups (g_idx), which desc_act needs,");
  }
  has_zero_points_ = tensors.zero_points != nullptr;
  if (method_ == Method::gptq && rows_ % kCodesOfWord != 0) {
    return data_loss(path_, ": tensor ", name_, " has shape ", shape_text(codes.shape),
                     ": the second dimension must be a multiple of ", kCodesOfWord);
  }
  return {};
}

Status PackedInt4::set_groups(const Int4Config& config, const Int4Tensors& tensors, const Read& read) {
  const auto expected = [&](int64_t groups) { return is_row_major(method_) ? Dims{rows_, groups} : Dims{groups, rows_}; };
  for (const int64_t size : config.group_sizes) {
    const int64_t group_size = size < 0 ? cols_ : size, groups = divide_up(cols_, group_size);
    if (tensors.scales->shape != expected(groups)) continue;
    if (num_groups_ > 0 && group_size != group_size_) {
      return unsupported(path_, ": the groups of ", name_, " ", shape_text(tensors.codes->shape), " may have ", group_size_,
                         " or ", group_size, " channels: quantization_config must not leave that open");
    }
    group_size_ = group_size, num_groups_ = groups;
  }
  if (num_groups_ == 0) {
    std::string shapes;
    for (const int64_t size : config.group_sizes) {
      shapes += str_cat(shapes.empty() ? "" : " or ", shape_text(expected(divide_up(cols_, size < 0 ? cols_ : size))));
    }
    return data_loss(path_, ": tensor ", printable(tensors.scales->name), " has shape ", shape_text(tensors.scales->shape),
                     ": for ", name_, " ", shape_text(tensors.codes->shape), " ", shapes, " is expected");
  }
  if (has_zero_points_) {
    const TensorInfo& zeros = *tensors.zero_points;
    PROLOGUE_RETURN_IF_ERROR(check_type(path_, zeros, "I32"));
    const int64_t words = divide_up(rows_, kCodesOfWord);
    const Dims shape = is_row_major(method_) ? Dims{words, num_groups_} : Dims{num_groups_, words};
    if (zeros.shape != shape) {
      return data_loss(path_, ": tensor ", printable(zeros.name), " has shape ", shape_text(zeros.shape), ": for ", name_, " ",
                       shape_text(tensors.codes->shape), " ", shape_text(shape), " is expected");
    }
  }
  if (tensors.group_indices == nullptr) return {};
  const TensorInfo& indices = *tensors.group_indices;
  PROLOGUE_RETURN_IF_ERROR(check_type(path_, indices, "I32"));
  if (indices.shape != Dims{cols_}) {
    return data_loss(path_, ": tensor ", printable(indices.name), " has shape ", shape_text(indices.shape), ": for ", name_, " ",
                     shape_text(tensors.codes->shape), " ", shape_text({cols_}), " is expected");
  }
  std::vector<int32_t> groups(static_cast<size_t>(cols_));
  PROLOGUE_RETURN_IF_ERROR(read(Part::group_indices, 0, cols_ * kWordBytes, groups.data()));
  const auto is_unset = [](int32_t group) { return group == -1; };  // compressed-tensors fills them before it knows an order
  if (method_ == Method::compressed_tensors && std::all_of(groups.begin(), groups.end(), is_unset)) return {};
  bool in_order = true;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i] < 0 || groups[i] >= num_groups_) {
      return data_loss(path_, ": element ", i, " of tensor ", printable(indices.name), " is ", groups[i], ": it must be 0 to ",
                       num_groups_ - 1);
    }
    in_order = in_order && groups[i] == static_cast<int64_t>(i) / group_size_;
  }
  if (!in_order) group_of_ = std::move(groups);
  return {};
}

// Also chooses the type, which needs scales that are exact.
Status PackedInt4::check_scales(const Int4Tensors& tensors, const Read& read) {
  const TensorInfo& scale = *tensors.scales;
  if (scale.type != GgmlType::f32 && scale.type != GgmlType::f16 && scale.type != GgmlType::bf16) {
    return unsupported(path_, ": tensor ", printable(scale.name), " has type ", printable(scale.type_name),
                       ": scales of weights must be F32, F16 or BF16");
  }
  scale_type_ = scale.type;
  bool exact = true;
  std::vector<float> scales;
  const int64_t at_once = std::max(kCodesOfWord, kValuesAtOnce / num_groups_ / kCodesOfWord * kCodesOfWord);
  for (int64_t first = 0; first < rows_; first += at_once) {
    const int64_t count = std::min(at_once, rows_ - first);
    PROLOGUE_RETURN_IF_ERROR(read_scales(first, count, read, scales));
    for (size_t i = 0; i < scales.size(); ++i) {
      if (!std::isfinite(scales[i])) {
        const int64_t row = first + static_cast<int64_t>(i) / num_groups_, group = static_cast<int64_t>(i) % num_groups_;
        return data_loss(path_, ": element ", shape_text(is_row_major(method_) ? Dims{row, group} : Dims{group, row}),
                         " of tensor ", printable(scale.name), " is ", scales[i], ": a scale must be finite");
      }
      exact = exact && (scale_type_ == GgmlType::f16 || to_float(to_float16(scales[i])) == scales[i]);
    }
  }
  if (!exact || !group_of_.empty()) return {};
  for (const auto& [block, type] : {std::pair(128, GgmlType::i4_128), {64, GgmlType::i4_64}, {32, GgmlType::i4_32}}) {
    if (cols_ % block != 0 || group_size_ % block != 0) continue;
    type_ = type;
    break;
  }
  return {};
}

int64_t PackedInt4::row_bytes() const {
  const GgmlTypeInfo& info = *ggml_type_info(type_);
  return cols_ / info.block_elements * info.block_bytes;
}

int64_t PackedInt4::size_bytes() const { return rows_ * row_bytes(); }

// ---- Reading ----

Status PackedInt4::read_scales(int64_t first, int64_t count, const Read& read, std::vector<float>& scales) const {
  const int64_t bytes = ggml_type_info(scale_type_)->block_bytes;
  const size_t size = static_cast<size_t>(count * num_groups_);
  std::vector<std::byte> stored(size * static_cast<size_t>(bytes));
  if (is_row_major(method_)) {
    PROLOGUE_RETURN_IF_ERROR(read(Part::scales, first * num_groups_ * bytes, count * num_groups_ * bytes, stored.data()));
  } else {
    PROLOGUE_RETURN_IF_ERROR(
        read_lines(read, Part::scales, num_groups_, rows_ * bytes, first * bytes, count * bytes, stored.data()));
  }
  scales.resize(size);
  PROLOGUE_RETURN_IF_ERROR(
      dequantize_rows(scale_type_, stored.data(), 1, static_cast<int64_t>(size), DType::f32, scales.data(), 1));
  if (is_row_major(method_)) return {};
  std::vector<float> transposed(size);
  for (int64_t group = 0; group < num_groups_; ++group) {
    for (int64_t row = 0; row < count; ++row) {
      transposed[static_cast<size_t>(row * num_groups_ + group)] = scales[static_cast<size_t>(group * count + row)];
    }
  }
  scales = std::move(transposed);
  return {};
}

// first is a multiple of 8.
Status PackedInt4::read_zeros(int64_t first, int64_t count, const Read& read, std::vector<uint8_t>& zeros) const {
  zeros.assign(static_cast<size_t>(count * num_groups_), kDefaultZeroPoint);
  if (!has_zero_points_) return {};
  const int64_t first_word = first / kCodesOfWord, words = divide_up(count, kCodesOfWord);
  std::vector<uint32_t> stored(static_cast<size_t>(words * num_groups_));
  if (is_row_major(method_)) {
    PROLOGUE_RETURN_IF_ERROR(
        read(Part::zero_points, first_word * num_groups_ * kWordBytes, words * num_groups_ * kWordBytes, stored.data()));
  } else {
    PROLOGUE_RETURN_IF_ERROR(read_lines(read, Part::zero_points, num_groups_, rows_ / kCodesOfWord * kWordBytes,
                                        first_word * kWordBytes, words * kWordBytes, stored.data()));
  }
  for (int64_t row = 0; row < count; ++row) {
    const int64_t word = row / kCodesOfWord;
    const int number = static_cast<int>(row % kCodesOfWord), at = method_ == Method::awq ? kNibbleOfAwq[number] : number;
    for (int64_t group = 0; group < num_groups_; ++group) {
      const int64_t index = is_row_major(method_) ? word * num_groups_ + group : group * words + word;
      zeros[static_cast<size_t>(row * num_groups_ + group)] =
          static_cast<uint8_t>(nibble(stored[static_cast<size_t>(index)], at) + zero_point_offset_);
    }
  }
  return {};
}

Status PackedInt4::read_rows(int64_t first, int64_t count, const Read& read, Rows& rows) const {
  rows.first = first, rows.count = count;
  PROLOGUE_RETURN_IF_ERROR(read_scales(first, count, read, rows.scales));
  PROLOGUE_RETURN_IF_ERROR(read_zeros(first, count, read, rows.zeros));
  if (is_row_major(method_)) {
    const int64_t words = divide_up(cols_, kCodesOfWord);
    rows.codes.resize(static_cast<size_t>(count * words));
    return read(Part::codes, first * words * kWordBytes, count * words * kWordBytes, rows.codes.data());
  }
  const bool along_rows = method_ == Method::awq;
  const int64_t lines = along_rows ? cols_ : cols_ / kCodesOfWord, of_word = along_rows ? kCodesOfWord : 1;
  const int64_t words = divide_up(count, of_word);
  rows.codes.resize(static_cast<size_t>(lines * words));
  return read_lines(read, Part::codes, lines, rows_ / of_word * kWordBytes, first / of_word * kWordBytes, words * kWordBytes,
                    rows.codes.data());
}

void PackedInt4::unpack_codes(const Rows& rows, int64_t first, int64_t count, uint8_t* codes) const {
  const int64_t begin = first - rows.first;  // in rows.codes
  if (method_ == Method::awq) {
    const int64_t words = divide_up(rows.count, kCodesOfWord);
    for (int64_t col = 0; col < cols_; ++col) {
      for (int64_t row = 0; row < count; row += kCodesOfWord) {
        const uint32_t word = rows.codes[static_cast<size_t>(col * words + (begin + row) / kCodesOfWord)];
        const int64_t end = std::min(kCodesOfWord, count - row);
        for (int64_t i = 0; i < end; ++i) codes[(row + i) * cols_ + col] = static_cast<uint8_t>(nibble(word, kNibbleOfAwq[i]));
      }
    }
    return;
  }
  const int64_t words = divide_up(cols_, kCodesOfWord);
  for (int64_t word = 0; word < words; ++word) {
    const int64_t end = std::min(kCodesOfWord, cols_ - word * kCodesOfWord);
    for (int64_t row = 0; row < count; ++row) {
      const int64_t index = is_row_major(method_) ? (begin + row) * words + word : word * rows.count + begin + row;
      const uint32_t eight = rows.codes[static_cast<size_t>(index)];
      uint8_t* const to = codes + row * cols_ + word * kCodesOfWord;
      for (int64_t i = 0; i < end; ++i) to[i] = static_cast<uint8_t>(nibble(eight, static_cast<int>(i)));
    }
  }
}

void PackedInt4::write_row(const uint8_t* codes, const float* scales, const uint8_t* zeros, uint8_t* out) const {
  if (type_ == GgmlType::f32) {
    for (int64_t col = 0; col < cols_; ++col) {
      const int64_t group = group_of_.empty() ? col / group_size_ : group_of_[static_cast<size_t>(col)];
      // 0 is +0, as in the packed formats.
      const float value = scales[group] * static_cast<float>(codes[col] - zeros[group]) + 0.0f;
      std::memcpy(out + col * 4, &value, sizeof value);
    }
    return;
  }
  const int64_t block = ggml_type_info(type_)->block_elements;
  for (int64_t first = 0; first < cols_; first += block) {
    const int64_t group = first / group_size_;
    const Float16 scale = to_float16(scales[group]);
    std::memcpy(out, &scale.bits, sizeof scale.bits);
    out[2] = zeros[group];
    out += 3;
    for (const uint8_t* run = codes + first; run < codes + first + block; run += 32, out += 16) {
      for (int64_t i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(run[i] | run[i + 16] << 4);
    }
  }
}

Status PackedInt4::read(int64_t begin, int64_t size, void* out, const Read& read) const {
  if (begin < 0 || size < 0 || begin > size_bytes() || size > size_bytes() - begin) {
    return invalid_argument(path_, ": bytes ", begin, " to ", begin, " + ", size, " of the weight of ", name_,
                            " are not within its ", size_bytes());
  }
  if (size == 0) return {};
  constexpr int64_t kTile = 64;  // rows whose codes are separate at a time
  const int64_t bytes_of_row = row_bytes(), end = begin + size, end_row = divide_up(end, bytes_of_row);
  const int64_t at_once = std::max(kTile, kValuesAtOnce / cols_ / kCodesOfWord * kCodesOfWord);
  Rows rows;
  std::vector<uint8_t> codes(static_cast<size_t>(std::min(kTile, rows_) * cols_)), bytes(static_cast<size_t>(bytes_of_row));
  for (int64_t first = begin / bytes_of_row / kCodesOfWord * kCodesOfWord; first < end_row; first += at_once) {
    PROLOGUE_RETURN_IF_ERROR(read_rows(first, std::min(at_once, end_row - first), read, rows));
    for (int64_t row = 0; row < rows.count; ++row) {
      if (row % kTile == 0) unpack_codes(rows, first + row, std::min(kTile, rows.count - row), codes.data());
      const int64_t at = (first + row) * bytes_of_row;
      if (at + bytes_of_row <= begin) continue;
      const bool is_whole = at >= begin && at + bytes_of_row <= end;
      uint8_t* const to = is_whole ? static_cast<uint8_t*>(out) + (at - begin) : bytes.data();
      write_row(&codes[static_cast<size_t>(row % kTile * cols_)], &rows.scales[static_cast<size_t>(row * num_groups_)],
                &rows.zeros[static_cast<size_t>(row * num_groups_)], to);
      if (is_whole) continue;
      const int64_t from = std::max(at, begin), until = std::min(at + bytes_of_row, end);
      std::memcpy(static_cast<uint8_t*>(out) + (from - begin), bytes.data() + (from - at), static_cast<size_t>(until - from));
    }
  }
  return {};
}

}  // namespace prologue
