// Events are points in time between operations: clock readings on the CPU, CUDA events on a GPU. They are for profiling.
#pragma once

#include <chrono>
#include <utility>

#include <prologue/kernels/base/execution.h>

struct CUevent_st;

namespace prologue {

class PROLOGUE_API Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    std::swap(time_, other.time_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  // Marks the point after the operations enqueued so far; does not synchronise.
  Status record(const Execution& execution);
  // Returns the seconds from `start` to `end`; waits until both have been reached.
  static Result<double> seconds_between(const Event& start, const Event& end);

 private:
  CUevent_st* event_ = nullptr;
  std::chrono::steady_clock::time_point time_;
};

}  // namespace prologue
