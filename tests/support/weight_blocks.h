// This file makes random rows of quantised weights, as GGUF files have them, or with the scale in each block (weight_format.h).
#pragma once

#include <cstring>
#include <vector>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/weight_format.h>

#include "tests/support/random.h"

namespace prologue::test {

inline constexpr WeightFormat kWeightFormats[] = {
    WeightFormat::q8_0,  WeightFormat::q4_0,  WeightFormat::q4_1,   WeightFormat::q5_0,    WeightFormat::q5_1,
    WeightFormat::q4_k,  WeightFormat::q5_k,  WeightFormat::q6_k,   WeightFormat::f8_e4m3, WeightFormat::i8,
    WeightFormat::q2_k,  WeightFormat::q3_k,  WeightFormat::iq4_nl, WeightFormat::iq4_xs,  WeightFormat::mxfp4,
    WeightFormat::i4_32, WeightFormat::i4_64, WeightFormat::i4_128, WeightFormat::nvfp4};

inline void set_half(uint8_t* bytes, float value) {
  const Float16 half = to_float16(value);
  std::memcpy(bytes, &half.bits, sizeof half.bits);
}

// Where a block has its scale, and its minimum (-1: none).
inline int64_t scale_at(WeightFormat format) {
  switch (format) {
    case WeightFormat::q6_k: return 208;
    case WeightFormat::q2_k: return 80;
    case WeightFormat::q3_k: return 108;
    default: return 0;
  }
}
inline int64_t minimum_at(WeightFormat format) {
  if (format == WeightFormat::q2_k) return 82;
  return format == WeightFormat::q4_1 || format == WeightFormat::q5_1 || format == WeightFormat::q4_k ||
                 format == WeightFormat::q5_k
             ? 2
             : -1;
}

// Whether a block has a scale (float16), a zero point (a byte), and codes of 4 bits.
inline bool has_zero_point(WeightFormat format) {
  return format == WeightFormat::i4_32 || format == WeightFormat::i4_64 || format == WeightFormat::i4_128;
}

inline bool has_float_scale(WeightFormat format) {
  return format == WeightFormat::f8_e4m3 || format == WeightFormat::i8 || format == WeightFormat::nvfp4;
}
// Of MXFP4, whose scales are powers of two, the power below |value|; of 0 that is 2^-127.
inline void set_scale(WeightFormat format, uint8_t* block, float value) {
  if (has_float_scale(format)) {
    std::memcpy(block, &value, sizeof value);
  } else if (format == WeightFormat::mxfp4) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    block[0] = static_cast<uint8_t>(bits >> 23 & 255);
  } else {
    set_half(block + scale_at(format), value);
  }
}

// Makes blocks with any codes and scales of parts, and scales and minimums of either sign. (Scales of parts of NVFP4 are 2 to 30 in magnitude: with
// those that are 2^17 times larger than others a row would have few weights.)
inline std::vector<uint8_t> random_blocks(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  const int64_t bytes = weight_block_bytes(format);
  std::vector<uint8_t> blocks(static_cast<size_t>(rows * (cols / weight_block_elements(format)) * bytes));
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random.bits());
  for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(bytes)) {
    uint8_t* const block = blocks.data() + at;
    set_scale(format, block, static_cast<float>(0.01 * random.normal()));
    if (minimum_at(format) >= 0) set_half(block + minimum_at(format), static_cast<float>(0.05 * random.normal()));
    if (has_zero_point(format)) block[2] = static_cast<uint8_t>(random.integer(0, 16));
    for (int64_t i = 4; format == WeightFormat::nvfp4 && i < 20; ++i) block[i] = static_cast<uint8_t>((block[i] & 0x9f) | 0x40);
  }
  return blocks;
}

// Makes blocks whose values are whole numbers, most of them 0, so that products with whole numbers are exact: one block in 8 has the scale 1,
// and some a minimum of 1.
inline std::vector<uint8_t> whole_blocks(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed) {
  std::vector<uint8_t> blocks = random_blocks(format, rows, cols, seed);
  Random random(seed + 1);
  const int64_t bytes = weight_block_bytes(format), elements = weight_block_elements(format);
  for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(bytes)) {
    uint8_t* const block = blocks.data() + at;
    set_scale(format, block, elements == 256 || random.integer(0, 7) == 0 ? 1.0f : 0.0f);
    if (minimum_at(format) >= 0) set_half(block + minimum_at(format), static_cast<float>(random.integer(0, 1)));
    if (format == WeightFormat::q8_0) {
      for (int64_t i = 2; i < bytes; ++i) block[i] = static_cast<uint8_t>(random.integer(-4, 4));
    }
    if (format == WeightFormat::i8) {
      for (int64_t i = 4; i < bytes; ++i) block[i] = static_cast<uint8_t>(random.integer(-4, 4));
    }
    if (has_zero_point(format)) block[2] = static_cast<uint8_t>(random.integer(5, 11));
    if (format == WeightFormat::f8_e4m3) {
      constexpr uint8_t kZeroToFour[] = {0x00, 0x38, 0x40, 0x44, 0x48};
      for (int64_t i = 4; i < bytes; ++i) {
        block[i] = static_cast<uint8_t>(kZeroToFour[random.integer(0, 4)] | random.integer(0, 1) << 7);
      }
    }
    const auto chance = [&](int one_in) { return random.integer(1, one_in) == 1; };
    for (int64_t i = 0; format == WeightFormat::q2_k && i < 16; ++i) {  // scales and minimums of parts
      block[i] = static_cast<uint8_t>((chance(8) ? 1 : 0) | (chance(4) ? 16 : 0));
    }
    // Scales of parts are 32 less than they are stored: the lower nibbles are 0 or 1, the upper pairs 2.
    for (int64_t i = 0; format == WeightFormat::q3_k && i < 12; ++i) {
      block[96 + i] = static_cast<uint8_t>(i < 8 ? (chance(8) ? 1 : 0) | (chance(8) ? 16 : 0) : 0xaa);
    }
    for (int64_t i = 2; format == WeightFormat::iq4_xs && i < 8; ++i) {
      block[i] = static_cast<uint8_t>(i < 4 ? 0xaa : (chance(8) ? 1 : 0) | (chance(8) ? 16 : 0));
    }
    if (format == WeightFormat::mxfp4) {  // a scale of 2^1; most codes are 0
      block[0] = 128;
      for (int64_t i = 1; i < bytes; ++i) block[i] = chance(4) ? static_cast<uint8_t>(random.bits()) : uint8_t{0};
    }
    if (format == WeightFormat::nvfp4) {  // scales of 2 or 0; a quarter of the codes are not 0
      for (int64_t i = 4; i < 20; ++i) block[i] = chance(4) ? uint8_t{0x40} : uint8_t{0};
      for (int64_t i = 20; i < bytes; ++i) block[i] = chance(4) ? static_cast<uint8_t>(random.bits()) : uint8_t{0};
    }
    const bool has_parts = format == WeightFormat::q4_k || format == WeightFormat::q5_k;
    for (int64_t i = 0; has_parts && i < 12;
         ++i) {  // scales of parts: bytes 0 to 3, and the low halves of bytes 8 to 11; then minimums
      const auto one_of = [&](int one_in) { return random.integer(1, one_in) == 1 ? 1 : 0; };
      block[4 + i] = static_cast<uint8_t>(i < 4 ? one_of(8) : i < 8 ? one_of(2) : one_of(8) | one_of(2) << 4);
    }
    for (int64_t i = 192; format == WeightFormat::q6_k && i < 208; ++i) {
      block[i] = random.integer(1, 8) == 1 ? static_cast<uint8_t>(random.integer(0, 1) == 0 ? 1 : -1) : uint8_t{0};
    }
  }
  return blocks;
}

// Packs them.
inline std::vector<uint8_t> packed_blocks(WeightFormat format, int64_t rows, int64_t cols, const std::vector<uint8_t>& blocks) {
  std::vector<uint8_t> packed(static_cast<size_t>(packed_weight_bytes(format, rows, cols)));
  const Status status = pack_weight({format, rows, cols, blocks.data(), packed.data()}, {});
  if (!status.ok()) packed.clear();
  return packed;
}

}  // namespace prologue::test
