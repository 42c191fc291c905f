// In this way, which is for 2 to 64 tokens and packed weights, warpgroups make the weights 16 bits in registers (weights/unpacked.cuh), where
// wgmma reads them: 64 rows of weights times tokens. Up to 16 tokens take the same time, 64 half as long again.
//
// A block for each SM has one, two or four tiles of 64 rows; four warpgroups have one each, or two or four have a tile together and divide the
// channels of a stage. A seventeenth warp copies the weights' blocks and boxes of x into the stages of a ring in shared memory. Where the call
// has a norm, all warps together multiply a stage's x by the norm's weight in place, and sum its squares. The blocks of a cluster have the
// same rows, and divide k.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>
#include <prologue/kernels/projection/weights/packed.cuh>
#include <prologue/kernels/projection/weights/unpacked.cuh>

namespace prologue::cuda {

inline constexpr int kMostUnpackingTokens = 64;
inline constexpr int kUnpackingGroups = 4;  // warpgroups that multiply
inline constexpr int kUnpackingConsumers = kUnpackingGroups * kWarpgroup;
inline constexpr int kUnpackingThreads = kUnpackingConsumers + 32;
inline constexpr int kUnpackingLaunchBound = PROLOGUE_HOPPER ? kUnpackingThreads : 32;
inline constexpr int kMostUnpackingStages = 8;
inline constexpr int kUnpackingTileRows = 64;
inline constexpr int kUnpackingBoxChannels = 64;  // of k: a row of the swizzle
inline constexpr int kUnpackingBoxRowBytes = 128;
inline constexpr int kSlicesOfUnpackingBox = kUnpackingBoxChannels / kPackedSliceChannels;
inline constexpr int kMostUnpackingParts = 4;  // of a stage's boxes, that different threads weigh

struct UnpackingArgs {
  CUtensorMap x;                      // [channel of 64, token, k / 64], of which a stage has one box
  const char* norm_weight = nullptr;  // null = 1
  int32_t num_tokens = 0;
  int32_t x_rows = 0;        // of a box of x: num_tokens, up to a multiple of 8
  int32_t slices = 0;        // of k, of 32 channels: an even number
  int32_t stage_slices = 0;  // of a stage
  int32_t log_tiles = 0;     // 2^log_tiles tiles of 64 rows of weights, of a block
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
  Barrier emptied[kMostUnpackingStages];
  float squares[kMostUnpackingParts * kMostUnpackingTokens];  // of x, [part][token]
};

__host__ __device__ inline int boxes_of_stage(const UnpackingArgs& a) { return a.stage_slices / kSlicesOfUnpackingBox; }
__host__ __device__ inline int x_box_bytes(const UnpackingArgs& a) { return a.x_rows * kUnpackingBoxRowBytes; }
__host__ __device__ inline int norm_weight_bytes(const UnpackingArgs& a) {
  return a.norm_weight == nullptr ? 0 : kPackedSliceChannels * (a.float_norm_weight != 0 ? 4 : 2);  // of a slice
}
__host__ __device__ inline int log_splits_of(const UnpackingArgs& a) { return 2 - a.log_tiles; }
static_assert(kUnpackingGroups == 1 << 2);

// Lays out shared memory of `room` bytes, for num_tokens, slices, the norm, stage_slices, log_tiles and group_bytes; kTokens is the most tokens
// of the kernel. Returns how many bytes are used; with no stages there is no room. `bytes_in_flight` counts bytes of weights; the ring has no
// more stages than that takes.
inline int64_t lay_out_unpacking(UnpackingArgs& a, int most_tokens, int64_t room, int64_t bytes_in_flight) {
  constexpr int64_t kAligned = 1024;  // of a swizzle
  const int64_t groups = int64_t{kUnpackingTileRows / kPackedGroupRows} << a.log_tiles;
  const int64_t x_at = round_up(groups * a.group_bytes, kAligned), x_bytes = int64_t{boxes_of_stage(a)} * x_box_bytes(a);
  a.x_at = static_cast<int32_t>(x_at);
  a.norm_weight_at = static_cast<int32_t>(x_at + x_bytes);
  a.stage_bytes = static_cast<int32_t>(round_up(a.norm_weight_at + int64_t{a.stage_slices} * norm_weight_bytes(a), kAligned));
  a.sums_stride = (kUnpackingTileRows << a.log_tiles) + 4;
  const int64_t beyond = int64_t{most_tokens - a.x_rows} * kUnpackingBoxRowBytes;  // read after the last box, and not used
  const int64_t count = divide_up(divide_up(a.slices, a.stage_slices), 1 << a.log_k_blocks);
  int64_t stages = (room - static_cast<int64_t>(sizeof(UnpackingTail)) - beyond) / a.stage_bytes;
  const int64_t in_flight = divide_up(bytes_in_flight, groups * a.group_bytes), most = in_flight < count ? in_flight : count;
  if (stages > most) stages = most;
  if (stages > kMostUnpackingStages) stages = kMostUnpackingStages;
  a.stages = static_cast<int32_t>(stages < 0 ? 0 : stages);
  const int64_t sums = int64_t{a.num_tokens} * a.sums_stride * 4 << log_splits_of(a), ring = stages * a.stage_bytes + beyond;
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

// All threads call it; then a __syncthreads() must follow.
__device__ inline void open_stages(const UnpackingArgs& a, UnpackingTail& tail) {
  if (threadIdx.x != 0) return;
  for (int s = 0; s < a.stages; ++s) {
    tail.loaded[s].init(1);
    tail.emptied[s].init(kUnpackingConsumers / 32);
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

// Multiplies a stage's x by the norm's weight, in place, and sums its squares. A thread has chunk threadIdx.x % 8, 8 channels, of a token's
// row in some of the boxes.
template <class T>
class StageNorm {
 public:
  __device__ explicit StageNorm(const UnpackingArgs& a) {
    const int row_of_all = static_cast<int>(threadIdx.x) / 8;
    parts_ = parts_of(a);
    part_ = row_of_all / a.x_rows;
    row_ = row_of_all - part_ * a.x_rows;
    chunk_ = static_cast<int>(threadIdx.x % 8);
  }
  __device__ static int parts_of(const UnpackingArgs& a) {
    return min(min(boxes_of_stage(a), kMostUnpackingParts), kUnpackingConsumers / 8 / a.x_rows);
  }

  // All threads that multiply call it; what they have stored is visible to all of them.
  __device__ void run(const UnpackingArgs& a, unsigned char* stage) {
    unsigned char* const x = stage + a.x_at + row_ * kUnpackingBoxRowBytes + ((chunk_ ^ row_ % 8) << 4);
    if (part_ < parts_) {
#pragma unroll 1
      for (int box = part_; box < boxes_of_stage(a); box += parts_) {
        unsigned char* const at = x + box * x_box_bytes(a);
        const Bytes<16> loaded = load_bytes<16, false>(at);
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = element<T, 8>(loaded, i), squares_ = fmaf(values[i], values[i], squares_);
        if (a.norm_weight == nullptr) continue;
        const unsigned char* const weights = stage + a.norm_weight_at;
        const int channel = box * kUnpackingBoxChannels + chunk_ * 8;
        if (a.float_norm_weight != 0) {
          const Bytes<32> weight = load_bytes<32, false>(weights + channel * 4);
#pragma unroll
          for (int i = 0; i < 8; ++i) values[i] *= element<float, 8>(weight, i);
        } else {
          const Bytes<16> weight = load_bytes<16, false>(weights + channel * 2);
#pragma unroll
          for (int i = 0; i < 8; ++i) values[i] *= element<T, 8>(weight, i);
        }
        store_bytes<16, false>(at, pack<T, 8>(values));
      }
      fence_shared_for_async();
    }
    sync_barrier(1, kUnpackingConsumers);
  }

  // They are visible after a barrier.
  __device__ void store_squares(UnpackingTail& tail) {
#pragma unroll
    for (int step = 1; step < 8; step *= 2) squares_ += __shfl_xor_sync(0xffffffffu, squares_, step);
    if (part_ < parts_ && chunk_ == 0) tail.squares[part_ * kMostUnpackingTokens + row_] = squares_;
  }

 private:
  int parts_, part_, row_, chunk_;
  float squares_ = 0.0f;
};

// Returns a value that is the same in the whole warp in a way that the compiler sees: it keeps wgmma in flight only on paths that do not
// diverge.
template <class Value>
__device__ inline Value uniform(Value value) {
  return static_cast<Value>(__shfl_sync(0xffffffffu, static_cast<int>(value), 0));
}

// Multiplies the stages. A warp has 16 rows of its warpgroup's tile, whose rows have one format. Rows that the weights do not have are
// multiplied as well, whatever is in the stage there: no other row's sums depend on them. Afterwards sums() are there.
template <class T, int kTokens>
class UnpackingProduct {
 public:
  static_assert(kTokens % 16 == 0 && kTokens <= kMostUnpackingTokens);

  __device__ UnpackingProduct(const UnpackingArgs& a, unsigned char* memory, UnpackingTail& tail)
      : a_(a),
        memory_(memory),
        tail_(tail),
        warp_(uniform(static_cast<int>(threadIdx.x) / 32)),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // The warpgroup's tile, and its part of a stage.
  __device__ int tile() const { return warp_ / 4 & ((1 << a_.log_tiles) - 1); }
  __device__ int split() const { return warp_ / 4 >> a_.log_tiles; }

  // Not inlined it would have the sums in memory.
  __device__ __forceinline__ void multiply(WeightFormat format) {
#pragma unroll
    for (float& sum : sums_) sum = 0.0f;
    StageNorm<T> norm(a_);
    with_packed_format(uniform(format), [&]<class Format>(Format) { multiply_stages<Format>(norm); });
    if (a_.normed != 0) norm.store_squares(tail_);
    sync_barrier(1, kUnpackingConsumers);  // no warp reads the ring after this
    store_sums();
  }

  // Returns the sums [split][token][sums_stride] of the block's rows, where the ring was.
  __device__ static float* sums(unsigned char* memory) { return reinterpret_cast<float*>(memory); }

 private:
  template <class Format>
  __device__ __forceinline__ void multiply_stages(StageNorm<T>& norm) {
    constexpr int kAtOnce = Format::kSlices < 2 ? 2 : Format::kSlices;
    using Operands = UnpackedSlice<T, Format>;
    const UnpackingExtent extent(a_);
    const int of_split = a_.stage_slices >> log_splits_of(a_), begin = split() * of_split;
    const int group_at = (tile() * 4 + warp_ % 4) * a_.group_bytes;
    const uint64_t x = matrix_descriptor(memory_ + a_.x_at, 0, 8 * kUnpackingBoxRowBytes);
    Operands operands[2];
    UnpackingStage stage{a_, tail_};
#pragma unroll 1
    for (int i = 0; i < extent.count; ++i, stage.advance()) {
      stage.loaded().wait(stage.parity);
      if (a_.normed != 0) norm.run(a_, memory_ + stage.at);
      const int end = min(of_split, extent.slices_of(a_, i) - begin);
      const char* const blocks = reinterpret_cast<const char*>(memory_) + stage.at + group_at;
#pragma unroll 1
      for (int done = 0; done < end; done += kAtOnce) {
        const int first = begin + done;
        uint64_t of_slices = advance(x, stage.at + first / kSlicesOfUnpackingBox * x_box_bytes(a_));
        uint32_t words[Format::kWords];
        PackedScales own;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          Operands& slice = operands[j % 2];
          multiply_wait<1>();  // what this slice's registers were is multiplied
          keep_in_order(slice.first), keep_in_order(slice.second);
          const int unit = (first + j) / Format::kSlices;
          if (j % Format::kSlices == 0) {
            Format::template load<ChannelOrder::natural>(words, blocks, unit, lane_);
            own = Operands::own_scales(words, unit % 2);
          }
          slice.unpack(words, j % Format::kSlices, lane_, unit % 2, own);
          multiply_fence();
          const int at = j % kSlicesOfUnpackingBox * kPackedSliceChannels * 2;
          multiply_registers_async<T, false>(sums_, slice.first, advance(of_slices, at));
          multiply_registers_async<T, false>(sums_, slice.second, advance(of_slices, at + kPackedSliceChannels));
          multiply_commit();
          if (j % kSlicesOfUnpackingBox == kSlicesOfUnpackingBox - 1) of_slices = advance(of_slices, x_box_bytes(a_));
        }
      }
      multiply_wait<0>();
      keep_in_order(sums_);
#pragma unroll
      for (Operands& slice : operands) keep_in_order(slice.first), keep_in_order(slice.second);
      __syncwarp();
      if (lane_ == 0) stage.emptied().arrive();
    }
  }

  // A lane's registers are rows lane / 4 and lane / 4 + 8 of wgmma: rows 2 (lane / 4) and 2 (lane / 4) + 1 of the weights.
  __device__ void store_sums() const {
    float* const of_split = sums(memory_) + split() * a_.num_tokens * a_.sums_stride;
    const int row = tile() * kUnpackingTileRows + warp_ % 4 * 16 + lane_ / 4 * 2;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = n * 8 + lane_ % 4 * 2 + i;
        if (t >= a_.num_tokens) continue;
        *reinterpret_cast<float2*>(of_split + t * a_.sums_stride + row) = make_float2(sums_[4 * n + i], sums_[4 * n + 2 + i]);
      }
    }
  }

  const UnpackingArgs& a_;
  unsigned char* memory_;
  UnpackingTail& tail_;
  int warp_, lane_;
  float sums_[kTokens / 2];
};

// Gathers the products of kCount neighbouring rows and a token, from all blocks of the cluster, when all have stored their sums. `factor` is
// the norm's.
template <int kCount>
__device__ inline void gather_rows(const UnpackingArgs& a, float* sums, int t, int row, float factor, float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) value = 0.0f;
#pragma unroll 1
  for (int k_block = 0; k_block < 1 << a.log_k_blocks; ++k_block) {
    const float* const from = a.log_k_blocks == 0 ? sums : in_block_of_cluster(sums, static_cast<uint32_t>(k_block));
    add_up<1>(from + t * a.sums_stride + row, a.num_tokens * a.sums_stride, 1 << log_splits_of(a), values);
  }
#pragma unroll
  for (float& value : values) value *= factor;
}

// The factor of the norm for a token.
template <class T>
__device__ inline float norm_of_token(const UnpackingArgs& a, UnpackingTail& tail, int t) {
  if (a.normed == 0) return 1.0f;
  float squares = 0.0f;
  for (int k_block = 0; k_block < 1 << a.log_k_blocks; ++k_block) {
    const float* from = a.log_k_blocks == 0 ? tail.squares : in_block_of_cluster(tail.squares, static_cast<uint32_t>(k_block));
    for (int part = 0; part < StageNorm<T>::parts_of(a); ++part) squares += from[part * kMostUnpackingTokens + t];
  }
  return reciprocal_root(fmaf(squares, a.inverse_k, a.eps));
}

}  // namespace prologue::cuda
