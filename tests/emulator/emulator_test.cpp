// The emulator does what the CUDA manual says of barriers, warps and conversions.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "tests/emulator/include/prologue/kernels/base/device/hopper.cuh"
#include "tests/emulator/include/prologue/kernels/base/device/instructions.cuh"

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

// Odd warps end early. Groups of 8 lanes add up; then whole warps do.
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

// ---- what Hopper has

using namespace prologue::cuda;

struct Operands {
  alignas(1024) __half a[64][64];     // [m, k]
  alignas(1024) __half b[64][64];     // [n, k]
  alignas(1024) __half c[2][64][64];  // [panel of n, k, n]
  Barrier full, empty;
};

constexpr float kEarly = -1.0f;  // what a sum says that was read too early

// Computes x = a b^T, then y = x (rounded) c, twice, through one buffer: the first warpgroup multiplies, a thread of the second copies.
__global__ void multiply_boxes(CUtensorMap a, CUtensorMap b, CUtensorMap c, float* x, float* y) {
  Operands& shared = *swizzled_dynamic_shared<Operands>();
  if (threadIdx.x == 0) {
    shared.full.init(1);
    shared.empty.init(4);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kWarpgroup) {
    for (unsigned round = 0; round < 2 && threadIdx.x == kWarpgroup; ++round) {
      shared.empty.wait(round ^ 1);
      shared.full.arrive_and_expect(4 * 64 * 128);
      load_box(shared.a, a, shared.full, 0, 0, static_cast<int>(round));
      load_box(shared.b, b, shared.full, 0, 0, static_cast<int>(round));
      for (int panel = 0; panel < 2; ++panel) load_box(shared.c[panel], c, shared.full, 64 * panel, 0, static_cast<int>(round));
    }
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (unsigned round = 0; round < 2; ++round) {
    shared.full.wait(round);
    float sum[32], product[64];
    uint32_t left[4][4];
    for (int step = 0; step < 4; ++step) {
      multiply_async<__half>(sum, advance(matrix_descriptor(shared.a, 0, 1024), 32 * step),
                             advance(matrix_descriptor(shared.b, 0, 1024), 32 * step), step > 0);
    }
    multiply_commit();
    const bool early = !std::isnan(sum[0]);
    multiply_wait<0>();
    for (int i = 0; i < 32; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      x[(round * 64 + static_cast<unsigned>(row)) * 64 + static_cast<unsigned>(column)] = early ? kEarly : sum[i];
    }
    for (int n = 0; n < 4; ++n) {
      for (int i = 0; i < 4; ++i) {
        const __half2 pair = __floats2half2_rn(sum[8 * n + 2 * i], sum[8 * n + 2 * i + 1]);
        left[n][i] = pair.x.bits | static_cast<uint32_t>(pair.y.bits) << 16;
      }
    }
    std::fill(product, product + 64, 0.0f);
    for (int n = 0; n < 4; ++n) {
      multiply_async<__half>(product, left[n], advance(matrix_descriptor(shared.c, 64 * 128, 1024), n * 16 * 128));
    }
    multiply_commit();
    multiply_wait<0>();
    for (int i = 0; i < 64; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      y[(round * 64 + static_cast<unsigned>(row)) * 128 + static_cast<unsigned>(column)] = product[i];
    }
    __syncwarp();
    if (lane == 0) shared.empty.arrive();
  }
}

// Returns [2, 64, columns] of small integers, with gaps between rows.
struct Numbers {
  int columns, stride;
  std::vector<__half> data;

  Numbers(int columns_, int seed)
      : columns(columns_), stride((columns_ + 15) / 8 * 8), data(2 * 64 * static_cast<size_t>(stride)) {
    for (int round = 0; round < 2; ++round) {
      for (int row = 0; row < 64; ++row) {
        for (int i = 0; i < stride; ++i)
          at(round, row, i) = __float2half_rn(i < columns ? static_cast<float>((round * 5 + row * 3 + i * seed) % 7 - 3) : 99.0f);
      }
    }
  }
  __half& at(int round, int row, int column) { return data[static_cast<size_t>((round * 64 + row) * stride + column)]; }
  float value(int round, int row, int column) { return column < columns ? __half2float(at(round, row, column)) : 0.0f; }
  CUtensorMap map() {
    CUtensorMap map;
    const auto row_bytes = static_cast<cuuint64_t>(stride) * 2;
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), 64, 2}, strides[] = {row_bytes, 64 * row_bytes};
    const cuuint32_t box[] = {64, 64, 1}, steps[] = {1, 1, 1};
    EXPECT_EQ(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, data.data(), sizes, strides, box, steps,
                                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              CUDA_SUCCESS);
    return map;
  }
};

TEST(Emulator, CopiesBoxesAndMultipliesThem) {
  Numbers a(60, 2), b(64, 5), c(100, 3);
  std::vector<float> x(2 * 64 * 64), y(2 * 64 * 128);
  cudaLaunchConfig_t config;
  config.gridDim = {1};
  config.blockDim = {2 * kWarpgroup};
  config.dynamicSmemBytes = sizeof(Operands);
  ASSERT_EQ(cudaLaunchKernelEx(&config, multiply_boxes, a.map(), b.map(), c.map(), x.data(), y.data()), cudaSuccess);
  for (int round = 0; round < 2; ++round) {
    for (int m = 0; m < 64; ++m) {
      const float* const row = &x[static_cast<size_t>((round * 64 + m) * 64)];
      for (int n = 0; n < 64; ++n) {
        float want = 0.0f;
        for (int k = 0; k < 64; ++k) want += a.value(round, m, k) * b.value(round, n, k);
        ASSERT_EQ(row[n], want) << m << ", " << n;
      }
      for (int n = 0; n < 128; ++n) {
        float want = 0.0f;
        for (int k = 0; k < 64; ++k) want += row[k] * c.value(round, k, n);
        ASSERT_EQ(y[static_cast<size_t>((round * 64 + m) * 128 + n)], want) << m << ", " << n;
      }
    }
  }
}

enum class Misuse { waits_for_nobody, arrives_too_often, no_init, writes_a_sum, different_descriptors, other_threads };

__global__ void misuse(Misuse kind) {
  Operands& shared = *swizzled_dynamic_shared<Operands>();
  if (threadIdx.x == 0 && kind != Misuse::no_init) shared.full.init(1);
  __syncthreads();
  if (kind == Misuse::waits_for_nobody) shared.full.wait(0);
  if (kind == Misuse::no_init) shared.full.arrive();
  if (kind == Misuse::arrives_too_often) {
    shared.full.arrive_and_expect(8);
    shared.full.arrive();
  }
  if (kind == Misuse::other_threads) sync_barrier(3, threadIdx.x < 32 ? 128 : 64);
  float sum[32] = {};
  const uint64_t rows = matrix_descriptor(shared.a, 0, 1024);
  multiply_async<__half>(sum, rows, kind == Misuse::different_descriptors && threadIdx.x >= 64 ? advance(rows, 32) : rows, true);
  multiply_commit();
  if (kind == Misuse::writes_a_sum) sum[3] = 1.0f;
  multiply_wait<0>();
}

TEST(EmulatorDeathTest, SaysHowHopperIsMisused) {
  const auto run = [](Misuse kind) {
    cudaLaunchConfig_t config;
    config.gridDim = {1};
    config.blockDim = {kWarpgroup};
    config.dynamicSmemBytes = sizeof(Operands);
    cudaLaunchKernelEx(&config, misuse, kind);
  };
  EXPECT_DEATH(run(Misuse::waits_for_nobody), "waits for threads that do not come");
  EXPECT_DEATH(run(Misuse::arrives_too_often), "arrives at a barrier where everybody has arrived");
  EXPECT_DEATH(run(Misuse::no_init), "uses a barrier that is not initialised");
  EXPECT_DEATH(run(Misuse::writes_a_sum), "writes a register that a multiplication is adding to");
  EXPECT_DEATH(run(Misuse::different_descriptors), "multiplies something else than other threads of its warpgroup");
  EXPECT_DEATH(run(Misuse::other_threads), "names a barrier for another number of threads");
}

TEST(Emulator, RefusesTensorMapsThatTheDriverRefuses) {
  const auto encode = [](uint64_t stride, uint32_t box_rows, unsigned offset) {
    alignas(16) static unsigned char data[64];
    CUtensorMap map;
    const cuuint64_t sizes[] = {64, 4, 4}, strides[] = {stride, 1024};
    const cuuint32_t box[] = {64, box_rows, 1}, steps[] = {1, 1, 1};
    return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, data + offset, sizes, strides, box, steps,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  EXPECT_EQ(encode(128, 256, 0), CUDA_SUCCESS);
  EXPECT_EQ(encode(136, 4, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode(uint64_t{1} << 40, 4, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode(128, 257, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode(128, 4, 8), CUDA_ERROR_INVALID_VALUE);
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

// Two grids, of two host threads, that wait for each other in every one of their blocks.
struct Mail {
  uint32_t word[2][4];
};
__global__ void exchange(Mail* mail, int self) {
  if (threadIdx.x == 0) mail->word[self][blockIdx.x] = 1 + blockIdx.x;
  while (prologue::cuda::load_word(&mail->word[1 - self][blockIdx.x]) == 0) prologue::cuda::let_other_gpus_run();
  __syncthreads();
  if (threadIdx.x == 40) mail->word[self][blockIdx.x] += 10 * mail->word[1 - self][blockIdx.x] % 100;
}

TEST(Emulator, GridsOfHostThreadsWaitForEachOther) {
  Mail mail = {};
  const auto run = [&](int self) {
    EXPECT_EQ(cudaSetDevice(self), cudaSuccess);
    EXPECT_EQ(launch(exchange, {4}, {64}, &mail, self), cudaSuccess);
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  for (uint32_t block = 0; block < 4; ++block) {
    EXPECT_GT(mail.word[0][block], block + 1);
    EXPECT_GT(mail.word[1][block], block + 1);
  }
}

TEST(Emulator, EachHostThreadHasADevice) {
  int count = 0, device = -1;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  ASSERT_GE(count, 2);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  std::thread([] {
    int of_thread = -1;
    EXPECT_EQ(cudaGetDevice(&of_thread), cudaSuccess);
    EXPECT_EQ(of_thread, 0);
  }).join();
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  cudaGetLastError();
}

// A capture of the mode `thread_local` keeps only its own host thread from allocating.
TEST(Emulator, ACaptureConcernsItsThread) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported);
  std::thread([] {
    void* of_thread = nullptr;
    EXPECT_EQ(cudaMalloc(&of_thread, 8), cudaSuccess);
    EXPECT_EQ(cudaFree(of_thread), cudaSuccess);
  }).join();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  cudaGetLastError();
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
