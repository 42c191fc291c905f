#include <algorithm>
#include <cstring>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/collective/communicator_cpu.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 15;  // below this, starting threads costs more than the work
constexpr int64_t kBlock = 512;               // elements that are float32 at a time

// Adds up one block of all ranks, and writes it to all ranks. x may be y: only this rank reads and writes these elements.
template <class T>
void reduce_block(const CommunicatorGroup& group, int64_t rank, int64_t num_ranks, int64_t begin, int64_t count) {
  alignas(64) float sums[kBlock], terms[kBlock];
  alignas(64) T rounded[kBlock];
  const auto add = [&](const void* data) {
    widen(static_cast<const T*>(data) + begin, count, terms);
    for (int64_t i = 0; i < count; ++i) sums[i] += terms[i];
  };
  widen(static_cast<const T*>(group.call(0).x) + begin, count, sums);
  for (int64_t r = 1; r < num_ranks; ++r) add(group.call(r).x);
  if (group.call(rank).adds) add(group.call(rank).y);
  narrow(sums, count, rounded);
  for (int64_t r = 0; r < num_ranks; ++r) {
    std::memcpy(static_cast<T*>(group.call(r).y) + begin, rounded, static_cast<size_t>(count) * sizeof(T));
  }
}

}  // namespace

// Each rank adds up a share of the blocks.
Status all_reduce(const AllReduceParams& params, Communicator& communicator, const Execution& execution) {
  CommunicatorGroup& group = static_cast<CpuCommunicator&>(communicator).group();
  const int64_t rank = communicator.rank(), num_ranks = communicator.num_ranks();
  CollectiveCall call;
  call.collective = Collective::all_reduce;
  call.num_tokens = params.num_tokens, call.width = params.width, call.dtype = params.dtype, call.adds = params.adds != 0;
  call.x = params.x, call.y = params.y;
  PROLOGUE_RETURN_IF_ERROR(group.begin(rank, call));
  const int64_t elements = params.num_tokens * params.width, blocks = divide_up(elements, kBlock);
  const int64_t first = blocks * rank / num_ranks, last = blocks * (rank + 1) / num_ranks;
  const bool serial = elements <= kSerialElements * num_ranks;
  with_host_type(params.dtype, [&](auto type) {
    parallel_for(last - first, serial ? 1 : execution.num_threads, [&](int64_t i) {
      const int64_t begin = (first + i) * kBlock;
      reduce_block<decltype(type)>(group, rank, num_ranks, begin, std::min(kBlock, elements - begin));
    });
  });
  return group.end(rank);
}

}  // namespace prologue::cpu
