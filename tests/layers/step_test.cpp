// A step's arrays on the host: what breaks a rule is an error of the upload, and never read or written.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <prologue/layers/graph/graph.h>
#include <prologue/layers/graph/memory_plan.h>
#include <prologue/layers/step.h>

namespace prologue {
namespace {

const Execution kCpu = {Device::cpu, 1};
const std::vector<int32_t> kTokens = {5, 6, 7, 8, 9};

TEST(StepBatch, PacksSequencesOneAfterTheOther) {
  StepBuffers buffers = StepBuffers::create(8, 2, 3, Device::cpu).value();
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
    EXPECT_EQ(std::vector<int64_t>(step->slot_mapping, step->slot_mapping + 5), (std::vector<int64_t>{18, 19, 4, 28, 29}));
    EXPECT_EQ(ints(step->cu_seqlens_q, 3), (std::vector<int32_t>{0, 3, 5}));
    EXPECT_EQ(ints(step->seq_lens, 2), (std::vector<int32_t>{5, 2}));
    EXPECT_EQ(step->block_table_stride, 2);
    EXPECT_EQ(ints(step->block_table, 4), (std::vector<int32_t>{4, 1, 7, -1}));
    EXPECT_EQ(ints(step->logit_rows, step->num_logit_rows), (std::vector<int32_t>{2, 3, 4}));
  }
}

TEST(StepBatch, WhatBreaksARuleIsAnErrorOfTheUpload) {
  StepBuffers buffers = StepBuffers::create(8, 2, 3, Device::cpu).value();
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
       "step: entry 1 of a block table is page -1: pages are not negative"},
      {[](StepBatch& b) { b.set_position(0, 0, 1); },
       "step: the position of token 0 in stream 0 is set: the batch has 0 tokens in 1 streams"},
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
    EXPECT_EQ(StepBuffers::create(wrong, 1, 1, Device::cpu).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(StepBuffers::create(1, wrong, 1, Device::cpu).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(StepBuffers::create(1, 1, wrong, Device::cpu).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(StepBuffers::create(1, 1, 1, Device::cpu, wrong).status().code(), StatusCode::invalid_argument);
  }
  EXPECT_EQ(StepBuffers::create(1, INT32_MAX, INT32_MAX, Device::cpu).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(StepBuffers::create(INT32_MAX, 1 << 20, 1 << 20, Device::cpu).status().code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(StepBuffers::create(0, 0, 0, Device::cpu).ok());
}

TEST(GraphBuilder, AValueThatDoesNotExistIsAnErrorOfFinish) {
  GraphBuilder g(DType::f32);
  const float data[4] = {};
  const Weight weight = {data, 2, 2, DType::f32};
  const Value none = g.linear("projection", Value(), weight);
  EXPECT_FALSE(none);
  const auto [q, k, v] = g.split_heads(none, 1, 1, 2);
  g.kv_write("kv_write", k, v, 1, 0, {});
  const auto graph = std::move(g).finish(g.paged_attention("attention", q, 1, 1.0f, 0));
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
}  // namespace prologue
