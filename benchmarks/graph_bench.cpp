// Measures what the host does in a step of the layer graph: patching and dispatching its nodes. The nodes are an embedding and the
// attention prologue of each of some layers, so there is no GEMM in the way.
#include <cstdio>
#include <memory>
#include <utility>

#include <prologue/layers/graph/executor.h>
#include <prologue/layers/graph/fusion.h>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

constexpr int64_t kQHeads = 32, kKvHeads = 8, kHeadDim = 128, kTokens = 8, kPageSize = 16;

// Makes the executor of a graph whose data the setup owns.
Result<std::shared_ptr<GraphExecutor>> make_executor(int64_t num_layers, bool fused, const RopeTable& table,
                                                     const KvStorage& cache, bench::Setup& setup) {
  constexpr int64_t kWidth = (kQHeads + 2 * kKvHeads) * kHeadDim;
  const Weight embedding = {setup.shared(kTokens * kWidth * 2, DType::bf16), kTokens, kWidth, DType::bf16};
  GraphBuilder g(DType::bf16);
  Value q;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const GraphBuilder::Scope scope(g, str_cat("layers.", layer));
    const auto heads = g.split_heads(g.embedding("qkv", embedding, 1.0f), kQHeads, kKvHeads, kHeadDim);
    q = g.rope("rope_q", heads.q, kQHeads, &table);
    g.kv_write("kv_write", g.rope("rope_k", heads.k, kKvHeads, &table), heads.v, kKvHeads, layer, &table);
  }
  PROLOGUE_ASSIGN_OR_RETURN(Graph graph, std::move(g).finish(q));
  if (fused) {
    PROLOGUE_ASSIGN_OR_RETURN(graph, fuse_attention_prologue(graph));
  }
  PROLOGUE_ASSIGN_OR_RETURN(auto executor,
                            GraphExecutor::create(std::move(graph), cache, {kTokens, 1, 1, kTokens}, setup.execution()));
  return std::shared_ptr<GraphExecutor>(std::move(executor));
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  const bool cuda = bench.execution().device == Device::cuda;
  const Execution execution = bench.execution();
  RopeConfig rope;
  rope.rotary_dim = kHeadDim;
  const auto table = RopeTable::create(rope, kTokens, RopePrecision::exact, execution);
  const auto cache = KvStorage::create({32, 1, kPageSize, kKvHeads, kHeadDim, DType::bf16}, execution.device);
  if (!table.ok() || !cache.ok()) {
    std::fprintf(stderr, "%s\n", (table.ok() ? cache.status() : table.status()).message().c_str());
    return 1;
  }
  const auto run = [&](const std::string& name, int64_t num_layers, bool fused, int64_t num_tokens) {
    bench.run_host(name, [&](bench::Setup& setup) {
      const auto executor = make_executor(num_layers, fused, *table, *cache, setup);
      StepInputs step;
      step.num_tokens = num_tokens;
      step.token_ids = step.positions = setup.values(std::vector<int32_t>(kTokens, 0));
      step.slot_mapping[0] = setup.values(std::vector<int64_t>(kTokens, 0));
      return bench::Case{
          0, [=](const Execution& on, int64_t) { return executor.ok() ? (*executor)->run(step, on) : executor.status(); }};
    });
  };
  if (cuda) {
    bench.run_host("host: bare launch", [](bench::Setup&) {
      return bench::Case{0, [](const Execution& on, int64_t) { return bench::launch_nothing(on); }};
    });
    run("host: step of 1 token, 2 nodes", 1, true, 1);
  }
  run("host: step of 0 tokens, 2 nodes", 1, true, 0);
  run("host: step of 0 tokens, 64 nodes", 32, true, 0);
  run("host: step of 0 tokens, 128 nodes (unfused)", 32, false, 0);
  return bench.finish();
}
