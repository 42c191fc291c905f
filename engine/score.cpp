// Log probabilities of given tokens.
#include <algorithm>
#include <cmath>

#include <prologue/engine/active.h>
#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {

namespace {

constexpr int64_t kMaxScoreRows = 64;  // logit rows of a step

}  // namespace

Result<Score> Engine::score(std::span<const int32_t> prompt, std::span<const int32_t> tokens, const LogitsCallback& on_logits) {
  PROLOGUE_RETURN_IF_ERROR(check_process());
  const StepLock lock(*this);
  return catch_out_of_memory([&] { return run_score(prompt, tokens, on_logits); });
}

Result<Score> Engine::run_score(std::span<const int32_t> prompt, std::span<const int32_t> tokens, const LogitsCallback& on_logits) {
  std::vector<int32_t> all(prompt.begin(), prompt.end());
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
  // The scoring steps run between those of the requests.
  while (!enqueued_.empty()) {
    if (const Status read = read_step(); !read.ok()) fail_running(read);
  }
  scheduler_->restart();
  PROLOGUE_ASSIGN_OR_RETURN(const SequenceId id, cache_->add_sequence());
  Score score;
  double sum = 0.0;
  std::vector<float> logits;
  const int64_t vocab = config().vocab_size;
  const auto run = [&]() -> Status {
    const int64_t end = length - 1;  // the logits of the last token are not needed, of the prompt only those of its last token
    for (int64_t at = 0; at < end;) {
      const int64_t without_logits = std::max<int64_t>(0, num_prompt - 1 - at);
      const int64_t count = std::min(runner_->limits().max_tokens,
                                     without_logits > 0 ? without_logits : std::min(kMaxScoreRows, end - at));
      const int64_t num_rows = without_logits > 0 ? 0 : count;
      PROLOGUE_RETURN_IF_ERROR(score_step(id, all, at, count, num_rows, logits));
      for (int64_t r = 0; r < num_rows; ++r) {
        const float* row = logits.data() + r * vocab;
        const int32_t token = all[static_cast<size_t>(at + r + 1)];
        const auto best = static_cast<int32_t>(std::max_element(row, row + vocab) - row);  // if several are equal: the lowest id
        double mass = 0.0;
        for (int64_t i = 0; i < vocab; ++i) mass += std::exp(static_cast<double>(row[i]) - static_cast<double>(row[best]));
        const double logprob = static_cast<double>(row[token]) - static_cast<double>(row[best]) - std::log(mass);
        if (on_logits) on_logits(score.argmax.size(), {row, static_cast<size_t>(vocab)});
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
  (void)cache_->free(id);
  PROLOGUE_RETURN_IF_ERROR(status);
  score.perplexity = std::exp(-sum / static_cast<double>(tokens.size()));
  return score;
}

// The tokens [first, first + count) of one sequence, and the logits of the last num_rows of them.
Status Engine::score_step(SequenceId id, std::span<const int32_t> tokens, int64_t first, int64_t count, int64_t num_rows,
                          std::vector<float>& logits) {
  PROLOGUE_RETURN_IF_ERROR(cache_->append(id, count));
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<int32_t>* const pages, cache_->pages(id));
  batch_.clear();
  batch_.add_sequence(tokens.data() + first, count, first, *pages, cache_->page_size(), num_rows);
  PROLOGUE_RETURN_IF_ERROR(runner_->enqueue(batch_));
  const Status copied = runner_->read_logits(logits);
  PROLOGUE_ASSIGN_OR_RETURN(const StepResults results, runner_->read());  // in any case: a step that is enqueued must be read
  PROLOGUE_RETURN_IF_ERROR(copied);
  if (results.fault.code == FaultCode::none) return {};
  return device_error("the step failed at token ", first + results.fault.token, ": ", fault_code_name(results.fault.code));
}

}  // namespace prologue
