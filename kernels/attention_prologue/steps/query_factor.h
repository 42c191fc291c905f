// Computes what Q is multiplied by at a position (QueryScale in attention_prologue.h), written once for host and device: the same bits.
#pragma once

#include <cmath>
#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/shared/log.h>
#include <prologue/kernels/base/shared/rotation.h>

namespace prologue {

// `position` is 0 or more.
PROLOGUE_HOST_DEVICE inline float query_factor(const QueryScale& scale, int64_t position) {
  if (scale.by_position == PositionScale::none) return scale.constant;
  const float next = static_cast<float>(static_cast<uint64_t>(position) + 1);
  float f;
  if (scale.by_position == PositionScale::llama4) {
    const float steps = floorf(divide_rounded(next, scale.b));
    f = add_rounded(1.0f, multiply_rounded(scale.a, log_f32(add_rounded(1.0f, steps))));
  } else {
    f = divide_rounded(log_f32(next), log_f32(scale.b));
    f = f > 1.0f ? f : 1.0f;
  }
  return multiply_rounded(scale.constant, f);
}

}  // namespace prologue
