// Decides how many of a proposer's drafts a step verifies: as many as make the most tokens a second, by what steps have cost and by how many
// drafts were accepted. So speculation turns itself off where it does not pay: under load, or in a text that nobody can guess.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <prologue/engine/speculation/proposer.h>

namespace prologue {

// Counts how many drafts of a sequence were accepted, by evidence. Old ones count less and less.
struct DraftHistory {
  struct Count {
    double tried = 0.0;     // drafts that were compared with a sampled token: those after the first wrong one are not
    double accepted = 0.0;  // of these
  };
  std::array<Count, kDraftEvidence> counts = {};

  // Returns the probability that a draft is accepted if those before it are.
  double acceptance(int32_t evidence) const;
  void add(int32_t evidence, int64_t num_drafts, int64_t num_accepted);
};

// Knows how long steps take, by their rows. The unit of time is the caller's.
class StepCosts {
 public:
  // `cost_of_row`: what a further row costs, of a step of one row, as long as nobody has measured it.
  explicit StepCosts(double cost_of_row) : cost_of_row_(cost_of_row) {}
  // A step of so many rows took so long. verifies: rows have drafts, so the host waits for the step before the next one.
  void add(int64_t num_rows, bool verifies, double seconds);
  // Returns an estimate. It is 0 if no step was measured.
  double seconds(int64_t num_rows, bool verifies) const;
  // Returns whether such steps were measured not long ago.
  bool knows(int64_t num_rows, bool verifies) const;

 private:
  struct Cost {
    double seconds = 0.0;
    int64_t num_steps = 0;  // that were measured; the first ones load and capture, and are left out
    int64_t last = 0;       // the number of the last such step, of all
  };
  using Costs = std::map<int64_t, Cost>;  // by bucket of rows
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

  // Fills in the drafts of the sequences, and cuts those off that are not worth a row. num_rows: of the step, without drafts. histories: of
  // the sequences, in the same order.
  Status propose(std::span<DraftSequence> sequences, std::span<const DraftHistory* const> histories, int64_t num_rows);
  bool is_cheap() const { return proposer_->is_cheap(); }
  void forget(int64_t id) { proposer_->forget(id); }
  StepCosts& costs() { return costs_; }

 private:
  std::shared_ptr<Proposer> proposer_;
  int64_t max_drafts_;
  bool all_;
  StepCosts costs_;
};

}  // namespace prologue
