// This file makes an entry of the prefill tables.
#pragma once

#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/prefill/mma_kernel.cuh>
#include <prologue/kernels/paged_attention/prefill/simple_kernel.cuh>

namespace prologue::cuda {

template <class T, int kHeadDim, PrefillCache kCache = PrefillCache::dtype, int kMaxKeys = 64, int kRowTiles = 1>
constexpr PrefillInstance mma_instance(DType dtype) {
  using Tile = MmaTileOf<T, kHeadDim, kCache, kMaxKeys, kRowTiles>;
  return {dtype,       kCache,         kHeadDim,     Tile::kRows,
          Tile::kKeys, Tile::kThreads, sizeof(Tile), prefill_mma_kernel<T, kHeadDim, kCache, kMaxKeys, kRowTiles>};
}

template <int kHeadDim, bool kSmall = false, PrefillCache kCache = PrefillCache::one_format>
constexpr PrefillInstance simple_instance() {
  using Tile = SimpleTileOf<kHeadDim, kSmall, kCache>;
  return {DType::f32,  kCache,         kHeadDim,     Tile::kRows,
          Tile::kKeys, Tile::kThreads, sizeof(Tile), prefill_simple_kernel<kHeadDim, kSmall, kCache>};
}

}  // namespace prologue::cuda
