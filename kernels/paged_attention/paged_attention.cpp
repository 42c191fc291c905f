#include <prologue/kernels/paged_attention/paged_attention.h>

#include <cmath>
#include <limits>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/page_table_checks.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/paged_attention/backends.h>

namespace prologue {

namespace {

constexpr const char* kName = "paged_attention";
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxSeqLen = int64_t{1} << 30;  // kernels count positions, and those of a step beyond the last, in 32 bits

// All rows of a step are written to the ring before the first of them attends.
Status check_ring(const PagedAttentionParams& p) {
  if (p.ring_size == 0 || p.max_seq_len <= p.ring_size) return {};
  if (p.max_seqlen_q > p.ring_size) {
    return invalid_argument("paged_attention: ring_size is ", p.ring_size, ": it must be at least max_seqlen_q, ", p.max_seqlen_q,
                            ", where max_seq_len, ", p.max_seq_len, ", is larger than the ring");
  }
  const int64_t largest = p.ring_size - p.max_seqlen_q + 1;
  const bool chunk_counts = p.chunk > 0 && (p.window == 0 || p.chunk < p.window);
  const int64_t most_keys = chunk_counts ? p.chunk : p.window;  // of a row
  if (most_keys >= 1 && most_keys <= largest) return {};
  return invalid_argument("paged_attention: ", chunk_counts ? "chunk" : "window", " is ", most_keys, ": it must lie in 1..",
                          largest, " where max_seq_len, ", p.max_seq_len, ", is larger than the ring of ", p.ring_size,
                          " tokens and max_seqlen_q is ", p.max_seqlen_q);
}

Status check_shapes(const PagedAttentionParams& p, Device device) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxInt32));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_seqs", p.num_seqs, 0, kMaxInt32 - 1));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_decode_seqs", p.num_decode_seqs, 0, p.num_seqs));
  if (p.head_dim < 2 || p.head_dim > 576 || p.head_dim % 2 != 0) {
    return unsupported("paged_attention: head_dim is ", p.head_dim, ": supported is every even number in 2..576");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_q_heads", p.num_q_heads, 1, int64_t{1} << 16));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "cache.num_kv_heads", p.kv.num_kv_heads, 1, int64_t{1} << 16));
  if (p.num_q_heads % p.kv.num_kv_heads != 0) {
    return invalid_argument("paged_attention: num_q_heads is ", p.num_q_heads, ": it must be a multiple of cache.num_kv_heads, ",
                            p.kv.num_kv_heads);
  }
  PROLOGUE_RETURN_IF_ERROR(check_finite(kName, "scale", p.scale));
  if (!std::isfinite(p.soft_cap) || p.soft_cap < 0.0f) {
    return invalid_argument("paged_attention: soft_cap is ", p.soft_cap, ": it must be finite and positive, or 0 for none");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "window", p.window, 0, kMaxInt32));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "chunk", p.chunk, 0, kMaxInt32));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "ring_size", p.ring_size, 0, kMaxInt32));
  const PageTable& table = p.page_table;
  if (has_block_table(table)) {
    PROLOGUE_RETURN_IF_ERROR(check_range(kName, "max_pages_per_seq", table.max_pages_per_seq, 1, kMaxInt32));
    if (table.block_table_stride < table.max_pages_per_seq) {
      return invalid_argument("paged_attention: block_table_stride is ", table.block_table_stride,
                              ": it must be at least max_pages_per_seq, ", table.max_pages_per_seq);
    }
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "max_seqlen_q", p.max_seqlen_q, 1, kMaxInt32));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "max_seq_len", p.max_seq_len, 1, kMaxSeqLen));
  return check_ring(p);
}

Status check_arrays(const PagedAttentionParams& p, Device device) {
  const PagedKvView& kv = p.kv;
  if (kv.v.head_dim < 0 || kv.v.head_dim > 576 || kv.v.head_dim % 2 != 0) {
    return unsupported("paged_attention: cache.v.head_dim is ", kv.v.head_dim,
                       ": supported is every even number in 2..576, or 0 = head_dim");
  }
  PROLOGUE_RETURN_IF_ERROR(check_cache_shape(kName, kv, kv.num_kv_heads, p.head_dim));
  if (p.sinks != nullptr && p.sinks_type != p.dtype && p.sinks_type != DType::f32) {
    return unsupported("paged_attention: sinks_type is ", dtype_text(p.sinks_type),
                       p.dtype == DType::f32 ? ": supported is float32" : ": supported are float32 and dtype, ",
                       p.dtype == DType::f32 ? "" : dtype_name(p.dtype));
  }
  const int64_t needed = paged_attention_workspace_bytes(p, device);
  if (needed > 0 && (p.workspace == nullptr || p.workspace_bytes < needed)) {
    return invalid_argument("paged_attention: workspace has ", p.workspace == nullptr ? 0 : p.workspace_bytes,
                            " bytes: this call needs ", needed);
  }
  PROLOGUE_RETURN_IF_ERROR(check_form(kName, p.page_table));
  PROLOGUE_RETURN_IF_ERROR(check_no_ring(kName, p.page_table, p.ring_size));
  if (p.seq_lens != nullptr && p.page_table.kv_last_page_len != nullptr) {
    return invalid_argument("paged_attention: seq_lens and kv_last_page_len are both given: a sequence has one length");
  }
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(add_regions(p, device, regions));
  return regions.check_all_apart();
}

PagedAttentionParams resolved(const PagedAttentionParams& params) {
  PagedAttentionParams p = params;
  p.kv = resolved(p.kv, p.dtype);
  p.sinks_type = resolve_dtype(p.sinks_type, p.dtype);
  return p;
}

}  // namespace

Status add_regions(const PagedAttentionParams& params, Device device, RegionChecks& regions) {
  const PagedAttentionParams p = resolved(params);
  const PagedKvView& kv = p.kv;
  const Region faults = array_region("faults", p.faults, p.faults == nullptr ? 0 : 1, alignof(FaultRecord));
  PROLOGUE_RETURN_IF_ERROR(regions.read(cache_region("cache.k", kv.k, p.head_dim, kv)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(cache_region("cache.v", kv.v, v_head_dim(kv), kv)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(cache_scale_region("cache.k.scale", kv.k, kv)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(cache_scale_region("cache.v.scale", kv.v, kv)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(cache_block_scale_region("cache.k.block_scale", kv.k, p.head_dim, kv)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(cache_block_scale_region("cache.v.block_scale", kv.v, v_head_dim(kv), kv)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(heads_region("q", p.q, p.num_tokens, p.num_q_heads, p.head_dim, p.dtype)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(heads_region("out", p.out, p.num_tokens, p.num_q_heads, v_head_dim(kv), p.dtype)));
  PROLOGUE_RETURN_IF_ERROR(
      regions.read(array_region("sinks", p.sinks, p.sinks == nullptr ? 0 : p.num_q_heads, dtype_size(p.sinks_type))));
  PROLOGUE_RETURN_IF_ERROR(add_page_table(p.page_table, p.num_seqs, regions));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("cu_seqlens_q", p.cu_seqlens_q, p.num_seqs + 1, 4)));
  const int64_t lengths = p.page_table.kv_last_page_len == nullptr ? p.num_seqs : 0;
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("seq_lens", p.seq_lens, lengths, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(faults));
  PROLOGUE_RETURN_IF_ERROR(
      regions.write(array_region("token_faults", p.token_faults, p.token_faults == nullptr ? 0 : p.num_tokens, 1)));
  PROLOGUE_RETURN_IF_ERROR(
      regions.write(array_region("counters", p.counters, p.counters == nullptr ? 0 : kPagedAttentionCounters, 4)));
  constexpr int64_t kGranularity = 16;  // the size is a multiple of it
  return regions.write(
      array_region("workspace", p.workspace, paged_attention_workspace_bytes(p, device) / kGranularity, kGranularity));
}

int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params, Device device) {
  return device == Device::cuda ? cuda::paged_attention_workspace_bytes(resolved(params)) : 0;
}

Status validate(const PagedAttentionParams& params, Device device) {
  PROLOGUE_RETURN_IF_ERROR(check_shapes(params, device));
  return params.num_tokens == 0 || params.num_seqs == 0 ? ok_status() : check_arrays(resolved(params), device);
}

Status run_validated(const PagedAttentionParams& params, const Execution& execution) {
  if (params.num_tokens == 0 || params.num_seqs == 0) return {};
  const PagedAttentionParams p = resolved(params);
  return dispatch(execution, cpu::paged_attention, cuda::paged_attention, p);
}

Status paged_attention(const PagedAttentionParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution.device));
  return run_validated(params, execution);
}

}  // namespace prologue
