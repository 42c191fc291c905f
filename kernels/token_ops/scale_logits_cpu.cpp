#include <algorithm>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/scaled_logit.h>

namespace prologue::cpu {

Status scale_logits(const ScaleLogitsParams& params, const Execution& execution) {
  constexpr int64_t kBlock = 4096;  // a task; a call of only one needs no thread
  const int64_t count = params.num_rows * params.width;
  const float factor = params.soft_cap == 0.0f ? params.scale : params.scale / params.soft_cap;
  parallel_for(divide_up(count, kBlock), execution.num_threads, [&](int64_t task) {
    const int64_t end = std::min(count, (task + 1) * kBlock);
    for (int64_t i = task * kBlock; i < end; ++i) params.out[i] = scaled_logit(params.x[i], factor, params.soft_cap);
  });
  return {};
}

}  // namespace prologue::cpu
