// This kernel is for prompts with a linear layer's end: tiles of gate and up (tiles/product.cuh, finish/output.cuh). The warps that finish
// a tile apply the activation while the next tile is multiplied, so gate and up are never in memory.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/tiles/product.cuh>

namespace prologue::cuda {

inline constexpr int kGatedColumns = 256;  // of a tile: those of gate, then those of up

// Each lane finishes 8 channels of y at a time.
template <class T, class Shared>
__device__ inline void finish_gated_tile(const TilesArgs& a, const OutputArgs& o, const Shared& shared, const TilePosition& tile,
                                         int warp, int warps) {
  constexpr int kHalf = kGatedColumns / 2, kChannels = 8, kLanes = kHalf / kChannels, kAtOnce = 32 / kLanes;
  const int lane = threadIdx.x % 32, channel = lane % kLanes * kChannels, at = tile.column * kHalf + channel;
  const int rows = min(tile.tokens, a.num_tokens - tile.token);
  if (at >= o.n) return;
#pragma unroll 1
  for (int i = warp * kAtOnce + lane / kLanes; i < rows; i += warps * kAtOnce) {
    const auto gate = load_bytes<16, false>(&shared.tile[i][channel]),
               up = load_bytes<16, false>(&shared.tile[i][kHalf + channel]);
    Bytes<16> stored;
#pragma unroll
    for (int half = 0; half < kChannels / kRowsAtOnce; ++half) {
      float values[kRowsAtOnce], ups[kRowsAtOnce];
#pragma unroll
      for (int c = 0; c < kRowsAtOnce; ++c) {
        values[c] = element<T, kChannels>(gate, half * kRowsAtOnce + c);
        ups[c] = element<T, kChannels>(up, half * kRowsAtOnce + c);
      }
      apply_activation(o, values, ups);
      const Packed<T, kRowsAtOnce> packed = pack<T, kRowsAtOnce>(values);
      stored.words[half * 2] = packed.words[0], stored.words[half * 2 + 1] = packed.words[1];
    }
    store_bytes<16, false>(o.y + (tile.token + i) * o.y_stride + at * static_cast<int64_t>(sizeof(T)), stored);
  }
}

template <class W>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiles_output_kernel(const __grid_constant__ TilesArgs a, const __grid_constant__ OutputArgs o) {
#if PROLOGUE_HOPPER
  using T = typename W::T;
  auto& shared = *swizzled_dynamic_shared<TileShared<W, kGatedColumns>>();
  run_tiles<W>(
      a, shared, [](const TilePosition&, int) {},
      [&](const TilePosition& tile, int warp, int warps) { finish_gated_tile<T>(a, o, shared, tile, warp, warps); });
#endif
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

struct TilesOutputInstance {
  int columns;  // of a tile
  int shared_bytes;
  EncodeWeights encode;
  void (*kernel)(TilesArgs, OutputArgs);
};

// Lists the kernels that ship, in the order in which they are chosen (tiles/instances.cuh).
std::span<const TilesOutputInstance> float16_tiles_outputs();
std::span<const TilesOutputInstance> bfloat16_tiles_outputs();

}  // namespace prologue::cuda
