#include <cstring>

#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/collective/communicator_cpu.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialBytes = 1 << 17;  // below this, starting threads costs more than the work

}  // namespace

// Each rank copies the columns of all ranks.
Status all_gather(const AllGatherParams& params, Communicator& communicator, const Execution& execution) {
  CommunicatorGroup& group = static_cast<CpuCommunicator&>(communicator).group();
  const int64_t rank = communicator.rank(), num_ranks = communicator.num_ranks(), size = dtype_size(params.dtype);
  CollectiveCall call;
  call.collective = Collective::all_gather;
  call.num_tokens = params.num_tokens, call.width = params.width, call.part_width = params.part_width;
  call.dtype = params.dtype, call.x = params.x, call.y = params.y;
  PROLOGUE_RETURN_IF_ERROR(group.begin(rank, call));
  const bool serial = params.num_tokens * params.width * size <= kSerialBytes;
  parallel_for(params.num_tokens * num_ranks, serial ? 1 : execution.num_threads, [&](int64_t i) {
    const int64_t t = i / num_ranks, from = i % num_ranks;
    const Columns columns = columns_of(params, from);
    std::memcpy(static_cast<char*>(params.y) + (t * params.width + columns.begin) * size,
                static_cast<const char*>(group.call(from).x) + t * columns.count * size,
                static_cast<size_t>(columns.count * size));
  });
  return group.end(rank);
}

}  // namespace prologue::cpu
