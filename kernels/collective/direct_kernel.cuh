// How a kernel reads and writes the other ranks' memory itself. Device code.
//
// Each rank has an array that the others may read and one that they may write. Block b of a rank sends their addresses to block b of every other
// rank, in the inbox (push_kernel.cuh), and waits for theirs: meet_peers(). When it has read and written what it has to, it sends another
// line, and waits for theirs: part_from_peers(). So a kernel ends when no other rank reads or writes its rank's arrays any more.
//
// Why a value that is read is there. The rank's earlier kernels wrote it, and begin_turn() has waited for them. The thread that sends the line has a
// fence before it; the thread that has seen the line has a fence after it, then its block a barrier. This is a release and an acquire of
// system scope: in the memory model of PTX the writes come before the loads of the other rank's block. The L1 cannot have an older value for
// them: load_line() passes it, and for other loads the fence of the acquire has emptied it. Why a value that is written is there when the other
// rank's kernel has ended, and why a value has been read before that rank's next kernel writes over it: the accesses, a barrier of the block, a
// fence, the line; on the other rank the line, a fence, the end of the kernel.
//
// A rank that meets has sent at least one line to each other rank, and has waited for one of each: two slots are enough here, too, also if both
// kinds of kernels follow each other. All ranks have the same grid, no larger than what runs at once on each GPU.
//
// If the group ends, a rank may give up while others read and write its arrays: they must stay until the kernels of all ranks have ended.
#pragma once

#include <prologue/kernels/collective/push_kernel.cuh>

namespace prologue::cuda {

// What a block knows of the arrays of all ranks; in shared memory.
struct Meeting {
  uint64_t read[kMaxRanks], written[kMaxRanks];  // addresses, of this rank, too
  uint32_t aligned;                              // all to 16 bytes
  uint32_t goes_on;
};

// Returns whether the lane of the block's first warp stands for another rank.
__device__ inline bool is_peer(const Peers& p, int lane) { return lane < p.num_ranks && lane != p.rank; }

// For one thread of a block. Returns false if the group has ended before this rank came: then the others' lines are there, but perhaps no longer
// their arrays. The host's memory takes 1 us, for one block after another: the first one reads it for all.
__device__ inline bool group_goes_on(const Peers& p, const Turn& turn) {
  if (blockIdx.x == 0) {
    const bool ended = load_word(&p.words->ended) != 0;
    if (ended) {
      store_word(&p.state->failed, 1);
    } else {
      store_word(&p.state->seen, turn.sequence);
    }
    return !ended;
  }
  while (load_word(&p.state->seen) != turn.sequence) {
    if (load_word(&p.state->failed) != 0) return false;
    let_other_gpus_run();
  }
  return true;
}

// For all threads of a block. Returns false if the group has ended: then nothing may be read or written.
__device__ inline bool meet_peers(const Peers& p, const Turn& turn, const void* read, void* written, Meeting& meeting) {
  const int rank = static_cast<int>(threadIdx.x);  // a lane of the first warp for each
  if (rank < 32) {
    bool goes_on = turn.goes_on;
    uint64_t from = reinterpret_cast<uint64_t>(read), to = reinterpret_cast<uint64_t>(written);
    if (goes_on) {
      const Group<float> own = {{static_cast<uint32_t>(from), static_cast<uint32_t>(from >> 32), static_cast<uint32_t>(to),
                                 static_cast<uint32_t>(to >> 32)}};
      fence_for_all_gpus();
      if (is_peer(p, rank)) push(p, rank, turn, blockIdx.x, own);
      const uint32_t may_begin = rank == 0 && group_goes_on(p, turn) ? 1 : 0;
      Arriving arriving;
      goes_on = wait_for_peers(p, [&] {
        if (!is_peer(p, rank)) return 0u;
        arriving.load(lines_of(p, p.rank, rank, turn, blockIdx.x));
        return arriving.is_there(turn.sequence) ? 0u : 1u << rank;
      });
      fence_for_all_gpus();
      goes_on = __shfl_sync(0xffffffffu, may_begin, 0) != 0 && goes_on;
      if (goes_on && is_peer(p, rank)) {
        const Group<float> theirs = arriving.template group<float>();
        from = theirs.words[0] | static_cast<uint64_t>(theirs.words[1]) << 32;
        to = theirs.words[2] | static_cast<uint64_t>(theirs.words[3]) << 32;
      }
    }
    const bool misaligned = __any_sync(0xffffffffu, rank < p.num_ranks && (from | to) % 16 != 0 ? 1 : 0) != 0;
    if (rank < p.num_ranks) meeting.read[rank] = from, meeting.written[rank] = to;
    if (rank == 0) meeting.aligned = misaligned ? 0 : 1, meeting.goes_on = goes_on ? 1 : 0;
  }
  __syncthreads();
  return meeting.goes_on != 0;
}

// For all threads of a block that has met the others.
__device__ inline void part_from_peers(const Peers& p, const Turn& turn) {
  __syncthreads();
  const int rank = static_cast<int>(threadIdx.x);
  if (rank >= 32) return;
  const int64_t group = static_cast<int64_t>(gridDim.x) + blockIdx.x;  // after those with addresses
  fence_for_all_gpus();
  if (is_peer(p, rank)) {
    store_line(lines_of(p, rank, p.rank, turn, group), uint4{0, turn.sequence, 0, turn.sequence});
  }
  wait_for_peers(p, [&] {
    if (!is_peer(p, rank)) return 0u;
    const uint4 line = load_line(lines_of(p, p.rank, rank, turn, group));
    return line.y == turn.sequence && line.w == turn.sequence ? 0u : 1u << rank;
  });
  fence_for_all_gpus();
}

}  // namespace prologue::cuda
