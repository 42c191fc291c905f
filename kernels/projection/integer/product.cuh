// In this way, which is for 1 and 2 tokens and packed weights, the weights' codes are multiplied as the whole numbers that they are, by x as whole
// numbers: a code needs one or two instructions, where making it a number of 16 bits takes four.
//
// Each 32 channels of x of a token, a slice, have a power of two, by which they become whole numbers of 23 bits: three of 8 bits (digits), which are
// columns of mma.m16n8k32. So a slice's products are exact. A number is off by at most 2^-22 of the largest of its slice; without a norm's weight by
// nothing, if it is not 2^14 times smaller than that (float16: 2^11).
//
// An SM has one block, with some tiles of 16 rows of the weights. Its warps divide the slices of all of its tiles evenly, so a warp may have the end
// of one tile and the beginning of the next. Weights pass through a ring of the warp's own in shared memory, in pieces of up to eight slices; a
// ring is filled before there is an x. Every block has all of x.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/shared/divisor.h>
#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>
#include <prologue/kernels/projection/weights/packed.cuh>

namespace prologue::cuda {

inline constexpr int kMostIntegerTokens = 2;
inline constexpr int kIntegerWarps = 12, kIntegerThreads = 32 * kIntegerWarps;  // that multiply
inline constexpr int kIntegerLaunchBound = 768;                                 // so that a thread has 80 registers
inline constexpr int kMostIntegerStages = 8;
inline constexpr int kMultipliersOfInteger = 1;  // the barrier of the warps that multiply
inline constexpr int kMostBytesOfPiece = 3456;

// Holds 32 channels of x of a token: x is scale * (first digit * 2^8 + second digit + last digit * 2^-8), of digits that are signed bytes.
struct IntegerSlice {
  uint2 digits[3][4];      // [digit][c]: channels 4 c to 4 c + 3, and those 16 further
  float scale;             // a power of two
  float all, first, last;  // the sums of x, of all channels, the first and the last 16
};
static_assert(sizeof(IntegerSlice) == 112);
inline constexpr float kFirstDigit = 256.0f;

struct IntegerArgs {
  const char* x = nullptr;
  const char* norm_weight = nullptr;  // null = 1
  int64_t x_stride = 0;               // bytes
  int32_t num_tokens = 0;
  int32_t slices = 0;             // of k
  Divisor units_of_tile;          // of 2^log_unit slices
  int32_t tiles = 0;              // of 16 rows, of a block
  int32_t stages = 0;             // of a warp's ring
  int32_t stage_bytes = 0;        // a multiple of 16
  int32_t log_blocks = 0;         // 2^log_blocks blocks, a cluster, have the rows of a head; otherwise 0
  int32_t float_norm_weight = 0;  // norm_weight is float32
  int32_t normed = 0;
  float eps = 0.0f;
  float inverse_k = 0.0f;  // 1 / k
};

// What a block has in shared memory beside the rings.
struct IntegerTail {
  float4 exchange[kIntegerWarps][kMostIntegerTokens][32];  // of a warp's lanes
  Barrier filled[kIntegerWarps][kMostIntegerStages];
  Barrier stored;                                    // of heads
  float squares[kMostIntegerTokens][kIntegerWarps];  // of x, of each warp's channels
};

// Describes a block's shared memory.
struct IntegerShared {
  IntegerSlice* x;      // [slices][num_tokens]
  float* sums;          // [kIntegerWarps + tiles][num_tokens][16]: of warp w and tile t those at w + t
  uint8_t* first_warp;  // [tiles]: the first and the last warp that have a part of a tile
  uint8_t* last_warp;
  unsigned char* rings;
  IntegerTail* tail;
};

__host__ __device__ inline int64_t integer_x_bytes(const IntegerArgs& a) {
  return int64_t{a.slices} * a.num_tokens * static_cast<int64_t>(sizeof(IntegerSlice));
}
__host__ __device__ inline int64_t integer_sums_bytes(const IntegerArgs& a) {
  return int64_t{kIntegerWarps + a.tiles} * a.num_tokens * (kPackedGroupRows * 4);
}
__host__ __device__ inline int64_t integer_warps_bytes(const IntegerArgs& a) {
  return round_up(2 * int64_t{a.tiles}, int64_t{16});
}
__host__ __device__ inline int64_t integer_ring_bytes(const IntegerArgs& a) { return int64_t{a.stages} * a.stage_bytes; }
__host__ __device__ inline int64_t integer_shared_bytes(const IntegerArgs& a) {
  return integer_x_bytes(a) + integer_sums_bytes(a) + integer_warps_bytes(a) + kIntegerWarps * integer_ring_bytes(a) +
         static_cast<int64_t>(sizeof(IntegerTail));
}

__device__ inline IntegerShared lay_out(unsigned char* memory, const IntegerArgs& a) {
  IntegerShared shared;
  shared.x = reinterpret_cast<IntegerSlice*>(memory);
  shared.sums = reinterpret_cast<float*>(memory + integer_x_bytes(a));
  shared.first_warp = memory + integer_x_bytes(a) + integer_sums_bytes(a);
  shared.last_warp = shared.first_warp + a.tiles;
  shared.rings = shared.first_warp + integer_warps_bytes(a);
  shared.tail = reinterpret_cast<IntegerTail*>(shared.rings + kIntegerWarps * integer_ring_bytes(a));
  return shared;
}

// Returns the slices of a piece, whose bytes in 16 rows these are.
__host__ __device__ constexpr int slices_of_piece(int slice_bytes) { return 8 * slice_bytes <= kMostBytesOfPiece ? 8 : 4; }
template <class Format>
inline constexpr int kFormatSliceBytes = Format::kGroupBytes / (Format::kBlockUnits * Format::kSlices);

// Streams a warp's slices through its ring, and multiplies them. All slices of a block's tiles, one tile after another, are divided among its
// warps, in units of 2^log_unit slices. rows_of(tile) says where the rows of a tile of the block are.
template <int kTokens, class RowsOf, class Args>
class IntegerStream {
 public:
  __device__ IntegerStream(const Args& a, const IntegerShared& shared, const RowsOf& rows_of)
      : a_(a),
        shared_(shared),
        rows_of_(rows_of),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        ring_(shared.rings + warp_ * integer_ring_bytes(a)),
        filled_(shared.tail->filled[warp_]) {
    const int units = a.units_of_tile * a.tiles;
    const int begin = units * warp_ / kIntegerWarps, end = units * (warp_ + 1) / kIntegerWarps;
    tile_ = begin / a.units_of_tile;
    slice_ = (begin - tile_ * a.units_of_tile) << a.packed.log_unit;
    left_ = (end - begin) << a.packed.log_unit;
    next_tile_ = tile_, next_slice_ = slice_, next_left_ = left_;
    if (lane_ == 0) {
      for (int i = 0; i < a.stages; ++i) filled_[i].init(1);
      fence_barrier_init();
    }
    __syncwarp();
    if (left_ > 0) open_tile();
    for (int i = 0; i < a.stages; ++i) fill(i);
  }

  // Stores the sums of each tile of which the warp has a part: of 16 rows and each token.
  __device__ void multiply() {
    if (left_ == 0) {
      store_sums(Sums());  // somebody may add them
      return;
    }
#pragma unroll 1
    for (; left_ > 0; ++tile_, slice_ = 0) {
      Sums sums;
      const int count = min(left_, a_.slices - slice_);
      if (slice_ == 0 && lane_ == 0) shared_.first_warp[tile_] = static_cast<uint8_t>(warp_);
      if (slice_ + count == a_.slices && lane_ == 0) shared_.last_warp[tile_] = static_cast<uint8_t>(warp_);
      with_packed_format(rows_of_(tile_).format, [&]<class Format>(Format) { multiply_slices<Format>(sums, count); });
      store_sums(sums);
      left_ -= count;
    }
  }

 private:
  // The tile whose pieces are copied next.
  __device__ void open_tile() {
    const PackedGroup group = rows_of_(next_tile_);
    slice_bytes_ = group.slice_bytes;
    from_ = group.data + int64_t{next_slice_} * slice_bytes_;
  }

  // Starts to copy the next piece, if there is one, to stage `stage`, which nobody reads any more.
  __device__ void fill(int stage) {
    if (next_left_ == 0) return;
    const int count = min(min(next_left_, a_.slices - next_slice_), slices_of_piece(slice_bytes_)), bytes = count * slice_bytes_;
    if (lane_ == 0) {
      filled_[stage].arrive_and_expect(bytes);
      copy_bytes(ring_ + stage * a_.stage_bytes, from_, bytes, filled_[stage]);
    }
    from_ += bytes;
    next_slice_ += count, next_left_ -= count;
    if (next_slice_ == a_.slices && next_left_ > 0) ++next_tile_, next_slice_ = 0, open_tile();
  }

  // Of the lane's two rows: sums of two columns of digits each, and of minimums.
  struct Sums {
    float digits[4] = {};
    float minimums[2] = {};
  };

  template <class Format>
  __device__ __forceinline__ void multiply_slices(Sums& sums, int count) {
    if constexpr (Format::kOfInteger != 0.0f) {
      constexpr int kPiece = slices_of_piece(kFormatSliceBytes<Format>);
      // Two units at once have more to do while one waits; more instructions would not be in the cache of a scheduler.
      constexpr int kUnits = Format::kShares && Format::kTwoScales ? 1 : 2;
      const IntegerSlice* x = shared_.x + slice_ * kTokens;
      float minimums[kTokens][2] = {};  // if kShares those of the lane's slices; otherwise of its token
#pragma unroll 1
      for (int done = 0; done < count; done += kPiece) {
        filled_[stage_].wait(parity_);
        const char* const data = reinterpret_cast<const char*>(ring_) + stage_ * a_.stage_bytes;
        const int units = min(count - done, kPiece) / Format::kSlices;
        int unit = 0;
#pragma unroll 1
        for (; unit + kUnits <= units; unit += kUnits) {
          multiply_units<Format, kUnits>(sums, minimums, data, unit, x);
          x += kUnits * Format::kSlices * kTokens;
        }
        if constexpr (kUnits > 1 && !Format::kShares) {
          if (unit < units) multiply_units<Format, 1>(sums, minimums, data, unit, x), x += kTokens;
        }
        __syncwarp();  // all have read the stage
        fill(stage_);
        if (++stage_ == a_.stages) stage_ = 0, parity_ ^= 1;
      }
      if constexpr (Format::kHasMinimum) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
#pragma unroll
          for (int t = 0; t < kTokens; ++t) {
            if constexpr (Format::kShares) minimums[t][row] = sum_of_quad(minimums[t][row]);
          }
          sums.minimums[row] = Format::kShares && kTokens > 1 && lane_ % 4 >= 2 ? minimums[kTokens - 1][row] : minimums[0][row];
        }
      }
    }
  }

  __device__ static float sum_of_quad(float value) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
  }

  template <class Format, int kUnits>
  __device__ __forceinline__ void multiply_units(Sums& sums, float (&minimums)[kTokens][2], const char* data, int unit,
                                                 const IntegerSlice* x) const {
    constexpr int kSlices = Format::kSlices, kScales = Format::kTwoScales ? 4 : 2;
    uint32_t words[kUnits][Format::kWords];
    PackedScales own[kUnits];
    // The halves of a block are a unit each: which one it is, is known if they come together.
    const auto half_of = [&](int u) { return kUnits == 2 && Format::kSlices == 4 ? u : (unit + u) % 2; };
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      Format::template load<ChannelOrder::as_packed>(words[u], data, unit + u, lane_);
      own[u] = Format::scales(words[u], half_of(u));
      own[u].low *= Format::kOfInteger, own[u].high *= Format::kOfInteger;
      if constexpr (Format::kTwoScales) own[u].other_low *= Format::kOfInteger, own[u].other_high *= Format::kOfInteger;
    }
    // If a unit has several slices, a lane has the scales of one of them, and the others need them.
    float* const exchange = &shared_.tail->exchange[warp_][0][0].x;
    const auto exchanged = [&](int u, int t, int lane) { return exchange + ((u * kTokens + t) * 32 + lane) * kScales; };
    if constexpr (Format::kShares) {
      __syncwarp();  // all have read those before
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const IntegerSlice& of_lane = x[(u * kSlices + lane_ % 4) * kTokens + t];
          float* const to = exchanged(u, t, lane_);
          if constexpr (Format::kTwoScales) {
            *reinterpret_cast<float4*>(to) = make_float4(own[u].low * of_lane.scale, own[u].high * of_lane.scale,
                                                         own[u].other_low * of_lane.scale, own[u].other_high * of_lane.scale);
          } else {
            *reinterpret_cast<float2*>(to) = make_float2(own[u].low * of_lane.scale, own[u].high * of_lane.scale);
          }
          add_minimums<Format>(minimums[t], own[u], of_lane);
        }
      }
      __syncwarp();
    }
    // A lane has column lane / 4 of x's digits, which is of token lane / 16. Its sums are of columns 2 (lane % 4) and the next one.
    const int token = kTokens == 1 ? 0 : lane_ / 16, digit = min(lane_ / 4 % 4, 2),
              token_of_sums = kTokens == 1 ? 0 : lane_ % 4 / 2;
    const uint2* const digits = &x[token].digits[digit][lane_ % 4];
#pragma unroll
    for (int i = 0; i < kUnits * kSlices; ++i) {
      const int u = i / kSlices, slice = i % kSlices;
      uint32_t a[4];
      Format::integers(words[u], slice, lane_, half_of(u), a);
      const uint2 b = *reinterpret_cast<const uint2*>(reinterpret_cast<const char*>(digits) + i * kTokens * sizeof(IntegerSlice));
      float scales[kScales];
      if constexpr (Format::kShares) {
        const float* const from = exchanged(u, token_of_sums, (lane_ & ~3) + slice);
#pragma unroll
        for (int j = 0; j < kScales; j += 2) {
          const float2 two = *reinterpret_cast<const float2*>(from + j);
          scales[j] = two.x, scales[j + 1] = two.y;
        }
      } else {
        const IntegerSlice& of_slice = x[i * kTokens + token_of_sums];
        scales[0] = own[u].low * of_slice.scale, scales[1] = own[u].high * of_slice.scale;
        if constexpr (Format::kTwoScales)
          scales[2] = own[u].other_low * of_slice.scale, scales[3] = own[u].other_high * of_slice.scale;
        add_minimums<Format>(minimums[0], own[u], of_slice);
      }
      int32_t products[4];
      if constexpr (Format::kTwoScales) {
        multiply_integers(products, {a[0], a[1]}, b.x, kSumBase);
        add_products(sums, products, scales[0], scales[1]);
        multiply_integers(products, {a[2], a[3]}, b.y, kSumBase);
        add_products(sums, products, scales[2], scales[3]);
      } else {
        multiply_integers(products, a, b.x, b.y, kSumBase);
        add_products(sums, products, scales[0], scales[1]);
      }
    }
  }

  template <class Format>
  __device__ static void add_minimums(float (&sums)[2], const PackedScales& s, const IntegerSlice& x) {
    if constexpr (kTwoMinimums<Format>) {
      sums[0] = fmaf(s.minimum_low, x.first, fmaf(s.other_minimum_low, x.last, sums[0]));
      sums[1] = fmaf(s.minimum_high, x.first, fmaf(s.other_minimum_high, x.last, sums[1]));
    } else if constexpr (Format::kHasMinimum) {
      sums[0] = fmaf(s.other_low, x.all, sums[0]), sums[1] = fmaf(s.other_high, x.all, sums[1]);
    }
  }

  // A whole number of less than 2^22 plus this is the pattern of 3 * 2^22 plus that number.
  static constexpr int32_t kSumBase = 0x4b400000;
  __device__ static void add_products(Sums& sums, const int32_t (&products)[4], float low, float high) {
    constexpr float kBase = 12582912.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.digits[i] = fmaf(__int_as_float(products[i]) - kBase, i < 2 ? low : high, sums.digits[i]);
  }

  // Adds up the digits: a lane with an even lane % 4 has the first and the second one of a token, the next lane the last one.
  __device__ void store_sums(const Sums& sums) const {
    float rows[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const two = sums.digits + 2 * i;
      const float own = lane_ % 2 == 0 ? fmaf(two[0], kFirstDigit, two[1]) : two[0] * (1.0f / kFirstDigit);
      rows[i] = own + __shfl_xor_sync(0xffffffffu, own, 1) + sums.minimums[i];
    }
    const int token = lane_ % 4 / 2;
    if (lane_ % 2 == 0 && token < kTokens) {
      // Each part of a tile has a place, since the next warp has the next part of this tile or one of a later tile.
      float* const to = shared_.sums + ((warp_ + tile_) * kTokens + token) * static_cast<int>(kPackedGroupRows);
      *reinterpret_cast<float2*>(to + lane_ / 4 * 2) = make_float2(rows[0], rows[1]);
    }
    __syncwarp();
  }

  const Args& a_;
  const IntegerShared& shared_;
  const RowsOf& rows_of_;
  int warp_, lane_;
  unsigned char* ring_;
  Barrier* filled_;
  int tile_, slice_, left_;                 // what is multiplied next, and how many slices are left
  int next_tile_, next_slice_, next_left_;  // what is copied next
  int slice_bytes_ = 0;
  const char* from_ = nullptr;
  int stage_ = 0;
  unsigned parity_ = 0;
};

// Adds up the parts of four neighbouring rows of a tile and a token, after all warps have stored theirs.
template <int kTokens>
__device__ inline void gather_rows(const IntegerShared& shared, int token, int row, float factor, float (&values)[4]) {
  constexpr int kTileRows = static_cast<int>(kPackedGroupRows), kStride = kTokens * kTileRows;
  const int tile = row / kTileRows, first = shared.first_warp[tile], last = shared.last_warp[tile];
  const float* const from = shared.sums + (first + tile) * kStride + token * kTileRows + row % kTileRows;
#pragma unroll
  for (float& value : values) value = 0.0f;
  add_up<1>(from, kStride, last - first + 1, values);
#pragma unroll
  for (float& value : values) value *= factor;
}

// The norm's weight is read once in a step, so it is in memory. It is prefetched to the L2 before there is an x.
__device__ inline void prefetch_norm_weight(const IntegerArgs& a) {
  if (a.norm_weight == nullptr) return;
  constexpr int kLine = 128;
  const int bytes = a.slices * kPackedSliceChannels * (a.float_norm_weight != 0 ? 4 : 2);
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < bytes; i += kIntegerThreads * kLine) prefetch_line(a.norm_weight + i);
}

// Makes x, times the norm's weight, whole numbers in shared memory, and sums its squares. All threads that multiply call it; then a barrier must
// follow.
template <class T, int kTokens>
__device__ inline void stage_x(const IntegerArgs& a, const IntegerShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int chunks = a.slices * 4;  // of 8 channels: a thread has one, four neighbouring threads a slice
#pragma unroll 1
  for (int t = 0; t < kTokens; ++t) {
    // Chunks past the end are the last one once more. Two loads are in flight.
    const auto load_chunk = [&](int chunk) { return load_bytes<16, false>(a.x + t * a.x_stride + min(chunk, chunks - 1) * 16); };
    const int begin = static_cast<int>(threadIdx.x);
    Bytes<16> loaded = load_chunk(begin), next = load_chunk(begin + kIntegerThreads);
    float squares = 0.0f;
#pragma unroll 1
    for (int chunk = begin; chunk - lane < chunks; chunk += kIntegerThreads) {
      const Bytes<16> after_next = load_chunk(chunk + 2 * kIntegerThreads);
      const bool inside = chunk < chunks;
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = element<T, 8>(loaded, i), squares = fmaf(x[i], inside ? x[i] : 0.0f, squares);
      if (a.norm_weight != nullptr) {
        const int of_weight = min(chunk, chunks - 1);
        Bytes<32> weight;
        if (a.float_norm_weight != 0) {
          weight = load_bytes<32, false>(a.norm_weight + of_weight * 32);
        } else {
          const Bytes<16> narrow = load_bytes<16, false>(a.norm_weight + of_weight * 16);
#pragma unroll
          for (int i = 0; i < 8; ++i) weight.words[i] = __float_as_uint(element<T, 8>(narrow, i));
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] *= element<float, 8>(weight, i);
      }
      // The bits of a magnitude are in the order of the magnitudes; those of NaN are above infinity's.
      uint32_t most = 0;
#pragma unroll
      for (const float value : x) most = max(most, __float_as_uint(value) & 0x7fffffffu);
#pragma unroll
      for (int step = 1; step < 4; step *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
      // 2^(21 - e), if the largest magnitude is 2^e to 2^(e + 1), makes it less than 2^22. Not a number, and infinity, make the slice NaN.
      // The scale is that of the second digit, so that it and its product with a weight's scale are in the range of normal numbers.
      const uint32_t exponent = max(most >> 23, 22u);
      const float up = __uint_as_float((275u - exponent) << 23);
      const float scale = exponent == 255u ? __uint_as_float(0x7fffffffu) : __uint_as_float((exponent - 13u) << 23);
      uint32_t digits[8];
      uint32_t sum = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        constexpr float kBase = 12582912.0f;   // rounds to a whole number, in the lower bits
        constexpr uint32_t kHalves = 0x8080u;  // the lower two digits are signed
        const uint32_t number = __float_as_uint(fmaf(x[i], up, kBase)) - 0x4b400000u;
        sum += number;
        digits[i] = (number + kHalves) ^ kHalves;
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);  // of half a slice
      const uint32_t other = __shfl_xor_sync(0xffffffffu, sum, 2);
      loaded = next, next = after_next;
      if (!inside) continue;
      IntegerSlice& slice = shared.x[chunk / 4 * kTokens + t];
      const int in_slice = chunk % 4;
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        const uint32_t* const four = digits + 4 * word;
        const uint32_t low = __byte_perm(four[0], four[1], 0x5140u), high = __byte_perm(four[2], four[3], 0x5140u);
        const uint32_t first_low = __byte_perm(four[0], four[1], 0x0062u), first_high = __byte_perm(four[2], four[3], 0x0062u);
        uint32_t* const to = reinterpret_cast<uint32_t*>(slice.digits) + (in_slice % 2 * 2 + word) * 2 + in_slice / 2;
        to[0] = __byte_perm(first_low, first_high, 0x5410u);
        to[8] = __byte_perm(low, high, 0x7632u);
        to[16] = __byte_perm(low, high, 0x5410u);
      }
      if (in_slice == 0) {
        const auto sum_of = [&](uint32_t number) { return static_cast<float>(static_cast<int>(number)) * (scale / kFirstDigit); };
        slice.scale = scale, slice.all = sum_of(sum + other), slice.first = sum_of(sum), slice.last = sum_of(other);
      }
    }
    if (a.normed == 0) continue;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    if (lane == 0) shared.tail->squares[t][warp] = squares;
  }
}

// The factor of the norm for a token.
__device__ inline float norm_of_token(const IntegerArgs& a, const IntegerShared& shared, int t) {
  if (a.normed == 0) return 1.0f;
  float squares = 0.0f;
#pragma unroll
  for (const float of_warp : shared.tail->squares[t]) squares += of_warp;
  return reciprocal_root(fmaf(squares, a.inverse_k, a.eps));
}

}  // namespace prologue::cuda
