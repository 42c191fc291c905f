// How an entry of the decode tables is made.
#pragma once

#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/decode_kernel.cuh>

namespace prologue::cuda {

template <class Q, class K, class V, int kHeadDim, int kRows>
constexpr DecodeInstance decode_instance(DType k, DType v) {
  return {k, v, std::is_same_v<Q, float>, kHeadDim, kRows, decode_kernel<Q, K, V, kHeadDim, kRows>};
}

// K and V of one format.
template <class Q, class C, int kHeadDim, int kRows>
constexpr DecodeInstance decode_instance(DType cache) {
  return decode_instance<Q, C, C, kHeadDim, kRows>(cache, cache);
}

}  // namespace prologue::cuda
