// The emulator does what the CUDA manual says of barriers, warps and conversions.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <vector>

namespace {

template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  cudaLaunchConfig_t config;
  config.gridDim = grid;
  config.blockDim = block;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

__global__ void number_threads(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
  const unsigned in_block = threadIdx.x + blockDim.x * threadIdx.y;
  out[block * blockDim.x * blockDim.y + in_block] = static_cast<int>(1000 * block + in_block);
}

TEST(Emulator, RunsEveryThreadOfEveryBlock) {
  std::vector<int> out(6 * 15, -1);
  ASSERT_EQ(launch(number_threads, {3, 2}, {5, 3}, out.data()), cudaSuccess);
  for (int i = 0; i < 6 * 15; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 1000 * (i / 15) + i % 15);
}

// Each round reads what another thread wrote in the round before.
__global__ void pass_on(int* out) {
  __shared__ int values[100];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 7; ++round) {
    __syncthreads();
    const int next = values[(threadIdx.x + 1) % 100];
    __syncthreads();
    values[threadIdx.x] = next;
  }
  out[threadIdx.x] = values[threadIdx.x];
}

TEST(Emulator, ThreadsWaitAtABarrier) {
  std::vector<int> out(100);
  ASSERT_EQ(launch(pass_on, {1}, {100}, out.data()), cudaSuccess);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], (i + 7) % 100);
}

// Odd warps end early; groups of 8 lanes add up; then whole warps.
__global__ void add_up(int* groups, int* warps) {
  if (threadIdx.x / 32 == 1) return;
  const int group = static_cast<int>(threadIdx.x) % 32 / 8;
  int sum = static_cast<int>(threadIdx.x);
  for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffu << (8 * group), sum, step);
  groups[threadIdx.x] = sum;
  for (int step = 8; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  warps[threadIdx.x] = __shfl_sync(0xffffffffu, sum, 5, 8) + (__any_sync(0xffffffffu, threadIdx.x == 70) != 0 ? 100000 : 0);
}

TEST(Emulator, LanesExchangeValues) {
  std::vector<int> groups(96), warps(96);
  ASSERT_EQ(launch(add_up, {1}, {96}, groups.data(), warps.data()), cudaSuccess);
  for (int i = 0; i < 96; ++i) {
    if (i / 32 == 1) continue;
    EXPECT_EQ(groups[static_cast<size_t>(i)], 8 * (i / 8 * 8) + 28);
    EXPECT_EQ(warps[static_cast<size_t>(i)], 32 * (i / 32 * 32) + 496 + (i / 32 == 2 ? 100000 : 0));
  }
}

__global__ void lose_a_lane(int* out) {
  if (threadIdx.x != 3) *out = __shfl_sync(0xffffffffu, 1, 0);
  __syncthreads();
}

TEST(EmulatorDeathTest, SaysThatALaneDoesNotCome) {
  int out = 0;
  EXPECT_DEATH(launch(lose_a_lane, {1}, {32}, &out), "thread .*: waits for threads that do not come");
}

__global__ void nothing() {}

TEST(Emulator, RefusesWhatNoGpuCanLaunch) {
  EXPECT_EQ(launch(nothing, {0}, {32}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(nothing, {1, 65536}, {32}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(nothing, {1}, {1025}), cudaErrorInvalidConfiguration);
}

TEST(Emulator, KeepsTheWorkOfACapture) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  int value = 1, to = 0;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(&to, &value, sizeof value, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(to, 0);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph), cudaSuccess);
  for (value = 2; value < 5; ++value) {
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    EXPECT_EQ(to, value);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// The library's own conversions are checked against tables; here every code goes there and back.
TEST(Emulator, Fp8CodesSurvive) {
  for (const __nv_fp8_interpretation_t type : {__NV_E4M3, __NV_E5M2}) {
    for (unsigned code = 0; code < 256; ++code) {
      const float value = emulator::from_fp8(static_cast<uint8_t>(code), type);
      if (!std::isfinite(value)) continue;
      EXPECT_EQ(emulator::to_fp8(value, type), code);
    }
  }
  EXPECT_EQ(emulator::to_fp8(1.0625f, __NV_E4M3), 0x38) << "halfway: to the even one";
  EXPECT_EQ(emulator::to_fp8(1.1875f, __NV_E4M3), 0x3a);
  EXPECT_EQ(emulator::to_fp8(1e9f, __NV_E4M3), 0x7e);
  EXPECT_EQ(emulator::to_fp8(-INFINITY, __NV_E5M2), 0xfb);
}

}  // namespace
