// Views: raw pointers with strides. Strides count elements, never bytes. Views are plain data and own no memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/host_device.h>

namespace prologue {

enum class RopeStyle : int32_t {
  neox = 0,     // half-split: pair i is (x[i], x[i + rotary_dim/2])
  interleaved,  // pair i is (x[2i], x[2i + 1])
};

constexpr const char* rope_style_name(RopeStyle style) { return style == RopeStyle::neox ? "neox" : "interleaved"; }

// [num_tokens, num_heads, head_dim] with contiguous channels; element (t, h, d) is at
// data[t * token_stride + h * head_stride + d].
struct HeadsView {
  const void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};
struct MutableHeadsView {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  operator HeadsView() const { return {data, token_stride, head_stride}; }  // NOLINT(google-explicit-constructor)
};

// An index array of int32 or int64 on the device of the operation.
enum class IndexType : int32_t { int32 = 0, int64 };
struct IndexView {
  const void* data = nullptr;
  IndexType type = IndexType::int32;

  IndexView() = default;
  IndexView(const int32_t* values) : data(values), type(IndexType::int32) {}  // NOLINT(google-explicit-constructor)
  IndexView(const int64_t* values) : data(values), type(IndexType::int64) {}  // NOLINT(google-explicit-constructor)
  IndexView(std::nullptr_t) {}                                                // NOLINT(google-explicit-constructor)
};

PROLOGUE_HOST_DEVICE inline int64_t index_at(const IndexView& view, int64_t i) {
  return view.type == IndexType::int32 ? static_cast<const int32_t*>(view.data)[i] : static_cast<const int64_t*>(view.data)[i];
}

struct PageStrides {
  int64_t page = 0;
  int64_t token = 0;
  int64_t head = 0;
};

// The default of strides that a caller must set if they are needed; left unset, they are then an error. 0 is a valid value: one
// row shared by all.
inline constexpr int64_t kUnsetStride = -1;

// What happens to a token whose position is past the last row of the table, or past another bound on positions.
enum class PastTable : int32_t {
  record = 0,  // its rows become zeros, its K and V are not cached, it is recorded; `faults` must not be null
  zero,        // the same, but `faults` may be null (then nothing is recorded)
  identity,    // its rows are not rotated (cos 1, sin 0), its K and V are cached, nothing is recorded
};

// How a cache stores an element. Quantised types store round(x / scale), and reading multiplies by scale.
enum class KvType : int32_t { as_dtype = 0, f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8, int4 };

constexpr KvType kv_type_of(DType type) { return static_cast<KvType>(static_cast<int32_t>(type) + 1); }
constexpr DType dtype_of(KvType float_type) { return static_cast<DType>(static_cast<int32_t>(float_type) - 1); }
// The type that `type` means in an operation on `dtype`.
constexpr KvType resolve_kv_type(KvType type, DType dtype) { return type == KvType::as_dtype ? kv_type_of(dtype) : type; }
// The functions below take resolved types.
constexpr bool kv_type_valid(KvType type) { return type >= KvType::f32 && type <= KvType::int4; }
constexpr bool kv_type_is_float(KvType type) { return type <= KvType::bf16; }
constexpr int64_t kv_type_bits(KvType type) {
  if (kv_type_is_float(type)) return type == KvType::f32 ? 32 : 16;
  return type == KvType::int4 ? 4 : 8;
}
constexpr const char* kv_type_name(KvType type) {
  switch (type) {
    case KvType::as_dtype: return "as_dtype";
    case KvType::f32: return "float32";
    case KvType::f16: return "float16";
    case KvType::bf16: return "bfloat16";
    case KvType::fp8_e4m3: return "fp8_e4m3";
    case KvType::fp8_e5m2: return "fp8_e5m2";
    case KvType::int8: return "int8";
    case KvType::int4: return "int4";
  }
  return "unknown";
}

// Where the scales of a quantised cache come from.
enum class KvScaling : int32_t {
  none = 0,    // float types, and fp8 stored with scale 1
  tensor,      // given: one float32 for K and one for V
  head,        // given: [num_kv_heads] float32 for each of K and V
  token_head,  // computed when a token is written; [num_pages, page_size, num_kv_heads] float32 for each of K and V
};

// One layer's paged KV cache. Slot s is at offset s % page_size of page s / page_size. Channel d of head h of that slot is the
// element
//   page * strides.page + offset * strides.token + h * strides.head + d
// int4 packs two elements in a byte, the even channel in the low nibble; strides and head dims must then be even. The strides
// describe every layout: NHD, HND, K and V in two buffers, or interleaved in one.
struct PagedKvView {
  void* k = nullptr;
  void* v = nullptr;
  KvType type = KvType::as_dtype;  // as_dtype: the dtype of the operation that uses the view
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;    // of K
  int64_t v_head_dim = 0;  // of V; 0 = head_dim
  PageStrides k_strides;
  PageStrides v_strides;

  KvScaling scaling = KvScaling::none;
  float* k_scale = nullptr;  // on the device; tensor and head: read; token_head: written by the prologue
  float* v_scale = nullptr;
  PageStrides k_scale_strides;  // token_head only; in floats
  PageStrides v_scale_strides;

  int64_t num_slots() const { return num_pages * page_size; }
  int64_t v_width() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
};

// Strides of a dense [num_pages, page_size, num_kv_heads, head_dim] tensor.
inline PageStrides nhd_strides(int64_t page_size, int64_t num_kv_heads, int64_t head_dim) {
  return {page_size * num_kv_heads * head_dim, num_kv_heads * head_dim, head_dim};
}

}  // namespace prologue
