#include <algorithm>
#include <cstring>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/head_groups.h>
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

RotationRow fill_angles(const Rope& r, int64_t t, const ResolvedToken& token, Angles& angles) {
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

// Describes the heads of q, k, v or a group: their steps, where they come from and where they go.
template <class T>
struct Heads {
  HeadSteps<T> steps;
  HeadsInput in;
  const Rope* rope = nullptr;      // null: not rotated
  const Rope* own_rope = nullptr;  // of a group: it decides what is past the table; null: that of the call does
  bool scaled_by_position = false;
  MutableHeadsView out;
  QuantizedQuery q8;
  PagedHeads cache;
  PageDivider pages;
};

template <class T>
class Prologue {
 public:
  explicit Prologue(const AttentionPrologueParams& p) : p_(p), token_args_(token_args(p)) {
    const HeadPlans plans = head_plans(p);
    const int64_t r = p.rope.rotary_dim, offset = p.rope.rotary_offset;
    const Rope* const rope = r > 0 ? &p.rope : nullptr;
    add({HeadSteps<T>(plans.q), {p.q, p.q_rope, r, offset}, rope, nullptr, true, p.q_out, p.q8_out, {}, {}});
    add({HeadSteps<T>(plans.k), {p.k, p.k_rope, r, offset}, rope, nullptr, false, p.k_out, {}, p.cache.k, token_args_.pages});
    add({HeadSteps<T>(plans.v), {p.v}, nullptr, nullptr, false, p.v_out, {}, p.cache.v, token_args_.pages});
    for (int64_t i = 0; i < p.num_groups; ++i) {
      const HeadGroup group = group_of(p, i);
      const Rope& own = p.groups[i].rope;
      add({HeadSteps<T>(head_plan(group, p.rounding)),
           {group.in},
           own.rotary_dim > 0 ? &own : nullptr,
           &own,
           false,
           group.out,
           group.q8_out,
           group.cache,
           group.cache.data != nullptr ? page_divider(group.page_size) : PageDivider()});
    }
  }

  void run(int64_t t) const {
    const ResolvedToken token = resolve_token(token_args_, t);
    if (token.padding) return;
    FaultCode fault = token.fault;
    Angles angles;
    const Rope* of_angles = nullptr;
    RotationRow rotation;
    for (int i = 0; i < count_; ++i) {
      const Heads<T>& heads = heads_[i];
      const Token state = heads.own_rope != nullptr ? token_of_rope(token, *heads.own_rope) : static_cast<const Token&>(token);
      if (fault == FaultCode::none) fault = state.fault;
      if (state.zero) {
        store_zeros(heads, t);
        continue;
      }
      HeadSteps<T> steps = heads.steps;
      if (heads.rope != nullptr && state.rotated) {
        if (heads.rope != of_angles) rotation = fill_angles(*heads.rope, t, token, angles);
        of_angles = heads.rope;
        steps.rotation = rotation;
      }
      if (heads.scaled_by_position) steps.factor = query_factor(p_.q_scale, token.positions[0]);
      const bool cached = heads.cache.data != nullptr && state.reaches_cache;
      int64_t page = token.page;
      uint32_t offset = token.offset;
      if (cached) split_again(token_args_.pages, heads.pages, page, offset);
      for_each_head(steps, heads.in, t, [&](int64_t h, const FinishedHead<T>& head) {
        if (cached) write_head(heads.cache, page, offset, h, head);
        store(heads, t, h, head);
      });
    }
    if (fault != FaultCode::none) record_fault(p_.faults, p_.token_faults, t, fault);
  }

 private:
  void add(const Heads<T>& heads) { heads_[count_++] = heads; }

  // Stores a head for its token.
  static void store(const Heads<T>& heads, int64_t t, int64_t h, const FinishedHead<T>& head) {
    if (heads.out.data != nullptr) store_head(head, head_at<T>(heads.out, t, h));
    const QuantizedQuery& q8 = heads.q8;
    if (q8.data == nullptr) return;
    HeadScale scale;
    if (q8.scaling == KvScaling::token_head) {
      scale = scale_for(head.values, head.width, q8.type);
      q8.scale[t * heads.steps.num_heads + h] = scale.scale;
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

  static void store_zeros(const Heads<T>& heads, int64_t t) {
    const QuantizedQuery& q8 = heads.q8;
    for (int64_t h = 0; h < heads.steps.num_heads; ++h) {
      if (heads.out.data != nullptr) std::fill_n(head_at<T>(heads.out, t, h), heads.steps.width, T{});
      if (q8.data == nullptr) continue;
      std::memset(static_cast<uint8_t*>(q8.data) + t * q8.token_stride + h * q8.head_stride, 0,
                  static_cast<size_t>(heads.steps.width));
      if (q8.scaling == KvScaling::token_head) q8.scale[t * heads.steps.num_heads + h] = 0.0f;
    }
  }

  const AttentionPrologueParams& p_;
  const TokenArgs token_args_;
  Heads<T> heads_[3 + kMaxHeadGroups];
  int count_ = 0;
};

}  // namespace

Status attention_prologue(const AttentionPrologueParams& p, const Execution& execution) {
  int64_t channels = (p.num_q_heads + 2 * p.num_kv_heads) * p.head_dim;  // of a token
  for (int64_t i = 0; i < p.num_groups; ++i) channels += p.groups[i].num_heads * p.groups[i].head_dim;
  const int threads = threads_for(p.num_tokens * channels, execution.num_threads);
  with_host_type(p.dtype, [&](auto type) {
    const Prologue<decltype(type)> prologue(p);
    parallel_for(p.num_tokens, threads, [&](int64_t t) { prologue.run(t); });
  });
  return {};
}

}  // namespace prologue::cpu
