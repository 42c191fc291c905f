// Makes packed weights dense again, on CUDA, for products of many rows. Internal.
#pragma once

#include <algorithm>
#include <cstdint>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/weight_format.h>
#include <prologue/kernels/gemm/gemm.h>

struct CUstream_st;

namespace prologue::cuda {

// Sets out [num_rows, k] to rows first_row, first_row + 1, ... of packed rows, each value made in float32 as unpack_block() makes it, and
// rounded to dtype. `out` is aligned to 16 bytes.
Status unpack_rows(const PackedRows& rows, int64_t k, int64_t first_row, int64_t num_rows, DType dtype, void* out,
                   CUstream_st* stream);

// Returns how many rows of a segment are made dense at a time, where `most_rows` fit: pieces of about the same size, so that the last one is no
// small product; of many rows a multiple of 256, since a tile of cuBLASLt has up to so many.
constexpr int64_t rows_of_pieces(int64_t rows, int64_t most_rows) {
  constexpr int64_t kTileRows = 256;
  if (most_rows < kPackedGroupRows) return most_rows;
  const int64_t multiple = most_rows < kTileRows ? kPackedGroupRows : kTileRows;
  const int64_t pieces = divide_up(rows, most_rows / multiple * multiple);
  return pieces <= 1 ? most_rows : round_up(divide_up(rows, pieces), multiple);
}

// Runs a product with packed weights: makes some rows dense at a time, as many as fit into `dense`, and multiplies by them with
// run_dense(params). Their columns of y are neighbours. `dense` has room for a row.
template <class RunDense>
Status run_packed(const GemmParams& params, void* dense, int64_t dense_bytes, CUstream_st* stream, const RunDense& run_dense) {
  const int64_t size = dtype_size(params.dtype), most_rows = dense_bytes / (params.k * size);
  GemmParams part = params;
  part.weight = dense;
  for (int32_t s = 0; s < params.packed.num_segments; ++s) {
    const PackedRows& rows = params.packed.segments[s];
    const int64_t rows_at_once = rows_of_pieces(rows.rows, most_rows);
    for (int64_t first = 0; first < rows.rows; first += rows_at_once) {
      part.n = std::min(rows_at_once, rows.rows - first);
      PROLOGUE_RETURN_IF_ERROR(unpack_rows(rows, params.k, first, part.n, params.dtype, dense, stream));
      PROLOGUE_RETURN_IF_ERROR(run_dense(part));
      part.y = static_cast<unsigned char*>(part.y) + part.n * dtype_size(params.y_dtype);
      if (part.bias != nullptr) part.bias = static_cast<const unsigned char*>(part.bias) + part.n * size;
    }
  }
  return {};
}

}  // namespace prologue::cuda
