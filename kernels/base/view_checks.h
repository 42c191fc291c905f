// Checks of pointers, strides and aliasing that operations over strided heads share. All sizes here are in bytes.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// Rows of `width` bytes, counts[i] of them strides[i] apart in each of three dimensions (outermost first).
struct Region {
  const char* name = "";
  const void* data = nullptr;
  int64_t width = 0;
  int64_t alignment = 1;
  int64_t counts[3] = {1, 1, 1};
  int64_t strides[3] = {0, 0, 0};
  int64_t inner_count = 1;  // a fourth, innermost dimension, for rows whose elements lie apart
  int64_t inner_stride = 0;

  static constexpr int kDims = 4;
  int64_t count(int dim) const { return dim < 3 ? counts[dim] : inner_count; }
  int64_t stride(int dim) const { return dim < 3 ? strides[dim] : inner_stride; }
};

Region heads_region(const char* name, const HeadsView& view, int64_t num_tokens, int64_t num_heads, int64_t head_dim,
                    DType dtype);
Region array_region(const char* name, const void* data, int64_t count, int64_t element_size);
Region index_region(const char* name, const IndexView& view, int64_t count);
// [num_axes, count], rows axis_stride apart.
Region positions_region(const char* name, const IndexView& view, int64_t num_axes, int64_t axis_stride, int64_t count);
// `width` in channels of the cache's type; 0 = the cache's head_dim.
Region cache_region(const char* name, const void* data, const PageStrides& strides, const PagedKvView& cache, int64_t width = 0);
// The scales of a quantised cache, however they are laid out; empty where there are none.
Region cache_scale_region(const char* name, const float* scale, const PageStrides& strides, const PagedKvView& cache);

Status check_range(const char* operation, const char* name, int64_t value, int64_t low, int64_t high);
Status check_dtype(const char* operation, const char* name, DType dtype);
Status check_device(const char* operation, Device device);
Status check_finite(const char* operation, const char* name, float value);
Status check_positive(const char* operation, const char* name, float value);
// Not null, aligned to its elements, strides not negative, offsets within 64 bits.
Status check_readable(const char* operation, const Region& region);
// Besides: no row overlaps another.
Status check_writable(const char* operation, const Region& region);
Status check_apart(const char* operation, const Region& written, const Region& other);

// The regions of one operation: each is checked as it is added, and at the end that what is written touches nothing else.
class RegionChecks {
 public:
  explicit RegionChecks(const char* operation) : operation_(operation) {}
  Status read(const Region& region);
  // `in_place`: the input that this may be itself.
  Status write(const Region& region, const char* in_place = "");
  Status check_all_apart() const;

 private:
  struct Entry {
    Region region;
    bool written = false;
    const char* in_place = "";
    uintptr_t begin = 0, end = 0;
  };
  Status add(const Region& region, bool written, const char* in_place);

  static constexpr int kMaxEntries = 40;
  const char* operation_;
  Entry entries_[kMaxEntries] = {};
  int count_ = 0;
};

// The same rows in the same order: what "in place" means.
bool same_region(const Region& a, const Region& b);

// head_dim even, 2..576; rotary_dim even, 0..head_dim.
Status check_head_and_rotary_dim(const char* operation, int64_t head_dim, RopeStyle style, int64_t rotary_dim);
// The float32 table [max_position, rotary_dim] and the positions into it; without rotation both may be null.
Region table_region(int64_t rotary_dim, const float* cos_sin_cache, int64_t max_position);
Status check_rotation_table(const char* operation, int64_t rotary_dim, const float* cos_sin_cache, int64_t max_position,
                            const IndexView& positions, int64_t num_tokens);
Status check_faults(const char* operation, const FaultRecord* faults);
Status check_index_type(const char* operation, const char* name, const IndexView& view);
// The cache's shape, type and scaling against the operation's heads; its memory is a matter of regions.
Status check_cache_shape(const char* operation, const PagedKvView& cache, int64_t num_kv_heads, int64_t head_dim);

}  // namespace prologue
