// This file compares what a run of the prologue wrote: compared with the oracle, or bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "tests/oracle/attention_prologue.h"
#include "tests/support/placed_prologue.h"

namespace prologue::test {

// Calls f(T{}) for each type of the activations.
template <class F>
void for_each_type(F&& f) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(dtype_name(dtype));
    with_host_type(dtype, f);
  }
}

// Expects that every output agrees with the oracle, and that nothing else has changed. `k_is_copied`: K in the cache has the bits of the
// input.
template <class T>
void expect_matches(const PlacedPrologue<T>& placed, const oracle::PrologueOutput& want, bool k_is_copied = false);

// Expects that every byte of every output is the same in both, which have the same case.
template <class T>
void expect_same_bits(const PlacedPrologue<T>& got, const PlacedPrologue<T>& want);

template <class U>
double as_number(const U& value) {
  if constexpr (std::is_arithmetic_v<U>) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(to_float(value));
  }
}

template <class U>
void expect_bits(const std::vector<U>& got, const std::vector<U>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  if (got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(U)) == 0) return;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(U)) == 0) continue;
    ADD_FAILURE() << what << ": element " << i << " of " << got.size() << " is " << as_number(got[i]) << ", not "
                  << as_number(want[i]);
    return;
  }
}

}  // namespace prologue::test
