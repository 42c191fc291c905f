#include <bit>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/qkv_prologue/backends.h>
#include <prologue/kernels/qkv_prologue/instances.h>
#include <prologue/kernels/projection/tiles/head_launch.h>
#include <prologue/kernels/projection/ring/head_launch.h>
#include <prologue/kernels/projection/vector/head_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/projection/registers/head_instances.cuh>

namespace prologue::cuda {

namespace {

constexpr const char* kName = "qkv_prologue";

std::span<const QkvInstance> instances_of(DType type) {
  if (type == DType::f16) return float16_qkv_instances();
  if (type == DType::bf16) return bfloat16_qkv_instances();
  return {};
}

// The call's prologue with q, k and v somewhere: the kernel makes them, but they must be there, and what it reads of them and does not use
// is in the weights.
AttentionPrologueParams prologue_of(const QkvPrologueParams& p) {
  AttentionPrologueParams prologue = resolved(p.prologue);
  const int64_t width =
      (prologue.num_q_heads + prologue.num_kv_heads) * prologue.head_dim + prologue.num_kv_heads * v_head_dim(prologue);
  set_packed_qkv(prologue, p.weight, width);
  return prologue;
}

bool can_project(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  return !p.batch_invariant &&
         can_stream(prologue.dtype, prologue.num_tokens, p.hidden_size, p.hidden_states, p.hidden_stride, p.norm, p.weight) &&
         prologue.head_dim % 16 == 0 && v_head_dim(prologue) == prologue.head_dim;
}

bool serves(const QkvInstance& instance, const AttentionPrologueParams& p) {
  if (p.head_dim > 64 * instance.vector || p.num_tokens > 8 * instance.token_tiles || widest_vector(p) < instance.vector)
    return false;
  const int features = features_of(p, instance.vector);
  if (features < 0 || (features & kTokenNorm) != 0 || units_of_all(p, instance.vector) > 32) return false;
  constexpr int kSame = kAxes | kDerived, kAtMost = kLayouts | kEveryStep;
  return (features & kSame) == (instance.features & kSame) && (features & kAtMost & ~instance.features) == 0;
}

// A launch with so many blocks in a cluster.
struct Launch {
  const QkvInstance* instance = nullptr;
  QkvArgs args;
  int64_t clusters = 0;
};

Launch launch_of(const QkvPrologueParams& p, const AttentionPrologueParams& prologue, const QkvInstance& instance,
                 int64_t blocks) {
  Launch launch = {&instance, {}, prologue.num_q_heads + 2 * prologue.num_kv_heads};
  fill_input(launch.args, prologue.dtype, prologue.num_tokens, p.hidden_size, p.hidden_states, p.hidden_stride, p.norm, p.weight);
  share_out_rows(launch.args, prologue.head_dim / 16, blocks);
  launch.args.lanes = static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(units_of_all(prologue, instance.vector))));
  return launch;
}

// With so few heads that they leave SMs without a block, long rows are better shared out by a GEMM. Measured: 10 heads of 128 channels, k
// of 8192, are 5 % slower in one kernel in a chain, 11 % alone.
constexpr int64_t kEnoughBlocks = 132, kUnitsOfLongRows = 16;

bool is_worth_it(const Launch& launch) {
  const ProjectionArgs& a = launch.args;
  return launch.clusters * a.blocks >= kEnoughBlocks || a.units >> (a.log_blocks + a.log_parts) <= kUnitsOfLongRows;
}

// A call that neither begins early nor has a norm saves one launch, and from two tokens on that is worth less than what the ends of a larger
// kernel cost. Measured in whole attention layers (bench_attention_layer): at one token 8B is 11 % faster in one kernel, at 2 to 64 tokens up to
// 8 % slower, 1B up to 11 %; SmolLM2 is faster up to 16 tokens.
constexpr int64_t kMostWeightsOfOneToken = int64_t{32} << 20, kMostWeightsOfFewTokens = int64_t{1} << 20, kFewTokens = 16;

bool saves_enough(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  if (p.overlaps || p.norm.given != 0) return true;
  const int64_t weights = (prologue.num_q_heads + 2 * prologue.num_kv_heads) * prologue.head_dim * p.hidden_size;
  if (prologue.num_tokens == 1) return weights <= kMostWeightsOfOneToken;
  return prologue.num_tokens <= kFewTokens && weights <= kMostWeightsOfFewTokens;
}

// An instance with a finisher needs so many registers that two blocks fit an SM: more blocks would come in a second round.
constexpr int64_t kMostBlocksWithFinishers = 264;

bool has_places(const Launch& launch) {
  return launch.instance->finishers == 0 || launch.clusters * launch.args.blocks <= kMostBlocksWithFinishers;
}

// A cluster of one block has no finisher: registers/head_kernel.cuh says why.
int64_t fewest_blocks(const QkvInstance& instance) { return instance.finishers == 0 ? 1 : 2; }

// Of the first instance that can do it. No instance: there is none, or it would be slower than separate operations.
Launch choose(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  if (!can_project(p, prologue) || !saves_enough(p, prologue)) return {};
  for (const QkvInstance& instance : instances_of(prologue.dtype)) {
    if (!serves(instance, prologue)) continue;
    const Launch launch = with_most_blocks([&](int64_t blocks) { return launch_of(p, prologue, instance, blocks); });
    if (launch.instance == nullptr || launch.args.blocks < fewest_blocks(instance) || !has_places(launch)) continue;
    return is_worth_it(launch) ? launch : Launch();
  }
  return {};
}

QkvVectorLaunch choose_vector(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  return saves_enough(p, prologue) ? choose_qkv_vector(p, prologue) : QkvVectorLaunch();
}

QkvRingLaunch choose_ring(const QkvPrologueParams& p, const AttentionPrologueParams& prologue) {
  return saves_enough(p, prologue) ? choose_qkv_ring(p, prologue) : QkvRingLaunch();
}

Status run(const Launch& chosen, const QkvPrologueParams& p, const AttentionPrologueParams& prologue, cudaStream_t stream) {
  const QkvArgs& a = chosen.args;
  MoreArgs more;
  fill(prologue, features_of(prologue, chosen.instance->vector), more);
  LaunchAttributes attributes(a.blocks, p.overlaps);
  const int threads = threads_of(a) + 32 * chosen.instance->finishers;
  const LaunchShape shape = {grid_extent(chosen.clusters * a.blocks), static_cast<unsigned>(threads),
                             static_cast<size_t>(shared_bytes_of(a)), attributes.span()};
  return launch(kName, chosen.instance->kernel, shape, stream, a, more);
}

std::string instance_name(DType dtype, const QkvInstance& instance) {
  std::string name =
      str_cat(dtype_name(dtype), ", heads of ", 64 * instance.vector, " channels, ", 8 * instance.token_tiles, " tokens");
  if (instance.finishers != 0) name += ", finishers";
  constexpr std::pair<int, const char*> kNames[] = {
      {kLayouts, "layouts"}, {kEveryStep, "every step"}, {kDerived, "derived"}, {kAxes, "axes"}};
  for (const auto& [feature, text] : kNames) {
    if ((instance.features & feature) != 0) name += str_cat(", ", text);
  }
  return name;
}

}  // namespace

bool qkv_prologue_is_one_kernel(const QkvPrologueParams& params) {
  const AttentionPrologueParams prologue = prologue_of(params);
  return choose_vector(params, prologue).instance != nullptr || choose_ring(params, prologue).instance != nullptr ||
         choose(params, prologue).instance != nullptr;
}

Status qkv_prologue(const QkvPrologueParams& params, const Execution& execution) {
  const AttentionPrologueParams prologue = prologue_of(params);
  const QkvVectorLaunch vector = choose_vector(params, prologue);
  if (vector.instance != nullptr) return run(vector, params, prologue, execution.stream);
  const QkvRingLaunch ring = choose_ring(params, prologue);
  if (ring.instance != nullptr) return run(ring, params, prologue, execution.stream);
  const Launch chosen = choose(params, prologue);
  if (chosen.instance == nullptr) return unsupported(kName, ": no single CUDA kernel for this call");
  return run(chosen, params, prologue, execution.stream);
}

bool qkv_gemm_is_one_kernel(const QkvPrologueParams& params) {
  return choose_qkv_gemm(params, prologue_of(params)).instance != nullptr;
}

Status qkv_gemm(const QkvPrologueParams& params, const Execution& execution) {
  const AttentionPrologueParams prologue = prologue_of(params);
  const QkvGemmLaunch chosen = choose_qkv_gemm(params, prologue);
  if (chosen.instance == nullptr) return unsupported(kName, ": no single CUDA kernel for this call behind its norm");
  return run(chosen, params, prologue, execution.stream);
}

bool chooses_qkv_gemm(const QkvPrologueParams& params) { return qkv_gemm_is_one_kernel(params); }

std::vector<KernelInstance<QkvPrologueParams>> gemm_instances_of(const QkvPrologueParams& params) {
  std::vector<KernelInstance<QkvPrologueParams>> list;
  const AttentionPrologueParams prologue = prologue_of(params);
  for (const QkvGemmInstance& instance : qkv_gemm_instances_of(prologue.dtype)) {
    if (qkv_gemm_launch_of(params, prologue, instance).instance == nullptr) continue;
    list.push_back(
        {qkv_gemm_instance_name(prologue.dtype, instance), 0, [&instance](const QkvPrologueParams& p, cudaStream_t stream) {
           const AttentionPrologueParams of_call = prologue_of(p);
           return run(qkv_gemm_launch_of(p, of_call, instance), p, of_call, stream);
         }});
  }
  return list;
}

std::vector<std::string> qkv_gemm_instances(DType dtype) {
  std::vector<std::string> names;
  for (const QkvGemmInstance& instance : qkv_gemm_instances_of(dtype)) names.push_back(qkv_gemm_instance_name(dtype, instance));
  return names;
}

std::vector<KernelInstance<QkvPrologueParams>> vector_instances_of(const QkvPrologueParams& params) {
  std::vector<KernelInstance<QkvPrologueParams>> list;
  const AttentionPrologueParams prologue = prologue_of(params);
  for (const QkvVectorInstance& instance : qkv_vector_instances_of(prologue.dtype)) {
    for (int64_t rows = 1; rows <= kMostVectorRows; rows *= 2) {
      for (int log_ways = 0; 1 << log_ways <= kVectorWarps; ++log_ways) {
        if (qkv_vector_launch_of(params, prologue, instance, rows, log_ways).instance == nullptr) continue;
        list.push_back({str_cat(qkv_vector_instance_name(prologue.dtype, instance), ", ", rows, " x ", 1 << log_ways), 1,
                        [&instance, rows, log_ways](const QkvPrologueParams& p, cudaStream_t stream) {
                          const AttentionPrologueParams of_call = prologue_of(p);
                          return run(qkv_vector_launch_of(p, of_call, instance, rows, log_ways), p, of_call, stream);
                        }});
      }
    }
  }
  return list;
}

std::vector<std::string> qkv_vector_instances(DType dtype) {
  std::vector<std::string> names;
  for (const QkvVectorInstance& instance : qkv_vector_instances_of(dtype)) {
    names.push_back(qkv_vector_instance_name(dtype, instance));
  }
  return names;
}

std::vector<KernelInstance<QkvPrologueParams>> ring_instances_of(const QkvPrologueParams& params) {
  std::vector<KernelInstance<QkvPrologueParams>> list;
  const AttentionPrologueParams prologue = prologue_of(params);
  for (const QkvRingInstance& instance : qkv_ring_instances_of(prologue.dtype)) {
    for (int64_t heads = 1; heads * 2 * kPairsOfBlock <= instance.most_rows; ++heads) {
      if (qkv_pairs_launch_of(params, prologue, instance, heads).instance == nullptr) continue;
      list.push_back({str_cat(qkv_ring_instance_name(prologue.dtype, instance), ", ", heads, " of them"), instance.most_tokens,
                      [&instance, heads](const QkvPrologueParams& p, cudaStream_t stream) {
                        const AttentionPrologueParams of_call = prologue_of(p);
                        return run(qkv_pairs_launch_of(p, of_call, instance, heads), p, of_call, stream);
                      }});
    }
    for (int log_blocks = 0; 1 << log_blocks <= kMaxBlocksOfCluster; ++log_blocks) {
      if (qkv_ring_launch_of(params, prologue, instance, log_blocks).instance == nullptr) continue;
      list.push_back({str_cat(qkv_ring_instance_name(prologue.dtype, instance), ", ", 1 << log_blocks, " blocks"),
                      instance.most_tokens, [&instance, log_blocks](const QkvPrologueParams& p, cudaStream_t stream) {
                        const AttentionPrologueParams of_call = prologue_of(p);
                        return run(qkv_ring_launch_of(p, of_call, instance, log_blocks), p, of_call, stream);
                      }});
    }
  }
  return list;
}

std::vector<std::string> qkv_ring_instances(DType dtype) {
  std::vector<std::string> names;
  for (const QkvRingInstance& instance : qkv_ring_instances_of(dtype)) names.push_back(qkv_ring_instance_name(dtype, instance));
  return names;
}

std::vector<KernelInstance<QkvPrologueParams>> instances_of(const QkvPrologueParams& params) {
  std::vector<KernelInstance<QkvPrologueParams>> list;
  const AttentionPrologueParams prologue = prologue_of(params);
  if (!can_project(params, prologue)) return list;
  for (const QkvInstance& instance : instances_of(prologue.dtype)) {
    if (!serves(instance, prologue)) continue;
    for (int64_t blocks = fewest_blocks(instance); blocks <= kMaxBlocksOfCluster; blocks *= 2) {
      if (!fits(launch_of(params, prologue, instance, blocks))) continue;
      list.push_back({str_cat(instance_name(prologue.dtype, instance), ", ", blocks, " blocks"), 8 * instance.token_tiles,
                      [&instance, blocks](const QkvPrologueParams& p, cudaStream_t stream) {
                        const AttentionPrologueParams of_call = prologue_of(p);
                        return run(launch_of(p, of_call, instance, blocks), p, of_call, stream);
                      }});
    }
  }
  return list;
}

std::vector<std::string> qkv_prologue_instances(DType dtype) {
  std::vector<std::string> names;
  for (const QkvInstance& instance : instances_of(dtype)) names.push_back(instance_name(dtype, instance));
  return names;
}

}  // namespace prologue::cuda
