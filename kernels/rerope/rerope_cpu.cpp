#include <prologue/kernels/attention_prologue/steps/hadamard.h>
#include <prologue/kernels/attention_prologue/steps/hadamard_cpu.h>
#include <prologue/kernels/attention_prologue/steps/store_head_cpu.h>
#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/head_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/rerope/backends.h>
#include <prologue/kernels/rerope/rerope_key.h>

namespace prologue::cpu {

namespace {

// Moves the heads of one key.
class KeyMove {
 public:
  KeyMove(const ReropeParams& params, const RotaryFrequencies& frequencies, const ReropeKey& key)
      : p_(params), key_(key), factor_(hadamard_factor(params.hadamard_block)) {
    for (int32_t i = 0; i < p_.rope.rotary_dim / 2; ++i) {
      const int32_t axis = axis_of_pair(p_.rope, i);
      const PairRotation<float> by =
          moving_rotation(p_.rope, &frequencies, position_on_axis(key.from, axis), position_on_axis(key.to, axis), i);
      cos_a_[i] = by.cos_a, sin_a_[i] = by.sin_a, cos_b_[i] = by.cos_b, sin_b_[i] = by.sin_b;
    }
  }

  void operator()(int64_t head) const {
    const Rope& rope = p_.rope;
    const bool whole = rewrites_whole_heads(p_);
    const int64_t begin = whole ? 0 : rope.rotary_offset, width = whole ? p_.cache.k.head_dim : rope.rotary_dim;
    PagedHeads k = p_.cache.k;  // from the first channel that is written
    const int64_t bits = dtype_bits(k.format.type);
    k.data = static_cast<char*>(k.data) + begin * bits / 8;

    alignas(64) float values[kMaxHeadDim];
    load(k, head, width, values);
    const auto transform = [&] {
      if (p_.hadamard_block != 0) hadamard_transform(values, width, p_.hadamard_block, factor_);
    };
    transform();
    rotate(values + (rope.rotary_offset - begin));
    transform();
    const float* const in_place =
        k.format.type == DType::f32 ? static_cast<float*>(k.data) + offset_in(k.strides, key_.page, key_.offset, head) : nullptr;
    write_head(k, key_.page, key_.offset, head, FinishedHead<float>{values, width, in_place, 0, width});
  }

 private:
  void load(const PagedHeads& k, int64_t head, int64_t width, float* values) const {
    const int64_t at = offset_in(k.strides, key_.page, key_.offset, head);
    const DType type = k.format.type;
    if (type == DType::f32) return widen(static_cast<const float*>(k.data) + at, width, values);
    if (type == DType::f16) return widen(static_cast<const Float16*>(k.data) + at, width, values);
    if (type == DType::bf16) return widen(static_cast<const BFloat16*>(k.data) + at, width, values);
    const AsymmetricScale scale = stored_scale(k.format, scale_of_key(k, key_, head));
    const bool packed = dtype_bits(type) == 4;
    const uint8_t* codes = static_cast<const uint8_t*>(k.data) + (packed ? at / 2 : at);
    for (int64_t d = 0; d < width; ++d) {
      const int code = packed ? codes[d / 2] >> (d % 2 * 4) & 0x0f : codes[d];
      values[d] = decoded(static_cast<uint8_t>(code), scale, type);
    }
  }

  void rotate(float* values) const {
    const Rope& rope = p_.rope;
    const int64_t pairs = pairs_of_block(rope);
    for (int64_t first = 0; first < rope.rotary_dim / 2; first += pairs) {
      float* const block = values + 2 * first;
      const auto by = [&](int64_t i) {
        return PairRotation<float>{cos_a_[first + i], sin_a_[first + i], cos_b_[first + i], sin_b_[first + i]};
      };
      if (rope.style == RopeStyle::neox) {
        for (int64_t i = 0; i < pairs; ++i) rotate_pair<float>(block[i], block[pairs + i], by(i));
      } else {
        for (int64_t i = 0; i < pairs; ++i) rotate_pair<float>(block[2 * i], block[2 * i + 1], by(i));
      }
    }
  }

  const ReropeParams& p_;
  const ReropeKey& key_;
  const float factor_;
  alignas(64) float cos_a_[kMaxRotaryPairs];
  alignas(64) float sin_a_[kMaxRotaryPairs];
  alignas(64) float cos_b_[kMaxRotaryPairs];
  alignas(64) float sin_b_[kMaxRotaryPairs];
};

}  // namespace

Status rerope(const ReropeParams& p, const RotaryFrequencies& frequencies, const Execution& execution) {
  const PageDivider pages = page_divider(p.cache.page_size);
  const int64_t heads = p.cache.num_kv_heads;
  parallel_for(p.num_keys, threads_for(p.num_keys * heads * p.cache.k.head_dim, execution.num_threads), [&](int64_t i) {
    const ReropeKey key = resolve_key(p, pages, i);
    if (key.fault != FaultCode::none) record_fault(p.faults, p.token_faults, i, key.fault);
    if (!key.moves) return;
    const KeyMove move(p, frequencies, key);
    for (int64_t head = 0; head < heads; ++head) move(head);
  });
  return {};
}

}  // namespace prologue::cpu
