#include <prologue/engine/huggingface/packed_mxfp4.h>

#include <algorithm>
#include <cstring>

#include <prologue/engine/base/printable.h>

namespace prologue {

namespace {

constexpr uint8_t kNan = 255;

// The file has channels 2 i and 2 i + 1 in byte i; a block has channels i and i + 16 there.
void reorder(const uint8_t* pairs, uint8_t* halves) {
  const auto code = [&](int channel) { return channel % 2 == 0 ? pairs[channel / 2] & 15 : pairs[channel / 2] >> 4; };
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
}

}  // namespace

Result<PackedMxfp4> PackedMxfp4::create(const std::string& path, const TensorInfo& blocks, const TensorInfo& scales) {
  for (const TensorInfo* tensor : {&blocks, &scales}) {
    if (tensor->type_name == "U8") continue;
    return unsupported(path, ": tensor ", printable(tensor->name), " has type ", printable(tensor->type_name),
                       ": of weights in MXFP4 it must be U8");
  }
  const auto is_positive = [](int64_t dim) { return dim > 0; };
  if (blocks.shape.size() != 4 || blocks.shape.back() != kCodeBytes ||
      !std::all_of(blocks.shape.begin(), blocks.shape.end(), is_positive)) {
    return data_loss(path, ": tensor ", printable(blocks.name), " has shape ", shape_text(blocks.shape),
                     ": blocks of MXFP4 are [experts, rows, blocks of a row, 16], and none is empty");
  }
  const std::vector<int64_t> of_scales(blocks.shape.begin(), blocks.shape.end() - 1);
  if (scales.shape != of_scales) {
    return data_loss(path, ": tensor ", printable(scales.name), " has shape ", shape_text(scales.shape), ": scales of ",
                     printable(blocks.name), " are ", shape_text(of_scales));
  }
  PackedMxfp4 weight;
  weight.path_ = path;
  weight.name_ = scales.name;
  weight.shape_ = of_scales;
  weight.shape_.back() *= 32;
  weight.num_blocks_ = blocks.size_bytes / kCodeBytes;
  return weight;
}

Status PackedMxfp4::read(int64_t begin, int64_t size, void* out, const Read& read) const {
  if (begin < 0 || size < 0 || begin > size_bytes() - size) {
    return invalid_argument(path_, ": bytes ", begin, " to ", begin, " + ", size, " of a tensor of ", size_bytes(), " bytes");
  }
  constexpr int64_t kBlocksAtOnce = 4096;
  std::vector<uint8_t> codes(static_cast<size_t>(kBlocksAtOnce * kCodeBytes)), scales(static_cast<size_t>(kBlocksAtOnce));
  auto* to = static_cast<uint8_t*>(out);
  const int64_t end = begin + size, end_block = (end + kBlockBytes - 1) / kBlockBytes;
  for (int64_t first = begin / kBlockBytes; first < end_block; first += kBlocksAtOnce) {
    const int64_t count = std::min(kBlocksAtOnce, end_block - first);
    PROLOGUE_RETURN_IF_ERROR(read(Part::blocks, first * kCodeBytes, count * kCodeBytes, codes.data()));
    PROLOGUE_RETURN_IF_ERROR(read(Part::scales, first, count, scales.data()));
    for (int64_t i = 0; i < count; ++i) {
      if (scales[static_cast<size_t>(i)] == kNan) {
        return data_loss(path_, ": tensor ", printable(name_), ": scale ", first + i, " is 255, which is NaN");
      }
      uint8_t block[kBlockBytes];
      block[0] = scales[static_cast<size_t>(i)];
      reorder(&codes[static_cast<size_t>(i * kCodeBytes)], block + 1);
      const int64_t at = (first + i) * kBlockBytes, from = std::max(begin, at), until = std::min(end, at + kBlockBytes);
      std::memcpy(to + (from - begin), block + (from - at), static_cast<size_t>(until - from));
    }
  }
  return {};
}

}  // namespace prologue
