// Runs a model step by step. It owns the KV cache, the executor of the (fused) graph and the step's device arrays, and it samples the
// next token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <prologue/engine/model/model.h>
#include <prologue/kernels/token_ops/sampling.h>
#include <prologue/kvcache/kv_cache.h>
#include <prologue/kvcache/kv_storage.h>
#include <prologue/layers/graph/executor.h>

namespace prologue {

struct RunnerConfig {
  DType k_type = DType::unset;  // of the KV cache; unset: the activations' type
  DType v_type = DType::unset;  // unset: that of K
  int64_t page_size = 16;
  int64_t cache_tokens = 0;  // rounded up to whole pages
  int64_t max_seq_len = 0;   // of one sequence; 0 = one sequence may use the whole cache
  int64_t max_tokens = 512;  // of one step
  int64_t max_seqs = 1;
  int64_t max_logit_rows = 1;
  bool fused = true;
  Rounding rounding = Rounding::once;  // of the fused graph
  bool profile = false;
};

// Time spent in the graph's nodes, summed over steps and over layers (the names do not contain the layer).
struct NodeProfile {
  std::string name;
  std::string kind;
  int64_t calls = 0;
  double seconds = 0.0;
};

class ModelRunner {
 public:
  // The model must outlive the runner. Its rope tables grow to max_seq_len, so no other runner of the model may run during this call.
  // invalid_argument: page_size is below 1, or another size negative.
  static Result<std::unique_ptr<ModelRunner>> create(const Model& model, const RunnerConfig& config, const Execution& execution);

  KvCache& cache() { return *cache_; }
  const Graph& graph() const { return executor_->graph(); }
  const StepLimits& limits() const { return executor_->limits(); }
  int64_t cache_bytes() const { return storage_.config().bytes_per_page() * storage_.config().num_pages; }
  int64_t activation_bytes() const { return executor_->plan().total_bytes; }

  // Enqueues the graph over the batch.
  Status run(const StepBatch& batch);
  // After run(): samples the next token of each logit row, and waits for the result. If the step found bad indices, this returns an
  // error that names the token of the batch.
  Status sample(const std::vector<SamplingRow>& rows, std::vector<int32_t>& tokens);
  // After run(): the logits of the batch's logit rows, [rows, vocab_size].
  Status read_logits(std::vector<float>& logits);

  // By node, in the graph's order, since the last call.
  std::vector<NodeProfile> take_profile();

 private:
  explicit ModelRunner(const Model& model) : model_(model) {}
  static Result<std::unique_ptr<ModelRunner>> make(const Model& model, const RunnerConfig& config, const Execution& execution);
  Status run_step(const StepBatch& batch);
  void add_to_profile();

  const Model& model_;
  Execution execution_;
  bool profile_enabled_ = false;
  int64_t num_logit_rows_ = 0;
  KvStorage storage_;
  std::optional<KvCache> cache_;
  std::unique_ptr<GraphExecutor> executor_;
  StepBuffers step_buffers_;
  Buffer sampling_rows_;
  Buffer sampled_;
  std::vector<NodeProfile> profile_;
};

}  // namespace prologue
