// For prompts: tiles of hidden_states W^T (tiles/product.cuh) with whole heads, or parts of them. Other warps finish a tile (tiles/head_finish.cuh)
// while the next one is multiplied: q, k and v are never in memory unfinished.
#pragma once

#include <prologue/kernels/projection/tiles/head_finish.cuh>

namespace prologue::cuda {

// kFeatures: with kMoreSteps, the steps are decided at run time.
template <class T, int kColumns, int kFeatures, int kAtOnce>
__global__ void __launch_bounds__(kTileThreads, 1)
    qkv_gemm_kernel(const __grid_constant__ QkvGemmArgs a, const __grid_constant__ MoreArgs p) {
#if PROLOGUE_HOPPER
  static_assert((kFeatures & (kTokenNorm | kAxes | kDerived)) == 0);  // whether positions are derived is read at run time
  auto& shared = *swizzled_dynamic_shared<QkvGemmShared<T, kColumns>>();
  run_tiles<T>(
      a, shared,
      [&](const TilePlace& tile, int thread) {
        for (int i = thread; i < tile.tokens; i += kTileFinishers) {
          shared.tokens[i] = find_token(p, a.num_tokens, tile.token + i, tile.column == 0);
        }
      },
      [&](const TilePlace& tile, int warp, int warps) { finish_tile<T, kFeatures, kAtOnce>(a, p, shared, tile, warp, warps); });
#endif
}

}  // namespace prologue::cuda
