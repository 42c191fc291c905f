#include <prologue/kernels/attention_prologue/stages.h>

#include <array>

#include <prologue/kernels/base/view_checks.h>

namespace prologue {

namespace cpu {
Status add_bias(const AddBiasParams& params, int num_threads);
Status kv_write(const KvWriteParams& params, int num_threads);
}  // namespace cpu
namespace cuda {
Status add_bias(const AddBiasParams& params, CUstream_st* stream);
Status kv_write(const KvWriteParams& params, CUstream_st* stream);
}  // namespace cuda

namespace {

Status validate(const AddBiasParams& p) {
  constexpr const char* kName = "add_bias";
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  if (p.num_tokens == 0) return {};

  const Region x = heads_region("x", {p.x, p.x_stride, 0}, p.num_tokens, 1, p.width, p.dtype);
  const Region y = heads_region("y", {p.y, p.y_stride, 0}, p.num_tokens, 1, p.width, p.dtype);
  const Region bias = array_region("bias", p.bias, p.width, dtype_size(p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, x));
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, bias));
  PROLOGUE_RETURN_IF_ERROR(check_writable(kName, y));
  if (!same_region(y, x)) PROLOGUE_RETURN_IF_ERROR(check_apart(kName, y, x));
  return check_apart(kName, y, bias);
}

Status validate(const KvWriteParams& p) {
  constexpr const char* kName = "kv_write";
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_kv_heads", p.num_kv_heads, 1, 65536));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(kName, p.head_dim, RopeStyle::neox, 0));
  if (p.num_tokens == 0) return {};

  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "max_position", p.max_position, 0, int64_t{1} << 40));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "positions", p.positions));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "slot_mapping", p.slot_mapping));
  const std::array<Region, 4> inputs = {
      heads_region("k", p.k, p.num_tokens, p.num_kv_heads, p.head_dim, p.dtype),
      heads_region("v", p.v, p.num_tokens, p.num_kv_heads, p.head_dim, p.dtype),
      index_region("slot_mapping", p.slot_mapping, p.num_tokens),
      index_region("positions", p.positions, p.positions.data == nullptr ? 0 : p.num_tokens),
  };
  for (const Region& input : inputs) PROLOGUE_RETURN_IF_ERROR(check_readable(kName, input));
  PROLOGUE_RETURN_IF_ERROR(check_cache(kName, p.cache, p.num_kv_heads, p.head_dim, p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_faults(kName, p.faults));
  for (const Region& input : inputs) {
    PROLOGUE_RETURN_IF_ERROR(check_apart(kName, cache_region("cache.k", p.cache.k, p.cache.k_strides, p.cache), input));
    PROLOGUE_RETURN_IF_ERROR(check_apart(kName, cache_region("cache.v", p.cache.v, p.cache.v_strides, p.cache), input));
  }
  return {};
}

}  // namespace

Status add_bias(const AddBiasParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device("add_bias", execution.device));
  PROLOGUE_RETURN_IF_ERROR(validate(params));
  if (params.num_tokens == 0) return {};
  if (execution.device == Device::cpu) return cpu::add_bias(params, execution.num_threads);
#ifdef PROLOGUE_HAS_CUDA
  return cuda::add_bias(params, execution.stream);
#else
  return cuda_not_built("add_bias");
#endif
}

Status kv_write(const KvWriteParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device("kv_write", execution.device));
  PROLOGUE_RETURN_IF_ERROR(validate(params));
  if (params.num_tokens == 0) return {};
  if (execution.device == Device::cpu) return cpu::kv_write(params, execution.num_threads);
#ifdef PROLOGUE_HAS_CUDA
  return cuda::kv_write(params, execution.stream);
#else
  return cuda_not_built("kv_write");
#endif
}

}  // namespace prologue
