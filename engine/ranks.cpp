#include <prologue/engine/ranks.h>

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

Result<std::unique_ptr<Ranks>> Ranks::create(Device device, int64_t num_ranks, int32_t num_threads, double wait_seconds) {
  return catch_out_of_memory([&]() -> Result<std::unique_ptr<Ranks>> {
    if (num_ranks < 1 || num_ranks > kMaxRanks)
      return invalid_argument("the number of ranks is ", num_ranks, ": it must be between 1 and ", kMaxRanks);
    std::unique_ptr<Ranks> ranks(new Ranks());
    ranks->ranks_.resize(static_cast<size_t>(num_ranks));
    ranks->wait_seconds_ = wait_seconds;
    std::vector<std::unique_ptr<Communicator>> communicators(static_cast<size_t>(num_ranks));
    if (num_ranks > 1) {
      if (device == Device::cuda) {
        PROLOGUE_ASSIGN_OR_RETURN(const int32_t count, num_gpus());
        if (count < num_ranks) return invalid_argument(num_ranks, " ranks need as many GPUs: this process sees ", count);
      }
      PROLOGUE_ASSIGN_OR_RETURN(communicators, create_communicators(device, num_ranks, {.wait_seconds = wait_seconds}));
    }
    for (int64_t r = 0; r < num_ranks; ++r) {
      Rank& rank = ranks->ranks_[static_cast<size_t>(r)];
      rank.execution.device = device;
      rank.execution.num_threads = std::max(1, num_threads / static_cast<int32_t>(num_ranks));
      rank.communicator = std::move(communicators[static_cast<size_t>(r)]);
    }
    PROLOGUE_RETURN_IF_ERROR(ranks->start());
    return ranks;
  });
}

Ranks::Ranks() : process_(getpid()) {}

Status Ranks::start() {
  sigset_t all, before;  // only the program's own threads handle signals
  sigfillset(&all);
  const bool blocked = pthread_sigmask(SIG_SETMASK, &all, &before) == 0;
  Status started;
  for (int64_t r = 1; r < size() && started.ok(); ++r) {
    try {
      ranks_[static_cast<size_t>(r)].thread = std::thread([this, r] { serve(r); });
    } catch (const std::system_error&) {
      started = resource_exhausted("the system has no thread for rank ", r);
    }
  }
  if (blocked) pthread_sigmask(SIG_SETMASK, &before, nullptr);
  PROLOGUE_RETURN_IF_ERROR(started);
  if (execution(0).device == Device::cpu) return {};
  return run([this](int64_t r) -> Status {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    PROLOGUE_ASSIGN_OR_RETURN(rank.stream, Stream::create());
    rank.execution.stream = rank.stream.get();
    return {};
  });
}

Ranks::~Ranks() {
  if (getpid() != process_) {  // a forked child has no threads of its parent's, and what they wait for cannot be destroyed
    for (Rank& rank : ranks_) {
      if (rank.thread.joinable()) rank.thread.detach();
      (void)rank.communicator.release();
    }
    (void)signals_.release();
    return;
  }
  {
    const std::lock_guard lock(signals_->mutex);
    ends_ = true;
    signals_->begin.notify_all();
  }
  for (Rank& rank : ranks_) {
    if (rank.thread.joinable()) rank.thread.join();
  }
}

Status Ranks::status() const { return size() == 1 ? Status() : ranks_.front().communicator->status(); }

void Ranks::abort(const Status& status) {
  if (size() > 1) ranks_.front().communicator->abort(status);
}

Status Ranks::run_one(int64_t r, const Work& work) {
  const bool on_gpu = execution(r).device == Device::cuda;
  Status status = on_gpu ? use_gpu(static_cast<int32_t>(r)) : Status();
  return status.ok() ? catch_out_of_memory([&] { return work(r); }) : status;
}

// An error that all ranks have, such as a bad file, names none of them.
Status Ranks::first_error() {
  const Status first = ranks_.front().status;
  bool are_same = true;
  for (const Rank& rank : ranks_) are_same = are_same && rank.status.message() == first.message();
  if (are_same) return first;
  for (int64_t r = 0; r < size(); ++r) {
    const Status& status = ranks_[static_cast<size_t>(r)].status;
    if (!status.ok()) return named(r, status);
  }
  return {};
}

Status Ranks::named(int64_t r, const Status& status) const {
  const std::string gpu = execution(r).device == Device::cuda ? str_cat(" (GPU ", r, ")") : "";
  return error_status(status.code(), "rank ", r, gpu, ": ", status.message());
}

Status Ranks::run_together(const Work& work) {
  if (size() == 1) return run(work);
  PROLOGUE_RETURN_IF_ERROR(status());
  const Status failed = run([&](int64_t r) {
    const Status status = catch_out_of_memory([&] { return work(r); });
    if (!status.ok() && this->status().ok()) abort(named(r, status));
    return status;
  });
  const Status ended = status();
  return ended.ok() ? failed : ended;
}

void Ranks::serve(int64_t r) {
  const char name[] = {'p', 'r', 'o', 'l', 'o', 'g', 'u', 'e', '-', 'r', 'a', 'n', 'k', '-', static_cast<char>('0' + r), 0};
  (void)pthread_setname_np(pthread_self(), name);  // for debuggers and top
  for (uint64_t done = 0;;) {
    const Work* work = nullptr;
    {
      std::unique_lock lock(signals_->mutex);
      signals_->begin.wait(lock, [&] { return ends_ || number_ != done; });
      if (ends_) return;
      done = number_;
      work = work_;
    }
    ranks_[static_cast<size_t>(r)].status = run_one(r, *work);
    const std::lock_guard lock(signals_->mutex);
    if (--num_working_ == 0) signals_->end.notify_one();
  }
}

Status Ranks::run(const Work& work) {
  if (size() == 1) return catch_out_of_memory([&] { return work(0); });
  {
    const std::lock_guard lock(signals_->mutex);
    work_ = &work;
    num_working_ = size() - 1;
    ++number_;
    signals_->begin.notify_all();
  }
  ranks_[0].status = run_one(0, work);
  {
    std::unique_lock lock(signals_->mutex);
    signals_->end.wait(lock, [&] { return num_working_ == 0; });
  }
  return catch_out_of_memory([&] { return first_error(); });
}

}  // namespace prologue
