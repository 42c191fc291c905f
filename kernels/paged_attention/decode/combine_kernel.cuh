// This kernel adds up the parts that the splits of a sequence have left.
#pragma once

#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/decode/splits.cuh>

namespace prologue::cuda {

inline constexpr int kCombineThreads = 256;

// A block works on one packed row of one kv head of one sequence. Each warp adds every 8th split, each lane every 32nd channel.
template <int kHeadDim, int kRows>
__global__ void __launch_bounds__(kCombineThreads, 4) combine_kernel(const __grid_constant__ AttentionArgs args) {
  constexpr int kWarps = kCombineThreads / 32;
  constexpr int kMaxChannels = kHeadDim / 32;
  const PagedAttentionParams& p = args.p;
  const int packed = blockIdx.x % (args.row_tiles * kRows);
  const int64_t seq_and_head = blockIdx.x / (args.row_tiles * kRows);
  const int kv_head = static_cast<int>(seq_and_head % p.kv.num_kv_heads);
  const int64_t s = seq_and_head / p.kv.num_kv_heads;
  const Sequence sequence = sequence_at(args, s);
  const int j = packed / args.group;
  if (j >= sequence.num_rows) return;

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int head_dim = args.v_head_dim;
  const Splits splits(args, sequence);
  const int num_splits = (sequence.length - splits.begin + splits.size - 1) / max(1, splits.size);
  const auto partial_of = [&](int split) {
    const int64_t block = ((s * args.num_splits + split) * p.kv.num_kv_heads + kv_head) * args.row_tiles + packed / kRows;
    return block * kRows + packed % kRows;
  };
  float maximum = -INFINITY;
  bool fault = sequence.too_long;
  for (int split = lane; split < num_splits; split += 32) {
    const float2 stats = args.partial_stats[partial_of(split)];
    maximum = fmaxf(maximum, stats.x);
    fault = fault || stats.y < 0.0f;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
  fault = __any_sync(0xffffffffu, fault);

  float sum = 0.0f;
  float out[kMaxChannels] = {};
#pragma unroll 4
  for (int split = warp; split < num_splits; split += kWarps) {
    const int64_t partial = partial_of(split);
    const float2 stats = args.partial_stats[partial];
    const float weight = weight_of(stats.x, maximum);
    sum = fmaf(weight, stats.y, sum);
#pragma unroll
    for (int c = 0; c < kMaxChannels; ++c) {
      const int d = lane + c * 32;
      if (d < head_dim) out[c] = fmaf(weight, args.partial_out[partial * head_dim + d], out[c]);
    }
  }
  __shared__ float warp_sum[kWarps];
  __shared__ float warp_out[kWarps][kHeadDim];
  if (lane == 0) warp_sum[warp] = sum;
#pragma unroll
  for (int c = 0; c < kMaxChannels; ++c) warp_out[warp][lane + c * 32] = out[c];
  __syncthreads();

  if (fault && threadIdx.x == 0 && kv_head == 0 && packed % args.group == 0) record_row_fault(args, sequence, j);
  const int64_t q_head = static_cast<int64_t>(kv_head) * args.group + packed % args.group;
  const int64_t row = (sequence.first_row + j) * p.out.token_stride + q_head * p.out.head_stride;
  const float of_sink = sink_weight(p, q_head, maximum);
#pragma unroll
  for (int first = 0; first < kHeadDim; first += kCombineThreads) {
    const int d = first + threadIdx.x;
    if (d >= head_dim) return;
    float total = 0.0f;
    float value = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      total += warp_sum[w];
      value += warp_out[w][d];
    }
    total += of_sink;
    store_element(p.dtype, p.out.data, row + d, fault || sequence.limit(j) == 0 ? 0.0f : value / total);
  }
}

}  // namespace prologue::cuda
