// Compares numbers and arrays bit for bit.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

namespace prologue::test {

inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

inline bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

template <class T>
bool same_bits(const T* a, const T* b, int64_t count) {
  return count == 0 || std::memcmp(a, b, static_cast<size_t>(count) * sizeof(T)) == 0;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

}  // namespace prologue::test
