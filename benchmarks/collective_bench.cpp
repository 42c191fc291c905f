// Measures all_reduce and all_gather on 2, 4 and 8 GPUs, as many as there are: our kernels over peer memory, and NCCL.
//
//   bench_collective [--ranks N]
//
// Each rank captures 20 collectives into one graph, on a thread of its own, and replays it 20 times between two events. A row is the time of one
// collective, on the rank that took longest; the median of 5 such measurements. Few bytes stay in the L2 cache, as in a step of an engine.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <prologue/kernels/base/captured_graph.h>
#include <prologue/kernels/base/event.h>
#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/collective/all_gather.h>
#include <prologue/kernels/collective/all_reduce.h>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

constexpr int kCollectives = 20, kReplays = 20, kMeasurements = 5;

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_collective: %s\n", status.message().c_str());
  std::exit(1);
}
template <class T>
T required(Result<T> result) {
  require(result.status());
  return std::move(result).value();
}

// What a rank measures: memory, and a call that uses it.
using Enqueue = std::function<Status(Communicator&, const Execution&)>;
using Prepare = std::function<Enqueue(Communicator&, std::vector<Buffer>& memory)>;

void* allocate(std::vector<Buffer>& memory, int64_t bytes, const Execution& execution) {
  memory.push_back(required(Buffer::allocate(Device::cuda, bytes)));
  require(fill_zero(memory.back().data(), bytes, execution));
  return memory.back().data();
}

// Returns microseconds of one collective.
double measure(const std::vector<std::unique_ptr<Communicator>>& ranks, const Prepare& prepare) {
  const size_t num_ranks = ranks.size();
  std::barrier all(static_cast<std::ptrdiff_t>(num_ranks));
  std::vector<std::vector<double>> us(num_ranks, std::vector<double>(kMeasurements));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      if (cudaSetDevice(static_cast<int>(rank)) != cudaSuccess) require(device_error("cudaSetDevice failed"));
      {
        const Stream stream = required(Stream::create());
        Execution execution;
        execution.device = Device::cuda, execution.stream = stream.get();
        std::vector<Buffer> memory;
        const Enqueue enqueue = prepare(*ranks[rank], memory);
        all.arrive_and_wait();                      // nobody allocates while a collective runs
        require(enqueue(*ranks[rank], execution));  // what is done only once is done
        require(synchronize(execution));
        all.arrive_and_wait();
        const CapturedGraph graph = required(CapturedGraph::capture(execution, [&] {
          for (int i = 0; i < kCollectives; ++i) PROLOGUE_RETURN_IF_ERROR(enqueue(*ranks[rank], execution));
          return Status();
        }));
        Event begin, end;
        all.arrive_and_wait();
        for (int i = -1; i < kMeasurements; ++i) {  // the first one warms up
          require(begin.record(execution));
          for (int replay = 0; replay < kReplays; ++replay) require(graph.launch(execution));
          require(end.record(execution));
          require(synchronize(execution));
          require(ranks[rank]->status());
          const double seconds = required(Event::seconds_between(begin, end));
          if (i >= 0) us[rank][static_cast<size_t>(i)] = seconds * 1e6 / (kCollectives * kReplays);
          all.arrive_and_wait();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> longest(kMeasurements);
  for (const std::vector<double>& of_rank : us) {
    for (size_t i = 0; i < longest.size(); ++i) longest[i] = std::max(longest[i], of_rank[i]);
  }
  std::nth_element(longest.begin(), longest.begin() + kMeasurements / 2, longest.end());
  return longest[kMeasurements / 2];
}

Prepare reduction(int64_t bytes, bool adds, bool overlaps) {
  return [=](Communicator&, std::vector<Buffer>& memory) -> Enqueue {
    AllReduceParams p;
    p.num_tokens = 1, p.width = bytes / 2, p.dtype = DType::bf16;
    while (p.width > 8192) p.num_tokens *= 2, p.width /= 2;
    p.adds = adds ? 1 : 0, p.overlaps = overlaps;
    Execution execution;
    execution.device = Device::cuda;
    p.x = allocate(memory, bytes, execution), p.y = allocate(memory, bytes, execution);
    require(synchronize(execution));
    return [p](Communicator& communicator, const Execution& on) { return all_reduce(p, communicator, on); };
  };
}

Prepare gathering(int64_t rows, int64_t width) {
  return [=](Communicator& communicator, std::vector<Buffer>& memory) -> Enqueue {
    AllGatherParams p;
    p.num_tokens = rows, p.width = width, p.part_width = width / communicator.num_ranks(), p.dtype = DType::f32;
    Execution execution;
    execution.device = Device::cuda;
    p.x = allocate(memory, rows * p.part_width * 4, execution), p.y = allocate(memory, rows * width * 4, execution);
    p.workspace_bytes = all_gather_workspace_bytes(p, communicator);
    if (p.workspace_bytes > 0) p.workspace = allocate(memory, p.workspace_bytes, execution);
    require(synchronize(execution));
    return [p](Communicator& ranks, const Execution& on) { return all_gather(p, ranks, on); };
  };
}

Prepare nothing() {
  return [](Communicator&, std::vector<Buffer>&) -> Enqueue {
    return [](Communicator&, const Execution& on) { return bench::launch_nothing(on); };
  };
}

std::string text_of(int64_t bytes) { return bytes < 1 << 20 ? str_cat(bytes >> 10, " KB") : str_cat(bytes >> 20, " MB"); }

class Table {
 public:
  explicit Table(int64_t num_ranks) : num_ranks_(num_ranks) {
    CommunicatorOptions only_nccl, only_ours;
    only_nccl.use_peer_memory = false;
    only_ours.use_nccl = false;
    auto ours = create_communicators(Device::cuda, num_ranks, only_ours);
    auto nccl = create_communicators(Device::cuda, num_ranks, only_nccl);
    if (!ours.ok()) std::printf("%s\n", ours.status().message().c_str());
    if (!nccl.ok()) std::printf("%s\n", nccl.status().message().c_str());
    if (ours.ok()) ours_ = std::move(ours).value();
    if (nccl.ok()) nccl_ = std::move(nccl).value();
    std::printf("%-44s %12s %12s %8s\n", str_cat(num_ranks, " GPUs, us").c_str(), "ours", "NCCL", "ratio");
  }
  void row(const std::string& name, const Prepare& ours, const Prepare& nccl) const {
    const double by_us = ours_.empty() ? 0.0 : measure(ours_, ours), by_nccl = nccl_.empty() ? 0.0 : measure(nccl_, nccl);
    std::printf("%-44s", str_cat(name, ", ", num_ranks_, " GPUs").c_str());
    print(by_us, "%12.2f");
    print(by_nccl, "%12.2f");
    print(by_us == 0.0 ? 0.0 : by_nccl / by_us, "%7.2fx");
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  static void print(double value, const char* format) {
    std::printf(" ");
    value == 0.0 ? std::printf("%12s", "-") : std::printf(format, value);
  }

  int64_t num_ranks_;
  std::vector<std::unique_ptr<Communicator>> ours_, nccl_;
};

}  // namespace

int main(int argc, char** argv) {
  int64_t only = 0;
  if (argc == 3 && std::strcmp(argv[1], "--ranks") == 0) only = std::atoll(argv[2]);
  if (argc != 1 && only < 2) {
    std::fprintf(stderr, "bench_collective [--ranks N]: N from 2 to %d\n", static_cast<int>(kMaxRanks));
    return 2;
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  if (count < 2) {
    std::printf("bench_collective: collectives need at least 2 GPUs; this machine has %d. Nothing was measured.\n", count);
    return 0;
  }
  const auto device = bench::describe_device(Device::cuda, 1);
  std::printf("%s, %s, commit %s\n", bench::utc_now().c_str(), device.ok() ? device->c_str() : "?",
              bench::source_commit().c_str());
  for (int64_t num_ranks = 2; num_ranks <= std::min<int64_t>(count, kMaxRanks); ++num_ranks) {
    if (only != 0 ? num_ranks != only : (num_ranks & (num_ranks - 1)) != 0) continue;
    const Table table(num_ranks);
    table.row("an empty kernel", nothing(), nothing());
    for (const int64_t kb : {8, 64, 256, 512, 1024, 2048, 8192, 16384, 32768, 65536}) {
      const int64_t bytes = kb << 10;
      const std::string name = str_cat("all_reduce ", text_of(bytes));
      table.row(name, reduction(bytes, false, false), reduction(bytes, false, false));
      if (kb <= 512) table.row(name + ", overlaps", reduction(bytes, false, true), reduction(bytes, false, true));
      table.row(name + ", adds, overlaps", reduction(bytes, true, true), reduction(bytes, true, true));
    }
    for (const int64_t rows : {1, 2, 8, 64}) {
      table.row(str_cat("all_gather ", rows, " x 128256 float32"), gathering(rows, 128256), gathering(rows, 128256));
    }
  }
  return 0;
}
