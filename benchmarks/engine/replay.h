// Runs decode steps without an engine: what the model, the captured step and its sampling cost alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <prologue/engine/engine.h>

namespace prologue::bench {

// Returns the seconds of one greedy decode step of each of `batches` sequences, around `context` tokens each, by ParallelRunner: two steps are
// in flight, as in the engine, so a GPU never waits for the host. `options` is that of the engine: its model, types and graphs. The model
// is loaded for the call.
Result<std::vector<double>> time_decode_steps(const EngineOptions& options, std::span<const int64_t> batches, int64_t context);

}  // namespace prologue::bench
