#include <prologue/kernels/base/memory.h>

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/base/event.h>

#include "tests/support/arena.h"

#ifdef PROLOGUE_HAS_CUDA
#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>
#endif

namespace prologue::test {
namespace {

std::vector<int32_t> numbers(int64_t count, int32_t first) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

void fill(StagingBuffer& staging, const std::vector<int32_t>& values) {
  void* data = staging.fill().value();
  std::memcpy(data, values.data(), values.size() * sizeof(int32_t));
}

class StagingBufferTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, StagingBufferTest, ::testing::Values(Backend::cpu, Backend::cuda),
                         [](const auto& row) { return std::string(backend_name(row.param)); });

TEST_P(StagingBufferTest, CopiesWhatItHolds) {
  const Execution execution{backend_device(GetParam()), 1, nullptr};
  constexpr int64_t kCount = 1000, kBytes = kCount * 4;
  StagingBuffer staging = StagingBuffer::allocate(execution.device, kBytes).value();
  const Buffer target = Buffer::allocate(execution.device, kBytes).value();
  for (const int32_t first : {5, -17}) {
    fill(staging, numbers(kCount, first));
    ASSERT_TRUE(staging.copy_to_device(target.data(), kBytes, execution).ok());
    std::vector<int32_t> got(static_cast<size_t>(kCount));
    ASSERT_TRUE(copy_to_host(got.data(), target.data(), kBytes, execution).ok());
    EXPECT_EQ(got, numbers(kCount, first));
  }
  EXPECT_EQ(staging.copy_to_device(target.data(), kBytes + 1, execution).message(),
            "num_bytes is 4001: the staging buffer has 4000");
  StagingBuffer moved = std::move(staging);
  EXPECT_EQ(moved.size_bytes(), kBytes);
  EXPECT_EQ(staging.size_bytes(), 0);
  EXPECT_TRUE(StagingBuffer::allocate(execution.device, 0).ok());
  EXPECT_EQ(StagingBuffer::allocate(execution.device, -1).status().code(), StatusCode::invalid_argument);
}

// Copies few words, and what is too much or not whole words for the kernel that copies those.
TEST_P(StagingBufferTest, ReceivesWhatTheDeviceHas) {
  const Execution execution{backend_device(GetParam()), 1, nullptr};
  constexpr int64_t kMost = 10000, kGuard = 1;
  StagingBuffer staging = StagingBuffer::allocate(execution.device, (kMost + kGuard) * 4).value();
  const Buffer source = Buffer::allocate(execution.device, kMost * 4).value();
  for (const int64_t count : {int64_t{4}, int64_t{5}, int64_t{1096}, int64_t{4096}, int64_t{4100}, kMost}) {
    for (const int64_t first : {int64_t{0}, int64_t{1}}) {
      fill(staging, std::vector<int32_t>(kMost + kGuard, -1));
      const std::vector<int32_t> sent = numbers(count, 7);
      const int64_t bytes = (count - first) * 4;
      ASSERT_TRUE(copy_to_device(source.data(), sent.data(), count * 4, execution).ok());
      ASSERT_TRUE(staging.copy_from_device(source.as<int32_t>() + first, bytes, execution).ok());
      const auto* const got = static_cast<const int32_t*>(staging.read().value());
      EXPECT_EQ(std::vector<int32_t>(got, got + count - first), std::vector<int32_t>(sent.begin() + first, sent.end()));
      EXPECT_EQ(got[count - first], -1) << "behind " << bytes << " bytes";
    }
  }
}

// Copies rows that are close together, and rows so far apart that CUDA does not copy them in one call.
TEST_P(StagingBufferTest, CopiesOfRowsLeaveWhatIsBetweenThem) {
  const Execution execution{backend_device(GetParam()), 1, nullptr};
  for (const int64_t stride : {int64_t{12}, int64_t{20}, (int64_t{1} << 31) + 4}) {
    const auto allocated = Buffer::allocate(execution.device, 2 * stride + 64);
    if (!allocated.ok()) GTEST_SKIP() << allocated.status().message();
    char* const data = allocated->as<char>();
    for (int64_t row = 0; row < 2; ++row) {
      const std::vector<int32_t> values = numbers(3, static_cast<int32_t>(10 * row));
      ASSERT_TRUE(copy_to_device(data + row * stride, values.data(), 12, execution).ok());
    }
    ASSERT_TRUE(copy_strided(data + 4, data, 2, 4, stride, execution).ok());
    for (int64_t row = 0; row < 2; ++row) {
      const auto first = static_cast<int32_t>(10 * row);
      std::vector<int32_t> got(3);
      ASSERT_TRUE(copy_to_host(got.data(), data + row * stride, 12, execution).ok());
      EXPECT_EQ(got, (std::vector<int32_t>{first, first, first + 2})) << stride;
    }
    EXPECT_TRUE(copy_strided(nullptr, nullptr, 0, 4, stride, execution).ok());
    EXPECT_TRUE(copy_strided(nullptr, nullptr, 2, 0, stride, execution).ok());
  }
}

#ifdef PROLOGUE_HAS_CUDA
cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

// The stream has not come to the first copy when the second step fills the memory: fill() must wait.
TEST(StagingBuffer, IsNotFilledBeforeItWasRead_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  const Execution execution{Device::cuda, 1, make_stream()};
  constexpr int64_t kCount = 1 << 16, kBytes = kCount * 4;
  StagingBuffer staging = StagingBuffer::allocate(Device::cuda, kBytes).value();
  const Buffer first = Buffer::allocate(Device::cuda, kBytes).value(), second = Buffer::allocate(Device::cuda, kBytes).value();
  fill(staging, numbers(kCount, 1));
  const auto nap = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); };
  ASSERT_EQ(cudaLaunchHostFunc(execution.stream, nap, nullptr), cudaSuccess);
  ASSERT_TRUE(staging.copy_to_device(first.data(), kBytes, execution).ok());
  fill(staging, numbers(kCount, 2));
  ASSERT_TRUE(staging.copy_to_device(second.data(), kBytes, execution).ok());
  std::vector<int32_t> got(static_cast<size_t>(kCount));
  ASSERT_TRUE(copy_to_host(got.data(), first.data(), kBytes, execution).ok());
  EXPECT_EQ(got, numbers(kCount, 1));
  ASSERT_TRUE(copy_to_host(got.data(), second.data(), kBytes, execution).ok());
  EXPECT_EQ(got, numbers(kCount, 2));
  cudaStreamDestroy(execution.stream);
}

// ---- CUDA's last error ------------------------------------------------------------------------------------------------------

// While a blocking stream of this thread captures, CUDA allows neither work in the default stream nor allocations: every call
// fails. Each says so in its Status, and leaves no error behind for the caller's next check.
TEST(CudaErrors, LeaveNoLastError_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  const Execution legacy{Device::cuda, 1, nullptr};
  const Buffer buffer = Buffer::allocate(Device::cuda, 4096).value();
  Event event;
  ASSERT_TRUE(event.record(legacy).ok());
  std::vector<float> host(16);
  AddBiasParams bias;
  bias.num_tokens = 1, bias.width = 16, bias.x_stride = bias.y_stride = 16, bias.dtype = DType::f32;
  bias.x = bias.y = buffer.data();
  bias.bias = buffer.as<float>() + 64;
  ASSERT_TRUE(add_bias(bias, legacy).ok());
  ASSERT_TRUE(synchronize(legacy).ok());
  const std::pair<const char*, std::function<Status()>> calls[] = {
      {"a launch", [&] { return add_bias(bias, legacy); }},
      {"an allocation", [&] { return Buffer::allocate(Device::cuda, 1 << 20).status(); }},
      {"a copy to the device", [&] { return copy_to_device(buffer.data(), host.data(), 64, legacy); }},
      {"a copy to the host", [&] { return copy_to_host(host.data(), buffer.data(), 64, legacy); }},
      {"a copy of rows", [&] { return copy_strided(buffer.as<char>() + 1024, buffer.data(), 2, 64, 256, legacy); }},
      {"a copy of rows far apart", [&] { return copy_strided(buffer.as<char>() + 1024, buffer.data(), 1, 64, int64_t{1} << 31, legacy); }},
      {"filling with zeros", [&] { return fill_zero(buffer.data(), 64, legacy); }},
      {"recording an event", [&] { return event.record(legacy); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    cudaStream_t capturing = nullptr;  // blocking: the default stream waits for it
    ASSERT_EQ(cudaStreamCreate(&capturing), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal), cudaSuccess);
    const Status status = call();
    EXPECT_EQ(status.code(), StatusCode::device_error) << status.message();
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(capturing, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaStreamDestroy(capturing);
    cudaGetLastError();
  }
  EXPECT_TRUE(add_bias(bias, legacy).ok()) << "and the next call works";
  EXPECT_TRUE(synchronize(legacy).ok());
}
#endif

}  // namespace
}  // namespace prologue::test
