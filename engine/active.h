// This file has what the engine keeps about its requests. Internal.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/text_stream.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

using EngineClock = std::chrono::steady_clock;

inline constexpr int64_t kScoreRows = 64;  // rows of logits of a scoring step, at most

// Runs a function of the caller's. If it throws, returns an error: "`who` failed: what it threw".
template <class Call>
Status call_back(std::string_view who, const Call& call) {
  std::string what;
  try {
    call();
    return {};
  } catch (const std::exception& error) {
    (void)catch_out_of_memory([&]() -> Status {
      what = error.what();
      return {};
    });
  } catch (...) {
    what = "an exception";
  }
  return device_error(who, " failed: ", what);
}

// Describes one completion of a request while it is generated.
struct Engine::Sample : ScheduledSequence {
  Sample(Active& owner, int64_t index, const Tokenizer& tokenizer, const std::vector<std::string>& stop)
      : active(owner), number(index), text(tokenizer, stop) {}

  Active& active;
  int64_t number = 0;  // among the samples of the request
  TextStream text;
  Completion completion;
  bool ended = false;
  int64_t num_shown = 0;    // tokens of the completion that the callback has seen
  int64_t num_prompt = 0;   // tokens
  std::vector<Buffer> adjustments;  // on the device of each rank: counts, then biases (SamplingRow); empty if it needs none
  bool begun = false;       // a step has been planned for it
  EngineClock::time_point first_step, first_token;
};

struct Engine::Active {
  RequestId id = 0;
  Request request;
  OutputCallback on_output;
  RopePositions rope;
  std::vector<std::unique_ptr<Sample>> samples;
  int64_t num_ended = 0;
  bool queued = true;  // no sample has begun
  EngineClock::time_point submitted;
};

// Describes a step that is enqueued and not read. The requests live at least as long.
struct Engine::EnqueuedStep {
  struct Sequence {
    std::shared_ptr<Active> active;
    Sample* sample = nullptr;
    int64_t num_computed = 0;  // tokens in the cache after the step
    size_t first_row = 0;
    size_t num_rows = 0;
  };
  std::vector<Sequence> sequences;
  std::vector<Sample*> rows;  // samples of these requests
};

// Whoever runs steps holds one.
class Engine::StepLock {
 public:
  explicit StepLock(Engine& engine) : engine_(engine) {
    ++engine.num_step_waiters_;
    engine.stepping_.lock();
    --engine.num_step_waiters_;
    engine.stepper_ = std::this_thread::get_id();
  }
  ~StepLock() {
    engine_.stepper_ = std::thread::id();
    engine_.stepping_.unlock();
  }
  StepLock(const StepLock&) = delete;
  StepLock& operator=(const StepLock&) = delete;

 private:
  Engine& engine_;
};

}  // namespace prologue
