// A token's position and slot, found once for all of its heads.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <prologue/kernels/attention_prologue/lean/more_steps_schedule.cuh>

namespace prologue::cuda {

struct FoundToken {
  LeanToken token;
  int64_t position;
};

// Of a thread by itself. Tokens that there are not are padding. Whether positions are derived is read at run time; there are no axes.
__device__ inline FoundToken find_token(const MoreArgs& p, int num_tokens, int t, bool records) {
  FoundToken found = {};
  found.token.padding = true;
  if (t >= num_tokens) return found;
  const auto at = static_cast<uint32_t>(t);
  constexpr int kGiven = kMoreSteps | kEveryStep, kAnyVector = 8;  // of which nothing here depends
  if ((p.features & kDerived) != 0) {
    PendingToken<kGiven | kDerived, kAnyVector, false> pending;
    pending.ask(p, at);
    found.token = pending.resolve_position_alone(p);
    pending.resolve_slot(p, found.token);
    found.position = pending.position_value(p);
  } else {
    PendingToken<kGiven, kAnyVector, false> pending;
    pending.ask(p, at);
    pending.ask_slot(p, at);
    found.token = pending.resolve_position(p, at, 0);
    pending.resolve_slot(p, found.token);
    found.position = pending.position_value(p);
  }
  const bool faulty = found.token.fault != FaultCode::none && !found.token.padding;
  if (__builtin_expect(faulty & records, 0)) cuda::record_fault(p.faults, p.token_faults, at, found.token.fault);
  return found;
}

// That of another lane.
__device__ inline FoundToken found_by_lane(const FoundToken& found, int lane) {
  static_assert(std::is_trivially_copyable_v<FoundToken> && sizeof(FoundToken) % 4 == 0);
  uint32_t words[sizeof(FoundToken) / 4];
  memcpy(words, &found, sizeof words);
#pragma unroll
  for (uint32_t& word : words) word = __shfl_sync(0xffffffffu, word, lane);
  FoundToken there;
  memcpy(&there, words, sizeof words);
  return there;
}

}  // namespace prologue::cuda
