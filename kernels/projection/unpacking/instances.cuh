// These kernels ship, each for all formats of packed weights: there are tables for each element type (unpacking/instances_*_cuda.cu). The
// first that has enough tokens serves a call.
#pragma once

#include <prologue/kernels/projection/unpacking/codes_product.cuh>
#include <prologue/kernels/projection/unpacking/output_kernel.cuh>
#include <prologue/kernels/projection/unpacking/rounded_product.cuh>

namespace prologue::cuda {

template <class Product>
constexpr UnpackingOutputInstance unpacking_output_of() {
  return {Product::kTokens, Product::kGroupsOfFormat, Product::kRounds, unpacking_output_kernel<Product>};
}

template <class T>
std::span<const UnpackingOutputInstance> unpacking_outputs() {
  static const UnpackingOutputInstance kInstances[] = {
      unpacking_output_of<CodesProduct<T, 8>>(), unpacking_output_of<CodesProduct<T, 16>>(),
      unpacking_output_of<RoundedProduct<T, 32>>(), unpacking_output_of<RoundedProduct<T, 64>>()};
  return kInstances;
}

}  // namespace prologue::cuda
