// This file has the products for any processor.
#include <cstring>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/gemm/quantized_cpu.h>

namespace prologue::cpu {
namespace {

struct Bytes {
  uint8_t v[64];
};
struct Ints {
  int32_t v[16];
};
struct Words {
  int16_t v[32];
};
struct Floats {
  float v[16];
};
struct RowBytes {
  uint8_t v[16];
};

// Returns { f(0), f(1), ... } for each element of an array.
template <class T, class F>
inline T each(const F& f) {
  T result;
  for (int i = 0; i < static_cast<int>(sizeof result.v / sizeof result.v[0]); ++i) {
    result.v[i] = static_cast<std::remove_reference_t<decltype(result.v[0])>>(f(i));
  }
  return result;
}

inline Bytes load_bytes(const uint8_t* p) {
  return each<Bytes>([&](int i) { return p[i]; });
}
inline Bytes low_nibbles(const Bytes& b) {
  return each<Bytes>([&](int i) { return b.v[i] & 15; });
}
inline Bytes high_nibbles(const Bytes& b) {
  return each<Bytes>([&](int i) { return b.v[i] >> 4; });
}
// Returns bits `count` to 7 of each byte. What comes above them is not defined.
inline Bytes shifted_right(const Bytes& b, int count) {
  return each<Bytes>([&](int i) { return b.v[i] >> count; });
}
inline Bytes either(const Bytes& a, const Bytes& b) {
  return each<Bytes>([&](int i) { return a.v[i] | b.v[i]; });
}
// Adds 16 to code j of a row where bit 4 * chunk + j of its word is set.
inline Bytes with_fifth_bits(const Bytes& codes, const Bytes& words, int chunk) {
  return each<Bytes>([&](int i) { return codes.v[i] + (words.v[i / 4 * 4 + chunk / 2] >> (chunk % 2 * 4 + i % 4) & 1) * 16; });
}
// Returns bit BIT of each byte, as 16.
template <int BIT>
inline Bytes bit_as_16(const Bytes& b) {
  return each<Bytes>([&](int i) { return (b.v[i] >> BIT & 1) * 16; });
}
// Returns pair PAIR of the bits of each byte, at bits 4 and 5.
template <int PAIR>
inline Bytes pair_as_48(const Bytes& b) {
  return each<Bytes>([&](int i) { return (b.v[i] >> (2 * PAIR) & 3) * 16; });
}

// Returns pair PAIR of the bits of each byte; bit BIT, as 4.
template <int PAIR>
inline Bytes pair_of(const Bytes& b) {
  return each<Bytes>([&](int i) { return b.v[i] >> (2 * PAIR) & 3; });
}
template <int BIT>
inline Bytes bit_as_4(const Bytes& b) {
  return each<Bytes>([&](int i) { return (b.v[i] >> BIT & 1) * 4; });
}
inline Bytes values_of(const Bytes& nibbles, const int8_t (&values)[16]) {
  return each<Bytes>([&](int i) { return values[nibbles.v[i]]; });
}

inline Ints broadcast(int32_t x) {
  return each<Ints>([&](int) { return x; });
}
inline Ints add(const Ints& a, const Ints& b) {
  return each<Ints>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Words broadcast(int16_t even, int16_t odd) {
  return each<Words>([&](int i) { return i % 2 == 0 ? even : odd; });
}
// Returns pairs of numbers 0..32767.
inline Words pairs(const Ints& even, const Ints& odd) {
  return each<Words>([&](int i) { return i % 2 == 0 ? even.v[i / 2] : odd.v[i / 2]; });
}
inline Ints multiply(const Ints& a, const Ints& b) {
  return each<Ints>([&](int i) { return a.v[i] * b.v[i]; });
}
// Adds the four codes of each row, 0..255, times the four at x.
inline Ints add_dot(const Ints& sum, const Bytes& codes, const int8_t* x) {
  return each<Ints>([&](int i) {
    const uint8_t* four = codes.v + 4 * i;
    return sum.v[i] + four[0] * x[0] + four[1] * x[1] + four[2] * x[2] + four[3] * x[3];
  });
}
// Adds the two numbers of each row times the two at x.
inline Ints add_dot(const Ints& sum, const Words& numbers, const int16_t* x) {
  return each<Ints>([&](int i) { return sum.v[i] + numbers.v[2 * i] * x[0] + numbers.v[2 * i + 1] * x[1]; });
}
// Does what add_dot does for codes -128..127. A sum starts with kSignedStart * the sum of the codes of x.
constexpr int16_t kSignedStart = 0;
inline Ints add_dot_signed(const Ints& sum, const Bytes& codes, const int8_t* x) {
  return each<Ints>([&](int i) {
    int32_t dot = sum.v[i];
    for (int j = 0; j < 4; ++j) dot += static_cast<int8_t>(codes.v[4 * i + j]) * x[j];
    return dot;
  });
}

inline RowBytes load_row_bytes(const uint8_t* p) {
  return each<RowBytes>([&](int i) { return p[i]; });
}
inline RowBytes low_nibbles_of(const RowBytes& b) {
  return each<RowBytes>([&](int i) { return b.v[i] & 15; });
}
inline RowBytes high_nibbles_of(const RowBytes& b) {
  return each<RowBytes>([&](int i) { return b.v[i] >> 4; });
}
inline Ints low_six_bits(const RowBytes& b) {
  return each<Ints>([&](int i) { return b.v[i] & 63; });
}
// Returns the low four bits of one byte, with the upper two of another as bits 4 and 5.
inline Ints six_bits_of_two(const RowBytes& four, const RowBytes& two) {
  return each<Ints>([&](int i) { return four.v[i] | two.v[i] >> 6 << 4; });
}
inline Ints widened(const RowBytes& b) {
  return each<Ints>([&](int i) { return b.v[i]; });
}
// Returns four bits, with pair PAIR of the bits of `pairs` above, less 32.
template <int PAIR>
inline Ints signed_six_bits(const RowBytes& four, const RowBytes& pairs) {
  return each<Ints>([&](int i) { return (four.v[i] | (pairs.v[i] >> (2 * PAIR) & 3) << 4) - 32; });
}
inline Ints load_row_int8(const uint8_t* p) {
  return each<Ints>([&](int i) { return static_cast<int8_t>(p[i]); });
}

inline Floats broadcast(float x) {
  return each<Floats>([&](int) { return x; });
}
inline Floats to_floats(const Ints& a) {
  return each<Floats>([&](int i) { return static_cast<float>(a.v[i]); });
}
inline Floats load_halves(const uint8_t* p) {
  return each<Floats>([&](int i) {
    Float16 half;
    std::memcpy(&half.bits, p + 2 * i, sizeof half.bits);
    return to_float(half);
  });
}
inline Floats load_floats(const uint8_t* p) {
  Floats result;
  std::memcpy(result.v, p, sizeof result.v);
  return result;
}
// Returns 2^(e - 128) for each byte e. Those of 0 and 1 are below the normal numbers.
inline Floats load_half_powers(const uint8_t* p) {
  return each<Floats>([&](int i) {
    const uint32_t bits = p[i] < 2 ? 0x200000u << p[i] : (p[i] - 1u) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return power;
  });
}
// Sets values[i] to 2^-8 times code i of each row, a number of float8_e4m3fn, whose NaN are 480 and -480. Such a code has its exponent and
// mantissa where a float16 has them, whose exponent is 8 less for the same number.
inline void load_e4m3(const uint8_t* p, Floats (&values)[4]) {
  for (int code = 0; code < 4; ++code) {
    values[code] = each<Floats>([&](int i) {
      Float16 half;
      half.bits = static_cast<uint16_t>((p[4 * i + code] & 0x80) << 8 | (p[4 * i + code] & 0x7f) << 7);
      return to_float(half);
    });
  }
}
// Returns 2^-8 times a code of float8_e4m3fn of each row, as load_e4m3 does.
inline Floats load_row_e4m3(const uint8_t* p) {
  return each<Floats>([&](int i) {
    Float16 half;
    half.bits = static_cast<uint16_t>((p[i] & 0x80) << 8 | (p[i] & 0x7f) << 7);
    return to_float(half);
  });
}
inline Floats add(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Floats subtract(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Floats multiply(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.v[i] * b.v[i]; });
}
inline void store(float* p, const Floats& a) { std::memcpy(p, a.v, sizeof a.v); }

}  // namespace
}  // namespace prologue::cpu

#include <prologue/kernels/gemm/quantized_products.h>

namespace prologue::cpu {

const QuantizedKernels kScalarKernels = make_kernels("scalar");

}  // namespace prologue::cpu
