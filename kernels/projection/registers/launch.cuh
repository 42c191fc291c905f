// The instances of this way, for its launches. Host code for .cu files.
#pragma once

#include <span>

#include <prologue/kernels/projection/registers/head_kernel.cuh>
#include <prologue/kernels/projection/registers/output_kernel.cuh>

namespace prologue::cuda {

struct RegistersOutputInstance {
  int token_tiles;  // of 8 tokens, at most
  void (*kernel)(RegistersArgs, OutputArgs);
};

struct RegistersHeadInstance {
  int vector;       // channels of an access of the prologue: heads have 64 * vector channels at most
  int features;     // of prologue_args.h, beside kMoreSteps
  int token_tiles;  // of 8 tokens, at most
  int finishers;    // warps of a block that do not multiply
  void (*kernel)(RegistersHeadArgs, MoreArgs);
};

// Each table is in the order in which instances are chosen.
std::span<const RegistersOutputInstance> registers_outputs(DType type);
std::span<const RegistersHeadInstance> registers_heads(DType type);

}  // namespace prologue::cuda
