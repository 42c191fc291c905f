// The instances of this way, for its launches. Host code for .cu files.
#pragma once

#include <span>

#include <prologue/kernels/projection/vector/head_kernel.cuh>
#include <prologue/kernels/projection/vector/output_kernel.cuh>

namespace prologue::cuda {

struct VectorOutputInstance {
  void (*kernel)(VectorArgs, OutputArgs);
};

struct VectorHeadInstance {
  int vector;           // channels of an access of the prologue: heads have 64 * vector channels at most
  int features;         // of prologue_args.h
  bool several_passes;  // a warp has more than kVectorRowsOfPass rows
  void (*kernel)(VectorHeadArgs, MoreArgs);
};

// Each table is in the order in which instances are chosen.
std::span<const VectorOutputInstance> vector_outputs(DType type);
std::span<const VectorHeadInstance> vector_heads(DType type);

}  // namespace prologue::cuda
