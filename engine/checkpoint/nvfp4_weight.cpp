#include <prologue/engine/checkpoint/nvfp4_weight.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/checkpoint/name_list.h>
#include <prologue/engine/gguf/dequantize.h>
#include <prologue/kernels/base/divide_up.h>

namespace prologue {

namespace {

constexpr int64_t kChannelsOfScale = 16, kChannelsOfGgmlBlock = 64, kGgmlScales = 4, kGgmlBlockBytes = 4 + 32;
constexpr int64_t kBlockChannels = 256, kMostScales = kBlockChannels / kChannelsOfScale;

// Returns the code of channel `channel` of 16, whose 8 bytes are `codes`.
int code_of(bool is_ggml, const uint8_t* codes, int channel) {
  if (is_ggml) return channel < 8 ? codes[channel] & 15 : codes[channel - 8] >> 4;
  return channel % 2 == 0 ? codes[channel / 2] & 15 : codes[channel / 2] >> 4;
}

// Sets byte c of 16 to the codes of channel c of the first 16 (low bits) and of the last 16.
void join_codes(bool is_ggml, const uint8_t* first, const uint8_t* last, uint8_t* out) {
  uint8_t low[8], high[8];
  for (int i = 0; i < 8; ++i) {
    low[i] = static_cast<uint8_t>((first[i] & 15) | last[i] << 4);
    high[i] = static_cast<uint8_t>(first[i] >> 4 | (last[i] & 0xf0));
  }
  for (int i = 0; i < 8; ++i) out[is_ggml ? i : 2 * i] = low[i], out[is_ggml ? i + 8 : 2 * i + 1] = high[i];
}

}  // namespace

Result<Nvfp4Weight> Nvfp4Weight::of_pairs(const std::string& path, const TensorInfo& codes, const TensorInfo& scales,
                                          float of_tensor) {
  for (const auto& [tensor, type] : {std::pair(&codes, "U8"), {&scales, "F8_E4M3"}}) {
    if (tensor->type_name == type) continue;
    return unsupported(path, ": tensor ", printable(tensor->name), " has type ", printable(tensor->type_name),
                       ": of weights in NVFP4 it must be ", type);
  }
  if (codes.shape.size() != 2 || codes.shape[0] < 1 || codes.shape[1] < 1) {
    return unsupported(path, ": tensor ", printable(codes.name), " is quantised and has shape ", shape_text(codes.shape),
                       ": two dimensions of at least 1 are supported");
  }
  constexpr int64_t kBytesOfScale = kChannelsOfScale / 2;
  const std::vector<int64_t> of_scales = {codes.shape[0], divide_up(codes.shape[1], kBytesOfScale)};
  if (codes.shape[1] % kBytesOfScale != 0) {
    return data_loss(path, ": tensor ", printable(codes.name), " has shape ", shape_text(codes.shape),
                     ": rows of NVFP4 are groups of 16 channels, which are 8 bytes");
  }
  if (scales.shape != of_scales) {
    return data_loss(path, ": tensor ", printable(scales.name), " has shape ", shape_text(scales.shape), ": scales of ",
                     printable(codes.name), " are ", shape_text(of_scales));
  }
  Nvfp4Weight weight;
  weight.path_ = path;
  weight.name_ = printable(scales.name);
  weight.of_tensors_ = {of_tensor};
  weight.set_shape({codes.shape[0], codes.shape[1] * 2});
  return weight;
}

Nvfp4Weight Nvfp4Weight::of_ggml(const std::string& path, const TensorInfo& blocks, std::vector<float> of_tensors) {
  Nvfp4Weight weight;
  weight.path_ = path;
  weight.name_ = printable(blocks.name);
  weight.is_ggml_ = true;
  weight.of_tensors_ = std::move(of_tensors);
  weight.set_shape(blocks.shape);
  return weight;
}

void Nvfp4Weight::set_shape(std::vector<int64_t> shape) {
  shape_ = std::move(shape);
  type_ = shape_.back() % kBlockChannels == 0 ? GgmlType::nvfp4_blocks : GgmlType::f32;
  unit_channels_ = type_ == GgmlType::nvfp4_blocks ? kBlockChannels : is_ggml_ ? kChannelsOfGgmlBlock : kChannelsOfScale;
  const GgmlTypeInfo& info = *ggml_type_info(type_);
  unit_bytes_ = unit_channels_ / info.block_elements * info.block_bytes;
  num_units_ = 1;
  for (const int64_t dim : shape_) num_units_ *= dim;
  num_units_ /= unit_channels_;
}

Status Nvfp4Weight::write_unit(int64_t unit, const uint8_t* codes, const uint8_t* scales, uint8_t* out) const {
  const int64_t num_scales = unit_channels_ / kChannelsOfScale;
  uint8_t of_unit[kMostScales];
  const uint8_t* codes_at[kMostScales];  // of each 16 channels
  for (int64_t i = 0; i < num_scales; ++i) {
    const uint8_t* const block = codes + i / kGgmlScales * kGgmlBlockBytes;
    of_unit[i] = is_ggml_ ? block[i % kGgmlScales] : scales[i];
    codes_at[i] = is_ggml_ ? block + kGgmlScales + i % kGgmlScales * 8 : codes + i * 8;
    const bool is_nan = (of_unit[i] & 0x7f) == 0x7f;
    if (!is_nan && (!is_ggml_ || of_unit[i] < 0x80)) continue;
    return data_loss(path_, ": tensor ", name_, ": scale ", unit * num_scales + i, " is ", static_cast<int>(of_unit[i]),
                     is_nan ? ", which is NaN" : ": scales of NVFP4 have no sign in a GGUF file");
  }
  const float of_tensor = of_tensors_[static_cast<size_t>(unit / (num_units_ / static_cast<int64_t>(of_tensors_.size())))];
  if (type_ == GgmlType::nvfp4_blocks) {
    std::memcpy(out, &of_tensor, sizeof of_tensor);
    std::memcpy(out + 4, of_unit, kMostScales);
    for (int64_t i = 0; i < kMostScales; i += 2) join_codes(is_ggml_, codes_at[i], codes_at[i + 1], out + 20 + 8 * i);
    return {};
  }
  for (int64_t i = 0; i < num_scales; ++i) {
    const float scale = e4m3_value(of_unit[i]) * of_tensor;
    for (int c = 0; c < kChannelsOfScale; ++c) {
      const float value = scale * e2m1_value(code_of(is_ggml_, codes_at[i], c));
      std::memcpy(out + (i * kChannelsOfScale + c) * 4, &value, sizeof value);
    }
  }
  return {};
}

Status Nvfp4Weight::read(int64_t begin, int64_t size, void* out, const Read& read) const {
  if (begin < 0 || size < 0 || begin > size_bytes() - size) {
    return invalid_argument(path_, ": bytes ", begin, " to ", begin, " + ", size, " of a tensor of ", size_bytes(), " bytes");
  }
  constexpr int64_t kUnitsAtOnce = 4096;
  const int64_t code_bytes = is_ggml_ ? unit_channels_ / kChannelsOfGgmlBlock * kGgmlBlockBytes : unit_channels_ / 2;
  const int64_t num_scales = is_ggml_ ? 0 : unit_channels_ / kChannelsOfScale;
  const int64_t end = begin + size, end_unit = divide_up(end, unit_bytes_);
  std::vector<uint8_t> codes, scales, bytes(static_cast<size_t>(unit_bytes_));
  for (int64_t first = begin / unit_bytes_; first < end_unit && size > 0; first += kUnitsAtOnce) {
    const int64_t count = std::min(kUnitsAtOnce, end_unit - first);
    codes.resize(static_cast<size_t>(count * code_bytes)), scales.resize(static_cast<size_t>(count * num_scales));
    PROLOGUE_RETURN_IF_ERROR(read(Part::codes, first * code_bytes, count * code_bytes, codes.data()));
    if (!is_ggml_) PROLOGUE_RETURN_IF_ERROR(read(Part::scales, first * num_scales, count * num_scales, scales.data()));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (first + i) * unit_bytes_, from = std::max(begin, at), until = std::min(end, at + unit_bytes_);
      const bool is_whole = until - from == unit_bytes_;
      auto* const to = static_cast<uint8_t*>(out) + (from - begin);
      PROLOGUE_RETURN_IF_ERROR(
          write_unit(first + i, codes.data() + i * code_bytes, scales.data() + i * num_scales, is_whole ? to : bytes.data()));
      if (!is_whole) std::memcpy(to, bytes.data() + (from - at), static_cast<size_t>(until - from));
    }
  }
  return {};
}

}  // namespace prologue
