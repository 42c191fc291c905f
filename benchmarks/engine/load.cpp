#include "benchmarks/engine/load.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace prologue::bench {

namespace {

using Clock = std::chrono::steady_clock;

CacheUse cache_use(double seconds, const KvCacheStats& stats) {
  int64_t pages = 0, used = 0, cached = 0;
  for (const KvGroupStats& group : stats.groups) {
    pages += group.num_pages;
    used += group.used;
    cached += group.cached;
  }
  const double share = 1.0 / static_cast<double>(std::max<int64_t>(pages, 1));
  return {seconds, share * static_cast<double>(used), share * static_cast<double>(cached)};
}

class Load {
 public:
  Load(Engine& engine, const Workload& workload, const LoadOptions& options)
      : engine_(engine), workload_(workload), options_(options), start_(Clock::now()) {
    result_.requests.resize(workload.size());
    result_.prefilled.resize(workload.size());
  }

  Result<LoadResult> run() && {
    std::vector<Request> requests = make_requests();
    result_.before = engine_.stats();
    waited_ = result_.before.wait_seconds;
    start_ = Clock::now();
    for (size_t next = 0;;) {
      for (; next < requests.size() && workload_[next].seconds <= now(); ++next) {
        PROLOGUE_RETURN_IF_ERROR(submit(next, std::move(requests[next])));
      }
      PROLOGUE_ASSIGN_OR_RETURN(const bool stepped, step());
      PROLOGUE_RETURN_IF_ERROR(failed_);
      if (stepped) continue;
      if (next == requests.size()) break;
      std::this_thread::sleep_until(
          start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(workload_[next].seconds)));
    }
    result_.after = engine_.stats();
    return std::move(result_);
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  std::vector<Request> make_requests() const {
    std::vector<Request> requests(workload_.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].prompt = workload_[i].prompt;
      requests[i].max_tokens = workload_[i].max_tokens;
      requests[i].ignore_eos = true;
      requests[i].sampling.temperature = options_.temperature;
      requests[i].sampling.seed = i;
    }
    return requests;
  }

  Status submit(size_t index, Request request) {
    result_.requests[index].arrival = workload_[index].seconds;
    const auto id = engine_.submit(std::move(request), [this, index](const Output& output) { take(index, output); });
    return id.status();
  }

  void take(size_t index, const Output& output) {
    const double seconds = now();
    Served& served = result_.requests[index];
    for (size_t i = 0; i < output.tokens.size(); ++i) served.token_times.push_back(seconds);
    if (served.token_times.size() == output.tokens.size()) result_.prefilled[index].emplace_back(output.prefilled, seconds);
    if (!output.tokens.empty()) {
      if (step_.num_tokens == 0) step_.first_output = seconds;
      step_.num_tokens += static_cast<int64_t>(output.tokens.size());
      result_.seconds = seconds;
    }
    if (output.completion == nullptr) return;
    served.prompt_tokens = output.completion->prompt_tokens;
    served.cached_tokens = output.completion->cached_tokens;
    served.num_preemptions = output.completion->num_preemptions;
    if (failed_.ok()) failed_ = output.completion->status;
  }

  Result<bool> step() {
    step_ = {};
    step_.begin = now();
    PROLOGUE_ASSIGN_OR_RETURN(const bool stepped, engine_.step());
    step_.end = now();
    const bool sample_cache = result_.cache_use.empty() || step_.end - result_.cache_use.back().seconds > 0.02;
    if (!options_.record_steps && !sample_cache) return stepped;
    const EngineStats stats = engine_.stats();
    if (sample_cache) result_.cache_use.push_back(cache_use(step_.end, stats.kv));
    if (options_.record_steps && stepped) {
      step_.waited = stats.wait_seconds - waited_;
      waited_ = stats.wait_seconds;
      result_.steps.push_back(step_);
    }
    return stepped;
  }

  Engine& engine_;
  const Workload& workload_;
  const LoadOptions options_;
  Clock::time_point start_;
  LoadResult result_;
  StepTimes step_;
  double waited_ = 0.0;  // seconds in all steps so far
  Status failed_;
};

}  // namespace

Result<LoadResult> run_load(Engine& engine, const Workload& workload, const LoadOptions& options) {
  return Load(engine, workload, options).run();
}

}  // namespace prologue::bench
