// Norms, MLPs, mixtures of experts and the scaling of logits as nodes of a graph: what they compute, against float64, and what the builder
// refuses.
#include <prologue/layers/mlp.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <prologue/layers/graph/executor.h>
#include <prologue/layers/graph/print.h>
#include <prologue/layers/moe.h>

#include "tests/oracle/moe.h"
#include "tests/oracle/token_ops.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"

namespace prologue::test {
namespace {

constexpr int64_t kVocab = 40, kWidth = 24, kInner = 20, kTokens = 9, kExperts = 6;

using Row = std::vector<double>;

// Holds a weight on the device, and its values for the reference.
struct HostWeight {
  Weight device;
  std::vector<float> values;
};

struct Weights {
  explicit Weights(const Execution& on) : execution(on) {}

  HostWeight make(int64_t rows, int64_t cols, double deviation = 0.3) {
    HostWeight weight;
    weight.values = random.normals<float>(rows * cols, deviation);
    const int64_t bytes = rows * cols * 4;
    buffers.push_back(Buffer::allocate(execution.device, bytes).value());
    EXPECT_TRUE(copy_to_device(buffers.back().data(), weight.values.data(), bytes, execution).ok());
    weight.device = {buffers.back().data(), rows, cols, DType::f32};
    return weight;
  }

  Execution execution;
  Random random{11};
  std::vector<Buffer> buffers;
};

Row add(Row a, const Row& b, double factor = 1.0) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
  return a;
}

// Multiplies by rows first_row ... of the weight, as many as y has; bias: those elements of it, or none.
Row linear(const Row& x, const HostWeight& weight, const HostWeight& bias, int64_t first_row, int64_t rows) {
  Row y;
  for (int64_t n = first_row; n < first_row + rows; ++n) {
    double sum = bias.values.empty() ? 0.0 : static_cast<double>(bias.values[static_cast<size_t>(n)]);
    for (size_t k = 0; k < x.size(); ++k) sum += x[k] * static_cast<double>(weight.values[static_cast<size_t>(n) * x.size() + k]);
    y.push_back(sum);
  }
  return y;
}

Row norm(const Row& x, bool layer, const HostWeight& weight, const HostWeight& bias, double eps) {
  double mean = 0.0, squares = 0.0;
  for (const double each : x) mean += layer ? each / static_cast<double>(x.size()) : 0.0;
  for (const double each : x) squares += (each - mean) * (each - mean) / static_cast<double>(x.size());
  Row y;
  for (size_t i = 0; i < x.size(); ++i) {
    const double w = weight.values.empty() ? 1.0 : static_cast<double>(weight.values[i]);
    y.push_back((x[i] - mean) / std::sqrt(squares + eps) * w + (bias.values.empty() ? 0.0 : static_cast<double>(bias.values[i])));
  }
  return y;
}

// Holds an MLP, or those of all experts.
struct HostMlp {
  Activation activation = Activation::silu;
  bool gated = true;
  HostWeight up, up_bias, down, down_bias;

  Mlp on_device() const {
    Mlp mlp;
    mlp.activation = activation;
    mlp.gated = gated;
    mlp.up_weight = up.device;
    mlp.up_bias = up_bias.device;
    mlp.down_weight = down.device;
    mlp.down_bias = down_bias.device;
    return mlp;
  }
  Row run(const Row& x, int64_t expert, double scale) const {
    const int64_t rows = (gated ? 2 : 1) * kInner;
    Row scaled = x;
    for (double& each : scaled) each *= scale;
    const Row both = linear(scaled, up, up_bias, expert * rows, rows);
    Row activated;
    for (size_t i = 0; i < kInner; ++i) {
      const double gate = both[i], factor = gated ? both[i + kInner] : 1.0;
      switch (activation) {
        case Activation::silu: activated.push_back(oracle::silu(gate) * factor); break;
        case Activation::gelu_tanh: activated.push_back(oracle::gelu_tanh(gate) * factor); break;
        case Activation::gelu: activated.push_back(oracle::gelu(gate) * factor); break;
        case Activation::relu: activated.push_back(std::max(gate, 0.0) * factor); break;
        case Activation::relu2: activated.push_back(std::pow(std::max(gate, 0.0), 2) * factor); break;
        case Activation::clamped_swiglu: activated.push_back(oracle::clamped_swiglu(gate, factor, 7.0, 1.702)); break;
      }
    }
    return linear(activated, down, down_bias, expert * kWidth, kWidth);
  }
};

HostMlp make_mlp(Weights& weights, Activation activation, bool gated, bool biases, int64_t num_experts = 1) {
  const int64_t rows = (gated ? 2 : 1) * kInner;
  HostMlp mlp;
  mlp.activation = activation;
  mlp.gated = gated;
  mlp.up = weights.make(num_experts * rows, kWidth);
  if (biases) mlp.up_bias = weights.make(num_experts, rows);
  mlp.down = weights.make(num_experts * kWidth, kInner);
  if (biases) mlp.down_bias = weights.make(num_experts, kWidth);
  return mlp;
}

struct HostExperts {
  int64_t top_k = 1;
  ExpertWeighting weighting = ExpertWeighting::softmax_then_top_k;
  bool normalize = false, weights_before = false, has_shared = false;
  HostWeight router, router_bias;
  HostMlp experts, shared;

  MixtureOfExperts on_device() const {
    MixtureOfExperts moe;
    moe.num_experts = kExperts;
    moe.top_k = top_k;
    moe.weighting = weighting;
    moe.normalize = normalize;
    moe.weights_before = weights_before;
    moe.router_weight = router.device;
    moe.router_bias = router_bias.device;
    moe.experts = experts.on_device();
    if (has_shared) moe.shared = shared.on_device();
    return moe;
  }
  Row run(const Row& x) const {
    const oracle::Route route =
        oracle::route(linear(x, router, router_bias, 0, kExperts), top_k, static_cast<oracle::Weighting>(weighting), normalize);
    Row y(kWidth);
    for (size_t j = 0; j < route.ids.size(); ++j) {
      const double weight = route.weights[j];
      y = add(y, experts.run(x, route.ids[j], weights_before ? weight : 1.0), weights_before ? 1.0 : weight);
    }
    return has_shared ? add(y, shared.run(x, 0, 1.0)) : y;
  }
};

class MlpOnBackend : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    execution_.device = backend_device(GetParam());
    execution_.num_threads = GetParam() == Backend::cpu_threads ? 3 : 1;
    weights_ = std::make_unique<Weights>(execution_);
    embedding_ = weights_->make(kVocab, kWidth, 1.0);
  }

  // Runs what `build` adds to the embeddings of kTokens tokens, and compares it with `reference` of each embedding. Returns the printed graph.
  std::string check(const std::function<Value(GraphBuilder&, Value)>& build, const std::function<Row(const Row&)>& reference) {
    GraphBuilder g(DType::f32);
    const Value x = g.embedding("embedding", embedding_.device, 1.0f);
    const Value out = build(g, x);
    Result<Graph> graph = std::move(g).finish(out);
    EXPECT_TRUE(graph.ok()) << graph.status().message();
    if (!graph.ok()) return {};
    const std::string table = graph_table(*graph);
    const int64_t width = graph->info(out).width;
    const KvStorage storage = KvStorage::create({1, 4, 4, 1, 16, {DType::f32}}, execution_.device).value();
    auto executor = GraphExecutor::create(*graph, storage, {16, 16, 2, 16}, execution_);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    if (!executor.ok()) return {};
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < kTokens; ++i) tokens.push_back(static_cast<int32_t>(i * 7 % kVocab));
    StepBatch batch;
    batch.add_sequence(tokens.data(), kTokens, 0, {2, 0, 1}, 4, kTokens);
    auto buffers = StepBuffers::create({16, 2, 16, 4}, execution_.device).value();
    const StepInputs step = buffers.upload(batch, execution_).value();
    const Status status = (*executor)->run_profiled(step, execution_);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ((*executor)->node_seconds().size(), graph->nodes.size());
    std::vector<float> got(static_cast<size_t>(kTokens * width));
    EXPECT_TRUE(copy_to_host(got.data(), (*executor)->data(out), kTokens * width * 4, execution_).ok());
    for (int64_t t = 0; t < kTokens; ++t) {
      Row row;
      for (int64_t i = 0; i < kWidth; ++i) {
        row.push_back(static_cast<double>(embedding_.values[static_cast<size_t>(tokens[static_cast<size_t>(t)] * kWidth + i)]));
      }
      const Row want = reference(row);
      EXPECT_EQ(want.size(), static_cast<size_t>(width));
      for (size_t i = 0; i < want.size(); ++i) {
        const double value = static_cast<double>(got[static_cast<size_t>(t) * want.size() + i]);
        EXPECT_NEAR(value, want[i], 2e-5 * (1.0 + std::fabs(want[i]))) << t << " " << i;
      }
    }
    return table;
  }

  Execution execution_;
  std::unique_ptr<Weights> weights_;
  HostWeight embedding_;
};
INSTANTIATE_TEST_SUITE_P(Backends, MlpOnBackend, testing::Values(Backend::cpu, Backend::cpu_threads, Backend::cuda),
                         [](const auto& each) { return backend_name(each.param); });

void expect_has(const std::string& table, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(table.find(part), std::string::npos) << part << " in\n" << table;
}

// In a parallel residual both branches have the same norm, and their sum is added (GPT-NeoX, Cohere, Falcon, Phi-2).
TEST_P(MlpOnBackend, PlainMlpsAfterALayerNormInAParallelResidual) {
  const HostWeight weight = weights_->make(1, kWidth), bias = weights_->make(1, kWidth);
  const HostMlp a = make_mlp(*weights_, Activation::gelu, false, true), b = make_mlp(*weights_, Activation::relu2, false, false);
  const std::string table = check(
      [&](GraphBuilder& g, Value x) {
        const Value normed = g.norm("norm", x, {NormKind::layer, weight.device, bias.device, 1e-3f});
        const Value branches = g.add("branches", a.on_device().build(g, normed), b.on_device().build(g, normed));
        return g.add_norm("final", branches, x, {});
      },
      [&](const Row& x) {
        const Row normed = norm(x, true, weight, bias, 1e-3);
        return norm(add(x, add(a.run(normed, 0, 1.0), b.run(normed, 0, 1.0))), false, {}, {}, 1e-5);
      });
  expect_has(table, {" layer_norm ", " add ", " add_rms_norm ", "activation (gelu)", "activation (relu2)",
                     "norm, weight [20, 24], weight [1, 20]"});
}

TEST_P(MlpOnBackend, EveryGatedActivation) {
  for (const Activation kind : {Activation::silu, Activation::gelu_tanh, Activation::gelu, Activation::relu, Activation::relu2,
                                Activation::clamped_swiglu}) {
    const HostMlp mlp = make_mlp(*weights_, kind, true, kind != Activation::silu);
    check([&](GraphBuilder& g, Value x) { return mlp.on_device().build(g, x); },
          [&](const Row& x) { return mlp.run(x, 0, 1.0); });
  }
}

TEST_P(MlpOnBackend, LogitsWithAFactorAndASoftCap) {
  const HostWeight head = weights_->make(kVocab, kWidth, 2.0);
  const std::string table = check(
      [&](GraphBuilder& g, Value x) {
        const Value rows = g.select_logit_rows("rows", x);
        return g.scale_logits("logits", g.linear("lm_head", rows, head.device, {}, DType::f32), 0.5f, 3.0f);
      },
      [&](const Row& x) {
        Row logits = linear(x, head, {}, 0, kVocab);
        for (double& each : logits) each = 3.0 * std::tanh(each * 0.5 / 3.0);
        return logits;
      });
  expect_has(table, {" scale_logits ", "lm_head [logits, 40] float32", "4 nodes"});
}

// The mixtures of Mixtral, Qwen3-MoE, GPT-OSS and Llama 4.
TEST_P(MlpOnBackend, MixturesOfExperts) {
  const auto check_mixture = [&](const HostExperts& moe) {
    return check([&](GraphBuilder& g, Value x) { return moe.on_device().build(g, x); }, [&](const Row& x) { return moe.run(x); });
  };
  HostExperts moe;
  moe.router = weights_->make(kExperts, kWidth);
  moe.experts = make_mlp(*weights_, Activation::silu, true, false, kExperts);
  moe.shared = make_mlp(*weights_, Activation::silu, true, false);
  moe.top_k = 2;
  moe.normalize = true;
  expect_has(check_mixture(moe), {"moe_route (softmax, then top k)", " moe_linear ", " moe_combine ",
                                  "route.experts [tokens, 2] int32", "experts.gate_up [tokens, 80] float32", "weight [240, 24]"});
  moe.normalize = false;
  moe.top_k = 5;
  check_mixture(moe);
  moe.has_shared = moe.weights_before = true;
  moe.weighting = ExpertWeighting::sigmoid;
  moe.top_k = 1;
  expect_has(check_mixture(moe), {"shared.gate_up", "shared.down", "moe_route (top k, then sigmoid)"});
  moe.top_k = 3;
  check_mixture(moe);

  HostExperts oss;
  oss.router = weights_->make(kExperts, kWidth);
  oss.router_bias = weights_->make(1, kExperts);
  oss.experts = make_mlp(*weights_, Activation::clamped_swiglu, true, true, kExperts);
  oss.weighting = ExpertWeighting::top_k_then_softmax;
  oss.top_k = 4;
  expect_has(check_mixture(oss), {"gated_activation (clamped swiglu)", "moe_route (top k, then softmax)", "weight [6, 40]"});
  oss.experts = make_mlp(*weights_, Activation::relu, false, true, kExperts);
  check_mixture(oss);
}

TEST(MlpGraph, RefusesWhatDoesNotFit) {
  const auto weight = [](int64_t rows, int64_t cols, DType dtype = DType::f32) {
    return Weight{reinterpret_cast<const void*>(64), rows, cols, dtype};
  };
  using Build = std::function<void(GraphBuilder & g, Value x)>;
  const auto experts = [&](GraphBuilder& g, Value x) { return g.moe_route("r", g.linear("l", x, weight(6, 8)), 2, {}); };
  const struct {
    Build build;
    std::string message;
  } cases[] = {
      {[&](GraphBuilder& g, Value x) {
         g.norm("n", x, {NormKind::layer, weight(1, 9), {}, 1.0f});
       },
       "n: a norm's weight is [1, 9] float32: it must be [1, 8], weight and bias both of float32"},
      {[&](GraphBuilder& g, Value x) {
         g.norm("n", x, {NormKind::rms, weight(2, 4), {}, 1.0f});
       },  // the right count
       "n: a norm's weight is [2, 4] float32: it must be [1, 8], weight and bias both of float32"},
      {[&](GraphBuilder& g, Value x) {
         g.norm("n", x, {NormKind::layer, weight(1, 8), weight(1, 8, DType::f16), 1.0f});
       },
       "n: a norm's weight is [1, 8] float16: it must be [1, 8], weight and bias both of float32"},
      {[&](GraphBuilder& g, Value x) { g.norm("n", g.split_heads(x, 2, 1, 2).q, {}); },
       "n: q is a part of the columns of another value: it needs contiguous rows"},
      {[&](GraphBuilder& g, Value x) { g.linear("l", x, weight(5, 8), weight(1, 4)); },
       "l: the bias is [1, 4] float32: it must be [1, 5] of the weight's type, float32"},
      {[&](GraphBuilder& g, Value x) { g.linear("l", x, weight(6, 8), weight(3, 2)); },
       "l: the bias is [3, 2] float32: it must be [1, 6] of the weight's type, float32"},
      {[&](GraphBuilder& g, Value x) { g.activation("a", g.linear("l", x, weight(5, 8)), {}); },
       "a: what it is applied to has 5 columns: they must be a multiple of 2"},
      {[&](GraphBuilder& g, Value x) { g.add("s", x, g.linear("l", x, weight(5, 8))); },
       "s: it adds 5 columns of float32 to 8 of float32: both must have the same rows, columns and type"},
      {[&](GraphBuilder& g, Value x) { g.add("s", x, g.select_logit_rows("rows", x)); },
       "s: it adds 8 columns of float32 to 8 of float32: both must have the same rows, columns and type"},
      {[&](GraphBuilder& g, Value x) { g.moe_linear("m", x, experts(g, x).ids, 6, weight(13, 8)); },
       "m: the weight is [13, 8] float32 for 6 experts, 2 of them for a token: what it multiplies has 8 columns of float32"},
      {[&](GraphBuilder& g, Value x) { g.moe_linear("m", x, experts(g, x).ids, 6, weight(12, 3)); },
       "m: the weight is [12, 3] float32 for 6 experts, 2 of them for a token: what it multiplies has 8 columns of float32"},
      {[&](GraphBuilder& g, Value x) { g.moe_linear("m", x, experts(g, x).ids, 6, weight(12, 8), weight(6, 3)); },
       "m: the bias is [6, 3] float32: it must be [6, 2] float32"},
      {[&](GraphBuilder& g, Value x) { g.moe_linear("m", x, experts(g, x).weights, 6, weight(12, 8)); },
       "m: expert_ids has 2 columns of float32: it must have 2 of int32"},
      {[&](GraphBuilder& g, Value x) { g.moe_combine("c", x, 3, {}); },
       "c: there are 8 columns: they must be a multiple of top_k, 3"},
      {[&](GraphBuilder& g, Value x) { g.moe_combine("c", x, 4, experts(g, x).weights); },
       "c: expert_weights has 2 columns of float32: it must have 4 of float32"},
      {[&](GraphBuilder& g, Value x) { g.moe_combine("c", x, 2, {}, x); },
       "c: shared has 8 columns of float32: it must have 4 of float32"},
  };
  for (const auto& each : cases) {
    GraphBuilder g(DType::f32);
    const Value x = g.embedding("x", weight(10, 8), 1.0f);
    each.build(g, x);
    EXPECT_EQ(std::move(g).finish(x).status().message(), each.message);
  }
  GraphBuilder g(DType::f16);
  const Value x = g.embedding("x", weight(10, 8, DType::f16), 1.0f);
  g.scale_logits("s", x, 1.0f, 30.0f);
  EXPECT_EQ(std::move(g).finish(x).status().message(), "s: the logits are float16: they must be float32");
}

}  // namespace
}  // namespace prologue::test
