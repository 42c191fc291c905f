// Adapters for the rotary calls of other systems, one header for each: structs that use the names of that system, and functions that
// convert them to calls of this library. docs/coming-from.md shows both calls side by side. You do not need these headers to use rotary()
// or attention_prologue() directly. You may copy and change every function.
//
// A call struct is plain data. Its pointers are on the operation's device unless a comment says "on the host". Strides count
// elements. After an error nothing has been written.
//   checks          kernels/rotary/rotary.h and kernels/attention_prologue/attention_prologue.h check sizes, strides and
//                   pointers. An adapter checks what only the other system's call has: layout names, table shapes, required
//                   positions
//   past the table  the token's rows become zeros, and `faults` (must not be null if there is a table) records the token.
//                   flash_attn leaves such a token unrotated, as FlashAttention does
//   padding         a negative given position: its token is not touched
//
// This header has what several adapters share.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <prologue/kernels/base/status.h>

namespace prologue::adapters::detail {

// Bounds for sizes whose products are strides and offsets, so that these fit int64. The operation checks the rest.
inline constexpr int64_t kTokens = INT32_MAX, kHeads = 65536, kDim = 576;
struct Size {
  const char* name;
  int64_t value;
  int64_t most;
};
inline Status check_sizes(const char* system, std::initializer_list<Size> sizes) {
  for (const Size& size : sizes) {
    if (size.value >= 0 && size.value <= size.most) continue;
    return invalid_argument(system, ": ", size.name, " is ", size.value, ": it must lie in 0..", size.most);
  }
  return {};
}

}  // namespace prologue::adapters::detail
