#include <prologue/engine/parallel_runner.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

Result<std::vector<Model>> load_parts(const Checkpoint& checkpoint, const std::string& path, DType dtype, Ranks& ranks,
                                      std::function<void(double)> progress, const ModelOptions& options) {
  std::vector<Model> models(static_cast<size_t>(ranks.size()));
  std::atomic<bool> stop = false;  // a rank has failed: the others need not read on
  const auto load = [&](int64_t rank) -> Status {
    ModelOptions own = options;
    own.shard = {rank, ranks.size()};
    own.stop = &stop;
    std::unique_ptr<Checkpoint> opened;
    if (rank > 0) {
      PROLOGUE_ASSIGN_OR_RETURN(opened, Checkpoint::open(path));
    }
    PROLOGUE_ASSIGN_OR_RETURN(models[static_cast<size_t>(rank)],
                              load_model(rank == 0 ? checkpoint : *opened, dtype, ranks.execution(rank),
                                         rank == 0 ? progress : std::function<void(double)>(), own));
    return {};
  };
  const Status loaded = ranks.run([&](int64_t rank) {
    const Status status = catch_out_of_memory([&] { return load(rank); });
    if (!status.ok()) stop = true;
    return status.message() == WeightLoader::kStopped ? Status() : status;
  });
  PROLOGUE_RETURN_IF_ERROR(loaded);
  return models;
}

Result<std::unique_ptr<ParallelRunner>> ParallelRunner::create(Ranks& ranks, const std::vector<Model>& models,
                                                               const RunnerConfig& config) {
  std::unique_ptr<ParallelRunner> parallel(new ParallelRunner(ranks));
  parallel->runners_.resize(models.size());
  parallel->results_.reserve(models.size());  // read() allocates nothing: all ranks are read, or none
  const Status created = ranks.run([&](int64_t r) -> Status {
    const auto index = static_cast<size_t>(r);
    PROLOGUE_ASSIGN_OR_RETURN(parallel->runners_[index],
                              ModelRunner::create(models[index], config, ranks.execution(r), ranks.communicator(r)));
    return {};
  });
  PROLOGUE_RETURN_IF_ERROR(created);
  return parallel;
}

Status ParallelRunner::enqueue(const StepBatch& batch, int64_t top_logprobs) {
  PROLOGUE_RETURN_IF_ERROR(batch.status());  // would be every rank's
  // Rank 0 notes in the sets which rows it has made. The others make the same ones.
  std::vector<RopeSet> missing;
  if (num_ranks() > 1) {
    for (const RopeSet& set : rope_sets().sets()) {
      if (!set.filled) missing.push_back(set);
    }
  }
  return ranks_.run_together([&](int64_t r) -> Status {
    if (r > 0) {
      for (RopeSet set : missing) PROLOGUE_RETURN_IF_ERROR(of(r).fill_rope_set(set));
    }
    return of(r).enqueue(batch, top_logprobs);
  });
}

Status ParallelRunner::enqueue_next(int64_t max_seq_len, int64_t top_logprobs) {
  return ranks_.run_together([&](int64_t r) { return of(r).enqueue_next(max_seq_len, top_logprobs); });
}

// Waits until every rank has finished its oldest step. NCCL waits for a rank that does not come without an end.
Status ParallelRunner::wait() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (int64_t r = 0; r < num_ranks();) {
    const Result<bool> done = of(r).is_done();
    if (!done.ok()) return ranks_.named(r, done.status());
    if (*done) {
      ++r;
      continue;
    }
    PROLOGUE_RETURN_IF_ERROR(ranks_.status());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds > ranks_.wait_seconds())
      return device_error("rank ", r, " has not finished a step within ", ranks_.wait_seconds(), " s");
    if (seconds > 1e-3) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return {};
}

Result<StepResults> ParallelRunner::read() {
  if (num_ranks() == 1) return of(0).read();
  if (const Status waited = wait(); !waited.ok()) {
    ranks_.abort(waited);
    return ranks_.status();
  }
  std::vector<Result<StepResults>>& results = results_;
  results.clear();
  for (int64_t r = 0; r < num_ranks(); ++r) results.push_back(of(r).read());
  PROLOGUE_RETURN_IF_ERROR(ranks_.status());
  for (int64_t r = 0; r < num_ranks(); ++r) {
    const Result<StepResults>& own = results[static_cast<size_t>(r)];
    if (!own.ok()) {
      ranks_.abort(ranks_.named(r, own.status()));
      return ranks_.status();
    }
    const auto& first = results.front()->tokens;
    for (size_t row = 0; row < first.size(); ++row) {
      if (own->tokens[row] == first[row]) continue;
      ranks_.abort(device_error("ranks 0 and ", r, " have sampled tokens ", first[row], " and ", own->tokens[row], " for row ",
                                row, " of a step: they must be the same"));
      return ranks_.status();
    }
  }
  return results.front();
}

Status ParallelRunner::copy_pages(const std::vector<PageCopy>& copies) {
  if (copies.empty()) return {};
  return ranks_.run([&](int64_t r) { return of(r).copy_pages(copies); });
}

Status ParallelRunner::read_logits(std::vector<float>& logits) { return of(0).read_logits(logits); }

}  // namespace prologue
