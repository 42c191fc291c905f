// The generation loop: prefills prompts in chunks, then decodes all sequences, one token of each per step.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>

#include <prologue/engine/engine.h>
#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {

const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::eos: return "eos";
    case StopReason::stop: return "stop";
    case StopReason::max_tokens: return "max_tokens";
    case StopReason::context: return "context";
    case StopReason::cancelled: return "cancelled";
  }
  return "unknown";
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The state of one running request: its completion so far.
class Sequence {
 public:
  // max_length: of prompt and generated tokens.
  Sequence(const Request& request, Completion& completion, const Tokenizer& tokenizer, int64_t max_length)
      : request_(request),
        completion_(completion),
        tokenizer_(tokenizer),
        decoder_(tokenizer),
        max_context_tokens_(max_length - static_cast<int64_t>(request.prompt.size())) {}

  // Takes the next token. Returns the text that can be shown now; afterwards done() may be true.
  std::string push(int32_t token) {
    const bool is_stop_token =
        std::find(request_.stop_tokens.begin(), request_.stop_tokens.end(), token) != request_.stop_tokens.end();
    if (!request_.ignore_eos && (tokenizer_.is_end_of_generation(token) || is_stop_token)) {
      return finish(StopReason::eos);
    }
    completion_.tokens.push_back(token);
    pending_ += decoder_.push(token);
    if (const size_t stop = find_stop(); stop != std::string::npos) {
      pending_.resize(stop);
      done_ = true;
      completion_.stop = StopReason::stop;
      return release(pending_.size());
    }
    const int64_t num_tokens = static_cast<int64_t>(completion_.tokens.size());
    if (num_tokens >= request_.max_tokens) return finish(StopReason::max_tokens);
    if (num_tokens >= max_context_tokens_) return finish(StopReason::context);
    return release(pending_.size() - held_back());
  }

  // Ends the sequence. Returns the text that was not shown yet.
  std::string finish(StopReason reason) {
    pending_ += decoder_.finish();
    done_ = true;
    completion_.stop = reason;
    if (const size_t stop = find_stop(); stop != std::string::npos) {
      pending_.resize(stop);
      completion_.stop = StopReason::stop;
    }
    return release(pending_.size());
  }

  bool done() const { return done_; }

 private:
  std::string release(size_t count) {
    std::string text = pending_.substr(0, count);
    pending_.erase(0, count);
    completion_.text += text;
    return text;
  }

  size_t find_stop() const {
    size_t first = std::string::npos;
    for (const std::string& stop : request_.stop) first = std::min(first, pending_.find(stop));
    return first;
  }

  // The number of bytes at the end of the pending text that may be the beginning of a stop text; they are not shown yet.
  size_t held_back() const {
    size_t longest = 0;
    for (const std::string& stop : request_.stop) {
      for (size_t length = std::min(stop.size() - 1, pending_.size()); length > longest; --length) {
        if (pending_.compare(pending_.size() - length, length, stop, 0, length) == 0) longest = length;
      }
    }
    return longest;
  }

  const Request& request_;
  Completion& completion_;
  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  int64_t max_context_tokens_;
  std::string pending_;
  bool done_ = false;
};

// An admitted request: pages for all of its tokens, to the last possible one, are reserved.
struct Running {
  size_t index = 0;
  const Request* request = nullptr;
  Completion* completion = nullptr;
  SequenceId id = -1;
  Sequence sequence;
  int64_t max_length = 0;   // of prompt and generated tokens
  int32_t next_token = -1;  // the last one chosen, not yet in the cache
};

SamplingRow sampling_row(const Running& running) {
  const SamplingOptions& options = running.request->sampling;
  const int64_t position = static_cast<int64_t>(running.request->prompt.size() + running.completion->tokens.size());
  return {options.temperature, options.top_k, options.top_p, options.min_p, options.seed, position};
}

}  // namespace

Result<std::vector<Completion>> Engine::generate(std::span<const Request> requests, const GenerationEvents& events) {
  PROLOGUE_RETURN_IF_ERROR(check_process());
  const std::lock_guard lock(in_use_);
  return catch_out_of_memory([&]() -> Result<std::vector<Completion>> {
    std::vector<Completion> completions(requests.size());
    const Status status = catch_out_of_memory([&] { return run_requests(requests, events, completions); });
    for (Completion& completion : completions) {
      if (completion.status.ok()) completion.status = status;
    }
    return completions;
  });
}

Status Engine::run_requests(std::span<const Request> requests, const GenerationEvents& events,
                            std::vector<Completion>& completions) {
  const Clock::time_point start = Clock::now();

  // The tokens that each request may need, prompt and generated together. Requests whose prompt cannot run get an error.
  std::vector<int64_t> wanted(requests.size(), 0);
  int64_t total_wanted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    completions[i].status = check_request(requests[i]);
    if (!completions[i].status.ok()) continue;
    const int64_t prompt = static_cast<int64_t>(requests[i].prompt.size());
    wanted[i] = prompt + std::min(requests[i].max_tokens, config().context_length - prompt);
    total_wanted += wanted[i];
  }

  // Requests are admitted in order while cache_tokens has room for all of their tokens. A request that wants more than the context
  // gets the whole context and ends there (StopReason::context). The last page of a sequence may be only partly used.
  std::list<Running> running;
  int64_t tokens_left = options_.cache_tokens > 0 ? options_.cache_tokens : total_wanted;
  int64_t prompt_tokens = 0;
  int64_t num_pages = 0;
  int64_t longest = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!completions[i].status.ok()) continue;
    const int64_t prompt = static_cast<int64_t>(requests[i].prompt.size());
    const int64_t length = std::min(wanted[i], context_length());
    if (length > tokens_left) {
      completions[i].status =
          resource_exhausted("the context has no room for this request: it needs ", length, " tokens (prompt ", prompt,
                             " + max-tokens ", length - prompt, "), ", tokens_left, " of ", options_.cache_tokens,
                             " are left; all requests together need a context of ", total_wanted, " tokens");
      continue;
    }
    tokens_left -= length;
    prompt_tokens += prompt;
    num_pages += (length + options_.page_size - 1) / options_.page_size;
    longest = std::max(longest, length);
    running.push_back({i, &requests[i], &completions[i], -1, Sequence(requests[i], completions[i], *tokenizer_, length), length});
  }
  if (running.empty()) return {};

  const int64_t num_seqs = static_cast<int64_t>(running.size());
  PROLOGUE_ASSIGN_OR_RETURN(const auto made, make_runner(num_pages * options_.page_size, longest, num_seqs, num_seqs));
  ModelRunner& runner = *made;
  KvCache& cache = runner.cache();
  for (Running& each : running) {
    PROLOGUE_ASSIGN_OR_RETURN(each.id, cache.add_sequence());
    PROLOGUE_RETURN_IF_ERROR(cache.reserve(each.id, each.max_length));
  }

  StepBatch batch;
  std::vector<Running*> sampled;  // the sequences that get logits in this step, in order
  std::vector<SamplingRow> rows;
  std::vector<int32_t> tokens;  // the next token of each of `sampled`
  Clock::time_point decode_start;
  const auto add = [&](const Running& each, const int32_t* new_tokens, int64_t count, int64_t num_logit_rows) -> Status {
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t position, cache.length(each.id));
    PROLOGUE_RETURN_IF_ERROR(cache.append(each.id, count));
    PROLOGUE_ASSIGN_OR_RETURN(const std::vector<int32_t>* const pages, cache.pages(each.id));
    batch.add_sequence(new_tokens, count, position, *pages, cache.page_size(), num_logit_rows);
    return {};
  };
  const auto step = [&]() -> Status {
    PROLOGUE_RETURN_IF_ERROR(runner.run(batch));
    rows.clear();
    for (const Running* each : sampled) rows.push_back(sampling_row(*each));
    PROLOGUE_RETURN_IF_ERROR(runner.sample(rows, tokens));
    for (const Running* each : sampled) {
      if (each->next_token < 0) {
        each->completion->prefill_seconds = seconds_since(start);
      } else {
        ++each->completion->decode_tokens;
        each->completion->decode_seconds = seconds_since(decode_start);
      }
    }
    return {};
  };
  const auto show = [&](const Running& each, const std::string& text) {
    if (!text.empty() && events.on_text) events.on_text(each.index, text);
  };
  const auto take_tokens = [&] {
    for (size_t i = 0; i < sampled.size(); ++i) {
      sampled[i]->next_token = tokens[i];
      show(*sampled[i], sampled[i]->sequence.push(tokens[i]));
    }
  };
  const auto should_stop = [&] { return events.should_stop && events.should_stop(); };

  bool cancelled = false;
  const auto run = [&]() -> Status {
    // Prefill first, in chunks; a step takes as many sequences as fit.
    for (int64_t num_read = 0; num_read < prompt_tokens && !(cancelled = should_stop());) {
      batch.clear();
      sampled.clear();
      for (Running& each : running) {
        const int64_t length = static_cast<int64_t>(each.request->prompt.size());
        const int64_t done = each.completion->prefill_tokens;
        const int64_t count = std::min(length - done, runner.limits().max_tokens - batch.num_tokens());
        if (count == 0) continue;
        const bool complete = done + count == length;
        PROLOGUE_RETURN_IF_ERROR(add(each, each.request->prompt.data() + done, count, complete ? 1 : 0));
        if (complete) sampled.push_back(&each);
        each.completion->prefill_tokens += count;
      }
      num_read += batch.num_tokens();
      PROLOGUE_RETURN_IF_ERROR(step());
      if (events.on_prefill) events.on_prefill(static_cast<double>(num_read) / static_cast<double>(prompt_tokens));
      take_tokens();
    }
    for (NodeProfile& row : runner.take_profile()) profile_.prefill.push_back(std::move(row));

    // Then decode: one token of each sequence per step.
    decode_start = Clock::now();
    while (!cancelled) {
      for (auto each = running.begin(); each != running.end();) {
        if (!each->sequence.done()) {
          ++each;
          continue;
        }
        PROLOGUE_RETURN_IF_ERROR(cache.free(each->id));
        each = running.erase(each);
      }
      if (running.empty() || (cancelled = should_stop())) break;
      batch.clear();
      sampled.clear();
      for (Running& each : running) {
        PROLOGUE_RETURN_IF_ERROR(add(each, &each.next_token, 1, 1));
        sampled.push_back(&each);
      }
      PROLOGUE_RETURN_IF_ERROR(step());
      take_tokens();
    }
    return {};
  };
  const Status status = catch_out_of_memory(run);
  for (NodeProfile& row : runner.take_profile()) profile_.decode.push_back(std::move(row));
  for (Running& each : running) {  // what a cancelled or failed call has not finished keeps its tokens and text up to here
    if (each.sequence.done()) continue;
    each.completion->status = status;
    show(each, each.sequence.finish(StopReason::cancelled));
  }
  return {};
}

}  // namespace prologue
