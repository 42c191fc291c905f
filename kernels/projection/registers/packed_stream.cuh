// Loads and multiplies packed weights (weights/packed.cuh): the part of product.cuh that is another one for them.
#pragma once

#include <algorithm>
#include <cstdint>

#include <prologue/kernels/projection/registers/product.cuh>
#include <prologue/kernels/projection/weights/packed.cuh>

namespace prologue::cuda {

template <class T, int kTokenTiles>
class WeightStream<PackedWeights<T>, kTokenTiles> {
 public:
  __device__ WeightStream(const RegistersArgs&, const WarpWork& work, const PackedGroup& rows) : rows_(rows) {
    if (rows.data == nullptr) return;
    with_packed_format(rows_.format, [&]<class Format>(Format) {
      const int begin = work.of_warp.begin / Format::kSlices, units = work.of_warp.end / Format::kSlices - begin;
#pragma unroll
      for (int i = 0; i < Format::kUnitsInFlight; ++i) {
        if (i < units) Format::load(words_of<Format>(i), rows_.data, begin + i, lane());
      }
    });
  }

  __device__ void multiply(float (&sums)[kTokenTiles][4], const RegistersArgs& a, const WarpWork& work,
                           const RegistersShared& shared) {
#pragma unroll
    for (float(&of_tile)[4] : sums) {
#pragma unroll
      for (float& sum : of_tile) sum = 0.0f;
    }
    if (rows_.data == nullptr) return;
    // Columns past the last token repeat that token; their sums are not used.
    const auto row_of = [&](int token) { return min(token, a.num_tokens - 1) * a.x_row_bytes; };
    const unsigned char* const x =
        shared.x + row_of(lane() / 4) + (work.of_warp.begin - work.of_block.begin) * kXSliceBytes + lane() % 4 * 16;
    const int tile_bytes = kTokenTiles == 1 ? 0 : row_of(8 + lane() / 4) - row_of(lane() / 4);
    static_assert(kTokenTiles <= 2);
    with_packed_format(rows_.format, [&]<class Format>(Format) { multiply_units<Format>(sums, work, x, tile_bytes); });
#pragma unroll
    for (float(&of_tile)[4] : sums) put_rows_in_order(of_tile);
  }

 private:
  static constexpr int kMostWords = 34;  // in flight, of all formats

  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  template <class Format>
  __device__ uint32_t (&words_of(int i))[Format::kWords] {
    static_assert(Format::kWords * Format::kUnitsInFlight <= kMostWords);
    return reinterpret_cast<uint32_t(&)[Format::kWords]>(in_flight_[i * Format::kWords]);
  }

  template <class Format>
  __device__ void multiply_units(float (&sums)[kTokenTiles][4], const WarpWork& work, const unsigned char* x, int tile_bytes) {
    const int end = work.of_warp.end / Format::kSlices;
#pragma unroll 1
    for (int first = work.of_warp.begin / Format::kSlices; first < end; first += Format::kUnitsInFlight) {
#pragma unroll
      for (int i = 0; i < Format::kUnitsInFlight; ++i) {
        if (first + i >= end) break;
        multiply_unit<Format>(sums, words_of<Format>(i), (first + i) % 2, x, tile_bytes);
        x += Format::kSlices * kXSliceBytes;
        const int next = first + i + Format::kUnitsInFlight;
        if (next < end) Format::load(words_of<Format>(i), rows_.data, next, lane());
      }
    }
  }

  // `half` says which half of a block of 256 channels it is.
  template <class Format>
  __device__ static void multiply_unit(float (&sums)[kTokenTiles][4], const uint32_t (&words)[Format::kWords], int half,
                                       const unsigned char* x, int tile_bytes) {
    const PackedScales own = PackedSlice<T, Format>::own_scales(words, half);
#pragma unroll
    for (int slice = 0; slice < Format::kSlices; ++slice) {
      const PackedSlice<T, Format> operands(words, slice, lane(), half, own);
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
  uint32_t in_flight_[kMostWords];
};

}  // namespace prologue::cuda
