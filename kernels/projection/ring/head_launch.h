// The projection and the prologue of up to 64 tokens, in one kernel with a weight ring: which calls are done in which way. Internal, for CUDA.
//   ring/head_pairs_kernel.cuh   heads rotated as a whole or not at all, without steps that need a whole head
//   ring/head_kernel.cuh    all others
#pragma once

#include <span>
#include <string>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>
#include <prologue/kernels/projection/ring/head_kernel.cuh>

namespace prologue::cuda {

struct QkvRingInstance {
  bool of_pairs;
  int vector;  // channels in one access of the prologue; not of pairs: heads have 64 * vector channels at most
  int features;
  int fewest_rows, most_rows;  // of a block
  int most_tokens;
  int64_t (*place)(RingArgs&, int64_t room);
  void (*kernel)(QkvRingArgs, MoreArgs);
};

// In the order in which they are chosen (qkv_ring_instances_*_cuda.cu).
std::span<const QkvRingInstance> float16_qkv_ring_instances();
std::span<const QkvRingInstance> bfloat16_qkv_ring_instances();

std::span<const QkvRingInstance> qkv_ring_instances_of(DType type);
std::string qkv_ring_instance_name(DType dtype, const QkvRingInstance& instance);

struct QkvRingLaunch {
  const QkvRingInstance* instance = nullptr;
  QkvRingArgs args;
  int64_t blocks = 0;
  int64_t shared_bytes = 0;
};

// With 2^log_blocks blocks in a cluster. `prologue`: of `p`, with q, k and v somewhere. No instance: it cannot do the call.
QkvRingLaunch qkv_ring_launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
                                 const QkvRingInstance& instance, int log_blocks);
// With so many heads in a block, of which it has pairs.
QkvRingLaunch qkv_pairs_launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
                                  const QkvRingInstance& instance, int64_t heads);
// The launch that is faster than others. No instance: there is none.
QkvRingLaunch choose_qkv_ring(const QkvPrologueParams& p, const AttentionPrologueParams& prologue);
Status run(const QkvRingLaunch& chosen, const QkvPrologueParams& p, const AttentionPrologueParams& prologue, cudaStream_t stream);

}  // namespace prologue::cuda
