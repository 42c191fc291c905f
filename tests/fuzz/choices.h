// Says how a fuzz target turns the fuzzer's bytes into decisions. The first four bytes seed a generator; decision i is byte 4 + i of
// the input, or, past its end, byte i of the generator. So every input, however short, is a whole case: libFuzzer starts from
// nothing, and each byte that it appends replaces one decision and leaves the others as they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace prologue::fuzz {

// Products and sums of sizes that may be absurd; what int64 does not hold becomes its largest (smallest) value.
inline int64_t saturated(__int128 value) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  return value > kMax ? kMax : value < kMin ? kMin : static_cast<int64_t>(value);
}
inline int64_t times(int64_t a, int64_t b) { return saturated(static_cast<__int128>(a) * b); }
inline int64_t plus(int64_t a, int64_t b) { return saturated(static_cast<__int128>(a) + b); }

class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {
    for (; next_ < 4 && next_ < size; ++next_) seed_ = seed_ << 8 | data[next_];
    next_ = 4;
    hostile_ = chance(2);
  }

  uint8_t byte() {
    const size_t at = next_++;
    return at < size_ ? data_[at] : static_cast<uint8_t>(mixed(seed_ ^ at * 0xd1342543de82ef95ull) >> 56);
  }
  uint64_t bits(int num_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < num_bytes; ++i) value = value << 8 | byte();
    return value;
  }
  // Returns a number in [low, high], which is a small range.
  int64_t integer(int64_t low, int64_t high) {
    const auto range = static_cast<uint64_t>(high - low) + 1;
    return low + static_cast<int64_t>(bits(range > 256 ? 4 : 1) % range);
  }
  bool chance(int one_in) { return byte() % one_in == 0; }
  template <class T, size_t N>
  T pick(const T (&values)[N]) {
    return values[byte() % N];
  }

  // Half of the cases keep to the contract. In the others one decision in 32 breaks it.
  bool hostile() { return hostile_ && byte() % 32 == 0; }

  int64_t absurd() {
    constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
    const int64_t values[] = {-1,
                              0,
                              1,
                              3,
                              65536,
                              65537,
                              kMin,
                              kMin + 1,
                              kMax,
                              kMax - 1,
                              1 << 20,
                              INT32_MAX,
                              int64_t{INT32_MAX} + 1,
                              INT32_MIN,
                              int64_t{1} << 40,
                              int64_t{1} << 59,
                              int64_t{1} << 60,
                              int64_t{1} << 61,
                              int64_t{1} << 62,
                              kMax / 4,
                              kMax / 8 + 1};
    return chance(4) ? static_cast<int64_t>(bits(8)) : pick(values);
  }
  int64_t size(int64_t low, int64_t high) { return hostile() ? absurd() : integer(low, high); }
  float real(float sane) {
    const float values[] = {0.0f,
                            -1.0f,
                            1e-30f,
                            3e38f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::denorm_min()};
    return hostile() ? pick(values) : sane;
  }
  // Returns an enumerator in [0, last], or one that does not exist.
  template <class Enum>
  Enum enumerator(Enum last) {
    if (hostile()) return static_cast<Enum>(static_cast<int32_t>(bits(5)));
    return static_cast<Enum>(integer(0, static_cast<int64_t>(last)));
  }
  // Returns an even number, mostly small, sometimes that of a real model.
  int64_t head_dim() {
    const int64_t real_ones[] = {64, 80, 96, 128, 192, 256, 512, 576, 1024};
    if (hostile()) return absurd();
    return chance(16) ? pick(real_ones) : 2 * integer(1, 12);
  }
  // Returns at least `tight`, mostly exactly that.
  int64_t stride(int64_t tight) {
    if (hostile()) return chance(2) ? absurd() : plus(tight, -integer(1, 4));
    return chance(4) ? plus(tight, 2 * integer(0, 9)) : tight;
  }
  // Returns data that no decision depends on.
  uint64_t random() { return mixed(seed_ + ++state_); }

 private:
  static uint64_t mixed(uint64_t z) {  // SplitMix64
    z *= 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  const uint8_t* data_;
  size_t size_;
  size_t next_ = 0;
  uint64_t seed_ = 0;
  uint64_t state_ = 0;
  bool hostile_ = false;
};

}  // namespace prologue::fuzz
