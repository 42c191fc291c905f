// Views: raw pointers with strides. Strides count elements, never bytes. Views are plain data and own no memory.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/host_device.h>

namespace prologue {

// A head has at most so many channels in the prologue, its stages and the rotary operation. paged_attention takes fewer.
inline constexpr int64_t kMaxHeadDim = 1024;

// Describes [num_tokens, num_heads, head_dim] with contiguous channels; element (t, h, d) is at data[t * token_stride + h * head_stride +
// d].
struct HeadsView {
  const void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};
struct MutableHeadsView {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};
inline HeadsView as_input(const MutableHeadsView& view) { return {view.data, view.token_stride, view.head_stride}; }

// Refers to an array of integers on the device of the operation; index_view() makes one. Operations take int32 and int64, the rotary
// operation every integer type.
struct IndexView {
  const void* data = nullptr;
  DType type = DType::unset;
};

inline IndexView index_view(const int8_t* values) { return {values, DType::int8}; }
inline IndexView index_view(const int16_t* values) { return {values, DType::int16}; }
inline IndexView index_view(const int32_t* values) { return {values, DType::int32}; }
inline IndexView index_view(const int64_t* values) { return {values, DType::int64}; }
inline IndexView index_view(const uint8_t* values) { return {values, DType::uint8}; }
inline IndexView index_view(const uint16_t* values) { return {values, DType::uint16}; }
inline IndexView index_view(const uint32_t* values) { return {values, DType::uint32}; }
inline IndexView index_view(const uint64_t* values) { return {values, DType::uint64}; }

// Returns element i of an array of int32 or int64.
PROLOGUE_HOST_DEVICE inline int64_t index_at(const IndexView& view, int64_t i) {
  return view.type == DType::int32 ? static_cast<const int32_t*>(view.data)[i] : static_cast<const int64_t*>(view.data)[i];
}

struct PageStrides {
  int64_t page = 0;
  int64_t token = 0;
  int64_t head = 0;
};

// This is the default of strides that a caller must set if they are needed; left unset, they are then an error. 0 is a valid value: one row
// shared by all.
inline constexpr int64_t kUnsetStride = -1;

// Where the scales of a quantised cache come from.
enum class KvScaling : int32_t {
  none = 0,    // float types, and fp8 stored with scale 1
  tensor,      // given: one float32 for K and one for V
  head,        // given: [num_kv_heads] float32 for each of K and V
  token_head,  // computed when a token is written; [num_pages, page_size, num_kv_heads] float32 for K and for V; for uint4
               // [num_pages, page_size, num_kv_heads, 2]: scale and zero point
  mx,  // computed: a power of two for every 32 channels, in block_scale; for fp8_e4m3 (MXFP8), fp4_e2m1 (MXFP4)
  nv,  // computed: an e4m3 number for every 16 channels, in block_scale, times a given float32; for fp4_e2m1 (NVFP4)
};

// Says how K or V is stored. Quantisation:
//   A number is stored as nearest_even(x * (1 / scale)); the reciprocal is rounded to float32.
//   fp8 saturates: finite overflow and infinities become the largest number. NaN stays NaN (0x7f). int8 clamps to [-127, 127],
//   int4 to [-7, 7].
//   Computed scales (token_head) are amax / 448 (e4m3), / 57344 (e5m2), / 127 (int8) or / 7 (int4) of the head's float32 values.
//   An all-zero head, or one so small that the reciprocal of its scale is not finite, stores scale 0 and zeros. A NaN or infinity
//   in the head makes its scale NaN; its data are zeros.
//   With given scales a NaN is stored as 0 in an integer cache.
//   uint4 is asymmetric, and always token_head: value = code * scale + zero point. With min and max of the head's float32 values,
//   zero point = min, scale = (max - min) / 15 and code = nearest_even((x - min) * (1 / scale)), at most 15; each operation is
//   rounded to float32. A head whose values are all equal (zeros too), or so close that 1 / scale is not finite, stores scale 0,
//   its min as zero point, and zeros. A NaN or infinity in the head, or a max - min that is too large for float32, makes scale
//   and zero point NaN; its data are zeros. -0 counts as less than +0.
// Block-scaled formats have a scale of one byte for each block of a head's channels. fp4_e2m1 saturates to 6.
//   mx (the rules of OCP MX 1.0): scale = 2^(e - 127) with e = max(0, 127 + floor(log2(amax of the block)) - 8 (e4m3), or - 2 (e2m1)); so
//   a number may be larger than the largest code times the scale, and saturates. The byte is e, and 255 is NaN. Numbers are stored as
//   nearest_even(x / scale), the quotient being exact but for underflow. A block of zeros stores e = 0 and zeros with their signs.
//   nv: the byte is s = e4m3(amax / 6 * (1 / tensor scale)), a number is stored as nearest_even(x * (1 / (tensor scale * s))) and stands
//   for code * (s * tensor scale); each operation is rounded to float32. A block whose s is 0, or whose 1 / (tensor scale * s) is not
//   finite, stores 0 and zeros.
//   Both: a NaN or infinity in a block makes its scale NaN (255; nv: 0x7f), and its data are zeros. Other blocks of the head are as always.
struct KvFormat {
  DType type = DType::unset;  // unset: the dtype of the operation that uses the cache
  KvScaling scaling = KvScaling::none;
};

// Returns how many float32 numbers the prologue computes and stores for each token and head.
PROLOGUE_HOST_DEVICE constexpr int64_t scales_of_head(const KvFormat& format) {
  return format.scaling == KvScaling::token_head ? format.type == DType::uint4 ? 2 : 1 : 0;
}

PROLOGUE_HOST_DEVICE constexpr bool is_block_scaled(const KvFormat& format) {
  return format.scaling == KvScaling::mx || format.scaling == KvScaling::nv;
}
// Returns how many channels share a scale of a block-scaled format.
PROLOGUE_HOST_DEVICE constexpr int64_t block_channels(const KvFormat& format) { return format.scaling == KvScaling::nv ? 16 : 32; }

// Says where the scale of block b of a head's n blocks is, for the token at offset o of a page:
//   linear                page * page stride + o * token stride + head * head stride + b
//   interleaved_4_tokens  the same with o' = o / 4 * 4 + b / (n / 4) for o and b' = b % (n / 4) * 4 + o % 4 for b: the scales of a group of
//                         4 tokens are transposed (TensorRT-LLM's V on SM100). page_size and n must be multiples of 4
enum class BlockScaleLayout : int32_t { linear = 0, interleaved_4_tokens };

// Describes K or V of a layer's paged cache. Channel d of head h at offset `o` of page `p` is the element
//   p * strides.page + o * strides.token + h * strides.head + d
// int4, uint4 and fp4_e2m1 pack two elements in a byte, the even channel in the low nibble; strides and head_dim must then be even. In a
// block-scaled format head_dim must be a multiple of a block's channels, 32 (mx) or 16 (nv). The strides
// describe every layout: NHD, HND, K and V in two buffers, or interleaved in one.
struct PagedHeads {
  void* data = nullptr;
  int64_t head_dim = 0;
  KvFormat format;
  PageStrides strides;
  float* scale = nullptr;     // on the device; tensor, head, nv (one, null = 1): read; token_head: written
  PageStrides scale_strides;  // token_head: in floats; mx and nv: of block_scale, in bytes
  uint8_t* block_scale = nullptr;  // mx, nv; on the device; [num_pages, page_size, num_kv_heads, blocks]; written
  BlockScaleLayout block_scale_layout = BlockScaleLayout::linear;  // mx and nv only
  uint64_t reserved[2] = {};                                       // zeros: docs/versioning.md
};

// Describes one layer's paged KV cache. Slot s is at offset s % page_size of page s / page_size. K and V may have formats of their own.
struct PagedKvView {
  PagedHeads k;
  PagedHeads v;  // v.head_dim = 0: that of k
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t num_kv_heads = 0;
  uint64_t reserved[2] = {};  // zeros: docs/versioning.md
};

PROLOGUE_HOST_DEVICE constexpr int64_t num_slots(const PagedKvView& cache) { return cache.num_pages * cache.page_size; }
PROLOGUE_HOST_DEVICE constexpr int64_t v_head_dim(const PagedKvView& cache) {
  return cache.v.head_dim > 0 ? cache.v.head_dim : cache.k.head_dim;
}

// Describes the pages of the sequences of a batch, in one of two forms; the other one's pointers are null.
//   Rows: entry i of sequence s is block_table[s * block_table_stride + i], for i in [0, max_pages_per_seq).
//   CSR (FlashInfer, SGLang): entry i of sequence s is kv_indices[kv_indptr[s] + i], for i in [0, kv_indptr[s+1] - kv_indptr[s]).
//     With kv_last_page_len the table also says how long a sequence is: (number of its entries - 1) * page_size +
//     kv_last_page_len[s] tokens, or none if it has no entry.
// An entry is a page of the cache, in [0, num_pages). A sequence whose entries of kv_indptr do not satisfy 0 <= kv_indptr[s] <=
// kv_indptr[s+1] <= num_kv_indices has no page.
struct PageTable {
  const int32_t* block_table = nullptr;  // [num_seqs, max_pages_per_seq]
  int64_t block_table_stride = 0;
  int64_t max_pages_per_seq = 0;
  const int32_t* kv_indptr = nullptr;   // [num_seqs + 1]
  const int32_t* kv_indices = nullptr;  // [num_kv_indices]
  int64_t num_kv_indices = 0;
  const int32_t* kv_last_page_len = nullptr;  // [num_seqs], in 1..page_size; null = not given
  uint64_t reserved[2] = {};                  // zeros: docs/versioning.md
};

// Returns the strides of a dense [num_pages, page_size, num_kv_heads, head_dim] tensor; unset, which is an error where they are needed, if
// a size is not positive (it was not set yet).
inline PageStrides nhd_strides(int64_t page_size, int64_t num_kv_heads, int64_t head_dim) {
  if (page_size <= 0 || num_kv_heads <= 0 || head_dim <= 0) return {kUnsetStride, kUnsetStride, kUnsetStride};
  return {page_size * num_kv_heads * head_dim, num_kv_heads * head_dim, head_dim};
}

}  // namespace prologue
