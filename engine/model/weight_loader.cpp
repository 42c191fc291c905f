#include <algorithm>

#include <prologue/engine/gguf/dequantize.h>
#include <prologue/engine/model/weight_loader.h>

namespace prologue {

WeightLoader::WeightLoader(const GgufFile& file, DType dtype, const Execution& execution, std::function<void(double)> progress)
    : file_(file), dtype_(dtype), execution_(execution), progress_(std::move(progress)) {
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
  return load_tensors(tensors, rows, cols);
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
      done_bytes_ += count * type.block_bytes;
      if (progress_) progress_(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
    }
  }
  return Weight{data, rows, cols, dtype_};
}

}  // namespace prologue
