#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/projection/projection_output.h>
#include <prologue/kernels/projection/projection_ring.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/hopper_code.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>

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

// Of weights the L2 fetches no more than is asked for: 128 bytes of a row at a time.
bool encode_ring_maps(RingArgs& a, const void* x, int64_t x_stride, const void* weight, int64_t n, int64_t halves) {
  const int64_t k = a.k, blocks_of_k = k / kBoxChannels;
  return encode_map(a.weight, weight, kBoxChannels,
                    {{n, k, a.box_rows}, {halves, n * k, halves}, {blocks_of_k, kBoxChannels, a.boxes}},
                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B) &&
         encode_map(a.x, x, kBoxChannels, {{a.num_tokens, x_stride, a.x_rows}, {blocks_of_k, kBoxChannels, a.boxes}});
}

bool can_ring(const ProjectionParams& p) {
  return can_store(p) && can_ring(p.dtype, p.num_tokens, p.k, p.x, p.x_stride, p.norm, p.weight);
}

int64_t rows_of_block(const ProjectionParams& p) {
  for (int64_t rounds = 1;; ++rounds) {
    const int64_t blocks = ring_multiprocessors() * rounds, rows = ((p.n + blocks - 1) / blocks + 7) / 8 * 8;
    if (halves_of(p) * rows <= kMostRingRows) return rows;
  }
}

RingLaunch ring_launch_of(const ProjectionParams& p, const RingInstance& instance, int64_t rows) {
  RingLaunch launch;
  RingArgs& a = launch.args;
  if (halves_of(p) * rows > instance.most_rows || p.num_tokens > instance.most_tokens) return launch;
  fill_ring_input(a, p.dtype, p.num_tokens, p.k, p.norm);
  a.rows = static_cast<int32_t>(halves_of(p) * rows);
  a.box_rows = static_cast<int32_t>(rows);
  launch.blocks = (p.n + rows - 1) / rows;
  launch.shared_bytes = instance.place(a, kMaxSharedBytes);
  const bool fits = a.stages >= 1 && launch.shared_bytes <= kMaxSharedBytes;
  if (fits && encode_ring_maps(a, p.x, p.x_stride, p.weight, p.n, halves_of(p))) launch.instance = &instance;
  return launch;
}

// Below kTokensOfRings weights through registers are faster for one or two of them, where a block would have few rows, and for models of short
// rows. Measured in whole layers (bench_projection).
constexpr int64_t kFewestTokens = 3, kFewestRows = 32, kShortestRows = 4096;

RingLaunch choose_ring(const ProjectionParams& p) {
  if (!can_ring(p)) return {};
  const int64_t rows = rows_of_block(p);
  const bool is_large = halves_of(p) * rows >= kFewestRows && p.k >= kShortestRows;
  if (p.num_tokens < kTokensOfRings && (p.num_tokens < kFewestTokens || !is_large)) return {};
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
