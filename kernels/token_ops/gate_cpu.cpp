#include <algorithm>

#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/shared/sigmoid.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 13;  // below this, starting threads costs more than the work
constexpr int64_t kBlock = 512;               // channels that are float32 at a time

template <class T>
void gate_row(const GateParams& p, int64_t t) {
  const T* x = static_cast<const T*>(p.x) + t * p.x_stride;
  const T* gate = static_cast<const T*>(p.gate) + t * p.gate_stride;
  T* out = static_cast<T*>(p.out) + t * p.out_stride;
  alignas(64) float products[kBlock], factors[kBlock];
  for (int64_t begin = 0; begin < p.width; begin += kBlock) {
    const int64_t count = std::min(kBlock, p.width - begin);
    widen(x + begin, count, products);
    widen(gate + begin, count, factors);
    for (int64_t i = 0; i < count; ++i) products[i] *= sigmoid_f32(factors[i]);
    narrow(products, count, out + begin);
  }
}

}  // namespace

Status gate(const GateParams& params, const Execution& execution) {
  const bool serial = params.num_tokens * params.width <= kSerialElements;
  with_host_type(params.dtype, [&](auto type) {
    parallel_for(params.num_tokens, serial ? 1 : execution.num_threads, [&](int64_t t) { gate_row<decltype(type)>(params, t); });
  });
  return {};
}

}  // namespace prologue::cpu
