#include "tests/oracle/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace prologue::test::oracle {

Route route(const std::vector<double>& logits, int64_t top_k, Weighting weighting, bool normalize) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t i) { return logits[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  Route result;
  result.ids.assign(order.begin(), order.begin() + top_k);
  const std::vector<int32_t>& summed = weighting == Weighting::top_k_then_softmax ? result.ids : order;
  double sum = 0.0, kept = 0.0;
  for (const int32_t i : summed) sum += std::exp(logit(i) - logit(order[0]));
  for (const int32_t i : result.ids) {
    const double softmax = std::exp(logit(i) - logit(order[0])) / sum;
    result.weights.push_back(weighting == Weighting::sigmoid ? 1.0 / (1.0 + std::exp(-logit(i))) : softmax);
    kept += softmax;
  }
  if (normalize) {
    for (double& weight : result.weights) weight /= kept;
  }
  return result;
}

namespace {
double number(double value) { return value; }
template <class T>
double number(T value) {
  return static_cast<double>(to_float(value));
}
}  // namespace

template <class T, class W>
std::vector<Reference> expert_row(const T* x, const W* weight, const T* bias, int64_t n, int64_t k, double scale) {
  std::vector<Reference> y;
  for (int64_t column = 0; column < n; ++column) {
    Reference sum;
    for (int64_t i = 0; i < k; ++i) {
      const double term = scale * number(x[i]) * number(weight[column * k + i]);
      sum.value += term;
      sum.scale += std::fabs(term);
    }
    if (bias != nullptr) {
      sum.value += number(bias[column]);
      sum.scale += std::fabs(number(bias[column]));
    }
    y.push_back(sum);
  }
  return y;
}

template std::vector<Reference> expert_row(const float*, const float*, const float*, int64_t, int64_t, double);
template std::vector<Reference> expert_row(const float*, const double*, const float*, int64_t, int64_t, double);
template std::vector<Reference> expert_row(const Float16*, const double*, const Float16*, int64_t, int64_t, double);
template std::vector<Reference> expert_row(const BFloat16*, const double*, const BFloat16*, int64_t, int64_t, double);
template std::vector<Reference> expert_row(const Float16*, const Float16*, const Float16*, int64_t, int64_t, double);
template std::vector<Reference> expert_row(const BFloat16*, const BFloat16*, const BFloat16*, int64_t, int64_t, double);

}  // namespace prologue::test::oracle
