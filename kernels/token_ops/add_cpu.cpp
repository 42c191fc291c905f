#include <algorithm>

#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 15;  // below this, starting threads costs more than the work
constexpr int64_t kBlock = 512;               // channels that are float32 at a time

template <class T>
void add_row(const AddParams& p, int64_t t) {
  const T* a = static_cast<const T*>(p.a) + t * p.a_stride;
  const T* b = static_cast<const T*>(p.b) + t * p.b_stride;
  T* out = static_cast<T*>(p.out) + t * p.out_stride;
  alignas(64) float sums[kBlock], terms[kBlock];
  for (int64_t begin = 0; begin < p.width; begin += kBlock) {
    const int64_t count = std::min(kBlock, p.width - begin);
    widen(a + begin, count, sums);
    widen(b + begin, count, terms);
    for (int64_t i = 0; i < count; ++i) sums[i] += terms[i];
    narrow(sums, count, out + begin);
  }
}

}  // namespace

Status add(const AddParams& params, const Execution& execution) {
  const bool serial = params.num_tokens * params.width <= kSerialElements;
  with_host_type(params.dtype, [&](auto type) {
    parallel_for(params.num_tokens, serial ? 1 : execution.num_threads, [&](int64_t t) { add_row<decltype(type)>(params, t); });
  });
  return {};
}

}  // namespace prologue::cpu
