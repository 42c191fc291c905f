// A proposer guesses the next tokens of sequences: drafts. A step of the model then has a row for each draft, and the drafts that are what
// the model samples there are accepted (docs/speculation.md). What a proposer says changes how fast text comes, and never the text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <prologue/kernels/base/status.h>
#include <prologue/kernels/token_ops/sampling.h>

namespace prologue {

inline constexpr int64_t kMaxDrafts = 15;     // of a sequence in a step
inline constexpr int32_t kDraftEvidence = 4;  // kinds of evidence: DraftSequence::evidence is below this
inline constexpr int32_t kModelEvidence = 2;  // of the drafts of proposers that are not cheap

// Describes a sequence whose next step may verify drafts.
struct DraftSequence {
  int64_t id = 0;                       // the same in every call for this sequence, and no other's
  std::span<const int32_t> tokens;      // of the prompt and generated; a later call has these and more
  int64_t num_prompt = 0;               // of these
  std::span<const int32_t> prediction;  // Request::prediction
  int64_t max_drafts = 0;               // at most so many are wanted, 0 to kMaxDrafts
  // How the token after `tokens` is sampled; position is its index. The next ones have the following positions. There are no counts and no
  // bias.
  SamplingRow sampling;

  // The proposer fills in these two.
  std::vector<int32_t> drafts;  // the tokens after `tokens`, in order; ids of the vocabulary. Empty: it has no guess
  // How good the guess is, as a class: the engine counts for each class and sequence how many drafts were accepted, and has few of a class
  // verified that is mostly wrong. Of a proposer that is not cheap all are of one class, kModelEvidence, whatever it says.
  int32_t evidence = 0;
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  // Fills in the drafts of each sequence. It is called between steps, on the thread that runs them. An error, or an exception,
  // ends the requests that run.
  virtual Status propose(std::span<DraftSequence> sequences) = 0;
  // The sequence has ended. Ids that it does not know are ignored.
  virtual void forget(int64_t id) = 0;
  // Whether a call takes so little time that it may be made for nothing. A proposer that is not cheap is called only if its drafts are
  // expected to pay, with max_drafts as many as do.
  virtual bool is_cheap() const = 0;
};

}  // namespace prologue
