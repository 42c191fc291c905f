// Runs the parts of a model that the ranks have, step by step: a ModelRunner for each rank, and the same calls for all of them. All ranks
// sample the same tokens, since they have the same logits; what is read is what rank 0 has.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <prologue/engine/model/load_model.h>
#include <prologue/engine/model_runner.h>
#include <prologue/engine/ranks.h>

namespace prologue {

// Loads each rank's part of a model, on its device: load_model with the shard set. A checkpoint notes what was read of it, so the other ranks
// open that of the same path again. `progress` is told what rank 0 has loaded.
Result<std::vector<Model>> load_parts(const Checkpoint& checkpoint, const std::string& path, DType dtype, Ranks& ranks,
                                      std::function<void(double)> progress, const ModelOptions& options);

class ParallelRunner {
 public:
  // models: of each rank, its part (Model::shard). Both must outlive the runner. Errors: those of ModelRunner::create, on the first rank that
  // has one.
  static Result<std::unique_ptr<ParallelRunner>> create(Ranks& ranks, const std::vector<Model>& models,
                                                        const RunnerConfig& config);

  // Returns the runner of rank 0: its limits, its graphs, what it has counted.
  const ModelRunner& front() const { return *runners_.front(); }
  int64_t num_ranks() const { return static_cast<int64_t>(runners_.size()); }
  // Of all ranks: sequences of a step have a set of these.
  RopeSets& rope_sets() { return runners_.front()->rope_sets(); }

  // These are as those of ModelRunner. The sampling rows of a batch with several ranks are by rank (StepBatch).
  Status enqueue(const StepBatch& batch, int64_t top_logprobs = -1);
  Status enqueue_next(int64_t max_seq_len, int64_t top_logprobs = -1);
  // device_error, which ends the group: the ranks have not sampled the same tokens, or one has not finished the step within Ranks::wait_seconds().
  Result<StepResults> read();
  Status copy_pages(const std::vector<PageCopy>& copies);
  Status read_logits(std::vector<float>& logits);
  ModelRunner::Profile take_profile() { return runners_.front()->take_profile(); }

 private:
  Status wait();
  explicit ParallelRunner(Ranks& ranks) : ranks_(ranks) {}
  ModelRunner& of(int64_t rank) { return *runners_[static_cast<size_t>(rank)]; }

  Ranks& ranks_;
  std::vector<std::unique_ptr<ModelRunner>> runners_;
  std::vector<Result<StepResults>> results_;  // of read()
};

}  // namespace prologue
