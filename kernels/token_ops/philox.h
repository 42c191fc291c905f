// This file has Philox4x32-10, the counter-based random number generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011): a pure function of a 64-bit key and a 128-bit counter. It is written once for host and device.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/host_device.h>

namespace prologue {

struct Philox4x32 {
  uint32_t words[4];
};

// Returns four random words. Keys and counters are in memory order: key 0 and counter 0 are the low words.
PROLOGUE_HOST_DEVICE inline Philox4x32 philox4x32_10(uint32_t key0, uint32_t key1, uint32_t counter0, uint32_t counter1,
                                                     uint32_t counter2, uint32_t counter3) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53u} * counter0;
    const uint64_t product1 = uint64_t{0xcd9e8d57u} * counter2;
    counter0 = static_cast<uint32_t>(product1 >> 32) ^ counter1 ^ key0;
    counter1 = static_cast<uint32_t>(product1);
    counter2 = static_cast<uint32_t>(product0 >> 32) ^ counter3 ^ key1;
    counter3 = static_cast<uint32_t>(product0);
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return {{counter0, counter1, counter2, counter3}};
}

}  // namespace prologue
