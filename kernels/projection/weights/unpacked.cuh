// Makes packed weights (packed.cuh) operands of 16 bits, each weight rounded to the type of x: for products of many tokens, which would
// otherwise multiply each of their sums by the scales of each block.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/packed_weight.cuh>

namespace prologue::cuda {

// The scales of a slice, each as a pair of bfloat16 whose sum it is to 2^-16: the larger part in the lower half of the word. A bias is one bfloat16,
// those of both rows in a word. The names are those of PackedScales.
struct ScalePairs {
  uint32_t low, high, other_low, other_high;
  uint32_t bias, other_bias;
};

// Holds a slice of 16 rows as the first operands of two products of 16 channels each, in their natural order.
//
// In float16 a weight is (base + code) * scale + bias in float32, rounded: base + code is bfloat16's pattern of a code (packed_weight.cuh), shifted
// to the upper half of a float32. A code of eight bits has no base, nor has a float, which bfloat16 holds exactly.
//
// bfloat16 has the exponents of float32, so it holds a scale as the sum of two, large + small. A weight is made two at a time by fused
// multiply-adds in bfloat16: with centred = code - kCentre, which is exact, and bias = minimum + kCentre * scale, it is
//
//   round(centred * large + round(centred * small + bias))
//
// Without a minimum there is no bias, and this is the weight rounded once, but for 2^-16 of it. With one it is off by 2^-8 of it and twice 2^-8 of
// the bias, which is small since the codes lie about kCentre.
template <class T, class Format>
struct UnpackedSlice {
  static constexpr bool kByPairs = std::is_same_v<T, __nv_bfloat16>;
  using Scales = std::conditional_t<kByPairs, ScalePairs, PackedScales>;

  uint32_t first[4], second[4];

  // Returns the scales of the lane's slice of a unit.
  __device__ static Scales own_scales(const uint32_t (&words)[Format::kWords], int half) {
    PackedScales own = Format::scales(words, half);
    const auto add_to_minimums = [&](float code) {
      if constexpr (kTwoMinimums<Format>) {
        own.minimum_low = fmaf(own.low, code, own.minimum_low), own.minimum_high = fmaf(own.high, code, own.minimum_high);
        own.other_minimum_low = fmaf(own.other_low, code, own.other_minimum_low);
        own.other_minimum_high = fmaf(own.other_high, code, own.other_minimum_high);
      } else if constexpr (Format::kHasMinimum) {
        own.other_low = fmaf(own.low, code, own.other_low), own.other_high = fmaf(own.high, code, own.other_high);
      }
    };
    if constexpr (kByPairs) {
      add_to_minimums(static_cast<float>(kCentre));
      ScalePairs pairs = {};
      pairs.low = pair_of(own.low), pairs.high = pair_of(own.high);
      if constexpr (Format::kTwoScales) pairs.other_low = pair_of(own.other_low), pairs.other_high = pair_of(own.other_high);
      if constexpr (kTwoMinimums<Format>) {
        pairs.bias = pack_two(own.minimum_low, own.minimum_high);
        pairs.other_bias = pack_two(own.other_minimum_low, own.other_minimum_high);
      } else if constexpr (Format::kHasMinimum) {
        pairs.bias = pack_two(own.other_low, own.other_high);
      }
      return pairs;
    } else {
      add_to_minimums(-kBase);
      return own;
    }
  }

  // `own` is what own_scales() returned.
  __device__ void unpack(const uint32_t (&words)[Format::kWords], int slice, int lane, int half, const Scales& own) {
    const PackedCodes codes = codes_of(words, slice, lane, half);
    if constexpr (kByPairs) {
      const ScalePairs s = pairs_of_slice(own, slice, lane);
      const PairWeights low(s.low, s.bias, 0), high(s.high, s.bias, 1);
      set(first, codes, 0, low, high);
      if constexpr (Format::kTwoScales) {
        const uint32_t bias = kTwoMinimums<Format> ? s.other_bias : 0;
        set(second, codes, 2, PairWeights(s.other_low, bias, 0), PairWeights(s.other_high, bias, 1));
      } else {
        set(second, codes, 2, low, high);
      }
    } else {
      const PackedScales s = scales_of_slice<Format>(own, slice, lane);
      const auto bias_of = [](float scale, float minimum) {
        return Format::kHasMinimum ? minimum : scale * -(kBase + static_cast<float>(Format::kOffset));
      };
      const FloatWeights low = {s.low, bias_of(s.low, kTwoMinimums<Format> ? s.minimum_low : s.other_low)};
      const FloatWeights high = {s.high, bias_of(s.high, kTwoMinimums<Format> ? s.minimum_high : s.other_high)};
      set(first, codes, 0, low, high);
      if constexpr (Format::kTwoScales) {
        set(second, codes, 2, FloatWeights{s.other_low, bias_of(s.other_low, s.other_minimum_low)},
            FloatWeights{s.other_high, bias_of(s.other_high, s.other_minimum_high)});
      } else {
        set(second, codes, 2, low, high);
      }
    }
  }

  // Multiplies the weights by 32 factors of T, of the slice's channels, and rounds them once more.
  __device__ void multiply_by(const unsigned char* factors, int lane) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t(&operand)[4] = pair < 2 ? first : second;
      const uint32_t two = load_bytes<4, false>(factors + pair * 16 + lane % 4 * 4).words[0];
      operand[pair % 2 * 2] = multiply_pairs<T>(operand[pair % 2 * 2], two);
      operand[pair % 2 * 2 + 1] = multiply_pairs<T>(operand[pair % 2 * 2 + 1], two);
    }
  }

 private:
  static constexpr bool kIsWide = Format::kOffset == 128;
  static constexpr float kBase = kIsWide || Format::kFloatCodes ? 0.0f : 128.0f;
  static constexpr int kCentre = [] {
    if constexpr (Format::kHasMinimum) return Format::kCentre;
    return Format::kOffset;
  }();

  // A row's weights of a run of channels, by pairs of bfloat16.
  struct PairWeights {
    uint32_t large, small, bias;  // twice each

    __device__ PairWeights(uint32_t scale, uint32_t biases, int row) {
      large = lower_twice(scale), small = upper_twice(scale);
      bias = !Format::kHasMinimum ? kMinusZeros : row == 0 ? lower_twice(biases) : upper_twice(biases);
    }
    __device__ uint32_t of(uint32_t codes) const {
      const uint32_t centred = centred_of(codes);
      return multiply_add_pairs<T>(centred, large, multiply_add_pairs<T>(centred, small, bias));
    }
  };
  struct FloatWeights {
    float scale, bias;
    __device__ uint32_t of(uint32_t codes) const {
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
  static constexpr uint32_t kMinusZeros = 0x80008000u;  // add nothing, not to -0 either

  template <class Row>
  __device__ static void set(uint32_t (&operand)[4], const PackedCodes& codes, int pair, const Row& low, const Row& high) {
    operand[0] = low.of(codes.low[pair]), operand[1] = high.of(codes.high[pair]);
    operand[2] = low.of(codes.low[pair + 1]), operand[3] = high.of(codes.high[pair + 1]);
  }

  __device__ static PackedCodes codes_of(const uint32_t (&words)[Format::kWords], int slice, int lane, int half) {
    if constexpr (Format::kFloatCodes) {
      PackedCodes codes = Format::signed_codes(words);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        codes.low[pair] = pairs_of_e4m3<__nv_bfloat16>(codes.low[pair]);
        codes.high[pair] = pairs_of_e4m3<__nv_bfloat16>(codes.high[pair]);
      }
      return codes;
    } else if constexpr (kIsWide && kByPairs) {
      return Format::signed_codes(words);
    } else {
      constexpr uint32_t kBits = kIsWide ? 0 : kCodeBase<__nv_bfloat16>;
      return Format::template codes<kBits, ChannelOrder::natural>(words, slice, lane, half);
    }
  }

  // Returns codes less kCentre, exactly.
  __device__ static uint32_t centred_of(uint32_t codes) {
    if constexpr (Format::kFloatCodes) {
      return codes;
    } else if constexpr (kIsWide) {
      return subtract_pairs<T>(and_or(codes, 0x007f007fu, kCodeBase<T>), and_or(codes, 0x00800080u, kCodeBase<T>));
    } else {
      return subtract_pairs<T>(codes, two_of<T>(kCodeBaseValue<T> + kCentre));
    }
  }

  __device__ static uint32_t pack_two(float low, float high) {
    const float values[2] = {low, high};
    return pack<T, 2>(values).words[0];
  }
  __device__ static uint32_t pair_of(float scale) {
    const uint32_t large = pack_two(scale, 0.0f);
    return pack_two(scale, scale - __uint_as_float(large << 16));
  }

  // All lanes of the warp must call it together.
  __device__ static ScalePairs pairs_of_slice(const ScalePairs& own, int slice, int lane) {
    if constexpr (!Format::kShares) return own;
    static_assert(!Format::kShares || !kTwoMinimums<Format>);
    const auto of_lane = [from = (lane & ~3) + slice](uint32_t word) { return __shfl_sync(0xffffffffu, word, from); };
    ScalePairs s = {};
    s.low = of_lane(own.low), s.high = of_lane(own.high);
    if constexpr (Format::kTwoScales) s.other_low = of_lane(own.other_low), s.other_high = of_lane(own.other_high);
    if constexpr (Format::kHasMinimum) s.bias = of_lane(own.bias);
    return s;
  }
};

}  // namespace prologue::cuda
