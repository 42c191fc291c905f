// What the prologue's kernels are given: AttentionPrologueParams with every stride in bytes and everything decided that the host
// can decide. Few tokens are a matter of latency, and every line of the constant bank that a kernel touches costs a cold miss:
// what all instances need is together and small, what only some need comes behind it.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/head_unit.cuh>

namespace prologue::cuda {

// One of q, k and v: where it comes from and where it goes. A row that goes out lies at
// out + page * out_page + offset * out_token + head * out_head; q counts as one page whose offsets are tokens.
template <class Stride>
struct TensorArgs {
  const char* in = nullptr;
  char* out = nullptr;
  Stride in_token = 0;
  Stride in_head = 0;
  Stride out_page = 0;
  Stride out_token = 0;
  Stride out_head = 0;
  int32_t heads = 0;
};

// Stride is uint32_t in the lean instances: the host makes sure that every stride, and head * stride for every head, fits.
template <class Stride>
struct CoreArgs {
  const char* positions = nullptr;
  const char* slots = nullptr;
  uint32_t position_step = 4;  // 4: int32, 8: int64
  uint32_t slot_step = 4;
  uint32_t k_block = 0;  // the first blockIdx.y of k and of v, where a block keeps to one tensor
  uint32_t v_block = 0;
  const float* cos_sin = nullptr;
  Stride max_position = 0;
  Stride num_slots = 0;
  uint32_t page_magic = 0;  // slot / page_size = slot * page_magic >> page_shift for slots below 2^31
  uint32_t page_shift = 0;
  uint32_t page_size = 1;
  HeadLayout layout;              // of q and k
  TensorArgs<Stride> tensors[3];  // q, k, v
  FaultRecord* faults = nullptr;
  uint8_t* token_faults = nullptr;
};

enum class NormStep : int32_t { none = 0, before_rope, after_rope };
enum class StoreAs : int32_t { native = 0, f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8, int4 };  // native: dtype, then KvType + 1
enum class ScaleFrom : int32_t { nothing = 0, given, computed };

template <class Stride>
struct TensorExtras {
  const char* bias = nullptr;
  const char* weight = nullptr;
  const char* norm_bias = nullptr;
  char* second_out = nullptr;  // k_out, v_out
  char* scale = nullptr;
  Stride second_token = 0;
  Stride second_head = 0;
  Stride weight_head = 0;
  Stride scale_page = 0;
  Stride scale_token = 0;
  Stride scale_head = 0;
  NormStep norm = NormStep::none;
  NormKind norm_kind = NormKind::rms;
  NormScope norm_scope = NormScope::head;
  float eps = 0.0f;
  float weight_offset = 0.0f;
  float inverse_count = 0.0f;  // of the channels of a norm
  StoreAs store = StoreAs::native;
  ScaleFrom scale_from = ScaleFrom::nothing;
  HeadLayout layout;
  int32_t turns = 0;
};

struct PlaceExtras {
  int64_t position_axis_stride = 0;  // in elements
  const uint8_t* pair_axis = nullptr;
  int32_t num_axes = 1;
  int32_t num_seqs = 0;
  const int32_t* cu_seqlens_q = nullptr;  // null: nothing is derived
  const int32_t* cache_lens = nullptr;
  const int32_t* block_table = nullptr;
  int64_t block_table_stride = 0;
  int64_t max_pages_per_seq = 0;
  int64_t num_pages = 0;
  int64_t ring_size = 0;
  IndexView position_offsets;
  int32_t position_offset_per_seq = 0;
  int32_t derive_position = 0;
  int32_t derive_slot = 0;
  CosSinSource source = CosSinSource::table;
  const float* inv_freq = nullptr;
  float attention_factor = 1.0f;
  int32_t inverse = 0;
};

template <class Stride>
struct FullArgs : CoreArgs<Stride> {
  TensorExtras<Stride> extras[3];
  PlaceExtras places;
  QueryScale q_scale;
  int32_t rounds_per_step = 0;
};

}  // namespace prologue::cuda
