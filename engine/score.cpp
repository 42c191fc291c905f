// Log probabilities of given tokens.
#include <algorithm>
#include <cmath>

#include <prologue/engine/active.h>
#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {

struct Engine::Scored {
  std::vector<int32_t> tokens;
  RopePlace rope;
  RopeSet* set = nullptr;
  SequenceId id = 0;
};

Result<Score> Engine::score(std::span<const int32_t> prompt, std::span<const int32_t> tokens, const ScoreOptions& options) {
  PROLOGUE_RETURN_IF_ERROR(check_process());
  const StepLock lock(*this);
  return catch_out_of_memory([&] { return run_score(prompt, tokens, options); });
}

Result<Score> Engine::run_score(std::span<const int32_t> prompt, std::span<const int32_t> tokens, const ScoreOptions& options) {
  Scored scored;
  std::vector<int32_t>& all = scored.tokens;
  all.assign(prompt.begin(), prompt.end());
  all.insert(all.end(), tokens.begin(), tokens.end());
  const auto num_prompt = static_cast<int64_t>(prompt.size());
  const auto length = static_cast<int64_t>(all.size());
  if (prompt.empty()) return invalid_argument("prompt_tokens is empty: the first token needs something before it");
  if (tokens.empty()) return invalid_argument("tokens is empty: there is nothing to score");
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
  PROLOGUE_ASSIGN_OR_RETURN(scored.rope, place_on_ropes(options.positions, num_prompt, length, options.rope_length));
  if (scored.rope.length < length) {
    return invalid_argument("the tokens would have positions up to ", length - 2 + scored.rope.delta,
                            ": the last one of the context is ", context_length_ - 1);
  }
  // The scoring steps run between those of the requests.
  while (!enqueued_.empty()) {
    if (const Status read = read_step(); !read.ok()) fail_running(read);
  }
  scheduler_->restart();
  PROLOGUE_ASSIGN_OR_RETURN(scored.id, cache_->add_sequence());
  Score score;
  double sum = 0.0;
  std::vector<float> logits;
  const int64_t vocab = config().vocab_size;
  const auto run = [&]() -> Status {
    scored.set = runner_->rope_sets().acquire(scored.rope.length_class, scored.rope.num_positions);
    if (scored.set == nullptr)
      return resource_exhausted("the requests that run use all rows of the rope tables: score when they are done");
    const int64_t end = length - 1;  // the logits of the last token are not needed, of the prompt only those of its last token
    for (int64_t at = 0; at < end;) {
      const int64_t without_logits = std::max<int64_t>(0, num_prompt - 1 - at);
      PROLOGUE_ASSIGN_OR_RETURN(const int64_t room, cache_->room(scored.id));  // of layers with a window: of this step
      const int64_t count = std::min({runner_->limits().max_tokens, std::max<int64_t>(room, 1),
                                      without_logits > 0 ? without_logits : std::min(kScoreRows, end - at)});
      const int64_t num_rows = without_logits > 0 ? 0 : count;
      PROLOGUE_RETURN_IF_ERROR(score_step(scored, at, count, num_rows, logits));
      PROLOGUE_RETURN_IF_ERROR(cache_->release_out_of_window(scored.id));
      for (int64_t r = 0; r < num_rows; ++r) {
        const float* row = logits.data() + r * vocab;
        const int32_t token = all[static_cast<size_t>(at + r + 1)];
        const auto best = static_cast<int32_t>(std::max_element(row, row + vocab) - row);  // if several are equal: the lowest id
        double mass = 0.0;
        for (int64_t i = 0; i < vocab; ++i) mass += std::exp(static_cast<double>(row[i]) - static_cast<double>(row[best]));
        const double logprob = static_cast<double>(row[token]) - static_cast<double>(row[best]) - std::log(mass);
        if (options.on_logits) {
          PROLOGUE_RETURN_IF_ERROR(call_back("on_logits", [&] {
            options.on_logits(score.argmax.size(), {row, static_cast<size_t>(vocab)});
          }));
        }
        score.argmax.push_back(best);
        score.logit_of_argmax.push_back(row[best]);
        score.logit_of_token.push_back(row[token]);
        score.logprob_of_token.push_back(logprob);
        sum += logprob;
      }
      at += count;
    }
    return {};
  };
  const Status status = catch_out_of_memory(run);
  (void)cache_->free(scored.id);
  if (scored.set != nullptr) runner_->rope_sets().release(*scored.set);
  PROLOGUE_RETURN_IF_ERROR(status);
  score.perplexity = std::exp(-sum / static_cast<double>(tokens.size()));
  return score;
}

// The tokens [first, first + count) of one sequence, and the logits of the last num_rows of them.
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
