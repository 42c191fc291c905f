#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include <array>

#include <prologue/kernels/base/view_checks.h>

namespace prologue {

namespace cpu {
Status attention_prologue(const AttentionPrologueParams& params, int num_threads);
}
namespace cuda {
Status attention_prologue(const AttentionPrologueParams& params, CUstream_st* stream);
Result<const void*> plan_attention_prologue(const AttentionPrologueParams& params);
Status attention_prologue(const void* plan, const AttentionPrologueParams& params, CUstream_st* stream);
}  // namespace cuda

void set_packed_qkv(AttentionPrologueParams& params, const void* qkv, int64_t token_stride) {
  const auto at_head = [&](int64_t head) {
    const int64_t bytes = head * params.head_dim * dtype_size(params.dtype);
    const void* data = qkv == nullptr ? nullptr : static_cast<const char*>(qkv) + bytes;
    return HeadsView{data, token_stride, params.head_dim};
  };
  params.q = at_head(0);
  params.k = at_head(params.num_q_heads);
  params.v = at_head(params.num_q_heads + params.num_kv_heads);
}

Status validate(const AttentionPrologueParams& p) {
  constexpr const char* kName = "attention_prologue";
  constexpr int64_t kMaxHeads = 65536;
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_q_heads", p.num_q_heads, 1, kMaxHeads));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_kv_heads", p.num_kv_heads, 1, kMaxHeads));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(kName, p.head_dim, p.rotation.style, p.rotation.rotary_dim));
  if (p.num_tokens == 0) return {};

  PROLOGUE_RETURN_IF_ERROR(check_rotation_table(kName, p.rotation.rotary_dim, p.rotation.cos_sin, p.rotation.max_position,
                                                p.places.positions, p.num_tokens));
  const Region q = heads_region("q", p.q, p.num_tokens, p.num_q_heads, p.head_dim, p.dtype);
  const Region q_out = heads_region("q_out", p.q_out, p.num_tokens, p.num_q_heads, p.head_dim, p.dtype);
  const int64_t size = dtype_size(p.dtype);
  const std::array<Region, 8> inputs = {
      heads_region("k", p.k, p.num_tokens, p.num_kv_heads, p.head_dim, p.dtype),
      heads_region("v", p.v, p.num_tokens, p.num_kv_heads, p.head_dim, p.dtype),
      index_region("slot_mapping", p.places.slot_mapping, p.num_tokens),
      // From here on null means "not used".
      array_region("bias.q", p.bias.q, p.bias.q == nullptr ? 0 : p.num_q_heads * p.head_dim, size),
      array_region("bias.k", p.bias.k, p.bias.k == nullptr ? 0 : p.num_kv_heads * p.head_dim, size),
      array_region("bias.v", p.bias.v, p.bias.v == nullptr ? 0 : p.num_kv_heads * p.head_dim, size),
      table_region(p.rotation.rotary_dim, p.rotation.cos_sin, p.rotation.max_position),
      index_region("positions", p.places.positions, p.places.positions.data == nullptr ? 0 : p.num_tokens),
  };
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, q));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "slot_mapping", p.places.slot_mapping));
  for (const Region& input : inputs) PROLOGUE_RETURN_IF_ERROR(check_readable(kName, input));
  PROLOGUE_RETURN_IF_ERROR(check_writable(kName, q_out));
  PROLOGUE_RETURN_IF_ERROR(check_cache(kName, p.cache, p.num_kv_heads, p.head_dim, p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_faults(kName, p.faults));

  const Region cache_k = cache_region("cache.k", p.cache.k, p.cache.k_strides, p.cache);
  const Region cache_v = cache_region("cache.v", p.cache.v, p.cache.v_strides, p.cache);
  if (!same_region(q_out, q)) PROLOGUE_RETURN_IF_ERROR(check_apart(kName, q_out, q));
  for (const Region* cache : {&cache_k, &cache_v}) {
    PROLOGUE_RETURN_IF_ERROR(check_apart(kName, *cache, q));
    PROLOGUE_RETURN_IF_ERROR(check_apart(kName, *cache, q_out));
  }
  for (const Region& input : inputs) {
    for (const Region* written : {&q_out, &cache_k, &cache_v}) PROLOGUE_RETURN_IF_ERROR(check_apart(kName, *written, input));
  }
  return {};
}

Status attention_prologue(const AttentionPrologueParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device("attention_prologue", execution.device));
  PROLOGUE_RETURN_IF_ERROR(validate(params));
  if (params.num_tokens == 0) return {};
  if (execution.device == Device::cpu) return cpu::attention_prologue(params, execution.num_threads);
#ifdef PROLOGUE_HAS_CUDA
  return cuda::attention_prologue(params, execution.stream);
#else
  return cuda_not_built("attention_prologue");
#endif
}

Result<AttentionProloguePlan> AttentionProloguePlan::create(const AttentionPrologueParams& params, int64_t max_tokens,
                                                            const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device("attention_prologue plan", execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range("attention_prologue plan", "max_tokens", max_tokens, 1, INT32_MAX));
  AttentionPrologueParams largest = params;
  largest.num_tokens = max_tokens;
  PROLOGUE_RETURN_IF_ERROR(validate(largest));
  AttentionProloguePlan plan;
  plan.max_tokens_ = max_tokens;
  plan.device_ = execution.device;
  if (execution.device == Device::cuda) {
#ifdef PROLOGUE_HAS_CUDA
    PROLOGUE_ASSIGN_OR_RETURN(plan.kernel_, cuda::plan_attention_prologue(largest));
#else
    return cuda_not_built("attention_prologue");
#endif
  }
  return plan;
}

Status AttentionProloguePlan::run(const AttentionPrologueParams& params, const Execution& execution) const {
  if (params.num_tokens < 0 || params.num_tokens > max_tokens_) {
    return invalid_argument("attention_prologue plan: num_tokens is ", params.num_tokens, ": it must lie in 0..max_tokens, ",
                            max_tokens_);
  }
  if (execution.device != device_) {
    return invalid_argument("attention_prologue plan: device is ", device_name(execution.device), ": the plan was made for ",
                            device_name(device_));
  }
  if (params.num_tokens == 0) return {};
  if (device_ == Device::cpu) return cpu::attention_prologue(params, execution.num_threads);
#ifdef PROLOGUE_HAS_CUDA
  return cuda::attention_prologue(kernel_, params, execution.stream);
#else
  return cuda_not_built("attention_prologue");
#endif
}

}  // namespace prologue
