// This file has one element of scale_logits, written once for all backends.
#pragma once

#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/base/shared/tanh.h>

namespace prologue {

// factor: scale, or with a soft cap scale / soft_cap.
PROLOGUE_HOST_DEVICE inline float scaled_logit(float x, float factor, float soft_cap) {
  const float scaled = multiply_rounded(x, factor);
  return soft_cap == 0.0f ? scaled : multiply_rounded(soft_cap, tanh_f32(scaled));
}

}  // namespace prologue
