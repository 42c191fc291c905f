// This file runs work on several CPU threads. Every CPU implementation that uses threads uses it.
//
// Each thread that calls parallel_for has its own pool of workers. They start when first needed and end with that thread. The caller works
// too. Work is claimed in small ranges, so the caller waits only for workers that have claimed a range, never for one that the system has
// not scheduled. Waiting threads spin for some microseconds (the gap between two operations of a step), then sleep: an idle process uses no
// CPU time, and on a busy machine other programs get the cores. parallel_for works in a forked child too. If the system grants no thread,
// the caller does all the work.
#pragma once

#include <algorithm>
#include <cstdint>

#include <prologue/kernels/base/export.h>

namespace prologue {

inline constexpr int64_t kMaxThreads = 512;  // of one call; larger requests are reduced to this

// Calls body(context, begin, end) for ranges that together cover [0, count), each index once. count >= 1.
PROLOGUE_API void run_ranges(int64_t count, int64_t num_threads, void (*body)(const void* context, int64_t begin, int64_t end),
                             const void* context);

// Calls body(i) for each i in [0, count), each once, on up to num_threads threads (< 1 counts as 1); returns when all are done.
// `body` must not throw. A parallel_for inside a body uses only the body's thread.
template <class Body>
void parallel_for(int64_t count, int64_t num_threads, const Body& body) {
  if (count < 1) return;
  const auto run = [](const void* context, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) (*static_cast<const Body*>(context))(i);
  };
  if (std::min(num_threads, count) <= 1) return run(&body, 0, count);
  run_ranges(count, num_threads, run, &body);
}

}  // namespace prologue
