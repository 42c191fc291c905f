#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/projection/finish/output.h>
#include <prologue/kernels/projection/ring/output_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/hopper_code.cuh>

namespace prologue::cuda {

namespace {

int64_t halves_of(const ProjectionParams& p) { return is_gated(p) ? 2 : 1; }

}  // namespace

int64_t ring_multiprocessors() {
  return hopper_multiprocessors([] { return bfloat16_ring_instances().front().kernel; }, kRingThreads, 0);
}

std::span<const RingInstance> ring_instances_of(DType type) {
  if (type == DType::f16) return float16_ring_instances();
  if (type == DType::bf16) return bfloat16_ring_instances();
  return {};
}

std::string ring_instance_name(DType dtype, const RingInstance& instance) {
  return str_cat(dtype_name(dtype), ", ring of ", instance.most_tokens, " tokens and ", instance.most_rows, " rows");
}

bool has_ring() { return ring_multiprocessors() > 0; }

bool can_ring(DType dtype, int64_t num_tokens, int64_t k, const void* x, int64_t x_stride, const InputNorm& norm,
              const void* weight) {
  if (num_tokens > kMostRingTokens || ring_instances_of(dtype).empty() || !has_ring()) return false;
  if (k % kBoxChannels != 0 || k > INT32_MAX / 4 || x_stride % 8 != 0 || !is_aligned(x, 16) || !is_aligned(weight, 16))
    return false;
  return norm.given == 0 || (norm.kind == NormKind::rms && norm.bias == nullptr && is_aligned(norm.weight, 16));
}

void fill_ring_input(RingArgs& a, DType dtype, int64_t num_tokens, int64_t k, const InputNorm& norm) {
  a.norm_weight = static_cast<const char*>(norm.given != 0 ? norm.weight : nullptr);
  a.num_tokens = static_cast<int32_t>(num_tokens);
  a.x_rows = static_cast<int32_t>((num_tokens + 7) / 8 * 8);
  a.k = static_cast<int32_t>(k);
  a.normed = norm.given != 0 ? 1 : 0;
  a.float_weights = resolve_dtype(norm.weight_type, dtype) == DType::f32 ? 1 : 0;
  a.eps = norm.eps;
  a.inverse_width = 1.0f / static_cast<float>(k);
}

OuterDim boxes_of_k(const RingArgs& a) { return {a.k / kBoxChannels, kBoxChannels, a.boxes}; }

// Of weights the L2 fetches no more than is asked for: 128 bytes of a row at a time.
bool encode_ring_maps(RingArgs& a, const void* x, int64_t x_stride, const void* weight, std::initializer_list<OuterDim> dims) {
  return encode_map(a.weight, weight, kBoxChannels, dims, CU_TENSOR_MAP_L2_PROMOTION_L2_128B) &&
         encode_map(a.x, x, kBoxChannels, {{a.num_tokens, x_stride, a.x_rows}, boxes_of_k(a)});
}

bool can_ring(const ProjectionParams& p) {
  return can_store(p) && can_ring(p.dtype, p.num_tokens, p.k, p.x, p.x_stride, p.norm, p.weight);
}

// Two blocks on an SM, where one would have many rows: the end of one is behind what the other one reads. Measured for gate and up of 8B,
// 1.03 x. With more than few tokens one block needs the whole shared memory.
constexpr int64_t kMostRowsOfTwoBlocks = 128;

namespace {

int64_t blocks_for(int64_t n, int64_t rows) { return (n + rows - 1) / rows; }

// Of y, for so many places: the fewest, in as few rounds as can be.
int64_t rows_of_places(const ProjectionParams& p, int64_t places) {
  const int64_t most = p.num_tokens <= kMostFewTokens ? kMostRowsOfTwoBlocks : kMostRingRows;
  for (int64_t rounds = 1;; ++rounds) {
    const int64_t rows = (blocks_for(p.n, places * rounds) + 7) / 8 * 8;
    if (halves_of(p) * rows <= most) return rows;
  }
}

// Blocks of few rows copy more of x than of the weights. In pairs that have half of k each, they copy half of x; then they add up each other's
// sums. Measured for down of 1B with 32 and 64 tokens, 1.25 to 1.33 x. In fours they are slow: the clusters do not all find a place at once.
constexpr int64_t kMostRowsOfLone = 16, kLeastSharedK = 4096;

bool shares_k(const ProjectionParams& p) {
  return p.norm.given == 0 && p.num_tokens > kMostFewTokens && p.k >= kLeastSharedK &&
         rows_of_places(p, ring_multiprocessors()) <= kMostRowsOfLone;
}

// Each of the blocks that share k has a stage at least.
bool can_share(const RingArgs& a, const RingInstance& instance) {
  const int stages = (a.k + a.boxes * kBoxChannels - 1) / (a.boxes * kBoxChannels), sharers = 1 << a.log_sharers;
  const int of_sharer = (stages + sharers - 1) / sharers;
  return sharers == 1 || (a.normed == 0 && instance.most_tokens > kMostFewTokens && (sharers - 1) * of_sharer < stages);
}

}  // namespace

RingLaunch ring_launch_of(const ProjectionParams& p, const RingInstance& instance, int64_t rows, int log_sharers) {
  RingLaunch launch;
  RingArgs& a = launch.args;
  if (halves_of(p) * rows > instance.most_rows || p.num_tokens > instance.most_tokens) return launch;
  fill_ring_input(a, p.dtype, p.num_tokens, p.k, p.norm);
  a.rows = static_cast<int32_t>(halves_of(p) * rows);
  a.box_rows = static_cast<int32_t>(rows);
  a.log_sharers = log_sharers;
  launch.blocks = blocks_for(p.n, rows) << log_sharers;
  const bool several = instance.blocks_of_sm > 1 && launch.blocks > ring_multiprocessors();
  const int64_t room = several ? kSharedBytesOfSm / instance.blocks_of_sm - kSharedBytesOfSystem : kMaxSharedBytes;
  launch.shared_bytes = instance.place(a, room);
  const bool fits = can_share(a, instance) && a.stages >= 1 && launch.shared_bytes <= room;
  const OuterDim neighbours = {p.n, p.k, rows}, halves = {halves_of(p), p.n * p.k, halves_of(p)};
  if (fits && encode_ring_maps(a, p.x, p.x_stride, p.weight, {neighbours, halves, boxes_of_k(a)})) launch.instance = &instance;
  return launch;
}

RingLaunch choose_ring(const ProjectionParams& p) {
  if (!can_ring(p) || p.num_tokens < tokens_of_rings(halves_of(p) * p.n, p.k)) return {};
  const int log_sharers = shares_k(p) ? 1 : 0;
  const int64_t rows = rows_of_places(p, ring_multiprocessors() >> log_sharers);
  for (const RingInstance& instance : ring_instances_of(p.dtype)) {
    const RingLaunch launch = ring_launch_of(p, instance, rows, log_sharers);
    if (launch.instance != nullptr) return launch;
  }
  return {};
}

Status run(const RingLaunch& chosen, const ProjectionParams& p, cudaStream_t stream) {
  LaunchAttributes attributes(1 << chosen.args.log_sharers, p.overlaps);
  const LaunchShape shape = {grid_extent(chosen.blocks), kRingThreads, static_cast<size_t>(chosen.shared_bytes),
                             attributes.span()};
  return launch("projection", chosen.instance->kernel, shape, stream, chosen.args, output_of(p));
}

}  // namespace prologue::cuda
