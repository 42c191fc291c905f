// This file has what the engine keeps about its requests. Internal.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/speculation/speculator.h>
#include <prologue/engine/text_stream.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

using EngineClock = std::chrono::steady_clock;

inline constexpr int64_t kMaxDraftedSeqs = 64;  // of a step, by a draft model
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

  int64_t id() const;  // of no other sample

  Active& active;
  int64_t number = 0;  // among the samples of the request
  TextStream text;
  Completion completion;
  bool ended = false;
  int64_t num_shown = 0;            // tokens of the completion that the callback has seen
  int64_t num_prompt = 0;           // tokens
  std::vector<Buffer> adjustments;  // on the device of each rank: counts, then biases (SamplingRow); empty if it needs none
  bool begun = false;               // a step has been planned for it
  DraftHistory draft_history;
  int32_t draft_evidence = 0;  // of the drafts that were proposed last
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

inline int64_t Engine::Sample::id() const { return active.id * kMaxSamples + number; }

struct Engine::EnqueuedSequence {
  std::shared_ptr<Active> active;
  Sample* sample = nullptr;
  int64_t num_computed = 0;  // tokens in the cache after the step
  size_t first_row = 0;
  size_t num_rows = 0;
  bool verifies = false;  // a row for each draft of the sample, and one more
};

// Describes a step that is enqueued and not read. The requests live at least as long.
struct Engine::EnqueuedStep {
  std::vector<EnqueuedSequence> sequences;
  std::vector<Sample*> rows;  // samples of these requests
  bool verifies = false;      // a sequence has drafts
  bool only_decodes = true;   // no sequence has a part of its prompt
  bool is_typical = true;     // what it costs is worth knowing: a captured step that is replayed, or steps are not captured
  EngineClock::time_point begin;
};

// Holds what proposes drafts, and what a call of it needs.
struct Engine::Drafts {
  Speculator speculator;
  std::vector<ScheduledSequence*> decoding;
  std::vector<DraftSequence> sequences;
  std::vector<DraftHistory*> histories;
  std::vector<Sample*> samples;  // of `sequences`
  std::vector<int32_t> tokens;   // of a sequence: the last known one and its drafts
  bool verified_last = false;    // the step that was read last has
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
