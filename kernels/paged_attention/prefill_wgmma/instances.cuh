// This file makes an entry of the tables of prefill_wgmma_kernel.
#pragma once

#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/prefill_wgmma/kernel.cuh>

namespace prologue::cuda {

template <class T, int kHeadDim, bool kCodes = false>
constexpr PrefillWgmmaInstance wgmma_instance(DType dtype) {
  return {dtype,
          kCodes ? PrefillCache::codes : PrefillCache::dtype,
          kHeadDim,
          kPrefillWgmmaKeys<kHeadDim>,
          kPrefillWgmmaThreads<kHeadDim, kCodes>,
          kPrefillWgmmaRegisters<kHeadDim, kCodes>,
          sizeof(WgmmaShared<T, kHeadDim, kCodes>),
          {{prefill_wgmma_kernel<T, kHeadDim, kCodes, false, false>, prefill_wgmma_kernel<T, kHeadDim, kCodes, false, true>},
           {prefill_wgmma_kernel<T, kHeadDim, kCodes, true, false>, prefill_wgmma_kernel<T, kHeadDim, kCodes, true, true>}}};
}

}  // namespace prologue::cuda
