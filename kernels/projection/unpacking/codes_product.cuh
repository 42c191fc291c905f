// Multiplies codes of packed weights as they are: a warp has 16 rows and all tokens, by mma. Where the call has a norm, three warps more do nothing
// but multiply x by its weight, stage by stage, before the others.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/base/device/packed_weight.cuh>
#include <prologue/kernels/projection/sums.cuh>
#include <prologue/kernels/projection/unpacking/stages.cuh>

namespace prologue::cuda {

inline constexpr int kWarpsOfNorm = 3;
static_assert(kWarpsOfNorm <= kMostSquaresParts);

// Multiplies x of the stages by the norm's weight, where it is, and sums its squares. A warp has all tokens of some of the slices, eight tokens at
// a time, of which lane i has 8 channels of token i % 8.
template <class T, int kTokens>
class NormWarps {
 public:
  __device__ explicit NormWarps(const UnpackingArgs& a)
      : a_(a), warp_(static_cast<int>(threadIdx.x - kUnpackingThreads) / 32), lane_(static_cast<int>(threadIdx.x) % 32) {}

  // All warps of the norm call it.
  __device__ void run(unsigned char* memory, UnpackingTail& tail) {
    const UnpackingExtent extent(a_);
    UnpackingStage stage{a_, tail};
#pragma unroll 1
    for (int i = 0; i < extent.count; ++i, stage.advance()) {
      stage.loaded().wait(stage.parity);
      const int slices = extent.slices_of(a_, i);
#pragma unroll 1
      for (int slice = warp_; slice < slices; slice += kWarpsOfNorm) weigh_slice(memory + stage.at, slice);
      fence_shared_for_async();  // the next box that comes here
      __syncwarp();
      if (lane_ == 0) stage.weighed().arrive();
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int t = tile * 8 + lane_ / 4;
      const float square = of_own_column(squares_[tile][0], squares_[tile][1]);
      if (lane_ % 4 == lane_ / 8 && t < a_.x_rows) tail.squares[warp_ * kMostUnpackingTokens + t] = square;
    }
  }

 private:
  static constexpr int kTiles = kTokens / 8;

  __device__ void weigh_slice(unsigned char* stage, int slice) {
    const int row = lane_ % 8, chunk = lane_ / 8;
    unsigned char* const x = stage + a_.x_at + slice / kSlicesOfUnpackingBox * x_box_bytes(a_) + row * kUnpackingBoxRowBytes +
                             (((slice % kSlicesOfUnpackingBox * 4 + chunk) ^ row) << 4);
    const unsigned char* const norm_weight = stage + a_.norm_weight_at + slice * norm_weight_bytes(a_);
    Bytes<16> values[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * 8 >= a_.x_rows) break;
      const unsigned char* const at = x + tile * 8 * kUnpackingBoxRowBytes;
      values[tile] = load_bytes<16, false>(at);
      uint32_t channels[4];
      load_matrices(channels, at);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t tokens[4] = {channels[i], 0, channels[i + 1], 0};
        multiply_matrices<T>(squares_[tile], tokens, channels[i], channels[i + 1]);
      }
    }
    if (a_.norm_weight == nullptr) return;
    __syncwarp();  // other lanes have loaded these channels
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * 8 >= a_.x_rows) break;
      weigh(values[tile], norm_weight, chunk);
      store_bytes<16, false>(x + tile * 8 * kUnpackingBoxRowBytes, values[tile]);
    }
  }

  __device__ void weigh(Bytes<16>& values, const unsigned char* norm_weight, int chunk) const {
    if (a_.float_norm_weight == 0) {
      const Bytes<16> weight = load_bytes<16, false>(norm_weight + chunk * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) values.words[i] = multiply_pairs<T>(values.words[i], weight.words[i]);
      return;
    }
    const Bytes<32> weight = load_bytes<32, false>(norm_weight + chunk * 32);
    float products[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) products[i] = element<T, 8>(values, i) * element<float, 8>(weight, i);
    values = pack<T, 8>(products);
  }

  const UnpackingArgs& a_;
  int warp_, lane_;
  float squares_[kTiles][4] = {};
};

// Multiplies codes, which 16 bits hold exactly, by mma, and a slice's sums by its scales.
template <class Element, int kMostTokens>
class CodesProduct {
 public:
  using T = Element;
  static constexpr int kTokens = kMostTokens, kGroupsOfFormat = 1;  // so many groups of rows have one format
  static constexpr int kNormWarps = kWarpsOfNorm;
  static constexpr bool kRounds = false;
  __device__ static int squares_parts(const UnpackingArgs&) { return kWarpsOfNorm; }

  // The norm's warps call it.
  __device__ static void weigh(const UnpackingArgs& a, unsigned char* memory, UnpackingTail& tail) {
    NormWarps<T, kTokens>(a).run(memory, tail);
  }

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
    const auto wait = [&](const UnpackingStage& stage) {
      if (a.normed != 0) stage.weighed().wait(stage.parity);
    };
    for_each_stage(a, tail, warp.split(), wait, [&](int first, int end, int stage_at) {
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
