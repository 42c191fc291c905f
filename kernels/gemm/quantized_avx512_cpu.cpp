// This file has the products for AVX-512 with VNNI. CMake compiles this file for these instructions; it runs only where the processor has
// them.
#include <prologue/kernels/gemm/quantized_cpu.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)

#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 takes the undefined operands inside its own AVX-512 header for a mistake
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace prologue::cpu {
namespace {

struct Bytes {
  __m512i v;
};
struct Ints {
  __m512i v;
};
struct Words {
  __m512i v;
};
struct Floats {
  __m512 v;
};
struct RowBytes {
  __m128i v;
};

inline Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes low_nibbles(Bytes b) { return {_mm512_and_si512(b.v, _mm512_set1_epi8(15))}; }
inline Bytes high_nibbles(Bytes b) { return {_mm512_and_si512(_mm512_srli_epi16(b.v, 4), _mm512_set1_epi8(15))}; }
// Returns bits `count` to 7 of each byte. What comes above them is not defined.
inline Bytes shifted_right(Bytes b, int count) { return {_mm512_srl_epi16(b.v, _mm_cvtsi32_si128(count))}; }
inline Bytes either(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }

// Adds 16 to code j of a row where bit 4 * chunk + j of its word is set.
inline Bytes with_fifth_bits(Bytes codes, Bytes words, int chunk) {
  const __m512i bytes = _mm512_shuffle_epi8(words.v, _mm512_add_epi8(_mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0),
                                                                     _mm512_set1_epi8(static_cast<char>(chunk / 2))));
  const __mmask64 set =
      _mm512_test_epi8_mask(bytes, _mm512_set1_epi32(chunk % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010)));
  return {_mm512_mask_add_epi8(codes.v, set, codes.v, _mm512_set1_epi8(16))};
}

// Returns bit BIT of each byte, as 16.
template <int BIT>
inline Bytes bit_as_16(Bytes b) {
  const __m512i shifted = BIT < 4 ? _mm512_slli_epi16(b.v, BIT < 4 ? 4 - BIT : 0) : _mm512_srli_epi16(b.v, BIT < 4 ? 0 : BIT - 4);
  return {_mm512_and_si512(shifted, _mm512_set1_epi8(16))};
}

// Returns pair PAIR of the bits of each byte, at bits 4 and 5.
template <int PAIR>
inline Bytes pair_as_48(Bytes b) {
  const __m512i shifted =
      PAIR < 2 ? _mm512_slli_epi16(b.v, PAIR < 2 ? 4 - 2 * PAIR : 0) : _mm512_srli_epi16(b.v, PAIR < 2 ? 0 : 2 * PAIR - 4);
  return {_mm512_and_si512(shifted, _mm512_set1_epi8(48))};
}

// Returns pair PAIR of the bits of each byte; bit BIT, as 4.
template <int PAIR>
inline Bytes pair_of(Bytes b) {
  return {_mm512_and_si512(_mm512_srli_epi16(b.v, 2 * PAIR), _mm512_set1_epi8(3))};
}
template <int BIT>
inline Bytes bit_as_4(Bytes b) {
  const __m512i shifted = BIT < 2 ? _mm512_slli_epi16(b.v, BIT < 2 ? 2 - BIT : 0) : _mm512_srli_epi16(b.v, BIT < 2 ? 0 : BIT - 2);
  return {_mm512_and_si512(shifted, _mm512_set1_epi8(4))};
}
inline Bytes values_of(Bytes nibbles, const int8_t (&values)[16]) {
  const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(values)));
  return {_mm512_shuffle_epi8(table, nibbles.v)};
}

inline Ints broadcast(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Words broadcast(int16_t even, int16_t odd) {
  return {_mm512_set1_epi32(static_cast<uint16_t>(even) | static_cast<int32_t>(odd) * 65536)};
}
// Returns pairs of numbers 0..32767.
inline Words pairs(Ints even, Ints odd) { return {_mm512_or_si512(even.v, _mm512_slli_epi32(odd.v, 16))}; }
inline Ints multiply(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }

// Adds the four codes of each row, 0..255, times the four at x.
inline Ints add_dot(Ints sum, Bytes codes, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, sizeof four);
  return {_mm512_dpbusd_epi32(sum.v, codes.v, _mm512_set1_epi32(four))};
}

// Adds the two numbers of each row times the two at x.
inline Ints add_dot(Ints sum, Words numbers, const int16_t* x) {
  int32_t two;
  __builtin_memcpy(&two, x, sizeof two);
  return {_mm512_dpwssd_epi32(sum.v, numbers.v, _mm512_set1_epi32(two))};
}

// Does what add_dot does for codes -128..127, which the instruction does not have: they get the offset 128. So a sum starts with kSignedStart * the
// sum of the codes of x.
constexpr int16_t kSignedStart = -128;
inline Ints add_dot_signed(Ints sum, Bytes codes, const int8_t* x) {
  return add_dot(sum, {_mm512_xor_si512(codes.v, _mm512_set1_epi8(-128))}, x);
}

inline RowBytes load_row_bytes(const uint8_t* p) { return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))}; }
inline RowBytes low_nibbles_of(RowBytes b) { return {_mm_and_si128(b.v, _mm_set1_epi8(15))}; }
inline RowBytes high_nibbles_of(RowBytes b) { return {_mm_and_si128(_mm_srli_epi16(b.v, 4), _mm_set1_epi8(15))}; }
inline Ints low_six_bits(RowBytes b) { return {_mm512_cvtepu8_epi32(_mm_and_si128(b.v, _mm_set1_epi8(63)))}; }
// Returns the low four bits of one byte, with the upper two of another as bits 4 and 5.
inline Ints six_bits_of_two(RowBytes four, RowBytes two) {
  return {_mm512_cvtepu8_epi32(_mm_or_si128(four.v, _mm_and_si128(_mm_srli_epi16(two.v, 2), _mm_set1_epi8(48))))};
}
inline Ints widened(RowBytes b) { return {_mm512_cvtepu8_epi32(b.v)}; }
// Returns four bits, with pair PAIR of the bits of `pairs` above, less 32.
template <int PAIR>
inline Ints signed_six_bits(RowBytes four, RowBytes pairs) {
  const __m128i shifted =
      PAIR < 2 ? _mm_slli_epi16(pairs.v, PAIR < 2 ? 4 - 2 * PAIR : 0) : _mm_srli_epi16(pairs.v, PAIR < 2 ? 0 : 2 * PAIR - 4);
  const __m128i six = _mm_or_si128(four.v, _mm_and_si128(shifted, _mm_set1_epi8(48)));
  return {_mm512_cvtepi8_epi32(_mm_sub_epi8(six, _mm_set1_epi8(32)))};
}
inline Ints load_row_int8(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

inline Floats broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Floats load_halves(const uint8_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline Floats load_floats(const uint8_t* p) { return {_mm512_loadu_ps(p)}; }
// Returns 2^(e - 128) for each byte e. Those of 0 and 1 are below the normal numbers: their bits are 1 << 21 and 2 << 21, and no other's are less.
inline Floats load_half_powers(const uint8_t* p) {
  const __m512i e = widened(load_row_bytes(p)).v, one = _mm512_set1_epi32(1);
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
  const __m512i least = _mm512_slli_epi32(_mm512_add_epi32(_mm512_min_epi32(e, one), one), 21);
  return {_mm512_castsi512_ps(_mm512_max_epi32(normal, least))};
}
// Returns 2^-8 times 16 codes of float8_e4m3fn as float16, whose NaN are 480 and -480. Such a code has its exponent and mantissa where a float16 has
// them, whose exponent is 8 less for the same number.
inline __m256i halves_of_e4m3(__m128i codes) {
  // Sign-extended, the sign comes to bit 15, and to bit 14, too.
  return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16(INT16_MIN | 0x3f80));
}
// Sets values[i] to 2^-8 times code i of each row.
inline void load_e4m3(const uint8_t* p, Floats (&values)[4]) {
  // From the codes of each row to the rows of each code: of four rows in each quarter, then of all.
  const __m512i by_code = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
  const __m512i codes = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                                 _mm512_shuffle_epi8(_mm512_loadu_si512(p), by_code));
  for (int pair = 0; pair < 2; ++pair) {
    const __m256i two = pair == 0 ? _mm512_castsi512_si256(codes) : _mm512_extracti64x4_epi64(codes, 1);
    // Sign-extended, the sign comes to bit 15, and to bit 14, too.
    const __m512i halves =
        _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(two), 7), _mm512_set1_epi16(INT16_MIN | 0x3f80));
    values[2 * pair].v = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    values[2 * pair + 1].v = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  }
}
// Returns 2^-8 times a code of float8_e4m3fn of each row, as load_e4m3 does.
inline Floats load_row_e4m3(const uint8_t* p) {
  return {_mm512_cvtph_ps(halves_of_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats subtract(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats multiply(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }

}  // namespace
}  // namespace prologue::cpu

#include <prologue/kernels/gemm/quantized_products.h>

namespace prologue::cpu {

const QuantizedKernels* avx512_kernels() {
  static constexpr QuantizedKernels kKernels = make_kernels("avx512_vnni");
  const bool present = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  return present ? &kKernels : nullptr;
}

}  // namespace prologue::cpu

#else

namespace prologue::cpu {

const QuantizedKernels* avx512_kernels() { return nullptr; }

}  // namespace prologue::cpu

#endif
