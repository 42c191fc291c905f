// Holds what the targets of the operations that project share.
#pragma once

#include <prologue/kernels/projection/projection.h>

#include "tests/fuzz/operation.h"

namespace prologue::fuzz {

inline void decode_norm(Choices& choices, MemoryMap& map, InputNorm& norm, int64_t width, DType dtype) {
  if (choices.chance(2)) return;
  norm.given = 1;
  norm.kind = choices.enumerator(NormKind::layer);
  norm.eps = choices.real(1e-5f);
  norm.weight_type = choices.hostile() ? activation_type(choices) : choices.chance(2) ? DType::f32 : dtype;
  const DType type = float_type_of(resolve_dtype(norm.weight_type, dtype));
  if (choices.chance(2)) map.optional("norm.weight", norm.weight, dense(width, dtype_size(type)), Use::read, type);
  if (choices.chance(2)) map.optional("norm.bias", norm.bias, dense(width, dtype_size(type)), Use::read, type);
}

// `needed` is also 0 if the call will be refused.
inline void decode_workspace(Choices& choices, MemoryMap& map, int64_t needed, void*& workspace, int64_t& num_bytes) {
  if (needed == 0) return;
  num_bytes = choices.hostile() ? needed - choices.integer(1, 200) : needed;
  Extent extent = dense(num_bytes, 1);
  extent.alignment = 16;
  map.array("workspace", workspace, extent, Use::write);
}

}  // namespace prologue::fuzz
