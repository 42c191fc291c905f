#include <prologue/kernels/token_ops/gather_cos_sin.h>

namespace prologue::cpu {

Status gather_cos_sin(const GatherCosSinParams& p, const Execution& execution);

// A few thousand floats a step: one thread.
Status gather_cos_sin(const GatherCosSinParams& p, const Execution&) {
  const int64_t half = p.rotary_dim / 2;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    float* out = p.out + t * p.rotary_dim;
    for (int64_t i = 0; i < half; ++i) {
      int64_t axis = p.pair_axis == nullptr ? 0 : p.pair_axis[i];
      if (axis >= p.num_axes) axis = 0;
      const int64_t position = index_at(p.positions, axis * p.position_axis_stride + t);
      const bool inside = position >= 0 && position < p.max_position;
      out[i] = inside ? p.cos_sin[position * p.rotary_dim + i] : 0.0f;
      out[half + i] = inside ? p.cos_sin[position * p.rotary_dim + half + i] : 0.0f;
    }
  }
  return {};
}

}  // namespace prologue::cpu
