// This file has a request to the engine and its results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prologue/engine/sampling_options.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/token_ops/logprobs.h>

namespace prologue {

using RequestId = int64_t;

inline constexpr int64_t kMaxSamples = 128;

// The scheduler alternates between groups. A group is a request with its samples, or several requests of one client.
struct RequestGroup {
  int64_t num_running = 0;  // sequences; the scheduler's
};

struct Request {
  std::vector<int32_t> prompt;  // tokens
  std::string text;             // if `prompt` is empty: the prompt as text, in which the model's special tokens are recognised
  int64_t max_tokens = 128;     // generated tokens of each sample; the context may end generation earlier
  int64_t num_samples = 1;      // completions of the same prompt, 1..kMaxSamples
  int64_t num_logprobs = -1;    // -1 = none; n: log probability of each token and the n most likely ones, up to kMaxTopLogprobs
  SamplingOptions sampling;
  std::vector<std::string> stop;     // generation stops at the first of these texts, which is not returned
  std::vector<int32_t> stop_tokens;  // generation stops at these tokens, as at EOS (a chat format's end-of-message token)
  bool ignore_eos = false;
  // Gives the rope positions of the prompt's tokens on each axis (MRoPE): [axes, prompt tokens], row-major; empty: the token's index on
  // every axis. A generated token has on every axis the position after that of the token before it; the first one has the position after
  // the largest one of the prompt.
  std::vector<int32_t> positions;
  // Used by ropes whose frequencies depend on the sequence's length (dynamic NTK, LongRoPE): the length that they are computed for. It does
  // not change while the sequence grows. 0: prompt and max_tokens together, or the context, if that is less.
  int64_t rope_length = 0;
  // Text that is expected in what is generated, as tokens: where speculation looks texts up, there, too. It changes no token.
  std::vector<int32_t> prediction;
  // Requests with different salts use no pages of the KV cache together, so neither times nor Completion::cached_tokens tell one about
  // another.
  std::string cache_salt;
  // The scheduler treats the requests of one group (of the same engine) as one; null: a group of its own.
  std::shared_ptr<RequestGroup> group;
};

enum class FinishReason {
  end,        // an end-of-text token, or one of Request::stop_tokens
  stop,       // the text reached one of Request::stop
  length,     // Request::max_tokens tokens were generated
  context,    // Engine::context_length() was reached
  cancelled,  // the tokens generated before are kept
  error,      // Completion::status says which; the tokens generated before are kept
};
inline constexpr size_t kNumFinishReasons = 6;
const char* finish_reason_name(FinishReason reason);  // the enumerator's name

// This is the log softmax of the model's logits, before temperature, penalties, bias and filters.
struct TokenLogprobs {
  float logprob = 0.0f;                        // of the token that was chosen
  std::vector<std::pair<int32_t, float>> top;  // the most likely tokens, in order, each with its log probability
};

// Holds one sample of a request.
struct Completion {
  Status status;
  std::vector<int32_t> tokens;          // without the end token
  std::string text;                     // valid UTF-8; without the stop text
  std::vector<TokenLogprobs> logprobs;  // of `tokens`, if requested
  FinishReason finish_reason = FinishReason::cancelled;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;    // of the prompt, found in the cache
  int64_t draft_tokens = 0;     // that were verified (EngineOptions::speculation),
  int64_t accepted_tokens = 0;  // and of these accepted
  int64_t num_preemptions = 0;  // how often its pages were taken away and computed again
  // These are its own times: from the submission until its first step, from there to its first token, and from there to its last token.
  double queue_seconds = 0.0;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
};

// Says what has become of one sample since the last call for it. Views are valid during the call.
struct Output {
  RequestId request = 0;
  int64_t sample = 0;
  std::span<const int32_t> tokens;  // new ones
  std::string_view text;            // new whole characters; text that may be the beginning of a stop text is held back
  std::span<const TokenLogprobs> logprobs;
  int64_t prefilled = 0;                   // prompt tokens that are in the cache by now,
  int64_t prompt_tokens = 0;               // of so many
  const Completion* completion = nullptr;  // after the last token; then no call for this sample follows
};

// Called on the thread that runs the step, between steps. It must not run steps itself (class Engine). If it throws, its request ends with
// FinishReason::error, without another call.
using OutputCallback = std::function<void(const Output&)>;

}  // namespace prologue
