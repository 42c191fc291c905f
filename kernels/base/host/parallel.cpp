#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/host/spin.h>

namespace prologue {

namespace {

constexpr int64_t kRangesPerThread = 4;  // more ranges balance the load better; fewer cost less to claim

// A ticket is a job in one word: the next unclaimed range, the number of ranges, the number of workers that may help, and a job number that
// makes every word different. A thread that claims a range knows that it belongs to the job whose word it read, and that this job lasts
// until the range is done.
struct Ticket {
  uint64_t word;
  int64_t next() const { return static_cast<int64_t>(word & 0xffffu); }
  int64_t ranges() const { return static_cast<int64_t>(word >> 16 & 0xffffu); }
  int64_t workers() const { return static_cast<int64_t>(word >> 32 & 0x3ffu); }
};
static_assert(kMaxThreads * kRangesPerThread <= 0xffff && kMaxThreads <= 0x3ff);

constexpr Ticket ticket_of(uint32_t number, int64_t workers, int64_t ranges) {
  return {uint64_t{number} << 42 | static_cast<uint64_t>(workers) << 32 | static_cast<uint64_t>(ranges) << 16};
}

class WorkerPool {
 public:
  ~WorkerPool() {
    stopping_.store(true, std::memory_order_relaxed);
    announce();
    for (std::thread& worker : workers_) worker.join();
  }

  // Starts workers until there are `count`, or the system grants no more.
  void grow(int64_t count) {
    if (static_cast<int64_t>(workers_.size()) >= count) return;
    sigset_t all, before;  // only the program's own threads handle signals
    sigfillset(&all);
    const bool blocked = pthread_sigmask(SIG_SETMASK, &all, &before) == 0;
    try {
      while (static_cast<int64_t>(workers_.size()) < count) {
        const auto index = static_cast<int64_t>(workers_.size());
        workers_.emplace_back([this, index, seen = jobs_.load(std::memory_order_relaxed)] { work(index, seen); });
      }
    } catch (...) {  // no memory, or no thread: continue with the existing workers
    }
    if (blocked) pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run(int64_t count, int64_t threads, void (*body)(const void*, int64_t, int64_t), const void* context) {
    const auto ranges = static_cast<uint32_t>(std::min(count, threads * kRangesPerThread));
    body_ = body, context_ = context, count_ = count;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(ticket_of(jobs_.load(std::memory_order_relaxed), threads - 1, ranges).word, std::memory_order_release);
    announce();
    claim_ranges(-1);
    const auto all_done = [&] { return done_.load(std::memory_order_acquire) == ranges; };
    if (spin_until(all_done)) return;
    for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != ranges;) done_.wait(done, std::memory_order_acquire);
  }

 private:
  void announce() {
    jobs_.fetch_add(1, std::memory_order_release);
    jobs_.notify_all();
  }

  // Claims ranges and runs them until none is left. `worker` is -1 for the caller.
  void claim_ranges(int64_t worker) {
    Ticket ticket = {ticket_.load(std::memory_order_acquire)};
    while (worker < ticket.workers() && ticket.next() < ticket.ranges()) {
      if (!ticket_.compare_exchange_weak(ticket.word, ticket.word + 1, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      const int64_t range = ticket.next(), ranges = ticket.ranges();
      const auto begin = [&](int64_t i) { return count_ / ranges * i + std::min(i, count_ % ranges); };
      body_(context_, begin(range), begin(range + 1));
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranges) done_.notify_one();
      ticket.word = ticket_.load(std::memory_order_acquire);
    }
  }

  void work(int64_t index, uint32_t seen);

  std::vector<std::thread> workers_;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};  // ranges of the job
  alignas(64) std::atomic<uint32_t> jobs_{0};  // announced so far; workers wait for a change
  std::atomic<bool> stopping_{false};
  void (*body_)(const void*, int64_t, int64_t) = nullptr;
  const void* context_ = nullptr;
  int64_t count_ = 0;
};

std::atomic<uint32_t> forks{0};  // in this process's ancestry: a forked child has its parent's pools, but not their threads

struct OwnPool {
  ~OwnPool() { forget_if_forked(); }
  void forget_if_forked() {
    const uint32_t now = forks.load(std::memory_order_relaxed);
    if (forks_seen != now) static_cast<void>(pool.release());  // its threads are the parent's: there is nothing to join
    forks_seen = now;
  }

  std::unique_ptr<WorkerPool> pool;
  uint32_t forks_seen = 0;
};
thread_local OwnPool own;
thread_local bool inside = false;  // of a body

void WorkerPool::work(int64_t index, uint32_t seen) {
  inside = true;
  while (true) {
    const auto announced = [&] { return jobs_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(announced)) jobs_.wait(seen, std::memory_order_acquire);
    seen = jobs_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    claim_ranges(index);
  }
}

// Returns this thread's pool, or null if there is no memory for one.
WorkerPool* own_pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  own.forget_if_forked();
  if (own.pool == nullptr) own.pool.reset(new (std::nothrow) WorkerPool);
  return own.pool.get();
}

}  // namespace

void run_ranges(int64_t count, int64_t num_threads, void (*body)(const void* context, int64_t begin, int64_t end),
                const void* context) {
  const int64_t threads = std::min({num_threads, count, kMaxThreads});
  WorkerPool* pool = inside || threads <= 1 ? nullptr : own_pool();
  if (pool == nullptr) return body(context, 0, count);
  pool->grow(threads - 1);
  inside = true;
  pool->run(count, threads, body, context);
  inside = false;
}

}  // namespace prologue
