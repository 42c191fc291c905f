// This file makes tensor maps, the descriptions from which TMA copies (hopper.cuh). Host code.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include <prologue/kernels/base/device/driver_function.cuh>

namespace prologue::cuda {

// Returns the tensor-map encoder of the driver, or null if the driver has none.
using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);
inline EncodeTensorMap encode_tensor_map() {
  constexpr unsigned kSince = 12000;
  static const auto function = driver_function<EncodeTensorMap>("cuTensorMapEncodeTiled", kSince);
  return function;
}

// A tensor map describes a tensor of 16-bit elements: rows of channels, and outer dimensions with strides in elements. Its boxes have 64
// channels.
struct OuterDim {
  int64_t size;
  int64_t stride;
  int64_t box;
};
// Returns false for addresses and strides that the driver does not take, or without such a driver. `promotion`: how much of a row the L2
// fetches from memory at a time.
inline bool encode_map(CUtensorMap& map, const void* data, int64_t channels, std::initializer_list<OuterDim> outer,
                       CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  constexpr unsigned kMaxDims = 5;
  cuuint64_t sizes[kMaxDims] = {static_cast<cuuint64_t>(channels)}, strides[kMaxDims - 1] = {};
  cuuint32_t box[kMaxDims] = {64}, steps[kMaxDims] = {1};
  unsigned dims = 1;
  for (const OuterDim& dim : outer) {
    strides[dims - 1] = static_cast<cuuint64_t>(dim.stride) * 2;
    sizes[dims] = static_cast<cuuint64_t>(dim.size);
    box[dims] = static_cast<cuuint32_t>(dim.box);
    steps[dims++] = 1;
  }
  // Bits are copied as they are: the type says only how many.
  const EncodeTensorMap encode = encode_tensor_map();
  return encode != nullptr && encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, dims, const_cast<void*>(data), sizes, strides, box,
                                     steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace prologue::cuda
