// Decode divides the keys of a sequence into splits, one for each block.
#pragma once

#include <prologue/kernels/paged_attention/attention_args.cuh>

namespace prologue::cuda {

inline constexpr int kSplitGranularity = 32;  // a split is a multiple of this many keys

// Says how the keys of one sequence are divided into splits. It depends only on the sequence's length and the launch, so both kernels
// derive the same splits.
struct Splits {
  int begin;  // the first position that any row sees
  int size;   // positions of a split

  __device__ Splits(const AttentionArgs& args, const Sequence& sequence) : begin(lowest(args, sequence.limit(0))) {
    const int keys = (sequence.length - begin + args.num_splits - 1) / args.num_splits;
    size = (keys + kSplitGranularity - 1) / kSplitGranularity * kSplitGranularity;
  }
};

}  // namespace prologue::cuda
