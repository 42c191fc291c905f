// Selects rows by index: the token embedding, and the rows that need logits.
//
//   out[t, :] = table[indices[t], :] * scale
//
//   table    [num_rows, width]  dtype, contiguous; or packed, below
//   indices  [num_tokens]       int32 or int64, on the device
//   out      [num_tokens, width] dtype, contiguous, must not overlap table
//
// scale = 1 copies bitwise; otherwise the product is computed in float32 and rounded once.
//
// With another table_format than dense the table is packed (weight_format.h), and width a multiple of its blocks. A value is
// computed in float32 as the format's reference does (scale * code, plus minimum: each rounded once), then multiplied by `scale` in
// float32, then rounded to dtype.
//
// For an index outside [0, num_rows) the
// row becomes zeros and token_id_out_of_range is recorded. num_tokens = 0 is a no-op. Never allocates or synchronises; safe under graph
// capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/views.h>
#include <prologue/kernels/base/weight_format.h>

namespace prologue {

struct EmbeddingParams {
  int64_t num_tokens = 0;
  int64_t num_rows = 0;
  int64_t width = 0;
  DType dtype = DType::unset;
  const void* table = nullptr;
  IndexView indices;
  float scale = 1.0f;
  void* out = nullptr;
  FaultRecord* faults = nullptr;    // null = faults are not recorded
  uint8_t* token_faults = nullptr;  // [num_tokens]: a FaultCode is written for each faulty token; null = not wanted
  WeightFormat table_format = WeightFormat::dense;
  bool overlaps = false;      // the launch may begin while the kernels before it in the stream run
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status embedding(const EmbeddingParams& params, const Execution& execution);

}  // namespace prologue
