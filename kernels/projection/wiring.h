// Has what the operations that project have in common on the host: the norm before, and the parts of a workspace. Internal.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/token_ops/norm.h>

namespace prologue {

// Takes parts of a workspace, one after another; without a workspace, it finds out how many bytes they take.
class WorkspaceParts {
 public:
  explicit WorkspaceParts(void* workspace) : workspace_(static_cast<unsigned char*>(workspace)) {}
  void* take(int64_t num_bytes) {
    void* const part = workspace_ == nullptr ? nullptr : workspace_ + size_bytes_;
    size_bytes_ += round_up(num_bytes, kAlignment);
    return part;
  }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  static constexpr int64_t kAlignment = 256;  // no operation is slower than with buffers of its own
  unsigned char* workspace_;
  int64_t size_bytes_ = 0;
};

inline Status check_workspace(const char* operation, const void* workspace, int64_t given_bytes, int64_t needed_bytes) {
  constexpr int64_t kAlignment = 16;
  const int64_t given = workspace == nullptr ? 0 : given_bytes;
  if (given < needed_bytes) {
    return invalid_argument(operation, ": workspace has ", given, " bytes: this call needs ", needed_bytes);
  }
  if (reinterpret_cast<uintptr_t>(workspace) % kAlignment != 0) {
    return invalid_argument(operation, ": workspace is at ", workspace, ": it must be aligned to ", kAlignment, " bytes");
  }
  return {};
}

inline NormParams norm_of_rows(const InputNorm& norm, const void* x, void* out, int64_t num_tokens, int64_t width, DType dtype) {
  NormParams p;
  p.num_tokens = num_tokens;
  p.width = width;
  p.dtype = dtype;
  p.kind = norm.kind;
  p.x = x;
  p.weight = norm.weight;
  p.bias = norm.bias;
  p.weight_type = norm.weight_type;
  p.eps = norm.eps;
  p.out = out;
  return p;
}

// Its weight and bias, once validate(NormParams) has accepted them.
inline Status add_norm_regions(const InputNorm& norm, int64_t width, DType dtype, RegionChecks& regions) {
  if (norm.given == 0) return {};
  const int64_t size = dtype_size(resolve_dtype(norm.weight_type, dtype));
  const auto read = [&](const char* name, const void* data) {
    return regions.read(array_region(name, data, data == nullptr ? 0 : width, size));
  };
  PROLOGUE_RETURN_IF_ERROR(read("norm.weight", norm.weight));
  return read("norm.bias", norm.bias);
}

// The segments of packed weights, which validate(GemmParams) has accepted.
inline Status add_packed_regions(const PackedWeight& packed, int64_t k, RegionChecks& regions) {
  for (int32_t s = 0; s < packed.num_segments; ++s) {
    const PackedRows& rows = packed.segments[s];
    PROLOGUE_RETURN_IF_ERROR(
        regions.read(array_region("a segment", rows.data, packed_weight_bytes(rows.format, rows.rows, k), 1)));
  }
  return {};
}

}  // namespace prologue
