#include <prologue/kernels/rerope/rerope.h>

#include <prologue/kernels/attention_prologue/steps/hadamard.h>
#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/kv_types.h>
#include <prologue/kernels/rerope/backends.h>
#include <prologue/kernels/rotary/backends.h>
#include <prologue/kernels/rotary/rope_checks.h>

namespace prologue {

namespace {

constexpr const char* kName = "rerope";

Status check_rope(const ReropeParams& p) {
  const Rope& rope = p.rope;
  PROLOGUE_RETURN_IF_ERROR(check_rope_channels(kName, rope, p.cache.k.head_dim));
  if (rope.rotary_dim == 0) return invalid_argument(kName, ": rotary_dim is 0: keys without a rotation have no position");
  PROLOGUE_RETURN_IF_ERROR(check_rope_angles(kName, rope, p.num_keys > 0));
  if (rope_row_is_token(rope.source)) {
    return unsupported(kName, ": rope.source is ", rope.source == RopeSource::per_token ? "per_token" : "angles_per_token",
                       ": a key needs the rows of two positions; supported are table, inv_freq, theta and angles");
  }
  if (rope.attention_factor == 0.0) {
    return invalid_argument(kName, ": rope.attention_factor is 0: keys that were multiplied by it cannot be moved");
  }
  return check_rope_axes(kName, rope);
}

}  // namespace

Status validate(const ReropeParams& p, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_keys", p.num_keys, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "cache.num_kv_heads", p.cache.num_kv_heads, 1, 65536));
  PROLOGUE_RETURN_IF_ERROR(check_rope(p));
  const int64_t head_dim = p.cache.k.head_dim;
  if (p.hadamard_block != 0) {
    PROLOGUE_RETURN_IF_ERROR(check_hadamard_block(kName, "hadamard_block", p.hadamard_block, head_dim));
  }
  PagedKvView keys = p.cache;
  keys.v = {};
  PROLOGUE_RETURN_IF_ERROR(check_cache_shape(kName, keys, keys.num_kv_heads, head_dim));
  if (keys.k.data != nullptr && is_block_scaled(keys.k.format)) {
    return unsupported(kName, ": cache.k.format is ", kv_format_name(keys.k.format), ": keys of block-scaled formats cannot be moved");
  }
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "slot_mapping", p.slot_mapping));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "from_positions", p.from_positions));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "to_positions", p.to_positions));
  if (p.num_keys == 0) return {};
  PROLOGUE_RETURN_IF_ERROR(check_past_table(kName, p.rope.past_table, p.rope.max_position, p.faults));
  PROLOGUE_RETURN_IF_ERROR(
      check_stride_set(kName, "position_axis_stride", p.position_axis_stride, "rope.num_axes", p.rope.num_axes));

  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(index_region("slot_mapping", p.slot_mapping, p.num_keys)));
  const auto read_positions = [&](const char* name, const IndexView& positions) {
    return regions.read(positions_region(name, positions, p.rope.num_axes, p.position_axis_stride, p.num_keys));
  };
  PROLOGUE_RETURN_IF_ERROR(read_positions("from_positions", p.from_positions));
  PROLOGUE_RETURN_IF_ERROR(read_positions("to_positions", p.to_positions));
  PROLOGUE_RETURN_IF_ERROR(add_rope_angles(kName, p.rope, 1, p.num_keys, regions));
  PROLOGUE_RETURN_IF_ERROR(add_pair_axis(p.rope, regions));
  PROLOGUE_RETURN_IF_ERROR(regions.write(cache_region("cache.k", keys.k, head_dim, keys)));
  const Region scales = cache_scale_region("cache.k.scale", keys.k, keys);
  const bool computed = keys.k.format.scaling == KvScaling::token_head;
  PROLOGUE_RETURN_IF_ERROR(computed ? regions.write(scales) : regions.read(scales));
  PROLOGUE_RETURN_IF_ERROR(
      regions.write(array_region("token_faults", p.token_faults, p.token_faults == nullptr ? 0 : p.num_keys, 1)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("faults", p.faults, p.faults == nullptr ? 0 : 1, alignof(FaultRecord))));
  return regions.check_all_apart();
}

Status run_validated(const ReropeParams& params, const Execution& execution) {
  if (params.num_keys == 0) return {};
  RotaryFrequencies frequencies;
  compute_frequencies(params.rope, frequencies);
  return dispatch(execution, cpu::rerope, cuda::rerope, params, frequencies);
}

Status rerope(const ReropeParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
