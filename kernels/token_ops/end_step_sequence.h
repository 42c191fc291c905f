// This file has one sequence of end_step, for host and device.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/host_device.h>
#include <prologue/kernels/token_ops/end_step.h>
#include <prologue/kernels/token_ops/sampling_math.h>

namespace prologue {

// Returns entry i of cu_seqlens_q.
PROLOGUE_HOST_DEVICE inline int64_t row_at(const EndStepParams& p, int64_t i) {
  const int64_t row = p.cu_seqlens_q[i];
  return row < 0 ? 0 : row > p.num_tokens ? p.num_tokens : row;
}

// Returns the slot of the token at `position` of sequence s.
PROLOGUE_HOST_DEVICE inline int64_t slot_of(const EndStepGroup& group, int64_t s, int32_t position) {
  const uint32_t page_size = static_cast<uint32_t>(group.page_size);
  const uint32_t entry = static_cast<uint32_t>(position) / page_size;
  const uint32_t offset = static_cast<uint32_t>(position) % page_size;
  if (entry >= group.max_pages) return INT64_MAX;
  const int32_t page = group.block_table[s * group.block_table_stride + entry];
  if (page < 0 || page >= group.num_pages) return INT64_MAX;
  return page * group.page_size + offset;
}

// Returns the next position, wrapping on overflow.
PROLOGUE_HOST_DEVICE inline int32_t next_position(int32_t position) {
  return static_cast<int32_t>(static_cast<uint32_t>(position) + 1u);
}
PROLOGUE_HOST_DEVICE inline int64_t next_position(int64_t position) {
  return static_cast<int64_t>(static_cast<uint64_t>(position) + 1u);
}

// Counts the accepted rows of the chain that begins in row r; nothing if none begins there.
PROLOGUE_HOST_DEVICE inline void count_chain(const EndStepParams& p, int64_t r) {
  if (p.rows[r].chain != 1) return;
  for (int32_t chain = 1;; ++chain, ++r) {
    const int32_t token = p.tokens[r];
    if (int32_t* const counts = p.rows[r].counts; counts != nullptr && token >= 0 && token < p.vocab_size) {
      counts[token] = counted(counts[token]);
    }
    if (chain == kMaxChain || r + 1 >= p.num_rows || p.rows[r + 1].chain != chain + 1) return;
    const int32_t next = p.logit_rows[r + 1];
    if (next < 0 || next >= p.num_tokens || p.token_ids[next] != token) return;
  }
}

PROLOGUE_HOST_DEVICE inline void advance_sequence(const EndStepParams& p, int64_t s) {
  const int32_t length = p.seq_lens[s];
  if (length <= 0 || length == INT32_MAX) return;
  p.seq_lens[s] = length + 1;
  p.token_ids[s] = p.tokens[s];
  for (int64_t axis = 0; axis < p.num_position_axes; ++axis) {
    int32_t& position = p.positions[axis * p.position_axis_stride + s];
    position = next_position(position);
  }
  for (int64_t g = 0; g < p.num_groups; ++g) p.groups[g].slot_mapping[s] = slot_of(p.groups[g], s, length);
  if (p.rows != nullptr) p.rows[s].position = next_position(p.rows[s].position);
}

}  // namespace prologue
