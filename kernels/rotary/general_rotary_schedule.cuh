// blockIdx.x is the token, threadIdx.x the unit (head_unit.cuh) within a head. The rows threadIdx.y of all blockIdx.y walk the heads of all
// tensors. This schedule decides at run time, and does everything that rotary.h describes.
#pragma once

#include <cstdint>

#include <prologue/kernels/rotary/rotary_unit.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

template <class T, int V>
__device__ inline Unit<T, V> load_strided(const T* head, int64_t channel, const UnitChannels& place) {
  if constexpr (V == 1) {
    const UnitChannels first = {0, 0, place.pair, place.has_a, false}, second = {0, 0, place.pair, false, place.has_b};
    return {load_unit<false, T, V>(head + place.a * channel, first).a,
            load_unit<false, T, V>(head + place.b * channel, second).b};
  } else {
    return load_unit<false, T, V>(head, place);
  }
}

template <class T, int V>
__device__ inline void store_strided(T* head, int64_t channel, const UnitChannels& place, const Unit<T, V>& unit) {
  if constexpr (V == 1) {
    store_unit<false, T, V>(head + place.a * channel, {0, 0, place.pair, place.has_a, false}, unit);
    store_unit<false, T, V>(head + place.b * channel, {0, 0, place.pair, false, place.has_b}, unit);
  } else {
    store_unit<false, T, V>(head, place, unit);
  }
}

template <class A>
__device__ __noinline__ PairRotation<A> rotation_of_pair_on_device(const RotaryParams& params,
                                                                   const RotaryFrequencies& frequencies, const RotaryToken& token,
                                                                   int pair) {
  return rotation_of_pair<A>(params.rope, &frequencies, token, pair);
}

// Points to a head. The heads of all tensors are walked one after another.
struct RotaryHead {
  int tensor;
  int head;
};

// Returns the head that is `step` heads further. After the last one its tensor is num_tensors.
__device__ inline RotaryHead rotary_head_after(const RotaryParams& p, RotaryHead at, int step) {
  at.head += step;
  while (at.tensor < p.num_tensors && at.head >= p.tensors[at.tensor].num_heads) {
    at.head -= static_cast<int>(p.tensors[at.tensor].num_heads);
    ++at.tensor;
  }
  return at;
}

// The threads of a block first compute the rotations of its token together. Shared memory holds them in four arrays: cos_a,
// sin_a, cos_b, sin_b. The next head is loaded while the current one is computed.
template <class T, int V>
__global__ void __launch_bounds__(kMaxRotaryThreads<V>, 1)
    general_rotary_kernel(const __grid_constant__ RotaryParams p, const __grid_constant__ RotaryFrequencies frequencies) {
  using A = RotaryArithmetic<T>;
  A* rotations = dynamic_shared<A>();
  const int pairs = static_cast<int>(p.rope.rotary_dim / 2), step = static_cast<int>(gridDim.y * blockDim.y);
  const int64_t token = blockIdx.x;
  const BlockLayout layout = {{static_cast<int32_t>(p.head_dim), static_cast<int32_t>(p.rope.rotary_dim),
                               static_cast<int32_t>(p.rope.rotary_offset), p.rope.style},
                              static_cast<int32_t>(p.rope.num_blocks)};
  const UnitChannels place = channels_of_unit<V>(static_cast<int>(threadIdx.x), layout);
  const bool rotated = place.pair >= 0;
  const RotaryHead first = rotary_head_after(p, {0, 0}, static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y));

  for (int64_t batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
    const auto load = [&](const RotaryHead& at) {
      if (at.tensor >= p.num_tensors) return Unit<T, V>{};
      const RotaryTensor& tensor = p.tensors[at.tensor];
      const RotaryStrides& strides = tensor.x_strides;
      const T* x = static_cast<const T*>(tensor.x) + batch * strides.batch + token * strides.token + at.head * strides.head;
      return load_strided<T, V>(x, strides.channel, place);
    };
    Unit<T, V> next = load(first);
    const RotaryToken at = resolve_token(p, batch, token);
    if (at.padding) continue;
    if (at.fault != FaultCode::none && (blockIdx.y | threadIdx.y | threadIdx.x) == 0) {
      cuda::record_fault(p.faults, p.token_faults, batch * p.seq_len + token, at.fault);
    }
    __syncthreads();  // the rotations of the previous sequence have been read
    if (!at.zero && at.rotated) {
      for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < pairs;
           i += static_cast<int>(blockDim.x * blockDim.y)) {
        const PairRotation<A> by = rotation_of_pair_on_device<A>(p, frequencies, at, i);
        rotations[i] = by.cos_a;
        rotations[pairs + i] = by.sin_a;
        rotations[2 * pairs + i] = by.cos_b;
        rotations[3 * pairs + i] = by.sin_b;
      }
    }
    __syncthreads();

    PairRotation<A> of_unit[V];
#pragma unroll
    for (int n = 0; n < V; ++n) {
      const A* by = rotations + (rotated ? place.pair + n : 0);
      if (rotated) of_unit[n] = {by[0], by[pairs], by[2 * pairs], by[3 * pairs]};
    }
    for (RotaryHead head = first; head.tensor < p.num_tensors;) {
      const RotaryTensor& tensor = p.tensors[head.tensor];
      const RotaryStrides& strides = tensor.y_strides;
      T* y = static_cast<T*>(tensor.y) + batch * strides.batch + token * strides.token + head.head * strides.head;
      Unit<T, V> unit = next;
      head = rotary_head_after(p, head, step);
      next = load(head);
      const bool tail = tensor.rotate && !rotated;
      if (tail && p.tail == RotaryTail::leave) continue;
      if (tensor.rotate && rotated && at.rotated) rotate_unit<T, V>(unit, p.rope.style, [&](int n) { return of_unit[n]; });
      if (at.zero || (tail && p.tail == RotaryTail::zero)) unit = {};
      store_strided<T, V>(y, strides.channel, place, unit);
    }
  }
}

}  // namespace prologue::cuda
