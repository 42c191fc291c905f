// A block works on kRows packed rows of one kv head of one sequence, over one split of its keys; then combine_kernel runs a block per
// packed row. A group of kLanes lanes (`lane_group` in the code), each with one or more groups of the channels, takes every kLaneGroups-th
// key.
#pragma once

#include <type_traits>

#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/decode/keys.cuh>
#include <prologue/kernels/paged_attention/decode/rows.cuh>
#include <prologue/kernels/paged_attention/decode/splits.cuh>

namespace prologue::cuda {

inline constexpr int kDecodeRowsPerSm = 16;  // packed rows of the blocks that a multiprocessor runs at a time

template <class C, int kHeadDim, int kRows>
inline constexpr int kDecodeBlocksPerSm = kHeadDim > 256
                                              ? 2
                                              : kDecodeRowsPerSm / kRows / (std::is_same_v<C, float> && kHeadDim > 128 ? 2 : 1);

// C is what the cache holds, K and V alike, or AnyElement for any types of both, or AnyBlocks for any formats of both.
template <class C, int kHeadDim, int kRows>
__global__ void __launch_bounds__(kDecodeThreads, kDecodeBlocksPerSm<C, kHeadDim, kRows>)
    decode_kernel(const __grid_constant__ AttentionArgs args) {
  using Shape = DecodeShape<C, kHeadDim, kRows>;
  const PagedAttentionParams& p = args.p;

  int64_t block = blockIdx.x;
  const int tile = static_cast<int>(block % args.row_tiles);
  block /= args.row_tiles;
  const int kv_head = static_cast<int>(block % p.kv.num_kv_heads);
  block /= p.kv.num_kv_heads;
  const int split = static_cast<int>(block % args.num_splits);
  const int64_t s = block / args.num_splits;
  const Sequence sequence = sequence_at(args, s);
  if (sequence.bad_rows && tile == 0 && split == 0) clear_bad_rows(args, s, kv_head);
  const int num_packed = sequence.num_rows * args.group;
  const int first_packed = tile * kRows;
  if (first_packed >= num_packed) return;

  const Splits splits(args, sequence);
  const int64_t split_begin = splits.begin + static_cast<int64_t>(split) * splits.size;
  if (split > 0 && split_begin >= sequence.length) return;  // combine_kernel does not look here either
  const int last_row = (min(first_packed + kRows, num_packed) - 1) / args.group;
  const int begin = max(static_cast<int>(split_begin), lowest(args, sequence.limit(first_packed / args.group)));
  const int end = static_cast<int>(min(split_begin + splits.size, static_cast<int64_t>(sequence.limit(last_row))));

  const int lane = threadIdx.x % Shape::kLanes, channel = lane * Shape::kChannels;
  const PagedKvView& kv = p.kv;
  const DecodeCache<C, kHeadDim, kRows> cache = {args,
                                                 sequence,
                                                 kv_head,
                                                 channel,
                                                 static_cast<int>(threadIdx.x) / Shape::kLanes,
                                                 lane % Shape::kRowLanes / Shape::kLanesPerScore * Shape::kOwned,
                                                 first_packed,
                                                 end,
                                                 kv_head * kv.k.strides.head + channel,
                                                 kv_head * kv.v.strides.head + channel};
  DecodeRows<C, kHeadDim, kRows> rows(cache, lane);
  unsigned faulty = 0;  // a bit per row
  int pages[Shape::kKeys];
  cache.load_pages(begin, pages);
  for (int base = begin; base < end; base += Shape::kStep) {
    const DecodeKeys<C, kHeadDim, kRows> keys(cache, base, pages, faulty);
    cache.load_pages(base + Shape::kStep, pages);
    rows.add(cache, keys, base);
  }

  __shared__ DecodeSums<C, kHeadDim, kRows> sums;
  if (threadIdx.x == 0) sums.faulty = 0;
  __syncthreads();
  if (faulty != 0) atomicOr(&sums.faulty, faulty);
  rows.leave(sums, channel);
  __syncthreads();
  const float value_scale = Shape::kScaled ? shared_scale(cache.v_format(), kv.v.scale, kv_head) : 1.0f;
  store_rows<C, kHeadDim, kRows>(args, sequence, sums, kv_head, first_packed, value_scale);
}

}  // namespace prologue::cuda
