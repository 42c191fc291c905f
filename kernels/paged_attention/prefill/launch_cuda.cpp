#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/paged_attention/attention_families.h>
#include <prologue/kernels/paged_attention/attention_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

// Kernels with tensor cores are used if the call allows them.
constexpr InstanceTable<PrefillInstance> kTables[] = {prefill_mma_instances, prefill_mma_instances_of_any_formats,
                                                      prefill_simple_instances, prefill_simple_instances_of_any_formats,
                                                      prefill_simple_instances_of_blocks};

bool is_mma(const PrefillInstance& instance) { return instance.dtype != DType::f32; }

std::string name_of(const PrefillInstance& instance) {
  const std::string kind = is_mma(instance) ? str_cat("mma q=", dtype_name(instance.dtype), " cache=", cache_name(instance.cache))
                                            : str_cat("simple", instance.cache == PrefillCache::any_formats  ? " cache=any"
                                                                : instance.cache == PrefillCache::any_blocks ? " cache=blocks"
                                                                                                             : "");
  return str_cat("prefill ", kind, " head_dim=", instance.head_dim, " rows=", instance.rows, " keys=", instance.keys);
}

size_t shared_bytes_of(const PrefillInstance& instance) { return instance.shared_bytes; }

bool serves(const PrefillInstance& instance, const PagedAttentionParams& params) {
  const DType k = params.kv.k.format.type, v = params.kv.v.format.type;
  const bool has_zero_points = k == DType::uint4;
  if (instance.head_dim < largest_head_dim(params)) return false;
  if (const bool blocks = instance.cache == PrefillCache::any_blocks; blocks || has_block_scales(params.kv)) {
    return blocks && has_block_scales(params.kv);
  }
  if (!is_mma(instance)) return instance.cache == PrefillCache::any_formats || (one_format(params.kv) && !has_zero_points);
  if (instance.dtype != params.dtype || !groups_are_whole(params)) return false;
  switch (instance.cache) {
    case PrefillCache::dtype: return k == params.dtype && v == params.dtype;
    case PrefillCache::codes: return one_format(params.kv) && dtype_is_quantized(k) && !has_zero_points;
    default: break;
  }
  const auto fits = [&](DType type) { return dtype_is_quantized(type) || type == params.dtype; };
  return fits(k) && fits(v);
}

// Tiles of more rows than the smallest load less for each row, but they must fill the GPU. A batch-invariant row uses the same kernel in
// every call.
bool fills_the_gpu(const PrefillInstance& instance, const PagedAttentionParams& params) {
  constexpr int kSmallestRows = 64;
  if (instance.rows <= kSmallestRows) return true;
  const int64_t tiles = params.num_tokens * group_of(params) / instance.rows * params.kv.num_kv_heads;
  return !params.batch_invariant && tiles >= 2 * kMultiprocessors;
}

// Returns the smallest instance that serves the heads and fits the GPU.
const PrefillInstance* choose(const PagedAttentionParams& params, size_t shared_bytes) {
  return first_instance(kTables, [&](const PrefillInstance& instance) {
    return serves(instance, params) && instance.shared_bytes <= shared_bytes && fills_the_gpu(instance, params);
  });
}

int64_t no_workspace(const PagedAttentionParams&) { return 0; }

Status launch_prefill(const PrefillInstance& instance, const PagedAttentionParams& params, int64_t first_seq,
                      cudaStream_t stream) {
  const int64_t packed_rows = max_packed_rows(params);
  if (packed_rows > kMaxPackedRows) return too_large(packed_rows);
  AttentionArgs args = make_args(params);
  args.first_seq = first_seq;
  const int64_t blocks = prefill_blocks(params, first_seq, instance.rows);
  if (blocks > kMaxGrid) return too_large(blocks);
  LaunchAttributes attributes(1, true);
  return launch("paged_attention prefill", instance.kernel,
                {grid_extent(blocks), static_cast<unsigned>(instance.threads), instance.shared_bytes, attributes.span()}, stream,
                args);
}

std::optional<Status> run(const PrefillInstance& instance, const PagedAttentionParams& params, int64_t first_seq,
                          cudaStream_t stream) {
  return launch_prefill(instance, params, first_seq, stream);
}

}  // namespace

constinit const AttentionFamily<PrefillInstance> kPrefillFamily = {false,  kTables, name_of,      shared_bytes_of,
                                                                   serves, choose,  no_workspace, run};

}  // namespace prologue::cuda
