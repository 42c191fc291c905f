// Brings packed weights (weights/packed.cuh) to a warp and multiplies them: the part of product.cuh that is another one for them.
//
// The 16 rows of a warp are a group, whose blocks are neighbours in memory: they are copied to shared memory in large pieces, through a ring
// of the warp's own, and need few registers on the way. The GPUs that have such copies are those for which the way is chosen.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/projection/registers/product.cuh>
#include <prologue/kernels/projection/weights/packed.cuh>

namespace prologue::cuda {

inline constexpr int kPackedBlocksOfSm = 3;

// As much as the warps of so many blocks have room for: three pieces of Q4_K.
struct PackedRing {
  static constexpr int kBytes = 6912, kMostStages = 8;
  unsigned char data[kBytes];
  Barrier filled[kMostStages];
};

// Where the rings of a block's warps are in its shared memory.
__host__ __device__ inline int64_t packed_rings_at(const RegistersArgs& a) { return round_up(shared_bytes_of(a), int64_t{128}); }

// How a format passes through a ring.
template <class Format>
struct PackedPieces {
  static constexpr int kBlockSlices = Format::kBlockUnits * Format::kSlices;
  static constexpr int kBlocks = kBlockSlices == 1 ? 4 : 1;  // of a piece
  static constexpr int kSlices = kBlocks * kBlockSlices;
  static constexpr int kBytes = kBlocks * Format::kGroupBytes;
  static constexpr int kStages =
      PackedRing::kBytes / kBytes < PackedRing::kMostStages ? PackedRing::kBytes / kBytes : PackedRing::kMostStages;
  static_assert(kStages >= 2);
};

template <class T, int kTokenTiles>
class WeightStream<PackedWeights<T>, kTokenTiles> {
 public:
  __device__ WeightStream(const RegistersArgs& a, const WarpWork& work, const PackedGroup& rows)
      : rows_(rows), slices_(rows.data == nullptr ? 0 : work.of_warp.end - work.of_warp.begin) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (slices_ == 0) return;
    ring_ = reinterpret_cast<PackedRing*>(dynamic_shared<unsigned char>() + packed_rings_at(a)) + threadIdx.x / 32;
    if (lane() == 0) {
      for (Barrier& barrier : ring_->filled) barrier.init(1);
      fence_barrier_init();
    }
    __syncwarp();
    with_packed_format(rows_.format, [&]<class Format>(Format) {
      rows_.data += work.of_warp.begin / PackedPieces<Format>::kBlockSlices * int64_t{Format::kGroupBytes};
      for (int piece = 0; piece < PackedPieces<Format>::kStages; ++piece) fill<Format>(piece, piece);
    });
#endif
  }

  __device__ void multiply(float (&sums)[kTokenTiles][4], const RegistersArgs& a, const WarpWork& work,
                           const RegistersShared& shared) {
#pragma unroll
    for (float(&of_tile)[4] : sums) {
#pragma unroll
      for (float& sum : of_tile) sum = 0.0f;
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (slices_ == 0) return;
    // Columns past the last token repeat that token; their sums are not used.
    const auto row_of = [&](int token) { return min(token, a.num_tokens - 1) * a.x_row_bytes; };
    const unsigned char* const x =
        shared.x + row_of(lane() / 4) + (work.of_warp.begin - work.of_block.begin) * kXSliceBytes + lane() % 4 * 16;
    const int tile_bytes = kTokenTiles == 1 ? 0 : row_of(8 + lane() / 4) - row_of(lane() / 4);
    static_assert(kTokenTiles <= 2);
    with_packed_format(rows_.format, [&]<class Format>(Format) { multiply_pieces<Format>(sums, x, tile_bytes); });
#pragma unroll
    for (float(&of_tile)[4] : sums) put_rows_in_order(of_tile);
#endif
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  // Starts to copy piece `piece`, if there is one, to stage `stage`, which nobody reads any more.
  template <class Format>
  __device__ void fill(int piece, int stage) {
    using Pieces = PackedPieces<Format>;
    const int blocks = min((slices_ - piece * Pieces::kSlices) / Pieces::kBlockSlices, Pieces::kBlocks);
    if (blocks <= 0 || lane() != 0) return;
    Barrier& filled = ring_->filled[stage];
    filled.arrive_and_expect(blocks * Format::kGroupBytes);
    copy_bytes(ring_->data + stage * Pieces::kBytes, rows_.data + piece * int64_t{Pieces::kBytes}, blocks * Format::kGroupBytes,
               filled);
  }

  template <class Format>
  __device__ void multiply_pieces(float (&sums)[kTokenTiles][4], const unsigned char* x, int tile_bytes) {
    using Pieces = PackedPieces<Format>;
    int stage = 0;
    unsigned parity = 0;
#pragma unroll 1
    for (int piece = 0; piece * Pieces::kSlices < slices_; ++piece) {
      ring_->filled[stage].wait(parity);
      const char* const data = reinterpret_cast<const char*>(ring_->data) + stage * Pieces::kBytes;
      const int units = min(slices_ - piece * Pieces::kSlices, Pieces::kSlices) / Format::kSlices;
#pragma unroll
      for (int unit = 0; unit < Pieces::kSlices / Format::kSlices; ++unit) {
        if (unit < units) multiply_unit<Format>(sums, data, unit, x, tile_bytes);
        x += Format::kSlices * kXSliceBytes;
      }
      __syncwarp();  // all have read the stage
      fill<Format>(piece + Pieces::kStages, stage);
      if (++stage == Pieces::kStages) stage = 0, parity ^= 1;
    }
  }

  template <class Format>
  __device__ static void multiply_unit(float (&sums)[kTokenTiles][4], const char* data, int unit, const unsigned char* x,
                                       int tile_bytes) {
    uint32_t words[Format::kWords];
    Format::template load<ChannelOrder::as_packed>(words, data, unit, lane());
    const PackedScales own = PackedSlice<T, Format>::own_scales(words, unit % 2);
#pragma unroll
    for (int slice = 0; slice < Format::kSlices; ++slice) {
      const PackedSlice<T, Format> operands(words, slice, lane(), unit % 2, own);
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        operands.multiply(sums[n], *reinterpret_cast<const uint4*>(x + n * tile_bytes + slice * kXSliceBytes));
      }
    }
  }

  // A lane has the sums of rows 2 (lane / 4) and 2 (lane / 4) + 1; what follows wants those of rows lane / 4 and lane / 4 + 8.
  __device__ static void put_rows_in_order(float (&sums)[4]) {
    const bool odd = (lane() & 4) != 0;
    const int from = lane() / 8 * 4 + lane() % 4;
    float ordered[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int source = from + (i < 2 ? 0 : 16);
      const float of_even = __shfl_sync(0xffffffffu, sums[i % 2], source);
      const float of_odd = __shfl_sync(0xffffffffu, sums[i % 2 + 2], source);
      ordered[i] = odd ? of_odd : of_even;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = ordered[i];
  }

  PackedGroup rows_;
  int slices_;
  PackedRing* ring_ = nullptr;
};

}  // namespace prologue::cuda
