// This is the engine's own device: memory, copies and a stream, on a GPU (ENGINE_CUDA) or the CPU.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <prologue/kernels/base/execution.h>

#ifdef ENGINE_CUDA
#include <cuda_runtime_api.h>
#endif

class Machine {
 public:
  explicit Machine(bool use_gpu) {
#ifdef ENGINE_CUDA
    gpu_ = use_gpu;
    if (gpu_) must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
#else
    (void)use_gpu;
#endif
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine() {
#ifdef ENGINE_CUDA
    for (void* block : gpu_ ? blocks_ : std::vector<void*>()) cudaFree(block);
    if (gpu_) cudaStreamDestroy(stream_);
#endif
    for (void* block : gpu_ ? std::vector<void*>() : blocks_) std::free(block);
  }

  // Where the library runs: the engine's stream is a cudaStream_t, which is a CUstream_st*.
  prologue::Execution execution() const {
#ifdef ENGINE_CUDA
    if (gpu_) return {prologue::Device::cuda, 1, stream_};
#endif
    return {prologue::Device::cpu, 2};
  }

  // Allocates memory filled with zeros; freed with the machine.
  template <class T>
  T* allocate(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    void* block = nullptr;
#ifdef ENGINE_CUDA
    if (gpu_) {
      must(cudaMalloc(&block, bytes));
      must(cudaMemset(block, 0, bytes));
      must(cudaDeviceSynchronize());
    }
#endif
    if (!gpu_) std::memset(block = std::aligned_alloc(256, bytes), 0, bytes);
    blocks_.push_back(block);
    return static_cast<T*>(block);
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* target = allocate<T>(static_cast<int64_t>(values.size()));
    copy_in(target, values.data(), values.size());
    return target;
  }
  template <class T>
  void copy_in(T* target, const T* source, size_t count) {
#ifdef ENGINE_CUDA
    if (gpu_) must(cudaMemcpyAsync(target, source, count * sizeof(T), cudaMemcpyHostToDevice, stream_));
#endif
    if (!gpu_) std::memcpy(target, source, count * sizeof(T));
  }
  // Waits for all earlier work.
  template <class T>
  void copy_out(T* target, const T* source, size_t count) {
#ifdef ENGINE_CUDA
    if (gpu_) must(cudaMemcpyAsync(target, source, count * sizeof(T), cudaMemcpyDeviceToHost, stream_));
    if (gpu_) must(cudaStreamSynchronize(stream_));
#endif
    if (!gpu_) std::memcpy(static_cast<void*>(target), source, count * sizeof(T));
  }

 private:
#ifdef ENGINE_CUDA
  static void must(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "embed_attention: %s\n", cudaGetErrorString(error));
    std::exit(1);
  }
  cudaStream_t stream_ = nullptr;
#endif
  bool gpu_ = false;
  std::vector<void*> blocks_;
};
