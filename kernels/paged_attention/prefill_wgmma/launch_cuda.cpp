#include <algorithm>
#include <bit>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/paged_attention/attention_families.h>
#include <prologue/kernels/paged_attention/attention_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/hopper_code.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>

namespace prologue::cuda {

namespace {

// Says how a launch divides few tiles of rows among many blocks: into clusters, one or more for each tile. These are constants, so that
// every GPU gives the same bits: as many as run at a time on an H200, whose SMs are in groups of unequal size.
struct Division {
  int cluster_blocks;  // blocks of a cluster
  int clusters;
  constexpr int blocks() const { return cluster_blocks * clusters; }
};
constexpr Division kDivisions[] = {{2, 66}, {3, 39}, {4, 30}, {6, 17}};
static_assert(std::ranges::all_of(kDivisions, [](const Division& division) {
  return division.blocks() <= kPagedAttentionCounters && division.cluster_blocks <= kPrefillWgmmaClusterBlocks;
}));

// Estimates how long blocks take on an H200 if each of key_tiles tiles of keys takes tile_time. `tiles` is the number of tiles of rows.
int64_t time_of(const Division& division, int64_t tiles, int64_t key_tiles, int64_t tile_time) {
  if (tiles > division.clusters) return INT64_MAX;
  const int64_t clusters = std::min<int64_t>(kPrefillWgmmaClusters, division.clusters / tiles);
  const int64_t parts = std::min(clusters * division.cluster_blocks, key_tiles), used = parts / division.cluster_blocks;
  const int64_t exchange = 15 + 3 * division.cluster_blocks, workspace = used > 1 ? 18 + 4 * used : 0;
  return tile_time * divide_up(key_tiles, used > 0 ? used * division.cluster_blocks : parts) + exchange + workspace;
}

// Returns the fastest division, or null if tiles are not divided.
const Division* division_of(PrefillCache cache, int64_t tiles, int64_t key_tiles) {
  if (key_tiles <= kPrefillWgmmaWholeTiles) return nullptr;
  const int64_t tile_time = cache == PrefillCache::codes ? 15 : 10;
  const Division* best = nullptr;
  int64_t least = tile_time * key_tiles;
  for (const Division& division : kDivisions) {
    const int64_t time = time_of(division, tiles, key_tiles, tile_time);
    if (time < least) best = &division, least = time;
  }
  return best;
}

constexpr InstanceTable<PrefillWgmmaInstance> kTables[] = {prefill_wgmma_instances, prefill_wgmma_instances_of_codes};

std::string name_of(const PrefillWgmmaInstance& instance) {
  return str_cat("prefill wgmma q=", dtype_name(instance.dtype), " cache=", cache_name(instance.cache),
                 " head_dim=", instance.head_dim, " keys=", instance.keys);
}

size_t shared_bytes_of(const PrefillWgmmaInstance& instance) { return instance.shared_bytes; }

// Returns the packed rows of a tile: those of whole tokens, as one box of TMA has them.
int64_t tile_rows_of(const PagedAttentionParams& params) {
  const int64_t group = group_of(params);
  return kPrefillWgmmaRows / group * group;
}

int64_t box_slots_of(const PagedAttentionParams& params) {
  return std::min<int64_t>(params.kv.page_size, kPrefillWgmmaMaxBoxSlots);
}

// Whether TMA can express the cache: strides in bytes are below 2^40 (16 bytes each, as groups_are_whole() says), pages and the ring
// consist of whole boxes of slots, and boxes begin at multiples of 8 rows of a tile of keys.
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

// Whether the codes consist of whole groups of those that a thread moves, which are counted in an int.
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

// The scale must be positive, since scores are scaled after their maximum is found.
bool serves(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params) {
  if (instance.dtype != params.dtype || instance.head_dim < largest_head_dim(params) || !(params.scale > 0.0f)) return false;
  if (has_block_scales(params.kv) || !groups_are_whole(params) || tile_rows_of(params) == 0) return false;
  if (params.q.token_stride >= kMaxBoxStride || params.q.head_stride >= kMaxBoxStride) return false;
  return instance.cache == PrefillCache::codes ? code_groups_serve(params) : boxes_serve(params);
}

const PrefillWgmmaInstance* choose(const PagedAttentionParams& params, size_t) {
  return first_instance(kTables, [&](const PrefillWgmmaInstance& instance) { return serves(instance, params); });
}

// The kernel keeps this in the workspace if several clusters may work on one tile: counters, unless the caller has given some, and for each
// thread of a block four numbers for its two rows and for each chunk of 8 channels that the block adds up.
struct PrefillWgmmaWorkspace {
  static constexpr int64_t kCountersBytes = kPagedAttentionCounters * static_cast<int64_t>(sizeof(uint32_t));
  static int64_t bytes(int64_t v_head_dim) {
    constexpr int64_t kThreads = kPrefillWgmmaRows * 4 / 2;  // a row is in four lanes
    int64_t words = 0;
    for (const Division& division : kDivisions) {
      words = std::max(words, division.blocks() * (1 + divide_up(divide_up(v_head_dim, 8), division.cluster_blocks)));
    }
    return kCountersBytes + words * kThreads * static_cast<int64_t>(sizeof(float4));
  }
};

int64_t workspace_bytes(const PagedAttentionParams& params) {
  const DType k = params.kv.k.format.type, v = params.kv.v.format.type;
  const bool same = k == params.dtype && v == params.dtype, codes = dtype_is_quantized(k) && dtype_is_quantized(v);
  const bool may_run =
      params.dtype != DType::f32 && (same || codes) && largest_head_dim(params) <= prefill_wgmma_instances().back().head_dim;
  return may_run ? PrefillWgmmaWorkspace::bytes(v_head_dim(params.kv)) : 0;
}

// Returns false for strides that the driver does not take.
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

// `encoded` has the tensor maps of these params.
Status launch_prefill(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params, const PrefillWgmmaParams& encoded,
                      int64_t first_seq, cudaStream_t stream) {
  const int64_t packed_rows = max_packed_rows(params);
  if (packed_rows > kMaxPackedRows) return too_large(packed_rows);
  AttentionArgs args = make_args(params);
  args.first_seq = first_seq;
  const int64_t tile_rows = encoded.tile_rows;
  int64_t blocks = prefill_blocks(params, first_seq, tile_rows);
  if (blocks > kMaxGrid) return too_large(blocks);
  // The other sequences of the call do not change these bounds: a sequence gets the same bits whether or not others decode beside it.
  const int64_t most_tiles = (params.num_seqs - first_seq) *
                             divide_up(std::max<int64_t>(1, params.max_seqlen_q) * args.group, tile_rows) *
                             params.kv.num_kv_heads;
  const Division* const division =
      params.batch_invariant ? nullptr : division_of(instance.cache, most_tiles, divide_up(max_keys(params), instance.keys));
  PrefillWgmmaParams w = encoded;
  bool may_overlap = true;
  if (division != nullptr) {
    auto* const workspace = static_cast<unsigned char*>(params.workspace);
    args.partial_out = reinterpret_cast<float*>(workspace + PrefillWgmmaWorkspace::kCountersBytes);
    args.counters = params.counters;
    if (args.counters == nullptr) {
      args.counters = reinterpret_cast<uint32_t*>(workspace);
      PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(args.counters, 0, PrefillWgmmaWorkspace::kCountersBytes, stream));
      may_overlap = false;  // what comes before it is no kernel
    }
    blocks = division->blocks();
    w.cluster_blocks = division->cluster_blocks;
  } else {
    blocks = std::min(blocks, wgmma_multiprocessors());
  }
  LaunchAttributes attributes(std::max(1, w.cluster_blocks), may_overlap);
  args.p.past_is_ready = params.past_is_ready && may_overlap;
  return launch("paged_attention prefill", instance.kernels[params.soft_cap > 0.0f ? 1 : 0][division != nullptr ? 1 : 0],
                {grid_extent(blocks), static_cast<unsigned>(instance.threads), instance.shared_bytes, attributes.span()}, stream,
                args, w);
}

std::optional<Status> run(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params, int64_t first_seq,
                          cudaStream_t stream) {
  PrefillWgmmaParams encoded;
  if (!encode_maps(instance, params, encoded)) return std::nullopt;
  return launch_prefill(instance, params, encoded, first_seq, stream);
}

}  // namespace

int64_t wgmma_multiprocessors() {
  const PrefillWgmmaInstance& first = prefill_wgmma_instances().front();
  return hopper_multiprocessors([&] { return first.kernels[0][0]; }, first.threads, first.registers);
}

constinit const AttentionFamily<PrefillWgmmaInstance> kPrefillWgmmaFamily = {true,   kTables, name_of,         shared_bytes_of,
                                                                             serves, choose,  workspace_bytes, run};

}  // namespace prologue::cuda
