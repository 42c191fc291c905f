// This file compares what a run of the rotary operation wrote: compared with the oracle, or bit for bit.
#pragma once

#include "tests/support/placed_rotary.h"

namespace prologue::test {

// Expects that every output agrees with the oracle, and that nothing else has changed.
template <class T>
void expect_matches(const PlacedRotary<T>& placed);

// Expects that every byte of every output is the same in both, which have the same case.
template <class T>
void expect_same_bits(const PlacedRotary<T>& got, const PlacedRotary<T>& want);

}  // namespace prologue::test
