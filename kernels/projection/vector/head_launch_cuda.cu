#include <bit>

#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/projection/vector/choice.h>
#include <prologue/kernels/projection/vector/head_launch.h>
#include <prologue/kernels/projection/finish/head.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

std::span<const QkvVectorInstance> qkv_vector_instances_of(DType type) {
  if (type == DType::f16) return float16_qkv_vector_instances();
  if (type == DType::bf16) return bfloat16_qkv_vector_instances();
  return {};
}

std::string qkv_vector_instance_name(DType dtype, const QkvVectorInstance& instance) {
  return str_cat(dtype_name(dtype), ", vector", token_head_name(instance), instance.turns ? ", turns" : "");
}

QkvVectorLaunch qkv_vector_launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
                                     const QkvVectorInstance& instance, int64_t rows, int log_ways) {
  QkvVectorLaunch launch;
  QkvVectorArgs& a = launch.args;
  if (prologue.num_tokens != 1 || p.batch_invariant || (rows > kVectorRowsAtOnce) != instance.turns ||
      !serves_token_heads(instance, prologue) ||
      !can_stream(prologue.dtype, 1, p.hidden_size, p.hidden_states, p.hidden_stride, p.norm, p.weight) ||
      !fill_vector(a, prologue.dtype, p.hidden_size, p.hidden_states, p.norm, p.weight, rows, log_ways)) {
    return launch;
  }
  const int64_t blocks = prologue.head_dim / rows_of_block(a);
  if (blocks * rows_of_block(a) != prologue.head_dim || !std::has_single_bit(static_cast<uint64_t>(blocks)) || blocks < 2 ||
      blocks > kMaxBlocksOfCluster) {
    return launch;
  }
  a.log_blocks = std::countr_zero(static_cast<uint64_t>(blocks));
  a.lanes = lanes_of_token_heads(instance, prologue);
  a.head_dim = static_cast<int32_t>(prologue.head_dim);
  launch.blocks = (prologue.num_q_heads + 2 * prologue.num_kv_heads) * blocks;
  launch.instance = &instance;
  return launch;
}

// In four turns, if a head's rows are too many for a cluster otherwise: with a block for most SMs, and none of a second round. Measured in whole
// layers (bench_projection): in two turns, with twice as many blocks, 8B is slower where attention reads 512 tokens.
constexpr int64_t kFewestBlocksOfTurns = 132, kMostBlocksOfTurns = 264;

QkvVectorLaunch choose_qkv_vector(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  for (const QkvVectorInstance& instance : qkv_vector_instances_of(prologue.dtype)) {
    const int log_ways = fewest_ways(prologue.dtype, p.hidden_size);
    const QkvVectorLaunch launch =
        qkv_vector_launch_of(p, prologue, instance, instance.turns ? kMostVectorRows : kVectorRowsAtOnce, log_ways);
    const bool fits = !instance.turns || (launch.blocks >= kFewestBlocksOfTurns && launch.blocks <= kMostBlocksOfTurns);
    if (launch.instance != nullptr && fits) return launch;
  }
  return {};
}

Status run(const QkvVectorLaunch& chosen, const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
           cudaStream_t stream) {
  MoreArgs more;
  fill(prologue, features_of(prologue, chosen.instance->vector), more);
  LaunchAttributes attributes(1 << chosen.args.log_blocks, p.overlaps);
  const LaunchShape shape = {grid_extent(chosen.blocks), kVectorThreads, static_cast<size_t>(shared_bytes_of(chosen.args)),
                             attributes.span()};
  return launch("qkv_prologue", chosen.instance->kernel, shape, stream, chosen.args, more);
}

}  // namespace prologue::cuda
