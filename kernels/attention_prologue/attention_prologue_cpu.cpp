#include <algorithm>
#include <cstring>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/steps/head_steps_cpu.h>
#include <prologue/kernels/attention_prologue/steps/query_factor.h>
#include <prologue/kernels/attention_prologue/steps/store_head_cpu.h>
#include <prologue/kernels/attention_prologue/token_indices_cpu.h>
#include <prologue/kernels/base/host/head_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/shared/angle.h>
#include <prologue/kernels/base/shared/rope_pairs.h>

namespace prologue::cpu {

namespace {

// Holds cos and sin of one token.
struct Angles {
  alignas(64) float cos[kMaxHeadDim / 2];
  alignas(64) float sin[kMaxHeadDim / 2];
};

RotationRow fill_angles(const AttentionPrologueParams& p, int64_t t, const ResolvedToken& token, Angles& angles) {
  const Rope& r = p.rope;
  const int64_t half = r.rotary_dim / 2, columns = pairs_of_block(r);
  const auto position_of = [&](int64_t i) { return position_on_axis(token.positions, axis_of_pair(r, static_cast<int32_t>(i))); };
  const auto for_each_pair = [&](const auto& fill) {
    for (int64_t first = 0; first < half; first += columns) {
      for (int64_t column = 0; column < columns; ++column) fill(first + column, column);
    }
  };
  if (r.source == RopeSource::inv_freq) {
    const auto factor = static_cast<float>(r.attention_factor);
    for_each_pair([&](int64_t i, int64_t column) {
      const CosSin value = cos_sin_of(static_cast<int32_t>(position_of(i)), static_cast<const float*>(r.inv_freq)[column]);
      angles.cos[i] = value.cos * factor;
      angles.sin[i] = value.sin * factor;
    });
  } else {
    with_host_type(r.type, [&](auto type) {
      const auto* cos = static_cast<const decltype(type)*>(r.cos.data);
      const auto* sin = static_cast<const decltype(type)*>(r.sin.data);
      for_each_pair([&](int64_t i, int64_t column) {
        const int64_t row = r.source == RopeSource::per_token ? t : position_of(i);
        angles.cos[i] = to_float(cos[row * r.cos.row_stride + column]);
        angles.sin[i] = to_float(sin[row * r.sin.row_stride + column]);
      });
    });
  }
  if (r.inverse) {
    for (int64_t i = 0; i < half; ++i) angles.sin[i] = -angles.sin[i];
  }
  return {r.style, r.rotary_dim, r.rotary_offset, r.num_blocks, angles.cos, angles.sin};
}

template <class T>
class Prologue {
 public:
  explicit Prologue(const AttentionPrologueParams& p) : Prologue(p, head_plans(p)) {}

  void run(int64_t t) const {
    const ResolvedToken token = resolve_token(token_args_, t);
    if (token.padding) return;
    if (token.fault != FaultCode::none) record_fault(p_.faults, p_.token_faults, t, token.fault);
    if (token.zero) return store_zeros(t);

    Angles angles;
    HeadSteps<T> q = q_, k = k_;
    if (token.rotated) q.rotation = k.rotation = fill_angles(p_, t, token, angles);
    q.factor = query_factor(p_.q_scale, token.positions[0]);
    const int64_t r = p_.rope.rotary_dim, offset = p_.rope.rotary_offset;
    for_each_head(q, {p_.q, p_.q_rope, r, offset}, t, [&](int64_t h, const FinishedHead<T>& head) { store_query(t, h, head); });
    for_each_head(k, {p_.k, p_.k_rope, r, offset}, t,
                  [&](int64_t h, const FinishedHead<T>& head) { store_kv(p_.k_out, p_.cache.k, token, t, h, head); });
    for_each_head(v_, {p_.v}, t,
                  [&](int64_t h, const FinishedHead<T>& head) { store_kv(p_.v_out, p_.cache.v, token, t, h, head); });
  }

 private:
  Prologue(const AttentionPrologueParams& p, const HeadPlans& plans)
      : p_(p), token_args_(token_args(p)), q_(plans.q), k_(plans.k), v_(plans.v) {}

  void store_query(int64_t t, int64_t h, const FinishedHead<T>& head) const {
    const QuantizedQuery& q8 = p_.q8_out;
    if (q8.data == nullptr) return store_head(head, head_at<T>(p_.q_out, t, h));
    HeadScale scale;
    if (q8.scaling == KvScaling::token_head) {
      scale = scale_for(head.values, head.width, q8.type);
      q8.scale[t * p_.num_q_heads + h] = scale.scale;
    } else {
      scale = given_scale(*q8.scale);
    }
    uint8_t* y = static_cast<uint8_t*>(q8.data) + t * q8.token_stride + h * q8.head_stride;
    if (q8.type == DType::fp8_e5m2) {
      quantize_values<DType::fp8_e5m2>(head.values, head.width, scale.reciprocal, y);
    } else {
      quantize_values<DType::fp8_e4m3>(head.values, head.width, scale.reciprocal, y);
    }
  }

  static void store_kv(const MutableHeadsView& out, const PagedHeads& side, const ResolvedToken& token, int64_t t, int64_t h,
                       const FinishedHead<T>& head) {
    if (side.data != nullptr && token.reaches_cache) write_head(side, token.page, token.offset, h, head);
    if (out.data != nullptr) store_head(head, head_at<T>(out, t, h));
  }

  void store_zeros(int64_t t) const {
    const auto clear = [&](const MutableHeadsView& out, const HeadSteps<T>& s) {
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
  const TokenArgs token_args_;
  const HeadSteps<T> q_, k_, v_;
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
