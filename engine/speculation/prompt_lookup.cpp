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

// All places but the last are in the lists: that is where the text ends, and what is looked up.
void PromptLookup::add_tokens(Index& index, const DraftSequence& sequence) {
  std::vector<int32_t>& text = index.text;
  if (text.empty()) text.assign(sequence.prediction.begin(), sequence.prediction.end());
  const size_t known = text.size() - sequence.prediction.size();
  text.insert(text.end(), sequence.tokens.begin() + static_cast<std::ptrdiff_t>(known), sequence.tokens.end());
  if (text.size() > index.latest.size()) {
    index.latest.assign(std::max(kFewestBuckets, 2 * std::bit_ceil(text.size())), 0);
    index.num_places = kShortest;
  }
  index.earlier.resize(text.size());
  for (; index.num_places < static_cast<int64_t>(text.size()); ++index.num_places) {
    int32_t& latest = index.latest[bucket_of(text, index.num_places, index.latest.size())];
    index.earlier[static_cast<size_t>(index.num_places)] = latest;
    latest = static_cast<int32_t>(index.num_places);
  }
}

PromptLookup::Match PromptLookup::longest_match(const Index& index) {
  Match best;
  const int32_t* const text = index.text.data();
  const auto size = static_cast<int64_t>(index.text.size());
  if (size <= kShortest) return best;
  int64_t end = index.latest[bucket_of(index.text, size, index.latest.size())];
  for (int64_t n = 0; n < kCandidates && end > 0 && best.length < kLongest; ++n) {
    const int64_t limit = std::min(kLongest, end);
    int64_t length = 0;
    while (length < limit && text[end - 1 - length] == text[size - 1 - length]) ++length;
    if (length >= kShortest && length > best.length) best = {end, length};
    end = index.earlier[static_cast<size_t>(end)];
  }
  return best;
}

Status PromptLookup::propose(std::span<DraftSequence> sequences) {
  return catch_out_of_memory([&]() -> Status {
    for (DraftSequence& sequence : sequences) {
      Index& index = indices_[sequence.id];
      add_tokens(index, sequence);
      Match match = longest_match(index);
      sequence.evidence = evidence_of(match.length);
      // What is predicted begins where the prompt ends. One token of it is no match yet.
      const int64_t num_generated = static_cast<int64_t>(sequence.tokens.size()) - sequence.num_prompt;
      if (!sequence.prediction.empty() &&
          (num_generated == 0 || (num_generated == 1 && sequence.tokens.back() == sequence.prediction.front()))) {
        match = {num_generated, kShortest};
        sequence.evidence = kDraftEvidence - 1;
      }
      if (match.length == 0) continue;
      // A text that repeats itself goes on so: after the last token come the drafts themselves.
      const auto size = static_cast<int64_t>(index.text.size());
      for (int64_t i = 0, from = match.end; i < sequence.max_drafts; ++i, ++from) {
        sequence.drafts.push_back(from < size ? index.text[static_cast<size_t>(from)]
                                              : sequence.drafts[static_cast<size_t>(from - size)]);
      }
    }
    return {};
  });
}

}  // namespace prologue
