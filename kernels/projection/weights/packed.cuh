// Multiplies by weights in block formats, as weight_format.h packs them. Segments of different formats
// may be in one launch: a warp's 16 rows are of one.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/weight_format.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/packed_weight.cuh>

namespace prologue::cuda {

// Holds where the rows of a weight are: those of segments[0], then those of segments[1], and so on. Each has a multiple of 16 rows.
struct PackedSegments {
  struct Segment {
    const char* data = nullptr;
    int32_t end_row = 0;  // of all rows
    WeightFormat format = WeightFormat::dense;
    int32_t slice_bytes = 0;  // of 16 rows and 32 channels
  };
  Segment segments[kMaxWeightSegments];
  int32_t log_unit = 0;  // a part of k has a multiple of 2^log_unit slices of 32 channels
};

// Returns the bytes of 16 rows and 32 channels: a whole number for each format.
constexpr int64_t packed_slice_bytes(WeightFormat format) {
  return weight_block_bytes(format) * kPackedGroupRows * kPackedSliceChannels / weight_block_elements(format);
}

// Says where the rows of a weight are.
inline void fill_segments(PackedSegments& to, const PackedWeight& weight) {
  int64_t rows = 0;
  for (int32_t s = 0; s < kMaxWeightSegments; ++s) {
    PackedSegments::Segment& segment = to.segments[s];
    if (s < weight.num_segments) {
      const PackedRows& given = weight.segments[s];
      rows += given.rows;
      segment.data = static_cast<const char*>(given.data);
      segment.format = given.format;
      segment.slice_bytes = static_cast<int32_t>(packed_slice_bytes(given.format));
      while ((kPackedSliceChannels << to.log_unit) < weight_block_elements(given.format)) ++to.log_unit;
    }
    segment.end_row = static_cast<int32_t>(rows);
  }
}

// The 16 rows of a group.
struct PackedGroup {
  const char* data;
  WeightFormat format;
  int32_t slice_bytes;
};

// The arguments of a way, for packed weights.
template <class Args>
struct PackedArgs : Args {
  PackedSegments packed;
};

template <class Element>
struct PackedWeights {
  using T = Element;  // of x, and of the operands of a product
  // Of which an SM has room for; heads need more registers, and their blocks are few.
  static constexpr int kWarpsOfSm = 24, kHeadWarpsOfSm = 16;

  template <class Args>
  using With = PackedArgs<Args>;
  using Rows = PackedGroup;
  static constexpr Rows kNoRows = {nullptr, WeightFormat::dense, 0};

  // `row` is the first of a group.
  template <class Args>
  __device__ static Rows rows_at(const Args& a, int64_t row) {
    const PackedSegments::Segment* segment = a.packed.segments;
    int64_t begin = 0;
#pragma unroll
    for (int i = 0; i + 1 < kMaxWeightSegments; ++i) {
      if (row >= a.packed.segments[i].end_row) segment = a.packed.segments + i + 1, begin = a.packed.segments[i].end_row;
    }
    const int64_t group = (row - begin) / kPackedGroupRows;
    return {segment->data + group * (int64_t{a.slices} * segment->slice_bytes), segment->format, segment->slice_bytes};
  }

  template <class Args>
  __device__ static int log_unit(const Args& a) {
    return a.packed.log_unit;
  }

  // A lane's channels of a slice (packed_weight.cuh) are 16 bytes: those with the lower number of two pieces of four channels come first, and
  // of a piece the first and the third, then the second and the fourth. Two lanes' pieces are a chunk of x.
  __device__ static int place_of_x(int chunk) { return chunk / 4 * 64 + chunk % 2 * 32 + chunk % 4 / 2 * 8; }
  __device__ static void store_x(unsigned char* to, const Bytes<16>& x) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Bytes<8> piece;
      piece.words[0] = __byte_perm(x.words[2 * i], x.words[2 * i + 1], 0x5410);
      piece.words[1] = __byte_perm(x.words[2 * i], x.words[2 * i + 1], 0x7632);
      store_bytes<8, false>(to + 16 * i, piece);
    }
  }
};

}  // namespace prologue::cuda
