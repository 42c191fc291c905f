#include <prologue/kernels/attention_prologue/described/described.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>

#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/attention_prologue/steps/head_plan.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/shared/head_sum.h>
#include <prologue/kernels/base/status.h>

namespace prologue::cuda {

namespace {

HeadFacts head_facts(const HeadPlan& plan) {
  HeadFacts facts;
  facts.width = static_cast<int32_t>(plan.width);
  facts.biased = plan.bias != nullptr ? 1 : 0;
  facts.hadamard_block = plan.hadamard_block;
  facts.scaled = plan.constant != 1.0f ? 1 : 0;
  const HeadNorm& norm = plan.norm;
  facts.norm = norm.placement;
  if (!normed(norm)) return facts;
  facts.kind = norm.kind;
  facts.scope = norm.scope;
  facts.weighted = norm.weight != nullptr ? 1 : 0;
  facts.norm_biased = norm.bias != nullptr ? 1 : 0;
  facts.float_weights = norm.weight_type == DType::f32 ? 1 : 0;
  facts.weights_of_head = norm.weight_head_stride != 0 ? 1 : 0;
  return facts;
}

void add_store(HeadFacts& facts, DType type, KvScaling scaling) {
  facts.store = type;
  facts.scale_from = scale_source(scaling);
}

// Returns how many bytes all heads of an array are aligned to, at most 16. Strides are in elements of `bits`.
int32_t alignment(const void* data, std::initializer_list<int64_t> strides, int64_t bits) {
  uint64_t all = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data)) | 16;
  for (const int64_t stride : strides) all |= static_cast<uint64_t>(stride * bits / 8);
  return static_cast<int32_t>(all & (~all + 1));
}

int32_t alignment(const HeadsView& heads, int64_t bits) {
  return alignment(heads.data, {heads.token_stride, heads.head_stride}, bits);
}

// Returns the rows of a block, in whole warps, that has all heads of q and k, and with `v` those of v.
int64_t rows_of_token(const AttentionPrologueParams& p, int lanes, bool v) {
  const auto rows = [&](bool has, int64_t heads) { return has ? round_up(heads, int64_t{std::max(32 / lanes, 1)}) : 0; };
  return rows(true, p.num_q_heads) + rows(has_k(p), p.num_kv_heads) + rows(v && has_v(p), p.num_kv_heads);
}

bool fits_a_block(const AttentionPrologueParams& p, int lanes) {
  const int64_t rows = rows_of_token(p, lanes, false);
  return rows * lanes <= kMaxTokenThreads && rows <= kMaxTokenRows;
}

const char* type_in_kernels(DType type) {
  return type == DType::f16 ? "__half" : type == DType::bf16 ? "__nv_bfloat16" : "float";
}

constexpr int kHeadsOfThread = 2;  // with many tokens

bool heads_are_aligned(const CallFacts& facts) {
  for (const HeadFacts& head : facts.heads) {
    const bool stored_in_vectors = dtype_bits(head.store) == 4 || head.out_alignment >= (head.store == DType::unset ? 16 : 8);
    if (head.in_alignment < 16 || !stored_in_vectors || head.second_alignment < 16) return false;
  }
  return true;
}

// Whether a thread had better compute its heads at once: their lanes do something together, and are enough to do it for several.
bool computes_together(const CallFacts& facts, int vector) {
  bool shares = false, one_weight = true;
  for (const HeadFacts& head : facts.heads) {
    shares = shares || head.norm != NormPlacement::none || head.scale_from == ScaleFrom::computed;
    one_weight = one_weight && head.weights_of_head == 0;
    if (head.hadamard_block != 0) return false;  // its values of two heads are too many registers
  }
  return shares && one_weight && vector == kSumPiece && in_order(facts, vector) && lanes_of_head(facts, vector) >= kHeadsOfThread;
}

}  // namespace

PackedFacts packed(const CallFacts& facts) { return std::bit_cast<PackedFacts>(facts); }

std::optional<CallFacts> facts_of(const AttentionPrologueParams& p, int64_t vector) {
  if (p.num_groups > 0) return std::nullopt;
  CallFacts facts;
  const HeadPlans plans = head_plans(p);
  const HeadPlan* const of_heads[3] = {&plans.q, &plans.k, &plans.v};
  for (int i = 0; i < 3; ++i) facts.heads[i] = head_facts(*of_heads[i]);
  auto& [q, k, v] = facts.heads;
  q.scaled = p.q_scale.constant != 1.0f || p.q_scale.by_position != PositionScale::none ? 1 : 0;
  q.rotates = k.rotates = p.rope.rotary_dim > 0 ? 1 : 0;
  q.apart = p.q_rope.data != nullptr ? 1 : 0;
  k.apart = p.k_rope.data != nullptr ? 1 : 0;
  const int64_t bits = dtype_size(p.dtype) * 8;
  const auto in = [&](HeadFacts& head, const HeadsView& heads, const HeadsView& apart) {
    head.in_alignment = std::min(alignment(heads, bits), alignment(apart, bits));
  };
  in(q, p.q, p.q_rope);
  in(k, p.k, p.k_rope);
  in(v, p.v, {});
  q.has_out = 1;
  q.out_alignment = alignment(as_input(p.q_out), bits);
  if (p.q8_out.data != nullptr) {
    add_store(q, p.q8_out.type, p.q8_out.scaling);
    q.out_alignment = alignment(p.q8_out.data, {p.q8_out.token_stride, p.q8_out.head_stride}, 8);
  }
  bool packs = true;
  const auto side = [&](HeadFacts& head, const PagedHeads& cache, const MutableHeadsView& second) {
    head.has_out = cache.data != nullptr ? 1 : 0;
    head.has_second_out = second.data != nullptr ? 1 : 0;
    head.second_alignment = alignment(as_input(second), bits);
    const PageStrides& strides = cache.strides;
    head.out_alignment = alignment(cache.data, {strides.page, strides.token, strides.head}, dtype_bits(cache.format.type));
    if (cache.data == nullptr || cache.format.type == p.dtype) return;
    add_store(head, cache.format.type, cache.format.scaling);
    if (is_block_scaled(cache.format)) {
      head.block_scaling = cache.format.scaling;
      head.block_scale_layout = cache.block_scale_layout;
    }
    packs = packs && (dtype_bits(cache.format.type) != 4 || packs_whole_vectors(cache, vector));
  };
  if (has_k(p)) side(k, p.cache.k, p.k_out);
  if (has_v(p)) side(v, p.cache.v, p.v_out);
  if (!packs) return std::nullopt;
  // A tensor that the call has not has the facts of another, so that they are one constant.
  const bool has[3] = {p.num_q_heads > 0, has_k(p), has_v(p)};
  const int first = has[0] ? 0 : has[1] ? 1 : 2;
  for (int i = 0; i < 3; ++i) {
    if (!has[i]) facts.heads[i] = facts.heads[first];
  }

  const Rope& rope = p.rope;
  facts.num_axes = static_cast<int32_t>(rope.num_axes);
  facts.past_table = rope.past_table;
  if (rope.rotary_dim > 0) {
    facts.rotary_dim = static_cast<int32_t>(rope.rotary_dim);
    facts.num_blocks = static_cast<int32_t>(rope.num_blocks);
    facts.style = rope.style;
    facts.source = rope.source;
    facts.table = rope.type;
    facts.has_pair_axis = rope.pair_axis != nullptr ? 1 : 0;
    facts.inverse = rope.inverse != 0 ? 1 : 0;
  }
  for (HeadFacts& head : facts.heads) {
    head.cut_dim = head.width / 2 % static_cast<int32_t>(vector) == 0 ? head.width : 0;
    if (head.rotates == 0) continue;
    head.cut_dim = facts.rotary_dim;
    head.cut_offset = static_cast<int32_t>(rope.rotary_offset);
    head.cut_blocks = facts.num_blocks;
    head.cut_style = facts.style;
  }
  const int wide = static_cast<int>(vector);
  if (has_blocks(facts) && !(in_order(facts, wide) && has_whole_blocks(facts, wide))) return std::nullopt;
  facts.rounds = p.rounding == Rounding::per_step ? 1 : 0;
  facts.by_position = p.num_q_heads > 0 ? p.q_scale.by_position : PositionScale::none;

  const TokenPlaces& places = p.places;
  if (places.positions.data != nullptr) facts.positions = places.positions.type;
  if (writes_cache(p) && places.slot_mapping.data != nullptr) {
    facts.slots = places.slot_mapping.type;
    facts.fewer_slots = lacks_slots(p) ? 1 : 0;
  }
  facts.derives_position = derives_positions(p) ? 1 : 0;
  facts.derives_slot = derives_slots(p) ? 1 : 0;
  if (facts.derives_position != 0 || facts.derives_slot != 0) {
    if (places.num_seqs < 1) return std::nullopt;
    facts.length_of = sequence_args(places).length_of;
    facts.lists_pages = places.page_table.kv_indptr != nullptr ? 1 : 0;
    facts.in_ring = places.ring_size > 0 ? 1 : 0;
    if (places.position_offsets.data != nullptr) {
      facts.position_offsets = places.position_offsets.type;
      facts.offset_per_sequence = places.position_offset_per_seq != 0 ? 1 : 0;
    }
  }

  // Neither angles that a block computes nor a search for its token's sequence is of several tokens.
  const bool of_one_token = facts.source == RopeSource::inv_freq || facts.derives_position != 0 || facts.derives_slot != 0;
  const bool has_whole_vectors = vector * dtype_size(p.dtype) == 16 && in_order(facts, static_cast<int>(vector));
  facts.few_heads = has_few_heads(p) && has_whole_vectors && !of_one_token && !normed_over_token(facts) ? 1 : 0;

  const int lanes = lanes_of_head(facts, static_cast<int>(vector));
  if (lanes > (lanes_cooperate(facts) ? 32 : kMaxTokenThreads)) return std::nullopt;
  if (normed_over_token(facts)) {
    if (!fits_a_block(p, lanes)) return std::nullopt;
    facts.token_threads = static_cast<int32_t>(std::min<int64_t>(rows_of_token(p, lanes, true) * lanes, kMaxTokenThreads));
  }
  if (rope.rotary_dim > 0 && rope_rows_are_given(rope.source)) {
    const int64_t most = std::numeric_limits<uint32_t>::max() / dtype_size(rope.type);
    if (rope.cos.row_stride > most || rope.sin.row_stride > most) return std::nullopt;
  }
  return facts;
}

std::vector<DescribedSize> described_sizes(DType dtype, const CallFacts& facts, int64_t vector) {
  constexpr int64_t kAnyTokens = std::numeric_limits<int64_t>::max();
  constexpr int kHintedAll = kEvictFirstLoads | kEvictFirstStores;
  const int wide = static_cast<int>(vector), lanes = lanes_of_head(facts, wide);
  if (normed_over_token(facts)) {
    const int threads = facts.token_threads;
    return {{128, wide, 1, false, kEvictFirstLoads, threads, 1},
            {kAnyTokens, wide, 1, false, kHintedAll, threads, std::max(1152 / threads, 1)}};
  }
  if (wide * dtype_size(dtype) < 16 || lanes > 32) {
    return {{kAnyTokens, wide, 1, false, kHintedAll, std::max(lanes, 128), 1}};
  }
  const bool cooperate = lanes_cooperate(facts), aligned = heads_are_aligned(facts);
  int narrow = cooperate ? wide / 2 : wide / 4;  // few tokens: the fewer instructions of a thread, the better
  while (lanes_of_head(facts, narrow) > 32) narrow *= 2;
  // Threads that access single channels had better be neighbours.
  if (!aligned) return {{kAnyTokens, narrow, 1, false, kHintedAll, 128, 4}};
  const bool together = computes_together(facts, wide);
  std::vector<DescribedSize> sizes;
  if (narrow < wide) sizes.push_back({32, narrow, 1, false, kEvictFirstLoads, cooperate ? 128 : 256, 1});
  sizes.push_back({64, wide, 1, false, kNoHints, 64, 4});
  // With many tokens a thread has several heads, unless their lanes must work together for one head after the other.
  const bool one_head = (cooperate && !together) || facts.few_heads != 0;
  sizes.push_back({one_head ? kAnyTokens : 4096, wide, 1, false, kHintedAll, 64, 14});
  if (!one_head) sizes.push_back({kAnyTokens, wide, kHeadsOfThread, together, kNoHints, 192, together ? 4 : 5});
  return sizes;
}

std::string described_name(DType dtype, const CallFacts& facts, const DescribedSize& size) {
  std::string words;
  for (const int32_t word : packed(facts).words) words += str_cat(words.empty() ? "" : ",", word);
  return str_cat("prologue::cuda::described_prologue_kernel<", type_in_kernels(dtype), ", ", size.vector, ", ", size.units, ", ",
                 size.together ? "true" : "false", ", ", size.hints, ", ", size.threads, ", ", size.blocks,
                 ", prologue::cuda::KnownFacts<prologue::cuda::PackedFacts{{", words, "}}>>");
}

}  // namespace prologue::cuda
