#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include <algorithm>
#include <cmath>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/head_groups.h>
#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/attention_prologue/steps/hadamard.h>
#include <prologue/kernels/attention_prologue/steps/head_norm.h>
#include <prologue/kernels/attention_prologue/steps/query_scale.h>
#include <prologue/kernels/attention_prologue/token_args.h>
#include <prologue/kernels/attention_prologue/token_checks.h>
#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/page_table_checks.h>
#include <prologue/kernels/base/host/plan_checks.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/shared/rope_pairs.h>

namespace prologue {

void set_packed_qkv(AttentionPrologueParams& params, const void* qkv, int64_t token_stride) {
  const int64_t k_at = params.num_q_heads * params.head_dim, v_at = k_at + params.num_kv_heads * params.head_dim;
  const bool sized = params.head_dim > 0 && params.dtype != DType::unset;
  const auto at = [&](int64_t element, int64_t num_heads, int64_t head_stride) -> HeadsView {
    if (!sized) return {qkv, kUnsetStride, kUnsetStride};
    if (num_heads <= 0) return {};
    const void* data = qkv == nullptr ? nullptr : static_cast<const char*>(qkv) + element * dtype_size(params.dtype);
    return {data, token_stride, head_stride};
  };
  params.q = at(0, params.num_q_heads, params.head_dim);
  params.k = at(k_at, params.num_kv_heads, params.head_dim);
  params.v = at(v_at, params.num_kv_heads, v_head_dim(params));
}

AttentionPrologueParams resolved(const AttentionPrologueParams& params) {
  AttentionPrologueParams p = params;
  p.cache = resolved(p.cache, p.dtype);
  for (HeadNorm* norm : {&p.q_norm, &p.k_norm, &p.v_norm}) *norm = resolved(*norm, p.dtype);
  p.q8_out.type = resolve_dtype(p.q8_out.type, DType::fp8_e4m3);
  return p;
}

namespace {

constexpr const char* kName = "attention_prologue";
constexpr int64_t kMaxRows = int64_t{1} << 40;              // of a table
constexpr int64_t kMaxComputedPosition = int64_t{1} << 20;  // angle.h
constexpr int64_t kMaxHeads = 65536;

// What the arrays of a group are called in errors, and the operation in those of its members.
struct GroupNames {
  struct Text {
    char text[40] = {};

    constexpr Text() = default;
    constexpr Text(const char* before, int64_t index, const char* after) {
      int at = 0;
      for (; *before != 0; ++before) text[at++] = *before;
      text[at++] = static_cast<char>('0' + index);
      for (; *after != 0; ++after) text[at++] = *after;
    }
  };
  Text operation, plan, in, bias, norm_weight, norm_bias, cos, sin, inv_freq, pair_axis, out, q8_out, q8_scale, cache,
      cache_scale, cache_block_scale;

  constexpr explicit GroupNames(int64_t i)
      : operation("attention_prologue: groups[", i, "]"), plan("attention_prologue plan: groups[", i, "]") {
    const auto name = [i](const char* member) { return Text("groups[", i, member); };
    in = name("].in"), bias = name("].bias"), norm_weight = name("].norm.weight"), norm_bias = name("].norm.bias");
    cos = name("].rope.cos"), sin = name("].rope.sin"), inv_freq = name("].rope.inv_freq"), pair_axis = name("].rope.pair_axis");
    out = name("].out"), q8_out = name("].q8_out"), q8_scale = name("].q8_out.scale");
    cache = name("].cache"), cache_scale = name("].cache.scale"), cache_block_scale = name("].cache.block_scale");
  }
};
constexpr GroupNames kGroupNames[kMaxHeadGroups] = {GroupNames(0), GroupNames(1), GroupNames(2), GroupNames(3)};

template <class Enum>
Status check_enum(const char* operation, const char* name, Enum value, Enum last, const char* supported) {
  const auto number = static_cast<int32_t>(value);
  if (number >= 0 && number <= static_cast<int32_t>(last)) return {};
  return unsupported(operation, ": ", name, " is ", number, ": supported are ", supported);
}

struct NormNames {
  const char *norm, *placement, *kind, *scope, *eps, *weight_offset, *weight_type;
};

Status check_norm(const char* operation, const NormNames& names, const HeadNorm& norm, int64_t head_dim, DType dtype) {
  PROLOGUE_RETURN_IF_ERROR(
      check_enum(operation, names.placement, norm.placement, NormPlacement::after_rope, "none, before_rope and after_rope"));
  PROLOGUE_RETURN_IF_ERROR(check_enum(operation, names.kind, norm.kind, NormKind::layer, "rms and layer"));
  PROLOGUE_RETURN_IF_ERROR(check_enum(operation, names.scope, norm.scope, NormScope::token, "head and token"));
  PROLOGUE_RETURN_IF_ERROR(check_weight_type(operation, names.weight_type, norm, dtype));
  if (norm.placement == NormPlacement::none) {
    if (norm.weight == nullptr && norm.bias == nullptr) return {};
    return invalid_argument(operation, ": ", names.norm, " has a weight or bias, but its placement is none");
  }
  PROLOGUE_RETURN_IF_ERROR(check_positive(operation, names.eps, norm.eps));
  PROLOGUE_RETURN_IF_ERROR(check_finite(operation, names.weight_offset, norm.weight_offset));
  if (norm.kind == NormKind::layer && norm.scope == NormScope::token) {
    return unsupported(operation, ": ", names.scope, " is token and ", names.kind,
                       " is layer: over a whole token there is rms only");
  }
  if (norm.kind == NormKind::rms && norm.bias != nullptr) {
    return invalid_argument(operation, ": ", names.norm, " has a bias, but its kind is rms: only layer has one");
  }
  if (norm.weight_head_stride == 0 || norm.weight_head_stride == head_dim) return {};
  return invalid_argument(operation, ": ", names.norm, ".weight_head_stride is ", norm.weight_head_stride,
                          ": it must be 0 or head_dim, ", head_dim);
}

// Q and K have any norms, V a simple one.
Status check_norms(const AttentionPrologueParams& p) {
  const HeadNorm &q = p.q_norm, &k = p.k_norm, &v = p.v_norm;
  PROLOGUE_RETURN_IF_ERROR(check_norm(
      kName,
      {"q_norm", "q_norm.placement", "q_norm.kind", "q_norm.scope", "q_norm.eps", "q_norm.weight_offset", "q_norm.weight_type"},
      q, p.head_dim, p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_norm(
      kName,
      {"k_norm", "k_norm.placement", "k_norm.kind", "k_norm.scope", "k_norm.eps", "k_norm.weight_offset", "k_norm.weight_type"},
      k, p.head_dim, p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_norm(
      kName,
      {"v_norm", "v_norm.placement", "v_norm.kind", "v_norm.scope", "v_norm.eps", "v_norm.weight_offset", "v_norm.weight_type"},
      v, v_head_dim(p), p.dtype));
  if (v.placement == NormPlacement::none) return {};
  if (v.kind == NormKind::rms && v.scope == NormScope::head && v.weight == nullptr) return {};
  return unsupported(kName, ": v_norm has a weight, or is not rms over a head: supported is rms over a head, without a weight");
}

Status check_constant(const char* operation, const char* name, float constant) {
  if (std::isfinite(constant) && constant != 0.0f) return {};
  return invalid_argument(operation, ": ", name, " is ", constant, ": it must be finite and not 0");
}

// Checks the types and columns of cos and sin, or of inv_freq, that the prologue takes.
Status check_columns(const char* operation, const Rope& r) {
  if (!rope_rows_are_given(r.source)) {
    if (r.type == DType::f32) return {};
    return unsupported(operation, ": rope.type is ", dtype_text(r.type), ": for inv_freq supported is float32");
  }
  if (!dtype_is_activation(r.type)) {
    return unsupported(operation, ": rope.type is ", dtype_text(r.type), ": supported are float32, float16 and bfloat16");
  }
  if (r.width == RopeWidth::unset) {
    return invalid_argument(operation, ": rope.width is not set: supported is half, a column for each pair of a block, ",
                            pairs_of_block(r), "; set_cos_sin_table needs rope.rotary_dim first");
  }
  if (r.width != RopeWidth::half) {
    return unsupported(operation, ": rope.width is ", static_cast<int32_t>(r.width),
                       ": supported is half, a column for each pair of a block");
  }
  if (r.cos.column_stride != 1 || r.sin.column_stride != 1) {
    const bool of_cos = r.cos.column_stride != 1;
    return unsupported(operation, ": rope.", of_cos ? "cos" : "sin", ".column_stride is ",
                       of_cos ? r.cos.column_stride : r.sin.column_stride, ": supported is 1");
  }
  return {};
}

// Checks that the prologue takes what the Rope of the call or of a group says.
Status check_rope(const char* operation, const Rope& r, int64_t head_dim, const AttentionPrologueParams& p) {
  if (r.rotary_offset < 0 || r.rotary_offset % 2 != 0 || r.rotary_offset > head_dim - r.rotary_dim) {
    return invalid_argument(operation, ": rope.rotary_offset is ", r.rotary_offset,
                            ": it must be even and lie in 0..head_dim - rotary_dim, ", head_dim - r.rotary_dim);
  }
  PROLOGUE_RETURN_IF_ERROR(check_enum(operation, "rope.source", r.source, RopeSource::inv_freq, "table, per_token and inv_freq"));
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "rope.num_blocks", r.num_blocks, 1, 4));
  if (r.rotary_dim % (2 * r.num_blocks) != 0) {
    return invalid_argument(operation, ": rope.num_blocks is ", r.num_blocks, ": rotary_dim, ", r.rotary_dim,
                            ", must be that many blocks of even width");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "rope.num_axes", r.num_axes, 1, 4));
  const bool by_row = rope_rows_are_given(r.source), computed = r.rotary_dim > 0 && !by_row;
  const bool bounded = r.rotary_dim > 0 && r.source != RopeSource::per_token;
  if (!std::isfinite(r.attention_factor) || (by_row && r.attention_factor != 1.0)) {
    return invalid_argument(operation, ": rope.attention_factor is ", r.attention_factor,
                            by_row ? ": it must be 1, a table includes it" : ": it must be finite");
  }
  if (p.num_tokens == 0) return {};
  if (const char* const given = given_without_rotation(r); r.rotary_dim == 0 && given != nullptr) {
    return invalid_argument(operation, ": rope.rotary_dim is 0, but ", given, " is given: set rotary_dim, or leave it null");
  }
  if (r.rotary_dim > 0) PROLOGUE_RETURN_IF_ERROR(check_columns(operation, r));
  PROLOGUE_RETURN_IF_ERROR(check_past_table(operation, r.past_table, r.max_position, p.faults));
  return check_range(operation, "rope.max_position", r.max_position, bounded ? 1 : 0, computed ? kMaxComputedPosition : kMaxRows);
}

Status check_q8_out(const char* operation, const QuantizedQuery& q8) {
  if (q8.scaling != KvScaling::tensor && q8.scaling != KvScaling::token_head) {
    return unsupported(operation, ": q8_out.scaling is ", static_cast<int32_t>(q8.scaling),
                       ": supported are tensor and token_head");
  }
  if (dtype_is_fp8(q8.type)) return {};
  return unsupported(operation, ": q8_out.type is ", dtype_text(q8.type), ": supported are fp8_e4m3 and fp8_e5m2");
}

// Checks that everything is given that something else needs.
Status check_presence(const AttentionPrologueParams& p) {
  for (const HeadsView* view : {&p.q, &p.k, &p.v}) {
    if (view->token_stride != kUnsetStride || view->head_stride != kUnsetStride) continue;
    return invalid_argument(kName, ": the strides of ",
                            view == &p.q   ? "q"
                            : view == &p.k ? "k"
                                           : "v",
                            " are not set: set_packed_qkv needs num_q_heads, num_kv_heads, head_dim and dtype first");
  }
  const bool q_apart = p.num_q_heads > 0 && p.q_rope.data != nullptr, k_apart = p.num_kv_heads > 0 && p.k_rope.data != nullptr;
  if (q_apart || k_apart) {
    const Rope& r = p.rope;
    const char* name = q_apart ? "q_rope" : "k_rope";
    if (r.rotary_dim == 0 || r.rotary_dim == p.head_dim) {
      return invalid_argument(kName, ": ", name, " is given, but rope.rotary_dim is ", r.rotary_dim,
                              ": it must lie between 0 and head_dim, ", p.head_dim);
    }
    if (r.rotary_offset != 0 && r.rotary_offset != p.head_dim - r.rotary_dim) {
      return unsupported(kName, ": ", name, " is given, but rope.rotary_offset is ", r.rotary_offset,
                         ": supported are 0 and head_dim - rotary_dim, ", p.head_dim - r.rotary_dim);
    }
  }
  const bool q8 = p.num_q_heads > 0 && p.q8_out.data != nullptr;
  if (q8 && p.q_out.data != nullptr) return invalid_argument(kName, ": q_out and q8_out are both given: Q leaves as one of them");
  if (q8) PROLOGUE_RETURN_IF_ERROR(check_q8_out(kName, p.q8_out));
  if (p.num_kv_heads == 0) return {};
  if (p.k.data == nullptr && p.v.data == nullptr)
    return invalid_argument(kName, ": k and v are both null, but num_kv_heads is ", p.num_kv_heads);
  if (p.k_rope.data != nullptr && p.k.data == nullptr) return invalid_argument(kName, ": k_rope is given, but k is null");
  const struct {
    const char* name;
    const void *in, *out, *cache;
  } sides[] = {{"k", p.k.data, p.k_out.data, p.cache.k.data}, {"v", p.v.data, p.v_out.data, p.cache.v.data}};
  for (const auto& side : sides) {
    if (side.in == nullptr && side.out != nullptr)
      return invalid_argument(kName, ": ", side.name, "_out is given, but ", side.name, " is null");
    if (side.in != nullptr && side.out == nullptr && side.cache == nullptr) {
      return invalid_argument(kName, ": cache.", side.name, " is null, and so is ", side.name, "_out: ", side.name,
                              " has nowhere to go");
    }
  }
  return {};
}

// Adds the rows of cos or of sin: they are apart, or one row is for all tokens.
Status add_rows(const char* name, const RopeColumns& of, DType type, int64_t rows, int64_t columns, RegionChecks& regions) {
  if (rows > 1 && of.row_stride > 0 && of.row_stride < columns) {
    return invalid_argument(kName, ": ", name, " has ", columns, " columns and ", rows, " rows ", of.row_stride,
                            " apart: rows must not overlap");
  }
  const int64_t size = dtype_size(type);
  Region region{name, of.data, columns * size, size, {rows, 1, 1}, {0, 0, 0}};
  if (__builtin_mul_overflow(of.row_stride, size, &region.strides[0])) region.strides[0] = INT64_MAX;
  return regions.read(region);
}

struct RopeNames {
  const char *cos, *sin, *inv_freq, *pair_axis;
};

Status add_rope(const Rope& r, const RopeNames& names, int64_t num_tokens, RegionChecks& regions) {
  if (r.rotary_dim == 0) return {};
  if (r.source == RopeSource::inv_freq) {
    PROLOGUE_RETURN_IF_ERROR(regions.read(array_region(names.inv_freq, r.inv_freq, pairs_of_block(r), 4)));
  } else {
    const int64_t rows = r.source == RopeSource::table ? r.max_position : num_tokens;
    PROLOGUE_RETURN_IF_ERROR(add_rows(names.cos, r.cos, r.type, rows, pairs_of_block(r), regions));
    PROLOGUE_RETURN_IF_ERROR(add_rows(names.sin, r.sin, r.type, rows, pairs_of_block(r), regions));
  }
  if (r.source == RopeSource::per_token) return {};
  if (r.num_axes > 1 && r.pair_axis == nullptr && r.num_axes != r.num_blocks) {
    return invalid_argument(kName, ": ", names.pair_axis, " is null: rope.num_axes, ", r.num_axes,
                            ", must then be rope.num_blocks, ", r.num_blocks);
  }
  return regions.read(array_region(names.pair_axis, r.pair_axis, r.pair_axis == nullptr ? 0 : r.rotary_dim / 2, 1));
}

Status add_inputs(const AttentionPrologueParams& p, RegionChecks& regions) {
  const int64_t size = dtype_size(p.dtype);
  const auto heads = [](const HeadsView& view, int64_t count) { return view.data == nullptr ? 0 : count; };
  const int64_t k_heads = heads(p.k, p.num_kv_heads), v_heads = heads(p.v, p.num_kv_heads);
  const auto read = [&](const char* name, const HeadsView& view, int64_t count, const char* name_of_rope,
                        const HeadsView& rope) -> Status {
    const int64_t apart = rope.data == nullptr ? 0 : p.rope.rotary_dim;
    PROLOGUE_RETURN_IF_ERROR(regions.read(heads_region(name, view, p.num_tokens, count, p.head_dim - apart, p.dtype)));
    return regions.read(heads_region(name_of_rope, rope, p.num_tokens, heads(rope, count), apart, p.dtype));
  };
  PROLOGUE_RETURN_IF_ERROR(read("q", p.q, p.num_q_heads, "q_rope", p.q_rope));
  PROLOGUE_RETURN_IF_ERROR(read("k", p.k, k_heads, "k_rope", p.k_rope));
  PROLOGUE_RETURN_IF_ERROR(regions.read(heads_region("v", p.v, p.num_tokens, v_heads, v_head_dim(p), p.dtype)));

  const auto optional = [&](const char* name, const void* data, int64_t count, int64_t element_size) {
    return regions.read(array_region(name, data, data == nullptr ? 0 : count, element_size));
  };
  PROLOGUE_RETURN_IF_ERROR(optional("bias.q", p.bias.q, p.num_q_heads * p.head_dim, size));
  PROLOGUE_RETURN_IF_ERROR(optional("bias.k", p.bias.k, k_heads * p.head_dim, size));
  PROLOGUE_RETURN_IF_ERROR(optional("bias.v", p.bias.v, v_heads * v_head_dim(p), size));
  const int64_t q_weights = (p.q_norm.weight_head_stride == 0 ? 1 : p.num_q_heads) * p.head_dim;
  const int64_t k_weights = (p.k_norm.weight_head_stride == 0 ? 1 : p.num_kv_heads) * p.head_dim;
  const int64_t q_weight_size = dtype_size(p.q_norm.weight_type), k_weight_size = dtype_size(p.k_norm.weight_type);
  PROLOGUE_RETURN_IF_ERROR(optional("q_norm.weight", p.q_norm.weight, q_weights, q_weight_size));
  PROLOGUE_RETURN_IF_ERROR(optional("k_norm.weight", p.k_norm.weight, k_weights, k_weight_size));
  PROLOGUE_RETURN_IF_ERROR(optional("q_norm.bias", p.q_norm.bias, q_weights, q_weight_size));
  PROLOGUE_RETURN_IF_ERROR(optional("k_norm.bias", p.k_norm.bias, k_weights, k_weight_size));

  return add_rope(p.rope, {"rope.cos", "rope.sin", "rope.inv_freq", "rope.pair_axis"}, p.num_tokens, regions);
}

Status add_places(const AttentionPrologueParams& p, bool cached, RegionChecks& regions) {
  const TokenPlaces& places = p.places;
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "positions", places.positions));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "slot_mapping", places.slot_mapping));
  const bool positions_given = places.positions.data != nullptr;
  const bool can_derive = places.cu_seqlens_q != nullptr;
  const auto by_position = [](const Rope& rope) { return rope.rotary_dim > 0 && rope.source != RopeSource::per_token; };
  bool needs_positions = by_position(p.rope) || p.q_scale.by_position != PositionScale::none;
  for (int64_t i = 0; i < p.num_groups; ++i) needs_positions = needs_positions || by_position(p.groups[i].rope);
  if (positions_given) {
    PROLOGUE_RETURN_IF_ERROR(
        check_stride_set(kName, "position_axis_stride", places.position_axis_stride, "num_axes", p.rope.num_axes));
  }
  if (positions_given || (needs_positions && !can_derive)) {
    PROLOGUE_RETURN_IF_ERROR(regions.read(
        positions_region("positions", places.positions, p.rope.num_axes, places.position_axis_stride, p.num_tokens)));
  }
  const bool slot_given = places.slot_mapping.data != nullptr;
  PROLOGUE_RETURN_IF_ERROR(check_slot_mapping_len(kName, places.slot_mapping_len, places.slot_mapping, p.num_tokens));
  if (cached && (slot_given || !can_derive)) {
    const int64_t count = slots_given(places.slot_mapping_len, p.num_tokens);
    PROLOGUE_RETURN_IF_ERROR(regions.read(index_region("slot_mapping", places.slot_mapping, count)));
  }
  const bool derives_slot = cached && !slot_given;
  if (!can_derive || (positions_given && !derives_slot)) return {};

  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_seqs", places.num_seqs, 1, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("cu_seqlens_q", places.cu_seqlens_q, places.num_seqs + 1, 4)));
  PROLOGUE_RETURN_IF_ERROR(check_lengths(kName, places));
  const auto lengths = [&](const char* name, const int32_t* data) {
    return regions.read(array_region(name, data, data == nullptr ? 0 : places.num_seqs, 4));
  };
  PROLOGUE_RETURN_IF_ERROR(lengths("cache_lens", places.cache_lens));
  PROLOGUE_RETURN_IF_ERROR(lengths("seq_lens", places.seq_lens));
  if (!positions_given && places.position_offsets.data != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "position_offsets", places.position_offsets));
    const int64_t count = places.position_offset_per_seq ? places.num_seqs : 1;
    PROLOGUE_RETURN_IF_ERROR(regions.read(index_region("position_offsets", places.position_offsets, count)));
  }
  const PageTable& table = places.page_table;
  if (!derives_slot && table.kv_last_page_len == nullptr) return {};
  PROLOGUE_RETURN_IF_ERROR(check_form(kName, table));
  if (has_block_table(table)) {
    PROLOGUE_RETURN_IF_ERROR(check_range(kName, "max_pages_per_seq", table.max_pages_per_seq, 1, INT32_MAX));
  }
  if (!cached) PROLOGUE_RETURN_IF_ERROR(check_range(kName, "cache.page_size", p.cache.page_size, 1, int64_t{1} << 20));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "ring_size", places.ring_size, 0, int64_t{1} << 40));
  PROLOGUE_RETURN_IF_ERROR(check_no_ring(kName, table, places.ring_size));
  return add_page_table(table, places.num_seqs, regions);
}

Status add_q8_out(const char* name, const char* scale_name, const QuantizedQuery& q8, int64_t num_tokens, int64_t num_heads,
                  int64_t head_dim, RegionChecks& regions) {
  const Region data = {name, q8.data, head_dim, 1, {num_tokens, num_heads, 1}, {q8.token_stride, q8.head_stride, 0}};
  PROLOGUE_RETURN_IF_ERROR(regions.write(data));
  if (q8.scaling == KvScaling::tensor) return regions.read(array_region(scale_name, q8.scale, 1, 4));
  return regions.write(array_region(scale_name, q8.scale, num_tokens * num_heads, 4));
}

Status add_cache(const PagedHeads& side, const Region& cache, const Region& scale, const Region& block_scale,
                 RegionChecks& regions) {
  if (cache.data == nullptr) return {};
  PROLOGUE_RETURN_IF_ERROR(regions.write(cache));
  PROLOGUE_RETURN_IF_ERROR(regions.write(block_scale));
  return side.format.scaling == KvScaling::token_head ? regions.write(scale) : regions.read(scale);
}

// `group` is resolved.
Status add_group(const AttentionPrologueParams& p, const HeadGroup& group, const GroupNames& names, RegionChecks& regions) {
  const int64_t size = dtype_size(p.dtype), tokens = p.num_tokens, heads = group.num_heads, width = group.head_dim;
  const auto array = [&](const GroupNames::Text& name, const void* data, int64_t count, int64_t element_size) {
    return regions.read(array_region(name.text, data, data == nullptr ? 0 : count, element_size));
  };
  PROLOGUE_RETURN_IF_ERROR(regions.read(heads_region(names.in.text, group.in, tokens, heads, width, p.dtype)));
  PROLOGUE_RETURN_IF_ERROR(array(names.bias, group.bias, heads * width, size));
  const int64_t weights = (group.norm.weight_head_stride == 0 ? 1 : heads) * width;
  const int64_t weight_size = dtype_size(group.norm.weight_type);
  PROLOGUE_RETURN_IF_ERROR(array(names.norm_weight, group.norm.weight, weights, weight_size));
  PROLOGUE_RETURN_IF_ERROR(array(names.norm_bias, group.norm.bias, weights, weight_size));
  const RopeNames of_rope = {names.cos.text, names.sin.text, names.inv_freq.text, names.pair_axis.text};
  PROLOGUE_RETURN_IF_ERROR(add_rope(group.rope, of_rope, tokens, regions));
  if (group.out.data != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(
        regions.write(heads_region(names.out.text, group.out, tokens, heads, width, p.dtype), names.in.text));
  }
  if (group.q8_out.data != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(add_q8_out(names.q8_out.text, names.q8_scale.text, group.q8_out, tokens, heads, width, regions));
  }
  const PagedKvView cache = cache_of(group);
  return add_cache(group.cache, cache_region(names.cache.text, group.cache, width, cache),
                   cache_scale_region(names.cache_scale.text, group.cache, cache),
                   cache_block_scale_region(names.cache_block_scale.text, group.cache, width, cache), regions);
}

Status add_outputs(const AttentionPrologueParams& p, RegionChecks& regions) {
  const QuantizedQuery& q8 = p.q8_out;
  if (p.num_q_heads > 0 && q8.data != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(add_q8_out("q8_out", "q8_out.scale", q8, p.num_tokens, p.num_q_heads, p.head_dim, regions));
  } else {
    PROLOGUE_RETURN_IF_ERROR(regions.write(heads_region("q_out", p.q_out, p.num_tokens, p.num_q_heads, p.head_dim, p.dtype),
                                           p.q_rope.data == nullptr ? "q" : ""));
  }
  const auto add_side = [&](const char* out_name, const MutableHeadsView& out, const char* in_name, const HeadsView& in,
                            int64_t width, const PagedHeads& side, const Region& cache, const Region& scale,
                            const Region& block_scale) -> Status {
    if (p.num_kv_heads == 0 || in.data == nullptr) return {};
    if (out.data != nullptr) {
      PROLOGUE_RETURN_IF_ERROR(regions.write(heads_region(out_name, out, p.num_tokens, p.num_kv_heads, width, p.dtype), in_name));
    }
    return add_cache(side, cache, scale, block_scale, regions);
  };
  const PagedKvView& c = p.cache;
  PROLOGUE_RETURN_IF_ERROR(add_side("k_out", p.k_out, p.k_rope.data == nullptr ? "k" : "", p.k, p.head_dim, c.k,
                                    cache_region("cache.k", c.k, p.head_dim, c), cache_scale_region("cache.k.scale", c.k, c),
                                    cache_block_scale_region("cache.k.block_scale", c.k, p.head_dim, c)));
  PROLOGUE_RETURN_IF_ERROR(add_side("v_out", p.v_out, "v", p.v, v_head_dim(p), c.v,
                                    cache_region("cache.v", c.v, v_head_dim(p), c), cache_scale_region("cache.v.scale", c.v, c),
                                    cache_block_scale_region("cache.v.block_scale", c.v, v_head_dim(p), c)));
  PROLOGUE_RETURN_IF_ERROR(
      regions.write(array_region("token_faults", p.token_faults, p.token_faults == nullptr ? 0 : p.num_tokens, 1)));
  return regions.write(array_region("faults", p.faults, p.faults == nullptr ? 0 : 1, alignof(FaultRecord)));
}

Status add_all(const AttentionPrologueParams& p, RegionChecks& regions) {
  PROLOGUE_RETURN_IF_ERROR(add_inputs(p, regions));
  PROLOGUE_RETURN_IF_ERROR(add_places(p, writes_cache(p), regions));
  for (int64_t i = 0; i < p.num_groups; ++i) PROLOGUE_RETURN_IF_ERROR(add_group(p, group_of(p, i), kGroupNames[i], regions));
  return add_outputs(p, regions);
}

// Checks everything of a resolved group but its arrays.
Status check_group(const AttentionPrologueParams& p, const HeadGroup& group, const char* operation) {
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "num_heads", group.num_heads, 1, kMaxHeads));
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "head_dim", group.head_dim, 1, kMaxHeadDim));
  const Rope& rope = group.rope;
  const bool normed = group.norm.placement != NormPlacement::none;
  const bool packed = group.cache.data != nullptr && dtype_bits(group.cache.format.type) == 4;
  if (group.head_dim % 2 != 0 && (normed || packed)) {
    return unsupported(operation, ": head_dim is ", group.head_dim, ": with a norm, or in a cache of 4 bits, it must be even");
  }
  if (group.head_dim % 2 == 0) {
    PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(operation, group.head_dim, rope.style, rope.rotary_dim));
  } else if (rope.rotary_dim != 0) {
    return unsupported(operation, ": rope.rotary_dim is ", rope.rotary_dim, ", but head_dim is ", group.head_dim,
                       ": heads that are rotated have an even number of channels");
  }
  PROLOGUE_RETURN_IF_ERROR(check_rope(operation, rope, group.head_dim, p));
  if (rope.num_axes > p.rope.num_axes) {
    return invalid_argument(operation, ": rope.num_axes is ", rope.num_axes, ": it must be at most that of the call, ",
                            p.rope.num_axes);
  }
  PROLOGUE_RETURN_IF_ERROR(check_norm(
      operation, {"norm", "norm.placement", "norm.kind", "norm.scope", "norm.eps", "norm.weight_offset", "norm.weight_type"},
      group.norm, group.head_dim, p.dtype));
  if (normed && group.norm.scope != NormScope::head) {
    return unsupported(operation, ": norm.scope is token: supported is head");
  }
  if (group.hadamard_block != 0) {
    PROLOGUE_RETURN_IF_ERROR(check_hadamard_block(operation, "hadamard_block", group.hadamard_block, group.head_dim));
  }
  PROLOGUE_RETURN_IF_ERROR(check_constant(operation, "constant", group.constant));
  PROLOGUE_RETURN_IF_ERROR(check_enum(operation, "activation", group.activation, HeadActivation::sigmoid, "none and sigmoid"));
  if (p.num_tokens == 0) return {};

  const bool q8 = group.q8_out.data != nullptr, cached = group.cache.data != nullptr;
  if (q8 && (cached || group.out.data != nullptr)) {
    return invalid_argument(operation, ": q8_out and ", cached ? "cache" : "out",
                            " are both given: the heads leave as one of them");
  }
  if (!q8 && !cached && group.out.data == nullptr) {
    return invalid_argument(operation, ": out, q8_out and cache are all null: the heads have nowhere to go");
  }
  if (q8) PROLOGUE_RETURN_IF_ERROR(check_q8_out(operation, group.q8_out));
  if (!cached) return {};
  PROLOGUE_RETURN_IF_ERROR(check_format(operation, "cache", group.cache, group.head_dim, group.page_size));
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "num_pages", group.num_pages, 1, int64_t{1} << 40));
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "page_size", group.page_size, 1, int64_t{1} << 20));
  if (group.cache.head_dim != group.head_dim) {
    return invalid_argument(operation, ": cache.head_dim is ", group.cache.head_dim, ": it must be 0 or head_dim, ",
                            group.head_dim);
  }
  if (group.num_pages * group.page_size >= num_slots(p.cache)) return {};
  return invalid_argument(operation, ": num_pages is ", group.num_pages, " and page_size ", group.page_size,
                          ": the pages must have at least the slots of cache.num_pages * cache.page_size, ", num_slots(p.cache));
}

Status check_groups(const AttentionPrologueParams& p) {
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_groups", p.num_groups, 0, kMaxHeadGroups));
  if (p.num_groups > 0 && p.groups == nullptr) {
    return invalid_argument(kName, ": groups is null, but num_groups is ", p.num_groups);
  }
  return {};
}

Status validate_resolved(const AttentionPrologueParams& p) {
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_q_heads", p.num_q_heads, 0, kMaxHeads));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_kv_heads", p.num_kv_heads, 0, kMaxHeads));
  PROLOGUE_RETURN_IF_ERROR(check_groups(p));
  const bool only_groups = p.num_q_heads == 0 && p.num_kv_heads == 0;
  if (only_groups && p.num_groups == 0) {
    return invalid_argument(kName, ": num_q_heads and num_kv_heads are both 0: nothing is asked for");
  }
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  if (!only_groups || p.head_dim != 0 || p.rope.rotary_dim != 0) {
    PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(kName, p.head_dim, p.rope.style, p.rope.rotary_dim));
  }
  PROLOGUE_RETURN_IF_ERROR(check_rope(kName, p.rope, p.head_dim, p));
  PROLOGUE_RETURN_IF_ERROR(check_v_head_dim(kName, p.cache));
  PROLOGUE_RETURN_IF_ERROR(check_norms(p));
  if (p.hadamard_block != 0) {
    PROLOGUE_RETURN_IF_ERROR(check_hadamard_block(kName, "hadamard_block", p.hadamard_block, p.head_dim));
  }
  if (p.v_hadamard_block != 0) {
    PROLOGUE_RETURN_IF_ERROR(check_hadamard_block(kName, "v_hadamard_block", p.v_hadamard_block, v_head_dim(p)));
  }
  PROLOGUE_RETURN_IF_ERROR(check_query_scale(kName, p.q_scale));
  PROLOGUE_RETURN_IF_ERROR(check_constant(kName, "k_constant", p.k_constant));
  PROLOGUE_RETURN_IF_ERROR(check_constant(kName, "v_constant", p.v_constant));
  PROLOGUE_RETURN_IF_ERROR(check_enum(kName, "rounding", p.rounding, Rounding::per_step, "once and per_step"));
  if (p.num_tokens > 0) {
    PROLOGUE_RETURN_IF_ERROR(check_presence(p));
    if (writes_kv(p)) {
      PROLOGUE_RETURN_IF_ERROR(check_cache_shape(kName, p.cache, p.num_kv_heads, p.head_dim));
    } else if (writes_cache(p)) {
      PROLOGUE_RETURN_IF_ERROR(check_page_count(kName, p.cache));
    }
  }
  for (int64_t i = 0; i < p.num_groups; ++i) {
    PROLOGUE_RETURN_IF_ERROR(check_group(p, group_of(p, i), kGroupNames[i].operation.text));
  }
  if (p.num_tokens == 0) return {};

  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(add_all(p, regions));
  return regions.check_all_apart();
}

// Checks that a run has the parameters of its plan, except those that it may change.
Status check_run(const AttentionPrologueParams& plan, const HeadGroup* plan_groups, const AttentionPrologueParams& run) {
  constexpr const char* kPlan = "attention_prologue plan";
  using Checks = PlanChecks<AttentionPrologueParams>;
  Checks checks(kPlan, plan, run);
  const TokenPlaces& places = run.places;
  const bool derives = places.cu_seqlens_q != nullptr, has_axes = run.rope.num_axes > 1 && places.positions.data != nullptr;
  checks.may_change(run.num_tokens, true, 0, plan.num_tokens);
  checks.may_change(places.num_seqs, derives, std::min<int64_t>(plan.places.num_seqs, run.num_tokens > 0 ? 1 : 0),
                    plan.places.num_seqs);
  checks.may_change(places.page_table.num_kv_indices, true, 0, plan.places.page_table.num_kv_indices);
  checks.may_change(places.position_axis_stride, has_axes, 0, Checks::kAnything);
  checks.may_change(places.slot_mapping_len);
  PROLOGUE_RETURN_IF_ERROR(checks.status());
  for (int64_t i = 0; i < run.num_groups; ++i) {
    const HeadGroup group = group_of(run, i);
    PROLOGUE_RETURN_IF_ERROR(PlanChecks<HeadGroup>(kGroupNames[i].plan.text, plan_groups[i], group).status());
  }
  if (cuda::one_table(plan.rope)) {  // then the kernel of the plan may read it as one
    const auto apart = [](const Rope& rope) {
      return static_cast<int64_t>(reinterpret_cast<uintptr_t>(rope.sin.data) - reinterpret_cast<uintptr_t>(rope.cos.data));
    };
    if (apart(run.rope) != apart(plan.rope)) {
      return invalid_argument(kPlan, ": rope.sin is ", apart(run.rope), " bytes from rope.cos: it must be as in the plan, ",
                              apart(plan.rope));
    }
  }
  if (run.num_tokens == 0) return {};
  return check_slot_mapping_len(kPlan, places.slot_mapping_len, places.slot_mapping, run.num_tokens);
}

}  // namespace

Status add_regions(const AttentionPrologueParams& params, RegionChecks& regions) { return add_all(resolved(params), regions); }

Status validate(const AttentionPrologueParams& params) { return validate_resolved(resolved(params)); }

Status validate(const AttentionPrologueParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  return validate(params);
}

Status run_validated(const AttentionPrologueParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  const AttentionPrologueParams p = resolved(params);
  return dispatch(execution, cpu::attention_prologue, cuda::attention_prologue, p);
}

Result<const void*> choose_kernel(const AttentionPrologueParams& params, const Execution& execution) {
  if (execution.device == Device::cpu) return static_cast<const void*>(nullptr);
  return cuda::plan_attention_prologue(resolved(params));
}

Status run_kernel(const void* kernel, const AttentionPrologueParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  const AttentionPrologueParams p = resolved(params);
  return execution.device == Device::cpu ? cpu::attention_prologue(p, execution) : cuda::run_plan(kernel, p, execution);
}

Status attention_prologue(const AttentionPrologueParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

Result<AttentionProloguePlan> AttentionProloguePlan::create(const AttentionPrologueParams& params, int64_t max_tokens,
                                                            const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device("attention_prologue plan", execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range("attention_prologue plan", "max_tokens", max_tokens, 1, INT32_MAX));
  AttentionProloguePlan plan;
  plan.params_ = resolved(params);
  plan.params_.num_tokens = max_tokens;
  PROLOGUE_RETURN_IF_ERROR(validate_resolved(plan.params_));
  plan.device_ = execution.device;
  PROLOGUE_ASSIGN_OR_RETURN(plan.kernel_, choose_kernel(plan.params_, execution));
  for (int64_t i = 0; i < params.num_groups; ++i) plan.groups_[i] = group_of(plan.params_, i);
  static const HeadGroup given;  // whatever array: it is only compared with null
  plan.params_.groups = params.groups == nullptr ? nullptr : &given;
  return plan;
}

const char* AttentionProloguePlan::kernel() const { return kernel_ == nullptr ? "cpu" : cuda::kernel_of_plan(kernel_); }

Status AttentionProloguePlan::run(const AttentionPrologueParams& params, const Execution& execution) const {
  if (execution.device != device_) {
    return invalid_argument("attention_prologue plan: device is ", device_name(execution.device), ": the plan was made for ",
                            device_name(device_));
  }
  PROLOGUE_RETURN_IF_ERROR(check_run(params_, groups_, resolved(params)));
  return run_kernel(kernel_, params, execution);
}

}  // namespace prologue
