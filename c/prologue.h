// This is the C interface of Prologue: single operations and the attention layer over raw pointers. C11 and C++17. The tutorial is
// docs/embedding-c.md; what may change between versions is in docs/versioning.md.
//
// It is written by c/generate.py from the C++ headers, with their comments. Do not change it by hand.
// clang-format off
//
// Structs are plain data with the layout of the C++ structs: a call is a call of the C++ function, and nothing is copied. Initialise
// each struct with its prologue_..._init(), which sets the defaults; structs inside of it get theirs with it. Then set members by name.
// A member's comment begins with its default (`= 1`) if that is not zero. `reserved` must stay zeros: any other value is an error, so
// that a later version can give it a meaning. Enumerations are int32_t.
//
// Errors. A function that can fail returns a prologue_status: PROLOGUE_STATUS_OK (0), or a code whose sentence
// prologue_last_error_message() returns. No function throws, prints or aborts. A null argument is an error, unless the comment says
// what it means. Pointers inside of structs are on the operation's device.
//
// Objects (contexts and plans) are made by ..._create, which sets the pointer to null after an error, and freed by ..._destroy, which
// accepts null. Threads: operations have no global state. Several threads may use one plan, but a context is for one thread at a time.
// A struct may be shared as long as nobody changes it.
#ifndef PROLOGUE_H
#define PROLOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROLOGUE_VERSION_MAJOR 0
#define PROLOGUE_VERSION_MINOR 1
#define PROLOGUE_VERSION_PATCH 0
// This is the version of this header: 10000 * major + 100 * minor + patch.
#define PROLOGUE_VERSION 100

#if defined(PROLOGUE_SHARED)  // set where the shared library is built
#define PROLOGUE_C_API __attribute__((visibility("default")))
#else
#define PROLOGUE_C_API
#endif

#ifdef __cplusplus
#define PROLOGUE_C_ALIGNAS(bytes) alignas(bytes)
extern "C" {
#else
#define PROLOGUE_C_ALIGNAS(bytes) _Alignas(bytes)
#endif

struct CUstream_st;  // cudaStream_t is a pointer to this

// ---- status ------------------------------------------------------------------------------------------------------------------

typedef int32_t prologue_status;
enum {
  PROLOGUE_STATUS_OK = 0,
  PROLOGUE_STATUS_INVALID_ARGUMENT = 1,    // a value from the caller breaks a rule of the contract
  PROLOGUE_STATUS_UNSUPPORTED = 2,         // valid, but not implemented
  PROLOGUE_STATUS_NOT_FOUND = 3,           // a file, tensor or key that must be there is not
  PROLOGUE_STATUS_DATA_LOSS = 4,           // a file is inconsistent or truncated
  PROLOGUE_STATUS_RESOURCE_EXHAUSTED = 5,  // not enough pages or memory
  PROLOGUE_STATUS_DEVICE_ERROR = 6,        // the GPU, its driver or a vendor library failed
};

PROLOGUE_C_API const char* prologue_status_name(prologue_status code);

// Returns PROLOGUE_VERSION of the library that runs. Versions compare as numbers.
PROLOGUE_C_API int32_t prologue_version(void);
// Whether a program that was compiled with a header of this version may use the library that runs: its major version is equal, and
// its minor version is not smaller (before 1.0: equal). The dynamic linker checks it for what is linked with -lprologue; call
// prologue_check_version(PROLOGUE_VERSION) after dlopen(). The error is `unsupported`, with both versions.
PROLOGUE_C_API prologue_status prologue_check_version(int32_t header_version);
// Returns the sentence of the last error of a function of this header in the calling thread; "" if there was none. The pointer is valid
// until the next error in this thread, or until the thread ends. A call that succeeds changes nothing.
PROLOGUE_C_API const char* prologue_last_error_message(void);

// ---- dtype -------------------------------------------------------------------------------------------------------------------

// unset: not given. Where that has a meaning, the member's comment says so (a cache of unset type has that of its operation);
// elsewhere it is an error.
typedef int32_t prologue_dtype;
enum {
  PROLOGUE_DTYPE_UNSET = 0,
  PROLOGUE_DTYPE_F32 = 1,
  PROLOGUE_DTYPE_F16 = 2,
  PROLOGUE_DTYPE_BF16 = 3,
  PROLOGUE_DTYPE_F64 = 4,
  PROLOGUE_DTYPE_FP8_E4M3 = 5,
  PROLOGUE_DTYPE_FP8_E5M2 = 6,
  PROLOGUE_DTYPE_INT8 = 7,
  PROLOGUE_DTYPE_INT4 = 8,   // two in a byte, the even one in the low half
  PROLOGUE_DTYPE_UINT4 = 9,  // the same, 0..15
  PROLOGUE_DTYPE_INT16 = 10,
  PROLOGUE_DTYPE_INT32 = 11,
  PROLOGUE_DTYPE_INT64 = 12,
  PROLOGUE_DTYPE_UINT8 = 13,
  PROLOGUE_DTYPE_UINT16 = 14,
  PROLOGUE_DTYPE_UINT32 = 15,
  PROLOGUE_DTYPE_UINT64 = 16,
  PROLOGUE_DTYPE_FP4_E2M1 = 17,  // two in a byte, as int4: a sign, 2 bits of exponent, 1 of mantissa; 0, 0.5, 1, 1.5, 2, 3, 4 and 6
};

PROLOGUE_C_API int64_t prologue_dtype_bits(prologue_dtype type);

PROLOGUE_C_API const char* prologue_dtype_name(prologue_dtype type);

// ---- execution ---------------------------------------------------------------------------------------------------------------

typedef int32_t prologue_device;
enum {
  PROLOGUE_DEVICE_CPU = 0,
  PROLOGUE_DEVICE_CUDA = 1,
};

PROLOGUE_C_API const char* prologue_device_name(prologue_device device);

typedef struct prologue_execution {
  prologue_device device;
  int32_t num_threads;         // = 1; CPU: threads an operation may use
  struct CUstream_st* stream;  // CUDA: operations are enqueued here and never synchronise
  uint64_t reserved[2];        // zeros
} prologue_execution;
PROLOGUE_C_API void prologue_execution_init(prologue_execution* value);

// Returns true if the library was built with its CUDA kernels. It does not say whether there is a GPU: see prologue_check_gpu().
PROLOGUE_C_API bool prologue_built_with_cuda(void);

// ---- gpu ---------------------------------------------------------------------------------------------------------------------

// Returns OK if the current CUDA device can run this build's kernels. Otherwise the error says why not: no GPU, a driver too old for the
// CUDA runtime, or a compute capability that the build has no code for.
PROLOGUE_C_API prologue_status prologue_check_gpu(void);

// ---- faults ------------------------------------------------------------------------------------------------------------------

// A prologue_fault_record holds bad indices found while an operation runs. The index arrays are on the device, so they cannot be checked before a
// launch. An operation skips the faulty token and records it here. CUDA-graph replays add to the record. Its owner reads it at the next
// synchronisation that is needed anyway, and clears it.

typedef int32_t prologue_fault_code;
enum {
  PROLOGUE_FAULT_CODE_NONE = 0,
  PROLOGUE_FAULT_CODE_POSITION_OUT_OF_RANGE = 1,    // position >= max_position of the rope table
  PROLOGUE_FAULT_CODE_SLOT_OUT_OF_RANGE = 2,        // slot >= num_pages * page_size
  PROLOGUE_FAULT_CODE_TOKEN_ID_OUT_OF_RANGE = 3,    // id outside the embedding table
  PROLOGUE_FAULT_CODE_PAGE_OUT_OF_RANGE = 4,        // an entry of the page table outside the cache
  PROLOGUE_FAULT_CODE_SEQUENCE_TOO_LONG = 5,        // a sequence longer than its bound, or than its pages hold, or whose length is bad
  PROLOGUE_FAULT_CODE_QUERY_ROWS_OUT_OF_RANGE = 6,  // cu_seqlens_q: rows before its first entry, outside of q, or more than max_seqlen_q
  PROLOGUE_FAULT_CODE_LOGITS_NOT_A_NUMBER = 7,      // sample: a row of logits has a NaN
};

PROLOGUE_C_API const char* prologue_fault_code_name(prologue_fault_code code);

// All zeros means "no fault". Operations update it atomically. The first fault is the one with the lowest token index, in
// whatever order the threads run.
typedef struct prologue_fault_record {
  PROLOGUE_C_ALIGNAS(16) uint64_t first;  // ~((token << 8) | code) of the lowest faulty token; 0 = none (so atomicMax keeps the lowest)
  uint64_t count;                         // tokens (for prologue_paged_attention: rows) that were skipped
} prologue_fault_record;
PROLOGUE_C_API void prologue_fault_record_init(prologue_fault_record* value);

typedef struct prologue_fault {
  prologue_fault_code code;
  int64_t token;  // = -1
  uint64_t count;
} prologue_fault;
PROLOGUE_C_API void prologue_fault_init(prologue_fault* value);

PROLOGUE_C_API prologue_status prologue_decode_fault(const prologue_fault_record* record, prologue_fault* result);

// ---- views -------------------------------------------------------------------------------------------------------------------

// Views: raw pointers with strides. Strides count elements, never bytes. Views are plain data and own no memory.

// A head has at most so many channels in the prologue, its stages and the rotary operation. prologue_paged_attention takes fewer.
#define PROLOGUE_MAX_HEAD_DIM INT64_C(1024)

// Describes [num_tokens, num_heads, head_dim] with contiguous channels; element (t, h, d) is at data[t * token_stride + h * head_stride +
// d].
typedef struct prologue_heads_view {
  const void* data;
  int64_t token_stride;
  int64_t head_stride;
} prologue_heads_view;
PROLOGUE_C_API void prologue_heads_view_init(prologue_heads_view* value);

typedef struct prologue_mutable_heads_view {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
} prologue_mutable_heads_view;
PROLOGUE_C_API void prologue_mutable_heads_view_init(prologue_mutable_heads_view* value);

// Refers to an array of integers on the device of the operation. Operations take int32 and int64, the rotary
// operation every integer type.
typedef struct prologue_index_view {
  const void* data;
  prologue_dtype type;
} prologue_index_view;
PROLOGUE_C_API void prologue_index_view_init(prologue_index_view* value);

typedef struct prologue_page_strides {
  int64_t page;
  int64_t token;
  int64_t head;
} prologue_page_strides;
PROLOGUE_C_API void prologue_page_strides_init(prologue_page_strides* value);

// This is the default of strides that a caller must set if they are needed; left unset, they are then an error. 0 is a valid value: one row
// shared by all.
#define PROLOGUE_UNSET_STRIDE INT64_C(-1)

// Where the scales of a quantised cache come from.
typedef int32_t prologue_kv_scaling;
enum {
  PROLOGUE_KV_SCALING_NONE = 0,        // float types, and fp8 stored with scale 1
  PROLOGUE_KV_SCALING_TENSOR = 1,      // given: one float32 for K and one for V
  PROLOGUE_KV_SCALING_HEAD = 2,        // given: [num_kv_heads] float32 for each of K and V
  PROLOGUE_KV_SCALING_TOKEN_HEAD = 3,  // computed when a token is written; [num_pages, page_size, num_kv_heads] float32 for K and for V; for uint4
                                       // [num_pages, page_size, num_kv_heads, 2]: scale and zero point
  PROLOGUE_KV_SCALING_MX = 4,          // computed: a power of two for every 32 channels, in block_scale; for fp8_e4m3 (MXFP8), fp4_e2m1 (MXFP4)
  PROLOGUE_KV_SCALING_NV = 5,          // computed: an e4m3 number for every 16 channels, in block_scale, times a given float32; for fp4_e2m1 (NVFP4)
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
typedef struct prologue_kv_format {
  prologue_dtype type;  // unset: the dtype of the operation that uses the cache
  prologue_kv_scaling scaling;
} prologue_kv_format;
PROLOGUE_C_API void prologue_kv_format_init(prologue_kv_format* value);

// Says where the scale of block b of a head's n blocks is, for the token at offset o of a page:
//   linear                page * page stride + o * token stride + head * head stride + b
//   interleaved_4_tokens  the same with o' = o / 4 * 4 + b / (n / 4) for o and b' = b % (n / 4) * 4 + o % 4 for b: the scales of a group of
//                         4 tokens are transposed (TensorRT-LLM's V on SM100). page_size and n must be multiples of 4
typedef int32_t prologue_block_scale_layout;
enum {
  PROLOGUE_BLOCK_SCALE_LAYOUT_LINEAR = 0,
  PROLOGUE_BLOCK_SCALE_LAYOUT_INTERLEAVED_4_TOKENS = 1,
};

// Describes K or V of a layer's paged cache. Channel d of head h at offset `o` of page `p` is the element
//   p * strides.page + o * strides.token + h * strides.head + d
// int4, uint4 and fp4_e2m1 pack two elements in a byte, the even channel in the low nibble; strides and head_dim must then be even. In a
// block-scaled format head_dim must be a multiple of a block's channels, 32 (mx) or 16 (nv). The strides
// describe every layout: NHD, HND, K and V in two buffers, or interleaved in one.
typedef struct prologue_paged_heads {
  void* data;
  int64_t head_dim;
  prologue_kv_format format;
  prologue_page_strides strides;
  float* scale;                                    // on the device; tensor, head, nv (one, null = 1): read; token_head: written
  prologue_page_strides scale_strides;             // token_head: in floats; mx and nv: of block_scale, in bytes
  uint8_t* block_scale;                            // mx, nv; on the device; [num_pages, page_size, num_kv_heads, blocks]; written
  prologue_block_scale_layout block_scale_layout;  // mx and nv only
  uint64_t reserved[2];                            // zeros
} prologue_paged_heads;
PROLOGUE_C_API void prologue_paged_heads_init(prologue_paged_heads* value);

// Describes one layer's paged KV cache. Slot s is at offset s % page_size of page s / page_size. K and V may have formats of their own.
typedef struct prologue_paged_kv_view {
  prologue_paged_heads k;
  prologue_paged_heads v;  // v.head_dim = 0: that of k
  int64_t num_pages;
  int64_t page_size;
  int64_t num_kv_heads;
  uint64_t reserved[2];  // zeros
} prologue_paged_kv_view;
PROLOGUE_C_API void prologue_paged_kv_view_init(prologue_paged_kv_view* value);

// Describes the pages of the sequences of a batch, in one of two forms; the other one's pointers are null.
//   Rows: entry i of sequence s is block_table[s * block_table_stride + i], for i in [0, max_pages_per_seq).
//   CSR (FlashInfer, SGLang): entry i of sequence s is kv_indices[kv_indptr[s] + i], for i in [0, kv_indptr[s+1] - kv_indptr[s]).
//     With kv_last_page_len the table also says how long a sequence is: (number of its entries - 1) * page_size +
//     kv_last_page_len[s] tokens, or none if it has no entry.
// An entry is a page of the cache, in [0, num_pages). A sequence whose entries of kv_indptr do not satisfy 0 <= kv_indptr[s] <=
// kv_indptr[s+1] <= num_kv_indices has no page.
typedef struct prologue_page_table {
  const int32_t* block_table;  // [num_seqs, max_pages_per_seq]
  int64_t block_table_stride;
  int64_t max_pages_per_seq;
  const int32_t* kv_indptr;   // [num_seqs + 1]
  const int32_t* kv_indices;  // [num_kv_indices]
  int64_t num_kv_indices;
  const int32_t* kv_last_page_len;  // [num_seqs], in 1..page_size; null = not given
  uint64_t reserved[2];             // zeros
} prologue_page_table;
PROLOGUE_C_API void prologue_page_table_init(prologue_page_table* value);

// Returns the strides of a dense [num_pages, page_size, num_kv_heads, head_dim] tensor; unset, which is an error where they are needed, if
// a size is not positive (it was not set yet).
PROLOGUE_C_API prologue_page_strides prologue_nhd_strides(int64_t page_size, int64_t num_kv_heads, int64_t head_dim);

// ---- norm_kind ---------------------------------------------------------------------------------------------------------------

// The elements x of a row or of a head are normalised by one of these:
//   rms    x / sqrt(mean(x^2) + eps)
//   layer  (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)

typedef int32_t prologue_norm_kind;
enum {
  PROLOGUE_NORM_KIND_RMS = 0,
  PROLOGUE_NORM_KIND_LAYER = 1,
};

// ---- rope --------------------------------------------------------------------------------------------------------------------

// Describes a rotary embedding, for every operation that rotates: where cos and sin come from, which channels form pairs, and which
// position rotates which pair. An operation that takes only a part of it says so, and returns an error for the rest.

typedef int32_t prologue_rope_style;
enum {
  PROLOGUE_ROPE_STYLE_NEOX = 0,         // half-split: pair i of a block of w channels is (x[i], x[i + w/2])
  PROLOGUE_ROPE_STYLE_INTERLEAVED = 1,  // pair i is (x[2i], x[2i + 1])
};

typedef int32_t prologue_rope_source;
enum {
  PROLOGUE_ROPE_SOURCE_TABLE = 0,      // cos and sin are given; row = position
  PROLOGUE_ROPE_SOURCE_PER_TOKEN = 1,  // cos and sin are given; row = token. Positions are needed only for what they are checked against
  PROLOGUE_ROPE_SOURCE_INV_FREQ = 2,   // angle = position * inv_freq[column]
  PROLOGUE_ROPE_SOURCE_THETA = 3,      // angle = position * theta^(-2 * column / w)
  PROLOGUE_ROPE_SOURCE_ANGLES = 4,     // angles are given, row = position; the kernel computes their cos and sin
  PROLOGUE_ROPE_SOURCE_ANGLES_PER_TOKEN = 5,
};

typedef int32_t prologue_rope_width;
enum {
  PROLOGUE_ROPE_WIDTH_UNSET = 0,  // an error if rows are given: the width cannot be seen from a table's pointer and strides
  PROLOGUE_ROPE_WIDTH_HALF = 1,   // one column for each pair of a block: [rows, w / 2]
  PROLOGUE_ROPE_WIDTH_FULL = 2,   // one column for each channel of a block: [rows, w]. Each channel of a pair has its own cos and sin:
                                  // (a cos_a - b sin_a, a sin_b + b cos_b); inverse (the transpose): (a cos_a + b sin_b, -a sin_a + b cos_b)
};

// Says what happens to a token whose position is past the last row of the table, or past another bound on positions.
typedef int32_t prologue_past_table;
enum {
  PROLOGUE_PAST_TABLE_RECORD = 0,    // its rows become zeros, its K and V are not cached, it is recorded; `faults` must not be null
  PROLOGUE_PAST_TABLE_ZERO = 1,      // the same, but `faults` may be null (then nothing is recorded)
  PROLOGUE_PAST_TABLE_IDENTITY = 2,  // its rows are not rotated (cos 1, sin 0), its K and V are cached, nothing is recorded
};

// Column c of row r is at r * row_stride + c * column_stride. If the row is the token, the row of sequence b starts b * batch_stride
// later. Rows may be shared (row_stride 0), but must not overlap. Strides are in elements.
typedef struct prologue_rope_columns {
  const void* data;
  int64_t batch_stride;  // = PROLOGUE_UNSET_STRIDE; must be set if there are several sequences; 0: all of them share the rows
  int64_t row_stride;
  int64_t column_stride;  // = 1
} prologue_rope_columns;
PROLOGUE_C_API void prologue_rope_columns_init(prologue_rope_columns* value);

// The rotated channels are [rotary_offset, rotary_offset + rotary_dim). They form num_blocks adjacent blocks of
// w = rotary_dim / num_blocks channels; every block starts again at column 0.
typedef struct prologue_rope {
  prologue_rope_style style;
  int64_t rotary_dim;     // even; 0 = no rotation (then cos, sin, angles, inv_freq and theta must not be given)
  int64_t rotary_offset;  // even
  int64_t num_blocks;     // = 1; 1 to 4
  int32_t inverse;        // not 0: inverse rotation, -sin
  // If it is not 0, the inverse uses each channel's own sine, (a cos_a + b sin_a, -a sin_b + b cos_b); only for width full. This is the
  // transpose only if the two sines of a pair are equal. Some systems compute this as their backward pass.
  int32_t inverse_by_own_sine;

  prologue_rope_source source;
  prologue_dtype type;  // of the elements of cos and sin, of angles, or of inv_freq (f32 or f64)
  prologue_rope_width width;
  prologue_rope_columns cos;
  prologue_rope_columns sin;
  prologue_rope_columns angles;
  const void* inv_freq;  // [w / 2]
  double theta;
  double attention_factor;         // = 1.0; multiplies cos and sin
  int64_t max_position;            // row = position: rows of the table; else an optional bound, 0 = none
  prologue_past_table past_table;  // what happens at positions >= max_position

  // There may be several position axes (2-D, MRoPE). Pair i, counted through all blocks, is rotated by the position on axis pair_axis[i];
  // values not below num_axes count as 0. If pair_axis is null, each block uses the axis of its own number (num_axes = num_blocks). Where
  // the row is the token, the axes matter only for what positions are checked against.
  int64_t num_axes;          // = 1; 1 to 4
  const uint8_t* pair_axis;  // [rotary_dim / 2]
  uint64_t reserved[4];      // zeros
} prologue_rope;
PROLOGUE_C_API void prologue_rope_init(prologue_rope* value);

// Takes cos and sin from one table [rows, rotary_dim]: cos[0 .. rotary_dim/2), then sin; row = position. prologue_rope_cos_sin makes such a table.
// rope.rotary_dim must be set before: without it rope.width is left unset, and the operation is an error.
PROLOGUE_C_API prologue_status prologue_set_cos_sin_table(
    prologue_rope* rope,
    const void* table,
    prologue_dtype type,
    int64_t rows);

// Does the same with a row for each token: [num_tokens, rotary_dim], as prologue_gather_cos_sin makes them. There is no bound on positions.
PROLOGUE_C_API prologue_status prologue_set_cos_sin_rows(prologue_rope* rope, const void* rows, prologue_dtype type);

// Takes cos and sin from two dense tables [rows, columns]; row = position. Columns: w / 2 (half) or w (full).
PROLOGUE_C_API prologue_status prologue_set_cos_and_sin(
    prologue_rope* rope,
    const void* cos,
    const void* sin,
    prologue_dtype type,
    int64_t rows,
    int64_t columns,
    prologue_rope_width width);

// ---- weight_format -----------------------------------------------------------------------------------------------------------

// This file describes quantised weights in block formats, as the library keeps them in memory: packed.
//
// A row is a sequence of blocks of 32, 64, 128 or 256 values. Most formats of 32 and 256 are those of GGUF files: a block has the fields that the
// file has, with the same bits: scale (float16), minimum (float16), the scales of its parts, codes. Packing only reorders bytes, so that
// one instruction reads the same part of 16 rows: packed weights take the memory of the file's.
//
// The other formats are those of Hugging Face checkpoints, where the scales are a tensor of their own. With codes of 8 bits: one for the tensor, for
// each row, or for each 128 x 128 values. Here each block has its scale:
//   f8_e4m3   scale (float32) | 128 codes, float8_e4m3fn
//   i8        scale (float32) | 128 codes, int8
// A value is scale * code, rounded to float32. The codes 0x7f and 0xff of f8_e4m3 are not NaN, as in float8_e4m3fn: they are 480 and -480.
// (A loader should refuse them; the engine's does.)
//
// mxfp4 is the one of GGUF files, with the scale 2^(e - 127) of a byte e. The types of OCP's text have NaN for e = 255. Here it is 2^128, as in
// the other readers of such files: with the codes of 0.5 a value is 2^127, with larger ones infinite, and 0 with the code of 0. (Values
// with e = 0 or 1 may be below float32's normal numbers; they are exact, too.)
//
// nvfp4 has codes of float4_e2m1 with a scale of float8_e4m3fn for each 16 channels, and a scale for the tensor, which files have beside it. Here
// each block has that one, too:
//   nvfp4   scale of the tensor (float32) | 16 scales (1 byte) | 256 codes of 4 bits
// A value is (scale * scale of the tensor) * code; each product is rounded to float32. Each 32 codes are 16 bytes, as those below. Scales of 0x7f and
// 0xff are 480 and -480, as codes of f8_e4m3 are, and the code of -0 is 0.
//
// With codes of 4 bits (GPTQ, AWQ), groups of 32, 64 or 128 values of a row have a scale and a zero point; a group is a block:
//   i4_32, i4_64, i4_128   scale (float16) | zero point (1 byte, 0 to 255) | 32, 64 or 128 codes of 4 bits, 0 to 15
// Each 32 codes are 16 bytes: byte i has code i (low bits) and code i + 16. A value is scale * code - scale * zero point, which float32 holds
// exactly (0 is +0).
//
//   rows      16 rows are a group; the last group is filled up with rows of zero bytes
//   packed    [groups, blocks of a row, fields of a block in the file's order, pieces of the field, 16 rows] of pieces:
//             2 bytes for a float16 scale or minimum, 1 byte for the scales of parts (Q2_K to Q6_K; IQ4_XS, whose scales of
//             parts are two fields), for the scale of MXFP4, for the 16 of NVFP4 and for zero points, 4 bytes for all others

// dense: not quantised, elements of a prologue_dtype.
typedef int32_t prologue_weight_format;
enum {
  PROLOGUE_WEIGHT_FORMAT_DENSE = 0,
  PROLOGUE_WEIGHT_FORMAT_Q8_0 = 1,
  PROLOGUE_WEIGHT_FORMAT_Q4_0 = 2,
  PROLOGUE_WEIGHT_FORMAT_Q4_1 = 3,
  PROLOGUE_WEIGHT_FORMAT_Q5_0 = 4,
  PROLOGUE_WEIGHT_FORMAT_Q5_1 = 5,
  PROLOGUE_WEIGHT_FORMAT_Q4_K = 6,
  PROLOGUE_WEIGHT_FORMAT_Q5_K = 7,
  PROLOGUE_WEIGHT_FORMAT_Q6_K = 8,
  PROLOGUE_WEIGHT_FORMAT_F8_E4M3 = 9,
  PROLOGUE_WEIGHT_FORMAT_I8 = 10,
  PROLOGUE_WEIGHT_FORMAT_Q2_K = 11,
  PROLOGUE_WEIGHT_FORMAT_Q3_K = 12,
  PROLOGUE_WEIGHT_FORMAT_IQ4_NL = 13,
  PROLOGUE_WEIGHT_FORMAT_IQ4_XS = 14,
  PROLOGUE_WEIGHT_FORMAT_MXFP4 = 15,
  PROLOGUE_WEIGHT_FORMAT_I4_32 = 16,
  PROLOGUE_WEIGHT_FORMAT_I4_64 = 17,
  PROLOGUE_WEIGHT_FORMAT_I4_128 = 18,
  PROLOGUE_WEIGHT_FORMAT_NVFP4 = 19,
};

// Returns the values of a block.
PROLOGUE_C_API int64_t prologue_weight_block_elements(prologue_weight_format format);

// Returns the bytes of a block, or 0 for dense.
PROLOGUE_C_API int64_t prologue_weight_block_bytes(prologue_weight_format format);

PROLOGUE_C_API const char* prologue_weight_format_name(prologue_weight_format format);

// `cols` is a multiple of prologue_weight_block_elements.
PROLOGUE_C_API int64_t prologue_packed_weight_bytes(prologue_weight_format format, int64_t rows, int64_t cols);

// Says which scales of f8_e4m3 rows are equal. Whoever makes the rows knows it; nothing reads it from the data. It changes no weight, but how x is
// quantised with it (section gemm), and how many scales a product needs.
typedef int32_t prologue_weight_scaling;
enum {
  PROLOGUE_WEIGHT_SCALING_BLOCKS = 0,   // each block has a scale of its own
  PROLOGUE_WEIGHT_SCALING_ROWS = 1,     // all blocks of a row have the same scale
  PROLOGUE_WEIGHT_SCALING_SQUARES = 2,  // rows 128 i to 128 i + 127 have the same scales: one for each 128 x 128 values
};

// Holds rows of a weight in one format, packed. On the CPU any alignment, of which 64 bytes are fastest; on CUDA 16 bytes.
typedef struct prologue_packed_rows {
  const void* data;
  prologue_weight_format format;
  int64_t rows;
  prologue_weight_scaling scaling;  // must be `blocks` in other formats than f8_e4m3
} prologue_packed_rows;
PROLOGUE_C_API void prologue_packed_rows_init(prologue_packed_rows* value);

// A packed weight has the rows of segments[0], then those of segments[1], and so on. num_segments = 0: there is none.
#define PROLOGUE_MAX_WEIGHT_SEGMENTS INT64_C(4)

typedef struct prologue_packed_weight {
  int32_t num_segments;
  prologue_packed_rows segments[PROLOGUE_MAX_WEIGHT_SEGMENTS];
  uint64_t reserved[2];  // zeros
} prologue_packed_weight;
PROLOGUE_C_API void prologue_packed_weight_init(prologue_packed_weight* value);

//   blocks  [rows, cols / prologue_weight_block_elements] of blocks, in the order of their fields (GGUF: as in the file), contiguous
//   packed  prologue_packed_weight_bytes(format, rows, cols); must not overlap blocks
//
// Rows can be packed in pieces: all but the last have a multiple of 16 rows. rows = 0 and cols = 0 are no-ops.
typedef struct prologue_pack_weight_params {
  prologue_weight_format format;
  int64_t rows;
  int64_t cols;
  const void* blocks;
  void* packed;
  uint64_t reserved[4];  // zeros
} prologue_pack_weight_params;
PROLOGUE_C_API void prologue_pack_weight_params_init(prologue_pack_weight_params* value);

// Packs a weight. Runs on the CPU only.
PROLOGUE_C_API prologue_status prologue_pack_weight(
    const prologue_pack_weight_params* params,
    const prologue_execution* execution);

// ---- rope_scaling ------------------------------------------------------------------------------------------------------------

typedef int32_t prologue_rope_precision;
enum {
  PROLOGUE_ROPE_PRECISION_REFERENCE = 0,
  PROLOGUE_ROPE_PRECISION_EXACT = 1,
};

// ---- rope_table --------------------------------------------------------------------------------------------------------------

// Makes the cos/sin table of a rotary embedding, and its frequencies, on the host.
//
//   angle(p, i) = p * inv_freq[i], i in [0, rotary_dim/2)
//   cos_sin[p]  = attention_factor * cos(angle(p, 0..rotary_dim/2)), then attention_factor * sin(...)
//
// With f[i] = theta^(-2i / rotary_dim), names and formulas as in Hugging Face's transformers:
//   none          f[i]
//   linear        f[i] / factor
//   dynamic_ntk   f[i] of theta * (factor * L / original - (factor - 1))^(rotary_dim / (rotary_dim - 2)),
//                 L = max(sequence_length, original)
//   yarn          f[i] for fast pairs (more than beta_fast rotations within the original context), f[i] / factor for slow pairs
//                 (fewer than beta_slow), a blend linear in i between them; its attention factor
//   long_rope     f[i] / short_factors[i], or / long_factors[i] if sequence_length > original; its attention factor
//   llama3        f[i] where the wavelength is below original / high_freq_factor, f[i] / factor where it is above
//                 original / low_freq_factor, a blend between
//   proportional  theta^(-2i / rotary_dim) / factor for the first partial_rotary_factor of the pairs, 0 for the others; rotary_dim is the
//                 whole head
//   verbatim      inv_freq
// A scheme reads only the members that its formula names. With freq_factors, frequency i is also divided by factor i.
//
// sequence_length changes the frequencies of dynamic_ntk and long_rope. Fix it when a sequence is admitted (prompt + maximum new tokens):
// later queries do not match keys in the cache that were rotated with other frequencies.
//
// precision   reference: the recipe that models were trained with, the float32 steps of transformers, each correctly rounded.
//             exact: float64 throughout, for measurements. At position 10^6 angles differ by up to 0.06 (docs/numerics.md)
//
// (In C++: layers/rope/rope_scaling.h and rope_table.h, which these call.)

typedef int32_t prologue_rope_scaling_kind;
enum {
  PROLOGUE_ROPE_SCALING_KIND_NONE = 0,
  PROLOGUE_ROPE_SCALING_KIND_LINEAR = 1,
  PROLOGUE_ROPE_SCALING_KIND_DYNAMIC_NTK = 2,
  PROLOGUE_ROPE_SCALING_KIND_YARN = 3,
  PROLOGUE_ROPE_SCALING_KIND_LONG_ROPE = 4,
  PROLOGUE_ROPE_SCALING_KIND_LLAMA3 = 5,
  PROLOGUE_ROPE_SCALING_KIND_PROPORTIONAL = 6,
  PROLOGUE_ROPE_SCALING_KIND_VERBATIM = 7,
};

typedef struct prologue_rope_table_params {
  int64_t rotary_dim;
  double theta;  // = 10000.0
  prologue_rope_scaling_kind scaling;
  prologue_rope_precision precision;
  int64_t sequence_length;  // dynamic_ntk, long_rope: of the sequence; 0 = within the original context
  double factor;            // = 1.0
  int64_t original_max_position;
  double attention_factor;  // yarn, verbatim; 0 = not given
  double beta_fast;         // = 32.0; yarn
  double beta_slow;         // = 1.0
  double mscale;            // 0 = not given
  double mscale_all_dim;
  int32_t truncate;              // = 1; yarn: the ends of the blend are rounded outwards to whole pairs (GPT-OSS: 0)
  double low_freq_factor;        // = 1.0; llama3
  double high_freq_factor;       // = 4.0
  double partial_rotary_factor;  // = 1.0; proportional
  const double* short_factors;   // [rotary_dim / 2]; long_rope
  const double* long_factors;
  double short_attention_factor;  // 0 = not given
  double long_attention_factor;
  const double* inv_freq;     // [rotary_dim / 2]; verbatim
  const float* freq_factors;  // [rotary_dim / 2] (ggml's rope_freqs); null = none
  uint64_t reserved[8];       // zeros
} prologue_rope_table_params;
PROLOGUE_C_API void prologue_rope_table_params_init(prologue_rope_table_params* value);

// Returns the frequencies, inv_freq [rotary_dim / 2], and the attention factor.
PROLOGUE_C_API prologue_status prologue_rope_frequencies(
    const prologue_rope_table_params* params,
    double* inv_freq,
    double* attention_factor);
// Returns the table, cos_sin [max_position, rotary_dim].
PROLOGUE_C_API prologue_status prologue_rope_cos_sin(
    const prologue_rope_table_params* params,
    int64_t max_position,
    float* cos_sin);

// ---- rotary ------------------------------------------------------------------------------------------------------------------

// Computes the rotary embedding as a separate operation: y = rotate(x) for one to four tensors of heads. One launch handles up to 65535
// tokens of each sequence; longer sequences take several launches.
//
// A token is (b, s), b in [0, batch), s in [0, seq_len). Its number is t = b * seq_len + s. For every head of every tensor with
// rotate set, and for each pair i of the rotated channels:
//   (a, b) = (a cos - b sin, a sin + b cos)         inverse (transpose, backward): (a cos + b sin, -a sin + b cos)
//
// The rotated channels are [rotary_offset, rotary_offset + rotary_dim). They form num_blocks adjacent blocks of
// w = rotary_dim / num_blocks channels. Every block starts again at cos/sin column 0. All other channels are the tail.
//   neox         pair i of a block is (x[i], x[i + w/2]),    i in [0, w/2)
//   interleaved  pair i of a block is (x[2i], x[2i + 1]),    i in [0, w/2)
//
//   x, y  [batch, seq_len, num_heads, head_dim] dtype; all four strides are free, in elements, not negative. So the layout may be
//         batch-major, sequence-major, head-major, or columns of a packed buffer. 3-D tensors: batch = 1
// Aliasing: y may be x itself (same pointer and strides). Nothing else that is written may overlap anything.
// Every pointer is on the operation's device.
//
// Guards (the same rules as in section attention_prologue). Nothing outside the named rows is ever touched.
//   padding            a given position that is negative on any axis, or a token at or past cu_seqlens[num_seqs]: no row of the
//                      token is touched
//   past the table     a position >= max_position on any axis; rope.past_table decides:
//     record           the channels that would be written (also in place) become zeros. The fault position_out_of_range is
//                      recorded in `faults` with token t. `faults` must not be null
//     zero             the same zeros, and recorded only if `faults` is given
//     identity         the channels to rotate are copied bitwise. Nothing is recorded
//   bad derived value  a position that is not given and is negative, or that int64 cannot hold: as `record`
//   sequence_too_long  a token whose number in its sequence is max_seqlen or more: as `record`, with this fault code
//
// Numerics.
//   Arithmetic is float32 (float64 for f64). A channel is a rounded product and a fused multiply-add. The result is
//   rounded once at the store. Channels that nothing changes are copied bitwise.
//   Given cos and sin are converted to the type of the arithmetic. Angles and frequencies are used exactly.
//   Computed cos and sin are those of the exact product of position and frequency (theta: the frequencies are first rounded to
//   float64). Their error is at most 0.75 * 2^-24 in float32 and 0.75 * 2^-53 in float64. Angles beyond 2^31 give NaN.
//   The bits are the same on CPU and GPU, in any batch, and in the prologue.
//
// batch * seq_len = 0 is a no-op. The operation never allocates, synchronises or throws, and is safe under graph capture.

// Element (b, s, h, d) is at b * batch + s * token + h * head + d * channel.
typedef struct prologue_rotary_strides {
  int64_t batch;
  int64_t token;
  int64_t head;
  int64_t channel;  // = 1
} prologue_rotary_strides;
PROLOGUE_C_API void prologue_rotary_strides_init(prologue_rotary_strides* value);

// These are the strides of dense tensors.
// [b, s, h, d]
PROLOGUE_C_API prologue_rotary_strides prologue_batch_major_strides(int64_t seq_len, int64_t num_heads, int64_t head_dim);
// [s, b, h, d]
PROLOGUE_C_API prologue_rotary_strides prologue_sequence_major_strides(int64_t batch, int64_t num_heads, int64_t head_dim);
// [b, h, s, d]
PROLOGUE_C_API prologue_rotary_strides prologue_head_major_strides(int64_t seq_len, int64_t num_heads, int64_t head_dim);

typedef struct prologue_rotary_tensor {
  const void* x;
  void* y;
  int64_t num_heads;
  prologue_rotary_strides x_strides;
  prologue_rotary_strides y_strides;
  int32_t rotate;        // = 1; 0: x is only copied to y
  uint64_t reserved[1];  // zeros
} prologue_rotary_tensor;
PROLOGUE_C_API void prologue_rotary_tensor_init(prologue_rotary_tensor* value);

typedef int32_t prologue_rotary_tail;
enum {
  PROLOGUE_ROTARY_TAIL_COPY = 0,
  PROLOGUE_ROTARY_TAIL_LEAVE = 1,
  PROLOGUE_ROTARY_TAIL_ZERO = 2,
};

// A token's position is given, or it is the token's number in its sequence plus an offset.
typedef struct prologue_rotary_positions {
  // If positions are given, that of token (b, s) on axis `axis` is ids[axis * axis_stride + b * batch_stride + s * token_stride]. A stride
  // of 0 means that all axes, or all sequences, use the same ids.
  prologue_index_view ids;
  int64_t axis_stride;   // = PROLOGUE_UNSET_STRIDE; must be set if num_axes > 1
  int64_t batch_stride;  // = PROLOGUE_UNSET_STRIDE; must be set if batch > 1
  int64_t token_stride;  // = 1

  // If positions are not given (ids null), the position on every axis is j + offset + offsets[n * offsets_stride], where j is the token's
  // number in its sequence n. Without cu_seqlens: j = s and n = b. With cu_seqlens, sequences are packed one after another (batch = 1):
  // cu_seqlens[n] <= s < cu_seqlens[n + 1] and j = s - cu_seqlens[n].
  int64_t offset;
  prologue_index_view offsets;  // null = none
  int64_t offsets_stride;       // = 1; 0: one offset for all sequences
  int64_t num_seqs;
  prologue_index_view cu_seqlens;  // [num_seqs + 1], non-decreasing; null = not packed
  int64_t max_seqlen;              // 0 = no bound
  uint64_t reserved[4];            // zeros
} prologue_rotary_positions;
PROLOGUE_C_API void prologue_rotary_positions_init(prologue_rotary_positions* value);

typedef struct prologue_rotary_params {
  int64_t batch;  // = 1
  int64_t seq_len;
  int64_t head_dim;  // even, 2..1024 (PROLOGUE_MAX_HEAD_DIM)
  prologue_dtype dtype;
  int64_t num_tensors;  // 1 to 4
  prologue_rotary_tensor tensors[4];

  prologue_rotary_tail tail;

  prologue_rope rope;
  prologue_rotary_positions positions;

  prologue_fault_record* faults;  // null only if positions have no bound, or past_table is zero or identity
  uint8_t* token_faults;          // [batch * seq_len]: a prologue_fault_code is written for each faulty token; null = not wanted
  uint64_t reserved[8];           // zeros
} prologue_rotary_params;
PROLOGUE_C_API void prologue_rotary_params_init(prologue_rotary_params* value);

PROLOGUE_C_API prologue_status prologue_rotary_validate(const prologue_rotary_params* params);
PROLOGUE_C_API prologue_status prologue_rotary(const prologue_rotary_params* params, const prologue_execution* execution);

// A plan is a call that is validated once and then launched many times with other pointers.
typedef struct prologue_rotary_plan prologue_rotary_plan;
// Fixes everything except what a run may change: the pointers; seq_len and positions.num_seqs, up to those of `params`; and the
// strides that follow from seq_len in a dense array (batch strides, the tensors' head strides, positions.axis_stride).
// A plan may be made before there is memory: set x and y of every tensor to null. Then cos, sin, angles, inv_freq, pair_axis
// and faults may be null too. Sizes, types and strides are checked here, and every run checks its pointers as prologue_rotary() does.
PROLOGUE_C_API prologue_status prologue_rotary_plan_create(
    const prologue_rotary_params* params,
    const prologue_execution* execution,
    prologue_rotary_plan** plan);
// Returns the parameters that the plan was made with. Copy them to make the parameters of run().
PROLOGUE_C_API const prologue_rotary_params* prologue_rotary_plan_params(const prologue_rotary_plan* plan);
// Everything fixed must be equal to the plan's, and a pointer must be null exactly if the plan's was; otherwise an error names
// the member that differs. The alignment of the pointers and their overlap are not checked again: they must be as in the plan.
PROLOGUE_C_API prologue_status prologue_rotary_plan_run(
    const prologue_rotary_plan* plan,
    const prologue_rotary_params* params,
    const prologue_execution* execution);
// Returns the bytes of device memory that run() needs in addition to its tensors.
PROLOGUE_C_API int64_t prologue_rotary_plan_workspace_bytes(void);
PROLOGUE_C_API void prologue_rotary_plan_destroy(prologue_rotary_plan* plan);

// ---- rerope ------------------------------------------------------------------------------------------------------------------

// Moves keys that are already in a paged cache to other positions, in place: what was rotated by one position is rotated by another. So the
// keys of a text can be used again where it is no prefix: after other text, or after a part before it was removed. One launch.
//
// For key i, every head of its slot, and each pair (a, b) of the rotated channels, with M(p) the matrix that the prologue multiplies a pair by
// at position p (section rope):
//   (a, b) = M(to) M(from)^-1 (a, b)
// With one cos and sin for a pair, (co, so) at the old position and (cn, sn) at the new one, this is
//   c = (cn co + sn so) / (co^2 + so^2),  s = (sn co - cn so) / (co^2 + so^2);  (a, b) = (a c - b s, a s + b c)
// So a factor in the table (YaRN's mscale) cancels. Width full is the same with the two cosines and sines of each pair.
//
//   cache         that of the prologue (prologue_paged_kv_view). Only K is read and written; cache.v is ignored. cache.k.format.type must
//                 be set
//   slot_mapping  [num_keys]; slot = page * page_size + offset. To move the pages of a block table, list their slots. Two keys must not
//                 share a slot
//   from_positions, to_positions
//                 [num_axes, num_keys], row stride position_axis_stride (0: one row for all axes): the position that the key was rotated by,
//                 and the one that it shall have
//   rope          the one that rotated the keys: every source except per_token and angles_per_token, every width, style, offset, block and
//                 axis. rotary_dim > 0, attention_factor not 0
//   hadamard_block
//                 the one of the prologue that wrote the keys: the transform is undone before (it is its own inverse) and done again after
//
// A norm after the rotation (PROLOGUE_NORM_PLACEMENT_AFTER_ROPE) does not commute with the rotation: such keys cannot be moved. Nor can a key whose
// pair was multiplied by zero: it becomes NaN.
//
// What is written.
//   from = to on every axis, or no position that rotates (identity, below): the key's bytes are not touched
//   float types, and codes with given scales (or none), without hadamard_block: only the rotated channels. Codes saturate as always
//   scales that are computed (token_head): the whole head is decoded, rotated, and quantised again as the prologue would quantise these
//                values: its scale (and zero point) are computed again, for the largest magnitude may have changed
//   hadamard_block: all channels, for the transform mixes them
//
// Guards. Nothing outside the named slots is touched. The first that is true decides.
//   negative slot, or a position (old or new) that is negative on any axis: the key is skipped
//   position >= rope.max_position on any axis (old or new); rope.past_table decides:
//     record     the key is not moved, position_out_of_range is recorded with its index i. `faults` must not be null
//     zero       the same, and recorded only if `faults` is given
//     identity   the key is (was) not rotated at this position: cos 1, sin 0, on every axis
//   slot >= num_slots: slot_out_of_range is recorded; nothing is written
//
// Numerics. Arithmetic is float32, with cos and sin of the rotary operation (section rotary). c and s are a rounded product, a fused
// multiply-add and a division; a channel is a rounded product and a fused multiply-add; the store rounds once. The bits are the same on CPU
// and GPU. docs/numerics.md has the bound of the difference to a key that was written at the new position.
//
// num_keys = 0 is a no-op. The operation never allocates, synchronises or throws, and is safe under graph capture.

typedef struct prologue_rerope_params {
  int64_t num_keys;
  prologue_paged_kv_view cache;
  prologue_rope rope;
  prologue_index_view slot_mapping;
  prologue_index_view from_positions;
  prologue_index_view to_positions;
  int64_t position_axis_stride;  // = PROLOGUE_UNSET_STRIDE; of both; must be set if num_axes > 1
  int64_t hadamard_block;        // 0: no transform

  prologue_fault_record* faults;  // null only if positions have no bound, or rope.past_table is zero or identity
  uint8_t* token_faults;          // [num_keys]: a prologue_fault_code is written for each faulty key; null = not wanted
  uint64_t reserved[8];           // zeros
} prologue_rerope_params;
PROLOGUE_C_API void prologue_rerope_params_init(prologue_rerope_params* value);

PROLOGUE_C_API prologue_status prologue_rerope(const prologue_rerope_params* params, const prologue_execution* execution);

// ---- attention_prologue ------------------------------------------------------------------------------------------------------

// The attention prologue does everything between the QKV GEMM and attention, in one pass over the tokens and one launch.
//
// For token t and head h (each step is optional):
//   Q, K:  x = in[t, h, :] + bias[h, :]
//          x = norm(x)                                  before the rotation ...
//          (a, b) = (a cos - b sin, a sin + b cos)      for each pair of the rotated channels
//          x = norm(x)                                  ... or after it
//          x = H x / sqrt(hadamard_block)               for each block of channels; the products of Q and K stay what they are
//          Q: x = x * q_scale(position);  K: x = x * k_constant
//   V:     x = in[t, h, :] + bias[h, :];  x = rms(x);  x = H x / sqrt(v_hadamard_block);  x = x * v_constant
//   Q    -> q_out[t, h, :], or q8_out with a scale
//   K, V -> the token's slot of the paged cache, quantised to the cache's type; and k_out, v_out if given (rounded to dtype, not
//           quantised)
// A call may have other groups of heads besides Q, K and V, in the same launch (prologue_head_group): the heads of an indexer, or a gate.
// Definitions, formulas and bounds: docs/numerics.md. Every pointer is on the operation's device. Strides count elements.
//
//   q, k, v  [num_tokens, heads, head_dim] dtype: three views of one packed buffer (prologue_set_packed_qkv), or three buffers. V may have
//            its own head_dim (cache.v.head_dim). For models that take V from K (Gemma 4), set v = k and bias.v = bias.k
//   q_rope, k_rope
//            [num_tokens, heads, rotary_dim] dtype; null = q and k have whole heads. If given, the rotated channels come from there,
//            and q (k) is [num_tokens, heads, head_dim - rotary_dim]: the others, in order. The rotated channels must then be the
//            first or the last of the head, but not all. A head_stride of 0 is one head for all (DeepSeek's k_pe)
//   bias     q [num_q_heads * head_dim], k [num_kv_heads * head_dim], v [num_kv_heads * v_head_dim] dtype; each null = none
//   rope     source table, per_token or inv_freq. cos and sin: float32, float16 or bfloat16, widened exactly; width half, any
//            row_stride, column_stride 1. inv_freq: float32
//   q_out    [num_tokens, num_q_heads, head_dim] dtype; may be q itself (same pointer and strides) if there is no q_rope; no other
//            overlap
//   k_out    [num_tokens, num_kv_heads, head_dim] dtype, v_out [.., v_head_dim]; may be k (if there is no k_rope) and v themselves.
//            Written for every token that is not padding, whatever its slot
//   cache    see prologue_paged_kv_view. cache.k.data (cache.v.data) null: K (V) is written only to k_out (v_out)
//   Which of Q, K and V there are: num_kv_heads = 0: only Q. num_q_heads = 0: no Q. k.data null: no K. v.data null: no V
//
// Guards. Nothing outside the named rows and slots is touched. Two tokens must not share a slot.
//   padding            a given position that is negative on any axis; or, if anything is derived, a token at or past
//                      cu_seqlens_q[num_seqs]: nothing of the token is written, and its input rows may hold anything
//   negative slot      K and V are not written to the cache. Everything else is done. The same holds for a token at or past
//                      slot_mapping_len, which has no slot
//   past the table     a position >= max_position on any axis; rope.past_table decides:
//     record           the rows of q_out, k_out and v_out become zeros (q8_out: zeros with scale 0), the cache is not written,
//                      and the fault is recorded. `faults` must not be null
//     zero             the same zeros, and recorded only if `faults` is given
//     identity         the token's rows are not rotated. Everything else is done. Nothing is recorded
//   bad derived value  a derived position that is negative, or that int64 cannot hold: as `record`
//   bad slot           slot >= num_slots (slot_out_of_range), an entry of the page table outside [0, num_pages)
//                      (page_out_of_range), or a cache position that is negative or beyond the sequence's pages
//                      (sequence_too_long): everything except the cache is written, and the fault is recorded
//   bad page table     a sequence whose entries of kv_indptr are bad has no pages. If its length should come from
//                      kv_last_page_len and these entries are bad, or its last page is not 1..page_size tokens long, then what
//                      is derived from its length is bad: its positions, and its cache positions as if they were negative
//
// Quantisation: the rules are those of prologue_kv_format. A float cache may have a type other than dtype.
//
// Numerics.
//   Arithmetic is float32. The rotation is a rounded product and a fused multiply-add a channel (docs/numerics.md).
//   PROLOGUE_ROUNDING_ONCE rounds only at the stores. PROLOGUE_ROUNDING_PER_STEP also rounds where the unfused stages store: after bias, norm,
//   rotation, Hadamard transform, Q scale and the constants of K and V. So fused and unfused agree bit for bit in 16-bit types too.
//   The squares of a norm and the sums of the Hadamard transform must fit float32. Values that no step changes are copied bitwise.
//   Batch-invariant.
//
// num_tokens = 0 is a no-op. The operation never allocates, synchronises or throws, and is safe under graph capture.

typedef struct prologue_qkv_bias {
  const void* q;
  const void* k;
  const void* v;
} prologue_qkv_bias;
PROLOGUE_C_API void prologue_qkv_bias_init(prologue_qkv_bias* value);

typedef int32_t prologue_norm_placement;
enum {
  PROLOGUE_NORM_PLACEMENT_NONE = 0,
  PROLOGUE_NORM_PLACEMENT_BEFORE_ROPE = 1,
  PROLOGUE_NORM_PLACEMENT_AFTER_ROPE = 2,
};

// token: one norm over all heads of the token (OLMo 2); rms only
typedef int32_t prologue_norm_scope;
enum {
  PROLOGUE_NORM_SCOPE_HEAD = 0,
  PROLOGUE_NORM_SCOPE_TOKEN = 1,
};

// Describes the norm of each head of one of Q, K and V; each of them has its own.
//   rms:    x / sqrt(mean(x^2) + eps) * (weight_offset + w)
//   layer:  (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * (weight_offset + w) + b
typedef struct prologue_head_norm {
  prologue_norm_placement placement;
  prologue_norm_kind kind;
  prologue_norm_scope scope;
  float eps;                   // = 1e-6f
  float weight_offset;         // 1 for Gemma, whose model files hold w - 1
  const void* weight;          // null = no weight: x is multiplied by 1
  int64_t weight_head_stride;  // 0: one [head_dim] for all heads; head_dim: [heads, head_dim]
  const void* bias;            // layer only; same stride as the weight
  prologue_dtype weight_type;  // of weight and bias: dtype (unset means that) or float32
  uint64_t reserved[2];        // zeros
} prologue_head_norm;
PROLOGUE_C_API void prologue_head_norm_init(prologue_head_norm* value);

// Tells the position and slot of each token: they are given, or derived in the kernel from arrays that a step of attention needs too.
typedef struct prologue_token_places {
  // These are given: positions [num_axes, num_tokens], with row stride position_axis_stride (0: one row for all axes), and slot_mapping
  // [slot_mapping_len], the slots of the first slot_mapping_len tokens (0: of all of them). Positions may be null (and cu_seqlens_q too) if
  // nothing needs them: no table, no inv_freq, no q_scale.by_position. Then all positions count as 0.
  prologue_index_view positions;
  int64_t position_axis_stride;  // = PROLOGUE_UNSET_STRIDE; must be set if num_axes > 1
  prologue_index_view slot_mapping;
  int64_t slot_mapping_len;

  // What is not given is derived, if cu_seqlens_q is not null. Token t with cu_seqlens_q[s] <= t < cu_seqlens_q[s+1] is number
  // j = t - cu_seqlens_q[s] of sequence s. Its cache position is p = cache_lens[s] + j, or seq_lens[s] - n + j, where n is the
  // sequence's number of tokens, cu_seqlens_q[s+1] - cu_seqlens_q[s]. Exactly one of cache_lens, seq_lens and
  // page_table.kv_last_page_len must be given; from the last follows what seq_lens would be, if there is no ring.
  //   position = p + position_offsets[s] (or [0]), the same on all axes; position_offsets null: p
  //   slot = page * page_size + r % page_size, where page is entry r / page_size of the sequence in page_table (prologue_page_table in
  //          section views), and r = p % ring_size (ring_size = 0: r = p)
  // If several tokens of a step share a slot of the ring, only the last is written: token t is not if t + ring_size <
  // cu_seqlens_q[s+1].
  int64_t num_seqs;
  const int32_t* cu_seqlens_q;  // [num_seqs + 1], non-decreasing from 0
  const int32_t* cache_lens;    // [num_seqs]: tokens in the cache BEFORE this step
  const int32_t* seq_lens;      // [num_seqs]: tokens AFTER this step's were added, as prologue_paged_attention takes them
  prologue_page_table page_table;
  int64_t ring_size;  // tokens
  prologue_index_view position_offsets;
  int32_t position_offset_per_seq;
  uint64_t reserved[4];  // zeros
} prologue_token_places;
PROLOGUE_C_API void prologue_token_places_init(prologue_token_places* value);

typedef int32_t prologue_position_scale;
enum {
  PROLOGUE_POSITION_SCALE_NONE = 0,
  PROLOGUE_POSITION_SCALE_LLAMA4 = 1,
  PROLOGUE_POSITION_SCALE_LOGN = 2,
};

// Q is multiplied by constant * f(position):
//   llama4: f = 1 + a * log(1 + floor((position + 1) / b));  logn: f = max(1, log(position + 1) / log(b))
// The position is that on axis 0. llama4: the quotient is rounded to float32. logn: b > 1.
typedef struct prologue_q_scale {
  float constant;  // = 1.0f
  prologue_position_scale by_position;
  float a;
  float b;               // = 1.0f
  uint64_t reserved[2];  // zeros
} prologue_q_scale;
PROLOGUE_C_API void prologue_q_scale_init(prologue_q_scale* value);

// Stores Q as fp8 (x / scale) instead of q_out, which is then null. A scale per token and head is computed (amax / 448 for e4m3,
// amax / 57344 for e5m2).
typedef struct prologue_quantized_query {
  void* data;  // [num_tokens, num_q_heads, head_dim] bytes; null = q_out is written instead
  int64_t token_stride;
  int64_t head_stride;
  prologue_kv_scaling scaling;  // = PROLOGUE_KV_SCALING_TENSOR; tensor or token_head
  float* scale;                 // [1], or [num_tokens, num_q_heads]
  prologue_dtype type;          // fp8_e4m3 (unset means that) or fp8_e5m2
  uint64_t reserved[2];         // zeros
} prologue_quantized_query;
PROLOGUE_C_API void prologue_quantized_query_init(prologue_quantized_query* value);

typedef int32_t prologue_rounding;
enum {
  PROLOGUE_ROUNDING_ONCE = 0,
  PROLOGUE_ROUNDING_PER_STEP = 1,
};

// sigmoid: 1 / (1 + exp(-x))
typedef int32_t prologue_head_activation;
enum {
  PROLOGUE_HEAD_ACTIVATION_NONE = 0,
  PROLOGUE_HEAD_ACTIVATION_SIGMOID = 1,
};

#define PROLOGUE_MAX_HEAD_GROUPS INT64_C(4)

// Describes other heads that a call computes in the same launch: those of an indexer, or a gate. For token t and head h (each step is optional):
//   x = in[t, h, :] + bias[h, :];  norm, before or after the rotation;  rotation;  Hadamard transform;  x = x * constant;  x = activation(x)
//   x -> out[t, h, :], or q8_out with a scale; and the token's slot of `cache`, quantised to the cache's type
// Positions, slots, faults and rounding are those of the call. The guards of the operation hold for a group as if it were a call of its own
// with its heads as Q (out, q8_out) and as K (cache): past the table is what is past that of its own `rope`. A token's fault is recorded
// once: that of Q, K and V, otherwise that of the first group that has one.
// A gate is a group without norm and rope. Packed rows [q | gate] of each head are two views whose head_stride is 2 * head_dim.
typedef struct prologue_head_group {
  prologue_heads_view in;   // [num_tokens, num_heads, head_dim] dtype
  int64_t num_heads;        // 1..65536
  int64_t head_dim;         // 1..1024 (PROLOGUE_MAX_HEAD_DIM); even, if there is a norm, a rotation, or a cache of 4 bits
  const void* bias;         // [num_heads * head_dim] dtype; null = none
  prologue_head_norm norm;  // of each head; its scope must be head
  // Whether and how heads are rotated: an array of cos and sin, a bound on positions and a past_table of its own. num_axes is 1..rope.num_axes
  // of the call: the first axes of its positions. A bound without a rotation is one, too, as in the rope of the call.
  prologue_rope rope;
  int64_t hadamard_block;  // as that of the call
  float constant;          // = 1.0f; finite and not 0
  prologue_head_activation activation;
  prologue_mutable_heads_view out;  // [num_tokens, num_heads, head_dim] dtype; may be `in` itself (all strides equal); null = not wanted
  prologue_quantized_query q8_out;  // fp8 in place of `out` and of the cache, then null; computed scales: [num_tokens, num_heads]
  // [num_pages, page_size, num_heads, head_dim] in any format of K; null data = not cached. cache.head_dim is 0 or head_dim. The slot of a
  // token is that of the call; it is at offset slot % page_size of page slot / page_size.
  prologue_paged_heads cache;
  int64_t num_pages;     // 0 = that of the call's cache; num_pages * page_size must be at least as large as there
  int64_t page_size;     // 0 = that of the call's cache; otherwise 1..2^20
  uint64_t reserved[6];  // zeros
} prologue_head_group;
PROLOGUE_C_API void prologue_head_group_init(prologue_head_group* value);

typedef struct prologue_attention_prologue_params {
  int64_t num_tokens;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t head_dim;  // even, 2..1024 (PROLOGUE_MAX_HEAD_DIM); so is that of V
  prologue_dtype dtype;

  prologue_heads_view q;
  prologue_heads_view k;
  prologue_heads_view v;
  prologue_heads_view q_rope;  // null = not apart
  prologue_heads_view k_rope;
  prologue_qkv_bias bias;
  prologue_head_norm q_norm;
  prologue_head_norm k_norm;  // Q and K have norms of their own, which may differ in everything; or only one of them has any
  prologue_head_norm v_norm;  // rms over a head, without weight and bias (Gemma 4)
  prologue_rope rope;
  prologue_token_places places;
  // If it is not 0, Q and K get a Hadamard transform over so many channels: a power of two in 2..512 that divides head_dim. It spreads
  // large channels, so that a quantised K loses less. Each block of so many adjacent channels of each head, rotated or not, is multiplied
  // by Sylvester's Hadamard matrix (natural order) / sqrt(hadamard_block):
  //   (x[c], x[c + d]) = (x[c] + x[c + d], x[c] - x[c + d])   for d = 1, 2, 4 .. hadamard_block / 2, channels c without the bit d
  //   x = x * (1 / sqrt(hadamard_block))
  // Each sum, the factor and the product are rounded to float32. It is a step like the others: k_out has it too.
  int64_t hadamard_block;
  prologue_q_scale q_scale;
  prologue_rounding rounding;

  prologue_mutable_heads_view q_out;
  prologue_quantized_query q8_out;
  prologue_mutable_heads_view k_out;  // null = not wanted
  prologue_mutable_heads_view v_out;
  prologue_paged_kv_view cache;

  prologue_fault_record* faults;  // null only if positions have no bound, or rope.past_table is zero or identity
  uint8_t* token_faults;          // [num_tokens]: a prologue_fault_code is written for each faulty token; null = not wanted
  // K and V are multiplied by these, which are finite and not 0, as their last step: k_out and v_out have it, and the cache stores the
  // products. 1: nothing is multiplied.
  float k_constant;  // = 1.0f
  float v_constant;  // = 1.0f
  // [num_groups]: other heads of the same tokens. The array is on the host, and read during the call only. With groups there may be no Q, K
  // and V at all: num_q_heads and num_kv_heads are then 0, and so may head_dim be. If only groups are cached, cache.num_pages and
  // cache.page_size still say which slots there are.
  const prologue_head_group* groups;
  int64_t num_groups;  // 0..4 (PROLOGUE_MAX_HEAD_GROUPS)
  // If it is not 0, V gets a Hadamard transform over so many channels, as Q and K do by hadamard_block: a power of two in 2..512 that divides
  // the channels of V. Attention's output is then transformed, too; the same transform of each of its heads (the stage hadamard) undoes it.
  int64_t v_hadamard_block;
  uint64_t reserved[4];  // zeros
} prologue_attention_prologue_params;
PROLOGUE_C_API void prologue_attention_prologue_params_init(prologue_attention_prologue_params* value);

// Sets q, k and v to one packed buffer [num_tokens, (num_q_heads + num_kv_heads) * head_dim + num_kv_heads * v_head_dim] whose
// row stride is token_stride elements. The sizes, dtype and cache.v.head_dim of `params` must be set before. Without head_dim or
// dtype the strides of the three are left unset, and a side without heads is null: the operation is then an error.
// A buffer of q and k alone, [num_tokens, (num_q_heads + num_kv_heads) * head_dim], with V taken from K: set v = k after this call.
PROLOGUE_C_API prologue_status prologue_set_packed_qkv(
    prologue_attention_prologue_params* params,
    const void* qkv,
    int64_t token_stride);

PROLOGUE_C_API prologue_status prologue_attention_prologue_validate(const prologue_attention_prologue_params* params);
PROLOGUE_C_API prologue_status prologue_attention_prologue(
    const prologue_attention_prologue_params* params,
    const prologue_execution* execution);

// A plan is a call that is validated once and then launched many times with other pointers, for example for every layer of a model. Making one
// may compile a kernel, which takes from a tenth of a second to seconds the first time: not while a stream is being captured.
typedef struct prologue_attention_prologue_plan prologue_attention_prologue_plan;
// `params` fixes everything except what a run may change: num_tokens (up to max_tokens), places.num_seqs (up to that of
// `params`), places.slot_mapping_len, places.page_table.num_kv_indices (up to that of `params`), places.position_axis_stride,
// and the pointers, also those of groups; num_groups and the other members of the groups are fixed.
PROLOGUE_C_API prologue_status prologue_attention_prologue_plan_create(
    const prologue_attention_prologue_params* params,
    int64_t max_tokens,
    const prologue_execution* execution,
    prologue_attention_prologue_plan** plan);
// Everything fixed must be equal to the plan's, and a pointer must be null exactly if the plan's was; otherwise an error names
// the member that differs. The alignment of the pointers and their overlap are not checked again: they must be as in the plan.
PROLOGUE_C_API prologue_status prologue_attention_prologue_plan_run(
    const prologue_attention_prologue_plan* plan,
    const prologue_attention_prologue_params* params,
    const prologue_execution* execution);
// Returns the kernel that run() uses: "cpu"; "lean", an instance that ships and is made for the steps of this call; "compiled", one that was
// compiled for exactly this call, now or by an earlier plan (docs/embedding.md, "Kernels compiled on demand"); or "general", one CUDA kernel
// that decides everything at run time and takes several times as long. Without a compiler, "lean" is also an instance that decides the steps
// at run time. (A run whose slot_mapping_len is less than its tokens, if the plan's was not, takes another kernel.)
PROLOGUE_C_API const char* prologue_attention_prologue_plan_kernel(const prologue_attention_prologue_plan* plan);
PROLOGUE_C_API void prologue_attention_prologue_plan_destroy(prologue_attention_prologue_plan* plan);

// ---- stages ------------------------------------------------------------------------------------------------------------------

// The prologue's stages as separate operations. The unfused graph runs them, and tests compare the fused kernel with them. The
// rotation is in section rotary. The rules for padding, faults and numerics are those of section attention_prologue.

// y[t, i] = x[t, i] + bias[i];  x, y [num_tokens, width] dtype with row strides; y may be x.
typedef struct prologue_add_bias_params {
  int64_t num_tokens;
  int64_t width;
  prologue_dtype dtype;
  const void* x;
  int64_t x_stride;
  const void* bias;
  void* y;
  int64_t y_stride;
  uint64_t reserved[4];  // zeros
} prologue_add_bias_params;
PROLOGUE_C_API void prologue_add_bias_params_init(prologue_add_bias_params* value);
PROLOGUE_C_API prologue_status prologue_add_bias(const prologue_add_bias_params* params, const prologue_execution* execution);

// y = norm(x) of Q or K (prologue_head_norm's formulas), or of V (no weight, no bias). y may be x itself.
// The rows of a token with a negative position are not touched. positions may be null: then no token is padding.
typedef struct prologue_qk_norm_params {
  int64_t num_tokens;
  int64_t num_heads;
  int64_t head_dim;
  prologue_dtype dtype;
  prologue_heads_view x;
  prologue_mutable_heads_view y;
  prologue_head_norm norm;  // its placement does not matter
  prologue_index_view positions;
  uint64_t reserved[4];  // zeros
} prologue_qk_norm_params;
PROLOGUE_C_API void prologue_qk_norm_params_init(prologue_qk_norm_params* value);
PROLOGUE_C_API prologue_status prologue_qk_norm(const prologue_qk_norm_params* params, const prologue_execution* execution);

// Describes the Hadamard transform of Q or K (hadamard_block in section attention_prologue). y may be x itself. The rows of a token with a
// negative position are not touched. positions may be null: then no token is padding.
typedef struct prologue_hadamard_params {
  int64_t num_tokens;
  int64_t num_heads;
  int64_t head_dim;
  prologue_dtype dtype;
  prologue_heads_view x;
  prologue_mutable_heads_view y;
  int64_t block;  // a power of two in 2..512 that divides head_dim
  prologue_index_view positions;
  uint64_t reserved[4];  // zeros
} prologue_hadamard_params;
PROLOGUE_C_API void prologue_hadamard_params_init(prologue_hadamard_params* value);
PROLOGUE_C_API prologue_status prologue_hadamard(const prologue_hadamard_params* params, const prologue_execution* execution);

// y = x * scale(position) of Q (prologue_q_scale's formulas), or x * q_scale.constant of K or V. y may be x itself. The rows of a token with a
// negative position are not touched. positions may be null if the scale does not depend on them. Rows that are multiplied by 1 are copied
// bitwise.
typedef struct prologue_query_scale_params {
  int64_t num_tokens;
  int64_t num_heads;
  int64_t head_dim;
  prologue_dtype dtype;
  prologue_heads_view x;
  prologue_mutable_heads_view y;
  prologue_q_scale q_scale;
  prologue_index_view positions;
  uint64_t reserved[4];  // zeros
} prologue_query_scale_params;
PROLOGUE_C_API void prologue_query_scale_params_init(prologue_query_scale_params* value);
PROLOGUE_C_API prologue_status prologue_query_scale(
    const prologue_query_scale_params* params,
    const prologue_execution* execution);

// Writes K and V of each token into its slot, quantised to the cache's type. k.data null: V only. v.data null: K only.
// Skipped are tokens whose slot is negative, tokens at or past slot_mapping_len, and tokens whose position is negative or >=
// max_position on any of num_axes axes.
//   positions null                              no token is skipped for its position
//   max_position = 0, or past_table = identity  positions have no upper bound
// Bad slots and positions are recorded as by the fused kernel, each token once. `faults` must not be null if there is a bound and
// past_table is record.
typedef struct prologue_kv_write_params {
  int64_t num_tokens;
  int64_t num_kv_heads;
  int64_t head_dim;  // of K; V's is the cache's
  prologue_dtype dtype;
  prologue_heads_view k;
  prologue_heads_view v;
  prologue_paged_kv_view cache;
  prologue_index_view slot_mapping;  // [slot_mapping_len]: of the first tokens (0: of all of them)
  prologue_index_view positions;     // [num_axes, num_tokens], row stride position_axis_stride (0: one row for all axes)
  int64_t max_position;
  prologue_fault_record* faults;
  int64_t num_axes;              // = 1; 1 to 4
  int64_t position_axis_stride;  // = PROLOGUE_UNSET_STRIDE; must be set if num_axes > 1
  prologue_past_table past_table;
  int64_t slot_mapping_len;
  uint64_t reserved[4];  // zeros
} prologue_kv_write_params;
PROLOGUE_C_API void prologue_kv_write_params_init(prologue_kv_write_params* value);
PROLOGUE_C_API prologue_status prologue_kv_write(const prologue_kv_write_params* params, const prologue_execution* execution);

// ---- mla_prologue ------------------------------------------------------------------------------------------------------------

// Runs the prologue of multi-head latent attention (MLA: DeepSeek V2 and V3, Kimi K2): everything between the projections and attention, in
// one pass over the tokens and one launch.
//
// For token t (each part is optional):
//   latent:  c = kv_c[t, :];  c = norm(c), rounded to dtype              -> kv_c_out[t, :]
//   K:       k = k_pe[t, :];  k = norm(k), rounded to dtype;  k = rotate(k), rounded to dtype -> k_pe_out[t, :]
//   Q:       q_pe_out[t, h, :] = rotate(q_pe[t, h, :])                   for every head h
//   cache:   entry = [c | k], in the token's slot, converted to the cache's types
// rotate: (a, b) = (a cos - b sin, a sin + b cos) for each pair of the channels (section rope). DeepSeek's pairs are interleaved.
// norm: x / sqrt(mean(x^2) + eps) * (weight_offset + w).
//
//   kv_c   [num_tokens, kv_lora_rank] dtype, row stride kv_c_stride; null = no latent
//   k_pe   [num_tokens, qk_rope_head_dim] dtype, row stride k_pe_stride; null = no K
//   q_pe   [num_tokens, num_q_heads, qk_rope_head_dim] dtype; num_q_heads = 0: no Q
//          All three may be columns of larger rows: kv_c and k_pe of one projection, q_pe of whole heads. kv_lora_rank and
//          qk_rope_head_dim: multiples of 16 in 16..1024; 0 if there is nothing of that width
//   kv_c_norm.weight   [kv_lora_rank], weight_type;  k_pe_norm.weight [qk_rope_head_dim], of a type of its own
//   kv_c_out, k_pe_out as kv_c and k_pe, with strides of their own; null = not wanted; may be kv_c and k_pe themselves
//   q_pe_out           as q_pe, with strides of its own, for example beside the other channels of the query [num_tokens, num_q_heads,
//                      kv_lora_rank + qk_rope_head_dim]; may be q_pe itself
//   rope   rotary_dim = qk_rope_head_dim, or 0 = no rotation: K and Q are copied. Source table, per_token or inv_freq. cos and sin:
//          float32, float16 or bfloat16; width half, any row_stride, column_stride 1. inv_freq: float32. One block, one position axis
//   positions     [num_tokens] int32 or int64. May be null if the rotation needs none: then all positions count as 0
//   slot_mapping  [slot_mapping_len] int32 or int64, the slots of the first slot_mapping_len tokens (0: of all of them). May be null
//                 if nothing is cached
// "May be ... itself" means the same pointer and strides; nothing else that is written may overlap anything. Every pointer is on the
// operation's device. Strides count elements. Rows that are aligned to 16 bytes are faster.
//
// Cache. Slot s is at offset s % page_size of page s / page_size. Channel d of a part (the latent, or K) is there at
//   data + page * page_stride + offset * token_stride + d
// in elements of the part's type. Both parts may be in one entry (prologue_set_mla_entries), or in arrays of their own.
//   float types, fp8   as prologue_kv_format says, with scaling none or tensor. Same type as dtype: stored bit by bit
//   fp8_e4m3, scaling token_head, only for the latent: vLLM's fp8_ds_mla. kv_lora_rank, a multiple of 256, codes are followed by
//                      kv_lora_rank / 128 float32 scales, one for each 128 channels:
//                        scale = max(2^ceil(log2(amax / 448)), 2^-13),  code = nearest_even(x / scale)
//                      A NaN or infinity makes the scale of its channels NaN and their codes zeros. K follows in dtype, float16 or
//                      bfloat16. For rank 512 and 64 channels that is a record of 656 bytes (prologue_set_mla_records)
//
// Guards. Nothing outside the named rows and slots is touched. Two tokens must not share a slot.
//   padding         a negative position: nothing of the token is written, and its input rows may hold anything
//   negative slot   not written to the cache. Everything else is done. The same holds for a token at or past slot_mapping_len
//   past the table  a position >= rope.max_position; rope.past_table decides, as in section attention_prologue:
//     record        the rows of q_pe_out, kv_c_out and k_pe_out become zeros, the cache is not written, and the fault
//                   position_out_of_range is recorded. `faults` must not be null
//     zero          the same zeros, and recorded only if `faults` is given
//     identity      the token's rows are not rotated. Everything else is done. Nothing is recorded
//   bad slot        slot >= num_pages * page_size: everything except the cache is written, and slot_out_of_range is recorded
//
// Numerics. Arithmetic is float32. The results are those of prologue_qk_norm, rotary and prologue_kv_write one after another, bit for bit (a NaN may
// become another NaN): the sum of squares has the order of prologue_qk_norm's, and each step rounds to dtype. Batch-invariant.
//
// num_tokens = 0 is a no-op. The operation never allocates, synchronises or throws, and is safe under graph capture. Up to 65535 tokens are
// one launch; more take several.

typedef struct prologue_mla_cache_part {
  void* data;                 // null = the part is not cached
  prologue_kv_format format;  // type: a float type or fp8; unset: dtype
  int64_t page_stride;
  int64_t token_stride;
  const float* scale;    // [1], if the scaling is tensor
  uint64_t reserved[2];  // zeros
} prologue_mla_cache_part;
PROLOGUE_C_API void prologue_mla_cache_part_init(prologue_mla_cache_part* value);

typedef struct prologue_mla_cache {
  prologue_mla_cache_part latent;
  prologue_mla_cache_part rope;  // K
  int64_t num_pages;
  int64_t page_size;
  uint64_t reserved[2];  // zeros
} prologue_mla_cache;
PROLOGUE_C_API void prologue_mla_cache_init(prologue_mla_cache* value);

typedef struct prologue_mla_prologue_params {
  int64_t num_tokens;
  int64_t num_q_heads;
  int64_t kv_lora_rank;
  int64_t qk_rope_head_dim;
  prologue_dtype dtype;

  const void* kv_c;
  int64_t kv_c_stride;
  const void* k_pe;
  int64_t k_pe_stride;
  prologue_heads_view q_pe;
  prologue_head_norm kv_c_norm;  // placement none: no norm; before_rope: this one. rms over a head, without bias
  prologue_head_norm k_pe_norm;  // the same of k_pe, before its rotation (dots3), for qk_rope_head_dim up to 512
  prologue_rope rope;
  prologue_index_view positions;
  prologue_index_view slot_mapping;
  int64_t slot_mapping_len;

  void* kv_c_out;
  int64_t kv_c_out_stride;
  void* k_pe_out;
  int64_t k_pe_out_stride;
  prologue_mutable_heads_view q_pe_out;
  prologue_mla_cache cache;

  // The launch may begin while the kernels before it in the stream run; they must not write kv_c_norm.weight or the cache's scales.
  bool overlaps;
  prologue_fault_record* faults;  // null only if positions have no bound, or rope.past_table is zero or identity
  uint8_t* token_faults;          // [num_tokens]: a prologue_fault_code is written for each faulty token; null = not wanted
  uint64_t reserved[8];           // zeros
} prologue_mla_prologue_params;
PROLOGUE_C_API void prologue_mla_prologue_params_init(prologue_mla_prologue_params* value);

// Sets the parts of a cache [num_pages, page_size, kv_lora_rank + qk_rope_head_dim] of elements of `type` (unset: dtype). `scale` is that
// of fp8; null = none. kv_lora_rank and dtype must be set before: without them the strides are left unset, and the operation is an error.
PROLOGUE_C_API prologue_status prologue_set_mla_entries(
    prologue_mla_prologue_params* params,
    void* data,
    prologue_dtype type,
    const float* scale,
    int64_t page_stride,
    int64_t token_stride);
// Sets the parts of a cache of fp8_ds_mla records, with strides in bytes, multiples of 4. kv_lora_rank must be set before, likewise.
PROLOGUE_C_API prologue_status prologue_set_mla_records(
    prologue_mla_prologue_params* params,
    void* data,
    int64_t page_stride,
    int64_t token_stride);

PROLOGUE_C_API prologue_status prologue_mla_prologue_validate(const prologue_mla_prologue_params* params);
PROLOGUE_C_API prologue_status prologue_mla_prologue(
    const prologue_mla_prologue_params* params,
    const prologue_execution* execution);

// ---- paged_attention ---------------------------------------------------------------------------------------------------------

// Computes attention of new tokens over a paged KV cache that already holds their K and V (the prologue wrote them): prefill, decode, or
// both in one batch. Attention is causal and grouped-query. The operation reads every type and layout of cache that the prologue writes.
//
// Sequence s owns the n query rows [cu_seqlens_q[s], cu_seqlens_q[s+1]). They are the last n of its seq_lens[s] tokens. Row j is
// the token at position p0 = seq_lens[s] - n + j. It attends to the positions first <= p <= p0. `first` is the largest of
//   0;  p0 - window + 1, unless window is 0;  the beginning of its chunk, p0 / chunk * chunk, unless chunk is 0 (Llama 4)
// Position p is in the page that entry r / page_size of the sequence in page_table says, at offset r % page_size, where r =
// p % ring_size (ring_size = 0: r = p).
// Query head h reads kv head h / (num_q_heads / num_kv_heads).
//
//   score_p       = scale * <q[t, h, :], K[p]>;  with a soft cap: soft_cap * tanh(score_p / soft_cap)
//   out[t, h, :]  = sum_p exp(score_p - m) V[p] / (sum_p exp(score_p - m) + exp(sinks[h] - m)), m being the largest score or sink
//
//   q             [T, num_q_heads, head_dim] dtype, strided; T = cu_seqlens_q[num_seqs] <= num_tokens; rows past T are padding
//   out           [T, num_q_heads, v_head_dim] dtype, strided; must not overlap anything that is read; padding is not written
//   kv            one layer's cache of any type, scaling and strides, read only; K and V may have formats of their own.
//                 They may overlap (MLA: V is the first channels of K). kv.k.head_dim = head_dim; kv.v.head_dim is any even
//                 number up to 576. An element of a quantised cache is its stored number times its scale, plus its zero point
//   sinks         [num_q_heads] of sinks_type: a score of each q head that has no key and no value (GPT-OSS). It is neither scaled
//                 nor capped. Finite; -infinity is no sink. null = none: the last term of the denominator is missing
//   page_table    the pages of the sequences: a block table or CSR; only entries that a row needs are read
//   cu_seqlens_q  [num_seqs + 1] int32, non-decreasing, from 0 to at most num_tokens; a sequence without rows is allowed
//   seq_lens      [num_seqs] int32, tokens of the sequence AFTER this step's tokens were added; a negative entry counts as 0.
//                 Null if page_table.kv_last_page_len says them: exactly one of the two must be given, and with a ring seq_lens
//   max_seqlen_q  upper bound of the query rows of one sequence; a host value
//   max_seq_len   upper bound of seq_lens, at most 2^30; a host value, with CSR and with a ring too: all tokens of a sequence count, not
//                 only those that a ring holds or a block table has room for. A longer sequence is a fault (below), and without `faults`
//                 its zeros are all that shows it. The size of the launch depends on both bounds, so they must hold for every replay of a
//                 captured graph
//   num_decode_seqs  0..num_seqs; a host value, which must hold for every replay too. The first num_decode_seqs sequences have at
//                 most one row each, whatever max_seqlen_q is. It chooses kernels (see Numerics), so a result may change by rounding
//   counters      [PROLOGUE_PAGED_ATTENTION_COUNTERS], zeros; the call leaves zeros. Calls that may run at the same time need counters of their
//                 own. Without them the call clears some in its workspace, which costs another node in the stream. Only CUDA uses them
//   past_is_ready  a promise that lets the call on Hopper GPUs begin while the launch before it in the stream still runs: that launch (a
//                 prologue, say) is a kernel that writes no more of what this call reads than q and the K and V of the call's own rows,
//                 at the last positions of their sequences, which no other sequence reads. Everything else (lengths, page table, earlier
//                 positions, scales that are not of a token, sinks) was complete before that launch began. Decode then reads the keys of
//                 earlier positions, prefill looks for its work. CUDA: only with counters
//   late_signal   the launch after this one in the stream, if it has a programmatic edge, may begin when decode on Hopper GPUs has read
//                 its keys, and not as soon as it waits for no other kernel. For a launch of many blocks, which would take the places of
//                 others (an output projection, say). It changes no result, and nothing where latent attention is decoded
//   early_signal  the same launch may begin as soon as decode on Hopper GPUs has begun. For a launch that holds its weights until there are
//                 results (a small output projection, say); it takes precedence over late_signal
//   token_faults  [num_tokens]: a prologue_fault_code is written for each row that becomes zeros because of a fault, nothing for other rows
//                 (so the caller clears it); null = not wanted
//
// Ring. It holds the last ring_size positions, including those of this step. So the first row of a step finds its whole window
// only if window + max_seqlen_q - 1 <= ring_size. Anything larger is an error, unless max_seq_len <= ring_size. In place of the
// window counts the chunk if that is smaller, or if there is no window.
//
// Guards. Arrays on the device are checked by the kernel when it reads them. Whatever they hold, nothing outside of the arrays
// above is touched. For each of these faults the rows become zeros and are recorded, with the query row as token:
//   query_rows_out_of_range  a sequence with more than max_seqlen_q rows (of the first num_decode_seqs: more than one), or whose
//                            entries do not satisfy 0 <= cu_seqlens_q[s] <= cu_seqlens_q[s+1] <= num_tokens: its rows inside
//                            [0, num_tokens), or if there are none one fault for the sequence, with token = its last entry clamped
//                            to 0..num_tokens (not in token_faults). Rows before cu_seqlens_q[0]. If cu_seqlens_q decreases, rows
//                            from the smallest entry that follows a larger one on may hold anything, and so may their faults
//   sequence_too_long        seq_lens > max_seq_len, or min(seq_lens, ring_size) > the sequence's pages * page_size (none if its
//                            entries of kv_indptr are bad). Also if its length should come from kv_last_page_len and these
//                            entries are bad, or its last page is not 1..page_size tokens long
//   page_out_of_range        an entry of the page table outside [0, num_pages): only the rows that need it
// A row that attends to nothing (seq_lens is less than the number of rows) becomes zeros, with sinks too. This is not a fault. Neither is
// a row all of whose scores are -infinity, its sink too: no key has a weight, and the row becomes zeros.
//
// Numerics.
//   Scores, softmax and sums are float32. Scales are multiplied in float32. The result is rounded once, at the store. A score that float32
//   cannot hold is an infinity; a key with a score of -infinity has the weight 0.
//   16-bit types on CUDA may use tensor cores. They accumulate in float32. Probabilities are rounded to dtype before the second
//   product; in decode over a quantised cache to float16, whatever dtype is, so what is below 2^-14 of the largest loses digits and what
//   is up to 2^-25 of it is 0 (docs/numerics.md). The V of a position that one row must not see but another row of the same
//   block needs may be multiplied by 0. Then a NaN in it reaches both rows. Over a quantised cache with a scale for each token,
//     prefill  rounds V to dtype, as a cache of dtype would hold it;
//     decode   rounds the product of probability and scale to float16, relative to the largest product of the row so far, and keeps
//              the codes as they are. (q becomes float16, times a power of two for each row that lets its largest element fill
//              float16: what bfloat16 has beyond that is 2^-38 of it.) Scales of V below 2^-90 may count as 0.
//   Over a block-scaled cache decode in 16-bit types uses tensor cores if K and V are both MXFP8, or each MXFP4 or NVFP4. Weights are rounded
//   as over codes with scales of tokens; a block whose scale is below 2^-15 of the largest of its head may lose digits (docs/numerics.md).
//   Zero points are applied to sums where that saves work. On the CPU an element is code * scale + zero point, rounded once to
//   float32. On CUDA decode, and prefill with tensor cores, take a score as <q, codes> * scale of K + zero point of K * sum(q):
//   the first product is rounded, then one fused multiply-add; sum(q) is float32, once for each row. Decode takes
//   out = (sum_p (w_p * scale of V) * code + sum_p w_p * zero point of V) / sum_p w_p, w_p being exp(score_p - the maximum so far)
//   (with tensor cores w_p * scale rounded as above in both sums): the second sum is rescaled with the first one when the maximum
//   changes and when warps are combined, and before a part of a sequence is stored the two are added. Prefill takes V, without
//   tensor cores K too, as fma(code, scale, zero point).
//   The kernels of CUDA: if max_seqlen_q is at most 4, decode runs all sequences. Otherwise decode runs the first num_decode_seqs
//   and prefill the others, in two launches, and the rows of the first ones have the bits of a call with these sequences alone,
//   the same max_seq_len and max_seqlen_q = 1.
//   On Hopper GPUs (compute capability 9.0) prefill in 16-bit types has kernels of its own, for heads of up to 256 channels and a positive
//   `scale`. Over a cache of dtype: for what TMA can copy, pages of a power of two of at least 8 slots, a ring of whole pages or of a
//   multiple of 64 slots, and heads and strides that are multiples of 16 bytes. Over a quantised one, whatever the formats of K and V are
//   and the pages: for head dims and strides of multiples of 16 numbers, data aligned to as many, and less than 2^31 times 16 of them.
//   Other calls run as on other GPUs. Results differ by rounding.
//   So has decode of latent attention (MLA): one kv head of 576 channels, V being its first 512, over a cache of dtype, bfloat16 or
//   float16, with pages and a ring of multiples of 16 slots, a positive scale, and the same multiples of 16 bytes. Of few
//   long sequences it is two launches, the second of which adds up.
//   Decode, and prefill of few rows there, may split a sequence into parts and combine them through the workspace, in a way that
//   depends on the batch. So the result is deterministic, but not batch-invariant, unless:
//   batch_invariant  the bits of a row depend only on q of that row, the K and V that it sees and the sinks: not on the other rows and
//                    sequences of the call, nor on how the rows of its sequence are divided into steps (token by token, chunks,
//                    all at once), nor on num_tokens, num_seqs, max_* and num_decode_seqs. On CUDA every row runs in the prefill
//                    kernels then, without splits and without a workspace; a decode step of few long sequences is slower. The
//                    calls that are compared have equal strides and formats, the same GPU model, and base addresses that are
//                    alike multiples of 16 bytes or not. On CUDA V must be finite (above). On the CPU it holds always, and costs
//                    nothing
//
// num_tokens = 0 or num_seqs = 0 is a no-op. The operation never allocates or synchronises, and is safe under graph capture. On
// the CPU each thread needs less than 112 KiB of stack.

// CUDA needs so many counters if several blocks work on one sequence.
#define PROLOGUE_PAGED_ATTENTION_COUNTERS INT64_C(264)

typedef struct prologue_paged_attention_params {
  int64_t num_tokens;
  int64_t num_seqs;
  int64_t num_q_heads;
  int64_t head_dim;  // of q and K: even, 2..576
  prologue_dtype dtype;
  float scale;        // of the scores; usually 1 / sqrt(head_dim)
  float soft_cap;     // 0 = none
  int64_t window;     // tokens that a row sees, including its own; 0 = all up to its own
  int64_t chunk;      // a row sees only tokens of its own chunk of so many positions; 0 = no chunks
  int64_t ring_size;  // in tokens, as in prologue_token_places; 0 = every position has its own slot
  prologue_heads_view q;
  prologue_paged_kv_view kv;
  const void* sinks;          // [num_q_heads]; null = none
  prologue_dtype sinks_type;  // dtype (unset means that) or float32
  prologue_page_table page_table;
  const int32_t* cu_seqlens_q;
  const int32_t* seq_lens;
  int64_t max_seqlen_q;
  int64_t max_seq_len;
  int64_t num_decode_seqs;  // so many sequences, the first ones, have at most one row each
  bool batch_invariant;     // a row's bits do not depend on the rest of the batch
  bool past_is_ready;       // the launch before this one writes q and the rows' own K and V at most
  bool late_signal;         // the launch after this one may begin when the keys have been read, not before
  bool early_signal;        // the launch after this one may begin as soon as this one has begun
  prologue_mutable_heads_view out;
  void* workspace;  // device scratch of prologue_paged_attention_workspace_bytes, aligned to 16; null if that is 0
  int64_t workspace_bytes;
  uint32_t* counters;  // [PROLOGUE_PAGED_ATTENTION_COUNTERS] on the device; null = not given
  prologue_fault_record* faults;
  uint8_t* token_faults;  // [num_tokens]: a prologue_fault_code is written for each faulty row; null = not wanted
  uint64_t reserved[8];   // zeros
} prologue_paged_attention_params;
PROLOGUE_C_API void prologue_paged_attention_params_init(prologue_paged_attention_params* value);

// Returns the bytes of workspace that are enough for every call whose num_tokens, num_seqs, max_seqlen_q and max_seq_len are not larger
// than these and whose other members, num_decode_seqs aside, are equal. 0 on the CPU and with batch_invariant.
PROLOGUE_C_API prologue_status prologue_paged_attention_workspace_bytes(
    const prologue_paged_attention_params* params,
    prologue_device device,
    int64_t* bytes);

// Makes all checks of prologue_paged_attention(), and runs nothing.
PROLOGUE_C_API prologue_status prologue_paged_attention_validate(
    const prologue_paged_attention_params* params,
    prologue_device device);
PROLOGUE_C_API prologue_status prologue_paged_attention(
    const prologue_paged_attention_params* params,
    const prologue_execution* execution);

// ---- gemm --------------------------------------------------------------------------------------------------------------------

// y = x W^T (+ bias): the only matrix product of the library. W has the layout of model files.
//
//   y[m, n] = sum_k x[m, k] * weight[n, k]  (+ bias[n])
//
//   x       [M, K]  dtype,     row stride x_stride >= K
//   weight  [N, K]  dtype,     rows contiguous (stride K); or packed rows, below
//   bias    [N]     dtype,     null = none
//   y       [M, N]  y_dtype,   row stride y_stride >= N; must not overlap x, weight or bias
//
// Every pointer is aligned to its elements. M = 0 and N = 0 are no-ops; With K = 0 the result is y = bias (0 without a bias).
//
// Numerics: float32 accumulation (no TF32), bias added in float32, one rounding at the store of y. y_dtype is dtype or f32. The
// order of the sum depends on M, so the operation is not batch-invariant, unless:
//   batch_invariant  the bits of a row of y depend only on that row of x, on weight and on bias: not on M, nor on the other rows,
//                    nor on the number of threads. The calls that are compared have equal n, k, types, strides and GPU model, and
//                    addresses of equal alignment to 16 bytes. On the CPU it costs nothing below 64 rows, and from there on 4 to
//                    8 % with float32 and at most 2 % with 16 bits. On CUDA cuBLASLt runs every M with one algorithm, which is
//                    chosen for M = 512 and does not split K, so that small M is slower; if it has none, a simple kernel runs.
//                    An M for which that algorithm is not valid is an error (unsupported); none is known
//
// Packed weights: with packed.num_segments > 0, `weight` is null and the rows of W are those of all segments, each in one of the block
// formats of prologue_weight_format. All rows together are N; K is a multiple of the blocks of every format, and at most 2^20.
//
// On CUDA each weight is made in float32 as its format defines it and rounded to dtype, some rows at a time, in a part of the
// context's workspace; the product is that of dense weights. (sections projection and qkv_prologue have kernels for few tokens, which read packed
// weights; up to 16 tokens some of them round no weight.)
//
// On the CPU x is quantised first (but not for f8_e4m3), as llama.cpp does it, but with a float32 scale:
//   a block of x (32 values; 256 where the weights' blocks have 256) has the scale s = largest magnitude / 127 and the codes
//   round(x / s), to nearest even; the scale is 0 if the largest magnitude is below 2^-100
//   y[m, n] = sum over blocks of s * (what the block of weights is times the codes)  (+ bias[n])
// Products with codes are added as integers, exactly; the sums of blocks are added in float32, in the order of k, with one rounding for
// each product and each sum. (A block of i8, i4_64 or i4_128 is several of these blocks, which have its scale.) The zero point of a block of
// i4_32, i4_64 or i4_128 is subtracted from its codes, exactly. Of nvfp4, the products with 16 codes are multiplied by their scale and added up in
// float32, in the order of k; the block's sum then is multiplied by s * the tensor's scale.
//
// On the CPU f8_e4m3 is multiplied by x in float32: y[m, n] = sum over blocks of (even + odd) * 256 * scale  (+ bias[n]), where `even` is
// the sum of (code / 256) * x over the even k of the block, in their order, and `odd` the same of the odd ones; each product and each sum is
// rounded once.
//
// So an element of y has the same bits for every M, number of threads and instruction set, whatever
// batch_invariant is. A row of x with a NaN or an infinity gives a row of NaN (with f8_e4m3: of NaN and infinities; products and sums that
// float32 cannot hold are infinite there); a block of weights whose scale or minimum is not finite
// gives NaN or infinities in its column only. An x_scale * scale that float32 cannot hold is infinite.
//
// Quantised x: with quantize_x = fp8_e4m3 both sides of the product are float8 (W8A8). The weights must be packed, all segments in f8_e4m3.
// For each segment a row of x is quantised in groups: all its k elements if the segment's `scaling` is `rows`, else each 128 channels:
//   largest = the largest magnitude of the group;  x_scale = largest / 448;  code = e4m3(x * (1 / x_scale))
// Each / and * is rounded to float32. e4m3() rounds to the nearest number of float8_e4m3fn, ties to even, at most 448 in magnitude. If 1 / x_scale
// is not finite (largest is 0, or below 1.75 * 2^-120) the scale and the codes are 0. If an element is NaN or infinite, the scale is NaN, the codes
// are 0, so that the row of y is NaN.
//   y[m, n] = sum over blocks of 128 channels of (sum of code_of_x * code_of_weight) * (x_scale * weight_scale)  (+ bias[n])
// On the CPU the sum of a block is that of f8_e4m3 above, with codes in place of x, and each product and sum is rounded once: the same bits for
// every M, number of threads and instruction set. On CUDA codes and scales of x have the same bits as on the CPU, and cuBLASLt multiplies the
// codes on tensor cores, whose sums lose some bits (docs/numerics.md). That takes compute capability 9.0, cuBLASLt 12.9 or later, rows of y that are
// aligned to 16 bytes, segments that begin at columns that keep this, and, but for `rows`, 4 rows of x or more. Elsewhere, and for the last rows of a
// segment that are no multiple of 16, a simple kernel multiplies, slowly. Of the scales that `scaling` says are equal, CUDA reads one. The codes 0x7f
// and 0xff of a weight are NaN on CUDA, and 480 and -480 on the CPU. On CUDA it cannot be combined with batch_invariant (unsupported).
//
// The operation never throws, allocates or synchronises; on CUDA it can be captured into a graph.

typedef struct prologue_gemm_params {
  int64_t m;
  int64_t n;
  int64_t k;
  prologue_dtype dtype;
  prologue_dtype y_dtype;
  const void* x;
  int64_t x_stride;
  const void* weight;
  const void* bias;
  void* y;
  int64_t y_stride;
  bool batch_invariant;           // a row of y has the same bits for every m
  prologue_packed_weight packed;  // instead of `weight`
  prologue_dtype quantize_x;      // fp8_e4m3: x is quantised, too; unset: it is not
  uint64_t reserved[4];           // zeros
} prologue_gemm_params;
PROLOGUE_C_API void prologue_gemm_params_init(prologue_gemm_params* value);

// Holds what a GEMM needs besides its arguments. On CUDA that is the cuBLASLt handle, its workspace, and the cache of chosen algorithms.
// The choice is by heuristic for each (N, K, types, bucket of M), never by timing, so two runs return the same bits. On the CPU: scratch
// memory for transposed weights and quantised rows of x. The caller creates and owns it, one for each thread that runs GEMMs.
typedef struct prologue_gemm_context prologue_gemm_context;
PROLOGUE_C_API prologue_status prologue_gemm_context_create(prologue_device device, prologue_gemm_context** context);
PROLOGUE_C_API prologue_device prologue_gemm_context_device(const prologue_gemm_context* context);
PROLOGUE_C_API void prologue_gemm_context_destroy(prologue_gemm_context* context);

// Makes all checks of prologue_gemm(), and runs nothing: for callers who run several operations only if all of them can run.
PROLOGUE_C_API prologue_status prologue_gemm_validate(
    const prologue_gemm_params* params,
    const prologue_gemm_context* context,
    const prologue_execution* execution);
PROLOGUE_C_API prologue_status prologue_gemm(
    const prologue_gemm_params* params,
    prologue_gemm_context* context,
    const prologue_execution* execution);

// ---- norm --------------------------------------------------------------------------------------------------------------------

// Computes RMSNorm or LayerNorm over rows, with the residual addition that precedes it in a decoder layer.
//
//   residual given:  residual[t, :] += x[t, :]     (float32 sum, rounded once to dtype; the rounded value is normalised)
//                    r = residual[t, :]
//   otherwise:       r = x[t, :]
//   rms:    out[t, i] = r[i] / sqrt(mean_j(r[j]^2) + eps) * weight[i] + bias[i]
//   layer:  out[t, i] = (r[i] - mean_j(r[j])) / sqrt(mean_j((r[j] - mean)^2) + eps) * weight[i] + bias[i]
//
//   x         [num_tokens, width] dtype, contiguous
//   residual  [num_tokens, width] dtype, contiguous, read and written; null = none; must not overlap x or out
//   weight    [width]             weight_type; null = 1
//   bias      [width]             weight_type; null = 0
//   out       [num_tokens, width] dtype, contiguous; may be x itself
//
// Numerics: float32; the sums of the means have a fixed order that does not depend on the batch; one rounding at the store.
// num_tokens = 0 is a no-op. Never allocates or synchronises.

typedef struct prologue_norm_params {
  int64_t num_tokens;
  int64_t width;
  prologue_dtype dtype;
  prologue_norm_kind kind;
  const void* x;
  void* residual;
  const void* weight;
  const void* bias;
  prologue_dtype weight_type;  // of weight and bias: dtype (unset means that) or float32
  float eps;                   // = 1e-5f
  void* out;
  uint64_t reserved[4];  // zeros
} prologue_norm_params;
PROLOGUE_C_API void prologue_norm_params_init(prologue_norm_params* value);

PROLOGUE_C_API prologue_status prologue_norm(const prologue_norm_params* params, const prologue_execution* execution);

// ---- activation --------------------------------------------------------------------------------------------------------------

// Computes the activation of an MLP.
//
//   gated:      out[t, g, i] = act(x[t, g, i]) * x[t, g, width + i]    (each group of a row is gate, then up: one GEMM computes both)
//   otherwise:  out[t, g, i] = act(x[t, g, i])
//
//   x    [num_tokens, groups * columns] dtype, row stride x_stride; columns = 2 * width if gated, width otherwise
//   out  [num_tokens, groups * width]   dtype, contiguous; must not overlap x
//
//   silu(x)         = x / (1 + exp(-x))
//   gelu_tanh(x)    = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//   gelu(x)         = 0.5 x (1 + erf(x / sqrt(2)))
//   relu(x)         = max(x, 0)
//   relu2(x)        = max(x, 0)^2
//   clamped_swiglu  (GPT-OSS) is always gated:
//                     gate' = min(gate, limit), up' = clamp(up, -limit, limit)
//                     out = (up' + 1) * gate' / (1 + exp(-alpha gate'))
//
// A row has several groups where it holds the results of a token's experts side by side (section moe_gemm). A NaN stays one.
// Numerics: float32 inside, one rounding at the store. The sum in gelu cancels far below 0: its error is relative to x there.
// 1 / (1 + exp(-z)) is 0 below z = -87, where float32 has no room for it.
// num_tokens = 0 is a no-op. Never allocates or synchronises.

typedef int32_t prologue_activation_kind;
enum {
  PROLOGUE_ACTIVATION_KIND_SILU = 0,
  PROLOGUE_ACTIVATION_KIND_GELU_TANH = 1,
  PROLOGUE_ACTIVATION_KIND_GELU = 2,
  PROLOGUE_ACTIVATION_KIND_RELU = 3,
  PROLOGUE_ACTIVATION_KIND_RELU2 = 4,
  PROLOGUE_ACTIVATION_KIND_CLAMPED_SWIGLU = 5,
};

typedef struct prologue_activation_params {
  int64_t num_tokens;
  int64_t groups;  // = 1
  int64_t width;
  prologue_dtype dtype;
  prologue_activation_kind kind;
  bool gated;  // = true
  const void* x;
  int64_t x_stride;
  void* out;
  float limit;           // = 7.0f; clamped_swiglu only
  float alpha;           // = 1.702f; clamped_swiglu only
  uint64_t reserved[4];  // zeros
} prologue_activation_params;
PROLOGUE_C_API void prologue_activation_params_init(prologue_activation_params* value);

PROLOGUE_C_API prologue_status prologue_activation(const prologue_activation_params* params, const prologue_execution* execution);

// ---- add ---------------------------------------------------------------------------------------------------------------------

// Adds two arrays of rows: out[t, :] = a[t, :] + b[t, :].
//
//   a    [num_tokens, width] dtype, row stride a_stride
//   b    [num_tokens, width] dtype, row stride b_stride
//   out  [num_tokens, width] dtype, row stride out_stride; may be a or b itself (equal strides), must not overlap them otherwise
//
// Numerics: the sum is rounded once. num_tokens = 0 is a no-op. Never allocates or synchronises.

typedef struct prologue_add_params {
  int64_t num_tokens;
  int64_t width;
  prologue_dtype dtype;
  const void* a;
  int64_t a_stride;
  const void* b;
  int64_t b_stride;
  void* out;
  int64_t out_stride;
  uint64_t reserved[4];  // zeros
} prologue_add_params;
PROLOGUE_C_API void prologue_add_params_init(prologue_add_params* value);

PROLOGUE_C_API prologue_status prologue_add(const prologue_add_params* params, const prologue_execution* execution);

// ---- projection --------------------------------------------------------------------------------------------------------------

// Computes a linear layer with what surrounds it in a decoder, in one launch if there are few tokens, or many and nothing but a gated
// activation:
//
//   x = norm(x)                            (optional)
//   p = x W^T (+ bias)
//   p = act(p), or act(gate) * up          (optional; the rows of W are those of gate, then those of up)
//   y = p, or y = y + p                    (the residual)
//
//   x       [num_tokens, k] dtype, row stride x_stride >= k
//   norm    its weight (and bias) [k]
//   weight  [n, k] dtype, rows contiguous; gated: [2 n, k]; or packed rows (section gemm)
//   bias    [n], gated [2 n], dtype; null = none
//   y       [num_tokens, n] y_dtype, row stride y_stride >= n; must be n with an activation. y_dtype is dtype, or float32 (for logits), but
//           not with an activation or a residual
//   workspace  prologue_projection_workspace_bytes() bytes or more, on the device, aligned to 16; contents undefined
//
// y must not overlap anything else. num_tokens = 0 is a no-op.
//
// Numerics. Separately: those of sections norm, gemm, activation and add, one after another. In one kernel: x = round(x * w), the product is
// accumulated in float32 in an order that depends on the sizes and the number of tokens, multiplied by 1 / sqrt(mean(x^2) + eps), and p is
// rounded to y_dtype where the separate operations store it; the rest is the same. With many tokens the order is that of k. So all differ
// as two orders of one sum do. With batch_invariant they are separate, and section gemm describes it.
//
// Packed weights on CUDA, in 16 bits, segments of a multiple of 16 rows. One and two tokens, n >= 1024, no f8_e4m3: no weight is rounded,
// and x * w is not rounded to dtype but, each 32 channels by their largest magnitude, to whole numbers below 2^22 times a power of two: off
// by at most 2^-22 of the largest. An infinity among them makes the token's results NaN. Otherwise, up to 16 tokens, no
// weight is rounded: x is multiplied by the codes of each block, which 16 bits hold exactly, and the sum by the block's scale in float32;
// where the format has minimums, the sum of x by (minimum - 128 scale) (float16: 1024). More tokens, up to 64 (128 in two launches), on
// compute capability 9.0, k a multiple of 64, segments of different formats that begin at multiples of 64 rows, the norm's weight in dtype:
// each weight is rounded to dtype (bfloat16 with minimums: off by 2^-8 of it and twice 2^-8 of minimum + c scale, c in the middle of the
// codes), and it is what is multiplied by the norm's weight, and rounded again, not x. Where that cannot be, up to 64 tokens are launches of
// 16 that round no weight. Otherwise section gemm describes the product.
//
// The operation never allocates, synchronises or throws; on CUDA it can be captured into a graph.

// The norm of whole rows, as section norm describes it.
typedef struct prologue_input_norm {
  int32_t given;  // 0: there is none
  prologue_norm_kind kind;
  const void* weight;          // null = 1
  const void* bias;            // null = 0
  prologue_dtype weight_type;  // of both: dtype (unset means that) or float32
  float eps;                   // = 1e-5f
  uint64_t reserved[2];        // zeros
} prologue_input_norm;
PROLOGUE_C_API void prologue_input_norm_init(prologue_input_norm* value);

typedef struct prologue_output_activation {
  int32_t given;  // 0: there is none
  prologue_activation_kind kind;
  bool gated;            // = true
  float limit;           // = 7.0f; clamped_swiglu only
  float alpha;           // = 1.702f; clamped_swiglu only
  uint64_t reserved[2];  // zeros
} prologue_output_activation;
PROLOGUE_C_API void prologue_output_activation_init(prologue_output_activation* value);

typedef struct prologue_projection_params {
  int64_t num_tokens;
  int64_t n;
  int64_t k;
  prologue_dtype dtype;
  prologue_dtype y_dtype;  // unset means dtype
  const void* x;
  int64_t x_stride;  // must be k if there is a norm
  prologue_input_norm norm;
  const void* weight;
  prologue_packed_weight packed;  // instead of `weight`
  const void* bias;
  prologue_output_activation activation;
  void* y;
  int64_t y_stride;
  int32_t adds;          // y is the residual that p is added to
  bool batch_invariant;  // separate operations, whose bits for a token do not depend on the others
  // The launch may begin while the kernels before it in the stream run; they must not write `weight` or norm.weight.
  bool overlaps;
  void* workspace;
  int64_t workspace_bytes;
  uint64_t reserved[8];  // zeros
} prologue_projection_params;
PROLOGUE_C_API void prologue_projection_params_init(prologue_projection_params* value);

// For calls with these sizes or fewer tokens. Sizes that prologue_projection_validate() refuses need none.
PROLOGUE_C_API prologue_status prologue_projection_workspace_bytes(const prologue_projection_params* params, int64_t* bytes);

PROLOGUE_C_API prologue_status prologue_projection_validate(
    const prologue_projection_params* params,
    const prologue_gemm_context* context,
    const prologue_execution* execution);
PROLOGUE_C_API prologue_status prologue_projection(
    const prologue_projection_params* params,
    prologue_gemm_context* context,
    const prologue_execution* execution);

// ---- qkv_prologue ------------------------------------------------------------------------------------------------------------

// Computes the norm before attention, the QKV projection and the attention prologue, in one launch if there are few tokens, and in one
// launch after the norm if there are many:
//
//   x = norm(hidden_states)                (optional)
//   qkv = x W^T                            the heads of q, then of k, then of v
//   prologue_attention_prologue(qkv)       bias, norms of heads, rotation, ... , K and V into the paged cache
//
//   hidden_states  [num_tokens, hidden_size] dtype, row stride hidden_stride >= hidden_size
//   norm           its weight (and bias) [hidden_size]; optional: norm.given = 0 means none
//   weight         [(num_q_heads + num_kv_heads) * head_dim + num_kv_heads * v_head_dim, hidden_size] dtype, rows contiguous;
//                  or packed rows (section gemm)
//   prologue       all of it but q, k, v, q_rope and k_rope, which must be null; q_out or q8_out as there
//   workspace      prologue_qkv_prologue_workspace_bytes() bytes or more, on the device, aligned to 16; contents undefined
//
// No output may overlap an input. num_tokens = 0 is a no-op. Errors, guards and padding are those of section attention_prologue; the rows of
// hidden_states of padding tokens are read, and must not make another token's result depend on them: they do not.
//
// Numerics. Separately: those of sections norm, gemm and attention_prologue, one after another. In one kernel of few tokens: x = round(h * w),
// the product is accumulated in float32 in an order that depends on the sizes and the number of tokens, multiplied by
// 1 / sqrt(mean(h^2) + eps) and rounded once to dtype, as the separate projection rounds; what follows is the prologue, bit for bit. In one
// kernel of many tokens the norm is the separate one, the product is accumulated in the order of k, and the rest is the same. So all differ
// as two orders of one sum do. With batch_invariant they are separate: section gemm. Packed weights: section projection (up to 16 tokens no weight
// is rounded; of one and two tokens x is, to whole numbers).
//
// The operation never allocates, synchronises or throws; on CUDA it can be captured into a graph.

typedef struct prologue_qkv_prologue_params {
  int64_t hidden_size;
  const void* hidden_states;
  int64_t hidden_stride;  // must be hidden_size if there is a norm
  prologue_input_norm norm;
  const void* weight;
  prologue_packed_weight packed;  // instead of `weight`
  prologue_attention_prologue_params prologue;
  bool batch_invariant;  // separate operations, whose bits for a token do not depend on the others
  // The launch may begin while the kernels before it in the stream run; they must not write `weight` or norm.weight. One kernel of few
  // tokens lets the launch after it begin as soon as it has begun itself, if that has a programmatic edge (prologue_paged_attention with
  // past_is_ready).
  bool overlaps;
  void* workspace;
  int64_t workspace_bytes;
  uint64_t reserved[8];  // zeros
} prologue_qkv_prologue_params;
PROLOGUE_C_API void prologue_qkv_prologue_params_init(prologue_qkv_prologue_params* value);

// Returns the bytes of a workspace for calls with these sizes or fewer tokens. Sizes that prologue_qkv_prologue_validate() refuses need none.
PROLOGUE_C_API prologue_status prologue_qkv_prologue_workspace_bytes(const prologue_qkv_prologue_params* params, int64_t* bytes);

PROLOGUE_C_API prologue_status prologue_qkv_prologue_validate(
    const prologue_qkv_prologue_params* params,
    const prologue_gemm_context* context,
    const prologue_execution* execution);
PROLOGUE_C_API prologue_status prologue_qkv_prologue(
    const prologue_qkv_prologue_params* params,
    prologue_gemm_context* context,
    const prologue_execution* execution);

// ---- communicator ------------------------------------------------------------------------------------------------------------

#define PROLOGUE_MAX_RANKS INT64_C(8)

// One rank's end of its group. It belongs to the thread that runs the rank's operations;
// prologue_communicator_abort() and prologue_communicator_status() may be called from any.
//
// On CUDA the rank's GPU is the current device of that thread, and its collectives are on one stream, or on several that wait for each other: the
// ranks' kernels count them in the order in which they run.
typedef struct prologue_communicator prologue_communicator;
PROLOGUE_C_API prologue_device prologue_communicator_device(const prologue_communicator* communicator);
PROLOGUE_C_API int64_t prologue_communicator_rank(const prologue_communicator* communicator);
PROLOGUE_C_API int64_t prologue_communicator_num_ranks(const prologue_communicator* communicator);
// Returns how values go from rank to rank, for programs to print: "peer memory", "NCCL 2.28.3", "memory".
PROLOGUE_C_API const char* prologue_communicator_transport(const prologue_communicator* communicator);
// Whether values go by kernels that access the other ranks' memory, or by the CPU: then the bits of a row's sum depend on nothing else.
PROLOGUE_C_API bool prologue_communicator_uses_peer_memory(const prologue_communicator* communicator);
PROLOGUE_C_API void prologue_communicator_destroy(prologue_communicator* communicator);

// ---- attention_layer ---------------------------------------------------------------------------------------------------------

// This is the attention layer over raw pointers. An engine with its own buffers calls it once per layer and step.
//
//   hidden_states [T, hidden_size]
//     -> q, and K and V in the pages of the cache             section qkv_prologue: hidden_states qkv_weight^T and
//                                                             section attention_prologue (bias, norm, rotation, store)
//     -> attention of the new tokens over the pages           section paged_attention
//     -> out = attention output_weight^T (+ output_bias)      section projection
//   out [T, hidden_size]
//
// It runs three operations on one stream. On Hopper in 16 bits the first is one kernel where that is faster (prompts, one token, and up to 64
// tokens with `overlaps`), otherwise a GEMM and the prologue; and the last one is a kernel that may begin beside attention (one token, and up
// to 64 of large matrices with `overlaps`), otherwise a GEMM. The layer does not allocate or synchronise, and it has no state. With
// attention.past_is_ready decoding begins beside the prologue: the caller promises that no sequence reads what another one writes in this
// step. The headers of the operations document the parameters that are passed through; docs/embedding.md explains a whole engine.
// (layers/attention.h builds the same layer in a model's graph.)
//
//   hidden_states  [T, hidden_size] dtype, rows hidden_stride >= hidden_size apart; T = prologue.num_tokens
//   qkv_weight     [num_q_heads * head_dim + num_kv_heads * (head_dim + v_head_dim), hidden_size] dtype, rows contiguous: the rows
//                  of q, then k, then v. If num_kv_heads = 0 (the layer reads another layer's cache): only the rows of q
//   output_weight  [hidden_size, num_q_heads * v_head_dim] dtype, rows contiguous
//   output_bias    [hidden_size] dtype, null = none. (The bias of qkv is prologue.bias.)
//   out            [T, hidden_size] dtype, rows out_stride >= hidden_size apart; may be hidden_states (same pointer and stride)
//   workspace      prologue_attention_layer_workspace_bytes bytes on the device, aligned to 64; scratch, contents undefined
//
// `prologue` and `attention` are the parameters of those two operations. The layer sets some of their members itself:
//   prologue   The layer sets q, k, v and q_out. q8_out, q_rope and k_rope are not supported. places describes the batch for both
//              operations: num_seqs, cu_seqlens_q, page_table and the lengths of the sequences are always needed, even where positions and
//              slot_mapping are given.
//   attention  The caller sets scale, max_seqlen_q, max_seq_len and every option of that operation. The layer sets num_tokens,
//              num_seqs, num_q_heads, head_dim, dtype, q, kv, page_table, cu_seqlens_q, out, workspace and faults; and seq_lens, if
//              it is null.
// One array of lengths is enough: prologue.places.seq_lens or attention.seq_lens, whichever is given, serves both operations, and so
// does prologue.places.page_table.kv_last_page_len. If prologue.places.cache_lens is given, the prologue takes that one, and
// attention.seq_lens must be given as well.
//
// An array that one of the operations writes (workspace, out, cache, scales of a cache, k_out, v_out, faults, token_faults)
// must not overlap any other array that one of them reads or writes. The only exception: out may be hidden_states.
//
// Everything is checked before the first launch: after an error nothing has run and nothing was written. Rows of `out` that belong
// to no sequence are undefined. Both operations may count the same skipped token (faults). T = 0 is a no-op. Numerics: those of the
// operations; qkv, q and the result of attention are rounded to dtype between them. Safe under graph capture.

typedef struct prologue_attention_layer_params {
  int64_t hidden_size;
  const void* hidden_states;
  int64_t hidden_stride;
  const void* qkv_weight;
  const void* output_weight;
  const void* output_bias;
  void* out;
  int64_t out_stride;

  prologue_attention_prologue_params prologue;
  prologue_paged_attention_params attention;

  void* workspace;
  int64_t workspace_bytes;
  // A step of few tokens may begin while the kernel before it in the stream runs, on GPUs from Hopper on. That kernel must not write
  // qkv_weight or output_weight, nor, with attention.past_is_ready, what attention reads besides this step's rows: lengths, page table, earlier
  // positions.
  bool overlaps;
  uint64_t reserved[7];  // zeros
} prologue_attention_layer_params;
PROLOGUE_C_API void prologue_attention_layer_params_init(prologue_attention_layer_params* value);

// Returns the workspace size that is enough for every call whose num_tokens, num_seqs, max_seqlen_q and max_seq_len are not larger than
// these. Reads no pointer.
PROLOGUE_C_API prologue_status prologue_attention_layer_workspace_bytes(
    const prologue_attention_layer_params* params,
    prologue_device device,
    int64_t* bytes);

// Create one `gemm_context` (section gemm) per device, and one for each thread and stream that runs layers; reuse it in every call.
PROLOGUE_C_API prologue_status prologue_attention_layer(
    const prologue_attention_layer_params* params,
    prologue_gemm_context* gemm_context,
    const prologue_execution* execution);

// Does the same on one of several ranks (kernels/collective/communicator.h): the heads are those of this rank, qkv_weight has their rows and
// output_weight their columns, and the cache their K and V. What each rank multiplies is added up: out is the sum over all ranks, on every
// rank (prologue_all_reduce). out_stride is hidden_size, and output_bias is given to one rank only. num_tokens = 0 is a no-op on all ranks. After
// an error that only this rank has, call abort(): the others wait for its part.
PROLOGUE_C_API prologue_status prologue_attention_layer_of_rank(
    const prologue_attention_layer_params* params,
    prologue_gemm_context* gemm_context,
    prologue_communicator* communicator,
    const prologue_execution* execution);

// ---- moe_route ---------------------------------------------------------------------------------------------------------------

// Chooses the experts of each token (mixture of experts): from the router's logits, the top_k of num_experts and their weights.
//
//   softmax_then_top_k  the weights are softmax(logits) over all experts; the top_k largest are chosen. normalize: their weights
//                       are divided by their sum (Mixtral; Qwen3-MoE's norm_topk_prob)
//   top_k_then_softmax  the weights are the softmax over the logits of the chosen ones (GPT-OSS)
//   sigmoid             the weights are 1 / (1 + exp(-logit)) of the chosen ones (Llama 4)
//
//   logits          [num_tokens, num_experts] dtype, row stride logits_stride
//   expert_ids      [num_tokens, top_k] int32, contiguous: the chosen ones, the largest logit first
//   expert_weights  [num_tokens, top_k] float32, contiguous
//
// Of equal logits the one of the lower index is larger. A row that holds a NaN or +infinity, or nothing but -infinity, has the experts
// 0..top_k-1 and NaN for every weight: what a token computes from such logits is NaN, as in a model without experts.
//
// Numerics: float32; the order of every sum depends on num_experts and top_k only. CUDA and CPUs with a fused multiply-add return the same
// bits. num_tokens = 0 is a no-op. Never allocates or synchronises.

typedef int32_t prologue_expert_weighting;
enum {
  PROLOGUE_EXPERT_WEIGHTING_SOFTMAX_THEN_TOP_K = 0,
  PROLOGUE_EXPERT_WEIGHTING_TOP_K_THEN_SOFTMAX = 1,
  PROLOGUE_EXPERT_WEIGHTING_SIGMOID = 2,
};

#define PROLOGUE_MAX_EXPERTS INT64_C(1024)

#define PROLOGUE_MAX_EXPERTS_PER_TOKEN INT64_C(32)

typedef struct prologue_moe_route_params {
  int64_t num_tokens;
  int64_t num_experts;  // 1..PROLOGUE_MAX_EXPERTS
  int64_t top_k;        // 1..min(num_experts, PROLOGUE_MAX_EXPERTS_PER_TOKEN)
  prologue_dtype dtype;
  prologue_expert_weighting weighting;
  bool normalize;  // softmax_then_top_k only
  const void* logits;
  int64_t logits_stride;
  int32_t* expert_ids;
  float* expert_weights;
  uint64_t reserved[4];  // zeros
} prologue_moe_route_params;
PROLOGUE_C_API void prologue_moe_route_params_init(prologue_moe_route_params* value);

PROLOGUE_C_API prologue_status prologue_moe_route(const prologue_moe_route_params* params, const prologue_execution* execution);

// ---- moe_gemm ----------------------------------------------------------------------------------------------------------------

// Computes the matrix products of a mixture of experts: each row is multiplied by the weights of its own expert.
//
//   With r = t * top_k + j, e = expert_ids[r] and x_r = x[t] or, with x_per_choice, x[r]:
//   y[r, n] = row_scale[r] * sum_k x_r[k] * weight[e, n, k]  (+ bias[e, n])
//
//   x           [num_tokens, K] dtype, contiguous; with x_per_choice [num_tokens * top_k, K]
//   weight      [num_experts, N, K] dtype, contiguous; or packed rows, below
//   bias        [num_experts, N] dtype, contiguous; null = none
//   expert_ids  [num_tokens, top_k] int32, contiguous, on the device: what prologue_moe_route wrote
//   row_scale   [num_tokens * top_k] float32; null = 1. (Llama 4 multiplies what goes into an expert by its weight.)
//   y           [num_tokens * top_k, N] dtype, contiguous; must not overlap anything else
//   workspace   prologue_moe_gemm_workspace_bytes() bytes or more, on the device, aligned to 16; contents undefined
//
// The rows of an id outside 0..num_experts-1 become zeros. num_tokens = 0 is a no-op.
//
// Packed weights: with packed.num_segments > 0, `weight` is null and the N rows of each expert are those of all segments, each in one of the
// block formats of prologue_weight_format. A segment says how many rows of one expert it has, a multiple of 16; its data are those rows of all
// experts, one expert after another: num_experts * prologue_packed_weight_bytes(format, rows, K) bytes. K is a multiple of the blocks of every
// format, and at most 2^20. On CUDA x is aligned to 16 bytes.
//
// Numerics: float32 accumulation, scale and bias in float32, one rounding at the store. Packed weights: on the CPU the sum over k is that of
// section gemm, which quantises x. On CUDA no weight is rounded: of each 32 values of k (or 16, where those have a scale of their own) the products
// of x and the codes are added, multiplied by the scale and added up, and so are those of x and the minimum. (float32 x: each weight is made
// in float32.) The bits of a row of y depend only on that row of x, its scale and its expert: not on num_tokens, nor on what else is in the
// batch, nor on the number of threads.
//
// Nothing is read on the host: which rows an expert has is found out on the device, so the call can be captured in a graph. It never
// allocates or synchronises.

typedef struct prologue_moe_gemm_params {
  int64_t num_tokens;
  int64_t top_k;
  int64_t num_experts;
  int64_t n;
  int64_t k;
  prologue_dtype dtype;
  bool x_per_choice;
  const void* x;
  const void* weight;
  prologue_packed_weight packed;  // instead of `weight`
  const void* bias;
  const int32_t* expert_ids;
  const float* row_scale;
  void* y;
  void* workspace;
  int64_t workspace_bytes;
  uint64_t reserved[4];  // zeros
} prologue_moe_gemm_params;
PROLOGUE_C_API void prologue_moe_gemm_params_init(prologue_moe_gemm_params* value);

// Returns the bytes for calls with these sizes or fewer tokens. Sizes that prologue_moe_gemm_validate() refuses need none.
PROLOGUE_C_API prologue_status prologue_moe_gemm_workspace_bytes(
    const prologue_moe_gemm_params* params,
    prologue_device device,
    int64_t* bytes);

PROLOGUE_C_API prologue_status prologue_moe_gemm_validate(
    const prologue_moe_gemm_params* params,
    const prologue_gemm_context* context,
    const prologue_execution* execution);
PROLOGUE_C_API prologue_status prologue_moe_gemm(
    const prologue_moe_gemm_params* params,
    prologue_gemm_context* context,
    const prologue_execution* execution);

// ---- moe_combine -------------------------------------------------------------------------------------------------------------

// Computes the weighted sum of the results of a token's experts:
//
//   out[t, :] = sum_j expert_weights[t, j] * y[t, j, :]  (+ shared[t, :])
//
//   y               [num_tokens, top_k, width] dtype, contiguous
//   expert_weights  [num_tokens, top_k]        float32, contiguous; null = 1
//   shared          [num_tokens, width]        dtype, contiguous: what an expert that all tokens have computes; null = none
//   out             [num_tokens, width]        dtype, contiguous; may be shared itself, must not overlap the others
//
// Numerics: float32, in the order of j, then shared; each product and sum is rounded (a fused multiply-add rounds once), and the result
// once more at the store. The CPU and CUDA return the same bits. num_tokens = 0 is a no-op. Never allocates or synchronises.

typedef struct prologue_moe_combine_params {
  int64_t num_tokens;
  int64_t top_k;
  int64_t width;
  prologue_dtype dtype;
  const void* y;
  const float* expert_weights;
  const void* shared;
  void* out;
  uint64_t reserved[4];  // zeros
} prologue_moe_combine_params;
PROLOGUE_C_API void prologue_moe_combine_params_init(prologue_moe_combine_params* value);

PROLOGUE_C_API prologue_status prologue_moe_combine(
    const prologue_moe_combine_params* params,
    const prologue_execution* execution);

// ---- embedding ---------------------------------------------------------------------------------------------------------------

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
// With another table_format than dense the table is packed (section weight_format), and width a multiple of its blocks. A value is
// computed in float32 as the format's reference does (scale * code, plus minimum: each rounded once), then multiplied by `scale` in
// float32, then rounded to dtype.
//
// For an index outside [0, num_rows) the
// row becomes zeros and token_id_out_of_range is recorded. num_tokens = 0 is a no-op. Never allocates or synchronises; safe under graph
// capture.

typedef struct prologue_embedding_params {
  int64_t num_tokens;
  int64_t num_rows;
  int64_t width;
  prologue_dtype dtype;
  const void* table;
  prologue_index_view indices;
  float scale;  // = 1.0f
  void* out;
  prologue_fault_record* faults;  // null = faults are not recorded
  uint8_t* token_faults;          // [num_tokens]: a prologue_fault_code is written for each faulty token; null = not wanted
  prologue_weight_format table_format;
  bool overlaps;         // the launch may begin while the kernels before it in the stream run
  uint64_t reserved[4];  // zeros
} prologue_embedding_params;
PROLOGUE_C_API void prologue_embedding_params_init(prologue_embedding_params* value);

PROLOGUE_C_API prologue_status prologue_embedding(const prologue_embedding_params* params, const prologue_execution* execution);

// ---- gate --------------------------------------------------------------------------------------------------------------------

// Multiplies rows by the sigmoid of a gate: out[t, i] = x[t, i] / (1 + exp(-gate[t, i])).
//
//   x     [num_tokens, width] dtype, row stride x_stride
//   gate  [num_tokens, width] dtype, row stride gate_stride
//   out   [num_tokens, width] dtype, row stride out_stride; may be x or gate itself (equal strides), must not overlap them otherwise
//
// Numerics: float32 inside, the product is rounded once. The sigmoid is below 3 ulp off, and 0 below -87. A NaN stays one.
// num_tokens = 0 is a no-op. Never allocates or synchronises.

typedef struct prologue_gate_params {
  int64_t num_tokens;
  int64_t width;
  prologue_dtype dtype;
  const void* x;
  int64_t x_stride;
  const void* gate;
  int64_t gate_stride;
  void* out;
  int64_t out_stride;
  uint64_t reserved[4];  // zeros
} prologue_gate_params;
PROLOGUE_C_API void prologue_gate_params_init(prologue_gate_params* value);

PROLOGUE_C_API prologue_status prologue_gate(const prologue_gate_params* params, const prologue_execution* execution);

// ---- gather_cos_sin ----------------------------------------------------------------------------------------------------------

// Gathers the cos/sin rows of a step's tokens, once for all layers with the same rotation. PROLOGUE_ROPE_SOURCE_PER_TOKEN reads them.
//
//   out[t, i] = cos_sin[position, i], out[t, r/2 + i] = cos_sin[position, r/2 + i], position = positions[pair_axis[i], t]
//
//   cos_sin    [max_position, rotary_dim] of `type`: float32, float16 or bfloat16; cos then sin
//   positions  [num_axes, num_tokens], row stride position_axis_stride (0: one row for all axes)
//   pair_axis  [rotary_dim / 2], values not below num_axes count as 0; null: all pairs use axis 0
//   out        [num_tokens, rotary_dim] float32, must not overlap the inputs
//
// For a pair whose position is outside [0, max_position), cos and sin become 0. Nothing is recorded here: the operations that
// rotate and write record the token. So past_table = record and zero do the same here. With past_table = identity, all pairs of a
// token whose position is >= max_position on any of num_axes axes get cos 1 and sin 0.
// float32 is copied bitwise, 16-bit values are widened exactly. num_tokens = 0 is a no-op. Never allocates or synchronises.

typedef struct prologue_gather_cos_sin_params {
  int64_t num_tokens;
  int64_t rotary_dim;  // even
  int64_t max_position;
  const void* cos_sin;
  prologue_index_view positions;
  int64_t num_axes;              // = 1; 1 to 4
  int64_t position_axis_stride;  // = PROLOGUE_UNSET_STRIDE; must be set if num_axes > 1
  const uint8_t* pair_axis;
  float* out;
  prologue_past_table past_table;
  prologue_dtype type;   // = PROLOGUE_DTYPE_F32; of cos_sin
  uint64_t reserved[4];  // zeros
} prologue_gather_cos_sin_params;
PROLOGUE_C_API void prologue_gather_cos_sin_params_init(prologue_gather_cos_sin_params* value);

PROLOGUE_C_API prologue_status prologue_gather_cos_sin(
    const prologue_gather_cos_sin_params* params,
    const prologue_execution* execution);

// ---- scale_logits ------------------------------------------------------------------------------------------------------------

// Does the last step on the logits of some models: a factor (Cohere's logit_scale), a soft cap (Gemma 2), or both.
//
//   soft_cap > 0:  out[r, i] = soft_cap * tanh(x[r, i] * (scale / soft_cap))
//   soft_cap = 0:  out[r, i] = x[r, i] * scale
//
//   x    [num_rows, width] float32, contiguous
//   out  [num_rows, width] float32, contiguous; may be x itself, must not overlap it otherwise
//
// Numerics: float32; CUDA and CPUs with a fused multiply-add return the same bits. num_rows = 0 is a no-op. Never allocates or
// synchronises.

typedef struct prologue_scale_logits_params {
  int64_t num_rows;
  int64_t width;
  const float* x;
  float* out;
  float scale;  // = 1.0f
  float soft_cap;
  uint64_t reserved[4];  // zeros
} prologue_scale_logits_params;
PROLOGUE_C_API void prologue_scale_logits_params_init(prologue_scale_logits_params* value);

PROLOGUE_C_API prologue_status prologue_scale_logits(
    const prologue_scale_logits_params* params,
    const prologue_execution* execution);

// ---- sampling ----------------------------------------------------------------------------------------------------------------

// Chooses the next token of each row from its logits.
//
//   logits      [num_rows, vocab_size] float32, row stride logits_stride
//   rows        [num_rows]             one prologue_sampling_row per row, on the device
//   tokens      [num_rows]             int32, written
//   token_ids   [num_tokens]           int32; null = no row is of a chain
//   logit_rows  [num_rows]             int32: the token of each row, 0 to num_tokens - 1; null as token_ids
//   row_faults  [num_rows]             uint8, written: PROLOGUE_FAULT_CODE_LOGITS_NOT_A_NUMBER if a logit of the row is NaN, else 0;
//                                      null = not wanted
//
// First the logits of a row are adjusted, if it has a bias or counts. Token i, which the sequence has generated n times:
//   x = logits[i]
//   x = x + bias[i]                           if bias is given
//   x = x > 0 ? x / r : x * r                 r = repetition_penalty, if counts[i] > 0: the token is in the prompt or generated
//   x = x - frequency_penalty * n             if n > 0
//   x = x - presence_penalty                  if n > 0
// Each operation is rounded to float32 and nothing is fused, so every backend has the same bits. What follows, temperature and greedy
// choice included, sees the adjusted logits. A bias of -infinity forbids a token: it is chosen only if no other token is left.
// counts[i] is 2 * n + (1 if token i is in the prompt). prologue_sample() adds 2 to the entry of the chosen token, of greedy rows, too, unless
// the row is one of a chain.
//
// Several rows may be a *chain*: the tokens of one sequence of which all but the first are drafts, guesses that are verified. Row i of a chain
// has chain = i + 1, and follows row i - 1. token_ids[logit_rows[r]] is the token of row r, so for i > 0 a draft. The row counts the drafts of
// rows 1 to i as generated, in addition to counts. Which of them are right is known when all rows are chosen, so counts of rows of a chain
// are left as they are: prologue_end_step() adds to them.
//
// A row with temperature 0 is greedy: the largest logit is chosen; of equal logits, the lower id. NaN logits are never chosen; if
// all logits of a row are NaN, id 0 is. Otherwise p = softmax(logits / temperature), and tokens are ordered by (logit descending,
// id ascending). Then these filters apply in this order, each to the tokens that the previous one kept, with p renormalised:
//   top_k  > 0: the first top_k tokens
//   top_p  < 1: the shortest prefix whose probability reaches top_p (at least one token)
//   min_p  > 0: tokens with p >= min_p * max(p)
// One of the kept tokens is drawn with probability proportional to p by the Gumbel-max rule:
//   argmax_i  logit_i / temperature - log(-log(u_i)),   u_i = (r_i + 1/2) 2^-32,
//   r_i = word 0 of Philox4x32-10(key = seed, counter = (position, i)), both as low word, high word
// The random number of a token depends only on (seed, position, token id). So the same seed makes the same choice whatever else
// is in the batch and in any order of evaluation. Backends agree as far as their logits do.
//
// The probability mass for top_p is summed in 64-bit fixed point (units of 2^-40), so the sum does not depend on its order.
// prologue_sampling_row values are on the device and cannot be checked before the launch. Outside their range they mean: temperature < 0 or
// NaN: greedy; top_p <= 0 or NaN: keep one token; min_p > 1: 1; min_p NaN: off; repetition_penalty not a finite number above 0: 1;
// another penalty that is not finite: 0; an entry of counts below 0: 0; one that 2 more would overflow stays. A chain outside of
// 0..PROLOGUE_MAX_CHAIN, or that would begin before row 0, is 0; a draft of a token outside of 0..num_tokens - 1 is none.
// The arrays behind counts and bias are the caller's responsibility: counts of two rows must not overlap each other or another array
// of the call. Rows may share a bias.
// num_rows = 0 is a no-op. Never allocates or synchronises; no host round trip; safe under graph capture.

#define PROLOGUE_MAX_CHAIN INT64_C(16)

typedef struct prologue_sampling_row {
  float temperature;  // >= 0; 0 = greedy
  int32_t top_k;      // <= 0 = off
  float top_p;        // = 1.0f; (0, 1]; 1 = off
  float min_p;        // [0, 1]; 0 = off
  uint64_t seed;
  int64_t position;  // of the chosen token in its sequence; the counter of the random numbers
  // The penalties need counts.
  float repetition_penalty;  // = 1.0f; > 0; 1 = off
  float presence_penalty;    // 0 = off
  float frequency_penalty;   // 0 = off
  int32_t chain;             // 0 = none; i + 1: row i of a chain of rows; 1 to PROLOGUE_MAX_CHAIN
  int32_t* counts;           // [vocab_size] on the device, updated; null = no penalties
  const float* bias;         // [vocab_size] on the device; null = none
} prologue_sampling_row;
PROLOGUE_C_API void prologue_sampling_row_init(prologue_sampling_row* value);

typedef struct prologue_sampling_params {
  int64_t num_rows;
  int64_t vocab_size;
  const float* logits;
  int64_t logits_stride;
  const prologue_sampling_row* rows;
  int32_t* tokens;
  uint8_t* row_faults;
  bool overlaps;  // the launch may begin while the kernels before it in the stream run; they must not write `rows`
  int64_t num_tokens;
  const int32_t* token_ids;
  const int32_t* logit_rows;
  uint64_t reserved[4];  // zeros
} prologue_sampling_params;
PROLOGUE_C_API void prologue_sampling_params_init(prologue_sampling_params* value);

PROLOGUE_C_API prologue_status prologue_sample(const prologue_sampling_params* params, const prologue_execution* execution);

// ---- logprobs ----------------------------------------------------------------------------------------------------------------

// Computes the log-probabilities of a step: of one given token of each row, and of the most likely ones.
//
//   logprob(i) = logits[i] - log(sum_j exp(logits[j]))      of the logits as given: no temperature, penalty or bias
//
//   logits    [num_rows, vocab_size] float32, row stride logits_stride
//   tokens    [num_rows]             int32, on the device: the token of entry 0, for example what prologue_sample() chose
//   ids       [num_rows, top + 1]    int32, contiguous, written
//   logprobs  [num_rows, top + 1]    float32, contiguous, written
//
// Entry 0 of a row is its token. If that is outside [0, vocab_size), its id is -1 and its logprob -infinity; nothing is recorded.
// Entries 1 to top are the most likely tokens in the order in which prologue_sample() ranks them: logit descending, id ascending. Entries past
// the vocabulary are -1 and -infinity.
//
// NaN logits count as -infinity. If one or more logits are +infinity, these share the probability equally, and all others have none.
// If all logits are -infinity, all logprobs are.
//
// With m the largest logit, a term of the sum is exp(logit - m), computed in float32 and rounded down to a multiple of 2^-40. The sum is
// an integer of 64 bits in this unit, so it does not depend on its order. Its logarithm and the difference are float64, rounded once to
// float32. |error| <= 2^-24 |logprob| + 2^-40 vocab_size + 2^-22 (1 + log(vocab_size)). CPU and CUDA give the same bits on processors
// with a fused multiply-add.
// num_rows = 0 is a no-op. Outputs must not overlap any other array. Never allocates or synchronises; safe under graph capture.

#define PROLOGUE_MAX_TOP_LOGPROBS INT64_C(20)

typedef struct prologue_logprobs_params {
  int64_t num_rows;
  int64_t vocab_size;
  const float* logits;
  int64_t logits_stride;
  const int32_t* tokens;
  int64_t top;  // 0 to PROLOGUE_MAX_TOP_LOGPROBS
  float* logprobs;
  int32_t* ids;
  uint64_t reserved[4];  // zeros
} prologue_logprobs_params;
PROLOGUE_C_API void prologue_logprobs_params_init(prologue_logprobs_params* value);

PROLOGUE_C_API prologue_status prologue_logprobs(const prologue_logprobs_params* params, const prologue_execution* execution);

// ---- end_step ----------------------------------------------------------------------------------------------------------------

// Ends a step on the device: gathers the faults of its sequences and, if wanted, makes its inputs those of the next decode step. So a
// captured decode step can be replayed again and again without the host.
//
// 1. Faults, in every call:
//
//   seq_faults[s] = the prologue_fault_code of the first faulty token of sequence s, that is, the first entry of token_faults that is not 0 in
//                   rows [cu_seqlens_q[s], cu_seqlens_q[s + 1]); 0 if there is none
//   token_faults[0 .. num_tokens) = 0, after all sequences were read
//
//   cu_seqlens_q  [num_seqs + 1]  int32, on the device; entries are clamped to 0..num_tokens
//   token_faults  [num_tokens]    uint8, read and cleared
//   seq_faults    [num_seqs]      uint8, written
//
// 2. If advance is not 0, the step was a decode step: token s is the only token of sequence s. For each s with
//    0 < seq_lens[s] < 2^31 - 1 (any other is padding: nothing of it changes):
//
//   token_ids[s]                = tokens[s]
//   positions[a, s]            += 1                        for each axis a
//   seq_lens[s]                += 1
//   groups[g].slot_mapping[s]   = page * page_size + p % page_size      for each group g of layers, with p = seq_lens[s] - 1 (new),
//                                 page = groups[g].block_table[s, p / page_size]; INT64_MAX if p / page_size >= max_pages or page is
//                                 outside [0, num_pages): the prologue then records slot_out_of_range
//   rows[s].position           += 1                        if rows is given
//
//   tokens        [num_seqs]                     int32: the output of prologue_sample()
//   token_ids     [num_seqs]                     int32, updated
//   positions     [num_position_axes, num_seqs]  int32, updated; row stride position_axis_stride
//   seq_lens      [num_seqs]                     int32, updated
//   rows          [num_seqs]                     prologue_sampling_row, updated; null = none
//   slot_mapping  [num_seqs]                     int64, updated, of each group
//   block_table   [num_seqs, max_pages]          int32, row stride block_table_stride, of each group; groups may share one
//
// 3. If num_rows is not 0, the step had rows of logits with chains of drafts (section sampling). Row r, which is row i of a chain, is *accepted* if
//    i is 0, or if row r - 1 is accepted and has sampled the token of row r: tokens[r - 1] == token_ids[logit_rows[r]]. For each accepted row
//    with counts:
//
//   rows[r].counts[tokens[r]]  += 2      unless that overflows
//
//   rows        [num_rows]    prologue_sampling_row, read
//   tokens      [num_rows]    int32: the output of prologue_sample()
//   token_ids   [num_tokens]  int32, read
//   logit_rows  [num_rows]    int32; the draft of a row outside of 0..num_tokens - 1 is not accepted
//   Not together with advance, whose lists have the same names.
//
// Positions wrap on overflow. Without advance the second list of members is not looked at. All arrays are on the device of the
// operation. Those that are written must not overlap any other. num_tokens and num_seqs may each be 0. Never allocates or synchronises;
// safe under graph capture.

#define PROLOGUE_MAX_STEP_GROUPS INT64_C(8)

// Says where the slots are of the layers that have one cache layout.
typedef struct prologue_end_step_group {
  int64_t* slot_mapping;
  const int32_t* block_table;
  int64_t block_table_stride;
  int64_t max_pages;
  int64_t page_size;
  int64_t num_pages;
  uint64_t reserved[1];  // zeros
} prologue_end_step_group;
PROLOGUE_C_API void prologue_end_step_group_init(prologue_end_step_group* value);

typedef struct prologue_end_step_params {
  int64_t num_tokens;
  int64_t num_seqs;
  const int32_t* cu_seqlens_q;
  uint8_t* token_faults;
  uint8_t* seq_faults;
  bool overlaps;  // the launch may begin while the kernels before it in the stream run

  int32_t advance;
  const int32_t* tokens;
  int32_t* token_ids;
  int32_t* positions;
  int64_t num_position_axes;     // = 1; 1 to 4
  int64_t position_axis_stride;  // = PROLOGUE_UNSET_STRIDE; must be set if num_position_axes > 1
  int32_t* seq_lens;
  prologue_sampling_row* rows;
  int64_t num_groups;  // 1 to PROLOGUE_MAX_STEP_GROUPS
  prologue_end_step_group groups[PROLOGUE_MAX_STEP_GROUPS];
  int64_t num_rows;
  int64_t vocab_size;  // with num_rows: entries of counts; a token that is not below is not counted
  const int32_t* logit_rows;
  uint64_t reserved[4];  // zeros
} prologue_end_step_params;
PROLOGUE_C_API void prologue_end_step_params_init(prologue_end_step_params* value);

PROLOGUE_C_API prologue_status prologue_end_step(const prologue_end_step_params* params, const prologue_execution* execution);

// ---- take_tokens -------------------------------------------------------------------------------------------------------------

// Fills in token ids of a step that the host did not know when it prepared the step: those that the step before sampled.
//
//   token_ids[t] = tokens[from[t]]     if 0 <= from[t] < num_sampled
//                  unchanged           if from[t] < 0: the host has set it
//                  -1                  if from[t] >= num_sampled: the embedding then records token_id_out_of_range
//
//   from       [num_tokens]   int32, on the device
//   tokens     [num_sampled]  int32, on the device: the output of prologue_sample()
//   token_ids  [num_tokens]   int32, updated; must not overlap from or tokens
//
// num_tokens = 0 is a no-op. Never allocates or synchronises; safe under graph capture.

typedef struct prologue_take_tokens_params {
  int64_t num_tokens;
  int64_t num_sampled;
  const int32_t* from;
  const int32_t* tokens;
  int32_t* token_ids;
  uint64_t reserved[4];  // zeros
} prologue_take_tokens_params;
PROLOGUE_C_API void prologue_take_tokens_params_init(prologue_take_tokens_params* value);

PROLOGUE_C_API prologue_status prologue_take_tokens(
    const prologue_take_tokens_params* params,
    const prologue_execution* execution);

// ---- communicators -----------------------------------------------------------------------------------------------------------

// The ranks of a tensor-parallel model, which exchange values by the operations of sections all_reduce and all_gather. A rank is one GPU, or some
// threads of the CPU; a host thread of its own runs its operations. All ranks call the same collectives in the same order.
//
// On the CPU ranks exchange values in the memory of the process. On CUDA they do so by kernels of our own, which access the memory of the other
// GPUs, or, if a GPU cannot, by NCCL, which is opened at run time (libnccl.so.2, or the library that the environment variable PROLOGUE_NCCL
// names). Destroy captured graphs with collectives before the communicators.
//
// (In C++: kernels/collective/communicator.h, which these call.)

typedef struct prologue_communicators_params {
  prologue_device device;
  int64_t num_ranks;        // 1 to PROLOGUE_MAX_RANKS
  const int32_t* gpus;      // [num_ranks]; CUDA: the device of each rank; null: 0, 1, ...
  double wait_seconds;      // = 10.0; a collective waits so long for another rank at most
  int32_t use_nccl;         // = 1; CUDA; 0: only our own kernels, which need peer access
  int32_t use_peer_memory;  // = 1; CUDA; 0: only NCCL
  uint64_t reserved[8];     // zeros
} prologue_communicators_params;
PROLOGUE_C_API void prologue_communicators_params_init(prologue_communicators_params* value);

// Returns the communicators of all ranks of a group, communicators [num_ranks]. Destroy each of them; after an error there are none.
PROLOGUE_C_API prologue_status prologue_create_communicators(
    const prologue_communicators_params* params,
    prologue_communicator** communicators);
// Waits on the host until all ranks have called it: before what must not run while a rank's collective waits for this one, such as the first
// launch of a graph that was captured (the other ranks may still be making theirs, which allocates device memory).
PROLOGUE_C_API prologue_status prologue_communicator_meet(prologue_communicator* communicator);
// Ends the group with an error that has this message: collectives that wait, on any rank, end soon, and later ones return the error. The
// first error of a group counts. Any thread may call it.
PROLOGUE_C_API prologue_status prologue_communicator_abort(prologue_communicator* communicator, const char* message);
// Returns the error of the group. A rank that waits for another one for longer than wait_seconds ends the group itself, with an error that
// names the rank that did not come. On CUDA it is known when the stream has reached the collective. Any thread may call it.
PROLOGUE_C_API prologue_status prologue_communicator_status(const prologue_communicator* communicator);

// ---- all_reduce --------------------------------------------------------------------------------------------------------------

// Adds up the ranks' parts of rows (communicator.h), on every rank:
//
//   y[t, :] = sum over ranks of x_rank[t, :]  (+ y[t, :])
//
//   x  [num_tokens, width] dtype, rows contiguous: this rank's part
//   y  [num_tokens, width] dtype, rows contiguous: the sum; may be x itself (same pointer, adds = 0), must not overlap it otherwise
//
// All ranks call it with the same num_tokens, width, dtype and adds, in the same order among their collectives; with `adds`, y must be the
// same on all ranks. Numerics: on every rank the same bits. The parts are added in float32 in the order of the ranks, then y, and the sum is
// rounded once. Only on GPUs without access to each other's memory (communicator.h) it is NCCL's sum, in its order and rounding; it is rounded
// before y is added. Deterministic at a given number of ranks and tokens.
//
// CUDA, more than 524288 bytes of x (kFewBytes): the GPUs read x and write y of the other ranks. So both are memory that all GPUs of the group can
// access, as that of cudaMalloc is and that of cudaMallocAsync is not. After an error of the group they must stay until the streams of all
// ranks have ended: another rank may still be at work on them. Alignment to 16 bytes, on all ranks, is faster.
//
// CUDA: never allocates or synchronises, and is safe under graph capture (every rank captures, and replays, the same graph). A rank that does not
// come ends the group: prologue_communicator_status(). So a rank that cannot call it, or whose call is refused, should call abort(): the others would
// wait. On the CPU the call waits for the other ranks, and returns the group's error. num_tokens = 0 is a no-op (on all ranks).

typedef struct prologue_all_reduce_params {
  int64_t num_tokens;
  int64_t width;
  prologue_dtype dtype;  // f32, f16 or bf16
  int32_t adds;          // y is one more term of the sum
  const void* x;
  void* y;
  // On GPUs from Hopper on, a call of few bytes may begin while the kernel before it in the stream runs.
  bool overlaps;
  uint64_t reserved[4];  // zeros
} prologue_all_reduce_params;
PROLOGUE_C_API void prologue_all_reduce_params_init(prologue_all_reduce_params* value);

PROLOGUE_C_API prologue_status prologue_all_reduce(
    const prologue_all_reduce_params* params,
    prologue_communicator* communicator,
    const prologue_execution* execution);

// ---- all_gather --------------------------------------------------------------------------------------------------------------

// Puts the ranks' columns of rows side by side (communicator.h), on every rank:
//
//   y[t, r * part_width + i] = x_r[t, i]    for each rank r and its columns i
//
//   x  [num_tokens, own width] dtype, rows contiguous: this rank's columns. Rank r has part_width of them, the last one what is left of
//      `width`, which is from 1 to part_width
//   y  [num_tokens, width] dtype, rows contiguous; must not overlap x
//   workspace  prologue_all_gather_workspace_bytes bytes on the device, aligned to 16; scratch. May be null if that is 0. NCCL needs it
//
// All ranks call it with the same num_tokens, width, part_width and dtype, in the same order among their collectives. Values are copied:
// the bits stay as they are. What section all_reduce says about graphs, errors and waiting holds here, too. CUDA, more than 524288 bytes of a rank's
// columns: the GPUs write y of the other ranks; what section all_reduce says about such memory holds for y.

typedef struct prologue_all_gather_params {
  int64_t num_tokens;
  int64_t width;
  int64_t part_width;
  prologue_dtype dtype;  // f32, f16 or bf16
  const void* x;
  void* y;
  void* workspace;
  int64_t workspace_bytes;
  uint64_t reserved[4];  // zeros
} prologue_all_gather_params;
PROLOGUE_C_API void prologue_all_gather_params_init(prologue_all_gather_params* value);

// Returns the workspace size that is enough for every call with the same widths and dtype, and not more tokens.
PROLOGUE_C_API prologue_status prologue_all_gather_workspace_bytes(
    const prologue_all_gather_params* params,
    const prologue_communicator* communicator,
    int64_t* bytes);

PROLOGUE_C_API prologue_status prologue_all_gather(
    const prologue_all_gather_params* params,
    prologue_communicator* communicator,
    const prologue_execution* execution);

#ifdef __cplusplus
}
#endif

#endif  // PROLOGUE_H
