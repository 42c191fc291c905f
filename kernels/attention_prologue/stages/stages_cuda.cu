#include <algorithm>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>

namespace prologue::cuda {

namespace {

// blockIdx.x is the token; a thread owns a vector of V channels of its row, the blocks of blockIdx.y share the row.
template <class T, int V>
__global__ void __launch_bounds__(256) add_bias_kernel(const __grid_constant__ AddBiasParams p) {
  const int64_t t = blockIdx.x;
  const T* x = static_cast<const T*>(p.x) + t * p.x_stride;
  const T* bias = static_cast<const T*>(p.bias);
  T* y = static_cast<T*>(p.y) + t * p.y_stride;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x * V;
  for (int64_t i = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * V; i < p.width; i += step) {
    constexpr int kBytes = V * static_cast<int>(sizeof(T));
    const Packed<T, V> values = load_bytes<kBytes, false>(x + i);
    const Packed<T, V> terms = load_bytes<kBytes, false>(bias + i);
    float sums[V];
#pragma unroll
    for (int j = 0; j < V; ++j) sums[j] = add_rounded(element<T, V>(values, j), element<T, V>(terms, j));
    store_bytes<kBytes, false>(y + i, pack<T, V>(sums));
  }
}

}  // namespace

Status add_bias(const AddBiasParams& p, const Execution& execution) {
  return with_device_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVector = 16 / sizeof(T);
    const bool aligned =
        p.width % kVector == 0 && p.x_stride % kVector == 0 && p.y_stride % kVector == 0 &&
        (reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.bias) | reinterpret_cast<uintptr_t>(p.y)) % 16 == 0;
    const int64_t vectors = p.width / (aligned ? kVector : 1);
    const unsigned threads = static_cast<unsigned>(std::clamp<int64_t>(round_up(vectors, 32), 32, 256));
    const unsigned blocks = static_cast<unsigned>(std::clamp<int64_t>(divide_up(vectors, threads), 1, 1024));
    const LaunchShape shape = {dim3(static_cast<unsigned>(p.num_tokens), blocks), dim3(threads)};
    return launch("add_bias", aligned ? add_bias_kernel<T, kVector> : add_bias_kernel<T, 1>, shape, execution.stream, p);
  });
}

// Runs the Q half of the fused kernel, with nothing to rotate.
Status qk_norm(const QkNormParams& p, const Execution& execution) {
  AttentionPrologueParams fused;
  fused.num_tokens = p.num_tokens;
  fused.num_q_heads = p.num_heads;
  fused.head_dim = p.head_dim;
  fused.dtype = p.dtype;
  fused.q = p.x;
  fused.q_out = p.y;
  fused.q_norm = p.norm;
  fused.q_norm.placement = NormPlacement::before_rope;
  fused.places.positions = p.positions;
  return cuda::attention_prologue(fused, execution);
}

// The Q half of the fused kernel, with nothing else to do.
Status hadamard(const HadamardParams& p, const Execution& execution) {
  AttentionPrologueParams fused;
  fused.num_tokens = p.num_tokens;
  fused.num_q_heads = p.num_heads;
  fused.head_dim = p.head_dim;
  fused.dtype = p.dtype;
  fused.q = p.x;
  fused.q_out = p.y;
  fused.hadamard_block = p.block;
  fused.places.positions = p.positions;
  return cuda::attention_prologue(fused, execution);
}

// The Q half of the fused kernel, with nothing else to do.
Status query_scale(const QueryScaleParams& p, const Execution& execution) {
  AttentionPrologueParams fused;
  fused.num_tokens = p.num_tokens;
  fused.num_q_heads = p.num_heads;
  fused.head_dim = p.head_dim;
  fused.dtype = p.dtype;
  fused.q = p.x;
  fused.q_out = p.y;
  fused.q_scale = p.q_scale;
  fused.places.positions = p.positions;
  return cuda::attention_prologue(fused, execution);
}

// Runs the K/V half of the fused kernel, with nothing to rotate.
Status kv_write(const KvWriteParams& p, const Execution& execution) {
  AttentionPrologueParams fused;
  fused.num_tokens = p.num_tokens;
  fused.num_kv_heads = p.num_kv_heads;
  fused.head_dim = p.head_dim;
  fused.dtype = p.dtype;
  fused.k = p.k;
  fused.v = p.v;
  fused.places.positions = p.positions;
  fused.places.position_axis_stride = p.position_axis_stride;
  fused.rope.num_axes = p.num_axes;
  fused.rope.max_position = p.max_position;
  fused.rope.past_table = p.past_table;
  fused.cache = p.cache;
  fused.places.slot_mapping = p.slot_mapping;
  fused.places.slot_mapping_len = p.slot_mapping_len;
  fused.faults = p.faults;
  return cuda::attention_prologue(fused, execution);
}

}  // namespace prologue::cuda
