#include <cstring>

#include <prologue/kernels/attention_prologue/stages.h>
#include <prologue/kernels/base/head_cpu.h>
#include <prologue/kernels/base/token_guard.h>

namespace prologue::cpu {

Status add_bias(const AddBiasParams& params, int num_threads);
Status kv_write(const KvWriteParams& params, int num_threads);

Status add_bias(const AddBiasParams& p, int num_threads) {
  const int threads = threads_for(p.num_tokens * p.width, num_threads);
  with_host_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const T* bias = static_cast<const T*>(p.bias);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < p.num_tokens; ++t) {
      const T* x = static_cast<const T*>(p.x) + t * p.x_stride;
      T* y = static_cast<T*>(p.y) + t * p.y_stride;
      for (int64_t i = 0; i < p.width; ++i) y[i] = from_float<T>(add_rounded(to_float(x[i]), to_float(bias[i])));
    }
  });
  return {};
}

Status kv_write(const KvWriteParams& p, int num_threads) {
  const int64_t size = dtype_size(p.dtype);
  const auto copy_heads = [&](const HeadsView& from, int64_t t, void* to, const PageStrides& strides, int64_t page,
                              int64_t offset) {
    for (int64_t h = 0; h < p.num_kv_heads; ++h) {
      const char* source = static_cast<const char*>(from.data) + (t * from.token_stride + h * from.head_stride) * size;
      char* target = static_cast<char*>(to) + (page * strides.page + offset * strides.token + h * strides.head) * size;
      std::memcpy(target, source, static_cast<size_t>(p.head_dim * size));
    }
  };
  const int threads = threads_for(2 * p.num_tokens * p.num_kv_heads * p.head_dim, num_threads);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const int64_t position = p.positions.data == nullptr ? 0 : index_at(p.positions, t);
    const TokenGuard guard = guard_token(position, p.max_position, index_at(p.slot_mapping, t), p.cache.num_slots());
    if (guard.fault != FaultCode::none) record_fault(p.faults, t, guard.fault);
    if (guard.slot < 0) continue;
    const int64_t page = guard.slot / p.cache.page_size;
    const int64_t offset = guard.slot % p.cache.page_size;
    copy_heads(p.k, t, p.cache.k, p.cache.k_strides, page, offset);
    copy_heads(p.v, t, p.cache.v, p.cache.v_strides, page, offset);
  }
  return {};
}

}  // namespace prologue::cpu
