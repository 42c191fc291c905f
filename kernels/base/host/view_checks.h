// This file checks pointers, strides and aliasing for all operations over strided heads. All sizes here are in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <string>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// Describes rows of `width` bytes, repeated over three dimensions: counts[i] times at stride strides[i] (outermost first).
struct Region {
  const char* name = "";
  const void* data = nullptr;
  int64_t width = 0;
  int64_t alignment = 1;
  int64_t counts[3] = {1, 1, 1};
  int64_t strides[3] = {0, 0, 0};
  int64_t inner_count = 1;  // a fourth, innermost dimension, for rows whose elements are not adjacent
  int64_t inner_stride = 0;

  static constexpr int kDims = 4;
  int64_t count(int dim) const { return dim < 3 ? counts[dim] : inner_count; }
  int64_t stride(int dim) const { return dim < 3 ? strides[dim] : inner_stride; }
};

PROLOGUE_API Region heads_region(const char* name, const HeadsView& view, int64_t num_tokens, int64_t num_heads, int64_t head_dim,
                                 DType dtype);
inline Region heads_region(const char* name, const MutableHeadsView& view, int64_t num_tokens, int64_t num_heads, int64_t head_dim,
                           DType dtype) {
  return heads_region(name, as_input(view), num_tokens, num_heads, head_dim, dtype);
}
PROLOGUE_API Region array_region(const char* name, const void* data, int64_t count, int64_t element_size);
Region index_region(const char* name, const IndexView& view, int64_t count);
// Returns the region of [num_axes, count] positions with row stride axis_stride.
Region positions_region(const char* name, const IndexView& view, int64_t num_axes, int64_t axis_stride, int64_t count);
// Returns the region of `side`, which is cache.k or cache.v with its type resolved. `head_dim` is the number of its channels.
Region cache_region(const char* name, const PagedHeads& side, int64_t head_dim, const PagedKvView& cache);
// Returns the region of the scales of a quantised side, for every KvScaling. It is empty if there are none.
Region cache_scale_region(const char* name, const PagedHeads& side, const PagedKvView& cache);

// Returns the region of the scales of the blocks of a side with so many channels. It is empty if the format is not block-scaled.
Region cache_block_scale_region(const char* name, const PagedHeads& side, int64_t head_dim, const PagedKvView& cache);

// Returns "int16", or "the unknown type 99".
std::string dtype_text(DType type);

Status check_range(const char* operation, const char* name, int64_t value, int64_t low, int64_t high);
Status check_dtype(const char* operation, const char* name, DType dtype);
Status check_device(const char* operation, Device device);
Status check_finite(const char* operation, const char* name, float value);
Status check_positive(const char* operation, const char* name, float value);
// Checks that a region is not null and aligned to its elements, its strides are not negative, and its offsets are within 64 bits.
Status check_readable(const char* operation, const Region& region);
// Makes the same checks, and checks that no row overlaps another.
Status check_writable(const char* operation, const Region& region);
Status check_apart(const char* operation, const Region& written, const Region& other);

// Checks the regions of one operation, or of several that run one after another. Each region is checked when it is added. check_all_apart()
// then checks that no written region overlaps another one. The same region with the same name is stored once, so an operation may read what
// an earlier one wrote.
class PROLOGUE_API RegionChecks {
 public:
  explicit RegionChecks(const char* operation) : operation_(operation) {}
  Status read(const Region& region);
  // `in_place` is the name of the input that this region may be identical to.
  Status write(const Region& region, const char* in_place = "");
  // From now on, regions with these names (at most 8) are checked individually but not stored. For views that the caller itself
  // made and whose aliasing it is responsible for.
  void leave_out(std::initializer_list<const char*> names);
  Status check_all_apart() const;

 private:
  struct Entry {
    Region region;
    bool written = false;
    const char* in_place = "";
    uintptr_t begin = 0, end = 0;
  };
  Status add(const Region& region, bool written, const char* in_place);

  Entry& entry(int i) { return *std::launder(reinterpret_cast<Entry*>(room_) + i); }
  const Entry& entry(int i) const { return *std::launder(reinterpret_cast<const Entry*>(room_) + i); }

  static constexpr int kMaxEntries = 100, kMaxLeftOut = 8;
  const char* operation_;
  alignas(Entry) std::byte room_[kMaxEntries * sizeof(Entry)];  // of the entries; the first count_ are there
  int count_ = 0;
  const char* left_out_[kMaxLeftOut] = {};
  int num_left_out_ = 0;
};

// Returns true if both are the same rows in the same order, that is, "in place".
bool same_region(const Region& a, const Region& b);

// Checks that head_dim is even and in 2..kMaxHeadDim; rotary_dim even, 0..head_dim.
Status check_head_and_rotary_dim(const char* operation, int64_t head_dim, RopeStyle style, int64_t rotary_dim);
// Returns the name of a member of a rope that is given although only a rotation needs it; null: nothing.
PROLOGUE_API const char* given_without_rotation(const Rope& rope);
// Checks that cache.v.head_dim is even and in 0..kMaxHeadDim.
Status check_v_head_dim(const char* operation, const PagedKvView& cache);
// Checks a bound on positions (0 = none), and what happens to tokens past it.
Status check_past_table(const char* operation, PastTable past_table, int64_t max_position, const FaultRecord* faults);
// If count > 1, the stride must be set.
Status check_stride_set(const char* operation, const char* name, int64_t stride, const char* count_name, int64_t count);
Status check_index_type(const char* operation, const char* name, const IndexView& view);
// Returns the cache with the types of K and V that unset stands for in an operation on `dtype`.
PagedKvView resolved(const PagedKvView& cache, DType dtype);
// Checks how heads of head_dim channels, with their type resolved, are stored in a cache. `name` is that of the member.
Status check_format(const char* operation, const char* name, const PagedHeads& side, int64_t head_dim, int64_t page_size);
// Checks the number of pages, and of tokens in one.
Status check_page_count(const char* operation, const PagedKvView& cache);
// The cache's shape and formats (resolved) must fit the operation's heads. Its memory is checked as regions.
Status check_cache_shape(const char* operation, const PagedKvView& cache, int64_t num_kv_heads, int64_t head_dim);

}  // namespace prologue
