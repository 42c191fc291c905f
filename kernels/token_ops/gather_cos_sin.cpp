#include <prologue/kernels/token_ops/gather_cos_sin.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

Status validate(const GatherCosSinParams& p, const Execution& execution) {
  constexpr const char* kName = "gather_cos_sin";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "rotary_dim", p.rotary_dim, 2, 65536));
  if (p.rotary_dim % 2 != 0) return invalid_argument(kName, ": rotary_dim is ", p.rotary_dim, ": it must be even");
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "max_position", p.max_position, 1, int64_t{1} << 40));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_axes", p.num_axes, 1, 4));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "type", p.type));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "positions", p.positions));
  PROLOGUE_RETURN_IF_ERROR(check_past_table(kName, p.past_table, 0, nullptr));  // nothing is recorded here
  if (p.num_tokens == 0) return {};
  PROLOGUE_RETURN_IF_ERROR(check_stride_set(kName, "position_axis_stride", p.position_axis_stride, "num_axes", p.num_axes));
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("cos_sin", p.cos_sin, p.max_position * p.rotary_dim, dtype_size(p.type))));
  PROLOGUE_RETURN_IF_ERROR(
      regions.read(positions_region("positions", p.positions, p.num_axes, p.position_axis_stride, p.num_tokens)));
  PROLOGUE_RETURN_IF_ERROR(
      regions.read(array_region("pair_axis", p.pair_axis, p.pair_axis == nullptr ? 0 : p.rotary_dim / 2, 1)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("out", p.out, p.num_tokens * p.rotary_dim, 4)));
  return regions.check_all_apart();
}

Status run_validated(const GatherCosSinParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::gather_cos_sin, cuda::gather_cos_sin, params);
}

Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
