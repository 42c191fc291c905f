// The ranks of a tensor-parallel model. A rank is a part of the model on one GPU, or on some CPU threads; a host thread of its own runs its
// operations. The ranks exchange values by collectives (all_reduce.h, all_gather.h), which every rank calls in the same order with the same
// sizes.
//
//   std::vector<std::unique_ptr<Communicator>> ranks = create_communicators(device, 2)   on any thread
//   on the thread of each rank:  all_reduce(params, *ranks[rank], execution)
//
// CPU: the ranks are threads of this process, and exchange values in its memory. CUDA: rank r is GPU r of this process (cudaSetDevice), or
// the one that the caller names. They exchange values by kernels of our own, which access the memory of the other GPUs. If a GPU cannot access
// that of another one, they do so by NCCL, which is opened at run time (libnccl.so.2, or the library that the environment variable
// PROLOGUE_NCCL names); without both, create_communicators says so. While a rank's collective may wait for another rank's, which that has
// not enqueued yet, allocate and free no device memory on the group's GPUs: CUDA may then wait for the kernel that waits. Destroy captured graphs
// with collectives before the communicators.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <prologue/kernels/base/execution.h>

namespace prologue {

inline constexpr int64_t kMaxRanks = 8;

// One rank's end of its group. It belongs to the thread that runs the rank's operations;
// abort() and status() may be called from any.
//
// On CUDA the rank's GPU is the current device of that thread, and its collectives are on one stream, or on several that wait for each other: the
// ranks' kernels count them in the order in which they run.
class PROLOGUE_API Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Device device() const { return device_; }
  int64_t rank() const { return rank_; }
  int64_t num_ranks() const { return num_ranks_; }
  // Returns how values go from rank to rank, for programs to print: "peer memory", "NCCL 2.28.3", "memory".
  const char* transport() const { return transport_.c_str(); }
  // Whether values go by kernels that access the other ranks' memory, or by the CPU: then the bits of a row's sum depend on nothing else.
  bool uses_peer_memory() const { return uses_peer_memory_; }

  // Waits on the host until all ranks have called it: before what must not run while a rank's collective waits for this one, such as the
  // first launch of a graph that was captured (the other ranks may still be making theirs, which allocates device memory). Returns the group's
  // error, if there is one.
  virtual Status meet() = 0;

  // Ends the group with an error: collectives that wait, on any rank, end soon, and later ones return the error. Values that they were to
  // write are undefined. The first error of a group counts.
  virtual void abort(const Status& status) = 0;
  // Returns the error of the group. A rank that waits for another one for longer than the group's limit ends the group itself, with an
  // error that names the rank that did not come. On CUDA it is known when the stream has reached the collective.
  virtual Status status() const = 0;

 protected:
  Communicator(Device device, int64_t rank, int64_t num_ranks, std::string transport, bool uses_peer_memory)
      : device_(device),
        rank_(rank),
        num_ranks_(num_ranks),
        transport_(std::move(transport)),
        uses_peer_memory_(uses_peer_memory) {}

 private:
  Device device_;
  int64_t rank_;
  int64_t num_ranks_;
  std::string transport_;
  bool uses_peer_memory_;
};

struct CommunicatorOptions {
  std::vector<int32_t> gpus = {};  // CUDA: the device of each rank; empty: 0, 1, ...
  double wait_seconds = 10.0;      // a collective waits so long for another rank at most
  bool use_nccl = true;            // CUDA: false: only our own kernels, which need peer access
  bool use_peer_memory = true;     // CUDA: false: only NCCL
};

// Creates the communicators of all ranks of a group in this process. On CUDA it leaves the calling thread's device as it was.
//   invalid_argument: num_ranks is not in 1..kMaxRanks, gpus has another length, names a GPU that is not there, or one twice
//   unsupported: CUDA, and there is neither NCCL nor peer access between all GPUs; or the build has no CUDA
//   device_error, resource_exhausted: NCCL or a GPU refuses, or has no memory
PROLOGUE_API Result<std::vector<std::unique_ptr<Communicator>>> create_communicators(Device device, int64_t num_ranks,
                                                                                     const CommunicatorOptions& options = {});

}  // namespace prologue
