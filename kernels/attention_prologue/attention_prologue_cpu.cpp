#include <algorithm>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/head_cpu.h>
#include <prologue/kernels/base/token_guard.h>

namespace prologue::cpu {

Status attention_prologue(const AttentionPrologueParams& params, int num_threads);

namespace {

template <class T>
const T* head_at(const HeadsView& view, int64_t token, int64_t head) {
  return static_cast<const T*>(view.data) + token * view.token_stride + head * view.head_stride;
}

template <class T>
const T* bias_of(const void* bias, int64_t head, int64_t head_dim) {
  return bias == nullptr ? nullptr : static_cast<const T*>(bias) + head * head_dim;
}

template <class T>
void process_token(const AttentionPrologueParams& p, int64_t t) {
  const int64_t position = p.places.positions.data == nullptr ? 0 : index_at(p.places.positions, t);
  const TokenGuard guard = guard_token(position, p.rotation.max_position, index_at(p.places.slot_mapping, t), p.cache.num_slots());
  if (guard.fault != FaultCode::none) record_fault(p.faults, t, guard.fault);
  if (guard.padding) return;

  T* q_out = static_cast<T*>(p.q_out.data) + t * p.q_out.token_stride;
  if (!guard.position_ok) {
    for (int64_t h = 0; h < p.num_q_heads; ++h) std::fill_n(q_out + h * p.q_out.head_stride, p.head_dim, T{});
    return;
  }
  const RotationRow row = rotation_row(p.rotation.style, p.rotation.rotary_dim, p.rotation.cos_sin, position);
  for (int64_t h = 0; h < p.num_q_heads; ++h) {
    transform_head(head_at<T>(p.q, t, h), bias_of<T>(p.bias.q, h, p.head_dim), row, p.head_dim, q_out + h * p.q_out.head_stride);
  }
  if (guard.slot < 0) return;

  const int64_t page = guard.slot / p.cache.page_size;
  const int64_t offset = guard.slot % p.cache.page_size;
  T* k_out = static_cast<T*>(p.cache.k) + page * p.cache.k_strides.page + offset * p.cache.k_strides.token;
  T* v_out = static_cast<T*>(p.cache.v) + page * p.cache.v_strides.page + offset * p.cache.v_strides.token;
  for (int64_t h = 0; h < p.num_kv_heads; ++h) {
    transform_head(head_at<T>(p.k, t, h), bias_of<T>(p.bias.k, h, p.head_dim), row, p.head_dim,
                   k_out + h * p.cache.k_strides.head);
    transform_head(head_at<T>(p.v, t, h), bias_of<T>(p.bias.v, h, p.head_dim), {}, p.head_dim,
                   v_out + h * p.cache.v_strides.head);
  }
}

}  // namespace

Status attention_prologue(const AttentionPrologueParams& p, int num_threads) {
  const int threads = threads_for(p.num_tokens * (p.num_q_heads + 2 * p.num_kv_heads) * p.head_dim, num_threads);
  with_host_type(p.dtype, [&](auto type) {
    using T = decltype(type);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < p.num_tokens; ++t) process_token<T>(p, t);
  });
  return {};
}

}  // namespace prologue::cpu
