#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/kv_types.h>

namespace prologue {

namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 60;

// Returns the bytes from the first to past the last one, or -1 if that leaves 2^60.
int64_t extent(const Region& region) {
  int64_t bytes = region.width;
  for (int i = 0; i < Region::kDims; ++i) {
    if (region.count(i) <= 0) return 0;
    int64_t reach = 0;
    if (__builtin_mul_overflow(region.count(i) - 1, region.stride(i), &reach) || reach > kMaxExtent) return -1;
    bytes += reach;
    if (bytes > kMaxExtent) return -1;
  }
  return bytes;
}

// Returns the dimensions of a region that repeat anything, the widest stride first; the others have a count of 1.
struct Nest {
  static constexpr int kDims = Region::kDims + 1;  // one that repeats nothing ends it
  int64_t counts[kDims] = {1, 1, 1, 1, 1};
  int64_t strides[kDims] = {0, 0, 0, 0, 0};
  int64_t extents[kDims + 1];  // bytes of dimensions [i, kDims)

  explicit Nest(const Region& region) {
    int used = 0;
    for (int i = 0; i < Region::kDims; ++i) {
      if (region.count(i) <= 1) continue;
      int at = used++;
      for (; at > 0 && strides[at - 1] < region.stride(i); --at) {
        strides[at] = strides[at - 1];
        counts[at] = counts[at - 1];
      }
      strides[at] = region.stride(i);
      counts[at] = region.count(i);
    }
    extents[kDims] = region.width;
    for (int i = kDims - 1; i >= 0; --i) extents[i] = extents[i + 1] + (counts[i] - 1) * strides[i];
  }
};

// Returns true if b, starting `distance` bytes after a, certainly does not overlap a. Rows of one buffer (columns of packed QKV, K beside
// V, scales after their data) repeat with the same stride: then what is within one stride is compared.
bool apart(const Nest& a, const Nest& b, int64_t distance, int level) {
  if (distance >= a.extents[level] || -distance >= b.extents[level]) return true;
  const int64_t stride = a.strides[level];
  if (level == Nest::kDims - 1 || stride <= 0 || stride != b.strides[level]) return false;
  if (a.extents[level + 1] > stride || b.extents[level + 1] > stride) return false;
  const int64_t column = (distance % stride + stride) % stride;
  return apart(a, b, column, level + 1) && apart(a, b, column - stride, level + 1);
}

bool empty(const Region& region) {
  return region.inner_count <= 0 || std::any_of(region.counts, region.counts + 3, [](int64_t count) { return count <= 0; });
}

bool overlap(const Region& a, const Region& b) {
  const int64_t a_bytes = extent(a);
  const int64_t b_bytes = extent(b);
  if (a_bytes <= 0 || b_bytes <= 0) return false;
  const uint64_t a_begin = reinterpret_cast<uintptr_t>(a.data);
  const uint64_t b_begin = reinterpret_cast<uintptr_t>(b.data);
  if (a_begin + static_cast<uint64_t>(a_bytes) <= b_begin || b_begin + static_cast<uint64_t>(b_bytes) <= a_begin) return false;
  return !apart(Nest(a), Nest(b), static_cast<int64_t>(b_begin - a_begin), 0);
}

// Returns a number of bytes. A size that does not fit becomes one that every check rejects.
int64_t bytes_of(int64_t elements, int64_t bits) {
  int64_t result = 0;
  return __builtin_mul_overflow(elements, bits, &result) ? INT64_MAX : result / 8;
}

}  // namespace

Region heads_region(const char* name, const HeadsView& view, int64_t num_tokens, int64_t num_heads, int64_t head_dim,
                    DType dtype) {
  const int64_t size = dtype_size(dtype);
  Region region{name, view.data, head_dim * size, size, {num_tokens, num_heads, 1}, {-1, -1, 0}};
  region.strides[0] = bytes_of(view.token_stride, 8 * size);
  region.strides[1] = bytes_of(view.head_stride, 8 * size);
  return region;
}

Region array_region(const char* name, const void* data, int64_t count, int64_t element_size) {
  Region region{name, data, element_size, element_size, {count, 1, 1}, {element_size, 0, 0}};
  return region;
}

Region index_region(const char* name, const IndexView& view, int64_t count) {
  return array_region(name, view.data, count, view.type == DType::int32 ? 4 : 8);
}

Region positions_region(const char* name, const IndexView& view, int64_t num_axes, int64_t axis_stride, int64_t count) {
  Region region = index_region(name, view, count);
  if (num_axes > 1) {
    if (__builtin_mul_overflow(axis_stride, view.type == DType::int32 ? 4 : 8, &region.strides[1])) region.strides[1] = INT64_MAX;
    region.counts[1] = num_axes;
  }
  return region;
}

Region cache_region(const char* name, const PagedHeads& side, int64_t head_dim, const PagedKvView& cache) {
  const int64_t bits = dtype_bits(side.format.type);
  const PageStrides& strides = side.strides;
  return {name,
          side.data,
          bytes_of(head_dim, bits),
          std::max<int64_t>(bits / 8, 1),
          {cache.num_pages, cache.page_size, cache.num_kv_heads},
          {bytes_of(strides.page, bits), bytes_of(strides.token, bits), bytes_of(strides.head, bits)}};
}

Region cache_scale_region(const char* name, const PagedHeads& side, const PagedKvView& cache) {
  const int64_t size = sizeof(float);
  const PageStrides& strides = side.scale_strides;
  switch (side.format.scaling) {
    case KvScaling::none:
    case KvScaling::mx: break;
    case KvScaling::nv: return array_region(name, side.scale, side.scale == nullptr ? 0 : 1, size);
    case KvScaling::tensor: return array_region(name, side.scale, 1, size);
    case KvScaling::head: return array_region(name, side.scale, cache.num_kv_heads, size);
    case KvScaling::token_head:
      return {name,
              side.scale,
              scales_of_head(side.format) * size,
              size,
              {cache.num_pages, cache.page_size, cache.num_kv_heads},
              {bytes_of(strides.page, 32), bytes_of(strides.token, 32), bytes_of(strides.head, 32)}};
  }
  return array_region(name, side.scale, 0, size);
}

Region cache_block_scale_region(const char* name, const PagedHeads& side, int64_t head_dim, const PagedKvView& cache) {
  if (!is_block_scaled(side.format)) return array_region(name, side.block_scale, 0, 1);
  const PageStrides& strides = side.scale_strides;
  return {name,
          side.block_scale,
          head_dim / block_channels(side.format),
          1,
          {cache.num_pages, cache.page_size, cache.num_kv_heads},
          {strides.page, strides.token, strides.head}};
}

std::string dtype_text(DType type) {
  return type == DType::unset || dtype_valid(type) ? dtype_name(type) : str_cat("the unknown type ", static_cast<int32_t>(type));
}

Status check_range(const char* operation, const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(operation, ": ", name, " is ", value, ": it must lie in ", low, "..", high);
}

Status check_dtype(const char* operation, const char* name, DType dtype) {
  if (dtype_is_activation(dtype)) return {};
  return unsupported(operation, ": ", name, " is ", dtype_text(dtype), ": supported are float32, float16 and bfloat16");
}

Status check_finite(const char* operation, const char* name, float value) {
  if (std::isfinite(value)) return {};
  return invalid_argument(operation, ": ", name, " is ", value, ": it must be finite");
}

Status check_positive(const char* operation, const char* name, float value) {
  if (std::isfinite(value) && value > 0.0f) return {};
  return invalid_argument(operation, ": ", name, " is ", value, ": it must be finite and greater than 0");
}

Status check_device(const char* operation, Device device) {
  if (device == Device::cpu || device == Device::cuda) return {};
  return invalid_argument(operation, ": device is ", static_cast<int32_t>(device), ": it must be cpu or cuda");
}

Status check_readable(const char* operation, const Region& region) {
  if (empty(region)) return {};
  for (int i = 0; i < Region::kDims; ++i) {
    if (region.stride(i) >= 0) continue;
    return invalid_argument(operation, ": ", region.name, " has the stride ", region.stride(i) / region.alignment,
                            ": strides must not be negative");
  }
  const int64_t bytes = extent(region);
  if (bytes < 0)
    return invalid_argument(operation, ": ", region.name, " reaches further than 2^60 bytes: its strides are too large");
  if (region.data == nullptr) return invalid_argument(operation, ": ", region.name, " is null");
  if (reinterpret_cast<uintptr_t>(region.data) % static_cast<uintptr_t>(region.alignment) != 0) {
    return invalid_argument(operation, ": ", region.name, " lies at ", region.data, ": it must be aligned to ", region.alignment,
                            " bytes");
  }
  if (reinterpret_cast<uintptr_t>(region.data) > UINTPTR_MAX - static_cast<uintptr_t>(bytes)) {
    return invalid_argument(operation, ": ", region.name, " at ", region.data, " with ", bytes,
                            " bytes leaves the address space");
  }
  return {};
}

Status check_writable(const char* operation, const Region& region) {
  PROLOGUE_RETURN_IF_ERROR(check_readable(operation, region));
  if (empty(region)) return {};
  std::array<int, Region::kDims> order = {0, 1, 2, 3};
  std::sort(order.begin(), order.end(), [&](int a, int b) { return region.stride(a) < region.stride(b); });
  int64_t inner = region.width;
  for (const int i : order) {
    if (region.count(i) <= 1) continue;
    if (region.stride(i) < inner) {
      return invalid_argument(operation, ": ", region.name, " has the stride ", region.stride(i) / region.alignment, " where ",
                              inner / region.alignment, " elements lie: rows that are written must not overlap");
    }
    inner += (region.count(i) - 1) * region.stride(i);
  }
  return {};
}

Status check_apart(const char* operation, const Region& written, const Region& other) {
  if (!overlap(written, other)) return {};
  return invalid_argument(operation, ": ", written.name, " overlaps ", other.name);
}

Status RegionChecks::read(const Region& region) {
  PROLOGUE_RETURN_IF_ERROR(check_readable(operation_, region));
  return add(region, false, "");
}

Status RegionChecks::write(const Region& region, const char* in_place) {
  PROLOGUE_RETURN_IF_ERROR(check_writable(operation_, region));
  return add(region, true, in_place);
}

void RegionChecks::leave_out(std::initializer_list<const char*> names) {
  num_left_out_ = 0;
  for (const char* name : names) {
    if (num_left_out_ < kMaxLeftOut) left_out_[num_left_out_++] = name;
  }
}

Status RegionChecks::add(const Region& region, bool written, const char* in_place) {
  const int64_t bytes = extent(region);
  if (bytes <= 0) return {};
  const auto is_its_name = [&](const char* name) { return std::strcmp(name, region.name) == 0; };
  if (std::any_of(left_out_, left_out_ + num_left_out_, is_its_name)) return {};
  for (int i = 0; i < count_; ++i) {
    Entry& other = entry(i);
    if (other.region.data != region.data || !is_its_name(other.region.name) || !same_region(other.region, region)) continue;
    if (extent(other.region) != bytes) continue;
    other.written = other.written || written;
    return {};
  }
  if (count_ == kMaxEntries) return unsupported(operation_, ": more than ", kMaxEntries, " arrays");
  const auto begin = reinterpret_cast<uintptr_t>(region.data);
  new (room_ + static_cast<size_t>(count_++) * sizeof(Entry))
      Entry{region, written, in_place, begin, begin + static_cast<uintptr_t>(bytes)};
  return {};
}

Status RegionChecks::check_all_apart() const {
  for (int i = 0; i < count_; ++i) {
    const Entry& a = entry(i);
    if (!a.written) continue;
    for (int j = 0; j < count_; ++j) {
      const Entry& b = entry(j);
      if (i == j || (b.written && j < i) || a.end <= b.begin || b.end <= a.begin) continue;
      if (std::strcmp(a.in_place, b.region.name) == 0 && same_region(a.region, b.region)) continue;
      PROLOGUE_RETURN_IF_ERROR(check_apart(operation_, a.region, b.region));
    }
  }
  return {};
}

bool same_region(const Region& a, const Region& b) {
  return a.data == b.data && std::equal(a.strides, a.strides + 3, b.strides) && a.inner_stride == b.inner_stride;
}

const char* given_without_rotation(const Rope& rope) {
  return rope.cos.data != nullptr      ? "rope.cos"
         : rope.sin.data != nullptr    ? "rope.sin"
         : rope.angles.data != nullptr ? "rope.angles"
         : rope.inv_freq != nullptr    ? "rope.inv_freq"
         : rope.theta != 0.0           ? "rope.theta"
                                       : nullptr;
}

Status check_head_and_rotary_dim(const char* operation, int64_t head_dim, RopeStyle style, int64_t rotary_dim) {
  if (head_dim < 2 || head_dim > kMaxHeadDim || head_dim % 2 != 0) {
    return unsupported(operation, ": head_dim is ", head_dim, ": supported is every even number in 2..", kMaxHeadDim);
  }
  if (style != RopeStyle::neox && style != RopeStyle::interleaved) {
    return unsupported(operation, ": the rope style is ", static_cast<int32_t>(style), ": supported are neox and interleaved");
  }
  if (rotary_dim < 0 || rotary_dim > head_dim || rotary_dim % 2 != 0) {
    return invalid_argument(operation, ": rotary_dim is ", rotary_dim, ": it must be even and lie in 0..head_dim, ", head_dim);
  }
  return {};
}

Status check_v_head_dim(const char* operation, const PagedKvView& cache) {
  const int64_t head_dim = cache.v.head_dim;
  if (head_dim >= 0 && head_dim <= kMaxHeadDim && head_dim % 2 == 0) return {};
  return unsupported(operation, ": cache.v.head_dim is ", head_dim, ": supported is every even number in 2..", kMaxHeadDim,
                     ", or 0 = head_dim");
}

Status check_past_table(const char* operation, PastTable past_table, int64_t max_position, const FaultRecord* faults) {
  if (past_table < PastTable::record || past_table > PastTable::identity) {
    return unsupported(operation, ": past_table is ", static_cast<int32_t>(past_table),
                       ": supported are record, zero and identity");
  }
  if (past_table != PastTable::record || max_position == 0 || faults != nullptr) return {};
  return invalid_argument(operation, ": faults is null, but max_position is ", max_position,
                          ": give a FaultRecord, or set past_table to zero or identity");
}

Status check_stride_set(const char* operation, const char* name, int64_t stride, const char* count_name, int64_t count) {
  if (count <= 1 || stride != kUnsetStride) return {};
  return invalid_argument(operation, ": ", name, " is not set, but ", count_name, " is ", count,
                          ": set it, to 0 where all share one row");
}

Status check_index_type(const char* operation, const char* name, const IndexView& view) {
  if (view.data == nullptr || view.type == DType::int32 || view.type == DType::int64) return {};
  return invalid_argument(operation, ": ", name, ".type is ", dtype_text(view.type), ": it must be int32 or int64");
}

namespace {

bool sets_one_type_of_two(const PagedKvView& cache) {
  return cache.k.data != nullptr && cache.v.data != nullptr &&
         (cache.k.format.type == DType::unset) != (cache.v.format.type == DType::unset);
}

}  // namespace

PagedKvView resolved(const PagedKvView& cache, DType dtype) {
  PagedKvView view = cache;
  if (sets_one_type_of_two(cache)) return view;  // check_cache_shape returns the error
  view.k.format.type = resolve_dtype(cache.k.format.type, dtype);
  view.v.format.type = resolve_dtype(cache.v.format.type, dtype);
  return view;
}

namespace {

// Checks what only block-scaled formats have, whose type and scaling are valid by themselves.
Status check_blocks(const char* operation, const char* name, const PagedHeads& side, int64_t head_dim, int64_t page_size) {
  const auto [type, scaling] = side.format;
  const bool mx = scaling == KvScaling::mx;
  if (type != DType::fp4_e2m1 && !(mx && type == DType::fp8_e4m3)) {
    return unsupported(operation, ": ", name, ".format.scaling is ", mx ? "mx" : "nv", ", but the type is ", dtype_name(type),
                       mx ? ": supported are fp8_e4m3 and fp4_e2m1" : ": supported is fp4_e2m1");
  }
  const int64_t channels = block_channels(side.format);
  if (head_dim % channels != 0) {
    return invalid_argument(operation, ": ", name, ".head_dim is ", head_dim, ": it must be a multiple of ", channels,
                            ", the channels of a block of scaling ", mx ? "mx" : "nv");
  }
  switch (side.block_scale_layout) {
    case BlockScaleLayout::linear: return {};
    case BlockScaleLayout::interleaved_4_tokens:
      if (head_dim / channels % 4 == 0 && page_size % 4 == 0) return {};
      return invalid_argument(operation, ": ", name, ".block_scale_layout is interleaved_4_tokens, the page size ", page_size, " and a head has ",
                              head_dim / channels, " blocks: both must be multiples of 4");
  }
  return unsupported(operation, ": ", name, ".block_scale_layout is ", static_cast<int32_t>(side.block_scale_layout),
                     ": supported are linear and interleaved_4_tokens");
}

}  // namespace

Status check_format(const char* operation, const char* name, const PagedHeads& side, int64_t head_dim, int64_t page_size) {
  const auto [type, scaling] = side.format;
  if (!dtype_is_kv(type)) {
    return unsupported(operation, ": ", name, ".format.type is ", dtype_text(type), ": supported are ", kv_type_names());
  }
  if (scaling < KvScaling::none || scaling > KvScaling::nv) {
    return unsupported(operation, ": ", name, ".format.scaling is ", static_cast<int32_t>(scaling),
                       ": supported are none, tensor, head, token_head, mx and nv");
  }
  if (!dtype_is_quantized(type) && scaling != KvScaling::none) {
    return invalid_argument(operation, ": ", name, ".format.scaling is given, but the type is ", dtype_name(type),
                            ": float types have no scales");
  }
  if (!dtype_is_fp8(type) && dtype_is_quantized(type) && scaling == KvScaling::none) {
    return invalid_argument(operation, ": ", name, ".format.scaling is none, but the type is ", dtype_name(type),
                            ": integer types need scales");
  }
  if (type == DType::uint4 && scaling != KvScaling::token_head) {
    return invalid_argument(operation, ": ", name,
                            ".format.type is uint4, but the scaling is not token_head: each token and head ",
                            "needs a scale and a zero point");
  }
  if (type == DType::fp4_e2m1 && !is_block_scaled(side.format)) {
    return invalid_argument(operation, ": ", name, ".format.type is fp4_e2m1, but the scaling is neither mx nor nv: ",
                            "the scales are those of blocks");
  }
  if (is_block_scaled(side.format)) PROLOGUE_RETURN_IF_ERROR(check_blocks(operation, name, side, head_dim, page_size));
  if (dtype_bits(type) != 4) return {};
  for (const int64_t stride : {side.strides.page, side.strides.token, side.strides.head}) {
    if (stride % 2 == 0) continue;
    return invalid_argument(operation, ": a stride of ", name, " is ", stride, ": it must be even, two channels of ",
                            dtype_name(type), " share a byte");
  }
  return {};
}

Status check_page_count(const char* operation, const PagedKvView& cache) {
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "cache.num_pages", cache.num_pages, 1, int64_t{1} << 40));
  return check_range(operation, "cache.page_size", cache.page_size, 1, int64_t{1} << 20);
}

Status check_cache_shape(const char* operation, const PagedKvView& cache, int64_t num_kv_heads, int64_t head_dim) {
  if (sets_one_type_of_two(cache)) {
    return invalid_argument(operation, ": cache.k.format.type is ", dtype_text(cache.k.format.type),
                            " and cache.v.format.type is ", dtype_text(cache.v.format.type), ": set both, or none");
  }
  const auto check_side = [&](const char* name, const PagedHeads& side, int64_t width) {
    return side.data == nullptr ? Status() : check_format(operation, name, side, width, cache.page_size);
  };
  PROLOGUE_RETURN_IF_ERROR(check_side("cache.k", cache.k, head_dim));
  PROLOGUE_RETURN_IF_ERROR(check_side("cache.v", cache.v, cache.v.head_dim > 0 ? cache.v.head_dim : head_dim));
  PROLOGUE_RETURN_IF_ERROR(check_page_count(operation, cache));
  if (cache.num_kv_heads != num_kv_heads) {
    return invalid_argument(operation, ": cache.num_kv_heads is ", cache.num_kv_heads, ": it must be num_kv_heads, ",
                            num_kv_heads);
  }
  if (cache.k.head_dim != head_dim) {
    return invalid_argument(operation, ": cache.k.head_dim is ", cache.k.head_dim, ": it must be head_dim, ", head_dim);
  }
  return {};
}

}  // namespace prologue
