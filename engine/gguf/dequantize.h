// Rows of a GGUF tensor to plain floats.
#pragma once

#include <cstdint>

#include <prologue/engine/gguf/ggml_type.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// out[num_rows, row_elements] = the values of `src`, rows one after another without padding on both sides. `src` needs no
// alignment, `out` that of its element type; they may not overlap.
//
// Each value is the float32 that the format's reference gives (scale products and sums in float32, each rounded once, no FMA),
// bit for bit, then rounded once to `out_type`; what does not fit float16 becomes infinity. F16 to float16 and BF16 to bfloat16
// are copies. The result does not depend on `num_threads`.
Status dequantize_rows(GgmlType type, const void* src, int64_t num_rows, int64_t row_elements, DType out_type, void* out,
                       int num_threads);

}  // namespace prologue
