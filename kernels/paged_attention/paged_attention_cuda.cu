#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include <prologue/kernels/paged_attention/backends.h>
#include <prologue/kernels/paged_attention/instances.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/decode_kernel.cuh>
#include <prologue/kernels/paged_attention/decode_mma_kernel.cuh>

namespace prologue::cuda {

namespace {

constexpr int64_t kDecodeMaxRows = 4;      // query rows of a sequence up to which a decode kernel takes the launch
constexpr int64_t kMultiprocessors = 132;  // that the launches of decode fill: a constant, so that every GPU gives the same bits
constexpr int64_t kDecodeTargetRows = kMultiprocessors * kDecodeRowsPerSm;  // of all blocks of a split launch
constexpr int64_t kDecodeMmaBlocks = 2 * kMultiprocessors;                  // at most
constexpr int64_t kDecodeMlaBlocks = kMultiprocessors;
static_assert(kDecodeMmaBlocks <= kPagedAttentionCounters);
constexpr int64_t kMinKeysPerBlock = 128;
constexpr int64_t kMinKeysPerMlaBlock = 256;  // where one block adds up the parts of a unit, which are large
constexpr int64_t kMaxMlaParts = 4;           // of a unit: where there may be more, a second launch adds them up
constexpr int64_t kMinKeysPerSplit = 128;     // below, splitting costs more than it gains
static_assert(kPrefillWgmmaParts <= kPagedAttentionCounters);
constexpr int64_t kMaxGrid = INT_MAX;
constexpr int64_t kMaxPackedRows = INT_MAX - 1024;  // of a sequence: kernels count them, and the rows of a tile beyond, in an int

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status too_large(int64_t blocks) {
  return invalid_argument("paged_attention: num_seqs, max_seqlen_q and the heads need ", blocks, " blocks: a launch has at most ",
                          kMaxGrid);
}

struct CombineInstance {
  int head_dim;
  int tile_rows;
  void (*kernel)(AttentionArgs);
};

constexpr CombineInstance kCombineInstances[] = {
    {256, 4, combine_kernel<256, 4>}, {256, 8, combine_kernel<256, 8>}, {576, 2, combine_kernel<576, 2>}};

bool one_format(const PagedKvView& kv) {
  return kv.k.format.type == kv.v.format.type && kv.k.format.scaling == kv.v.format.scaling;
}

// Every head of q, out and the cache is whole groups, as the kernels load them: 16 bytes, or 8 codes of a quantised cache.
bool groups_are_whole(const PagedAttentionParams& p) {
  const auto aligned = [](const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; };
  const int64_t group = 16 / dtype_size(p.dtype);
  bool whole = aligned(p.q.data, 16) && aligned(p.out.data, 16);
  for (const int64_t width : {p.head_dim, v_head_dim(p.kv)}) whole = whole && width % group == 0;
  for (const int64_t stride : {p.q.token_stride, p.q.head_stride, p.out.token_stride, p.out.head_stride}) {
    whole = whole && stride % group == 0;
  }
  for (const PagedHeads* side : {&p.kv.k, &p.kv.v}) {
    const int64_t cache_bits = dtype_bits(side->format.type);
    const int64_t cache_group = cache_bits == 32 ? 4 : 8;
    whole = whole && aligned(side->data, cache_group * cache_bits / 8);
    for (const int64_t width : {p.head_dim, v_head_dim(p.kv)}) whole = whole && width % cache_group == 0;
    for (const int64_t stride : {side->strides.page, side->strides.token, side->strides.head}) {
      whole = whole && stride % cache_group == 0;
    }
  }
  return whole;
}

AttentionArgs make_args(const PagedAttentionParams& params) {
  constexpr float kLog2E = 1.4426950408889634f;
  AttentionArgs args;
  args.p = params;
  args.score_scale = params.soft_cap > 0.0f ? params.scale / params.soft_cap : params.scale * kLog2E;
  args.cap_log2 = params.soft_cap * kLog2E;
  if (params.window > 0) args.window = static_cast<int>(params.window);
  const auto divisor = [](int64_t number) { return Divisor(static_cast<int32_t>(std::min<int64_t>(number, INT32_MAX))); };
  args.chunk = divisor(params.chunk);
  args.group = divisor(params.num_q_heads / params.kv.num_kv_heads);
  args.num_kv_heads = divisor(params.kv.num_kv_heads);
  args.page_size = divisor(params.kv.page_size);
  args.ring_size = divisor(params.ring_size);
  args.v_head_dim = static_cast<int>(v_head_dim(params.kv));
  args.whole_groups = groups_are_whole(params);
  const PageStrides &k = params.kv.k.strides, &v = params.kv.v.strides;
  args.same_rows = args.v_head_dim == params.head_dim && k.page == v.page && k.token == v.token && k.head == v.head;
  return args;
}

int64_t largest_head_dim(const PagedAttentionParams& params) { return std::max(params.head_dim, v_head_dim(params.kv)); }

// The most positions that the rows of one sequence see.
int64_t max_keys(const PagedAttentionParams& params) {
  int64_t keys = params.max_seq_len;
  for (const int64_t of_a_row : {params.window, params.chunk}) {
    if (of_a_row > 0) keys = std::min(keys, of_a_row + params.max_seqlen_q - 1);
  }
  return keys;
}

bool serves(const DecodeInstance& instance, const PagedAttentionParams& params) {
  const PagedKvView& kv = params.kv;
  if (instance.head_dim < largest_head_dim(params)) return false;
  return instance.cache == DType::unset || (instance.cache == kv.k.format.type && one_format(kv));
}

// K and V in chunks of 16 bytes.
bool chunks_are_whole(const PagedKvView& kv, int64_t head_dim) {
  bool whole = true;
  const auto check = [&](const PagedHeads& side, int64_t width) {
    whole = whole && reinterpret_cast<uintptr_t>(side.data) % 16 == 0;
    for (const int64_t elements : {width, side.strides.page, side.strides.token, side.strides.head}) {
      whole = whole && elements * dtype_bits(side.format.type) % 128 == 0;
    }
  };
  check(kv.k, head_dim);
  check(kv.v, v_head_dim(kv));
  return whole;
}

bool mma_serves(const DecodeMmaInstance& instance, const PagedAttentionParams& params) {
  const DType k = params.kv.k.format.type;
  if (instance.k != k || instance.v != params.kv.v.format.type || instance.head_dim < largest_head_dim(params)) return false;
  const bool dtype_fits = dtype_is_quantized(k) ? params.dtype != DType::f32 : params.dtype == k;
  return dtype_fits && groups_are_whole(params) && chunks_are_whole(params.kv, params.head_dim);
}

bool mma_serves(const PrefillInstance& instance, const PagedAttentionParams& params) {
  const DType k = params.kv.k.format.type;
  const DType v = params.kv.v.format.type;
  if (instance.dtype != params.dtype || instance.head_dim < largest_head_dim(params) || !groups_are_whole(params)) return false;
  switch (instance.cache) {
    case PrefillCache::dtype: return k == params.dtype && v == params.dtype;
    case PrefillCache::codes: return one_format(params.kv) && dtype_is_quantized(k) && k != DType::uint4;
    default: break;
  }
  const auto fits = [&](DType type) { return dtype_is_quantized(type) || type == params.dtype; };
  return fits(k) && fits(v);
}

// Packed rows of a tile: whole tokens, as one box of TMA has them.
int64_t wgmma_tile_rows(const PagedAttentionParams& params) {
  const int64_t group = params.num_q_heads / params.kv.num_kv_heads;
  return kPrefillWgmmaRows / group * group;
}

int64_t wgmma_box_slots(const PagedAttentionParams& params) {
  return std::min<int64_t>(params.kv.page_size, kPrefillWgmmaMaxBoxSlots);
}

constexpr int64_t kMaxBoxStride = (int64_t{1} << 40) / 2;  // of TMA, in elements

// What TMA can express of a cache: strides in bytes below 2^40 (16 bytes each, as groups_are_whole() says), slots in boxes that pages and
// the ring consist of, and that begin at multiples of 8 rows of a tile of keys.
bool boxes_serve(const PagedAttentionParams& params) {
  const PagedKvView& kv = params.kv;
  if (kv.k.format.type != params.dtype || kv.v.format.type != params.dtype) return false;
  if (!std::has_single_bit(static_cast<uint64_t>(kv.page_size)) || kv.page_size < 8 || kv.page_size > (1 << 30)) return false;
  if (params.ring_size % wgmma_box_slots(params) != 0) return false;
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
bool wgmma_serves(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params) {
  if (instance.dtype != params.dtype || instance.head_dim < largest_head_dim(params) || !(params.scale > 0.0f)) return false;
  if (!groups_are_whole(params) || wgmma_tile_rows(params) == 0) return false;
  if (params.q.token_stride >= kMaxBoxStride || params.q.head_stride >= kMaxBoxStride) return false;
  return instance.cache == PrefillCache::codes ? code_groups_serve(params) : boxes_serve(params);
}

bool mla_has_shape(const DecodeMlaInstance& instance, const PagedAttentionParams& params) {
  const PagedKvView& kv = params.kv;
  if (instance.dtype != params.dtype || kv.k.format.type != params.dtype || kv.v.format.type != params.dtype) return false;
  return kv.num_kv_heads == 1 && params.head_dim == kMlaHeadDim && v_head_dim(kv) == kMlaValueDim;
}

// V must be the first channels of K, and 16 keys in one page of whole groups of 8 slots, which TMA counts.
bool mla_serves(const DecodeMlaInstance& instance, const PagedAttentionParams& params) {
  const PagedKvView& kv = params.kv;
  const PageStrides &k = kv.k.strides, &v = kv.v.strides;
  if (!mla_has_shape(instance, params)) return false;
  if (kv.k.data != kv.v.data || k.page != v.page || k.token != v.token || !groups_are_whole(params)) return false;
  if (kv.page_size % kDecodeMlaBoxSlots != 0 || params.ring_size % kDecodeMlaBoxSlots != 0 || !(params.scale > 0.0f))
    return false;
  return kv.num_pages <= INT_MAX && kv.page_size <= INT_MAX && k.page < kMaxBoxStride && k.token < kMaxBoxStride / 8;
}

bool simple_serves(const PrefillInstance& instance, const PagedAttentionParams& params) {
  if (instance.head_dim < largest_head_dim(params)) return false;
  return instance.cache == PrefillCache::any_formats || (one_format(params.kv) && params.kv.k.format.type != DType::uint4);
}

// Query heads of a kv head times rows of a sequence.
int64_t max_packed_rows(const PagedAttentionParams& params) {
  return std::min(params.max_seqlen_q, params.num_tokens) * (params.num_q_heads / params.kv.num_kv_heads);
}

// In the order of preference.
std::array<std::span<const DecodeMmaInstance>, 3> decode_mma_tables() {
  return {decode_mma_instances_of_floats(), decode_mma_instances_of_codes(), decode_mma_instances_of_zero_points()};
}
std::array<std::span<const DecodeInstance>, 3> decode_tables() {
  return {decode_instances_of_floats(), decode_instances_of_large_heads(), decode_instances_of_any_formats()};
}

std::array<std::span<const PrefillWgmmaInstance>, 2> prefill_wgmma_tables() {
  return {prefill_wgmma_instances(), prefill_wgmma_instances_of_codes()};
}
std::array<std::span<const PrefillInstance>, 2> prefill_mma_tables() {
  return {prefill_mma_instances(), prefill_mma_instances_of_any_formats()};
}
std::array<std::span<const PrefillInstance>, 2> prefill_simple_tables() {
  return {prefill_simple_instances(), prefill_simple_instances_of_any_formats()};
}

size_t smallest_shared_bytes(const DecodeMmaInstance& instance) { return instance.shared_bytes + 2 * instance.stage_bytes; }

// Tensor cores where the call allows them: the smallest instance that serves the heads, with as many rows as there are, that fits the GPU.
const DecodeMmaInstance* find_decode_mma(const PagedAttentionParams& params, size_t shared_bytes) {
  const int preferred_rows = max_packed_rows(params) <= 8 ? 8 : 16;
  for (const auto& table : decode_mma_tables()) {
    for (const DecodeMmaInstance& instance : table) {
      if (instance.tile_rows == preferred_rows && smallest_shared_bytes(instance) <= shared_bytes && mma_serves(instance, params))
        return &instance;
    }
  }
  return nullptr;
}

// The smallest instance that serves the heads, with as many rows as there are, or the fewest beyond.
const DecodeInstance* find_decode(const PagedAttentionParams& params) {
  const int preferred_rows = max_packed_rows(params) <= 4 ? 4 : 8;
  const DecodeInstance* found = nullptr;
  for (const auto& table : decode_tables()) {
    for (const DecodeInstance& instance : table) {
      if (!serves(instance, params)) continue;
      if (instance.tile_rows == preferred_rows) return &instance;
      if (found == nullptr) found = &instance;
    }
    if (found != nullptr) break;
  }
  return found;
}

const DecodeMlaInstance* find_decode_mla(const PagedAttentionParams& params) {
  for (const DecodeMlaInstance& instance : decode_mla_instances()) {
    if (mla_serves(instance, params)) return &instance;
  }
  return nullptr;
}

const PrefillWgmmaInstance* find_prefill_wgmma(const PagedAttentionParams& params) {
  for (const auto& table : prefill_wgmma_tables()) {
    for (const PrefillWgmmaInstance& instance : table) {
      if (wgmma_serves(instance, params)) return &instance;
    }
  }
  return nullptr;
}

// Tiles of more rows than the smallest have less to load for each, but they must fill the GPU; and a batch-invariant row has the same ones
// in every call.
bool fills_the_gpu(const PrefillInstance& instance, const PagedAttentionParams& params) {
  constexpr int kSmallestRows = 64;
  if (instance.rows <= kSmallestRows) return true;
  const int64_t group = params.num_q_heads / params.kv.num_kv_heads;
  const int64_t tiles = params.num_tokens * group / instance.rows * params.kv.num_kv_heads;
  return !params.batch_invariant && tiles >= 2 * kMultiprocessors;
}

// Tensor cores where the call allows them, and the smallest instance that serves the heads and fits the GPU.
const PrefillInstance* find_prefill(const PagedAttentionParams& params, size_t shared_bytes) {
  for (const auto& table : prefill_mma_tables()) {
    for (const PrefillInstance& instance : table) {
      if (!mma_serves(instance, params) || instance.shared_bytes > shared_bytes) continue;
      if (fills_the_gpu(instance, params)) return &instance;
    }
  }
  for (const auto& table : prefill_simple_tables()) {
    for (const PrefillInstance& instance : table) {
      if (simple_serves(instance, params) && instance.shared_bytes <= shared_bytes) return &instance;
    }
  }
  return nullptr;
}

Status run_decode(const DecodeInstance& instance, const PagedAttentionParams& params, cudaStream_t stream) {
  const int64_t packed_rows = max_packed_rows(params);
  if (packed_rows > kMaxPackedRows) return too_large(packed_rows);
  AttentionArgs args = make_args(params);
  const int64_t tile_rows = instance.tile_rows;
  args.row_tiles = static_cast<int>(divide_up(packed_rows, tile_rows));
  const int64_t blocks_per_split = params.num_seqs * params.kv.num_kv_heads * args.row_tiles;
  args.num_splits = static_cast<int>(std::max<int64_t>(
      1, std::min(kDecodeTargetRows / tile_rows / blocks_per_split, divide_up(max_keys(params), kMinKeysPerSplit))));
  const int64_t blocks = blocks_per_split * args.num_splits;
  if (blocks * tile_rows > kMaxGrid) return too_large(blocks * tile_rows);
  args.partial_stats = static_cast<float2*>(params.workspace);
  args.partial_out = reinterpret_cast<float*>(args.partial_stats + blocks * tile_rows);
  PROLOGUE_RETURN_IF_ERROR(
      launch("paged_attention decode", instance.decode, {grid_extent(blocks), kDecodeThreads}, stream, args));
  if (args.num_splits == 1) return {};
  for (const CombineInstance& combine : kCombineInstances) {
    if (combine.tile_rows != tile_rows || combine.head_dim < args.v_head_dim) continue;
    return launch("paged_attention combine", combine.kernel, {grid_extent(blocks_per_split * tile_rows), kCombineThreads}, stream,
                  args);
  }
  return unsupported("paged_attention: head_dim ", args.v_head_dim, " is larger than the largest combine kernel");
}

// What the blocks of decode_mma_kernel and decode_mla_kernel keep in the workspace.
struct DecodeMmaParts {
  int64_t counters_bytes = kPagedAttentionCounters * static_cast<int64_t>(sizeof(uint32_t));
  int64_t rows;  // of all parts
  int64_t bytes;

  DecodeMmaParts(int64_t blocks, int64_t tile_rows, int64_t v_width)
      : rows(2 * blocks * tile_rows),
        bytes(counters_bytes + rows * static_cast<int64_t>(sizeof(float2) + static_cast<size_t>(v_width) * sizeof(float))) {}
};

// The most tiles of a unit.
int64_t max_tiles(const PagedAttentionParams& params, int64_t tile_keys) {
  return divide_up(max_keys(params) + kKeyGroup - 1, tile_keys);
}

// Where there are several tiles of so many keys, blocks may share a unit.
constexpr int64_t kSmallestTileKeys = kDecodeMmaWarps * kKeyGroup;

// As many stages as let blocks_per_sm blocks run at a time, and at least two.
Status choose_stages(const DecodeMmaInstance& instance, int& stages) {
  int device = 0, of_block = 0, of_multiprocessor = 0;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&of_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  constexpr int kReserved = 1024;  // of a block, by the driver
  const int bytes = std::min(of_block, of_multiprocessor / instance.blocks_per_sm - kReserved);
  stages = (bytes - static_cast<int>(instance.shared_bytes)) / static_cast<int>(instance.stage_bytes);
  stages = std::clamp(stages, 2, kMaxDecodeMmaStages);
  return {};
}

// The launch of a kernel that takes the tiles of decode_tiles.cuh.
struct TilesLaunch {
  int64_t tile_rows, tile_keys;
  int64_t min_keys;     // of a block
  int64_t max_blocks;   // that run at a time
  int64_t part_blocks;  // that the workspace has parts for
  bool counts = true;   // blocks that share a unit count who has arrived
};
// How many kv heads a block of a team takes: as few as leave at most a sixteenth of the blocks without a team.
int64_t heads_of_block(int64_t num_kv_heads, int64_t max_blocks) {
  const auto blocks_with = [&](int64_t heads) {
    const int64_t team = num_kv_heads / heads;
    return num_kv_heads % heads != 0 || team > max_blocks ? 0 : max_blocks / team * team;
  };
  int64_t best = 1;
  for (int64_t heads = 1; heads <= num_kv_heads && blocks_with(best) < max_blocks - max_blocks / 16; ++heads) {
    if (blocks_with(heads) > blocks_with(best)) best = heads;
  }
  return best;
}

Status prepare(const PagedAttentionParams& params, const TilesLaunch& shape, cudaStream_t stream, AttentionArgs& args, dim3& grid,
               bool& may_overlap) {
  const int64_t packed_rows = max_packed_rows(params);
  if (packed_rows > kMaxPackedRows) return too_large(packed_rows);
  args.min_tiles = static_cast<int>(divide_up(shape.min_keys, shape.tile_keys));
  const int64_t tiles = max_tiles(params, shape.tile_keys);
  const int64_t heads = params.kv.num_kv_heads;
  const int64_t units_of_head = params.num_seqs * divide_up(packed_rows, shape.tile_rows);
  // Where shares are short, a block that goes to another sequence for each head loses more than its team gains.
  const bool in_teams = units_of_head * heads * tiles >= kLongShare * shape.max_blocks;
  args.heads_of_block = static_cast<int>(in_teams ? heads_of_block(heads, shape.max_blocks) : heads);
  const int64_t team = heads / args.heads_of_block;
  const int64_t shares = units_of_head * args.heads_of_block * divide_up(tiles, args.min_tiles);
  grid = dim3(grid_extent(team), grid_extent(std::min(shape.max_blocks / team, shares)));
  may_overlap = device_is_hopper_or_later();
  if (tiles > 1) {
    const DecodeMmaParts parts(shape.part_blocks, shape.tile_rows, args.v_head_dim);
    auto* const workspace = static_cast<unsigned char*>(params.workspace);
    args.partial_out = reinterpret_cast<float*>(workspace + parts.counters_bytes);
    args.partial_stats = reinterpret_cast<float2*>(args.partial_out + parts.rows * args.v_head_dim);
    args.counters = params.counters;
    if (args.counters == nullptr && shape.counts) {
      args.counters = reinterpret_cast<uint32_t*>(workspace);
      PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(args.counters, 0, static_cast<size_t>(parts.counters_bytes), stream));
      may_overlap = false;  // what comes before it is no kernel
    }
  }
  args.p.past_is_ready = params.past_is_ready && may_overlap;
  return {};
}

Status run_decode_mma(const DecodeMmaInstance& instance, const PagedAttentionParams& params, cudaStream_t stream) {
  AttentionArgs args = make_args(params);
  PROLOGUE_RETURN_IF_ERROR(choose_stages(instance, args.stages));
  dim3 grid;
  bool may_overlap = false;
  PROLOGUE_RETURN_IF_ERROR(prepare(
      params,
      {instance.tile_rows, instance.tile_keys, kMinKeysPerBlock, kMultiprocessors * instance.blocks_per_sm, kDecodeMmaBlocks},
      stream, args, grid, may_overlap));
  const size_t shared_bytes = instance.shared_bytes + static_cast<size_t>(args.stages) * instance.stage_bytes;
  LaunchAttributes attributes(1, may_overlap);
  return launch("paged_attention decode", instance.kernel, {grid, kDecodeMmaThreads, shared_bytes, attributes.span()}, stream,
                args);
}

// The sequences from first_seq on.
Status run_prefill(const PrefillInstance& instance, const PagedAttentionParams& params, int64_t first_seq, cudaStream_t stream) {
  const int64_t packed_rows = max_packed_rows(params);
  if (packed_rows > kMaxPackedRows) return too_large(packed_rows);
  AttentionArgs args = make_args(params);
  args.first_seq = first_seq;
  const int64_t num_seqs = params.num_seqs - first_seq;
  // Every sequence's last tile may be partial, or its only one for rows to clear: at most num_seqs more than the rows fill.
  const int64_t tiles_by_rows = params.num_tokens * args.group / instance.rows + num_seqs;
  const int64_t tiles_by_length = num_seqs * divide_up(packed_rows, instance.rows);
  const int64_t blocks = std::min(tiles_by_rows, tiles_by_length) * params.kv.num_kv_heads;
  if (blocks > kMaxGrid) return too_large(blocks);
  LaunchAttributes attributes(1, true);
  return launch("paged_attention prefill", instance.kernel,
                {grid_extent(blocks), static_cast<unsigned>(instance.threads), instance.shared_bytes, attributes.span()}, stream,
                args);
}

// What prefill_wgmma_kernel keeps in the workspace, where tiles may be divided into parts.
struct PrefillWgmmaParts {
  static constexpr int64_t kCountersBytes = kPagedAttentionCounters * static_cast<int64_t>(sizeof(uint32_t));
  // Of a row the sums of all channels, in groups of 8, and two numbers for each of the 4 lanes that hold it.
  static int64_t bytes(int64_t v_head_dim) {
    const int64_t floats = divide_up(v_head_dim, 8) * 8 + 8;
    return kCountersBytes + kPrefillWgmmaParts * kPrefillWgmmaRows * floats * static_cast<int64_t>(sizeof(float));
  }
};

// False for strides that the driver does not take.
bool encode_maps(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params, PrefillWgmmaParams& w) {
  const PagedKvView& kv = params.kv;
  const int64_t group = params.num_q_heads / kv.num_kv_heads;
  w.tile_rows = Divisor(static_cast<int32_t>(wgmma_tile_rows(params)));
  w.box_slots = static_cast<int>(wgmma_box_slots(params));
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

// Of the cache of MLA. False for strides that the driver does not take.
bool encode_mla_map(const PagedAttentionParams& params, CUtensorMap& map) {
  const PagedKvView& kv = params.kv;
  const PageStrides& strides = kv.k.strides;
  constexpr int64_t kGroup = 8;
  return encode_map(map, kv.k.data, 64,
                    {{kGroup, strides.token, kGroup},
                     {kMlaHeadDim / 64, 64, kMlaHeadDim / 64},
                     {kv.page_size / kGroup, kGroup * strides.token, kDecodeMlaBoxSlots / kGroup},
                     {kv.num_pages, strides.page, 1}});
}

std::atomic<bool> wgmma_allowed = true;

// Whether the library holds code of the kernels with wgmma for this device: code for others is empty, and admits fewer threads.
bool has_wgmma_code(int device) {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  if (major != 9 || minor != 0) return false;
  constexpr int kDevices = 64;
  static std::array<std::atomic<int>, kDevices> answers = {};  // 0: not known yet; 1: no; 2: yes
  if (device < kDevices && answers[static_cast<size_t>(device)] != 0) return answers[static_cast<size_t>(device)] == 2;
  cudaFuncAttributes attributes = {};
  const auto has_code = [&](auto* kernel, int threads, int registers) {
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) cudaGetLastError();
    return error == cudaSuccess && attributes.maxThreadsPerBlock >= threads && attributes.numRegs >= registers;
  };
  bool yes = has_code(decode_mla_instances()[0].kernel, kDecodeMlaThreads, kDecodeMlaRegisters);
  for (const auto& table : prefill_wgmma_tables()) yes = yes && has_code(table[0].kernel, table[0].threads, table[0].registers);
  if (device < kDevices) answers[static_cast<size_t>(device)] = yes ? 2 : 1;
  return yes;
}

// The sequences from first_seq on. `encoded`: of these params.
Status run_prefill_wgmma(const PrefillWgmmaInstance& instance, const PagedAttentionParams& params,
                         const PrefillWgmmaParams& encoded, int64_t first_seq, cudaStream_t stream) {
  const int64_t packed_rows = max_packed_rows(params);
  if (packed_rows > kMaxPackedRows) return too_large(packed_rows);
  AttentionArgs args = make_args(params);
  args.first_seq = first_seq;
  const int64_t num_seqs = params.num_seqs - first_seq;
  const int64_t tile_rows = encoded.tile_rows;
  const int64_t tiles_by_rows = params.num_tokens * args.group / tile_rows + num_seqs;
  const int64_t tiles_by_length = num_seqs * divide_up(packed_rows, tile_rows);
  int64_t blocks = std::min(tiles_by_rows, tiles_by_length) * params.kv.num_kv_heads;
  if (blocks > kMaxGrid) return too_large(blocks);
  // Bounds that other sequences of the call have no part in: a sequence gets the same bits beside those that decode.
  const int64_t most_tiles = num_seqs * divide_up(params.max_seqlen_q * args.group, tile_rows) * params.kv.num_kv_heads;
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

Status run_decode_mla(const DecodeMlaInstance& instance, const PagedAttentionParams& params, const CUtensorMap& map,
                      cudaStream_t stream) {
  AttentionArgs args = make_args(params);
  const int64_t packed_rows = max_packed_rows(params);
  args.row_tiles = static_cast<int>(divide_up(packed_rows, kDecodeMlaRows));
  const int64_t units = params.num_seqs * args.row_tiles;
  const int64_t shares_of_unit = divide_up(max_keys(params), kMinKeysPerBlock);
  const bool combine = std::min(kDecodeMlaBlocks / units, shares_of_unit) > kMaxMlaParts;
  dim3 grid;
  bool may_overlap = false;
  const int64_t min_keys = combine ? kMinKeysPerBlock : kMinKeysPerMlaBlock;
  PROLOGUE_RETURN_IF_ERROR(prepare(params,
                                   {kDecodeMlaRows, kDecodeMlaKeys, min_keys, kDecodeMlaBlocks, kDecodeMlaBlocks, !combine},
                                   stream, args, grid, may_overlap));
  static_assert(kDecodeMlaBlocks * sizeof(UnitBlocks) <= kPagedAttentionCounters * sizeof(uint32_t));
  if (combine) args.unit_blocks = static_cast<UnitBlocks*>(params.workspace);  // in place of counters
  LaunchAttributes attributes(1, may_overlap);
  PROLOGUE_RETURN_IF_ERROR(launch("paged_attention decode", instance.kernel,
                                  {grid, kDecodeMlaThreads, instance.shared_bytes, attributes.span()}, stream, args, map));
  if (!combine) return {};
  const auto rows = static_cast<unsigned>(std::min<int64_t>(packed_rows, kDecodeMlaRows));
  return launch("paged_attention combine", mla_combine(), {{grid_extent(units), rows}, kMlaCombineThreads, 0, attributes.span()},
                stream, args);
}

// What decode runs: the first num_seqs sequences of the call (all, some or none), as a call of their own, so that they get the
// same bits in any batch. Prefill runs the others.
PagedAttentionParams decode_part(const PagedAttentionParams& params) {
  PagedAttentionParams p = params;
  if (p.max_seqlen_q > kDecodeMaxRows || p.num_decode_seqs == p.num_seqs) {
    p.num_seqs = p.num_decode_seqs;
    p.max_seqlen_q = 1;
  }
  if (p.batch_invariant) p.num_seqs = 0;
  return p;
}

std::string name_of(const DecodeInstance& instance) {
  return str_cat("decode cache=", instance.cache == DType::unset ? "any" : dtype_name(instance.cache),
                 " head_dim=", instance.head_dim, " rows=", instance.tile_rows);
}

std::string name_of(const DecodeMmaInstance& instance) {
  return str_cat("decode mma cache=", dtype_name(instance.k),
                 instance.k == instance.v ? "" : str_cat(",", dtype_name(instance.v)), " head_dim=", instance.head_dim,
                 " rows=", instance.tile_rows);
}

std::string name_of(const DecodeMlaInstance& instance) {
  return str_cat("decode mla cache=", dtype_name(instance.dtype), " head_dim=", kMlaHeadDim, " rows=", kDecodeMlaRows);
}

const char* cache_name(PrefillCache cache) {
  return cache == PrefillCache::dtype ? "same" : cache == PrefillCache::codes ? "codes" : "any";
}

std::string name_of(const PrefillWgmmaInstance& instance) {
  return str_cat("prefill wgmma q=", dtype_name(instance.dtype), " cache=", cache_name(instance.cache),
                 " head_dim=", instance.head_dim, " keys=", instance.keys);
}

std::string name_of_mma(const PrefillInstance& instance) {
  return str_cat("prefill mma q=", dtype_name(instance.dtype), " cache=", cache_name(instance.cache),
                 " head_dim=", instance.head_dim, " rows=", instance.rows, " keys=", instance.keys);
}

std::string name_of_simple(const PrefillInstance& instance) {
  return str_cat("prefill simple", instance.cache == PrefillCache::any_formats ? " cache=any" : "",
                 " head_dim=", instance.head_dim, " rows=", instance.rows, " keys=", instance.keys);
}

AttentionInstance pinned(const PrefillInstance& instance, std::string name) {
  return {std::move(name), static_cast<int64_t>(instance.shared_bytes), false,
          [&instance](const PagedAttentionParams& p, cudaStream_t stream) { return run_prefill(instance, p, 0, stream); }};
}

}  // namespace

// Enough for every kernel that may run such a call, whatever the alignment of its arrays and the GPU are. A launch of decode_kernel with
// splits has at most kDecodeTargetRows packed rows.
int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params) {
  if (params.batch_invariant || max_tiles(params, kSmallestTileKeys) <= 1) return 0;
  const int64_t v_width = v_head_dim(params.kv);
  const DType k = params.kv.k.format.type, v = params.kv.v.format.type;
  const bool same = k == params.dtype && v == params.dtype, codes = dtype_is_quantized(k) && dtype_is_quantized(v);
  const bool wgmma =
      params.dtype != DType::f32 && (same || codes) && largest_head_dim(params) <= prefill_wgmma_instances().back().head_dim;
  const int64_t of_prefill = wgmma ? PrefillWgmmaParts::bytes(v_width) : 0;
  const bool mla =
      std::ranges::any_of(decode_mla_instances(), [&](const auto& instance) { return mla_has_shape(instance, params); });
  const int64_t of_mla = mla ? DecodeMmaParts(kDecodeMlaBlocks, kDecodeMlaRows, kMlaValueDim).bytes : 0;
  return std::max({kDecodeTargetRows * static_cast<int64_t>(sizeof(float2) + static_cast<size_t>(v_width) * sizeof(float)),
                   DecodeMmaParts(kDecodeMmaBlocks, max_packed_rows(params) <= 8 ? 8 : 16, v_width).bytes, of_prefill, of_mla});
}

std::vector<AttentionInstance> instances_of(const PagedAttentionParams& params) {
  std::vector<AttentionInstance> list;
  for (const auto& table : decode_mma_tables()) {
    for (const DecodeMmaInstance& instance : table) {
      if (!mma_serves(instance, params)) continue;
      list.push_back(
          {name_of(instance), static_cast<int64_t>(smallest_shared_bytes(instance)), false,
           [&instance](const PagedAttentionParams& p, cudaStream_t stream) { return run_decode_mma(instance, p, stream); }});
    }
  }
  for (const auto& table : decode_tables()) {
    for (const DecodeInstance& instance : table) {
      if (!serves(instance, params)) continue;
      list.push_back({name_of(instance), 0, false, [&instance](const PagedAttentionParams& p, cudaStream_t stream) {
                        return run_decode(instance, p, stream);
                      }});
    }
  }
  for (const DecodeMlaInstance& instance : decode_mla_instances()) {
    if (!mla_serves(instance, params)) continue;
    list.push_back({name_of(instance), static_cast<int64_t>(instance.shared_bytes), true,
                    [&instance](const PagedAttentionParams& p, cudaStream_t stream) {
                      CUtensorMap map;
                      if (!encode_mla_map(p, map)) return unsupported("paged_attention: no tensor map for these strides");
                      return run_decode_mla(instance, p, map, stream);
                    }});
  }
  for (const auto& table : prefill_wgmma_tables()) {
    for (const PrefillWgmmaInstance& instance : table) {
      if (!wgmma_serves(instance, params)) continue;
      list.push_back({name_of(instance), static_cast<int64_t>(instance.shared_bytes), true,
                      [&instance](const PagedAttentionParams& p, cudaStream_t stream) {
                        PrefillWgmmaParams encoded;
                        if (!encode_maps(instance, p, encoded)) {
                          return unsupported("paged_attention: no tensor map for these strides");
                        }
                        return run_prefill_wgmma(instance, p, encoded, 0, stream);
                      }});
    }
  }
  for (const auto& table : prefill_mma_tables()) {
    for (const PrefillInstance& instance : table) {
      if (mma_serves(instance, params)) list.push_back(pinned(instance, name_of_mma(instance)));
    }
  }
  for (const auto& table : prefill_simple_tables()) {
    for (const PrefillInstance& instance : table) {
      if (simple_serves(instance, params)) list.push_back(pinned(instance, name_of_simple(instance)));
    }
  }
  return list;
}

std::string chosen_decode_instance(const PagedAttentionParams& params, int64_t shared_bytes, bool wgmma) {
  const PagedAttentionParams decode = decode_part(params);
  const DecodeMlaInstance* mla = wgmma && decode.num_seqs > 0 ? find_decode_mla(decode) : nullptr;
  if (mla != nullptr) return name_of(*mla);
  const DecodeMmaInstance* mma = decode.num_seqs > 0 ? find_decode_mma(decode, static_cast<size_t>(shared_bytes)) : nullptr;
  if (mma != nullptr) return name_of(*mma);
  const DecodeInstance* instance = decode.num_seqs > 0 ? find_decode(decode) : nullptr;
  return instance == nullptr ? "" : name_of(*instance);
}

std::string chosen_prefill_instance(const PagedAttentionParams& params, int64_t shared_bytes, bool wgmma) {
  if (decode_part(params).num_seqs == params.num_seqs) return "";
  const PrefillWgmmaInstance* of_hopper = wgmma ? find_prefill_wgmma(params) : nullptr;
  if (of_hopper != nullptr) return name_of(*of_hopper);
  const PrefillInstance* instance = find_prefill(params, static_cast<size_t>(shared_bytes));
  if (instance == nullptr) return "";
  for (const auto& table : prefill_mma_tables()) {
    for (const PrefillInstance& mma : table) {
      if (&mma == instance) return name_of_mma(mma);
    }
  }
  return name_of_simple(*instance);
}

std::vector<std::string> paged_attention_instances() {
  std::vector<std::string> names;
  for (const auto& table : decode_mma_tables()) {
    for (const DecodeMmaInstance& instance : table) names.push_back(name_of(instance));
  }
  for (const auto& table : decode_tables()) {
    for (const DecodeInstance& instance : table) names.push_back(name_of(instance));
  }
  for (const DecodeMlaInstance& instance : decode_mla_instances()) names.push_back(name_of(instance));
  for (const auto& table : prefill_wgmma_tables()) {
    for (const PrefillWgmmaInstance& instance : table) names.push_back(name_of(instance));
  }
  for (const auto& table : prefill_mma_tables()) {
    for (const PrefillInstance& instance : table) names.push_back(name_of_mma(instance));
  }
  for (const auto& table : prefill_simple_tables()) {
    for (const PrefillInstance& instance : table) names.push_back(name_of_simple(instance));
  }
  return names;
}

bool runs_wgmma() {
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) return has_wgmma_code(device) && encode_tensor_map() != nullptr;
  cudaGetLastError();
  return false;
}

void allow_wgmma(bool allowed) { wgmma_allowed = allowed; }

Status paged_attention(const PagedAttentionParams& params, const Execution& execution) {
  int device = 0, shared_bytes = 0;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const PagedAttentionParams decode = decode_part(params);
  const bool wgmma = wgmma_allowed && has_wgmma_code(device);
  const DecodeMlaInstance* mla = wgmma && decode.num_seqs > 0 ? find_decode_mla(decode) : nullptr;
  const DecodeMmaInstance* mma = decode.num_seqs > 0 ? find_decode_mma(decode, static_cast<size_t>(shared_bytes)) : nullptr;
  CUtensorMap mla_map;
  if (mla != nullptr && encode_mla_map(decode, mla_map)) {
    PROLOGUE_RETURN_IF_ERROR(run_decode_mla(*mla, decode, mla_map, execution.stream));
  } else if (mma != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(run_decode_mma(*mma, decode, execution.stream));
  } else if (decode.num_seqs > 0) {
    const DecodeInstance* instance = find_decode(decode);
    if (instance == nullptr) {
      return unsupported("paged_attention: head_dim ", largest_head_dim(params), " is larger than the largest decode kernel");
    }
    PROLOGUE_RETURN_IF_ERROR(run_decode(*instance, decode, execution.stream));
  }
  if (decode.num_seqs == params.num_seqs) return {};
  if (wgmma) {
    const PrefillWgmmaInstance* instance = find_prefill_wgmma(params);
    PrefillWgmmaParams encoded;
    if (instance != nullptr && encode_maps(*instance, params, encoded)) {
      return run_prefill_wgmma(*instance, params, encoded, decode.num_seqs, execution.stream);
    }
  }
  const PrefillInstance* instance = find_prefill(params, static_cast<size_t>(shared_bytes));
  if (instance != nullptr) return run_prefill(*instance, params, decode.num_seqs, execution.stream);
  return unsupported("paged_attention: no prefill kernel for head_dim ", largest_head_dim(params), " fits the ", shared_bytes,
                     " bytes of shared memory that a block may have on this GPU");
}

}  // namespace prologue::cuda
