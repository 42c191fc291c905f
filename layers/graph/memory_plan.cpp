#include <algorithm>
#include <cstdint>
#include <utility>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/layers/graph/memory_plan.h>

namespace prologue {

namespace {

Result<MemoryPlan> place_values(const Graph& graph, int64_t max_tokens, int64_t max_logit_rows) {
  struct Lifetime {
    int first = -1;
    int last = -1;
    int64_t bytes = 0;
  };
  std::vector<Lifetime> lifetimes(graph.values.size());
  const auto touch = [&](Value value, int node) {
    Lifetime& lifetime = lifetimes[static_cast<size_t>(graph.storage_of(value).id)];
    if (lifetime.first < 0) lifetime.first = node;
    lifetime.last = std::max(lifetime.last, node);
  };
  const int num_nodes = static_cast<int>(graph.nodes.size());
  for (int n = 0; n < num_nodes; ++n) {
    const Node& node = graph.nodes[static_cast<size_t>(n)];
    for (const Value value : node.reads()) touch(value, n);
    for (const Value value : node.writes()) touch(value, n);
  }
  if (graph.output) touch(graph.output, num_nodes);

  MemoryPlan plan;
  plan.offsets.assign(graph.values.size(), -1);
  double total_bytes = 0.0;
  std::vector<int> order;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (lifetimes[v].first < 0) continue;
    const ValueInfo& info = graph.values[v];
    const int64_t rows = info.rows == Rows::tokens ? max_tokens : max_logit_rows;
    total_bytes += static_cast<double>(rows) * static_cast<double>(info.width) * 4.0 + 255.0;  // 4 bytes is the largest element
    if (total_bytes > 0x1p60)
      return resource_exhausted("graph: ", total_bytes, " bytes of activations are more than any memory holds");
    lifetimes[v].bytes = round_up(rows * info.width * dtype_size(info.dtype), 256);
    plan.bytes_without_sharing += lifetimes[v].bytes;
    order.push_back(static_cast<int>(v));
  }

  // The largest value comes first; each gets the lowest offset that is free during its whole lifetime.
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return lifetimes[static_cast<size_t>(a)].bytes > lifetimes[static_cast<size_t>(b)].bytes;
  });
  std::vector<int> placed;
  for (const int v : order) {
    const Lifetime& life = lifetimes[static_cast<size_t>(v)];
    std::vector<std::pair<int64_t, int64_t>> blocked;
    for (const int other : placed) {
      const Lifetime& theirs = lifetimes[static_cast<size_t>(other)];
      if (theirs.last < life.first || life.last < theirs.first) continue;
      const int64_t offset = plan.offsets[static_cast<size_t>(other)];
      blocked.emplace_back(offset, offset + theirs.bytes);
    }
    std::sort(blocked.begin(), blocked.end());
    int64_t offset = 0;
    for (const auto& [begin, end] : blocked) {
      if (offset + life.bytes <= begin) break;
      offset = std::max(offset, end);
    }
    plan.offsets[static_cast<size_t>(v)] = offset;
    plan.total_bytes = std::max(plan.total_bytes, offset + life.bytes);
    placed.push_back(v);
  }
  return plan;
}

}  // namespace

Result<MemoryPlan> plan_memory(const Graph& graph, int64_t max_tokens, int64_t max_logit_rows) {
  for (const int64_t rows : {max_tokens, max_logit_rows}) {
    if (rows < 0 || rows > INT32_MAX) {
      return invalid_argument("graph: the number of rows is ", rows, ": it must be between 0 and ", INT32_MAX);
    }
  }
  return catch_out_of_memory([&] { return place_values(graph, max_tokens, max_logit_rows); });
}

}  // namespace prologue
