#include "generation.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

namespace serve {

using namespace prologue;

namespace {

constexpr std::chrono::milliseconds kLook{50};  // between two looks whether the client is still there, while no token comes

double seconds_between(Generation::Clock::time_point from, Generation::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void check_time(const GenerationLimits& limits) {
  if (Generation::Clock::now() - limits.arrival <= limits.time) return;
  throw ApiError{408, str_cat("the request took longer than ", limits.time.count(), " s: it was cancelled"), {}, "timeout"};
}

}  // namespace

bool score_prompts(Engine& engine, ApiRequest& request, const GenerationLimits& limits, const Peer& peer,
                   const std::atomic<bool>& shutting_down_now) {
  if (!request.echo || !request.has_logprobs()) return true;
  struct Gone {};
  for (const std::vector<int32_t>& prompt : request.prompts) {
    request.prompt_logprobs.emplace_back();
    if (prompt.size() == 1) continue;  // nothing is before its only token
    std::exception_ptr ended;          // why the score must not go on
    ScoreOptions options;
    options.num_logprobs = request.common.num_logprobs;
    // The length is that of the generation, if there is one.
    options.rope_length = std::min(static_cast<int64_t>(prompt.size()) + request.common.max_tokens, engine.context_length());
    Generation::Clock::time_point looked;
    options.on_logits = [&](size_t, std::span<const float>) {
      try {
        check_time(limits);
        if (shutting_down_now) throw shutting_down();
        if (Generation::Clock::now() - looked < kLook) return;
        if (peer.gone()) throw Gone();
        looked = Generation::Clock::now();
      } catch (...) {
        ended = std::current_exception();
        throw;
      }
    };
    auto score = engine.score({prompt.data(), 1}, {prompt.data() + 1, prompt.size() - 1}, options);
    try {
      if (ended) std::rethrow_exception(ended);
    } catch (const Gone&) {
      return false;
    }
    if (!score.ok()) throw error_of(score.status());
    request.prompt_logprobs.back() = std::move(score->logprobs);
  }
  return true;
}

// Passes results from the engine's thread to the thread of the connection.
class Generation::Channel {
 public:
  void push(Update update) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      updates_.push_back(std::move(update));
    }
    changed_.notify_one();
  }
  std::optional<Update> pop(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, patience, [this] { return !updates_.empty(); })) return std::nullopt;
    Update update = std::move(updates_.front());
    updates_.pop_front();
    return update;
  }
  // Nobody will read any more.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    updates_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Update> updates_;
  bool closed_ = false;
};

Generation::Generation(Engine& engine, const ApiRequest& request, const Limits& limits, Metrics& metrics)
    : engine_(engine),
      metrics_(metrics),
      limits_(limits),
      num_samples_(request.num_samples()),
      channel_(std::make_shared<Channel>()),
      last_token_(request.num_choices()),
      num_open_(request.common.max_tokens > 0 ? last_token_.size() : 0) {
  for (const std::vector<int32_t>& prompt : request.prompts) usage_.prompt_tokens += static_cast<int64_t>(prompt.size());
  for (size_t prompt = 0; num_open_ > 0 && prompt < request.prompts.size(); ++prompt) {
    const auto on_output = [channel = channel_, first = prompt * num_samples_, stream = request.stream](const Output& output) {
      if (output.tokens.empty() && output.text.empty() && output.completion == nullptr) return;  // the prompt is still read
      Update update;
      update.choice = first + static_cast<size_t>(output.sample);
      update.time = Clock::now();
      update.tokens.assign(output.tokens.begin(), output.tokens.end());
      if (stream) {  // otherwise all of it comes with the completion
        update.text = output.text;
        update.logprobs.assign(output.logprobs.begin(), output.logprobs.end());
      }
      if (output.completion != nullptr) update.completion = *output.completion;
      channel->push(std::move(update));
    };
    Request submitted = request.common;
    submitted.prompt = request.prompts[prompt];
    auto id = engine_.submit(std::move(submitted), on_output);
    if (!id.ok()) {
      for (const RequestId earlier : ids_) engine_.cancel(earlier);
      throw id.status().code() == StatusCode::unsupported ? shutting_down() : error_of(id.status());
    }
    ids_.push_back(*id);
  }
}

Generation::~Generation() {
  channel_->close();
  if (num_open_ == 0) return;
  for (const RequestId id : ids_) engine_.cancel(id);
}

std::optional<Update> Generation::next(const Peer& peer) {
  while (num_open_ > 0) {
    std::optional<Update> update = channel_->pop(kLook);
    gone_ = peer.gone();
    if (gone_) return std::nullopt;
    check_time(limits_);
    if (!update) continue;
    measure(*update);
    if (!update->completion) return update;

    --num_open_;
    const Completion& completion = *update->completion;
    if (!completion.status.ok()) {
      throw ApiError{500, str_cat("the generation failed: ", completion.status.message()), {}, "generation_failed"};
    }
    if (completion.finish_reason == FinishReason::cancelled) throw shutting_down();  // who else would cancel it
    usage_.completion_tokens += static_cast<int64_t>(completion.tokens.size());
    usage_.draft_tokens += completion.draft_tokens;
    usage_.accepted_tokens += completion.accepted_tokens;
    if (update->choice % num_samples_ == 0) usage_.cached_tokens += completion.cached_tokens;
    if (num_open_ == 0) metrics_.request(seconds_between(limits_.arrival, update->time));
    return update;
  }
  return std::nullopt;
}

void Generation::measure(const Update& update) {
  int64_t num_tokens = static_cast<int64_t>(update.tokens.size());
  if (num_tokens == 0) return;
  Clock::time_point& last = last_token_[update.choice];
  if (last == Clock::time_point()) {
    metrics_.first_token(seconds_between(limits_.arrival, update.time));
    --num_tokens;
    last = update.time;
  }
  if (num_tokens > 0) metrics_.next_tokens(seconds_between(last, update.time), num_tokens);
  last = update.time;
}

}  // namespace serve
