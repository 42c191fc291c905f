// Quotients and multiples rounded up, for counts of blocks, pages and bytes.
#pragma once

#include <type_traits>

#include <prologue/kernels/base/host_device.h>

namespace prologue {

// Returns a / b rounded up, for a >= 0 and b > 0. It computes no sum that could overflow.
template <class A, class B>
PROLOGUE_HOST_DEVICE constexpr std::common_type_t<A, B> divide_up(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return x / y + (x % y > 0 ? 1 : 0);
}

// Returns the smallest multiple of b that is at least a.
template <class A, class B>
PROLOGUE_HOST_DEVICE constexpr std::common_type_t<A, B> round_up(A a, B b) {
  return divide_up(a, b) * b;
}

}  // namespace prologue
