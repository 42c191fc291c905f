// Warps that do nothing but sum the squares of x in the stages, and multiply it by the norm's weight where the warps that multiply do not do so.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>
#include <prologue/kernels/projection/unpacking/stages.cuh>

namespace prologue::cuda {

// Sums the squares of x of each token, and, if kWeighs, multiplies x by the norm's weight, if the norm has one, before the other warps read it. A
// warp has all tokens of some of the slices, eight tokens at a time, of which lane i has 8 channels of token i % 8.
template <class T, int kTokens, bool kWeighs>
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
      for (int slice = warp_; slice < slices; slice += kNormWarps) add_slice(memory + stage.at, slice);
      if constexpr (kWeighs) fence_shared_for_async();  // the next box that comes here
      __syncwarp();
      if (lane_ == 0) kWeighs ? stage.weighed().arrive() : stage.emptied().arrive();
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

  __device__ void add_slice(unsigned char* stage, int slice) {
    const int row = lane_ % 8, chunk = lane_ / 8;
    unsigned char* const rows = stage + a_.x_at + slice / kSlicesOfUnpackingBox * x_box_bytes(a_) + row * kUnpackingBoxRowBytes;
    const auto at_chunk = [&](int i) { return rows + (((slice % kSlicesOfUnpackingBox * 4 + i) ^ row) << 4); };
    // Both operands of a product have eight tokens' chunks 0 and 1, or 2 and 3. They are loaded three times, each in the order in which a product
    // has its registers, since moves would take longer. Rows 8 to 15 of the first operand have other chunks, and no one reads their sums.
    const int low_bit = chunk % 2, high_bit = chunk / 2;
    const unsigned char* const columns = at_chunk(chunk);
    const unsigned char* const first_rows = at_chunk(low_bit * 2 + high_bit);
    const unsigned char* const last_rows = at_chunk((low_bit ^ 1) * 2 + high_bit);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {  // tokens that there are not are read as well, and no one reads their sums
      const int at = tile * 8 * kUnpackingBoxRowBytes;
      uint32_t channels[4], first[4], last[4];
      load_matrices(channels, columns + at);
      load_matrices(first, first_rows + at);
      load_matrices(last, last_rows + at);
      multiply_matrices<T>(squares_[tile], first, channels[0], channels[1]);
      multiply_matrices<T>(squares_[tile], last, channels[2], channels[3]);
    }
    unsigned char* const x = at_chunk(chunk);
    if (!kWeighs || a_.norm_weight == nullptr) return;
    __syncwarp();  // other lanes have loaded these channels
    const unsigned char* const norm_weight = stage + a_.norm_weight_at + slice * norm_weight_bytes(a_);
    if (a_.float_norm_weight != 0) {
      const Bytes<32> weight = load_bytes<32, false>(norm_weight + chunk * 32);
      weigh(x, [&](Bytes<16>& values) {
        float products[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) products[i] = element<T, 8>(values, i) * element<float, 8>(weight, i);
        values = pack<T, 8>(products);
      });
    } else {
      const Bytes<16> weight = load_bytes<16, false>(norm_weight + chunk * 16);
      weigh(x, [&](Bytes<16>& values) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values.words[i] = multiply_pairs<T>(values.words[i], weight.words[i]);
      });
    }
  }

  template <class Multiply>
  __device__ void weigh(unsigned char* x, const Multiply& multiply) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * 8 >= a_.x_rows) break;
      unsigned char* const at = x + tile * 8 * kUnpackingBoxRowBytes;
      Bytes<16> values = load_bytes<16, false>(at);
      multiply(values);
      store_bytes<16, false>(at, values);
    }
  }

  const UnpackingArgs& a_;
  int warp_, lane_;
  float squares_[kTiles][4] = {};
};

}  // namespace prologue::cuda
