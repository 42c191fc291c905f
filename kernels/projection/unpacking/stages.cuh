// In this way, which is for 3 to 64 tokens and packed weights, a block for each SM has 1 to 16 groups of 16 rows, and a warp has one of them, or
// warps that have the same group divide the channels of a stage. One more warp copies the weights' blocks and boxes of x into the stages of a
// ring in shared memory. The blocks of a cluster have the same rows, and divide k.
//
// There are two products: up to 16 tokens are multiplied by codes as they are (codes_product.cuh), more by weights that are rounded to 16 bits
// (rounded_product.cuh). Where the call has a norm, three warps more sum the squares of x (norm_warps.cuh), and multiply x by the norm's weight
// before the first product; the second one multiplies its weights by it.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>
#include <prologue/kernels/projection/weights/packed.cuh>

namespace prologue::cuda {

inline constexpr int kMostUnpackingTokens = 64;
inline constexpr int kUnpackingWarps = 16;  // that may multiply, and that finish
inline constexpr int kUnpackingConsumers = kUnpackingWarps * 32;
inline constexpr int kUnpackingThreads = kUnpackingConsumers + 32;  // of which the last warp copies
inline constexpr int kNormWarps = 3;                                // that a block has more with a norm
inline constexpr int kUnpackingThreadsWithNorm = kUnpackingThreads + kNormWarps * 32;
inline constexpr int kMostUnpackingStages = 8;
inline constexpr int kUnpackingBoxChannels = 64;  // of k: a row of the swizzle
inline constexpr int kUnpackingBoxRowBytes = 128;
inline constexpr int kSlicesOfUnpackingBox = kUnpackingBoxChannels / kPackedSliceChannels;

struct UnpackingArgs {
  CUtensorMap x;                      // [channel of 64, token, k / 64], of which a stage has one box
  const char* norm_weight = nullptr;  // null = 1
  int32_t num_tokens = 0;
  int32_t x_rows = 0;        // of a box of x: num_tokens, up to a multiple of 8
  int32_t slices = 0;        // of k, of 32 channels: an even number
  int32_t stage_slices = 0;  // of a stage
  int32_t groups = 0;        // of 16 rows of weights, of a block
  int32_t log_splits = 0;    // 2^log_splits warps have the same group, and divide a stage
  int32_t log_k_blocks = 0;  // 2^log_k_blocks blocks, a cluster, have the same rows and divide k
  int32_t stages = 0;        // of the ring
  int32_t group_bytes = 0;   // from one 16 rows of a stage's weights to the next
  int32_t x_at = 0;          // in a stage
  int32_t norm_weight_at = 0;
  int32_t stage_bytes = 0;
  int32_t sums_stride = 0;  // floats from one token's sums to the next
  int32_t tail_at = 0;      // in shared memory
  int32_t normed = 0;
  int32_t float_norm_weight = 0;  // norm_weight is float32
  float eps = 0.0f;
  float inverse_k = 0.0f;  // 1 / k
};

struct UnpackingTail {
  Barrier loaded[kMostUnpackingStages];
  Barrier weighed[kMostUnpackingStages];  // x, by the norm's warps
  Barrier emptied[kMostUnpackingStages];
  float squares[kNormWarps * kMostUnpackingTokens];  // of x, [warp][token]
  float factors[kMostUnpackingTokens];               // of the norm
};

__host__ __device__ inline int boxes_of_stage(const UnpackingArgs& a) { return a.stage_slices / kSlicesOfUnpackingBox; }
__host__ __device__ inline int x_box_bytes(const UnpackingArgs& a) { return a.x_rows * kUnpackingBoxRowBytes; }
__host__ __device__ inline int unpacking_warps(const UnpackingArgs& a) { return a.groups << a.log_splits; }  // that do multiply
__host__ __device__ inline int norm_weight_bytes(const UnpackingArgs& a) {
  return a.norm_weight == nullptr ? 0 : kPackedSliceChannels * (a.float_norm_weight != 0 ? 4 : 2);  // of a slice
}

// Lays out shared memory of `room` bytes, for num_tokens, slices, the norm, stage_slices, groups and group_bytes; most_tokens are
// those of the kernel. Returns how many bytes are used; with no stages there is no room. `bytes_in_flight` counts bytes of weights; the ring has no
// more stages than that takes.
inline int64_t lay_out_unpacking(UnpackingArgs& a, int most_tokens, int64_t room, int64_t bytes_in_flight) {
  constexpr int64_t kAligned = 1024;  // of a swizzle
  const int64_t groups = a.groups;
  const int64_t x_at = round_up(groups * a.group_bytes, kAligned), x_bytes = int64_t{boxes_of_stage(a)} * x_box_bytes(a);
  a.x_at = static_cast<int32_t>(x_at);
  a.norm_weight_at = static_cast<int32_t>(x_at + x_bytes);
  a.stage_bytes = static_cast<int32_t>(round_up(a.norm_weight_at + int64_t{a.stage_slices} * norm_weight_bytes(a), kAligned));
  a.sums_stride = static_cast<int32_t>(groups * kPackedGroupRows + 4);
  const int64_t beyond = int64_t{most_tokens - a.x_rows} * kUnpackingBoxRowBytes;  // read after the last box, and not used
  const int64_t count = divide_up(divide_up(a.slices, a.stage_slices), 1 << a.log_k_blocks);
  int64_t stages = (room - static_cast<int64_t>(sizeof(UnpackingTail)) - beyond) / a.stage_bytes;
  const int64_t in_flight = divide_up(bytes_in_flight, groups * a.group_bytes), most = in_flight < count ? in_flight : count;
  if (stages > most) stages = most;
  if (stages > kMostUnpackingStages) stages = kMostUnpackingStages;
  a.stages = static_cast<int32_t>(stages < 0 ? 0 : stages);
  const int64_t sums = int64_t{a.num_tokens} * a.sums_stride * 4 << a.log_splits, ring = stages * a.stage_bytes + beyond;
  a.tail_at = static_cast<int32_t>(round_up(ring > sums ? ring : sums, int64_t{16}));
  return a.tail_at + static_cast<int64_t>(sizeof(UnpackingTail));
}

// A stage of the ring: its barriers, where it is, and the parity of the barriers' phase.
struct UnpackingStage {
  const UnpackingArgs& a;
  UnpackingTail& tail;
  int number = 0;
  int at = 0;
  unsigned parity = 0;

  __device__ Barrier& loaded() const { return tail.loaded[number]; }
  __device__ Barrier& weighed() const { return tail.weighed[number]; }
  __device__ Barrier& emptied() const { return tail.emptied[number]; }
  __device__ void advance() {
    at += a.stage_bytes;
    if (++number == a.stages) number = 0, at = 0, parity ^= 1;
  }
};

// A block's K extent, in stages.
struct UnpackingExtent {
  int first;
  int count;

  __device__ explicit UnpackingExtent(const UnpackingArgs& a) {
    const int all = (a.slices + a.stage_slices - 1) / a.stage_slices;
    const int of_block = (all + (1 << a.log_k_blocks) - 1) >> a.log_k_blocks;
    first = a.log_k_blocks == 0 ? 0 : static_cast<int>(cluster_rank()) * of_block;
    count = min(of_block, all - first);
  }
  __device__ int slices_of(const UnpackingArgs& a, int stage) const {
    return min(a.stage_slices, a.slices - (first + stage) * a.stage_slices);
  }
};

// All threads call it; then a __syncthreads() must follow. `weighs`: the norm's warps multiply x by its weight; otherwise they only read x.
__device__ inline void open_stages(const UnpackingArgs& a, UnpackingTail& tail, bool weighs) {
  if (threadIdx.x != 0) return;
  for (int s = 0; s < a.stages; ++s) {
    tail.loaded[s].init(1);
    tail.weighed[s].init(kNormWarps);
    tail.emptied[s].init(unpacking_warps(a) + (a.normed != 0 && !weighs ? kNormWarps : 0));
  }
  fence_barrier_init();
}

// A warp calls it. `group` is the lane's 16 rows; a lane without any has no data.
__device__ inline void fill_stages(const UnpackingArgs& a, unsigned char* memory, UnpackingTail& tail, const PackedGroup& group) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const UnpackingExtent extent(a);
  const int slice_bytes = group.data == nullptr ? 0 : group.slice_bytes;
  int bytes_of_slice = slice_bytes;  // of all lanes
#pragma unroll
  for (int step = 1; step < 32; step *= 2) bytes_of_slice += __shfl_xor_sync(0xffffffffu, bytes_of_slice, step);
  bytes_of_slice += norm_weight_bytes(a);
  const auto load_weights = [&](const UnpackingStage& stage, int i) {
    const int begin = (extent.first + i) * a.stage_slices, count = extent.slices_of(a, i);
    if (lane == 0) {
      stage.loaded().arrive_and_expect(count * bytes_of_slice + boxes_of_stage(a) * x_box_bytes(a));
      if (a.norm_weight != nullptr) {
        copy_bytes(memory + stage.at + a.norm_weight_at, a.norm_weight + int64_t{begin} * norm_weight_bytes(a),
                   count * norm_weight_bytes(a), stage.loaded());
      }
    }
    __syncwarp();
    if (slice_bytes == 0) return;
    copy_bytes(memory + stage.at + lane * a.group_bytes, group.data + int64_t{begin} * slice_bytes, count * slice_bytes,
               stage.loaded());
  };
  const auto load_x = [&](const UnpackingStage& stage, int i) {
    if (lane == 0) load_box(memory + stage.at + a.x_at, a.x, stage.loaded(), 0, 0, (extent.first + i) * boxes_of_stage(a));
  };
  const int first_fill = min(extent.count, a.stages);
  UnpackingStage stage{a, tail};
  for (int i = 0; i < first_fill; ++i, stage.advance()) load_weights(stage, i);
  wait_for_previous_kernels();
  stage.number = 0, stage.at = 0;
  for (int i = 0; i < first_fill; ++i, stage.advance()) load_x(stage, i);
  stage.number = 0, stage.at = 0, stage.parity = 0;
  for (int i = first_fill; i < extent.count; ++i, stage.advance()) {
    stage.emptied().wait(stage.parity);
    load_weights(stage, i);
    load_x(stage, i);
  }
}

// A warp that multiplies: its group of 16 rows, and its part of a stage.
class UnpackingWarp {
 public:
  __device__ explicit UnpackingWarp(const UnpackingArgs& a)
      : warp_(static_cast<int>(threadIdx.x) / 32), group_(warp_ % a.groups), split_(warp_ / a.groups) {}
  __device__ int group() const { return group_; }
  __device__ int split() const { return split_; }
  __device__ bool multiplies(const UnpackingArgs& a) const { return warp_ < unpacking_warps(a); }

  // Stores a lane's sums, of rows 2 (lane / 4) and 2 (lane / 4) + 1 of its group, as [split][token][sums_stride].
  template <int kCount>
  __device__ void store(const UnpackingArgs& a, float* all, const float (&sums)[kCount]) const {
    float* const of_split = all + split_ * a.num_tokens * a.sums_stride;
    const int lane = static_cast<int>(threadIdx.x) % 32, row = group_ * kPackedGroupRows + lane / 4 * 2;
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = n * 8 + lane % 4 * 2 + i;
        if (t >= a.num_tokens) continue;
        *reinterpret_cast<float2*>(of_split + t * a.sums_stride + row) = make_float2(sums[4 * n + i], sums[4 * n + 2 + i]);
      }
    }
  }

 private:
  int warp_, group_, split_;
};

// Calls multiply(first slice of the warp's part, its end, where the stage is) for each stage, in a warp that multiplies. If waits_for_norm, the
// norm's warps multiply x first.
template <class Multiply>
__device__ __forceinline__ void for_each_stage(const UnpackingArgs& a, UnpackingTail& tail, int split, bool waits_for_norm,
                                               const Multiply& multiply) {
  const UnpackingExtent extent(a);
  const int of_split = a.stage_slices >> a.log_splits, begin = split * of_split;
  UnpackingStage stage{a, tail};
#pragma unroll 1
  for (int i = 0; i < extent.count; ++i, stage.advance()) {
    stage.loaded().wait(stage.parity);
    if (waits_for_norm) stage.weighed().wait(stage.parity);
    multiply(begin, min(begin + of_split, extent.slices_of(a, i)), stage.at);
    __syncwarp();
    if (threadIdx.x % 32 == 0) stage.emptied().arrive();
  }
}

// Returns the sums [split][token][sums_stride] of the block's rows, where the ring was.
__device__ inline float* unpacking_sums(unsigned char* memory) { return reinterpret_cast<float*>(memory); }

// Gathers the products of kCount neighbouring rows and a token, from all blocks of the cluster, when all have stored their sums.
template <int kCount>
__device__ inline void gather_rows(const UnpackingArgs& a, UnpackingTail& tail, float* sums, int t, int row,
                                   float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) value = 0.0f;
#pragma unroll 1
  for (int k_block = 0; k_block < 1 << a.log_k_blocks; ++k_block) {
    const float* const from = a.log_k_blocks == 0 ? sums : in_block_of_cluster(sums, static_cast<uint32_t>(k_block));
    add_up<1>(from + t * a.sums_stride + row, a.num_tokens * a.sums_stride, 1 << a.log_splits, values);
  }
  if (a.normed == 0) return;
  const float factor = tail.factors[t];
#pragma unroll
  for (float& value : values) value *= factor;
}

// Finds the norm's factor of token t, when all blocks of the cluster have stored their squares.
__device__ inline void find_factor(const UnpackingArgs& a, UnpackingTail& tail, int t) {
  float squares = 0.0f;
  for (int k_block = 0; k_block < 1 << a.log_k_blocks; ++k_block) {
    const float* from = a.log_k_blocks == 0 ? tail.squares : in_block_of_cluster(tail.squares, static_cast<uint32_t>(k_block));
#pragma unroll
    for (int warp = 0; warp < kNormWarps; ++warp) squares += from[warp * kMostUnpackingTokens + t];
  }
  tail.factors[t] = reciprocal_root(fmaf(squares, a.inverse_k, a.eps));
}

}  // namespace prologue::cuda
