// The ranks of the CPU: threads of this process, which share a group. Internal.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/collective/backends.h>

namespace prologue::cpu {

enum class Collective : int32_t { all_reduce, all_gather, meet };

// What a rank calls. All but x and y must be equal on all ranks.
struct CollectiveCall {
  Collective collective = Collective::all_reduce;
  int64_t num_tokens = 0;
  int64_t width = 0;
  int64_t part_width = 0;
  DType dtype = DType::unset;
  bool adds = false;
  const void* x = nullptr;
  void* y = nullptr;
};

// A collective is begin(), the rank's share of the work, and end(). Between the two a rank may read and write what the calls of all ranks
// point to, since no rank returns to its caller while another one works: not from end(), and not with an error.
class CommunicatorGroup {
 public:
  CommunicatorGroup(int64_t num_ranks, double wait_seconds) : num_ranks_(num_ranks), wait_seconds_(wait_seconds) {}

  // Waits until all ranks have begun. After an error there is no end().
  Status begin(int64_t rank, const CollectiveCall& call);
  // Waits until all ranks have done their work.
  Status end(int64_t rank);
  const CollectiveCall& call(int64_t rank) const { return ranks_[rank].call; }

  void fail(const Status& status);
  Status status() const { return failed_.load() ? error_ : Status(); }

 private:
  struct alignas(64) Rank {
    CollectiveCall call;
    std::atomic<uint64_t> begun{0}, ended{0};  // how many collectives
    std::atomic<bool> works{false};
  };

  template <class Condition>
  bool all(const Condition& condition) const;
  template <class Done>
  bool wait(const Done& done, bool limited);
  void wake();
  Status leave(int64_t rank);
  Status check_calls() const;

  const int64_t num_ranks_;
  const double wait_seconds_;
  Status error_;  // written once, before failed_ is set
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> failed_{false};
  Rank ranks_[kMaxRanks];
};

class CpuCommunicator final : public Communicator {
 public:
  CpuCommunicator(std::shared_ptr<CommunicatorGroup> group, int64_t rank, int64_t num_ranks)
      : Communicator(Device::cpu, rank, num_ranks, "memory", true), group_(std::move(group)) {}

  Status meet() override;
  void abort(const Status& status) override { group_->fail(error_of_abort(status)); }
  Status status() const override { return group_->status(); }
  CommunicatorGroup& group() { return *group_; }

 private:
  const std::shared_ptr<CommunicatorGroup> group_;
};

}  // namespace prologue::cpu
