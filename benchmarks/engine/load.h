// This is the load generator: submits the requests of a workload to an engine when they arrive, and records what comes back.
//
// It runs the engine's steps itself. So a request that arrives during a step is submitted after it. Its times still count from the arrival.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/engine/engine.h>

#include "benchmarks/engine/statistics.h"
#include "benchmarks/engine/workload.h"

namespace prologue::bench {

struct CacheUse {
  double seconds = 0.0;
  double used = 0.0;    // part of the pages that sequences use,
  double cached = 0.0;  // and of those that are kept for later prompts only
};

// Describes one call of Engine::step(). Times are in seconds after the start of the load.
struct StepTimes {
  double begin = 0.0;
  double first_output = 0.0;  // when the first token came out: the device had finished the step by then
  double end = 0.0;
  double waited = 0.0;     // for the device, between begin and first_output
  int64_t num_tokens = 0;  // that came out
};

struct LoadOptions {
  float temperature = 0.0f;
  bool record_steps = false;
};

struct LoadResult {
  double seconds = 0.0;  // until the last token
  std::vector<Served> requests;
  std::vector<std::vector<std::pair<int64_t, double>>>
      prefilled;                    // by request: tokens of the prompt in the cache, and since when
  std::vector<CacheUse> cache_use;  // at most one entry in 20 ms
  std::vector<StepTimes> steps;
  EngineStats before, after;
};

// Returns when every request is complete. The error of a request that fails or is refused is that of the load.
Result<LoadResult> run_load(Engine& engine, const Workload& workload, const LoadOptions& options);

}  // namespace prologue::bench
