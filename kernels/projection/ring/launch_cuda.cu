#include <bit>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/base/device/hopper_code.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>
#include <prologue/kernels/projection/finish/head_launch.cuh>
#include <prologue/kernels/projection/finish/output_launch.cuh>
#include <prologue/kernels/projection/ring/head_pairs_kernel.cuh>
#include <prologue/kernels/projection/ring/output_kernel.cuh>

namespace prologue::cuda {

namespace {

std::span<const RingOutputInstance> output_instances(DType type) {
  return of_16_bits(type, float16_ring_outputs, bfloat16_ring_outputs);
}
std::span<const RingHeadInstance> head_instances(DType type) { return of_16_bits(type, float16_ring_heads, bfloat16_ring_heads); }

// Returns the SMs of the current device if it can run the kernels, else 0: there is code for sm_90a only.
int64_t sms() {
  return hopper_multiprocessors([] { return bfloat16_ring_outputs().front().kernel; }, kRingThreads, 0);
}
bool runs_here() { return sms() > 0; }

bool can_multiply(const Product& p) {
  return p.num_tokens <= kMostRingTokens && p.k % kBoxChannels == 0 && p.k <= INT32_MAX / 4 && is_readable(p) && runs_here();
}

bool has_few_tokens(const Product& p) { return p.num_tokens <= kMostFewTokens; }

// Fills in what does not depend on a block's rows.
void fill(RingArgs& a, const Product& p) {
  a.num_tokens = static_cast<int32_t>(p.num_tokens);
  a.x_rows = static_cast<int32_t>(round_up(p.num_tokens, 8));
  a.k = static_cast<int32_t>(p.k);
  fill_norm(a, p);
}

OuterDim boxes_of_k(const RingArgs& a) { return {a.k / kBoxChannels, kBoxChannels, a.boxes}; }

// `dims` is a stage's box of the weights. Returns false if the driver does not take them. Of weights the L2 loads no more than was
// requested: 128 bytes of a row at a time.
bool encode_maps(RingArgs& a, const Product& p, EncodeWeights encode, std::initializer_list<OuterDim> dims) {
  return encode(a.weight, p.weight, kBoxChannels, dims, CU_TENSOR_MAP_L2_PROMOTION_L2_128B) &&
         encode_map(a.x, p.x, kBoxChannels, {{a.num_tokens, p.x_stride, a.x_rows}, boxes_of_k(a)});
}

// ---- a linear layer ---------------------------------------------------------------------------------------------------------

std::string output_name(DType type, const RingOutputInstance& instance) {
  return str_cat(dtype_name(type), ", ring of ", instance.most_tokens, " tokens and ", instance.most_rows, " rows");
}

int64_t halves_of(const ProjectionParams& p) { return is_gated(p) ? 2 : 1; }

// Returns whether each of the blocks that divide k has a stage at least.
bool can_divide_k(const RingArgs& a, const RingOutputInstance& instance) {
  const int64_t stages = divide_up(a.k, a.boxes * kBoxChannels), blocks = int64_t{1} << a.log_k_blocks;
  return blocks == 1 ||
         (a.normed == 0 && instance.most_tokens > kMostFewTokens && (blocks - 1) * divide_up(stages, blocks) < stages);
}

// `rows` counts the rows of y of a block, or of the blocks that divide k.
std::optional<Launch> output_of_rows(const ProjectionParams& p, const RingOutputInstance& instance, int64_t rows,
                                     int log_k_blocks) {
  const int64_t halves = halves_of(p);
  const Product product = product_of(p);
  RingArgs a;
  if (halves * rows > instance.most_rows || p.num_tokens > instance.most_tokens) return {};
  fill(a, product);
  a.rows = static_cast<int32_t>(halves * rows);
  a.box_rows = static_cast<int32_t>(rows);
  a.log_k_blocks = log_k_blocks;
  const int64_t blocks = divide_up(p.n, rows) << log_k_blocks;
  const bool several = instance.blocks_of_sm > 1 && blocks > sms();
  const int64_t room = several ? kSharedBytesOfSm / instance.blocks_of_sm - kSharedBytesOfSystem : kMaxSharedBytes;
  const int64_t shared_bytes = instance.lay_out(a, room);
  const bool fits = can_divide_k(a, instance) && a.stages >= 1 && shared_bytes <= room;
  if (!fits || !encode_maps(a, product, instance.encode, {{p.n, p.k, rows}, {halves, p.n * p.k, halves}, boxes_of_k(a)}))
    return {};
  Launch l = output_launch(instance.kernel, a, p);
  l.blocks = blocks;
  l.threads = kRingThreads;
  l.cluster_blocks = 1 << log_k_blocks;
  l.shared_bytes = shared_bytes;
  return l;
}

bool can_run(const ProjectionParams& p) { return can_finish(p) && can_multiply(product_of(p)); }

std::optional<Launch> choose_output(const ProjectionParams& p) {
  const Product product = product_of(p);
  if (!can_run(p) || p.num_tokens < tokens_of_rings(product.n, p.k)) return {};
  const auto rows_of = [&](int64_t blocks) {
    return policy::ring_rows(p.n, halves_of(p), kMostRingRows, has_few_tokens(product), blocks);
  };
  const bool divides_k = p.norm.given == 0 && policy::ring_divides_k(rows_of(sms()), p.k, has_few_tokens(product));
  const int log_k_blocks = divides_k ? 1 : 0;
  const int64_t rows = rows_of(sms() >> log_k_blocks);
  for (const RingOutputInstance& instance : output_instances(p.dtype)) {
    if (auto l = output_of_rows(p, instance, rows, log_k_blocks)) return l;
  }
  return {};
}

std::vector<std::string> output_names(DType type) {
  std::vector<std::string> names;
  for (const RingOutputInstance& instance : output_instances(type)) names.push_back(output_name(type, instance));
  return names;
}

// The numbers of rows are with each number of warps that divide a stage's channels, in whole 16 rows and not.
void possible_outputs(const ProjectionParams& params, std::vector<PossibleLaunch<ProjectionParams>>& list) {
  if (!can_run(params)) return;
  for (const RingOutputInstance& instance : output_instances(params.dtype)) {
    for (const int64_t rows : {8, 24, 56, 96, 128, 200, 256}) {
      for (const int log_k_blocks : {0, 1, 2}) {
        if (!output_of_rows(params, instance, rows, log_k_blocks)) continue;
        list.push_back({str_cat(output_name(params.dtype, instance), ", ", rows, " x ", 1 << log_k_blocks), instance.most_tokens,
                        [=, &instance](const ProjectionParams& p) { return output_of_rows(p, instance, rows, log_k_blocks); }});
      }
    }
  }
}

// ---- heads ------------------------------------------------------------------------------------------------------------------

std::string head_name(DType type, const RingHeadInstance& instance) {
  return str_cat(dtype_name(type), ", ring of ", instance.most_tokens, " tokens, ", instance.most_rows, " rows",
                 instance.of_pairs ? ", pairs" : "", token_head_name(instance));
}

// `rows` counts the rows of the weights of a block.
bool can_run(const HeadCall& call, const RingHeadInstance& instance, int64_t rows) {
  return !call.batch_invariant && call.product.num_tokens <= instance.most_tokens && rows >= instance.fewest_rows &&
         rows <= instance.most_rows && can_multiply(call.product);
}

bool serves_pairs(const RingHeadInstance& instance, const AttentionPrologueParams& p) {
  const bool interleaved = (instance.features & kLayouts) != 0;
  const bool whole = interleaved ? p.rope.style == RopeStyle::interleaved && p.rope.rotary_dim == p.head_dim
                                 : p.rope.rotary_dim == p.head_dim || p.rope.rotary_dim == 0;
  return whole && p.head_dim % (2 * kPairsOfBlock) == 0 && v_head_dim(p) == p.head_dim && widest_vector(p) >= instance.vector &&
         (features_of(p, instance.vector) & ~(kPerToken | kDerived)) == instance.features;
}

// After the ring there are bytes_of_heads. `encode()` encodes the tensor maps of a ring that is laid out. Returns nothing if there is no
// room for a stage.
template <class Encode>
std::optional<Launch> lay_out_heads(const HeadCall& call, const RingHeadInstance& instance, RingHeadArgs& a,
                                    int64_t bytes_of_heads, const Encode& encode) {
  const int64_t of_ring = instance.lay_out(a, kMaxSharedBytes - bytes_of_heads);
  a.heads_offset = static_cast<int32_t>(round_up(of_ring, 16));
  const int64_t shared_bytes = a.heads_offset + bytes_of_heads;
  if (a.stages < 1 || shared_bytes > kMaxSharedBytes || !encode()) return {};
  Launch l = head_launch(instance.kernel, a, call, instance.vector);
  l.threads = instance.of_pairs ? kRingPairsThreads : kRingThreads;
  l.cluster_blocks = 1 << a.log_blocks;
  l.shared_bytes = shared_bytes;
  return l;
}

// In these launches 2^log_blocks blocks in a cluster divide a head.
std::optional<Launch> heads_of_clusters(const HeadCall& call, const RingHeadInstance& instance, int log_blocks) {
  const int64_t head_dim = call.prologue.head_dim, rows = head_dim >> log_blocks;
  if (instance.of_pairs || !serves_token_heads(instance, call.prologue) || rows << log_blocks != head_dim || rows % 8 != 0 ||
      !can_run(call, instance, rows)) {
    return {};
  }
  RingHeadArgs a;
  fill(a, call.product);
  a.rows = a.box_rows = static_cast<int32_t>(rows);
  a.log_blocks = log_blocks;
  a.lanes = lanes_of_heads(instance, call.prologue);
  a.head_dim = static_cast<int32_t>(head_dim);
  auto l = lay_out_heads(call, instance, a, bytes_of_heads(a), [&] {
    return encode_maps(a, call.product, instance.encode,
                       {{heads_of(call) * head_dim, call.product.k, rows}, {1, 8, 1}, boxes_of_k(a)});
  });
  if (l) l->blocks = heads_of(call) << log_blocks;
  return l;
}

// A block has the same pairs of so many heads.
std::optional<Launch> heads_of_pairs(const HeadCall& call, const RingHeadInstance& instance, int64_t heads) {
  const int64_t rows = heads * 2 * kPairsOfBlock, k = call.product.k, head_dim = call.prologue.head_dim, all = heads_of(call);
  if (!instance.of_pairs || !serves_pairs(instance, call.prologue) || !can_run(call, instance, rows)) return {};
  const int64_t halves = (instance.features & kLayouts) == 0 ? 2 : 1, rows_of_half = head_dim / halves;
  RingHeadArgs a;
  fill(a, call.product);
  a.rows = static_cast<int32_t>(rows);
  a.box_rows = static_cast<int32_t>(2 * kPairsOfBlock / halves);  // from one block to the next
  a.head_dim = static_cast<int32_t>(head_dim);
  a.num_heads = static_cast<int32_t>(all);
  a.heads = static_cast<int32_t>(heads);
  a.log_tokens = std::bit_width(static_cast<uint64_t>(call.product.num_tokens - 1));
  auto l = lay_out_heads(call, instance, a, bytes_of_pairs(call.product.num_tokens), [&] {
    return encode_maps(
        a, call.product, instance.encode,
        {{rows_of_half, k, a.box_rows}, {halves, rows_of_half * k, halves}, {all, head_dim * k, heads}, boxes_of_k(a)});
  });
  if (l) l->blocks = head_dim / (2 * kPairsOfBlock) * divide_up(all, heads);
  return l;
}

std::optional<Launch> choose_heads(const HeadCall& call) {
  const Product& p = call.product;
  if (!saves_enough(call) || p.num_tokens < policy::kFewestTokensOfRingHeads) return {};
  const int64_t heads = heads_of(call), head_dim = call.prologue.head_dim;
  const int64_t of_block = policy::ring_heads_of_block(heads, head_dim / (2 * kPairsOfBlock), sms());
  if (of_block * 2 * kPairsOfBlock >= policy::fewest_rows_of_ring_heads(p.k)) {
    for (const RingHeadInstance& instance : head_instances(p.dtype)) {
      if (auto l = heads_of_pairs(call, instance, of_block)) return l;
    }
  }
  for (const RingHeadInstance& instance : head_instances(p.dtype)) {
    for (int log_blocks = std::countr_zero(static_cast<unsigned>(kMaxBlocksOfCluster)); log_blocks >= 0; --log_blocks) {
      const auto division = policy::ring_divides_heads(heads, head_dim, p.k, log_blocks, sms());
      if (division == policy::RingDivision::too_many_blocks) continue;
      if (division == policy::RingDivision::too_few_rows) return {};
      if (auto l = heads_of_clusters(call, instance, log_blocks)) return l;
    }
  }
  return {};
}

std::vector<std::string> head_names(DType type) {
  std::vector<std::string> names;
  for (const RingHeadInstance& instance : head_instances(type)) names.push_back(head_name(type, instance));
  return names;
}

void possible_heads(const HeadCall& call, std::vector<PossibleLaunch<HeadCall>>& list) {
  for (const RingHeadInstance& instance : head_instances(call.product.dtype)) {
    const std::string name = head_name(call.product.dtype, instance);
    for (int64_t heads = 1; heads * 2 * kPairsOfBlock <= instance.most_rows; ++heads) {
      if (!heads_of_pairs(call, instance, heads)) continue;
      list.push_back({str_cat(name, ", ", heads, " of them"), instance.most_tokens,
                      [=, &instance](const HeadCall& c) { return heads_of_pairs(c, instance, heads); }});
    }
    for (int log_blocks = 0; 1 << log_blocks <= kMaxBlocksOfCluster; ++log_blocks) {
      if (!heads_of_clusters(call, instance, log_blocks)) continue;
      list.push_back({str_cat(name, ", ", 1 << log_blocks, " blocks"), instance.most_tokens,
                      [=, &instance](const HeadCall& c) { return heads_of_clusters(c, instance, log_blocks); }});
    }
  }
}

}  // namespace

constinit const Way<ProjectionParams> kRingOutput = {"ring",       kMostRingTokens,  true,         false, runs_here,
                                                     output_names, possible_outputs, choose_output};
constinit const Way<HeadCall> kRingHeads = {"ring",    kMostRingTokens, true,           false,
                                            runs_here, head_names,      possible_heads, choose_heads};

}  // namespace prologue::cuda
