#include <algorithm>
#include <bit>

#include <prologue/kernels/paged_attention/attention_families.h>
#include <prologue/kernels/paged_attention/attention_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>

namespace prologue::cuda {

namespace {

static_assert(kPrefillWgmmaParts <= kPagedAttentionCounters);

constexpr InstanceTable<PrefillWgmmaInstance> kTables[] = {prefill_wgmma_instances, prefill_wgmma_instances_of_codes};

std::string name_of(const PrefillWgmmaInstance& instance) {
  return str_cat("prefill wgmma q=", dtype_name(instance.dtype), " cache=", cache_name(instance.cache),
                 " head_dim=", instance.head_dim, " keys=", instance.keys);
}

size_t shared_bytes_of(const PrefillWgmmaInstance& instance) { return instance.shared_bytes; }

// Packed rows of a tile: whole tokens, as one box of TMA has them.
int64_t tile_rows_of(const PagedAttentionParams& params) {
  const int64_t group = group_of(params);
  return kPrefillWgmmaRows / group * group;
}

int64_t box_slots_of(const PagedAttentionParams& params) {
  return std::min<int64_t>(params.kv.page_size, kPrefillWgmmaMaxBoxSlots);
}

// What TMA can express of a cache: strides in bytes below 2^40 (16 bytes each, as groups_are_whole() says), slots in boxes that pages and
// the ring consist of, and that begin at multiples of 8 rows of a tile of keys.
bool boxes_serve(const PagedAttentionParams& params) {
  const PagedKvView& kv = params.kv;
  if (kv.k.format.type != params.dtype || kv.v.format.type != params.dtype) return false;
  if (!std::has_single_bit(static_cast<uint64_t>(kv.page_size)) || kv.page_size < 8 || kv.page_size > (1 << 30)) return false;
  if (params.ring_size % box_slots_of(params) != 0) return false;
  bool fits = kv.num_pages <= INT_MAX;
  for (const PageStrides& strides : {kv.k.strides, kv.v.strides}) {
    for (const int64_t stride : {strides.page, strides.token, strides.head}) fits = fits && stride < kMaxBoxStride;
  }
  return fits;
}

// Codes in whole groups of those that a thread moves, which are counted in an int.
bool code_groups_serve(const PagedAttentionParams& params) {
  const auto serves = [&](const PagedHeads& side, int64_t width) {
    if (!dtype_is_quantized(side.format.type)) return false;
    const int64_t group_bytes = kPrefillWgmmaCodes * dtype_bits(side.format.type) / 8;
    bool whole = reinterpret_cast<uintptr_t>(side.data) % static_cast<uintptr_t>(group_bytes) == 0;
    for (const int64_t codes : {width, side.strides.page, side.strides.token, side.strides.head}) {
      whole = whole && codes % kPrefillWgmmaCodes == 0;
    }
    const int64_t groups_of_page = side.strides.page / kPrefillWgmmaCodes,
                  groups_of_token = side.strides.token / kPrefillWgmmaCodes;
    return whole && groups_of_token <= INT_MAX / params.kv.page_size &&
           groups_of_page <= (INT_MAX - groups_of_token * params.kv.page_size) / std::max<int64_t>(1, params.kv.num_pages);
  };
  return serves(params.kv.k, params.head_dim) && serves(params.kv.v, v_head_dim(params.kv));
}

// Scores are scaled after their maximum is found.
bool serves(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params) {
  if (instance.dtype != params.dtype || instance.head_dim < largest_head_dim(params) || !(params.scale > 0.0f)) return false;
  if (!groups_are_whole(params) || tile_rows_of(params) == 0) return false;
  if (params.q.token_stride >= kMaxBoxStride || params.q.head_stride >= kMaxBoxStride) return false;
  return instance.cache == PrefillCache::codes ? code_groups_serve(params) : boxes_serve(params);
}

const PrefillWgmmaInstance* choose(const PagedAttentionParams& params, size_t) {
  return first_instance(kTables, [&](const PrefillWgmmaInstance& instance) { return serves(instance, params); });
}

// What the kernel keeps in the workspace, where tiles may be divided into parts.
struct PrefillWgmmaParts {
  static constexpr int64_t kCountersBytes = kPagedAttentionCounters * static_cast<int64_t>(sizeof(uint32_t));
  // Of a row the sums of all channels, in groups of 8, and two numbers for each of the 4 lanes that hold it.
  static int64_t bytes(int64_t v_head_dim) {
    const int64_t floats = divide_up(v_head_dim, 8) * 8 + 8;
    return kCountersBytes + kPrefillWgmmaParts * kPrefillWgmmaRows * floats * static_cast<int64_t>(sizeof(float));
  }
};

int64_t workspace_bytes(const PagedAttentionParams& params) {
  const DType k = params.kv.k.format.type, v = params.kv.v.format.type;
  const bool same = k == params.dtype && v == params.dtype, codes = dtype_is_quantized(k) && dtype_is_quantized(v);
  const bool may_run =
      params.dtype != DType::f32 && (same || codes) && largest_head_dim(params) <= prefill_wgmma_instances().back().head_dim;
  return may_run ? PrefillWgmmaParts::bytes(v_head_dim(params.kv)) : 0;
}

// False for strides that the driver does not take.
bool encode_maps(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params, PrefillWgmmaParams& w) {
  const PagedKvView& kv = params.kv;
  const int64_t group = group_of(params);
  w.tile_rows = Divisor(static_cast<int32_t>(tile_rows_of(params)));
  w.box_slots = static_cast<int>(box_slots_of(params));
  const auto encode_side = [&](CUtensorMap& map, const PagedHeads& side, int64_t channels) {
    return encode_map(map, side.data, channels,
                      {{kv.page_size, side.strides.token, w.box_slots},
                       {kv.num_kv_heads, side.strides.head, 1},
                       {kv.num_pages, side.strides.page, 1}});
  };
  const bool of_cache = instance.cache == PrefillCache::codes ||
                        (encode_side(w.k, kv.k, params.head_dim) && encode_side(w.v, kv.v, v_head_dim(kv)));
  return of_cache && encode_map(w.q, params.q.data, params.head_dim,
                                {{params.num_q_heads, params.q.head_stride, group},
                                 {params.num_tokens, params.q.token_stride, w.tile_rows / group}});
}

// `encoded`: of these params.
Status launch_prefill(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params, const PrefillWgmmaParams& encoded,
                      int64_t first_seq, cudaStream_t stream) {
  const int64_t packed_rows = max_packed_rows(params);
  if (packed_rows > kMaxPackedRows) return too_large(packed_rows);
  AttentionArgs args = make_args(params);
  args.first_seq = first_seq;
  const int64_t tile_rows = encoded.tile_rows;
  int64_t blocks = prefill_blocks(params, first_seq, tile_rows);
  if (blocks > kMaxGrid) return too_large(blocks);
  // Bounds that other sequences of the call have no part in: a sequence gets the same bits beside those that decode.
  const int64_t most_tiles =
      (params.num_seqs - first_seq) * divide_up(params.max_seqlen_q * args.group, tile_rows) * params.kv.num_kv_heads;
  const bool divide = !params.batch_invariant && most_tiles <= kPrefillWgmmaParts / 2 &&
                      max_keys(params) > kPrefillWgmmaLeastTiles * instance.keys;
  bool may_overlap = true;
  if (divide) {
    auto* const workspace = static_cast<unsigned char*>(params.workspace);
    args.partial_out = reinterpret_cast<float*>(workspace + PrefillWgmmaParts::kCountersBytes);
    args.counters = params.counters;
    if (args.counters == nullptr) {
      args.counters = reinterpret_cast<uint32_t*>(workspace);
      PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(args.counters, 0, PrefillWgmmaParts::kCountersBytes, stream));
      may_overlap = false;  // what comes before it is no kernel
    }
    blocks = kPrefillWgmmaParts;
  }
  int device = 0, multiprocessors = 0;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  blocks = std::min<int64_t>(blocks, multiprocessors);
  LaunchAttributes attributes(1, may_overlap);
  args.p.past_is_ready = params.past_is_ready && may_overlap;
  return launch("paged_attention prefill", params.soft_cap > 0.0f ? instance.kernel_with_soft_cap : instance.kernel,
                {grid_extent(blocks), static_cast<unsigned>(instance.threads), instance.shared_bytes, attributes.span()}, stream,
                args, encoded);
}

std::optional<Status> run(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params, int64_t first_seq,
                          cudaStream_t stream) {
  PrefillWgmmaParams encoded;
  if (!encode_maps(instance, params, encoded)) return std::nullopt;
  return launch_prefill(instance, params, encoded, first_seq, stream);
}

}  // namespace

constinit const AttentionFamily<PrefillWgmmaInstance> kPrefillWgmmaFamily = {true,   kTables, name_of,         shared_bytes_of,
                                                                             serves, choose,  workspace_bytes, run};

}  // namespace prologue::cuda
