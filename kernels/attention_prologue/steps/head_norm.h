// Finds the type of a norm's weights, for the fused operation and the stage.
#pragma once

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/host/view_checks.h>

namespace prologue {

// Returns the norm with the type that unset stands for in an operation on `dtype`.
inline HeadNorm resolved(HeadNorm norm, DType dtype) {
  norm.weight_type = resolve_dtype(norm.weight_type, dtype);
  return norm;
}

// `norm` must be resolved. `name` is that of the member.
inline Status check_weight_type(const char* operation, const char* name, const HeadNorm& norm, DType dtype) {
  if (norm.weight_type == dtype || norm.weight_type == DType::f32) return {};
  return unsupported(operation, ": ", name, " is ", dtype_text(norm.weight_type),
                     dtype == DType::f32 ? ": supported is float32" : ": supported are float32 and dtype, ",
                     dtype == DType::f32 ? "" : dtype_name(dtype));
}

}  // namespace prologue
