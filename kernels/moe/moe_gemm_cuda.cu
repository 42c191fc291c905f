#include <algorithm>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/moe/backends.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/moe/moe_gemm_kernel.cuh>
#include <prologue/kernels/moe/moe_packed_kernel.cuh>

namespace prologue::cuda {

namespace {

// The kernel for few rows has tiles of these sizes; they are chosen for up to so many rows per expert (on average). The larger a tile, the
// more rows use a weight that was read once, and the more of it is empty if an expert has few rows.
constexpr int kFewRows = 8, kSomeRows = 32;
constexpr int64_t kMaxFewRows = 4, kMaxSomeRows = 32;

bool is_packed(const MoeGemmParams& p) { return p.packed.num_segments > 0; }

int tile_rows(const MoeGemmParams& p) {
  const int64_t rows = p.num_tokens * p.top_k;
  if (p.dtype == DType::f32) return kFloatX;
  if (rows <= kMaxFewRows * p.num_experts) return kFewRows;
  if (is_packed(p)) return kSomeRows;
  return rows <= kMaxSomeRows * p.num_experts ? kSomeRows : kManyRowsX;
}

// Every expert, and the rows without one, may have a tile that is not full.
int64_t max_tiles(int64_t rows, int64_t num_experts, int tile) { return rows / tile + std::min(num_experts + 1, rows); }

}  // namespace

// A call with fewer tokens may have smaller tiles, so each size counts at the most rows that it is chosen for.
int64_t moe_gemm_workspace_bytes(const MoeGemmParams& p) {
  const int64_t rows = p.num_tokens * p.top_k, experts = p.num_experts;
  if (p.num_tokens == 1) return 0;
  const int64_t tiles = p.dtype == DType::f32 ? max_tiles(rows, experts, kFloatX)
                                              : std::max({max_tiles(std::min(rows, kMaxFewRows * experts), experts, kFewRows),
                                                          max_tiles(std::min(rows, kMaxSomeRows * experts), experts, kSomeRows),
                                                          max_tiles(rows, experts, is_packed(p) ? kSomeRows : kManyRowsX)});
  return tiles * static_cast<int64_t>(sizeof(MoeTile)) + round_up(rows * 4, 16);
}

namespace {

Status run_dense(const MoeGemmParams& p, const MoeTiles& tiles, int tile, int64_t num_tiles, const Execution& execution) {
  return with_device_type(p.dtype, [&]<class T>(T) {
    const bool whole = groups_are_whole<T>(p.x, p.k, p.k) && groups_are_whole<T>(p.weight, p.k, p.k);
    const auto run = [&](auto* kernel, int threads, int64_t n_of_block, size_t shared_bytes) {
      const dim3 grid(grid_extent(num_tiles), grid_extent(divide_up(p.n, n_of_block)));
      return launch("moe_gemm", kernel, {grid, static_cast<unsigned>(threads), shared_bytes}, execution.stream, p, tiles, whole);
    };
    if constexpr (std::is_same_v<T, float>) {
      return run(moe_float_kernel, 32 * kFloatWarps, kFloatWarps * kFloatRowsOfWarp, 0);
    } else {
      constexpr int kThreads = 32 * kFewRowsWarps, kColumns = 16 * kFewRowsWarps;
      if (tile == kFewRows) return run(moe_few_rows_kernel<T, kFewRows / 8>, kThreads, kColumns, 0);
      if (tile == kSomeRows) return run(moe_few_rows_kernel<T, kSomeRows / 8>, kThreads, kColumns, 0);
      return run(moe_many_rows_kernel<T>, kManyRowsThreads, kManyRowsN, kManyRowsShared);
    }
  });
}

Status run_packed(const MoeGemmParams& p, const MoeTiles& tiles, int tile, int64_t num_tiles, const Execution& execution) {
  return with_device_type(p.dtype, [&]<class T>(T) {
    const auto run = [&](auto* kernel, int64_t n_of_block) {
      const dim3 grid(grid_extent(num_tiles), grid_extent(divide_up(p.n, n_of_block)));
      return launch("moe_gemm packed", kernel, {grid, 32 * kPackedExpertWarps}, execution.stream, p, tiles);
    };
    constexpr int64_t kRows = kPackedGroupRows;
    if constexpr (std::is_same_v<T, float>) {
      return run(moe_packed_float_kernel, kRows * kPackedExpertWarps);
    } else {
      // Both give the same bits; a grid has at most kMostGroups blocks in its second dimension.
      constexpr int64_t kMostGroups = 65535;
      if (tile == kFewRows && p.n <= kMostGroups * kRows) return run(moe_packed_few_rows_kernel<T>, kRows);
      if (tile == kFewRows) return run(moe_packed_kernel<T, kFewRows / 8>, kRows * kPackedExpertWarps);
      return run(moe_packed_kernel<T, kSomeRows / 8>, kRows * kPackedExpertWarps);
    }
  });
}

}  // namespace

Status moe_gemm(const MoeGemmParams& p, GemmContext&, const Execution& execution) {
  const int64_t rows = p.num_tokens * p.top_k;
  const int tile = tile_rows(p);
  MoeTiles tiles = {};
  int64_t num_tiles = rows;
  if (p.num_tokens > 1) {
    num_tiles = max_tiles(rows, p.num_experts, tile);
    auto* const written = static_cast<MoeTile*>(p.workspace);
    auto* const order = reinterpret_cast<int32_t*>(written + num_tiles);
    PROLOGUE_RETURN_IF_ERROR(launch("moe_group", moe_group_kernel, {1, kGroupThreads}, execution.stream, p, tile,
                                    static_cast<int>(num_tiles), written, order));
    tiles = {written, order};
  }
  return is_packed(p) ? run_packed(p, tiles, tile, num_tiles, execution) : run_dense(p, tiles, tile, num_tiles, execution);
}

}  // namespace prologue::cuda
