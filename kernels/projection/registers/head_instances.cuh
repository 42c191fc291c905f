// The instances that ship: tables, one per element type (qkv_prologue_instances_*_cuda.cu), walked in order.
#pragma once

#include <span>

#include <prologue/kernels/projection/registers/head_kernel.cuh>

namespace prologue::cuda {

struct QkvInstance {
  int vector;       // channels in one access of the prologue: heads have 64 * vector channels at most
  int features;     // beside kMoreSteps
  int token_tiles;  // eights of tokens, at most
  int finishers;    // warps of a block that do not multiply
  void (*kernel)(QkvArgs, MoreArgs);
};

std::span<const QkvInstance> float16_qkv_instances();
std::span<const QkvInstance> bfloat16_qkv_instances();

template <class T, int V, int kFeatures, int kTokenTiles, int kFinishers = 0>
QkvInstance qkv_instance() {
  constexpr int kThreads = 64 * V / 16 * 32;
  constexpr int kMultipliers = kThreads < 256 ? 256 : kThreads;
  return {V, kFeatures, kTokenTiles, kFinishers,
          qkv_prologue_kernel<T, V, kTokenTiles, kMultipliers, kFinishers, kFeatures | kMoreSteps>};
}

// What most models need (interleaved pairs: Llama and Mistral from GGUF files) is compiled for up to 8 tokens: more have a weight ring.
template <class T>
std::span<const QkvInstance> qkv_instances_of() {
  constexpr int kAll = kLayouts | kEveryStep;
  static const QkvInstance kInstances[] = {
      qkv_instance<T, 2, 0, 1, 1>(),         qkv_instance<T, 2, 0, 1>(),
      qkv_instance<T, 2, kLayouts, 1, 1>(),  qkv_instance<T, 2, kLayouts, 1>(),
      qkv_instance<T, 2, kAll, 2>(),         qkv_instance<T, 2, kAll | kDerived, 2>(),
      qkv_instance<T, 2, kAll | kAxes, 2>(), qkv_instance<T, 4, 0, 2>(),
      qkv_instance<T, 4, kAll, 2>(),         qkv_instance<T, 4, kAll | kDerived, 2>(),
      qkv_instance<T, 4, kAll | kAxes, 2>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
