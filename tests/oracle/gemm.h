// y = x W^T + bias in float64, from the definition.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/tolerance.h"

namespace prologue::test::oracle {

// x [m, k] with rows x_stride apart, weight [n, k], bias [n] or empty; the result is [m, n], its scale the sum of |terms|.
template <class T>
std::vector<Reference> gemm(const std::vector<T>& x, int64_t x_stride, const std::vector<T>& weight, const std::vector<T>& bias,
                            int64_t m, int64_t n, int64_t k);

}  // namespace prologue::test::oracle
