// Makes the numbers of Python's `random` module: workloads that other projects' benchmarks make with it are the same here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace prologue::bench {

class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);  // random.seed(seed)

  double uniform();                            // random.random(): in [0, 1)
  int64_t integer(int64_t low, int64_t high);  // random.randint(low, high): both ends included; high - low < 2^32 - 1
  double exponential(double rate);             // random.expovariate(rate): mean 1 / rate

 private:
  uint32_t next();
  uint32_t bits(int count);  // random.getrandbits(count), 1 to 32

  std::array<uint32_t, 624> state_;
  size_t position_ = 624;  // of the next word; 624: all are used up
};

}  // namespace prologue::bench
