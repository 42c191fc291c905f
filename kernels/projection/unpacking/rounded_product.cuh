// Multiplies weights that are rounded to 16 bits in registers (weights/unpacked.cuh), where wgmma reads them: a warpgroup has a tile of 64 rows, and
// 32 tokens take as long as 16.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/packed_weight.cuh>
#include <prologue/kernels/projection/unpacking/stages.cuh>
#include <prologue/kernels/projection/weights/unpacked.cuh>

namespace prologue::cuda {

// Returns a value that is the same in the whole warp in a way that the compiler sees: it keeps wgmma in flight only on paths that do not
// diverge.
template <class Value>
__device__ inline Value uniform(Value value) {
  return static_cast<Value>(__shfl_sync(0xffffffffu, static_cast<int>(value), 0));
}

// Multiplies weights of 16 bits. A warp has 16 rows of its warpgroup's tile, whose rows have one format. Rows that the weights do not have are
// multiplied as well, whatever is in the stage there: no other row's sums depend on them. The weights are multiplied by the norm's weight,
// which takes fewer instructions than x of many tokens.
template <class Element, int kMostTokens>
class RoundedProduct {
 public:
  using T = Element;
  static constexpr int kTokens = kMostTokens, kGroupsOfFormat = 4;  // a tile
  static constexpr bool kRounds = true, kWeighsX = false;
  static_assert(kTokens % 16 == 0 && kTokens <= kMostUnpackingTokens);

  // Not inlined it would have the sums in memory.
  __device__ __forceinline__ void multiply(const UnpackingArgs& a, unsigned char* memory, UnpackingTail& tail,
                                           WeightFormat format) {
#pragma unroll
    for (float& sum : sums_) sum = 0.0f;
    with_packed_format(uniform(format), [&]<class Format>(Format) { multiply_stages<Format>(a, memory, tail); });
  }
  __device__ void store(const UnpackingArgs& a, const UnpackingWarp& warp, float* all) const { warp.store(a, all, sums_); }

 private:
  template <class Format>
  __device__ __forceinline__ void multiply_stages(const UnpackingArgs& a, unsigned char* memory, UnpackingTail& tail) {
    constexpr int kAtOnce = Format::kSlices < 2 ? 2 : Format::kSlices;
    using Operands = UnpackedSlice<T, Format>;
    const UnpackingWarp warp(a);
    const int lane = static_cast<int>(threadIdx.x) % 32, group_at = uniform(warp.group()) * a.group_bytes;
    const uint64_t x = matrix_descriptor(memory + a.x_at, 0, 8 * kUnpackingBoxRowBytes);
    Operands operands[2];
    for_each_stage(a, tail, uniform(warp.split()), false, [&](int begin, int end, int stage_at) {
      const char* const blocks = reinterpret_cast<const char*>(memory) + stage_at + group_at;
#pragma unroll 1
      for (int first = begin; first < end; first += kAtOnce) {
        uint64_t of_slices = advance(x, stage_at + first / kSlicesOfUnpackingBox * x_box_bytes(a));
        uint32_t words[Format::kWords];
        typename Operands::Scales own;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          Operands& slice = operands[j % 2];
          multiply_wait<1>();  // what this slice's registers were is multiplied
          keep_in_order(slice.first), keep_in_order(slice.second);
          const int unit = (first + j) / Format::kSlices;
          if (j % Format::kSlices == 0) {
            Format::template load<ChannelOrder::natural>(words, blocks, unit, lane);
            own = Operands::own_scales(words, unit % 2);
          }
          slice.unpack(words, j % Format::kSlices, lane, unit % 2, own);
          if (a.norm_weight != nullptr) {
            slice.multiply_by(memory + stage_at + a.norm_weight_at + (first + j) * norm_weight_bytes(a), lane);
          }
          multiply_fence();
          const int at = j % kSlicesOfUnpackingBox * kPackedSliceChannels * 2;
          multiply_registers_async<T, false>(sums_, slice.first, advance(of_slices, at));
          multiply_registers_async<T, false>(sums_, slice.second, advance(of_slices, at + kPackedSliceChannels));
          multiply_commit();
          if (j % kSlicesOfUnpackingBox == kSlicesOfUnpackingBox - 1) of_slices = advance(of_slices, x_box_bytes(a));
        }
      }
      multiply_wait<0>();
      keep_in_order(sums_);
#pragma unroll
      for (Operands& slice : operands) keep_in_order(slice.first), keep_in_order(slice.second);
    });
  }

  float sums_[kTokens / 2];
};

}  // namespace prologue::cuda
