#include <algorithm>

#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/moe/backends.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 14;  // of y; below this, starting threads costs more than the work
constexpr int64_t kBlock = 512;               // channels that are float32 at a time

template <class T>
void combine_token(const MoeCombineParams& p, int64_t t) {
  alignas(64) float sums[kBlock], terms[kBlock];
  for (int64_t begin = 0; begin < p.width; begin += kBlock) {
    const int64_t count = std::min(kBlock, p.width - begin);
    std::fill_n(sums, count, 0.0f);
    for (int64_t r = t * p.top_k; r < (t + 1) * p.top_k; ++r) {
      widen(static_cast<const T*>(p.y) + r * p.width + begin, count, terms);
      const float weight = p.expert_weights == nullptr ? 1.0f : p.expert_weights[r];
      for (int64_t i = 0; i < count; ++i) sums[i] = fused_multiply_add(weight, terms[i], sums[i]);
    }
    if (p.shared != nullptr) {
      widen(static_cast<const T*>(p.shared) + t * p.width + begin, count, terms);
      for (int64_t i = 0; i < count; ++i) sums[i] += terms[i];
    }
    narrow(sums, count, static_cast<T*>(p.out) + t * p.width + begin);
  }
}

}  // namespace

Status moe_combine(const MoeCombineParams& params, const Execution& execution) {
  const bool serial = params.num_tokens * params.top_k * params.width <= kSerialElements;
  with_host_type(params.dtype, [&](auto type) {
    parallel_for(params.num_tokens, serial ? 1 : execution.num_threads,
                 [&](int64_t t) { combine_token<decltype(type)>(params, t); });
  });
  return {};
}

}  // namespace prologue::cpu
