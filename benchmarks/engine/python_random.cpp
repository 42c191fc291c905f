#include "benchmarks/engine/python_random.h"

#include <bit>
#include <cmath>

namespace prologue::bench {

// This is the Mersenne Twister MT19937 with initialisation by an array, here of one word (Matsumoto and Nishimura, 2002).
PythonRandom::PythonRandom(uint32_t seed) {
  constexpr uint32_t kSize = 624;
  state_[0] = 19650218u;
  for (uint32_t i = 1; i < kSize; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  const auto mixed = [&](uint32_t i, uint32_t factor) { return state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * factor); };
  uint32_t i = 1;
  const auto advance = [&] {
    if (++i < kSize) return;
    state_[0] = state_[kSize - 1];
    i = 1;
  };
  for (uint32_t k = 0; k < kSize; ++k, advance()) state_[i] = mixed(i, 1664525u) + seed;
  for (uint32_t k = 1; k < kSize; ++k, advance()) state_[i] = mixed(i, 1566083941u) - i;
  state_[0] = 0x80000000u;
}

uint32_t PythonRandom::next() {
  const size_t size = state_.size();
  if (position_ == size) {
    for (size_t i = 0; i < size; ++i) {
      const uint32_t word = (state_[i] & 0x80000000u) | (state_[(i + 1) % size] & 0x7fffffffu);
      state_[i] = state_[(i + 397) % size] ^ (word >> 1) ^ ((word & 1u) != 0 ? 0x9908b0dfu : 0u);
    }
    position_ = 0;
  }
  uint32_t y = state_[position_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

uint32_t PythonRandom::bits(int count) { return next() >> (32 - count); }

double PythonRandom::uniform() {
  const uint32_t high = next() >> 5, low = next() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

int64_t PythonRandom::integer(int64_t low, int64_t high) {
  const auto count = static_cast<uint32_t>(high - low + 1);
  uint32_t value = 0;
  do {
    value = bits(std::bit_width(count));
  } while (value >= count);
  return low + value;
}

double PythonRandom::exponential(double rate) { return -std::log(1.0 - uniform()) / rate; }

}  // namespace prologue::bench
