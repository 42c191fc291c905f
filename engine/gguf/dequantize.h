// Converts rows of a tensor to floats: of GGUF's types, or of the library's own (ggml_type.h).
#pragma once

#include <cstdint>

#include <prologue/engine/gguf/ggml_type.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// Sets out[num_rows, row_elements] to the values of `src`. Rows are contiguous in both arrays, without padding. `src` needs no alignment;
// `out` needs the alignment of its element type. They must not overlap.
//
// Each value is computed in float32 exactly as the format's reference does (each product and sum is rounded once, no FMA), then
// rounded once to `out_type`. A value too large for float16 becomes infinity. F16 to float16 and BF16 to bfloat16 are copies. The
// result does not depend on `num_threads`.
Status dequantize_rows(GgmlType type, const void* src, int64_t num_rows, int64_t row_elements, DType out_type, void* out,
                       int num_threads);

// Returns the value of a code of float8_e4m3fn, but 480 and -480 for 0x7f and 0xff, which are NaN there (weight_format.h).
float e4m3_value(uint8_t code);
float e2m1_value(int code);  // of 4 bits; that of -0 is 0

}  // namespace prologue
