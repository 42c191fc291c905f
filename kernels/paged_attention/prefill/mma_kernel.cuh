// Prefill by mma.sync. A block of four warps works on a tile of 64 or 128 packed rows of one kv head, over all positions that they see. A
// warp has 16 or 32 of the rows.
//
//   mma_copies.cuh    the keys and values of a tile, from the cache to shared memory
//   mma_sums.cuh      q * k, its weights, times v; rows of the output
//
// A row takes the same steps whatever else its tile holds: keys come in tiles that start at multiples of their size, a hidden key has the
// weight 0, and tiles without a key that the row sees leave its maximum and sums as they are. Only the sign of a sum that is 0 could
// differ: it is dropped before the division.
#pragma once

#include <prologue/kernels/paged_attention/prefill/mma_copies.cuh>
#include <prologue/kernels/paged_attention/prefill/mma_sums.cuh>

namespace prologue::cuda {

// The registers allow so many blocks on an SM. One block fewer costs a quarter of the speed.
template <int kHeadDim, int kRowTiles>
inline constexpr int kMmaBlocksPerSm = kRowTiles > 1     ? 2
                                       : kHeadDim <= 96  ? 4
                                       : kHeadDim <= 128 ? 3
                                                         : 2;

// A block takes kMaxKeys keys at a time. Two tiles of rows use what a warp loads of K and V from shared memory, which limits a single one.
// While keys are multiplied the values are in flight, and vice versa. The head dims are multiples of 8 up to kHeadDim; the channels beyond
// them are zeros. If the cache holds codes, K is multiplied without its scale, which multiplies the scores; V is multiplied with the scale
// of its token, or without the scale of all tokens, which multiplies the output. The zero point of K, times the sum of a row of q, is added
// to the score; that of V is added when its token's scale is multiplied.
template <class T, int kHeadDim, PrefillCache kCache, int kMaxKeys, int kRowTiles>
__global__ void __launch_bounds__(MmaTileOf<T, kHeadDim, kCache, kMaxKeys, kRowTiles>::kThreads,
                                  kMmaBlocksPerSm<kHeadDim, kRowTiles>)
    prefill_mma_kernel(const __grid_constant__ AttentionArgs args) {
  using Tile = MmaTileOf<T, kHeadDim, kCache, kMaxKeys, kRowTiles>;
  using Copies = PrefillMmaCopies<T, kHeadDim, kCache, Tile>;
  using Sums = PrefillMmaSums<T, kHeadDim, kCache, Tile>;
  constexpr int kChunks = Copies::kChunks;
  Tile& shared = *dynamic_shared<Tile>();
  const PagedAttentionParams& p = args.p;
  if (!p.past_is_ready) wait_for_previous_kernels();
  RowTile tile;
  const bool found = find_tile(args, static_cast<int>(blockIdx.x) / args.num_kv_heads, Tile::kRows, tile);
  const int kv_head = static_cast<int>(blockIdx.x) % args.num_kv_heads;
  Copies keys(args, tile, shared, kv_head);

  wait_for_previous_kernels();
  if (!found) return;
  if (tile.sequence.bad_rows && tile.first_packed == 0) clear_bad_rows(args, tile.sequence_index, kv_head);
  if (tile.num_packed == 0) return;

  if (threadIdx.x < Tile::kRows / 32) shared.faulty[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < Tile::kRows * kChunks; i += Tile::kThreads) {
    const int packed = tile.first_packed + i / kChunks;
    const int chunk = i % kChunks;
    const bool there = packed < tile.num_packed && chunk < keys.k_chunks;
    const T* row = static_cast<const T*>(p.q.data) + (tile.sequence.first_row + packed / args.group) * p.q.token_stride +
                   q_head_of(args, kv_head, packed) * p.q.head_stride;
    copy_or_clear(&shared.q[i / kChunks][chunk * 8], there ? row + chunk * 8 : static_cast<const T*>(p.q.data), there);
  }
  __pipeline_commit();
  __syncthreads();
  keys.find_keys(keys.first_key_tile);
  __syncthreads();
  if (keys.end_of_key_tiles > 0) {
    const int stage = keys.first_key_tile % 2;
    if constexpr (Copies::kQuantized) {
      keys.load_keys(stage);
      keys.store_keys();
      keys.load_values(stage);
    } else {
      keys.copy_keys(stage);
      keys.copy_values(stage);
    }
  }

  Sums sums(args, keys);
  if (Copies::kAnyFormats && keys.k_format().type == DType::uint4) {
    __pipeline_wait_prior(0);
    __syncthreads();  // Q is there
    sums.add_up_q();
  }

  for (int key_tile = keys.first_key_tile; key_tile < keys.end_of_key_tiles; ++key_tile) {
    __pipeline_wait_prior(Copies::kQuantized ? 0 : 1);  // the keys are there
    __syncthreads();
    const bool more = key_tile + 1 < keys.end_of_key_tiles;
    if (more) keys.find_keys(key_tile + 1);
    typename Sums::Scores score = {};
    sums.multiply_keys(score);
    if constexpr (Copies::kQuantized) {
      keys.store_values(key_tile % 2);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncthreads();  // the values are there, and every warp is done with the keys
    if (more) Copies::kQuantized ? keys.load_keys((key_tile + 1) % 2) : keys.copy_keys((key_tile + 1) % 2);

    sums.weigh(key_tile, score);
    sums.multiply_values(score);
    if (more) {
      if constexpr (Copies::kQuantized) {
        keys.store_keys();
        if (!keys.v_holds_codes()) __syncthreads();  // every warp is done with the values, which are copied
        keys.load_values((key_tile + 1) % 2);
      } else {
        __syncthreads();  // every warp is done with the values
        keys.copy_values((key_tile + 1) % 2);
      }
    }
  }
  __pipeline_wait_prior(0);  // without keys to wait for, copies of Q may still be in flight to where the output passes through
  __syncthreads();
  sums.store();
}

}  // namespace prologue::cuda
