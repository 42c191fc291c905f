#include <prologue/kernels/collective/communicator_cuda.h>
#include <prologue/kernels/collective/direct_kernel.cuh>
#include <prologue/kernels/collective/push_kernel.cuh>
#include <prologue/kernels/collective/push_launch.cuh>

namespace prologue::cuda {

namespace {

template <class T>
struct Gathering {
  const T* x;
  T* y;
  int64_t num_tokens, width, part_width;
  bool x_aligned;  // to 16 bytes
  bool y_aligned;
  bool whole_columns;  // a group of a rank is in one row, and aligned if y is

  __device__ int64_t columns(int64_t rank) const { return min(part_width, width - rank * part_width); }
  __device__ int64_t count(int64_t rank) const { return num_tokens * columns(rank); }
  // Where element `at` of a rank is in y.
  __device__ int64_t offset(int64_t rank, int64_t at) const {
    const int64_t token = at / columns(rank);
    return token * width + rank * part_width + (at - token * columns(rank));
  }
  // Loads a group of this rank's x, [num_tokens, own columns] in one row.
  __device__ Group<T> load(int64_t own_count, int64_t group) const {
    const int64_t left = own_count - group * kGroup<T>;
    return load_group(x + group * kGroup<T>, left, x_aligned && left >= kGroup<T>);
  }
};

// Stores a group of a rank where its columns are in y, which may be that of another rank. `whole`: one instruction can.
template <class T>
__device__ void store_columns(const Gathering<T>& g, T* y, bool whole, int64_t rank, int64_t group, const Group<T>& values) {
  const int64_t left = g.count(rank) - group * kGroup<T>, at = group * kGroup<T>, columns = g.columns(rank);
  if (left <= 0) return;
  if (whole && left >= kGroup<T>) return store_group(y + g.offset(rank, at), values, left, true);
  int64_t token = at / columns, column = at % columns;
  constexpr int kPerWord = kGroup<T> / 4;
#pragma unroll
  for (int i = 0; i < kGroup<T>; ++i) {
    if (i >= left) continue;
    reinterpret_cast<ElementBits<T>*>(y)[token * g.width + rank * g.part_width + column] =
        static_cast<ElementBits<T>>(values.words[i / kPerWord] >> (i % kPerWord * 16));
    if (++column == columns) column = 0, ++token;
  }
}

// A thread owns one group of 16 bytes of each rank, or several. Every rank sends at least one, so that it is waited for (push_kernel.cuh).
template <class T>
__global__ void __launch_bounds__(kMaxPushThreads, 1)
    all_gather_kernel(const __grid_constant__ Peers p, const __grid_constant__ Gathering<T> g) {
  const Turn turn = begin_turn(p);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool whole = g.whole_columns && g.y_aligned;

  const int64_t own_count = g.count(p.rank), own_groups = groups_of<T>(own_count);
  for (int64_t group = first; turn.goes_on && group < own_groups; group += step) {
    const Group<T> own = g.load(own_count, group);
    for (int rank = 0; rank < p.num_ranks; ++rank) {
      if (rank != p.rank) push(p, rank, turn, group, own);
    }
    store_columns(g, g.y, whole, p.rank, group, own);
  }

  bool goes_on = turn.goes_on;
  for (int rank = 0; rank < p.num_ranks; ++rank) {
    if (rank == p.rank) continue;
    const int64_t their_groups = groups_of<T>(g.count(rank));
    for (int64_t base = first - lane; goes_on && base < their_groups; base += step) {  // the same for a whole warp
      const int64_t group = base + lane;
      const bool is_there = group < their_groups;
      Arriving arriving;
      goes_on = wait_for_peers(p, [&] {
        if (!is_there) return 0u;
        arriving.load(lines_of(p, p.rank, rank, turn, group));
        return arriving.is_there(turn.sequence) ? 0u : 1u << rank;
      });
      if (goes_on && is_there) store_columns(g, g.y, whole, rank, group, arriving.template group<T>());
    }
  }
  end_turn(p, turn);
}

// Stores this rank's columns in the y of all ranks. A thread owns every (number of threads)-th group of 16 bytes.
template <class T>
__global__ void __launch_bounds__(kDirectThreads, 1)
    all_gather_direct_kernel(const __grid_constant__ Peers p, const __grid_constant__ Gathering<T> g) {
  constexpr int kUnroll = 4;
  const Turn turn = begin_turn(p);
  Meeting& meeting = *dynamic_shared<Meeting>();
  if (meet_peers(p, turn, nullptr, g.y, meeting)) {
    const bool whole = g.whole_columns && meeting.aligned != 0;
    const int64_t count = g.count(p.rank), groups = groups_of<T>(count), step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t base = first; base < groups; base += kUnroll * step) {
      Group<T> own[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) own[u] = g.load(count, base + u * step);  // zeros after the last one
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t group = base + u * step, at = group * kGroup<T>;
        const bool stores_whole = whole && count - at >= kGroup<T>;
        const int64_t offset = stores_whole ? g.offset(p.rank, at) : 0;
        int to = p.rank;
        for (int i = 0; i < p.num_ranks; ++i) {  // each rank begins with another one
          to = to + 1 == p.num_ranks ? 0 : to + 1;
          T* const y = reinterpret_cast<T*>(meeting.written[to]);
          if (stores_whole) {
            store_global(y + offset, uint4{own[u].words[0], own[u].words[1], own[u].words[2], own[u].words[3]});
          } else {
            store_columns(g, y, false, p.rank, group, own[u]);
          }
        }
      }
    }
    part_from_peers(p, turn);
  }
  end_turn(p, turn);
}

// Puts what NCCL has gathered, [ranks, num_tokens, own columns] with ranks `stride` apart, in its columns. blockIdx.x is a token, blockIdx.y a
// rank. A thread owns every blockDim.x-th element.
template <class T>
__global__ void place_kernel(const T* parts, T* y, int64_t width, int64_t part_width, int64_t stride) {
  using Bits = ElementBits<T>;
  const int64_t token = blockIdx.x, rank = blockIdx.y, columns = min(part_width, width - rank * part_width);
  const Bits* const from = reinterpret_cast<const Bits*>(parts) + rank * stride + token * columns;
  Bits* const to = reinterpret_cast<Bits*>(y) + token * width + rank * part_width;
  for (int64_t i = static_cast<int64_t>(blockIdx.z) * blockDim.x + threadIdx.x; i < columns;
       i += static_cast<int64_t>(gridDim.z) * blockDim.x) {
    to[i] = from[i];
  }
}

// Elements are copied: only their size matters.
template <class F>
auto with_type_of_size(DType dtype, const F& f) {
  return dtype == DType::f32 ? f(float()) : f(__half());
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

int64_t largest_part(const AllGatherParams& params) { return params.num_tokens * std::min(params.part_width, params.width); }

// y is what NCCL makes: one row of equal parts.
bool is_gathered_in_place(const AllGatherParams& params, int64_t num_ranks) {
  return params.num_tokens == 1 && params.width == num_ranks * params.part_width;
}

template <class T>
Status by_peer_memory(const AllGatherParams& params, const CudaCommunicator& communicator, cudaStream_t stream) {
  Gathering<T> g = {};
  g.x = static_cast<const T*>(params.x), g.y = static_cast<T*>(params.y);
  g.num_tokens = params.num_tokens, g.width = params.width, g.part_width = params.part_width;
  g.x_aligned = is_aligned(params.x), g.y_aligned = is_aligned(params.y);
  g.whole_columns = params.width % kGroup<T> == 0 && params.part_width % kGroup<T> == 0;
  const int64_t count = largest_part(params), groups = groups_of<T>(count);
  if (communicator.num_ranks() == 1 || count * static_cast<int64_t>(sizeof(T)) <= kPushBytes) {
    return launch("all_gather", all_gather_kernel<T>, push_shape(groups), stream, communicator.peers(), g);
  }
  const LaunchShape shape = direct_shape(groups, communicator.group().multiprocessors(), sizeof(Meeting));
  return launch("all_gather", all_gather_direct_kernel<T>, shape, stream, communicator.peers(), g);
}

template <class T>
Status by_nccl(const AllGatherParams& params, const CudaCommunicator& communicator, cudaStream_t stream) {
  CudaGroup& group = communicator.group();
  const int64_t rank = communicator.rank(), num_ranks = communicator.num_ranks();
  const int64_t stride = params.num_tokens * params.part_width, count = params.num_tokens * columns_of(params, rank).count;
  const bool in_place = is_gathered_in_place(params, num_ranks);
  T* const to = static_cast<T*>(in_place ? params.y : params.workspace);
  const void* from = params.x;
  if (count < stride) {  // NCCL reads as much from each rank
    from = to + rank * stride;
    PROLOGUE_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(to + rank * stride, params.x, static_cast<size_t>(count) * sizeof(T), cudaMemcpyDeviceToDevice, stream));
  }
  PROLOGUE_RETURN_IF_ERROR(count_nccl_call(communicator.peers(), stream));
  const int type = sizeof(T) == 4 ? Nccl::kFloat32 : Nccl::kFloat16;
  PROLOGUE_RETURN_IF_ERROR(group.call_nccl("all_gather", rank, [&](const Nccl& nccl, Nccl::Comm comm) {
    return nccl.all_gather(from, to, static_cast<size_t>(stride), type, comm, stream);
  }));
  if (in_place) return {};
  constexpr unsigned kThreads = 256;
  constexpr int64_t kElementsOfBlock = 8 * kThreads, kMaxBlocks = 64;
  const dim3 grid(grid_extent(params.num_tokens), static_cast<unsigned>(num_ranks),
                  grid_extent(std::min(divide_up(params.part_width, kElementsOfBlock), kMaxBlocks)));
  return launch("all_gather: place", place_kernel<T>, {grid, kThreads}, stream, static_cast<const T*>(to),
                static_cast<T*>(params.y), params.width, params.part_width, stride);
}

Status load(const void* kernel) {
  cudaFuncAttributes attributes;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaFuncGetAttributes(&attributes, kernel));
  return {};
}

}  // namespace

int64_t all_gather_workspace_bytes(const AllGatherParams& params, const Communicator& communicator) {
  const auto& own = static_cast<const CudaCommunicator&>(communicator);
  if (own.group().uses_peer_memory() || is_gathered_in_place(params, own.num_ranks())) return 0;
  return round_up(own.num_ranks() * params.num_tokens * params.part_width * dtype_size(params.dtype), int64_t{16});
}

Status all_gather(const AllGatherParams& params, Communicator& communicator, const Execution& execution) {
  const auto& own = static_cast<const CudaCommunicator&>(communicator);
  PROLOGUE_RETURN_IF_ERROR(own.check("all_gather"));
  return with_type_of_size(params.dtype, [&]<class T>(T) {
    return own.group().uses_peer_memory() ? by_peer_memory<T>(params, own, execution.stream)
                                          : by_nccl<T>(params, own, execution.stream);
  });
}

Status load_all_gather_kernels() {
  for (const DType dtype : {DType::f32, DType::f16}) {
    PROLOGUE_RETURN_IF_ERROR(with_type_of_size(dtype, []<class T>(T) {
      PROLOGUE_RETURN_IF_ERROR(load(reinterpret_cast<const void*>(all_gather_kernel<T>)));
      PROLOGUE_RETURN_IF_ERROR(load(reinterpret_cast<const void*>(all_gather_direct_kernel<T>)));
      return load(reinterpret_cast<const void*>(place_kernel<T>));
    }));
  }
  return {};
}

}  // namespace prologue::cuda
