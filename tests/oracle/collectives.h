// The collectives from their definitions.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/tolerance.h"

namespace prologue::test::oracle {

// parts: x of each rank; before: y before the call if it is added, else empty.
template <class T>
std::vector<Reference> all_reduce(const std::vector<std::vector<T>>& parts, const std::vector<T>& before) {
  std::vector<Reference> sums(parts[0].size());
  const auto add = [&](const std::vector<T>& terms) {
    for (size_t i = 0; i < terms.size(); ++i) {
      const double term = static_cast<double>(to_float(terms[i]));
      sums[i].value += term;
      sums[i].scale += std::fabs(term);
    }
  };
  for (const std::vector<T>& part : parts) add(part);
  add(before);
  return sums;
}

// parts: x of each rank, its columns [num_tokens, own width].
template <class T>
std::vector<T> all_gather(const std::vector<std::vector<T>>& parts, int64_t num_tokens) {
  std::vector<T> rows;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (const std::vector<T>& part : parts) {
      const int64_t width = static_cast<int64_t>(part.size()) / num_tokens;
      rows.insert(rows.end(), part.begin() + t * width, part.begin() + (t + 1) * width);
    }
  }
  return rows;
}

}  // namespace prologue::test::oracle
