// Runs a graph. Memory is planned and allocated once; steps then run without allocation or synchronisation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <prologue/kernels/base/event.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kvcache/kv_storage.h>
#include <prologue/layers/graph/graph.h>
#include <prologue/layers/graph/memory_plan.h>
#include <prologue/layers/step.h>

namespace prologue {

// The sizes of the largest step that an executor can run.
struct StepLimits {
  int64_t max_tokens = 0;
  int64_t max_logit_rows = 0;
  int64_t max_seqs = 0;
  int64_t max_seq_len = 0;
};

class PROLOGUE_API GraphExecutor {
 public:
  // The graph's weights, its tables and the cache must be on execution.device, and must outlive the executor. invalid_argument: a
  // limit is not in 0..2^31 - 1, a node uses a layer that the cache does not have, or weights have wrong shapes or types
  // (check_weights). resource_exhausted: there is not enough memory for activations or workspace.
  static Result<std::unique_ptr<GraphExecutor>> create(Graph graph, const KvStorage& cache, const StepLimits& limits,
                                                       const Execution& execution);

  // Enqueues the whole graph. Bad indices are not an error of this call: see take_fault.
  Status run(const StepInputs& step, const Execution& execution);

  // The same, and measures the time of each node; node_seconds() returns the times. Synchronises.
  Status run_profiled(const StepInputs& step, const Execution& execution);
  const std::vector<double>& node_seconds() const { return node_seconds_; }

  // The rows of a value after a run: [rows of the step, width], on the device.
  void* data(Value value) const;
  // The faults since the last call. Waits for the stream.
  Result<Fault> take_fault(const Execution& execution);

  const Graph& graph() const { return graph_; }
  const StepLimits& limits() const { return limits_; }
  const MemoryPlan& plan() const { return plan_; }

 private:
  GraphExecutor() = default;
  static Result<std::unique_ptr<GraphExecutor>> make(Graph graph, const KvStorage& cache, const StepLimits& limits,
                                                     const Execution& execution);
  Status run_timed(const StepInputs& step, const Execution& execution);
  Status check_step(const StepInputs& step) const;
  Status run_node(const Node& node, const StepInputs& step, const Execution& execution);
  HeadsView heads(Value value, int64_t num_heads) const;
  Rotation rotation_of(const Rope& rope) const;
  int64_t row_stride(Value value) const { return graph_.info(graph_.storage_of(value)).width; }
  int64_t num_rows(Value value, const StepInputs& step) const;

  Status run(const EmbeddingOp& op, const StepInputs& step, const Execution& execution);
  Status run(const SelectRowsOp& op, const StepInputs& step, const Execution& execution);
  Status run(const RmsNormOp& op, const StepInputs& step, const Execution& execution);
  Status run(const LinearOp& op, const StepInputs& step, const Execution& execution);
  Status run(const AddBiasOp& op, const StepInputs& step, const Execution& execution);
  Status run(const HeadsNormOp& op, const StepInputs& step, const Execution& execution);
  Status run(const GatherCosSinOp& op, const StepInputs& step, const Execution& execution);
  Status run(const RopeOp& op, const StepInputs& step, const Execution& execution);
  Status run(const QueryScaleOp& op, const StepInputs& step, const Execution& execution);
  Status run(const KvWriteOp& op, const StepInputs& step, const Execution& execution);
  Status run(const AttentionPrologueOp& op, const StepInputs& step, const Execution& execution);
  Status run(const PagedAttentionOp& op, const StepInputs& step, const Execution& execution);
  Status run(const GatedActivationOp& op, const StepInputs& step, const Execution& execution);

  Graph graph_;
  StepLimits limits_;
  const KvStorage* cache_ = nullptr;
  MemoryPlan plan_;
  Buffer activations_;
  Buffer attention_workspace_;
  Buffer faults_;
  std::unique_ptr<GemmContext> gemm_context_;
  std::vector<Event> events_;
  int64_t position_axes_ = 1;
  std::vector<double> node_seconds_;
};

}  // namespace prologue
