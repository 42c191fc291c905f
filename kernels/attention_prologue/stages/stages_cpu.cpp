#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/steps/head_steps_cpu.h>
#include <prologue/kernels/attention_prologue/steps/query_factor.h>
#include <prologue/kernels/attention_prologue/steps/store_head_cpu.h>
#include <prologue/kernels/attention_prologue/token_indices_cpu.h>
#include <prologue/kernels/base/host/head_cpu.h>
#include <prologue/kernels/base/host/parallel.h>

namespace prologue::cpu {

namespace {

TokenArgs token_args(const KvWriteParams& p) {
  TokenArgs args;
  args.positions = p.positions;
  args.position_axis_stride = p.position_axis_stride;
  args.max_position = p.max_position;
  args.num_axes = static_cast<int32_t>(p.num_axes);
  args.past_table = p.past_table;
  args.slots = p.slot_mapping;
  args.slots_given = slots_given(p.slot_mapping_len, p.num_tokens);
  args.num_slots = num_slots(p.cache);
  args.pages = page_divider(p.cache.page_size);
  return args;
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
    HeadSteps<T> steps;
    steps.num_heads = p.num_heads;
    steps.width = p.head_dim;
    set_norm(steps, p.norm);
    steps.norm.placement = NormPlacement::before_rope;
    parallel_for(p.num_tokens, threads, [&](int64_t t) {
      if (p.positions.data != nullptr && index_at(p.positions, t) < 0) return;
      for_each_head(steps, {p.x}, t, [&](int64_t h, const FinishedHead<T>& head) { store_head(head, head_at<T>(p.y, t, h)); });
    });
  });
  return {};
}

Status hadamard(const HadamardParams& p, const Execution& execution) {
  const int threads = threads_for(p.num_tokens * p.num_heads * p.head_dim, execution.num_threads);
  with_host_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    HeadSteps<T> steps;
    steps.num_heads = p.num_heads;
    steps.width = p.head_dim;
    set_hadamard(steps, p.block);
    parallel_for(p.num_tokens, threads, [&](int64_t t) {
      if (p.positions.data != nullptr && index_at(p.positions, t) < 0) return;
      for_each_head(steps, {p.x}, t, [&](int64_t h, const FinishedHead<T>& head) { store_head(head, head_at<T>(p.y, t, h)); });
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
      HeadSteps<T> steps;
      steps.num_heads = p.num_heads;
      steps.width = p.head_dim;
      steps.factor = query_factor(p.q_scale, position);
      for_each_head(steps, {p.x}, t, [&](int64_t h, const FinishedHead<T>& head) { store_head(head, head_at<T>(p.y, t, h)); });
    });
  });
  return {};
}

Status kv_write(const KvWriteParams& p, const Execution& execution) {
  const int threads = threads_for(2 * p.num_tokens * p.num_kv_heads * p.head_dim, execution.num_threads);
  const TokenArgs args = token_args(p);
  with_host_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto write_heads = [&](const HeadsView& from, const PagedHeads& side, int64_t width, int64_t t,
                                 const ResolvedToken& token) {
      HeadSteps<T> steps;
      steps.num_heads = from.data == nullptr ? 0 : p.num_kv_heads;
      steps.width = width;
      for_each_head(steps, {from}, t,
                    [&](int64_t h, const FinishedHead<T>& head) { write_head(side, token.page, token.offset, h, head); });
    };
    parallel_for(p.num_tokens, threads, [&](int64_t t) {
      const ResolvedToken token = resolve_token(args, t);
      if (token.padding) return;
      if (token.fault != FaultCode::none) record_fault(p.faults, t, token.fault);
      if (!token.reaches_cache) return;
      write_heads(p.k, p.cache.k, p.head_dim, t, token);
      write_heads(p.v, p.cache.v, v_head_dim(p.cache), t, token);
    });
  });
  return {};
}

}  // namespace prologue::cpu
