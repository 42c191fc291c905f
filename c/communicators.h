// The ranks of a tensor-parallel model, which exchange values by the operations of all_reduce.h and all_gather.h. A rank is one GPU, or some
// threads of the CPU; a host thread of its own runs its operations. All ranks call the same collectives in the same order.
//
// On the CPU ranks exchange values in the memory of the process. On CUDA they do so by kernels of our own, which access the memory of the other
// GPUs, or, if a GPU cannot, by NCCL, which is opened at run time (libnccl.so.2, or the library that the environment variable PROLOGUE_NCCL
// names). Destroy captured graphs with collectives before the communicators.
//
// (In C++: kernels/collective/communicator.h, which these call.)
#pragma once

#include <cstdint>

#include <prologue/kernels/collective/communicator.h>

namespace prologue::c {

struct CommunicatorsParams {
  Device device = Device::cpu;
  int64_t num_ranks = 0;          // 1 to kMaxRanks
  const int32_t* gpus = nullptr;  // [num_ranks]; CUDA: the device of each rank; null: 0, 1, ...
  double wait_seconds = 10.0;     // a collective waits so long for another rank at most
  int32_t use_nccl = 1;           // CUDA; 0: only our own kernels, which need peer access
  int32_t use_peer_memory = 1;    // CUDA; 0: only NCCL
  uint64_t reserved[8] = {};      // zeros: docs/versioning.md
};

// Returns the communicators of all ranks of a group, communicators [num_ranks]. Destroy each of them; after an error there are none.
Status create_communicators(const CommunicatorsParams& params, Communicator** communicators);
// Waits on the host until all ranks have called it: before what must not run while a rank's collective waits for this one, such as the first
// launch of a graph that was captured (the other ranks may still be making theirs, which allocates device memory).
Status communicator_meet(Communicator& communicator);
// Ends the group with an error that has this message: collectives that wait, on any rank, end soon, and later ones return the error. The
// first error of a group counts. Any thread may call it.
Status communicator_abort(Communicator& communicator, const char* message);
// Returns the error of the group. A rank that waits for another one for longer than wait_seconds ends the group itself, with an error that
// names the rank that did not come. On CUDA it is known when the stream has reached the collective. Any thread may call it.
Status communicator_status(const Communicator& communicator);

}  // namespace prologue::c
