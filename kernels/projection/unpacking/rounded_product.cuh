// Multiplies weights that are rounded to 16 bits in registers (weights/unpacked.cuh), where wgmma reads them: a warpgroup has a tile of 64 rows, and
// 32 tokens take as long as 16. Where the call has a norm, all warps together multiply a stage's x by its weight.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/base/device/packed_weight.cuh>
#include <prologue/kernels/projection/unpacking/stages.cuh>
#include <prologue/kernels/projection/weights/unpacked.cuh>

namespace prologue::cuda {

// Multiplies a stage's x by the norm's weight, in place, and sums its squares. A thread has chunk threadIdx.x % 8, 8 channels, of a token's
// row in some of the boxes.
template <class T>
class StageNorm {
 public:
  __device__ explicit StageNorm(const UnpackingArgs& a) {
    const int row_of_all = static_cast<int>(threadIdx.x) / 8;
    parts_ = parts_of(a);
    part_ = row_of_all / a.x_rows;
    row_ = row_of_all - part_ * a.x_rows;
    chunk_ = static_cast<int>(threadIdx.x % 8);
  }
  __device__ static int parts_of(const UnpackingArgs& a) {
    return min(min(boxes_of_stage(a), kMostSquaresParts), kUnpackingConsumers / 8 / a.x_rows);
  }

  // All threads that multiply call it; what they have stored is visible to all of them.
  __device__ void run(const UnpackingArgs& a, unsigned char* stage) {
    unsigned char* const x = stage + a.x_at + row_ * kUnpackingBoxRowBytes + ((chunk_ ^ row_ % 8) << 4);
    if (part_ < parts_) {
#pragma unroll 1
      for (int box = part_; box < boxes_of_stage(a); box += parts_) {
        unsigned char* const at = x + box * x_box_bytes(a);
        const Bytes<16> loaded = load_bytes<16, false>(at);
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = element<T, 8>(loaded, i), squares_ = fmaf(values[i], values[i], squares_);
        if (a.norm_weight == nullptr) continue;
        const unsigned char* const weights = stage + a.norm_weight_at;
        const int channel = box * kUnpackingBoxChannels + chunk_ * 8;
        if (a.float_norm_weight != 0) {
          const Bytes<32> weight = load_bytes<32, false>(weights + channel * 4);
#pragma unroll
          for (int i = 0; i < 8; ++i) values[i] *= element<float, 8>(weight, i);
        } else {
          const Bytes<16> weight = load_bytes<16, false>(weights + channel * 2);
#pragma unroll
          for (int i = 0; i < 8; ++i) values[i] *= element<T, 8>(weight, i);
        }
        store_bytes<16, false>(at, pack<T, 8>(values));
      }
      fence_shared_for_async();
    }
    sync_barrier(1, kUnpackingConsumers);
  }

  // They are visible after a barrier.
  __device__ void store_squares(UnpackingTail& tail) {
#pragma unroll
    for (int step = 1; step < 8; step *= 2) squares_ += __shfl_xor_sync(0xffffffffu, squares_, step);
    if (part_ < parts_ && chunk_ == 0) tail.squares[part_ * kMostUnpackingTokens + row_] = squares_;
  }

 private:
  int parts_, part_, row_, chunk_;
  float squares_ = 0.0f;
};

// Returns a value that is the same in the whole warp in a way that the compiler sees: it keeps wgmma in flight only on paths that do not
// diverge.
template <class Value>
__device__ inline Value uniform(Value value) {
  return static_cast<Value>(__shfl_sync(0xffffffffu, static_cast<int>(value), 0));
}

// Multiplies weights of 16 bits. A warp has 16 rows of its warpgroup's tile, whose rows have one format. Rows that the weights do not have are
// multiplied as well, whatever is in the stage there: no other row's sums depend on them.
template <class Element, int kMostTokens>
class RoundedProduct {
 public:
  using T = Element;
  static constexpr int kTokens = kMostTokens, kGroupsOfFormat = 4;  // a tile
  static constexpr int kNormWarps = 0;
  static constexpr bool kRounds = true;
  __device__ static int squares_parts(const UnpackingArgs& a) { return StageNorm<T>::parts_of(a); }
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
    StageNorm<T> norm(a);
    const uint64_t x = matrix_descriptor(memory + a.x_at, 0, 8 * kUnpackingBoxRowBytes);
    Operands operands[2];
    const auto wait = [&](const UnpackingStage& stage) {
      if (a.normed != 0) norm.run(a, memory + stage.at);
    };
    for_each_stage(a, tail, uniform(warp.split()), wait, [&](int begin, int end, int stage_at) {
      const char* const blocks = reinterpret_cast<const char*>(memory) + stage_at + group_at;
#pragma unroll 1
      for (int first = begin; first < end; first += kAtOnce) {
        uint64_t of_slices = advance(x, stage_at + first / kSlicesOfUnpackingBox * x_box_bytes(a));
        uint32_t words[Format::kWords];
        PackedScales own;
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
    if (a.normed != 0) norm.store_squares(tail);
  }

  float sums_[kTokens / 2];
};

}  // namespace prologue::cuda
