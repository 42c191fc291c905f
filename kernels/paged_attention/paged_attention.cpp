#include <prologue/kernels/paged_attention/paged_attention.h>

#include <cmath>
#include <limits>

#include <prologue/kernels/base/view_checks.h>

namespace prologue {

namespace cpu {
Status paged_attention(const PagedAttentionParams& params, const Execution& execution);
}
namespace cuda {
Status paged_attention(const PagedAttentionParams& params, const Execution& execution);
int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params);
}  // namespace cuda

namespace {

constexpr const char* kName = "paged_attention";
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Status check_shapes(const PagedAttentionParams& p, Device device) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxInt32));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_seqs", p.num_seqs, 0, kMaxInt32 - 1));
  if (p.head_dim < 2 || p.head_dim > 256 || p.head_dim % 2 != 0) {
    return unsupported("paged_attention: head_dim is ", p.head_dim, ": supported is every even number in 2..256");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_q_heads", p.num_q_heads, 1, int64_t{1} << 16));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "cache.num_kv_heads", p.kv.num_kv_heads, 1, int64_t{1} << 16));
  if (p.num_q_heads % p.kv.num_kv_heads != 0) {
    return invalid_argument("paged_attention: num_q_heads is ", p.num_q_heads, ": it must be a multiple of cache.num_kv_heads, ",
                            p.kv.num_kv_heads);
  }
  if (!std::isfinite(p.scale)) return invalid_argument("paged_attention: scale is ", p.scale, ": it must be finite");
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "max_pages_per_seq", p.max_pages_per_seq, 1, kMaxInt32));
  if (p.block_table_stride < p.max_pages_per_seq) {
    return invalid_argument("paged_attention: block_table_stride is ", p.block_table_stride,
                            ": it must be at least max_pages_per_seq, ", p.max_pages_per_seq);
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "max_seqlen_q", p.max_seqlen_q, 1, kMaxInt32));
  return check_range(kName, "max_seq_len", p.max_seq_len, 1, kMaxInt32);
}

Status check_arrays(const PagedAttentionParams& p, Device device) {
  PROLOGUE_RETURN_IF_ERROR(check_cache(kName, p.kv, p.kv.num_kv_heads, p.head_dim, p.dtype));
  const Region q = heads_region("q", p.q, p.num_tokens, p.num_q_heads, p.head_dim, p.dtype);
  const Region out = heads_region("out", p.out, p.num_tokens, p.num_q_heads, p.head_dim, p.dtype);
  Region block_table = array_region("block_table", p.block_table, p.num_seqs, 4);
  block_table.width = p.max_pages_per_seq * 4;
  if (__builtin_mul_overflow(p.block_table_stride, 4, &block_table.strides[0])) block_table.strides[0] = INT64_MAX;
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, q));
  PROLOGUE_RETURN_IF_ERROR(check_writable(kName, out));
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, block_table));
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, array_region("cu_seqlens_q", p.cu_seqlens_q, p.num_seqs + 1, 4)));
  PROLOGUE_RETURN_IF_ERROR(check_readable(kName, array_region("seq_lens", p.seq_lens, p.num_seqs, 4)));
  PROLOGUE_RETURN_IF_ERROR(check_faults(kName, p.faults));
  PROLOGUE_RETURN_IF_ERROR(check_apart(kName, out, q));
  PROLOGUE_RETURN_IF_ERROR(check_apart(kName, out, cache_region("cache.k", p.kv.k, p.kv.k_strides, p.kv)));
  PROLOGUE_RETURN_IF_ERROR(check_apart(kName, out, cache_region("cache.v", p.kv.v, p.kv.v_strides, p.kv)));
  const int64_t needed = paged_attention_workspace_bytes(p, device);
  if (needed > 0 && (p.workspace == nullptr || p.workspace_bytes < needed)) {
    return invalid_argument("paged_attention: workspace has ", p.workspace == nullptr ? 0 : p.workspace_bytes,
                            " bytes: this call needs ", needed);
  }
  return {};
}

}  // namespace

int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params, Device device) {
#ifdef PROLOGUE_HAS_CUDA
  if (device == Device::cuda) return cuda::paged_attention_workspace_bytes(params);
#endif
  (void)params, (void)device;
  return 0;
}

Status validate(const PagedAttentionParams& params, Device device) {
  PROLOGUE_RETURN_IF_ERROR(check_shapes(params, device));
  return params.num_tokens == 0 || params.num_seqs == 0 ? ok_status() : check_arrays(params, device);
}

Status paged_attention(const PagedAttentionParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution.device));
  if (params.num_tokens == 0 || params.num_seqs == 0) return ok_status();
  if (execution.device == Device::cpu) return cpu::paged_attention(params, execution);
#ifdef PROLOGUE_HAS_CUDA
  return cuda::paged_attention(params, execution);
#else
  return cuda_not_built("paged_attention");
#endif
}

}  // namespace prologue
