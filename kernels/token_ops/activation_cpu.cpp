#include <algorithm>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/token_ops/activation_math.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 13;  // below this, starting threads costs more than the work
constexpr int64_t kBlock = 512;               // channels that are float32 at a time

// Computes channels begin, begin + 1, ... of group `row` % groups of token `row` / groups.
template <class T, Activation KIND>
void activate_block(const ActivationParams& p, int64_t row, int64_t begin) {
  const int64_t columns = (p.gated ? 2 : 1) * p.width;
  const T* x = static_cast<const T*>(p.x) + row / p.groups * p.x_stride + row % p.groups * columns + begin;
  const int64_t count = std::min(kBlock, p.width - begin);
  alignas(64) float values[kBlock], up[kBlock];
  widen(x, count, values);
  if (p.gated) {
    widen(x + p.width, count, up);
    for (int64_t i = 0; i < count; ++i) values[i] = activate_gated<KIND>(values[i], up[i], p.limit, p.alpha);
  } else if constexpr (KIND != Activation::clamped_swiglu) {
    for (int64_t i = 0; i < count; ++i) values[i] = activate<KIND>(values[i]);
  }
  narrow(values, count, static_cast<T*>(p.out) + row * p.width + begin);
}

}  // namespace

Status activation(const ActivationParams& params, const Execution& execution) {
  const int64_t rows = params.num_tokens * params.groups;
  const bool serial = rows * params.width <= kSerialElements;
  const int64_t blocks_per_row = divide_up(params.width, kBlock);
  with_host_type(params.dtype, [&](auto type) {
    with_activation(params.kind, [&](auto kind) {
      parallel_for(rows * blocks_per_row, serial ? 1 : execution.num_threads, [&](int64_t task) {
        activate_block<decltype(type), decltype(kind)::value>(params, task / blocks_per_row, task % blocks_per_row * kBlock);
      });
    });
  });
  return {};
}

}  // namespace prologue::cpu
