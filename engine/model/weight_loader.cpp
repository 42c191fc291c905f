#include <prologue/engine/model/weight_loader.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/checkpoint/name_list.h>
#include <prologue/engine/gguf/dequantize.h>
#include <prologue/engine/model/model_spec.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/internal/run.h>

namespace prologue {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{2} << 20;

// Weights of 4 bits of Hugging Face directories may lie transposed in the file: larger pieces take fewer and longer reads.
int64_t elements_at_once(GgmlType type) {
  const bool may_be_transposed = type == GgmlType::i4_32 || type == GgmlType::i4_64 || type == GgmlType::i4_128;
  return may_be_transposed ? 16 * kElementsAtOnce : kElementsAtOnce;
}

using Shape = std::vector<int64_t>;

Shape without_leading_ones(const Shape& shape) {
  return {std::find_if(shape.begin(), shape.end(), [](int64_t dim) { return dim != 1; }), shape.end()};
}

// Returns the shape with `rank` dimensions, with ones at its front; none if it has more.
std::optional<Shape> with_rank(const Shape& shape, size_t rank) {
  Shape dims = without_leading_ones(shape);
  if (dims.size() > rank) return std::nullopt;
  dims.insert(dims.begin(), rank - dims.size(), 1);
  return dims;
}

// Sets out[r, c] to the element at source[r * row_stride + c * col_stride], for elements of any size.
template <class Element>
void gather_elements(const std::byte* source, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride, std::byte* out,
                     int num_threads) {
  constexpr int64_t kTile = 64;  // both sides of a tile stay in the cache
  parallel_for(divide_up(rows, kTile), num_threads, [&](int64_t tile) {
    const int64_t first = tile * kTile, end = std::min(first + kTile, rows);
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = first; r < end; ++r) {
        for (int64_t c = c0; c < std::min(c0 + kTile, cols); ++c) {
          constexpr auto kSize = static_cast<int64_t>(sizeof(Element));
          std::memcpy(out + (r * cols + c) * kSize, source + (r * row_stride + c * col_stride) * kSize, sizeof(Element));
        }
      }
    }
  });
}

int64_t columns_of_tensor(const WeightOptions& options, int64_t cols) {
  return options.tensor_cols > 0 ? options.tensor_cols : cols;
}

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
    case GgmlType::f8_e4m3: return WeightFormat::f8_e4m3;
    case GgmlType::i8: return WeightFormat::i8;
    case GgmlType::q2_k: return WeightFormat::q2_k;
    case GgmlType::q3_k: return WeightFormat::q3_k;
    case GgmlType::iq4_nl: return WeightFormat::iq4_nl;
    case GgmlType::iq4_xs: return WeightFormat::iq4_xs;
    case GgmlType::mxfp4: return WeightFormat::mxfp4;
    case GgmlType::i4_32: return WeightFormat::i4_32;
    case GgmlType::i4_64: return WeightFormat::i4_64;
    case GgmlType::i4_128: return WeightFormat::i4_128;
    case GgmlType::nvfp4_blocks: return WeightFormat::nvfp4;
    default: return WeightFormat::dense;
  }
}

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, DType dtype, const Execution& execution,
                           std::function<void(double)> progress, bool keep_quantized)
    : checkpoint_(checkpoint),
      dtype_(dtype),
      execution_(execution),
      progress_(std::move(progress)),
      keep_quantized_(keep_quantized) {
  for (const TensorInfo& tensor : checkpoint.tensors()) total_bytes_ += tensor.size_bytes;
}

// ---- What the model needs ----

void WeightLoader::expect(std::string name, std::vector<int64_t> shape) {
  expected_.push_back({std::move(name), std::move(shape)});
}

Status WeightLoader::check_expected() const {
  std::unordered_map<std::string_view, const TensorInfo*> tensors;
  for (const TensorInfo& tensor : checkpoint_.tensors()) tensors.emplace(tensor.name, &tensor);
  std::vector<std::string> missing, misshapen, unreadable;
  for (const Expected& expected : expected_) {
    const auto found = tensors.find(expected.name);
    if (found == tensors.end()) {
      missing.push_back(expected.name);
      continue;
    }
    const TensorInfo& tensor = *found->second;
    if (without_leading_ones(tensor.shape) != without_leading_ones(expected.shape)) {
      misshapen.push_back(str_cat(expected.name, " ", shape_text(tensor.shape), " instead of ", shape_text(expected.shape)));
    } else if (ggml_type_info(tensor.type) == nullptr) {
      unreadable.push_back(str_cat(expected.name, " ", tensor.type_name));
    }
  }
  std::string problems;
  const auto add = [&](const char* what, const std::vector<std::string>& names, const std::string& rule) {
    if (!names.empty()) problems += (problems.empty() ? "" : "; ") + std::string(what) + name_list(names) + rule;
  };
  add("tensors are missing: ", missing, "");
  add("tensors have another shape: ", misshapen, "");
  add("tensors have a type that is not supported: ", unreadable, ": supported are " + supported_ggml_types());
  if (problems.empty()) return {};
  const StatusCode code = !missing.empty()     ? StatusCode::not_found
                          : !misshapen.empty() ? StatusCode::data_loss
                                               : StatusCode::unsupported;
  return error_status(code, checkpoint_.path(), ": ", problems);
}

// ---- Measuring ----

void WeightLoader::set_measuring(bool measuring) {
  measuring_ = measuring;
  if (!measuring && measured_bytes_ > 0) total_bytes_ = measured_bytes_;
  measured_bytes_ = 0;
  formats_.clear();
  has_dense_matrices_ = false;
  weight_bytes_ = 0;
}

Status WeightLoader::check_memory(int64_t available) const {
  if (weight_bytes_ <= available) return {};
  return resource_exhausted(checkpoint_.path(), ": its weights need ", weight_bytes_ / 1000000, " MB as ", types_text(),
                            ", but only ", available / 1000000, " MB of ",
                            execution_.device == Device::cpu ? "memory" : "GPU memory", " are available");
}

std::string WeightLoader::types_text() const {
  std::vector<const char*> types;
  for (const WeightFormat format : formats_) types.push_back(weight_format_name(format));
  if (has_dense_matrices_ || types.empty()) types.push_back(dtype_name(dtype_));
  std::string text;
  for (size_t i = 0; i < types.size(); ++i) text += str_cat(i == 0 ? "" : i + 1 == types.size() ? " and " : ", ", types[i]);
  return text;
}

void WeightLoader::count(const std::vector<Slice>& slices, const Options& options) {
  const bool packed = can_pack(slices, options);
  for (const Slice& slice : slices) {
    const WeightFormat format = packed ? weight_format(slice.tensor->type) : WeightFormat::dense;
    const GgmlTypeInfo& type = *ggml_type_info(slice.tensor->type);
    const int64_t read_cols = divides_blocks(slice) ? with_whole_blocks(slice).cols : slice.cols;
    if (measuring_) measured_bytes_ += slice.rows * read_cols / type.block_elements * type.block_bytes;
    weight_bytes_ += packed ? packed_weight_bytes(format, slice.rows, slice.cols) : slice.rows * slice.cols * dtype_size(dtype_);
    if (packed && std::find(formats_.begin(), formats_.end(), format) == formats_.end()) formats_.push_back(format);
  }
  has_dense_matrices_ = has_dense_matrices_ || (!packed && slices.front().cols > 1);  // a vector is a column
}

// ---- Loading ----

Result<const TensorInfo*> WeightLoader::find(const std::string& name) const {
  const TensorInfo* tensor = checkpoint_.tensor(name);
  if (tensor == nullptr) return not_found(checkpoint_.path(), ": the tensor ", printable(name), " is missing");
  if (ggml_type_info(tensor->type) == nullptr) {
    return unsupported(checkpoint_.path(), ": tensor ", printable(name), " has type ", printable(tensor->type_name),
                       ": supported are ", supported_ggml_types());
  }
  return tensor;
}

Status WeightLoader::unexpected_shape(const TensorInfo& tensor, const std::string& expected) const {
  return data_loss(checkpoint_.path(), ": tensor ", printable(tensor.name), " has shape ", shape_text(tensor.shape), ": ",
                   expected, " is expected");
}

Result<Weight> WeightLoader::load(const std::string& name, int64_t rows, int64_t cols, const Options& options) {
  PROLOGUE_ASSIGN_OR_RETURN(const TensorInfo* const tensor, find(name));
  const int64_t tensor_cols = columns_of_tensor(options, cols);
  Shape shape = rows == 1 ? Shape{tensor_cols} : options.transposed ? Shape{tensor_cols, rows} : Shape{rows, tensor_cols};
  if (options.experts > 0) shape.insert(shape.begin(), options.experts);
  if (without_leading_ones(tensor->shape) != without_leading_ones(shape)) return unexpected_shape(*tensor, shape_text(shape));
  const bool is_vector = rows == 1 && options.tensor_cols == 0;
  return is_vector ? load_joined({{name, cols}}, options) : load_stacked({{name, rows}}, cols, options);
}

Result<Weight> WeightLoader::load_stacked(const std::vector<Part>& parts, int64_t cols, const Options& options) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<Slice> slices, slices_of(parts, false, cols, options));
  return load_slices(slices, options);
}

Result<Weight> WeightLoader::load_joined(const std::vector<Part>& parts, const Options& options) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<Slice> slices, slices_of(parts, true, 1, options));
  PROLOGUE_ASSIGN_OR_RETURN(const Weight column, load_slices(slices, options));
  const int64_t vectors = std::max<int64_t>(1, options.experts);
  return Weight{column.data, vectors, column.rows / vectors, column.dtype};
}

Result<std::vector<float>> WeightLoader::load_values(const std::string& name, int64_t count) {
  PROLOGUE_ASSIGN_OR_RETURN(const TensorInfo* const tensor, find(name));
  if (without_leading_ones(tensor->shape) != without_leading_ones({count})) {
    return unexpected_shape(*tensor, shape_text({count}));
  }
  std::vector<std::byte> source(static_cast<size_t>(tensor->size_bytes));
  std::vector<float> values(static_cast<size_t>(count));
  PROLOGUE_RETURN_IF_ERROR(checkpoint_.read(*tensor, 0, tensor->size_bytes, source.data()));
  PROLOGUE_RETURN_IF_ERROR(dequantize_rows(tensor->type, source.data(), 1, count, DType::f32, values.data(), 1));
  return values;
}

Result<bool> WeightLoader::are_same(const std::string& name, const std::string& other) const {
  constexpr int64_t kBytesAtOnce = int64_t{4} << 20;
  const TensorInfo* const tensors[] = {checkpoint_.tensor(name), checkpoint_.tensor(other)};
  if (tensors[0]->type_name != tensors[1]->type_name || tensors[0]->shape != tensors[1]->shape) return false;
  const int64_t size = tensors[0]->size_bytes;
  std::vector<std::byte> bytes[2];
  for (std::vector<std::byte>& of : bytes) of.resize(static_cast<size_t>(std::min(kBytesAtOnce, size)));
  for (int64_t done = 0; done < size; done += kBytesAtOnce) {
    const int64_t count = std::min(kBytesAtOnce, size - done);
    for (size_t i = 0; i < 2; ++i) PROLOGUE_RETURN_IF_ERROR(checkpoint_.read(*tensors[i], done, count, bytes[i].data()));
    if (std::memcmp(bytes[0].data(), bytes[1].data(), static_cast<size_t>(count)) != 0) return false;
  }
  return true;
}

Result<std::vector<WeightLoader::Slice>> WeightLoader::slices_of(const std::vector<Part>& parts, bool is_vector, int64_t cols,
                                                                 const Options& options) const {
  std::vector<Slice> slices;
  for (const Part& part : parts) {
    if (part.rows < 1 || part.first_row < 0 || options.row_step < 1 || options.experts < 0) {
      return invalid_argument("tensor ", printable(part.name), ": ", part.rows, " rows from ", part.first_row, " in steps of ",
                              options.row_step, " of ", options.experts, " experts: must be at least 1, 0, 1 and 0");
    }
    const int64_t tensor_cols = columns_of_tensor(options, cols);
    if (options.first_col < 0 || options.first_col > tensor_cols - cols || (is_vector && options.tensor_cols != 0)) {
      return invalid_argument("tensor ", printable(part.name), ": ", cols, " columns from ", options.first_col, " of ",
                              tensor_cols, is_vector ? " of a vector" : "", ": must be columns of a matrix");
    }
    for (int64_t expert = 0; expert < std::max<int64_t>(1, options.experts); ++expert) {
      PROLOGUE_ASSIGN_OR_RETURN(const Slice slice, slice_of(part, expert, is_vector, cols, options));
      slices.push_back(slice);
    }
  }
  return slices;
}

Result<WeightLoader::Slice> WeightLoader::slice_of(const Part& part, int64_t expert, bool is_vector, int64_t cols,
                                                   const Options& options) const {
  const bool transposed = options.transposed && !is_vector;
  const int64_t tensor_cols = columns_of_tensor(options, cols);
  const bool has_all_experts = options.experts > 0 && part.name.find("{e}") == std::string::npos;
  PROLOGUE_ASSIGN_OR_RETURN(const TensorInfo* const tensor, find(with_number(part.name, expert, "{e}")));
  // The tensor is read as [experts, outer, inner]; the rows are one of these two.
  auto dims = with_rank(tensor->shape, (has_all_experts ? 1 : 0) + (is_vector ? 1 : 2));
  if (dims && is_vector) dims->push_back(1);
  if (dims && !has_all_experts) dims->insert(dims->begin(), 1);
  const int64_t rows = !dims ? 0 : (*dims)[transposed ? 2 : 1];
  if (!dims || dims->front() != (has_all_experts ? options.experts : 1) || (*dims)[transposed ? 1 : 2] != tensor_cols ||
      part.first_row >= rows || part.rows - 1 > (rows - 1 - part.first_row) / options.row_step) {
    const std::string of_experts = has_all_experts ? str_cat(options.experts, " experts of ") : "";
    return unexpected_shape(
        *tensor, str_cat(of_experts, part.rows, " rows from ", part.first_row, " in steps of ", options.row_step, ", of ",
                         tensor_cols, transposed ? " elements, transposed," : " elements"));
  }
  const int64_t begin = has_all_experts ? expert * rows * tensor_cols : 0;
  if (transposed) {
    return Slice{tensor, begin + options.first_col * rows + part.first_row, part.rows, cols, options.row_step, rows};
  }
  const int64_t first = part.first_row * tensor_cols + options.first_col;
  return Slice{tensor, begin + first, part.rows, cols, options.row_step * tensor_cols, 1, tensor_cols};
}

Result<unsigned char*> WeightLoader::allocate(int64_t num_bytes) {
  // Blocks grow, so that a small model takes little memory. Smaller ones would not be aligned on the host (kernels/base/memory.h). A large
  // weight has a block of its own, and a small one goes into the first block with room for it: the memory of a GPU is taken whether it is
  // used or not.
  constexpr int64_t kFirstBlockBytes = int64_t{2} << 20;
  constexpr int64_t kLargestBlockBytes = int64_t{64} << 20;
  constexpr int64_t kLargeBytes = int64_t{16} << 20;
  constexpr int64_t kAlignment = 256;
  size_t block = 0;
  while (block < blocks_.size() && block_used_[block] + num_bytes > blocks_[block].size_bytes()) ++block;
  if (block == blocks_.size()) {
    const int64_t growing_bytes =
        blocks_.empty() ? kFirstBlockBytes : std::min(4 * blocks_.back().size_bytes(), kLargestBlockBytes);
    const int64_t block_bytes = num_bytes >= kLargeBytes ? num_bytes : std::max(growing_bytes, num_bytes);
    PROLOGUE_ASSIGN_OR_RETURN(Buffer memory, Buffer::allocate(execution_.device, block_bytes));
    blocks_.push_back(std::move(memory));
    block_used_.push_back(0);
  }
  unsigned char* const data = blocks_[block].as<unsigned char>() + block_used_[block];
  block_used_[block] += round_up(num_bytes, kAlignment);
  return data;
}

bool WeightLoader::can_pack(const std::vector<Slice>& slices, const Options& options) const {
  if (!keep_quantized_ || options.convert || options.add != 0.0f) return false;
  const size_t experts = static_cast<size_t>(std::max<int64_t>(1, options.experts));
  if (slices.size() > static_cast<size_t>(kMaxWeightSegments) * experts) return false;
  for (size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = slices[i];
    const WeightFormat format = weight_format(slice.tensor->type);
    if (!weight_format_is_packed(format) || slice.col_stride != 1 || slice.cols % weight_block_elements(format) != 0)
      return false;
    if (slice.begin % weight_block_elements(format) != 0) return false;
    if (format != weight_format(slices[i / experts * experts].tensor->type)) return false;
    if (options.experts > 0 && slice.rows % kPackedGroupRows != 0) return false;
  }
  return true;
}

// Blocks are packed on the host; for CUDA a piece at a time in staging_.
Status WeightLoader::pack(const Slice& slice, unsigned char*& target) {
  const WeightFormat format = weight_format(slice.tensor->type);
  const int64_t row_bytes = slice.cols / weight_block_elements(format) * weight_block_bytes(format);
  const int64_t at_once = std::max<int64_t>(1, elements_at_once(slice.tensor->type) / (slice.row_stride * kPackedGroupRows)) *
                          kPackedGroupRows;  // groups
  for (int64_t row = 0; row < slice.rows; row += at_once) {
    const int64_t rows = std::min(at_once, slice.rows - row), packed_bytes = packed_weight_bytes(format, rows, slice.cols);
    PROLOGUE_ASSIGN_OR_RETURN(const std::byte* const blocks, read_rows(slice, row, rows));
    unsigned char* const packed = on_host(target, packed_bytes);
    const Execution host{Device::cpu, execution_.num_threads};
    PROLOGUE_RETURN_IF_ERROR(pack_weight({format, rows, slice.cols, blocks, packed}, host));
    PROLOGUE_RETURN_IF_ERROR(put(packed, packed_bytes, target));
    count_bytes(rows * row_bytes);
  }
  return {};
}

// Squares are those of the tensor: a segment has them if each slice begins with one, and all but the last end with one. (Columns that are
// packed always do: they are whole blocks.)
WeightScaling WeightLoader::scaling_of(std::span<const Slice> slices) {
  constexpr int64_t kSquareRows = 128;
  const WeightScaling scaling = slices.front().tensor->scaling;
  for (const Slice& slice : slices) {
    if (slice.tensor->scaling != scaling) return WeightScaling::blocks;
    if (scaling != WeightScaling::squares) continue;
    const bool is_last = &slice == &slices.back();
    const bool in_squares = slice.row_stride == slice.tensor_cols && slice.begin / slice.tensor_cols % kSquareRows == 0;
    if (!in_squares || (!is_last && slice.rows % kSquareRows != 0)) return WeightScaling::blocks;
  }
  return scaling;
}

Result<Weight> WeightLoader::pack_slices(const std::vector<Slice>& slices, const Options& options) {
  const size_t experts = static_cast<size_t>(std::max<int64_t>(1, options.experts));
  Weight weight{nullptr, 0, slices.front().cols, dtype_};
  for (size_t i = 0; i < slices.size(); i += experts) {
    const WeightFormat format = weight_format(slices[i].tensor->type);
    int64_t rows = 0, bytes = 0;
    for (size_t e = 0; e < experts; ++e) {
      rows += slices[i + e].rows, bytes += packed_weight_bytes(format, slices[i + e].rows, slices[i + e].cols);
    }
    PROLOGUE_ASSIGN_OR_RETURN(unsigned char* const data, allocate(bytes));
    unsigned char* target = data;
    for (size_t e = 0; e < experts; ++e) PROLOGUE_RETURN_IF_ERROR(pack(slices[i + e], target));
    weight.rows += rows;
    weight.packed.segments[weight.packed.num_segments++] = {data, format, rows,
                                                            scaling_of(std::span(slices).subspan(i, experts))};
  }
  weight.data = weight.packed.segments[0].data;
  return weight;
}

Result<Weight> WeightLoader::load_slices(const std::vector<Slice>& slices, const Options& options) {
  count(slices, options);
  const size_t experts = static_cast<size_t>(std::max<int64_t>(1, options.experts));
  const int64_t cols = slices.front().cols;
  int64_t rows = 0;
  for (const Slice& slice : slices) rows += slice.rows;
  if (measuring_) return Weight{this, rows, cols, dtype_};
  if (can_pack(slices, options)) return pack_slices(slices, options);
  PROLOGUE_ASSIGN_OR_RETURN(unsigned char* const data, allocate(rows * cols * dtype_size(dtype_)));
  unsigned char* target = data;
  for (size_t expert = 0; expert < experts; ++expert) {
    for (size_t i = expert; i < slices.size(); i += experts) {
      const Slice& slice = slices[i];
      const bool contiguous = slice.col_stride == 1 && slice.row_stride == slice.cols;
      PROLOGUE_RETURN_IF_ERROR(contiguous ? load_contiguous(slice, options.add, target)
                                          : load_strided(slice, options.add, target));
    }
  }
  return Weight{data, rows, cols, dtype_};
}

// Rows are whole blocks without padding, so they are one array of blocks.
Status WeightLoader::load_contiguous(const Slice& slice, float add, unsigned char*& target) {
  const GgmlTypeInfo& type = *ggml_type_info(slice.tensor->type);
  const int64_t count = slice.rows * slice.cols;
  if (slice.begin % type.block_elements != 0 || count % type.block_elements != 0) return divided_block(slice);
  const int64_t at_once = elements_at_once(slice.tensor->type) / type.block_elements * type.block_elements;
  for (int64_t done = 0; done < count; done += at_once) {
    const int64_t piece = std::min(at_once, count - done);
    PROLOGUE_RETURN_IF_ERROR(read(slice, slice.begin + done, piece));
    PROLOGUE_RETURN_IF_ERROR(store(*slice.tensor, source_.data(), piece, add, target));
  }
  return {};
}

Status WeightLoader::load_strided(const Slice& slice, float add, unsigned char*& target) {
  const GgmlTypeInfo& type = *ggml_type_info(slice.tensor->type);
  if (divides_blocks(slice)) return load_inside_blocks(slice, add, target);
  const bool in_rows = slice.col_stride == 1;
  if (in_rows ? slice.cols % type.block_elements != 0 : type.block_elements != 1) return divided_block(slice);
  if (in_rows) {
    const int64_t at_once = std::max<int64_t>(1, elements_at_once(slice.tensor->type) / slice.row_stride);
    for (int64_t row = 0; row < slice.rows; row += at_once) {
      const int64_t rows = std::min(at_once, slice.rows - row);
      PROLOGUE_ASSIGN_OR_RETURN(const std::byte* const source, read_rows(slice, row, rows));
      PROLOGUE_RETURN_IF_ERROR(store(*slice.tensor, source, rows * slice.cols, add, target));
    }
    return {};
  }
  // Transposed, every row is all over the slice: it is read once.
  const int64_t span = (slice.rows - 1) * slice.row_stride + (slice.cols - 1) * slice.col_stride + 1;
  PROLOGUE_RETURN_IF_ERROR(read(slice, slice.begin, span));
  gathered_.resize(std::max(gathered_.size(), static_cast<size_t>(slice.rows * slice.cols * type.block_bytes)));
  const auto gather = type.block_bytes == 8   ? gather_elements<uint64_t>
                      : type.block_bytes == 4 ? gather_elements<uint32_t>
                                              : gather_elements<uint16_t>;
  gather(source_.data(), slice.rows, slice.cols, slice.row_stride, slice.col_stride, gathered_.data(), execution_.num_threads);
  return store(*slice.tensor, gathered_.data(), slice.rows * slice.cols, add, target);
}

bool WeightLoader::divides_blocks(const Slice& slice) {
  const int64_t block = ggml_type_info(slice.tensor->type)->block_elements;
  return slice.col_stride == 1 && slice.row_stride % block == 0 && (slice.begin % block != 0 || slice.cols % block != 0);
}

WeightLoader::Slice WeightLoader::with_whole_blocks(const Slice& slice) {
  const int64_t block = ggml_type_info(slice.tensor->type)->block_elements, before = slice.begin % block;
  Slice whole = slice;
  whole.begin -= before;
  whole.cols = round_up(before + slice.cols, block);
  return whole;
}

// Whole blocks are converted, and the columns taken from what they give.
Status WeightLoader::load_inside_blocks(const Slice& slice, float add, unsigned char*& target) {
  const GgmlTypeInfo& type = *ggml_type_info(slice.tensor->type);
  const Slice whole = with_whole_blocks(slice);
  const int64_t before = slice.begin - whole.begin, size = dtype_size(dtype_), row_bytes = slice.cols * size;
  const int64_t at_once = std::max<int64_t>(1, elements_at_once(slice.tensor->type) / slice.row_stride);
  for (int64_t row = 0; row < slice.rows; row += at_once) {
    const int64_t rows = std::min(at_once, slice.rows - row), count = rows * whole.cols;
    PROLOGUE_ASSIGN_OR_RETURN(const std::byte* const source, read_rows(whole, row, rows));
    unpacked_.resize(std::max(unpacked_.size(), static_cast<size_t>(count * size)));
    PROLOGUE_RETURN_IF_ERROR(convert(*slice.tensor, source, count, add, unpacked_.data()));
    unsigned char* const host = on_host(target, rows * row_bytes);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(host + r * row_bytes, unpacked_.data() + (r * whole.cols + before) * size, static_cast<size_t>(row_bytes));
    }
    PROLOGUE_RETURN_IF_ERROR(put(host, rows * row_bytes, target));
    count_bytes(count / type.block_elements * type.block_bytes);
  }
  return {};
}

Result<const std::byte*> WeightLoader::read_rows(const Slice& slice, int64_t row, int64_t rows) {
  const GgmlTypeInfo& type = *ggml_type_info(slice.tensor->type);
  const auto bytes_of = [&](int64_t elements) { return static_cast<size_t>(elements / type.block_elements * type.block_bytes); };
  PROLOGUE_RETURN_IF_ERROR(read(slice, slice.begin + row * slice.row_stride, (rows - 1) * slice.row_stride + slice.cols));
  if (slice.row_stride == slice.cols) return source_.data();
  gathered_.resize(std::max(gathered_.size(), bytes_of(rows * slice.cols)));
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(gathered_.data() + bytes_of(r * slice.cols), source_.data() + bytes_of(r * slice.row_stride),
                bytes_of(slice.cols));
  }
  return gathered_.data();
}

Status WeightLoader::divided_block(const Slice& slice) const {
  return unsupported(checkpoint_.path(), ": of tensor ", printable(slice.tensor->name), " of type ", slice.tensor->type_name,
                     " rows or columns are needed that are parts of blocks");
}

Status WeightLoader::read(const Slice& slice, int64_t first, int64_t count) {
  if (stop_ != nullptr && stop_->load()) return resource_exhausted(kStopped);
  const GgmlTypeInfo& type = *ggml_type_info(slice.tensor->type);
  const int64_t bytes = count / type.block_elements * type.block_bytes;
  source_.resize(std::max(source_.size(), static_cast<size_t>(bytes)));
  return checkpoint_.read(*slice.tensor, first / type.block_elements * type.block_bytes, bytes, source_.data());
}

Status WeightLoader::store(const TensorInfo& tensor, const std::byte* source, int64_t count, float add, unsigned char*& target) {
  const GgmlTypeInfo& type = *ggml_type_info(tensor.type);
  const int64_t out_bytes = count * dtype_size(dtype_);
  unsigned char* const host = on_host(target, out_bytes);
  PROLOGUE_RETURN_IF_ERROR(convert(tensor, source, count, add, host));
  PROLOGUE_RETURN_IF_ERROR(put(host, out_bytes, target));
  count_bytes(count / type.block_elements * type.block_bytes);
  return {};
}

Status WeightLoader::convert(const TensorInfo& tensor, const std::byte* source, int64_t count, float add, void* out) {
  const GgmlTypeInfo& type = *ggml_type_info(tensor.type);
  const int64_t num_blocks = count / type.block_elements;
  const int threads = execution_.num_threads;
  if (add == 0.0f) return dequantize_rows(tensor.type, source, num_blocks, type.block_elements, dtype_, out, threads);
  sums_.resize(std::max(sums_.size(), static_cast<size_t>(count)));
  PROLOGUE_RETURN_IF_ERROR(
      dequantize_rows(tensor.type, source, num_blocks, type.block_elements, DType::f32, sums_.data(), threads));
  for (int64_t i = 0; i < count; ++i) sums_[static_cast<size_t>(i)] += add;
  return dequantize_rows(GgmlType::f32, sums_.data(), count, 1, dtype_, out, threads);
}

unsigned char* WeightLoader::on_host(unsigned char* target, int64_t num_bytes) {
  if (execution_.device == Device::cpu) return target;
  staging_.resize(std::max(staging_.size(), static_cast<size_t>(num_bytes)));
  return staging_.data();
}

Status WeightLoader::put(const unsigned char* host, int64_t num_bytes, unsigned char*& target) {
  if (host != target) PROLOGUE_RETURN_IF_ERROR(copy_to_device(target, host, num_bytes, execution_));
  target += num_bytes;
  return {};
}

void WeightLoader::count_bytes(int64_t num_bytes) {
  done_bytes_ += num_bytes;
  if (progress_) progress_(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
}

}  // namespace prologue
