#include "emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "../support/sanitizers.h"

#if defined(PROLOGUE_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

#if !defined(__x86_64__)
#error the emulator switches stacks on x86-64 only
#endif

// Saves the registers that a call must keep, exchanges the stacks, and returns on the other one.
extern "C" void prologue_emulator_switch(void** save, void* to);
asm(R"(
.text
.globl prologue_emulator_switch
.type prologue_emulator_switch, @function
prologue_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size prologue_emulator_switch, . - prologue_emulator_switch
)");

namespace emulator {

const Thread* thread = nullptr;
Extent block_index, block_extent, grid_extent;
unsigned char* dynamic_shared = nullptr;

void fail(const char* what) {
  std::fprintf(stderr, "emulator: block (%u, %u, %u), thread (%u, %u, %u): %s\n", block_index.x, block_index.y, block_index.z,
               thread->thread_index.x, thread->thread_index.y, thread->thread_index.z, what);
  std::abort();
}

namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr int kMaxThreads = 1024;
constexpr int kWarpSize = 32;
constexpr int kNamedBarriers = 16;

// A stack has a page below it that must not be touched.
class Stack {
 public:
  Stack() {
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, 4096, PROT_NONE) != 0) {
      std::perror("emulator: a thread's stack");
      std::abort();
    }
    memory_ = static_cast<unsigned char*>(memory);
  }
  ~Stack() { munmap(memory_, kStackBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  unsigned char* begin() const { return memory_; }
  unsigned char* end() const { return memory_ + kStackBytes; }

 private:
  unsigned char* memory_;
};

// Lanes wait here for one another. A round ends when all lanes of the mask that still run have come.
struct WarpBarrier {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  uint64_t round = 0;
  void* values[kWarpSize] = {};
};

struct Warp {
  uint32_t ended = 0;                                  // lanes; those that the block does not have, too
  std::vector<std::unique_ptr<WarpBarrier>> barriers;  // one for each mask in use; references to them last

  WarpBarrier& barrier(uint32_t mask) {
    for (const auto& b : barriers) {
      if (b->mask == mask) return *b;
    }
    barriers.push_back(std::make_unique<WarpBarrier>());
    barriers.back()->mask = mask;
    return *barriers.back();
  }
};

// Implements bar.sync and bar.arrive. 0 is also that of __syncthreads(), which is not counted here: nobody names it.
struct NamedBarrier {
  int threads = 0;  // that it waits for; 0: nobody has come
  int arrived = 0;
  uint64_t round = 0;
};

// Describes a block of the cluster that runs.
struct Block {
  Extent index;
  unsigned char* shared = nullptr;
  std::vector<Warp> warps;
  int running = 0;
  int arrived = 0;  // at the barrier of the block
  uint64_t round = 0;
  NamedBarrier named[kNamedBarriers];
};

struct Fiber : Thread {
  std::unique_ptr<Stack> stack;
  void* stack_pointer = nullptr;
  Block* block = nullptr;
  int index = 0;               // of the fiber
  uint64_t cluster_round = 0;  // in which it arrived last
  Fiber* next = nullptr;       // in the ring of those that still run
  Fiber* previous = nullptr;
};

class Cluster {
 public:
  // `blocks` has their indices and shared memory.
  void run(std::vector<Block> blocks, const Extent& extent, const std::function<void()>& kernel);
  void sync();
  void sync(uint32_t mask);
  void arrive();
  void wait();
  void let_others_run() { yield(); }
  // A thread waits for another grid. Returns whether it is time to let that run: about once for each thread.
  bool wait_for_other_grids() {
    idle_ = 0;
    yield();
    return ++waits_ % running_ == 0;
  }
  void progress() { idle_ = 0; }
  uint64_t arrive_named(int id, int threads);
  void sync_named(int id, int threads);
  WarpBarrier& barrier(uint32_t mask) { return warp().barrier(mask); }
  unsigned rank() const { return static_cast<unsigned>(current_->block - blocks_.data()); }
  Block& block(unsigned rank) { return blocks_[rank]; }
  unsigned size() const { return static_cast<unsigned>(blocks_.size()); }

 private:
  static void enter();
  Warp& warp() { return current_->block->warps[static_cast<size_t>(current_->number / kWarpSize)]; }
  void yield() { yield_to(current_->next); }
  void yield_to(Fiber* next);
  [[noreturn]] void end_thread();
  void switch_to(Fiber* fiber, void** save, bool ends);

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Block> blocks_;
  const std::function<void()>* kernel_ = nullptr;
  Fiber* current_ = nullptr;
  void* host_stack_pointer_ = nullptr;
#if defined(PROLOGUE_ADDRESS_SANITIZER)
  const void* host_bottom_ = nullptr;
  size_t host_size_ = 0;
#endif
  int running_ = 0;
  int arrived_ = 0;  // at the barrier of the cluster
  uint64_t round_ = 1;
  int64_t idle_ = 0;   // yields since anything happened
  int64_t waits_ = 0;  // for other grids
};

Cluster* this_cluster = nullptr;
std::vector<std::unique_ptr<Cluster>> idle_clusters;  // with their stacks

// Which host thread runs a grid: they get it in the order in which they have come.
class Processor {
 public:
  void take() {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = tickets_++;
    changed_.wait(lock, [&] { return served_ == ticket; });
  }
  void give() {
    {
      const std::lock_guard lock(mutex_);
      ++served_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t tickets_ = 0, served_ = 0;
};
Processor processor;

void Cluster::switch_to(Fiber* fiber, void** save, [[maybe_unused]] bool ends) {
  current_ = fiber;
  thread = fiber;
  if (fiber != nullptr) block_index = fiber->block->index, dynamic_shared = fiber->block->shared;
#if defined(PROLOGUE_ADDRESS_SANITIZER)
  void* fake = nullptr;
  const void* const bottom = fiber == nullptr ? host_bottom_ : fiber->stack->begin();
  __sanitizer_start_switch_fiber(ends ? nullptr : &fake, bottom, fiber == nullptr ? host_size_ : kStackBytes);
#endif
  prologue_emulator_switch(save, fiber == nullptr ? host_stack_pointer_ : fiber->stack_pointer);
#if defined(PROLOGUE_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

// This is the first function on a thread's stack. The first thread comes from the host.
void Cluster::enter() {
#if defined(PROLOGUE_ADDRESS_SANITIZER)
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (this_cluster->current_ == this_cluster->fibers_.front().get())
    this_cluster->host_bottom_ = bottom, this_cluster->host_size_ = size;
#endif
  (*this_cluster->kernel_)();
  this_cluster->end_thread();
}

void Cluster::end_thread() {
  Fiber* const ending = current_;
  warp().ended |= 1u << ending->lane();
  --ending->block->running;
  --running_;
  idle_ = 0;
  ending->previous->next = ending->next;
  ending->next->previous = ending->previous;
  switch_to(running_ == 0 ? nullptr : ending->next, &ending->stack_pointer, true);
  std::abort();
}

void Cluster::yield_to(Fiber* next) {
  if (++idle_ > 4 * static_cast<int64_t>(running_) + 4) fail("waits for threads that do not come");
  Fiber* const self = current_;
  if (next != self) switch_to(next, &self->stack_pointer, false);
}

void Cluster::sync() {
  Block& b = *current_->block;
  const uint64_t round = b.round;
  ++b.arrived;
  while (b.round == round) {
    if (b.arrived == b.running) {
      b.arrived = 0, idle_ = 0;
      ++b.round;
    } else {
      yield();
    }
  }
}

void Cluster::arrive() {
  if (current_->cluster_round == round_) fail("arrives twice at the barrier of its cluster");
  current_->cluster_round = round_;
  ++arrived_;
}

void Cluster::wait() {
  if (current_->cluster_round == 0) fail("waits at the barrier of its cluster and has not arrived");
  while (round_ == current_->cluster_round) {
    if (arrived_ == running_) {
      arrived_ = 0, idle_ = 0;
      ++round_;
    } else {
      yield();
    }
  }
}

void Cluster::sync(uint32_t mask) {
  const uint32_t lane = 1u << current_->lane();
  if ((mask & lane) == 0) fail("is not in the mask of its own warp instruction");
  WarpBarrier& b = barrier(mask);
  const uint64_t round = b.round;
  b.arrived |= lane;
  for (bool first = true; b.round == round; first = false) {
    const uint32_t missing = mask & ~(b.arrived | warp().ended);
    if (missing == 0) {
      b.arrived = 0, idle_ = 0;
      ++b.round;
    } else if (first) {  // the next lane, so that a warp runs on by itself; if that one waits for others, they have their turn
      const uint32_t behind = missing & ~(2 * lane - 1);
      const int next = std::countr_zero(behind != 0 ? behind : missing);
      yield_to(fibers_[static_cast<size_t>(current_->index - current_->lane() + next)].get());
    } else {
      yield();
    }
  }
}

// Returns the round that the arrival belongs to.
uint64_t Cluster::arrive_named(int id, int threads) {
  if (id < 1 || id >= kNamedBarriers) fail("names a barrier that does not exist");
  if (threads <= 0 || threads % kWarpSize != 0) fail("names a barrier for a number of threads that is no multiple of a warp");
  NamedBarrier& b = current_->block->named[id];
  if (b.threads != 0 && b.threads != threads) fail("names a barrier for another number of threads than those before it");
  b.threads = threads;
  const uint64_t round = b.round;
  idle_ = 0;
  if (++b.arrived == threads) {
    b.threads = b.arrived = 0;
    ++b.round;
  }
  return round;
}

void Cluster::sync_named(int id, int threads) {
  const uint64_t round = arrive_named(id, threads);
  while (current_->block->named[id].round == round) yield();
}

void Cluster::run(std::vector<Block> blocks, const Extent& extent, const std::function<void()>& kernel) {
  const int count = static_cast<int>(extent.x * extent.y * extent.z);
  blocks_ = std::move(blocks);
  for (Block& block : blocks_) {
    block.warps.resize(static_cast<size_t>((count + kWarpSize - 1) / kWarpSize));
    if (count % kWarpSize != 0) block.warps.back().ended = ~0u << (count % kWarpSize);
    block.running = count;
  }
  kernel_ = &kernel;
  running_ = count * static_cast<int>(blocks_.size());
  arrived_ = 0, idle_ = 0;
  while (static_cast<int>(fibers_.size()) < running_) {
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->stack = std::make_unique<Stack>();
  }
  for (int i = 0; i < running_; ++i) {
    Fiber& fiber = *fibers_[static_cast<size_t>(i)];
    fiber.index = i;
    fiber.number = i % count;
    fiber.block = &blocks_[static_cast<size_t>(i / count)];
    fiber.cluster_round = 0;
    const auto number = static_cast<unsigned>(fiber.number);
    fiber.thread_index = {number % extent.x, number / extent.x % extent.y, number / extent.x / extent.y};
    fiber.next = fibers_[static_cast<size_t>((i + 1) % running_)].get();
    fiber.previous = fibers_[static_cast<size_t>((i + running_ - 1) % running_)].get();
#if defined(PROLOGUE_ADDRESS_SANITIZER)  // the thread before has left its frames without returning
    if (fiber.stack_pointer != nullptr) {
      auto* const lowest = static_cast<unsigned char*>(fiber.stack_pointer) - 1024;
      ASAN_UNPOISON_MEMORY_REGION(lowest, static_cast<size_t>(fiber.stack->end() - lowest));
    }
#endif
    // The stack looks as if enter() had been called: six registers, its address, and an aligned stack above them.
    auto* top = reinterpret_cast<void**>(fiber.stack->end());
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&Cluster::enter);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    fiber.stack_pointer = top;
  }
  switch_to(fibers_[0].get(), &host_stack_pointer_, false);
}

}  // namespace

void run_grid(const Extent& grid, const Extent& block, size_t shared_bytes, const std::function<void()>& kernel,
              unsigned cluster) {
  processor.take();
  std::unique_ptr<Cluster> own = std::make_unique<Cluster>();
  if (!idle_clusters.empty()) own = std::move(idle_clusters.back()), idle_clusters.pop_back();
  this_cluster = own.get();
  constexpr size_t kAlignment = 1024;
  const size_t of_block = (shared_bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::vector<unsigned char> memory(cluster * of_block + kAlignment);
  unsigned char* const shared =
      memory.data() + (kAlignment - reinterpret_cast<uintptr_t>(memory.data()) % kAlignment) % kAlignment;
  block_extent = block;
  grid_extent = grid;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += cluster) {
        // Bytes that a kernel has not written are as bad as they can be, before the first and in every block: NaN, or -1.
        std::fill(memory.begin(), memory.end(), static_cast<unsigned char>(0xff));
        std::vector<Block> blocks(cluster);
        for (unsigned rank = 0; rank < cluster; ++rank) {
          blocks[rank].index = {x + rank, y, z};
          blocks[rank].shared = shared + rank * of_block;
        }
        this_cluster->run(std::move(blocks), block, kernel);
      }
    }
  }
  dynamic_shared = nullptr;
  this_cluster = nullptr;
  idle_clusters.push_back(std::move(own));
  processor.give();
}

void let_other_grids_run() {
  if (!this_cluster->wait_for_other_grids()) return;
  Cluster* const cluster = this_cluster;
  const Thread* const running = thread;
  const Extent index = block_index, block = block_extent, grid = grid_extent;
  unsigned char* const shared = dynamic_shared;
  processor.give();
  std::this_thread::sleep_for(std::chrono::microseconds(20));
  processor.take();
  this_cluster = cluster, thread = running, dynamic_shared = shared;
  block_index = index, block_extent = block, grid_extent = grid;
}

uint64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

unsigned cluster_rank() { return this_cluster->rank(); }
void arrive_at_cluster() { this_cluster->arrive(); }
void wait_for_cluster() { this_cluster->wait(); }

void* in_block_of_cluster(void* here, unsigned rank) {
  if (this_cluster->size() < 2)
    fail("addresses a block of a cluster, which has one block only");  // compute-sanitizer complains, too
  if (rank >= this_cluster->size()) fail("names a block that its cluster does not have");
  return this_cluster->block(rank).shared + (static_cast<unsigned char*>(here) - dynamic_shared);
}

void sync_block() { this_cluster->sync(); }
void sync_warp(uint32_t mask) { this_cluster->sync(mask); }
void let_others_run() { this_cluster->let_others_run(); }
void progress() { this_cluster->progress(); }
void arrive_named(int id, int threads) { this_cluster->arrive_named(id, threads); }
void sync_named(int id, int threads) { this_cluster->sync_named(id, threads); }

void* const* meet(uint32_t mask, void* lane) {
  WarpBarrier& b = this_cluster->barrier(mask);
  if (b.arrived == 0) std::fill(b.values, b.values + kWarpSize, nullptr);
  b.values[thread->lane()] = lane;
  sync_warp(mask);
  return b.values;
}

}  // namespace emulator
