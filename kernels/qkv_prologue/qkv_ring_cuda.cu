#include <bit>

#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/projection/projection_ring.h>
#include <prologue/kernels/qkv_prologue/qkv_ring.h>
#include <prologue/kernels/qkv_prologue/token_head_choice.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

std::span<const QkvRingInstance> qkv_ring_instances_of(DType type) {
  if (type == DType::f16) return float16_qkv_ring_instances();
  if (type == DType::bf16) return bfloat16_qkv_ring_instances();
  return {};
}

std::string qkv_ring_instance_name(DType dtype, const QkvRingInstance& instance) {
  return str_cat(dtype_name(dtype), ", ring of ", instance.most_tokens, " tokens", token_head_name(instance));
}

QkvRingLaunch qkv_ring_launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
                                 const QkvRingInstance& instance, int log_blocks) {
  QkvRingLaunch launch;
  QkvRingArgs& a = launch.args;
  const int64_t heads = prologue.num_q_heads + 2 * prologue.num_kv_heads, rows = prologue.head_dim >> log_blocks;
  if (p.batch_invariant || prologue.num_tokens > instance.most_tokens || !serves_token_heads(instance, prologue) ||
      rows << log_blocks != prologue.head_dim || rows % 8 != 0 || rows > instance.most_rows ||
      !can_ring(prologue.dtype, prologue.num_tokens, p.hidden_size, p.hidden_states, p.hidden_stride, p.norm, p.weight)) {
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
  launch.blocks = heads << log_blocks;
  const bool fits = a.stages >= 1 && launch.shared_bytes <= kMaxSharedBytes;
  if (fits && encode_ring_maps(a, p.hidden_states, p.hidden_stride, p.weight, heads * prologue.head_dim, 1)) {
    launch.instance = &instance;
  }
  return launch;
}

// As many blocks as there are places for: a second round would take as long as the first. Blocks of few rows are slow where rows are long,
// and for less than eight tokens of a small model weights through registers are faster. Measured in whole layers (bench_projection).
constexpr int64_t kFewestTokens = 3, kFewestTokensOfShortRows = 8, kFewestRows = 16, kRowsOfLongOnes = 32, kLongRows = 4096;

QkvRingLaunch choose_qkv_ring(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  if (prologue.num_tokens < (p.hidden_size < kLongRows ? kFewestTokensOfShortRows : kFewestTokens)) return {};
  const int64_t heads = prologue.num_q_heads + 2 * prologue.num_kv_heads;
  const int64_t fewest_rows = p.hidden_size > kLongRows ? kRowsOfLongOnes : kFewestRows;
  for (const QkvRingInstance& instance : qkv_ring_instances_of(prologue.dtype)) {
    for (int log_blocks = std::countr_zero(static_cast<unsigned>(kMaxBlocksOfCluster)); log_blocks >= 0; --log_blocks) {
      if (prologue.head_dim >> log_blocks < kFewestRows || heads << log_blocks > ring_multiprocessors()) continue;
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
  const LaunchShape shape = {grid_extent(chosen.blocks), kRingThreads, static_cast<size_t>(chosen.shared_bytes),
                             attributes.span()};
  return launch("qkv_prologue", chosen.instance->kernel, shape, stream, chosen.args, more);
}

}  // namespace prologue::cuda
