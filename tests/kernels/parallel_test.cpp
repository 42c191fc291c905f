// parallel_for: every index once, never more threads than asked for, from several callers, in a forked child, without threads.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <prologue/kernels/base/host/parallel.h>

#include "tests/support/sanitizers.h"

namespace prologue {
namespace {

// Says how often body(i) was called for each i in [0, count).
std::vector<int> calls(int64_t count, int64_t num_threads) {
  std::vector<std::atomic<int>> counters(static_cast<size_t>(std::max<int64_t>(count, 0)));
  parallel_for(count, num_threads, [&](int64_t i) { ++counters[static_cast<size_t>(i)]; });
  return {counters.begin(), counters.end()};
}

bool each_once(int64_t count, int64_t num_threads) {
  return calls(count, num_threads) == std::vector<int>(static_cast<size_t>(std::max<int64_t>(count, 0)), 1);
}

TEST(Parallel, CallsEachIndexOnce) {
  for (const int64_t count : {0, 1, 2, 3, 7, 8, 9, 31, 1000, 4097}) {
    for (const int64_t threads : {-3, 0, 1, 2, 3, 8}) EXPECT_TRUE(each_once(count, threads)) << count << " on " << threads;
  }
  EXPECT_TRUE(each_once(-1, 4));
}

TEST(Parallel, ManyShortJobsInARow) {
  int64_t sum = 0;
  for (int job = 0; job < 20000; ++job) {
    std::atomic<int64_t> part = 0;
    parallel_for(5, 3, [&](int64_t i) { part += i + 1; });
    sum += part;
  }
  EXPECT_EQ(sum, 20000 * 15);
}

// With 40 000 threads, OpenMP used to end the process.
TEST(Parallel, AbsurdThreadCountsAreBounded) { EXPECT_TRUE(each_once(100000, 40000)); }

TEST(Parallel, NoMoreThreadsThanAskedFor) {
  for (const int64_t threads : {8, 3, 2, 1, 4}) {  // fewer than the team has, too
    std::mutex mutex;
    std::set<std::thread::id> ids;
    parallel_for(64, threads, [&](int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
    EXPECT_LE(static_cast<int64_t>(ids.size()), threads);
  }
}

TEST(Parallel, InsideABodyItRunsOnThatThread) {
  std::atomic<int> sum = 0, strangers = 0;
  parallel_for(6, 3, [&](int64_t) {
    const std::thread::id self = std::this_thread::get_id();
    parallel_for(10, 3, [&](int64_t) {
      ++sum;
      if (std::this_thread::get_id() != self) ++strangers;
    });
  });
  EXPECT_EQ(sum, 60);
  EXPECT_EQ(strangers, 0);
}

TEST(Parallel, SeveralCallersAtOnce) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int job = 0; job < 200; ++job) {
        if (!each_once(50 + job, 3)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// Returns the exit code of body() in a forked child, or -1 if it did not end by itself.
template <class Body>
int in_a_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Parallel, WorksInAForkedChild) {
  ASSERT_TRUE(each_once(100, 3));  // a team that the child inherits without its threads
  EXPECT_EQ(in_a_child([] { return each_once(100, 3) && each_once(1000, 4) ? 0 : 1; }), 0);
  EXPECT_TRUE(each_once(100, 3));
}

TEST(Parallel, WorksWhereTheSystemGrantsNoThread) {
#ifdef PROLOGUE_ADDRESS_SANITIZER
  GTEST_SKIP() << "AddressSanitizer needs more address space than this test leaves";
#endif
  EXPECT_EQ(in_a_child([] {
              int64_t pages = 0;
              std::ifstream("/proc/self/statm") >> pages;
              const rlimit limit = {static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (1 << 20)),
                                    static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (1 << 20))};  // no room for a stack
              if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
              return each_once(1000, 4) ? 0 : 1;
            }),
            0);
}

TEST(Parallel, WorkersBlockSignals) {
  std::atomic<int> unblocked = 0;
  const std::thread::id caller = std::this_thread::get_id();
  parallel_for(64, 4, [&](int64_t) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    if (std::this_thread::get_id() != caller && sigismember(&blocked, SIGINT) == 0) ++unblocked;
  });
  EXPECT_EQ(unblocked, 0);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGINT), 0) << "the caller's own mask is as it was";
}

}  // namespace
}  // namespace prologue
