// This file makes seeded test data, the same on every platform.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/dtype.h>

namespace prologue::test {

// This is SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Returns a number in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  // Returns a number in [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }
  // Returns a number of mean 0 and deviation 1, below 4.25: the sum of six uniform ones. Tests draw hundreds of millions of them.
  double normal() {
    constexpr uint64_t kLow = (uint64_t{1} << 21) - 1;
    const uint64_t a = bits(), b = bits();
    const uint64_t sum = (a & kLow) + (a >> 21 & kLow) + (a >> 42 & kLow) + (b & kLow) + (b >> 21 & kLow) + (b >> 42 & kLow);
    return (static_cast<double>(sum) - 3.0 * static_cast<double>(kLow)) * (1.4142135623730951 * 0x1.0p-21);
  }
  template <class T>
  std::vector<T> normals(int64_t count, double deviation = 1.0) {
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) value = from_float<T>(static_cast<float>(deviation * normal()));
    return values;
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1], values[static_cast<size_t>(integer(0, static_cast<int64_t>(i) - 1))]);
  }

 private:
  uint64_t state_;
};

}  // namespace prologue::test
