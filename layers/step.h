// What one step brings along: which tokens of which sequences, where they stand, where their K and V go. The graph reads it
// from device arrays, so that a captured step replays over nothing but updated arrays.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// Device arrays. num_tokens tokens of num_seqs sequences, packed sequence after sequence.
struct StepInputs {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
  int64_t num_logit_rows = 0;
  int64_t max_seqlen_q = 0;  // host upper bounds, see kernels/paged_attention/paged_attention.h
  int64_t max_seq_len = 0;

  const int32_t* token_ids = nullptr;     // [num_tokens]
  const int32_t* positions = nullptr;     // [num_position_axes, num_tokens]: the rope positions
  const int64_t* slot_mapping = nullptr;  // [num_tokens]: where K and V go; negative = nowhere
  const int32_t* cu_seqlens_q = nullptr;  // [num_seqs + 1]
  const int32_t* seq_lens = nullptr;      // [num_seqs], after the append
  const int32_t* block_table = nullptr;   // [num_seqs, block_table_stride]
  int64_t block_table_stride = 0;
  const int32_t* logit_rows = nullptr;  // [num_logit_rows]: the tokens whose logits are wanted
  int64_t num_position_axes = 1;        // streams (MRoPE); rows of positions lie position_axis_stride apart
  int64_t position_axis_stride = kUnsetStride;
};

// A step on the host, filled sequence by sequence. What breaks a rule, or finds no memory, is remembered: StepBuffers::upload returns
// the first such error, and everything added after it is left out.
class PROLOGUE_API StepBatch {
 public:
  // Tokens stand in one position stream, or in several (MRoPE): 1 to 4.
  explicit StepBatch(int64_t num_position_axes = 1);

  void clear();
  // The next sequence of the batch: new tokens at positions first_position .., which are also their cache positions, in the
  // pages of `block_table`. The last `num_logit_rows` of them get logits.
  //   num_tokens >= 0, 0 <= num_logit_rows <= num_tokens, first_position >= 0, first_position + num_tokens < 2^31, page_size >= 1;
  //   block_table has pages for all of first_position + num_tokens tokens, none of them negative
  void add_sequence(const int32_t* tokens, int64_t num_tokens, int64_t first_position, const std::vector<int32_t>& block_table,
                    int64_t page_size, int64_t num_logit_rows);
  // Moves a token of the batch in one stream (all start where the token stands in the cache). The cache position stays.
  //   0 <= token < num_tokens(), 0 <= axis < the number of streams
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
  std::vector<std::vector<int32_t>> positions_;  // by stream
  std::vector<int64_t> slot_mapping_;
  std::vector<int32_t> ends_;  // of the sequences' tokens
  std::vector<int32_t> seq_lens_;
  std::vector<std::vector<int32_t>> block_tables_;
  std::vector<int32_t> logit_rows_;
  int64_t max_seqlen_q_ = 0;
  int64_t max_seq_len_ = 0;
};

// The device side: one buffer, sized once for the largest step, filled by one copy a step.
class PROLOGUE_API StepBuffers {
 public:
  StepBuffers() = default;
  // Block tables take max_seqs * max_pages_per_seq entries: the second is what the longest sequence needs, not the whole cache.
  // invalid_argument: a size is not in 0..2^31 - 1, or num_position_axes not in 1..4. resource_exhausted: there is not that much
  // memory.
  static Result<StepBuffers> create(int64_t max_tokens, int64_t max_seqs, int64_t max_pages_per_seq, Device device,
                                    int64_t num_position_axes = 1);

  // In stream order; waits for the copy of the upload before. The StepInputs stay valid until the next upload. A CUDA graph may
  // capture it (StagingBuffer in kernels/base/memory.h). Errors: those of the batch; invalid_argument when it is larger than these
  // buffers.
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
