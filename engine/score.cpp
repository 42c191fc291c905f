// This file computes log probabilities of given tokens.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <prologue/engine/active.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

struct Engine::Scored {
  std::vector<int32_t> tokens;  // prompt and scored ones
  int64_t num_prompt = 0;
  RopePositions rope;
  RopeSet* set = nullptr;
  SequenceId id = ScheduledSequence::kNoSequence;
};

Result<Score> Engine::score(std::span<const int32_t> prompt, std::span<const int32_t> tokens, const ScoreOptions& options) {
  PROLOGUE_RETURN_IF_ERROR(check_process());
  return catch_out_of_memory([&] { return run_score(prompt, tokens, options); });
}

// Checks the arguments.
Status Engine::begin_score(Scored& scored, const ScoreOptions& options) {
  const std::vector<int32_t>& all = scored.tokens;
  const auto length = static_cast<int64_t>(all.size());
  if (scored.num_prompt == 0) return invalid_argument("prompt_tokens is empty: the first token needs something before it");
  if (scored.num_prompt == length) return invalid_argument("tokens is empty: there is nothing to score");
  if (length > context_length_) {
    return invalid_argument("prompt_tokens and tokens have ", length, " tokens: ",
                            context_length_ == config().context_length ? "the model's context is " : "the context was set to ",
                            context_length_);
  }
  for (const int32_t token : all) {
    if (token < 0 || token >= config().vocab_size) {
      return invalid_argument("token id ", token, " is not in the vocabulary: ids are 0 to ", config().vocab_size - 1);
    }
  }
  if (options.num_logprobs < -1 || options.num_logprobs > kMaxTopLogprobs) {
    return invalid_argument("the number of log probabilities is ", options.num_logprobs, ": it must be between 0 and ",
                            kMaxTopLogprobs, ", or -1 for none");
  }
  PROLOGUE_ASSIGN_OR_RETURN(scored.rope, rope_positions_of(options.positions, scored.num_prompt, length, options.rope_length));
  if (scored.rope.length < length) {
    return invalid_argument("the tokens would have positions up to ", length - 2 + scored.rope.delta,
                            ": the last one of the context is ", context_length_ - 1);
  }
  return {};
}

Result<Score> Engine::run_score(std::span<const int32_t> prompt, std::span<const int32_t> tokens, const ScoreOptions& options) {
  Scored scored;
  scored.num_prompt = static_cast<int64_t>(prompt.size());
  scored.tokens.assign(prompt.begin(), prompt.end());
  scored.tokens.insert(scored.tokens.end(), tokens.begin(), tokens.end());
  PROLOGUE_RETURN_IF_ERROR(begin_score(scored, options));
  Score score;
  std::vector<float> logits;
  const int64_t vocab = config().vocab_size;
  const int64_t end = static_cast<int64_t>(scored.tokens.size()) - 1;  // the logits of the last token are not needed,
  int64_t at = 0;
  const auto run = [&]() -> Status {
    // The requests' steps are read first: only one step at a time is in flight.
    while (!enqueued_.empty()) {
      if (const Status read = read_step(); !read.ok()) fail_running(read);
    }
    scheduler_->restart();
    if (scored.set == nullptr) {
      PROLOGUE_ASSIGN_OR_RETURN(scored.id, cache_->add_sequence());
      scored.set = runner_->rope_sets().acquire(scored.rope.length_class, scored.rope.num_positions);
    }
    if (scored.set == nullptr)
      return resource_exhausted("the requests that run use all rows of the rope tables: score when they are done");
    const int64_t without_logits =
        std::max<int64_t>(0, scored.num_prompt - 1 - at);                    // of the prompt only those of its last token
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t room, cache_->room(scored.id));  // of layers with a window: of this step
    const int64_t count = std::min({runner_->front().limits().max_tokens, std::max<int64_t>(room, 1),
                                    without_logits > 0 ? without_logits : std::min(kScoreRows, end - at)});
    const int64_t num_rows = without_logits > 0 ? 0 : count;
    PROLOGUE_RETURN_IF_ERROR(score_step(scored, at, count, num_rows, logits));
    PROLOGUE_RETURN_IF_ERROR(cache_->release_out_of_window(scored.id));
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* const row = logits.data() + r * vocab;
      if (options.on_logits) {
        PROLOGUE_RETURN_IF_ERROR(call_back("on_logits", [&] {
          options.on_logits(score.argmax.size(), {row, static_cast<size_t>(vocab)});
        }));
      }
      add_scores(scored, row, options, score);
    }
    at += count;
    return {};
  };
  Status status;
  for (bool done = false; !done; let_others_step()) {
    const StepLock lock(*this);
    status = catch_out_of_memory(run);
    done = at >= end || !status.ok();
    if (done && scored.id != ScheduledSequence::kNoSequence) (void)cache_->free(scored.id);
    if (done && scored.set != nullptr) runner_->rope_sets().release(*scored.set);
  }
  PROLOGUE_RETURN_IF_ERROR(status);
  double sum = 0.0;
  for (const double logprob : score.logprob_of_token) sum += logprob;
  score.perplexity = std::exp(-sum / static_cast<double>(tokens.size()));
  return score;
}

// Adds what the logits before the next token say about it.
void Engine::add_scores(const Scored& scored, const float* row, const ScoreOptions& options, Score& score) const {
  const int64_t vocab = config().vocab_size;
  const int32_t token = scored.tokens[static_cast<size_t>(scored.num_prompt) + score.argmax.size()];
  const auto best = static_cast<int32_t>(std::max_element(row, row + vocab) - row);  // if several are equal: the lowest id
  double mass = 0.0;
  for (int64_t i = 0; i < vocab; ++i) mass += std::exp(static_cast<double>(row[i]) - static_cast<double>(row[best]));
  const auto logprob = [&](int32_t of) { return static_cast<double>(row[of]) - static_cast<double>(row[best]) - std::log(mass); };
  score.argmax.push_back(best);
  score.logit_of_argmax.push_back(row[best]);
  score.logit_of_token.push_back(row[token]);
  score.logprob_of_token.push_back(logprob(token));
  if (options.num_logprobs < 0) return;
  TokenLogprobs logprobs;
  logprobs.logprob = static_cast<float>(logprob(token));
  std::vector<int32_t> top(static_cast<size_t>(std::min(options.num_logprobs, vocab)));
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  const auto value = [row](int32_t of) { return std::isnan(row[of]) ? -INFINITY : row[of]; };
  const auto more_likely = [&](int32_t a, int32_t b) { return value(a) > value(b) || (value(a) == value(b) && a < b); };
  std::partial_sort_copy(ids.begin(), ids.end(), top.begin(), top.end(), more_likely);
  for (const int32_t each : top) logprobs.top.emplace_back(each, static_cast<float>(logprob(each)));
  score.logprobs.push_back(std::move(logprobs));
}

// Runs the tokens [first, first + count) of one sequence, and returns the logits of the last num_rows of them.
Status Engine::score_step(const Scored& scored, int64_t first, int64_t count, int64_t num_rows, std::vector<float>& logits) {
  PROLOGUE_RETURN_IF_ERROR(cache_->append(scored.id, count));
  batch_.clear();
  PROLOGUE_RETURN_IF_ERROR(
      add_to_batch(scored.id, scored.tokens.data() + first, first, count, num_rows, scored.rope, *scored.set));
  PROLOGUE_RETURN_IF_ERROR(runner_->enqueue(batch_));
  const Status copied = runner_->read_logits(logits);
  PROLOGUE_ASSIGN_OR_RETURN(const StepResults results, runner_->read());  // in any case: a step that is enqueued must be read
  PROLOGUE_RETURN_IF_ERROR(copied);
  if (results.fault.code == FaultCode::none) return {};
  return device_error("the step failed at token ", first + results.fault.token, ": ", fault_code_name(results.fault.code));
}

}  // namespace prologue
