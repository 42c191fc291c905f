// Measures the attention prologue against plain copies of the same bytes and against the unfused chain (add_bias, qk_norm, rotary of q and
// of k, kv_write). The base set: bfloat16, 32 q heads, 8 kv heads, head_dim 128, full rotation, page 16, shuffled pages.
//
//   bench_attention_prologue --prefix "every instance"    each CUDA instance that can run each call, whatever its size is
#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/rotary/rotary.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#ifdef PROLOGUE_HAS_CUDA
#include <prologue/kernels/attention_prologue/instances.h>
#endif
#include "benchmarks/harness.h"

using namespace prologue;

namespace {

struct Shape {
  const char* name;
  int64_t num_q_heads = 32, num_kv_heads = 8, head_dim = 128, rotary_dim = 128;
  DType dtype = DType::bf16;
  RopeStyle style = RopeStyle::neox;
  bool bias = false;
  bool norm = false;  // of q and k, before the rotation, 1 + w
  DType cache = DType::bf16;
  KvScaling scaling = KvScaling::none;
  bool q8 = false;  // q as fp8, scaled as the cache is
  bool mrope = false;
  bool derived = false;  // one sequence per token up to 256 tokens, else one sequence
  bool per_token = false;
  bool in_place = false;
  bool v_from_k = false;
  bool cold = false;
  bool unfused = false;  // measured as well
  bool all_sizes = false;
  // Sets anything else. Returns the bytes that a call then reads or writes in addition.
  int64_t (*more)(AttentionPrologueParams&, bench::Setup&) = nullptr;
};

void set_norms(AttentionPrologueParams& p, bench::Setup& setup, HeadNorm norm) {
  norm.placement = norm.placement == NormPlacement::none ? NormPlacement::before_rope : norm.placement;
  const int64_t bytes = p.head_dim * dtype_size(norm.weight_type == DType::unset ? p.dtype : norm.weight_type);
  norm.weight = setup.shared(bytes, norm.weight_type == DType::f32 ? DType::f32 : p.dtype);
  p.q_norm = p.k_norm = norm;
}

// lean/most_steps_schedule.cuh is for these.
int64_t norm_after_rope(AttentionPrologueParams& p, bench::Setup& setup) {
  HeadNorm norm;
  norm.placement = NormPlacement::after_rope;
  set_norms(p, setup, norm);
  return 0;
}
int64_t norm_as_usual(AttentionPrologueParams& p, bench::Setup& setup) {
  set_norms(p, setup, {});
  return 0;
}
int64_t float_weights(AttentionPrologueParams& p, bench::Setup& setup) {
  HeadNorm norm;
  norm.weight_type = DType::f32;
  set_norms(p, setup, norm);
  return 0;
}
int64_t no_weights(AttentionPrologueParams& p, bench::Setup&) {
  p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope;
  return 0;
}
int64_t norm_of_v_too(AttentionPrologueParams& p, bench::Setup& setup) {
  set_norms(p, setup, {});
  p.v_norm.placement = NormPlacement::before_rope;
  return 0;
}
int64_t layer_norm(AttentionPrologueParams& p, bench::Setup& setup) {
  HeadNorm norm;
  norm.kind = NormKind::layer;
  set_norms(p, setup, norm);
  p.q_norm.weight_head_stride = p.k_norm.weight_head_stride = p.head_dim;
  p.q_norm.weight = setup.shared(p.num_q_heads * p.head_dim * dtype_size(p.dtype), p.dtype);
  p.k_norm.weight = setup.shared(p.num_kv_heads * p.head_dim * dtype_size(p.dtype), p.dtype);
  return 0;
}
int64_t token_norm(AttentionPrologueParams& p, bench::Setup& setup) {
  layer_norm(p, setup);
  p.q_norm.kind = p.k_norm.kind = NormKind::rms;
  p.q_norm.scope = p.k_norm.scope = NormScope::token;
  return 0;
}
int64_t bias_of_q(AttentionPrologueParams& p, bench::Setup& setup) {
  p.bias.q = setup.shared(p.num_q_heads * p.head_dim * dtype_size(p.dtype), p.dtype);
  return 0;
}
int64_t scaled_q(AttentionPrologueParams& p, bench::Setup&) {
  p.q_scale.constant = 0.088f;
  return 0;
}
int64_t both_outputs(AttentionPrologueParams& p, bench::Setup& setup) {
  const int64_t row = p.num_kv_heads * p.head_dim, bytes = p.num_tokens * row * dtype_size(p.dtype);
  p.k_out = {setup.shared(bytes, p.dtype), row, p.head_dim};
  p.v_out = {setup.shared(bytes, p.dtype), row, p.head_dim};
  return 2 * bytes;
}
int64_t inverse(AttentionPrologueParams& p, bench::Setup&) {
  p.rope.inverse = 1;
  return 0;
}
int64_t in_ring(AttentionPrologueParams& p, bench::Setup&) {
  p.places.ring_size = p.num_tokens + 5;
  return 0;
}
int64_t per_step(AttentionPrologueParams& p, bench::Setup&) {
  p.rounding = Rounding::per_step;
  return 0;
}
int64_t norm_per_step(AttentionPrologueParams& p, bench::Setup& setup) {
  set_norms(p, setup, {});
  return per_step(p, setup);
}
int64_t rotated_k(AttentionPrologueParams& p, bench::Setup&) {
  p.hadamard_block = 64;
  return 0;
}
int64_t rotated_v(AttentionPrologueParams& p, bench::Setup&) {
  p.v_hadamard_block = 64;
  return 0;
}
int64_t identity_past_table(AttentionPrologueParams& p, bench::Setup&) {
  p.rope.past_table = PastTable::identity;
  return 0;
}
// No instance that ships has what follows: a call runs in the general kernel, a plan in a kernel that is made for it.
int64_t narrow_table(AttentionPrologueParams& p, bench::Setup& setup) {
  const int64_t rows = p.rope.max_position;
  set_cos_sin_table(p.rope, setup.shared(rows * p.rope.rotary_dim * 2, DType::bf16), DType::bf16, rows);
  return 0;
}
int64_t two_narrow_tables(AttentionPrologueParams& p, bench::Setup& setup) {
  const int64_t rows = p.rope.max_position, columns = p.rope.rotary_dim / 2;
  const auto table = [&] { return setup.shared(rows * columns * 2, DType::f16); };
  set_cos_and_sin(p.rope, table(), table(), DType::f16, rows, columns, RopeWidth::half);
  return 0;
}
int64_t two_tables(AttentionPrologueParams& p, bench::Setup& setup) {
  const int64_t rows = p.rope.max_position, columns = p.rope.rotary_dim / 2;
  const auto table = [&] { return setup.shared(rows * columns * 4, DType::f32); };
  set_cos_and_sin(p.rope, table(), table(), DType::f32, rows, columns, RopeWidth::half);
  return 0;
}
int64_t fewer_slots(AttentionPrologueParams& p, bench::Setup&) {
  if (p.num_tokens > 1) p.places.slot_mapping_len = p.num_tokens - 1;
  return 0;
}
// The pages of make_problem()'s rows, as a list.
int64_t listed_pages(AttentionPrologueParams& p, bench::Setup& setup) {
  PageTable& table = p.places.page_table;
  std::vector<int32_t> begins;
  for (int64_t s = 0; s <= p.places.num_seqs; ++s) begins.push_back(static_cast<int32_t>(s * table.max_pages_per_seq));
  table.num_kv_indices = begins.back();
  table.kv_indptr = setup.values(begins);
  table.kv_indices = table.block_table;
  table.block_table = nullptr;
  table.block_table_stride = table.max_pages_per_seq = 0;
  return 0;
}
int64_t last_page_lengths(AttentionPrologueParams& p, bench::Setup& setup) {
  const auto length = static_cast<int32_t>((p.num_tokens / p.places.num_seqs + 5 - 1) % p.cache.page_size + 1);
  p.places.page_table.kv_last_page_len = setup.values(std::vector<int32_t>(static_cast<size_t>(p.places.num_seqs), length));
  p.places.cache_lens = nullptr;
  return listed_pages(p, setup);
}
int64_t offsets(AttentionPrologueParams& p, bench::Setup& setup) {
  p.places.position_offsets = index_view(setup.values(std::vector<int64_t>(static_cast<size_t>(p.places.num_seqs), -3)));
  p.places.position_offset_per_seq = 1;
  return 0;
}
int64_t slots_alone(AttentionPrologueParams& p, bench::Setup& setup) {
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < p.num_tokens; ++t) positions.push_back((t + 5) % p.rope.max_position);
  p.places.positions = index_view(setup.values(positions));
  return 0;
}
int64_t rope_apart(AttentionPrologueParams& p, bench::Setup& setup) {
  const auto apart = [&](int64_t heads) {
    const int64_t row = heads * p.rope.rotary_dim;
    return HeadsView{setup.shared(p.num_tokens * row * dtype_size(p.dtype), p.dtype), row, p.rope.rotary_dim};
  };
  p.q_rope = apart(p.num_q_heads), p.k_rope = apart(p.num_kv_heads);
  return 0;
}
int64_t one_k_rope(AttentionPrologueParams& p, bench::Setup& setup) {
  rope_apart(p, setup);
  p.k_rope = {setup.shared(p.num_tokens * p.rope.rotary_dim * dtype_size(p.dtype), p.dtype), p.rope.rotary_dim, 0};
  return 0;
}
int64_t from_inv_freq(AttentionPrologueParams& p, bench::Setup& setup) {
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < p.rope.rotary_dim / 2; ++i) {
    inv_freq.push_back(
        static_cast<float>(std::pow(500000.0, -2.0 * static_cast<double>(i) / static_cast<double>(p.rope.rotary_dim))));
  }
  p.rope.source = RopeSource::inv_freq;
  p.rope.type = DType::f32;
  p.rope.width = RopeWidth::unset;
  p.rope.cos = p.rope.sin = {};
  p.rope.inv_freq = setup.values(inv_freq);
  p.rope.max_position = 1 << 20;
  return 0;
}
int64_t two_blocks(AttentionPrologueParams& p, bench::Setup& setup) {
  const int64_t rows = p.rope.max_position;
  set_cos_and_sin(p.rope, setup.shared(rows * 32 * 4, DType::f32), setup.shared(rows * 32 * 4, DType::f32), DType::f32, rows, 32,
                  RopeWidth::half);
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < 2 * p.num_tokens; ++t) positions.push_back((t + 5) % p.rope.max_position);
  p.places.positions = index_view(setup.values(positions));
  p.places.position_axis_stride = p.num_tokens;
  p.rope.num_axes = p.rope.num_blocks = 2;
  return 0;
}
int64_t odd_strides(AttentionPrologueParams& p, bench::Setup& setup) {
  PageStrides& k = p.cache.k.strides;
  k.token += 1, k.page = p.cache.page_size * k.token;
  p.cache.v.strides = k;
  for (PagedHeads* side : {&p.cache.k, &p.cache.v}) side->data = setup.shared(p.cache.num_pages * k.page * 2, p.dtype);
  return 0;
}

int64_t norm_of_q_alone(AttentionPrologueParams& p, bench::Setup& setup) {
  set_norms(p, setup, {});
  p.k_norm = {};
  return 0;
}
int64_t no_cache(AttentionPrologueParams& p, bench::Setup& setup) {
  p.cache.k.data = p.cache.v.data = nullptr;
  p.places.slot_mapping = {};
  const int64_t bytes = both_outputs(p, setup);
  return bytes - 2 * p.num_tokens * p.num_kv_heads * p.head_dim * dtype_size(p.dtype);
}
int64_t constant_of_v(AttentionPrologueParams& p, bench::Setup&) {
  p.v_constant = 0.707f;
  return 0;
}
int64_t lengths_after(AttentionPrologueParams& p, bench::Setup& setup) {
  const auto length = static_cast<int32_t>(p.num_tokens / p.places.num_seqs + 5);
  p.places.seq_lens = setup.values(std::vector<int32_t>(static_cast<size_t>(p.places.num_seqs), length));
  p.places.cache_lens = nullptr;
  return 0;
}
// The scales of blocks, beside a cache whose format make_problem() has set.
int64_t scales_of_blocks(AttentionPrologueParams& p, bench::Setup& setup) {
  const int64_t heads = p.cache.num_kv_heads, blocks = p.head_dim / block_channels(p.cache.k.format);
  for (PagedHeads* side : {&p.cache.k, &p.cache.v}) {
    const int64_t bytes = p.cache.num_pages * p.cache.page_size * heads * blocks;
    side->block_scale = static_cast<uint8_t*>(setup.shared(bytes, DType::fp8_e4m3));
    side->scale_strides = nhd_strides(p.cache.page_size, heads, blocks);
    side->scale = p.cache.k.format.scaling == KvScaling::nv ? setup.values(std::vector<float>(1, 0.01f)) : nullptr;
  }
  return 2 * p.num_tokens * heads * blocks;
}
// DeepSeek V3.2: 64 q heads to fp8 with computed scales, and a k head with a LayerNorm into a cache of its own; 64 of 128 channels rotated.
int64_t indexer(AttentionPrologueParams& p, bench::Setup& setup) {
  constexpr int64_t kHeads = 64, kDim = 128;
  const int64_t size = dtype_size(p.dtype), slots = p.cache.num_pages * p.cache.page_size;
  static std::array<HeadGroup, 2> groups;
  groups = {};
  for (HeadGroup& group : groups) {
    group.num_heads = &group == &groups[0] ? kHeads : 1;
    group.head_dim = group.hadamard_block = kDim;
    group.in = {setup.shared(p.num_tokens * group.num_heads * kDim * size, p.dtype), group.num_heads * kDim, kDim};
    group.rope = p.rope;
    group.rope.rotary_dim = 64;
    set_cos_sin_table(group.rope, setup.shared(p.rope.max_position * 64 * 4, DType::f32), DType::f32, p.rope.max_position);
  }
  HeadGroup &q = groups[0], &k = groups[1];
  q.q8_out.data = setup.shared(p.num_tokens * kHeads * kDim, DType::fp8_e4m3);
  q.q8_out.token_stride = kHeads * kDim, q.q8_out.head_stride = kDim;
  q.q8_out.scaling = KvScaling::token_head;
  q.q8_out.scale = setup.values(std::vector<float>(static_cast<size_t>(p.num_tokens * kHeads)));
  k.norm.placement = NormPlacement::before_rope;
  k.norm.kind = NormKind::layer;
  k.norm.weight = setup.shared(kDim * size, p.dtype);
  k.norm.bias = setup.shared(kDim * size, p.dtype);
  k.cache.data = setup.shared(slots * kDim, DType::fp8_e4m3);
  k.cache.head_dim = kDim;
  k.cache.format = {DType::fp8_e4m3, KvScaling::token_head};
  k.cache.strides = nhd_strides(p.cache.page_size, 1, kDim);
  k.cache.scale = setup.values(std::vector<float>(static_cast<size_t>(slots)));
  k.cache.scale_strides = nhd_strides(p.cache.page_size, 1, 1);
  p.groups = groups.data(), p.num_groups = 2;
  return p.num_tokens * (kHeads + 1) * (kDim * size + kDim + 4);
}
// The sigmoid of a gate for every channel of Q, as Qwen3-Next's.
int64_t gate(AttentionPrologueParams& p, bench::Setup& setup) {
  static HeadGroup group;
  const int64_t row = p.num_q_heads * p.head_dim, bytes = p.num_tokens * row * dtype_size(p.dtype);
  group = {};
  group.num_heads = p.num_q_heads, group.head_dim = p.head_dim;
  group.in = {setup.shared(bytes, p.dtype), row, p.head_dim};
  group.out = {setup.shared(bytes, p.dtype), row, p.head_dim};
  group.activation = HeadActivation::sigmoid;
  p.groups = &group, p.num_groups = 1;
  return 2 * bytes;
}
// make_problem() made both sides for V's type; K has codes of 8 bits.
int64_t k_in_8_bits(AttentionPrologueParams& p, bench::Setup& setup) {
  p.cache.k.format.type = DType::int8;
  p.cache.k.data = setup.shared(p.cache.num_pages * p.cache.k.strides.page, DType::int8);
  return p.num_tokens * p.num_kv_heads * p.head_dim / 2;
}

const Shape kShapes[] = {
    {.name = "base", .unfused = true, .all_sizes = true},
    {.name = "base, q in place", .in_place = true, .all_sizes = true},
    {.name = "base, cold", .cold = true},
    {.name = "bias", .bias = true, .unfused = true},
    {.name = "norm", .norm = true},
    {.name = "bias + norm", .bias = true, .norm = true, .unfused = true, .all_sizes = true},
    {.name = "fp8", .cache = DType::fp8_e4m3, .scaling = KvScaling::tensor, .unfused = true, .all_sizes = true},
    {.name = "fp8 + fp8 q", .cache = DType::fp8_e4m3, .scaling = KvScaling::tensor, .q8 = true, .all_sizes = true},
    {.name = "fp8 computed", .cache = DType::fp8_e4m3, .scaling = KvScaling::token_head, .all_sizes = true},
    {.name = "fp8 + fp8 q computed", .cache = DType::fp8_e4m3, .scaling = KvScaling::token_head, .q8 = true, .all_sizes = true},
    {.name = "int8", .cache = DType::int8, .scaling = KvScaling::head, .all_sizes = true},
    {.name = "int8 computed", .cache = DType::int8, .scaling = KvScaling::token_head, .all_sizes = true},
    {.name = "int4 computed", .cache = DType::int4, .scaling = KvScaling::token_head},
    {.name = "uint4 computed", .cache = DType::uint4, .scaling = KvScaling::token_head},
    {.name = "mrope", .mrope = true, .all_sizes = true},
    {.name = "derived", .derived = true, .all_sizes = true},
    {.name = "per token", .per_token = true, .all_sizes = true},
    {.name = "bias + norm, fp8, derived",
     .bias = true,
     .norm = true,
     .cache = DType::fp8_e4m3,
     .scaling = KvScaling::tensor,
     .derived = true},
    {.name = "norm, fp8, derived", .norm = true, .cache = DType::fp8_e4m3, .scaling = KvScaling::tensor, .derived = true},
    {.name = "norm, fp8 computed", .norm = true, .cache = DType::fp8_e4m3, .scaling = KvScaling::token_head},
    {.name = "rotary 96 of 128, bias, fp8",
     .rotary_dim = 96,
     .bias = true,
     .cache = DType::fp8_e4m3,
     .scaling = KvScaling::tensor},
    {.name = "interleaved", .style = RopeStyle::interleaved},
    {.name = "rotary 72 of 128", .rotary_dim = 72},
    {.name = "rotary 96 of 128", .rotary_dim = 96},
    {.name = "head_dim 64", .head_dim = 64, .rotary_dim = 64},
    {.name = "head_dim 80", .head_dim = 80, .rotary_dim = 80},
    {.name = "head_dim 96", .head_dim = 96, .rotary_dim = 96},
    {.name = "head_dim 256", .head_dim = 256, .rotary_dim = 256},
    {.name = "1B 32/8/64", .head_dim = 64, .rotary_dim = 64},
    {.name = "70B 64/8/128", .num_q_heads = 64},
    {.name = "Qwen3 32/8/128 norm", .norm = true},
    {.name = "MHA 32/32/128", .num_kv_heads = 32},
    {.name = "MQA 4/1/256 norm", .num_q_heads = 4, .num_kv_heads = 1, .head_dim = 256, .rotary_dim = 256, .norm = true},
    {.name = "few heads 8/1/128", .num_q_heads = 8, .num_kv_heads = 1},
    {.name = "few heads 8/1/128 norm", .num_q_heads = 8, .num_kv_heads = 1, .norm = true},
    {.name = "few heads 8/1/128 fp8",
     .num_q_heads = 8,
     .num_kv_heads = 1,
     .norm = true,
     .cache = DType::fp8_e4m3,
     .scaling = KvScaling::tensor,
     .q8 = true},
    {.name = "few heads 8/1/128 norm, derived", .num_q_heads = 8, .num_kv_heads = 1, .norm = true, .derived = true},
    {.name = "few heads 8/1/64", .num_q_heads = 8, .num_kv_heads = 1, .head_dim = 64, .rotary_dim = 64},
    {.name = "few heads 8/1/64 norm", .num_q_heads = 8, .num_kv_heads = 1, .head_dim = 64, .rotary_dim = 64, .norm = true},
    {.name = "few heads 16/2/128", .num_q_heads = 16, .num_kv_heads = 2},
    {.name = "few heads 16/2/128 norm", .num_q_heads = 16, .num_kv_heads = 2, .norm = true},
    {.name = "few heads 28/4/128", .num_q_heads = 28, .num_kv_heads = 4},
    {.name = "float32", .dtype = DType::f32, .cache = DType::f32},
    {.name = "smollm2 float32 9/3/64",
     .num_q_heads = 9,
     .num_kv_heads = 3,
     .head_dim = 64,
     .rotary_dim = 64,
     .dtype = DType::f32,
     .style = RopeStyle::interleaved,
     .cache = DType::f32,
     .unfused = true},
    {.name = "norm after rope", .more = norm_after_rope},
    {.name = "norm, interleaved", .style = RopeStyle::interleaved, .more = norm_as_usual},
    {.name = "norm, rotary 64 of 128", .rotary_dim = 64, .more = norm_as_usual},
    {.name = "norm, float32 weights", .more = float_weights},
    {.name = "norm without weights", .more = no_weights},
    {.name = "norm of q, k and v", .more = norm_of_v_too},
    {.name = "LayerNorm, weights per head", .more = layer_norm},
    {.name = "norm over the token", .more = token_norm},
    {.name = "norm, uint4 computed", .norm = true, .cache = DType::uint4, .scaling = KvScaling::token_head},
    {.name = "bias of q alone", .more = bias_of_q},
    {.name = "q scaled", .more = scaled_q},
    {.name = "k_out and v_out", .more = both_outputs},
    {.name = "inverse", .more = inverse},
    {.name = "ring, derived", .derived = true, .more = in_ring},
    {.name = "per step", .more = per_step},
    {.name = "norm per step", .more = norm_per_step},
    {.name = "Hadamard 64, int8 computed", .cache = DType::int8, .scaling = KvScaling::token_head, .more = rotated_k},
    {.name = "identity past the table", .more = identity_past_table},
    {.name = "table in bfloat16", .more = narrow_table},
    {.name = "two tables in float16", .more = two_narrow_tables},
    {.name = "two tables in float32", .more = two_tables},
    {.name = "short slot_mapping", .more = fewer_slots},
    {.name = "derived, CSR", .derived = true, .more = listed_pages},
    {.name = "derived, CSR and last pages", .derived = true, .more = last_page_lengths},
    {.name = "derived, offsets", .derived = true, .more = offsets},
    {.name = "derived slots alone", .derived = true, .more = slots_alone},
    {.name = "rope apart, 64 of 128", .rotary_dim = 64, .more = rope_apart},
    {.name = "rope apart, one k_rope", .rotary_dim = 64, .more = one_k_rope},
    {.name = "inv_freq", .more = from_inv_freq},
    {.name = "mrope, inv_freq", .mrope = true, .more = from_inv_freq},
    {.name = "float16 cache", .cache = DType::f16},
    {.name = "float32, bfloat16 cache", .dtype = DType::f32, .cache = DType::bf16},
    {.name = "blocks of 2-D pairs", .more = two_blocks},
    {.name = "odd strides of the cache", .more = odd_strides},
    {.name = "rotary 2 of 128", .rotary_dim = 2},
    {.name = "head_dim 46", .head_dim = 46, .rotary_dim = 46},
    {.name = "norm of q alone", .more = norm_of_q_alone},
    {.name = "norm of q, k and v, V from K", .v_from_k = true, .more = norm_of_v_too},
    {.name = "no cache, k_out and v_out", .more = no_cache},
    {.name = "v times a constant", .more = constant_of_v},
    {.name = "derived, lengths after", .derived = true, .more = lengths_after},
    {.name = "K in int8, V in int4, computed", .cache = DType::int4, .scaling = KvScaling::token_head, .more = k_in_8_bits},
    {.name = "Hadamard 64", .more = rotated_k},
    {.name = "Hadamard 64 of v", .more = rotated_v},
    {.name = "indexer", .more = indexer},
    {.name = "gate", .more = gate},
    {.name = "MXFP8", .cache = DType::fp8_e4m3, .scaling = KvScaling::mx, .more = scales_of_blocks},
    {.name = "MXFP4", .cache = DType::fp4_e2m1, .scaling = KvScaling::mx, .more = scales_of_blocks},
    {.name = "NVFP4", .cache = DType::fp4_e2m1, .scaling = KvScaling::nv, .more = scales_of_blocks},
    {.name = "bias, fp8", .bias = true, .cache = DType::fp8_e4m3, .scaling = KvScaling::tensor},
    {.name = "norm, fp8", .norm = true, .cache = DType::fp8_e4m3, .scaling = KvScaling::tensor},
    {.name = "norm, int8 computed", .norm = true, .cache = DType::int8, .scaling = KvScaling::token_head},
    {.name = "fp8, derived", .cache = DType::fp8_e4m3, .scaling = KvScaling::tensor, .derived = true},
    {.name = "norm, derived", .norm = true, .derived = true},
    {.name = "bias, derived", .bias = true, .derived = true},
    {.name = "norm, mrope", .norm = true, .mrope = true},
    {.name = "bias, mrope", .bias = true, .mrope = true},
    {.name = "bias + norm, mrope", .bias = true, .norm = true, .mrope = true},
    {.name = "interleaved, bias", .style = RopeStyle::interleaved, .bias = true},
    {.name = "interleaved, mrope", .style = RopeStyle::interleaved, .mrope = true},
    {.name = "interleaved, derived", .style = RopeStyle::interleaved, .derived = true},
};

constexpr int64_t kPageSize = 16;
constexpr int64_t kMaxPosition = 8192;

std::vector<float> make_table(int64_t rotary_dim) {
  std::vector<float> table(static_cast<size_t>(kMaxPosition * rotary_dim));
  for (int64_t p = 0; p < kMaxPosition; ++p) {
    for (int64_t i = 0; i < rotary_dim / 2; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(500000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
      table[static_cast<size_t>(p * rotary_dim + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(p * rotary_dim + rotary_dim / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

struct Problem {
  AttentionPrologueParams params;
  std::vector<void*> qkv, q_out;
  bool in_place = false;
  bool v_from_k = false;
  int64_t bytes = 0;  // of one call: the data, its constants, its rows of the table and its indices
};

// Adds the pages of the sequences of a step: one for each token, or one for all of them.
void derive_places(AttentionPrologueParams& p, const std::vector<int64_t>& pages, bench::Setup& setup) {
  const int64_t num_tokens = p.num_tokens, num_seqs = num_tokens <= 256 ? num_tokens : 1;
  std::vector<int32_t> ends, cached, table;
  for (int64_t s = 0; s <= num_seqs; ++s) ends.push_back(static_cast<int32_t>(s * (num_tokens / num_seqs)));
  for (int64_t s = 0; s < num_seqs; ++s) {
    cached.push_back(5);
    const int64_t row = divide_up(num_tokens / num_seqs + 5, kPageSize);
    for (int64_t i = 0; i < row; ++i) table.push_back(static_cast<int32_t>(pages[static_cast<size_t>(s * row + i)]));
    p.places.page_table.max_pages_per_seq = p.places.page_table.block_table_stride = row;
  }
  p.places.num_seqs = num_seqs;
  p.places.cu_seqlens_q = setup.values(ends);
  p.places.cache_lens = setup.values(cached);
  p.places.page_table.block_table = setup.values(table);
}

Problem make_problem(const Shape& shape, int64_t num_tokens, bench::Setup& setup) {
  Problem problem;
  AttentionPrologueParams& p = problem.params;
  p.num_tokens = num_tokens;
  p.num_q_heads = shape.num_q_heads;
  p.num_kv_heads = shape.num_kv_heads;
  p.head_dim = shape.head_dim;
  p.dtype = shape.dtype;
  const int64_t size = dtype_size(shape.dtype);
  const int64_t q_width = shape.num_q_heads * shape.head_dim;
  const int64_t kv_width = shape.num_kv_heads * shape.head_dim;
  const int64_t in_bytes = num_tokens * (q_width + 2 * kv_width) * size;
  const int64_t q_bytes = num_tokens * q_width * (shape.q8 ? 1 : size);
  const bool computed = shape.scaling == KvScaling::token_head;
  int64_t out_bytes = q_bytes + num_tokens * 2 * kv_width * dtype_bits(shape.cache) / 8;
  if (computed) out_bytes += num_tokens * (2 * shape.num_kv_heads + (shape.q8 ? shape.num_q_heads : 0)) * 4;
  problem.bytes = in_bytes + out_bytes + num_tokens * (shape.rotary_dim * 4 + 16) +
                  (shape.bias ? (q_width + 2 * kv_width) * size : 0) + (shape.norm ? 2 * shape.head_dim * size : 0);

  if (shape.cold) {
    setup.rotate_cold(in_bytes + q_bytes);
  } else {
    setup.rotate(in_bytes + out_bytes);
  }
  problem.in_place = shape.in_place;
  problem.v_from_k = shape.v_from_k;
  if (shape.v_from_k) problem.bytes -= num_tokens * kv_width * size;  // which are read once
  problem.qkv = setup.rotated(in_bytes, shape.dtype);
  problem.q_out = shape.in_place ? problem.qkv : setup.rotated(q_bytes, shape.dtype);
  if (shape.bias) {
    p.bias = {setup.shared(q_width * size, shape.dtype), setup.shared(kv_width * size, shape.dtype),
              setup.shared(kv_width * size, shape.dtype)};
  }
  if (shape.norm) {
    p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope;
    p.q_norm.weight_offset = p.k_norm.weight_offset = 1.0f;
    p.q_norm.weight = setup.shared(shape.head_dim * size, shape.dtype);
    p.k_norm.weight = setup.shared(shape.head_dim * size, shape.dtype);
  }

  p.rope.style = shape.style;
  p.rope.rotary_dim = shape.rotary_dim;
  p.rope.max_position = kMaxPosition;
  std::vector<float> table = make_table(shape.rotary_dim);
  std::mt19937 random(1);
  const int64_t num_pages = 2 * (num_tokens + kPageSize) + 1;
  std::vector<int64_t> pages(static_cast<size_t>(num_pages)), positions, slots;
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  for (int64_t t = 0; t < num_tokens; ++t) {
    positions.push_back((t + 5) % kMaxPosition);
    slots.push_back(pages[static_cast<size_t>(t / kPageSize)] * kPageSize + t % kPageSize);
  }
  if (shape.per_token) {
    std::vector<float> rows;
    for (const int64_t position : positions) {
      const auto row = table.begin() + position * shape.rotary_dim;
      rows.insert(rows.end(), row, row + shape.rotary_dim);
    }
    set_cos_sin_rows(p.rope, setup.values(rows), DType::f32);
  } else {
    set_cos_sin_table(p.rope, setup.values(table), DType::f32, p.rope.max_position);
  }
  if (shape.mrope) {  // sections of 16, 24, 24 of 64 pairs, as Qwen2-VL's
    std::vector<uint8_t> axis(static_cast<size_t>(shape.rotary_dim / 2));
    for (size_t i = 0; i < axis.size(); ++i) axis[i] = i < 16 ? 0 : i < 40 ? 1 : 2;
    p.rope.num_axes = 3;
    p.rope.pair_axis = setup.values(axis);
    for (int axes = 1; axes < 3; ++axes) positions.insert(positions.end(), positions.begin(), positions.begin() + num_tokens);
    p.places.position_axis_stride = num_tokens;
  }
  if (shape.derived) {
    p.rope.max_position = kMaxPosition;
    derive_places(p, pages, setup);
    if (num_tokens + 5 > kMaxPosition) {  // the table ends before the sequence does
      set_cos_sin_table(p.rope, setup.shared((num_tokens + 5) * shape.rotary_dim * 4, DType::f32), DType::f32, num_tokens + 5);
    }
  } else {
    p.places.positions = index_view(setup.values(positions));
    p.places.slot_mapping = index_view(setup.values(slots));
  }

  const int64_t cache_bytes = num_pages * kPageSize * kv_width * dtype_bits(shape.cache) / 8;
  p.cache.k.data = setup.shared(cache_bytes, shape.dtype);
  p.cache.v.data = setup.shared(cache_bytes, shape.dtype);
  p.cache.k.format.type = p.cache.v.format.type = shape.cache;
  p.cache.num_pages = num_pages;
  p.cache.page_size = kPageSize;
  p.cache.num_kv_heads = shape.num_kv_heads;
  p.cache.k.head_dim = shape.head_dim;
  p.cache.k.strides = p.cache.v.strides = nhd_strides(kPageSize, shape.num_kv_heads, shape.head_dim);
  p.cache.k.format.scaling = p.cache.v.format.scaling = shape.scaling;
  if (shape.scaling != KvScaling::none && !is_block_scaled(p.cache.k.format)) {
    const int64_t n = shape.cache == DType::uint4 ? 2 : 1;
    const int64_t count = computed ? num_pages * kPageSize * shape.num_kv_heads * n : shape.num_kv_heads;
    const std::vector<float> scales(static_cast<size_t>(count), 0.01f);
    p.cache.k.scale = setup.values(scales);
    p.cache.v.scale = setup.values(scales);
    p.cache.k.scale_strides = p.cache.v.scale_strides = {kPageSize * shape.num_kv_heads * n, shape.num_kv_heads * n, n};
  }
  if (shape.q8) {
    p.q8_out.scaling = shape.scaling;
    p.q8_out.scale = setup.values(std::vector<float>(static_cast<size_t>(computed ? num_tokens * shape.num_q_heads : 1), 0.01f));
  }
  p.faults = setup.values(std::vector<FaultRecord>(1));
  if (shape.more != nullptr) problem.bytes += shape.more(p, setup);
  return problem;
}

void point_at(AttentionPrologueParams& p, const Problem& problem, int64_t rotation) {
  const int64_t row = (p.num_q_heads + 2 * p.num_kv_heads) * p.head_dim;
  set_packed_qkv(p, problem.qkv[static_cast<size_t>(rotation)], row);
  if (problem.v_from_k) p.v = p.k;
  void* out = problem.q_out[static_cast<size_t>(rotation)];
  if (p.q8_out.scale != nullptr) {
    p.q8_out.data = out;
    p.q8_out.token_stride = p.num_q_heads * p.head_dim;
    p.q8_out.head_stride = p.head_dim;
  } else {
    p.q_out = {out, problem.in_place ? row : p.num_q_heads * p.head_dim, p.head_dim};
  }
}

// K, and with a bias or a norm Q and V, are changed in place in the packed buffer, as an engine without the fused kernel does.
Status unfused(const AttentionPrologueParams& p, const Execution& execution) {
  const int64_t q_width = p.num_q_heads * p.head_dim, kv_width = p.num_kv_heads * p.head_dim;
  const auto in_place = [](const HeadsView& x) {
    return MutableHeadsView{const_cast<void*>(x.data), x.token_stride, x.head_stride};
  };
  const auto add = [&](const HeadsView& x, int64_t width, const void* bias) {
    if (bias == nullptr) return Status();
    return add_bias({p.num_tokens, width, p.dtype, x.data, x.token_stride, bias, const_cast<void*>(x.data), x.token_stride},
                    execution);
  };
  const auto add_norm = [&](const HeadsView& x, int64_t heads, const HeadNorm& norm) {
    if (norm.placement == NormPlacement::none) return Status();
    QkNormParams n;
    n.num_tokens = p.num_tokens;
    n.num_heads = heads;
    n.head_dim = p.head_dim;
    n.dtype = p.dtype;
    n.x = x;
    n.y = in_place(x);
    n.norm = norm;
    n.positions = p.places.positions;
    return qk_norm(n, execution);
  };
  const auto turn = [&](const HeadsView& x, int64_t heads, const MutableHeadsView& y) {
    RotaryParams r;
    r.seq_len = p.num_tokens;
    r.head_dim = p.head_dim;
    r.dtype = p.dtype;
    r.num_tensors = 1;
    r.tensors[0] = rotary_tensor(x, y, heads);
    r.rope = p.rope;
    r.positions.ids = p.places.positions;
    r.faults = p.faults;
    return rotary(r, execution);
  };
  PROLOGUE_RETURN_IF_ERROR(add(p.q, q_width, p.bias.q));
  PROLOGUE_RETURN_IF_ERROR(add(p.k, kv_width, p.bias.k));
  PROLOGUE_RETURN_IF_ERROR(add(p.v, kv_width, p.bias.v));
  PROLOGUE_RETURN_IF_ERROR(add_norm(p.q, p.num_q_heads, p.q_norm));
  PROLOGUE_RETURN_IF_ERROR(add_norm(p.k, p.num_kv_heads, p.k_norm));
  PROLOGUE_RETURN_IF_ERROR(turn(p.q, p.num_q_heads, p.q_out));
  PROLOGUE_RETURN_IF_ERROR(turn(p.k, p.num_kv_heads, in_place(p.k)));
  return kv_write({p.num_tokens, p.num_kv_heads, p.head_dim, p.dtype, p.k, p.v, p.cache, p.places.slot_mapping,
                   p.places.positions, p.rope.max_position, p.faults},
                  execution);
}

#ifdef PROLOGUE_HAS_CUDA
// Runs every instance. The one that attention_prologue() uses is marked.
void run_every_instance(bench::Bench& bench, const Shape& shape, int64_t num_tokens) {
  const std::string name = str_cat("every instance, ", shape.name, " T=", num_tokens);
  bench.run_each(name, [&](bench::Setup& setup) {
    const Problem problem = make_problem(shape, num_tokens, setup);
    AttentionPrologueParams p = problem.params;
    point_at(p, problem, 0);
    bool chosen = false;
    std::vector<bench::NamedCase> cases;
    auto instances = cuda::instances_of(p, true);
    for (auto& instance : cuda::described_instances_of(p)) instances.push_back(std::move(instance));
    for (const auto& instance : instances) {
      const bool is_chosen = !chosen && num_tokens <= instance.max_tokens;
      chosen = chosen || is_chosen;
      const auto run = [=](const Execution& execution, int64_t rotation) mutable {
        point_at(p, problem, rotation);
        return instance.launch(p, execution.stream);
      };
      cases.push_back({instance.name + (is_chosen ? " (chosen)" : ""), {problem.bytes, run}});
    }
    return cases;
  });
}
#endif

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  const bool cuda = bench.execution().device == Device::cuda;
  const std::vector<int64_t> all =
      cuda ? std::vector<int64_t>{1, 16, 64, 256, 1024, 4096, 8192, 16384} : std::vector<int64_t>{1, 16, 512};
  const std::vector<int64_t> few = cuda ? std::vector<int64_t>{1, 64, 1024, 8192} : std::vector<int64_t>{1, 512};

  // A copy of the data of the base set is measured for comparison.
  for (const int64_t num_tokens : all) {
    const int64_t bytes = num_tokens * 48 * 128 * 2;
    bench.run(str_cat("copy T=", num_tokens), [&](bench::Setup& setup) {
      setup.rotate(2 * bytes);
      const std::vector<void*> from = setup.rotated(bytes, DType::bf16), to = setup.rotated(bytes, DType::bf16);
      return bench::Case{2 * bytes, [=](const Execution& execution, int64_t rotation) {
                           const size_t i = static_cast<size_t>(rotation);
                           return bench::copy_in_pairs(to[i], from[i], bytes, execution);
                         }};
    });
  }
  for (const Shape& shape : kShapes) {
    for (const int64_t num_tokens : shape.all_sizes ? all : few) {
      if (shape.cold && num_tokens > 64) continue;
      const std::string row = str_cat(shape.name, " T=", num_tokens);
      if (shape.unfused) {
        bench.run("unfused " + row, [&](bench::Setup& setup) {
          const Problem problem = make_problem(shape, num_tokens, setup);
          AttentionPrologueParams p = problem.params;
          return bench::Case{problem.bytes, [=](const Execution& execution, int64_t rotation) mutable {
                               point_at(p, problem, rotation);
                               return unfused(p, execution);
                             }};
        });
      }
      bench.run("fused " + row, [&](bench::Setup& setup) {
        const Problem problem = make_problem(shape, num_tokens, setup);
        AttentionPrologueParams p = problem.params;
        return bench::Case{problem.bytes,
                           [=](const Execution& execution, int64_t rotation) mutable {
                             point_at(p, problem, rotation);
                             return attention_prologue(p, execution);
                           },
                           0.0, "unfused " + row};
      });
    }
  }

  // The same by a plan, whose kernel may be made for the call.
  for (const Shape& shape : kShapes) {
    for (const int64_t num_tokens : shape.all_sizes ? all : few) {
      if (shape.cold && num_tokens > 64) continue;
      const std::string row = str_cat(shape.name, " T=", num_tokens);
      bench.run("planned " + row, [&](bench::Setup& setup) {
        const Problem problem = make_problem(shape, num_tokens, setup);
        AttentionPrologueParams p = problem.params;
        point_at(p, problem, 0);
        const Result<AttentionProloguePlan> plan = AttentionProloguePlan::create(p, num_tokens, setup.execution());
        return bench::Case{problem.bytes,
                           [=](const Execution& execution, int64_t rotation) mutable {
                             if (!plan.ok()) return plan.status();
                             point_at(p, problem, rotation);
                             return plan->run(p, execution);
                           },
                           0.0, "fused " + row};
      });
    }
  }

#ifdef PROLOGUE_HAS_CUDA
  if (cuda && bench.asked_for("every instance")) {
    for (const Shape& shape : kShapes) {
      if (shape.cold || shape.in_place) continue;
      for (const int64_t num_tokens : {1, 16, 64, 512, 1024, 4096, 8192}) run_every_instance(bench, shape, num_tokens);
    }
  }
#endif

  // The rows have the time of a call on the calling thread.
  if (cuda) {
    bench.run_host("host: bare launch", [](bench::Setup&) {
      return bench::Case{0, [](const Execution& execution, int64_t) { return bench::launch_nothing(execution); }};
    });
  }
  for (const bool planned : {true, false}) {
    bench.run_host(planned ? "host: plan" : "host: call", [&](bench::Setup& setup) {
      const Problem problem = make_problem(kShapes[0], 1, setup);
      AttentionPrologueParams p = problem.params;
      point_at(p, problem, 0);
      const Result<AttentionProloguePlan> plan = AttentionProloguePlan::create(p, 1, setup.execution());
      return bench::Case{0, [=](const Execution& execution, int64_t) {
                           if (!plan.ok()) return plan.status();
                           return planned ? plan->run(p, execution) : attention_prologue(p, execution);
                         }};
    });
  }
  return bench.finish();
}
