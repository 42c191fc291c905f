#include <prologue/kernels/collective/communicator_cuda.h>
#include <prologue/kernels/collective/direct_kernel.cuh>
#include <prologue/kernels/collective/push_kernel.cuh>
#include <prologue/kernels/collective/push_launch.cuh>

namespace prologue::cuda {

namespace {

template <class T>
struct Reduction {
  const T* x;
  T* y;
  int64_t count;
  bool adds;
  bool x_aligned, y_aligned;  // to 16 bytes
};

// Adds up a group: the ranks' parts in the order of the ranks, then y. Rounded once. kRanks: that there is room for.
template <class T, int kRanks, class Part>
__device__ Group<T> add_up(int num_ranks, const Part& part, bool adds, const Group<T>& before) {
  return make_group<T>([&](int i) {
    float value = 0.0f;
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank >= num_ranks) continue;
      const float term = part(rank)[i];
      value = rank == 0 ? term : value + term;
    }
    return adds ? value + before[i] : value;
  });
}

// A thread owns one group of 16 bytes, or several if there are more than threads. Every rank adds up everything.
template <class T, int kRanks>
__global__ void __launch_bounds__(kMaxPushThreads, 1)
    all_reduce_kernel(const __grid_constant__ Peers p, const __grid_constant__ Reduction<T> r) {
  const Turn turn = begin_turn(p);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t groups = groups_of<T>(r.count), step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto load = [&](const T* from, int64_t group, bool aligned) {
    const int64_t left = r.count - group * kGroup<T>;
    return load_group(from + group * kGroup<T>, left, aligned && left >= kGroup<T>);
  };
  const auto is_peer = [&](int rank) { return rank < p.num_ranks && rank != p.rank; };

  for (int64_t group = first; turn.goes_on && group < groups; group += step) {
    const Group<T> own = load(r.x, group, r.x_aligned);
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (is_peer(rank)) push(p, rank, turn, group, own);
    }
  }

  bool goes_on = turn.goes_on;
  for (int64_t base = first - lane; goes_on && base < groups; base += step) {  // the same for a whole warp
    const int64_t group = base + lane;
    const bool is_there = group < groups;
    Group<T> own = {}, before = {};
    if (is_there) {
      own = load(r.x, group, r.x_aligned);
      if (r.adds) before = load(r.y, group, r.y_aligned);
    }
    Arriving arriving[kRanks];
    uint32_t missing = is_there ? ((1u << p.num_ranks) - 1u) & ~(1u << p.rank) : 0u;
    goes_on = wait_for_peers(p, [&] {
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        if ((missing >> rank & 1u) != 0) arriving[rank].load(lines_of(p, p.rank, rank, turn, group));
      }
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        if ((missing >> rank & 1u) != 0 && arriving[rank].is_there(turn.sequence)) missing &= ~(1u << rank);
      }
      return missing;
    });
    if (!goes_on || !is_there) continue;
    const auto part = [&](int rank) { return rank == p.rank ? own : arriving[rank].template group<T>(); };
    const Group<T> sum = add_up<T, kRanks>(p.num_ranks, part, r.adds, before);
    const int64_t left = r.count - group * kGroup<T>;
    store_group(r.y + group * kGroup<T>, sum, left, r.y_aligned && left >= kGroup<T>);
  }
  end_turn(p, turn);
}

// Adds up the slice of this rank, `slice` groups of 16 bytes from rank * slice on: reads the parts of all ranks and writes the sum to all. A thread
// owns every (number of threads)-th group of the slice.
//
// x may be y: the elements of a slice are read by one rank only, and there by the thread that writes them afterwards. With `adds` a rank reads its
// own y only, in its slice, which no other rank writes.
template <class T, int kRanks>
__global__ void __launch_bounds__(kDirectThreads, 1)
    all_reduce_direct_kernel(const __grid_constant__ Peers p, const __grid_constant__ Reduction<T> r, int64_t slice) {
  constexpr int kUnroll = kRanks <= 4 ? 4 : 2;  // a load from another GPU takes 1.5 us
  const Turn turn = begin_turn(p);
  Meeting& meeting = *dynamic_shared<Meeting>();
  if (meet_peers(p, turn, r.x, r.y, meeting)) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    const int64_t begin = p.rank * slice, end = min(begin + slice, groups_of<T>(r.count));
    const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t whole_end = meeting.aligned != 0 ? min(end, r.count / kGroup<T>) : begin;

    for (int64_t base = begin + first; base < whole_end; base += kUnroll * step) {
      Group<T> parts[kUnroll][kRanks] = {}, before[kUnroll] = {};
      const auto load = [](uint64_t array, int64_t group) {
        const uint4 words = load_line(reinterpret_cast<const uint4*>(array) + group);
        return Group<T>{{words.x, words.y, words.z, words.w}};
      };
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t group = base + u * step;
        if (group >= whole_end) continue;
#pragma unroll
        for (int rank = 0; rank < kRanks; ++rank) {
          if (rank < p.num_ranks) parts[u][rank] = load(meeting.read[rank], group);
        }
        if (r.adds) before[u] = load(reinterpret_cast<uint64_t>(r.y), group);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t group = base + u * step;
        if (group >= whole_end) continue;
        const Group<T> sum = add_up<T, kRanks>(
            p.num_ranks, [&](int rank) { return parts[u][rank]; }, r.adds, before[u]);
#pragma unroll
        for (int rank = 0; rank < kRanks; ++rank) {
          if (rank >= p.num_ranks) continue;
          store_global(reinterpret_cast<uint4*>(meeting.written[rank]) + group,
                       uint4{sum.words[0], sum.words[1], sum.words[2], sum.words[3]});
        }
      }
    }

    // The last elements, which are no whole group; everything if an array is not aligned.
    for (int64_t group = max(begin, whole_end) + first; group < end; group += step) {
      const int64_t at = group * kGroup<T>, left = r.count - at;
      Group<T> parts[kRanks], before = {};
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank < p.num_ranks) parts[rank] = load_group(reinterpret_cast<const T*>(meeting.read[rank]) + at, left, false);
      }
      if (r.adds) before = load_group(r.y + at, left, false);
      const Group<T> sum = add_up<T, kRanks>(
          p.num_ranks, [&](int rank) { return parts[rank]; }, r.adds, before);
      for (int rank = 0; rank < p.num_ranks; ++rank) {
        store_group(reinterpret_cast<T*>(meeting.written[rank]) + at, sum, left, false);
      }
    }
    part_from_peers(p, turn);
  }
  end_turn(p, turn);
}

// y += x. A thread owns one group of 16 bytes.
template <class T>
__global__ void add_kernel(const __grid_constant__ Reduction<T> r) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kGroup<T>, left = r.count - begin;
  if (left <= 0) return;
  const bool x_whole = r.x_aligned && left >= kGroup<T>, y_whole = r.y_aligned && left >= kGroup<T>;
  const Group<T> x = load_group(r.x + begin, left, x_whole), y = load_group(r.y + begin, left, y_whole);
  store_group(r.y + begin, make_group<T>([&](int i) { return x[i] + y[i]; }), left, y_whole);
}

__global__ void count_nccl_call_kernel(RankState* state, uint32_t* calls) { store_word(calls, ++state->nccl_calls); }

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

template <class T>
Reduction<T> reduction(const void* x, void* y, int64_t begin, int64_t count, bool adds) {
  const T* const from = static_cast<const T*>(x) + begin;
  T* const to = static_cast<T*>(y) + begin;
  return {from, to, count, adds, is_aligned(from), is_aligned(to)};
}

// The tables of instances: kernels with room for 2, 4 and 8 ranks.
template <class T>
auto* kernel_for(int64_t num_ranks) {
  return num_ranks <= 2 ? all_reduce_kernel<T, 2> : num_ranks <= 4 ? all_reduce_kernel<T, 4> : all_reduce_kernel<T, 8>;
}
template <class T>
auto* direct_kernel_for(int64_t num_ranks) {
  return num_ranks <= 2   ? all_reduce_direct_kernel<T, 2>
         : num_ranks <= 4 ? all_reduce_direct_kernel<T, 4>
                          : all_reduce_direct_kernel<T, 8>;
}

// Few bytes; any number on one rank.
template <class T>
Status push(const AllReduceParams& params, const CudaCommunicator& communicator, cudaStream_t stream) {
  const auto r = reduction<T>(params.x, params.y, 0, params.num_tokens * params.width, params.adds != 0);
  LaunchShape shape = push_shape(groups_of<T>(r.count));
  LaunchAttributes attributes(1, params.overlaps);
  shape.attributes = attributes.span();
  return launch("all_reduce", kernel_for<T>(communicator.num_ranks()), shape, stream, communicator.peers(), r);
}

template <class T>
Status read_and_write_peers(const AllReduceParams& params, const CudaCommunicator& communicator, cudaStream_t stream) {
  constexpr int64_t kGroupsOfLine = 8;  // 128 bytes, which two ranks should not write
  const auto r = reduction<T>(params.x, params.y, 0, params.num_tokens * params.width, params.adds != 0);
  const int64_t slice = round_up(divide_up(groups_of<T>(r.count), communicator.num_ranks()), kGroupsOfLine);
  LaunchShape shape = direct_shape(slice, communicator.group().multiprocessors(), sizeof(Meeting));
  LaunchAttributes attributes(1, params.overlaps);
  shape.attributes = attributes.span();
  return launch("all_reduce", direct_kernel_for<T>(communicator.num_ranks()), shape, stream, communicator.peers(), r, slice);
}

template <class T>
Status add_scratch(const AllReduceParams& params, const void* scratch, int64_t begin, int64_t count, cudaStream_t stream) {
  constexpr unsigned kThreads = 256;
  Reduction<T> r = reduction<T>(nullptr, params.y, begin, count, true);
  r.x = static_cast<const T*>(scratch), r.x_aligned = true;
  return launch("all_reduce: add", add_kernel<T>, {grid_extent(divide_up(groups_of<T>(count), kThreads)), kThreads}, stream, r);
}

// With `adds`, the sum goes through the scratch memory, a piece at a time.
template <class T>
Status by_nccl(const AllReduceParams& params, const CudaCommunicator& communicator, int type, cudaStream_t stream) {
  CudaGroup& group = communicator.group();
  const int64_t count = params.num_tokens * params.width, rank = communicator.rank();
  const int64_t piece = params.adds != 0 ? kScratchBytes / static_cast<int64_t>(sizeof(T)) : count;
  PROLOGUE_RETURN_IF_ERROR(count_nccl_call(communicator.peers(), stream));
  for (int64_t begin = 0; begin < count; begin += piece) {
    const int64_t now = std::min(piece, count - begin);
    const T* const from = static_cast<const T*>(params.x) + begin;
    void* const to = params.adds != 0 ? group.scratch(rank) : static_cast<T*>(params.y) + begin;
    PROLOGUE_RETURN_IF_ERROR(group.call_nccl("all_reduce", rank, [&](const Nccl& nccl, Nccl::Comm comm) {
      return nccl.all_reduce(from, to, static_cast<size_t>(now), type, Nccl::kSum, comm, stream);
    }));
    if (params.adds != 0) PROLOGUE_RETURN_IF_ERROR(add_scratch<T>(params, to, begin, now, stream));
  }
  return {};
}

Status load(const void* kernel) {
  cudaFuncAttributes attributes;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaFuncGetAttributes(&attributes, kernel));
  return {};
}

}  // namespace

Status all_reduce(const AllReduceParams& params, Communicator& communicator, const Execution& execution) {
  const auto& own = static_cast<const CudaCommunicator&>(communicator);
  PROLOGUE_RETURN_IF_ERROR(own.check("all_reduce"));
  const int64_t bytes = params.num_tokens * params.width * dtype_size(params.dtype);
  const CudaGroup& group = own.group();
  return with_device_type(params.dtype, [&]<class T>(T) {
    if (group.uses_peer_memory() && (bytes <= kPushBytes || own.num_ranks() == 1)) return push<T>(params, own, execution.stream);
    if (group.uses_peer_memory()) return read_and_write_peers<T>(params, own, execution.stream);
    const int type = params.dtype == DType::f32 ? Nccl::kFloat32 : params.dtype == DType::f16 ? Nccl::kFloat16 : Nccl::kBfloat16;
    return by_nccl<T>(params, own, type, execution.stream);
  });
}

Status count_nccl_call(const Peers& peers, cudaStream_t stream) {
  return launch("count_nccl_call", count_nccl_call_kernel, {1, 1}, stream, peers.state, &peers.words->nccl_calls[peers.rank]);
}

Status load_all_reduce_kernels() {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    PROLOGUE_RETURN_IF_ERROR(with_device_type(dtype, [&]<class T>(T) {
      for (const int64_t num_ranks : {2, 4, 8}) {
        PROLOGUE_RETURN_IF_ERROR(load(reinterpret_cast<const void*>(kernel_for<T>(num_ranks))));
        PROLOGUE_RETURN_IF_ERROR(load(reinterpret_cast<const void*>(direct_kernel_for<T>(num_ranks))));
      }
      return load(reinterpret_cast<const void*>(add_kernel<T>));
    }));
  }
  return load(reinterpret_cast<const void*>(count_nccl_call_kernel));
}

}  // namespace prologue::cuda
