// Waiting without sleeping, for the gap between two operations of a step. Internal.
#pragma once

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace prologue {

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns whether done() became true within some microseconds. Then the caller sleeps: on a busy machine other programs get the cores.
template <class Done>
bool spin_until(const Done& done) {
  constexpr std::chrono::microseconds kSpin{15};
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace prologue
