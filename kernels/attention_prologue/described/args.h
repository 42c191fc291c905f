// Declares what the kernels that are made for a call are given. With few tokens every line of the constant bank that a kernel touches costs a
// miss: what all of them need is together and comes first.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.h>

namespace prologue::cuda {

// One of q, k and v, with strides in bytes. Members that the call does not need are not read.
struct DescribedTensor : TensorArgs<uint32_t> {
  float inverse_count = 0.0f;  // of the channels of a norm
  const char* bias = nullptr;
  const char* weight = nullptr;
  float eps = 0.0f;
  float weight_offset = 0.0f;
  char* scale = nullptr;  // of a block-scaled format: the tensor's; the strides are then those of block_scale
  uint32_t scale_page = 0;
  uint32_t scale_token = 0;
  uint32_t scale_head = 0;
  uint32_t weight_head = 0;
  const char* norm_bias = nullptr;
  char* second_out = nullptr;  // k_out, v_out
  uint32_t second_token = 0;
  uint32_t second_head = 0;
  const char* rotated_in = nullptr;  // the rotated channels, if they are apart; `in` has the others
  uint32_t rotated_token = 0;
  uint32_t rotated_head = 0;
  float hadamard_factor = 1.0f;
  float constant = 1.0f;  // that K or V is multiplied by
  uint8_t* block_scale = nullptr;
};

struct DescribedArgs {
  const char* positions = nullptr;
  const char* slots = nullptr;
  const char* cos = nullptr;
  const char* sin = nullptr;
  uint32_t cos_row = 0;
  uint32_t sin_row = 0;
  uint32_t k_begin = 0;  // the first row of a token that works on k and on v
  uint32_t v_begin = 0;
  uint32_t max_position = 0;
  uint32_t num_slots = 0;
  PageDivider pages;
  int32_t num_seqs = 0;
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* lengths = nullptr;
  DescribedTensor tensors[3];
  FaultRecord* faults = nullptr;
  uint8_t* token_faults = nullptr;
  TokenGroup group;
  const float* inv_freq = nullptr;
  float attention_factor = 1.0f;
  const uint8_t* pair_axis = nullptr;
  QueryScale q_scale;
  TokenArgs token;  // without what is above
};

void fill(const AttentionPrologueParams& params, DescribedArgs& args);

}  // namespace prologue::cuda
