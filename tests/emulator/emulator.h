// Runs CUDA kernels on the CPU, for tests on machines without a GPU: the library's .cu files are compiled as C++ with the headers in
// include/ instead of the toolkit's. Slow, and exact where the GPU is: one thread of a block runs until it waits for others (a barrier, a
// shuffle), then the next. Blocks run one after another, those of a cluster together.
//
// TMA copies when it is told to, wgmma multiplies when somebody waits for it (hopper.cuh).
//
// What it cannot show: races between threads, alignment that only a GPU needs beyond UBSan's, registers, speed, and what the approximate
// instructions of a GPU return (exp2f, rsqrtf).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace emulator {

struct Extent {
  unsigned x = 1, y = 1, z = 1;
};

struct Thread {
  Extent thread_index;
  int number = 0;  // in the block
  int lane() const { return number % 32; }
};

// Holds what the running thread sees.
extern const Thread* thread;
extern Extent block_index, block_extent, grid_extent;
extern unsigned char* dynamic_shared;

// Runs the threads of a grid, one after another; several host threads may run grids, one of which runs at a time. A thread that waits for one
// that does not come ends the program with a sentence. `cluster`: blocks that are neighbours in x. They share the `static` variables that
// __shared__ becomes, so a kernel of clusters has dynamic shared memory only.
void run_grid(const Extent& grid, const Extent& block, size_t shared_bytes, const std::function<void()>& kernel,
              unsigned cluster = 1);

void sync_block();
unsigned cluster_rank();
// These are the two parts of the barrier of a cluster. Every thread arrives, then waits.
void arrive_at_cluster();
void wait_for_cluster();
// Returns the address in block `rank` of the cluster that corresponds to `here` in this block's dynamic shared memory.
void* in_block_of_cluster(void* here, unsigned rank);
// The lanes of `mask` that still run must all come here.
void sync_warp(uint32_t mask);

// Lets the others run until wait_until()'s condition holds, for instructions that wait for something else than a barrier of threads.
// Whoever may have made a condition true calls progress().
void let_others_run();
void progress();
// For loops that wait for a grid of another host thread: lets the other threads of this grid run, and now and then other grids. A kernel that
// calls it has dynamic shared memory only.
void let_other_grids_run();
uint64_t nanoseconds();
template <class F>
void wait_until(const F& condition) {
  while (!condition()) let_others_run();
}

// These are the named barriers of the block, for `threads` of its threads.
void arrive_named(int id, int threads);
void sync_named(int id, int threads);

// Says in which thread something is wrong, and ends the program.
[[noreturn]] void fail(const char* what);

// Returns what the lanes of `mask` gave, null for one that has ended, when all that still run have come here.
void* const* meet(uint32_t mask, void* lane);

// An instruction of a warp: `lane` has what this lane brings, room for what it gets, and `done`, which is false. The first lane that goes
// on computes for all: compute(lanes), of 32, null where one is missing. The others have not gone on yet.
template <class Lane, class F>
void together(uint32_t mask, Lane& lane, const F& compute) {
  void* const* met = meet(mask, &lane);
  if (lane.done) return;
  Lane* lanes[32];
  for (int i = 0; i < 32; ++i) lanes[i] = static_cast<Lane*>(met[i]);
  compute(static_cast<Lane* const*>(lanes));
  for (Lane* const there : lanes) {
    if (there != nullptr) there->done = true;
  }
}

// Returns what lane `source` holds; this lane's own where that lane is not in `mask`.
template <class T>
T value_of(uint32_t mask, const T& value, int source) {
  struct Lane {
    T value;
    int source;
    T result;
    bool done;
  } lane = {value, source, value, false};
  together(mask, lane, [](Lane* const* lanes) {
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr && lanes[lanes[i]->source] != nullptr) lanes[i]->result = lanes[lanes[i]->source]->value;
    }
  });
  return lane.result;
}

}  // namespace emulator
