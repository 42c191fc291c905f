// This file brings rows of the cache to the tensor cores: it copies them to shared memory, and loads them from there as fragments of
// mma.m16n8k16. Chunks are 16 bytes, swizzled so that the lanes of an access use different banks.
//
// The fragments have keys (for the scores) and channels (for the output) as their 16 rows, and the packed rows as their 8 columns. Lane l
// has g = l / 4 and t = l % 4.
#pragma once

#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/cache_codes.cuh>
#include <prologue/kernels/paged_attention/decode_tiles.cuh>

namespace prologue::cuda {

// So many channels have a scale in the ring. In MXFP4 two neighbouring ones are equal.
template <class C>
inline constexpr int kBlockChannels = std::is_same_v<C, BlockFp4> ? 16 : 32;

template <class C>
inline constexpr int kElementBits = 8 * static_cast<int>(sizeof(C));
template <DType kType>
inline constexpr int kElementBits<Code<kType>> = static_cast<int>(dtype_bits(kType));
template <DType kType>
inline constexpr int kElementBits<BlockCode<kType>> = static_cast<int>(dtype_bits(kType));

// Returns the byte offset of a chunk of rows that ldmatrix reads: eight rows at the same chunk.
template <int kRowBytes>
__device__ inline int matrix_offset(int row, int chunk) {
  constexpr int kChunks = kRowBytes / 16;
  constexpr int kRowsInBanks = kChunks >= 8 ? 1 : 8 / kChunks;
  return row * kRowBytes + (chunk ^ (row / kRowsInBanks & (kChunks < 8 ? kChunks - 1 : 7))) * 16;
}
// Returns the byte offset of a chunk of rows that lanes read 16 bytes from: two rows, four chunks of each.
template <int kRowBytes>
__device__ inline int word_offset(int row, int chunk) {
  return row * kRowBytes + (chunk ^ (kRowBytes >= 128 ? (row & 1) * 4 : 0)) * 16;
}

// Converts two codes of a word to two float16, exactly. With 8 bits these are codes 0 and 1, or 2 and 3; with 4 bits codes i and i + 4.
template <DType kType>
__device__ inline uint32_t halves_of(uint32_t word, int i) {
  if constexpr (dtype_bits(kType) == 8) {
    return halves_of_bytes<kType>(word, i);
  } else {
    // A code in the low nibble becomes 1024 + 8 + the code (uint4: without 8), one in the high nibble 1024 + 16 times that; then the excess
    // is subtracted.
    constexpr bool kSigned = kType == DType::int4;
    const uint32_t codes = (kSigned ? word ^ 0x88888888u : word) >> (i / 2 * 8);
    if (i % 2 == 0) return subtract_halves((codes & 0x000f000fu) | 0x64006400u, kSigned ? 0x64086408u : 0x64006400u);
    constexpr uint32_t kSixteenth = 0x2c002c00u, kMinus64 = 0xd400d400u, kMinus72 = 0xd480d480u;
    return multiply_add_halves((codes & 0x00f000f0u) | 0x64006400u, kSixteenth, kSigned ? kMinus72 : kMinus64);
  }
}

// Converts codes i and i + 4 of a word of e2m1 to two float16 that are 2^-14 times as large, exactly: the sign stays in front, the other bits
// are the last two of the exponent and the first one of the mantissa. The asm is what the compiler does not find: 10 instructions for a word.
__device__ inline uint32_t small_halves_of_e2m1(uint32_t word, int i) {
  constexpr uint32_t kBits = 0x8e008e00u;  // in each half
  uint32_t moved;
  if (i % 2 == 0) {  // the low four bits of a byte are moved up by one, then the sum carries their sign to the top
    const uint32_t low = word & 0x0f0f0f0fu;
#ifdef __CUDA_ARCH__
    asm("mad.lo.u32 %0, %1, 2, 0x70707070;" : "=r"(moved) : "r"(low));
#else
    moved = 2 * low + 0x70707070u;
#endif
  } else {  // the high four bits: all but the sign are moved down by three
#ifdef __CUDA_ARCH__
    asm("lop3.b32 %0, 0x80808080, %1, %2, 0xca;" : "=r"(moved) : "r"(word), "r"(word >> 3));
#else
    moved = (word & 0x80808080u) | (word >> 3 & 0x7f7f7f7fu);
#endif
  }
  return (i < 2 ? moved << 8 : moved) & kBits;
}

// K is the first operand of the scores, in steps of 16 channels.
template <class C, int kHeadDim>
struct Keys {
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim * 2;
  __device__ static int byte_offset(int row, int chunk) { return matrix_offset<kRowBytes>(row, chunk); }
  // Returns channel i of the four that lane t multiplies in a step.
  __device__ static int channel(int step, int t, int i) { return step * 16 + 2 * t + i % 2 + i / 2 * 8; }
  // Calls f(step, operand) for every step.
  template <class F>
  __device__ static void for_each_step(const unsigned char* rows, int lane, const F& f) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      load_matrices(a, rows + byte_offset(lane % 16, step * 2 + lane / 16));
      f(step, a);
    }
  }
};

template <DType kType, int kHeadDim>
struct Keys<Code<kType>, kHeadDim> {
  static constexpr bool kFourBits = dtype_bits(kType) == 4;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim * static_cast<int>(dtype_bits(kType)) / 8;
  static constexpr int kWords = kRowBytes / 4 / 4 < 4 ? kRowBytes / 4 / 4 : 4;  // that a lane reads at once
  static constexpr int kLoads = kRowBytes / (16 * kWords);
  static constexpr int kStepsOfWord = kFourBits ? 2 : 1;
  __device__ static int byte_offset(int row, int chunk) { return word_offset<kRowBytes>(row, chunk); }
  static constexpr int kRun = kWords * (kFourBits ? 8 : 4);  // channels that a lane reads at once: from (load * 4 + t) * kRun on
  // in_run() returns channel i of the four that a lane multiplies in a step, counted from the beginning of the run of load step /
  // kStepsOfLoad.
  static constexpr int kStepsOfLoad = kWords * kStepsOfWord;
  __device__ static constexpr int in_run(int step, int i) {
    const int word = step % kStepsOfLoad / kStepsOfWord;
    return kFourBits ? word * 8 + i / 2 + i % 2 * 4 + step % 2 * 2 : word * 4 + i;
  }
  // Loads what a lane reads at once: of rows g and g + 8.
  __device__ static void load_words(uint32_t (&words)[2][kWords], const unsigned char* rows, int lane, int load) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + half * 8;
      if constexpr (kWords == 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(rows + byte_offset(row, load * 4 + t));
        words[half][0] = four.x, words[half][1] = four.y, words[half][2] = four.z, words[half][3] = four.w;
      } else {
        const uint2 two = *reinterpret_cast<const uint2*>(rows + row * kRowBytes + t * 8);
        words[half][0] = two.x, words[half][1] = two.y;
      }
    }
  }
  template <class F>
  __device__ static void for_each_step(const unsigned char* rows, int lane, const F& f) {
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      uint32_t words[2][kWords];
      load_words(words, rows, lane, load);
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
#pragma unroll
        for (int n = 0; n < kStepsOfWord; ++n) {
          const uint32_t a[4] = {halves_of<kType>(words[0][w], 2 * n), halves_of<kType>(words[1][w], 2 * n),
                                 halves_of<kType>(words[0][w], 2 * n + 1), halves_of<kType>(words[1][w], 2 * n + 1)};
          f((load * kWords + w) * kStepsOfWord + n, a);
        }
      }
    }
  }
};

// The codes are multiplied by the scales of their blocks, in float16 and exactly: a run is whole blocks.
template <int kHeadDim>
struct Keys<BlockFp4, kHeadDim> : Keys<Int4, kHeadDim> {
  using Codes = Keys<Int4, kHeadDim>;
  static constexpr int kBlocksOfRun = Codes::kRun / kBlockChannels<BlockFp4>;
  // scales: [row][block], in float16.
  template <class F>
  __device__ static void for_each_step(const unsigned char* rows, const uint16_t* scales, int lane, const F& f) {
    constexpr int kBlocks = kHeadDim / kBlockChannels<BlockFp4>;
#pragma unroll
    for (int load = 0; load < Codes::kLoads; ++load) {
      uint32_t words[2][Codes::kWords];
      Codes::load_words(words, rows, lane, load);
      uint32_t scale_pairs[2];  // of rows g and g + 8: the one or two blocks of the run
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint16_t* const from = scales + (lane / 4 + half * 8) * kBlocks + (load * 4 + lane % 4) * kBlocksOfRun;
        scale_pairs[half] = kBlocksOfRun == 2 ? *reinterpret_cast<const uint32_t*>(from) : *from;
      }
#pragma unroll
      for (int w = 0; w < Codes::kWords; ++w) {
        const auto operand = [&](int half, int i) {
          const uint32_t scale = __byte_perm(scale_pairs[half], 0, w * 8 / kBlockChannels<BlockFp4> == 0 ? 0x1010 : 0x3232);
          return multiply_pairs<__half>(small_halves_of_e2m1(words[half][w], i), scale);
        };
#pragma unroll
        for (int n = 0; n < Codes::kStepsOfWord; ++n) {
          const uint32_t a[4] = {operand(0, 2 * n), operand(1, 2 * n), operand(0, 2 * n + 1), operand(1, 2 * n + 1)};
          f((load * Codes::kWords + w) * Codes::kStepsOfWord + n, a);
        }
      }
    }
  }
};

// Two steps are a block, whose scale multiplies their part of the score.
template <int kHeadDim>
struct Keys<BlockFp8, kHeadDim> {
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim;
  static constexpr int kRun = 4, kLoads = kSteps, kStepsOfLoad = 1;  // as in Keys<Code>
  __device__ static int byte_offset(int row, int chunk) { return matrix_offset<kRowBytes>(row, chunk); }
  __device__ static constexpr int in_run(int, int i) { return i; }
  template <class F>
  __device__ static void for_each_step(const unsigned char* rows, int lane, const F& f) {
#pragma unroll
    for (int block = 0; block < kSteps / 2; ++block) {
      uint32_t words[4];  // [chunk][row g or g + 8]
      load_matrices(words, rows + byte_offset(lane % 16, block * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint32_t a[4] = {halves_of_e4m3(words[2 * n], 0), halves_of_e4m3(words[2 * n + 1], 0),
                               halves_of_e4m3(words[2 * n], 1), halves_of_e4m3(words[2 * n + 1], 1)};
        f(block * 2 + n, a);
      }
    }
  }
};

// V is the first operand of the output, 16 channels at a time.
template <class C, int kHeadDim>
struct Values {
  static constexpr int kTiles = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim * 2;
  __device__ static int byte_offset(int row, int chunk) { return matrix_offset<kRowBytes>(row, chunk); }
  // Returns the channel of row g (half 0) or g + 8 (half 1) of a tile.
  __device__ static int channel(int tile, int g, int half) { return tile * 16 + g + half * 8; }
  template <class F>
  __device__ static void for_each_tile(const unsigned char* rows, int lane, const F& f) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint32_t a[4];
      load_matrices_transposed(a, rows + byte_offset(lane % 8 + lane / 16 * 8, tile * 2 + lane / 8 % 2));
      f(tile, a);
    }
  }
};

// Two or four neighbouring codes are one element of the matrices that are loaded and transposed.
template <DType kType, int kHeadDim>
struct Values<Code<kType>, kHeadDim> {
  static constexpr bool kFourBits = dtype_bits(kType) == 4;
  static constexpr int kTiles = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim * static_cast<int>(dtype_bits(kType)) / 8;
  __device__ static int byte_offset(int row, int chunk) { return matrix_offset<kRowBytes>(row, chunk); }
  __device__ static int channel(int tile, int g, int half) {
    return kFourBits ? tile / 2 * 32 + 4 * g + tile % 2 * 2 + half : tile * 16 + 2 * g + half;
  }
  template <class F>
  __device__ static void for_each_tile(const unsigned char* rows, int lane, const F& f) {
#pragma unroll
    for (int pair = 0; pair < kRowBytes / 32; ++pair) {
      uint32_t codes[4];  // [chunk][keys 0..7 or 8..15]
      load_matrices_transposed(codes, rows + byte_offset(lane % 16, pair * 2 + lane / 16));
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        const uint32_t low = codes[2 * chunk], high = codes[2 * chunk + 1];
        if constexpr (kFourBits) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const uint32_t a[4] = {halves_of<kType>(low, 2 * n), halves_of<kType>(low, 2 * n + 1), halves_of<kType>(high, 2 * n),
                                   halves_of<kType>(high, 2 * n + 1)};  // channel 2n or 2n + 1 of four, of two keys
            f((pair * 2 + chunk) * 2 + n, a);
          }
        } else {
          const uint32_t sorted_low = __byte_perm(low, 0, 0x3120), sorted_high = __byte_perm(high, 0, 0x3120);
          const uint32_t a[4] = {halves_of<kType>(sorted_low, 0), halves_of<kType>(sorted_low, 1),
                                 halves_of<kType>(sorted_high, 0), halves_of<kType>(sorted_high, 1)};
          f(pair * 2 + chunk, a);
        }
      }
    }
  }
};

// The codes are multiplied by the scales of their blocks, in float16 and exactly.
template <int kHeadDim>
struct Values<BlockFp4, kHeadDim> : Values<Int4, kHeadDim> {
  using Codes = Values<Int4, kHeadDim>;
  // scales: of a key group, as ValueScales has them.
  template <class F>
  __device__ static void for_each_tile(const unsigned char* rows, const uint16_t* scales, int lane, const F& f) {
    constexpr int kChunks = kHeadDim / 32;
    const uint4* const of_lane = reinterpret_cast<const uint4*>(scales + (lane / 16 * 4 + lane % 4) * kChunks * 4);
#pragma unroll
    for (int pair = 0; pair < kChunks / 2; ++pair) {
      uint32_t codes[4];  // [chunk][keys 0..7 or 8..15]
      load_matrices_transposed(codes, rows + Codes::byte_offset(lane % 16, pair * 2 + lane / 16));
      const uint4 four = of_lane[pair];
      const uint32_t factors[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        const auto operand = [&](int half, int i) {
          return multiply_pairs<__half>(small_halves_of_e2m1(codes[2 * chunk + half], i), factors[2 * chunk + half]);
        };
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const uint32_t a[4] = {operand(0, 2 * n), operand(0, 2 * n + 1), operand(1, 2 * n), operand(1, 2 * n + 1)};
          f((pair * 2 + chunk) * 2 + n, a);
        }
      }
    }
  }
};

// The scales multiply the weights.
template <int kHeadDim>
struct Values<BlockFp8, kHeadDim> : Values<Fp8E4M3, kHeadDim> {};

// A warp copies rows of K or of V to a stage. Each lane copies one chunk of every kRowsAtOnce-th row. Rows is Keys or Values.
template <int kBits, class Rows>
struct CopiedRows {
  static constexpr int kChunks = Rows::kRowBytes / 16;
  static constexpr int kRowsAtOnce = 32 / kChunks;
  const PagedHeads& side;
  int kv_head;
  int chunk = static_cast<int>(threadIdx.x) % kChunks;
  int first_row = static_cast<int>(threadIdx.x) % 32 / kChunks;
  bool wanted;  // there is such a chunk

  __device__ CopiedRows(const PagedHeads& side, int kv_head, int num_chunks)
      : side(side), kv_head(kv_head), wanted(chunk < num_chunks) {}
  __device__ static uint64_t bytes(uint64_t elements) { return kBits >= 8 ? elements * (kBits / 8) : elements / (8 / kBits); }
  // Returns where this lane's chunk of a token is. The page and the offset are not negative.
  __device__ const unsigned char* at(int page, int offset) const {
    const auto product = [](int a, int64_t b) { return uint64_t{static_cast<uint32_t>(a)} * static_cast<uint64_t>(b); };
    const uint64_t elements =
        product(page, side.strides.page) + product(offset, side.strides.token) + product(kv_head, side.strides.head);
    return static_cast<const unsigned char*>(side.data) + bytes(elements) + chunk * 16;
  }

  // Copies 16 rows of one page: num_needed rows of the stage from first_needed on, or all of them (kAll). The others become zeros. With
  // kAlsoV the rows of V, which are `distance_to_v` bytes after those of K, are copied to `to_v` in the same way.
  template <bool kAll, bool kAlsoV>
  __device__ void copy_group(unsigned char* to, int group, const unsigned char* row_from, int first_needed, unsigned num_needed,
                             unsigned char* to_v = nullptr, int64_t distance_to_v = 0) const {
    if (!wanted) return;
#pragma unroll
    for (int i = 0; i < kKeyGroup / kRowsAtOnce; ++i) {
      const int row = group * kKeyGroup + i * kRowsAtOnce + first_row;
      const bool there = kAll || static_cast<unsigned>(row - first_needed) < num_needed;
      copy_or_clear(to + Rows::byte_offset(row, chunk), row_from, there);
      if constexpr (kAlsoV) copy_or_clear(to_v + Rows::byte_offset(row, chunk), row_from + distance_to_v, there);
      row_from += bytes(kRowsAtOnce * static_cast<uint64_t>(side.strides.token));
    }
  }

  // Copies row after row. Lane `row` knows the page of a row and its offset there. A row without a page becomes zeros.
  __device__ void copy_each(unsigned char* to, int num_rows, int page, int offset) const {
#pragma unroll 2
    for (int first = 0; first < num_rows; first += kRowsAtOnce) {
      const int row = first + first_row;
      const int page_of_row = __shfl_sync(0xffffffffu, page, row), offset_of_row = __shfl_sync(0xffffffffu, offset, row);
      if (wanted) copy_or_clear(to + Rows::byte_offset(row, chunk), at(max(0, page_of_row), offset_of_row), page_of_row >= 0);
    }
  }
};

}  // namespace prologue::cuda
