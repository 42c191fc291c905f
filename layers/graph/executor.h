// Runs a graph. Every node is prepared once: memory is planned and allocated, pointers and sizes that no step changes are filled in, and
// the parameters are validated for the largest step. A step then stores its arrays and counts in the parameters and launches, without
// allocation, validation or synchronisation.
#pragma once

#include <array>
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

// These are the sizes of the largest step that an executor can run.
struct StepLimits {
  int64_t max_tokens = 0;
  int64_t max_logit_rows = 0;
  int64_t max_seqs = 0;
  int64_t max_seq_len = 0;
  bool batch_invariant = false;  // matrix products and attention give a row the same bits whatever else the step has
};

class PROLOGUE_API GraphExecutor {
 public:
  // The graph's weights, its tables and the cache must be on execution.device, and must outlive the executor. A table that grows later
  // does not grow for this executor. invalid_argument, unsupported: a limit is not in 0..2^31 - 1, a node uses a layer that the cache
  // does not have, or an operation refuses a node's parameters for the largest step. resource_exhausted: there is not enough memory
  // for activations or workspace.
  //   faults: the record on the device that operations add to, zeros at first, which must outlive the executor; null: one of its own
  //   communicator: of this rank, if the graph has collectives; must outlive the executor
  static Result<std::unique_ptr<GraphExecutor>> create(Graph graph, const KvStorage& cache, const StepLimits& limits,
                                                       const Execution& execution, FaultRecord* faults = nullptr,
                                                       Communicator* communicator = nullptr);

  // Enqueues the whole graph, on the device that the executor was made for. invalid_argument: the step is larger than the limits, or an
  // array that the graph reads is null, not aligned, or overlaps what the graph writes. Bad indices are not an error of this call: see
  // take_fault.
  Status run(const StepInputs& step, const Execution& execution);

  // Does the same, and measures the time of each node; node_seconds() returns the times. Synchronises.
  Status run_profiled(const StepInputs& step, const Execution& execution);
  const std::vector<double>& node_seconds() const { return node_seconds_; }

  // Returns the rows of a value after a run: [rows of the step, width], on the device.
  void* data(Value value) const;
  // Returns the faults since the last call. Waits for the stream.
  Result<Fault> take_fault(const Execution& execution);
  // Returns [max_tokens] on the device: a FaultCode for each token of the step, 0 = none. Nothing here clears them: a later operation may
  // read and clear them in stream order (kernels/token_ops/end_step.h).
  uint8_t* token_faults() const { return token_faults_.as<uint8_t>(); }

  const Graph& graph() const { return graph_; }
  const StepLimits& limits() const { return limits_; }
  const MemoryPlan& plan() const { return plan_; }

 private:
  // Holds a node's operation, ready to run.
  struct Operation {
    Parameters parameters;
    const void* kernel = nullptr;  // of an attention prologue: the one that was chosen for it
    std::shared_ptr<void> kept;    // of a projection: KeptLaunch, what was chosen for it in the step before
  };
  // Says which 8 bytes of each step's StepInputs become a member of an operation's parameters.
  struct Patch {
    void* member;
    int32_t from;  // offset in StepInputs
  };

  GraphExecutor() = default;
  static Result<std::unique_ptr<GraphExecutor>> make(Graph graph, const KvStorage& cache, const StepLimits& limits,
                                                     const Execution& execution, FaultRecord* faults,
                                                     Communicator* communicator);
  Status prepare(const Execution& execution);
  Status bind(const Node& node, const Binding& binding, void* member);
  int64_t group_of(const Node& node) const;
  void* address(Value value, int64_t column) const;
  Status check_step(const StepInputs& step, const Execution& execution) const;
  void patch(const StepInputs& step);
  Status launch(size_t node, const Execution& execution);
  Status run_timed(const StepInputs& step, const Execution& execution);

  Graph graph_;
  StepLimits limits_;
  Device device_ = Device::cpu;
  const KvStorage* cache_ = nullptr;
  MemoryPlan plan_;
  Buffer activations_;
  Buffer workspace_;
  Buffer attention_counters_;  // zeros between operations
  Buffer token_faults_;
  Buffer own_faults_;
  FaultRecord* faults_ = nullptr;
  Communicator* communicator_ = nullptr;
  std::unique_ptr<GemmContext> gemm_context_;
  std::vector<Operation> operations_;  // by node
  std::vector<Patch> patches_;
  struct OneOrMany {
    bool* member;
    int64_t many;
  };
  std::vector<OneOrMany> one_or_many_;                 // members that say whether a step has one token, or so many
  std::vector<std::shared_ptr<const Buffer>> tables_;  // that the operations read
  std::array<bool, kNumStepArrays* kMaxLayerGroups> reads_ =
      {};  // arrays of a step that the graph reads, by array and layer group
  int64_t position_axes_ = 1;
  std::vector<Event> events_;
  std::vector<double> node_seconds_;
};

}  // namespace prologue
