#include <algorithm>
#include <type_traits>

#include <prologue/kernels/attention_prologue/steps/head_steps_cpu.h>
#include <prologue/kernels/attention_prologue/steps/store_head_cpu.h>
#include <prologue/kernels/attention_prologue/token_args.h>
#include <prologue/kernels/base/host/head_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/shared/angle.h>
#include <prologue/kernels/mla_prologue/backends.h>
#include <prologue/kernels/mla_prologue/mla_token.h>

namespace prologue::cpu {

namespace {

// Holds cos and sin of one token.
struct Angles {
  alignas(64) float cos[kMaxLatent / 2];
  alignas(64) float sin[kMaxLatent / 2];
};

void fill_angles(const Rope& r, int64_t t, int64_t position, Angles& angles) {
  const int64_t half = r.rotary_dim / 2;
  if (r.source == RopeSource::inv_freq) {
    const auto factor = static_cast<float>(r.attention_factor);
    for (int64_t i = 0; i < half; ++i) {
      const CosSin value = cos_sin_of(static_cast<int32_t>(position), static_cast<const float*>(r.inv_freq)[i]);
      angles.cos[i] = value.cos * factor;
      angles.sin[i] = value.sin * factor;
    }
  } else {
    const int64_t row = r.source == RopeSource::per_token ? t : position;
    with_host_type(r.type, [&](auto type) {
      widen(static_cast<const decltype(type)*>(r.cos.data) + row * r.cos.row_stride, half, angles.cos);
      widen(static_cast<const decltype(type)*>(r.sin.data) + row * r.sin.row_stride, half, angles.sin);
    });
  }
  for (int64_t i = 0; r.inverse != 0 && i < half; ++i) angles.sin[i] = -angles.sin[i];
}

// Stores x / scale. Each kRecordTile channels have their own scale; the scales follow the codes.
void store_tiles(const float* x, int64_t width, uint8_t* y) {
  float* const scales = reinterpret_cast<float*>(y + width);
  for (int64_t begin = 0; begin < width; begin += kRecordTile) {
    uint32_t largest = 0;
    for (int64_t i = begin; i < begin + kRecordTile; ++i) largest = std::max(largest, magnitude_bits(x[i]));
    const float scale = tile_scale(largest);
    scales[begin / kRecordTile] = scale;
    const bool bad = largest >= prologue::detail::kInfinityBits;
    for (int64_t i = begin; i < begin + kRecordTile; ++i) y[i] = bad ? 0 : to_fp8_e4m3(divide_rounded(x[i], scale));
  }
}

// Stores a row `x` that is rounded to T, from element `at` of the cache part on.
template <class T>
void store_entry(const MlaCachePart& part, int64_t at, const T* x, int64_t width) {
  alignas(64) float values[kMaxLatent];
  widen(x, width, values);
  const auto store_float = [&](auto type) {
    auto* y = static_cast<decltype(type)*>(part.data) + at;
    if constexpr (std::is_same_v<decltype(type), T>) {
      std::copy_n(x, width, y);
    } else {
      narrow(values, width, y);
    }
  };
  auto* const codes = static_cast<uint8_t*>(part.data) + at;
  const float reciprocal = part.format.scaling == KvScaling::tensor ? given_scale(*part.scale).reciprocal : 1.0f;
  switch (part.format.type) {
    case DType::fp8_e4m3:
      if (has_tiles(part.format)) return store_tiles(values, width, codes);
      return quantize_values<DType::fp8_e4m3>(values, width, reciprocal, codes);
    case DType::fp8_e5m2: return quantize_values<DType::fp8_e5m2>(values, width, reciprocal, codes);
    default: return with_host_type(part.format.type, store_float);
  }
}

template <class T>
class MlaPrologue {
 public:
  explicit MlaPrologue(const MlaPrologueParams& p)
      : p_(p), token_args_(mla_token_args(p)), slots_(slots_given(p.slot_mapping_len, p.num_tokens)) {
    latent_.num_heads = p.kv_c != nullptr ? 1 : 0;
    latent_.width = p.kv_lora_rank;
    set_norm(latent_, p.kv_c_norm);
    k_.num_heads = p.k_pe != nullptr ? 1 : 0;
    q_.num_heads = p.num_q_heads;
    k_.width = q_.width = p.qk_rope_head_dim;
    set_norm(k_, p.k_pe_norm);
    k_.rounds = 1;  // after the norm too
  }

  void run(int64_t t) const {
    const int64_t position = p_.positions.data == nullptr ? 0 : index_at(p_.positions, t);
    const bool has_slot = token_args_.num_slots > 0 && t < slots_;
    const MlaToken token = resolve_mla_token(token_args_, position, has_slot ? index_at(p_.slot_mapping, t) : -1);
    if (token.padding) return;
    if (token.fault != FaultCode::none) record_fault(p_.faults, p_.token_faults, t, token.fault);
    HeadSteps<T> k = k_, q = q_;
    Angles angles;
    if (token.rotated && !token.zero && p_.rope.rotary_dim > 0) {
      fill_angles(p_.rope, t, position, angles);
      k.rotation = q.rotation = {p_.rope.style, p_.rope.rotary_dim, 0, 1, angles.cos, angles.sin};
    }
    const HeadsView kv_c = {p_.kv_c, p_.kv_c_stride, 0}, k_pe = {p_.k_pe, p_.k_pe_stride, 0};
    const auto entry = [&](const MlaCachePart& part, T* out, const HeadsView& in, const HeadSteps<T>& steps) {
      if (steps.num_heads == 0) return;
      if (token.zero) {
        if (out != nullptr) std::fill_n(out, steps.width, T{});
        return;
      }
      for_each_head(steps, {in}, t, [&](int64_t, const FinishedHead<T>& head) {
        T rounded[kMaxLatent];
        store_head(head, rounded);
        if (out != nullptr) std::copy_n(rounded, steps.width, out);
        if (!token.reaches_cache || part.data == nullptr) return;
        store_entry(part, entry_at(token_args_, token, part.page_stride, part.token_stride), rounded, steps.width);
      });
    };
    entry(p_.cache.latent, row_of(p_.kv_c_out, t, p_.kv_c_out_stride), kv_c, latent_);
    entry(p_.cache.rope, row_of(p_.k_pe_out, t, p_.k_pe_out_stride), k_pe, k);
    for (int64_t h = 0; token.zero && h < p_.num_q_heads; ++h) std::fill_n(head_at<T>(p_.q_pe_out, t, h), q.width, T{});
    if (token.zero) return;
    for_each_head(q, {p_.q_pe}, t,
                  [&](int64_t h, const FinishedHead<T>& head) { store_head(head, head_at<T>(p_.q_pe_out, t, h)); });
  }

 private:
  static T* row_of(void* rows, int64_t t, int64_t stride) {
    return rows == nullptr ? nullptr : static_cast<T*>(rows) + t * stride;
  }

  const MlaPrologueParams& p_;
  MlaTokenArgs token_args_;
  int64_t slots_;  // tokens from here on have none
  HeadSteps<T> latent_, k_, q_;
};

}  // namespace

Status mla_prologue(const MlaPrologueParams& p, const Execution& execution) {
  const int64_t channels = p.kv_lora_rank + (p.num_q_heads + 1) * p.qk_rope_head_dim;
  const int threads = threads_for(p.num_tokens * channels, execution.num_threads);
  with_host_type(p.dtype, [&](auto type) {
    const MlaPrologue<decltype(type)> prologue(p);
    parallel_for(p.num_tokens, threads, [&](int64_t t) { prologue.run(t); });
  });
  return {};
}

}  // namespace prologue::cpu
