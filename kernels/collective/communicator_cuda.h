// The ranks of CUDA: GPUs of this process, which share a group. Internal.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <prologue/kernels/collective/backends.h>
#include <prologue/kernels/collective/nccl.h>
#include <prologue/kernels/collective/peers.h>

namespace prologue::cuda {

// What NCCL adds up before it is added to y goes through so much memory at a time.
inline constexpr int64_t kScratchBytes = int64_t{32} << 20;

class CudaGroup {
 public:
  // Creates a group, with nothing on any GPU. Then open() makes what it needs.
  CudaGroup(std::vector<int32_t> gpus, double wait_seconds);
  CudaGroup(const CudaGroup&) = delete;
  CudaGroup& operator=(const CudaGroup&) = delete;
  ~CudaGroup();
  Status open(const CommunicatorOptions& options);

  int64_t num_ranks() const { return static_cast<int64_t>(ranks_.size()); }
  int32_t gpu(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].gpu; }
  bool uses_peer_memory() const { return uses_peer_memory_; }
  std::string transport() const;
  // Of the GPU that has fewest.
  int64_t multiprocessors() const { return multiprocessors_; }
  const Peers& peers(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].peers; }
  void* scratch(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].scratch; }

  Status meet(int64_t rank);
  void fail(const Status& status);
  Status status();
  // Calls NCCL for a rank, unless the group has failed. An error of NCCL ends the group.
  // call(nccl, comm) returns what NCCL returns.
  template <class Call>
  Status call_nccl(const char* operation, int64_t rank, const Call& call) {
    const auto run = [](const void* context, const Nccl& nccl, Nccl::Comm comm) {
      return (*static_cast<const Call*>(context))(nccl, comm);
    };
    return call_nccl(operation, rank, run, &call);
  }

 private:
  struct Rank {
    int32_t gpu = 0;
    Peers peers;
    void* inbox = nullptr;
    void* scratch = nullptr;
    std::timed_mutex nccl_mutex;  // held while NCCL is called with this comm
    Nccl::Comm comm = nullptr;
    uint64_t meetings = 0;  // that it has come to
  };

  using NcclCall = int (*)(const void* context, const Nccl& nccl, Nccl::Comm comm);
  Status call_nccl(const char* operation, int64_t rank, NcclCall call, const void* context);
  Status open_memory();
  Status count_multiprocessors();
  Status enable_peer_access();
  Status open_nccl_comms();
  Status run_nccl_once();
  Status start_watching();
  void watch();
  void end_nccl();
  void look_at_nccl();

  const int64_t process_;
  const double wait_seconds_;
  std::vector<Rank> ranks_;
  bool uses_peer_memory_ = false;
  int64_t multiprocessors_ = 0;
  const Nccl* nccl_ = nullptr;
  GroupWords* words_ = nullptr;

  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  Status error_;  // written once, before failed_ is set

  std::mutex meeting_mutex_;
  std::condition_variable met_;

  // NCCL waits forever. A thread looks now and then whether all ranks come.
  std::thread watcher_;
  std::mutex watcher_mutex_;
  std::condition_variable watcher_ends_;
  bool ends_ = false;
};

class CudaCommunicator final : public Communicator {
 public:
  CudaCommunicator(std::shared_ptr<CudaGroup> group, int64_t rank)
      : Communicator(Device::cuda, rank, group->num_ranks(), group->transport(), group->uses_peer_memory()),
        group_(std::move(group)) {}

  Status meet() override { return group_->meet(rank()); }
  void abort(const Status& status) override { group_->fail(error_of_abort(status)); }
  Status status() const override { return group_->status(); }
  CudaGroup& group() const { return *group_; }
  const Peers& peers() const { return group_->peers(rank()); }
  // Returns the group's error, or that of a thread whose current device is not the rank's.
  Status check(const char* operation) const;

 private:
  const std::shared_ptr<CudaGroup> group_;
};

// Makes the current device's driver load the kernels, so that no launch has to: loading may wait for kernels that run, which wait for others.
Status load_all_reduce_kernels();
Status load_all_gather_kernels();
// Counts a call of NCCL in stream order, where the watching thread sees it.
Status count_nccl_call(const Peers& peers, CUstream_st* stream);

}  // namespace prologue::cuda
