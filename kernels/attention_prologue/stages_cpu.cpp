#include <algorithm>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/cache_cpu.h>
#include <prologue/kernels/attention_prologue/norm_cpu.h>
#include <prologue/kernels/attention_prologue/query_factor.h>
#include <prologue/kernels/base/head_cpu.h>
#include <prologue/kernels/base/parallel.h>
#include <prologue/kernels/base/token_guard.h>

namespace prologue::cpu {

namespace {

// The guard of a token with positions on several axes: padding if one is negative, otherwise bad if one is too large.
int64_t decisive_position(const KvWriteParams& p, int64_t t) {
  int64_t largest = 0;
  for (int64_t axis = 0; p.positions.data != nullptr && axis < p.num_axes; ++axis) {
    const int64_t position = index_at(p.positions, axis * p.position_axis_stride + t);
    if (position < 0) return position;
    largest = std::max(largest, position);
  }
  return largest;
}

}  // namespace

Status add_bias(const AddBiasParams& p, const Execution& execution) {
  const int threads = threads_for(p.num_tokens * p.width, execution.num_threads);
  with_host_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const T* bias = static_cast<const T*>(p.bias);
    parallel_for(p.num_tokens, threads, [&](int64_t t) {
      const T* x = static_cast<const T*>(p.x) + t * p.x_stride;
      T* y = static_cast<T*>(p.y) + t * p.y_stride;
      for (int64_t i = 0; i < p.width; ++i) y[i] = from_float<T>(add_rounded(to_float(x[i]), to_float(bias[i])));
    });
  });
  return {};
}

Status qk_norm(const QkNormParams& p, const Execution& execution) {
  const int threads = threads_for(p.num_tokens * p.num_heads * p.head_dim, execution.num_threads);
  with_host_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const HeadNorm& norm = p.norm;
    parallel_for(p.num_tokens, threads, [&](int64_t t) {
      if (p.positions.data != nullptr && index_at(p.positions, t) < 0) return;
      alignas(64) float values[kMaxHeadDim];
      NormFactors of_token;
      if (norm.scope == NormScope::token) {
        float squares = 0.0f;
        for (int64_t h = 0; h < p.num_heads; ++h) {
          load_values<T>(head_at<T>(p.x, t, h), nullptr, p.head_dim, values);
          squares += square_sum(values, p.head_dim);
        }
        of_token = rms_factors(squares, p.num_heads * p.head_dim, norm.eps);
      }
      for (int64_t h = 0; h < p.num_heads; ++h) {
        load_values<T>(head_at<T>(p.x, t, h), nullptr, p.head_dim, values);
        const NormFactors factors = norm.scope == NormScope::token ? of_token : head_factors(values, p.head_dim, norm.kind, norm.eps);
        normalize<T>(norm, factors, h, p.head_dim, values);
        narrow(values, p.head_dim, head_at<T>(p.y, t, h));
      }
    });
  });
  return {};
}

Status query_scale(const QueryScaleParams& p, const Execution& execution) {
  const int threads = threads_for(p.num_tokens * p.num_heads * p.head_dim, execution.num_threads);
  with_host_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(p.num_tokens, threads, [&](int64_t t) {
      const int64_t position = p.positions.data == nullptr ? 0 : index_at(p.positions, t);
      if (position < 0) return;
      const float factor = query_factor(p.q_scale, position);
      const int64_t changed = factor == 1.0f ? 0 : p.head_dim;
      alignas(64) float values[kMaxHeadDim];
      for (int64_t h = 0; h < p.num_heads; ++h) {
        const T* x = head_at<T>(p.x, t, h);
        load_values<T>(x, nullptr, p.head_dim, values);
        for (int64_t i = 0; i < changed; ++i) values[i] *= factor;
        store_head<T>({values, p.head_dim, x, 0, changed}, head_at<T>(p.y, t, h));
      }
    });
  });
  return {};
}

Status kv_write(const KvWriteParams& p, const Execution& execution) {
  const int threads = threads_for(2 * p.num_tokens * p.num_kv_heads * p.head_dim, execution.num_threads);
  with_host_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto write_heads = [&](const HeadsView& from, const PagedHeads& side, int64_t width, int64_t t, int64_t slot) {
      if (from.data == nullptr) return;
      alignas(64) float values[kMaxHeadDim];
      for (int64_t h = 0; h < p.num_kv_heads; ++h) {
        const T* x = head_at<T>(from, t, h);
        load_values<T>(x, nullptr, width, values);
        write_head<T>(side, p.cache.page_size, slot, h, {values, width, x, 0, 0});
      }
    };
    parallel_for(p.num_tokens, threads, [&](int64_t t) {
      const TokenGuard guard =
          guard_token(decisive_position(p, t), p.max_position, index_at(p.slot_mapping, t), num_slots(p.cache));
      if (guard.fault != FaultCode::none) record_fault(p.faults, t, guard.fault);
      if (guard.slot < 0) return;
      write_heads(p.k, p.cache.k, p.head_dim, t, guard.slot);
      write_heads(p.v, p.cache.v, v_head_dim(p.cache), t, guard.slot);
    });
  });
  return {};
}

}  // namespace prologue::cpu
