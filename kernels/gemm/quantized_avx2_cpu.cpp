// This file has the products for AVX2. CMake compiles this file for these instructions; it runs only where the processor has them.
#include <prologue/kernels/gemm/quantized_cpu.h>

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

namespace prologue::cpu {
namespace {

// Holds two registers: rows 0..7 and rows 8..15.
struct Bytes {
  __m256i v[2];
};
struct Ints {
  __m256i v[2];
};
struct Words {
  __m256i v[2];
};
struct Floats {
  __m256 v[2];
};
struct RowBytes {
  __m128i v;
};

inline Bytes load_bytes(const uint8_t* p) {
  return {
      {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))}};
}
inline __m256i masked(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask))); }
inline Bytes low_nibbles(Bytes b) { return {{masked(b.v[0], 15), masked(b.v[1], 15)}}; }
inline Bytes high_nibbles(Bytes b) {
  return {{masked(_mm256_srli_epi16(b.v[0], 4), 15), masked(_mm256_srli_epi16(b.v[1], 4), 15)}};
}
// Returns bits `count` to 7 of each byte. What comes above them is not defined.
inline Bytes shifted_right(Bytes b, int count) {
  return {{_mm256_srl_epi16(b.v[0], _mm_cvtsi32_si128(count)), _mm256_srl_epi16(b.v[1], _mm_cvtsi32_si128(count))}};
}
inline Bytes either(Bytes a, Bytes b) { return {{_mm256_or_si256(a.v[0], b.v[0]), _mm256_or_si256(a.v[1], b.v[1])}}; }

// Adds 16 to code j of a row where bit 4 * chunk + j of its word is set.
inline Bytes with_fifth_bits(Bytes codes, Bytes words, int chunk) {
  const __m256i byte_of_word =
      _mm256_add_epi8(_mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c),
                      _mm256_set1_epi8(static_cast<char>(chunk / 2)));
  const __m256i bits = _mm256_set1_epi32(chunk % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010));
  Bytes result;
  for (int i = 0; i < 2; ++i) {
    const __m256i found = _mm256_and_si256(_mm256_shuffle_epi8(words.v[i], byte_of_word), bits);
    result.v[i] = _mm256_or_si256(codes.v[i], masked(_mm256_cmpeq_epi8(found, bits), 16));
  }
  return result;
}

// Returns bit BIT of each byte, as 16.
template <int BIT>
inline Bytes bit_as_16(Bytes b) {
  Bytes result;
  for (int i = 0; i < 2; ++i) {
    result.v[i] =
        masked(BIT < 4 ? _mm256_slli_epi16(b.v[i], BIT < 4 ? 4 - BIT : 0) : _mm256_srli_epi16(b.v[i], BIT < 4 ? 0 : BIT - 4), 16);
  }
  return result;
}

// Returns pair PAIR of the bits of each byte, at bits 4 and 5.
template <int PAIR>
inline Bytes pair_as_48(Bytes b) {
  Bytes result;
  for (int i = 0; i < 2; ++i) {
    result.v[i] = masked(PAIR < 2 ? _mm256_slli_epi16(b.v[i], PAIR < 2 ? 4 - 2 * PAIR : 0)
                                  : _mm256_srli_epi16(b.v[i], PAIR < 2 ? 0 : 2 * PAIR - 4),
                         48);
  }
  return result;
}

// Returns pair PAIR of the bits of each byte; bit BIT, as 4.
template <int PAIR>
inline Bytes pair_of(Bytes b) {
  return {{masked(_mm256_srli_epi16(b.v[0], 2 * PAIR), 3), masked(_mm256_srli_epi16(b.v[1], 2 * PAIR), 3)}};
}
template <int BIT>
inline Bytes bit_as_4(Bytes b) {
  Bytes result;
  for (int i = 0; i < 2; ++i) {
    result.v[i] =
        masked(BIT < 2 ? _mm256_slli_epi16(b.v[i], BIT < 2 ? 2 - BIT : 0) : _mm256_srli_epi16(b.v[i], BIT < 2 ? 0 : BIT - 2), 4);
  }
  return result;
}
inline Bytes values_of(Bytes nibbles, const int8_t (&values)[16]) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(values)));
  return {{_mm256_shuffle_epi8(table, nibbles.v[0]), _mm256_shuffle_epi8(table, nibbles.v[1])}};
}

inline Ints broadcast(int32_t x) { return {{_mm256_set1_epi32(x), _mm256_set1_epi32(x)}}; }
inline Ints add(Ints a, Ints b) { return {{_mm256_add_epi32(a.v[0], b.v[0]), _mm256_add_epi32(a.v[1], b.v[1])}}; }
inline Words broadcast(int16_t even, int16_t odd) {
  const __m256i both = _mm256_set1_epi32(static_cast<uint16_t>(even) | static_cast<int32_t>(odd) * 65536);
  return {{both, both}};
}
// Returns pairs of numbers 0..32767.
inline Words pairs(Ints even, Ints odd) {
  return {
      {_mm256_or_si256(even.v[0], _mm256_slli_epi32(odd.v[0], 16)), _mm256_or_si256(even.v[1], _mm256_slli_epi32(odd.v[1], 16))}};
}
inline Ints multiply(Ints a, Ints b) { return {{_mm256_mullo_epi32(a.v[0], b.v[0]), _mm256_mullo_epi32(a.v[1], b.v[1])}}; }

inline __m256i four_codes(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, sizeof four);
  return _mm256_set1_epi32(four);
}

// Adds the four codes of each row times the four at x. Pairs of products must fit into 16 bits: codes are 0..63, or 0..128 with those of x
// in -127..127.
inline __m256i add_dot(__m256i sum, __m256i codes, __m256i x) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
}
inline Ints add_dot(Ints sum, Bytes codes, const int8_t* x) {
  const __m256i four = four_codes(x);
  return {{add_dot(sum.v[0], codes.v[0], four), add_dot(sum.v[1], codes.v[1], four)}};
}

// Adds the two numbers of each row times the two at x.
inline Ints add_dot(Ints sum, Words numbers, const int16_t* x) {
  int32_t bits;
  __builtin_memcpy(&bits, x, sizeof bits);
  const __m256i two = _mm256_set1_epi32(bits);
  return {{_mm256_add_epi32(sum.v[0], _mm256_madd_epi16(numbers.v[0], two)),
           _mm256_add_epi32(sum.v[1], _mm256_madd_epi16(numbers.v[1], two))}};
}

// Does what add_dot does for codes -128..127: it multiplies magnitudes by x with the codes' signs. A sum starts with kSignedStart * the sum of the
// codes of x.
constexpr int16_t kSignedStart = 0;
inline Ints add_dot_signed(Ints sum, Bytes codes, const int8_t* x) {
  const __m256i four = four_codes(x);
  Ints result;
  for (int i = 0; i < 2; ++i) {
    result.v[i] = add_dot(sum.v[i], _mm256_abs_epi8(codes.v[i]), _mm256_sign_epi8(four, codes.v[i]));
  }
  return result;
}

inline RowBytes load_row_bytes(const uint8_t* p) { return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))}; }
inline RowBytes low_nibbles_of(RowBytes b) { return {_mm_and_si128(b.v, _mm_set1_epi8(15))}; }
inline RowBytes high_nibbles_of(RowBytes b) { return {_mm_and_si128(_mm_srli_epi16(b.v, 4), _mm_set1_epi8(15))}; }
inline Ints widened(__m128i b) { return {{_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))}}; }
inline Ints low_six_bits(RowBytes b) { return widened(_mm_and_si128(b.v, _mm_set1_epi8(63))); }
// Returns the low four bits of one byte, with the upper two of another as bits 4 and 5.
inline Ints six_bits_of_two(RowBytes four, RowBytes two) {
  return widened(_mm_or_si128(four.v, _mm_and_si128(_mm_srli_epi16(two.v, 2), _mm_set1_epi8(48))));
}
inline Ints widened(RowBytes b) { return widened(b.v); }
// Returns four bits, with pair PAIR of the bits of `pairs` above, less 32.
template <int PAIR>
inline Ints signed_six_bits(RowBytes four, RowBytes pairs) {
  const __m128i shifted =
      PAIR < 2 ? _mm_slli_epi16(pairs.v, PAIR < 2 ? 4 - 2 * PAIR : 0) : _mm_srli_epi16(pairs.v, PAIR < 2 ? 0 : 2 * PAIR - 4);
  const __m128i six = _mm_or_si128(four.v, _mm_and_si128(shifted, _mm_set1_epi8(48)));
  const __m128i bytes = _mm_sub_epi8(six, _mm_set1_epi8(32));
  return {{_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))}};
}
inline Ints load_row_int8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {{_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))}};
}

inline Floats broadcast(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
inline Floats to_floats(Ints a) { return {{_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])}}; }
inline Floats load_halves(const uint8_t* p) {
  return {{_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
           _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))}};
}
inline Floats load_floats(const uint8_t* p) {
  return {{_mm256_loadu_ps(reinterpret_cast<const float*>(p)), _mm256_loadu_ps(reinterpret_cast<const float*>(p + 32))}};
}
// Returns 2^(e - 128) for each byte e. Those of 0 and 1 are below the normal numbers: their bits are 1 << 21 and 2 << 21, and no other's are less.
inline Floats load_half_powers(const uint8_t* p) {
  const Ints e = widened(load_row_bytes(p));
  const __m256i one = _mm256_set1_epi32(1);
  Floats result;
  for (int i = 0; i < 2; ++i) {
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e.v[i], one), 23);
    const __m256i least = _mm256_slli_epi32(_mm256_add_epi32(_mm256_min_epi32(e.v[i], one), one), 21);
    result.v[i] = _mm256_castsi256_ps(_mm256_max_epi32(normal, least));
  }
  return result;
}
// Returns 2^-8 times 16 codes of float8_e4m3fn as float16, whose NaN are 480 and -480. Such a code has its exponent and mantissa where a float16 has
// them, whose exponent is 8 less for the same number.
inline __m256i halves_of_e4m3(__m128i codes) {
  // Sign-extended, the sign comes to bit 15, and to bit 14, too.
  return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16(INT16_MIN | 0x3f80));
}
// Sets values[i] to 2^-8 times code i of each row.
inline void load_e4m3(const uint8_t* p, Floats (&values)[4]) {
  for (int i = 0; i < 2; ++i) {
    // From the codes of each row to the rows of each code: of four rows in each half, then of eight.
    const __m256i by_code = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                             0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i codes = _mm256_permutevar8x32_epi32(
        _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * i)), by_code),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    for (int pair = 0; pair < 2; ++pair) {
      const __m128i two = pair == 0 ? _mm256_castsi256_si128(codes) : _mm256_extracti128_si256(codes, 1);
      const __m256i halves = halves_of_e4m3(two);
      values[2 * pair].v[i] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      values[2 * pair + 1].v[i] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    }
  }
}
// Returns 2^-8 times a code of float8_e4m3fn of each row, as load_e4m3 does.
inline Floats load_row_e4m3(const uint8_t* p) {
  const __m256i halves = halves_of_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {{_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))}};
}
inline Floats add(Floats a, Floats b) { return {{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}}; }
inline Floats subtract(Floats a, Floats b) { return {{_mm256_sub_ps(a.v[0], b.v[0]), _mm256_sub_ps(a.v[1], b.v[1])}}; }
inline Floats multiply(Floats a, Floats b) { return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}}; }
inline void store(float* p, Floats a) {
  _mm256_storeu_ps(p, a.v[0]);
  _mm256_storeu_ps(p + 8, a.v[1]);
}

}  // namespace
}  // namespace prologue::cpu

#include <prologue/kernels/gemm/quantized_products.h>

namespace prologue::cpu {

const QuantizedKernels* avx2_kernels() {
  static constexpr QuantizedKernels kKernels = make_kernels("avx2");
  return __builtin_cpu_supports("avx2") ? &kKernels : nullptr;  // every processor with AVX2 has F16C
}

}  // namespace prologue::cpu

#else

namespace prologue::cpu {

const QuantizedKernels* avx2_kernels() { return nullptr; }

}  // namespace prologue::cpu

#endif
