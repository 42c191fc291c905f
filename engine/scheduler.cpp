#include <algorithm>

#include <prologue/engine/scheduler.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

void Scheduler::add(ScheduledSequence& sequence) {
  waiting_.push_back(&sequence);
  sequence.state = ScheduledSequence::State::waiting;
}

void Scheduler::remove(ScheduledSequence& sequence) {
  if (sequence.state == ScheduledSequence::State::waiting) std::erase(waiting_, &sequence);
  if (sequence.state == ScheduledSequence::State::running) stop(sequence);
  give_back(sequence);
  sequence.state = ScheduledSequence::State::outside;
}

// It gets a seat.
void Scheduler::run(ScheduledSequence& sequence) {
  running_.push_back(&sequence);
  sequence.state = ScheduledSequence::State::running;
  ++sequence.group->num_running;
}

void Scheduler::stop(ScheduledSequence& sequence) {
  std::erase(running_, &sequence);
  --sequence.group->num_running;
}

// Finds the group that is next: of the groups with the fewest running sequences, the first in the queue.
Scheduler::Waiting::const_iterator Scheduler::find_next() const {
  auto next = waiting_.begin();
  for (auto it = waiting_.begin(); it != waiting_.end() && (*next)->group->num_running > 0; ++it) {
    if ((*it)->group->num_running < (*next)->group->num_running) next = it;
  }
  return next;
}

// Frees a seat for a group that has none, in the group that has the most. Called before anything is planned: a step has all sequences of
// its plan.
void Scheduler::make_way() {
  if (num_running() < limits_.max_seqs || waiting_.empty()) return;
  if (const ScheduledSequence& next = next_waiting(); next.group->num_running > 0 || next.num_pending > 0) return;
  const auto fewer = [](const ScheduledSequence* a, const ScheduledSequence* b) {
    return a->group->num_running < b->group->num_running;
  };
  ScheduledSequence& youngest = **std::max_element(running_.rbegin(), running_.rend(), fewer);
  if (youngest.group->num_running > 1) preempt(youngest);
}

// Gives back what a sequence has while it runs.
void Scheduler::give_back(ScheduledSequence& sequence) {
  if (sequence.cache_id != ScheduledSequence::kNoSequence) (void)cache_->free(sequence.cache_id);
  sequence.cache_id = ScheduledSequence::kNoSequence;
  if (sequence.rope_set != nullptr) rope_sets_->release(*sequence.rope_set);
  sequence.rope_set = nullptr;
}

void Scheduler::preempt(ScheduledSequence& sequence) {
  waiting_.push_front(&sequence);
  sequence.state = ScheduledSequence::State::waiting;
  stop(sequence);
  give_back(sequence);
  sequence.num_computed = 0;
  sequence.drafts.clear();
  ++sequence.num_preemptions;
  ++num_preemptions_;
}

void Scheduler::take_token(ScheduledSequence& sequence, int32_t token) {
  --sequence.num_pending;
  sequence.tokens.push_back(token);
}

Status Scheduler::end_drafts(ScheduledSequence& sequence) {
  sequence.drafts.clear();
  sequence.num_pending = 0;
  if (sequence.cache_id == ScheduledSequence::kNoSequence) return {};
  sequence.num_computed = static_cast<int64_t>(sequence.tokens.size()) - 1;
  return cache_->truncate(sequence.cache_id, sequence.num_computed);
}

Status Scheduler::share(ScheduledSequence& sequence, int64_t num_tokens) {
  if (sequence.cache_id == ScheduledSequence::kNoSequence) return {};
  const int64_t known = std::min({num_tokens, sequence.num_computed, static_cast<int64_t>(sequence.tokens.size())});
  PROLOGUE_RETURN_IF_ERROR(cache_->insert(sequence.cache_id, {sequence.tokens.data(), known}));
  return cache_->release_out_of_window(sequence.cache_id, known);
}

// Whether there are pages for every running sequence to continue for a while.
bool Scheduler::has_plenty() const {
  const int64_t plenty = num_running() * (cache_->pages_for(kTokensAhead) + 1);
  for (int64_t g = 0; g < cache_->num_groups(); ++g) {
    if (cache_->num_available_pages(g) <= plenty) return false;
  }
  return true;
}

// Makes the sequence `num_tokens` longer. If there are no pages, younger sequences are preempted until there are. False: it was itself the
// youngest, and is preempted.
Result<bool> Scheduler::make_room(ScheduledSequence& sequence, int64_t num_tokens) {
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t num_reserved, cache_->num_reserved(sequence.cache_id));
  const size_t num_copies = cache_->copies().size();
  const int64_t length = sequence.num_computed + num_tokens;
  if (length > num_reserved && has_plenty()) {
    PROLOGUE_RETURN_IF_ERROR(cache_->reserve(sequence.cache_id, std::min(length + kTokensAhead, sequence.max_length)));
  }
  for (;;) {
    const Status status = cache_->append(sequence.cache_id, num_tokens);
    if (status.ok()) break;
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t room, cache_->room(sequence.cache_id));
    if (status.code() != StatusCode::resource_exhausted || room >= num_tokens) return status;  // what is missing is host memory
    ScheduledSequence* const youngest = running_.back();
    preempt(*youngest);
    if (youngest == &sequence) return false;
  }
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t reserved_now, cache_->num_reserved(sequence.cache_id));
  tables_changed_ = tables_changed_ || reserved_now != num_reserved || cache_->copies().size() != num_copies;
  return true;
}

Status Scheduler::add_chunk(StepPlan& plan, ScheduledSequence& sequence, int64_t count) {
  PlannedSequence planned{&sequence, sequence.num_computed, count};
  planned.token_is_known = sequence.num_pending == 0;
  if (count == 1 && sequence.sampled_by == plan_number_ - 1) planned.from_row = sequence.row;
  const bool samples = sequence.num_computed + count == sequence.length();
  planned.verifies = !sequence.drafts.empty();
  sequence.num_computed += count;
  budget_ -= count;
  if (planned.verifies) {
    planned.first_row = static_cast<int64_t>(plan.rows.size());
    planned.num_rows = count;
    plan.rows.insert(plan.rows.end(), static_cast<size_t>(count), &sequence);
  } else if (samples) {
    planned.first_row = static_cast<int64_t>(plan.rows.size());
    plan.rows.push_back(&sequence);
    PROLOGUE_RETURN_IF_ERROR(start_siblings(plan, sequence));
    planned.num_rows = static_cast<int64_t>(plan.rows.size()) - planned.first_row;
  }
  plan.sequences.push_back(planned);
  return {};
}

// The prompt is computed by this step: the other samples go on from there, which costs less than to begin later. Where others wait for the
// seats, a group takes at most half of them so. The first sample without a seat queues up, and the rest wait for it.
Status Scheduler::start_siblings(StepPlan& plan, ScheduledSequence& sequence) {
  std::vector<ScheduledSequence*> siblings = std::move(sequence.siblings);
  sequence.siblings.clear();
  const auto has_seat = [&] {
    return num_running() + num_waiting() < limits_.max_seqs ||
           (num_running() < limits_.max_seqs && sequence.group->num_running < limits_.max_seqs / 2);
  };
  size_t started = 0;
  for (; started < siblings.size() && has_seat(); ++started) {
    ScheduledSequence& sibling = *siblings[started];
    sibling.tokens = sequence.tokens;
    PROLOGUE_ASSIGN_OR_RETURN(sibling.cache_id, cache_->fork(sequence.cache_id));
    sibling.num_computed = sequence.num_computed;
    sibling.rope_set = sequence.rope_set;
    rope_sets_->share(*sibling.rope_set);
    run(sibling);
    plan.rows.push_back(&sibling);
  }
  if (started == siblings.size()) return {};
  ScheduledSequence& next = *siblings[started];
  next.tokens = sequence.tokens;
  next.siblings.assign(siblings.begin() + static_cast<std::ptrdiff_t>(started) + 1, siblings.end());
  add(next);
  return {};
}

// Whether its prompt is computed, and it needs a further step.
bool Scheduler::decodes(const ScheduledSequence& sequence) {
  return sequence.length() < sequence.max_length && sequence.length() - sequence.num_computed == 1;
}

void Scheduler::decoding(std::vector<ScheduledSequence*>& sequences) const {
  for (ScheduledSequence* const each : running_) {
    // Siblings start in a step that samples a single token.
    if (decodes(*each) && each->siblings.empty()) sequences.push_back(each);
  }
}

int64_t Scheduler::room_for_drafts() const {
  if (!has_plenty()) return 0;
  const auto reads = [](const ScheduledSequence* each) { return each->length() - each->num_computed > 1; };
  const bool prompts_wait = num_waiting() > 0 || std::any_of(running_.begin(), running_.end(), reads);
  const int64_t left = limits_.max_step_tokens - num_running();
  return std::min(limits_.max_drafts, prompts_wait ? left / 2 : left);
}

// Plans one token of every running sequence whose prompt is computed, and its drafts. Those never take a page that another sequence needs.
Status Scheduler::plan_decodes(StepPlan& plan) {
  for (size_t i = 0; i < running_.size(); ++i) {
    ScheduledSequence& sequence = *running_[i];
    if (!decodes(sequence)) continue;
    const int64_t most = std::min(draft_budget_, sequence.max_length - sequence.length() - 1);
    sequence.drafts.resize(std::min(sequence.drafts.size(), static_cast<size_t>(most)));
    const auto num_drafts = static_cast<int64_t>(sequence.drafts.size());
    PROLOGUE_ASSIGN_OR_RETURN(const bool has_room, make_room(sequence, 1 + num_drafts));
    if (!has_room) continue;
    draft_budget_ -= num_drafts;
    PROLOGUE_RETURN_IF_ERROR(add_chunk(plan, sequence, 1 + num_drafts));
  }
  return {};
}

// Returns true if the sequence runs, with pages for all of its tokens; of layers with a window, for the next one.
Result<bool> Scheduler::admit(ScheduledSequence& sequence) {
  if (num_running() >= limits_.max_seqs || sequence.num_pending > 0) return false;
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  const auto attempt = [&]() -> Result<bool> {
    sequence.rope_set = rope_sets_->acquire(sequence.rope_length, sequence.num_positions);
    if (sequence.rope_set == nullptr) return false;
    PROLOGUE_ASSIGN_OR_RETURN(sequence.cache_id, cache_->add_sequence(sequence.tokens, length - 1, sequence.cache_key));
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t hit, cache_->length(sequence.cache_id));
    const int64_t num_missing = cache_->pages_for(length) - cache_->pages_for(hit);
    for (int64_t g = 0; g < cache_->num_groups(); ++g) {
      // The sequences that run need room for their next tokens, so that they are not preempted at once.
      const int64_t needed = (cache_->window(g) == 0 ? num_missing : 1) + num_running();
      if (needed > cache_->num_available_pages(g)) return false;
    }
    PROLOGUE_RETURN_IF_ERROR(cache_->reserve_without_window(sequence.cache_id, length));
    sequence.num_computed = hit;
    return true;
  };
  Result<bool> admitted = catch_out_of_memory(attempt);
  if (!admitted.ok() || !*admitted) give_back(sequence);
  return admitted;
}

// Plans a chunk of a prompt. Returns false if there is no page for it in a layer group with a window. Then it waits until others give
// theirs back, but the first sequence of a step has one: younger ones, which the step does not have, are preempted.
Result<bool> Scheduler::plan_prompt(StepPlan& plan, ScheduledSequence& sequence) {
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t room, cache_->room(sequence.cache_id));
  int64_t count = std::min({budget_, sequence.length() - sequence.num_computed, room});
  if (count > 0) {
    PROLOGUE_RETURN_IF_ERROR(cache_->append(sequence.cache_id, count));
  } else {
    if (!plan.empty()) return false;
    PROLOGUE_ASSIGN_OR_RETURN(const bool has_room, make_room(sequence, count = 1));
    if (!has_room) return false;
  }
  tables_changed_ = true;
  PROLOGUE_RETURN_IF_ERROR(add_chunk(plan, sequence, count));
  return true;
}

// Prompts, and sequences that were preempted: first those that have begun, then the queue.
Status Scheduler::plan_prompts(StepPlan& plan) {
  bool all_go_on = true;
  const size_t num_running = running_.size();  // siblings that start below are not looked at
  for (size_t i = 0; i < std::min(num_running, running_.size()) && budget_ > 0; ++i) {
    ScheduledSequence& sequence = *running_[i];
    if (sequence.length() - sequence.num_computed <= 1) continue;
    PROLOGUE_ASSIGN_OR_RETURN(const bool goes_on, plan_prompt(plan, sequence));
    all_go_on = all_go_on && goes_on;
  }
  while (all_go_on && !waiting_.empty() && budget_ > 0) {
    const auto next = find_next();
    ScheduledSequence& sequence = **next;
    PROLOGUE_ASSIGN_OR_RETURN(const bool admitted, admit(sequence));
    if (!admitted) break;
    run(sequence);
    waiting_.erase(next);
    PROLOGUE_ASSIGN_OR_RETURN(all_go_on, plan_prompt(plan, sequence));
  }
  return {};
}

// Puts sequences of one token first (decoding rows take the kernels for them), then those with drafts, and numbers the rows in that order.
void Scheduler::finish(StepPlan& plan) {
  const auto others = std::stable_partition(plan.sequences.begin(), plan.sequences.end(),
                                            [](const PlannedSequence& each) { return each.count == 1; });
  std::stable_partition(others, plan.sequences.end(), [](const PlannedSequence& each) { return each.verifies; });
  const auto num_sequences = static_cast<int64_t>(plan.sequences.size());
  std::vector<ScheduledSequence*> rows;
  rows.reserve(plan.rows.size());
  plan.continues = !tables_changed_ && num_sequences == last_rows_;
  bool decodes_only = true;
  for (int64_t i = 0; i < num_sequences; ++i) {
    PlannedSequence& each = plan.sequences[static_cast<size_t>(i)];
    plan.continues = plan.continues && each.from_row == i && each.first >= each.sequence->steady_from;
    decodes_only = decodes_only && each.count == 1 && each.num_rows == 1;
    const auto first = plan.rows.begin() + each.first_row;
    each.first_row = static_cast<int64_t>(rows.size());
    rows.insert(rows.end(), first, first + each.num_rows);
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r]->row = static_cast<int32_t>(r);
    rows[r]->sampled_by = plan_number_;
    ++rows[r]->num_pending;
  }
  plan.rows = std::move(rows);
  last_rows_ = decodes_only ? num_sequences : -1;
}

Status Scheduler::plan(StepPlan& plan) {
  return catch_out_of_memory([&]() -> Status {
    plan = {};
    ++plan_number_;
    tables_changed_ = false;
    budget_ = limits_.max_step_tokens;
    draft_budget_ = room_for_drafts();
    make_way();
    PROLOGUE_RETURN_IF_ERROR(plan_decodes(plan));
    PROLOGUE_RETURN_IF_ERROR(plan_prompts(plan));
    finish(plan);
    return {};
  });
}

}  // namespace prologue
