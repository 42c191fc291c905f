// Reads packed weights (weight_format.h) as operands of mma.m16n8k16.
//
// A warp has the 16 rows of a group, and 32 of their channels at a time: a slice. Lane i has rows 2 (i / 4) and 2 (i / 4) + 1, which are
// neighbours in memory and which take the places of rows i / 4 and i / 4 + 8 of an operand. Of a slice it has eight channels, those that
// are beside each other in a word of codes: with c = i % 4, channels 4 c to 4 c + 3 and 16 + 4 c to 16 + 4 c + 3. They are the k of two
// products: of the first one the channels (4 c, 4 c + 2) and (4 c + 1, 4 c + 3), of the second one those 16 further, since these are pairs of
// codes that are 16 bits apart. The other operand must have the same channels in these places. That is ChannelOrder::as_packed. With
// ChannelOrder::natural the k of the two products are channels 0 to 15 and 16 to 31 as they are: a lane has the channels (2 c, 2 c + 1) and
// (8 + 2 c, 9 + 2 c) of each, which takes two loads for one.
//
// A format is a struct: how many slices a lane loads together (a unit), how, and what their codes and scales are:
//
//   load<kOrder>(words, group, unit, lane)              of a group of 16 rows, kGroupBytes for each block of their channels
//   codes<kBase, kOrder>(words, slice, lane, unit % 2)  of a slice of the unit, 0 <= slice < kSlices, with the bits of kBase above each
//   scales(words, unit % 2)                             of the unit's only slice, or (kShares) of slice lane % 4
//
//   signed_codes(words)                                 if kOffset = 128 or kFloatCodes: codes of eight bits as they are, with other bits above
//   integers(words, slice, lane, unit % 2, a)           a slice as the first operand of mma.m16n8k32, of signed whole numbers of eight bits
//
// A weight is (code - kOffset) * scale + minimum, and number * kOfInteger * scale + minimum (kOfInteger is 0 if weights are no whole numbers).
// If kFloatCodes, codes<0> has codes of float8_e4m3fn, and a weight is their value * scale. Formats with a minimum have kCentre, about which their
// codes lie.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/weight_format.h>
#include <prologue/kernels/base/device/cuda_types.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

inline constexpr int kPackedSliceChannels = 32;

enum class ChannelOrder { as_packed, natural };

// What a lane has of a slice: of both of its rows, the pairs of codes of the first product, then those of the second one.
struct PackedCodes {
  uint32_t low[4];
  uint32_t high[4];
};

// The factors of two rows in a slice. `other` is the minimum, or, where each 16 channels have a scale (kTwoScales), that of the last 16. Formats
// with a minimum for each 16 channels as well (kTwoMinimums) have those of the first and of the last 16 in the members that follow.
struct PackedScales {
  float low = 0.0f, high = 0.0f;
  float other_low = 0.0f, other_high = 0.0f;
  float minimum_low = 0.0f, minimum_high = 0.0f;
  float other_minimum_low = 0.0f, other_minimum_high = 0.0f;
};

template <class Format>
inline constexpr bool kTwoMinimums = Format::kHasMinimum&& Format::kTwoScales;

// ---- parts of the formats ---------------------------------------------------------------------------------------------------

// Load the pieces of two neighbouring rows: of 4, 2 or 1 bytes each.
__device__ inline void load_words(uint32_t (&words)[2], const char* from) {
  const uint2 both = *reinterpret_cast<const uint2*>(from);
  words[0] = both.x, words[1] = both.y;
}
// Loads a lane's codes of two neighbouring rows, of the four words that 16 channels (or these and 16 others) of a row have.
template <ChannelOrder kOrder>
__device__ inline void load_codes(uint32_t (&codes)[2], const char* four_words, int lane) {
  constexpr int kWordOfRows = 64;
  const int c = lane % 4;
  const char* const rows = four_words + lane / 4 * 8;
  if constexpr (kOrder == ChannelOrder::as_packed) {
    load_words(codes, rows + c * kWordOfRows);
  } else {
    uint32_t first[2], second[2];
    load_words(first, rows + c / 2 * kWordOfRows), load_words(second, rows + (2 + c / 2) * kWordOfRows);
    const uint32_t bytes = c % 2 == 0 ? 0x5140u : 0x7362u;
#pragma unroll
    for (int row = 0; row < 2; ++row) codes[row] = __byte_perm(first[row], second[row], bytes);
  }
}
__device__ inline uint32_t load_halves(const char* from) { return *reinterpret_cast<const uint32_t*>(from); }
__device__ inline uint32_t load_two_bytes(const char* from) { return *reinterpret_cast<const uint16_t*>(from); }

__device__ inline float low_half(uint32_t pair) { return __half22float2(*reinterpret_cast<const __half2*>(&pair)).x; }
__device__ inline float high_half(uint32_t pair) { return __half22float2(*reinterpret_cast<const __half2*>(&pair)).y; }

// Returns a byte of a word, less `offset`, as a float. Exact; `byte` and `offset` are constants.
__device__ inline float byte_as_float(uint32_t word, int byte, int offset) {
  constexpr uint32_t kBase = 0x4b000000u;  // 2^23, whose lowest bit is 1
  return __uint_as_float(__byte_perm(word, kBase, 0x7540u | static_cast<unsigned>(byte))) -
         (8388608.0f + static_cast<float>(offset));
}
template <int kByte>
__device__ inline float byte_as_float(uint32_t word) {
  return byte_as_float(word, kByte, 0);
}

// Returns a code of float8_e4m3fn, in the lowest 8 bits, as a float. 0x7f and 0xff are 480 and -480 (weight_format.h).
__device__ inline float float_of_e4m3(uint32_t code) {
  constexpr uint32_t kTwoTo120 = 0x7b800000u;
  return __fmul_rn(__uint_as_float((code & 0x7fu) << 20 | (code & 0x80u) << 24), __uint_as_float(kTwoTo120));
}

// Blocks of 32 channels: scale | minimum, if kMinimum | fifth bits, if kFifth | 32 x 4 bits. A word of codes has four bytes; their low nibbles
// are channels of the first half of the block.
template <bool kMinimum, bool kFifth>
struct PackedNibbles {
  static constexpr int kSlices = 1, kBlockUnits = 1;  // slices of a unit, units of a block
  static constexpr int kWords = 3 + (kMinimum ? 1 : 0) + (kFifth ? 2 : 0);
  static constexpr bool kHasMinimum = kMinimum, kTwoScales = false, kShares = false, kFloatCodes = false;
  static constexpr int kOffset = kMinimum ? 0 : kFifth ? 16 : 8, kCentre = kFifth ? 16 : 8;
  static constexpr int kMinimumAt = 32, kFifthAt = kMinimum ? 64 : 32, kCodesAt = kFifthAt + (kFifth ? 64 : 0);
  static constexpr int kGroupBytes = kCodesAt + 256;

  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit * int64_t{kGroupBytes};
    const int rows = lane / 4;
    uint32_t codes[2];
    load_codes<kOrder>(codes, block + kCodesAt, lane);
    words[0] = codes[0], words[1] = codes[1];
    words[2] = load_halves(block + rows * 4);
    if constexpr (kMinimum) words[3] = load_halves(block + kMinimumAt + rows * 4);
    if constexpr (kFifth) {
      uint32_t bits[2];
      load_words(bits, block + kFifthAt + rows * 8);
      words[kWords - 2] = bits[0], words[kWords - 1] = bits[1];
    }
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int lane, int) {
    PackedCodes codes;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      uint32_t(&to)[4] = row == 0 ? codes.low : codes.high;
      // Bit i of a block's word is of channel i: those of a pair go to bits 4 and 20. (As packed, a pair's channels are two apart.)
      constexpr bool kNatural = kOrder == ChannelOrder::natural;
      const uint32_t bits = kFifth ? words[kWords - 2 + row] >> (lane % 4 * (kNatural ? 2 : 4)) : 0;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        constexpr uint32_t kToBits4And20 = 1u << 4 | 1u << (kNatural ? 19 : 18);
        const int at = pair % 2 * (kNatural ? 8 : 1) + pair / 2 * 16;
        const uint32_t fifth = (bits >> at & (kNatural ? 3u : 5u)) * kToBits4And20;
        const uint32_t above = kFifth ? and_or(fifth, 0x00100010u, kBase) : kBase;
        to[pair] = and_or(words[row] >> (pair % 2 * 8 + pair / 2 * 4), 0x000f000fu, above);
      }
    }
    return codes;
  }

  // Without a minimum a code is in the upper bits of its number, whose sign is then that of the code less the offset.
  static constexpr float kOfInteger = kMinimum ? 1.0f : kFifth ? 1.0f / 8 : 1.0f / 16;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int lane, int, uint32_t (&a)[4]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int last = 0; last < 2; ++last) {
        constexpr int kUp = kMinimum ? 0 : kFifth ? 3 : 4;
        constexpr uint32_t kSigns = kMinimum ? 0 : 0x80808080u;
        const uint32_t nibbles = last == 0 ? words[row] << kUp : words[row] >> (4 - kUp);
        uint32_t fifths = kSigns;
        if constexpr (kFifth) {
          const uint32_t four =
              words[kWords - 2 + row] >> (16 * last + lane % 4 * 4) & 15u;  // of channels: to bit 4 + kUp of a byte each
          fifths = and_xor(four * (0x00204081u << (4 + kUp)), 0x10101010u << kUp, kSigns);
        }
        a[2 * last + row] = and_xor(nibbles, 0x0f0f0f0fu << kUp, fifths);
      }
    }
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    PackedScales s;
    s.low = low_half(words[2]), s.high = high_half(words[2]);
    if constexpr (kMinimum) s.other_low = low_half(words[3]), s.other_high = high_half(words[3]);
    return s;
  }
};

// Returns codes of eight bits, with other bits above, from words of four: two of the first 16 channels' rows, then two of the last.
template <int kWords>
__device__ inline PackedCodes codes_of_bytes(const uint32_t (&words)[kWords]) {
  PackedCodes codes;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    codes.low[pair] = words[pair / 2 * 2] >> (pair % 2 * 8), codes.high[pair] = words[pair / 2 * 2 + 1] >> (pair % 2 * 8);
  }
  return codes;
}

struct PackedQ8_0 {
  static constexpr int kSlices = 1, kBlockUnits = 1, kWords = 5;
  static constexpr bool kHasMinimum = false, kTwoScales = false, kShares = false, kFloatCodes = false;
  static constexpr int kOffset = 128;  // codes are signed in memory: 0 to 255 is what codes() makes of them
  static constexpr int kGroupBytes = 32 + 512;

  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit * int64_t{kGroupBytes};
    const int rows = lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t codes[2];
      load_codes<kOrder>(codes, block + 32 + i * 256, lane);
      words[2 * i] = codes[0], words[2 * i + 1] = codes[1];
    }
    words[4] = load_halves(block + rows * 4);
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int, int) {
    constexpr uint32_t kBits = 0x00ff00ffu, kSigns = 0x00800080u;
    PackedCodes codes;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      codes.low[pair] = and_xor(words[pair / 2 * 2] >> (pair % 2 * 8), kBits, kBase ^ kSigns);
      codes.high[pair] = and_xor(words[pair / 2 * 2 + 1] >> (pair % 2 * 8), kBits, kBase ^ kSigns);
    }
    return codes;
  }
  // The same as they are in memory, with other bits above.
  __device__ static PackedCodes signed_codes(const uint32_t (&words)[kWords]) { return codes_of_bytes(words); }

  static constexpr float kOfInteger = 1.0f;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int, int, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[i];
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    PackedScales s;
    s.low = low_half(words[4]), s.high = high_half(words[4]);
    return s;
  }
};

// Blocks of 256 channels in eight parts of 32: scale | minimum | scales and minimums of the parts, 6 bits each | fifth bits, if kFifth |
// 256 x 4 bits. A unit is half of a block. A word of codes has the channels of two parts, in low and high nibbles.
template <bool kFifth>
struct PackedParts {
  static constexpr int kSlices = 4, kBlockUnits = 2;
  static constexpr int kWords = 8 + 2 + 3 + (kFifth ? 4 : 0);
  static constexpr bool kHasMinimum = true, kTwoScales = false, kShares = true, kFloatCodes = false;
  static constexpr int kOffset = 0, kCentre = kFifth ? 16 : 8;
  static constexpr int kFifthAt = 256, kCodesAt = kFifthAt + (kFifth ? 512 : 0), kGroupBytes = kCodesAt + 2048;

  // words: 8 of codes | scale | minimum | three bytes of parts | 4 of fifth bits
  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit / 2 * int64_t{kGroupBytes};
    const int half = unit % 2, rows = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t codes[2];
      load_codes<kOrder>(codes, block + kCodesAt + (half * 4 + i) * 256, lane);
      words[2 * i] = codes[0], words[2 * i + 1] = codes[1];
    }
    words[8] = load_halves(block + rows * 4);
    words[9] = load_halves(block + 32 + rows * 4);
#pragma unroll
    for (int i = 0; i < 3; ++i) words[10 + i] = load_two_bytes(block + 64 + (4 * i + c) * 16 + rows * 2);
    if constexpr (kFifth) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t bits[2];
        load_codes<kOrder>(bits, block + kFifthAt + i * 256, lane);
        words[13 + 2 * i] = bits[0], words[14 + 2 * i] = bits[1];
      }
    }
  }

  // A byte of fifth bits has those of one channel of each of the eight parts.
  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int slice, int, int half) {
    PackedCodes codes;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      uint32_t(&to)[4] = row == 0 ? codes.low : codes.high;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        uint32_t above = kBase;
        if constexpr (kFifth) {
          const uint32_t bits = words[13 + pair / 2 * 2 + row] << (4 - 4 * half);
          above = and_or(bits >> (slice + pair % 2 * 8), 0x00100010u, kBase);
        }
        to[pair] = and_or(words[slice / 2 * 4 + pair / 2 * 2 + row] >> (slice % 2 * 4 + pair % 2 * 8), 0x000f000fu, above);
      }
    }
    return codes;
  }

  static constexpr float kOfInteger = 1.0f;
  __device__ static void integers(const uint32_t (&words)[kWords], int slice, int, int half, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t fifths = kFifth ? words[13 + i] << (4 - 4 * half) >> slice & 0x10101010u : 0;
      a[i] = and_or(words[slice / 2 * 4 + i] >> (slice % 2 * 4), 0x0f0f0f0fu, fifths);
    }
  }

  // Lane c of a row's four has the bytes of part 4 half + c.
  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int half) {
    const uint32_t scale = half == 0 ? words[10] & 0x3f3fu : (words[12] & 0x0f0fu) | (words[10] >> 2 & 0x3030u);
    const uint32_t minimum = half == 0 ? words[11] & 0x3f3fu : (words[12] >> 4 & 0x0f0fu) | (words[11] >> 2 & 0x3030u);
    PackedScales s;
    s.low = low_half(words[8]) * byte_as_float<0>(scale), s.high = high_half(words[8]) * byte_as_float<1>(scale);
    s.other_low = -low_half(words[9]) * byte_as_float<0>(minimum);
    s.other_high = -high_half(words[9]) * byte_as_float<1>(minimum);
    return s;
  }
};

// Blocks of 256 channels: 256 x 4 bits | 256 x 2 upper bits | a scale of 8 bits for each 16 channels | scale. A unit is half of a block,
// whose four runs of 32 channels are the slices.
struct PackedQ6_K {
  static constexpr int kSlices = 4, kBlockUnits = 2, kWords = 8 + 4 + 2 + 1;
  static constexpr bool kHasMinimum = false, kTwoScales = true, kShares = true, kFloatCodes = false;
  static constexpr int kOffset = 32;
  static constexpr int kGroupBytes = 16 * 210, kUpperAt = 2048, kScalesAt = 3072, kScaleAt = 3328;

  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit / 2 * int64_t{kGroupBytes};
    const int half = unit % 2, rows = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t codes[2];
      load_codes<kOrder>(codes, block + (half * 4 + i) * 256, lane);
      words[2 * i] = codes[0], words[2 * i + 1] = codes[1];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t bits[2];
      load_codes<kOrder>(bits, block + kUpperAt + (half * 2 + i) * 256, lane);
      words[8 + 2 * i] = bits[0], words[9 + 2 * i] = bits[1];
      words[12 + i] = load_two_bytes(block + kScalesAt + (half * 8 + c * 2 + i) * 16 + rows * 2);
    }
    words[14] = load_halves(block + kScaleAt + rows * 4);
  }

  // Runs 0 and 2 are the low and high nibbles of the first 32 bytes, runs 1 and 3 those of the others.
  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int slice, int, int) {
    PackedCodes codes;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      uint32_t(&to)[4] = row == 0 ? codes.low : codes.high;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t upper = words[8 + pair / 2 * 2 + row] >> (pair % 2 * 8);
        const uint32_t above = and_or(slice < 2 ? upper << (4 - 2 * slice) : upper >> (2 * slice - 4), 0x00300030u, kBase);
        to[pair] = and_or(words[slice % 2 * 4 + pair / 2 * 2 + row] >> (slice / 2 * 4 + pair % 2 * 8), 0x000f000fu, above);
      }
    }
    return codes;
  }

  // A code is in the upper bits of its number, as in PackedNibbles.
  static constexpr float kOfInteger = 1.0f / 4;
  __device__ static void integers(const uint32_t (&words)[kWords], int slice, int, int, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t nibbles = slice < 2 ? words[slice % 2 * 4 + i] << 2 : words[slice % 2 * 4 + i] >> 2;
      a[i] = and_xor(words[8 + i] << (6 - 2 * slice), 0xc0c0c0c0u, and_xor(nibbles, 0x3c3c3c3cu, 0x80808080u));
    }
  }

  // Lane c has the scales of run c, whose bytes are signed.
  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    const uint32_t parts = (words[12] | words[13] << 16) ^ 0x80808080u;
    const float low = low_half(words[14]), high = high_half(words[14]);
    PackedScales s;
    s.low = low * (byte_as_float<0>(parts) - 128.0f), s.high = high * (byte_as_float<1>(parts) - 128.0f);
    s.other_low = low * (byte_as_float<2>(parts) - 128.0f), s.other_high = high * (byte_as_float<3>(parts) - 128.0f);
    return s;
  }
};

// Blocks of 128 channels: scale (float32) | 128 codes of 8 bits, float8_e4m3fn if kFloat, int8 otherwise. A unit is a quarter of a block.
template <bool kFloat>
struct PackedBytes {
  static constexpr int kSlices = 1, kBlockUnits = 4, kWords = 4 + 2;
  static constexpr bool kHasMinimum = false, kTwoScales = false, kShares = false, kFloatCodes = kFloat;
  static constexpr int kOffset = kFloat ? 0 : 128;  // as of PackedQ8_0
  static constexpr int kCodesAt = 64, kGroupBytes = kCodesAt + 2048;

  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit / kBlockUnits * int64_t{kGroupBytes};
    const int rows = lane / 4, first_piece = unit % kBlockUnits * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t codes[2];
      load_codes<kOrder>(codes, block + kCodesAt + (first_piece + 4 * i) * 64, lane);
      words[2 * i] = codes[0], words[2 * i + 1] = codes[1];
    }
    uint32_t scales[2];
    load_words(scales, block + rows * 8);
    words[4] = scales[0], words[5] = scales[1];
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int, int) {
    constexpr uint32_t kBits = 0x00ff00ffu, kSigns = kFloat ? 0 : 0x00800080u;
    PackedCodes codes = signed_codes(words);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      codes.low[pair] = and_xor(codes.low[pair], kBits, kBase ^ kSigns);
      codes.high[pair] = and_xor(codes.high[pair], kBits, kBase ^ kSigns);
    }
    return codes;
  }
  // The same as they are in memory, with other bits above.
  __device__ static PackedCodes signed_codes(const uint32_t (&words)[kWords]) { return codes_of_bytes(words); }

  static constexpr float kOfInteger = kFloat ? 0.0f : 1.0f;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int, int, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[i];
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    PackedScales s;
    s.low = __uint_as_float(words[4]), s.high = __uint_as_float(words[5]);
    return s;
  }
};

// Blocks of 256 channels: a scale and a minimum of 4 bits for each 16 channels | 256 x 2 bits | scale | minimum. A half of a block has four runs of
// 32 channels, run r in pair r of the bits of 32 bytes. A unit is a run.
struct PackedQ2_K {
  static constexpr int kSlices = 1, kBlockUnits = 8, kWords = 4 + 2 + 2 + 1;
  static constexpr bool kHasMinimum = true, kTwoScales = true, kShares = false, kFloatCodes = false;
  static constexpr int kOffset = 0, kCentre = 2;
  static constexpr int kGroupBytes = 16 * 84, kCodesAt = 256, kScaleAt = 1280, kMinimumAt = 1312;

  // words: 4 of codes | two bytes of parts of both rows | scale | minimum | the unit
  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit / kBlockUnits * int64_t{kGroupBytes};
    const int of_block = unit % kBlockUnits, rows = lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t codes[2];
      load_codes<kOrder>(codes, block + kCodesAt + (of_block / 4 * 2 + i) * 256, lane);
      words[2 * i] = codes[0], words[2 * i + 1] = codes[1];
      words[4 + i] = load_two_bytes(block + (of_block * 2 + i) * 16 + rows * 2);
    }
    words[6] = load_halves(block + kScaleAt + rows * 4), words[7] = load_halves(block + kMinimumAt + rows * 4);
    words[8] = static_cast<uint32_t>(of_block);
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int, int) {
    PackedCodes codes;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const uint32_t shift = words[8] % 4 * 2 + pair % 2 * 8;
      codes.low[pair] = and_or(words[pair / 2 * 2] >> shift, 0x00030003u, kBase);
      codes.high[pair] = and_or(words[pair / 2 * 2 + 1] >> shift, 0x00030003u, kBase);
    }
    return codes;
  }

  static constexpr float kOfInteger = 1.0f;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int, int, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[i] >> (words[8] % 4 * 2) & 0x03030303u;
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    const uint32_t parts = words[4] | words[5] << 16;
    const uint32_t scale = parts & 0x0f0f0f0fu, minimum = parts >> 4 & 0x0f0f0f0fu;
    const float low = low_half(words[6]), high = high_half(words[6]);
    const float minimum_low = -low_half(words[7]), minimum_high = -high_half(words[7]);
    PackedScales s;
    s.low = low * byte_as_float<0>(scale), s.high = high * byte_as_float<1>(scale);
    s.other_low = low * byte_as_float<2>(scale), s.other_high = high * byte_as_float<3>(scale);
    s.minimum_low = minimum_low * byte_as_float<0>(minimum), s.minimum_high = minimum_high * byte_as_float<1>(minimum);
    s.other_minimum_low = minimum_low * byte_as_float<2>(minimum);
    s.other_minimum_high = minimum_high * byte_as_float<3>(minimum);
    return s;
  }
};

// Blocks of 256 channels: 256 third bits, bit i of a byte of run i | 256 x 2 bits, as of Q2_K | 16 scales of parts, of 6 bits: 8 bytes with the
// lower bits of parts i and i + 8, 4 bytes with the upper bits of parts i, i + 4, i + 8 and i + 12 | scale. A unit is a run.
struct PackedQ3_K {
  static constexpr int kSlices = 1, kBlockUnits = 8, kWords = 4 + 4 + 2 + 2 + 1 + 1;
  static constexpr bool kHasMinimum = false, kTwoScales = true, kShares = false, kFloatCodes = false;
  static constexpr int kOffset = 4;
  static constexpr int kGroupBytes = 16 * 110, kCodesAt = 512, kScalesAt = 1536, kUpperScalesAt = 1664, kScaleAt = 1728;

  // words: 4 of pairs of bits | 4 of third bits | two bytes of lower bits of scales of both rows | two of upper bits | scale | the unit
  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit / kBlockUnits * int64_t{kGroupBytes};
    const int of_block = unit % kBlockUnits, rows = lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t pairs[2], thirds[2];
      load_codes<kOrder>(pairs, block + kCodesAt + (of_block / 4 * 2 + i) * 256, lane);
      load_codes<kOrder>(thirds, block + i * 256, lane);
      words[2 * i] = pairs[0], words[2 * i + 1] = pairs[1];
      words[4 + 2 * i] = thirds[0], words[5 + 2 * i] = thirds[1];
      words[8 + i] = load_two_bytes(block + kScalesAt + (of_block % 4 * 2 + i) * 16 + rows * 2);
      words[10 + i] = load_two_bytes(block + kUpperScalesAt + (of_block % 2 * 2 + i) * 16 + rows * 2);
    }
    words[12] = load_halves(block + kScaleAt + rows * 4);
    words[13] = static_cast<uint32_t>(of_block);
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int, int) {
    PackedCodes codes;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      uint32_t(&to)[4] = row == 0 ? codes.low : codes.high;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t third = words[4 + pair / 2 * 2 + row] >> words[13] << 2 >> (pair % 2 * 8);
        const uint32_t two = words[pair / 2 * 2 + row] >> (words[13] % 4 * 2 + pair % 2 * 8);
        to[pair] = and_or(two, 0x00030003u, and_or(third, 0x00040004u, kBase));
      }
    }
    return codes;
  }

  // A code is in the upper bits of its number, as in PackedNibbles.
  static constexpr float kOfInteger = 1.0f / 32;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int, int, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t two = words[i] >> (words[13] % 4 * 2) << 5, third = words[4 + i] >> words[13] << 7;
      a[i] = and_xor(third, 0x80808080u, and_xor(two, 0x60606060u, 0x80808080u));
    }
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    const uint32_t lower = (words[8] | words[9] << 16) >> (words[13] / 4 * 4) & 0x0f0f0f0fu;
    const uint32_t upper = (words[10] | words[11] << 16) >> (words[13] / 2 * 2) & 0x03030303u;
    const uint32_t parts = lower | upper << 4;
    const float low = low_half(words[12]), high = high_half(words[12]);
    PackedScales s;
    s.low = low * byte_as_float(parts, 0, 32), s.high = high * byte_as_float(parts, 1, 32);
    s.other_low = low * byte_as_float(parts, 2, 32), s.other_high = high * byte_as_float(parts, 3, 32);
    return s;
  }
};

// Finds the bytes of a table that a word of two rows' codes of four bits numbers: words of four bytes, two of the first 16 channels' rows, then two
// of the last.
__device__ inline void bytes_of_table(const uint32_t (&rows)[2], const uint32_t (&table)[4], uint32_t (&words)[4]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // A permutation takes four codes of three bits; the fourth bit chooses between two.
    const uint32_t in_half = rows[row] & 0x77777777u, of_last = (rows[row] & 0x88888888u) >> 1 | 0x32103210u;
    uint32_t bytes[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t first = __byte_perm(table[0], table[1], in_half >> (16 * i));
      const uint32_t last = __byte_perm(table[2], table[3], in_half >> (16 * i));
      bytes[i] = __byte_perm(first, last, of_last >> (16 * i));
    }
    words[row] = __byte_perm(bytes[0], bytes[1], 0x6420u);      // of low nibbles: the first 16 channels
    words[2 + row] = __byte_perm(bytes[0], bytes[1], 0x7531u);  // of high nibbles
  }
}
__device__ inline PackedCodes codes_of_table(const uint32_t (&rows)[2], const uint32_t (&table)[4]) {
  uint32_t words[4];
  bytes_of_table(rows, table, words);
  return codes_of_bytes(words);
}

// Returns codes that are bytes with other bits above: with kBits there.
template <uint32_t kBits>
__device__ inline PackedCodes with_bits_above(PackedCodes codes) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    codes.low[pair] = and_xor(codes.low[pair], 0x00ff00ffu, kBits),
    codes.high[pair] = and_xor(codes.high[pair], 0x00ff00ffu, kBits);
  }
  return codes;
}

// The values of the codes of IQ4_NL and IQ4_XS, signed: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
__device__ inline void bytes_of_iq4(uint32_t low, uint32_t high, uint32_t (&words)[4]) {
  bytes_of_table({low, high}, {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}, words);
}
__device__ inline PackedCodes codes_of_iq4(uint32_t low, uint32_t high) {
  uint32_t words[4];
  bytes_of_iq4(low, high, words);
  return codes_of_bytes(words);
}

// Blocks of 32 channels: scale | 32 x 4 bits.
struct PackedIq4_Nl {
  static constexpr int kSlices = 1, kBlockUnits = 1, kWords = 3;
  static constexpr bool kHasMinimum = false, kTwoScales = false, kShares = false, kFloatCodes = false;
  static constexpr int kOffset = 128;  // as of PackedQ8_0
  static constexpr int kGroupBytes = 16 * 18;

  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit * int64_t{kGroupBytes};
    uint32_t codes[2];
    load_codes<kOrder>(codes, block + 32, lane);
    words[0] = codes[0], words[1] = codes[1], words[2] = load_halves(block + lane / 4 * 4);
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int, int) {
    return with_bits_above<kBase ^ 0x00800080u>(signed_codes(words));
  }
  __device__ static PackedCodes signed_codes(const uint32_t (&words)[kWords]) { return codes_of_iq4(words[0], words[1]); }

  static constexpr float kOfInteger = 1.0f;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int, int, uint32_t (&a)[4]) {
    bytes_of_iq4(words[0], words[1], a);
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    PackedScales s;
    s.low = low_half(words[2]), s.high = high_half(words[2]);
    return s;
  }
};

// Blocks of 256 channels in eight parts of 32: scale | 8 x 2 upper bits of the scales of parts | 8 x 4 lower bits | 256 x 4 bits. A unit is a part.
struct PackedIq4_Xs {
  static constexpr int kSlices = 1, kBlockUnits = 8, kWords = 2 + 1 + 2 + 1;
  static constexpr bool kHasMinimum = false, kTwoScales = false, kShares = false, kFloatCodes = false;
  static constexpr int kOffset = 128;  // as of PackedQ8_0
  static constexpr int kGroupBytes = 16 * 136, kUpperScalesAt = 32, kScalesAt = 64, kCodesAt = 128;

  // words: 2 of codes | scale | lower bits of the part's scale of both rows, beside those of another part | upper bits | the unit
  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit / kBlockUnits * int64_t{kGroupBytes};
    const int of_block = unit % kBlockUnits, rows = lane / 4;
    uint32_t codes[2];
    load_codes<kOrder>(codes, block + kCodesAt + of_block * 256, lane);
    words[0] = codes[0], words[1] = codes[1], words[2] = load_halves(block + rows * 4);
    words[3] = load_two_bytes(block + kScalesAt + of_block / 2 * 16 + rows * 2);
    words[4] = load_two_bytes(block + kUpperScalesAt + of_block / 4 * 16 + rows * 2);
    words[5] = static_cast<uint32_t>(of_block);
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int, int) {
    return with_bits_above<kBase ^ 0x00800080u>(signed_codes(words));
  }
  __device__ static PackedCodes signed_codes(const uint32_t (&words)[kWords]) { return codes_of_iq4(words[0], words[1]); }

  static constexpr float kOfInteger = 1.0f;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int, int, uint32_t (&a)[4]) {
    bytes_of_iq4(words[0], words[1], a);
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    const uint32_t lower = words[3] >> (words[5] % 2 * 4) & 0x0f0fu, upper = words[4] >> (words[5] % 4 * 2) & 0x0303u;
    const uint32_t parts = lower | upper << 4;
    PackedScales s;
    s.low = low_half(words[2]) * byte_as_float(parts, 0, 32), s.high = high_half(words[2]) * byte_as_float(parts, 1, 32);
    return s;
  }
};

// Blocks of 32 channels: exponent of the scale | 32 x 4 bits. Codes are twice the values, as float8_e4m3fn has them, and scales are halved: so
// no scale is infinite, and no offset is multiplied by one.
struct PackedMxfp4 {
  static constexpr int kSlices = 1, kBlockUnits = 1, kWords = 3;
  static constexpr bool kHasMinimum = false, kTwoScales = false, kShares = false, kFloatCodes = true;
  static constexpr int kOffset = 0;
  static constexpr int kGroupBytes = 16 * 17;

  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit * int64_t{kGroupBytes};
    uint32_t codes[2];
    load_codes<kOrder>(codes, block + 16, lane);
    words[0] = codes[0], words[1] = codes[1], words[2] = load_two_bytes(block + lane / 4 * 2);
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int, int) {
    return with_bits_above<kBase>(signed_codes(words));
  }
  // 0, 1, 2, 3, 4, 6, 8, 12 and, but for 0, the same with a sign.
  __device__ static PackedCodes signed_codes(const uint32_t (&words)[kWords]) {
    return codes_of_table({words[0], words[1]}, {0x44403800u, 0x54504c48u, 0xc4c0b800u, 0xd4d0ccc8u});
  }

  static constexpr float kOfInteger = 1.0f;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int, int, uint32_t (&a)[4]) {
    bytes_of_table({words[0], words[1]}, {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}, a);
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    PackedScales s;
    s.low = half_power(words[2] & 255u), s.high = half_power(words[2] >> 8);
    return s;
  }

 private:
  // Returns 2^(e - 128). Those of 0 and 1 are below the normal numbers.
  __device__ static float half_power(uint32_t e) { return __uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23); }
};

// Blocks of 256 channels: scale of the tensor (float32) | a scale of 8 bits, float8_e4m3fn, for each 16 channels | 256 x 4 bits. A unit is 32
// channels. Codes are their values, as float8_e4m3fn has them.
struct PackedNvfp4 {
  static constexpr int kSlices = 1, kBlockUnits = 8, kWords = 2 + 2 + 2;
  static constexpr bool kHasMinimum = false, kTwoScales = true, kShares = false, kFloatCodes = true;
  static constexpr int kOffset = 0;
  static constexpr int kScalesAt = 64, kCodesAt = 320, kGroupBytes = 16 * 148;

  // words: 2 of codes | the scales of the first and of the last 16 channels, of both rows | the tensor's scale of each row
  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit / kBlockUnits * int64_t{kGroupBytes};
    const int of_block = unit % kBlockUnits, rows = lane / 4;
    uint32_t codes[2], of_tensor[2];
    load_codes<kOrder>(codes, block + kCodesAt + of_block * 256, lane);
    load_words(of_tensor, block + rows * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      words[i] = codes[i], words[4 + i] = of_tensor[i];
      words[2 + i] = load_two_bytes(block + kScalesAt + (of_block * 2 + i) * 16 + rows * 2);
    }
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int, int) {
    return with_bits_above<kBase>(signed_codes(words));
  }
  // 0, 0.5, 1, 1.5, 2, 3, 4, 6 and, but for 0, the same with a sign.
  __device__ static PackedCodes signed_codes(const uint32_t (&words)[kWords]) {
    return codes_of_table({words[0], words[1]}, {0x3c383000u, 0x4c484440u, 0xbcb8b000u, 0xccc8c4c0u});
  }

  // Numbers are twice the values.
  static constexpr float kOfInteger = 0.5f;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int, int, uint32_t (&a)[4]) {
    bytes_of_table({words[0], words[1]}, {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}, a);
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    const float low = __uint_as_float(words[4]), high = __uint_as_float(words[5]);
    PackedScales s;
    s.low = __fmul_rn(float_of_e4m3(words[2]), low), s.high = __fmul_rn(float_of_e4m3(words[2] >> 8), high);
    s.other_low = __fmul_rn(float_of_e4m3(words[3]), low), s.other_high = __fmul_rn(float_of_e4m3(words[3] >> 8), high);
    return s;
  }
};

// Blocks of kGroup channels: scale (float16) | zero point | codes of 4 bits. A unit is 32 channels, whose codes are as those of PackedNibbles.
// The zero point is a minimum of -scale * zero point, which float32 holds exactly.
template <int kGroup>
struct PackedGroups {
  static constexpr int kSlices = 1, kBlockUnits = kGroup / 32, kWords = 4;
  static constexpr bool kHasMinimum = true, kTwoScales = false, kShares = false, kFloatCodes = false;
  static constexpr int kOffset = 0, kCentre = 8;
  static constexpr int kZeroAt = 32, kCodesAt = kZeroAt + 16, kGroupBytes = kCodesAt + kGroup * 8;

  // words: 2 of codes | scale | zero points
  template <ChannelOrder kOrder>
  __device__ static void load(uint32_t (&words)[kWords], const char* group, int unit, int lane) {
    const char* const block = group + unit / kBlockUnits * int64_t{kGroupBytes};
    const int rows = lane / 4;
    uint32_t codes[2];
    load_codes<kOrder>(codes, block + kCodesAt + unit % kBlockUnits * 256, lane);
    words[0] = codes[0], words[1] = codes[1];
    words[2] = load_halves(block + rows * 4);
    words[3] = load_two_bytes(block + kZeroAt + rows * 2);
  }

  template <uint32_t kBase, ChannelOrder kOrder>
  __device__ static PackedCodes codes(const uint32_t (&words)[kWords], int, int, int) {
    PackedCodes codes;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      codes.low[pair] = and_or(words[0] >> (pair % 2 * 8 + pair / 2 * 4), 0x000f000fu, kBase);
      codes.high[pair] = and_or(words[1] >> (pair % 2 * 8 + pair / 2 * 4), 0x000f000fu, kBase);
    }
    return codes;
  }

  static constexpr float kOfInteger = 1.0f;
  __device__ static void integers(const uint32_t (&words)[kWords], int, int, int, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[i % 2] >> (i / 2 * 4) & 0x0f0f0f0fu;
  }

  __device__ static PackedScales scales(const uint32_t (&words)[kWords], int) {
    PackedScales s;
    s.low = low_half(words[2]), s.high = high_half(words[2]);
    s.other_low = -s.low * byte_as_float<0>(words[3]), s.other_high = -s.high * byte_as_float<1>(words[3]);
    return s;
  }
};

// Calls visit(FORMAT()) with the struct of a packed format. The branch is uniform over a warp. (A call of a function that is not inlined would
// put a caller's sums into memory.)
template <class Visit>
__device__ __forceinline__ void with_packed_format(WeightFormat format, const Visit& visit) {
  switch (format) {
    case WeightFormat::q8_0: return visit(PackedQ8_0());
    case WeightFormat::q4_0: return visit(PackedNibbles<false, false>());
    case WeightFormat::q4_1: return visit(PackedNibbles<true, false>());
    case WeightFormat::q5_0: return visit(PackedNibbles<false, true>());
    case WeightFormat::q5_1: return visit(PackedNibbles<true, true>());
    case WeightFormat::q4_k: return visit(PackedParts<false>());
    case WeightFormat::q5_k: return visit(PackedParts<true>());
    case WeightFormat::q6_k: return visit(PackedQ6_K());
    case WeightFormat::f8_e4m3: return visit(PackedBytes<true>());
    case WeightFormat::i8: return visit(PackedBytes<false>());
    case WeightFormat::q2_k: return visit(PackedQ2_K());
    case WeightFormat::q3_k: return visit(PackedQ3_K());
    case WeightFormat::iq4_nl: return visit(PackedIq4_Nl());
    case WeightFormat::iq4_xs: return visit(PackedIq4_Xs());
    case WeightFormat::mxfp4: return visit(PackedMxfp4());
    case WeightFormat::i4_32: return visit(PackedGroups<32>());
    case WeightFormat::i4_64: return visit(PackedGroups<64>());
    case WeightFormat::i4_128: return visit(PackedGroups<128>());
    case WeightFormat::nvfp4: return visit(PackedNvfp4());
    case WeightFormat::dense: return;
  }
}

// Returns the scales of slice `slice` of a unit, of which `own` is what scales() returned. All lanes of the warp must call it together.
template <class Format>
__device__ inline PackedScales scales_of_slice(const PackedScales& own, int slice, int lane) {
  if constexpr (!Format::kShares) return own;
  static_assert(!Format::kShares || !kTwoMinimums<Format>);
  const int from = (lane & ~3) + slice;
  PackedScales s;
  s.low = __shfl_sync(0xffffffffu, own.low, from), s.high = __shfl_sync(0xffffffffu, own.high, from);
  s.other_low = __shfl_sync(0xffffffffu, own.other_low, from), s.other_high = __shfl_sync(0xffffffffu, own.other_high, from);
  return s;
}

// ---- operands ---------------------------------------------------------------------------------------------------------------

// A code is a number of T exactly: its bits go below the exponent of a power of two, the base, which is then subtracted, with kOffset. If the
// format has minimums, the base stays in, and is taken off with the minimum (but not with kTwoMinimums, whose codes are few next to the base).
template <class T>
inline constexpr uint32_t kCodeBase = std::is_same_v<T, __nv_bfloat16> ? 0x43004300u : 0x64006400u;
template <class T>
inline constexpr int kCodeBaseValue = std::is_same_v<T, __nv_bfloat16> ? 128 : 1024;

// Returns a whole number from 1 to 255 (float16: 2047) as T, twice.
template <class T>
constexpr uint32_t two_of(int value) {
  int exponent = 0;
  while (value >> (exponent + 1) != 0) ++exponent;
  constexpr int kBits = std::is_same_v<T, __nv_bfloat16> ? 7 : 10, kBias = std::is_same_v<T, __nv_bfloat16> ? 127 : 15;
  const uint32_t mantissa = static_cast<uint32_t>(value - (1 << exponent)) << kBits >> exponent;
  const uint32_t one = static_cast<uint32_t>(exponent + kBias) << kBits | mantissa;
  return one | one << 16;
}

// Returns two codes of float8_e4m3fn, in bits 0 to 7 and 16 to 23 (other bits are ignored), as T. Both types hold each value exactly. 0x7f and
// 0xff are 480 and -480 (weight_format.h), which the GPU's conversion would make NaN. Exponent and mantissa go where T has them, as a number that
// is too small by a power of two.
template <class T>
__device__ inline uint32_t pairs_of_e4m3(uint32_t codes) {
  const uint32_t signs = (codes & 0x00800080u) << 8;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    constexpr uint32_t kTwoTo120 = 0x7b807b80u;
    return multiply_pairs<T>(and_or(codes << 4, 0x07f007f0u, signs), kTwoTo120);
  } else {
    constexpr uint32_t kTwoTo8 = 0x5c005c00u;
    return multiply_pairs<T>(and_or(codes << 7, 0x3f803f80u, signs), kTwoTo8);
  }
}

// Holds a slice as the first operands of two products, and its factors. Its words were loaded in the same order.
template <class T, class Format, ChannelOrder kOrder = ChannelOrder::as_packed>
struct PackedSlice {
  uint32_t first[4], second[4];
  PackedScales scales;

  // `own` is what own_scales() returned.
  __device__ PackedSlice(const uint32_t (&words)[Format::kWords], int slice, int lane, int half, const PackedScales& own)
      : scales(scales_of_slice<Format>(own, slice, lane)) {
    // A code of eight bits would reach into the exponent of bfloat16's base: its lower seven bits go there, and 128 less if the eighth is set.
    constexpr bool kIsWide = Format::kOffset == 128 && kCodeBaseValue<T> == 128;
    PackedCodes codes;
    if constexpr (kIsWide || Format::kFloatCodes) {
      codes = Format::signed_codes(words);
    } else {
      codes = Format::template codes<kCodeBase<T>, kOrder>(words, slice, lane, half);
    }
    const auto operand = [](uint32_t code) {
      if constexpr (Format::kFloatCodes) {
        return pairs_of_e4m3<T>(code);
      } else if constexpr (Format::kHasMinimum && !kTwoMinimums<Format>) {
        return code;
      } else if constexpr (kIsWide) {
        return subtract_pairs<T>(and_or(code, 0x007f007fu, kCodeBase<T>), and_or(code, 0x00800080u, kCodeBase<T>));
      } else {
        return subtract_pairs<T>(code, two_of<T>(kCodeBaseValue<T> + Format::kOffset));
      }
    };
    first[0] = operand(codes.low[0]), first[1] = operand(codes.high[0]);
    first[2] = operand(codes.low[1]), first[3] = operand(codes.high[1]);
    second[0] = operand(codes.low[2]), second[1] = operand(codes.high[2]);
    second[2] = operand(codes.low[3]), second[3] = operand(codes.high[3]);
  }

  // Returns the scales of the lane's slice of a unit, with the base in the minimum.
  __device__ static PackedScales own_scales(const uint32_t (&words)[Format::kWords], int half) {
    PackedScales own = Format::scales(words, half);
    if constexpr (Format::kHasMinimum && !kTwoMinimums<Format>) {
      own.other_low = fmaf(own.low, -static_cast<float>(kCodeBaseValue<T>), own.other_low);
      own.other_high = fmaf(own.high, -static_cast<float>(kCodeBaseValue<T>), own.other_high);
    }
    return own;
  }

  // sums [16 rows, 8 columns] += the slice times x, whose words are the lane's channels of its column.
  __device__ void multiply(float (&sums)[4], const uint4& x) const {
    const auto add = [&](const float(&products)[4], float low, float high) {
      sums[0] = fmaf(products[0], low, sums[0]), sums[1] = fmaf(products[1], low, sums[1]);
      sums[2] = fmaf(products[2], high, sums[2]), sums[3] = fmaf(products[3], high, sums[3]);
    };
    float products[4] = {}, others[4] = {};
    multiply_matrices<T>(products, first, x.x, x.y);
    multiply_matrices<T>(Format::kTwoScales ? others : products, second, x.z, x.w);
    add(products, scales.low, scales.high);
    constexpr uint32_t kOne = two_of<T>(1);
    constexpr uint32_t kOnes[4] = {kOne, kOne, kOne, kOne};
    if constexpr (kTwoMinimums<Format>) {
      float first_x[4] = {}, last_x[4] = {};
      multiply_matrices<T>(first_x, kOnes, x.x, x.y);
      multiply_matrices<T>(last_x, kOnes, x.z, x.w);
      add(first_x, scales.minimum_low, scales.minimum_high), add(last_x, scales.other_minimum_low, scales.other_minimum_high);
    } else if constexpr (Format::kHasMinimum) {
      multiply_matrices<T>(others, kOnes, x.x, x.y);
      multiply_matrices<T>(others, kOnes, x.z, x.w);
    }
    if constexpr (Format::kHasMinimum || Format::kTwoScales) add(others, scales.other_low, scales.other_high);
  }
};

}  // namespace prologue::cuda
