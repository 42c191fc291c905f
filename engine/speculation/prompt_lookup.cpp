#include <prologue/engine/speculation/prompt_lookup.h>

#include <algorithm>
#include <bit>

#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace {

constexpr size_t kFewestBuckets = 256;

// Returns the bucket of the kShortest tokens before `end`; the number of buckets is a power of two.
size_t bucket_of(std::span<const int32_t> tokens, int64_t end, size_t num_buckets) {
  uint64_t hash = 0;
  for (int64_t i = end - PromptLookup::kShortest; i < end; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens[static_cast<size_t>(i)])) * 0x9e3779b97f4a7c15;
  }
  return (hash >> 32) & (num_buckets - 1);
}

int32_t evidence_of(int64_t length) { return length >= 8 ? 3 : length >= 4 ? 2 : length >= 3 ? 1 : 0; }

}  // namespace

// All places but the last: that is where the sequence ends, and what is looked up.
void PromptLookup::add_tokens(Index& index, std::span<const int32_t> tokens) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  if (tokens.size() > index.latest.size()) {
    index.latest.assign(std::max(kFewestBuckets, 2 * std::bit_ceil(tokens.size())), 0);
    index.num_tokens = 0;
  }
  index.earlier.resize(tokens.size());
  for (int64_t end = std::max(index.num_tokens, kShortest); end < num_tokens; ++end) {
    int32_t& latest = index.latest[bucket_of(tokens, end, index.latest.size())];
    index.earlier[static_cast<size_t>(end)] = latest;
    latest = static_cast<int32_t>(end);
  }
  index.num_tokens = std::max(index.num_tokens, num_tokens);
}

PromptLookup::Match PromptLookup::longest_match(const Index& index, std::span<const int32_t> tokens) {
  Match best;
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  if (num_tokens <= kShortest) return best;
  int64_t end = index.latest[bucket_of(tokens, num_tokens, index.latest.size())];
  for (int64_t n = 0; n < kCandidates && end > 0 && best.length < kLongest; ++n) {
    int64_t length = 0;
    const int64_t limit = std::min(kLongest, end);
    while (length < limit &&
           tokens[static_cast<size_t>(end - 1 - length)] == tokens[static_cast<size_t>(num_tokens - 1 - length)])
      ++length;
    if (length >= kShortest && length > best.length) best = {end, length};
    end = index.earlier[static_cast<size_t>(end)];
  }
  return best;
}

Status PromptLookup::propose(std::span<DraftSequence> sequences) {
  return catch_out_of_memory([&]() -> Status {
    for (DraftSequence& sequence : sequences) {
      Index& index = indices_[sequence.id];
      add_tokens(index, sequence.tokens);
      const Match match = longest_match(index, sequence.tokens);
      if (match.length == 0) continue;
      sequence.evidence = evidence_of(match.length);
      // A text that repeats itself goes on so: after the last token come the drafts themselves.
      const auto num_tokens = static_cast<int64_t>(sequence.tokens.size());
      for (int64_t i = 0, from = match.end; i < sequence.max_drafts; ++i, ++from) {
        sequence.drafts.push_back(from < num_tokens ? sequence.tokens[static_cast<size_t>(from)]
                                                    : sequence.drafts[static_cast<size_t>(from - num_tokens)]);
      }
    }
    return {};
  });
}

}  // namespace prologue
