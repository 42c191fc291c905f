// Captures a decode step into a CUDA graph: replayed over new tokens, positions, slots and lengths, it gives the bits of the eager step.
#include <gtest/gtest.h>

#include <prologue/layers/graph/fusion.h>

#include "tests/support/arena.h"
#include "tests/support/attention_variant.h"
#include "tests/support/tiny_decoder.h"

#ifdef PROLOGUE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace prologue {
namespace {

using test::kPageSize;
using test::kVocab;
using test::TinyModel;

TEST(GraphCapture, AReplayedDecodeStepReadsOnlyTheDeviceArrays) {
  PROLOGUE_REQUIRE_BACKEND(test::Backend::cuda_graph);
#ifdef PROLOGUE_HAS_CUDA
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const Execution execution{Device::cuda, 1, stream};
  const std::vector<std::vector<int32_t>> tables = {{6, 1, 4}, {3, 0, 2}};
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  const std::vector<std::vector<int32_t>> decoded = {{9, 2}, {6, 5}, {3, 5}, {8, 9}};  // one token of each sequence per step

  const auto run = [&](bool captured) {
    TinyModel model(DType::bf16, true, execution);
    const StepLimits limits = {16, 4, 2, 12};
    auto executor = GraphExecutor::create(fuse_attention_prologue(model.graph).value(), model.storage, limits, execution).value();
    auto buffers = StepBuffers::create({16, 2, 16, 3}, execution.device).value();
    StepBatch batch;
    for (const auto& table : tables) batch.add_sequence(prompt.data(), 5, 0, table, kPageSize, 1);
    EXPECT_TRUE(executor->run(*buffers.upload(batch, execution), execution).ok());

    std::vector<float> all;
    cudaGraphExec_t instance = nullptr;
    for (size_t i = 0; i < decoded.size(); ++i) {
      batch.clear();
      for (size_t s = 0; s < tables.size(); ++s) {
        batch.add_sequence(&decoded[i][s], 1, 5 + static_cast<int64_t>(i), tables[s], kPageSize, 1);
      }
      StepInputs step = buffers.upload(batch, execution).value();
      step.max_seq_len = limits.max_seq_len;  // holds for every replay
      if (!captured) {
        EXPECT_TRUE(executor->run(step, execution).ok());
      } else {
        if (instance == nullptr) {
          cudaGraph_t graph = nullptr;
          EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
          EXPECT_TRUE(executor->run(step, execution).ok());
          EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
          EXPECT_EQ(cudaGraphInstantiate(&instance, graph, 0), cudaSuccess);
          cudaGraphDestroy(graph);
        }
        EXPECT_EQ(cudaGraphLaunch(instance, stream), cudaSuccess);
      }
      std::vector<float> logits(static_cast<size_t>(2 * kVocab));
      EXPECT_TRUE(copy_to_host(logits.data(), executor->data(executor->graph().output),
                               static_cast<int64_t>(logits.size() * sizeof(float)), execution)
                      .ok());
      EXPECT_EQ(executor->take_fault(execution)->code, FaultCode::none);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    if (instance != nullptr) cudaGraphExecDestroy(instance);
    return all;
  };
  const std::vector<float> eager = run(false);
  const std::vector<float> replayed = run(true);
  ASSERT_EQ(eager.size(), replayed.size());
  for (size_t i = 0; i < eager.size(); ++i) ASSERT_EQ(eager[i], replayed[i]) << i;
  cudaStreamDestroy(stream);
#endif
}

// Runs every kind of attention layer: fused and unfused, eager and replayed, all four with the same bits (rounded per step).
TEST(GraphCapture, EveryVariantReplaysWithTheBitsOfTheEagerStep) {
  PROLOGUE_REQUIRE_BACKEND(test::Backend::cuda_graph);
#ifdef PROLOGUE_HAS_CUDA
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const Execution execution{Device::cuda, 1, stream};
  const StepLimits limits = {16, 4, 1, 12};
  const std::vector<int32_t> block_table = {6, 1, 4}, prompt = {3, 1, 4, 1, 5}, decoded = {9, 2, 6};

  const auto run = [&](test::VariantModel& model, Graph graph, bool captured) {
    model.fill_cache(0xff);
    graph.output = test::q_of_last_layer(graph);
    auto executor = GraphExecutor::create(std::move(graph), model.storage, limits, execution).value();
    auto buffers = StepBuffers::create({16, 1, 16, 3, model.variant.num_axes}, execution.device).value();
    StepBatch batch(model.variant.num_axes);
    batch.add_sequence(prompt.data(), 5, 0, block_table, kPageSize, 1);
    EXPECT_TRUE(executor->run(buffers.upload(batch, execution).value(), execution).ok());
    std::vector<unsigned char> all;
    cudaGraphExec_t instance = nullptr;
    for (size_t i = 0; i < decoded.size(); ++i) {
      batch.clear();
      batch.add_sequence(&decoded[i], 1, 5 + static_cast<int64_t>(i), block_table, kPageSize, 1);
      for (int64_t axis = 0; axis < model.variant.num_axes; ++axis) {
        batch.set_position(0, axis, static_cast<int32_t>(5 + 3 * static_cast<int64_t>(i) + axis));
      }
      StepInputs step = buffers.upload(batch, execution).value();
      step.max_seq_len = limits.max_seq_len;  // holds for every replay
      if (!captured) {
        EXPECT_TRUE(executor->run(step, execution).ok());
      } else {
        if (instance == nullptr) {
          cudaGraph_t recorded = nullptr;
          EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
          EXPECT_TRUE(executor->run(step, execution).ok());
          EXPECT_EQ(cudaStreamEndCapture(stream, &recorded), cudaSuccess);
          EXPECT_EQ(cudaGraphInstantiate(&instance, recorded, 0), cudaSuccess);
          cudaGraphDestroy(recorded);
        }
        EXPECT_EQ(cudaGraphLaunch(instance, stream), cudaSuccess);
      }
      const auto q = test::rows_of(*executor, executor->graph().output, 1, execution);
      all.insert(all.end(), q.begin(), q.end());
      EXPECT_EQ(executor->take_fault(execution)->code, FaultCode::none);
    }
    if (instance != nullptr) cudaGraphExecDestroy(instance);
    const auto cache = model.cache_contents();
    all.insert(all.end(), cache.begin(), cache.end());
    return all;
  };
  for (const test::AttentionVariant& variant : test::listed_variants()) {
    SCOPED_TRACE(variant.describe());
    test::VariantModel model(variant, DType::bf16, execution);
    const Graph fused = fuse_attention_prologue(model.graph, Rounding::per_step).value();
    const auto eager = run(model, model.graph, false);
    EXPECT_TRUE(run(model, model.graph, true) == eager) << "unfused, replayed";
    EXPECT_TRUE(run(model, fused, false) == eager) << "fused, eager";
    EXPECT_TRUE(run(model, fused, true) == eager) << "fused, replayed";
    if (testing::Test::HasFailure()) break;
  }
  cudaStreamDestroy(stream);
#endif
}

}  // namespace
}  // namespace prologue
