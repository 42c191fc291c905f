// Projections one after another (weight_slots.cuh). Where a block's sums of a phase are done, the warps that multiplied add the bias, apply
// the activation, add the residual and store, four neighbours of a token at a time.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection_chain/weight_slots.cuh>

namespace prologue::cuda {

// The product of kRowsAtOnce rows of the weights and a token, rounded to T as the separate operation stores it. `row` counts in the block,
// `of_weights` in the weights.
template <class T>
__device__ inline void product_of_rows(const ChainArgs& a, const ChainMemory& shared, const Phase& p, int t, int row, int of_weights,
                                       float factor, float (&values)[kRowsAtOnce]) {
  gather_rows(a, shared, p, t, row, values);
#pragma unroll
  for (float& value : values) value *= factor;
  round_product<T>(p.output, of_weights, values);
}

// The outputs of a thread: `row` and the kRowsAtOnce - 1 after it, of the block, of token t. Lanes that are neighbours have neighbouring
// rows of a token.
struct OutputPlace {
  int t, row;
  bool exists;
  __device__ OutputPlace(const ChainArgs& a, const Phase& p, int i)
      : t(i / p.lanes), row(i % p.lanes * kRowsAtOnce), exists(false) {
    const int rows = min(p.box_rows, p.output.n - static_cast<int>(blockIdx.x) * p.box_rows);
    exists = t < a.num_tokens && row < rows;
  }
  __device__ int of_y(const Phase& p) const { return static_cast<int>(blockIdx.x) * p.box_rows + row; }
};

// What a thread needs for its outputs beside their sums.
template <class T>
struct OutputInputs {
  static constexpr int kBytes = kRowsAtOnce * static_cast<int>(sizeof(T));
  Packed<T, kRowsAtOnce> residual = {};
  Bytes<kRowsAtOnce * 4> next_weight = {};  // of the norm that follows: float32, or of T in the first words

  __device__ void load(const Phase& p, const OutputPlace& place) {
    if (!place.exists) return;
    const int at = place.of_y(p);
    if (p.output.adds != 0) residual = load_bytes<kBytes, false>(place_of_output<T>(p.output, place.t, at));
    if (p.next_weight == nullptr) return;
    if (p.float_weights != 0) {
      next_weight = load_bytes<kRowsAtOnce * 4, false>(p.next_weight + at * 4);
    } else {
      const auto narrow = load_bytes<kBytes, false>(p.next_weight + at * static_cast<int>(sizeof(T)));
#pragma unroll
      for (int i = 0; i < kBytes / 4; ++i) next_weight.words[i] = narrow.words[i];
    }
  }
  __device__ float weight(const Phase& p, int i) const {
    if (p.next_weight == nullptr) return 1.0f;
    if (p.float_weights != 0) return element<float, kRowsAtOnce>(next_weight, i);
    Packed<T, kRowsAtOnce> narrow;
#pragma unroll
    for (int n = 0; n < kBytes / 4; ++n) narrow.words[n] = next_weight.words[n];
    return element<T, kRowsAtOnce>(narrow, i);
  }
};

// `first`: of the thread's first outputs.
template <class T>
__device__ inline void store_phase(const ChainArgs& a, const ChainMemory& shared, const Phase& p, const OutputInputs<T>& first) {
  const OutputArgs& o = p.output;
  const int lanes = p.lanes, end = (a.num_tokens * lanes + 31) / 32 * 32;
  OutputInputs<T> inputs = first;
#pragma unroll 1
  for (int i = threadIdx.x; i < end; i += kChainConsumers) {
    const OutputPlace place(a, p, i);
    if (i >= kChainConsumers) inputs.load(p, place);
    const int at = place.of_y(p);
    float squares = 0.0f;
    if (place.exists) {
      const float factor = p.squares != nullptr ? shared.tail->factors[place.t] : 1.0f;
      float values[kRowsAtOnce];
      product_of_rows<T>(a, shared, p, place.t, place.row, at, factor, values);
      if (o.activates != 0) {
        float up[kRowsAtOnce] = {};
        if (o.gated != 0) product_of_rows<T>(a, shared, p, place.t, p.box_rows + place.row, o.n + at, factor, up);
        apply_activation(o, values, up);
      }
      store_output<T>(o, place_of_output<T>(o, place.t, at), inputs.residual, values);
      if (p.next_x != nullptr) {
        float weighted[kRowsAtOnce];
#pragma unroll
        for (int j = 0; j < kRowsAtOnce; ++j) {
          squares = fmaf(values[j], values[j], squares);
          weighted[j] = values[j] * inputs.weight(p, j);
        }
        char* const to = p.next_x + (static_cast<int64_t>(place.t) * o.n + at) * static_cast<int64_t>(sizeof(T));
        store_bytes<OutputInputs<T>::kBytes, false>(to, pack<T, kRowsAtOnce>(weighted));
      }
    }
    if (p.next_x == nullptr) continue;
#pragma unroll 1
    for (int step = 1; step < lanes; step *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    if (place.exists && place.row == 0) p.next_squares[static_cast<int>(blockIdx.x) * a.num_tokens + place.t] = squares;
  }
}

// The last block to be done makes the counters zeros for the next call. By one thread.
__device__ inline void clear_counters(const ChainArgs& a) {
  uint32_t* const done = a.counters + a.num_phases;
  if (atomicAdd(done, 1u) + 1 != gridDim.x) return;
  for (int i = 0; i <= a.num_phases; ++i) a.counters[i] = 0;
}

template <class T, int kTokenTiles>
__global__ void __launch_bounds__(kChainLaunchBound, kChainBlocksOfSm) projection_chain_kernel(const __grid_constant__ ChainArgs a) {
#if PROLOGUE_HOPPER
  const ChainMemory shared(a, swizzled_dynamic_shared<unsigned char>());
  shared.open(a);
  __syncthreads();
  if (threadIdx.x >= kChainConsumers) {
    if (threadIdx.x == kChainConsumers) load_weights(a, shared);
    if (threadIdx.x == kChainConsumers + 32) load_x(a, shared);
    if (threadIdx.x >= kChainConsumers + 64) make_factors(a, shared);
    return;
  }
  wait_for_previous_kernels();
  let_next_kernel_start();
  SlotPlace place;
#pragma unroll 1
  for (int n = 0; n < a.num_phases; ++n) {
    const Phase& p = shared.tail->phases[n];
    if (!has_rows(p)) continue;
    shared.tail->loaded[place.slot].wait(place.parity);  // so what the phases before have stored can be seen
    OutputInputs<T> inputs;
    inputs.load(p, OutputPlace(a, p, static_cast<int>(threadIdx.x)));
    multiply_phase<T, kTokenTiles>(a, shared, p, place);
    wait_for_sums(p);
    store_phase<T>(a, shared, p, inputs);
    if (n + 1 == a.num_phases) break;
    fence_global_for_async();
    sync_barrier(kStoredBarrier, kChainConsumers);
    if (threadIdx.x == 0) count_block(a.counters + n);
  }
  if (threadIdx.x == 0) clear_counters(a);
#endif
}

}  // namespace prologue::cuda
