// Ranks of a test: a group of communicators, and a thread for each of them.
#pragma once

#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <prologue/kernels/collective/communicator.h>

#include "tests/support/arena.h"

namespace prologue::test {

class Ranks {
 public:
  // Fails the test if there is no group. Ask why_not() first.
  Ranks(Backend backend, int64_t num_ranks, const CommunicatorOptions& options = {});
  // Why there is no group of so many ranks here; empty: there is one.
  static std::string why_not(Backend backend, int64_t num_ranks, const CommunicatorOptions& options = {});

  // Calls body(rank) on a thread for each rank, with the rank's device as the thread's; returns when all have returned.
  void run(const std::function<void(int64_t rank)>& body) const;
  // Waits in run() until all ranks have come here. A test of CUDA does so between allocations and collectives: to allocate or free memory may
  // wait for the kernels of GPUs that can access it, and these wait for other ranks.
  void meet() const { barrier_->arrive_and_wait(); }
  Communicator& operator[](int64_t rank) const { return *communicators_[static_cast<size_t>(rank)]; }
  Backend backend() const { return backend_; }
  int64_t size() const { return static_cast<int64_t>(communicators_.size()); }
  void destroy(int64_t rank) { communicators_[static_cast<size_t>(rank)].reset(); }

 private:
  [[maybe_unused]] Backend backend_;  // without CUDA
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::unique_ptr<std::barrier<>> barrier_;
};

// The numbers of ranks of which a backend has groups here.
std::vector<int64_t> group_sizes(Backend backend, const CommunicatorOptions& options = {});

}  // namespace prologue::test
