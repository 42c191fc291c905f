// This file has the inner loops of the product with packed weights, for one instruction set. Included once by each file that has one, after
// it has defined
//
//   struct Bytes    64 bytes: 4 adjacent codes of 16 rows of weights
//   struct Ints     16 int32, one for each row of weights
//   struct Words    16 pairs of int16, the same
//   struct Floats   16 floats, the same
//
// and the functions on them that are used below. A lane is a row of weights from the first instruction to the last, so nothing is
// ever added across lanes, and each lane does what one scalar loop over k would do. That is why all instruction sets give the same
// bits: integers are exact, and every float operation here is one rounding.
//
// Everything is in an unnamed namespace and calls no inline function from elsewhere: the linker would merge copies of those that were
// compiled for different processors.

namespace prologue::cpu {
namespace {

// Points to the tile's rows of x, at one block (QuantizedRows has the layout).
template <int ROWS>
struct RowsAt {
  const int8_t* codes;
  const float* scales;
  const int32_t* sums;
  const int16_t* sums_of_16;
  const float* values;  // not quantised

  const int8_t* four(int row, int i) const { return codes + i * ROWS + 4 * row; }  // codes i to i + 3; i is a multiple of 4
  float scale(int row, int i = 0) const { return scales[i * ROWS + row]; }
  int32_t sum(int row, int i = 0) const { return sums[i * ROWS + row]; }
  const int16_t* two_sums(int row, int i) const { return sums_of_16 + i * ROWS + 2 * row; }  // i and i + 1; i is even
  float value(int row, int i) const { return values[i * ROWS + row]; }
};

constexpr int64_t kRows = 16;  // of a group

// Weights are prefetched to the L2 cache so far ahead. The processor does not detect by itself that a block of Q5_K or Q6_K, of which
// several fields are read at once, is read as a whole.
constexpr int64_t kPrefetchBytes = 8192;

// Prefetches part `part` of `parts` of a block.
inline void prefetch_part(const uint8_t* block, int64_t block_bytes, int64_t part = 0, int64_t parts = 1) {
  const int64_t lines = (kRows * block_bytes + 63) / 64;
  for (int64_t line = lines * part / parts; line < lines * (part + 1) / parts; ++line) {
    __builtin_prefetch(block + kPrefetchBytes + 64 * line, 0, 2);
  }
}

// Starts `dots` with offset * the sum of the codes of x in part `part` of 32 values.
template <int ROWS>
inline void start_dots(Ints (&dots)[ROWS], int32_t offset, const RowsAt<ROWS>& x, int part = 0) {
  for (int r = 0; r < ROWS; ++r) dots[r] = offset == 0 ? broadcast(0) : multiply(broadcast(offset), broadcast(x.sum(r, part)));
}
// Does the same where sums are of 16 values: with the even one and the odd one of the pair of sums that begins with `even`.
template <int ROWS>
inline void start_dots(Ints (&dots)[ROWS], int16_t even_offset, int16_t odd_offset, const RowsAt<ROWS>& x, int even) {
  for (int r = 0; r < ROWS; ++r) dots[r] = add_dot(broadcast(0), broadcast(even_offset, odd_offset), x.two_sums(r, even));
}

// Adds what sums of codes times codes of x are, with the scale of block `part` of x.
template <int ROWS>
inline void add_products(Floats (&y)[ROWS], const Ints (&dots)[ROWS], const Floats& scale, const RowsAt<ROWS>& x, int part = 0) {
  for (int r = 0; r < ROWS; ++r) {
    y[r] = add(y[r], multiply(to_floats(dots[r]), multiply(scale, broadcast(x.scale(r, part)))));
  }
}

// A block is: scale | 32 x int8.
struct Q8_0 {
  static constexpr int64_t kBlock = 32, kXBlock = 32, kBytes = 34;

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    Ints dots[ROWS];
    start_dots(dots, kSignedStart, x);
    for (int c = 0; c < 8; ++c) {
      const Bytes codes = load_bytes(block + 2 * kRows + 64 * c);
      for (int r = 0; r < ROWS; ++r) dots[r] = add_dot_signed(dots[r], codes, x.four(r, 4 * c));
    }
    const Floats scale = load_halves(block);
    add_products(y, dots, scale, x);
  }
};

// A block is: scale | minimum, if MINIMUM | fifth bits, if FIFTH | 32 x 4 bits. Without a minimum, codes are signed.
template <bool MINIMUM, bool FIFTH>
struct Nibbles {
  static constexpr int64_t kBlock = 32, kXBlock = 32, kBytes = 2 + (MINIMUM ? 2 : 0) + (FIFTH ? 4 : 0) + 16;
  static constexpr int32_t kOffset = MINIMUM ? 0 : FIFTH ? 16 : 8;

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    const uint8_t* fifth_bits = block + (MINIMUM ? 4 : 2) * kRows;
    const uint8_t* nibbles = fifth_bits + (FIFTH ? 4 : 0) * kRows;
    Ints dots[ROWS];
    start_dots(dots, -kOffset, x);
    for (int c = 0; c < 4; ++c) {
      const Bytes both = load_bytes(nibbles + 64 * c);
      Bytes low = low_nibbles(both), high = high_nibbles(both);
      if constexpr (FIFTH) {
        const Bytes words = load_bytes(fifth_bits);
        low = with_fifth_bits(low, words, c);
        high = with_fifth_bits(high, words, c + 4);
      }
      for (int r = 0; r < ROWS; ++r) {
        dots[r] = add_dot(dots[r], low, x.four(r, 4 * c));
        dots[r] = add_dot(dots[r], high, x.four(r, 16 + 4 * c));
      }
    }
    const Floats scale = load_halves(block);
    add_products(y, dots, scale, x);
    if constexpr (MINIMUM) {
      const Floats minimum = load_halves(block + 2 * kRows);
      for (int r = 0; r < ROWS; ++r) {
        y[r] = add(y[r], multiply(minimum, multiply(broadcast(x.scale(r)), to_floats(broadcast(x.sum(r))))));
      }
    }
  }
};

// A block is: scale | minimum | scales and minimums of 8 parts | fifth bits, if FIFTH | 256 x 4 bits
template <bool FIFTH>
struct Parts {
  static constexpr int64_t kBlock = 256, kXBlock = 256, kBytes = 2 + 2 + 12 + (FIFTH ? 32 : 0) + 128;
  static constexpr bool kPrefetches = true;

  // part_scale() and part_minimum() are those of part PART.
  template <int PART>
  static Ints part_scale(const uint8_t* packed) {
    if constexpr (PART < 4) return low_six_bits(load_row_bytes(packed + PART * kRows));
    return six_bits_of_two(low_nibbles_of(load_row_bytes(packed + (PART + 4) * kRows)),
                           load_row_bytes(packed + (PART - 4) * kRows));
  }
  template <int PART>
  static Ints part_minimum(const uint8_t* packed) {
    if constexpr (PART < 4) return low_six_bits(load_row_bytes(packed + (PART + 4) * kRows));
    return six_bits_of_two(high_nibbles_of(load_row_bytes(packed + (PART + 4) * kRows)), load_row_bytes(packed + PART * kRows));
  }

  // Adds to `dots`: scale of the part * (its codes times those of x), for the low nibbles of a pair of parts, or the high ones: sums of both,
  // for 8 rows, would not fit into the registers.
  template <bool HIGH, int ROWS>
  static void add_part(const uint8_t* block, int pair, const Ints& scale, const RowsAt<ROWS>& x, Ints (&dots)[ROWS]) {
    const uint8_t* fifth_bits = block + 16 * kRows;
    const uint8_t* nibbles = fifth_bits + ((FIFTH ? 32 : 0) + 32 * pair) * kRows;
    Ints sums[ROWS];
    for (Ints& sum : sums) sum = broadcast(0);
    for (int c = 0; c < 8; ++c) {
      const Bytes both = load_bytes(nibbles + 64 * c);
      Bytes codes = HIGH ? high_nibbles(both) : low_nibbles(both);
      if constexpr (FIFTH)
        codes = either(codes, bit_as_16 < HIGH ? 1 : 0 > (shifted_right(load_bytes(fifth_bits + 64 * c), 2 * pair)));
      for (int r = 0; r < ROWS; ++r) sums[r] = add_dot(sums[r], codes, x.four(r, 64 * pair + (HIGH ? 32 : 0) + 4 * c));
    }
    for (int r = 0; r < ROWS; ++r) dots[r] = add(dots[r], multiply(scale, sums[r]));
  }

  // Adds to `dots`: minimum of the part * the sum of the codes of x there.
  template <int PART, int ROWS>
  static void add_minimum(const uint8_t* block, const RowsAt<ROWS>& x, Ints (&dots)[ROWS]) {
    const Ints minimum = part_minimum<PART>(block + 4 * kRows);
    const Words both = pairs(minimum, minimum);
    for (int r = 0; r < ROWS; ++r) dots[r] = add_dot(dots[r], both, x.two_sums(r, 2 * PART));
  }

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    Ints dots[ROWS];
    for (Ints& sum : dots) sum = broadcast(0);
    const uint8_t* const packed = block + 4 * kRows;
    const Ints scales[8] = {part_scale<0>(packed), part_scale<1>(packed), part_scale<2>(packed), part_scale<3>(packed),
                            part_scale<4>(packed), part_scale<5>(packed), part_scale<6>(packed), part_scale<7>(packed)};
    for (int pair = 0; pair < 4; ++pair) {
      prefetch_part(block, kBytes, pair, 4);
      add_part<false>(block, pair, scales[2 * pair], x, dots);
      add_part<true>(block, pair, scales[2 * pair + 1], x, dots);
    }
    const Floats scale = load_halves(block);
    add_products(y, dots, scale, x);

    for (Ints& sum : dots) sum = broadcast(0);
    add_minimum<0>(block, x, dots);
    add_minimum<1>(block, x, dots);
    add_minimum<2>(block, x, dots);
    add_minimum<3>(block, x, dots);
    add_minimum<4>(block, x, dots);
    add_minimum<5>(block, x, dots);
    add_minimum<6>(block, x, dots);
    add_minimum<7>(block, x, dots);
    const Floats minimum = load_halves(block + 2 * kRows);
    for (int r = 0; r < ROWS; ++r) {
      y[r] = subtract(y[r], multiply(to_floats(dots[r]), multiply(minimum, broadcast(x.scale(r)))));
    }
  }
};

// A block is two halves of 128 values: 64 bytes of low nibbles each | two halves: 32 bytes of upper pairs of bits | 16 scales, each of 16
// values | scale. A half is four runs of 32 values; runs 0 and 1 are the low nibbles of the 64 bytes, runs 2 and 3 the high ones. Codes
// have the offset 32.
struct Q6K {
  static constexpr int64_t kBlock = 256, kXBlock = 256, kBytes = 210;
  static constexpr bool kPrefetches = true;

  // Adds to `dots`: scale * (codes times those of x), for the two times 16 values of one run of a half.
  template <int RUN, int ROWS>
  static void add_run(const uint8_t* block, int half, const RowsAt<ROWS>& x, Ints (&dots)[ROWS]) {
    const uint8_t* nibbles = block + (64 * half + 32 * (RUN % 2)) * kRows;
    const uint8_t* pairs = block + (128 + 32 * half) * kRows;
    prefetch_part(block, kBytes, 4 * half + RUN, 8);
    for (int part = 0; part < 2; ++part) {
      const int sixteen = 8 * half + 2 * RUN + part;
      Ints sums[ROWS];
      start_dots(sums, part == 0 ? -32 : 0, part == 0 ? 0 : -32, x, sixteen - part);
      for (int c = 0; c < 4; ++c) {
        const Bytes both = load_bytes(nibbles + 64 * (4 * part + c));
        const Bytes low = RUN < 2 ? low_nibbles(both) : high_nibbles(both);
        const Bytes codes = either(low, pair_as_48<RUN>(load_bytes(pairs + 64 * (4 * part + c))));
        for (int r = 0; r < ROWS; ++r) sums[r] = add_dot(sums[r], codes, x.four(r, 16 * sixteen + 4 * c));
      }
      const Ints scale = load_row_int8(block + (192 + sixteen) * kRows);
      for (int r = 0; r < ROWS; ++r) dots[r] = add(dots[r], multiply(scale, sums[r]));
    }
  }

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    Ints dots[ROWS];
    for (Ints& sum : dots) sum = broadcast(0);
    for (int half = 0; half < 2; ++half) {
      add_run<0>(block, half, x, dots);
      add_run<1>(block, half, x, dots);
      add_run<2>(block, half, x, dots);
      add_run<3>(block, half, x, dots);
    }
    const Floats scale = load_halves(block + 208 * kRows);
    add_products(y, dots, scale, x);
  }
};

// A block is: scale | 128 x int8. Each 32 of x have a scale.
struct I8 {
  static constexpr int64_t kBlock = 128, kXBlock = 32, kBytes = 132;

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    const Floats scale = load_floats(block);
    for (int part = 0; part < 4; ++part) {
      Ints dots[ROWS];
      start_dots(dots, kSignedStart, x, part);
      for (int c = 8 * part; c < 8 * part + 8; ++c) {
        const Bytes codes = load_bytes(block + 4 * kRows + 64 * c);
        for (int r = 0; r < ROWS; ++r) dots[r] = add_dot_signed(dots[r], codes, x.four(r, 4 * c));
      }
      add_products(y, dots, scale, x, part);
    }
  }
};

// A block is: scale | zero point | BLOCK x 4 bits. Each 32 of x have a scale.
template <int64_t BLOCK>
struct Int4 {
  static constexpr int64_t kBlock = BLOCK, kXBlock = 32, kBytes = 2 + 1 + BLOCK / 2;

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    const Floats scale = load_halves(block);
    const Ints minus_zero = multiply(widened(load_row_bytes(block + 2 * kRows)), broadcast(-1));
    const uint8_t* nibbles = block + 3 * kRows;
    for (int part = 0; part < BLOCK / 32; ++part) {
      Ints dots[ROWS];
      for (int r = 0; r < ROWS; ++r) dots[r] = multiply(minus_zero, broadcast(x.sum(r, part)));
      for (int c = 0; c < 4; ++c) {
        const Bytes both = load_bytes(nibbles + 256 * part + 64 * c);
        const Bytes low = low_nibbles(both), high = high_nibbles(both);
        for (int r = 0; r < ROWS; ++r) {
          dots[r] = add_dot(dots[r], low, x.four(r, 32 * part + 4 * c));
          dots[r] = add_dot(dots[r], high, x.four(r, 32 * part + 16 + 4 * c));
        }
      }
      add_products(y, dots, scale, x, part);
    }
  }
};

// A block is: scale | 128 x float8_e4m3fn. The products of even k are one sum, those of odd k another one. x is not quantised; if SCALED, it is
// codes as numbers, with a scale for each block.
template <bool SCALED>
struct F8 {
  static constexpr int64_t kBlock = 128, kXBlock = 1, kBytes = 132;
  static constexpr bool kScaledValues = SCALED;

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    Floats even[ROWS], odd[ROWS];
    for (int r = 0; r < ROWS; ++r) even[r] = odd[r] = broadcast(0.0f);
    for (int c = 0; c < 32; ++c) {
      Floats codes[4];
      load_e4m3(block + 4 * kRows + 64 * c, codes);
      for (int r = 0; r < ROWS; ++r) {
        even[r] = add(even[r], multiply(codes[0], broadcast(x.value(r, 4 * c))));
        odd[r] = add(odd[r], multiply(codes[1], broadcast(x.value(r, 4 * c + 1))));
        even[r] = add(even[r], multiply(codes[2], broadcast(x.value(r, 4 * c + 2))));
        odd[r] = add(odd[r], multiply(codes[3], broadcast(x.value(r, 4 * c + 3))));
      }
    }
    const Floats scale = load_floats(block);
    const Floats to_codes = broadcast(256.0f);
    for (int r = 0; r < ROWS; ++r) {
      Floats by = scale;
      if constexpr (SCALED) by = multiply(scale, broadcast(x.scale(r)));
      y[r] = add(y[r], multiply(multiply(add(even[r], odd[r]), to_codes), by));
    }
  }
};

// A block is: 16 scales and minimums, of four bits each | two halves: 32 bytes of pairs of bits | scale | minimum. A half is four runs of 32
// values, run r in pair r of the bytes; each 16 values have a scale and a minimum.
struct Q2K {
  static constexpr int64_t kBlock = 256, kXBlock = 256, kBytes = 84;
  static constexpr bool kPrefetches = true;

  // Adds to `dots`: scale * (codes times those of x), for the two times 16 values of one run of a half.
  template <int RUN, int ROWS>
  static void add_run(const uint8_t* block, int half, const RowsAt<ROWS>& x, Ints (&dots)[ROWS]) {
    prefetch_part(block, kBytes, 4 * half + RUN, 8);
    for (int part = 0; part < 2; ++part) {
      const int sixteen = 8 * half + 2 * RUN + part;
      Ints sums[ROWS];
      for (Ints& sum : sums) sum = broadcast(0);
      for (int c = 0; c < 4; ++c) {
        const Bytes codes = pair_of<RUN>(load_bytes(block + (16 + 32 * half + 16 * part + 4 * c) * kRows));
        for (int r = 0; r < ROWS; ++r) sums[r] = add_dot(sums[r], codes, x.four(r, 16 * sixteen + 4 * c));
      }
      const Ints scale = widened(low_nibbles_of(load_row_bytes(block + sixteen * kRows)));
      for (int r = 0; r < ROWS; ++r) dots[r] = add(dots[r], multiply(scale, sums[r]));
    }
  }

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    Ints dots[ROWS];
    for (Ints& sum : dots) sum = broadcast(0);
    for (int half = 0; half < 2; ++half) {
      add_run<0>(block, half, x, dots);
      add_run<1>(block, half, x, dots);
      add_run<2>(block, half, x, dots);
      add_run<3>(block, half, x, dots);
    }
    const Floats scale = load_halves(block + 80 * kRows);
    add_products(y, dots, scale, x);

    for (Ints& sum : dots) sum = broadcast(0);
    for (int even = 0; even < 16; even += 2) {
      const Words minimums = pairs(widened(high_nibbles_of(load_row_bytes(block + even * kRows))),
                                   widened(high_nibbles_of(load_row_bytes(block + (even + 1) * kRows))));
      for (int r = 0; r < ROWS; ++r) dots[r] = add_dot(dots[r], minimums, x.two_sums(r, even));
    }
    const Floats minimum = load_halves(block + 82 * kRows);
    for (int r = 0; r < ROWS; ++r) {
      y[r] = subtract(y[r], multiply(to_floats(dots[r]), multiply(minimum, broadcast(x.scale(r)))));
    }
  }
};

// A block is: 32 bytes of third bits, bit i of run i | pairs of bits, as of Q2_K | scales of six bits: 8 bytes of two nibbles, those of the first
// 8 scales and of the last 8; 4 bytes of their upper pairs of bits | scale. Codes have the offset 4, scales of parts 32.
struct Q3K {
  static constexpr int64_t kBlock = 256, kXBlock = 256, kBytes = 110;
  static constexpr bool kPrefetches = true;

  template <int SIXTEEN>
  static Ints part_scale(const uint8_t* scales) {
    const RowBytes both = load_row_bytes(scales + SIXTEEN % 8 * kRows);
    return signed_six_bits<SIXTEEN / 4>(SIXTEEN < 8 ? low_nibbles_of(both) : high_nibbles_of(both),
                                        load_row_bytes(scales + (8 + SIXTEEN % 4) * kRows));
  }

  // Adds to `dots`: scale * (codes times those of x), for the two times 16 values of one run of a half.
  template <int RUN, int ROWS>
  static void add_run(const uint8_t* block, int half, const Ints* scales, const RowsAt<ROWS>& x, Ints (&dots)[ROWS]) {
    prefetch_part(block, kBytes, 4 * half + RUN, 8);
    for (int part = 0; part < 2; ++part) {
      const int sixteen = 8 * half + 2 * RUN + part;
      Ints sums[ROWS];
      start_dots(sums, part == 0 ? -4 : 0, part == 0 ? 0 : -4, x, sixteen - part);
      for (int c = 0; c < 4; ++c) {
        const Bytes pairs = pair_of<RUN>(load_bytes(block + (32 + 32 * half + 16 * part + 4 * c) * kRows));
        const Bytes third_bits = shifted_right(load_bytes(block + (16 * part + 4 * c) * kRows), 4 * half);
        const Bytes codes = either(pairs, bit_as_4<RUN>(third_bits));
        for (int r = 0; r < ROWS; ++r) sums[r] = add_dot(sums[r], codes, x.four(r, 16 * sixteen + 4 * c));
      }
      for (int r = 0; r < ROWS; ++r) dots[r] = add(dots[r], multiply(scales[sixteen], sums[r]));
    }
  }

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    const uint8_t* const packed = block + 96 * kRows;
    const Ints scales[16] = {part_scale<0>(packed),  part_scale<1>(packed),  part_scale<2>(packed),  part_scale<3>(packed),
                             part_scale<4>(packed),  part_scale<5>(packed),  part_scale<6>(packed),  part_scale<7>(packed),
                             part_scale<8>(packed),  part_scale<9>(packed),  part_scale<10>(packed), part_scale<11>(packed),
                             part_scale<12>(packed), part_scale<13>(packed), part_scale<14>(packed), part_scale<15>(packed)};
    Ints dots[ROWS];
    for (Ints& sum : dots) sum = broadcast(0);
    for (int half = 0; half < 2; ++half) {
      add_run<0>(block, half, scales, x, dots);
      add_run<1>(block, half, scales, x, dots);
      add_run<2>(block, half, scales, x, dots);
      add_run<3>(block, half, scales, x, dots);
    }
    const Floats scale = load_halves(block + 108 * kRows);
    add_products(y, dots, scale, x);
  }
};

// The values of the codes of IQ4_NL and IQ4_XS; twice those of MXFP4 and NVFP4, and 12, so that none is negative.
alignas(16) constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
alignas(16) constexpr int8_t kFp4Values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// Adds to `dots` the values of 32 codes times those of x, of which `nibbles` has the first 16 in the low nibbles.
template <int ROWS>
inline void add_iq4(const uint8_t* nibbles, const RowsAt<ROWS>& x, int first, Ints (&dots)[ROWS]) {
  for (int c = 0; c < 4; ++c) {
    const Bytes both = load_bytes(nibbles + 64 * c);
    const Bytes low = values_of(low_nibbles(both), kIq4Values), high = values_of(high_nibbles(both), kIq4Values);
    for (int r = 0; r < ROWS; ++r) {
      dots[r] = add_dot_signed(dots[r], low, x.four(r, first + 4 * c));
      dots[r] = add_dot_signed(dots[r], high, x.four(r, first + 16 + 4 * c));
    }
  }
}

// A block is: scale | 32 x 4 bits.
struct Iq4Nl {
  static constexpr int64_t kBlock = 32, kXBlock = 32, kBytes = 18;

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    Ints dots[ROWS];
    start_dots(dots, kSignedStart, x);
    add_iq4(block + 2 * kRows, x, 0, dots);
    const Floats scale = load_halves(block);
    add_products(y, dots, scale, x);
  }
};

// A block is: scale | upper pairs of the bits of 8 scales of parts | their lower nibbles | 8 parts of 32 x 4 bits. Scales of parts have the
// offset 32.
struct Iq4Xs {
  static constexpr int64_t kBlock = 256, kXBlock = 256, kBytes = 136;
  static constexpr bool kPrefetches = true;

  template <int PART>
  static Ints part_scale(const uint8_t* block) {
    const RowBytes both = load_row_bytes(block + (4 + PART / 2) * kRows);
    return signed_six_bits<PART % 4>(PART % 2 == 0 ? low_nibbles_of(both) : high_nibbles_of(both),
                                     load_row_bytes(block + (2 + PART / 4) * kRows));
  }

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    const Ints scales[8] = {part_scale<0>(block), part_scale<1>(block), part_scale<2>(block), part_scale<3>(block),
                            part_scale<4>(block), part_scale<5>(block), part_scale<6>(block), part_scale<7>(block)};
    Ints dots[ROWS];
    for (Ints& sum : dots) sum = broadcast(0);
    for (int part = 0; part < 8; ++part) {
      prefetch_part(block, kBytes, part, 8);
      Ints sums[ROWS];
      start_dots(sums, kSignedStart, kSignedStart, x, 2 * part);
      add_iq4(block + (8 + 16 * part) * kRows, x, 32 * part, sums);
      for (int r = 0; r < ROWS; ++r) dots[r] = add(dots[r], multiply(scales[part], sums[r]));
    }
    const Floats scale = load_halves(block);
    add_products(y, dots, scale, x);
  }
};

// A block is: exponent of the scale | 32 x 4 bits.
struct Mxfp4 {
  static constexpr int64_t kBlock = 32, kXBlock = 32, kBytes = 17;

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    Ints dots[ROWS];
    start_dots(dots, -12, x);
    for (int c = 0; c < 4; ++c) {
      const Bytes both = load_bytes(block + kRows + 64 * c);
      const Bytes low = values_of(low_nibbles(both), kFp4Values), high = values_of(high_nibbles(both), kFp4Values);
      for (int r = 0; r < ROWS; ++r) {
        dots[r] = add_dot(dots[r], low, x.four(r, 4 * c));
        dots[r] = add_dot(dots[r], high, x.four(r, 16 + 4 * c));
      }
    }
    const Floats half_scale = load_half_powers(block);
    add_products(y, dots, half_scale, x);
  }
};

// A block is: scale of the tensor | 16 scales, float8_e4m3fn, each of 16 values | 8 parts of 32 x 4 bits.
struct Nvfp4 {
  static constexpr int64_t kBlock = 256, kXBlock = 256, kBytes = 148;
  static constexpr bool kPrefetches = true;

  // Adds to `sums` what 16 values are: those of the low nibbles of a part, or of the high ones.
  template <bool HIGH, int ROWS>
  static void add_sixteen(const uint8_t* block, int part, const RowsAt<ROWS>& x, Floats (&sums)[ROWS]) {
    const int sixteen = 2 * part + (HIGH ? 1 : 0);
    Ints dots[ROWS];
    start_dots(dots, HIGH ? 0 : -12, HIGH ? -12 : 0, x, 2 * part);
    for (int c = 0; c < 4; ++c) {
      const Bytes both = load_bytes(block + (20 + 16 * part + 4 * c) * kRows);
      const Bytes codes = values_of(HIGH ? high_nibbles(both) : low_nibbles(both), kFp4Values);
      for (int r = 0; r < ROWS; ++r) dots[r] = add_dot(dots[r], codes, x.four(r, 16 * sixteen + 4 * c));
    }
    const Floats scale = load_row_e4m3(block + (4 + sixteen) * kRows);
    for (int r = 0; r < ROWS; ++r) sums[r] = add(sums[r], multiply(to_floats(dots[r]), scale));
  }

  template <int ROWS>
  static void add_block(const uint8_t* block, const RowsAt<ROWS>& x, Floats (&y)[ROWS]) {
    Floats sums[ROWS];  // of half of the codes' values times 1/256 of the scales
    for (Floats& sum : sums) sum = broadcast(0.0f);
    for (int part = 0; part < 8; ++part) {
      prefetch_part(block, kBytes, part, 8);
      add_sixteen<false>(block, part, x, sums);
      add_sixteen<true>(block, part, x, sums);
    }
    const Floats scale = load_floats(block), to_values = broadcast(128.0f);
    for (int r = 0; r < ROWS; ++r) {
      y[r] = add(y[r], multiply(multiply(sums[r], to_values), multiply(scale, broadcast(x.scale(r)))));
    }
  }
};

template <class Format, int ROWS>
void product(const uint8_t* group, const QuantizedRows& x, int64_t row, float* y) {
  constexpr bool kQuantized = Format::kXBlock > 1, kSumsOf16 = Format::kXBlock == 256;
  const int64_t num_blocks = x.k / Format::kBlock;
  RowsAt<ROWS> at{};
  if constexpr (kQuantized) {
    at.codes = x.codes + row * x.k, at.scales = x.scales + row * (x.k / Format::kXBlock);
    if constexpr (kSumsOf16) at.sums_of_16 = x.sums_of_16 + row * (x.k / 16);
    if constexpr (!kSumsOf16) at.sums = x.sums + row * (x.k / 32);
  } else {
    at.values = x.values + row * x.k;
    if constexpr (Format::kScaledValues) at.scales = x.scales + row * num_blocks;
  }
  Floats sums[ROWS];
  for (Floats& sum : sums) sum = broadcast(0.0f);
  for (int64_t b = 0; b < num_blocks; ++b) {
    if constexpr (!requires { Format::kPrefetches; }) prefetch_part(group, Format::kBytes);
    Format::add_block(group, at, sums);
    group += kRows * Format::kBytes;
    if constexpr (kQuantized) {
      at.codes += ROWS * Format::kBlock;
      at.scales += ROWS * (Format::kBlock / Format::kXBlock);
      if constexpr (kSumsOf16) at.sums_of_16 += ROWS * (Format::kBlock / 16);
      if constexpr (!kSumsOf16) at.sums += ROWS * (Format::kBlock / 32);
    } else {
      at.values += ROWS * Format::kBlock;
      if constexpr (Format::kScaledValues) at.scales += ROWS;
    }
  }
  for (int r = 0; r < ROWS; ++r) store(y + r * kRows, sums[r]);
}

template <class Format>
constexpr void set_products(GroupProduct (&products)[kMaxTileRows]) {
  products[0] = product<Format, 1>;
  products[1] = product<Format, 2>;
  products[2] = product<Format, 3>;
  products[3] = product<Format, 4>;
  products[4] = product<Format, 5>;
  products[5] = product<Format, 6>;
  products[6] = product<Format, 7>;
  products[7] = product<Format, 8>;
}

constexpr QuantizedKernels make_kernels(const char* instructions) {
  QuantizedKernels kernels = {instructions, {}, {}};
  set_products<Q8_0>(kernels.products[0]);
  set_products<Nibbles<false, false>>(kernels.products[1]);
  set_products<Nibbles<true, false>>(kernels.products[2]);
  set_products<Nibbles<false, true>>(kernels.products[3]);
  set_products<Nibbles<true, true>>(kernels.products[4]);
  set_products<Parts<false>>(kernels.products[5]);
  set_products<Parts<true>>(kernels.products[6]);
  set_products<Q6K>(kernels.products[7]);
  set_products<F8<false>>(kernels.products[8]);
  set_products<I8>(kernels.products[9]);
  set_products<Q2K>(kernels.products[10]);
  set_products<Q3K>(kernels.products[11]);
  set_products<Iq4Nl>(kernels.products[12]);
  set_products<Iq4Xs>(kernels.products[13]);
  set_products<Mxfp4>(kernels.products[14]);
  set_products<Int4<32>>(kernels.products[15]);
  set_products<Int4<64>>(kernels.products[16]);
  set_products<Int4<128>>(kernels.products[17]);
  set_products<F8<true>>(kernels.float8_products);
  set_products<Nvfp4>(kernels.products[18]);
  return kernels;
}

}  // namespace
}  // namespace prologue::cpu
