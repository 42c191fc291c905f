#include <bit>

#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/projection/ring/output_launch.h>
#include <prologue/kernels/projection/ring/head_launch.h>
#include <prologue/kernels/projection/finish/head.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/projection/ring/head_pairs_kernel.cuh>

namespace prologue::cuda {

std::span<const QkvRingInstance> qkv_ring_instances_of(DType type) {
  if (type == DType::f16) return float16_qkv_ring_instances();
  if (type == DType::bf16) return bfloat16_qkv_ring_instances();
  return {};
}

std::string qkv_ring_instance_name(DType dtype, const QkvRingInstance& instance) {
  return str_cat(dtype_name(dtype), ", ring of ", instance.most_tokens, " tokens, ", instance.most_rows, " rows",
                 instance.of_pairs ? ", pairs" : "", token_head_name(instance));
}

namespace {

bool has_room(const QkvPrologueParams& p, const AttentionPrologueParams& prologue, const QkvRingInstance& instance,
              int64_t rows) {
  return !p.batch_invariant && prologue.num_tokens <= instance.most_tokens && rows >= instance.fewest_rows &&
         rows <= instance.most_rows &&
         can_ring(prologue.dtype, prologue.num_tokens, p.hidden_size, p.hidden_states, p.hidden_stride, p.norm, p.weight);
}

int64_t heads_of(const AttentionPrologueParams& prologue) { return prologue.num_q_heads + 2 * prologue.num_kv_heads; }

bool serves_pairs(const QkvRingInstance& instance, const AttentionPrologueParams& p) {
  const bool interleaved = (instance.features & kLayouts) != 0;
  const bool whole = interleaved ? p.rope.style == RopeStyle::interleaved && p.rope.rotary_dim == p.head_dim
                                 : p.rope.rotary_dim == p.head_dim || p.rope.rotary_dim == 0;
  return whole && p.head_dim % (2 * kPairsOfBlock) == 0 && v_head_dim(p) == p.head_dim && widest_vector(p) >= instance.vector &&
         (features_of(p, instance.vector) & ~(kPerToken | kDerived)) == instance.features;
}

}  // namespace

QkvRingLaunch qkv_ring_launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
                                 const QkvRingInstance& instance, int log_blocks) {
  QkvRingLaunch launch;
  QkvRingArgs& a = launch.args;
  const int64_t rows = prologue.head_dim >> log_blocks;
  if (instance.of_pairs || !serves_token_heads(instance, prologue) || rows << log_blocks != prologue.head_dim || rows % 8 != 0 ||
      !has_room(p, prologue, instance, rows)) {
    return launch;
  }
  fill_ring_input(a, prologue.dtype, prologue.num_tokens, p.hidden_size, p.norm);
  a.rows = a.box_rows = static_cast<int32_t>(rows);
  a.log_blocks = log_blocks;
  a.lanes = lanes_of_token_heads(instance, prologue);
  a.head_dim = static_cast<int32_t>(prologue.head_dim);
  const int64_t of_ring = instance.place(a, kMaxSharedBytes - bytes_of_heads(a));
  a.heads_at = static_cast<int32_t>((of_ring + 15) / 16 * 16);
  launch.shared_bytes = a.heads_at + bytes_of_heads(a);
  launch.blocks = heads_of(prologue) << log_blocks;
  const bool fits = a.stages >= 1 && launch.shared_bytes <= kMaxSharedBytes;
  const OuterDim neighbours = {heads_of(prologue) * prologue.head_dim, p.hidden_size, rows}, one = {1, 8, 1};
  if (fits && encode_ring_maps(a, p.hidden_states, p.hidden_stride, p.weight, {neighbours, one, boxes_of_k(a)})) {
    launch.instance = &instance;
  }
  return launch;
}

QkvRingLaunch qkv_pairs_launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
                                  const QkvRingInstance& instance, int64_t heads) {
  QkvRingLaunch launch;
  QkvRingArgs& a = launch.args;
  const int64_t rows = heads * 2 * kPairsOfBlock, k = p.hidden_size;
  if (!instance.of_pairs || !serves_pairs(instance, prologue) || !has_room(p, prologue, instance, rows)) return launch;
  fill_ring_input(a, prologue.dtype, prologue.num_tokens, k, p.norm);
  const bool halves = (instance.features & kLayouts) == 0;
  a.rows = static_cast<int32_t>(rows);
  a.box_rows = halves ? kPairsOfBlock : 2 * kPairsOfBlock;  // from one block to the next
  a.head_dim = static_cast<int32_t>(prologue.head_dim);
  a.num_heads = static_cast<int32_t>(heads_of(prologue));
  a.heads = static_cast<int32_t>(heads);
  a.log_tokens = std::bit_width(static_cast<uint64_t>(prologue.num_tokens - 1));
  const int64_t bytes = bytes_of_pairs(prologue.num_tokens), of_ring = instance.place(a, kMaxSharedBytes - bytes);
  a.heads_at = static_cast<int32_t>((of_ring + 15) / 16 * 16);
  launch.shared_bytes = a.heads_at + bytes;
  launch.blocks = prologue.head_dim / (2 * kPairsOfBlock) * ((heads_of(prologue) + heads - 1) / heads);
  const bool fits = a.stages >= 1 && launch.shared_bytes <= kMaxSharedBytes;
  const int64_t parts = halves ? 2 : 1, rows_of_part = prologue.head_dim / parts;  // of a head
  const OuterDim pairs = {rows_of_part, k, a.box_rows}, both = {parts, rows_of_part * k, parts};
  const OuterDim of_heads = {heads_of(prologue), prologue.head_dim * k, heads};
  if (fits && encode_ring_maps(a, p.hidden_states, p.hidden_stride, p.weight, {pairs, both, of_heads, boxes_of_k(a)})) {
    launch.instance = &instance;
  }
  return launch;
}

// As many blocks as there are places for: a second round would take as long as the first. Blocks of few rows are slow where rows are long.
// Measured in whole layers (bench_projection).
constexpr int64_t kFewestTokens = 2, kFewestRows = 16, kRowsOfLongOnes = 32, kLongRows = 4096;

namespace {

// Of a block with pairs: the fewest for which there are places. 0: there are not.
int64_t heads_of_pairs(const AttentionPrologueParams& prologue, int64_t places) {
  const int64_t blocks_of_head = prologue.head_dim / (2 * kPairsOfBlock);
  if (blocks_of_head == 0 || blocks_of_head > places) return 0;
  int64_t heads = 1;
  while (blocks_of_head * ((heads_of(prologue) + heads - 1) / heads) > places) ++heads;
  return heads;
}

}  // namespace

QkvRingLaunch choose_qkv_ring(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  if (prologue.num_tokens < kFewestTokens) return {};
  const int64_t heads = heads_of(prologue), places = ring_multiprocessors();
  const int64_t fewest_rows = p.hidden_size > kLongRows ? kRowsOfLongOnes : kFewestRows;
  const int64_t of_block = heads_of_pairs(prologue, places);
  if (of_block * 2 * kPairsOfBlock >= fewest_rows) {
    for (const QkvRingInstance& instance : qkv_ring_instances_of(prologue.dtype)) {
      const QkvRingLaunch launch = qkv_pairs_launch_of(p, prologue, instance, of_block);
      if (launch.instance != nullptr) return launch;
    }
  }
  for (const QkvRingInstance& instance : qkv_ring_instances_of(prologue.dtype)) {
    for (int log_blocks = std::countr_zero(static_cast<unsigned>(kMaxBlocksOfCluster)); log_blocks >= 0; --log_blocks) {
      if (prologue.head_dim >> log_blocks < kFewestRows || heads << log_blocks > places) continue;
      if (prologue.head_dim >> log_blocks < fewest_rows) return {};
      const QkvRingLaunch launch = qkv_ring_launch_of(p, prologue, instance, log_blocks);
      if (launch.instance != nullptr) return launch;
    }
  }
  return {};
}

Status run(const QkvRingLaunch& chosen, const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
           cudaStream_t stream) {
  MoreArgs more;
  fill(prologue, features_of(prologue, chosen.instance->vector), more);
  LaunchAttributes attributes(1 << chosen.args.log_blocks, p.overlaps);
  const LaunchShape shape = {grid_extent(chosen.blocks),
                             static_cast<unsigned>(chosen.instance->of_pairs ? kPairsThreads : kRingThreads),
                             static_cast<size_t>(chosen.shared_bytes), attributes.span()};
  return launch("qkv_prologue", chosen.instance->kernel, shape, stream, chosen.args, more);
}

}  // namespace prologue::cuda
