#include <algorithm>

#include <prologue/engine/gguf/dequantize.h>
#include <prologue/engine/model/weight_loader.h>

namespace prologue {

namespace {

WeightFormat weight_format(GgmlType type) {
  switch (type) {
    case GgmlType::q8_0: return WeightFormat::q8_0;
    case GgmlType::q4_0: return WeightFormat::q4_0;
    case GgmlType::q4_1: return WeightFormat::q4_1;
    case GgmlType::q5_0: return WeightFormat::q5_0;
    case GgmlType::q5_1: return WeightFormat::q5_1;
    case GgmlType::q4_k: return WeightFormat::q4_k;
    case GgmlType::q5_k: return WeightFormat::q5_k;
    case GgmlType::q6_k: return WeightFormat::q6_k;
    default: return WeightFormat::dense;
  }
}

}  // namespace

WeightLoader::WeightLoader(const GgufFile& file, DType dtype, const Execution& execution, std::function<void(double)> progress,
                           bool keep_quantized)
    : file_(file), dtype_(dtype), execution_(execution), progress_(std::move(progress)), keep_quantized_(keep_quantized) {
  for (const GgufTensor& tensor : file.tensors()) total_bytes_ += tensor.size_bytes;
}

Result<Weight> WeightLoader::load(const std::string& name, int64_t rows, int64_t cols) {
  return rows == 1 ? load_joined({{name, cols}}) : load_stacked({{name, rows}}, cols);
}

Result<Weight> WeightLoader::load_stacked(const std::vector<Part>& parts, int64_t cols) {
  std::vector<const GgufTensor*> tensors;
  int64_t rows = 0;
  for (const Part& part : parts) {
    PROLOGUE_ASSIGN_OR_RETURN(const GgufTensor* tensor, file_.tensor(part.name, {cols, part.rows}));
    tensors.push_back(tensor);
    rows += part.rows;
  }
  return can_pack(tensors) ? pack_tensors(tensors, rows, cols) : load_tensors(tensors, rows, cols);
}

Result<Weight> WeightLoader::load_joined(const std::vector<Part>& parts) {
  std::vector<const GgufTensor*> tensors;
  int64_t cols = 0;
  for (const Part& part : parts) {
    PROLOGUE_ASSIGN_OR_RETURN(const GgufTensor* tensor, file_.tensor(part.name, {part.rows}));
    tensors.push_back(tensor);
    cols += part.rows;
  }
  return load_tensors(tensors, 1, cols);
}

Result<unsigned char*> WeightLoader::allocate(int64_t num_bytes) {
  constexpr int64_t kBlockBytes = int64_t{64} << 20;
  constexpr int64_t kAlignment = 256;
  if (blocks_.empty() || block_used_ + num_bytes > blocks_.back().size_bytes()) {
    PROLOGUE_ASSIGN_OR_RETURN(Buffer block, Buffer::allocate(execution_.device, std::max(kBlockBytes, num_bytes)));
    blocks_.push_back(std::move(block));
    block_used_ = 0;
  }
  unsigned char* data = blocks_.back().as<unsigned char>() + block_used_;
  block_used_ += (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  return data;
}

Result<Weight> WeightLoader::load_tensors(const std::vector<const GgufTensor*>& tensors, int64_t rows, int64_t cols) {
  constexpr int64_t kElementsAtOnce = int64_t{2} << 20;
  const int64_t element = dtype_size(dtype_);
  const bool direct = execution_.device == Device::cpu;
  PROLOGUE_ASSIGN_OR_RETURN(unsigned char* const data, allocate(rows * cols * element));
  unsigned char* target = data;
  for (const GgufTensor* tensor : tensors) {
    // Rows are whole blocks without padding, so a tensor is one array of blocks.
    const GgmlTypeInfo& type = *ggml_type_info(tensor->type);
    const int64_t num_blocks = tensor->num_elements() / type.block_elements;
    const int64_t blocks_at_once = std::min(kElementsAtOnce / type.block_elements, num_blocks);
    const int64_t out_bytes = type.block_elements * element;  // of a block
    source_.resize(std::max(source_.size(), static_cast<size_t>(blocks_at_once * type.block_bytes)));
    if (!direct) staging_.resize(std::max(staging_.size(), static_cast<size_t>(blocks_at_once * out_bytes)));
    for (int64_t block = 0; block < num_blocks; block += blocks_at_once) {
      const int64_t count = std::min(blocks_at_once, num_blocks - block);
      void* const out = direct ? target : staging_.data();
      PROLOGUE_RETURN_IF_ERROR(file_.read(*tensor, block * type.block_bytes, count * type.block_bytes, source_.data()));
      PROLOGUE_RETURN_IF_ERROR(
          dequantize_rows(tensor->type, source_.data(), count, type.block_elements, dtype_, out, execution_.num_threads));
      if (!direct) PROLOGUE_RETURN_IF_ERROR(copy_to_device(target, out, count * out_bytes, execution_));
      target += count * out_bytes;
      this->count(count * type.block_bytes);
    }
  }
  return Weight{data, rows, cols, dtype_};
}

void WeightLoader::count(int64_t num_bytes) {
  done_bytes_ += num_bytes;
  if (progress_) progress_(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
}

bool WeightLoader::can_pack(const std::vector<const GgufTensor*>& tensors) const {
  return keep_quantized_ && tensors.size() <= static_cast<size_t>(kMaxWeightSegments) &&
         std::all_of(tensors.begin(), tensors.end(),
                     [](const GgufTensor* tensor) { return weight_format_is_packed(weight_format(tensor->type)); });
}

Result<Weight> WeightLoader::pack_tensors(const std::vector<const GgufTensor*>& tensors, int64_t rows, int64_t cols) {
  constexpr int64_t kBytesAtOnce = int64_t{2} << 20;
  Weight weight{nullptr, rows, cols, dtype_};
  for (const GgufTensor* tensor : tensors) {
    const WeightFormat format = weight_format(tensor->type);
    const int64_t num_rows = tensor->num_rows(), row_bytes = tensor->size_bytes / num_rows;
    PROLOGUE_ASSIGN_OR_RETURN(unsigned char* const data, allocate(packed_weight_bytes(format, num_rows, cols)));
    // Whole groups of rows at once.
    const int64_t rows_at_once = std::min(num_rows, std::max<int64_t>(1, kBytesAtOnce / (row_bytes * kPackedGroupRows)) * kPackedGroupRows);
    source_.resize(std::max(source_.size(), static_cast<size_t>(rows_at_once * row_bytes)));
    for (int64_t row = 0; row < num_rows; row += rows_at_once) {
      const int64_t count = std::min(rows_at_once, num_rows - row);
      PROLOGUE_RETURN_IF_ERROR(file_.read(*tensor, row * row_bytes, count * row_bytes, source_.data()));
      PROLOGUE_RETURN_IF_ERROR(pack_weight({format, count, cols, source_.data(), data + row * row_bytes}, execution_));
      this->count(count * row_bytes);
    }
    weight.packed.segments[weight.packed.num_segments++] = {data, format, num_rows};
    if (std::find(formats_.begin(), formats_.end(), format) == formats_.end()) formats_.push_back(format);
  }
  weight.data = weight.packed.segments[0].data;
  return weight;
}

}  // namespace prologue
