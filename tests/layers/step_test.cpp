// A step's arrays on the device, whether they are copied at once or by a CUDA graph.
#include <prologue/layers/step.h>

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/arena.h"

#ifdef PROLOGUE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace prologue::test {
namespace {

constexpr int64_t kPageSize = 4;

// Two sequences, a prompt and a single token; `first` tells one step from another.
StepBatch make_batch(int32_t first) {
  StepBatch batch;
  const std::vector<int32_t> prompt = {first, first + 1, first + 2}, token = {first + 3};
  batch.add_sequence(prompt.data(), 3, 0, {2}, kPageSize, 1);
  batch.add_sequence(token.data(), 1, 5, {7, 1}, kPageSize, 1);
  return batch;
}

void expect_step(const StepInputs& step, int32_t first, const Execution& execution) {
  const auto read = [&](const auto* values, int64_t count) {
    std::vector<std::decay_t<decltype(*values)>> host(static_cast<size_t>(count));
    const Status status = copy_to_host(host.data(), values, count * static_cast<int64_t>(sizeof(*values)), execution);
    EXPECT_TRUE(status.ok()) << status.message();
    return host;
  };
  EXPECT_EQ(read(step.token_ids, 4), (std::vector<int32_t>{first, first + 1, first + 2, first + 3}));
  EXPECT_EQ(read(step.positions, 4), (std::vector<int32_t>{0, 1, 2, 5}));
  EXPECT_EQ(read(step.slot_mapping, 4), (std::vector<int64_t>{8, 9, 10, 5}));
  EXPECT_EQ(read(step.cu_seqlens_q, 3), (std::vector<int32_t>{0, 3, 4}));
  EXPECT_EQ(read(step.seq_lens, 2), (std::vector<int32_t>{3, 6}));
  EXPECT_EQ(read(step.block_table, 4), (std::vector<int32_t>{2, -1, 7, 1}));
  EXPECT_EQ(read(step.logit_rows, 2), (std::vector<int32_t>{2, 3}));
}

class StepBuffersTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, StepBuffersTest, ::testing::Values(Backend::cpu, Backend::cuda),
                         [](const auto& row) { return std::string(backend_name(row.param)); });

TEST_P(StepBuffersTest, HoldTheStep) {
  const Execution execution{backend_device(GetParam()), 1, nullptr};
  StepBuffers buffers = StepBuffers::create(8, 2, 2, execution.device).value();
  for (const int32_t first : {10, 20}) {
    const Result<StepInputs> step = buffers.upload(make_batch(first), execution);
    ASSERT_TRUE(step.ok()) << step.status().message();
    EXPECT_EQ(step->num_tokens, 4);
    expect_step(*step, first, execution);
  }
}

#ifdef PROLOGUE_HAS_CUDA
// The graph's copy reads pinned memory, and at a replay what the last upload has put there.
TEST(StepBuffers, AreCopiedByAGraph_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda_graph);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const Execution execution{Device::cuda, 1, stream};
  StepBuffers buffers = StepBuffers::create(8, 2, 2, Device::cuda).value();
  ASSERT_TRUE(buffers.upload(make_batch(10), execution).ok());  // whose copy the capture's fill() waits for

  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const Result<StepInputs> step = buffers.upload(make_batch(20), execution);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_TRUE(step.ok()) << step.status().message();
  cudaGraphNode_t node = nullptr;
  size_t num_nodes = 1;
  ASSERT_EQ(cudaGraphGetNodes(graph, &node, &num_nodes), cudaSuccess);
  ASSERT_EQ(num_nodes, 1u);
  cudaMemcpy3DParms copy = {};
  ASSERT_EQ(cudaGraphMemcpyNodeGetParams(node, &copy), cudaSuccess);
  cudaPointerAttributes source = {};
  ASSERT_EQ(cudaPointerGetAttributes(&source, copy.srcPtr.ptr), cudaSuccess);
  EXPECT_EQ(source.type, cudaMemoryTypeHost) << "the copy's source is not pinned";

  cudaGraphExec_t instance = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&instance, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(instance, stream), cudaSuccess);
  expect_step(*step, 20, execution);
  const Result<StepInputs> next = buffers.upload(make_batch(30), execution);
  ASSERT_TRUE(next.ok());
  ASSERT_EQ(cudaGraphLaunch(instance, stream), cudaSuccess);
  expect_step(*next, 30, execution);
  cudaGraphExecDestroy(instance);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}
#endif

}  // namespace
}  // namespace prologue::test
