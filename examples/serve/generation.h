// Runs one API request in the engine: all its prompts and samples.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>

#include "answer.h"
#include "api_request.h"
#include "http.h"
#include "metrics.h"

namespace serve {

// Holds news of one choice (answer.h).
struct Update {
  size_t choice = 0;
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<prologue::TokenLogprobs> logprobs;
  std::optional<prologue::Completion> completion;  // the last news of the choice
  std::chrono::steady_clock::time_point time;      // when the engine had it
};

struct GenerationLimits {
  std::chrono::steady_clock::time_point arrival;  // of the request
  std::chrono::seconds time;                      // from there to its last token
};

// Fills in the log probabilities of prompts that are echoed, if the request wants them. Throws ApiError as Generation does; returns false
// if the client is gone.
bool score_prompts(prologue::Engine& engine, ApiRequest& request, const GenerationLimits& limits, const Peer& peer,
                   const std::atomic<bool>& shutting_down);

// The destructor cancels what has not finished. One thread uses it; the engine's thread adds updates.
class Generation {
 public:
  using Clock = std::chrono::steady_clock;
  using Limits = GenerationLimits;

  // Submits all prompts; if no token is to be generated, there is nothing to do. Throws ApiError if one is refused; the others are cancelled.
  Generation(prologue::Engine& engine, const ApiRequest& request, const Limits& limits, Metrics& metrics);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Waits for the next update. None: all choices have finished, or the client is gone; then gone() is true. Throws ApiError when a
  // choice failed, the time is over, or the engine shuts down.
  std::optional<Update> next(const Peer& peer);
  bool gone() const { return gone_; }
  const Usage& usage() const { return usage_; }  // complete after all choices have finished

 private:
  class Channel;
  void measure(const Update& update);

  prologue::Engine& engine_;
  Metrics& metrics_;
  const Limits limits_;
  const size_t num_samples_;
  std::shared_ptr<Channel> channel_;
  std::vector<prologue::RequestId> ids_;
  std::vector<Clock::time_point> last_token_;  // of each choice
  size_t num_open_ = 0;                        // choices that have not finished
  bool gone_ = false;
  Usage usage_;
};

}  // namespace serve
