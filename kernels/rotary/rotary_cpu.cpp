#include <algorithm>

#include <prologue/kernels/base/head_cpu.h>
#include <prologue/kernels/base/token_guard.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::cpu {

Status rotary(const RotaryParams& params, int num_threads);

Status rotary(const RotaryParams& p, int num_threads) {
  const int threads = threads_for(p.num_tokens * p.num_heads * p.head_dim, num_threads);
  with_host_type(p.dtype, [&](auto type) {
    using T = decltype(type);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < p.num_tokens; ++t) {
      const int64_t position = p.positions.data == nullptr ? 0 : index_at(p.positions, t);
      const TokenGuard guard = guard_token(position, p.max_position, -1, 0);
      if (guard.fault != FaultCode::none) record_fault(p.faults, t, guard.fault);
      if (guard.padding) continue;
      const T* x = static_cast<const T*>(p.x.data) + t * p.x.token_stride;
      T* y = static_cast<T*>(p.y.data) + t * p.y.token_stride;
      if (!guard.position_ok) {
        for (int64_t h = 0; h < p.num_heads; ++h) std::fill_n(y + h * p.y.head_stride, p.head_dim, T{});
        continue;
      }
      const RotationRow row = rotation_row(p.style, p.rotary_dim, p.cos_sin_cache, position);
      for (int64_t h = 0; h < p.num_heads; ++h) {
        rotate_head(x + h * p.x.head_stride, row, p.head_dim, y + h * p.y.head_stride);
      }
    }
  });
  return {};
}

}  // namespace prologue::cpu
