// This file has the product with packed weights on the CPU (gemm.h says what it computes). Internal.
//
// quantized_products.h has the inner loops, written once over an instruction set; quantized_scalar_cpu.cpp, quantized_avx2_cpu.cpp and
// quantized_avx512_cpu.cpp each compile them for theirs. All give the same bits.
#pragma once

#include <cstdint>
#include <memory>

#include <prologue/kernels/base/host/packed_weight.h>
#include <prologue/kernels/gemm/gemm.h>

namespace prologue::cpu {

// Rows of x are multiplied in tiles of so many rows, and one tile of those that are left.
constexpr int64_t kMaxTileRows = 8;

// Holds the rows of x as codes: x = scale of the block * code; or, for f8_e4m3, as they are, or as codes of e4m3. What the rows of a tile have for
// the same k is adjacent: a product reads it together, from one line of the cache. A tile whose first row is `row` begins, in an array of
// `count` elements for each row, at element row * count.
struct QuantizedRows {
  int8_t* codes = nullptr;  // of each tile [k / 4, rows, 4]
  float* scales = nullptr;  // [k / block, rows], block = 32 or 256; of e4m3 128
  // Of adjacent codes; the smallest parts of a block of 256 that have a scale of their own are 16 values.
  int32_t* sums = nullptr;        // [k / 32, rows], where block = 32
  int16_t* sums_of_16 = nullptr;  // [k / 32, rows, 2], where block = 256
  float* values = nullptr;        // [k, rows], where codes and sums are null: x, or the numbers that codes of e4m3 stand for
  int64_t k = 0;
};

// Returns the values of a block of x by which a format is multiplied: 1 means that x is not quantised.
constexpr int64_t x_block_elements(WeightFormat format) {
  return format == WeightFormat::f8_e4m3 ? 1 : weight_block_elements(format) == 256 ? 256 : 32;
}

// Computes y[rows, 16] = the tile of x whose first row is `row`, times the 16 rows of a group of packed weights.
using GroupProduct = void (*)(const uint8_t* group, const QuantizedRows& x, int64_t row, float* y);

constexpr int64_t kNumWeightFormats = static_cast<int64_t>(kLastWeightFormat);

struct QuantizedKernels {
  const char* instructions;
  GroupProduct products[kNumWeightFormats][kMaxTileRows];  // of q8_0, q4_0, ...; for tiles of 1, 2, ... rows
  GroupProduct float8_products[kMaxTileRows];              // of f8_e4m3 and x in e4m3 (GemmParams::quantize_x)
};

PROLOGUE_API extern const QuantizedKernels kScalarKernels;
// Return null if this build or this processor does not have the instructions.
PROLOGUE_API const QuantizedKernels* avx2_kernels();
PROLOGUE_API const QuantizedKernels* avx512_kernels();  // AVX-512 with VNNI
PROLOGUE_API const QuantizedKernels& fastest_kernels();

// The scratch of quantized_gemm is enough for a row of any k that validate() accepts. Several rows take no more than kQuantizedRowsBytes.
inline constexpr int64_t kMaxQuantizedK = int64_t{1} << 20;
inline constexpr int64_t kQuantizedRowsBytes = int64_t{3} << 20;
inline constexpr int64_t kQuantizedScratchBytes = int64_t{9} << 20;

// Runs a call with segments. `scratch` is aligned to 64 bytes.
void quantized_gemm(const GemmParams& params, const QuantizedKernels& kernels, void* scratch, int64_t num_threads);

}  // namespace prologue::cpu
