#include "tests/support/ranks.h"

#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#ifdef PROLOGUE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace prologue::test {

Ranks::Ranks(Backend backend, int64_t num_ranks, const CommunicatorOptions& options) : backend_(backend) {
  auto made = create_communicators(backend_device(backend), num_ranks, options);
  if (!made.ok()) {
    ADD_FAILURE() << made.status().message();
    std::abort();
  }
  communicators_ = std::move(made).value();
  barrier_ = std::make_unique<std::barrier<>>(num_ranks);
}

std::string Ranks::why_not(Backend backend, int64_t num_ranks, const CommunicatorOptions& options) {
  if (backend_device(backend) == Device::cpu) return {};
#ifdef PROLOGUE_HAS_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  if (count < num_ranks) return str_cat(num_ranks, " ranks need as many GPUs: this machine has ", count);
  static std::mutex mutex;  // NCCL takes seconds to make a group
  static std::map<std::tuple<int64_t, bool, bool>, std::string> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({num_ranks, options.use_nccl, options.use_peer_memory});
  if (is_new) found->second = create_communicators(Device::cuda, num_ranks, options).status().message();
  return found->second;
#else
  static_cast<void>(options);
  return str_cat(num_ranks, " ranks: built without CUDA");
#endif
}

void Ranks::run(const std::function<void(int64_t rank)>& body) const {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
#ifdef PROLOGUE_HAS_CUDA
      if (backend_device(backend_) == Device::cuda) {
        EXPECT_EQ(cudaSetDevice(static_cast<int>(rank)), cudaSuccess);
      }
#endif
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<int64_t> group_sizes(Backend backend, const CommunicatorOptions& options) {
  std::vector<int64_t> sizes;
  for (const int64_t size : {1, 2, 3, 4, 8}) {
    if (Ranks::why_not(backend, size, options).empty()) sizes.push_back(size);
  }
  return sizes;
}

}  // namespace prologue::test
