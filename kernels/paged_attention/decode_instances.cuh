// How an entry of the decode tables is made.
#pragma once

#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/decode_kernel.cuh>

namespace prologue::cuda {

template <class Q, class C, int kHeadDim, int kRows>
constexpr DecodeInstance decode_instance(DType cache) {
  return {cache, std::is_same_v<Q, float>, kHeadDim, kRows, decode_kernel<Q, C, kHeadDim, kRows>};
}

}  // namespace prologue::cuda
