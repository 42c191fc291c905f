// This is host code for .cu files: how the ways fill in their launches.
#pragma once

#include <cstring>
#include <optional>
#include <type_traits>

#include <prologue/kernels/projection/way.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>

namespace prologue::cuda {

// This is the shared memory of an SM of compute capability 9.0, and what the system takes of it for each block.
inline constexpr int64_t kSharedBytesOfSm = 228 * 1024, kSharedBytesOfSystem = 1024;
inline constexpr int64_t kMaxSharedBytes = kSharedBytesOfSm - kSharedBytesOfSystem;

inline bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

// Says whether x and the weights can be read 16 bytes at a time, and the kernels of few tokens know the norm.
inline bool is_readable(const Product& p) {
  if ((p.dtype != DType::f16 && p.dtype != DType::bf16) || p.x_stride % 8 != 0 || !is_aligned(p.x, 16) ||
      !is_aligned(p.weight, 16)) {
    return false;
  }
  return p.norm.given == 0 || (p.norm.kind == NormKind::rms && p.norm.bias == nullptr && is_aligned(p.norm.weight, 16));
}

// Fills in what the arguments of the kernels of few tokens have in common.
template <class Args>
void fill_norm(Args& a, const Product& p) {
  a.norm_weight = static_cast<const char*>(p.norm.given != 0 ? p.norm.weight : nullptr);
  a.float_norm_weight = resolve_dtype(p.norm.weight_type, p.dtype) == DType::f32 ? 1 : 0;
  a.normed = p.norm.given != 0 ? 1 : 0;
  a.eps = p.norm.eps;
  a.inverse_k = 1.0f / static_cast<float>(p.k);
}

template <class Args>
Args arguments_of(const unsigned char* bytes) {
  Args args;
  std::memcpy(&args, bytes, sizeof args);
  return args;
}

template <class ProductArgs, class FinishArgs>
Status start(const Launch& l, cudaStream_t stream) {
  LaunchAttributes attributes(l.cluster_blocks, l.overlaps);
  const LaunchShape shape = {grid_extent(l.blocks), static_cast<unsigned>(l.threads), static_cast<size_t>(l.shared_bytes),
                             attributes.span()};
  return launch(l.operation, reinterpret_cast<void (*)(ProductArgs, FinishArgs)>(l.kernel), shape, stream,
                arguments_of<ProductArgs>(l.product), arguments_of<FinishArgs>(l.finish));
}

// Makes a launch without its shape.
template <class ProductArgs, class FinishArgs>
Launch launch_of(const char* operation, void (*kernel)(ProductArgs, FinishArgs), const ProductArgs& product,
                 const std::type_identity_t<FinishArgs>& finish) {
  static_assert(sizeof(ProductArgs) <= sizeof(Launch::product) && sizeof(FinishArgs) <= sizeof(Launch::finish));
  static_assert(std::is_trivially_copyable_v<ProductArgs> && std::is_trivially_copyable_v<FinishArgs>);
  Launch l;
  l.operation = operation;
  l.kernel = reinterpret_cast<void (*)()>(kernel);
  l.start = start<ProductArgs, FinishArgs>;
  std::memcpy(l.product, &product, sizeof product);
  std::memcpy(l.finish, &finish, sizeof finish);
  return l;
}

}  // namespace prologue::cuda
