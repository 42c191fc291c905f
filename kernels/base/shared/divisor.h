// This file divides by a number that is known before a launch.
#pragma once

#include <bit>
#include <cstdint>

#include <prologue/kernels/base/host_device.h>

namespace prologue {

// Holds an int that others are divided by, as a multiplication and a shift: x / d and x % d are those of ints for every x from 0 on; below
// 0, x / d is 0 and x % d is x. Of divisor 0 they are 0 and x, too. multiplier = ceil(2^shift / d) with shift = 31 + ceil(log2(d)) is exact
// for 31 bits: T. Granlund and P. L. Montgomery, "Division by invariant integers using multiplication" (1994), theorem 4.2.
class Divisor {
 public:
  Divisor() : Divisor(0) {}
  explicit Divisor(int32_t divisor) : value_(divisor) {
    if (divisor <= 0) return;
    const auto d = static_cast<uint32_t>(divisor);
    shift_ = 31 + static_cast<uint32_t>(std::bit_width(d - 1));
    multiplier_ = static_cast<uint32_t>(((uint64_t{1} << shift_) + d - 1) / d);
  }

  PROLOGUE_HOST_DEVICE operator int32_t() const { return value_; }
  PROLOGUE_HOST_DEVICE friend int32_t operator/(int32_t x, const Divisor& d) {
    return static_cast<int32_t>(uint64_t{static_cast<uint32_t>(x < 0 ? 0 : x)} * d.multiplier_ >> d.shift_);
  }
  PROLOGUE_HOST_DEVICE friend int32_t operator%(int32_t x, const Divisor& d) { return x - x / d * d.value_; }

 private:
  int32_t value_ = 0;
  uint32_t multiplier_ = 0;
  uint32_t shift_ = 0;
};

}  // namespace prologue
