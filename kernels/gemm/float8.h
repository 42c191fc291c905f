// Products of float8 by float8 (GemmParams::quantize_x) on CUDA: x is quantised, the weights' codes are put into rows, some tokens and some rows at
// a time, and `multiply`, which is cuBLASLt, gets matrices and scales as it wants them. Internal.
#pragma once

#include <algorithm>
#include <cstdint>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/weight_format.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/gemm/unpack.h>

struct CUstream_st;

namespace prologue::cuda {

inline constexpr int64_t kFloat8Block = weight_block_elements(WeightFormat::f8_e4m3);

// One product of codes: y[m, n] = sum over blocks of (sum of x * weight) * (x_scale * weight_scale)  (+ bias[n]). The scales are float32, in the
// layout of cuBLASLt, and begin at multiples of 16 bytes:
//
//   scaling   x_scales        weight_scales                                  cuBLASLt's modes
//   rows      [m]             [n]                                            OUTER_VEC_32F
//   squares   [k / 128, m]    [n / 128, k / 128], both rounded up, the       VEC128_32F for x, BLK128x128_32F for weights
//                             second one to a multiple of 4
//   blocks    [k / 128, m]    [k / 128, n]                                   VEC128_32F
struct Float8Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  WeightScaling scaling = WeightScaling::blocks;
  const uint8_t* x = nullptr;  // [m, k]
  const float* x_scales = nullptr;
  const uint8_t* weight = nullptr;  // [n, k]
  const float* weight_scales = nullptr;
  DType dtype = DType::unset;  // of bias
  const void* bias = nullptr;
  DType y_dtype = DType::unset;
  void* y = nullptr;
  int64_t y_stride = 0;
};

// Whether cuBLASLt's rules allow a product: M and N are multiples of 16 bytes where they are contiguous, and scales of 128 channels want
// multiples of 4. `y` and the bias are aligned to 16 bytes.
inline bool float8_product_is_aligned(const Float8Product& p) {
  const auto bits = reinterpret_cast<uintptr_t>(p.y) | reinterpret_cast<uintptr_t>(p.bias) |
                    static_cast<uintptr_t>(p.y_stride * dtype_size(p.y_dtype));
  return bits % 16 == 0 && p.n % 16 == 0 && (p.scaling == WeightScaling::rows || p.m % 4 == 0);
}

// Device memory, aligned to 256 bytes.
struct Float8Room {
  unsigned char* weight = nullptr;  // codes of some rows, and their scales
  int64_t weight_bytes = 0;
  unsigned char* x = nullptr;  // codes of some tokens, and their scales
  int64_t x_bytes = 0;
};

// Quantises rows of x [m, k] (gemm.h). `scales` is [m], or [k / 128, m] with m rounded down to a multiple of 4, if it is 4 or more; the scales of
// the last 4 rows are in last_scales [4] or [k / 128, 4], too, unless that is null.
struct QuantizeXParams {
  int64_t m = 0;
  int64_t k = 0;
  DType dtype = DType::unset;
  const void* x = nullptr;
  int64_t x_stride = 0;
  bool whole_rows = false;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* last_scales = nullptr;
};
Status quantize_x(const QuantizeXParams& params, CUstream_st* stream);

// Sets codes [num_rows, k] to those of rows first_row, first_row + 1, ... of packed rows of f8_e4m3, and `scales` as Float8Product has them, for a
// part of its n = scale_stride rows. first_row is a multiple of 16.
Status unpack_float8(const PackedRows& rows, WeightScaling scaling, int64_t k, int64_t first_row, int64_t num_rows,
                     uint8_t* codes, float* scales, int64_t scale_stride, CUstream_st* stream);

// Multiplies in float32, any sizes and alignment.
Status multiply_float8_plainly(const Float8Product& product, CUstream_st* stream);

namespace float8 {

inline constexpr int64_t kAlignment = 256;

constexpr int64_t scale_bytes_of_row(int64_t k) { return k / kFloat8Block * 4; }

// Returns how many rows and their scales fit, each row with a scale for each block; a part of `bytes` is for alignment and further scales.
constexpr int64_t rows_that_fit(int64_t bytes, int64_t k) {
  return (bytes - 4 * kAlignment - 4 * scale_bytes_of_row(k) - 16) / (k + scale_bytes_of_row(k));
}

// Returns the end of the segments from `begin` on whose rows are multiplied as those of one: that have its scaling, and begin where a group of 16
// rows, or a square of scales, does.
inline int32_t end_of_run(const PackedWeight& weight, int32_t begin) {
  const WeightScaling scaling = weight.segments[begin].scaling;
  const int64_t multiple = scaling == WeightScaling::squares ? kFloat8Block : kPackedGroupRows;
  int32_t end = begin + 1;
  while (end < weight.num_segments && weight.segments[end].scaling == scaling && weight.segments[end - 1].rows % multiple == 0)
    ++end;
  return end;
}

// Returns how many scales of a product are before those of its row `row`, in the first block of channels.
constexpr int64_t scales_before(WeightScaling scaling, int64_t row, int64_t k) {
  return scaling == WeightScaling::squares ? row / kFloat8Block * round_up(k / kFloat8Block, int64_t{4}) : row;
}

// Runs a product, in two parts if `multiply` does not take it because m is no multiple of 4: most rows, then the last 4, of which up to 3 are
// computed again. `last_scales` are theirs; null: m is a multiple of 4 or less than 4. multiply(product) returns a Result<bool>: whether it ran.
template <class Multiply>
Status run_product(const Float8Product& product, const float* last_scales, CUstream_st* stream, const Multiply& multiply) {
  PROLOGUE_ASSIGN_OR_RETURN(const bool ran, multiply(product));
  if (ran) return {};
  if (last_scales == nullptr) return multiply_float8_plainly(product, stream);
  Float8Product most = product, last = product;
  most.m = product.m / 4 * 4;
  last.m = 4;
  last.x = product.x + (product.m - 4) * product.k;
  last.x_scales = last_scales;
  last.y = static_cast<unsigned char*>(product.y) + (product.m - 4) * product.y_stride * dtype_size(product.y_dtype);
  PROLOGUE_RETURN_IF_ERROR(run_product(most, nullptr, stream, multiply));
  return run_product(last, nullptr, stream, multiply);
}

}  // namespace float8

// Runs a call with quantize_x.
template <class Multiply>
Status run_float8(const GemmParams& params, const Float8Room& room, CUstream_st* stream, const Multiply& multiply) {
  const int64_t k = params.k;
  const int64_t most_tokens = float8::rows_that_fit(room.x_bytes, k), most_rows = float8::rows_that_fit(room.weight_bytes, k);
  const int64_t tokens_at_once = std::min(params.m, rows_of_pieces(params.m, most_tokens));
  const auto at = [](unsigned char* base, int64_t bytes) { return base + round_up(bytes, float8::kAlignment); };
  uint8_t* const x_codes = room.x;
  auto* const x_scales = reinterpret_cast<float*>(at(x_codes, tokens_at_once * k));
  auto* const last_scales =
      reinterpret_cast<float*>(at(reinterpret_cast<unsigned char*>(x_scales), tokens_at_once * float8::scale_bytes_of_row(k)));
  for (int64_t token = 0; token < params.m; token += tokens_at_once) {
    QuantizeXParams of_x;
    of_x.m = std::min(tokens_at_once, params.m - token);
    of_x.k = k;
    of_x.dtype = params.dtype;
    of_x.x = static_cast<const unsigned char*>(params.x) + token * params.x_stride * dtype_size(params.dtype);
    of_x.x_stride = params.x_stride;
    of_x.codes = x_codes;
    of_x.scales = x_scales;
    of_x.last_scales = of_x.m > 4 && of_x.m % 4 != 0 ? last_scales : nullptr;
    bool is_quantized = false;

    Float8Product product;
    product.m = of_x.m;
    product.k = k;
    product.x = x_codes;
    product.x_scales = x_scales;
    product.dtype = params.dtype;
    product.y_dtype = params.y_dtype;
    product.y_stride = params.y_stride;
    product.bias = params.bias;
    auto* y = static_cast<unsigned char*>(params.y) + token * params.y_stride * dtype_size(params.y_dtype);
    for (int32_t begin = 0, end = 0; begin < params.packed.num_segments; begin = end) {
      const PackedRows* const segments = params.packed.segments;
      end = float8::end_of_run(params.packed, begin);
      int64_t num_rows = 0;
      for (int32_t s = begin; s < end; ++s) num_rows += segments[s].rows;
      const WeightScaling scaling = segments[begin].scaling;
      const bool whole_rows = scaling == WeightScaling::rows;
      if (!is_quantized || whole_rows != of_x.whole_rows) {
        of_x.whole_rows = whole_rows;
        PROLOGUE_RETURN_IF_ERROR(quantize_x(of_x, stream));
        is_quantized = true;
      }
      const int64_t rows_at_once = rows_of_pieces(num_rows, most_rows);
      // Pieces that begin within a square have a scale for each block.
      const bool in_squares = rows_at_once % kFloat8Block == 0 || rows_at_once >= num_rows;
      product.scaling = scaling == WeightScaling::squares && !in_squares ? WeightScaling::blocks : scaling;
      for (int64_t first = 0; first < num_rows; first += product.n) {
        product.n = std::min(rows_at_once, num_rows - first);
        if (product.n > kPackedGroupRows) product.n -= product.n % kPackedGroupRows;  // what is left is a piece
        auto* const weight_scales = reinterpret_cast<float*>(at(room.weight, product.n * k));
        int64_t segment_at = 0;  // in the run
        for (int32_t s = begin; s < end; segment_at += segments[s++].rows) {
          const int64_t from = std::max(first, segment_at), to = std::min(first + product.n, segment_at + segments[s].rows);
          if (from >= to) continue;
          const int64_t in_piece = from - first;
          PROLOGUE_RETURN_IF_ERROR(
              unpack_float8(segments[s], product.scaling, k, from - segment_at, to - from, room.weight + in_piece * k,
                            weight_scales + float8::scales_before(product.scaling, in_piece, k), product.n, stream));
        }
        product.weight = room.weight;
        product.weight_scales = weight_scales;
        product.y = y;
        PROLOGUE_RETURN_IF_ERROR(float8::run_product(product, of_x.last_scales, stream, multiply));
        y += product.n * dtype_size(params.y_dtype);
        if (product.bias != nullptr) {
          product.bias = static_cast<const unsigned char*>(product.bias) + product.n * dtype_size(params.dtype);
        }
      }
    }
  }
  return {};
}

}  // namespace prologue::cuda
