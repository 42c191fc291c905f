// The instances that ship: tables, one per element type (qkv_prologue_instances_*_cuda.cu), walked in order.
#pragma once

#include <span>

#include <prologue/kernels/qkv_prologue/qkv_prologue_kernel.cuh>

namespace prologue::cuda {

struct ProjectionInstance {
  int vector;        // channels in one access of the prologue: heads have 64 * vector channels at most
  int features;      // beside kMoreSteps
  int token_tiles;   // eights of tokens, at most
  int max_threads;
  void (*kernel)(ProjectionArgs, MoreArgs);
};

std::span<const ProjectionInstance> float16_projections();
std::span<const ProjectionInstance> bfloat16_projections();

template <class T, int V, int kFeatures, int kTokenTiles>
ProjectionInstance projection_instance() {
  constexpr int kThreads = 64 * V / 16 * 32;
  constexpr int kMaxThreads = kThreads < 256 ? 256 : kThreads;
  return {V, kFeatures, kTokenTiles, kMaxThreads, qkv_prologue_kernel<T, V, kTokenTiles, kMaxThreads, kFeatures | kMoreSteps>};
}

// What most models need is compiled for more numbers of tokens.
template <class T>
std::span<const ProjectionInstance> projections_of() {
  constexpr int kAll = kLayouts | kEveryStep;
  static const ProjectionInstance kInstances[] = {
      projection_instance<T, 2, 0, 1>(),
      projection_instance<T, 2, 0, 2>(),
      projection_instance<T, 2, 0, 4>(),
      projection_instance<T, 2, 0, 8>(),
      projection_instance<T, 2, kAll, 2>(),
      projection_instance<T, 2, kAll, 8>(),
      projection_instance<T, 2, kAll | kDerived, 2>(),
      projection_instance<T, 2, kAll | kDerived, 8>(),
      projection_instance<T, 2, kAll | kAxes, 2>(),
      projection_instance<T, 2, kAll | kAxes, 8>(),
      projection_instance<T, 4, 0, 2>(),
      projection_instance<T, 4, kAll, 8>(),
      projection_instance<T, 4, kAll | kDerived, 8>(),
      projection_instance<T, 4, kAll | kAxes, 8>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
