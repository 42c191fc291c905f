#include "tests/oracle/weight_blocks.h"

#include <cmath>

namespace prologue::test::oracle {
namespace {

double half_value(const uint8_t* bytes) {
  const int bits = bytes[0] | bytes[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

double float_value(const uint8_t* bytes) {
  const uint32_t bits = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24;
  const int exponent = static_cast<int>(bits >> 23 & 255), mantissa = static_cast<int>(bits & 0x7fffff);
  const double sign = bits >> 31 != 0 ? -1.0 : 1.0;
  if (exponent == 255) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -149) : std::ldexp(0x800000 + mantissa, exponent - 150));
}

// Four bits of exponent with the bias 7, three of mantissa; the largest exponent is an ordinary one.
double e4m3_value(int code) {
  const int exponent = code / 8 % 16, mantissa = code % 8;
  const double magnitude = exponent == 0 ? mantissa / 512.0 : std::ldexp(8 + mantissa, exponent - 10);
  return code < 128 ? magnitude : -magnitude;
}

WeightValue of_code(double scale, int code, double minimum) { return {scale, static_cast<double>(code), minimum}; }

WeightValue value_of_32(WeightFormat format, const uint8_t* block, int i) {
  if (format == WeightFormat::q8_0) return of_code(half_value(block), static_cast<int8_t>(block[2 + i]), 0.0);
  const auto nibble = [&](int nibbles_at) { return i < 16 ? block[nibbles_at + i] % 16 : block[nibbles_at + i - 16] / 16; };
  const auto bit = [&](int bits_at) { return block[bits_at + i / 8] >> i % 8 & 1; };
  if (format == WeightFormat::q4_0) return of_code(half_value(block), nibble(2) - 8, 0.0);
  if (format == WeightFormat::q4_1) return of_code(half_value(block), nibble(4), -half_value(block + 2));
  if (format == WeightFormat::q5_0) return of_code(half_value(block), nibble(6) + 16 * bit(2) - 16, 0.0);
  return of_code(half_value(block), nibble(8) + 16 * bit(4), -half_value(block + 2));
}

// Groups of 4-bit codes with a zero point; 32 values have 16 bytes.
WeightValue value_of_group(int64_t elements, const uint8_t* block, int64_t i) {
  const int64_t run = i % elements / 32, at = i % 32;
  const int two = block[3 + 16 * run + at % 16];
  const double scale = half_value(block);
  return of_code(scale, at >= 16 ? two / 16 : two % 16, scale * block[2]);
}

// Twelve bytes hold sixteen numbers of six bits: 0..3 and 8..11 in the low bits of bytes 0..7; 4..7 and 12..15 in the nibbles of bytes
// 8..11 and the two upper bits of bytes 0..3 and 4..7.
int six_bits(const uint8_t* packed, int i) {
  const bool is_minimum = i >= 8;
  const int part = i % 8, above = (is_minimum ? 4 : 0) + part % 4;
  if (part < 4) return packed[above] % 64;
  const int nibbles = packed[8 + part - 4];
  return (is_minimum ? nibbles / 16 : nibbles % 16) + packed[above] / 64 * 16;
}

WeightValue value_of_256(WeightFormat format, const uint8_t* block, int i) {
  if (format == WeightFormat::q6_k) {
    const int half = i / 128, quarter = i % 128 / 32, j = i % 32;
    const int four = quarter < 2 ? block[64 * half + 32 * quarter + j] % 16 : block[64 * half + 32 * (quarter - 2) + j] / 16;
    const int two = block[128 + 32 * half + j] >> 2 * quarter & 3;
    return of_code(half_value(block + 208) * static_cast<int8_t>(block[192 + i / 16]), four + 16 * two - 32, 0.0);
  }
  const int part = i / 32, j = i % 32;
  const uint8_t* codes = block + (format == WeightFormat::q5_k ? 48 : 16) + 32 * (part / 2);
  int code = part % 2 == 0 ? codes[j] % 16 : codes[j] / 16;
  if (format == WeightFormat::q5_k) code += 16 * (block[16 + j] >> part & 1);
  return of_code(half_value(block) * six_bits(block + 4, part), code, half_value(block + 2) * six_bits(block + 4, 8 + part));
}

}  // namespace

WeightValue weight_value(WeightFormat format, const uint8_t* row, int64_t i) {
  const int64_t elements = weight_block_elements(format);
  const uint8_t* block = row + i / elements * weight_block_bytes(format);
  if (format == WeightFormat::i4_32 || format == WeightFormat::i4_64 || format == WeightFormat::i4_128) {
    return value_of_group(elements, block, i);
  }
  if (elements == 128) {
    const uint8_t code = block[4 + i % 128];
    if (format == WeightFormat::f8_e4m3) return {float_value(block), e4m3_value(code), 0.0};
    return of_code(float_value(block), static_cast<int8_t>(code), 0.0);
  }
  return elements == 32 ? value_of_32(format, block, static_cast<int>(i % 32))
                        : value_of_256(format, block, static_cast<int>(i % 256));
}

}  // namespace prologue::test::oracle
