// What operations that project one token have in common on the host. Internal, for CUDA.
#pragma once

#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/projection/vector/product.cuh>

namespace prologue::cuda {

// How few warps can share a row, as a logarithm.
inline int fewest_ways(DType dtype, int64_t k) {
  int log_ways = 0;
  while (k * dtype_size(dtype) > int64_t{kVectorPart} * kMostVectorParts << log_ways) ++log_ways;
  return log_ways;
}

// With so many rows for each warp, of which 2^log_ways share a row. False: rows are too long for that, or too many.
inline bool fill_vector(VectorArgs& a, DType dtype, int64_t k, const void* x, const InputNorm& norm, const void* weight,
                        int64_t rows, int log_ways) {
  const int64_t row_bytes = k * dtype_size(dtype), of_ways = int64_t{kVectorPart} << log_ways;
  const int64_t parts = (row_bytes + of_ways - 1) / of_ways;
  if (rows > kMostVectorRows || parts > kMostVectorParts || 1 << log_ways > kVectorWarps) return false;
  a.x = static_cast<const char*>(x);
  a.weight = static_cast<const char*>(weight);
  a.norm_weight = static_cast<const char*>(norm.given != 0 ? norm.weight : nullptr);
  a.row_bytes = static_cast<int32_t>(row_bytes);
  a.rows = static_cast<int32_t>(rows);
  a.parts = static_cast<int32_t>(parts);
  a.log_ways = log_ways;
  a.float_weights = resolve_dtype(norm.weight_type, dtype) == DType::f32 ? 1 : 0;
  a.normed = norm.given != 0 ? 1 : 0;
  a.eps = norm.eps;
  a.inverse_width = 1.0f / static_cast<float>(k);
  return true;
}

}  // namespace prologue::cuda
