// Takes a call of TransformerEngine: apply_rotary_pos_emb. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>
#include <string_view>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::transformer_engine {

struct ApplyRotaryPosEmb {
  const void* t = nullptr;
  void* out = nullptr;
  DType dtype = DType::bf16;
  std::string_view tensor_format = "sbhd";  // "sbhd", "bshd", "thd"
  int64_t s = 0;                            // thd: tokens
  int64_t b = 0;                            // thd: sequences
  int64_t h = 0;
  int64_t d = 0;
  const float* freqs = nullptr;  // [s2, 1, 1, d2]
  int64_t s2 = 0;
  int64_t d2 = 0;
  IndexView start_positions = {};  // [b]
  bool interleaved = false;
  IndexView cu_seqlens = {};    // [b + 1], thd
  IndexView cp_positions = {};  // if cp_size > 1: the positions from cp_positions_of()
  bool backward = false;
};

// Computes the positions of context parallelism: this rank has chunk cp_rank from the front and chunk cp_rank from the back of every
// sequence. Runs on the host. seqlens[i] is the number of sequence i's tokens on this rank (even). `positions` must have room for all of
// them.
inline Status cp_positions_of(const int32_t* seqlens, int64_t num_seqs, int32_t cp_size, int32_t cp_rank, int32_t* positions) {
  if (cp_size < 1 || cp_rank < 0 || cp_rank >= cp_size) {
    return invalid_argument("transformer_engine: cp_rank is ", cp_rank, ": it must lie in 0..cp_size - 1, ", cp_size - 1);
  }
  for (int64_t i = 0; i < num_seqs; ++i) {
    if (seqlens[i] >= 0 && seqlens[i] % 2 == 0 && seqlens[i] <= INT32_MAX / cp_size) continue;
    return invalid_argument("transformer_engine: seqlens[", i, "] is ", seqlens[i], ": it must be even and lie in 0..",
                            INT32_MAX / cp_size);
  }
  for (int64_t i = 0; i < num_seqs; ++i) {
    const int32_t length = seqlens[i], half = length / 2;
    for (int32_t j = 0; j < length; ++j) {
      *positions++ = j < half ? cp_rank * half + j : length * cp_size - (cp_rank + 1) * half + (j - half);
    }
  }
  return {};
}

inline Status apply_rotary_pos_emb(const ApplyRotaryPosEmb& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("transformer_engine", {{"s", call.s, detail::kTokens},
                                                                      {"b", call.b, detail::kTokens},
                                                                      {"h", call.h, detail::kHeads},
                                                                      {"d", call.d, detail::kDim}}));
  const bool thd = call.tensor_format == "thd";
  if (!thd && call.tensor_format != "sbhd" && call.tensor_format != "bshd") {
    return unsupported("transformer_engine: tensor_format is '", call.tensor_format.substr(0, 16),
                       "': supported are sbhd, bshd and thd");
  }
  if (thd && call.cu_seqlens.data == nullptr && call.cp_positions.data == nullptr) {
    return invalid_argument("transformer_engine: cu_seqlens is null: thd needs it");
  }
  if (call.cp_positions.data != nullptr && call.start_positions.data != nullptr) {
    return unsupported("transformer_engine: start_positions is given, and so is cp_positions: it is one or the other");
  }
  RotaryParams params;
  params.batch = thd ? 1 : call.b;
  params.seq_len = call.s;
  params.head_dim = call.d;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  params.tensors[0] = rotary_tensor(call.t, call.out, call.h,
                                    call.tensor_format == "sbhd" ? sequence_major_strides(call.b, call.h, call.d)
                                                                 : batch_major_strides(call.s, call.h, call.d));
  params.rope.style = call.interleaved ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = call.d2;
  params.rope.inverse = call.backward;
  params.rope.source = RopeSource::angles;
  params.rope.type = DType::f32;
  params.rope.width = RopeWidth::full;
  params.rope.max_position = call.s2;
  params.rope.angles = {call.freqs, 0, call.d2, 1};
  if (call.cp_positions.data != nullptr) {
    params.positions.ids = call.cp_positions;
    params.positions.batch_stride = 0;
  } else {
    params.positions.offsets = call.start_positions;
    if (thd) {
      params.positions.cu_seqlens = call.cu_seqlens;
      params.positions.num_seqs = call.b;
    }
  }
  params.faults = faults;
  return rotary(params, execution);
}

}  // namespace prologue::adapters::transformer_engine
