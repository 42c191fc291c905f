#include <prologue/engine/speculation/speculator.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace {

// What is expected of the first drafts of all, and how many drafts that counts as. A sequence is expected to be as all others.
constexpr double kExpected[kDraftEvidence] = {0.3, 0.5, 0.7, 0.85};
constexpr double kWeightOfExpected = 4.0, kWeightOfOthers = 1.5;
constexpr int64_t kMostPatience = 1024;

constexpr int64_t kFirstSteps = 2;  // of a size, which are not measured
constexpr int64_t kLasting = 512;   // steps after which a measurement says nothing any more
constexpr double kNew = 0.2;        // weight of a new measurement of a step
constexpr double kMostOfOld = 2.0;  // a step that took so many times as long as is known was disturbed: it counts as that
constexpr double kSlower = 0.05;    // how much longer a further draft may take than was known, at each call

// Numbers of rows are measured one by one, from some on several together: those up to rows_of(bucket).
constexpr int64_t kSingle = 16, kFew = 64, kMany = 512;
int64_t bucket_of(int64_t num_rows) {
  if (num_rows <= kSingle) return num_rows;
  if (num_rows <= kFew) return kSingle + divide_up(num_rows - kSingle, 8);
  if (num_rows <= kMany) return kSingle + (kFew - kSingle) / 8 + divide_up(num_rows - kFew, 32);
  return kSingle + (kFew - kSingle) / 8 + (kMany - kFew) / 32 + divide_up(num_rows - kMany, 256);
}
int64_t rows_of(int64_t bucket) {
  if (bucket <= kSingle) return bucket;
  bucket -= kSingle;
  if (bucket <= (kFew - kSingle) / 8) return kSingle + 8 * bucket;
  bucket -= (kFew - kSingle) / 8;
  if (bucket <= (kMany - kFew) / 32) return kFew + 32 * bucket;
  return kMany + 256 * (bucket - (kMany - kFew) / 32);
}

}  // namespace

void DraftCounts::add(int32_t evidence, int64_t num_drafts, int64_t num_accepted) {
  double& tried = tried_[static_cast<size_t>(evidence)];
  double& accepted = accepted_[static_cast<size_t>(evidence)];
  tried = tried * kept_ + static_cast<double>(std::min(num_accepted + 1, num_drafts));
  accepted = accepted * kept_ + static_cast<double>(num_accepted);
}

double DraftCounts::acceptance(int32_t evidence, double expected, double weight) const {
  return (accepted_[static_cast<size_t>(evidence)] + weight * expected) / (tried_[static_cast<size_t>(evidence)] + weight);
}

void DraftHistory::add(int32_t evidence, int64_t num_drafts, int64_t num_accepted) {
  Pause& pause = pauses_[static_cast<size_t>(evidence)];
  if (num_accepted > 0) {
    pause.patience = Pause().patience;
  } else if (is_trial(evidence)) {
    pause.patience = std::min(2 * pause.patience, kMostPatience);
  }
  pause.num_skipped = 0;
  counts_.add(evidence, num_drafts, num_accepted);
}

bool DraftHistory::is_trial(int32_t evidence) const {
  const Pause& pause = pauses_[static_cast<size_t>(evidence)];
  return pause.num_skipped >= pause.patience;
}

void StepCosts::add(int64_t num_rows, bool verifies, double seconds) {
  Costs& costs = costs_[verifies ? 1 : 0];
  Cost& cost = costs[std::min(static_cast<size_t>(bucket_of(num_rows)), costs.size() - 1)];
  ++num_steps_;
  if (num_steps_ - cost.last > kLasting) cost.num_steps = std::min(cost.num_steps, kFirstSteps);
  cost.last = num_steps_;
  if (++cost.num_steps <= kFirstSteps) return;
  cost.seconds = cost.num_steps == kFirstSteps + 1
                     ? seconds
                     : cost.seconds + kNew * (std::min(seconds, kMostOfOld * cost.seconds) - cost.seconds);
}

bool StepCosts::is_known(const Cost& cost) const { return cost.num_steps > kFirstSteps && num_steps_ - cost.last <= kLasting; }

bool StepCosts::knows(int64_t num_rows, bool verifies) const {
  const Costs& costs = costs_[verifies ? 1 : 0];
  return is_known(costs[std::min(static_cast<size_t>(bucket_of(num_rows)), costs.size() - 1)]);
}

// Takes what was measured with the next smaller and the next larger number of rows.
double StepCosts::between(const Costs& costs, int64_t num_rows) const {
  const auto bucket = std::min(static_cast<size_t>(bucket_of(num_rows)), costs.size() - 1);
  size_t below = bucket, above = bucket;
  while (below > 0 && !is_known(costs[below])) --below;
  while (above < costs.size() && !is_known(costs[above])) ++above;
  if (below == 0) return above < costs.size() ? costs[above].seconds : 0.0;
  const double seconds = costs[below].seconds;
  const auto rows = [](size_t of_bucket) { return static_cast<double>(rows_of(static_cast<int64_t>(of_bucket))); };
  const double more_rows = rows(bucket) - rows(below);
  if (above == costs.size()) return seconds * (1.0 + cost_of_row_ * more_rows);
  if (above == below) return seconds;
  return seconds + (costs[above].seconds - seconds) * more_rows / (rows(above) - rows(below));
}

double StepCosts::seconds(int64_t num_rows, bool verifies) const {
  const double own = between(costs_[verifies ? 1 : 0], num_rows);
  return own > 0.0 ? own : between(costs_[verifies ? 0 : 1], num_rows);
}

void Speculator::add(DraftHistory& history, int32_t evidence, int64_t num_drafts, int64_t num_accepted) {
  history.add(evidence, num_drafts, num_accepted);
  counts_.add(evidence, num_drafts, num_accepted);
}

double Speculator::acceptance(const DraftHistory& history, int32_t evidence) const {
  const double expected = kExpected[evidence];
  if (history.is_trial(evidence)) return expected;
  return history.counts().acceptance(evidence, counts_.acceptance(evidence, expected, kWeightOfExpected), kWeightOfOthers);
}

Result<bool> Speculator::propose(std::span<DraftSequence> sequences, std::span<DraftHistory* const> histories, int64_t num_rows,
                                 bool tokens_are_known) {
  // What a step costs without drafts is found out first, and now and then again.
  if (!all_ && !costs_.knows(num_rows, false)) return false;
  if (!proposer_->is_cheap()) {
    if (!all_ && !choose_depth(sequences, histories, num_rows)) return false;
    if (!tokens_are_known) return true;
  }
  PROLOGUE_RETURN_IF_ERROR(call(sequences, histories));
  return catch_out_of_memory([&] { return choose_drafts(sequences, histories, num_rows); });
}

// Sets max_drafts to what makes the most tokens a second, the proposer's time included. Returns false if that is without drafts.
bool Speculator::choose_depth(std::span<DraftSequence> sequences, std::span<DraftHistory* const> histories, int64_t num_rows) {
  int64_t most = 0, num_drafts = 0, chosen = 0;
  for (const DraftSequence& sequence : sequences) most = std::max(most, sequence.max_drafts);
  auto tokens = static_cast<double>(num_rows);
  double best = tokens / costs_.seconds(num_rows, false);
  for (int64_t depth = 1; depth <= most; ++depth) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (sequences[s].max_drafts < depth) continue;
      tokens += std::pow(acceptance(*histories[s], kModelEvidence), static_cast<double>(depth));
      ++num_drafts;
    }
    if (num_drafts > max_drafts_) break;
    const double rate = tokens / (costs_.seconds(num_rows + num_drafts, true) + static_cast<double>(depth) * draft_seconds_);
    if (rate > best) best = rate, chosen = depth;
  }
  // A time that is never measured again could be that of a disturbed call.
  num_skipped_ = chosen == 0 ? num_skipped_ + 1 : 0;
  if (num_skipped_ > kLasting) num_skipped_ = 0, draft_seconds_ = 0.0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    if (chosen == 0) histories[s]->skip(kModelEvidence);
    sequences[s].max_drafts = std::min(sequences[s].max_drafts, chosen);
  }
  return chosen > 0;
}

Status Speculator::call(std::span<DraftSequence> sequences, std::span<DraftHistory* const> histories) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  PROLOGUE_RETURN_IF_ERROR(proposer_->propose(sequences));
  if (proposer_->is_cheap()) return {};
  size_t depth = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    depth = std::max(depth, sequences[s].drafts.size());
    sequences[s].evidence = kModelEvidence;
    const bool for_nothing = sequences[s].max_drafts > 0 && sequences[s].drafts.empty();
    if (for_nothing) histories[s]->add(kModelEvidence, 1, 0);
  }
  if (depth == 0 || ++num_calls_ <= kFirstSteps) return {};
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(depth);
  // A call that reads prompts takes longer: a shorter time counts at once, a longer one little by little.
  draft_seconds_ = draft_seconds_ == 0.0 ? seconds : std::min(seconds, (1.0 + kSlower) * draft_seconds_);
  return {};
}

// Takes the drafts with the highest probability of all sequences, as many as make the most tokens a second.
Result<bool> Speculator::choose_drafts(std::span<DraftSequence> sequences, std::span<DraftHistory* const> histories,
                                       int64_t num_rows) const {
  struct Draft {
    size_t sequence;
    double gain;  // the probability that it and all before it are accepted
  };
  std::vector<Draft> drafts;
  for (size_t s = 0; s < sequences.size(); ++s) {
    DraftSequence& sequence = sequences[s];
    if (sequence.evidence < 0 || sequence.evidence >= kDraftEvidence) {
      return invalid_argument("a proposer says evidence ", sequence.evidence, ": it must be between 0 and ", kDraftEvidence - 1);
    }
    if (static_cast<int64_t>(sequence.drafts.size()) > sequence.max_drafts)
      sequence.drafts.resize(static_cast<size_t>(sequence.max_drafts));
    double gain = 1.0;
    const double of_one = acceptance(*histories[s], sequence.evidence);
    for (size_t i = 0; i < sequence.drafts.size(); ++i) drafts.push_back({s, gain *= of_one});
  }
  // The gains of a sequence fall, so the best drafts of all are the first ones of each.
  std::stable_sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) { return a.gain > b.gain; });
  drafts.resize(std::min(drafts.size(), static_cast<size_t>(max_drafts_)));
  const auto seconds = [&](size_t num_drafts) {
    return costs_.seconds(num_rows + static_cast<int64_t>(num_drafts), num_drafts > 0);
  };
  auto tokens = static_cast<double>(num_rows);
  double best = seconds(0) > 0.0 ? tokens / seconds(0) : 0.0;
  size_t chosen = 0;
  for (size_t n = 1; n <= drafts.size(); ++n) {
    tokens += drafts[n - 1].gain;
    const double cost = seconds(n);
    if (!all_ && cost > 0.0 && tokens / cost <= best) continue;
    best = cost > 0.0 ? tokens / cost : best;
    chosen = n;
  }
  std::vector<size_t> counts(sequences.size(), 0);
  for (size_t n = 0; n < chosen; ++n) ++counts[drafts[n].sequence];
  for (size_t s = 0; s < sequences.size(); ++s) {
    if (counts[s] == 0 && !sequences[s].drafts.empty()) histories[s]->skip(sequences[s].evidence);
    sequences[s].drafts.resize(counts[s]);
  }
  return chosen > 0;
}

}  // namespace prologue
