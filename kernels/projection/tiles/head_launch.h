// The prologue behind the QKV GEMM of a prompt, in one kernel (tiles/head_kernel.cuh): which calls it does. Internal, for CUDA. A norm before
// the projection is not part of it: calls have x as hidden_states.
#pragma once

#include <span>
#include <string>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>
#include <prologue/kernels/projection/tiles/head_kernel.cuh>

namespace prologue::cuda {

struct QkvGemmInstance {
  int columns;  // of a tile
  int features;
  int heads_at_once;  // of one tensor, unless tiles have parts
  int shared_bytes;
  void (*kernel)(QkvGemmArgs, MoreArgs);
};

std::span<const QkvGemmInstance> float16_qkv_gemm_instances();
std::span<const QkvGemmInstance> bfloat16_qkv_gemm_instances();

std::span<const QkvGemmInstance> qkv_gemm_instances_of(DType type);
std::string qkv_gemm_instance_name(DType dtype, const QkvGemmInstance& instance);

struct QkvGemmLaunch {
  const QkvGemmInstance* instance = nullptr;
  QkvGemmArgs args;
  int64_t blocks = 0;
};

// `prologue`: of `p`, with q, k and v somewhere. No instance: it cannot do the call.
QkvGemmLaunch qkv_gemm_launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
                                 const QkvGemmInstance& instance);
// The launch that is faster than separate operations. No instance: there is none.
QkvGemmLaunch choose_qkv_gemm(const QkvPrologueParams& p, const AttentionPrologueParams& prologue);
Status run(const QkvGemmLaunch& chosen, const QkvPrologueParams& p, const AttentionPrologueParams& prologue, cudaStream_t stream);

}  // namespace prologue::cuda
