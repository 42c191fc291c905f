// This file has the model of this example, and its attention layer in float64 without pages, batches or caches: one sequence, from the
// start.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

constexpr int64_t kHidden = 96, kHiddenStride = 104, kQHeads = 6, kKvHeads = 2, kHeadDim = 64;
constexpr int64_t kQWidth = kQHeads * kHeadDim, kKvWidth = kKvHeads * kHeadDim;
constexpr float kEps = 1e-6f, kScale = 0.125f;  // 1 / sqrt(kHeadDim)
constexpr double kTheta = 10000.0;

using BFloat16 = uint16_t;  // the upper half of a float

inline std::vector<BFloat16> to_bfloat16(const std::vector<float>& values) {  // exact for what Random makes
  std::vector<BFloat16> halves;
  for (const float x : values) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    halves.push_back(static_cast<BFloat16>(bits >> 16));
  }
  return halves;
}
inline float to_float(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Random {
  uint64_t state = 1;
  // Returns numbers in [-reach, reach), in 256 steps: with a power of two for reach, each value is a bfloat16.
  std::vector<float> floats(int64_t count, float reach) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& x : values) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x = reach * (static_cast<float>(state >> 56) * 0x1p-7f - 1.0f);
    }
    return values;
  }
};

struct Weights {
  std::vector<float> qkv, output, q_norm, k_norm;  // [out, in], as model files hold them

  explicit Weights(Random& random)
      : qkv(random.floats((kQWidth + 2 * kKvWidth) * kHidden, 0.25f)),
        output(random.floats(kHidden * kQWidth, 0.25f)),
        q_norm(random.floats(kHeadDim, 2.0f)),
        k_norm(random.floats(kHeadDim, 2.0f)) {}
};

inline std::vector<double> product(const std::vector<float>& weight, const double* x, int64_t rows, int64_t columns) {
  std::vector<double> y(static_cast<size_t>(rows));
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t i = 0; i < columns; ++i)
      y[static_cast<size_t>(n)] += static_cast<double>(weight[static_cast<size_t>(n * columns + i)]) * x[i];
  }
  return y;
}

inline void norm_and_rotate(double* head, const std::vector<float>& weight, int64_t position) {
  double squares = 0.0;
  for (int64_t d = 0; d < kHeadDim; ++d) squares += head[d] * head[d];
  const double inverse = 1.0 / std::sqrt(squares / kHeadDim + static_cast<double>(kEps));
  for (int64_t d = 0; d < kHeadDim; ++d) head[d] *= inverse * static_cast<double>(weight[static_cast<size_t>(d)]);
  for (int64_t i = 0; i < kHeadDim / 2; ++i) {
    const double angle = static_cast<double>(position) * std::pow(kTheta, -2.0 * static_cast<double>(i) / kHeadDim);
    const double a = head[i], b = head[i + kHeadDim / 2];
    head[i] = a * std::cos(angle) - b * std::sin(angle);
    head[i + kHeadDim / 2] = a * std::sin(angle) + b * std::cos(angle);
  }
}

// Returns every row's output for `hidden` [n, kHidden].
inline std::vector<double> reference(const Weights& weights, const std::vector<float>& hidden) {
  const std::vector<double> x(hidden.begin(), hidden.end());
  std::vector<std::vector<double>> qkv;
  std::vector<double> out;
  for (size_t row = 0; row * kHidden < x.size(); ++row) {
    qkv.push_back(product(weights.qkv, &x[row * kHidden], kQWidth + 2 * kKvWidth, kHidden));
    for (int64_t h = 0; h < kQHeads; ++h)
      norm_and_rotate(&qkv[row][static_cast<size_t>(h * kHeadDim)], weights.q_norm, static_cast<int64_t>(row));
    for (int64_t h = 0; h < kKvHeads; ++h)
      norm_and_rotate(&qkv[row][static_cast<size_t>(kQWidth + h * kHeadDim)], weights.k_norm, static_cast<int64_t>(row));
    std::vector<double> attention(kQWidth);
    for (int64_t h = 0; h < kQHeads; ++h) {
      const double* q = &qkv[row][static_cast<size_t>(h * kHeadDim)];
      const auto k_at = static_cast<size_t>(kQWidth + h / (kQHeads / kKvHeads) * kHeadDim), v_at = k_at + kKvWidth;
      std::vector<double> weight;
      for (size_t p = 0; p <= row; ++p) {
        double score = 0.0;
        for (size_t d = 0; d < kHeadDim; ++d) score += q[d] * qkv[p][k_at + d];
        weight.push_back(static_cast<double>(kScale) * score);
      }
      const double maximum = *std::max_element(weight.begin(), weight.end());
      double sum = 0.0;
      for (double& w : weight) sum += w = std::exp(w - maximum);
      for (size_t p = 0; p <= row; ++p) {
        for (size_t d = 0; d < kHeadDim; ++d)
          attention[static_cast<size_t>(h * kHeadDim) + d] += weight[p] / sum * qkv[p][v_at + d];
      }
    }
    const std::vector<double> y = product(weights.output, attention.data(), kHidden, kQWidth);
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}
