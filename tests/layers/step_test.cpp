// Tests a step's arrays: on the device, whether they are copied at once or by a CUDA graph; and what breaks a rule is an error of the
// upload, and never read or written.
#include <prologue/layers/step.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <prologue/layers/graph/graph.h>
#include <prologue/layers/graph/memory_plan.h>

#include "tests/support/arena.h"

#ifdef PROLOGUE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace prologue::test {
namespace {

constexpr int64_t kPageSize = 4;

// Makes two sequences, a prompt and a single token; `first` tells one step from another.
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
  EXPECT_EQ(read(step.slot_mapping[0], 4), (std::vector<int64_t>{8, 9, 10, 5}));
  EXPECT_EQ(read(step.cu_seqlens_q, 3), (std::vector<int32_t>{0, 3, 4}));
  EXPECT_EQ(read(step.seq_lens, 2), (std::vector<int32_t>{3, 6}));
  EXPECT_EQ(read(step.block_table[0], 4), (std::vector<int32_t>{2, -1, 7, 1}));
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
  StepBuffers buffers = StepBuffers::create({8, 2, 8, 2}, execution.device).value();
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
  StepBuffers buffers = StepBuffers::create({8, 2, 8, 2}, Device::cuda).value();
  ASSERT_TRUE(buffers.upload(make_batch(10), execution).ok());  // whose copy the capture's fill() waits for

  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const Result<StepInputs> step = buffers.upload(make_batch(20), execution);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_TRUE(step.ok()) << step.status().message();
#ifndef PROLOGUE_CUDA_EMULATED  // where all memory is the host's
  cudaGraphNode_t node = nullptr;
  size_t num_nodes = 1;
  ASSERT_EQ(cudaGraphGetNodes(graph, &node, &num_nodes), cudaSuccess);
  ASSERT_EQ(num_nodes, 1u);
  cudaMemcpy3DParms copy = {};
  ASSERT_EQ(cudaGraphMemcpyNodeGetParams(node, &copy), cudaSuccess);
  cudaPointerAttributes source = {};
  ASSERT_EQ(cudaPointerGetAttributes(&source, copy.srcPtr.ptr), cudaSuccess);
  EXPECT_EQ(source.type, cudaMemoryTypeHost) << "the copy's source is not pinned";
#endif

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

// The arrays stay where they are, whatever the step, and what is beyond the batch is padding.
TEST_P(StepBuffersTest, HaveFixedPlacesAndPadding) {
  const Execution execution{backend_device(GetParam()), 1, nullptr};
  const auto read = [&](const auto* values, int64_t count) {
    std::vector<std::decay_t<decltype(*values)>> host(static_cast<size_t>(count));
    EXPECT_TRUE(copy_to_host(host.data(), values, count * static_cast<int64_t>(sizeof(*values)), execution).ok());
    return host;
  };
  StepBuffers buffers = StepBuffers::create({8, 5, 6, 3, 2, 2}, execution.device).value();
  StepBatch batch(2, 2);
  const std::vector<int32_t> tokens = {40, 41, 42};
  const std::vector<int32_t> tables[2][2] = {{{9, 8}, {1, 0}}, {{7}, {5}}};
  const std::vector<int32_t>* const rows[2][2] = {{&tables[0][0], &tables[0][1]}, {&tables[1][0], &tables[1][1]}};
  batch.add_sequence_of_groups(tokens.data(), 1, 5, rows[0], kPageSize, 1);
  batch.add_sequence_of_groups(tokens.data() + 1, 1, 2, rows[1], kPageSize, 1);
  EXPECT_EQ(batch.num_decode_seqs(), 2);
  batch.set_position(1, 1, 77);
  batch.set_token_from(0, 3);
  SamplingRow sampling;
  sampling.seed = 12;
  batch.set_sampling(1, sampling);
  const StepInputs step = buffers.upload(batch, execution, {4, 4, 1}).value();
  EXPECT_EQ(step.num_tokens, 4);
  EXPECT_EQ(step.num_seqs, 4);
  EXPECT_EQ(step.num_decode_seqs, 4);
  EXPECT_EQ(step.num_logit_rows, 4);
  EXPECT_EQ(read(step.token_ids, 4), (std::vector<int32_t>{40, 41, 0, 0}));
  EXPECT_EQ(read(step.token_from, 4), (std::vector<int32_t>{3, -1, -1, -1}));
  EXPECT_EQ(step.position_axis_stride, 8);
  EXPECT_EQ(read(step.positions, 4), (std::vector<int32_t>{5, 2, -1, -1}));
  EXPECT_EQ(read(step.positions + 8, 4), (std::vector<int32_t>{5, 77, -1, -1}));
  EXPECT_EQ(read(step.slot_mapping[0], 4), (std::vector<int64_t>{8 * 4 + 1, 7 * 4 + 2, -1, -1}));
  EXPECT_EQ(read(step.slot_mapping[1], 4), (std::vector<int64_t>{0 * 4 + 1, 5 * 4 + 2, -1, -1}));
  EXPECT_EQ(read(step.cu_seqlens_q, 5), (std::vector<int32_t>{0, 1, 2, 2, 2}));
  EXPECT_EQ(read(step.seq_lens, 4), (std::vector<int32_t>{6, 3, 0, 0}));
  EXPECT_EQ(read(step.logit_rows, 4), (std::vector<int32_t>{0, 1, 0, 0}));
  EXPECT_EQ(read(step.sampling_rows, 4)[1].seed, 12u);
  EXPECT_EQ(step.max_pages_per_seq, 3);
  EXPECT_EQ(step.block_table_stride, 6);
  EXPECT_EQ(read(step.block_table[0], 3), (std::vector<int32_t>{9, 8, -1}));
  EXPECT_EQ(read(step.block_table[1], 3), (std::vector<int32_t>{1, 0, -1}));
  EXPECT_EQ(read(step.block_table[0] + 6, 3), (std::vector<int32_t>{7, -1, -1}));
  EXPECT_EQ(read(step.block_table[1] + 6, 3), (std::vector<int32_t>{5, -1, -1}));

  batch.clear();
  batch.add_sequence_of_groups(tokens.data(), 3, 0, rows[0], kPageSize, 1);
  batch.add_logit_row(2);
  const StepInputs next = buffers.upload(batch, execution).value();
  EXPECT_EQ(next.token_ids, step.token_ids);
  EXPECT_EQ(next.block_table[1], step.block_table[1]);
  EXPECT_EQ(next.num_decode_seqs, 0);
  EXPECT_EQ(next.num_tokens, 3);
  EXPECT_EQ(read(next.logit_rows, 2), (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(
      buffers.upload(batch, execution, {4, 6, 1}).status().message(),
      "the step is padded to 4 tokens of 6 sequences of up to 1: its buffers hold 8 tokens of 5 sequences and 6 rows of logits");
  EXPECT_EQ(
      buffers.upload(batch, execution, {7, 2, 1}).status().message(),
      "the step is padded to 7 tokens of 2 sequences of up to 1: its buffers hold 8 tokens of 5 sequences and 6 rows of logits");

  // A sequence with drafts, and one without.
  batch.clear();
  batch.add_sequence_of_groups(tokens.data(), 1, 5, rows[0], kPageSize, 1);
  batch.add_sequence_of_groups(tokens.data(), 2, 2, rows[1], kPageSize, 2);
  EXPECT_EQ(batch.max_seqlen_q(), 2);
  const StepInputs drafts = buffers.upload(batch, execution, {6, 4, 4}).value();
  EXPECT_EQ(drafts.num_tokens, 6);
  EXPECT_EQ(drafts.num_seqs, 4);
  EXPECT_EQ(drafts.num_logit_rows, 6);
  EXPECT_EQ(drafts.max_seqlen_q, 4);
  EXPECT_EQ(drafts.num_decode_seqs, 0);
  EXPECT_EQ(read(drafts.cu_seqlens_q, 5), (std::vector<int32_t>{0, 1, 3, 3, 3}));
  EXPECT_EQ(read(drafts.seq_lens, 4), (std::vector<int32_t>{6, 4, 0, 0}));
  EXPECT_EQ(read(drafts.logit_rows, 6), (std::vector<int32_t>{0, 1, 2, 0, 0, 0}));
}

const Execution kCpu = {Device::cpu, 1};
const std::vector<int32_t> kTokens = {5, 6, 7, 8, 9};

TEST(StepBatch, PacksSequencesOneAfterTheOther) {
  StepBuffers buffers = StepBuffers::create({8, 2, 8, 3}, Device::cpu).value();
  StepBatch batch;
  for (int round = 0; round < 2; ++round) {  // a batch is used again
    batch.clear();
    batch.add_sequence(kTokens.data(), 3, 2, {4, 1}, 4, 1);
    batch.add_sequence(kTokens.data() + 3, 2, 0, {7}, 4, 2);
    const auto step = buffers.upload(batch, kCpu);
    ASSERT_TRUE(step.ok()) << step.status().message();
    const auto ints = [](const int32_t* data, int64_t count) { return std::vector<int32_t>(data, data + count); };
    EXPECT_EQ(step->num_tokens, 5);
    EXPECT_EQ(step->num_seqs, 2);
    EXPECT_EQ(step->max_seqlen_q, 3);
    EXPECT_EQ(step->max_seq_len, 5);
    EXPECT_EQ(ints(step->token_ids, 5), kTokens);
    EXPECT_EQ(ints(step->positions, 5), (std::vector<int32_t>{2, 3, 4, 0, 1}));
    EXPECT_EQ(std::vector<int64_t>(step->slot_mapping[0], step->slot_mapping[0] + 5), (std::vector<int64_t>{18, 19, 4, 28, 29}));
    EXPECT_EQ(ints(step->cu_seqlens_q, 3), (std::vector<int32_t>{0, 3, 5}));
    EXPECT_EQ(ints(step->seq_lens, 2), (std::vector<int32_t>{5, 2}));
    EXPECT_EQ(step->block_table_stride, 3);
    EXPECT_EQ(ints(step->block_table[0], 6), (std::vector<int32_t>{4, 1, -1, 7, -1, -1}));
    EXPECT_EQ(ints(step->logit_rows, step->num_logit_rows), (std::vector<int32_t>{2, 3, 4}));
  }
}

TEST(StepBatch, WhatBreaksARuleIsAnErrorOfTheUpload) {
  StepBuffers buffers = StepBuffers::create({8, 2, 8, 3}, Device::cpu).value();
  const struct {
    std::function<void(StepBatch&)> add;
    std::string message;
  } cases[] = {
      {[](StepBatch& b) { b.add_sequence(kTokens.data(), -1, 0, {1}, 4, 0); },
       "step: num_tokens of a sequence is -1: it must be between 0 and 2147483647"},
      {[](StepBatch& b) { b.add_sequence(kTokens.data(), INT64_MAX, 0, {1}, 4, 0); },
       "step: num_tokens of a sequence is 9223372036854775807: it must be between 0 and 2147483647"},
      {[](StepBatch& b) { b.add_sequence(nullptr, 1, 0, {1}, 4, 0); }, "step: tokens is null"},
      {[](StepBatch& b) { b.add_sequence(kTokens.data(), 1, -1, {1}, 4, 0); },
       "step: first_position of a sequence is -1: it must be between 0 and 2147483646"},
      {[](StepBatch& b) { b.add_sequence(kTokens.data(), 1, INT64_MAX, {1}, 4, 0); },
       "step: first_position of a sequence is 9223372036854775807: it must be between 0 and 2147483646"},
      {[](StepBatch& b) { b.add_sequence(kTokens.data(), 1, 0, {1}, 4, 2); },
       "step: num_logit_rows of a sequence is 2: it must be between 0 and its 1 tokens"},
      {[](StepBatch& b) { b.add_sequence(kTokens.data(), 1, 0, {1}, 0, 1); },
       "step: page_size is 0: it must be between 1 and 2147483647"},
      {[](StepBatch& b) { b.add_sequence(kTokens.data(), 3, 2, {1}, 4, 1); },
       "step: the block table of a sequence has 1 pages of 4 tokens: its 5 tokens need 2"},
      {[](StepBatch& b) {
         b.add_sequence(kTokens.data(), 1, 4, {1, -1}, 4, 1);
       },
       "step: entry 1 of a block table is page -1: the pages of new tokens are not negative"},
      {[](StepBatch& b) { b.set_position(0, 0, 1); },
       "step: the position of token 0 on axis 0 is set: the batch has 0 tokens and 1 axes"},
      {[](StepBatch& b) { b.add_logit_row(0); }, "step: the logits of token 0 is set: the batch has 0"},
      {[](StepBatch& b) { b.set_sampling(-1, {}); }, "step: row of logits -1 is set: the batch has 0"},
      {[](StepBatch& b) { b.set_token_from(0, 1); }, "step: token 0 is set: the batch has 0"},
      {[](StepBatch& b) { b = StepBatch(1, 5); }, "num_groups is 5: it must be between 1 and 4"},
      {[](StepBatch& b) { b = StepBatch(0); }, "num_position_axes is 0: it must be between 1 and 4"},
      {[](StepBatch& b) { b = StepBatch(INT64_MAX); }, "num_position_axes is 9223372036854775807: it must be between 1 and 4"},
      {[](StepBatch& b) {
         b.add_sequence(kTokens.data(), 1, 0, {1, 2, 3, 4}, 4, 1);
       },
       "a sequence of the step has 4 pages: its buffers hold 3 a sequence"},
  };
  for (const auto& [add, message] : cases) {
    StepBatch batch;
    add(batch);
    batch.add_sequence(kTokens.data(), 1, 0, {1}, 4, 1);  // changes nothing
    const auto step = buffers.upload(batch, kCpu);
    EXPECT_EQ(step.status().message(), message);
    EXPECT_EQ(step.status().code(), StatusCode::invalid_argument);
  }
}

TEST(StepBuffers, SizesAreCheckedAndTablesAreBounded) {
  for (const int64_t wrong : {int64_t{-1}, int64_t{1} << 31, INT64_MAX}) {
    for (int member = 0; member < 6; ++member) {
      StepSizes sizes = {1, 1, 1, 1, 1, 1};
      int64_t* const members[] = {&sizes.max_tokens,        &sizes.max_seqs,          &sizes.max_logit_rows,
                                  &sizes.max_pages_per_seq, &sizes.num_position_axes, &sizes.num_groups};
      *members[member] = wrong;
      EXPECT_EQ(StepBuffers::create(sizes, Device::cpu).status().code(), StatusCode::invalid_argument) << member;
    }
  }
  EXPECT_EQ(StepBuffers::create({1, INT32_MAX, 1, INT32_MAX}, Device::cpu).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(StepBuffers::create({INT32_MAX, 1 << 20, 1, 1 << 20}, Device::cpu).status().code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(StepBuffers::create({0, 0, 0, 0}, Device::cpu).ok());
}

TEST(GraphBuilder, AValueThatDoesNotExistIsAnErrorOfFinish) {
  GraphBuilder g(DType::f32);
  const float data[4] = {};
  const Weight weight = {data, 2, 2, DType::f32};
  const Value none = g.linear("projection", Value(), weight);
  EXPECT_FALSE(none);
  const auto [q, k, v] = g.split_heads(none, 1, 1, 2);
  g.kv_write("kv_write", k, v, 1, 0, {});
  const auto graph = std::move(g).finish(g.paged_attention("attention", q, 1, {1.0f}, 0));
  EXPECT_EQ(graph.status().message(), "graph: an operation reads value -1: there is no such value");
}

TEST(MemoryPlan, SizesAreChecked) {
  GraphBuilder g(DType::f32);
  const Weight table = {&g, int64_t{1} << 20, int64_t{1} << 40, DType::f32};
  const Graph graph = std::move(g).finish(g.embedding("x", table, 1.0f)).value();
  EXPECT_EQ(plan_memory(graph, -1, 0).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(plan_memory(graph, 0, INT64_MAX).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(plan_memory(graph, INT32_MAX, 0).status().code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(plan_memory(graph, 2, 0).ok());
}

}  // namespace
}  // namespace prologue::test
