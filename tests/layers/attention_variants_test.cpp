// Tests attention layers of every kind, as the builder writes them down and as fusion rewrites them: the same bits, in one node; and one
// whole layer of each kind against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <prologue/layers/graph/fusion.h>
#include <prologue/layers/graph/print.h>

#include "tests/oracle/attention_prologue.h"
#include "tests/support/arena.h"
#include "tests/support/attention_variant.h"
#include "tests/support/combinations.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

using Bytes = std::vector<unsigned char>;
constexpr int64_t kPageSize = VariantModel::kPageSize;

// The two steps of a run: a prompt of each of two sequences, then a token of each.
StepBatch make_batch(const AttentionVariant& variant, int step) {
  static const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 35};
  StepBatch batch(variant.num_axes);
  if (step == 0) {
    batch.add_sequence(tokens.data(), 5, 0, {6, 1}, kPageSize, 1);
    batch.add_sequence(tokens.data() + 5, 3, 0, {3}, kPageSize, 1);
  } else {
    batch.add_sequence(tokens.data() + 8, 1, 5, {6, 1}, kPageSize, 1);
    batch.add_sequence(tokens.data() + 9, 1, 3, {3}, kPageSize, 1);
  }
  Random random(variant.seed + 1000);  // positions of their own on each axis, as images have
  for (int64_t axis = 0; axis < variant.num_axes && variant.num_axes > 1; ++axis) {
    for (int64_t t = 0; t < batch.num_tokens(); ++t) {
      batch.set_position(t, axis, static_cast<int32_t>(random.integer(0, VariantModel::kMaxPosition - 1)));
    }
  }
  return batch;
}

struct Outcome {
  Bytes q;  // of the last layer, in both steps
  Bytes cache;
};

Outcome run(VariantModel& model, Graph graph) {
  const Execution& execution = model.execution;
  model.fill_cache(0xff);
  graph.output = q_of_last_layer(graph);
  Outcome outcome;
  auto executor = GraphExecutor::create(std::move(graph), model.storage, {16, 8, 2, 16}, execution);
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  if (!executor.ok()) return outcome;
  auto buffers = StepBuffers::create({16, 2, 16, 4, model.variant.num_axes}, execution.device).value();
  for (int step = 0; step < 2; ++step) {
    const StepBatch batch = make_batch(model.variant, step);
    const Status status = (*executor)->run(buffers.upload(batch, execution).value(), execution);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ((*executor)->take_fault(execution)->code, FaultCode::none);
    const Bytes q = rows_of(**executor, (*executor)->graph().output, batch.num_tokens(), execution);
    outcome.q.insert(outcome.q.end(), q.begin(), q.end());
  }
  outcome.cache = model.cache_contents();
  return outcome;
}

int64_t count(const Graph& graph, const std::string& kind) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.kind == kind; });
}

void expect_one_node_a_layer(const VariantModel& model, const Graph& fused) {
  const AttentionVariant& v = model.variant;
  EXPECT_EQ(count(fused, "attention_prologue"), v.has_steps() ? v.num_layers : 0);
  EXPECT_EQ(count(fused, "kv_write"), v.has_steps() ? 0 : v.num_layers);
  for (const char* kind : {"heads_norm", "rope", "query_scale"}) EXPECT_EQ(count(fused, kind), 0) << kind;
  EXPECT_EQ(count(fused, "hadamard"), v.v_hadamard_block == 0 ? 0 : v.num_layers);              // of attention's output
  EXPECT_EQ(count(fused, "add_bias"), v.joint_bias && v.gated ? v.num_layers : 0);  // of the gate, too
  EXPECT_EQ(count(fused, "gate"), v.gated ? v.num_layers : 0);
  EXPECT_EQ(count(fused, "gather_cos_sin"), count(model.graph, "gather_cos_sin"));
}

void expect_same_bits(const AttentionVariant& variant, DType dtype, Rounding rounding, const Execution& execution) {
  SCOPED_TRACE(str_cat(dtype_name(dtype), " ", variant.describe()));
  VariantModel model(variant, dtype, execution);
  const Graph fused_graph = fuse_attention_prologue(model.graph, rounding).value();
  expect_one_node_a_layer(model, fused_graph);
  const Outcome unfused = run(model, model.graph);
  const Outcome fused = run(model, fused_graph);
  EXPECT_FALSE(unfused.q.empty());
  EXPECT_TRUE(fused.q == unfused.q) << "q differs";
  EXPECT_TRUE(fused.cache == unfused.cache) << "the cache differs";
}

class AttentionVariants : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    execution_.device = backend_device(GetParam());
    execution_.num_threads = GetParam() == Backend::cpu_threads ? 3 : 1;
  }
  Execution execution_;
};
INSTANTIATE_TEST_SUITE_P(Backends, AttentionVariants, testing::Values(Backend::cpu, Backend::cpu_threads, Backend::cuda),
                         [](const auto& each) { return backend_name(each.param); });

TEST_P(AttentionVariants, ListedOnesFuseIntoOneNodeWithTheSameBits) {
  for (const AttentionVariant& variant : listed_variants()) {
    expect_same_bits(variant, DType::f32, Rounding::once, execution_);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      expect_same_bits(variant, dtype, Rounding::per_step, execution_);
    if (testing::Test::HasFailure()) return;
  }
}

TEST_P(AttentionVariants, RandomOnesFuseIntoOneNodeWithTheSameBits) {
  const uint64_t how_many = GetParam() == Backend::cpu ? 900 : 90;
  for (uint64_t seed = 1; seed <= how_many && !testing::Test::HasFailure(); ++seed) {
    const auto dtype = kFloatTypes[seed % 3];
    const bool once = dtype == DType::f32 && seed % 2 == 0;
    expect_same_bits(random_variant(seed), dtype, once ? Rounding::once : Rounding::per_step, execution_);
  }
}

TEST_P(AttentionVariants, RoundingOnceGivesOtherBitsInSixteenBitTypes) {
  AttentionVariant variant;
  variant.joint_bias = true;
  variant.norm = NormPlacement::before_rope;
  variant.num_layers = 1;
  VariantModel model(variant, DType::bf16, execution_);
  const Outcome once = run(model, fuse_attention_prologue(model.graph).value());
  const Outcome per_step = run(model, fuse_attention_prologue(model.graph, Rounding::per_step).value());
  EXPECT_FALSE(once.q == per_step.q);
}

// A layer without heads of K and V reads the cache that another layer has written (Gemma 3n and 4). With the q of that layer it gives the
// same result.
TEST_P(AttentionVariants, ALayerReadsTheCacheOfAnother) {
  for (AttentionVariant variant : listed_variants()) {
    if (variant.source == RopeSource::per_token) continue;  // the model's rope is then of another graph
    if (variant.gated) continue;                            // the rows of q and of the gate are not side by side
    SCOPED_TRACE(variant.describe());
    variant.num_layers = 1;
    VariantModel model(variant, DType::bf16, execution_);
    const Attention& writer = model.layers.front();
    Attention reader = writer;
    reader.num_kv_heads = 0;
    reader.qkv_weight.rows = variant.num_q_heads * variant.head_dim;
    if (reader.qkv_bias) reader.qkv_bias.cols = reader.qkv_weight.rows;
    reader.k_bias = reader.v_bias = {}, reader.k_norm = reader.v_norm = {}, reader.v_from_k = false;
    reader.k_constant = reader.v_constant = 1.0f;
    const auto graph_of = [&](bool of_reader) {
      GraphBuilder g(DType::bf16);
      const Value x = g.embedding("embedding", model.embedding, 1.0f);
      Value written, read;
      {
        const GraphBuilder::Scope scope(g, "writer");
        written = writer.build(g, x);
      }
      const GraphBuilder::Scope scope(g, "reader");
      read = reader.build(g, x);
      return std::move(g).finish(of_reader ? read : written).value();
    };
    const auto result = [&](Graph graph) {
      model.fill_cache(0xff);
      auto executor = GraphExecutor::create(std::move(graph), model.storage, {16, 8, 2, 16}, execution_).value();
      auto buffers = StepBuffers::create({16, 2, 16, 4, variant.num_axes}, execution_.device).value();
      Bytes rows;
      for (int step = 0; step < 2; ++step) {
        const StepBatch batch = make_batch(variant, step);
        EXPECT_TRUE(executor->run(buffers.upload(batch, execution_).value(), execution_).ok());
        const Bytes of_step = rows_of(*executor, executor->graph().output, batch.num_tokens(), execution_);
        rows.insert(rows.end(), of_step.begin(), of_step.end());
      }
      return rows;
    };
    const Bytes want = result(graph_of(false));
    EXPECT_FALSE(want.empty());
    EXPECT_TRUE(result(graph_of(true)) == want);
    EXPECT_TRUE(result(fuse_attention_prologue(graph_of(true), Rounding::per_step).value()) == want) << "fused";
    if (testing::Test::HasFailure()) return;
  }
}

// ---- faults -----------------------------------------------------------------------------------------------------------------

// A position is outside the table, on any axis: the same fault, nothing of the token in the cache, all other tokens as ever. With
// PastTable::identity there is no fault, and the token is not rotated.
TEST_P(AttentionVariants, BadPositionsAreTheSameFault) {
  std::vector<AttentionVariant> variants = listed_variants();
  std::erase_if(variants, [](const AttentionVariant& variant) { return variant.rotary_dim == 0; });
  for (const auto& [listed, past_table, position] :
       combinations(variants, std::vector{PastTable::record, PastTable::zero, PastTable::identity},
                    std::vector{-1, static_cast<int32_t>(VariantModel::kMaxPosition), INT32_MAX})) {
    AttentionVariant variant = listed;
    variant.past_table = past_table;
    SCOPED_TRACE(variant.describe());
    variant.num_layers = 1;
    const bool identity = variant.past_table == PastTable::identity;
    VariantModel model(variant, DType::f32, execution_);
    const auto run_bad = [&](Graph graph, int32_t at, Fault& fault) {
      model.fill_cache(0);
      graph.output = q_of_last_layer(graph);
      auto executor = GraphExecutor::create(std::move(graph), model.storage, {16, 8, 2, 16}, execution_).value();
      auto buffers = StepBuffers::create({16, 2, 16, 4, variant.num_axes}, execution_.device).value();
      StepBatch batch = make_batch(variant, 0);
      batch.set_position(4, variant.num_axes - 1, at);
      EXPECT_TRUE(executor->run(buffers.upload(batch, execution_).value(), execution_).ok());
      fault = executor->take_fault(execution_).value();
      Outcome outcome = {rows_of(*executor, executor->graph().output, batch.num_tokens(), execution_), model.cache_contents()};
      const int64_t row = static_cast<int64_t>(outcome.q.size()) / batch.num_tokens();
      if (!identity || at < 0) outcome.q.erase(outcome.q.begin() + 4 * row, outcome.q.begin() + 5 * row);
      return outcome;
    };
    Fault of_unfused, of_fused;
    const Outcome unfused = run_bad(model.graph, position, of_unfused);
    const Outcome fused = run_bad(fuse_attention_prologue(model.graph).value(), position, of_fused);
    const bool faults = position >= 0 && !identity;
    EXPECT_EQ(of_unfused.code, faults ? FaultCode::position_out_of_range : FaultCode::none);
    EXPECT_EQ(of_unfused.token, faults ? 4 : -1);
    EXPECT_EQ(of_unfused.count, faults ? 1u : 0u);
    EXPECT_EQ(of_fused.code, of_unfused.code);
    EXPECT_EQ(of_fused.token, of_unfused.token);
    EXPECT_EQ(of_fused.count, of_unfused.count);
    EXPECT_TRUE(fused.q == unfused.q) << position;
    EXPECT_TRUE(fused.cache == unfused.cache) << position;
    if (testing::Test::HasFailure()) return;
  }
}

// ---- against float64 --------------------------------------------------------------------------------------------------------

std::vector<double> multiply(const std::vector<double>& x, const std::vector<double>& weight, int64_t cols) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / cols, rows = static_cast<int64_t>(weight.size()) / cols;
  std::vector<double> y(static_cast<size_t>(tokens * rows), 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c)
        y[static_cast<size_t>(t * rows + r)] += x[static_cast<size_t>(t * cols + c)] * weight[static_cast<size_t>(r * cols + c)];
    }
  }
  return y;
}

std::vector<double> columns(const std::vector<double>& x, int64_t width, int64_t begin, int64_t count) {
  std::vector<double> part;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    const auto from = x.begin() + static_cast<int64_t>(row) + begin;
    part.insert(part.end(), from, from + count);
  }
  return part;
}

// Computes the first step of a model of one layer, from its definition.
std::vector<double> layer_in_float64(const VariantModel& model) {
  const AttentionVariant& v = model.variant;
  const Attention& layer = model.layers.front();
  const std::vector<int64_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6}, starts = {0, 5, 8};
  const int64_t hidden = VariantModel::kHidden, num_tokens = 8;
  const int64_t q_width = v.num_q_heads * v.head_dim, k_width = v.num_kv_heads * v.head_dim;
  const int64_t v_at = v.v_from_k ? q_width : q_width + k_width, v_width = v.num_kv_heads * v.v_width();

  const std::vector<double> embedding = model.values_of(model.embedding), norm = model.values_of(model.norms.front());
  std::vector<double> x;
  for (const int64_t token : tokens) {
    double squares = 0.0;
    for (int64_t i = 0; i < hidden; ++i) squares += std::pow(embedding[static_cast<size_t>(token * hidden + i)], 2);
    for (int64_t i = 0; i < hidden; ++i) {
      x.push_back(embedding[static_cast<size_t>(token * hidden + i)] /
                  std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(VariantModel::kEps)) *
                  norm[static_cast<size_t>(i)]);
    }
  }
  const std::vector<double> qkv = multiply(x, model.values_of(layer.qkv_weight), hidden);
  const auto optional = [&](const Weight& weight) { return weight ? model.values_of(weight) : std::vector<double>(); };

  oracle::PrologueInput in;
  in.num_tokens = num_tokens, in.num_q_heads = v.num_q_heads, in.num_kv_heads = v.num_kv_heads, in.head_dim = v.head_dim;
  in.q = columns(qkv, v.qkv_width(), 0, q_width);
  in.v_head_dim = v.v_head_dim;
  in.k = columns(qkv, v.qkv_width(), q_width, k_width);
  in.v = columns(qkv, v.qkv_width(), v_at, v_width);
  in.q_bias = optional(layer.q_bias), in.k_bias = optional(layer.k_bias);
  in.v_bias = optional(v.v_from_k ? layer.k_bias : layer.v_bias);
  if (layer.qkv_bias) {
    const std::vector<double> joint = model.values_of(layer.qkv_bias);
    in.q_bias = columns(joint, v.qkv_width(), 0, q_width);
    in.k_bias = columns(joint, v.qkv_width(), q_width, k_width);
    in.v_bias = columns(joint, v.qkv_width(), v_at, v_width);
  }
  const auto norm_input = [&](const HeadsNorm& of) {
    oracle::NormInput n;
    n.enabled = of.norm.placement != NormPlacement::none;
    n.after_rotation = of.norm.placement == NormPlacement::after_rope;
    n.layer = of.norm.kind == NormKind::layer, n.over_token = of.norm.scope == NormScope::token;
    n.eps = static_cast<double>(of.norm.eps), n.weight_offset = static_cast<double>(of.norm.weight_offset);
    n.weight = optional(of.weight), n.bias = optional(of.bias);
    return n;
  };
  in.q_norm = norm_input(layer.q_norm), in.k_norm = norm_input(layer.k_norm);
  in.v_norm.enabled = v.v_norm, in.v_norm.eps = 1e-6;
  in.rotary_dim = v.rotary_dim, in.rotary_offset = v.rotary_offset;
  in.interleaved = v.style == RopeStyle::interleaved, in.inverse = v.inverse;
  in.table.assign(model.cos_sin.begin(), model.cos_sin.end());
  in.inv_freq.assign(model.inv_freq.begin(), model.inv_freq.end());
  in.attention_factor = v.source == RopeSource::inv_freq ? 1.25 : 1.0;
  in.num_axes = v.num_axes;
  in.pair_axis.assign(model.pair_axis.begin(), model.pair_axis.end());
  for (int64_t axis = 0; axis < v.num_axes; ++axis) {
    for (int64_t t = 0; t < num_tokens; ++t) in.positions.push_back(t < 5 ? t : t - 5);
  }
  if (v.num_axes > 1) {
    Random random(v.seed + 1000);
    for (int64_t& position : in.positions) position = random.integer(0, VariantModel::kMaxPosition - 1);
  }
  for (int64_t t = 0; t < num_tokens; ++t) in.slots.push_back(t);
  in.num_pages = num_tokens, in.page_size = 1;
  in.hadamard_block = v.hadamard_block;
  in.q_constant = static_cast<double>(v.q_scale.constant), in.q_by_position = static_cast<int>(v.q_scale.by_position);
  in.q_a = static_cast<double>(v.q_scale.a), in.q_b = static_cast<double>(v.q_scale.b);
  in.k_constant = static_cast<double>(v.k_constant), in.v_constant = static_cast<double>(v.v_constant);
  const oracle::PrologueOutput out = oracle::attention_prologue(in);

  const std::vector<double> sinks = optional(layer.sinks);
  std::vector<double> attended;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t start = t < starts[1] ? starts[0] : starts[1];
    int64_t first = t;  // that t sees
    while (first > start && (v.window == 0 || t - (first - 1) < v.window) &&
           (v.chunk == 0 || (first - 1 - start) / v.chunk == (t - start) / v.chunk)) {
      --first;
    }
    for (int64_t h = 0; h < v.num_q_heads; ++h) {
      const int64_t kv_head = h / (v.num_q_heads / v.num_kv_heads);
      std::vector<double> weights;
      double sum = sinks.empty() ? 0.0 : std::exp(sinks[static_cast<size_t>(h)]);
      for (int64_t s = first; s <= t; ++s) {
        double score = 0.0;
        for (int64_t i = 0; i < v.head_dim; ++i) {
          score += out.q[static_cast<size_t>(t)][static_cast<size_t>(h * v.head_dim + i)].value *
                   out.k[static_cast<size_t>(s)][static_cast<size_t>(kv_head * v.head_dim + i)].value;
        }
        score *= static_cast<double>(VariantModel::kScoreScale);
        if (const auto cap = static_cast<double>(v.soft_cap); cap > 0.0) score = cap * std::tanh(score / cap);
        weights.push_back(std::exp(score));
        sum += weights.back();
      }
      for (int64_t i = 0; i < v.v_width(); ++i) {
        double value = 0.0;
        for (int64_t s = first; s <= t; ++s) {
          value += weights[static_cast<size_t>(s - first)] / sum *
                   out.v[static_cast<size_t>(s)][static_cast<size_t>(kv_head * v.v_width() + i)].value;
        }
        attended.push_back(value);
      }
    }
  }
  if (v.gated) {
    const int64_t gate_at = v.qkv_width() - v.gate_width();
    const std::vector<double> gate = columns(qkv, v.qkv_width(), gate_at, v.gate_width());
    std::vector<double> bias(static_cast<size_t>(v.gate_width()), 0.0);
    if (layer.qkv_bias) bias = columns(model.values_of(layer.qkv_bias), v.qkv_width(), gate_at, v.gate_width());
    for (size_t i = 0; i < attended.size(); ++i) attended[i] /= 1.0 + std::exp(-gate[i] - bias[i % bias.size()]);
  }
  return multiply(attended, model.values_of(layer.output_weight), v.num_q_heads * v.v_width());
}

TEST_P(AttentionVariants, AWholeLayerMatchesFloat64) {
  for (AttentionVariant variant : listed_variants()) {
    SCOPED_TRACE(variant.describe());
    variant.num_layers = 1;
    VariantModel model(variant, DType::f32, execution_);
    const std::vector<double> want = layer_in_float64(model);
    for (const bool fused : {false, true}) {
      auto executor = GraphExecutor::create(fused ? fuse_attention_prologue(model.graph).value() : model.graph, model.storage,
                                            {16, 8, 2, 16}, execution_)
                          .value();
      auto buffers = StepBuffers::create({16, 2, 16, 4, variant.num_axes}, execution_.device).value();
      ASSERT_TRUE(executor->run(buffers.upload(make_batch(variant, 0), execution_).value(), execution_).ok());
      const Bytes bytes = rows_of(*executor, model.graph.output, 8, execution_);
      ASSERT_EQ(bytes.size(), want.size() * sizeof(float));
      double largest = 0.0;
      for (const double each : want) largest = std::max(largest, std::fabs(each));
      for (size_t i = 0; i < want.size(); ++i) {
        float got = 0.0f;
        std::memcpy(&got, bytes.data() + i * sizeof(float), sizeof(float));
        // A few hundred roundings of relative size 2^-24, through an exponential.
        ASSERT_NEAR(static_cast<double>(got), want[i], 2e-5 * (1.0 + largest)) << (fused ? "fused " : "unfused ") << i;
      }
    }
  }
}

// ---- what does not fuse -----------------------------------------------------------------------------------------------------

// Builds a graph of one layer by hand: `change` may put a probe on a value, or write the chain down differently.
struct Chain {
  GraphBuilder g{DType::f32};
  Weight any(int64_t rows, int64_t cols) const { return {reinterpret_cast<const void*>(64), rows, cols, DType::f32}; }
  HeadsNorm norm() const {
    HeadsNorm made;
    made.weight = any(1, 16);
    return made;
  }
  void probe(Value value) { g.query_scale("probe", value, 1, {2.0f}); }
};

TEST(FusionOfVariants, LeavesAloneWhatOneLaunchCannotDo) {
  RopeConfig config;
  config.rotary_dim = 16;
  const RopeTable table = RopeTable::create(config, 8, RopePrecision::exact, {}).value();
  const RopeTable longer = RopeTable::create(config, 16, RopePrecision::exact, {}).value();
  const auto prologues = [&](const char* what) {
    const std::string change = what;
    const auto is = [&](const char* name) { return change == name; };
    Chain c;
    GraphBuilder& g = c.g;
    GraphRope rope = &table, other = &table, written = &table;
    other.rope.inverse = is("q is rotated back");
    if (is("kv_write guards otherwise")) written.rope.past_table = PastTable::identity;
    if (is("kv_write guards another table")) written.table = &longer;
    HeadsNorm q_norm = c.norm(), v_norm;
    if (is("q has another eps")) q_norm.norm.eps = 1e-5f;
    if (is("q has another kind of norm")) q_norm.norm.kind = NormKind::layer;
    if (is("q has another scope")) q_norm.norm.scope = NormScope::token;
    if (is("q has another offset")) q_norm.norm.weight_offset = 1.0f;
    if (is("v has a weight")) v_norm.weight = c.any(1, 16);
    if (is("v has a layer norm")) v_norm.norm.kind = NormKind::layer;

    const Value x = g.embedding("embedding", c.any(10, 32), 1.0f);
    const Value projected = g.linear("qkv", x, c.any(is("more columns") ? 80 : 64, 32));
    const Value packed = g.add_bias("qkv_bias", projected, c.any(1, is("more columns") ? 80 : 64));
    auto [q, k, v] = g.split_heads(packed, 2, 1, 16);
    const Value q_columns = q, k_columns = k, v_columns = v;
    if (is("k is biased twice")) k = g.add_bias("k_bias", k, c.any(1, 16));
    if (is("v is scaled")) v = g.query_scale("v_scale", v, 1, {2.0f});
    if (is("k is scaled")) k = g.query_scale("k_scale", k, 1, {2.0f});
    if (is("v is rotated")) v = g.rope("rope_v", v, 1, rope);
    if (!is("only q has no norm") && !is("q is normed last")) q = g.heads_norm("q_norm", q, 2, q_norm);
    if (!is("only k has no norm")) k = g.heads_norm("k_norm", k, 1, c.norm());
    if (is("k is normed twice")) k = g.heads_norm("k_norm_2", k, 1, c.norm());
    const Value q_normed = q, k_normed = k;
    if (is("q is scaled first")) q = g.query_scale("q_scale_1", q, 2, {2.0f});
    if (!is("only q is not rotated")) q = g.rope("rope_q", q, is("other heads") ? 4 : 2, other);
    if (is("q is normed last")) q = g.heads_norm("q_norm", q, 2, q_norm);
    if (!is("only k is not rotated") && !is("k is rotated last")) k = g.rope("rope_k", k, 1, rope);
    if (is("q is transformed last")) q = g.query_scale("q_scale_1", q, 2, {2.0f});
    if (!is("only k is transformed")) q = g.hadamard("hadamard_q", q, is("other heads are transformed") ? 4 : 2, 8);
    if (!is("only q is transformed")) k = g.hadamard("hadamard_k", k, 1, is("k has another block") ? 4 : 8);
    if (is("k is transformed twice")) k = g.hadamard("hadamard_k_2", k, 1, 8);
    if (is("v is transformed")) v = g.hadamard("hadamard_v", v, 1, 8);
    if (is("k is normed after all")) k = g.heads_norm("k_norm_2", k, 1, c.norm());
    if (is("k is rotated last")) k = g.rope("rope_k", k, 1, rope);
    q = g.query_scale("q_scale", q, 2, {0.5f});
    v = g.heads_norm("v_norm", v, 1, v_norm);
    if (is("k is scaled last")) k = g.query_scale("k_constant", k, 1, {2.0f});
    if (is("v is scaled last")) v = g.query_scale("v_constant", v, 1, {2.0f});
    if (is("k is scaled by position")) k = g.query_scale("k_constant", k, 1, {2.0f, PositionScale::logn, 0.0f, 2.0f});
    if (is("v is multiplied by 0")) v = g.query_scale("v_constant", v, 1, {0.0f});
    if (is("q is read before kv_write")) c.probe(q);
    g.kv_write("kv_write", k, v, 1, 0, is("only k is not rotated") ? GraphRope() : written);
    const Value out = g.paged_attention("attention", q, 2, {1.0f}, 0);

    if (is("packed is read")) c.probe(packed);
    if (is("q's columns are read")) c.probe(q_columns);
    if (is("k's columns are read")) c.probe(k_columns);
    if (is("v's columns are read")) c.probe(v_columns);
    if (is("normed q is read")) c.probe(q_normed);
    if (is("normed k is read")) c.probe(k_normed);
    if (is("rotated k is read")) c.probe(k);
    if (is("normed v is read")) c.probe(v);
    if (is("the projection is read")) c.probe(projected);
    if (is("finished q is read")) c.probe(q);
    Graph graph = std::move(g).finish(is("rotated k is the output") ? k : out).value();
    const Graph fused = fuse_attention_prologue(graph).value();
    const int64_t found = count(fused, "attention_prologue");
    if (found == 0) {
      EXPECT_EQ(graph_table(fused), graph_table(graph)) << what;
    }
    return found;
  };
  for (const char* what : {"nothing", "the projection is read", "finished q is read", "q has another eps",
                           "q has another kind of norm", "q has another scope", "q has another offset", "only q has no norm",
                           "only k has no norm", "q is normed last", "k is scaled last", "v is scaled last"}) {
    EXPECT_EQ(prologues(what), 1) << what;
  }
  for (const char* what : {"packed is read",
                           "q's columns are read",
                           "k's columns are read",
                           "v's columns are read",
                           "normed q is read",
                           "normed k is read",
                           "rotated k is read",
                           "normed v is read",
                           "rotated k is the output",
                           "q is read before kv_write",
                           "q is rotated back",
                           "kv_write guards otherwise",
                           "kv_write guards another table",
                           "v has a weight",
                           "v has a layer norm",
                           "more columns",
                           "k is biased twice",
                           "v is scaled",
                           "k is scaled",
                           "k is scaled by position",
                           "v is multiplied by 0",
                           "v is rotated",
                           "k is normed twice",
                           "q is scaled first",
                           "only q is not rotated",
                           "only k is not rotated",
                           "other heads",
                           "q is transformed last",
                           "only k is transformed",
                           "only q is transformed",
                           "other heads are transformed",
                           "k has another block",
                           "k is transformed twice",
                           "v is transformed",
                           "k is normed after all",
                           "k is rotated last"}) {
    EXPECT_EQ(prologues(what), 0) << what;
  }
}

// ---- what a graph cannot hold -----------------------------------------------------------------------------------------------

TEST(AttentionGraph, RefusesWeightsThatDoNotFit) {
  const Execution cpu;
  AttentionVariant variant;
  variant.q_bias = true;
  variant.norm = NormPlacement::before_rope;
  variant.norm_kind = NormKind::layer;
  variant.norm_bias = true;
  const struct {
    void (*change)(Attention&);
    const char* message;
  } cases[] = {
      {[](Attention& a) { a.qkv_weight.cols = 23; },
       "layers.1.qkv: the weight is [128, 23] float32: what it multiplies has 24 columns of float32"},
      {[](Attention& a) { a.qkv_weight.rows = 127; },
       "graph: layers.1.qkv has 127 columns: 4 heads of Q and 2 of K and of V of 16 channels need 128"},
      {[](Attention& a) { a.output_weight.dtype = DType::f16; },
       "layers.1.output: the weight is [24, 64] float16: what it multiplies has 64 columns of float32"},
      {[](Attention& a) { a.q_bias.cols = 60; }, "layers.1.q_bias: a bias is [1, 60] float32: it must be [1, 64] of float32"},
      {[](Attention& a) { a.q_bias.rows = 4, a.q_bias.cols = 16; },  // the right count
       "layers.1.q_bias: a bias is [4, 16] float32: it must be [1, 64] of float32"},
      {[](Attention& a) { a.k_norm.weight.cols = 32; },  // flat: of all heads
       "layers.1.k_norm: a norm's weight is [1, 32] float32: it must be [1, 16] or [2, 16] of float32"},
      {[](Attention& a) {
         a.sinks = {a.qkv_weight.data, 2, 2, DType::f32};
       },
       "layers.1.attention: the sinks are [2, 2] float32: they must be [1, 4] of float32"},
      {[](Attention& a) { a.k_norm.weight.rows = 3; },
       "layers.1.k_norm: a norm's weight is [3, 16] float32: it must be [1, 16] or [2, 16] of float32"},
      {[](Attention& a) { a.q_norm.bias.dtype = DType::bf16; },
       "layers.1.q_norm: a norm's weight is [1, 16] bfloat16: it must be [1, 16] or [4, 16] of float32"},
      {[](Attention& a) { a.q_norm.weight.dtype = a.q_norm.bias.dtype = DType::f16; },
       "layers.1.q_norm: a norm's weight is [1, 16] float16: it must be [1, 16] or [4, 16] of float32"},
      {[](Attention& a) { a.q_norm.bias.rows = 4; },
       "layers.1.q_norm: the norm's weight has 1 rows and its bias 4: they must have as many"},
      {[](Attention& a) { a.v_head_dim = 18; },
       "graph: layers.1.qkv has 128 columns: 4 heads of Q and 2 of K of 16 channels and of V of 18 need 132"},
      {[](Attention& a) { a.v_from_k = true, a.v_head_dim = 8; },
       "graph: v_head_dim is 8: V that is taken from K has head_dim, 16, channels"},
      {[](Attention& a) {
         a.sinks = {a.qkv_weight.data, 1, 3, DType::f32};
       },
       "layers.1.attention: the sinks are [1, 3] float32: they must be [1, 4] of float32"},
      {[](Attention& a) {
         a.sinks = {a.qkv_weight.data, 1, 4, DType::bf16};
       },
       "layers.1.attention: the sinks are [1, 4] bfloat16: they must be [1, 4] of float32"},
      {[](Attention& a) { a.num_kv_heads = 0; },
       "graph: layers.1.qkv has 128 columns: without heads of K and V it has those of 4 heads of Q of 16 channels, 64"},
      {[](Attention& a) { a.num_kv_heads = 0, a.qkv_weight.rows = 64; },
       "layers.1.k_norm: there are 0 heads: the 0 columns must be a multiple of them"},
      {[](Attention& a) { a.rope = {}, a.rope.rope.inv_freq = static_cast<const float*>(a.qkv_weight.data); },
       "layers.1.kv_write: rotary_dim is 0, but rope.inv_freq is given: set rotary_dim, or leave it null"},
  };
  for (const auto& each : cases) {
    VariantModel model(variant, DType::f32, cpu);
    each.change(model.layers[1]);
    GraphBuilder g(DType::f32);
    const Value x = g.embedding("embedding", model.embedding, 1.0f);
    const GraphBuilder::Scope scope(g, "layers.1");
    const Value out = model.layers[1].build(g, x);
    const Result<Graph> graph = std::move(g).finish(out);
    EXPECT_EQ(graph.status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(graph.status().message(), each.message);
  }
}

// What an operation refuses is told with the node's name, when the executor is made.
TEST(AttentionGraph, NamesTheNodeThatAnOperationRefuses) {
  const Execution cpu;
  const struct {
    void (*change)(Attention&);
    const char *unfused, *fused;
  } cases[] = {
      {[](Attention& a) { a.layer = 2; }, "kv_write: it uses the cache of layer 2: there are caches for 2 layers",
       "prologue: it uses the cache of layer 2: there are caches for 2 layers"},
      {[](Attention& a) { a.q_scale.by_position = PositionScale::logn, a.q_scale.b = 0.5f; },
       "q_scale: query_scale: q_scale.b is 0.5: for logn it must be greater than 1",
       "prologue: attention_prologue: q_scale.b is 0.5: for logn it must be greater than 1"},
      {[](Attention& a) { a.hadamard_block = 32; },
       "hadamard_q: hadamard: block is 32: it must be a power of two in 2..512 that divides head_dim, 16",
       "prologue: attention_prologue: hadamard_block is 32: it must be a power of two in 2..512 that divides head_dim, 16"},
      {[](Attention& a) { a.v_head_dim = 8, a.output_weight.cols = 32; },
       "kv_write: its heads of V have 8 channels: those in the cache of layer 1 have 16",
       "kv_write: its heads of V have 8 channels: those in the cache of layer 1 have 16"},
      {[](Attention& a) { a.chunk = -1; }, "attention: paged_attention: chunk is -1: it must lie in 0..2147483647",
       "attention: paged_attention: chunk is -1: it must lie in 0..2147483647"},
      {[](Attention& a) { a.scale = std::numeric_limits<float>::infinity(); },
       "attention: paged_attention: scale is inf: it must be finite",
       "attention: paged_attention: scale is inf: it must be finite"},
  };
  for (const auto& each : cases) {
    VariantModel model({}, DType::f32, cpu);
    each.change(model.layers[1]);
    GraphBuilder g(DType::f32);
    const Value out = model.layers[1].build(g, g.embedding("embedding", model.embedding, 1.0f));
    const Graph graph = std::move(g).finish(out).value();
    for (const bool fused : {false, true}) {
      const auto executor =
          GraphExecutor::create(fused ? fuse_attention_prologue(graph).value() : graph, model.storage, {16, 8, 2, 16}, cpu);
      EXPECT_EQ(executor.status().code(), StatusCode::invalid_argument);
      EXPECT_EQ(executor.status().message(), fused ? each.fused : each.unfused);
    }
  }
}

TEST(AttentionGraph, RefusesStepsWithTooFewPositionAxes) {
  const Execution cpu;
  AttentionVariant variant;
  variant.num_axes = 3;
  VariantModel model(variant, DType::f32, cpu);
  auto buffers = StepBuffers::create({16, 2, 16, 4}, cpu.device).value();
  AttentionVariant one_axis = variant;
  one_axis.num_axes = 1;
  const StepInputs step = buffers.upload(make_batch(one_axis, 0), cpu).value();
  for (const Graph& graph : {model.graph, fuse_attention_prologue(model.graph).value()}) {
    auto executor = GraphExecutor::create(graph, model.storage, {16, 8, 2, 16}, cpu).value();
    EXPECT_EQ(executor->run(step, cpu).message(), "step: positions have 1 axes: the graph needs 3");
  }
  EXPECT_EQ(buffers.upload(make_batch(variant, 0), cpu).status().message(),
            "the step has positions on 3 axes: its buffers hold 1");
}

// ---- printing ---------------------------------------------------------------------------------------------------------------

TEST(AttentionGraph, PrintsHowItAttends) {
  AttentionVariant variant;
  variant.window = 5, variant.chunk = 4, variant.soft_cap = 2.5f, variant.sinks = true;
  const VariantModel model(variant, DType::f32, {});
  const std::string all = graph_table(model.graph);
  EXPECT_NE(all.find("paged_attention (begins early, window 5, chunk 4, soft cap 2.5, sinks)"), std::string::npos) << all;
  EXPECT_NE(all.find("weight [1, 4]"), std::string::npos) << all;
  const VariantModel plain({}, DType::f32, {});
  EXPECT_NE(graph_table(plain.graph).find("paged_attention (begins early) "), std::string::npos);
}

TEST(AttentionGraph, PrintsEveryStep) {
  AttentionVariant variant;
  variant.q_bias = variant.k_bias = variant.v_bias = variant.v_norm = true;
  variant.norm = NormPlacement::before_rope;
  variant.source = RopeSource::per_token;
  variant.hadamard_block = 16;
  variant.q_scale.constant = 2.0f;
  const VariantModel model(variant, DType::f32, {});
  const std::string unfused = graph_table(model.graph);
  for (const char* node : {"cos_sin", "layers.0.q_bias", "layers.0.k_bias", "layers.0.v_bias", "layers.0.q_norm",
                           "layers.0.k_norm", "layers.0.v_norm", "layers.1.rope_q", "layers.1.rope_k", "layers.1.hadamard_q",
                           "layers.1.hadamard_k", "layers.1.q_scale", "layers.1.kv_write"}) {
    EXPECT_NE(unfused.find(node), std::string::npos) << node << "\n" << unfused;
  }
  const std::string chain =
      "attention_prologue = q_bias + k_bias + v_bias + q_norm + k_norm + rope_q + rope_k + hadamard_q + hadamard_k + v_norm + "
      "q_scale + kv_write";
  const std::string fused = graph_table(fuse_attention_prologue(model.graph).value());
  EXPECT_NE(fused.find(chain), std::string::npos) << fused;
  EXPECT_EQ(fused.find("rounds per step"), std::string::npos);
  const std::string per_step = graph_table(fuse_attention_prologue(model.graph, Rounding::per_step).value());
  EXPECT_NE(per_step.find(chain + " (rounds per step)"), std::string::npos) << per_step;
}

}  // namespace
}  // namespace prologue::test
