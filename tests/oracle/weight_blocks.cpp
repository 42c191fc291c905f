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

// Sixteen values which are closer to each other near 0: the codes of IQ4_NL and IQ4_XS.
double iq4_value(int code) {
  static constexpr double kPositive[] = {1, 13, 25, 38, 53, 69, 89, 113}, kNegative[] = {10, 22, 35, 49, 65, 83, 104, 127};
  return code >= 8 ? kPositive[code - 8] : -kNegative[7 - code];
}

// One bit of sign, two of exponent with the bias 1, one of mantissa: OCP's E2M1.
double e2m1_value(int code) {
  const int exponent = code / 2 % 4, mantissa = code % 2;
  const double magnitude = exponent == 0 ? 0.5 * mantissa : std::ldexp(2 + mantissa, exponent - 2);
  return code < 8 ? magnitude : 0.0 - magnitude;
}

WeightValue value_of_32(WeightFormat format, const uint8_t* block, int i) {
  if (format == WeightFormat::q8_0) return of_code(half_value(block), static_cast<int8_t>(block[2 + i]), 0.0);
  const auto nibble = [&](int nibbles_at) { return i < 16 ? block[nibbles_at + i] % 16 : block[nibbles_at + i - 16] / 16; };
  const auto bit = [&](int bits_at) { return block[bits_at + i / 8] >> i % 8 & 1; };
  if (format == WeightFormat::iq4_nl) return {half_value(block), iq4_value(nibble(2)), 0.0};
  if (format == WeightFormat::mxfp4) return {std::ldexp(1.0, block[0] - 127), e2m1_value(nibble(1)), 0.0};
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
  if (format == WeightFormat::q2_k || format == WeightFormat::q3_k) {
    const int half = i / 128, quarter = i % 128 / 32, j = i % 32, sixteen = i / 16;
    const bool is_two = format == WeightFormat::q2_k;
    const int two = block[(is_two ? 16 : 32) + 32 * half + j] >> 2 * quarter & 3;
    if (is_two) {
      return of_code(half_value(block + 80) * (block[sixteen] % 16), two, half_value(block + 82) * (block[sixteen] / 16));
    }
    const int third = block[j] >> (4 * half + quarter) & 1;
    // Sixteen scales: eight bytes have four bits each of scales 0..7 and 8..15; four bytes have two bits each of scales j, j + 4, j + 8, j + 12.
    const int low = sixteen < 8 ? block[96 + sixteen] % 16 : block[96 + sixteen - 8] / 16;
    const int high = block[104 + sixteen % 4] >> 2 * (sixteen / 4) & 3;
    return of_code(half_value(block + 108) * (low + 16 * high - 32), two + 4 * third - 4, 0.0);
  }
  const int part = i / 32, j = i % 32;
  if (format == WeightFormat::nvfp4) {
    const int byte = block[20 + 16 * part + j % 16];
    return {float_value(block) * e4m3_value(block[4 + i / 16]), e2m1_value(j < 16 ? byte % 16 : byte / 16), 0.0};
  }
  if (format == WeightFormat::iq4_xs) {
    const int upper = block[2] | block[3] << 8;  // two bits of each of the eight scales
    const int lower = part % 2 == 0 ? block[4 + part / 2] % 16 : block[4 + part / 2] / 16;
    const int byte = block[8 + 16 * part + j % 16];
    return {half_value(block) * (lower + 16 * (upper >> 2 * part & 3) - 32), iq4_value(j < 16 ? byte % 16 : byte / 16), 0.0};
  }
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
