// The projection and the prologue of one token, in one kernel (vector/head_kernel.cuh): which calls it does. Internal, for CUDA.
#pragma once

#include <span>
#include <string>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>
#include <prologue/kernels/projection/vector/head_kernel.cuh>

namespace prologue::cuda {

struct QkvVectorInstance {
  int vector;  // channels in one access of the prologue: heads have 64 * vector channels at most
  int features;
  bool turns;  // a warp has more than kVectorRowsAtOnce rows
  void (*kernel)(QkvVectorArgs, MoreArgs);
};

std::span<const QkvVectorInstance> float16_qkv_vector_instances();
std::span<const QkvVectorInstance> bfloat16_qkv_vector_instances();

std::span<const QkvVectorInstance> qkv_vector_instances_of(DType type);
std::string qkv_vector_instance_name(DType dtype, const QkvVectorInstance& instance);

struct QkvVectorLaunch {
  const QkvVectorInstance* instance = nullptr;
  QkvVectorArgs args;
  int64_t blocks = 0;
};

// With so many rows for each warp, of which 2^log_ways share a row. `prologue`: of `p`, with q, k and v somewhere. No instance: it cannot do
// the call.
QkvVectorLaunch qkv_vector_launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
                                     const QkvVectorInstance& instance, int64_t rows, int log_ways);
// The launch that is faster than others. No instance: there is none.
QkvVectorLaunch choose_qkv_vector(const QkvPrologueParams& p, const AttentionPrologueParams& prologue);
Status run(const QkvVectorLaunch& chosen, const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
           cudaStream_t stream);

}  // namespace prologue::cuda
