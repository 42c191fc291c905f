#include <bit>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/projection/finish/head_launch.cuh>
#include <prologue/kernels/projection/finish/output_launch.cuh>
#include <prologue/kernels/projection/vector/head_kernel.cuh>
#include <prologue/kernels/projection/vector/output_kernel.cuh>

namespace prologue::cuda {

namespace {

bool can_multiply(const Product& p) {
  return p.num_tokens == 1 && is_readable(p) && p.k % 32 == 0 && device_is_hopper_or_later();
}

// Returns the fewest warps that can have a row, as a logarithm.
int fewest_row_warps(const Product& p) {
  int log_row_warps = 0;
  while (p.k * dtype_size(p.dtype) > int64_t{kVectorStepBytes} * kMostVectorSteps << log_row_warps) ++log_row_warps;
  return log_row_warps;
}

// Fills in the arguments with so many rows for each warp, of which 2^log_row_warps have the same rows and a part of k each. Returns false
// if rows are too long for that, or too many.
bool fill(VectorArgs& a, const Product& p, int64_t rows, int log_row_warps) {
  const int64_t row_bytes = p.k * dtype_size(p.dtype), step_bytes = int64_t{kVectorStepBytes} << log_row_warps;
  const int64_t steps = divide_up(row_bytes, step_bytes);
  if (rows > kMostVectorRows || steps > kMostVectorSteps || 1 << log_row_warps > kVectorWarps) return false;
  a.x = static_cast<const char*>(p.x);
  a.weight = static_cast<const char*>(p.weight);
  a.row_bytes = static_cast<int32_t>(row_bytes);
  a.rows = static_cast<int32_t>(rows);
  a.steps = static_cast<int32_t>(steps);
  a.log_row_warps = log_row_warps;
  fill_norm(a, p);
  return true;
}

// Calls visit(rows, log_row_warps) with every division of the work.
template <class Visit>
void for_each_division(const Visit& visit) {
  for (int64_t rows = 1; rows <= kMostVectorRows; rows *= 2) {
    for (int log_row_warps = 0; 1 << log_row_warps <= kVectorWarps; ++log_row_warps) visit(rows, log_row_warps);
  }
}

std::string division_name(int64_t rows, int log_row_warps) { return str_cat(", ", rows, " x ", 1 << log_row_warps); }

// ---- a linear layer ---------------------------------------------------------------------------------------------------------

std::string output_name(DType type) { return str_cat(dtype_name(type), ", vector"); }

std::optional<Launch> output_of_division(const ProjectionParams& p, int64_t rows, int log_row_warps) {
  const Product product = product_of(p);
  const bool splits_gate = is_gated(p) && 1 << log_row_warps == kVectorWarps;  // half of a warp's rows would be of gate
  VectorArgs a;
  if (splits_gate || !can_finish(p) || !can_multiply(product) || !fill(a, product, rows, log_row_warps)) return {};
  const int64_t rows_of_y = is_gated(p) ? rows_of_block(a) / 2 : rows_of_block(a);
  Launch l = output_launch(vector_outputs(p.dtype).front().kernel, a, p);
  l.blocks = divide_up(p.n, rows_of_y);
  l.threads = kVectorThreads;
  return l;
}

std::optional<Launch> choose_output(const ProjectionParams& p) {
  std::optional<Launch> l;
  if (!policy::vector_is_fastest(p.n, p.k, is_gated(p))) return l;
  const int log_row_warps = fewest_row_warps(product_of(p));
  for (int64_t rows = policy::kMostPassesOfVectorOutput * kVectorRowsOfPass; rows >= 1; rows /= 2) {
    l = output_of_division(p, rows, log_row_warps);
    if (!l || policy::has_enough_vector_blocks(rows, kVectorRowsOfPass, l->blocks)) break;
  }
  return l;
}

std::vector<std::string> output_names(DType type) {
  return vector_outputs(type).empty() ? std::vector<std::string>() : std::vector{output_name(type)};
}

void possible_outputs(const ProjectionParams& params, std::vector<PossibleLaunch<ProjectionParams>>& list) {
  for_each_division([&](int64_t rows, int log_row_warps) {
    if (!output_of_division(params, rows, log_row_warps)) return;
    list.push_back({output_name(params.dtype) + division_name(rows, log_row_warps), 1,
                    [=](const ProjectionParams& p) { return output_of_division(p, rows, log_row_warps); }});
  });
}

// ---- heads ------------------------------------------------------------------------------------------------------------------

std::string head_name(DType type, const VectorHeadInstance& instance) {
  return str_cat(dtype_name(type), ", vector", token_head_name(instance), instance.several_passes ? ", several passes" : "");
}

std::optional<Launch> heads_of_division(const HeadCall& call, const VectorHeadInstance& instance, int64_t rows,
                                        int log_row_warps) {
  const AttentionPrologueParams& prologue = call.prologue;
  VectorHeadArgs a;
  if (call.batch_invariant || (rows > kVectorRowsOfPass) != instance.several_passes || !serves_token_heads(instance, prologue) ||
      !can_multiply(call.product) || !fill(a, call.product, rows, log_row_warps)) {
    return {};
  }
  const int64_t blocks = prologue.head_dim / rows_of_block(a);
  if (blocks * rows_of_block(a) != prologue.head_dim || !std::has_single_bit(static_cast<uint64_t>(blocks)) || blocks < 2 ||
      blocks > kMaxBlocksOfCluster) {
    return {};
  }
  a.log_blocks = std::countr_zero(static_cast<uint64_t>(blocks));
  a.lanes = lanes_of_heads(instance, prologue);
  a.head_dim = static_cast<int32_t>(prologue.head_dim);
  Launch l = head_launch(instance.kernel, a, call, instance.vector);
  l.blocks = heads_of(call) * blocks;
  l.threads = kVectorThreads;
  l.cluster_blocks = static_cast<int>(blocks);
  l.shared_bytes = shared_bytes_of(a);
  return l;
}

std::optional<Launch> choose_heads(const HeadCall& call) {
  if (!saves_enough(call)) return {};
  for (const VectorHeadInstance& instance : vector_heads(call.product.dtype)) {
    const int64_t rows = instance.several_passes ? kMostVectorRows : kVectorRowsOfPass;
    const std::optional<Launch> l = heads_of_division(call, instance, rows, fewest_row_warps(call.product));
    if (l && (!instance.several_passes || policy::vector_passes_fill_the_gpu(l->blocks))) return l;
  }
  return {};
}

std::vector<std::string> head_names(DType type) {
  std::vector<std::string> names;
  for (const VectorHeadInstance& instance : vector_heads(type)) names.push_back(head_name(type, instance));
  return names;
}

void possible_heads(const HeadCall& call, std::vector<PossibleLaunch<HeadCall>>& list) {
  for (const VectorHeadInstance& instance : vector_heads(call.product.dtype)) {
    for_each_division([&](int64_t rows, int log_row_warps) {
      if (!heads_of_division(call, instance, rows, log_row_warps)) return;
      list.push_back({head_name(call.product.dtype, instance) + division_name(rows, log_row_warps), 1,
                      [=, &instance](const HeadCall& c) { return heads_of_division(c, instance, rows, log_row_warps); }});
    });
  }
}

}  // namespace

constinit const Way<ProjectionParams> kVectorOutput = {
    "vector", 1, true, false, device_is_hopper_or_later, output_names, possible_outputs, choose_output};
constinit const Way<HeadCall> kVectorHeads = {"vector",       1,           true, false, device_is_hopper_or_later, head_names,
                                              possible_heads, choose_heads};

}  // namespace prologue::cuda
