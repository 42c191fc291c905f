// Loads tensors of a checkpoint as weights on a device: packs them, or dequantises and converts them to the compute type, and arranges their
// rows as one GEMM uses them.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/layers/graph/graph.h>

namespace prologue {

// Names `rows` rows of a tensor that may have more: first_row, first_row + row_step, ... (of a vector: elements).
struct WeightPart {
  std::string name;
  int64_t rows = 0;
  int64_t first_row = 0;
};

struct WeightOptions {
  bool transposed = false;  // the file has [cols, rows]
  float add = 0.0f;         // to every element in float32, before it is rounded: Gemma's 1 + w
  int64_t row_step = 1;     // 2: every second row, as of gate and up that alternate
  bool convert = false;     // to the compute type also what is quantised (keep_quantized)
  // If it is above 0, the tensors are [experts, rows, cols] (transposed: [experts, cols, rows]; vectors: [experts, rows]), or, where a part's
  // name has "{e}", there is one for each expert. Rows are counted inside an expert, and the parts follow each other inside each: the weight is
  // [experts * sum of rows, cols] (vectors: [experts, sum of rows]). If it is packed, each part is a segment, with its rows of all experts.
  int64_t experts = 0;
  // Of matrices, columns [first_col, first_col + cols) of tensors that have tensor_cols. 0: the tensors have no other columns.
  int64_t first_col = 0, tensor_cols = 0;
};

// Dimensions of 1 at the front of a tensor's shape do not count: [1, n] is a vector too.
class WeightLoader {
 public:
  using Part = WeightPart;
  using Options = WeightOptions;

  // `progress` is called with the fraction of the checkpoint's tensor bytes that has been loaded. The checkpoint must outlive this.
  // keep_quantized: a matrix whose tensors are all quantised stays so, and is only packed (kernels/base/weight_format.h), on the CPU as on
  // CUDA. These are converted all the same: transposed matrices, those of more than kMaxWeightSegments parts, and those of experts of which a
  // part has another format for each expert, or rows that are no multiple of 16. The columns of packed matrices are whole blocks, so a multiple
  // of 32, 64, 128 or 256: a matrix of columns that begin or end inside a block of their tensor is converted, too.
  WeightLoader(const Checkpoint& checkpoint, DType dtype, const Execution& execution, std::function<void(double)> progress,
               bool keep_quantized = false);

  // Once *stop is true, loading ends with this error.
  static constexpr const char* kStopped = "loading was stopped";
  void set_stop(const std::atomic<bool>* stop) { stop_ = stop; }

  // ---- What the model needs, checked before the first weight is loaded ----

  void expect(std::string name, std::vector<int64_t> shape);
  // Returns one error that names every expected tensor that is missing (not_found), has another shape (data_loss) or a type that cannot be
  // read (unsupported); the code is that of the first of these that occurs. After success load functions do not fail for these reasons.
  Status check_expected() const;

  // ---- Measuring, before the first weight is loaded ----

  // While it is on, load functions read and allocate nothing: they only count what they would load, and return a weight whose data must not
  // be read. Both begin at zero.
  void set_measuring(bool measuring);
  // Returns resource_exhausted if what was counted needs more than `available` bytes of the device's memory.
  Status check_memory(int64_t available) const;

  // ---- Loading. A tensor then counts as used. ----

  // Loads all rows of the tensor as [rows, cols] (with `experts`: rows of one expert). rows = 1: a vector [cols]. row_step must be 1.
  Result<Weight> load(const std::string& name, int64_t rows, int64_t cols, const Options& options = {});
  // Loads rows of tensors with `cols` columns as one weight, the parts one after another. A tensor may occur several times.
  Result<Weight> load_stacked(const std::vector<Part>& parts, int64_t cols, const Options& options = {});
  // Loads elements of vectors as one vector, the parts one after another.
  Result<Weight> load_joined(const std::vector<Part>& parts, const Options& options = {});
  // Loads a vector as float32 on the host.
  Result<std::vector<float>> load_values(const std::string& name, int64_t count);

  bool has(const std::string& name) const { return checkpoint_.has_tensor(name); }
  // Whether two tensors that are there have the same type, shape and bytes. Both then count as used.
  Result<bool> are_same(const std::string& name, const std::string& other) const;

  const Checkpoint& checkpoint() const { return checkpoint_; }
  DType dtype() const { return dtype_; }
  const Execution& execution() const { return execution_; }
  std::vector<Buffer> take_weights() {
    block_used_.clear();
    return std::exchange(blocks_, {});
  }
  // Returns the formats of the packed weights so far, each once.
  const std::vector<WeightFormat>& formats() const { return formats_; }
  // Returns how the matrices so far are held: "q4_k and q6_k", "q4_k and bfloat16", "bfloat16".
  std::string types_text() const;
  // Returns the bytes of the weights so far, vectors included.
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  struct Expected {
    std::string name;
    std::vector<int64_t> shape;
  };
  // Says where the elements of a tensor are as rows: element (r, c) is at begin + r * row_stride + c * col_stride. A row of the tensor itself
  // has tensor_cols (transposed: unused).
  struct Slice {
    const TensorInfo* tensor = nullptr;
    int64_t begin = 0;
    int64_t rows = 0;
    int64_t cols = 0;
    int64_t row_stride = 0;
    int64_t col_stride = 1;
    int64_t tensor_cols = 0;
  };

  Result<const TensorInfo*> find(const std::string& name) const;
  // Returns those of all experts of the first part, then those of the second one, and so on.
  Result<std::vector<Slice>> slices_of(const std::vector<Part>& parts, bool is_vector, int64_t cols,
                                       const Options& options) const;
  Result<Slice> slice_of(const Part& part, int64_t expert, bool is_vector, int64_t cols, const Options& options) const;
  Status unexpected_shape(const TensorInfo& tensor, const std::string& expected) const;
  Status divided_block(const Slice& slice) const;
  // Whether rows of the slice begin or end inside blocks. (Rows of the tensor do not.)
  static bool divides_blocks(const Slice& slice);
  // Returns the slice with all columns of the blocks that it has columns of.
  static Slice with_whole_blocks(const Slice& slice);
  void count(const std::vector<Slice>& slices, const Options& options);

  Result<Weight> load_slices(const std::vector<Slice>& slices, const Options& options);
  bool can_pack(const std::vector<Slice>& slices, const Options& options) const;
  // Returns which scales of a segment of these slices are equal.
  static WeightScaling scaling_of(std::span<const Slice> slices);
  Result<Weight> pack_slices(const std::vector<Slice>& slices, const Options& options);
  Status pack(const Slice& slice, unsigned char*& target);
  void count_bytes(int64_t num_bytes);
  Status load_contiguous(const Slice& slice, float add, unsigned char*& target);
  Status load_strided(const Slice& slice, float add, unsigned char*& target);
  Status load_inside_blocks(const Slice& slice, float add, unsigned char*& target);
  // Reads rows [row, row + rows) of a slice whose rows are whole blocks, and returns them as one array of blocks.
  Result<const std::byte*> read_rows(const Slice& slice, int64_t row, int64_t rows);
  // Reads elements [first, first + count) of the tensor, whole blocks, to source_.
  Status read(const Slice& slice, int64_t first, int64_t count);
  // Converts `count` elements, copies them to the device and advances `target` past them.
  Status store(const TensorInfo& tensor, const std::byte* source, int64_t count, float add, unsigned char*& target);
  // These are parts of it: converts to the host's memory; returns where on the host to put what `target` will have; copies it there.
  Status convert(const TensorInfo& tensor, const std::byte* source, int64_t count, float add, void* out);
  unsigned char* on_host(unsigned char* target, int64_t num_bytes);
  Status put(const unsigned char* host, int64_t num_bytes, unsigned char*& target);
  // Allocates memory that the model will own, 256-byte aligned. That of small weights is a part of a large block, so that they do not waste
  // huge pages.
  Result<unsigned char*> allocate(int64_t num_bytes);

  const Checkpoint& checkpoint_;
  DType dtype_;
  Execution execution_;
  std::function<void(double)> progress_;
  bool keep_quantized_;
  const std::atomic<bool>* stop_ = nullptr;
  bool measuring_ = false;
  std::vector<WeightFormat> formats_;
  bool has_dense_matrices_ = false;
  int64_t weight_bytes_ = 0;
  std::vector<Expected> expected_;
  int64_t total_bytes_ = 0;  // of the tensors, or, once it was measured, of those that are loaded
  int64_t measured_bytes_ = 0;
  int64_t done_bytes_ = 0;
  std::vector<std::byte> source_;        // a piece of a tensor as the file has it
  std::vector<std::byte> gathered_;      // its rows, contiguous
  std::vector<float> sums_;              // in float32, if something is added
  std::vector<unsigned char> unpacked_;  // converted, with columns that are not needed
  std::vector<unsigned char> staging_;   // converted or packed, before the copy to another device
  std::vector<Buffer> blocks_;
  std::vector<int64_t> block_used_;  // bytes of each block
};

}  // namespace prologue
