// Holds what the tests of the serving systems have in common: their calls hold q, k and v of a few tokens and a paged cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/adapters/golden.h"

namespace prologue::test {

struct Serving {
  static constexpr int64_t kTokens = 4, kQHeads = 2, kKvHeads = 1, kHeadDim = 16, kRotaryDim = 8, kMaxPosition = 12;

  std::vector<int64_t> positions = {3, 0, 11, 7};
  Values q = fill(1, kTokens*kQHeads*kHeadDim), k = fill(2, kTokens*kKvHeads*kHeadDim), v = fill(3, kTokens*kKvHeads*kHeadDim);
  Values cos_sin = fill(4, kMaxPosition* kRotaryDim);  // cos, then sin, in a row

  Values rotated(const Values& x, int64_t heads, bool interleaved, int64_t offset = 0, bool inverse = false) const {
    return rotate_heads(x, kHeadDim, offset, kRotaryDim, interleaved, [&](int64_t head, int64_t pair) {
      const int64_t row = positions[static_cast<size_t>(head / heads)] * kRotaryDim;
      const double sine = cos_sin[static_cast<size_t>(row + kRotaryDim / 2 + pair)];
      return std::pair(cos_sin[static_cast<size_t>(row + pair)], inverse ? -sine : sine);
    });
  }
};

inline std::vector<float> floats(const Values& values) { return std::vector<float>(values.begin(), values.end()); }

// Returns what a cache, poisoned before, holds when the tokens' rows (kKvHeads * kHeadDim elements) went to their slots.
inline Bytes cached(const Bytes& rows, const std::vector<int64_t>& slot_of, size_t cache_bytes, int64_t element_bytes) {
  const int64_t row = Serving::kKvHeads * Serving::kHeadDim * element_bytes;
  Bytes cache(cache_bytes, kPoison);
  for (size_t t = 0; t < slot_of.size(); ++t) {
    if (slot_of[t] >= 0) std::copy_n(rows.begin() + static_cast<int64_t>(t) * row, row, cache.begin() + slot_of[t] * row);
  }
  return cache;
}

// The nearest fp8 e4m3, ties to even.
inline unsigned char to_e4m3(double x) {
  unsigned char best = 0;
  double distance = INFINITY;
  for (unsigned code = 0; code < 0x7f; ++code) {
    const unsigned exponent = code >> 3, mantissa = code & 7;
    const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8.0 + mantissa, static_cast<int>(exponent) - 10);
    const double d = std::fabs(std::fabs(x) - value);
    if (d < distance || (d == distance && code % 2 == 0)) {
      best = static_cast<unsigned char>(code);
      distance = d;
    }
  }
  return std::signbit(x) ? static_cast<unsigned char>(best | 0x80) : best;
}

inline Bytes e4m3(const Values& values, double scale) {
  Bytes bytes;
  for (const double x : values) bytes.push_back(to_e4m3(x / scale));
  return bytes;
}

}  // namespace prologue::test
