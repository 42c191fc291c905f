#include <bit>
#include <utility>

#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/projection/tiles/launch.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/qkv_prologue/backends.h>
#include <prologue/kernels/projection/tiles/head_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/hopper_code.cuh>

namespace prologue::cuda {

namespace {

int64_t multiprocessors() {
  return hopper_multiprocessors([] { return bfloat16_qkv_gemm_instances().front().kernel; }, kTileThreads, kTileRegisters);
}

// Two if tiles have parts of 64 columns, and a head 128 channels.
int parts_of_head(const QkvGemmInstance& instance, const AttentionPrologueParams& p) {
  return instance.columns == kColumnsInParts && p.head_dim == 2 * kPartColumns ? 2 : 1;
}

// Whether no step but the rotation needs more than a channel, and the pairs are those of halves or neighbours.
bool may_divide_heads(const QkvGemmInstance& instance, const AttentionPrologueParams& p) {
  if ((instance.features & kNorm) != 0) return false;
  return (instance.features & kLayouts) == 0 || (p.rope.style == RopeStyle::interleaved && p.rope.rotary_dim == p.head_dim);
}

bool serves(const QkvGemmInstance& instance, const AttentionPrologueParams& p) {
  const int parts = parts_of_head(instance, p);
  if (!std::has_single_bit(static_cast<uint64_t>(p.head_dim))) return false;
  if (parts > 1 && !may_divide_heads(instance, p)) return false;
  if (instance.columns % (p.head_dim / parts) != 0 || v_head_dim(p) != p.head_dim || widest_vector(p) < kGemmVector) return false;
  const int features = features_of(p, kGemmVector);
  if (features < 0 || (features & (kTokenNorm | kAxes)) != 0 || units_of_all(p, kGemmVector) > 32) return false;
  if ((instance.features & kMoreSteps) != 0) return (features & (kLayouts | kEveryStep) & ~instance.features) == 0;
  if ((features & ~(kPerToken | kDerived)) != instance.features) return false;
  if (instance.columns == kColumnsInParts) return true;  // those at once are of any tensor
  return p.num_q_heads % instance.heads_at_once == 0 && p.num_kv_heads % instance.heads_at_once == 0 &&
         instance.columns / p.head_dim % instance.heads_at_once == 0;
}

bool can_tile(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  return !p.batch_invariant && p.norm.given == 0 && p.hidden_size % 8 == 0 && p.hidden_stride % 8 == 0 &&
         is_aligned(p.hidden_states, 16) && is_aligned(p.weight, 16) && !qkv_gemm_instances_of(prologue.dtype).empty() &&
         has_qkv_gemm();
}

TileSizes sizes_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  return {prologue.num_tokens, (prologue.num_q_heads + 2 * prologue.num_kv_heads) * prologue.head_dim, p.hidden_size};
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
      {kLayouts, "layouts"},      {kBias, "bias"},           {kNorm, "norm"}, {kGivenScales, "given scales"},
      {kMoreSteps, "more steps"}, {kEveryStep, "every step"}};
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
  a.parts = parts_of_head(instance, prologue);
  a.heads = static_cast<int32_t>((prologue.num_q_heads + 2 * prologue.num_kv_heads) * a.parts);
  a.columns_of_head = static_cast<int32_t>(prologue.head_dim) / a.parts;
  a.heads_of_tile = instance.columns / a.columns_of_head;
  a.lanes = static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(units_of_all(prologue, kGemmVector)))) / a.parts;
  if (a.parts > 1 && (instance.features & kLayouts) == 0) {
    a.swapped_quarters = 1;
    a.part_shift = a.second_shift = kPartColumns / 2;
  } else if (a.parts > 1) {
    a.part_shift = kPartColumns;
  }
  launch.blocks =
      share_out_tiles(a, sizes_of(p, prologue), p.hidden_states, p.hidden_stride, p.weight, instance.columns, multiprocessors());
  if (launch.blocks > 0) launch.instance = &instance;
  return launch;
}

QkvGemmLaunch choose_qkv_gemm(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  const TileSizes sizes = sizes_of(p, prologue);
  if (!is_large_enough(sizes) || !can_tile(p, prologue)) return {};
  QkvGemmLaunch best;
  double best_rounds = rounds_of_separate_kernels(sizes, multiprocessors());
  int columns = 0;
  for (const QkvGemmInstance& instance : qkv_gemm_instances_of(prologue.dtype)) {
    if (instance.columns == columns || !serves(instance, prologue)) continue;
    columns = instance.columns;  // the first of them is the fastest
    const QkvGemmLaunch launch = qkv_gemm_launch_of(p, prologue, instance);
    if (launch.instance == nullptr) continue;
    const double rounds = rounds_of_tiles(launch.args, instance.columns, multiprocessors());
    if (rounds <= best_rounds) best = launch, best_rounds = rounds;
  }
  return best;
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
