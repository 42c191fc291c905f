// Adapters for the rotary calls of fourteen other systems. Each system has its own namespace, with structs that use the names of
// that system and functions that convert them to calls of this library. docs/coming-from.md shows both calls side by side. You do
// not need this file to use rotary() or attention_prologue() directly. You may copy and change every function.
//
//   flash_attn  ggml  paddle  oneflow  torchtune  apex  triton_tutorial  infinicore  vllm  sglang  flashinfer  tensorrt_llm
//   huggingface  transformer_engine
//
// A call struct is plain data. Its pointers are on the operation's device unless a comment says "on the host". Strides count
// elements. After an error nothing has been written.
//   checks          kernels/rotary/rotary.h and kernels/attention_prologue/attention_prologue.h check sizes, strides and
//                   pointers. This file checks what only the other system's call has: layout names, table shapes, required
//                   positions
//   past the table  the token's rows become zeros, and `faults` (must not be null if there is a table) records the token.
//                   flash_attn leaves such a token unrotated, as FlashAttention does
//   padding         a negative given position: its token is not touched
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::coming_from {

namespace detail {

// Bounds for sizes whose products are strides and offsets, so that these fit int64. The operation checks the rest.
inline constexpr int64_t kTokens = INT32_MAX, kHeads = 65536, kDim = 576;
struct Size {
  const char* name;
  int64_t value;
  int64_t most;
};
inline Status check_sizes(const char* system, std::initializer_list<Size> sizes) {
  for (const Size& size : sizes) {
    if (size.value >= 0 && size.value <= size.most) continue;
    return invalid_argument(system, ": ", size.name, " is ", size.value, ": it must lie in 0..", size.most);
  }
  return {};
}

}  // namespace detail

// ---- FlashAttention: flash_attn.ops.triton.rotary.apply_rotary --------------------------------------------------------------

namespace flash_attn {

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

}  // namespace flash_attn

// ---- ggml, llama.cpp: ggml_rope_ext, ggml_rope_multi, their _back and _inplace ----------------------------------------------

namespace ggml {

enum Mode : int32_t { normal = 0, neox = 2, mrope = 8, vision = 24, imrope = 40 };  // GGML_ROPE_TYPE_*

inline bool is_multi(int32_t mode) { return mode == mrope || mode == vision || mode == imrope; }

// The parameters that are equal for all calls of a model.
struct Model {
  int32_t n_dims = 0;
  int32_t mode = neox;
  int32_t sections[4] = {};  // of ggml_rope_multi
  int32_t n_ctx_orig = 0;
  float freq_base = 10000.0f;
  float freq_scale = 1.0f;
  float ext_factor = 0.0f;
  float attn_factor = 1.0f;
  float beta_fast = 0.0f;
  float beta_slow = 0.0f;
  const float* c = nullptr;  // freq_factors, on the host, one for each pair; null = none
};

// On the host. Computed once for a model; then copy inv_freq and pair_axis to the device.
struct Frequencies {
  int64_t pairs = 0;
  double inv_freq[288] = {};
  uint8_t pair_axis[288] = {};  // the position axis (0 to 3) that rotates each pair
  double attention_factor = 1.0;
};

inline Result<Frequencies> frequencies(const Model& m) {
  const int32_t most = m.mode == vision ? 288 : 576;  // vision rotates the whole head, of which n_dims is half
  if (m.n_dims < 2 || m.n_dims % 2 != 0 || m.n_dims > most) {
    return invalid_argument("ggml: n_dims is ", m.n_dims, ": it must be even and lie in 2..", most);
  }
  if (m.mode != normal && m.mode != neox && !is_multi(m.mode)) {
    return unsupported("ggml: mode is ", m.mode, ": supported are 0 (normal), 2 (neox), 8 (mrope), 24 (vision) and 40 (imrope)");
  }
  if (!std::isfinite(m.freq_base) || m.freq_base <= 0.0f) {
    return invalid_argument("ggml: freq_base is ", m.freq_base, ": it must be finite and greater than 0");
  }
  const int32_t* s = m.sections;
  int32_t ends[4] = {};
  for (int i = 0, end = 0; i < 4; ++i) {
    if (is_multi(m.mode) && (s[i] < 0 || s[i] > 576)) {
      return invalid_argument("ggml: sections[", i, "] is ", s[i], ": it must lie in 0..576");
    }
    ends[i] = end += is_multi(m.mode) ? s[i] : 0;
  }
  if (is_multi(m.mode) && ends[3] == 0) return invalid_argument("ggml: all sections are 0: at least one must be positive");

  const auto corr_dim = [&](double rotations) {
    constexpr double kPi = 3.14159265358979323846;
    return m.n_dims * std::log(m.n_ctx_orig / (rotations * 2 * kPi)) / (2 * std::log(double{m.freq_base}));
  };
  double low = 0, high = 0, magnitude = 1;
  if (m.ext_factor != 0) {  // YaRN
    if (m.n_ctx_orig <= 0 || !(m.freq_scale > 0) || !(m.beta_fast > 0) || !(m.beta_slow > 0)) {
      return invalid_argument("ggml: n_ctx_orig ", m.n_ctx_orig, ", freq_scale ", m.freq_scale, ", beta_fast ", m.beta_fast,
                              " and beta_slow ", m.beta_slow, " must be positive where ext_factor is not 0");
    }
    low = std::max(0.0, std::floor(corr_dim(m.beta_fast)));
    high = std::min(m.n_dims - 1.0, std::ceil(corr_dim(m.beta_slow)));
    magnitude = 1 + 0.1 * std::log(1 / double{m.freq_scale});
  }
  Frequencies result;
  result.attention_factor = m.attn_factor * magnitude;
  result.pairs = m.mode == vision ? m.n_dims : m.n_dims / 2;
  for (int i = 0; i < result.pairs; ++i) {
    int axis = 0, exponent = i;
    if (m.mode == mrope || m.mode == vision) {
      const int sector = i % ends[3];
      while (sector >= ends[axis]) ++axis;
      if (m.mode == vision) exponent = axis == 0 ? sector : sector - ends[axis - 1];
    } else if (m.mode == imrope) {
      const int sector = i % ends[3];
      axis = sector < 3 * s[sector % 3] ? sector % 3 : 3;
    }
    const double factor = m.c == nullptr ? 1.0 : double{m.c[i]};
    const double extrapolated = std::pow(double{m.freq_base}, -2.0 * exponent / m.n_dims) / factor;
    const double interpolated = m.freq_scale * extrapolated;
    const double ramp = 1 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double mix = m.ext_factor * ramp;
    result.inv_freq[i] = interpolated * (1 - mix) + extrapolated * mix;
    result.pair_axis[i] = static_cast<uint8_t>(axis);
  }
  return result;
}

struct Rope {
  const void* a = nullptr;  // [ne3, ne2, ne1, ne0]: batch, tokens, heads, channels
  void* dst = nullptr;      // a itself for _inplace
  DType type = DType::f32;
  int64_t ne[4] = {};
  size_t a_nb[4] = {};  // bytes
  size_t dst_nb[4] = {};
  IndexView b = {};                    // [ne2]; ggml_rope_multi: [4 * ne2]
  const double* inv_freq = nullptr;    // Frequencies, copied to the device
  const uint8_t* pair_axis = nullptr;  // needed by ggml_rope_multi
  double attention_factor = 1.0;       // Frequencies::attention_factor
  int32_t n_offs = 0;                  // ggml_rope_set_offset
  bool back = false;                   // the _back functions
};

inline Status rope_params(const Model& m, const Rope& call, FaultRecord* faults, RotaryParams& params) {
  if (!dtype_is_float(call.type))
    return unsupported("ggml: type is ", dtype_name(call.type), ": supported are float32, float16, bfloat16 and float64");
  const auto size = static_cast<size_t>(dtype_size(call.type));
  for (const size_t* nb : {call.a_nb, call.dst_nb}) {
    for (int i = 0; i < 4; ++i) {
      if (nb[i] % size == 0) continue;
      return invalid_argument("ggml: ", nb == call.a_nb ? "a_nb[" : "dst_nb[", i, "] is ", nb[i],
                              ": it must be a multiple of the element's ", size, " bytes");
    }
  }
  if (call.b.data == nullptr) return invalid_argument("ggml: b is null: the positions must be given");
  if (is_multi(m.mode) && call.pair_axis == nullptr) {
    return invalid_argument("ggml: pair_axis is null: mode ", m.mode, " needs that of frequencies()");
  }
  const auto strides = [&](const size_t* nb) {
    const auto elements = [&](int i) { return static_cast<int64_t>(nb[i] / size); };
    return RotaryStrides{elements(3), elements(2), elements(1), elements(0)};
  };
  params.batch = call.ne[3];
  params.seq_len = call.ne[2];
  params.head_dim = call.ne[0];
  params.dtype = call.type;
  params.num_tensors = 1;
  params.tensors[0] = {call.a, call.dst, call.ne[1], strides(call.a_nb), strides(call.dst_nb)};
  params.rope.style = m.mode == normal ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = m.mode == vision ? 2 * int64_t{m.n_dims} : m.n_dims;
  params.rope.rotary_offset = call.n_offs;
  params.rope.inverse = call.back;
  params.rope.source = RopeSource::inv_freq;
  params.rope.type = DType::f64;
  params.rope.width = RopeWidth::half;
  params.rope.inv_freq = call.inv_freq;
  params.rope.attention_factor = call.attention_factor;
  params.positions.ids = call.b;
  params.positions.batch_stride = 0;  // the same positions for all of ne[3]
  if (is_multi(m.mode)) {
    params.rope.num_axes = 4;
    params.positions.axis_stride = call.ne[2];
    params.rope.pair_axis = call.pair_axis;
  }
  params.faults = faults;
  return {};
}

// A token with a negative position is padding here and is not touched. For negative positions see rope_of_any_sign.
inline Status rope(const Model& m, const Rope& call, FaultRecord* faults, const Execution& execution) {
  RotaryParams params;
  PROLOGUE_RETURN_IF_ERROR(rope_params(m, call, faults, params));
  return rotary(params, execution);
}

// In ggml a negative position rotates in the opposite direction. In this library it is padding. So this function splits the
// positions into two arrays, on the host: forward[i] = b[i] or -1, backward[i] = -b[i] or -1. Every token is in exactly one of
// them (position 0: in forward), so it is rotated, and scaled by the attention factor, exactly once. b, forward and backward hold
// num_axes * num_tokens numbers (4 axes for ggml_rope_multi). All axes of a token must have the same sign.
inline Status split_signs(const int32_t* b, int64_t num_tokens, int64_t num_axes, int64_t* forward, int64_t* backward) {
  if (b == nullptr || forward == nullptr || backward == nullptr) {
    return invalid_argument("ggml: ", b == nullptr ? "b" : forward == nullptr ? "forward" : "backward", " is null");
  }
  for (const bool writes : {false, true}) {  // check all, then write
    for (int64_t token = 0; token < num_tokens; ++token) {
      int32_t lowest = 0, highest = 0;
      for (int64_t axis = 0; axis < num_axes; ++axis) {
        lowest = std::min(lowest, b[axis * num_tokens + token]);
        highest = std::max(highest, b[axis * num_tokens + token]);
      }
      if (lowest < 0 && highest > 0) {
        return unsupported("ggml: token ", token, " has the positions ", lowest, " and ", highest,
                           " on two axes: the axes of a token must have one sign");
      }
      for (int64_t axis = 0; writes && axis < num_axes; ++axis) {
        const int64_t at = axis * num_tokens + token, position = b[at];
        forward[at] = lowest < 0 ? -1 : position;
        backward[at] = lowest < 0 ? -position : -1;
      }
    }
  }
  return {};
}

// rope() for positions that may be negative. `forward` and `backward` are the arrays of split_signs, copied to the device. call.b
// is ignored. May be in place.
inline Status rope_of_any_sign(const Model& m, Rope call, const IndexView& forward, const IndexView& backward,
                               FaultRecord* faults, const Execution& execution) {
  if (forward.data == nullptr || backward.data == nullptr) {
    return invalid_argument("ggml: ", forward.data == nullptr ? "forward" : "backward", " is null: split_signs makes it");
  }
  RotaryParams ahead, back;
  call.b = forward;
  PROLOGUE_RETURN_IF_ERROR(rope_params(m, call, faults, ahead));
  call.b = backward;
  call.back = !call.back;
  PROLOGUE_RETURN_IF_ERROR(rope_params(m, call, faults, back));
  PROLOGUE_RETURN_IF_ERROR(validate(back));  // before the first launch, so that nothing is half done
  PROLOGUE_RETURN_IF_ERROR(rotary(ahead, execution));
  return rotary(back, execution);
}

}  // namespace ggml

// ---- Paddle: fused_rotary_position_embedding --------------------------------------------------------------------------------

namespace paddle {

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

}  // namespace paddle

// ---- OneFlow: fused_apply_rotary_emb ----------------------------------------------------------------------------------------

namespace oneflow {

struct FusedApplyRotaryEmb {
  const void* x = nullptr;
  void* out = nullptr;
  DType dtype = DType::f16;
  int64_t b = 0;
  int64_t m = 0;  // sequence
  int64_t h = 0;
  int64_t k = 0;                            // k_size
  std::string_view x_layout = "BHMK";       // BMHK BHMK MBHK BM(HK) MB(HK) BM(H2K) MB(H2K) BM(H3K) MB(H3K)
  std::string_view output_layout = "BHMK";  // BMHK BHMK MBHK BM(HK) MB(HK)
  int64_t tensor_index = 0;                 // the number of the packed tensor; H2K: 1 or 2, H3K: 0, 1 or 2
  const void* cos = nullptr;                // [rows, rotary_size / rotary_emb_dim], in dtype; null = cos and sin are computed
  const void* sin = nullptr;
  int64_t rows = 0;
  IndexView position_ids = {};      // [b, rotary_emb_dim, m]; null = 0, 1, 2, ...
  int64_t rotary_emb_dim = 1;       // position_ids.shape[1]
  std::string_view mode = "plane";  // "plane" or "interval"
  double base = 10000.0;            // the parameter theta of OneFlow's kernel is 1 / base
  int64_t rotary_size = 0;
};

inline Status fused_apply_rotary_emb(const FusedApplyRotaryEmb& call, FaultRecord* faults, const Execution& execution) {
  const auto packed = [](std::string_view layout) -> int64_t {  // adjacent tensors in a head; 0: unknown layout
    if (layout == "BM(H2K)" || layout == "MB(H2K)") return 2;
    if (layout == "BM(H3K)" || layout == "MB(H3K)") return 3;
    return layout == "BMHK" || layout == "BHMK" || layout == "MBHK" || layout == "BM(HK)" || layout == "MB(HK)" ? 1 : 0;
  };
  const int64_t of_x = packed(call.x_layout), first = of_x == 2 ? 1 : 0;
  if (of_x == 0) {
    return unsupported("oneflow: x_layout is '", call.x_layout.substr(0, 16),
                       "': supported are BMHK, BHMK, MBHK, BM(HK), MB(HK), BM(H2K), MB(H2K), BM(H3K) and MB(H3K)");
  }
  if (packed(call.output_layout) != 1) {
    return unsupported("oneflow: output_layout is '", call.output_layout.substr(0, 16),
                       "': supported are BMHK, BHMK, MBHK, BM(HK) and MB(HK)");
  }
  if (call.tensor_index < first || call.tensor_index >= first + of_x) {
    return invalid_argument("oneflow: tensor_index is ", call.tensor_index, ": for ", call.x_layout, " it must lie in ", first,
                            "..", first + of_x - 1);
  }
  if (call.mode != "plane" && call.mode != "interval") {
    return unsupported("oneflow: mode is '", call.mode.substr(0, 16), "': supported are plane and interval");
  }
  if (call.rotary_emb_dim < 1 || call.rotary_emb_dim > 4) {
    return invalid_argument("oneflow: rotary_emb_dim is ", call.rotary_emb_dim, ": it must lie in 1..4");
  }
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("oneflow", {{"b", call.b, detail::kTokens},
                                                           {"m", call.m, detail::kTokens},
                                                           {"h", call.h, detail::kHeads},
                                                           {"k", call.k, detail::kDim}}));
  if (!dtype_is_float(call.dtype))
    return unsupported("oneflow: dtype is ", dtype_name(call.dtype), ": supported are float32, float16, bfloat16 and float64");
  if ((call.cos == nullptr) != (call.sin == nullptr)) {
    return invalid_argument("oneflow: ", call.sin == nullptr ? "cos is given, but sin" : "sin is given, but cos",
                            " is null: give both, or none");
  }
  const auto strides = [&](std::string_view layout) {
    if (layout == "BHMK") return head_major_strides(call.m, call.h, call.k);
    const int64_t row = packed(layout) * call.k;
    return layout.substr(0, 2) == "BM" ? batch_major_strides(call.m, call.h, row) : sequence_major_strides(call.b, call.h, row);
  };
  RotaryParams params;
  params.batch = call.b;
  params.seq_len = call.m;
  params.head_dim = call.k;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  const auto* x = static_cast<const char*>(call.x);
  const int64_t offset = (call.tensor_index - first) * call.k * dtype_size(call.dtype);
  params.tensors[0] = {x == nullptr ? nullptr : x + offset, call.out, call.h, strides(call.x_layout),
                       strides(call.output_layout)};
  params.rope.style = call.mode == "plane" ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = call.rotary_size;
  params.rope.num_blocks = call.rotary_emb_dim;
  if (call.cos != nullptr) {
    set_cos_and_sin(params.rope, call.cos, call.sin, call.dtype, call.rows, call.rotary_size / call.rotary_emb_dim,
                    RopeWidth::full);
  } else {
    params.rope.source = RopeSource::theta;
    params.rope.width = RopeWidth::half;
    params.rope.theta = call.base;
  }
  params.positions.ids = call.position_ids;
  params.rope.num_axes = call.rotary_emb_dim;
  params.positions.axis_stride = call.m;
  params.positions.batch_stride = call.rotary_emb_dim * call.m;
  params.faults = faults;
  return rotary(params, execution);
}

}  // namespace oneflow

// ---- torchtune: RotaryPositionalEmbeddings ----------------------------------------------------------------------------------

namespace torchtune {

struct RotaryPositionalEmbeddings {
  const void* x = nullptr;  // [b, s, n_h, h_d]
  void* out = nullptr;
  DType dtype = DType::bf16;
  int64_t b = 0;
  int64_t s = 0;
  int64_t n_h = 0;
  int64_t h_d = 0;  // dim
  int64_t max_seq_len = 4096;
  double base = 10000.0;
  const float* cache = nullptr;  // the module's buffer, [max_seq_len, dim / 2, 2]; null = computed from base
  IndexView input_pos = {};      // [b, s], or [s] for all; null = 0, 1, 2, ...
  bool input_pos_per_batch = true;
};

inline Status forward(const RotaryPositionalEmbeddings& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes(
      "torchtune", {{"s", call.s, detail::kTokens}, {"n_h", call.n_h, detail::kHeads}, {"h_d", call.h_d, detail::kDim}}));
  if (call.max_seq_len <= 0) {
    return invalid_argument("torchtune: max_seq_len is ", call.max_seq_len, ": it must be positive");
  }
  RotaryParams params;
  params.batch = call.b;
  params.seq_len = call.s;
  params.head_dim = call.h_d;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  params.tensors[0] = rotary_tensor(call.x, call.out, call.n_h, batch_major_strides(call.s, call.n_h, call.h_d));
  params.rope.style = RopeStyle::interleaved;
  params.rope.rotary_dim = call.h_d;
  params.rope.width = RopeWidth::half;
  if (call.cache != nullptr) {
    params.rope.type = DType::f32;
    params.rope.cos = {call.cache, 0, call.h_d, 2};  // (cos, sin) pairs: a column is two numbers wide
    params.rope.sin = {call.cache + 1, 0, call.h_d, 2};
  } else {
    params.rope.source = RopeSource::theta;
    params.rope.theta = call.base;
  }
  params.rope.max_position = call.max_seq_len;
  params.positions.ids = call.input_pos;
  params.positions.batch_stride = call.input_pos_per_batch ? call.s : 0;
  params.faults = faults;
  return rotary(params, execution);
}

}  // namespace torchtune

// ---- GPT-NeoX and apex: fused_apply_rotary_pos_emb, .._cached, .._thd, .._2d ------------------------------------------------

namespace apex {

struct FusedRope {
  const void* t = nullptr;  // [s, b, h, d]; thd: [t, h, d]
  void* out = nullptr;      // dense
  DType dtype = DType::bf16;
  int64_t s = 0;  // thd: t
  int64_t b = 0;  // thd: the number of sequences
  int64_t h = 0;
  int64_t d = 0;
  RotaryStrides t_strides;       // {t.stride(1), t.stride(0), t.stride(2), t.stride(3)}; thd: {0, t.stride(0), ...}
  const float* freqs = nullptr;  // [rows, 1, 1, d2]
  const void* cos_ = nullptr;    // or cos_ and sin_, of the same shape
  const void* sin_ = nullptr;
  DType cos_dtype = DType::f32;
  int64_t rows = 0;
  int64_t d2 = 0;
  const int32_t* cu_seqlens = nullptr;  // [b + 1], thd
  bool transpose_output_memory = false;
  bool backward = false;
};

inline Status fused_rope(const FusedRope& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("apex", {{"s", call.s, detail::kTokens},
                                                        {"b", call.b, detail::kTokens},
                                                        {"h", call.h, detail::kHeads},
                                                        {"d", call.d, detail::kDim}}));
  const bool thd = call.cu_seqlens != nullptr;
  if ((call.freqs == nullptr) == (call.cos_ == nullptr)) {
    return invalid_argument("apex: freqs and cos_ are both ", call.freqs == nullptr ? "null" : "given", ": give one of them");
  }
  if (thd && call.transpose_output_memory) {
    return invalid_argument("apex: transpose_output_memory is set, but so is cu_seqlens: thd has one dimension of tokens");
  }
  RotaryParams params;
  params.batch = thd ? 1 : call.b;
  params.seq_len = call.s;
  params.head_dim = call.d;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  params.tensors[0] = {call.t, call.out, call.h, call.t_strides,
                       thd || call.transpose_output_memory ? batch_major_strides(call.s, call.h, call.d)
                                                           : sequence_major_strides(call.b, call.h, call.d)};
  params.rope.style = RopeStyle::neox;
  params.rope.rotary_dim = call.d2;
  params.rope.inverse = call.backward;
  if (call.freqs != nullptr) {
    params.rope.source = RopeSource::angles;
    params.rope.type = DType::f32;
    params.rope.width = RopeWidth::full;
    params.rope.max_position = call.rows;
    params.rope.angles = {call.freqs, 0, call.d2, 1};
  } else {
    set_cos_and_sin(params.rope, call.cos_, call.sin_, call.cos_dtype, call.rows, call.d2, RopeWidth::full);
  }
  params.positions.cu_seqlens = index_view(call.cu_seqlens);
  params.positions.num_seqs = thd ? call.b : 0;
  params.faults = faults;
  return rotary(params, execution);
}

struct FusedRope2d {
  const void* t = nullptr;  // [b, img_h * img_w, h, d]
  void* out = nullptr;      // dense
  DType dtype = DType::bf16;
  int64_t b = 0;
  int64_t img_h = 0;
  int64_t img_w = 0;
  int64_t h = 0;
  int64_t d = 0;
  RotaryStrides t_strides;
  const void* cos_h = nullptr;  // [1, rows_h, 1, d / 2]
  const void* sin_h = nullptr;
  const void* cos_w = nullptr;  // [1, rows_w, 1, d / 2]
  const void* sin_w = nullptr;
  DType cos_dtype = DType::bf16;
  int64_t rows_h = 0;
  int64_t rows_w = 0;
  IndexView h_of_token = {};  // [img_h * img_w]: token / img_w
  IndexView w_of_token = {};  // [img_h * img_w]: token % img_w
  bool backward = false;
};

// Two launches, one for each half of the head. Both are checked before the first one runs.
inline Status fused_rope_2d(const FusedRope2d& call, FaultRecord* faults, const Execution& execution) {
  if (call.d % 4 != 0) return invalid_argument("apex: d is ", call.d, ": it must be a multiple of 4");
  if (call.h_of_token.data == nullptr || call.w_of_token.data == nullptr) {
    return invalid_argument("apex: ", call.h_of_token.data == nullptr ? "h_of_token" : "w_of_token",
                            " is null: it must be given");
  }
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("apex", {{"img_h", call.img_h, detail::kTokens},
                                                        {"img_w", call.img_w, detail::kTokens},
                                                        {"h", call.h, detail::kHeads},
                                                        {"d", call.d, detail::kDim}}));
  if (call.img_h * call.img_w > detail::kTokens) {
    return invalid_argument("apex: img_h * img_w is ", call.img_h * call.img_w, ": it must lie in 0..", detail::kTokens);
  }
  if (call.rows_h < call.img_h || call.rows_w < call.img_w) {
    return invalid_argument("apex: the tables have ", call.rows_h, " and ", call.rows_w, " rows: they must have at least img_h, ",
                            call.img_h, ", and img_w, ", call.img_w);
  }
  RotaryParams top;
  top.batch = call.b;
  top.seq_len = call.img_h * call.img_w;
  top.head_dim = call.d;
  top.dtype = call.dtype;
  top.num_tensors = 1;
  top.tensors[0] = {call.t, call.out, call.h, call.t_strides, batch_major_strides(top.seq_len, call.h, call.d)};
  top.rope.style = RopeStyle::neox;
  top.rope.rotary_dim = call.d / 2;
  top.rope.inverse = call.backward;
  top.tail = RotaryTail::leave;  // each launch writes its half of the head
  top.faults = faults;
  RotaryParams bottom = top;
  set_cos_and_sin(top.rope, call.cos_h, call.sin_h, call.cos_dtype, call.rows_h, call.d / 2, RopeWidth::full);
  top.positions.ids = call.h_of_token;
  top.positions.batch_stride = 0;
  bottom.rope.rotary_offset = call.d / 2;
  set_cos_and_sin(bottom.rope, call.cos_w, call.sin_w, call.cos_dtype, call.rows_w, call.d / 2, RopeWidth::full);
  bottom.positions.ids = call.w_of_token;
  bottom.positions.batch_stride = 0;
  PROLOGUE_RETURN_IF_ERROR(validate(bottom));
  PROLOGUE_RETURN_IF_ERROR(rotary(top, execution));
  return rotary(bottom, execution);
}

}  // namespace apex

// ---- The Triton tutorial: rope_forward_kernel_v4 ----------------------------------------------------------------------------

namespace triton_tutorial {

struct RopeForward {
  const void* x_ptr = nullptr;
  void* out_ptr = nullptr;
  const void* cos_ptr = nullptr;  // [seq_len, head_dim / 2] or more columns
  const void* sin_ptr = nullptr;
  DType dtype = DType::f16;
  DType cos_dtype = DType::f32;
  int64_t stride_x_batch = 0, stride_x_head = 0, stride_x_seq = 0, stride_x_dim = 1;
  int64_t stride_out_batch = 0, stride_out_head = 0, stride_out_seq = 0, stride_out_dim = 1;
  int64_t stride_cos_seq = 0, stride_cos_dim = 1;
  int64_t stride_sin_seq = 0, stride_sin_dim = 1;
  int64_t batch_size = 0;
  int64_t n_heads = 0;
  int64_t seq_len = 0;
  int64_t head_dim = 0;
};

inline Status rope_forward(const RopeForward& call, const Execution& execution) {
  RotaryParams params;
  params.batch = call.batch_size;
  params.seq_len = call.seq_len;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  params.tensors[0] = {call.x_ptr,
                       call.out_ptr,
                       call.n_heads,
                       {call.stride_x_batch, call.stride_x_seq, call.stride_x_head, call.stride_x_dim},
                       {call.stride_out_batch, call.stride_out_seq, call.stride_out_head, call.stride_out_dim}};
  params.rope.style = RopeStyle::neox;
  params.rope.rotary_dim = call.head_dim;
  params.rope.inverse = 1;  // y1 = x1 cos + x2 sin: the inverse rotation
  params.rope.type = call.cos_dtype;
  params.rope.width = RopeWidth::half;
  params.rope.source = RopeSource::per_token;
  params.rope.cos = {call.cos_ptr, 0, call.stride_cos_seq, call.stride_cos_dim};
  params.rope.sin = {call.sin_ptr, 0, call.stride_sin_seq, call.stride_sin_dim};
  return rotary(params, execution);
}

}  // namespace triton_tutorial

// ---- InfiniCore: infiniopCreateRoPEDescriptor, infiniopRoPE -----------------------------------------------------------------

namespace infinicore {

// The values are those of InfiniCore: static_cast<infiniStatus_t>(code) and static_cast<Dtype>(dtype) convert them.
enum class Code : int32_t {
  success = 0,
  bad_param = 3,
  null_pointer,
  device_type_not_supported,
  bad_tensor_dtype = 10,
  bad_tensor_shape,
  bad_tensor_strides
};
enum class Dtype : int32_t { i8 = 3, i16, i32, i64, u8, u16, u32, u64, f16 = 12, f32, f64, bf16 = 19 };
enum class Algo : int32_t { gpt_j = 0, gpt_neox };

// infiniopTensorDescriptor_t: a shape without memory.
struct TensorDescriptor {
  Dtype dtype = Dtype::f16;
  int64_t ndim = 0;
  int64_t shape[4] = {};
  int64_t strides[4] = {};  // elements
};

// infiniopRoPEDescriptor_t. It needs no destroy call. The workspace is 0 bytes.
struct RopeDescriptor {
  RotaryPlan plan;
};

// Makes all checks of InfiniCore, in the same order, checks the strides of y and x, and then writes *desc. If code is not null,
// *code becomes what infiniopCreateRoPEDescriptor returns for the failed check; the Status has the message.
//   y, x      [seqlen, nhead, dhead] or [batch, seqlen, nhead, dhead], one float type, channels contiguous
//   pos       [seqlen] or [batch, seqlen], any of the eight integer types, contiguous
//   sin, cos  [table_len, dhead / 2], the type of x, contiguous
inline Status create_rope_descriptor(RopeDescriptor* desc, const TensorDescriptor* y, const TensorDescriptor* x,
                                     const TensorDescriptor* pos, const TensorDescriptor* sin, const TensorDescriptor* cos,
                                     Algo algo, const Execution& execution, Code* code = nullptr) {
  const auto fail = [&](Code what, Status status) {
    if (code != nullptr) *code = what;
    return status;
  };
  const std::pair<const char*, const void*> pointers[] = {{"desc", desc}, {"y", y},     {"x", x},
                                                          {"pos", pos},   {"sin", sin}, {"cos", cos}};
  for (const auto& [name, pointer] : pointers) {
    if (pointer == nullptr) return fail(Code::null_pointer, invalid_argument("infinicore: ", name, " is null"));
  }
  if (algo != Algo::gpt_j && algo != Algo::gpt_neox) {  // InfiniCore returns NULL_POINTER here too
    return fail(Code::null_pointer, invalid_argument("infinicore: algo is ", static_cast<int32_t>(algo), ": it must be 0 or 1"));
  }
  if (execution.device != Device::cpu && !(execution.device == Device::cuda && built_with_cuda())) {
    return fail(Code::device_type_not_supported, unsupported("infinicore: device is ", static_cast<int32_t>(execution.device),
                                                             built_with_cuda() ? ": supported are 0 (cpu) and 1 (cuda)"
                                                                               : ": this library was built for 0 (cpu) only"));
  }

  const std::pair<const char*, const TensorDescriptor*> floats[] = {{"y", y}, {"x", x}, {"sin", sin}, {"cos", cos}};
  for (const auto& [name, tensor] : floats) {
    if (tensor->dtype == y->dtype) continue;
    return fail(Code::bad_tensor_dtype,
                invalid_argument("infinicore: the dtype of ", name, " is ", static_cast<int32_t>(tensor->dtype),
                                 ": it must be that of y, ", static_cast<int32_t>(y->dtype)));
  }
  DType type = DType::unset;
  switch (y->dtype) {
    case Dtype::f16: type = DType::f16; break;
    case Dtype::bf16: type = DType::bf16; break;
    case Dtype::f32: type = DType::f32; break;
    case Dtype::f64: type = DType::f64; break;
    default:
      return fail(Code::bad_tensor_dtype, unsupported("infinicore: the dtype of y is ", static_cast<int32_t>(y->dtype),
                                                      ": supported are 12 (f16), 13 (f32), 14 (f64) and 19 (bf16)"));
  }
  constexpr DType kIntTypes[] = {DType::int8,  DType::int16,  DType::int32,  DType::int64,
                                 DType::uint8, DType::uint16, DType::uint32, DType::uint64};
  if (pos->dtype < Dtype::i8 || pos->dtype > Dtype::u64) {
    return fail(Code::bad_tensor_dtype, unsupported("infinicore: the dtype of pos is ", static_cast<int32_t>(pos->dtype),
                                                    ": supported are the integers, 3 (i8) to 10 (u64)"));
  }
  const DType pos_type = kIntTypes[static_cast<int32_t>(pos->dtype) - static_cast<int32_t>(Dtype::i8)];

  const auto bad_shape = [&](auto... parts) { return fail(Code::bad_tensor_shape, invalid_argument("infinicore: ", parts...)); };
  if (y->ndim != 3 && y->ndim != 4) return bad_shape("y has ", y->ndim, " dimensions: it must have 3 or 4");
  if (x->ndim != y->ndim) return bad_shape("x has ", x->ndim, " dimensions: it must have those of y, ", y->ndim);
  if (pos->ndim != 1 && pos->ndim != 2) return bad_shape("pos has ", pos->ndim, " dimensions: it must have 1 or 2");
  if (sin->ndim != 2) return bad_shape("sin has ", sin->ndim, " dimensions: it must have 2");
  if (cos->ndim != 2) return bad_shape("cos has ", cos->ndim, " dimensions: it must have 2");
  for (int64_t i = 0; i < y->ndim; ++i) {
    if (x->shape[i] != y->shape[i]) {
      return bad_shape("x.shape[", i, "] is ", x->shape[i], ": it must be that of y, ", y->shape[i]);
    }
  }
  const int64_t first = y->ndim - 3;  // 1 with a batch dimension
  const int64_t batch = first == 1 ? y->shape[0] : 1, seqlen = y->shape[first], nhead = y->shape[first + 1],
                dhead = y->shape[first + 2];
  if (pos->ndim == 2 && pos->shape[0] != batch) {
    return bad_shape("pos has ", pos->shape[0], " rows: it must have batch, ", batch);
  }
  if (pos->shape[pos->ndim - 1] != seqlen) {
    return bad_shape("pos has ", pos->shape[pos->ndim - 1], " positions: it must have seqlen, ", seqlen);
  }
  const int64_t table_len = sin->shape[0], table_dim = sin->shape[1];
  if (cos->shape[0] != table_len || cos->shape[1] != table_dim) {
    return bad_shape("cos is [", cos->shape[0], ", ", cos->shape[1], "]: it must be as sin, [", table_len, ", ", table_dim, "]");
  }
  if (dhead < 0 || dhead % 2 != 0 || table_dim != dhead / 2) {
    return bad_shape("dhead is ", dhead, ": it must be twice the columns of sin, ", table_dim);
  }
  const Status sizes = detail::check_sizes(
      "infinicore", {{"seqlen", seqlen, detail::kTokens}, {"nhead", nhead, detail::kHeads}, {"dhead", dhead, detail::kDim}});
  if (!sizes.ok()) return fail(Code::bad_tensor_shape, sizes);

  const auto bad_strides = [&](auto... parts) {
    return fail(Code::bad_tensor_strides, invalid_argument("infinicore: ", parts...));
  };
  if (y->strides[first + 2] != 1 || x->strides[first + 2] != 1) {
    return bad_strides("the channels of ", y->strides[first + 2] != 1 ? "y" : "x", " are ",
                       y->strides[first + 2] != 1 ? y->strides[first + 2] : x->strides[first + 2],
                       " apart: they must be contiguous");
  }
  const auto contiguous = [](const TensorDescriptor& t) {
    const int64_t last = t.ndim - 1;
    if (t.shape[last] != 1 && t.strides[last] != 1) return false;
    return last == 0 || t.shape[0] == 1 || t.strides[0] == t.shape[1];
  };
  if (!contiguous(*sin)) return bad_strides("sin is not contiguous");
  if (!contiguous(*cos)) return bad_strides("cos is not contiguous");
  if (!contiguous(*pos)) return bad_strides("pos is not contiguous");

  RotaryParams params;
  params.batch = batch;
  params.seq_len = seqlen;
  params.head_dim = dhead;
  params.dtype = type;
  params.num_tensors = 1;
  params.tensors[0] = rotary_tensor(nullptr, nullptr, nhead, batch_major_strides(seqlen, nhead, dhead));
  params.rope.style = algo == Algo::gpt_j ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = dhead;
  set_cos_and_sin(params.rope, nullptr, nullptr, type, table_len, table_dim, RopeWidth::half);
  params.positions.ids = {nullptr, pos_type};
  params.positions.batch_stride = pos->ndim == 2 ? seqlen : 0;
  Result<RotaryPlan> plan = RotaryPlan::create(params, execution);  // dense strides: checks the shapes
  if (!plan.ok()) return fail(Code::bad_tensor_shape, plan.status());
  const auto strides = [&](const TensorDescriptor& tensor) {
    const int64_t* s = tensor.strides + first;
    return RotaryStrides{first == 1 ? tensor.strides[0] : 0, s[0], s[1], s[2]};
  };
  params.tensors[0].x_strides = strides(*x);
  params.tensors[0].y_strides = strides(*y);
  plan = RotaryPlan::create(params, execution);
  if (!plan.ok()) return fail(Code::bad_tensor_strides, plan.status());
  desc->plan = *plan;
  if (code != nullptr) *code = Code::success;
  return {};
}

// infiniopRoPE. The pointers are checked here.
inline Status rope(const RopeDescriptor& desc, void* y, const void* x, const void* pos_ids, const void* sin_table,
                   const void* cos_table, FaultRecord* faults, const Execution& execution, Code* code = nullptr) {
  RotaryParams params = desc.plan.params();
  const std::pair<const char*, const void*> pointers[] = {
      {"y", y}, {"x", x}, {"pos_ids", pos_ids}, {"sin_table", sin_table}, {"cos_table", cos_table}};
  for (const auto& [name, pointer] : pointers) {
    if (pointer != nullptr) continue;
    if (code != nullptr) *code = Code::null_pointer;
    return invalid_argument("infinicore: ", name, " is null");
  }
  params.tensors[0].y = y;
  params.tensors[0].x = x;
  params.positions.ids.data = pos_ids;
  params.rope.sin.data = sin_table;
  params.rope.cos.data = cos_table;
  params.faults = faults;
  Status status = desc.plan.run(params, execution);
  if (code != nullptr) *code = status.ok() ? Code::success : Code::bad_param;
  return status;
}

}  // namespace infinicore

// ---- vLLM: rotary_embedding, reshape_and_cache_flash ------------------------------------------------------------------------

namespace vllm {

struct RotaryEmbedding {
  const int64_t* positions = nullptr;  // [num_tokens]
  void* query = nullptr;               // [num_tokens, num_heads * head_size], rotated in place
  void* key = nullptr;                 // [num_tokens, num_kv_heads * head_size], or null
  DType dtype = DType::bf16;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
  int64_t query_stride = 0;  // of a token; for slices of a packed qkv: its row stride
  int64_t key_stride = 0;
  const void* cos_sin_cache = nullptr;  // [max_position, rot_dim]
  DType cache_dtype = DType::bf16;
  int64_t max_position = 0;
  int64_t rot_dim = 0;
  bool is_neox = true;
  int64_t rope_dim_offset = 0;
  bool inverse = false;
};

inline Status rotary_embedding(const RotaryEmbedding& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(
      detail::check_sizes("vllm", {{"head_size", call.head_size, detail::kDim}, {"rot_dim", call.rot_dim, detail::kDim}}));
  if (call.positions == nullptr) return invalid_argument("vllm: positions is null: they must be given");
  RotaryParams params;
  params.seq_len = call.num_tokens;
  params.head_dim = call.head_size;
  params.dtype = call.dtype;
  params.tensors[params.num_tensors++] =
      rotary_tensor(call.query, call.query, call.num_heads, {0, call.query_stride, call.head_size, 1});
  if (call.key != nullptr) {
    params.tensors[params.num_tensors++] =
        rotary_tensor(call.key, call.key, call.num_kv_heads, {0, call.key_stride, call.head_size, 1});
  }
  params.rope.style = call.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = call.rot_dim;
  params.rope.rotary_offset = call.rope_dim_offset;
  params.rope.inverse = call.inverse;
  params.tail = RotaryTail::leave;
  set_cos_sin_table(params.rope, call.cos_sin_cache, call.cache_dtype, call.max_position);
  params.rope.width = RopeWidth::half;
  params.positions.ids = index_view(call.positions);
  params.faults = faults;
  return rotary(params, execution);
}

// rotary_embedding and reshape_and_cache_flash in one launch.
struct RopeAndCache {
  RotaryEmbedding rope;  // key not null; cos_sin_cache not in float64
  const void* value = nullptr;
  int64_t value_stride = 0;
  void* key_cache = nullptr;  // [num_blocks, block_size, num_kv_heads, head_size], or HND
  void* value_cache = nullptr;
  int64_t num_blocks = 0;
  int64_t block_size = 0;
  int64_t block_stride = 0;  // key_cache.stride(0), (1), (2); HND: (0), (2), (1)
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  const int64_t* slot_mapping = nullptr;
  int64_t num_actual_tokens = 0;  // slot_mapping.size(0), where query, key and value are padded beyond it; 0: num_tokens
  std::string_view kv_cache_dtype = "auto";  // "auto", "fp8", "fp8_e4m3", "fp8_e5m2"
  float* k_scale = nullptr;                  // [1] or [num_kv_heads]
  float* v_scale = nullptr;
  bool scale_per_head = false;
};

inline Status rope_and_cache(const RopeAndCache& call, FaultRecord* faults, const Execution& execution) {
  const RotaryEmbedding& rope = call.rope;
  if (rope.positions == nullptr) return invalid_argument("vllm: positions is null: they must be given");
  if (!dtype_is_activation(rope.cache_dtype)) {
    return unsupported("vllm: cache_dtype is ", dtype_is_float(rope.cache_dtype) ? dtype_name(rope.cache_dtype) : "unknown",
                       ": with the cache cos_sin_cache must be float32 or of 16 bits");
  }
  if (rope.dtype == DType::f64) return unsupported("vllm: dtype is float64: with the cache it must be float32 or of 16 bits");
  const std::string_view type = call.kv_cache_dtype;
  if (type != "auto" && type != "fp8" && type != "fp8_e4m3" && type != "fp8_e5m2") {
    return unsupported("vllm: kv_cache_dtype is '", type.substr(0, 16), "': supported are auto, fp8, fp8_e4m3 and fp8_e5m2");
  }
  AttentionPrologueParams params;
  params.num_tokens = rope.num_tokens;
  params.num_q_heads = rope.num_heads;
  params.num_kv_heads = rope.num_kv_heads;
  params.head_dim = rope.head_size;
  params.dtype = rope.dtype;
  params.q = {rope.query, rope.query_stride, rope.head_size};
  params.k = {rope.key, rope.key_stride, rope.head_size};
  params.v = {call.value, call.value_stride, rope.head_size};
  params.q_out = {rope.query, rope.query_stride, rope.head_size};
  params.k_out = {rope.key, rope.key_stride, rope.head_size};  // remove this line if only the cache needs the rotated key
  params.rope.style = rope.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = rope.rot_dim;
  params.rope.rotary_offset = rope.rope_dim_offset;
  params.rope.inverse = rope.inverse;
  set_cos_sin_table(params.rope, rope.cos_sin_cache, rope.cache_dtype, rope.max_position);
  params.places.positions = index_view(rope.positions);
  params.places.slot_mapping = index_view(call.slot_mapping);
  params.places.slot_mapping_len = call.num_actual_tokens;
  params.cache.k.data = call.key_cache;
  params.cache.v.data = call.value_cache;
  params.cache.num_pages = call.num_blocks;
  params.cache.page_size = call.block_size;
  params.cache.num_kv_heads = rope.num_kv_heads;
  params.cache.k.head_dim = rope.head_size;
  params.cache.k.strides = params.cache.v.strides = {call.block_stride, call.page_stride, call.head_stride};
  params.cache.k.format.type = params.cache.v.format.type = type == "auto"       ? params.dtype
                                                            : type == "fp8_e5m2" ? DType::fp8_e5m2
                                                                                 : DType::fp8_e4m3;
  if (type != "auto") {
    params.cache.k.format.scaling = params.cache.v.format.scaling = call.scale_per_head ? KvScaling::head : KvScaling::tensor;
    params.cache.k.scale = call.k_scale;
    params.cache.v.scale = call.v_scale;
  }
  params.faults = faults;
  return attention_prologue(params, execution);
}

}  // namespace vllm

// ---- SGLang: apply_rope_with_cos_sin_cache_inplace --------------------------------------------------------------------------

namespace sglang {

struct ApplyRopeInplace {
  void* q = nullptr;  // [num_tokens, heads, head_dim], rotated in place
  void* k = nullptr;
  DType dtype = DType::bf16;
  int64_t num_tokens = 0;
  int64_t num_qo_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t q_stride = 0;  // of a token
  int64_t k_stride = 0;
  const float* cos_sin_cache = nullptr;  // [max_position, rope_dim]
  int64_t max_position = 0;
  int64_t rope_dim = 0;  // must be given (in SGLang 0 means the width of cos_sin_cache)
  IndexView positions = {};
  bool is_neox = true;
  const void* value = nullptr;  // fused_args, FusedSetKVBufferArg; null = none
  int64_t value_stride = 0;
  void* k_buffer = nullptr;  // [buffer_size, num_kv_heads * head_dim]
  void* v_buffer = nullptr;
  int64_t buffer_size = 0;
  IndexView cache_loc = {};
};

inline Status apply_rope_inplace(const ApplyRopeInplace& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("sglang", {{"num_kv_heads", call.num_kv_heads, detail::kHeads},
                                                          {"head_dim", call.head_dim, detail::kDim},
                                                          {"rope_dim", call.rope_dim, detail::kDim}}));
  if (call.positions.data == nullptr) return invalid_argument("sglang: positions is null: they must be given");
  if (call.rope_dim <= 0) return invalid_argument("sglang: rope_dim is ", call.rope_dim, ": give the width of cos_sin_cache");
  if (call.value == nullptr) {  // no fused_args: only the rotation
    RotaryParams params;
    params.seq_len = call.num_tokens;
    params.head_dim = call.head_dim;
    params.dtype = call.dtype;
    params.num_tensors = 2;
    params.tensors[0] = rotary_tensor(call.q, call.q, call.num_qo_heads, {0, call.q_stride, call.head_dim, 1});
    params.tensors[1] = rotary_tensor(call.k, call.k, call.num_kv_heads, {0, call.k_stride, call.head_dim, 1});
    params.rope.style = call.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
    params.rope.rotary_dim = call.rope_dim;
    set_cos_sin_table(params.rope, call.cos_sin_cache, DType::f32, call.max_position);
    params.rope.width = RopeWidth::half;
    params.positions.ids = call.positions;
    params.faults = faults;
    return rotary(params, execution);
  }
  if (call.cache_loc.data == nullptr) return invalid_argument("sglang: cache_loc is null: with value it must be given");
  AttentionPrologueParams params;
  params.num_tokens = call.num_tokens;
  params.num_q_heads = call.num_qo_heads;
  params.num_kv_heads = call.num_kv_heads;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.q_out = {call.q, call.q_stride, call.head_dim};
  params.q = as_input(params.q_out);
  params.k_out = {call.k, call.k_stride, call.head_dim};
  params.k = as_input(params.k_out);
  params.v = {call.value, call.value_stride, call.head_dim};
  params.rope.style = call.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = call.rope_dim;
  set_cos_sin_table(params.rope, call.cos_sin_cache, DType::f32, call.max_position);
  params.places.positions = call.positions;
  params.places.slot_mapping = call.cache_loc;
  params.cache.k.data = call.k_buffer;  // a row of the pool is a page of one token
  params.cache.v.data = call.v_buffer;
  params.cache.k.format.type = params.cache.v.format.type = call.dtype;
  params.cache.num_pages = call.buffer_size;
  params.cache.page_size = 1;
  params.cache.num_kv_heads = call.num_kv_heads;
  params.cache.k.head_dim = call.head_dim;
  params.cache.k.strides = params.cache.v.strides = nhd_strides(1, call.num_kv_heads, call.head_dim);
  params.faults = faults;
  return attention_prologue(params, execution);
}

}  // namespace sglang

// ---- FlashInfer: apply_rope*, rope_quantize_fp8_append_paged_kv_cache -------------------------------------------------------

namespace flashinfer {

struct ApplyRope {
  const void* q = nullptr;  // [nnz, heads, head_dim]
  const void* k = nullptr;
  void* q_rope = nullptr;  // q and k themselves for _inplace
  void* k_rope = nullptr;
  DType dtype = DType::bf16;
  int64_t nnz = 0;
  int64_t num_q_heads = 0;
  int64_t num_k_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  bool interleave = false;  // not is_neox
  IndexView indptr = {};    // apply_rope: [batch_size + 1]
  IndexView offsets = {};   // apply_rope: [batch_size]
  int64_t batch_size = 0;
  IndexView pos_ids = {};  // apply_rope_pos_ids, ..with_cos_sin_cache: [nnz], instead of indptr and offsets
  double rope_scale = 1.0;
  double rope_theta = 1e4;
  const double* inv_freq = nullptr;      // [rotary_dim / 2], of inv_freq_of(); must be given where rope_scale is not 1
  const float* cos_sin_cache = nullptr;  // ..with_cos_sin_cache: [max_position, rotary_dim]
  int64_t max_position = 0;
};

// On the host, rotary_dim / 2 numbers. For apply_llama31_rope: rope_frequencies() with a Llama3Rope
// (layers/rope/rope_scaling.h).
inline Status inv_freq_of(int64_t rotary_dim, double rope_scale, double rope_theta, double* inv_freq) {
  if (rotary_dim < 2 || rotary_dim > 576 || rotary_dim % 2 != 0) {
    return invalid_argument("flashinfer: rotary_dim is ", rotary_dim, ": it must be even and lie in 2..576");
  }
  if (!(rope_scale > 0.0) || !(rope_theta > 0.0)) {
    return invalid_argument("flashinfer: rope_scale is ", rope_scale, " and rope_theta is ", rope_theta,
                            ": both must be positive");
  }
  if (inv_freq == nullptr) return invalid_argument("flashinfer: inv_freq is null");
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    inv_freq[i] = std::pow(rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim)) / rope_scale;
  }
  return {};
}

inline Status apply_rope(const ApplyRope& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("flashinfer", {{"nnz", call.nnz, detail::kTokens},
                                                              {"num_q_heads", call.num_q_heads, detail::kHeads},
                                                              {"num_k_heads", call.num_k_heads, detail::kHeads},
                                                              {"head_dim", call.head_dim, detail::kDim},
                                                              {"rotary_dim", call.rotary_dim, detail::kDim}}));
  if ((call.pos_ids.data == nullptr) == (call.indptr.data == nullptr)) {
    return invalid_argument("flashinfer: pos_ids and indptr are both ", call.indptr.data == nullptr ? "null" : "given",
                            ": give one of them");
  }
  if (call.cos_sin_cache == nullptr && call.inv_freq == nullptr && call.rope_scale != 1.0) {
    return invalid_argument("flashinfer: rope_scale is ", call.rope_scale,
                            ": inv_freq must then hold what inv_freq_of() makes of it");
  }
  const auto strides = [&](int64_t heads) { return batch_major_strides(call.nnz, heads, call.head_dim); };
  RotaryParams params;
  params.seq_len = call.nnz;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.num_tensors = 2;
  params.tensors[0] = rotary_tensor(call.q, call.q_rope, call.num_q_heads, strides(call.num_q_heads));
  params.tensors[1] = rotary_tensor(call.k, call.k_rope, call.num_k_heads, strides(call.num_k_heads));
  params.rope.style = call.interleave ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = call.rotary_dim;
  if (call.cos_sin_cache != nullptr) {
    set_cos_sin_table(params.rope, call.cos_sin_cache, DType::f32, call.max_position);
  } else if (call.inv_freq != nullptr) {
    params.rope.source = RopeSource::inv_freq;
    params.rope.type = DType::f64;
    params.rope.inv_freq = call.inv_freq;
  } else {
    params.rope.source = RopeSource::theta;
    params.rope.theta = call.rope_theta;
  }
  params.rope.width = RopeWidth::half;
  if (call.pos_ids.data != nullptr) {
    params.positions.ids = call.pos_ids;
  } else {
    params.positions.cu_seqlens = call.indptr;
    params.positions.num_seqs = call.batch_size;
    params.positions.offsets = call.offsets;
  }
  params.faults = faults;
  return rotary(params, execution);
}

struct RopeQuantizeFp8Append {
  const void* q = nullptr;  // [nnz, heads, head_dim], rope channels first; or q_nope [nnz, heads, head_dim - rope_dim]
  const void* k = nullptr;
  const void* v = nullptr;
  const void* q_rope = nullptr;  // [nnz, heads, rope_dim]; null: q has both slices
  const void* k_rope = nullptr;
  DType dtype = DType::bf16;
  int64_t nnz = 0;
  int64_t num_qo_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;
  const float* cos_sin_cache = nullptr;  // [max_position, rope_dim]
  int64_t max_position = 0;
  IndexView pos_ids = {};
  void* k_cache = nullptr;
  void* v_cache = nullptr;
  int64_t max_pages = 0;
  int64_t page_size = 16;
  bool hnd = false;  // kv_layout "HND"
  // The page table as FlashInfer has it, on the device. append_indptr is what batch_indices and positions are made of.
  const int32_t* append_indptr = nullptr;     // [batch_size + 1]
  const int32_t* kv_indptr = nullptr;         // [batch_size + 1]
  const int32_t* kv_indices = nullptr;        // [num_kv_indices]
  const int32_t* kv_last_page_len = nullptr;  // [batch_size]
  int64_t num_kv_indices = 0;
  int64_t batch_size = 0;
  const int64_t* slot_mapping = nullptr;  // or, instead of these: [nnz], of slots_of()
  bool is_neox = true;
  void* q_out = nullptr;      // fp8 e4m3, [nnz, num_qo_heads, head_dim]
  float* q_scale = nullptr;   // [1]: 1 / quant_scale_q
  float* kv_scale = nullptr;  // [1]: 1 / quant_scale_kv
};

// On the host, once per step: converts FlashInfer's page table (CSR) to one slot for each of the nnz tokens, for batch indices
// that are not those of append_indptr. A token with a negative batch index is padding; its slot is -1.
inline Status slots_of(const int32_t* kv_indices, const int32_t* kv_indptr, int64_t batch_size, const int32_t* batch_indices,
                       const int32_t* positions, int64_t nnz, int64_t page_size, int64_t* slots) {
  if (page_size <= 0) return invalid_argument("flashinfer: page_size is ", page_size, ": it must be positive");
  for (int pass = 0; pass < 2; ++pass) {  // check, then write
    for (int64_t t = 0; t < nnz; ++t) {
      const int64_t sequence = batch_indices[t], position = positions[t];
      if (sequence < 0) {
        if (pass == 1) slots[t] = -1;
        continue;
      }
      if (sequence >= batch_size) {
        return invalid_argument("flashinfer: batch_indices[", t, "] is ", sequence, ": it must be below batch_size, ",
                                batch_size);
      }
      const int64_t pages = int64_t{kv_indptr[sequence + 1]} - kv_indptr[sequence];
      if (position < 0 || position / page_size >= pages) {
        return invalid_argument("flashinfer: positions[", t, "] is ", position, ": sequence ", sequence, " has ", pages,
                                " pages of ", page_size);
      }
      if (pass == 1) slots[t] = kv_indices[kv_indptr[sequence] + position / page_size] * page_size + position % page_size;
    }
  }
  return {};
}

inline Status rope_quantize_fp8_append(const RopeQuantizeFp8Append& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("flashinfer", {{"num_qo_heads", call.num_qo_heads, detail::kHeads},
                                                              {"num_kv_heads", call.num_kv_heads, detail::kHeads},
                                                              {"head_dim", call.head_dim, detail::kDim},
                                                              {"rope_dim", call.rope_dim, detail::kDim},
                                                              {"page_size", call.page_size, int64_t{1} << 20}}));
  if (call.pos_ids.data == nullptr) return invalid_argument("flashinfer: pos_ids is null: they must be given");
  if ((call.slot_mapping == nullptr) == (call.kv_indptr == nullptr)) {
    return invalid_argument("flashinfer: slot_mapping and kv_indptr are both ", call.kv_indptr == nullptr ? "null" : "given",
                            ": give one of them");
  }
  if (call.kv_indptr != nullptr && (call.append_indptr == nullptr || call.kv_last_page_len == nullptr)) {
    return invalid_argument("flashinfer: ", call.append_indptr == nullptr ? "append_indptr" : "kv_last_page_len",
                            " is null: with kv_indptr it must be given");
  }
  const auto view = [](const void* data, int64_t heads, int64_t dim) { return HeadsView{data, heads * dim, dim}; };
  const int64_t q_nope = call.head_dim - (call.q_rope == nullptr ? 0 : call.rope_dim);
  const int64_t k_nope = call.head_dim - (call.k_rope == nullptr ? 0 : call.rope_dim);
  AttentionPrologueParams params;
  params.num_tokens = call.nnz;
  params.num_q_heads = call.num_qo_heads;
  params.num_kv_heads = call.num_kv_heads;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.q = view(call.q, call.num_qo_heads, q_nope);
  params.k = view(call.k, call.num_kv_heads, k_nope);
  params.v = view(call.v, call.num_kv_heads, call.head_dim);
  params.q_rope = view(call.q_rope, call.num_qo_heads, call.rope_dim);
  params.k_rope = view(call.k_rope, call.num_kv_heads, call.rope_dim);
  params.q8_out.data = call.q_out;
  params.q8_out.token_stride = call.num_qo_heads * call.head_dim;
  params.q8_out.head_stride = call.head_dim;
  params.q8_out.scale = call.q_scale;
  params.rope.style = call.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = call.rope_dim;
  set_cos_sin_table(params.rope, call.cos_sin_cache, DType::f32, call.max_position);
  params.places.positions = call.pos_ids;
  params.places.slot_mapping = index_view(call.slot_mapping);
  params.places.num_seqs = call.batch_size;
  params.places.cu_seqlens_q = call.append_indptr;
  params.places.page_table.kv_indptr = call.kv_indptr;
  params.places.page_table.kv_indices = call.kv_indices;
  params.places.page_table.num_kv_indices = call.num_kv_indices;
  params.places.page_table.kv_last_page_len = call.kv_last_page_len;
  params.cache.k.data = call.k_cache;
  params.cache.v.data = call.v_cache;
  params.cache.k.format.type = params.cache.v.format.type = DType::fp8_e4m3;
  params.cache.num_pages = call.max_pages;
  params.cache.page_size = call.page_size;
  params.cache.num_kv_heads = call.num_kv_heads;
  params.cache.k.head_dim = call.head_dim;
  const int64_t page = call.page_size * call.num_kv_heads * call.head_dim;
  params.cache.k.strides = params.cache.v.strides = call.hnd ? PageStrides{page, call.head_dim, call.page_size * call.head_dim}
                                                             : nhd_strides(call.page_size, call.num_kv_heads, call.head_dim);
  params.cache.k.format.scaling = params.cache.v.format.scaling = KvScaling::tensor;
  params.cache.k.scale = params.cache.v.scale = call.kv_scale;
  params.faults = faults;
  return attention_prologue(params, execution);
}

}  // namespace flashinfer

// ---- TensorRT-LLM: invokeQKVPreprocessing -----------------------------------------------------------------------------------

namespace tensorrt_llm {

struct QkvPreprocessing {
  void* qkv_input = nullptr;  // [token_num, (head_num + 2 * kv_head_num) * size_per_head], Q rotated in place
  void* q_output = nullptr;   // or rotated to here, dense: separate_q_kv_output
  const void* qkv_bias = nullptr;
  DType dtype = DType::f16;
  int64_t token_num = 0;
  int64_t head_num = 0;
  int64_t kv_head_num = 0;
  int64_t size_per_head = 0;
  int64_t batch_size = 0;
  const int32_t* cu_seq_lens = nullptr;              // [batch_size + 1]
  const int32_t* cache_seq_lens = nullptr;           // [batch_size]: tokens after this step
  const int32_t* past_seq_lens = nullptr;            // or, instead: cache_seq_lens minus the tokens of this step
  const float* rotary_embedding_inv_freq = nullptr;  // [rotary_embedding_dim / 2], scaling included
  int64_t rotary_embedding_dim = 0;
  int64_t rotary_embedding_max_positions = 0;
  bool gptj = false;       // PositionEmbeddingType::kROPE_GPTJ
  void* k_pool = nullptr;  // KVBlockArray: [num_blocks, kv_head_num, tokens_per_block, size_per_head]
  void* v_pool = nullptr;
  int64_t num_blocks = 0;
  int64_t tokens_per_block = 0;
  const int32_t* block_table = nullptr;  // [batch_size, max_blocks_per_seq]
  int64_t max_blocks_per_seq = 0;
  int64_t cyclic_kv_cache_len = 0;       // 0: not cyclic
  DType cache_type = DType::f16;         // KvCacheDataType BASE, INT8, FP8
  float* kv_scale_quant_orig = nullptr;  // [1], for K and V
};

inline Status qkv_preprocessing(const QkvPreprocessing& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("tensorrt_llm", {{"head_num", call.head_num, detail::kHeads},
                                                                {"kv_head_num", call.kv_head_num, detail::kHeads},
                                                                {"size_per_head", call.size_per_head, detail::kDim},
                                                                {"tokens_per_block", call.tokens_per_block, int64_t{1} << 20}}));
  if (call.cu_seq_lens == nullptr) return invalid_argument("tensorrt_llm: cu_seq_lens is null: positions are derived from it");
  const int64_t hidden_size = (call.head_num + 2 * call.kv_head_num) * call.size_per_head;
  AttentionPrologueParams params;
  params.num_tokens = call.token_num;
  params.num_q_heads = call.head_num;
  params.num_kv_heads = call.kv_head_num;
  params.head_dim = call.size_per_head;
  params.dtype = call.dtype;
  set_packed_qkv(params, call.qkv_input, hidden_size);
  if (call.qkv_bias != nullptr) {
    const auto* bias = static_cast<const char*>(call.qkv_bias);
    const int64_t head_bytes = call.size_per_head * dtype_size(call.dtype);
    params.bias = {bias, bias + call.head_num * head_bytes, bias + (call.head_num + call.kv_head_num) * head_bytes};
  }
  params.q_out = call.q_output != nullptr
                     ? MutableHeadsView{call.q_output, call.head_num * call.size_per_head, call.size_per_head}
                     : MutableHeadsView{call.qkv_input, hidden_size, call.size_per_head};
  params.rope.style = call.gptj ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = call.rotary_embedding_dim;
  params.rope.source = RopeSource::inv_freq;
  params.rope.type = DType::f32;
  params.rope.inv_freq = call.rotary_embedding_inv_freq;
  params.rope.max_position = call.rotary_embedding_max_positions;
  params.places.num_seqs = call.batch_size;
  params.places.cu_seqlens_q = call.cu_seq_lens;
  params.places.seq_lens = call.cache_seq_lens;
  params.places.cache_lens = call.past_seq_lens;
  params.places.page_table.block_table = call.block_table;
  params.places.page_table.block_table_stride = params.places.page_table.max_pages_per_seq = call.max_blocks_per_seq;
  params.places.ring_size = call.cyclic_kv_cache_len;
  params.cache.k.data = call.k_pool;
  params.cache.v.data = call.v_pool;
  params.cache.k.format.type = params.cache.v.format.type = call.cache_type;
  params.cache.num_pages = call.num_blocks;
  params.cache.page_size = call.tokens_per_block;
  params.cache.num_kv_heads = call.kv_head_num;
  params.cache.k.head_dim = call.size_per_head;
  params.cache.k.strides = params.cache.v.strides = {call.kv_head_num * call.tokens_per_block * call.size_per_head,
                                                     call.size_per_head, call.tokens_per_block * call.size_per_head};
  if (!dtype_is_activation(call.cache_type)) {
    params.cache.k.format.scaling = params.cache.v.format.scaling = KvScaling::tensor;
    params.cache.k.scale = params.cache.v.scale = call.kv_scale_quant_orig;
  }
  params.faults = faults;
  return attention_prologue(params, execution);
}

}  // namespace tensorrt_llm

// ---- Hugging Face transformers: apply_rotary_pos_emb, GPTJAttention ---------------------------------------------------------

namespace huggingface {

struct ApplyRotaryPosEmb {
  const void* q = nullptr;  // [batch, heads, seq_len, head_dim] (unsqueeze_dim 1) or [batch, seq_len, heads, head_dim] (2)
  const void* k = nullptr;
  void* q_embed = nullptr;
  void* k_embed = nullptr;
  DType dtype = DType::bf16;
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t num_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  const void* cos = nullptr;  // [batch, seq_len, rotary_ndims], or [1, seq_len, rotary_ndims], in dtype
  const void* sin = nullptr;
  bool cos_per_batch = true;  // false: [1, ..]
  int64_t rotary_ndims = 0;   // cos.shape[-1]: head_dim, or less
  int64_t unsqueeze_dim = 1;
};

inline Status apply_rotary_pos_emb(const ApplyRotaryPosEmb& call, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("huggingface", {{"seq_len", call.seq_len, detail::kTokens},
                                                               {"num_heads", call.num_heads, detail::kHeads},
                                                               {"num_key_value_heads", call.num_key_value_heads, detail::kHeads},
                                                               {"head_dim", call.head_dim, detail::kDim},
                                                               {"rotary_ndims", call.rotary_ndims, detail::kDim}}));
  if (call.unsqueeze_dim != 1 && call.unsqueeze_dim != 2) {
    return invalid_argument("huggingface: unsqueeze_dim is ", call.unsqueeze_dim, ": it must be 1 or 2");
  }
  if (call.rotary_ndims <= 0) {
    return invalid_argument("huggingface: rotary_ndims is ", call.rotary_ndims, ": give the columns of cos");
  }
  const auto strides = [&](int64_t heads) {
    return call.unsqueeze_dim == 1 ? head_major_strides(call.seq_len, heads, call.head_dim)
                                   : batch_major_strides(call.seq_len, heads, call.head_dim);
  };
  RotaryParams params;
  params.batch = call.batch;
  params.seq_len = call.seq_len;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.num_tensors = 2;
  params.tensors[0] = rotary_tensor(call.q, call.q_embed, call.num_heads, strides(call.num_heads));
  params.tensors[1] = rotary_tensor(call.k, call.k_embed, call.num_key_value_heads, strides(call.num_key_value_heads));
  params.rope.style = RopeStyle::neox;
  params.rope.rotary_dim = call.rotary_ndims;
  const int64_t batch_stride = call.cos_per_batch ? call.seq_len * call.rotary_ndims : 0;
  params.rope.type = call.dtype;
  params.rope.width = RopeWidth::full;
  params.rope.source = RopeSource::per_token;
  params.rope.cos = {call.cos, batch_stride, call.rotary_ndims, 1};
  params.rope.sin = {call.sin, batch_stride, call.rotary_ndims, 1};
  return rotary(params, execution);
}

// q and k of GPTJAttention.
struct Gptj {
  const void* q = nullptr;  // [batch, seq_len, heads, head_dim]
  const void* k = nullptr;
  void* q_out = nullptr;
  void* k_out = nullptr;
  DType dtype = DType::bf16;
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  const void* embed_positions = nullptr;  // [max_positions, rotary_dim], sin then cos, in dtype
  int64_t max_positions = 0;
  IndexView position_ids = {};  // [batch, seq_len]
};

inline Status gptj_rotary(const Gptj& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("huggingface", {{"seq_len", call.seq_len, detail::kTokens},
                                                               {"num_heads", call.num_heads, detail::kHeads},
                                                               {"num_kv_heads", call.num_kv_heads, detail::kHeads},
                                                               {"head_dim", call.head_dim, detail::kDim},
                                                               {"rotary_dim", call.rotary_dim, detail::kDim}}));
  if (call.position_ids.data == nullptr) return invalid_argument("huggingface: position_ids is null: they must be given");
  RotaryParams params;
  params.batch = call.batch;
  params.seq_len = call.seq_len;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.num_tensors = 2;
  params.tensors[0] =
      rotary_tensor(call.q, call.q_out, call.num_heads, batch_major_strides(call.seq_len, call.num_heads, call.head_dim));
  params.tensors[1] =
      rotary_tensor(call.k, call.k_out, call.num_kv_heads, batch_major_strides(call.seq_len, call.num_kv_heads, call.head_dim));
  params.rope.style = RopeStyle::interleaved;
  params.rope.rotary_dim = call.rotary_dim;
  set_cos_sin_table(params.rope, call.embed_positions, call.dtype, call.max_positions);
  params.rope.width = RopeWidth::half;
  std::swap(params.rope.cos, params.rope.sin);  // embed_positions is sin then cos
  params.positions.ids = call.position_ids;
  params.positions.batch_stride = call.seq_len;
  params.faults = faults;
  return rotary(params, execution);
}

}  // namespace huggingface

// ---- TransformerEngine: apply_rotary_pos_emb --------------------------------------------------------------------------------

namespace transformer_engine {

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

// Context parallelism: this rank has chunk cp_rank from the front and chunk cp_rank from the back of every sequence. Runs on the
// host. seqlens[i] is the number of sequence i's tokens on this rank (even). `positions` must have room for all of them.
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

}  // namespace transformer_engine

}  // namespace prologue::coming_from
