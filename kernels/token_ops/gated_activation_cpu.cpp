#include <algorithm>

#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/shared/exp.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 13;  // below this, starting threads costs more than the work
constexpr int64_t kBlock = 512;               // channels that are float32 at a time

float silu(float x) { return x / (1.0f + exp_f32(-x)); }

// 1 + tanh(y) = 2 / (1 + exp(-2 y))
float gelu_tanh(float x) {
  constexpr float kTwoSqrt2OverPi = 1.5957691216f;
  return x / (1.0f + exp_f32(-kTwoSqrt2OverPi * (x + 0.044715f * x * x * x)));
}

template <class T>
void activate_block(const GatedActivationParams& p, int64_t t, int64_t begin) {
  const T* gate = static_cast<const T*>(p.gate_up) + t * 2 * p.width + begin;
  const int64_t count = std::min(kBlock, p.width - begin);
  alignas(64) float values[kBlock], up[kBlock];
  widen(gate, count, values);
  widen(gate + p.width, count, up);
  if (p.activation == Activation::silu) {
    for (int64_t i = 0; i < count; ++i) values[i] = silu(values[i]) * up[i];
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] = gelu_tanh(values[i]) * up[i];
  }
  narrow(values, count, static_cast<T*>(p.out) + t * p.width + begin);
}

}  // namespace

Status gated_activation(const GatedActivationParams& params, const Execution& execution) {
  const bool serial = params.num_tokens * params.width <= kSerialElements;
  const int64_t blocks_per_row = (params.width + kBlock - 1) / kBlock;
  with_host_type(params.dtype, [&](auto type) {
    parallel_for(params.num_tokens * blocks_per_row, serial ? 1 : execution.num_threads, [&](int64_t task) {
      activate_block<decltype(type)>(params, task / blocks_per_row, task % blocks_per_row * kBlock);
    });
  });
  return {};
}

}  // namespace prologue::cpu
