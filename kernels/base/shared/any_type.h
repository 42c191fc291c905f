// This file reads arrays whose element type is known only at run time: every float type, every integer type. They are read one element at a
// time, with a switch at each load.
#pragma once

#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// Returns element i. A value that int64 cannot hold becomes INT64_MAX.
PROLOGUE_HOST_DEVICE inline int64_t int_at(const IndexView& view, int64_t i) {
  switch (view.type) {
    case DType::int8: return static_cast<const int8_t*>(view.data)[i];
    case DType::int16: return static_cast<const int16_t*>(view.data)[i];
    case DType::int32: return static_cast<const int32_t*>(view.data)[i];
    case DType::int64: return static_cast<const int64_t*>(view.data)[i];
    case DType::uint8: return static_cast<const uint8_t*>(view.data)[i];
    case DType::uint16: return static_cast<const uint16_t*>(view.data)[i];
    case DType::uint32: return static_cast<const uint32_t*>(view.data)[i];
    default: break;
  }
  const uint64_t value = static_cast<const uint64_t*>(view.data)[i];
  return value > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(value);
}

namespace detail {
PROLOGUE_HOST_DEVICE inline float bits_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
}  // namespace detail

// Returns element i as A, float or double: exact if A can hold it, otherwise rounded to nearest even. (16-bit types are read as bits, so
// that host and device use the same code.)
template <class A>
PROLOGUE_HOST_DEVICE A float_at(DType type, const void* data, int64_t i) {
  if (type == DType::f32) return static_cast<const float*>(data)[i];
  if (type == DType::f64) return static_cast<A>(static_cast<const double*>(data)[i]);
  const uint32_t bits = static_cast<const uint16_t*>(data)[i];
  if (type == DType::bf16) return detail::bits_as_float(bits << 16);
  // The power of two puts float16's exponent bias right and makes its subnormals normal, exactly.
  const float magnitude = detail::bits_as_float((bits & 0x7fffu) << 13) * 0x1p112f;
  const bool finite = (bits & 0x7c00u) != 0x7c00u;
  const float x = finite ? magnitude : detail::bits_as_float(0x7f800000u | (bits & 0x3ffu) << 13);
  return (bits & 0x8000u) != 0 ? -x : x;
}

}  // namespace prologue
