// The instances that ship: tables, one per element type (qkv_vector_instances_*_cuda.cu).
#pragma once

#include <prologue/kernels/projection/vector/head_launch.h>

namespace prologue::cuda {

template <class T, int V, int kFeatures, bool kTurns = false>
QkvVectorInstance qkv_vector_instance() {
  return {V, kFeatures, kTurns, qkv_vector_kernel<T, V, kFeatures, kTurns>};
}

template <class T>
std::span<const QkvVectorInstance> qkv_vector_table() {
  constexpr int kEvery = kMoreSteps | kLayouts | kEveryStep;
  static const QkvVectorInstance kInstances[] = {
      qkv_vector_instance<T, 2, 0>(),
      qkv_vector_instance<T, 2, kLayouts>(),
      qkv_vector_instance<T, 2, kBias>(),
      qkv_vector_instance<T, 2, kNorm>(),
      qkv_vector_instance<T, 2, kGivenScales>(),
      qkv_vector_instance<T, 2, kEvery>(),
      qkv_vector_instance<T, 4, kNorm>(),
      qkv_vector_instance<T, 4, kEvery>(),
      qkv_vector_instance<T, 2, 0, true>(),
      qkv_vector_instance<T, 2, kLayouts, true>(),
      qkv_vector_instance<T, 2, kNorm, true>(),
      qkv_vector_instance<T, 2, kEvery, true>(),
      qkv_vector_instance<T, 4, kEvery, true>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
