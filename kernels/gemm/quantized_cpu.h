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

// Holds the rows of x as codes: x = scale of the block * code; or, for f8_e4m3, as they are, or as codes of e4m3.
struct QuantizedRows {
  int8_t* codes = nullptr;  // [rows, k]
  float* scales = nullptr;  // [rows, k / block], block = 32 or 256; of e4m3 128
  int32_t* sums = nullptr;  // [rows, k / sum_elements]: of adjacent codes
  float* values = nullptr;  // [rows, k], where codes and sums are null: x, or the numbers that codes of e4m3 stand for
  int64_t k = 0;
};

// Returns the values of a block of x by which a format is multiplied: 1 means that x is not quantised.
constexpr int64_t x_block_elements(WeightFormat format) {
  return format == WeightFormat::f8_e4m3 ? 1 : weight_block_elements(format) == 256 ? 256 : 32;
}

// Returns how many codes are added up together: those of a block of 32; of a block of 256, those of the smallest part that has a scale of
// its own.
constexpr int64_t sum_elements(int64_t block) { return block == 32 ? 32 : 16; }

// Computes y[rows, 16] = rows of x, from row `row` on, times the 16 rows of a group of packed weights.
using GroupProduct = void (*)(const uint8_t* group, const QuantizedRows& x, int64_t row, float* y);

constexpr int64_t kNumWeightFormats = static_cast<int64_t>(kLastWeightFormat);
constexpr int64_t kTileHeights[] = {8, 4, 2, 1};
constexpr int64_t kNumTileHeights = 4;

struct QuantizedKernels {
  const char* instructions;
  GroupProduct products[kNumWeightFormats][kNumTileHeights];  // of q8_0, q4_0, ...; for each height of kTileHeights
  GroupProduct float8_products[kNumTileHeights];              // of f8_e4m3 and x in e4m3 (GemmParams::quantize_x)
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
