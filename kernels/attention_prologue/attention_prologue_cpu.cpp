#include <algorithm>
#include <cmath>
#include <cstring>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/cache_cpu.h>
#include <prologue/kernels/attention_prologue/norm_cpu.h>
#include <prologue/kernels/attention_prologue/query_factor.h>
#include <prologue/kernels/attention_prologue/token_place.h>
#include <prologue/kernels/base/angle.h>
#include <prologue/kernels/base/head_cpu.h>
#include <prologue/kernels/base/parallel.h>

namespace prologue::cpu {

namespace {

// What happens to the heads of one of Q, K and V.
template <class T>
struct TensorSteps {
  HeadsView in;
  int64_t num_heads = 0;
  int64_t width = 0;
  const T* bias = nullptr;
  HeadNorm norm;
  RotationRow rotation;  // of the token at hand
  float factor = 1.0f;   // the Q scale
  bool round_steps = false;
};

// cos and sin of one token.
struct Angles {
  alignas(64) float cos[kMaxHeadDim / 2];
  alignas(64) float sin[kMaxHeadDim / 2];
};

RotationRow fill_angles(const AttentionPrologueParams& p, int64_t t, const TokenPlace& place, Angles& angles) {
  const Rope& r = p.rope;
  const int64_t half = r.rotary_dim / 2;
  const auto* cos = static_cast<const float*>(r.cos.data);
  const auto* sin = static_cast<const float*>(r.sin.data);
  const auto factor = static_cast<float>(r.attention_factor);
  for (int64_t i = 0; i < half; ++i) {
    int64_t row = t;
    if (r.source != RopeSource::per_token) row = stream_position(p, place, t, r.pair_axis == nullptr ? 0 : r.pair_axis[i]);
    if (r.source == RopeSource::inv_freq) {
      const CosSin turn = cos_sin_of(static_cast<int32_t>(row), static_cast<const float*>(r.inv_freq)[i]);
      angles.cos[i] = turn.cos * factor;
      angles.sin[i] = turn.sin * factor;
    } else {
      angles.cos[i] = cos[row * r.cos.row_stride + i];
      angles.sin[i] = sin[row * r.sin.row_stride + i];
    }
  }
  if (r.inverse) {
    for (int64_t i = 0; i < half; ++i) angles.sin[i] = -angles.sin[i];
  }
  return {r.style, r.rotary_dim, r.rotary_offset, angles.cos, angles.sin};
}

template <class T>
void round_step(const TensorSteps<T>& s, float* values) {
  if (s.round_steps) round_values<T>(values, s.width);
}

template <class T>
void turn(const TensorSteps<T>& s, float* values) {
  if (s.rotation.rotary_dim == 0) return;
  rotate_values(values, s.rotation);
  round_step(s, values);
}

template <class T>
void steps_before_norm(const TensorSteps<T>& s, int64_t t, int64_t h, float* values) {
  load_values<T>(head_at<T>(s.in, t, h), s.bias == nullptr ? nullptr : s.bias + h * s.width, s.width, values);
  if (s.bias != nullptr) round_step(s, values);
  if (s.norm.placement == NormPlacement::after_rope) turn(s, values);
}

template <class T>
void steps_from_norm(const TensorSteps<T>& s, const NormFactors& of_token, int64_t h, float* values) {
  if (s.norm.placement != NormPlacement::none) {
    const bool whole_token = s.norm.scope == NormScope::token;
    normalize<T>(s.norm, whole_token ? of_token : head_factors(values, s.width, s.norm.kind, s.norm.eps), h, s.width, values);
    round_step(s, values);
  }
  if (s.norm.placement != NormPlacement::after_rope) turn(s, values);
  if (s.factor != 1.0f) {
    for (int64_t i = 0; i < s.width; ++i) values[i] *= s.factor;
    round_step(s, values);
  }
}

// Calls store(h, head) with every head of token t.
template <class T, class Store>
void for_each_head(const TensorSteps<T>& s, int64_t t, const Store& store) {
  alignas(64) float values[kMaxHeadDim];
  NormFactors of_token;
  if (s.norm.placement != NormPlacement::none && s.norm.scope == NormScope::token) {
    float squares = 0.0f;
    for (int64_t h = 0; h < s.num_heads; ++h) {
      steps_before_norm(s, t, h, values);
      squares += square_sum(values, s.width);
    }
    of_token = rms_factors(squares, s.num_heads * s.width, s.norm.eps);
  }
  const bool all_changed = s.bias != nullptr || s.norm.placement != NormPlacement::none || s.factor != 1.0f;
  const int64_t begin = all_changed ? 0 : s.rotation.rotary_offset;
  const int64_t end = all_changed ? s.width : begin + s.rotation.rotary_dim;
  for (int64_t h = 0; h < s.num_heads; ++h) {
    steps_before_norm(s, t, h, values);
    steps_from_norm(s, of_token, h, values);
    store(h, FinishedHead<T>{values, s.width, head_at<T>(s.in, t, h), begin, end});
  }
}

template <class T>
class Prologue {
 public:
  explicit Prologue(const AttentionPrologueParams& p) : p_(p) {
    const bool round_steps = p.rounding == Rounding::per_step;
    const auto steps = [&](const HeadsView& in, int64_t num_heads, int64_t width, const void* bias, const HeadNorm& norm) {
      return TensorSteps<T>{in, in.data == nullptr ? 0 : num_heads, width, static_cast<const T*>(bias), norm, {}, 1.0f, round_steps};
    };
    q_ = steps(p.q, p.num_q_heads, p.head_dim, p.bias.q, p.q_norm);
    k_ = steps(p.k, p.num_kv_heads, p.head_dim, p.bias.k, p.k_norm);
    v_ = steps(p.v, p.num_kv_heads, v_head_dim(p), p.bias.v, p.v_norm);
  }

  void run(int64_t t) const {
    const TokenPlace place = place_token(p_, t);
    if (place.fault != FaultCode::none) {
      record_fault(p_.faults, t, place.fault);
      if (p_.token_faults != nullptr) p_.token_faults[t] = static_cast<uint8_t>(place.fault);
    }
    if (place.padding) return;
    if (!place.position_ok) return store_zeros(t);

    Angles angles;
    TensorSteps<T> q = q_, k = k_;
    if (place.rotated) q.rotation = k.rotation = fill_angles(p_, t, place, angles);
    q.factor = query_factor(p_.q_scale, place.position);
    for_each_head(q, t, [&](int64_t h, const FinishedHead<T>& head) { store_query(t, h, head); });
    for_each_head(k, t,
                  [&](int64_t h, const FinishedHead<T>& head) { store_kv(p_.k_out, p_.cache.k, t, h, place.slot, head); });
    for_each_head(v_, t,
                  [&](int64_t h, const FinishedHead<T>& head) { store_kv(p_.v_out, p_.cache.v, t, h, place.slot, head); });
  }

 private:
  void store_query(int64_t t, int64_t h, const FinishedHead<T>& head) const {
    const QuantizedQuery& q8 = p_.q8_out;
    if (q8.data == nullptr) return store_head(head, head_at<T>(p_.q_out, t, h));
    HeadScale scale;
    if (q8.scaling == KvScaling::token_head) {
      scale = scale_for(head.values, head.width, DType::fp8_e4m3);
      q8.scale[t * p_.num_q_heads + h] = scale.scale;
    } else {
      scale = given_scale(*q8.scale);
    }
    uint8_t* y = static_cast<uint8_t*>(q8.data) + t * q8.token_stride + h * q8.head_stride;
    quantize_values<DType::fp8_e4m3>(head.values, head.width, scale.reciprocal, y);
  }

  void store_kv(const MutableHeadsView& out, const PagedHeads& side, int64_t t, int64_t h, int64_t slot,
                const FinishedHead<T>& head) const {
    if (side.data != nullptr && slot >= 0) write_head(side, p_.cache.page_size, slot, h, head);
    if (out.data != nullptr) store_head(head, head_at<T>(out, t, h));
  }

  void store_zeros(int64_t t) const {
    const auto clear = [&](const MutableHeadsView& out, const TensorSteps<T>& s) {
      if (out.data == nullptr) return;
      for (int64_t h = 0; h < s.num_heads; ++h) std::fill_n(head_at<T>(out, t, h), s.width, T{});
    };
    clear(p_.q_out, q_);
    clear(p_.k_out, k_);
    clear(p_.v_out, v_);
    const QuantizedQuery& q8 = p_.q8_out;
    if (q8.data == nullptr) return;
    for (int64_t h = 0; h < p_.num_q_heads; ++h) {
      std::memset(static_cast<uint8_t*>(q8.data) + t * q8.token_stride + h * q8.head_stride, 0, static_cast<size_t>(p_.head_dim));
      if (q8.scaling == KvScaling::token_head) q8.scale[t * p_.num_q_heads + h] = 0.0f;
    }
  }

  const AttentionPrologueParams& p_;
  TensorSteps<T> q_, k_, v_;
};

}  // namespace

Status attention_prologue(const AttentionPrologueParams& p, const Execution& execution) {
  const int threads = threads_for(p.num_tokens * (p.num_q_heads + 2 * p.num_kv_heads) * p.head_dim, execution.num_threads);
  with_host_type(p.dtype, [&](auto type) {
    const Prologue<decltype(type)> prologue(p);
    parallel_for(p.num_tokens, threads, [&](int64_t t) { prologue.run(t); });
  });
  return {};
}

}  // namespace prologue::cpu
