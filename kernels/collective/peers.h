// What the kernels of the collectives know of the other ranks. Plain data, for host and device. Internal.
#pragma once

#include <cstdint>

#include <prologue/kernels/collective/all_reduce.h>
#include <prologue/kernels/collective/communicator.h>

namespace prologue::cuda {

inline constexpr int64_t kPushBytes = AllReduceParams::kFewBytes;  // that a launch sends to each rank at most
inline constexpr int kLineBytes = 16;                              // 8 of them are values
inline constexpr int64_t kLinesOfPush = kPushBytes / 8;
inline constexpr int kSlots = 2;
inline constexpr int kMaxDirectBlocks = 128;  // of a kernel that reads and writes the other ranks' memory

// In the memory of the rank's GPU; its kernels read and write it, in stream order.
struct RankState {
  uint32_t sequence;     // the number of the collective that comes, never 0
  uint32_t failed;       // 1: a kernel of this rank has ended without its values
  uint32_t seen;         // the last collective at whose begin the first block has seen that the group goes on (direct_kernel.cuh)
  uint32_t blocks_done;  // of the kernel that runs
  uint32_t nccl_calls;   // that have begun
};

// In pinned memory of the host, which all GPUs of the group and the host read and write.
struct GroupWords {
  uint32_t ended;                  // 1: nobody waits any more
  uint32_t absent[kMaxRanks];      // that rank r has waited for in vain: a bit for each
  uint32_t nccl_calls[kMaxRanks];  // that have begun on rank r
};

struct Peers {
  void* inbox[kMaxRanks] = {};  // of each rank: lines [kSlots, num_ranks, kLinesOfPush]
  RankState* state = nullptr;   // of this rank
  GroupWords* words = nullptr;
  uint64_t wait_nanoseconds = 0;
  int32_t rank = 0;
  int32_t num_ranks = 1;
};

}  // namespace prologue::cuda
