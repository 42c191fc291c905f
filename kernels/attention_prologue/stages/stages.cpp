#include <prologue/kernels/attention_prologue/stages/stages.h>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/steps/hadamard.h>
#include <prologue/kernels/attention_prologue/steps/head_norm.h>
#include <prologue/kernels/attention_prologue/steps/query_scale.h>
#include <prologue/kernels/attention_prologue/token_args.h>
#include <prologue/kernels/attention_prologue/token_checks.h>
#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>

namespace prologue {

Status validate(const AddBiasParams& p, const Execution& execution) {
  constexpr const char* kName = "add_bias";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  if (p.num_tokens == 0) return {};

  const Region x = heads_region("x", HeadsView{p.x, p.x_stride, 0}, p.num_tokens, 1, p.width, p.dtype);
  const Region y = heads_region("y", HeadsView{p.y, p.y_stride, 0}, p.num_tokens, 1, p.width, p.dtype);
  const Region bias = array_region("bias", p.bias, p.width, dtype_size(p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, x));
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, bias));
  PROLOGUE_RETURN_IF_ERROR(check_writable(kName, y));
  if (!same_region(y, x)) PROLOGUE_RETURN_IF_ERROR(check_apart(kName, y, x));
  return check_apart(kName, y, bias);
}

Status validate(const QkNormParams& p, const Execution& execution) {
  constexpr const char* kName = "qk_norm";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_heads", p.num_heads, 1, 65536));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(kName, p.head_dim, RopeStyle::neox, 0));
  const HeadNorm norm = resolved(p.norm, p.dtype);
  if ((norm.kind != NormKind::rms && norm.kind != NormKind::layer) ||
      (norm.scope != NormScope::head && norm.scope != NormScope::token)) {
    return unsupported(kName, ": kind is ", static_cast<int32_t>(norm.kind), " and scope ", static_cast<int32_t>(norm.scope),
                       ": supported are rms and layer over a head, and rms over a token");
  }
  if (norm.kind == NormKind::layer && norm.scope == NormScope::token) {
    return unsupported(kName, ": scope is token and kind is layer: over a whole token there is rms only");
  }
  if (norm.kind == NormKind::rms && norm.bias != nullptr) return invalid_argument(kName, ": bias is given, but kind is rms");
  PROLOGUE_RETURN_IF_ERROR(check_weight_type(kName, "weight_type", norm, p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_positive(kName, "eps", norm.eps));
  PROLOGUE_RETURN_IF_ERROR(check_finite(kName, "weight_offset", norm.weight_offset));
  if (norm.weight_head_stride != 0 && norm.weight_head_stride != p.head_dim) {
    return invalid_argument(kName, ": weight_head_stride is ", norm.weight_head_stride, ": it must be 0 or head_dim, ",
                            p.head_dim);
  }
  if (p.num_tokens == 0) return {};

  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "positions", p.positions));
  const int64_t weights = (norm.weight_head_stride == 0 ? 1 : p.num_heads) * p.head_dim;
  const int64_t weight_size = dtype_size(norm.weight_type);
  const auto optional = [](const void* data, int64_t count) { return data == nullptr ? 0 : count; };
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(heads_region("x", p.x, p.num_tokens, p.num_heads, p.head_dim, p.dtype)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("weight", norm.weight, optional(norm.weight, weights), weight_size)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("bias", norm.bias, optional(norm.bias, weights), weight_size)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(index_region("positions", p.positions, optional(p.positions.data, p.num_tokens))));
  PROLOGUE_RETURN_IF_ERROR(regions.write(heads_region("y", p.y, p.num_tokens, p.num_heads, p.head_dim, p.dtype), "x"));
  return regions.check_all_apart();
}

Status validate(const HadamardParams& p, const Execution& execution) {
  constexpr const char* kName = "hadamard";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_heads", p.num_heads, 1, 65536));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(kName, p.head_dim, RopeStyle::neox, 0));
  PROLOGUE_RETURN_IF_ERROR(check_hadamard_block(kName, "block", p.block, p.head_dim));
  if (p.num_tokens == 0) return {};

  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "positions", p.positions));
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(heads_region("x", p.x, p.num_tokens, p.num_heads, p.head_dim, p.dtype)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(index_region("positions", p.positions, p.positions.data == nullptr ? 0 : p.num_tokens)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(heads_region("y", p.y, p.num_tokens, p.num_heads, p.head_dim, p.dtype), "x"));
  return regions.check_all_apart();
}

Status validate(const QueryScaleParams& p, const Execution& execution) {
  constexpr const char* kName = "query_scale";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_heads", p.num_heads, 1, 65536));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(kName, p.head_dim, RopeStyle::neox, 0));
  PROLOGUE_RETURN_IF_ERROR(check_query_scale(kName, p.q_scale));
  if (p.num_tokens == 0) return {};

  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "positions", p.positions));
  const bool needs_positions = p.positions.data != nullptr || p.q_scale.by_position != PositionScale::none;
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(heads_region("x", p.x, p.num_tokens, p.num_heads, p.head_dim, p.dtype)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(index_region("positions", p.positions, needs_positions ? p.num_tokens : 0)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(heads_region("y", p.y, p.num_tokens, p.num_heads, p.head_dim, p.dtype), "x"));
  return regions.check_all_apart();
}

namespace {

KvWriteParams resolved(const KvWriteParams& params) {
  KvWriteParams p = params;
  p.cache = resolved(p.cache, p.dtype);
  if (p.past_table == PastTable::identity) p.max_position = 0;  // no bound
  return p;
}

}  // namespace

Status validate(const KvWriteParams& params, const Execution& execution) {
  constexpr const char* kName = "kv_write";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  KvWriteParams p = params;
  p.cache = resolved(p.cache, p.dtype);
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_kv_heads", p.num_kv_heads, 1, 65536));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(kName, p.head_dim, RopeStyle::neox, 0));
  const PagedKvView& c = p.cache;
  PROLOGUE_RETURN_IF_ERROR(check_v_head_dim(kName, c));
  if (p.num_tokens == 0) return {};

  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "max_position", p.max_position, 0, int64_t{1} << 40));
  PROLOGUE_RETURN_IF_ERROR(check_past_table(kName, p.past_table, p.max_position, p.faults));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_axes", p.num_axes, 1, 4));
  if (p.positions.data != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(check_stride_set(kName, "position_axis_stride", p.position_axis_stride, "num_axes", p.num_axes));
  }
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "positions", p.positions));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "slot_mapping", p.slot_mapping));
  PROLOGUE_RETURN_IF_ERROR(check_cache_shape(kName, c, p.num_kv_heads, p.head_dim));
  if (p.k.data == nullptr && p.v.data == nullptr) return invalid_argument(kName, ": k and v are both null");
  RegionChecks regions(kName);
  const auto add_side = [&](const char* name, const HeadsView& in, int64_t width, const PagedHeads& side, const Region& cache,
                            const Region& scale, const Region& block_scale) -> Status {
    if (in.data == nullptr) return {};
    PROLOGUE_RETURN_IF_ERROR(regions.read(heads_region(name, in, p.num_tokens, p.num_kv_heads, width, p.dtype)));
    PROLOGUE_RETURN_IF_ERROR(regions.write(cache));
    PROLOGUE_RETURN_IF_ERROR(regions.write(block_scale));
    return side.format.scaling == KvScaling::token_head ? regions.write(scale) : regions.read(scale);
  };
  PROLOGUE_RETURN_IF_ERROR(add_side("k", p.k, p.head_dim, c.k, cache_region("cache.k.data", c.k, p.head_dim, c),
                                    cache_scale_region("cache.k.scale", c.k, c),
                                    cache_block_scale_region("cache.k.block_scale", c.k, p.head_dim, c)));
  PROLOGUE_RETURN_IF_ERROR(add_side("v", p.v, v_head_dim(c), c.v, cache_region("cache.v.data", c.v, v_head_dim(c), c),
                                    cache_scale_region("cache.v.scale", c.v, c),
                                    cache_block_scale_region("cache.v.block_scale", c.v, v_head_dim(c), c)));
  PROLOGUE_RETURN_IF_ERROR(check_slot_mapping_len(kName, p.slot_mapping_len, p.slot_mapping, p.num_tokens));
  PROLOGUE_RETURN_IF_ERROR(
      regions.read(index_region("slot_mapping", p.slot_mapping, slots_given(p.slot_mapping_len, p.num_tokens))));
  PROLOGUE_RETURN_IF_ERROR(regions.read(positions_region("positions", p.positions, p.num_axes, p.position_axis_stride,
                                                         p.positions.data == nullptr ? 0 : p.num_tokens)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("faults", p.faults, p.faults == nullptr ? 0 : 1, alignof(FaultRecord))));
  return regions.check_all_apart();
}

Status run_validated(const AddBiasParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::add_bias, cuda::add_bias, params);
}

Status run_validated(const QkNormParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  QkNormParams p = params;
  p.norm = resolved(p.norm, p.dtype);
  return dispatch(execution, cpu::qk_norm, cuda::qk_norm, p);
}

Status run_validated(const HadamardParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::hadamard, cuda::hadamard, params);
}

Status run_validated(const QueryScaleParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::query_scale, cuda::query_scale, params);
}

Status run_validated(const KvWriteParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  const KvWriteParams p = resolved(params);
  return dispatch(execution, cpu::kv_write, cuda::kv_write, p);
}

Status add_bias(const AddBiasParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

Status qk_norm(const QkNormParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

Status hadamard(const HadamardParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

Status query_scale(const QueryScaleParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

Status kv_write(const KvWriteParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
