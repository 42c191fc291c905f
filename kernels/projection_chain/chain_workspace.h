// What one kernel keeps in a chain's workspace. Internal.
#pragma once

#include <prologue/kernels/projection/wiring.h>

namespace prologue {

// Of a projection with a norm: x times the norm's weight, [num_tokens, k], and sums of squares, [block, num_tokens]: blocks have 8 rows at
// least.
struct NormBuffers {
  void* x;
  void* squares;
};
inline NormBuffers take_norm_buffers(WorkspaceParts& parts, int64_t num_tokens, int64_t k, int64_t element) {
  void* const x = parts.take(num_tokens * k * element);
  return {x, parts.take((k + 7) / 8 * num_tokens * 4)};
}

}  // namespace prologue
