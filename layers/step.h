// The inputs of one step: the tokens of each sequence, their positions, and the slots of their K and V. The graph reads them from
// device arrays, so a captured step can be replayed after only these arrays were updated.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// Device arrays: num_tokens tokens of num_seqs sequences, packed one sequence after another.
struct StepInputs {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
  int64_t num_logit_rows = 0;
  int64_t max_seqlen_q = 0;  // host upper bounds, see kernels/paged_attention/paged_attention.h
  int64_t max_seq_len = 0;

  const int32_t* token_ids = nullptr;     // [num_tokens]
  const int32_t* positions = nullptr;     // [num_position_axes, num_tokens]: the rope positions
  const int64_t* slot_mapping = nullptr;  // [num_tokens]: slots of K and V; negative = not stored
  const int32_t* cu_seqlens_q = nullptr;  // [num_seqs + 1]
  const int32_t* seq_lens = nullptr;      // [num_seqs], after the append
  const int32_t* block_table = nullptr;   // [num_seqs, block_table_stride]
  int64_t block_table_stride = 0;
  const int32_t* logit_rows = nullptr;  // [num_logit_rows]: the tokens that need logits
  int64_t num_position_axes = 1;        // more than 1 for MRoPE; rows of positions are position_axis_stride apart
  int64_t position_axis_stride = kUnsetStride;
};

// The members of StepInputs by name: what the parameters of an operation may be bound to (layers/graph).
enum class StepArray : int32_t { token_ids = 0, positions, slot_mapping, cu_seqlens_q, seq_lens, block_table, logit_rows };
inline constexpr int32_t kNumStepArrays = 7;
enum class StepCount : int32_t {
  num_tokens = 0,
  num_seqs,
  num_logit_rows,
  max_seqlen_q,
  max_seq_len,
  block_table_stride,
  position_axis_stride,
};

struct StepMember {
  const char* name;
  int32_t offset;  // in StepInputs, in bytes; every member has 8
  DType type;      // of the elements of an array
};
PROLOGUE_API StepMember step_member(StepArray array);
PROLOGUE_API StepMember step_member(StepCount count);

// A step on the host, filled sequence by sequence. If a call breaks a rule or there is no memory, the batch keeps that error and ignores
// everything added later; StepBuffers::upload returns the error.
class PROLOGUE_API StepBatch {
 public:
  // The number of position axes: 1, or up to 4 (MRoPE).
  explicit StepBatch(int64_t num_position_axes = 1);

  void clear();
  // Adds the next sequence of the batch: new tokens at positions first_position, first_position + 1, ..., in the pages of
  // `block_table`. These are their rope positions and their cache positions. The last `num_logit_rows` tokens get logits.
  //   num_tokens >= 0, 0 <= num_logit_rows <= num_tokens, first_position >= 0, first_position + num_tokens < 2^31, page_size >= 1;
  //   block_table has pages for all of first_position + num_tokens tokens, none of them negative
  void add_sequence(const int32_t* tokens, int64_t num_tokens, int64_t first_position, const std::vector<int32_t>& block_table,
                    int64_t page_size, int64_t num_logit_rows);
  // Sets the rope position of a token of the batch on one axis (initially its cache position on each axis). Its cache position does
  // not change.
  //   0 <= token < num_tokens(), 0 <= axis < num_position_axes
  void set_position(int64_t token, int64_t axis, int32_t position);

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids_.size()); }
  int64_t num_seqs() const { return static_cast<int64_t>(seq_lens_.size()); }
  int64_t num_logit_rows() const { return static_cast<int64_t>(logit_rows_.size()); }
  const Status& status() const { return status_; }

 private:
  friend class StepBuffers;
  Status check_sequence(const int32_t* tokens, int64_t num_tokens, int64_t first_position,
                        const std::vector<int32_t>& block_table, int64_t page_size, int64_t num_logit_rows) const;

  Status status_;
  std::vector<int32_t> token_ids_;
  std::vector<std::vector<int32_t>> positions_;  // by axis
  std::vector<int64_t> slot_mapping_;
  std::vector<int32_t> ends_;  // of the sequences' tokens
  std::vector<int32_t> seq_lens_;
  std::vector<std::vector<int32_t>> block_tables_;
  std::vector<int32_t> logit_rows_;
  int64_t max_seqlen_q_ = 0;
  int64_t max_seq_len_ = 0;
};

// The device arrays: one buffer, sized once for the largest step, filled by one copy per step.
class PROLOGUE_API StepBuffers {
 public:
  StepBuffers() = default;
  // Block tables take max_seqs * max_pages_per_seq entries; max_pages_per_seq is what the longest sequence needs, not the whole cache.
  // invalid_argument: a size is not in 0..2^31 - 1, or num_position_axes is not in 1..4. resource_exhausted: there is not enough
  // memory.
  static Result<StepBuffers> create(int64_t max_tokens, int64_t max_seqs, int64_t max_pages_per_seq, Device device,
                                    int64_t num_position_axes = 1);

  // Copies in stream order, after waiting for the copy of the previous upload. The StepInputs are valid until the next upload. A CUDA
  // graph may capture it (StagingBuffer in kernels/base/memory.h). Errors: those of the batch; invalid_argument: the batch is larger
  // than these buffers.
  Result<StepInputs> upload(const StepBatch& batch, const Execution& execution);

 private:
  int64_t max_tokens_ = 0;
  int64_t max_seqs_ = 0;
  int64_t max_pages_per_seq_ = 0;
  int64_t num_position_axes_ = 1;
  StagingBuffer staging_;
  Buffer device_;
};

}  // namespace prologue
