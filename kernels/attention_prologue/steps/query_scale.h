// Checks the Q scale, for the fused operation and the stage. Its value is in query_factor.h.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/host/view_checks.h>

namespace prologue {

inline Status check_query_scale(const char* operation, const QueryScale& s) {
  if (s.by_position < PositionScale::none || s.by_position > PositionScale::logn) {
    return unsupported(operation, ": q_scale.by_position is ", static_cast<int32_t>(s.by_position),
                       ": supported are none, llama4 and logn");
  }
  PROLOGUE_RETURN_IF_ERROR(check_finite(operation, "q_scale.constant", s.constant));
  if (s.by_position == PositionScale::none) return {};
  PROLOGUE_RETURN_IF_ERROR(check_finite(operation, "q_scale.a", s.a));
  PROLOGUE_RETURN_IF_ERROR(check_positive(operation, "q_scale.b", s.b));
  if (s.by_position == PositionScale::logn && s.b <= 1.0f) {
    return invalid_argument(operation, ": q_scale.b is ", s.b, ": for logn it must be greater than 1");
  }
  return {};
}
}  // namespace prologue
