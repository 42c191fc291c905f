// Moves a head to another position in float64: the old rotation is undone by Cramer's rule, then the new one is done. Shares no code with the
// library.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace prologue::test::oracle {

// A pair (a, b) becomes (a cos_a - b sin_a, a sin_b + b cos_b).
struct PairMatrix {
  double cos_a = 1.0, sin_a = 0.0, cos_b = 1.0, sin_b = 0.0;
};

struct MovedPair {
  int64_t a, b;  // channels
  PairMatrix from, to;
};

// x times Sylvester's matrix / sqrt(block), for each block of channels.
inline std::vector<double> hadamard(const std::vector<double>& x, int64_t block) {
  if (block == 0) return x;
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t size = static_cast<size_t>(block), first = i / size * size;
    for (size_t j = 0; j < size; ++j) y[i] += (std::popcount((i - first) & j) % 2 == 0 ? 1.0 : -1.0) * x[first + j];
    y[i] /= std::sqrt(static_cast<double>(block));
  }
  return y;
}

inline std::vector<double> moved_head(const std::vector<double>& stored, const std::vector<MovedPair>& pairs,
                                      int64_t hadamard_block) {
  std::vector<double> x = hadamard(stored, hadamard_block);
  for (const MovedPair& pair : pairs) {
    double &a = x[static_cast<size_t>(pair.a)], &b = x[static_cast<size_t>(pair.b)];
    const PairMatrix &m = pair.from, &n = pair.to;
    const double determinant = m.cos_a * m.cos_b + m.sin_a * m.sin_b;
    const double old_a = (a * m.cos_b + b * m.sin_a) / determinant, old_b = (b * m.cos_a - a * m.sin_b) / determinant;
    a = old_a * n.cos_a - old_b * n.sin_a;
    b = old_a * n.sin_b + old_b * n.cos_b;
  }
  return hadamard(x, hadamard_block);
}

}  // namespace prologue::test::oracle
