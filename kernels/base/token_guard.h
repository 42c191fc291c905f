// What may be done for a token with this position and slot: the rules for padding and bad indices of attention_prologue.h,
// written once for every operation of the prologue and every backend.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/rotation.h>

namespace prologue {

// The sum, or -1 if int64 cannot hold it (-1 is a bad position for any bound).
PROLOGUE_HOST_DEVICE inline int64_t add_positions(int64_t x, int64_t y) {
  const int64_t sum = static_cast<int64_t>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
  return ((x ^ sum) & (y ^ sum)) < 0 ? -1 : sum;
}

struct TokenGuard {
  bool padding = false;     // touch nothing
  bool position_ok = true;  // otherwise the Q row becomes zeros
  int64_t slot = -1;        // of K and V; negative: they are not written
  FaultCode fault = FaultCode::none;
};

// max_position = 0: the position has no upper bound (then nothing is rotated).
PROLOGUE_HOST_DEVICE inline TokenGuard guard_token(int64_t position, int64_t max_position, int64_t slot, int64_t num_slots) {
  TokenGuard guard;
  if (position < 0) {
    guard.padding = true;
  } else if (max_position > 0 && position >= max_position) {
    guard.position_ok = false;
    guard.fault = FaultCode::position_out_of_range;
  } else if (slot >= num_slots) {
    guard.fault = FaultCode::slot_out_of_range;
  } else {
    guard.slot = slot;
  }
  return guard;
}

}  // namespace prologue
