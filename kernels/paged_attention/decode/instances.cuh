// This file makes an entry of the decode tables.
#pragma once

#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/decode/kernel.cuh>

namespace prologue::cuda {

template <class C, int kHeadDim, int kRows>
constexpr DecodeInstance decode_instance(DType cache) {
  return {cache, kHeadDim, kRows, std::is_same_v<C, AnyBlocks>, decode_kernel<C, kHeadDim, kRows>};
}

}  // namespace prologue::cuda
