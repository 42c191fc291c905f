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

// Adds terms in a fixed order: that of channel i goes to partial sum i % kLanes, then the partial sums are added in pairs.
class RowSum {
 public:
  // `count` is a multiple of kLanes except for a row's last block.
  template <class Term>
  void add(const float* values, int64_t count, const Term& term) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) sums_[lane] += term(values[i + lane]);
    }
    for (int lane = 0; i < count; ++i, ++lane) sums_[lane] += term(values[i]);
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
void normalize_row(const NormParams& p, int64_t t) {
  const bool layer = p.kind == NormKind::layer;
  const T* x = static_cast<const T*>(p.x) + t * p.width;
  T* residual = p.residual == nullptr ? nullptr : static_cast<T*>(p.residual) + t * p.width;
  const T* source = residual != nullptr ? residual : x;
  T* out = static_cast<T*>(p.out) + t * p.width;
  alignas(64) float values[kBlock], other[kBlock];
  const auto for_each_block = [&](const auto& work) {
    for (int64_t begin = 0; begin < p.width; begin += kBlock) work(begin, std::min(kBlock, p.width - begin));
  };
  const auto widen_weights = [&](const void* weights, int64_t begin, int64_t count) {
    if (p.weight_type == DType::f32) return widen(static_cast<const float*>(weights) + begin, count, other);
    widen(static_cast<const T*>(weights) + begin, count, other);
  };

  RowSum first;  // of the values of a layer norm, of their squares for an rms norm
  for_each_block([&](int64_t begin, int64_t count) {
    widen(x + begin, count, values);
    if (residual != nullptr) {
      widen(residual + begin, count, other);
      for (int64_t i = 0; i < count; ++i) values[i] += other[i];
      narrow(values, count, residual + begin);
      widen(residual + begin, count, values);
    }
    if (layer) {
      first.add(values, count, [](float value) { return value; });
    } else {
      first.add(values, count, [](float value) { return value * value; });
    }
  });
  const float width = static_cast<float>(p.width);
  const float mean = layer ? first.total() / width : 0.0f;
  RowSum squares = first;
  if (layer) {
    squares = {};
    for_each_block([&](int64_t begin, int64_t count) {
      widen(source + begin, count, values);
      squares.add(values, count, [mean](float value) { return (value - mean) * (value - mean); });
    });
  }
  const float inverse = 1.0f / std::sqrt(squares.total() / width + p.eps);
  for_each_block([&](int64_t begin, int64_t count) {
    widen(source + begin, count, values);
    if (layer) {
      for (int64_t i = 0; i < count; ++i) values[i] -= mean;
    }
    for (int64_t i = 0; i < count; ++i) values[i] *= inverse;
    if (p.weight != nullptr) {
      widen_weights(p.weight, begin, count);
      for (int64_t i = 0; i < count; ++i) values[i] *= other[i];
    }
    if (p.bias != nullptr) {
      widen_weights(p.bias, begin, count);
      for (int64_t i = 0; i < count; ++i) values[i] += other[i];
    }
    narrow(values, count, out + begin);
  });
}

}  // namespace

Status norm(const NormParams& params, const Execution& execution) {
  const bool serial = params.num_tokens * params.width <= kSerialElements;
  with_host_type(params.dtype, [&](auto type) {
    parallel_for(params.num_tokens, serial ? 1 : execution.num_threads,
                 [&](int64_t t) { normalize_row<decltype(type)>(params, t); });
  });
  return {};
}

}  // namespace prologue::cpu
