// The instances that ship: tables, one per element type (qkv_gemm_instances_*_cuda.cu).
#pragma once

#include <prologue/kernels/projection/tiles/head_launch.h>

namespace prologue::cuda {

template <class T, int kColumns, int kFeatures, int kAtOnce = 1>
QkvGemmInstance qkv_gemm_instance() {
  return {kColumns, kFeatures, kAtOnce, static_cast<int>(sizeof(QkvGemmShared<T, kColumns>)),
          qkv_gemm_kernel<T, kColumns, kFeatures, kAtOnce>};
}

template <class T>
std::span<const QkvGemmInstance> qkv_gemm_table() {
  static const QkvGemmInstance kInstances[] = {
      qkv_gemm_instance<T, 256, 0, 2>(),
      qkv_gemm_instance<T, 256, kLayouts, 2>(),
      qkv_gemm_instance<T, 256, kBias, 2>(),
      qkv_gemm_instance<T, 256, kNorm, 2>(),
      qkv_gemm_instance<T, 256, kGivenScales, 2>(),
      qkv_gemm_instance<T, 256, 0>(),
      qkv_gemm_instance<T, 256, kLayouts>(),
      qkv_gemm_instance<T, 256, kBias>(),
      qkv_gemm_instance<T, 256, kNorm>(),
      qkv_gemm_instance<T, 256, kMoreSteps>(),
      qkv_gemm_instance<T, 256, kMoreSteps | kLayouts | kEveryStep>(),
      qkv_gemm_instance<T, 192, 0, 3>(),
      qkv_gemm_instance<T, 192, kLayouts, 3>(),
      qkv_gemm_instance<T, 192, kBias, 3>(),
      qkv_gemm_instance<T, 192, kNorm, 3>(),
      qkv_gemm_instance<T, 192, kGivenScales, 3>(),
      qkv_gemm_instance<T, 128, 0>(),
      qkv_gemm_instance<T, 128, kLayouts>(),
      qkv_gemm_instance<T, 128, kBias>(),
      qkv_gemm_instance<T, 128, kNorm>(),
      qkv_gemm_instance<T, 128, kGivenScales>(),
      qkv_gemm_instance<T, 128, kMoreSteps>(),
      qkv_gemm_instance<T, 128, kMoreSteps | kLayouts | kEveryStep>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
