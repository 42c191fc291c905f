// Takes calls of ggml and llama.cpp: ggml_rope_ext, ggml_rope_multi, their _back and _inplace. See adapter.h and docs/coming-from.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::ggml {

enum Mode : int32_t { normal = 0, neox = 2, mrope = 8, vision = 24, imrope = 40 };  // GGML_ROPE_TYPE_*

inline bool is_multi(int32_t mode) { return mode == mrope || mode == vision || mode == imrope; }

// Holds the parameters that are equal for all calls of a model.
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

// Is computed on the host, once for a model. Copy inv_freq and pair_axis to the device afterwards.
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

}  // namespace prologue::adapters::ggml
