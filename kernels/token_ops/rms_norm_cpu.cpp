#include <algorithm>
#include <cmath>

#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 15;  // below this, starting threads costs more than the work
constexpr int64_t kBlock = 512;               // channels that are float32 at a time
constexpr int kLanes = 16;

// The sum of squares in a fixed order: channel i goes to partial sum i % kLanes, then the partial sums are added in pairs.
class SumOfSquares {
 public:
  // `count` is a multiple of kLanes except for a row's last block.
  void add(const float* values, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) sums_[lane] += values[i + lane] * values[i + lane];
    }
    for (int lane = 0; i < count; ++i, ++lane) sums_[lane] += values[i] * values[i];
  }
  float total() const {
    float sums[kLanes];
    std::copy_n(sums_, kLanes, sums);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    }
    return sums[0];
  }

 private:
  alignas(64) float sums_[kLanes] = {};
};

template <class T>
void normalize_row(const RmsNormParams& p, int64_t t) {
  const T* x = static_cast<const T*>(p.x) + t * p.width;
  const T* weight = static_cast<const T*>(p.weight);
  T* residual = p.residual == nullptr ? nullptr : static_cast<T*>(p.residual) + t * p.width;
  T* out = static_cast<T*>(p.out) + t * p.width;
  alignas(64) float values[kBlock], other[kBlock];

  SumOfSquares sum;
  for (int64_t begin = 0; begin < p.width; begin += kBlock) {
    const int64_t count = std::min(kBlock, p.width - begin);
    widen(x + begin, count, values);
    if (residual != nullptr) {
      widen(residual + begin, count, other);
      for (int64_t i = 0; i < count; ++i) values[i] += other[i];
      narrow(values, count, residual + begin);
      widen(residual + begin, count, values);
    }
    sum.add(values, count);
  }
  const float inverse = 1.0f / std::sqrt(sum.total() / static_cast<float>(p.width) + p.eps);
  const T* source = residual != nullptr ? residual : x;
  for (int64_t begin = 0; begin < p.width; begin += kBlock) {
    const int64_t count = std::min(kBlock, p.width - begin);
    widen(source + begin, count, values);
    widen(weight + begin, count, other);
    for (int64_t i = 0; i < count; ++i) values[i] = values[i] * inverse * other[i];
    narrow(values, count, out + begin);
  }
}

}  // namespace

Status rms_norm(const RmsNormParams& params, const Execution& execution) {
  const bool serial = params.num_tokens * params.width <= kSerialElements;
  with_host_type(params.dtype, [&](auto type) {
    parallel_for(params.num_tokens, serial ? 1 : execution.num_threads,
                 [&](int64_t t) { normalize_row<decltype(type)>(params, t); });
  });
  return {};
}

}  // namespace prologue::cpu
