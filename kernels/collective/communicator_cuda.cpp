#include <prologue/kernels/collective/communicator_cuda.h>

#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <system_error>

#include <prologue/kernels/base/host/backends.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

// Restores the thread's current device.
class SavedDevice {
 public:
  SavedDevice() { saved_ = cudaGetDevice(&device_) == cudaSuccess; }
  SavedDevice(const SavedDevice&) = delete;
  SavedDevice& operator=(const SavedDevice&) = delete;
  ~SavedDevice() {
    if (saved_) cudaSetDevice(device_);
    cudaGetLastError();
  }

 private:
  int device_ = 0;
  bool saved_ = false;
};

uint32_t read(const uint32_t& word) { return *const_cast<const volatile uint32_t*>(&word); }

Status no_memory(const char* what, int64_t bytes, int32_t gpu, cudaError_t error) {
  cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) {
    return resource_exhausted("communicator: ", bytes, " bytes for ", what, " could not be allocated on GPU ", gpu);
  }
  return device_error("communicator: allocating ", what, " on GPU ", gpu, " failed: ", cudaGetErrorString(error));
}

Status allocate_zeros(const char* what, int64_t bytes, int32_t gpu, void** memory) {
  const cudaError_t error = cudaMalloc(memory, static_cast<size_t>(bytes));
  if (error != cudaSuccess) return no_memory(what, bytes, gpu, error);
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemset(*memory, 0, static_cast<size_t>(bytes)));
  return {};
}

std::string version_of(const Nccl& nccl) {
  return str_cat(nccl.version / 10000, ".", nccl.version / 100 % 100, ".", nccl.version % 100);
}

Status nccl_error(const char* operation, const Nccl& nccl, int result) {
  return device_error(operation, ": NCCL ", version_of(nccl), " failed: ", nccl.error_string(result));
}

Status check_gpus(const std::vector<int32_t>& gpus) {
  int count = 0;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&count));
  for (size_t r = 0; r < gpus.size(); ++r) {
    if (gpus[r] < 0 || gpus[r] >= count) {
      return invalid_argument("communicator: rank ", r, " needs GPU ", gpus[r], ": there are GPUs 0 to ", count - 1);
    }
  }
  return {};
}

// Returns ok if all GPUs can read and write each other's memory.
Status check_peer_access(const std::vector<int32_t>& gpus) {
  for (const int32_t gpu : gpus) {
    for (const int32_t peer : gpus) {
      int can = 1;
      if (gpu != peer) PROLOGUE_CUDA_RETURN_IF_ERROR(cudaDeviceCanAccessPeer(&can, gpu, peer));
      if (can == 0) return unsupported("GPU ", gpu, " cannot access the memory of GPU ", peer);
    }
  }
  return {};
}

}  // namespace

CudaGroup::CudaGroup(std::vector<int32_t> gpus, double wait_seconds)
    : process_(getpid()), wait_seconds_(wait_seconds), ranks_(gpus.size()) {
  for (size_t r = 0; r < gpus.size(); ++r) ranks_[r].gpu = gpus[r];
}

std::string CudaGroup::transport() const {
  return nccl_ == nullptr ? std::string("peer memory") : str_cat("NCCL ", version_of(*nccl_));
}

Status CudaGroup::open(const CommunicatorOptions& options) {
  const SavedDevice saved;
  std::vector<int32_t> gpus;
  for (const Rank& rank : ranks_) gpus.push_back(rank.gpu);
  PROLOGUE_RETURN_IF_ERROR(check_gpus(gpus));
  Status peers, nccl_opened;
  if (num_ranks() > 1) {
    peers = options.use_peer_memory ? check_peer_access(gpus) : unsupported("use_peer_memory is false");
    if (!peers.ok()) nccl_opened = options.use_nccl ? nccl().status() : unsupported("use_nccl is false");
    if (!peers.ok() && !nccl_opened.ok()) {
      return unsupported("communicator: ranks on GPUs need peer access or NCCL. No peer access: ", peers.message(),
                         ". No NCCL: ", nccl_opened.message());
    }
    if (!peers.ok()) nccl_ = *nccl();
  }
  uses_peer_memory_ = peers.ok();
  PROLOGUE_RETURN_IF_ERROR(count_multiprocessors());
  PROLOGUE_RETURN_IF_ERROR(open_memory());
  if (uses_peer_memory_) PROLOGUE_RETURN_IF_ERROR(enable_peer_access());
  for (const Rank& rank : ranks_) {
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaSetDevice(rank.gpu));
    PROLOGUE_RETURN_IF_ERROR(load_all_reduce_kernels());
    PROLOGUE_RETURN_IF_ERROR(load_all_gather_kernels());
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());  // the zeros are there
  }
  if (nccl_ == nullptr) return {};
  PROLOGUE_RETURN_IF_ERROR(open_nccl_comms());
  PROLOGUE_RETURN_IF_ERROR(run_nccl_once());
  return start_watching();
}

Status CudaGroup::count_multiprocessors() {
  multiprocessors_ = INT32_MAX;
  for (const Rank& rank : ranks_) {
    int count = 0;
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, rank.gpu));
    multiprocessors_ = std::min<int64_t>(multiprocessors_, count);
  }
  return {};
}

Status CudaGroup::open_memory() {
  void* words = nullptr;
  const cudaError_t error = cudaHostAlloc(&words, sizeof(GroupWords), cudaHostAllocPortable | cudaHostAllocMapped);
  if (error != cudaSuccess) return no_memory("pinned words", sizeof(GroupWords), ranks_[0].gpu, error);
  words_ = new (words) GroupWords();
  const bool pushes = uses_peer_memory_ && num_ranks() > 1;
  const int64_t inbox_bytes = kSlots * num_ranks() * kLinesOfPush * kLineBytes;
  const double nanoseconds = wait_seconds_ * 1e9;
  for (int64_t r = 0; r < num_ranks(); ++r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaSetDevice(rank.gpu));
    void* state = nullptr;
    PROLOGUE_RETURN_IF_ERROR(allocate_zeros("the state of a rank", sizeof(RankState), rank.gpu, &state));
    rank.peers.state = static_cast<RankState*>(state);
    const uint32_t first = 1;
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemcpy(&rank.peers.state->sequence, &first, sizeof first, cudaMemcpyHostToDevice));
    if (pushes) PROLOGUE_RETURN_IF_ERROR(allocate_zeros("the inbox of a rank", inbox_bytes, rank.gpu, &rank.inbox));
    if (nccl_ != nullptr) PROLOGUE_RETURN_IF_ERROR(allocate_zeros("sums of NCCL", kScratchBytes, rank.gpu, &rank.scratch));
    rank.peers.words = words_;
    rank.peers.wait_nanoseconds = nanoseconds < 1e18 ? static_cast<uint64_t>(nanoseconds) : uint64_t{1000000000000000000};
    rank.peers.rank = static_cast<int32_t>(r);
    rank.peers.num_ranks = static_cast<int32_t>(num_ranks());
  }
  for (Rank& rank : ranks_) {
    for (size_t r = 0; r < ranks_.size(); ++r) rank.peers.inbox[r] = ranks_[r].inbox;
  }
  return {};
}

Status CudaGroup::enable_peer_access() {
  for (const Rank& rank : ranks_) {
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaSetDevice(rank.gpu));
    for (const Rank& peer : ranks_) {
      if (peer.gpu == rank.gpu) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(peer.gpu, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        continue;
      }
      PROLOGUE_CUDA_RETURN_IF_ERROR(error);
    }
  }
  return {};
}

Status CudaGroup::open_nccl_comms() {
  std::array<Nccl::Comm, kMaxRanks> comms = {};
  std::array<int, kMaxRanks> gpus = {};
  for (size_t r = 0; r < ranks_.size(); ++r) gpus[r] = ranks_[r].gpu;
  if (const int result = nccl_->init_all(comms.data(), static_cast<int>(ranks_.size()), gpus.data()); result != Nccl::kSuccess) {
    return nccl_error("communicator", *nccl_, result);
  }
  for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].comm = comms[r];
  return {};
}

// NCCL connects the ranks in the first call that needs it, on the host, where it waits for the other ranks and could not be ended. So each
// collective runs once, with few and with many bytes, in one call for all ranks. The zeros in the scratch memory stay zeros.
Status CudaGroup::run_nccl_once() {
  const auto for_all = [&](const auto& call) -> Status {
    int result = nccl_->group_start();
    cudaError_t error = cudaSuccess;
    for (size_t r = 0; r < ranks_.size() && result == Nccl::kSuccess && error == cudaSuccess; ++r) {
      error = cudaSetDevice(ranks_[r].gpu);
      if (error == cudaSuccess) result = call(ranks_[r], r);
    }
    const int ended = nccl_->group_end();
    PROLOGUE_CUDA_RETURN_IF_ERROR(error);
    if (result == Nccl::kSuccess) result = ended;
    return result == Nccl::kSuccess ? Status() : nccl_error("communicator", *nccl_, result);
  };
  for (const size_t bytes : {size_t{1} << 20, static_cast<size_t>(kScratchBytes)}) {
    PROLOGUE_RETURN_IF_ERROR(for_all([&](const Rank& rank, size_t) {
      return nccl_->all_reduce(rank.scratch, rank.scratch, bytes / 4, Nccl::kFloat32, Nccl::kSum, rank.comm, nullptr);
    }));
    const size_t part = bytes / 4 / ranks_.size();
    PROLOGUE_RETURN_IF_ERROR(for_all([&](const Rank& rank, size_t r) {
      return nccl_->all_gather(static_cast<float*>(rank.scratch) + r * part, rank.scratch, part, Nccl::kFloat32, rank.comm,
                               nullptr);
    }));
  }
  for (const Rank& rank : ranks_) {
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaSetDevice(rank.gpu));
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
  }
  return {};
}

// The first error of a group counts. It ends the waiting of all kernels.
void CudaGroup::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    error_ = status;
    failed_.store(true);
  }
  if (words_ != nullptr) *const_cast<volatile uint32_t*>(&words_->ended) = 1;
  { const std::lock_guard lock(meeting_mutex_); }
  met_.notify_all();
}

Status CudaGroup::meet(int64_t rank) {
  uint32_t absent = 0;
  {
    std::unique_lock lock(meeting_mutex_);
    const uint64_t number = ++ranks_[static_cast<size_t>(rank)].meetings;
    met_.notify_all();
    const auto find_absent = [&] {
      absent = 0;
      for (size_t r = 0; r < ranks_.size(); ++r) absent |= ranks_[r].meetings < number ? 1u << r : 0u;
      return failed_.load() || absent == 0;
    };
    met_.wait_for(lock, std::chrono::duration<double>(std::min(wait_seconds_, 1e9)), find_absent);
  }
  if (absent != 0 && !failed_.load()) fail(did_not_come(absent, wait_seconds_));
  return failed_.load() ? error_ : Status();
}

// Ends what NCCL does, on all ranks, and frees its comms: called by the thread that watches, or when nothing runs any more, since NCCL waits
// here until graphs with its calls are destroyed. A call of NCCL that does not return, because it waits for other ranks itself, is left alone: a
// comm that is in use cannot be freed.
void CudaGroup::end_nccl() {
  if (nccl_ == nullptr) return;
  std::array<std::unique_lock<std::timed_mutex>, kMaxRanks> locks;
  nccl_->group_start();  // all together: they may wait for each other
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    locks[r] = std::unique_lock(rank.nccl_mutex, std::chrono::seconds(2));
    if (!locks[r].owns_lock() || rank.comm == nullptr) continue;
    nccl_->abort(rank.comm);
    rank.comm = nullptr;
  }
  nccl_->group_end();
}

Status CudaGroup::status() {
  if (failed_.load()) return error_;
  for (int64_t r = 0; r < num_ranks(); ++r) {
    if (const uint32_t absent = read(words_->absent[r]); absent != 0) fail(did_not_come(absent, wait_seconds_));
  }
  return failed_.load() ? error_ : Status();
}

Status CudaGroup::call_nccl(const char* operation, int64_t rank, NcclCall call, const void* context) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  int result = Nccl::kSuccess;
  {
    std::unique_lock lock(own.nccl_mutex, std::defer_lock);
    while (!failed_.load() && !lock.try_lock_for(std::chrono::milliseconds(10))) {
    }
    if (failed_.load()) return error_;
    if (own.comm == nullptr) return device_error(operation, ": NCCL has ended");
    result = call(context, *nccl_, own.comm);
  }
  if (result == Nccl::kSuccess || result == Nccl::kInProgress) return {};
  fail(nccl_error(operation, *nccl_, result));
  return error_;
}

Status CudaGroup::start_watching() {
  try {
    watcher_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {
    return resource_exhausted("communicator: the system grants no thread");
  }
  return {};
}

void CudaGroup::look_at_nccl() {
  for (Rank& rank : ranks_) {
    int result = Nccl::kSuccess, error = Nccl::kSuccess;
    {
      const std::unique_lock lock(rank.nccl_mutex, std::try_to_lock);
      if (!lock.owns_lock() || rank.comm == nullptr) continue;
      error = nccl_->async_error(rank.comm, &result);
    }
    if (error == Nccl::kSuccess) error = result;
    if (error != Nccl::kSuccess && error != Nccl::kInProgress) fail(nccl_error("communicator", *nccl_, error));
  }
}

// Ends the group if a rank has begun fewer calls of NCCL than another one for longer than the limit: that one waits. Ends NCCL if the group has
// ended by itself.
void CudaGroup::watch() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause{20};
  std::array<uint32_t, kMaxRanks> calls = {};
  std::array<Clock::time_point, kMaxRanks> since;  // the rank has been behind
  since.fill(Clock::now());
  std::unique_lock lock(watcher_mutex_);
  while (!watcher_ends_.wait_for(lock, kPause, [&] { return ends_; })) {
    const Status failed = catch_out_of_memory([&] {
      PROLOGUE_RETURN_IF_ERROR(status());
      look_at_nccl();
      const auto now = Clock::now();
      uint32_t most = read(words_->nccl_calls[0]), absent = 0;
      for (int64_t r = 0; r < num_ranks(); ++r) {
        const uint32_t count = read(words_->nccl_calls[r]);
        if (static_cast<int32_t>(count - most) > 0) most = count;
      }
      for (size_t r = 0; r < ranks_.size(); ++r) {
        const uint32_t count = read(words_->nccl_calls[r]);
        if (count != calls[r] || count == most) calls[r] = count, since[r] = now;
        if (std::chrono::duration<double>(now - since[r]).count() > wait_seconds_) absent |= 1u << r;
      }
      if (absent != 0) fail(did_not_come(absent, wait_seconds_));
      return status();
    });
    if (failed.ok()) continue;
    fail(failed);  // nothing, if it is the group's own
    lock.unlock();
    return end_nccl();
  }
}

CudaGroup::~CudaGroup() {
  if (getpid() != process_) {  // a forked child has no threads of its parent's, and cannot use CUDA
    if (watcher_.joinable()) watcher_.detach();
    return;
  }
  if (watcher_.joinable()) {
    {
      const std::lock_guard lock(watcher_mutex_);
      ends_ = true;
    }
    watcher_ends_.notify_all();
    watcher_.join();
  }
  const SavedDevice saved;
  // A call of NCCL that a rank has begun and another one does not begin would never end.
  const auto all_came = [&] {
    for (int64_t r = 1; nccl_ != nullptr && words_ != nullptr && r < num_ranks(); ++r) {
      if (read(words_->nccl_calls[r]) != read(words_->nccl_calls[0])) return false;
    }
    return true;
  };
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::min(wait_seconds_, 1e6));
  while (!failed_.load() && !all_came() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!all_came()) {
    fail(device_error("communicator: the group was destroyed while a rank waited"));
    end_nccl();
  }
  for (const Rank& rank : ranks_) {
    if (rank.peers.state == nullptr || cudaSetDevice(rank.gpu) != cudaSuccess) continue;
    cudaDeviceSynchronize();
  }
  for (Rank& rank : ranks_) {
    if (rank.comm != nullptr) nccl_->destroy(rank.comm);
  }
  for (const Rank& rank : ranks_) {
    if (rank.peers.state == nullptr || cudaSetDevice(rank.gpu) != cudaSuccess) continue;
    cudaFree(rank.peers.state);
    cudaFree(rank.inbox);
    cudaFree(rank.scratch);
  }
  if (words_ != nullptr) cudaFreeHost(words_);
}

Status CudaCommunicator::check(const char* operation) const {
  PROLOGUE_RETURN_IF_ERROR(group_->status());
  int device = -1;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  if (device == group_->gpu(rank())) return {};
  return invalid_argument(operation, ": the thread's current device is GPU ", device, ", but rank ", rank(), " is GPU ",
                          group_->gpu(rank()));
}

Result<Communicators> create_communicators(int64_t num_ranks, const CommunicatorOptions& options) {
  PROLOGUE_RETURN_IF_ERROR(check_gpu());
  std::vector<int32_t> gpus = options.gpus;
  for (int32_t r = 0; options.gpus.empty() && r < num_ranks; ++r) gpus.push_back(r);
  const auto group = std::make_shared<CudaGroup>(gpus, options.wait_seconds);
  PROLOGUE_RETURN_IF_ERROR(group->open(options));
  Communicators ranks;
  for (int64_t r = 0; r < num_ranks; ++r) ranks.push_back(std::make_unique<CudaCommunicator>(group, r));
  return ranks;
}

}  // namespace prologue::cuda
