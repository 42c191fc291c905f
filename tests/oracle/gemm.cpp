#include "tests/oracle/gemm.h"

#include <cmath>

namespace prologue::test::oracle {

template <class T>
std::vector<Reference> gemm(const std::vector<T>& x, int64_t x_stride, const std::vector<T>& weight, const std::vector<T>& bias,
                            int64_t m, int64_t n, int64_t k) {
  std::vector<Reference> y;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      Reference sum;
      for (int64_t i = 0; i < k; ++i) {
        const double term = static_cast<double>(to_float(x[static_cast<size_t>(row * x_stride + i)])) *
                            static_cast<double>(to_float(weight[static_cast<size_t>(column * k + i)]));
        sum.value += term;
        sum.scale += std::fabs(term);
      }
      if (!bias.empty()) {
        const double term = static_cast<double>(to_float(bias[static_cast<size_t>(column)]));
        sum.value += term;
        sum.scale += std::fabs(term);
      }
      y.push_back(sum);
    }
  }
  return y;
}

template std::vector<Reference> gemm(const std::vector<float>&, int64_t, const std::vector<float>&, const std::vector<float>&,
                                     int64_t, int64_t, int64_t);
template std::vector<Reference> gemm(const std::vector<Float16>&, int64_t, const std::vector<Float16>&,
                                     const std::vector<Float16>&, int64_t, int64_t, int64_t);
template std::vector<Reference> gemm(const std::vector<BFloat16>&, int64_t, const std::vector<BFloat16>&,
                                     const std::vector<BFloat16>&, int64_t, int64_t, int64_t);

}  // namespace prologue::test::oracle
