// Makes packed weights (packed.cuh) operands of 16 bits, each weight rounded to the type of x: for products of many tokens, which would
// otherwise multiply each of their sums by the scales of each block.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/packed_weight.cuh>

namespace prologue::cuda {

// Holds a slice of 16 rows as the first operands of two products of 16 channels each, in their natural order. A weight is
// (base + code) * scale + bias in float32, rounded: base + code is bfloat16's pattern of a code (packed_weight.cuh), shifted to the upper half
// of a float32. A code of eight bits has no base, nor has a float, which bfloat16 holds exactly.
template <class T, class Format>
struct UnpackedSlice {
  uint32_t first[4], second[4];

  static constexpr bool kIsWide = Format::kOffset == 128;
  static constexpr float kBase = kIsWide || Format::kFloatCodes ? 0.0f : 128.0f;

  // Returns the scales of the lane's slice of a unit, with the base in the minimum.
  __device__ static PackedScales own_scales(const uint32_t (&words)[Format::kWords], int half) {
    PackedScales own = Format::scales(words, half);
    if constexpr (kTwoMinimums<Format>) {
      own.minimum_low = fmaf(own.low, -kBase, own.minimum_low), own.minimum_high = fmaf(own.high, -kBase, own.minimum_high);
      own.other_minimum_low = fmaf(own.other_low, -kBase, own.other_minimum_low);
      own.other_minimum_high = fmaf(own.other_high, -kBase, own.other_minimum_high);
    } else if constexpr (Format::kHasMinimum) {
      own.other_low = fmaf(own.low, -kBase, own.other_low), own.other_high = fmaf(own.high, -kBase, own.other_high);
    }
    return own;
  }

  // `own` is what own_scales() returned.
  __device__ void unpack(const uint32_t (&words)[Format::kWords], int slice, int lane, int half, const PackedScales& own) {
    const PackedScales s = scales_of_slice<Format>(own, slice, lane);
    const PackedCodes codes = codes_of(words, slice, lane, half);
    const auto bias_of = [](float scale, float minimum) {
      return Format::kHasMinimum ? minimum : scale * -(kBase + static_cast<float>(Format::kOffset));
    };
    const float low_bias = bias_of(s.low, kTwoMinimums<Format> ? s.minimum_low : s.other_low);
    const float high_bias = bias_of(s.high, kTwoMinimums<Format> ? s.minimum_high : s.other_high);
    first[0] = weights(codes.low[0], s.low, low_bias), first[1] = weights(codes.high[0], s.high, high_bias);
    first[2] = weights(codes.low[1], s.low, low_bias), first[3] = weights(codes.high[1], s.high, high_bias);
    const float low = Format::kTwoScales ? s.other_low : s.low, high = Format::kTwoScales ? s.other_high : s.high;
    const float other_low_bias = Format::kTwoScales ? bias_of(low, s.other_minimum_low) : low_bias;
    const float other_high_bias = Format::kTwoScales ? bias_of(high, s.other_minimum_high) : high_bias;
    second[0] = weights(codes.low[2], low, other_low_bias), second[1] = weights(codes.high[2], high, other_high_bias);
    second[2] = weights(codes.low[3], low, other_low_bias), second[3] = weights(codes.high[3], high, other_high_bias);
  }

 private:
  __device__ static PackedCodes codes_of(const uint32_t (&words)[Format::kWords], int slice, int lane, int half) {
    if constexpr (Format::kFloatCodes) {
      PackedCodes codes = Format::signed_codes(words);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        codes.low[pair] = pairs_of_e4m3<__nv_bfloat16>(codes.low[pair]);
        codes.high[pair] = pairs_of_e4m3<__nv_bfloat16>(codes.high[pair]);
      }
      return codes;
    } else {
      constexpr uint32_t kBits = kIsWide ? 0 : kCodeBase<__nv_bfloat16>;
      return Format::template codes<kBits, ChannelOrder::natural>(words, slice, lane, half);
    }
  }

  __device__ static uint32_t weights(uint32_t codes, float scale, float bias) {
    float values[2];
    if constexpr (kIsWide) {
      values[0] = byte_as_float<0>(codes), values[1] = byte_as_float<2>(codes);
    } else {
      values[0] = __uint_as_float(codes << 16), values[1] = __uint_as_float(codes & 0xffff0000u);
    }
    values[0] = fmaf(values[0], scale, bias), values[1] = fmaf(values[1], scale, bias);
    return pack<T, 2>(values).words[0];
  }
};

}  // namespace prologue::cuda
