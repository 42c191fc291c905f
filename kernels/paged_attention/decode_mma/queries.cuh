// Decode on tensor cores: the rows of q of a work item, in registers, and which keys they see. The layout of fragments is in
// decode_mma/kernel.cuh.
#pragma once

#include <prologue/kernels/paged_attention/decode_mma/rows.cuh>
#include <prologue/kernels/paged_attention/decode_tiles.cuh>

namespace prologue::cuda {

// T is the type of the multiplication; kColumns is the number of column tiles of 8 packed rows each. If the cache holds codes, a row of q
// is multiplied by a power of two that makes its largest element fill float16, so that bfloat16 loses nothing that counts beside it. The
// scores are divided by that number.
template <class T, class K, class V, int kHeadDim, int kColumns>
struct DecodeMmaQueries {
  using KeysOf = Keys<K, kHeadDim>;
  static constexpr int kRows = 8 * kColumns;

  uint32_t elements[KeysOf::kSteps][kColumns][2];
  float row_scale[kColumns][2];  // of the scores of packed rows 2t and 2t + 1
  float sum[kColumns][2];        // of a row's elements; only for zero points of K
  VisibleKeys visible[kColumns][2];
  int all_see_from = 0, all_see_to = 0;  // every row sees the positions between these
  int64_t row_at[kColumns];              // where packed row g is in q; -1: there is none
  float block_factor = 1.0f;             // of the scores; only for block-scaled K

  // Finds the rows of the cursor's work item and what they see. It needs nothing that the previous kernels write.
  template <class Cursor>
  __device__ __forceinline__ void find(const AttentionArgs& args, const Cursor& item) {
    const PagedAttentionParams& p = args.p;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int num_packed = item.num_packed(args), first_packed = item.first_packed();
    const int64_t first_head = static_cast<int64_t>(item.kv_head) * args.group;
    if (item.sequence.num_rows == 1) {  // as in most steps: what follows, without its divisions
      all_see_to = item.sequence.limit(0);
      const VisibleKeys of_row(args, all_see_to);
      all_see_from = of_row.first;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 2; ++i) visible[c][i] = first_packed + c * 8 + 2 * t + i < num_packed ? of_row : VisibleKeys();
        const int packed = first_packed + c * 8 + g;
        row_at[c] =
            packed < num_packed ? item.sequence.first_row * p.q.token_stride + (first_head + packed) * p.q.head_stride : -1;
      }
    } else {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int of_lane = first_packed + c * 8 + 2 * t + i;
          visible[c][i] = VisibleKeys(args, of_lane < num_packed ? item.sequence.limit(of_lane / args.group) : 0);
        }
        const int packed = first_packed + c * 8 + g;
        row_at[c] = packed < num_packed ? (item.sequence.first_row + packed / args.group) * p.q.token_stride +
                                              (first_head + packed % args.group) * p.q.head_stride
                                        : -1;
      }
      const int last_packed = min(first_packed + kRows, num_packed) - 1;
      all_see_from = lowest(args, item.sequence.limit(max(0, last_packed) / args.group));
      all_see_to = item.sequence.limit(first_packed / args.group);
    }
  }

  // Loads the rows that find() has found.
  __device__ __forceinline__ void load(const AttentionArgs& args, int kv_head) {
    const PagedAttentionParams& p = args.p;
    const int t = threadIdx.x % 4;
    float score_scale = args.score_scale;
    if constexpr (!kIsFloat<K> || !kIsFloat<V>)
      score_scale *= kIsBlocks<K> ? block_factor : shared_scale(p.kv.k.format, p.kv.k.scale, kv_head);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const bool exists = row_at[c] >= 0;
      const int64_t row = exists ? row_at[c] : 0;
      float inverse = 1.0f;
      [[maybe_unused]] float own_sum = 0.0f;
      if constexpr (kIsFloat<K>) {
#pragma unroll
        for (int step = 0; step < KeysOf::kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int channel = KeysOf::channel(step, t, 2 * half);
            const bool there = exists && channel < p.head_dim;
            elements[step][c][half] =
                there ? *reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.q.data) + row + channel) : 0;
          }
        }
      } else {
        load_scaled(p, exists, row, elements, c, inverse, own_sum);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        row_scale[c][i] = score_scale * (kIsFloat<K> ? 1.0f : __shfl_sync(0xffffffffu, inverse, (2 * t + i) * 4));
        if constexpr (kHasZeroPoint<K>) sum[c][i] = __shfl_sync(0xffffffffu, own_sum, (2 * t + i) * 4);
      }
    }
  }

 private:
  // Loads a row of column tile c and multiplies it by a power of two. Sets `inverse` to 1 / that number and `own_sum` to the sum of the
  // elements.
  __device__ __forceinline__ static void load_scaled(const PagedAttentionParams& p, bool exists, int64_t row,
                                                     uint32_t (&elements)[KeysOf::kSteps][kColumns][2], int c, float& inverse,
                                                     float& own_sum) {
    const int t = threadIdx.x % 4;
    using Vector = std::conditional_t<KeysOf::kRun % 8 == 0, uint4, uint2>;
    constexpr int kOfVector = sizeof(Vector) / 2;  // channels
    Vector words[KeysOf::kLoads][KeysOf::kRun / kOfVector];
#pragma unroll
    for (int load = 0; load < KeysOf::kLoads; ++load) {
      const int channel = (load * 4 + t) * KeysOf::kRun;
      const bool there = exists && channel < p.head_dim;
#pragma unroll
      for (int n = 0; n < KeysOf::kRun / kOfVector; ++n) {
        words[load][n] =
            there ? reinterpret_cast<const Vector*>(static_cast<const uint16_t*>(p.q.data) + row + channel)[n] : Vector{};
      }
    }
    const auto q_at = [&](int step, int i) {
      const int channel = KeysOf::in_run(step, i);
      const Vector& some = words[step / KeysOf::kStepsOfLoad][channel / kOfVector];
      uint32_t pair = channel % kOfVector / 2 == 0 ? some.x : some.y;
      if constexpr (kOfVector == 8) {
        if (channel % 8 / 2 == 2) pair = some.z;
        if (channel % 8 / 2 == 3) pair = some.w;
      }
      if (p.dtype == DType::bf16) return __uint_as_float(channel % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      return channel % 2 == 0 ? both.x : both.y;
    };
    float largest = 0.0f;
#pragma unroll
    for (int step = 0; step < KeysOf::kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float element = q_at(step, i);
        largest = fmaxf(largest, fabsf(element));
        if constexpr (kHasZeroPoint<K>) own_sum += element;
      }
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
      if constexpr (kHasZeroPoint<K>) own_sum += __shfl_xor_sync(0xffffffffu, own_sum, offset);
    }
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23);  // plus 127
    const float factor = exponent == 0 || exponent == 255
                             ? 1.0f
                             : __uint_as_float(static_cast<uint32_t>(min(254, 127 + 14 + 127 - exponent)) << 23);
    inverse = 1.0f / factor;
    own_sum *= factor;
#pragma unroll
    for (int step = 0; step < KeysOf::kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        elements[step][c][half] = pack<__half>(q_at(step, 2 * half) * factor, q_at(step, 2 * half + 1) * factor);
      }
    }
  }
};

}  // namespace prologue::cuda
