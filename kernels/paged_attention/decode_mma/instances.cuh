// This file makes an entry of the tables of decode_mma_kernel.
#pragma once

#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/decode_mma/kernel.cuh>

namespace prologue::cuda {

// A warp has 32 keys of a tile if a stage is then not larger than 8 KiB, and with its scales not larger than 10 KiB.
template <class K, class V, int kHeadDim>
inline constexpr int kDecodeMmaKeys = sizeof(DecodeMmaStage<K, V, kHeadDim, 32>) <= 8192 &&
                                              sizeof(DecodeMmaStage<K, V, kHeadDim, 32>) +
                                                      sizeof(DecodeMmaKeys<K, V, kHeadDim, 32>) <=
                                                  10240
                                          ? 32
                                          : 16;

template <class T, class K, class V, int kHeadDim, int kColumns>
constexpr DecodeMmaInstance decode_mma_instance(DType k, DType v) {
  constexpr int kKeys = kDecodeMmaKeys<K, V, kHeadDim>;
  return {k,
          v,
          kIsBlocks<K>,
          kHeadDim,
          8 * kColumns,
          kDecodeMmaWarps * kKeys,
          kHeadDim > 128 ? 1 : 2,
          sizeof(DecodeMmaShared<V, kHeadDim, 8 * kColumns>),
          kDecodeMmaWarps * (sizeof(DecodeMmaStage<K, V, kHeadDim, kKeys>) + sizeof(DecodeMmaKeys<K, V, kHeadDim, kKeys>)),
          decode_mma_kernel<T, K, V, kHeadDim, kColumns, kKeys>};
}

}  // namespace prologue::cuda
