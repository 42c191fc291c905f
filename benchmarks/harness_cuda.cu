// This is the CUDA half of the harness: graph replays under events, and the yardstick copy.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <vector>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

#include "benchmarks/harness.h"

namespace prologue::bench::cuda {

namespace {

// Thread i copies the i-th 16 bytes.
__global__ void copy_kernel(const uint4* source, uint4* target, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) target[i] = source[i];
}

// Thread i of a block copies the vectors i and i + blockDim.x of the block's range.
__global__ void copy_pairs_kernel(const uint4* __restrict__ source, uint4* __restrict__ target, int64_t count) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (2 * blockDim.x) + threadIdx.x, second = first + blockDim.x;
  uint4 a = {}, b = {};
  if (first < count) a = source[first];
  if (second < count) b = source[second];
  if (first < count) target[first] = a;
  if (second < count) target[second] = b;
}

struct Parameters {
  char bytes[224];
};
__global__ void empty_kernel(const __grid_constant__ Parameters) {}

constexpr int64_t kCallsPerGraph = 20;
constexpr int kReplays = 31;

// Owns what a measurement allocates, so that an early return leaks nothing.
struct Measurement {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  ~Measurement() {
    if (stop != nullptr) cudaEventDestroy(stop);
    if (start != nullptr) cudaEventDestroy(start);
    if (instance != nullptr) cudaGraphExecDestroy(instance);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

Status record(const Operation& operation, int64_t calls, int64_t rotations, const Execution& execution) {
  for (int64_t i = 0; i < calls; ++i) PROLOGUE_RETURN_IF_ERROR(operation(execution, i % rotations));
  return {};
}

}  // namespace

struct Gpu {
  std::string description;
  int64_t l2_bytes;
  cudaStream_t stream;
};

Result<Gpu> open() {
  Gpu gpu = {};
  cudaDeviceProp properties;
  int runtime = 0;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, 0));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaRuntimeGetVersion(&runtime));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
  gpu.description =
      str_cat(properties.name, ", ", properties.multiProcessorCount, " SMs, CUDA ", runtime / 1000, ".", runtime % 1000 / 10);
  gpu.l2_bytes = properties.l2CacheSize;
  return gpu;
}

// Successive calls use successive rotations; the graph contains every rotation equally often.
Result<double> time_us(const Operation& operation, int64_t rotations, const Execution& execution) {
  Measurement m;
  const int64_t calls = round_up(kCallsPerGraph, rotations);
  PROLOGUE_RETURN_IF_ERROR(operation(execution, 0));  // first use: lazy loading and first-call choices stay outside the capture
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(execution.stream));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(execution.stream, cudaStreamCaptureModeThreadLocal));
  const Status recorded = record(operation, calls, rotations, execution);
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamEndCapture(execution.stream, &m.graph));
  PROLOGUE_RETURN_IF_ERROR(recorded);
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGraphInstantiate(&m.instance, m.graph, 0));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventCreate(&m.start));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventCreate(&m.stop));
  std::vector<float> samples;
  for (int replay = -3; replay < kReplays; ++replay) {  // the negative ones warm up
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventRecord(m.start, execution.stream));
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(m.instance, execution.stream));
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventRecord(m.stop, execution.stream));
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(m.stop));
    float milliseconds = 0.0f;
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, m.start, m.stop));
    if (replay >= 0) samples.push_back(milliseconds);
  }
  std::nth_element(samples.begin(), samples.begin() + kReplays / 2, samples.end());
  return static_cast<double>(samples[kReplays / 2]) * 1e3 / static_cast<double>(calls);
}

Status copy(void* target, const void* source, int64_t num_bytes, const Execution& execution) {
  const int64_t count = num_bytes / 16;
  const dim3 grid(static_cast<unsigned>((count + 255) / 256));
  return prologue::cuda::launch("copy", copy_kernel, {grid, dim3(256)}, execution.stream, static_cast<const uint4*>(source),
                                static_cast<uint4*>(target), count);
}

Status copy_in_pairs(void* target, const void* source, int64_t num_bytes, const Execution& execution) {
  constexpr int64_t kThreads = 384;
  const int64_t count = num_bytes / 16;
  const dim3 grid(static_cast<unsigned>((count + 2 * kThreads - 1) / (2 * kThreads)));
  return prologue::cuda::launch("copy", copy_pairs_kernel, {grid, dim3(kThreads)}, execution.stream,
                                static_cast<const uint4*>(source), static_cast<uint4*>(target), count);
}

Status launch_nothing(const Execution& execution) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(128);
  config.stream = execution.stream;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaLaunchKernelEx(&config, empty_kernel, Parameters()));
  return {};
}

}  // namespace prologue::bench::cuda
