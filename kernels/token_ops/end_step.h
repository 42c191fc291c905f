// Ends a step on the device: gathers the faults of its sequences and, if wanted, makes its inputs those of the next decode step. So a
// captured decode step can be replayed again and again without the host.
//
// 1. Faults, in every call:
//
//   seq_faults[s] = the FaultCode of the first faulty token of sequence s, that is, the first entry of token_faults that is not 0 in
//                   rows [cu_seqlens_q[s], cu_seqlens_q[s + 1]); 0 if there is none
//   token_faults[0 .. num_tokens) = 0, after all sequences were read
//
//   cu_seqlens_q  [num_seqs + 1]  int32, on the device; entries are clamped to 0..num_tokens
//   token_faults  [num_tokens]    uint8, read and cleared
//   seq_faults    [num_seqs]      uint8, written
//
// 2. If advance is not 0, the step was a decode step: token s is the only token of sequence s. For each s with
//    0 < seq_lens[s] < 2^31 - 1 (any other is padding: nothing of it changes):
//
//   token_ids[s]                = tokens[s]
//   positions[a, s]            += 1                        for each axis a
//   seq_lens[s]                += 1
//   groups[g].slot_mapping[s]   = page * page_size + p % page_size      for each group g of layers, with p = seq_lens[s] - 1 (new),
//                                 page = groups[g].block_table[s, p / page_size]; INT64_MAX if p / page_size >= max_pages or page is
//                                 outside [0, num_pages): the prologue then records slot_out_of_range
//   rows[s].position           += 1                        if rows is given
//
//   tokens        [num_seqs]                     int32: the output of sample()
//   token_ids     [num_seqs]                     int32, updated
//   positions     [num_position_axes, num_seqs]  int32, updated; row stride position_axis_stride
//   seq_lens      [num_seqs]                     int32, updated
//   rows          [num_seqs]                     SamplingRow, updated; null = none
//   slot_mapping  [num_seqs]                     int64, updated, of each group
//   block_table   [num_seqs, max_pages]          int32, row stride block_table_stride, of each group; groups may share one
//
// 3. If num_rows is not 0, the step had rows of logits with chains of drafts (sampling.h). Row r, which is row i of a chain, is *accepted* if
//    i is 0, or if row r - 1 is accepted and has sampled the token of row r: tokens[r - 1] == token_ids[logit_rows[r]]. For each accepted row
//    with counts:
//
//   rows[r].counts[tokens[r]]  += 2      unless that overflows
//
//   rows        [num_rows]    SamplingRow, read
//   tokens      [num_rows]    int32: the output of sample()
//   token_ids   [num_tokens]  int32, read
//   logit_rows  [num_rows]    int32; the draft of a row outside of 0..num_tokens - 1 is not accepted
//   Not together with advance, whose lists have the same names.
//
// Positions wrap on overflow. Without advance the second list of members is not looked at. All arrays are on the device of the
// operation. Those that are written must not overlap any other. num_tokens and num_seqs may each be 0. Never allocates or synchronises;
// safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/views.h>
#include <prologue/kernels/token_ops/sampling.h>

namespace prologue {

inline constexpr int64_t kMaxStepGroups = 8;

// Says where the slots are of the layers that have one cache layout.
struct EndStepGroup {
  int64_t* slot_mapping = nullptr;
  const int32_t* block_table = nullptr;
  int64_t block_table_stride = 0;
  int64_t max_pages = 0;
  int64_t page_size = 0;
  int64_t num_pages = 0;
  uint64_t reserved[1] = {};  // zeros: docs/versioning.md
};

struct EndStepParams {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
  const int32_t* cu_seqlens_q = nullptr;
  uint8_t* token_faults = nullptr;
  uint8_t* seq_faults = nullptr;
  bool overlaps = false;  // the launch may begin while the kernels before it in the stream run

  int32_t advance = 0;
  const int32_t* tokens = nullptr;
  int32_t* token_ids = nullptr;
  int32_t* positions = nullptr;
  int64_t num_position_axes = 1;                // 1 to 4
  int64_t position_axis_stride = kUnsetStride;  // must be set if num_position_axes > 1
  int32_t* seq_lens = nullptr;
  SamplingRow* rows = nullptr;
  int64_t num_groups = 0;  // 1 to kMaxStepGroups
  EndStepGroup groups[kMaxStepGroups];
  int64_t num_rows = 0;
  int64_t vocab_size = 0;  // with num_rows: entries of counts; a token that is not below is not counted
  const int32_t* logit_rows = nullptr;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status end_step(const EndStepParams& params, const Execution& execution);

}  // namespace prologue
