#include <algorithm>
#include <bit>
#include <limits>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/described/families.h>
#include <prologue/kernels/attention_prologue/instances.h>
#include <prologue/kernels/attention_prologue/lean/families.h>
#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr const char* kName = "attention_prologue";

int64_t padded_lanes(int64_t units) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(units))); }

// Rounds the rows of a block up so that its warps are full.
int64_t fill_warps(int64_t rows, int64_t lanes) { return lanes >= 32 ? rows : round_up(rows, 32 / lanes); }

// These are the rows of a block, and the blocks of a token: a block keeps to one tensor if a thread has one head; otherwise it holds as
// much of the token as it can. The heads of a plain thread are far apart; those of another are neighbours of one tensor, and where warps
// are full a warp keeps to one tensor too.
struct Rows {
  int64_t per_block;
  int64_t blocks;
};

// What an instance says about it.
struct RowsOfThreads {
  int threads;  // of a block, at most
  int units;    // heads of a thread
  bool apart;   // they are far apart
  bool groups;  // tokens: TokenGroup
};

// Returns the number of tokens of a group with which the fewest rows of blocks have no head.
int64_t tokens_of_group(const int64_t (&heads)[3], int64_t rows_of_block) {
  int64_t best = 1, best_blocks = 0;
  for (int64_t tokens = 1; tokens <= 16; tokens *= 2) {
    int64_t blocks = 0;
    bool exact = true;
    for (const int64_t of_token : heads) {
      blocks += divide_up(of_token * tokens, rows_of_block);
      exact = exact && groups_exactly(tokens, of_token, rows_of_block);
    }
    if (tokens > 1 && (!exact || blocks * best >= best_blocks * tokens)) continue;
    best = tokens, best_blocks = blocks;
  }
  return best;
}

TokenGroup group_of(const int64_t (&heads)[3], int64_t rows_of_block, int64_t num_tokens) {
  TokenGroup group;
  group.tokens = static_cast<uint32_t>(tokens_of_group(heads, rows_of_block));
  group.num_tokens = static_cast<uint32_t>(num_tokens);
  group.inverse_q_heads = inverse_of_heads(heads[0]);
  group.inverse_kv_heads = inverse_of_heads(std::max(heads[1], heads[2]));
  return group;
}

// If `over_token`, the first block holds all heads of q and k.
template <class Args>
Rows place_rows(const RowsOfThreads& instance, bool pads, bool over_token, int64_t lanes, int64_t num_tokens, Args& args) {
  const int64_t max_rows = std::max<int64_t>(instance.threads / lanes, 1);
  const int64_t heads[3] = {args.tensors[0].heads, args.tensors[1].heads, args.tensors[2].heads};
  // Rows past the last head, which come from rounding up, read the last head of the last tensor and store nothing. That tensor
  // must exist: one without heads, and with none behind it, begins at no row.
  constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();
  const auto begin_at = [&](const auto& count) {
    const int64_t q = count(heads[0]), k = count(heads[1]), v = count(heads[2]);
    args.k_begin = k + v > 0 ? static_cast<uint32_t>(q) : kNowhere;
    args.v_begin = v > 0 ? static_cast<uint32_t>(q + k) : kNowhere;
    return q + k + v;
  };
  if (instance.units == 1 && !over_token) {
    if (instance.groups) args.group = group_of(heads, max_rows, num_tokens);
    const int64_t tokens = std::max<int64_t>(args.group.tokens, 1);
    int64_t rows = tokens > 1 ? max_rows : std::min(max_rows, std::max({heads[0], heads[1], heads[2]}));
    if (pads) rows = fill_warps(rows, lanes);
    return {rows, begin_at([&](int64_t n) { return divide_up(n * tokens, rows); })};
  }
  if (instance.apart) {
    const int64_t all = heads[0] + heads[1] + heads[2], blocks = divide_up(all, max_rows * instance.units);
    return {divide_up(all, blocks * instance.units), blocks};
  }
  const int64_t all = begin_at([&](int64_t n) {
    const int64_t rows = divide_up(n, instance.units);
    return pads ? fill_warps(rows, lanes) : rows;
  });
  if (over_token) {
    const int64_t rows = std::min(all, max_rows);
    return {rows, divide_up(all, rows)};
  }
  const int64_t blocks = divide_up(all, max_rows), rows = divide_up(all, blocks);
  return {pads ? fill_warps(rows, lanes) : rows, blocks};
}

template <class Args>
LaunchShape shape_of(const RowsOfThreads& threads, bool pads, bool over_token, int64_t lanes, int64_t num_tokens, Args& args) {
  const Rows rows = place_rows(threads, pads, over_token, lanes, num_tokens, args);
  const int64_t tokens = std::max<int64_t>(args.group.tokens, 1);
  return {dim3(static_cast<unsigned>(divide_up(num_tokens, tokens)), static_cast<unsigned>(rows.blocks)),
          dim3(static_cast<unsigned>(lanes), static_cast<unsigned>(rows.per_block))};
}

// Kernels wait before they read anything, so every launch overlaps the kernel before it.
class Overlap {
 public:
  explicit Overlap(LaunchShape& shape) { shape.attributes = attributes_.span(); }

 private:
  LaunchAttributes attributes_ = {1, true};
};

Status launch_described(const DescribedInstance& instance, const AttentionPrologueParams& p, cudaStream_t stream) {
  const DescribedSize& size = instance.size;
  DescribedArgs args;
  fill(p, args);
  const RowsOfThreads threads = {size.threads, size.units, false, groups_tokens(size, instance.facts)};
  LaunchShape shape =
      shape_of(threads, true, normed_over_token(p), padded_lanes(units_of_all(p, size.vector)), p.num_tokens, args);
  const Overlap overlap(shape);
  return launch_described(instance.kernel, instance.facts, shape, stream, args);
}

Status launch_lean(const Family& family, const Instance& instance, const AttentionPrologueParams& p, cudaStream_t stream) {
  const bool pads = padded(family.features), over_token = (family.features & kTokenNorm) != 0;
  const int64_t units = units_of_all(p, instance.vector), lanes = pads ? padded_lanes(units) : units;
  const RowsOfThreads threads = {instance.threads, instance.units, instance.plain != nullptr, instance.groups};
  const auto with = [&](auto kernel, int features, auto args) {
    fill(p, features, args);
    LaunchShape shape = shape_of(threads, pads, over_token, lanes, p.num_tokens, args);
    const Overlap overlap(shape);
    return launch(kName, kernel, shape, stream, args);
  };
  if (instance.plain != nullptr) return with(instance.plain, family.features, PlainArgs());
  if (instance.more != nullptr) return with(instance.more, features_of(p, family.vector), MostStepsArgs());
  return with(instance.lean, features_of(p, family.vector), LeanArgs());
}

Status launch_general(const Family& instance, const AttentionPrologueParams& p, cudaStream_t stream) {
  GeneralArgs args;
  fill(p, int64_t{instance.vector}, args);
  const int64_t lanes = padded_lanes(units_of_all(p, instance.vector));
  int64_t all = 0;
  for (const TensorArgs<int64_t>& tensor : args.tensors) all += tensor.heads;
  const bool over_token = normed_over_token(p);
  const int64_t max_rows = lanes > 32 ? 1 : (over_token ? 256 : 128) / lanes;
  const int64_t rows = fill_warps(std::min(max_rows, all), lanes);
  const int64_t blocks = over_token ? 1 : std::min(divide_up(all, rows), kMaxBlocksOfToken);
  LaunchShape shape = {dim3(static_cast<unsigned>(p.num_tokens), static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(lanes), static_cast<unsigned>(rows))};
  const Overlap overlap(shape);
  return launch(kName, instance.general, shape, stream, args);
}

std::span<const Family> families_of(DType type) {
  switch (type) {
    case DType::f16: return float16_families();
    case DType::bf16: return bfloat16_families();
    default: return float32_families();
  }
}

// Returns whether the lanes of a head fit a block. The lanes that work together must be of one warp, and at least as many as the heads of a
// thread. Heads that share a norm must fit one block.
bool lanes_fit(const AttentionPrologueParams& p, int features, const Instance& instance) {
  const int64_t units = units_of_all(p, instance.vector);
  if (!padded(features)) return units <= instance.threads;
  const int64_t lanes = padded_lanes(units);
  if (lanes > 32 || lanes < instance.units) return false;
  if ((features & kTokenNorm) == 0) return true;
  const int64_t k_heads = has_k(p) ? p.num_kv_heads : 0;
  return (fill_warps(p.num_q_heads, lanes) + fill_warps(k_heads, lanes)) * lanes <= instance.threads;
}

bool fits(const AttentionPrologueParams& p, int features, const Instance& instance) {
  return lanes_fit(p, features, instance) && (!instance.groups || has_few_heads(p));
}

// Says how a family that decides at run time fits a call: with the call's layouts and steps, or with more of them.
enum class Fit { close, any };

// Says whether a family can run a call: its features are exactly those of the call, or it runs any mixture of steps. `vector` is the widest
// that the data allow.
bool serves(const Family& family, int64_t vector, const AttentionPrologueParams& p, Fit fit = Fit::close) {
  if (family.vector > vector) return false;
  if (family.general != nullptr) return true;
  int features = features_of(p, family.vector);
  if (features < 0 || !lanes_fit(p, family.features, family.instances.back())) return false;
  if ((family.features & (kCommonSteps | kMostSteps)) != 0) {
    constexpr int kFixed = kAxes | kDerived | kTokenNorm, kChoice = kLayouts | kEveryStep,
                  kMixed = kBias | kNorm | kGivenScales | kComputedScales;
    const int lacking = features & kChoice & ~family.features, unused = family.features & kChoice & ~features;
    if ((features & kFixed) != (family.features & kFixed) || lacking != 0 || (unused != 0 && fit == Fit::close)) return false;
    if ((family.features & kMostSteps) != 0) return true;
    const bool norms_layouts = (features & kNorm) != 0 && (family.features & kLayouts) != 0;  // kCommonSteps cannot
    return (features & ~(kFixed | kChoice | kMixed)) == 0 && !norms_layouts;
  }
  if ((features & kFourBits) != 0) features &= ~(kGivenScales | kComputedScales);  // it has both
  return (features | kLayouts) == (family.features | kLayouts) && (features & ~family.features) == 0;
}

// Whether a family decides at run time which steps a call has.
bool decides_at_run_time(const Family& family) {
  return family.general != nullptr || (family.features & (kCommonSteps | kMostSteps)) != 0;
}

// Returns the first family that ships and can do the call, with vectors as wide as the data allow.
const Family* find_shipped(const AttentionPrologueParams& p) {
  const int64_t vector = widest_vector(p);
  for (const Family& family : families_of(p.dtype)) {
    if (serves(family, vector, p)) return &family;
  }
  return nullptr;
}

// Returns the family that runs the call: in place of one that decides at run time that which was made for the call, and is made now if `makes`.
const Family* find_family(const AttentionPrologueParams& p, bool makes) {
  const Family* family = find_shipped(p);
  if (family == nullptr || !decides_at_run_time(*family)) return family;
  const DescribedFamily* described = find_described(p, makes ? Making::up_to_num_tokens : Making::nothing);
  return described != nullptr ? &described->family : family;
}

Status no_kernel(const AttentionPrologueParams& p) {
  return unsupported("attention_prologue: no CUDA kernel for ", dtype_name(p.dtype), " at this alignment");
}

Status launch_family(const Family& family, const AttentionPrologueParams& p, cudaStream_t stream) {
  if (family.general != nullptr) return launch_general(family, p, stream);
  if (family.described != nullptr) {
    const DescribedInstance* instance = family.described->instances.data();
    while (p.num_tokens > instance->size.max_tokens) ++instance;
    return launch_described(*instance, p, stream);
  }
  const Instance* instance = family.instances.data();
  while (p.num_tokens > instance->max_tokens || !fits(p, family.features, *instance)) ++instance;
  return launch_lean(family, *instance, p, stream);
}

std::string family_name(const Family& family) {
  if (family.general != nullptr) return str_cat(dtype_name(family.dtype), " general, ", family.vector, " channels");
  constexpr const char* kNames[] = {"layouts",    "bias",       "norm",      "given_scales", "computed_scales",
                                    "axes",       "derived",    "per_token", "common_steps", "four_bits",
                                    "most_steps", "token_norm", "every_step"};
  std::string features;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if ((family.features >> i & 1) != 0) features += str_cat(features.empty() ? "" : "+", kNames[i]);
  }
  return str_cat(dtype_name(family.dtype), " lean ", features.empty() ? "plain" : features);
}

// Of an Instance, or the size of a described one.
template <class Instance>
std::string instance_name(const std::string& family, const Instance& instance, bool few_heads) {
  const std::string limit = instance.max_tokens == kAnyTokens ? "any number of" : str_cat("up to ", instance.max_tokens);
  return str_cat(family, ", ", instance.vector, " channels, ", instance.units, " heads a thread, ", limit, " tokens",
                 few_heads ? " of few heads" : "");
}

}  // namespace

std::vector<KernelInstance<AttentionPrologueParams>> instances_of(const AttentionPrologueParams& unresolved, bool all) {
  const AttentionPrologueParams params = resolved(unresolved);
  std::vector<KernelInstance<AttentionPrologueParams>> list;
  const int64_t vector = widest_vector(params);
  for (const Family& family : families_of(params.dtype)) {
    if (!serves(family, vector, params, all ? Fit::any : Fit::close)) continue;
    if (family.general != nullptr) {
      list.push_back({family_name(family), kAnyTokens, [&family](const AttentionPrologueParams& p, cudaStream_t stream) {
                        return launch_general(family, resolved(p), stream);
                      }});
    }
    for (const Instance& instance : family.instances) {
      if (!fits(params, family.features, instance)) continue;
      list.push_back({instance_name(family_name(family), instance, instance.groups), instance.max_tokens,
                      [&family, &instance](const AttentionPrologueParams& p, cudaStream_t stream) {
                        return launch_lean(family, instance, resolved(p), stream);
                      }});
    }
  }
  return list;
}

std::vector<KernelInstance<AttentionPrologueParams>> described_instances_of(const AttentionPrologueParams& unresolved) {
  std::vector<KernelInstance<AttentionPrologueParams>> list;
  const DescribedFamily* family = find_described(resolved(unresolved), Making::everything);
  if (family == nullptr) return list;
  const std::string name = str_cat(dtype_name(unresolved.dtype), " described");
  for (const DescribedInstance& instance : family->instances) {
    list.push_back({instance_name(name, instance.size, instance.facts.few_heads != 0), instance.size.max_tokens,
                    [&instance](const AttentionPrologueParams& p, cudaStream_t stream) {
                      return launch_described(instance, resolved(p), stream);
                    }});
  }
  return list;
}

const char* kernel_kind(const AttentionPrologueParams& unresolved, bool compiles) {
  const AttentionPrologueParams p = resolved(unresolved);
  const Family* family = find_shipped(p);
  if (family == nullptr) return "none";
  if (compiles && decides_at_run_time(*family) && can_be_described(p)) return "compiled";
  return kernel_of_plan(family);
}

std::vector<std::string> attention_prologue_instances() {
  std::vector<std::string> names;
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const Family& family : families_of(type)) {
      if (family.general != nullptr) names.push_back(family_name(family));
      for (const Instance& instance : family.instances)
        names.push_back(instance_name(family_name(family), instance, instance.groups));
    }
  }
  return names;
}

Result<const void*> plan_attention_prologue(const AttentionPrologueParams& params) {
  const Family* family = find_family(params, true);
  if (family == nullptr) return no_kernel(params);
  return static_cast<const void*>(family);
}

const char* kernel_of_plan(const void* plan) {
  const auto* family = static_cast<const Family*>(plan);
  return family->described != nullptr ? "compiled" : family->general == nullptr ? "lean" : "general";
}

Status run_plan(const void* plan, const AttentionPrologueParams& params, const Execution& execution) {
  if (params.num_q_heads == 0 && !has_k(params) && !has_v(params) && params.num_groups == 0) return {};
  const auto* family = static_cast<const Family*>(plan);
  if (family->general == nullptr && lacks_slots(params)) {  // lean kernels read a slot for each token
    family = find_family(params, false);
    if (family == nullptr) return no_kernel(params);
  }
  return launch_family(*family, params, execution.stream);
}

Status attention_prologue(const AttentionPrologueParams& params, const Execution& execution) {
  const Family* family = find_family(params, false);
  return family == nullptr ? no_kernel(params) : run_plan(family, params, execution);
}

}  // namespace prologue::cuda
