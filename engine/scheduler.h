// Decides what each step computes. Host bookkeeping only: it knows lengths, pages and limits, not the model.
//
//   * Sequences join and leave at every step. Groups of requests (engine/request.h) alternate: a free seat goes to the group with the
//     fewest running sequences, and among equals to the one that came first. So requests with one sample are served first come, first
//     served. If all seats are taken and a group that waits has none, the group with the most gives one up: its youngest sequence is
//     preempted. Samples of one prompt start together, in at most half of the seats while others wait.
//   * A step has one token of every sequence that is decoding, and its drafts, if it has some. What is left of the token budget goes to
//     prompts, in chunks.
//   * A sequence is admitted when there are pages for all tokens that it has so far, and rows of its frequencies in the rope tables
//     (engine/rope_sets.h). If pages run out later, the youngest sequence is preempted: it gives its pages back, waits at the head of the
//     queue, and computes them again.
//   * Of layers with a window, only the pages of a chunk of a prompt are needed at a time. Pages out of the window are given back once they
//     may be shared, between two plans: steps that are enqueued see them, and run before those that get them.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include <prologue/engine/request.h>
#include <prologue/engine/rope_sets.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kvcache/kv_cache.h>

namespace prologue {

// A decoding sequence that needs a page gets pages for so many tokens more while there are plenty: block tables change rarely then.
inline constexpr int64_t kTokensAhead = 64;

// Describes one sample of a request, as the scheduler sees it.
struct ScheduledSequence {
  std::vector<int32_t> tokens;  // known ones: the prompt, then generated ones
  int64_t max_length = 0;       // of prompt and generated tokens; a sequence of this length needs no further step
  uint64_t cache_key = 0;       // sequences with different keys have no pages in common
  int64_t rope_length = 0;      // its rope_length_class()
  int64_t num_positions = 0;    // its rope positions are below
  int64_t steady_from = 0;      // from this token on, each is one position further than the token before it
  RequestGroup* group = nullptr;
  // Tokens that may follow the known ones: the next plan has a row for each, if there is room. Set before a plan, for sequences of
  // decoding(); whoever reads the step calls take_token() for what was accepted and then end_drafts().
  std::vector<int32_t> drafts = {};
  std::vector<ScheduledSequence*> siblings =
      {};  // samples of the same prompt that start when it has been computed; till then without tokens

  // Only the scheduler uses this.
  enum class State { outside, waiting, running };
  State state = State::outside;
  int64_t num_pending = 0;   // tokens that an enqueued step samples, not known yet: 0 or 1, or with drafts one for each row
  int64_t num_computed = 0;  // tokens in the cache, those of enqueued steps included
  int64_t num_preemptions = 0;
  int32_t row = -1;         // of the sampled tokens of the last step that sampled for this sequence,
  int64_t sampled_by = -1;  // and the number of its plan
  SequenceId cache_id = kNoSequence;
  RopeSet* rope_set = nullptr;  // while it runs

  static constexpr SequenceId kNoSequence = -1;
  int64_t length() const { return static_cast<int64_t>(tokens.size()) + num_pending; }
};

struct SchedulerLimits {
  int64_t max_step_tokens = 0;  // at least max_seqs
  int64_t max_seqs = 0;
  int64_t max_drafts = 0;  // of a step, in rows of their own
};

// Names the tokens [first, first + count) of a sequence.
struct PlannedSequence {
  ScheduledSequence* sequence = nullptr;
  int64_t first = 0;
  int64_t count = 0;
  int64_t first_row = 0;       // rows of logits, all of the last token: one for each sample that starts or goes on here
  int64_t num_rows = 0;        // 0: the prompt goes on in a later step
  bool verifies = false;       // the tokens after the first one are the sequence's drafts, and each token has a row
  int32_t from_row = -1;       // not negative: the only token is the one that this row of the previous step samples
  bool token_is_known = true;  // to the host
};

struct StepPlan {
  std::vector<PlannedSequence> sequences;  // those of one token first, then those with drafts
  std::vector<ScheduledSequence*> rows;    // the sequences that get a token, by row of logits
  bool continues = false;  // it is the previous plan, one token and one position further, with the same block tables

  bool empty() const { return sequences.empty(); }
};

class Scheduler {
 public:
  // The cache and the sets must outlive the scheduler.
  Scheduler(KvCache& cache, RopeSets& rope_sets, const SchedulerLimits& limits)
      : cache_(&cache), rope_sets_(&rope_sets), limits_(limits) {}

  // Appends a sequence to the queue. It must stay valid until remove().
  void add(ScheduledSequence& sequence);
  // Takes a sequence out, running or waiting, and gives its pages back.
  void remove(ScheduledSequence& sequence);

  // Plans the next step, and counts it as enqueued: lengths, pages and rows are those after it. After an error (resource_exhausted: no
  // host memory) running sequences may have room in the cache that no step fills, and samples that should start may be in no list: the
  // caller removes the requests of all running ones.
  Status plan(StepPlan& plan);
  // Appends the sequences whose next step may have drafts: it has one token, and no sample of the same prompt waits for it.
  void decoding(std::vector<ScheduledSequence*>& sequences) const;
  // Returns how many drafts the next plan may have: none if pages are scarce, and while prompts wait at most half of the tokens that are left.
  int64_t room_for_drafts() const;
  // Called if the next plan does not continue the previous one (something else has run in between).
  void restart() { last_rows_ = -1; }

  // Called when the host has read the token that a step sampled for this sequence.
  void take_token(ScheduledSequence& sequence, int32_t token);
  // Called after that for a step with drafts of this sequence: the tokens of the drafts that were not accepted leave the cache.
  Status end_drafts(ScheduledSequence& sequence);
  // Called when the first `num_tokens` tokens of the sequence are computed and without fault: full pages may be shared, and those that no
  // later token sees are given back.
  Status share(ScheduledSequence& sequence, int64_t num_tokens);

  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  ScheduledSequence& next_waiting() const { return **find_next(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }

 private:
  using Waiting = std::deque<ScheduledSequence*>;
  Waiting::const_iterator find_next() const;
  void run(ScheduledSequence& sequence);
  void stop(ScheduledSequence& sequence);
  void make_way();
  bool has_plenty() const;
  void give_back(ScheduledSequence& sequence);
  Result<bool> make_room(ScheduledSequence& sequence, int64_t num_tokens);
  void preempt(ScheduledSequence& sequence);
  Result<bool> admit(ScheduledSequence& sequence);
  static bool decodes(const ScheduledSequence& sequence);
  Status plan_decodes(StepPlan& plan);
  Status plan_prompts(StepPlan& plan);
  Result<bool> plan_prompt(StepPlan& plan, ScheduledSequence& sequence);
  Status add_chunk(StepPlan& plan, ScheduledSequence& sequence, int64_t count);
  Status start_siblings(StepPlan& plan, ScheduledSequence& sequence);
  void finish(StepPlan& plan);

  KvCache* cache_;
  RopeSets* rope_sets_;
  SchedulerLimits limits_;
  Waiting waiting_;
  std::vector<ScheduledSequence*> running_;  // in the order of their admission
  int64_t num_preemptions_ = 0;
  int64_t plan_number_ = 0;
  int64_t budget_ = 0;          // tokens that the plan may still get
  int64_t draft_budget_ = 0;    // of them drafts
  bool tables_changed_ = true;  // by the plan
  int64_t last_rows_ = -1;      // rows of the previous plan, if that had decodes only
};

}  // namespace prologue
