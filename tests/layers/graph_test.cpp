// Tests the layer graph: what the builder writes down, what fusion makes of it, where memory goes, and that fused = unfused.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <string>
#include <utility>

#include <prologue/layers/graph/fusion.h>
#include <prologue/layers/graph/print.h>

#include "tests/support/arena.h"
#include "tests/support/tiny_decoder.h"

namespace prologue {
namespace {

using test::Backend;
using test::kLayers;
using test::kPageSize;
using test::kVocab;
using test::TinyModel;

// Prefills two sequences, decodes a token of each, and one of the first alone; the logits of all steps.
std::vector<float> run_steps(TinyModel& model, Graph graph, Communicator* communicator = nullptr) {
  const Execution& execution = model.execution;
  auto executor = GraphExecutor::create(std::move(graph), model.storage, {16, 8, 2, 16}, execution, nullptr, communicator);
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  auto buffers = StepBuffers::create({16, 2, 16, 4}, execution.device).value();
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  std::vector<float> all;
  for (int step_index = 0; step_index < 3; ++step_index) {
    StepBatch batch;
    if (step_index == 0) {
      batch.add_sequence(tokens.data(), 5, 0, {6, 1}, kPageSize, 2);
      batch.add_sequence(tokens.data() + 5, 2, 0, {3}, kPageSize, 1);
    } else if (step_index == 1) {
      batch.add_sequence(tokens.data() + 7, 1, 5, {6, 1}, kPageSize, 1);
      batch.add_sequence(tokens.data(), 1, 2, {3}, kPageSize, 1);
    } else {
      batch.add_sequence(tokens.data() + 2, 1, 6, {6, 1}, kPageSize, 1);
    }
    const auto step = buffers.upload(batch, execution);
    EXPECT_TRUE(step.ok());
    const Status status = (*executor)->run(*step, execution);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ((*executor)->take_fault(execution)->code, FaultCode::none);
    std::vector<float> logits(static_cast<size_t>(step->num_logit_rows * kVocab));
    EXPECT_TRUE(copy_to_host(logits.data(), (*executor)->data((*executor)->graph().output),
                             static_cast<int64_t>(logits.size() * sizeof(float)), execution)
                    .ok());
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

int count(const Graph& graph, const std::string& kind) {
  return static_cast<int>(
      std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.kind == kind; }));
}

class GraphOnBackend : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    execution_.device = test::backend_device(GetParam());
    execution_.num_threads = GetParam() == Backend::cpu_threads ? 3 : 1;
  }
  Execution execution_;
};
INSTANTIATE_TEST_SUITE_P(Backends, GraphOnBackend, testing::Values(Backend::cpu, Backend::cpu_threads, Backend::cuda),
                         [](const auto& each) { return test::backend_name(each.param); });

TEST_P(GraphOnBackend, FusedEqualsUnfusedBitForBitInFloat32) {
  for (const bool with_bias : {false, true}) {
    TinyModel model(DType::f32, with_bias, execution_);
    const std::vector<float> unfused = run_steps(model, model.graph);
    const std::vector<float> fused = run_steps(model, fuse_attention_prologue(model.graph).value());
    ASSERT_EQ(unfused.size(), fused.size());
    for (size_t i = 0; i < fused.size(); ++i) ASSERT_EQ(fused[i], unfused[i]) << i;
    EXPECT_TRUE(std::any_of(fused.begin(), fused.end(), [](float x) { return x != 0.0f; }));
  }
}

TEST_P(GraphOnBackend, SixteenBitTypesStayCloseToFloat32) {
  TinyModel exact(DType::f32, true, execution_);
  const std::vector<float> want = run_steps(exact, fuse_attention_prologue(exact.graph).value());
  for (const DType dtype : {DType::f16, DType::bf16}) {
    TinyModel model(dtype, true, execution_);
    const std::vector<float> got = run_steps(model, fuse_attention_prologue(model.graph).value());
    ASSERT_EQ(got.size(), want.size());
    // Some twenty roundings of relative size 2^-8 (bfloat16) on values of order one, through two layers.
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.35) << dtype_name(dtype) << " " << i;
  }
}

TEST_P(GraphOnBackend, FusedProjectionsEqualTheOthersBitForBitInFloat32) {
  for (const bool with_bias : {false, true}) {
    TinyModel model(DType::f32, with_bias, execution_);
    const Graph prologues = fuse_attention_prologue(model.graph).value();
    const std::vector<float> want = run_steps(model, prologues);
    for (const auto& fused : {fuse_projections(prologues).value(), fuse_prompt_projections(prologues).value()}) {
      const std::vector<float> got = run_steps(model, fused);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << i;
    }
  }
}

// With one rank the sums are its parts: the graph of a rank gives what the whole layer does.
TEST_P(GraphOnBackend, TheGraphOfARankGivesTheSameBitsInFloat32) {
  const auto ranks = create_communicators(execution_.device, 1);
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  TinyModel whole(DType::f32, true, execution_), part(DType::f32, true, execution_, true);
  const std::vector<float> want = run_steps(whole, whole.graph);
  const Graph prologues = fuse_attention_prologue(part.graph).value();
  for (const Graph& graph : {part.graph, prologues, fuse_projections(prologues).value(), fuse_prompt_projections(prologues).value()}) {
    const std::vector<float> got = run_steps(part, graph, ranks->front().get());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << i;
  }
}

TEST(GraphOfARank, NeedsACommunicator) {
  TinyModel part(DType::f32, false, {Device::cpu, 1}, true);
  const auto executor = GraphExecutor::create(part.graph, part.storage, {4, 2, 1, 16}, part.execution);
  ASSERT_FALSE(executor.ok());
  EXPECT_EQ(executor.status().message(),
            "layers.0.attention_sum: it exchanges values with other ranks: the executor has no communicator");
}

TEST(GraphOfARank, HasSevenNodesInALayer) {
  TinyModel part(DType::bf16, true, {Device::cpu, 1}, true);
  const Graph fused = fuse_projections(fuse_attention_prologue(part.graph).value()).value();
  EXPECT_EQ(count(fused, "qkv_prologue"), kLayers);
  EXPECT_EQ(count(fused, "projection"), 3 * kLayers + 1);
  EXPECT_EQ(count(fused, "paged_attention"), kLayers);
  EXPECT_EQ(count(fused, "all_reduce"), 2 * kLayers);
  EXPECT_EQ(fused.nodes.size(), static_cast<size_t>(7 * kLayers + 4));  // and embedding, select_rows, lm_head, all_gather
  const std::string table = graph_table(fused, true);
  for (const char* text : {"all_reduce = attention_sum + residual (begins early, adds to the residual)",
                           "all_reduce = mlp_sum + residual (begins early, adds to the residual)",
                           "projection = mlp_norm + gate_up + activation (begins early, silu)", "projection = down"}) {
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  }
}

TEST(GraphOfARank, AddsToTheResidualInPromptsToo) {
  TinyModel part(DType::bf16, true, {Device::cpu, 1}, true);
  const Graph fused = fuse_prompt_projections(fuse_attention_prologue(part.graph).value()).value();
  EXPECT_EQ(count(fused, "all_reduce"), 2 * kLayers);
  EXPECT_EQ(count(fused, "add_rms_norm"), 0);
  EXPECT_EQ(count(fused, "rms_norm"), 2 * kLayers + 1);
}

TEST(GraphOfARank, GathersNoMoreColumnsThanARankMayHave) {
  TinyModel model(DType::f32, false, {Device::cpu, 1});
  GraphBuilder g(DType::f32);
  const Value x = g.embedding("embedding", model.weight(kVocab, test::kHidden, DType::f32), 1.0f);
  const auto graph = std::move(g).finish(g.all_gather("all", x, 2 * test::kHidden, test::kHidden - 1));
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().message(), "all: a rank has 32 columns: it must have at most 31 of 64");
}

TEST_P(GraphOnBackend, FusedProjectionsOfSixteenBitsStayCloseToFloat32) {
  TinyModel exact(DType::f32, true, execution_);
  const std::vector<float> want = run_steps(exact, exact.graph);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    TinyModel model(dtype, true, execution_);
    const Graph prologues = fuse_attention_prologue(model.graph).value();
    for (const auto& fused : {fuse_projections(prologues).value(), fuse_prompt_projections(prologues).value()}) {
      const std::vector<float> got = run_steps(model, fused);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.35) << dtype_name(dtype) << " " << i;
    }
  }
}

// For prompts projections take what comes after them, and not what is before.
TEST(GraphFusion, ProjectionsOfPromptsTakeProloguesAndGatedActivations) {
  TinyModel model(DType::bf16, false, {Device::cpu, 1});
  const Graph prologues = fuse_attention_prologue(model.graph).value(), fused = fuse_prompt_projections(prologues).value();
  EXPECT_EQ(count(fused, "qkv_prologue"), kLayers);
  EXPECT_EQ(count(fused, "attention_prologue"), 0);
  EXPECT_EQ(count(fused, "projection"), kLayers);
  EXPECT_EQ(fused.nodes.size(), prologues.nodes.size() - 2 * kLayers);
  for (const Node& node : fused.nodes) {
    if (const auto* p = std::get_if<QkvPrologueParams>(&node.parameters)) {
      EXPECT_EQ(p->norm.given, 0);
    } else if (const auto* q = std::get_if<ProjectionParams>(&node.parameters)) {
      EXPECT_TRUE(q->norm.given == 0 && q->activation.given != 0 && q->adds == 0);
    }
  }
}

// This is the graph after fuse_projections() of a model whose output projections are large.
TEST_P(GraphOnBackend, ProjectionsThatBeginEarlyInSomeStepsGiveTheSameBits) {
  TinyModel model(DType::bf16, true, execution_);
  const Graph fused = fuse_projections(fuse_attention_prologue(model.graph).value()).value();
  Graph changed = fused;
  for (size_t n = 0; n + 1 < changed.nodes.size(); ++n) {
    auto* const attention = std::get_if<PagedAttentionParams>(&changed.nodes[n].parameters);
    if (attention == nullptr) continue;
    changed.nodes[n].one_token(attention->late_signal);
    auto& output = std::get<ProjectionParams>(changed.nodes[n + 1].parameters);
    EXPECT_TRUE(std::exchange(output.overlaps, false));
    changed.nodes[n + 1].one_or_many(output.overlaps, 2);
  }
  const std::vector<float> want = run_steps(model, fused), got = run_steps(model, changed);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << i;
}

TEST(GraphFusion, ALayerIsFiveNodes) {
  TinyModel model(DType::bf16, true, {Device::cpu, 1});
  const Graph fused = fuse_projections(fuse_attention_prologue(model.graph).value()).value();
  EXPECT_EQ(count(fused, "qkv_prologue"), kLayers);
  EXPECT_EQ(count(fused, "projection"), 3 * kLayers + 1);
  EXPECT_EQ(count(fused, "paged_attention"), kLayers);
  EXPECT_EQ(fused.nodes.size(), static_cast<size_t>(5 * kLayers + 3));  // and embedding, select_rows, lm_head
  const std::string table = graph_table(fused, true);
  for (const char* text :
       {"qkv_prologue = attention_norm + qkv + qkv_bias + rope_q + rope_k + kv_write",
        "projection = output + residual (begins early, adds to the residual)",
        "projection = mlp_norm + gate_up + activation (begins early, silu)", "projection = down + residual",
        "paged_attention (begins early)", "select_rows (begins early)", "projection = final_norm + lm_head (begins early)"}) {
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  }
}

// Every projection may start early, but a large one after attention not in steps of 2 to 8 tokens; at one token when attention begins, or a
// very large one when attention has read its keys.
TEST(GraphFusion, NoLargeMatrixStartsBesideAttention) {
  TinyModel model(DType::bf16, false, {Device::cpu, 1});
  for (const int64_t weights : {int64_t{1} << 20, (int64_t{1} << 20) + 1, (int64_t{8} << 20) + 1}) {
    const bool large = weights > int64_t{1} << 20, very_large = weights > int64_t{8} << 20;
    Graph graph = fuse_attention_prologue(model.graph).value();
    for (size_t n = 1; n < graph.nodes.size(); ++n) {
      if (std::string(graph.nodes[n - 1].kind) != "paged_attention") continue;
      auto& output = std::get<GemmParams>(graph.nodes[n].parameters);
      output.n = (weights + output.k - 1) / output.k;
    }
    graph = fuse_projections(graph).value();
    bool after_attention = false;
    int64_t outputs = 0;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (std::holds_alternative<ProjectionParams>(node.parameters)) {
        EXPECT_TRUE(begins_early(graph, n, 1)) << node.name;
        for (const int64_t few : {2, 8}) EXPECT_EQ(begins_early(graph, n, few), !(after_attention && large)) << node.name;
        EXPECT_TRUE(begins_early(graph, n, 9)) << node.name;
        outputs += after_attention ? 1 : 0;
      }
      if (const auto* p = std::get_if<PagedAttentionParams>(&node.parameters)) {
        EXPECT_FALSE(p->late_signal || p->early_signal);
        EXPECT_EQ(node.binding_of(&p->early_signal) != nullptr, large && !very_large) << node.name;
        EXPECT_EQ(node.binding_of(&p->late_signal) != nullptr, very_large) << node.name;
      }
      if (const auto* p = std::get_if<QkvPrologueParams>(&node.parameters)) {
        EXPECT_TRUE(p->overlaps) << node.name;
      }
      after_attention = std::holds_alternative<PagedAttentionParams>(node.parameters);
    }
    EXPECT_EQ(outputs, kLayers);
  }
}

// What a chain must not have.
TEST(GraphFusion, ProjectionsThatOthersReadStayApart) {
  TinyModel model(DType::bf16, false, {Device::cpu, 1});
  const auto fused_of = [&](const auto& build) {
    GraphBuilder g(DType::bf16);
    const Value x = g.embedding("embedding", model.weight(kVocab, test::kHidden, DType::bf16), 1.0f);
    const Value out = build(g, x);
    return fuse_projections(std::move(g).finish(out).value()).value();
  };
  const auto square = [&] { return model.weight(test::kHidden, test::kHidden, DType::bf16); };
  const Norm norm = {NormKind::rms, model.weight(1, test::kHidden, DType::bf16)};
  const Graph two_readers = fused_of([&](GraphBuilder& g, Value x) {
    const Value normed = g.norm("norm", x, norm);
    return g.add("sum", g.linear("a", normed, square()), g.linear("b", normed, square()));
  });
  EXPECT_EQ(count(two_readers, "projection"), 0);
  EXPECT_EQ(count(two_readers, "rms_norm"), 1);
  const Graph layer_norm = fused_of([&](GraphBuilder& g, Value x) {
    return g.linear("a", g.norm("norm", x, {NormKind::layer, norm.weight}), square());
  });
  EXPECT_EQ(count(layer_norm, "projection"), 0);
  const Graph residual_read_between = fused_of([&](GraphBuilder& g, Value x) {
    const Value a = g.linear("a", x, square()), residual = g.linear("residual", x, square());
    const Value b = g.linear("b", a, square()), seen = g.linear("seen", residual, square());
    const Value normed = g.add_norm("norm", b, residual, norm);
    return g.add("sum", normed, seen);
  });
  EXPECT_EQ(count(residual_read_between, "add_rms_norm"), 1);
  EXPECT_EQ(count(residual_read_between, "projection"), 0);
  const Graph output = fused_of([&](GraphBuilder& g, Value x) { return g.linear("a", x, square()); });
  EXPECT_EQ(count(output, "projection"), 0);
}

// The rows that need logits are selected before their norm, if nothing else needs the norm of the others.
TEST(GraphFusion, OnlyTheSelectedRowsAreNormalised) {
  TinyModel model(DType::bf16, false, {Device::cpu, 1});
  const auto kinds_of = [&](NormKind kind, bool read_elsewhere) {
    GraphBuilder g(DType::bf16);
    const Weight square = model.weight(test::kHidden, test::kHidden, DType::bf16);
    const Value x = g.embedding("embedding", model.weight(kVocab, test::kHidden, DType::bf16), 1.0f);
    const Value normed = g.norm("norm", x, {kind, model.weight(1, test::kHidden, DType::bf16)});
    if (read_elsewhere) g.linear("elsewhere", normed, square);
    const Value logits = g.linear("lm_head", g.select_logit_rows("rows", normed), square, {}, DType::f32);
    const Graph fused = fuse_projections(std::move(g).finish(logits).value()).value();
    std::vector<std::string> kinds;
    for (const Node& node : fused.nodes) kinds.emplace_back(node.kind);
    return kinds;
  };
  using Kinds = std::vector<std::string>;
  EXPECT_EQ(kinds_of(NormKind::rms, false), (Kinds{"embedding", "select_rows", "projection"}));
  EXPECT_EQ(kinds_of(NormKind::layer, false), (Kinds{"embedding", "select_rows", "layer_norm", "linear"}));
  EXPECT_EQ(kinds_of(NormKind::rms, true), (Kinds{"embedding", "rms_norm", "linear", "select_rows", "linear"}));
}

// This prologue does not take the product as it is.
TEST(GraphFusion, OnlyAProductOfQThenKThenVIsFusedWithThePrologue) {
  TinyModel model(DType::bf16, false, {Device::cpu, 1});
  const Graph prologues = fuse_attention_prologue(model.graph).value();
  const auto fused_layers = [&](const auto& change) {
    Graph graph = prologues;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (std::string(graph.nodes[n].kind) != "attention_prologue") continue;
      change(graph.nodes[n - 1], graph.nodes[n]);
      break;
    }
    const int fused = count(fuse_projections(graph).value(), "qkv_prologue");
    EXPECT_EQ(count(fuse_prompt_projections(graph).value(), "qkv_prologue"), fused);
    return fused;
  };
  EXPECT_EQ(fused_layers([](Node&, Node&) {}), kLayers);
  const auto move = [](HeadsView AttentionPrologueParams::*view, int64_t columns) {
    return [=](Node&, Node& prologue) {
      const auto& p = std::get<AttentionPrologueParams>(prologue.parameters);
      const auto member = prologue.binding_of(&(p.*view).data)->member;
      for (Binding& binding : prologue.bindings) {
        if (binding.member == member) binding.column += columns;
      }
    };
  };
  EXPECT_EQ(fused_layers(move(&AttentionPrologueParams::q, 8)), kLayers - 1);
  EXPECT_EQ(fused_layers(move(&AttentionPrologueParams::k, 8)), kLayers - 1);
  EXPECT_EQ(fused_layers(move(&AttentionPrologueParams::v, -8)), kLayers - 1);
  EXPECT_EQ(fused_layers([](Node& linear, Node&) {
              std::get<GemmParams>(linear.parameters).bias = linear.weights.front().data;
              linear.weights.push_back(linear.weights.front());
            }),
            kLayers - 1);
}

TEST_P(GraphOnBackend, StepsBeyondTheLimitsAreRefused) {
  TinyModel model(DType::f32, false, execution_);
  auto executor = GraphExecutor::create(model.graph, model.storage, {4, 2, 1, 16}, execution_).value();
  StepInputs step;
  step.num_tokens = 5;
  EXPECT_EQ(executor->run(step, execution_).message(), "step: num_tokens is 5: this executor was made for 0 to 4");
  step.num_tokens = 1;
  step.num_seqs = 2;
  EXPECT_EQ(executor->run(step, execution_).message(), "step: num_seqs is 2: this executor was made for 0 to 1");
}

// The step has one token of one sequence.
StepInputs one_token(StepBuffers& buffers, const Execution& execution) {
  StepBatch batch;
  const int32_t token = 1;
  batch.add_sequence(&token, 1, 0, {0}, kPageSize, 1);
  return buffers.upload(batch, execution).value();
}

// Operations are not validated again in a step, so what a step brings must be checked before the first of them runs.
TEST_P(GraphOnBackend, StepsThatBreakARuleAreRefused) {
  TinyModel model(DType::f32, false, execution_);
  auto executor = GraphExecutor::create(model.graph, model.storage, {4, 2, 1, 16}, execution_).value();
  auto buffers = StepBuffers::create({4, 1, 4, 4}, execution_.device).value();
  const StepInputs good = one_token(buffers, execution_);
  const struct {
    void (*change)(StepInputs& step, GraphExecutor& of);
    const char* message;
  } cases[] = {
      {[](StepInputs& step, GraphExecutor&) { step.token_ids = nullptr; }, "step: token_ids is null"},
      {[](StepInputs& step, GraphExecutor&) { step.positions = nullptr; }, "step: positions is null"},
      {[](StepInputs& step, GraphExecutor&) { step.slot_mapping[0] = nullptr; }, "step: slot_mapping is null"},
      {[](StepInputs& step, GraphExecutor&) { step.cu_seqlens_q = nullptr; }, "step: cu_seqlens_q is null"},
      {[](StepInputs& step, GraphExecutor&) { step.seq_lens = nullptr; }, "step: seq_lens is null"},
      {[](StepInputs& step, GraphExecutor&) { step.block_table[0] = nullptr; }, "step: block_table is null"},
      {[](StepInputs& step, GraphExecutor&) { step.logit_rows = nullptr; }, "step: logit_rows is null"},
      {[](StepInputs& step, GraphExecutor&) { step.max_pages_per_seq = 0; },
       "step: max_pages_per_seq is 0: it must lie in 1..2147483647"},
      {[](StepInputs& step, GraphExecutor&) { step.block_table_stride = 3; },
       "step: block_table_stride is 3: it must lie in 4 (max_pages_per_seq)..2147483647"},
      {[](StepInputs& step, GraphExecutor&) { step.num_decode_seqs = 2; },
       "step: num_decode_seqs is 2: this executor was made for 0 to 1"},
      {[](StepInputs& step, GraphExecutor&) { step.max_seqlen_q = 0; },
       "step: max_seqlen_q is 0: this executor was made for 1 to 4"},
      {[](StepInputs& step, GraphExecutor&) { step.max_seq_len = 17; },
       "step: max_seq_len is 17: this executor was made for 1 to 16"},
      {[](StepInputs& step, GraphExecutor& of) { step.token_ids = static_cast<int32_t*>(of.data(of.graph().output)); },
       "step: activations overlaps token_ids"},
  };
  for (const auto& each : cases) {
    StepInputs step = good;
    each.change(step, *executor);
    EXPECT_EQ(executor->run(step, execution_).message(), each.message);
  }
  StepInputs step = good;
  step.slot_mapping[0] = reinterpret_cast<int64_t*>(reinterpret_cast<char*>(good.slot_mapping[0]) + 4);
  EXPECT_NE(executor->run(step, execution_).message().find("it must be aligned to 8 bytes"), std::string::npos);
  Execution none = execution_;
  none.num_threads = 0;
  if (execution_.device == Device::cpu) {
    EXPECT_EQ(executor->run(good, none).message(), "step: num_threads is 0: it must be at least 1");
    none.device = Device::cuda;
    EXPECT_EQ(executor->run(good, none).message(), "step: device is cuda: this executor was made for cpu");
  }
  EXPECT_TRUE(executor->run(good, execution_).ok());
  EXPECT_TRUE(executor->run({}, execution_).ok());  // no tokens
}

TEST_P(GraphOnBackend, AnExecutorForNoTokensRunsNothing) {
  TinyModel model(DType::f32, true, execution_);
  for (const Graph& graph : {model.graph, fuse_attention_prologue(model.graph).value()}) {
    auto executor = GraphExecutor::create(graph, model.storage, {}, execution_);
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    EXPECT_TRUE((*executor)->run({}, execution_).ok());
    EXPECT_EQ((*executor)->data(graph.output), nullptr);
  }
}

// The operations are ready to run when the executor is made: with the table as it is then.
TEST_P(GraphOnBackend, AnExecutorKeepsTheTableItWasMadeWith) {
  TinyModel model(DType::f32, false, execution_);
  auto buffers = StepBuffers::create({4, 1, 4, 4}, execution_.device).value();
  const StepInputs step = one_token(buffers, execution_);
  for (const bool fused : {false, true}) {
    const Graph graph = fused ? fuse_attention_prologue(model.graph).value() : model.graph;
    auto executor = GraphExecutor::create(graph, model.storage, {4, 2, 1, 16}, execution_).value();
    const auto logits = [&] {
      EXPECT_TRUE(executor->run(step, execution_).ok());
      std::vector<float> values(static_cast<size_t>(kVocab));
      EXPECT_TRUE(copy_to_host(values.data(), executor->data(graph.output), kVocab * 4, execution_).ok());
      return values;
    };
    const std::vector<float> before = logits();
    ASSERT_TRUE(model.table.reserve(2 * model.table.max_position(), execution_).ok());
    EXPECT_EQ(logits(), before);
    EXPECT_EQ(executor->take_fault(execution_)->code, FaultCode::none);
  }
}

TEST_P(GraphOnBackend, ProfileTimesEveryNode) {
  TinyModel model(DType::f32, false, execution_);
  auto executor = GraphExecutor::create(model.graph, model.storage, {16, 8, 2, 16}, execution_).value();
  auto buffers = StepBuffers::create({16, 2, 16, 4}, execution_.device).value();
  ASSERT_TRUE(executor->run_profiled(one_token(buffers, execution_), execution_).ok());
  EXPECT_EQ(executor->node_seconds().size(), model.graph.nodes.size());
}

TEST(Fusion, TurnsEachChainIntoOneNode) {
  const Execution cpu;
  for (const bool with_bias : {false, true}) {
    const TinyModel model(DType::f32, with_bias, cpu);
    const Graph fused = fuse_attention_prologue(model.graph).value();
    EXPECT_EQ(count(model.graph, "rope"), 2 * kLayers);
    EXPECT_EQ(count(model.graph, "add_bias"), with_bias ? kLayers : 0);
    for (const char* kind : {"rope", "kv_write", "add_bias"}) EXPECT_EQ(count(fused, kind), 0) << kind;
    EXPECT_EQ(count(fused, "attention_prologue"), kLayers);
    EXPECT_EQ(fused.nodes.size(), model.graph.nodes.size() - static_cast<size_t>(kLayers * (with_bias ? 3 : 2)));
    EXPECT_TRUE(std::any_of(fused.nodes.begin(), fused.nodes.end(),
                            [](const Node& node) { return node.name == "layers.1.attention.prologue"; }));
  }
}

// A chain in which something else reads an inner value must stay as it is.
TEST(Fusion, LeavesChainsAloneWhoseInnerValuesAreReadElsewhere) {
  const Weight qkv{reinterpret_cast<const void*>(64), 64, 32, DType::f32};
  RopeConfig rope;
  rope.rotary_dim = 16;
  const RopeTable table = RopeTable::create(rope, 8, RopePrecision::exact, {}).value();
  const RopeTable other = RopeTable::create(rope, 8, RopePrecision::exact, {}).value();
  enum class Variant { plain, k_read_twice, rotated_k_read, v_read, other_table, packed_read };
  for (const Variant variant : {Variant::plain, Variant::k_read_twice, Variant::rotated_k_read, Variant::v_read,
                                Variant::other_table, Variant::packed_read}) {
    GraphBuilder g(DType::f32);
    const Weight embedding{reinterpret_cast<const void*>(64), 10, 32, DType::f32};
    const Value x = g.embedding("embedding", embedding, 1.0f);
    const Value packed = g.linear("qkv", x, qkv);
    auto [q, k, v] = g.split_heads(packed, 2, 1, 16);
    const Value q_rotated = g.rope("rope_q", q, 2, variant == Variant::other_table ? &other : &table);
    const Value k_rotated = g.rope("rope_k", k, 1, &table);
    g.kv_write("kv_write", k_rotated, v, 1, 0, &table);
    const Value out = g.paged_attention("attention", q_rotated, 2, {1.0f}, 0);
    if (variant == Variant::k_read_twice) g.add("probe", k, k);
    if (variant == Variant::rotated_k_read) g.add("probe", k_rotated, k_rotated);
    if (variant == Variant::v_read) g.add("probe", v, v);
    if (variant == Variant::packed_read) g.add("probe", packed, packed);
    const Graph graph = std::move(g).finish(out).value();
    EXPECT_EQ(count(fuse_attention_prologue(graph).value(), "attention_prologue"), variant == Variant::plain ? 1 : 0)
        << static_cast<int>(variant);
  }
}

Weight packed_weight(WeightFormat format, int64_t rows, int64_t cols) {
  const void* const somewhere = reinterpret_cast<const void*>(64);
  return {somewhere, rows, cols, DType::f32, {1, {{somewhere, format, rows}}}};
}

// Packed weights go into the parameters of their operations, and are printed with their formats.
TEST(PackedWeights, AreThoseOfLinearLayersAndEmbeddings) {
  GraphBuilder g(DType::f32);
  const Value x = g.embedding("embedding", packed_weight(WeightFormat::q8_0, 10, 256), 1.0f);
  Weight mixed = packed_weight(WeightFormat::q4_k, 64, 256);
  mixed.packed = {
      3, {{mixed.data, WeightFormat::q4_k, 32}, {mixed.data, WeightFormat::q4_k, 16}, {mixed.data, WeightFormat::q6_k, 16}}};
  const Graph graph = std::move(g).finish(g.linear("qkv", x, mixed)).value();
  const auto& table = std::get<EmbeddingParams>(graph.nodes[0].parameters);
  EXPECT_EQ(table.table_format, WeightFormat::q8_0);
  EXPECT_NE(table.table, nullptr);
  const auto& product = std::get<GemmParams>(graph.nodes[1].parameters);
  EXPECT_EQ(product.weight, nullptr);
  EXPECT_EQ(product.packed.num_segments, 3);
  EXPECT_EQ(product.packed.segments[2].format, WeightFormat::q6_k);
  const std::string printed = graph_table(graph, false);
  EXPECT_NE(printed.find("weight [10, 256] q8_0 "), std::string::npos) << printed;
  EXPECT_NE(printed.find("weight [64, 256] q4_k + q6_k "), std::string::npos) << printed;
}

TEST(PackedWeights, AreRefusedElsewhere) {
  const auto refused = [](const auto& build, const std::string& message) {
    GraphBuilder g(DType::f32);
    const Value x = g.embedding("embedding", packed_weight(WeightFormat::q8_0, 10, 32), 1.0f);
    const Result<Graph> graph = std::move(g).finish(build(g, x));
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.status().message(), message);
  };
  const Weight vector = packed_weight(WeightFormat::q4_0, 1, 32);
  const std::string rest = ": its weight is packed as q4_0: only a linear layer, also of experts, and an embedding can have that";
  refused([&](GraphBuilder& g, Value x) { return g.norm("norm", x, {NormKind::rms, vector}); }, "norm" + rest);
  refused([&](GraphBuilder& g, Value x) { return g.add_bias("bias", x, vector); }, "bias" + rest);
  refused([&](GraphBuilder& g, Value x) { return g.heads_norm("heads", x, 1, {{}, vector, {}}); }, "heads" + rest);
  refused(
      [&](GraphBuilder& g, Value) {
        Weight table = packed_weight(WeightFormat::q4_0, 10, 32);
        table.packed = {2, {{table.data, WeightFormat::q4_0, 5}, {table.data, WeightFormat::q4_0, 5}}};
        return g.embedding("second", table, 1.0f);
      },
      "second: the table has 2 segments: it must have one");
}

// What a node reads, writes and needs of a step are its bindings; a fused node has those of its parts.
TEST(GraphNodes, FollowFromTheirBindings) {
  const Execution cpu;
  const TinyModel model(DType::f32, true, cpu);
  const Graph fused = fuse_attention_prologue(model.graph).value();
  const auto node_named = [](const Graph& graph, const std::string& name) {
    return *std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.name == name; });
  };
  const auto names = [](const Graph& graph, const std::vector<Value>& values) {
    std::string all;
    for (const Value value : values) all += graph.info(value).name + " ";
    return all;
  };
  const Node norm = node_named(model.graph, "layers.1.attention_norm");
  EXPECT_EQ(names(model.graph, norm.reads()), "layers.0.mlp.down embedding ");
  EXPECT_EQ(names(model.graph, norm.writes()), "embedding layers.1.attention_norm ");
  const Node rope = node_named(model.graph, "layers.1.attention.rope_k");
  const auto& rotary = std::get<RotaryParams>(rope.parameters);
  EXPECT_EQ(rope.binding_of(&rotary.rope.sin.data)->table, &model.table);
  EXPECT_EQ(rope.binding_of(&rotary.rope.sin.data)->column, test::kHeadDim / 2);
  EXPECT_EQ(rope.binding_of(&rotary.rope.inv_freq), nullptr);

  const Node prologue = node_named(fused, "layers.1.attention.prologue");
  const auto& p = std::get<AttentionPrologueParams>(prologue.parameters);
  EXPECT_EQ(names(fused, prologue.reads()), "layers.1.attention.qkv ");
  EXPECT_EQ(names(fused, prologue.writes()), "layers.1.attention.rope_q ");
  EXPECT_EQ(prologue.binding_of(&p.k.data)->column, test::kQHeads * test::kHeadDim);
  EXPECT_EQ(prologue.binding_of(&p.v.data)->column, (test::kQHeads + test::kKvHeads) * test::kHeadDim);
  EXPECT_EQ(prologue.cache_binding()->index, 1);
  EXPECT_EQ(prologue.weights.size(), 3u);  // the parts of the bias
  EXPECT_EQ(prologue.position_axes, 1);
  EXPECT_EQ(p.q.data, nullptr);
}

TEST(MemoryPlan, ValuesThatLiveTogetherNeverOverlapAndMemoryIsShared) {
  const Execution cpu;
  const TinyModel model(DType::bf16, true, cpu);
  for (const Graph& graph : {model.graph, fuse_attention_prologue(model.graph).value()}) {
    const MemoryPlan plan = plan_memory(graph, 16, 4).value();
    EXPECT_LT(plan.total_bytes, plan.bytes_without_sharing / 2);
    // Replay the lifetimes independently of the planner: a byte that a value wrote may not be written by another before its last read.
    struct Extent {
      int64_t begin, end;
      int first, last;
    };
    std::map<int32_t, Extent> extents;
    for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
      const Node& node = graph.nodes[static_cast<size_t>(n)];
      for (const auto& values : {node.reads(), node.writes()}) {
        for (const Value value : values) {
          const Value owner = graph.storage_of(value);
          const ValueInfo& info = graph.info(owner);
          const int64_t bytes = (info.rows == Rows::tokens ? 16 : 4) * info.width * dtype_size(info.dtype);
          const int64_t begin = plan.offsets[static_cast<size_t>(owner.id)];
          ASSERT_GE(begin, 0);
          ASSERT_LE(begin + bytes, plan.total_bytes);
          auto [entry, added] = extents.try_emplace(owner.id, Extent{begin, begin + bytes, n, n});
          entry->second.last = n;
        }
      }
    }
    extents.at(graph.output.id).last = static_cast<int>(graph.nodes.size());
    for (const auto& [a_id, a] : extents) {
      for (const auto& [b_id, b] : extents) {
        if (a_id >= b_id || a.last < b.first || b.last < a.first) continue;
        EXPECT_TRUE(a.end <= b.begin || b.end <= a.begin)
            << graph.values[static_cast<size_t>(a_id)].name << " and " << graph.values[static_cast<size_t>(b_id)].name;
      }
    }
  }
}

TEST(GraphPrint, NamesNodesTensorsAndCaches) {
  const Execution cpu;
  const TinyModel model(DType::f32, true, cpu);
  const std::string table = graph_table(fuse_attention_prologue(model.graph).value());
  EXPECT_NE(table.find("layers.0.attention.prologue"), std::string::npos);
  EXPECT_NE(table.find("attention_prologue = qkv_bias + rope_q + rope_k + kv_write"), std::string::npos) << table;
  EXPECT_NE(table.find("cache[1]"), std::string::npos);
  EXPECT_NE(table.find("step.slot_mapping"), std::string::npos);
  const std::string dot = graph_dot(model.graph);
  EXPECT_EQ(dot.rfind("digraph prologue {", 0), 0u);
  EXPECT_EQ(dot.substr(dot.size() - 2), "}\n");
  EXPECT_NE(dot.find("layers.1.attention.kv_write"), std::string::npos);
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  return parts;
}

// The table's cells, without its heading and its last line. Columns are as wide as those of the heading.
std::vector<std::array<std::string, 4>> cells(const std::string& table) {
  std::vector<std::string> lines = split(table, "\n");
  std::array<size_t, 5> columns = {0, lines[0].find("operation"), lines[0].find("reads"), lines[0].find("writes"),
                                   std::string::npos};
  std::vector<std::array<std::string, 4>> rows;
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    for (size_t c = 0; c < 4; ++c) {
      if (c == 0) rows.emplace_back();
      std::string cell = lines[i].substr(columns[c], c < 3 ? columns[c + 1] - columns[c] : std::string::npos);
      rows.back()[c] = cell.substr(0, cell.find_last_not_of(' ') + 1);
    }
  }
  return rows;
}

// A projection may let the next launch begin before it has waited: attention must not take what came before for complete.
TEST(GraphBeginsEarly, AttentionWaitsForTheEndOfAProjection) {
  const auto attention_after = [](const Node& before) {
    Graph graph;
    graph.nodes = {before, {"attention", "paged_attention", PagedAttentionParams()}};
    return begins_early(graph, 1, 1);
  };
  EXPECT_TRUE(attention_after({"prologue", "qkv_prologue", QkvPrologueParams()}));
  EXPECT_TRUE(attention_after({"prologue", "attention_prologue", AttentionPrologueParams()}));
  EXPECT_FALSE(attention_after({"q", "projection", ProjectionParams()}));
  EXPECT_FALSE(attention_after({"first", "paged_attention", PagedAttentionParams()}));
}

TEST(GraphPrint, EveryValueThatIsReadHasBeenWrittenByARowAbove) {
  const std::regex not_a_value(R"(step\.\w+|weight \[\d+, \d+\])"), columns(R"(\[\d+:\d+\])");
  const std::regex type(R"( \[(tokens|logits), \d+\] \w+)");
  const Execution cpu;
  const TinyModel model(DType::f32, true, cpu);
  for (const Graph& graph : {model.graph, fuse_attention_prologue(model.graph).value()}) {
    const std::string table = graph_table(graph);
    const auto rows = cells(table);
    EXPECT_EQ(rows.size(), graph.nodes.size());
    std::vector<std::string> written;
    for (const auto& row : rows) {
      const std::string reads = std::regex_replace(std::regex_replace(row[2], not_a_value, ""), columns, "");
      for (const std::string& value : split(reads, ", ")) {
        EXPECT_NE(std::find(written.begin(), written.end(), value), written.end()) << value << " in\n" << table;
      }
      for (const std::string& value : split(std::regex_replace(row[3], type, ""), ", ")) written.push_back(value);
    }
  }
}

TEST(GraphPrint, EqualLayersShareRows) {
  const Execution cpu;
  const TinyModel model(DType::f32, true, cpu);
  const Graph fused = fuse_attention_prologue(model.graph).value();
  const std::string table = graph_table(fused, true);
  size_t in_layers = 0;
  for (const Node& node : fused.nodes) in_layers += node.name.rfind("layers.", 0) == 0 ? 1 : 0;
  std::vector<std::string> names;
  for (const auto& row : cells(table)) names.push_back(row[0]);
  // Only the first norm differs between the layers: there is nothing to add to the residual before layer 0.
  EXPECT_EQ(names.size(), fused.nodes.size() - in_layers + in_layers / kLayers + 1) << table;
  const std::string all = "layers.0-" + std::to_string(kLayers - 1) + ".";
  for (const std::string& name : {all + "attention.prologue", all + "mlp.down", std::string("layers.0.attention_norm")}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name << "\n" << table;
  }
  EXPECT_NE(table.find("layers.N.attention.qkv"), std::string::npos) << table;
  EXPECT_NE(table.find("cache[N]"), std::string::npos) << table;
  EXPECT_NE(table.find(std::to_string(fused.nodes.size()) + " nodes\n"), std::string::npos);
}

}  // namespace
}  // namespace prologue
