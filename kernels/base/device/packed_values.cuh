// Makes packed weights (packed_weight.cuh) single values again, in float32, with the bits that unpack_block() gives on the CPU.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/packed_weight.cuh>

namespace prologue::cuda {

// What a lane has of a slice: of its two rows, four neighbouring channels of the first 16 and four of the last 16.
struct PackedSliceValues {
  float values[2][2][4];
};

// A lane's part of a unit. All lanes of the warp must call slice() together. Where there is a minimum, scale * code has at most 11 + 6 + 5 bits
// (float16, the scale of a part, the code): it is exact in float32, so that the fused addition gives the bits of a product and a sum.
template <class Format>
class PackedUnitValues {
 public:
  PackedUnitValues() = default;
  __device__ PackedUnitValues(const char* group, int unit, int lane) : half_(unit % 2) {
    Format::template load<ChannelOrder::as_packed>(words_, group, unit, lane);
    own_ = Format::scales(words_, half_);
  }

  __device__ PackedSliceValues slice(int slice, int lane) const {
    const PackedCodes codes = Format::template codes<0, ChannelOrder::as_packed>(words_, slice, lane, half_);
    const PackedScales scales = scales_of_slice<Format>(own_, slice, lane);
    PackedSliceValues result;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t(&pairs)[4] = row == 0 ? codes.low : codes.high;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float scale = row == 0 ? scales.low : scales.high;
        float minimum = row == 0 ? scales.other_low : scales.other_high;
        if (Format::kTwoScales && half == 1) scale = minimum;
        if (kTwoMinimums<Format>) {
          minimum = half == 0 ? (row == 0 ? scales.minimum_low : scales.minimum_high)
                              : (row == 0 ? scales.other_minimum_low : scales.other_minimum_high);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // channels 0 and 2 are a pair, then 1 and 3
          const uint32_t pair = pairs[2 * half + i % 2];
          const float number =
              Format::kFloatCodes ? float_of_e4m3(pair >> (i / 2 * 16)) : byte_as_float(pair, i / 2 * 2, Format::kOffset);
          result.values[row][half][i] = Format::kHasMinimum ? __fmaf_rn(scale, number, minimum) : __fmul_rn(scale, number);
        }
      }
    }
    return result;
  }

 private:
  int half_;
  uint32_t words_[Format::kWords];
  PackedScales own_;
};

}  // namespace prologue::cuda
