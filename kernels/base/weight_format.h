// This file describes quantised weights in block formats, as the library keeps them in memory: packed.
//
// A row is a sequence of blocks of 32, 64, 128 or 256 values. Most formats of 32 and 256 are those of GGUF files: a block has the fields that the
// file has, with the same bits: scale (float16), minimum (float16), the scales of its parts, codes. Packing only reorders bytes, so that
// one instruction reads the same part of 16 rows: packed weights take the memory of the file's.
//
// The other formats are those of Hugging Face checkpoints, where the scales are a tensor of their own. With codes of 8 bits: one for the tensor, for
// each row, or for each 128 x 128 values. Here each block has its scale:
//   f8_e4m3   scale (float32) | 128 codes, float8_e4m3fn
//   i8        scale (float32) | 128 codes, int8
// A value is scale * code, rounded to float32. The codes 0x7f and 0xff of f8_e4m3 are not NaN, as in float8_e4m3fn: they are 480 and -480.
// (A loader should refuse them; the engine's does.)
//
// mxfp4 is the one of GGUF files, with the scale 2^(e - 127) of a byte e. The types of OCP's text have NaN for e = 255. Here it is 2^128, as in
// the other readers of such files: with the codes of 0.5 a value is 2^127, with larger ones infinite, and 0 with the code of 0. (Values
// with e = 0 or 1 may be below float32's normal numbers; they are exact, too.)
//
// nvfp4 has codes of float4_e2m1 with a scale of float8_e4m3fn for each 16 channels, and a scale for the tensor, which files have beside it. Here
// each block has that one, too:
//   nvfp4   scale of the tensor (float32) | 16 scales (1 byte) | 256 codes of 4 bits
// A value is (scale * scale of the tensor) * code; each product is rounded to float32. Each 32 codes are 16 bytes, as those below. Scales of 0x7f and
// 0xff are 480 and -480, as codes of f8_e4m3 are, and the code of -0 is 0.
//
// With codes of 4 bits (GPTQ, AWQ), groups of 32, 64 or 128 values of a row have a scale and a zero point; a group is a block:
//   i4_32, i4_64, i4_128   scale (float16) | zero point (1 byte, 0 to 255) | 32, 64 or 128 codes of 4 bits, 0 to 15
// Each 32 codes are 16 bytes: byte i has code i (low bits) and code i + 16. A value is scale * code - scale * zero point, which float32 holds
// exactly (0 is +0).
//
//   rows      16 rows are a group; the last group is filled up with rows of zero bytes
//   packed    [groups, blocks of a row, fields of a block in the file's order, pieces of the field, 16 rows] of pieces:
//             2 bytes for a float16 scale or minimum, 1 byte for the scales of parts (Q2_K to Q6_K; IQ4_XS, whose scales of
//             parts are two fields), for the scale of MXFP4, for the 16 of NVFP4 and for zero points, 4 bytes for all others
#pragma once

#include <cstdint>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// dense: not quantised, elements of a DType.
enum class WeightFormat : int32_t {
  dense = 0,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q4_k,
  q5_k,
  q6_k,
  f8_e4m3,
  i8,
  q2_k,
  q3_k,
  iq4_nl,
  iq4_xs,
  mxfp4,
  i4_32,
  i4_64,
  i4_128,
  nvfp4
};

// Returns the values of a block.
constexpr int64_t weight_block_elements(WeightFormat format) {
  switch (format) {
    case WeightFormat::dense: break;
    case WeightFormat::q8_0:
    case WeightFormat::q4_0:
    case WeightFormat::q4_1:
    case WeightFormat::q5_0:
    case WeightFormat::q5_1: return 32;
    case WeightFormat::q4_k:
    case WeightFormat::q5_k:
    case WeightFormat::q6_k: return 256;
    case WeightFormat::f8_e4m3:
    case WeightFormat::i8: return 128;
    case WeightFormat::q2_k:
    case WeightFormat::q3_k:
    case WeightFormat::iq4_xs: return 256;
    case WeightFormat::iq4_nl:
    case WeightFormat::mxfp4: return 32;
    case WeightFormat::i4_32: return 32;
    case WeightFormat::i4_64: return 64;
    case WeightFormat::i4_128: return 128;
    case WeightFormat::nvfp4: return 256;
  }
  return 1;
}

// Returns the bytes of a block, or 0 for dense.
constexpr int64_t weight_block_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::dense: break;
    case WeightFormat::q8_0: return 2 + 32;
    case WeightFormat::q4_0: return 2 + 16;
    case WeightFormat::q4_1: return 2 + 2 + 16;
    case WeightFormat::q5_0: return 2 + 4 + 16;
    case WeightFormat::q5_1: return 2 + 2 + 4 + 16;
    case WeightFormat::q4_k: return 2 + 2 + 12 + 128;
    case WeightFormat::q5_k: return 2 + 2 + 12 + 32 + 128;
    case WeightFormat::q6_k: return 128 + 64 + 16 + 2;
    case WeightFormat::f8_e4m3: return 4 + 128;
    case WeightFormat::i8: return 4 + 128;
    case WeightFormat::q2_k: return 16 + 64 + 2 + 2;
    case WeightFormat::q3_k: return 32 + 64 + 12 + 2;
    case WeightFormat::iq4_nl: return 2 + 16;
    case WeightFormat::iq4_xs: return 2 + 2 + 4 + 128;
    case WeightFormat::mxfp4: return 1 + 16;
    case WeightFormat::i4_32: return 2 + 1 + 16;
    case WeightFormat::i4_64: return 2 + 1 + 32;
    case WeightFormat::i4_128: return 2 + 1 + 64;
    case WeightFormat::nvfp4: return 4 + 16 + 128;
  }
  return 0;
}

constexpr bool weight_format_is_packed(WeightFormat format) { return weight_block_bytes(format) > 0; }

constexpr const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::dense: return "dense";
    case WeightFormat::q8_0: return "q8_0";
    case WeightFormat::q4_0: return "q4_0";
    case WeightFormat::q4_1: return "q4_1";
    case WeightFormat::q5_0: return "q5_0";
    case WeightFormat::q5_1: return "q5_1";
    case WeightFormat::q4_k: return "q4_k";
    case WeightFormat::q5_k: return "q5_k";
    case WeightFormat::q6_k: return "q6_k";
    case WeightFormat::f8_e4m3: return "f8_e4m3";
    case WeightFormat::i8: return "i8";
    case WeightFormat::q2_k: return "q2_k";
    case WeightFormat::q3_k: return "q3_k";
    case WeightFormat::iq4_nl: return "iq4_nl";
    case WeightFormat::iq4_xs: return "iq4_xs";
    case WeightFormat::mxfp4: return "mxfp4";
    case WeightFormat::i4_32: return "i4_32";
    case WeightFormat::i4_64: return "i4_64";
    case WeightFormat::i4_128: return "i4_128";
    case WeightFormat::nvfp4: return "nvfp4";
  }
  return "unknown";
}

constexpr int64_t kPackedGroupRows = 16;

// `cols` is a multiple of weight_block_elements.
constexpr int64_t packed_weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return round_up(rows, kPackedGroupRows) * (cols / weight_block_elements(format)) * weight_block_bytes(format);
}

// Says which scales of f8_e4m3 rows are equal. Whoever makes the rows knows it; nothing reads it from the data. It changes no weight, but how x is
// quantised with it (gemm.h), and how many scales a product needs.
enum class WeightScaling : int32_t {
  blocks = 0,  // each block has a scale of its own
  rows,        // all blocks of a row have the same scale
  squares      // rows 128 i to 128 i + 127 have the same scales: one for each 128 x 128 values
};

constexpr const char* weight_scaling_name(WeightScaling scaling) {
  switch (scaling) {
    case WeightScaling::blocks: return "blocks";
    case WeightScaling::rows: return "rows";
    case WeightScaling::squares: return "squares";
  }
  return "unknown";
}

// Holds rows of a weight in one format, packed. On the CPU any alignment, of which 64 bytes are fastest; on CUDA 16 bytes.
struct PackedRows {
  const void* data = nullptr;
  WeightFormat format = WeightFormat::dense;
  int64_t rows = 0;
  WeightScaling scaling = WeightScaling::blocks;  // must be `blocks` in other formats than f8_e4m3
};

// A packed weight has the rows of segments[0], then those of segments[1], and so on. num_segments = 0: there is none.
inline constexpr int32_t kMaxWeightSegments = 4;

struct PackedWeight {
  int32_t num_segments = 0;
  PackedRows segments[kMaxWeightSegments];
  uint64_t reserved[2] = {};  // zeros: docs/versioning.md
};

//   blocks  [rows, cols / weight_block_elements] of blocks, in the order of their fields (GGUF: as in the file), contiguous
//   packed  packed_weight_bytes(format, rows, cols); must not overlap blocks
//
// Rows can be packed in pieces: all but the last have a multiple of 16 rows. rows = 0 and cols = 0 are no-ops.
struct PackWeightParams {
  WeightFormat format = WeightFormat::dense;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* blocks = nullptr;
  void* packed = nullptr;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

// Packs a weight. Runs on the CPU only.
PROLOGUE_API Status pack_weight(const PackWeightParams& params, const Execution& execution);

}  // namespace prologue
