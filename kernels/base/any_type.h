// Arrays whose element type is known only at run time: every float type, every integer type. They are read one element at a time,
// with a switch at each load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// The types of DType, in the same order, and float64.
enum class FloatType : int32_t { f32 = 0, f16, bf16, f64 };

constexpr FloatType float_type(DType type) { return static_cast<FloatType>(type); }
constexpr bool float_type_valid(FloatType type) { return type >= FloatType::f32 && type <= FloatType::f64; }
constexpr int64_t float_type_size(FloatType type) { return type == FloatType::f64 ? 8 : type == FloatType::f32 ? 4 : 2; }
constexpr const char* float_type_name(FloatType type) {
  return type == FloatType::f64 ? "float64" : dtype_name(static_cast<DType>(type));
}

enum class IntType : int32_t { int8 = 0, int16, int32, int64, uint8, uint16, uint32, uint64 };

constexpr bool int_type_valid(IntType type) { return type >= IntType::int8 && type <= IntType::uint64; }
constexpr int64_t int_type_size(IntType type) { return int64_t{1} << (static_cast<int32_t>(type) % 4); }

// An array of integers; a typed pointer converts to it.
struct IntView {
  const void* data = nullptr;
  IntType type = IntType::int32;

  IntView() = default;
  IntView(const void* values, IntType of_type) : data(values), type(of_type) {}
  IntView(const IndexView& view)  // NOLINT(google-explicit-constructor)
      : data(view.data), type(view.type == IndexType::int32 ? IntType::int32 : IntType::int64) {}
  IntView(std::nullptr_t) {}                                                // NOLINT(google-explicit-constructor)
  IntView(const int8_t* values) : data(values), type(IntType::int8) {}      // NOLINT(google-explicit-constructor)
  IntView(const int16_t* values) : data(values), type(IntType::int16) {}    // NOLINT(google-explicit-constructor)
  IntView(const int32_t* values) : data(values), type(IntType::int32) {}    // NOLINT(google-explicit-constructor)
  IntView(const int64_t* values) : data(values), type(IntType::int64) {}    // NOLINT(google-explicit-constructor)
  IntView(const uint8_t* values) : data(values), type(IntType::uint8) {}    // NOLINT(google-explicit-constructor)
  IntView(const uint16_t* values) : data(values), type(IntType::uint16) {}  // NOLINT(google-explicit-constructor)
  IntView(const uint32_t* values) : data(values), type(IntType::uint32) {}  // NOLINT(google-explicit-constructor)
  IntView(const uint64_t* values) : data(values), type(IntType::uint64) {}  // NOLINT(google-explicit-constructor)
};

// Element i. A value that int64 cannot hold becomes INT64_MAX.
PROLOGUE_HOST_DEVICE inline int64_t int_at(const IntView& view, int64_t i) {
  switch (view.type) {
    case IntType::int8: return static_cast<const int8_t*>(view.data)[i];
    case IntType::int16: return static_cast<const int16_t*>(view.data)[i];
    case IntType::int32: return static_cast<const int32_t*>(view.data)[i];
    case IntType::int64: return static_cast<const int64_t*>(view.data)[i];
    case IntType::uint8: return static_cast<const uint8_t*>(view.data)[i];
    case IntType::uint16: return static_cast<const uint16_t*>(view.data)[i];
    case IntType::uint32: return static_cast<const uint32_t*>(view.data)[i];
    case IntType::uint64: break;
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

// Element i as A, float or double: exact if A can hold it, otherwise rounded to nearest even. (16-bit types are read as bits, so
// that host and device share the code.)
template <class A>
PROLOGUE_HOST_DEVICE A float_at(FloatType type, const void* data, int64_t i) {
  if (type == FloatType::f32) return static_cast<const float*>(data)[i];
  if (type == FloatType::f64) return static_cast<A>(static_cast<const double*>(data)[i]);
  const uint32_t bits = static_cast<const uint16_t*>(data)[i];
  if (type == FloatType::bf16) return detail::bits_as_float(bits << 16);
  // The power of two puts float16's exponent bias right and makes its subnormals normal, exactly.
  const float magnitude = detail::bits_as_float((bits & 0x7fffu) << 13) * 0x1p112f;
  const bool finite = (bits & 0x7c00u) != 0x7c00u;
  const float x = finite ? magnitude : detail::bits_as_float(0x7f800000u | (bits & 0x3ffu) << 13);
  return (bits & 0x8000u) != 0 ? -x : x;
}

}  // namespace prologue
