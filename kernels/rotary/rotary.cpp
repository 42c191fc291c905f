#include <prologue/kernels/rotary/rotary.h>

#include <prologue/kernels/base/view_checks.h>

namespace prologue {

namespace cpu {
Status rotary(const RotaryParams& params, int num_threads);
}
namespace cuda {
Status rotary(const RotaryParams& params, CUstream_st* stream);
}

namespace {

Status validate(const RotaryParams& p) {
  constexpr const char* kName = "rotary";
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_heads", p.num_heads, 1, 65536));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(kName, p.head_dim, p.style, p.rotary_dim));
  if (p.num_tokens == 0) return {};

  PROLOGUE_RETURN_IF_ERROR(check_rotation_table(kName, p.rotary_dim, p.cos_sin_cache, p.max_position, p.positions, p.num_tokens));
  const Region x = heads_region("x", p.x, p.num_tokens, p.num_heads, p.head_dim, p.dtype);
  const Region y = heads_region("y", p.y, p.num_tokens, p.num_heads, p.head_dim, p.dtype);
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, x));
  PROLOGUE_RETURN_IF_ERROR(check_writable(kName, y));
  PROLOGUE_RETURN_IF_ERROR(check_faults(kName, p.faults));
  if (!same_region(y, x)) PROLOGUE_RETURN_IF_ERROR(check_apart(kName, y, x));
  PROLOGUE_RETURN_IF_ERROR(check_apart(kName, y, table_region(p.rotary_dim, p.cos_sin_cache, p.max_position)));
  return check_apart(kName, y, index_region("positions", p.positions, p.positions.data == nullptr ? 0 : p.num_tokens));
}

}  // namespace

Status rotary(const RotaryParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device("rotary", execution.device));
  PROLOGUE_RETURN_IF_ERROR(validate(params));
  if (params.num_tokens == 0) return {};
  if (execution.device == Device::cpu) return cpu::rotary(params, execution.num_threads);
#ifdef PROLOGUE_HAS_CUDA
  return cuda::rotary(params, execution.stream);
#else
  return cuda_not_built("rotary");
#endif
}

}  // namespace prologue
