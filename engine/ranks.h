// The ranks that run one model together (tensor parallelism), as threads of this process. On CUDA each has a GPU and a stream, on the CPU a
// part of the threads. The caller says what all of them do, and every rank does it on its own thread (prologue-rank-1, ...); rank 0 is the
// thread that calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/collective/communicator.h>

namespace prologue {

class Ranks {
 public:
  // Rank r of several is GPU r; a single one is the current GPU of the thread that calls. num_threads: of all ranks together, on the CPU.
  // wait_seconds: how long a rank may keep the others waiting (CommunicatorOptions).
  //   invalid_argument: num_ranks is not in 1..kMaxRanks, or there are fewer GPUs. Otherwise: the errors of create_communicators
  static Result<std::unique_ptr<Ranks>> create(Device device, int64_t num_ranks, int32_t num_threads, double wait_seconds = 10.0);
  ~Ranks();

  double wait_seconds() const { return wait_seconds_; }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  const Execution& execution(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].execution; }
  // Returns null for a single rank.
  Communicator* communicator(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].communicator.get(); }

  using Work = std::function<Status(int64_t rank)>;
  // Calls work(rank) once for each rank, on its thread, and returns when all are done: the error of the first rank that has one, whose message
  // names it. Only one thread at a time may call. With several GPUs, GPU 0 is the current one of that thread afterwards.
  Status run(const Work& work);
  // Does the same with work that has collectives. An error of a rank then ends the group: a rank that waits for it gets the error, too, and so
  // does every later call.
  Status run_together(const Work& work);
  // Returns the error that has ended the group; OK as long as there is none. A single rank has no group.
  Status status() const;
  // Ends the group. Any thread may call it.
  void abort(const Status& status);
  // Returns an error of a rank, whose message begins with which one.
  Status named(int64_t rank, const Status& status) const;

 private:
  struct Rank {
    Execution execution;
    Stream stream;
    std::unique_ptr<Communicator> communicator;
    std::thread thread;
    Status status;  // of the last work
  };

  Ranks();
  Status start();
  void serve(int64_t rank);
  Status run_one(int64_t rank, const Work& work);
  Status first_error();

  const int64_t process_;  // that created it
  double wait_seconds_ = 0.0;
  std::vector<Rank> ranks_;
  struct Signals {
    std::mutex mutex;
    std::condition_variable begin, end;
  };
  std::unique_ptr<Signals> signals_ = std::make_unique<Signals>();  // of what follows
  const Work* work_ = nullptr;
  uint64_t number_ = 0;      // of the work
  int64_t num_working_ = 0;  // ranks that are not done with it
  bool ends_ = false;
};

}  // namespace prologue
