// Takes a call of FlashAttention: flash_attn.ops.triton.rotary.apply_rotary. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>

#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::flash_attn {

struct ApplyRotary {
  void* x = nullptr;    // [batch, seqlen, nheads, headdim]; with cu_seqlens: [total_seqlen, nheads, headdim]
  void* out = nullptr;  // what apply_rotary returns; ignored if inplace
  DType dtype = DType::bf16;
  int64_t batch = 0;   // with cu_seqlens: the number of sequences
  int64_t seqlen = 0;  // with cu_seqlens: total_seqlen
  int64_t nheads = 0;
  int64_t headdim = 0;
  RotaryStrides x_strides;  // {x.stride(0), x.stride(-3), x.stride(-2), x.stride(-1)}
  RotaryStrides out_strides;
  const void* cos = nullptr;  // [seqlen_ro, rotary_dim / 2]
  const void* sin = nullptr;
  DType cos_dtype = DType::bf16;
  int64_t seqlen_ro = 0;
  int64_t rotary_dim = 0;
  int64_t seqlen_offset = 0;      // seqlen_offsets, if it is a number
  IndexView seqlen_offsets = {};  // [batch]: seqlen_offsets, if it is a tensor
  IndexView cu_seqlens = {};      // [batch + 1]
  int64_t max_seqlen = 0;         // must be given with cu_seqlens
  bool interleaved = false;
  bool inplace = false;
  bool conjugate = false;
};

inline Status apply_rotary(const ApplyRotary& call, FaultRecord* faults, const Execution& execution) {
  const bool varlen = call.cu_seqlens.data != nullptr;
  if (varlen && call.max_seqlen <= 0) {
    return invalid_argument("flash_attn: max_seqlen is ", call.max_seqlen, ": with cu_seqlens it must be given");
  }
  RotaryParams params;
  params.batch = varlen ? 1 : call.batch;
  params.seq_len = call.seqlen;
  params.head_dim = call.headdim;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  params.tensors[0] = {call.x, call.inplace ? call.x : call.out, call.nheads, call.x_strides,
                       call.inplace ? call.x_strides : call.out_strides};
  params.rope.style = call.interleaved ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = call.rotary_dim;
  params.rope.inverse = call.conjugate;
  set_cos_and_sin(params.rope, call.cos, call.sin, call.cos_dtype, call.seqlen_ro, call.rotary_dim / 2, RopeWidth::half);
  params.rope.past_table = PastTable::identity;  // as FlashAttention does
  params.positions.offset = call.seqlen_offset;
  params.positions.offsets = call.seqlen_offsets;
  if (varlen) {
    params.positions.num_seqs = call.batch;
    params.positions.cu_seqlens = call.cu_seqlens;
    params.positions.max_seqlen = call.max_seqlen;
  }
  params.faults = faults;
  return rotary(params, execution);
}

}  // namespace prologue::adapters::flash_attn
