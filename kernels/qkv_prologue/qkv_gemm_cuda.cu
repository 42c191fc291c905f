#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/hopper_code.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/qkv_prologue/backends.h>
#include <prologue/kernels/qkv_prologue/qkv_gemm.h>

namespace prologue::cuda {

namespace {

int64_t multiprocessors() {
  return hopper_multiprocessors([] { return bfloat16_qkv_gemm_instances().front().kernel; }, kTileThreads, kTileRegisters);
}

bool serves(const QkvGemmInstance& instance, const AttentionPrologueParams& p) {
  if (instance.columns % p.head_dim != 0 || v_head_dim(p) != p.head_dim || widest_vector(p) < kGemmVector) return false;
  const int features = features_of(p, kGemmVector);
  if (features < 0 || (features & (kTokenNorm | kAxes | kDerived)) != 0 || units_of_all(p, kGemmVector) > 32) return false;
  if ((instance.features & kMoreSteps) != 0) return (features & (kLayouts | kEveryStep) & ~instance.features) == 0;
  return (features & ~kPerToken) == instance.features && p.num_q_heads % instance.heads_at_once == 0 &&
         p.num_kv_heads % instance.heads_at_once == 0 && instance.columns / p.head_dim % instance.heads_at_once == 0;
}

bool can_tile(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  return !p.batch_invariant && p.norm.given == 0 && p.hidden_size % 8 == 0 && p.hidden_stride % 8 == 0 &&
         is_aligned(p.hidden_states, 16) && is_aligned(p.weight, 16) && !qkv_gemm_instances_of(prologue.dtype).empty() &&
         has_qkv_gemm();
}

}  // namespace

bool has_qkv_gemm() { return multiprocessors() >= kTileBlocks; }

std::span<const QkvGemmInstance> qkv_gemm_instances_of(DType type) {
  if (type == DType::f16) return float16_qkv_gemm_instances();
  if (type == DType::bf16) return bfloat16_qkv_gemm_instances();
  return {};
}

std::string qkv_gemm_instance_name(DType dtype, const QkvGemmInstance& instance) {
  std::string name = str_cat(dtype_name(dtype), ", tiles of ", kTileTokens, " x ", instance.columns);
  if (instance.heads_at_once > 1) name += str_cat(", ", instance.heads_at_once, " heads");
  constexpr std::pair<int, const char*> kNames[] = {
      {kLayouts, "layouts"}, {kBias, "bias"}, {kNorm, "norm"}, {kMoreSteps, "more steps"}, {kEveryStep, "every step"}};
  for (const auto& [feature, text] : kNames) {
    if ((instance.features & feature) != 0) name += str_cat(", ", text);
  }
  return name;
}

QkvGemmLaunch qkv_gemm_launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
                                 const QkvGemmInstance& instance) {
  QkvGemmLaunch launch;
  if (!can_tile(p, prologue) || !serves(instance, prologue)) return launch;
  QkvGemmArgs& a = launch.args;
  const int64_t heads = prologue.num_q_heads + 2 * prologue.num_kv_heads, k = p.hidden_size;
  const auto parts = [](int64_t whole, int64_t part) { return static_cast<int32_t>((whole + part - 1) / part); };
  a.num_tokens = static_cast<int32_t>(prologue.num_tokens);
  a.stages_of_k = parts(k, kTileChannels);
  a.pairs = parts(prologue.num_tokens, kTileBlocks * kTileTokens);
  a.heads = static_cast<int32_t>(heads);
  a.heads_of_tile = static_cast<int32_t>(instance.columns / prologue.head_dim);
  a.columns = parts(heads, a.heads_of_tile);
  a.lanes = static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(units_of_all(prologue, kGemmVector))));
  const int64_t tiles = int64_t{a.pairs} * a.columns, clusters = std::min(2 * tiles, multiprocessors() / kTileBlocks);
  const int64_t last = tiles % clusters, divided = 2 * last <= clusters ? last : 0;
  a.whole = static_cast<int32_t>(tiles - divided);
  a.count = static_cast<int32_t>(tiles + divided);
  launch.blocks = kTileBlocks * std::min(clusters, int64_t{a.count});
  const int64_t rows = heads * prologue.head_dim;
  const bool encoded =
      encode_map(a.x, p.hidden_states, k,
                 {{prologue.num_tokens, p.hidden_stride, kTileTokens / 2}, {1, p.hidden_stride * prologue.num_tokens, 1}}) &&
      encode_map(a.weight, p.weight, k, {{rows, k, instance.columns / kTileBlocks}, {1, rows * k, 1}});
  if (encoded) launch.instance = &instance;
  return launch;
}

namespace {

// What a launch takes, in rounds of tiles of 256 columns on all clusters, measured on an H200 with k of 2048, 4096 and 8192.
double rounds_of(const QkvGemmLaunch& launch) {
  const QkvGemmArgs& a = launch.args;
  const bool wide = launch.instance->columns > 128;
  const double clusters = static_cast<double>(multiprocessors() / kTileBlocks), round = wide ? 1.0 : 0.56;
  const double begin_and_end = 6.0 / a.stages_of_k;
  return round * (std::ceil(a.whole / clusters) + (a.count > a.whole ? (wide ? 0.85 : 0.6) : 0.0)) + begin_and_end;
}

// The same for a GEMM that leaves no SM idle.
double fewest_rounds(const AttentionPrologueParams& prologue) {
  const auto heads = static_cast<double>(prologue.num_q_heads + 2 * prologue.num_kv_heads);
  const double columns = heads * static_cast<double>(prologue.head_dim) / 256.0;
  return columns * static_cast<double>(prologue.num_tokens) / kTileTokens / static_cast<double>(multiprocessors());
}

// Separate kernels take some 1.1 times as long as those in the best case, 1.5 times in the worst.
constexpr double kMostOfFewest = 1.23;

}  // namespace

QkvGemmLaunch choose_qkv_gemm(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  // Fewer rows of the weights (70B on eight GPUs) or shorter ones (models below 1B) are faster separately.
  constexpr int64_t kFewestTokens = 256, kFewestChannels = 2048, kFewestRows = 2048;
  const int64_t rows = (prologue.num_q_heads + 2 * prologue.num_kv_heads) * prologue.head_dim;
  if (prologue.num_tokens < kFewestTokens || p.hidden_size < kFewestChannels || rows < kFewestRows || !can_tile(p, prologue)) return {};
  QkvGemmLaunch best;
  for (const QkvGemmInstance& instance : qkv_gemm_instances_of(prologue.dtype)) {
    if (best.instance != nullptr && best.instance->columns == instance.columns) continue;  // the first is the fastest
    const QkvGemmLaunch launch = qkv_gemm_launch_of(p, prologue, instance);
    if (launch.instance == nullptr) continue;
    if (best.instance == nullptr || rounds_of(launch) < rounds_of(best)) best = launch;
  }
  const bool faster = best.instance != nullptr && rounds_of(best) <= kMostOfFewest * fewest_rounds(prologue);
  return faster ? best : QkvGemmLaunch();
}

Status run(const QkvGemmLaunch& chosen, const QkvPrologueParams& p, const AttentionPrologueParams& prologue,
           cudaStream_t stream) {
  MoreArgs more;
  fill(prologue, features_of(prologue, kGemmVector), more);
  LaunchAttributes attributes(kTileBlocks, p.overlaps);
  const LaunchShape shape = {grid_extent(chosen.blocks), kTileThreads, static_cast<size_t>(chosen.instance->shared_bytes),
                             attributes.span()};
  return launch("qkv_gemm", chosen.instance->kernel, shape, stream, chosen.args, more);
}

}  // namespace prologue::cuda
