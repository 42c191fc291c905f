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
  constexpr int64_t kStagingBytes = int64_t{8} << 20;
  const int64_t element = dtype_size(dtype_);
  PROLOGUE_ASSIGN_OR_RETURN(unsigned char* const data, allocate(rows * cols * element));
  unsigned char* target = data;
  for (const GgufTensor* tensor : tensors) {
    const int64_t row_bytes = tensor->row_elements() * element;
    const int64_t source_row_bytes = tensor->size_bytes / tensor->num_rows();
    const bool direct = execution_.device == Device::cpu;
    const int64_t rows_at_once = direct ? tensor->num_rows() : std::max<int64_t>(1, kStagingBytes / row_bytes);
    for (int64_t row = 0; row < tensor->num_rows(); row += rows_at_once) {
      const int64_t count = std::min(rows_at_once, tensor->num_rows() - row);
      void* out = target;
      if (!direct) {
        staging_.resize(static_cast<size_t>(std::max(kStagingBytes, row_bytes)));
        out = staging_.data();
      }
      PROLOGUE_RETURN_IF_ERROR(dequantize_rows(tensor->type, tensor->data + row * source_row_bytes, count, tensor->row_elements(),
                                               dtype_, out, execution_.num_threads));
      if (!direct) PROLOGUE_RETURN_IF_ERROR(copy_to_device(target, out, count * row_bytes, execution_));
      target += count * row_bytes;
      done_bytes_ += count * source_row_bytes;
      if (progress_) progress_(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
    }
    file_.discard(*tensor);
  }
  return Weight{data, rows, cols, dtype_};
}

}  // namespace prologue
