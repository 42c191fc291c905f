#include <prologue/kernels/mla_prologue/mla_prologue.h>

#include <cmath>

#include <prologue/kernels/attention_prologue/steps/head_norm.h>
#include <prologue/kernels/attention_prologue/token_args.h>
#include <prologue/kernels/attention_prologue/token_checks.h>
#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/mla_prologue/backends.h>
#include <prologue/kernels/mla_prologue/mla_token.h>

namespace prologue {

namespace {

constexpr const char* kName = "mla_prologue";
constexpr int64_t kMaxRows = int64_t{1} << 40;              // of a table
constexpr int64_t kMaxComputedPosition = int64_t{1} << 20;  // angle.h

MlaPrologueParams resolved(const MlaPrologueParams& params) {
  MlaPrologueParams p = params;
  for (HeadNorm* norm : {&p.kv_c_norm, &p.k_pe_norm}) *norm = resolved(*norm, p.dtype);
  for (MlaCachePart* part : {&p.cache.latent, &p.cache.rope}) part->format.type = resolve_dtype(part->format.type, p.dtype);
  return p;
}

// Returns the bytes of an entry's latent.
int64_t latent_bytes(const MlaPrologueParams& p, const KvFormat& format) {
  const int64_t tiles = has_tiles(format) ? p.kv_lora_rank / kRecordTile : 0;
  return p.kv_lora_rank * dtype_size(format.type) + tiles * static_cast<int64_t>(sizeof(float));
}

bool is_multiple_of_16(int64_t width) { return width >= 16 && width <= kMaxLatent && width % 16 == 0; }

Status check_sizes(const MlaPrologueParams& p) {
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_q_heads", p.num_q_heads, 0, 65536));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  const auto wrong = [](const char* name, int64_t width) {
    return unsupported(kName, ": ", name, " is ", width, ": supported is every multiple of 16 in 16..", kMaxLatent);
  };
  if ((p.kv_c != nullptr || p.kv_lora_rank != 0) && !is_multiple_of_16(p.kv_lora_rank))
    return wrong("kv_lora_rank", p.kv_lora_rank);
  if ((p.k_pe != nullptr || p.num_q_heads > 0 || p.qk_rope_head_dim != 0) && !is_multiple_of_16(p.qk_rope_head_dim)) {
    return wrong("qk_rope_head_dim", p.qk_rope_head_dim);
  }
  return {};
}

struct NormNames {
  const char *norm, *weight_type, *eps, *weight_offset;
};

Status check_norm(const NormNames& names, const HeadNorm& norm, DType dtype) {
  if (norm.placement == NormPlacement::none) {
    if (norm.weight == nullptr) return {};
    return invalid_argument(kName, ": ", names.norm, " has a weight, but its placement is none");
  }
  if (norm.placement != NormPlacement::before_rope || norm.kind != NormKind::rms || norm.scope != NormScope::head) {
    return unsupported(kName, ": ", names.norm, " has the placement ", static_cast<int32_t>(norm.placement), ", kind ",
                       static_cast<int32_t>(norm.kind), " and scope ", static_cast<int32_t>(norm.scope),
                       ": supported is rms over a head, before_rope");
  }
  if (norm.bias != nullptr) return invalid_argument(kName, ": ", names.norm, " has a bias, but its kind is rms");
  PROLOGUE_RETURN_IF_ERROR(check_weight_type(kName, names.weight_type, norm, dtype));
  PROLOGUE_RETURN_IF_ERROR(check_positive(kName, names.eps, norm.eps));
  return check_finite(kName, names.weight_offset, norm.weight_offset);
}

Status check_norms(const MlaPrologueParams& p) {
  PROLOGUE_RETURN_IF_ERROR(
      check_norm({"kv_c_norm", "kv_c_norm.weight_type", "kv_c_norm.eps", "kv_c_norm.weight_offset"}, p.kv_c_norm, p.dtype));
  PROLOGUE_RETURN_IF_ERROR(
      check_norm({"k_pe_norm", "k_pe_norm.weight_type", "k_pe_norm.eps", "k_pe_norm.weight_offset"}, p.k_pe_norm, p.dtype));
  if (p.k_pe_norm.placement == NormPlacement::none || p.qk_rope_head_dim <= kMaxNormedRope) return {};
  return unsupported(kName, ": qk_rope_head_dim is ", p.qk_rope_head_dim, ": with k_pe_norm supported is up to ", kMaxNormedRope);
}

Status check_rope(const MlaPrologueParams& p) {
  const Rope& r = p.rope;
  if (r.style != RopeStyle::neox && r.style != RopeStyle::interleaved) {
    return unsupported(kName, ": the rope style is ", static_cast<int32_t>(r.style), ": supported are neox and interleaved");
  }
  if (r.rotary_dim != 0 && r.rotary_dim != p.qk_rope_head_dim) {
    return invalid_argument(kName, ": rope.rotary_dim is ", r.rotary_dim, ": it must be 0 or qk_rope_head_dim, ",
                            p.qk_rope_head_dim);
  }
  if (r.rotary_offset != 0 || r.num_blocks != 1 || r.num_axes != 1) {
    return unsupported(kName, ": rope has the rotary_offset ", r.rotary_offset, ", ", r.num_blocks, " blocks and ", r.num_axes,
                       " axes: supported are 0, 1 and 1");
  }
  if (r.source < RopeSource::table || r.source > RopeSource::inv_freq) {
    return unsupported(kName, ": rope.source is ", static_cast<int32_t>(r.source),
                       ": supported are table, per_token and inv_freq");
  }
  const bool by_row = rope_rows_are_given(r.source), rotates = r.rotary_dim > 0;
  if (!std::isfinite(r.attention_factor) || (by_row && r.attention_factor != 1.0)) {
    return invalid_argument(kName, ": rope.attention_factor is ", r.attention_factor,
                            by_row ? ": it must be 1, a table includes it" : ": it must be finite");
  }
  if (const char* const given = given_without_rotation(r); !rotates && given != nullptr) {
    return invalid_argument(kName, ": rope.rotary_dim is 0, but ", given, " is given: set rotary_dim, or leave it null");
  }
  if (rotates && !by_row && r.type != DType::f32) {
    return unsupported(kName, ": rope.type is ", dtype_text(r.type), ": for inv_freq supported is float32");
  }
  if (rotates && by_row) {
    if (!dtype_is_activation(r.type)) {
      return unsupported(kName, ": rope.type is ", dtype_text(r.type), ": supported are float32, float16 and bfloat16");
    }
    if (r.width == RopeWidth::unset) {
      return invalid_argument(kName, ": rope.width is not set: supported is half; set_cos_sin_table needs rope.rotary_dim first");
    }
    if (r.width != RopeWidth::half || r.cos.column_stride != 1 || r.sin.column_stride != 1) {
      return unsupported(kName, ": rope has the width ", static_cast<int32_t>(r.width), " and the column strides ",
                         r.cos.column_stride, " and ", r.sin.column_stride, ": supported is half, with column stride 1");
    }
  }
  PROLOGUE_RETURN_IF_ERROR(check_past_table(kName, r.past_table, r.max_position, p.faults));
  const bool bounded = rotates && r.source != RopeSource::per_token;
  return check_range(kName, "rope.max_position", r.max_position, bounded ? 1 : 0,
                     rotates && !by_row ? kMaxComputedPosition : kMaxRows);
}

Status check_part(const char* name, const MlaCachePart& part, bool is_latent, const MlaPrologueParams& p) {
  const auto [type, scaling] = part.format;
  if (part.page_stride == kUnsetStride && part.token_stride == kUnsetStride) {
    return invalid_argument(kName, ": the strides of ", name,
                            " are not set: set_mla_entries and set_mla_records need kv_lora_rank ", "and dtype first");
  }
  if (!dtype_is_activation(type) && !dtype_is_fp8(type)) {
    return unsupported(kName, ": ", name, ".format.type is ", dtype_text(type),
                       ": supported are float32, float16, bfloat16, fp8_e4m3 and fp8_e5m2");
  }
  if (scaling == KvScaling::none || (scaling == KvScaling::tensor && dtype_is_fp8(type))) return {};
  if (scaling != KvScaling::token_head || !is_latent) {
    return unsupported(kName, ": ", name, ".format.scaling is ", static_cast<int32_t>(scaling), " for ", dtype_name(type),
                       ": supported are none, tensor for fp8, and token_head for a latent of fp8_e4m3");
  }
  if (type != DType::fp8_e4m3 || p.dtype == DType::f32 || p.kv_lora_rank % (2 * kRecordTile) != 0) {
    return unsupported(kName, ": ", name, ".format is ", dtype_name(type), " with scaling token_head, dtype is ",
                       dtype_name(p.dtype), " and kv_lora_rank ", p.kv_lora_rank,
                       ": these records are of fp8_e4m3, from float16 or bfloat16, with a rank that is a multiple of ",
                       2 * kRecordTile);
  }
  if (reinterpret_cast<uintptr_t>(part.data) % 4 == 0 && part.page_stride % 4 == 0 && part.token_stride % 4 == 0) return {};
  return invalid_argument(kName, ": ", name, " is at ", part.data, " with the strides ", part.page_stride, " and ",
                          part.token_stride, ": records have float32 scales, so all must be multiples of 4 bytes");
}

Status check_cache(const MlaPrologueParams& p) {
  const bool latent = caches_latent(p), rope = caches_rope(p);
  if (!latent && !rope) return {};
  if (latent) PROLOGUE_RETURN_IF_ERROR(check_part("cache.latent", p.cache.latent, true, p));
  if (rope) PROLOGUE_RETURN_IF_ERROR(check_part("cache.rope", p.cache.rope, false, p));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "cache.num_pages", p.cache.num_pages, 1, int64_t{1} << 40));
  return check_range(kName, "cache.page_size", p.cache.page_size, 1, int64_t{1} << 20);
}

// Returns the region of rows of `width` bytes. Strides are in elements of `size` bytes; an overflow becomes a stride that every check
// rejects.
Region rows_region(const char* name, const void* data, int64_t width, int64_t size, int64_t count, int64_t stride,
                   int64_t outer_count = 1, int64_t outer_stride = 0) {
  const auto bytes = [&](int64_t elements) {
    int64_t result = 0;
    return __builtin_mul_overflow(elements, size, &result) ? INT64_MAX : result;
  };
  return {name, data, width, size, {outer_count, count, 1}, {bytes(outer_stride), bytes(stride), 0}};
}

Status add_rope(const MlaPrologueParams& p, RegionChecks& regions) {
  const Rope& r = p.rope;
  if (r.rotary_dim == 0) return {};
  const int64_t columns = r.rotary_dim / 2, size = dtype_size(r.type);
  if (r.source == RopeSource::inv_freq) return regions.read(array_region("rope.inv_freq", r.inv_freq, columns, 4));
  const int64_t rows = r.source == RopeSource::table ? r.max_position : p.num_tokens;
  PROLOGUE_RETURN_IF_ERROR(regions.read(rows_region("rope.cos", r.cos.data, columns * size, size, rows, r.cos.row_stride)));
  return regions.read(rows_region("rope.sin", r.sin.data, columns * size, size, rows, r.sin.row_stride));
}

Status check_memory(const MlaPrologueParams& p) {
  RegionChecks regions(kName);
  const int64_t size = dtype_size(p.dtype), n = p.num_tokens, latent = p.kv_lora_rank * size, rope = p.qk_rope_head_dim * size;
  const bool has_latent = p.kv_c != nullptr, has_k = p.k_pe != nullptr;
  if (has_latent) PROLOGUE_RETURN_IF_ERROR(regions.read(rows_region("kv_c", p.kv_c, latent, size, n, p.kv_c_stride)));
  if (has_k) PROLOGUE_RETURN_IF_ERROR(regions.read(rows_region("k_pe", p.k_pe, rope, size, n, p.k_pe_stride)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(heads_region("q_pe", p.q_pe, n, p.num_q_heads, p.qk_rope_head_dim, p.dtype)));
  const HeadNorm& norm = p.kv_c_norm;
  if (has_latent && norm.weight != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(
        regions.read(array_region("kv_c_norm.weight", norm.weight, p.kv_lora_rank, dtype_size(norm.weight_type))));
  }
  const HeadNorm& k_norm = p.k_pe_norm;
  if (has_k && k_norm.weight != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(
        regions.read(array_region("k_pe_norm.weight", k_norm.weight, p.qk_rope_head_dim, dtype_size(k_norm.weight_type))));
  }
  PROLOGUE_RETURN_IF_ERROR(add_rope(p, regions));
  const bool by_position = p.rope.rotary_dim > 0 && p.rope.source != RopeSource::per_token;
  if (p.positions.data != nullptr || by_position) {
    PROLOGUE_RETURN_IF_ERROR(regions.read(index_region("positions", p.positions, n)));
  }
  const auto add_part = [&](const char* name, const char* name_of_scale, const MlaCachePart& part, int64_t width) -> Status {
    const int64_t element = dtype_size(part.format.type);
    PROLOGUE_RETURN_IF_ERROR(regions.write(
        rows_region(name, part.data, width, element, p.cache.page_size, part.token_stride, p.cache.num_pages, part.page_stride)));
    return part.format.scaling == KvScaling::tensor ? regions.read(array_region(name_of_scale, part.scale, 1, 4)) : Status();
  };
  if (caches_latent(p)) {
    PROLOGUE_RETURN_IF_ERROR(
        add_part("cache.latent", "cache.latent.scale", p.cache.latent, latent_bytes(p, p.cache.latent.format)));
  }
  if (caches_rope(p)) {
    PROLOGUE_RETURN_IF_ERROR(
        add_part("cache.rope", "cache.rope.scale", p.cache.rope, p.qk_rope_head_dim * dtype_size(p.cache.rope.format.type)));
  }
  if (caches_latent(p) || caches_rope(p)) {
    PROLOGUE_RETURN_IF_ERROR(regions.read(index_region("slot_mapping", p.slot_mapping, slots_given(p.slot_mapping_len, n))));
  }
  if (has_latent && p.kv_c_out != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(regions.write(rows_region("kv_c_out", p.kv_c_out, latent, size, n, p.kv_c_out_stride), "kv_c"));
  }
  if (has_k && p.k_pe_out != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(regions.write(rows_region("k_pe_out", p.k_pe_out, rope, size, n, p.k_pe_out_stride), "k_pe"));
  }
  PROLOGUE_RETURN_IF_ERROR(
      regions.write(heads_region("q_pe_out", p.q_pe_out, n, p.num_q_heads, p.qk_rope_head_dim, p.dtype), "q_pe"));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("token_faults", p.token_faults, p.token_faults == nullptr ? 0 : n, 1)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("faults", p.faults, p.faults == nullptr ? 0 : 1, alignof(FaultRecord))));
  return regions.check_all_apart();
}

}  // namespace

void set_mla_entries(MlaPrologueParams& params, void* data, DType type, const float* scale, int64_t page_stride,
                     int64_t token_stride) {
  const KvFormat format = {resolve_dtype(type, params.dtype), scale == nullptr ? KvScaling::none : KvScaling::tensor};
  auto* const bytes = static_cast<char*>(data);
  const int64_t rope_at = params.kv_lora_rank * dtype_size(format.type);
  if (rope_at == 0) page_stride = token_stride = kUnsetStride;
  params.cache.latent = {data, format, page_stride, token_stride, scale};
  params.cache.rope = {bytes == nullptr ? nullptr : bytes + rope_at, format, page_stride, token_stride, scale};
}

void set_mla_records(MlaPrologueParams& params, void* data, int64_t page_stride, int64_t token_stride) {
  constexpr KvFormat kFormat = {DType::fp8_e4m3, KvScaling::token_head};
  auto* const bytes = static_cast<char*>(data);
  const bool sized = params.kv_lora_rank > 0;
  const auto unless_unset = [&](int64_t stride) { return sized ? stride : kUnsetStride; };
  params.cache.latent = {data, kFormat, unless_unset(page_stride), unless_unset(token_stride)};
  params.cache.rope = {bytes == nullptr ? nullptr : bytes + latent_bytes(params, kFormat),
                       {},
                       unless_unset(page_stride / 2),
                       unless_unset(token_stride / 2)};
}

Status validate(const MlaPrologueParams& params) {
  const MlaPrologueParams p = resolved(params);
  PROLOGUE_RETURN_IF_ERROR(check_sizes(p));
  PROLOGUE_RETURN_IF_ERROR(check_norms(p));
  PROLOGUE_RETURN_IF_ERROR(check_cache(p));
  if (p.num_tokens == 0) return {};
  PROLOGUE_RETURN_IF_ERROR(check_rope(p));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "positions", p.positions));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "slot_mapping", p.slot_mapping));
  PROLOGUE_RETURN_IF_ERROR(check_slot_mapping_len(kName, p.slot_mapping_len, p.slot_mapping, p.num_tokens));
  return check_memory(p);
}

Status validate(const MlaPrologueParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  return validate(params);
}

Status run_validated(const MlaPrologueParams& params, const Execution& execution) {
  const MlaPrologueParams p = resolved(params);
  if (p.num_tokens == 0 || (p.kv_c == nullptr && p.k_pe == nullptr && p.num_q_heads == 0)) return {};
  return dispatch(execution, cpu::mla_prologue, cuda::mla_prologue, p);
}

Status mla_prologue(const MlaPrologueParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
