// Decides how many of a proposer's drafts a step verifies: as many as make the most tokens a second, by what steps have cost and by how many
// drafts were accepted. So speculation turns itself off where it does not pay: under load, or in a text that nobody can guess.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <prologue/engine/speculation/proposer.h>

namespace prologue {

// Holds how many drafts were accepted, by evidence. Old ones count less and less.
class DraftCounts {
 public:
  // `kept`: of the older counts, when new ones are added.
  explicit DraftCounts(double kept) : kept_(kept) {}
  void add(int32_t evidence, int64_t num_drafts, int64_t num_accepted);
  // Returns the probability that a draft is accepted if those before it are; `expected` is what was thought before anything was counted, and
  // has the weight of `weight` drafts.
  double acceptance(int32_t evidence, double expected, double weight) const;

 private:
  double kept_;
  // Drafts that were compared with a sampled token: those after the first wrong one are not.
  std::array<double, kDraftEvidence> tried_ = {}, accepted_ = {};
};

// Holds what is known of the drafts of one sequence.
class DraftHistory {
 public:
  void add(int32_t evidence, int64_t num_drafts, int64_t num_accepted);
  // There were drafts, and none was verified. After so many times that, and each time that did not help after twice as many, some are tried
  // again.
  void skip(int32_t evidence) { ++pauses_[static_cast<size_t>(evidence)].num_skipped; }
  bool is_trial(int32_t evidence) const;
  const DraftCounts& counts() const { return counts_; }

 private:
  struct Pause {
    int64_t num_skipped = 0, patience = 16;
  };
  DraftCounts counts_{0.9};
  std::array<Pause, kDraftEvidence> pauses_ = {};
};

// Knows how long steps take, by their rows. The unit of time is the caller's.
class StepCosts {
 public:
  // `cost_of_row`: what a further row costs, as a part of the largest step that was measured, as long as nobody has measured it.
  explicit StepCosts(double cost_of_row) : cost_of_row_(cost_of_row) {}
  // A step of so many rows took so long. verifies: rows have drafts, so the host waits for the step before the next one.
  void add(int64_t num_rows, bool verifies, double seconds);
  // Returns an estimate, of a step with as many rows or a few more. It is 0 if no step was measured.
  double seconds(int64_t num_rows, bool verifies) const;
  // Returns whether such steps were measured not long ago.
  bool knows(int64_t num_rows, bool verifies) const;

 private:
  struct Cost {
    double seconds = 0.0;
    int64_t num_steps = 0;  // that were measured; the first ones load and capture, and are left out
    int64_t last = 0;       // the number of the last such step, of all
  };
  using Costs = std::array<Cost, 64>;  // by bucket of rows
  bool is_known(const Cost& cost) const;
  double between(const Costs& costs, int64_t num_rows) const;

  double cost_of_row_;
  std::array<Costs, 2> costs_;  // of steps that verify nothing, and of those that do
  int64_t num_steps_ = 0;
};

class Speculator {
 public:
  // max_drafts: of a step, all sequences together. all: as many are verified, whether they pay or not. cost_of_row: of StepCosts.
  Speculator(std::shared_ptr<Proposer> proposer, int64_t max_drafts, bool all, double cost_of_row)
      : proposer_(std::move(proposer)), max_drafts_(max_drafts), all_(all), costs_(cost_of_row) {}

  // Fills in the drafts of the sequences, and cuts those off that are not worth a row. Returns whether there are drafts. num_rows: of the step,
  // without drafts. histories: of the sequences, in the same order. tokens_are_known: false if a step is running that samples a token for
  // some of them. Then what is returned says whether it is worth the wait for these tokens.
  Result<bool> propose(std::span<DraftSequence> sequences, std::span<DraftHistory* const> histories, int64_t num_rows,
                       bool tokens_are_known);
  // So many drafts of a sequence were verified, and so many accepted.
  void add(DraftHistory& history, int32_t evidence, int64_t num_drafts, int64_t num_accepted);
  void forget(int64_t id) { proposer_->forget(id); }
  StepCosts& costs() { return costs_; }

 private:
  double acceptance(const DraftHistory& history, int32_t evidence) const;
  bool choose_depth(std::span<DraftSequence> sequences, std::span<DraftHistory* const> histories, int64_t num_rows);
  Status call(std::span<DraftSequence> sequences, std::span<DraftHistory* const> histories);
  Result<bool> choose_drafts(std::span<DraftSequence> sequences, std::span<DraftHistory* const> histories,
                             int64_t num_rows) const;

  std::shared_ptr<Proposer> proposer_;
  int64_t max_drafts_;
  bool all_;
  StepCosts costs_;
  DraftCounts counts_{0.99};    // of all sequences
  double draft_seconds_ = 0.0;  // for one more draft of each sequence, with a proposer that is not cheap; 0 = not known
  int64_t num_calls_ = 0;
  int64_t num_skipped_ = 0;  // decisions without drafts since the last call
};

}  // namespace prologue
