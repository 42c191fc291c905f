// Takes a call of Paddle: fused_rotary_position_embedding. See adapter.h and docs/coming-from.md.
#pragma once

#include <algorithm>
#include <cstdint>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::paddle {

struct Dims {
  int64_t rank = 0;
  int64_t sizes[4] = {};
};

struct FusedRope {
  const void* in[3] = {};  // q, k, v; k and v may be null
  void* out[3] = {};       // out_q, out_k, out_v
  int64_t num_heads[3] = {};
  DType dtype = DType::bf16;
  int64_t batch_size = 0;
  int64_t seq_len = 0;
  int64_t head_dim = 0;
  const void* sin = nullptr;  // in dtype; null = sin and cos are computed
  const void* cos = nullptr;
  Dims sin_dims;  // [rows, head_dim] or [1, rows, 1, head_dim]
  Dims cos_dims;
  const int64_t* position_ids = nullptr;  // also when time_major; null = 0, 1, 2, ...
  Dims position_ids_dims;                 // [batch_size, seq_len]
  bool use_neox_rotary_style = true;      // Paddle's meaning is reversed: true rotates neighbours (interleaved)
  bool time_major = false;
  float rotary_emb_base = 10000.0f;
  bool grad = false;  // fused_rotary_position_embedding_grad
};

// If q has no elements, nothing is done, as in Paddle.
inline Status fused_rope(const FusedRope& call, FaultRecord* faults, const Execution& execution) {
  if (call.num_heads[0] == 0 || call.batch_size == 0 || call.seq_len == 0 || call.head_dim == 0) return {};
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("paddle", {{"batch_size", call.batch_size, detail::kTokens},
                                                          {"seq_len", call.seq_len, detail::kTokens},
                                                          {"head_dim", call.head_dim, detail::kDim},
                                                          {"q's heads", call.num_heads[0], detail::kHeads},
                                                          {"k's heads", call.num_heads[1], detail::kHeads},
                                                          {"v's heads", call.num_heads[2], detail::kHeads}}));
  if (call.in[0] == nullptr) return invalid_argument("paddle: q is null: only k and v may be left out");
  if ((call.sin == nullptr) != (call.cos == nullptr)) {
    return invalid_argument("paddle: ", call.sin == nullptr ? "cos is given, but sin" : "sin is given, but cos",
                            " is null: give both, or none");
  }
  const int64_t rows = call.sin_dims.sizes[call.sin_dims.rank == 4 ? 1 : 0];
  if (call.sin != nullptr) {
    const Dims& d = call.sin_dims;
    if (d.rank != 2 && d.rank != 4) {
      return invalid_argument("paddle: sin has ", d.rank, " dimensions: it must have 2 or 4");
    }
    if (d.rank != call.cos_dims.rank || !std::equal(d.sizes, d.sizes + d.rank, call.cos_dims.sizes)) {
      return invalid_argument("paddle: sin and cos have different shapes: they must be equal");
    }
    if (d.rank == 4 && (d.sizes[0] != 1 || d.sizes[2] != 1)) {
      return invalid_argument("paddle: sin is [", d.sizes[0], ", .., ", d.sizes[2],
                              ", ..]: with 4 dimensions it must be [1, rows, 1, ", "head_dim]");
    }
    if (d.sizes[d.rank - 1] != call.head_dim) {
      return invalid_argument("paddle: sin has ", d.sizes[d.rank - 1], " columns: it must have head_dim, ", call.head_dim);
    }
    if (call.position_ids == nullptr ? rows != call.seq_len : rows < call.seq_len) {
      return invalid_argument("paddle: sin has ", rows, " rows: it must have ",
                              call.position_ids == nullptr ? "seq_len, " : "at least seq_len, ", call.seq_len);
    }
  }
  if (call.position_ids != nullptr) {
    const Dims& d = call.position_ids_dims;
    if (d.rank != 2 || d.sizes[0] != call.batch_size || d.sizes[1] != call.seq_len) {
      return invalid_argument("paddle: position_ids must be [batch_size, seq_len], [", call.batch_size, ", ", call.seq_len, "]");
    }
  }
  RotaryParams params;
  params.batch = call.batch_size;
  params.seq_len = call.seq_len;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  for (int i = 0; i < 3; ++i) {
    if (call.in[i] == nullptr) continue;
    const auto strides = call.time_major ? sequence_major_strides(call.batch_size, call.num_heads[i], call.head_dim)
                                         : batch_major_strides(call.seq_len, call.num_heads[i], call.head_dim);
    params.tensors[params.num_tensors++] = rotary_tensor(call.in[i], call.out[i], call.num_heads[i], strides);
  }
  params.rope.style = call.use_neox_rotary_style ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = call.head_dim;
  params.rope.inverse = call.grad;
  params.rope.inverse_by_own_sine = call.grad && !call.use_neox_rotary_style;  // as Paddle's rotate_half does
  if (call.sin != nullptr) {
    set_cos_and_sin(params.rope, call.cos, call.sin, call.dtype, rows, call.head_dim, RopeWidth::full);
  } else {
    params.rope.source = RopeSource::theta;
    params.rope.width = RopeWidth::half;
    params.rope.theta = call.rotary_emb_base;
  }
  params.positions.ids = index_view(call.position_ids);
  params.positions.batch_stride = call.seq_len;
  params.faults = faults;
  return rotary(params, execution);
}

}  // namespace prologue::adapters::paddle
