// This file has what happens in a step: requests -> scheduler -> step arrays -> graph and sampler -> requests. docs/engine.md has the
// picture.
#include <algorithm>

#include <prologue/engine/active.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace {

double seconds_between(EngineClock::time_point start, EngineClock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

bool has_penalties(const SamplingOptions& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f;
}

}  // namespace

// Takes the requests that were submitted or cancelled since the last step.
void Engine::take_inbox() {
  std::vector<std::shared_ptr<Active>> submitted;  // swapping needs no memory
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard lock(inbox_);
    submitted.swap(submitted_);
    cancelled.swap(cancelled_);
  }
  for (std::shared_ptr<Active>& active : submitted) {
    const Status status = catch_out_of_memory([&]() -> Status {
      active_.emplace(active->id, active);
      scheduler_->add(*active->samples.front());
      return {};
    });
    if (!status.ok()) finish_request(*active, FinishReason::error, status);
  }
  for (const RequestId id : cancelled) {
    if (const auto found = active_.find(id); found != active_.end()) finish_request(*found->second, FinishReason::cancelled, {});
  }
}

// Up to two steps are in flight: the next one is enqueued before the previous one is read. Its tokens that the host does not know yet are
// on the device.
Result<bool> Engine::run_step() {
  const EngineClock::time_point start = EngineClock::now();
  take_inbox();
  if (const Status ended = ranks_->status(); !ended.ok()) return end_all(ended);
  const bool some_enqueued = !enqueued_.empty();
  StepPlan plan;
  Status status;
  if (drafts_ != nullptr) {
    status = catch_out_of_memory([&] { return propose_drafts(); });
    drafts_->sequences.clear();  // they refer to texts
  }
  const EngineClock::time_point planned_at = EngineClock::now();  // after what a proposer takes
  if (status.ok()) status = scheduler_->plan(plan);
  const bool planned = status.ok() && !plan.empty();
  if (planned) status = catch_out_of_memory([&] { return enqueue(plan, planned_at); });
  if (!status.ok()) fail_running(status);
  const size_t may_wait = options_.overlap && planned && status.ok() ? 1 : 0;
  const bool worked = planned || some_enqueued || !status.ok();
  read_steps(may_wait);
  if (const Status ended = ranks_->status(); !ended.ok()) return end_all(ended);
  if (!worked && scheduler_->num_waiting() > 0) {  // cannot be: every request fits an empty cache
    fail_running(resource_exhausted("the KV cache has no room for a request that should fit"));
    return true;
  }
  if (worked) {
    ++counts_.steps;
    counts_.step_seconds += seconds_between(start, EngineClock::now());
  }
  update_stats();
  return worked;
}

// Reads the oldest steps, until so many are left.
void Engine::read_steps(size_t may_wait) {
  while (enqueued_.size() > may_wait) {
    if (const Status read = catch_out_of_memory([&] { return read_step(); }); !read.ok()) fail_running(read);
  }
}

// Asks for drafts of the sequences that decode. A draft follows a token that is known, so all steps are read before. But first it is found out
// whether that is worth the wait; if not, the next step overlaps the one that runs.
Status Engine::propose_drafts() {
  const bool verifies = std::any_of(enqueued_.begin(), enqueued_.end(), [](const EnqueuedStep& step) { return step.verifies; });
  if (!enqueued_.empty() && !verifies) {
    PROLOGUE_ASSIGN_OR_RETURN(const bool worth_it, ask_for_drafts(false));
    if (!worth_it) return {};
  }
  read_steps(0);
  return ask_for_drafts(true).status();
}

// Returns whether there are some; without all tokens, whether there would be.
Result<bool> Engine::ask_for_drafts(bool tokens_are_known) {
  Drafts& own = *drafts_;
  const int64_t most = draft_model_ != nullptr ? kMaxDraftedSeqs : options_.max_seqs;
  own.decoding.clear();
  own.sequences.clear();
  own.histories.clear();
  own.samples.clear();
  const int64_t room = scheduler_->room_for_drafts();
  if (room < 1) return false;
  scheduler_->decoding(own.decoding);
  for (ScheduledSequence* const each : own.decoding) {
    auto& sample = static_cast<Sample&>(*each);
    each->drafts.clear();
    DraftSequence sequence;
    sequence.max_drafts = std::min({options_.max_drafts, room, each->max_length - each->length() - 1});
    if (sequence.max_drafts < 1 || static_cast<int64_t>(own.sequences.size()) == most) continue;
    sequence.id = sample.id();
    sequence.tokens = each->tokens;
    sequence.num_prompt = sample.num_prompt;
    sequence.prediction = sample.active.request.prediction;
    sequence.sampling = sampling_of(sample, static_cast<int64_t>(each->tokens.size()));
    own.sequences.push_back(std::move(sequence));
    own.histories.push_back(&sample.draft_history);
    own.samples.push_back(&sample);
  }
  if (own.sequences.empty()) return false;
  const auto num_rows = static_cast<int64_t>(own.decoding.size());
  Result<bool> found = false;
  const auto propose = [&] { found = own.speculator.propose(own.sequences, own.histories, num_rows, tokens_are_known); };
  PROLOGUE_RETURN_IF_ERROR(call_back("the proposer", propose));
  if (!found.ok()) return found;
  for (size_t s = 0; s < own.sequences.size(); ++s) {
    Sample& sample = *own.samples[s];
    for (const int32_t token : own.sequences[s].drafts) {
      if (token >= 0 && token < config().vocab_size) continue;
      return invalid_argument("a proposer has the draft ", token, ": the vocabulary has ids 0 to ", config().vocab_size - 1);
    }
    sample.drafts = std::move(own.sequences[s].drafts);
    sample.draft_evidence = own.sequences[s].evidence;
  }
  return found;
}

Status Engine::enqueue(const StepPlan& plan, EngineClock::time_point begin) {
  PROLOGUE_RETURN_IF_ERROR(runner_->copy_pages(cache_->copies()));
  cache_->clear_copies();
  EnqueuedStep step;
  step.begin = begin;
  int64_t top_logprobs = -1, max_seq_len = 0;
  step.sequences.reserve(plan.sequences.size());
  step.rows.reserve(plan.rows.size());
  for (const PlannedSequence& planned : plan.sequences) {
    auto& sample = static_cast<Sample&>(*planned.sequence);
    max_seq_len = std::max(max_seq_len, planned.first + planned.count);
    step.sequences.push_back({active_.at(sample.active.id), &sample, planned.first + planned.count,
                              static_cast<size_t>(planned.first_row), static_cast<size_t>(planned.num_rows), planned.verifies});
    step.verifies = step.verifies || planned.verifies;
    step.only_decodes = step.only_decodes && planned.count == (planned.verifies ? planned.num_rows : 1);
  }
  for (ScheduledSequence* const sequence : plan.rows) {
    auto& sample = static_cast<Sample&>(*sequence);
    top_logprobs = std::max(top_logprobs, sample.active.request.num_logprobs);
    step.rows.push_back(&sample);
  }
  enqueued_.push_back(std::move(step));
  const auto run = [&]() -> Status {
    if (plan.continues) return runner_->enqueue_next(max_seq_len, top_logprobs);
    PROLOGUE_RETURN_IF_ERROR(fill_batch(plan));
    return runner_->enqueue(batch_, top_logprobs);
  };
  const int64_t num_replayed = runner_->front().num_replayed();
  const Status status = catch_out_of_memory(run);
  enqueued_.back().is_typical = !options_.cuda_graphs || runner_->front().num_replayed() > num_replayed;
  if (!status.ok()) enqueued_.pop_back();
  return status;
}

// Begins the first step of a sample, which starts with so many tokens from the cache.
void Engine::begin(Sample& sample, int64_t cached_tokens) {
  if (std::exchange(sample.begun, true)) return;
  sample.first_step = EngineClock::now();
  sample.completion.cached_tokens = cached_tokens;
  counts_.cached_tokens += cached_tokens;
  counts_.prompt_tokens += sample.num_prompt;
  leave_queue(sample.active);
}

void Engine::leave_queue(Active& active) {
  if (!std::exchange(active.queued, false)) return;
  const std::lock_guard lock(inbox_);
  --num_queued_;
}

Status Engine::fill_batch(const StepPlan& plan) {
  batch_.clear();
  for (const PlannedSequence& planned : plan.sequences) {
    auto& sample = static_cast<Sample&>(*planned.sequence);
    begin(sample, planned.first);
    constexpr int32_t kUnknown = 0;
    const int32_t* tokens = planned.token_is_known ? sample.tokens.data() + planned.first : &kUnknown;
    if (planned.verifies) {
      std::vector<int32_t>& verified = drafts_->tokens;
      verified.assign(1, sample.tokens.back());
      verified.insert(verified.end(), sample.drafts.begin(), sample.drafts.end());
      tokens = verified.data();
    }
    const int64_t token = batch_.num_tokens() + planned.count - 1;
    PROLOGUE_RETURN_IF_ERROR(add_to_batch(sample.cache_id, tokens, planned.first, planned.count,
                                          planned.verifies ? planned.num_rows : std::min<int64_t>(planned.num_rows, 1),
                                          sample.active.rope, *sample.rope_set));
    if (!planned.token_is_known) batch_.set_token_from(token, planned.from_row);
    for (int64_t r = 1; r < planned.num_rows && !planned.verifies; ++r) batch_.add_logit_row(token);
  }
  for (const PlannedSequence& planned : plan.sequences) {
    for (int64_t i = 0; i < planned.num_rows; ++i) {
      const int64_t row = planned.first_row + i;
      auto& sample = static_cast<Sample&>(*plan.rows[static_cast<size_t>(row)]);
      begin(sample, sample.num_prompt);  // one that starts from the prompt of another
      const int64_t position = planned.first + (planned.verifies ? i + 1 : planned.count);
      PROLOGUE_RETURN_IF_ERROR(set_sampling(row, sample, position, planned.verifies ? static_cast<int32_t>(i) + 1 : 0));
    }
  }
  return {};
}

// Adds the tokens [first, first + count) of a sequence.
Status Engine::add_to_batch(SequenceId id, const int32_t* tokens, int64_t first, int64_t count, int64_t num_rows,
                            const RopePositions& rope_positions, const RopeSet& set) {
  std::array<const std::vector<int32_t>*, kMaxLayerGroups> pages = {};
  for (int64_t g = 0; g < cache_->num_groups(); ++g) {
    PROLOGUE_ASSIGN_OR_RETURN(pages[static_cast<size_t>(g)], cache_->pages(id, g));
  }
  const int64_t begin = batch_.num_tokens();
  batch_.add_sequence_of_groups(tokens, count, first, pages.data(), cache_->page_size(), num_rows);
  if (rope_positions.positions.empty() && set.first_row == 0) return {};
  for (int64_t axis = 0; axis < model().num_position_axes; ++axis) {
    for (int64_t i = 0; i < count; ++i) {
      batch_.set_position(begin + i, axis, static_cast<int32_t>(set.first_row + rope_positions.position(axis, first + i)));
    }
  }
  return {};
}

// Says how the token at `position` is sampled, but for counts and biases.
SamplingRow Engine::sampling_of(const Sample& sample, int64_t position) const {
  const SamplingOptions& options = sample.active.request.sampling;
  SamplingRow row;
  row.temperature = options.temperature;
  row.top_k = options.top_k;
  row.top_p = options.top_p;
  row.min_p = options.min_p;
  row.seed = options.seed + static_cast<uint64_t>(sample.number);
  row.position = position;
  row.repetition_penalty = options.repetition_penalty;
  row.presence_penalty = options.presence_penalty;
  row.frequency_penalty = options.frequency_penalty;
  return row;
}

Status Engine::set_sampling(int64_t index, Sample& sample, int64_t position, int32_t chain) {
  const SamplingOptions& options = sample.active.request.sampling;
  SamplingRow row = sampling_of(sample, position);
  row.chain = chain;
  if (!has_penalties(options) && options.logit_bias.empty()) {
    batch_.set_sampling(index, row);
    return {};
  }
  if (sample.adjustments.empty()) PROLOGUE_RETURN_IF_ERROR(make_adjustments(sample));
  for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
    const Buffer& adjustments = sample.adjustments[static_cast<size_t>(rank)];
    if (has_penalties(options)) row.counts = adjustments.as<int32_t>();
    if (!options.logit_bias.empty()) row.bias = adjustments.as<float>() + config().vocab_size;
    if (rank == 0) {
      batch_.set_sampling(index, row);
    } else {
      batch_.set_sampling_arrays(index, rank, row.counts, row.bias);
    }
  }
  return {};
}

Status Engine::make_adjustments(Sample& sample) {
  const int64_t vocab = config().vocab_size;
  if (!free_adjustments_.empty()) {
    sample.adjustments = std::move(free_adjustments_.back());
    free_adjustments_.pop_back();
  } else {
    sample.adjustments.resize(static_cast<size_t>(ranks_->size()));
  }
  std::vector<int32_t> counts(static_cast<size_t>(vocab), 0);
  std::vector<float> biases(static_cast<size_t>(vocab), 0.0f);
  for (const int32_t token : sample.active.request.prompt) counts[static_cast<size_t>(token)] = 1;
  for (const auto& [token, bias] : sample.active.request.sampling.logit_bias) biases[static_cast<size_t>(token)] = bias;
  return ranks_->run([&](int64_t rank) -> Status {
    Buffer& own = sample.adjustments[static_cast<size_t>(rank)];
    const Execution& execution = ranks_->execution(rank);
    if (own.data() == nullptr) {
      PROLOGUE_ASSIGN_OR_RETURN(own, Buffer::allocate(execution.device, vocab * 8));
    }
    PROLOGUE_RETURN_IF_ERROR(copy_to_device(own.data(), counts.data(), vocab * 4, execution));
    return copy_to_device(own.as<float>() + vocab, biases.data(), vocab * 4, execution);
  });
}

Status Engine::read_step() {
  EnqueuedStep step = std::move(enqueued_.front());
  enqueued_.erase(enqueued_.begin());
  const EngineClock::time_point start = EngineClock::now();
  PROLOGUE_ASSIGN_OR_RETURN(const StepResults results, runner_->read());
  counts_.wait_seconds += seconds_between(start, EngineClock::now());
  process(step, results);
  note_cost(step);
  return {};
}

// A step that overlaps the one before it takes from the end of that to its own.
void Engine::note_cost(const EnqueuedStep& step) {
  const EngineClock::time_point begin = std::max(step.begin, last_read_);
  last_read_ = EngineClock::now();
  if (drafts_ == nullptr) return;
  // The first step without drafts after one that has some overlaps nothing.
  const bool is_alone = std::exchange(drafts_->verified_last, step.verifies) && !step.verifies;
  if (!step.only_decodes || !step.is_typical || (is_alone && options_.overlap)) return;
  drafts_->speculator.costs().add(static_cast<int64_t>(step.rows.size()), step.verifies, seconds_between(begin, last_read_));
}

void Engine::process(EnqueuedStep& step, const StepResults& results) {
  const bool named = std::any_of(results.seq_faults.begin(), results.seq_faults.end(), [](uint8_t code) { return code != 0; });
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (results.fault.code != FaultCode::none && !named) {  // a fault that no token has: nobody knows whose it is
      finish_request(*step.sequences[i].active, FinishReason::error,
                     device_error("a step failed: ", fault_code_name(results.fault.code)));
    } else {
      process_sequence(step, i, results);
    }
  }
}

void Engine::process_sequence(const EnqueuedStep& step, size_t index, const StepResults& results) {
  const EnqueuedSequence& sequence = step.sequences[index];
  Sample& sample = *sequence.sample;
  if (const auto code = static_cast<FaultCode>(results.seq_faults[index]); code != FaultCode::none) {
    finish_request(*sequence.active, FinishReason::error,
                   device_error("a token of this request was at fault: ", fault_code_name(code)));
    return;
  }
  const Status status = catch_out_of_memory([&]() -> Status {
    // The prompt is shared first, since the sample may end here. What led to logits that are not numbers is not shared.
    const auto* const faults = results.row_faults.data() + sequence.first_row;
    const bool sound = std::all_of(faults, faults + sequence.num_rows, [](uint8_t code) { return code == 0; });
    if (sound && !sample.ended) PROLOGUE_RETURN_IF_ERROR(scheduler_->share(sample, sequence.num_computed));
    if (sequence.num_rows == 0 && !sample.ended) deliver(sample, {}, 0, false);  // the prompt goes on
    if (sequence.verifies) return take_verified(sequence, results);
    for (size_t r = sequence.first_row; r < sequence.first_row + sequence.num_rows; ++r) {
      if (!step.rows[r]->ended) take_token(*step.rows[r], r, results);
    }
    return {};
  });
  if (!status.ok()) finish_request(*sequence.active, FinishReason::error, status);
}

// Takes the sampled tokens as long as the drafts before them are accepted: a row is sampled as if its draft were the text.
Status Engine::take_verified(const EnqueuedSequence& sequence, const StepResults& results) {
  Sample& sample = *sequence.sample;
  if (sample.ended) return {};
  const auto num_drafts = static_cast<int64_t>(sample.drafts.size());
  int64_t accepted = 0;
  while (accepted < num_drafts &&
         results.tokens[sequence.first_row + static_cast<size_t>(accepted)] == sample.drafts[static_cast<size_t>(accepted)]) {
    ++accepted;
  }
  drafts_->speculator.add(sample.draft_history, sample.draft_evidence, num_drafts, accepted);
  sample.completion.draft_tokens += num_drafts;
  counts_.draft_tokens += num_drafts;
  for (int64_t i = 0; i <= accepted && !sample.ended; ++i) {
    if (i < accepted)
      ++sample.completion.accepted_tokens, ++counts_.accepted_tokens;  // drafts after the end of the text do not count
    take_token(sample, sequence.first_row + static_cast<size_t>(i), results);
  }
  return sample.ended ? Status() : scheduler_->end_drafts(sample);
}

void Engine::take_token(Sample& sample, size_t row, const StepResults& results) {
  if (const auto code = static_cast<FaultCode>(results.row_faults[row]); code != FaultCode::none) {
    finish(sample, FinishReason::error, device_error("the model's logits for this request are not numbers"));
    return;
  }
  const int32_t token = results.tokens[row];
  const Request& request = sample.active.request;
  Completion& completion = sample.completion;
  const EngineClock::time_point now = EngineClock::now();
  scheduler_->take_token(sample, token);
  ++counts_.generated_tokens;
  if (static_cast<int64_t>(sample.tokens.size()) == sample.num_prompt + 1) {
    sample.first_token = now;
    completion.queue_seconds = seconds_between(sample.active.submitted, sample.first_step);
    completion.prefill_seconds = seconds_between(sample.first_step, now);
  }
  completion.decode_seconds = seconds_between(sample.first_token, now);

  const bool is_stop_token = std::binary_search(request.stop_tokens.begin(), request.stop_tokens.end(), token);
  if (!request.ignore_eos && (is_stop_token || tokenizer_->is_end_of_generation(token))) return finish(sample, FinishReason::end);
  completion.tokens.push_back(token);
  if (request.num_logprobs >= 0) {
    const size_t width = static_cast<size_t>(results.top) + 1;
    TokenLogprobs logprobs;
    logprobs.logprob = results.logprobs[row * width];
    for (size_t i = 1; i <= static_cast<size_t>(request.num_logprobs); ++i) {
      if (results.logprob_ids[row * width + i] < 0) break;
      logprobs.top.emplace_back(results.logprob_ids[row * width + i], results.logprobs[row * width + i]);
    }
    completion.logprobs.push_back(std::move(logprobs));
  }
  const std::string text = sample.text.push(token);
  completion.text += text;
  const bool is_last = static_cast<int64_t>(sample.tokens.size()) >= sample.max_length;
  if (sample.text.stopped()) {
    deliver(sample, text, completion.tokens.size(), false);
    return finish(sample, FinishReason::stop);
  }
  deliver(sample, text, completion.tokens.size(), false);
  if (sample.ended || !is_last) return;
  const bool all_generated = static_cast<int64_t>(completion.tokens.size()) >= request.max_tokens;
  finish(sample, all_generated ? FinishReason::length : FinishReason::context);
}

// Ends a sample. The rest of its text comes with its last output.
void Engine::finish(Sample& sample, FinishReason reason, Status status) {
  if (sample.ended) return;
  sample.ended = true;
  Active& active = sample.active;
  Completion& completion = sample.completion;
  completion.finish_reason = reason;
  completion.status = std::move(status);
  completion.num_preemptions = sample.num_preemptions;
  std::string rest;
  (void)catch_out_of_memory([&]() -> Status {
    if (!sample.text.stopped()) rest = sample.text.finish();
    completion.text += rest;
    return {};
  });
  if (sample.text.stopped() && reason != FinishReason::error) completion.finish_reason = FinishReason::stop;
  scheduler_->remove(sample);
  if (drafts_ != nullptr) (void)call_back("the proposer", [&] { drafts_->speculator.forget(sample.id()); });
  (void)catch_out_of_memory([&]() -> Status {
    if (!sample.adjustments.empty()) free_adjustments_.push_back(std::move(sample.adjustments));
    sample.adjustments.clear();
    return {};
  });
  ++counts_.finished[static_cast<size_t>(completion.finish_reason)];
  deliver(sample, rest, completion.tokens.size(), true);
  // Other samples may wait for this one's prompt.
  const std::vector<ScheduledSequence*> siblings = std::move(sample.siblings);
  for (ScheduledSequence* const sibling : siblings) finish(static_cast<Sample&>(*sibling), reason, completion.status);
  if (++active.num_ended < static_cast<int64_t>(active.samples.size())) return;
  leave_queue(active);
  active_.erase(active.id);  // may be the last reference
}

void Engine::finish_request(Active& active, FinishReason reason, const Status& status) {
  const auto found = active_.find(active.id);
  const std::shared_ptr<Active> keep = found != active_.end() ? found->second : nullptr;
  for (const auto& sample : active.samples) finish(*sample, reason, status);
}

// After an error nobody knows what became of the sequences that ran. Those that wait have lost nothing, but if none ran, it is the first of
// them that cannot start.
void Engine::fail_running(const Status& status) {
  if (scheduler_->num_running() == 0 && scheduler_->num_waiting() > 0) {
    finish_request(static_cast<Sample&>(scheduler_->next_waiting()).active, FinishReason::error, status);
  }
  const auto is_running = [](const auto& sample) { return sample->state == ScheduledSequence::State::running; };
  for (;;) {  // without a list: there may be no memory for one
    const auto found = std::find_if(active_.begin(), active_.end(), [&](const auto& each) {
      return std::any_of(each.second->samples.begin(), each.second->samples.end(), is_running);
    });
    if (found == active_.end()) break;
    finish_request(*found->second, FinishReason::error, status);
  }
  cache_->clear_copies();
  scheduler_->restart();
}

// After the end of the ranks' group nothing can run any more.
Status Engine::end_all(const Status& status) {
  enqueued_.clear();
  while (!active_.empty()) finish_request(*active_.begin()->second, FinishReason::error, status);
  update_stats();
  return status;
}

// Calls the request's callback. `num_tokens`: of the completion, so far.
void Engine::deliver(Sample& sample, std::string_view text, size_t num_tokens, bool ended) {
  Active& active = sample.active;
  if (!active.on_output) return;
  const Completion& completion = sample.completion;
  const auto first = static_cast<size_t>(sample.num_shown);
  Output output;
  output.request = active.id;
  output.sample = sample.number;
  output.tokens = std::span(completion.tokens).subspan(first, num_tokens - first);
  output.text = text;
  if (!completion.logprobs.empty()) output.logprobs = std::span(completion.logprobs).subspan(first, num_tokens - first);
  output.prompt_tokens = sample.num_prompt;
  output.prefilled = std::min(sample.num_prompt, sample.num_computed);
  output.completion = ended ? &completion : nullptr;
  sample.num_shown = static_cast<int64_t>(num_tokens);
  const Status status = call_back("the callback of this request", [&] { active.on_output(output); });
  if (status.ok()) return;
  active.on_output = nullptr;
  finish_request(active, FinishReason::error, status);
}

// Without memory the cache's statistics stay those of an earlier step.
void Engine::update_stats() {
  KvCacheStats kv;
  const bool known = catch_out_of_memory([&]() -> Status {
                       kv = cache_->stats();
                       return {};
                     }).ok();
  counts_.waiting = scheduler_->num_waiting();
  counts_.running = scheduler_->num_running();
  counts_.preemptions = scheduler_->num_preemptions();
  counts_.replayed_steps = runner_->front().num_replayed();
  counts_.captured_graphs = runner_->front().num_captured();
  const std::lock_guard lock(inbox_);
  std::swap(kv, known ? kv : stats_.kv);
  stats_ = counts_;
  stats_.kv = std::move(kv);
}

}  // namespace prologue
