// How a kernel sends values to the kernels of the other ranks: it pushes them into their inboxes, and waits for theirs in its own. Device code.
//
// A line of 16 bytes is {4 bytes of values, flag, 4 bytes of values, flag}. Each half of a line arrives as a whole, so values whose flag is
// there are there, too: no fence, no second trip. The flag is the number of the collective (`sequence`), which each rank counts in its own
// memory: a captured graph can be replayed.
//
// Two slots, used in turns, are enough: a rank that pushes for collective i + 2 has ended i + 1. It could do so because every rank
// had pushed for i + 1 (each pushes at least one line to each other rank), and a rank pushes for i + 1 when its kernel of i has ended,
// which had read all of its slot. So nobody reads what i + 2 overwrites, which is what i wrote. A line that an earlier collective left has the
// number of that one. (Numbers repeat after 2^32 collectives. A line would have to be left as long, and exactly as long, to be mistaken.)
//
// A kernel waits for others only when its block has pushed everything that the same block of the others waits for, and reads nothing that another
// block of its own grid writes. So there is no deadlock as long as blocks with the same index run at some time.
#pragma once

#include <prologue/kernels/collective/peers.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

struct Turn {
  uint32_t sequence;
  bool goes_on;  // false: the group has ended, the kernel does nothing
};

// The first thing in a kernel. What earlier kernels of the stream have written can be read afterwards.
__device__ inline Turn begin_turn(const Peers& p) {
  let_next_kernel_start();
  wait_for_previous_kernels();
  // A warp decides once: another one may find out now that the group has ended.
  const uint32_t failed = __shfl_sync(0xffffffffu, load_word(&p.state->failed), 0);
  return {load_word(&p.state->sequence), failed == 0};
}

// The last thing in a kernel, for all threads. The last block counts the collective; all have read the number by then.
__device__ inline void end_turn(const Peers& p, const Turn& turn) {
  __syncthreads();
  if (threadIdx.x != 0 || count_arrival(&p.state->blocks_done) != gridDim.x - 1) return;
  p.state->blocks_done = 0;
  p.state->sequence = turn.sequence == 0xffffffffu ? 2u : turn.sequence + 1u;  // the other slot, and not 0
}

// Returns the first of the two lines of a group in the inbox of rank `to`. The lanes of a warp, which have 32 groups, write 512 bytes.
__device__ inline uint4* lines_of(const Peers& p, int to, int from, const Turn& turn, int64_t group) {
  const int64_t slot = static_cast<int64_t>(turn.sequence % kSlots) * p.num_ranks + from;
  return static_cast<uint4*>(p.inbox[to]) + slot * kLinesOfPush + (group / 32 * 64 + group % 32);
}

template <class T>
__device__ inline void push(const Peers& p, int to, const Turn& turn, int64_t group, const Group<T>& values) {
  uint4* const lines = lines_of(p, to, p.rank, turn, group);
  store_line(lines, uint4{values.words[0], turn.sequence, values.words[1], turn.sequence});
  store_line(lines + 32, uint4{values.words[2], turn.sequence, values.words[3], turn.sequence});
}

// A group that comes from another rank.
struct Arriving {
  uint4 lines[2];
  __device__ void load(const uint4* from) {
    lines[0] = load_line(from);
    lines[1] = load_line(from + 32);
  }
  __device__ bool is_there(uint32_t sequence) const {
    return lines[0].y == sequence && lines[0].w == sequence && lines[1].y == sequence && lines[1].w == sequence;
  }
  template <class T>
  __device__ Group<T> group() const {
    return {{lines[0].x, lines[0].z, lines[1].x, lines[1].z}};
  }
};

// Ends the group if it has waited too long. Returns false if the group has ended, by whomever. For a whole warp.
__device__ inline bool keeps_waiting(const Peers& p, uint32_t missing, uint32_t look, uint64_t& begin) {
  constexpr uint32_t kAll = 0xffffffffu;
  const bool first_lane = threadIdx.x % 32 == 0;
  uint32_t ended = 0, late = 0;
  if (first_lane) {
    const uint64_t now = nanoseconds();
    if (begin == 0) begin = now;
    // The warps of the grid look at the host's memory one after another: that takes 1 us, and they would wait for each other. The first that
    // sees the end tells the others.
    const uint32_t warps_of_block = (blockDim.x + 31) / 32, warp = blockIdx.x * warps_of_block + threadIdx.x / 32;
    const bool is_turn = look % (gridDim.x * warps_of_block) == warp;
    ended = load_word(is_turn ? &p.words->ended : &p.state->failed);
    late = now - begin > p.wait_nanoseconds ? 1 : 0;
  }
  ended = __shfl_sync(kAll, ended, 0);
  late = __shfl_sync(kAll, late, 0);
  if (ended == 0 && late == 0) return true;
  for (int distance = 16; distance > 0; distance /= 2) missing |= __shfl_xor_sync(kAll, missing, distance);
  if (first_lane) {
    store_word(&p.state->failed, 1);
    if (ended == 0) {
      store_word(&p.words->absent[p.rank], missing);
      store_word(&p.words->ended, 1);
    }
  }
  return false;
}

// Waits until receive() returns 0 in all lanes of the warp: the ranks of which it misses something, a bit for each. Returns false if the group
// has ended.
template <class Receive>
__device__ inline bool wait_for_peers(const Peers& p, const Receive& receive) {
  constexpr uint32_t kLoadsBetweenLooks = 128;  // at the host's memory and the clock
  uint64_t begin = 0;
  uint32_t missing = receive();
  for (uint32_t loads = 1; __any_sync(0xffffffffu, missing != 0 ? 1 : 0) != 0; ++loads) {
    if (loads % kLoadsBetweenLooks == 0 && !keeps_waiting(p, missing, loads / kLoadsBetweenLooks - 1, begin)) return false;
    let_other_gpus_run();
    missing = receive();
  }
  return true;
}

}  // namespace prologue::cuda
