// This file has the 16-bit floats on the device, faults, and 16-byte vector access.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/views.h>

namespace prologue::cuda {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounds once, to nearest even.
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// These read and write elements whose type is known only at run time. The branch is uniform over a launch. They are for code where a branch
// costs less than an instance per type.
__device__ inline float load_element(DType type, const void* data, int64_t i) {
  switch (type) {
    case DType::f16: return to_float(static_cast<const __half*>(data)[i]);
    case DType::bf16: return to_float(static_cast<const __nv_bfloat16*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

__device__ inline void store_element(DType type, void* data, int64_t i, float value) {
  switch (type) {
    case DType::f16: static_cast<__half*>(data)[i] = from_float<__half>(value); return;
    case DType::bf16: static_cast<__nv_bfloat16*>(data)[i] = from_float<__nv_bfloat16>(value); return;
    default: static_cast<float*>(data)[i] = value; return;
  }
}

// Holds N elements that are loaded and stored with one instruction where N * sizeof(T) is 4, 8 or 16 and the address is aligned so.
template <class T, int N>
struct alignas(N * sizeof(T)) Vec {
  T values[N];
};

// Does what prologue::record_fault does, on the device.
__device__ inline void record_fault(FaultRecord* record, int64_t token, FaultCode code) {
  if (record == nullptr) return;
  atomicMax(reinterpret_cast<unsigned long long*>(&record->first), static_cast<unsigned long long>(encode_fault(token, code)));
  atomicAdd(reinterpret_cast<unsigned long long*>(&record->count), 1ull);
}

__device__ inline void record_fault(FaultRecord* record, uint8_t* token_faults, int64_t token, FaultCode code) {
  cuda::record_fault(record, token, code);
  if (token_faults != nullptr) token_faults[token] = static_cast<uint8_t>(code);
}

// Calls f with a value of the device type that stores `type`.
template <class F>
auto with_device_type(DType type, F&& f) {
  switch (type) {
    case DType::f16: return f(__half{});
    case DType::bf16: return f(__nv_bfloat16{});
    default: return f(float{});
  }
}

}  // namespace prologue::cuda
