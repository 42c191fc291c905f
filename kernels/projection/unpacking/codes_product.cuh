// Multiplies codes of packed weights as they are: a warp has 16 rows and all tokens, by mma.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/base/device/packed_weight.cuh>
#include <prologue/kernels/projection/unpacking/stages.cuh>

namespace prologue::cuda {

// Multiplies codes, which 16 bits hold exactly, by mma, and a slice's sums by its scales.
template <class Element, int kMostTokens>
class CodesProduct {
 public:
  using T = Element;
  static constexpr int kTokens = kMostTokens, kGroupsOfFormat = 1;  // so many groups of rows have one format
  static constexpr bool kRounds = false, kWeighsX = true;

  // Not inlined it would have the sums in memory.
  __device__ __forceinline__ void multiply(const UnpackingArgs& a, unsigned char* memory, UnpackingTail& tail,
                                           WeightFormat format) {
#pragma unroll
    for (auto& sums : sums_) {
#pragma unroll
      for (float& sum : sums) sum = 0.0f;
    }
    with_packed_format(format, [&]<class Format>(Format) { multiply_stages<Format>(a, memory, tail); });
  }
  __device__ void store(const UnpackingArgs& a, const UnpackingWarp& warp, float* all) const {
    float sums[kTokens / 2];
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) sums[i] = sums_[i / 4][i % 4];
    warp.store(a, all, sums);
  }

 private:
  template <class Format>
  __device__ __forceinline__ void multiply_stages(const UnpackingArgs& a, unsigned char* memory, UnpackingTail& tail) {
    constexpr int kAtOnce = Format::kSlices < 2 ? 2 : Format::kSlices;
    using Slice = PackedSlice<T, Format, ChannelOrder::natural>;
    const UnpackingWarp warp(a);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int x_at = a.x_at + lane % 8 * kUnpackingBoxRowBytes, chunk_at = (lane / 8 ^ lane % 8) << 4;
    for_each_stage(a, tail, warp.split(), a.normed != 0, [&](int first, int end, int stage_at) {
      const unsigned char* const stage = memory + stage_at;
      const char* const blocks = reinterpret_cast<const char*>(stage) + warp.group() * a.group_bytes;
#pragma unroll 1
      for (int begin = first; begin < end; begin += kAtOnce) {
        uint32_t words[Format::kWords];
        PackedScales own;
        const unsigned char* x = stage + x_at + begin / kSlicesOfUnpackingBox * x_box_bytes(a);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int unit = (begin + j) / Format::kSlices;
          if (j % Format::kSlices == 0) {
            Format::template load<ChannelOrder::natural>(words, blocks, unit, lane);
            own = Slice::own_scales(words, unit % 2);
          }
          const Slice slice(words, j % Format::kSlices, lane, unit % 2, own);
          const unsigned char* const of_slice = x + (chunk_at ^ j % kSlicesOfUnpackingBox * 64);
#pragma unroll
          for (int n = 0; n < kTokens / 8; ++n) {
            uint32_t operand[4];
            load_matrices(operand, of_slice + n * 8 * kUnpackingBoxRowBytes);
            slice.multiply(sums_[n], make_uint4(operand[0], operand[1], operand[2], operand[3]));
          }
          if (j % kSlicesOfUnpackingBox == kSlicesOfUnpackingBox - 1) x += x_box_bytes(a);
        }
      }
    });
  }

  float sums_[kTokens / 8][4];
};

}  // namespace prologue::cuda
