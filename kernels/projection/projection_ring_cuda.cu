#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/projection/projection_output.h>
#include <prologue/kernels/projection/projection_ring.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/hopper_code.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>

namespace prologue::cuda {

namespace {

// Multiprocessors of the current device if has_ring(), else 0.
int64_t ring_multiprocessors() {
  return hopper_multiprocessors([] { return bfloat16_ring_instances().front().kernel; }, kRingThreads, 0);
}

int64_t halves_of(const ProjectionParams& p) { return is_gated(p) ? 2 : 1; }

// Of weights the L2 fetches no more than is asked for: 128 bytes of a row at a time.
bool encode_maps(RingArgs& a, const ProjectionParams& p, int64_t boxes) {
  const int64_t halves = halves_of(p), blocks_of_k = p.k / kBoxChannels;
  return encode_map(a.weight, p.weight, kBoxChannels,
                    {{p.n, p.k, a.box_rows}, {halves, p.n * p.k, halves}, {blocks_of_k, kBoxChannels, boxes}},
                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B) &&
         encode_map(a.x, p.x, kBoxChannels, {{p.num_tokens, p.x_stride, a.x_rows}, {blocks_of_k, kBoxChannels, boxes}});
}

}  // namespace

std::span<const RingInstance> ring_instances_of(DType type) {
  if (type == DType::f16) return float16_ring_instances();
  if (type == DType::bf16) return bfloat16_ring_instances();
  return {};
}

std::string ring_instance_name(DType dtype, const RingInstance& instance) {
  return str_cat(dtype_name(dtype), ", ring of ", instance.rows, " rows");
}

bool has_ring() { return ring_multiprocessors() > 0; }

bool can_ring(const ProjectionParams& p) {
  if (!can_store(p) || p.num_tokens > kMostRingTokens || ring_instances_of(p.dtype).empty() || !has_ring()) return false;
  if (p.k % kBoxChannels != 0 || p.k > INT32_MAX / 4 || p.x_stride % 8 != 0 || !is_aligned(p.x, 16) ||
      !is_aligned(p.weight, 16)) {
    return false;
  }
  return p.norm.given == 0 || (p.norm.kind == NormKind::rms && p.norm.bias == nullptr && is_aligned(p.norm.weight, 16));
}

int64_t rows_of_block(const ProjectionParams& p) {
  constexpr int64_t kMostRows = 256;  // of a box, and of the largest instance
  for (int64_t rounds = 1;; ++rounds) {
    const int64_t blocks = ring_multiprocessors() * rounds, rows = ((p.n + blocks - 1) / blocks + 7) / 8 * 8;
    if (halves_of(p) * rows <= kMostRows) return rows;
  }
}

RingLaunch ring_launch_of(const ProjectionParams& p, const RingInstance& instance, int64_t rows) {
  RingLaunch launch;
  RingArgs& a = launch.args;
  if (halves_of(p) * rows > instance.rows) return launch;
  a.norm_weight = static_cast<const char*>(p.norm.given != 0 ? p.norm.weight : nullptr);
  a.num_tokens = static_cast<int32_t>(p.num_tokens);
  a.x_rows = static_cast<int32_t>((p.num_tokens + 7) / 8 * 8);
  a.k = static_cast<int32_t>(p.k);
  a.rows = static_cast<int32_t>(halves_of(p) * rows);
  a.box_rows = static_cast<int32_t>(rows);
  a.normed = p.norm.given != 0 ? 1 : 0;
  a.float_weights = resolve_dtype(p.norm.weight_type, p.dtype) == DType::f32 ? 1 : 0;
  a.eps = p.norm.eps;
  a.inverse_width = 1.0f / static_cast<float>(p.k);
  launch.blocks = (p.n + rows - 1) / rows;
  launch.shared_bytes = instance.place(a, kMaxSharedBytes);
  if (a.stages >= 1 && launch.shared_bytes <= kMaxSharedBytes && encode_maps(a, p, instance.boxes)) launch.instance = &instance;
  return launch;
}

// Up to 8 tokens the other kernel is faster for one or two of them, where a block would have few rows (a stage of 16 takes as long as one
// of 32), and for models of short rows. Measured in whole layers (bench_projection).
constexpr int64_t kFewTokens = 8, kFewestTokens = 3, kFewestRows = 32, kShortestRows = 4096;

RingLaunch choose_ring(const ProjectionParams& p) {
  if (!can_ring(p)) return {};
  const int64_t rows = rows_of_block(p);
  const bool is_large = halves_of(p) * rows >= kFewestRows && p.k >= kShortestRows;
  if (p.num_tokens <= kFewTokens && (p.num_tokens < kFewestTokens || !is_large)) return {};
  for (const RingInstance& instance : ring_instances_of(p.dtype)) {
    const RingLaunch launch = ring_launch_of(p, instance, rows);
    if (launch.instance != nullptr) return launch;
  }
  return {};
}

Status run(const RingLaunch& chosen, const ProjectionParams& p, cudaStream_t stream) {
  LaunchAttributes attributes(1, p.overlaps);
  const LaunchShape shape = {grid_extent(chosen.blocks), kRingThreads, static_cast<size_t>(chosen.shared_bytes),
                             attributes.span()};
  return launch("projection", chosen.instance->kernel, shape, stream, chosen.args, output_of(p));
}

}  // namespace prologue::cuda
