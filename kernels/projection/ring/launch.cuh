// The instances of this way, for its launches. Host code for .cu files.
#pragma once

#include <span>

#include <prologue/kernels/projection/ring/head_pairs_kernel.cuh>
#include <prologue/kernels/projection/ring/output_kernel.cuh>

namespace prologue::cuda {

struct RingOutputInstance {
  int most_rows;  // of the weights, of a block
  int most_tokens;
  int blocks_of_sm;  // for which there are registers
  int64_t (*lay_out)(RingArgs&, int64_t room);
  EncodeWeights encode;
  void (*kernel)(RingArgs, OutputArgs);
};

struct RingHeadInstance {
  bool
      of_pairs;  // ring/head_pairs_kernel.cuh: a block has the same rotary pairs of some heads; else ring/head_kernel.cuh: rows of one head
  int vector;                  // channels of an access of the prologue; not of pairs: heads have 64 * vector channels at most
  int features;                // of prologue_args.h
  int fewest_rows, most_rows;  // of the weights, of a block
  int most_tokens;
  int64_t (*lay_out)(RingArgs&, int64_t room);
  EncodeWeights encode;
  void (*kernel)(RingHeadArgs, MoreArgs);
};

// Each table is in the order in which instances are chosen (ring/instances.cuh).
std::span<const RingOutputInstance> float16_ring_outputs();
std::span<const RingOutputInstance> bfloat16_ring_outputs();
std::span<const RingHeadInstance> float16_ring_heads();
std::span<const RingHeadInstance> bfloat16_ring_heads();

}  // namespace prologue::cuda
