// This file has the inputs of one step: the tokens of each sequence, their positions, and the slots of their K and V. The graph reads them
// from device arrays at fixed addresses, so a captured step can be replayed after only these arrays were updated.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/views.h>
#include <prologue/kernels/token_ops/sampling.h>

namespace prologue {

// Layers that keep the same tokens in the cache are a group (kvcache/kv_cache.h): each group has its own pages, so its own slots and
// block tables.
inline constexpr int64_t kMaxLayerGroups = 4;

// Holds device arrays: num_tokens tokens of num_seqs sequences, packed one sequence after another. The slots that a step writes are those
// of the last positions of their sequences, and no other sequence of the step reads them (PagedAttentionParams::past_is_ready).
struct StepInputs {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
  int64_t num_decode_seqs = 0;  // the first sequences, of one token each
  int64_t num_logit_rows = 0;
  int64_t max_seqlen_q = 0;  // host upper bounds, see kernels/paged_attention/paged_attention.h
  int64_t max_seq_len = 0;

  int32_t* token_ids = nullptr;     // [num_tokens]
  int32_t* positions = nullptr;     // [num_position_axes, num_tokens]: the rope positions; negative = padding
  int32_t* cu_seqlens_q = nullptr;  // [num_seqs + 1]
  int32_t* seq_lens = nullptr;      // [num_seqs], after the append; 0 = padding
  int32_t* logit_rows = nullptr;    // [num_logit_rows]: the tokens that need logits; a token may be there several times
  int64_t* slot_mapping[kMaxLayerGroups] = {};  // [num_tokens] of each layer group: slots of K and V; negative = not stored
  int32_t* block_table[kMaxLayerGroups] = {};   // [num_seqs, block_table_stride] of each layer group; unused entries are -1
  int64_t max_pages_per_seq = 0;                // entries of a row
  int64_t block_table_stride = 0;
  int64_t num_position_axes = 1;  // more than 1 for MRoPE; rows of positions are position_axis_stride apart
  int64_t position_axis_stride = kUnsetStride;

  // The graph does not read these two. token_from, [num_tokens]: the row of the previous step's sampled tokens that the token is; negative:
  // token_ids says it.
  int32_t* token_from = nullptr;
  SamplingRow* sampling_rows = nullptr;  // [num_logit_rows]
};

// Names the members of StepInputs: what the parameters of an operation may be bound to (layers/graph). Of slot_mapping and block_table it
// is the one of the layer group of the node's cache.
enum class StepArray : int32_t { token_ids = 0, positions, slot_mapping, cu_seqlens_q, seq_lens, block_table, logit_rows };
inline constexpr int32_t kNumStepArrays = 7;
enum class StepCount : int32_t {
  num_tokens = 0,
  num_seqs,
  num_decode_seqs,
  num_logit_rows,
  max_seqlen_q,
  max_seq_len,
  max_pages_per_seq,
  block_table_stride,
  position_axis_stride,
};

struct StepMember {
  const char* name;
  int32_t offset;         // in StepInputs, in bytes; every member has 8
  DType type;             // of the elements of an array
  bool by_group = false;  // one for each layer group, the next 8 bytes further
};
PROLOGUE_API StepMember step_member(StepArray array);
PROLOGUE_API StepMember step_member(StepCount count);

// Holds a step on the host, filled sequence by sequence. If a call breaks a rule or there is no memory, the batch keeps that error and
// ignores everything added later; StepBuffers::upload returns the error.
class PROLOGUE_API StepBatch {
 public:
  // There are 1 to 4 position axes (more than one: MRoPE), and 1 to kMaxLayerGroups layer groups.
  explicit StepBatch(int64_t num_position_axes = 1, int64_t num_groups = 1);

  void clear();
  // Adds the next sequence of the batch: new tokens at positions first_position, first_position + 1, ..., in the pages of
  // `block_tables`: as many pointers as there are layer groups. These are their rope positions and their cache positions. The
  // last `num_logit_rows` tokens get logits.
  //   num_tokens >= 0, 0 <= num_logit_rows <= num_tokens, first_position >= 0, first_position + num_tokens < 2^31, page_size >= 1;
  //   a block table has entries for all of first_position + num_tokens tokens, and pages, not negative, for the new ones
  void add_sequence_of_groups(const int32_t* tokens, int64_t num_tokens, int64_t first_position,
                              const std::vector<int32_t>* const* block_tables, int64_t page_size, int64_t num_logit_rows);
  // Does the same for a batch with one layer group.
  void add_sequence(const int32_t* tokens, int64_t num_tokens, int64_t first_position, const std::vector<int32_t>& block_table,
                    int64_t page_size, int64_t num_logit_rows) {
    const std::vector<int32_t>* const one = &block_table;
    add_sequence_of_groups(tokens, num_tokens, first_position, &one, page_size, num_logit_rows);
  }
  // Adds a row of logits, of a token of the batch: 0 <= token < num_tokens().
  void add_logit_row(int64_t token);
  // Sets how a row of logits is sampled (initially greedily): 0 <= row < num_logit_rows().
  void set_sampling(int64_t row, const SamplingRow& sampling);
  // Sets the arrays of a row that lie in the memory of another rank than 0, which set_sampling() is for (kernels/collective).
  void set_sampling_arrays(int64_t row, int64_t rank, int32_t* counts, const float* bias);
  // Sets the rope position of a token of the batch on one axis (initially its cache position on each axis). Its cache position does
  // not change.
  //   0 <= token < num_tokens(), 0 <= axis < num_position_axes
  void set_position(int64_t token, int64_t axis, int32_t position);
  // Sets the token to the one that row `row` of the previous step samples, which the host does not know yet: 0 <= token < num_tokens(), row
  // >= 0.
  void set_token_from(int64_t token, int32_t row);

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids_.size()); }
  int64_t num_seqs() const { return static_cast<int64_t>(seq_lens_.size()); }
  int64_t num_decode_seqs() const { return num_decode_seqs_; }  // sequences before the first one of more than one token
  int64_t num_logit_rows() const { return static_cast<int64_t>(logit_rows_.size()); }
  int64_t max_seqlen_q() const { return max_seqlen_q_; }
  bool each_token_has_a_row() const { return each_token_has_a_row_; }  // of logits, and no more than that
  int64_t max_seq_len() const { return max_seq_len_; }
  bool has_tokens_from() const { return has_tokens_from_; }
  const Status& status() const { return status_; }

 private:
  friend class StepBuffers;
  Status check_sequence(const int32_t* tokens, int64_t num_tokens, int64_t first_position,
                        const std::vector<int32_t>* const* block_tables, int64_t page_size, int64_t num_logit_rows) const;
  bool check_index(const char* what, int64_t index, int64_t count);

  Status status_;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> token_from_;
  std::vector<std::vector<int32_t>> positions_;     // by axis
  std::vector<std::vector<int64_t>> slot_mapping_;  // by layer group
  std::vector<int32_t> ends_;                       // of the sequences' tokens
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> pages_;      // of all block tables, sequence by sequence, in a sequence group by group,
  std::vector<size_t> table_ends_;  // and where each of them ends
  std::vector<int32_t> logit_rows_;
  std::vector<SamplingRow> sampling_rows_;
  struct SamplingArrays {
    int64_t row, rank;
    int32_t* counts;
    const float* bias;
  };
  std::vector<SamplingArrays> sampling_arrays_;  // of other ranks than 0
  int64_t num_decode_seqs_ = 0;
  int64_t max_seqlen_q_ = 0;
  int64_t max_seq_len_ = 0;
  int64_t max_pages_ = 0;
  bool has_tokens_from_ = false;
  bool each_token_has_a_row_ = true;
};

// These are the sizes of a step's device arrays.
struct StepSizes {
  int64_t max_tokens = 0;
  int64_t max_seqs = 0;
  int64_t max_logit_rows = 0;
  int64_t max_pages_per_seq = 0;  // of the longest sequence, not of the whole cache
  int64_t num_position_axes = 1;
  int64_t num_groups = 1;
};

// A step is padded up to these counts; what is smaller than the step's own changes nothing.
struct StepPadding {
  int64_t num_tokens = 0;  // and rows of logits, of a step in which every token has one
  int64_t num_seqs = 0;
  int64_t max_seqlen_q = 0;
};

// Owns the device arrays: one buffer in which every array has a fixed address, for the largest step. One copy per step fills it.
class PROLOGUE_API StepBuffers {
 public:
  StepBuffers() = default;
  // invalid_argument: a size is not in 0..2^31 - 1, num_position_axes is not in 1..4, or num_groups not in 1..kMaxLayerGroups.
  // resource_exhausted: there is not enough memory.
  static Result<StepBuffers> create(const StepSizes& sizes, Device device);

  // Copies in stream order, after waiting for the copy of the previous upload. The StepInputs are valid until the next upload. A CUDA
  // graph may capture it (StagingBuffer in kernels/base/memory.h). Tokens, sequences and rows of logits beyond those of the batch are
  // padding: token 0, position -1, slot -1, an empty sequence, a greedy row of the first token. rank: whose arrays the rows that are
  // sampled have. Errors: those of the batch; invalid_argument: the batch or the padding is larger than these buffers.
  Result<StepInputs> upload(const StepBatch& batch, const Execution& execution, const StepPadding& padding = {},
                            int64_t rank = 0);

 private:
  // Where the arrays begin, in bytes.
  struct Offsets {
    int64_t token_ids, token_from, positions, slot_mapping, cu_seqlens_q, seq_lens, logit_rows, sampling_rows, block_tables, end;
  };
  static Offsets lay_out(const StepSizes& sizes);
  Status check_fits(const StepBatch& batch, const StepPadding& padding) const;
  void fill(const StepBatch& batch, const StepInputs& host, int64_t rank) const;
  // Returns the arrays in memory that begins at `base`.
  StepInputs arrays_at(void* base) const;

  StepSizes sizes_;
  Offsets offsets_ = {};
  StagingBuffer staging_;
  Buffer device_;
};

}  // namespace prologue
