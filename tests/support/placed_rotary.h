// This file has a RotaryCase in an Arena, with free strides: the parameters, which point into it, and the oracle's input.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <prologue/kernels/rotary/rotary.h>

#include "tests/oracle/rotary.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/rotary_case.h"

namespace prologue::test {

inline double to_double(double x) { return x; }
template <class T>
double to_double(T x) {
  return to_float(x);
}
template <class T>
T from_double(double x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return from_float<T>(static_cast<float>(x));
  }
}

template <class F>
auto with_float_type(DType type, F&& f) {
  return type == DType::f64 ? f(double{}) : with_host_type(type, f);
}

// T is float, Float16, BFloat16 or double.
template <class T>
class PlacedRotary {
 public:
  PlacedRotary(Backend backend, const RotaryCase& c);

  Arena& arena() { return arena_; }
  RotaryParams& params() { return params_; }
  const RotaryParams& params() const { return params_; }
  const RotaryCase& rotary_case() const { return c_; }
  const oracle::RotaryInput& input() const { return in_; }

  // Runs the case as one call, or through a plan if the case says so.
  Status run();
  Status run(const Arena::Operation& operation) { return arena_.run(operation); }

  // ---- after the run ----

  // Return the whole buffer of an output, and what it held before the run.
  std::vector<T> y(size_t tensor) const { return arena_.read(y_[tensor]); }
  const std::vector<T>& before(size_t tensor) const { return before_[tensor]; }
  // Returns the faults of a case that has them.
  FaultRecord faults() const { return arena_.read(faults_).front(); }
  std::vector<uint8_t> token_faults() const { return arena_.read(token_faults_); }

 private:
  void make_tensors();
  int64_t lay_out(const RotaryLayout& layout, int64_t num_heads, RotaryStrides& strides) const;
  void make_angles();
  void make_table(const std::function<double(int64_t row, int64_t column)>& value, RopeColumns& columns, oracle::Table& logical);
  void make_positions();
  void make_ids(bool damage);
  void make_sequences();
  void make_offsets(bool damage);
  IndexView place_integers(const std::vector<int64_t>& values);

  RotaryCase c_;
  Random random_;
  Arena arena_;
  RotaryParams params_;
  oracle::RotaryInput in_;
  std::vector<T*> y_;
  std::vector<std::vector<T>> before_;
  FaultRecord* faults_ = nullptr;
  uint8_t* token_faults_ = nullptr;
};

}  // namespace prologue::test
