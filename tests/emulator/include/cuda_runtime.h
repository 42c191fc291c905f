// This file has what the library's device code uses of CUDA C++, as C++. Floating-point code is compiled without contraction, so plain
// operators round as the intrinsics do.
#pragma once

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "../emulator.h"
#include "../matrices.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static  // one block runs at a time

#define threadIdx (::emulator::thread->thread_index)
#define blockIdx (::emulator::block_index)
inline const emulator::Extent& blockDim = emulator::block_extent;
inline const emulator::Extent& gridDim = emulator::grid_extent;

struct dim3 : emulator::Extent {
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : emulator::Extent{x_, y_, z_} {}
};

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- launches ---------------------------------------------------------------------------------------------------------------

enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension = 4, cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id = {};
  struct {
    emulator::Extent clusterDim;
    int programmaticStreamSerializationAllowed = 0;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace emulator {
inline constexpr size_t kMaxSharedBytes = 227 * 1024;

inline bool launchable(const Extent& grid, const Extent& block, size_t shared_bytes, const Extent& cluster) {
  const auto between = [](unsigned x, unsigned high) { return x >= 1 && x <= high; };
  if (!between(cluster.x, 8) || cluster.y != 1 || cluster.z != 1 || grid.x % cluster.x != 0) return false;
  return between(grid.x, 0x7fffffff) && between(grid.y, 65535) && between(grid.z, 65535) && between(block.x, 1024) &&
         between(block.y, 1024) && between(block.z, 64) && uint64_t{block.x} * block.y * block.z <= 1024 &&
         shared_bytes <= kMaxSharedBytes;
}
}  // namespace emulator

inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  return static_cast<size_t>(bytes) <= emulator::kMaxSharedBytes ? cudaSuccess : cudaErrorInvalidValue;
}
// A kernel that was compiled on demand is machine code of a GPU.
inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) { return cudaErrorInvalidDeviceFunction; }

inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args... args) {
  const emulator::Extent grid = config->gridDim, block = config->blockDim;
  const size_t shared_bytes = config->dynamicSmemBytes;
  emulator::Extent cluster;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = config->attrs[i].val.clusterDim;
  }
  if (!emulator::launchable(grid, block, shared_bytes, cluster)) return cudaErrorInvalidConfiguration;
  return emulator::submit(config->stream, [=] {
    const std::tuple<Params...> values(args...);
    emulator::run_grid(
        grid, block, shared_bytes, [&] { std::apply(kernel, values); }, cluster.x);
  });
}

// ---- warps and blocks -------------------------------------------------------------------------------------------------------

inline void __syncthreads() { emulator::sync_block(); }
inline int __syncthreads_or(int predicate) {
  static int any;
  any = 0;
  emulator::sync_block();
  if (predicate != 0) any = 1;
  emulator::sync_block();
  const int result = any;
  emulator::sync_block();
  return result;
}
[[noreturn]] inline void __trap() { emulator::fail("traps"); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) { emulator::sync_warp(mask); }

template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32) {
  const int lane = emulator::thread->lane();
  return emulator::value_of(mask, value, (lane & ~(width - 1)) + (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int distance, int width = 32) {
  const int lane = emulator::thread->lane(), source = lane ^ distance;
  return emulator::value_of(mask, value, source >= (lane & ~(width - 1)) + width ? lane : source);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned distance, int width = 32) {
  const int lane = emulator::thread->lane(), source = lane - static_cast<int>(distance);
  return emulator::value_of(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned distance, int width = 32) {
  const int lane = emulator::thread->lane(), source = lane + static_cast<int>(distance);
  return emulator::value_of(mask, value, source >= (lane & ~(width - 1)) + width ? lane : source);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  struct Lane {
    int predicate;
    uint32_t result;
    bool done;
  } lane = {predicate, 0, false};
  emulator::together(mask, lane, [](Lane* const* lanes) {
    uint32_t result = 0;
    for (int i = 0; i < 32; ++i) result |= lanes[i] != nullptr && lanes[i]->predicate != 0 ? 1u << i : 0u;
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) lanes[i]->result = result;
    }
  });
  return lane.result;
}
inline int __reduce_add_sync(uint32_t mask, int value) {
  struct Lane {
    int value, sum;
    bool done;
  } lane = {value, 0, false};
  emulator::together(mask, lane, [](Lane* const* lanes) {
    int sum = 0;
    for (int i = 0; i < 32; ++i) sum += lanes[i] != nullptr ? lanes[i]->value : 0;
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) lanes[i]->sum = sum;
    }
  });
  return lane.sum;
}
inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate == 0) == 0; }

// ---- memory -----------------------------------------------------------------------------------------------------------------

template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, const T& value) {
  *to = value;
}
template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}
template <class T>
T atomicMax(T* to, T value) {
  const T before = *to;
  *to = std::max(before, value);
  return before;
}
template <class T>
T atomicOr(T* to, T value) {
  const T before = *to;
  *to |= value;
  return before;
}

// ---- arithmetic -------------------------------------------------------------------------------------------------------------

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return std::fmin(static_cast<C>(a), static_cast<C>(b));
  return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(a) : static_cast<C>(b);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return std::fmax(static_cast<C>(a), static_cast<C>(b));
  return static_cast<C>(a) > static_cast<C>(b) ? static_cast<C>(a) : static_cast<C>(b);
}

inline float __fdividef(float x, float y) { return x / y; }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __int_as_float(int32_t x) { return std::bit_cast<float>(x); }
inline int32_t __float_as_int(float x) { return std::bit_cast<int32_t>(x); }
inline double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(uint64_t{static_cast<uint32_t>(high)} << 32 | static_cast<uint32_t>(low));
}
inline int __double2loint(double x) { return static_cast<int>(static_cast<uint32_t>(std::bit_cast<uint64_t>(x))); }
inline int __double2hiint(double x) { return static_cast<int>(static_cast<uint32_t>(std::bit_cast<uint64_t>(x) >> 32)); }

inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __float2int_rn(float x) {
  if (std::isnan(x)) return 0;
  if (x >= 2147483648.0f) return INT_MAX;
  if (x < -2147483648.0f) return INT_MIN;
  return static_cast<int>(std::nearbyint(x));
}
inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<uint32_t>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(x)) + 1; }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const uint32_t choice = selector >> (4 * i) & 0xf;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (choice & 7))) & 0xff;
    if ((choice & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
