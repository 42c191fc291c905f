#include <prologue/kernels/attention_prologue/prologue_choice.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

#include <prologue/kernels/attention_prologue/head_groups.h>
#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/steps/head_plan.h>
#include <prologue/kernels/base/shared/rope_pairs.h>

namespace prologue::cuda {

namespace {

// ---- the widest vector ------------------------------------------------------------------------------------------------------

// Says what must be aligned to a vector: pointers and strides of an array whose elements have `bits`, a vector of V of them
// being moved at most 16 bytes at a time.
struct Alignment {
  int64_t vector;
  bool with_heads;
  bool ok = true;

  int64_t bytes(int64_t bits) const { return std::min<int64_t>(vector * bits / 8, 16); }
  void pointer(const void* data, int64_t bits) {
    if (bytes(bits) > 0) ok = ok && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes(bits)) == 0;
  }
  void strides(std::initializer_list<int64_t> list) {
    for (const int64_t stride : list) ok = ok && stride % vector == 0;
  }
  void heads(const HeadsView& view, int64_t bits) {
    if (view.data == nullptr || !with_heads) return;
    pointer(view.data, bits);
    strides({view.token_stride, view.head_stride});
  }
  void pages(const PagedHeads& side) {
    if (side.data == nullptr || !with_heads || dtype_bits(side.format.type) == 4) return;  // stored byte by byte
    pointer(side.data, dtype_bits(side.format.type));
    strides({side.strides.page, side.strides.token, side.strides.head});
  }
};

// Without `heads` only what a kernel that is made for a call reads in whole vectors: not the heads themselves.
bool fits(const AttentionPrologueParams& p, int64_t vector, bool heads) {
  const int64_t bits = dtype_size(p.dtype) * 8;
  Alignment a = {vector, heads};
  const int64_t rotary = p.rope.rotary_dim;
  a.strides({p.head_dim - rotary, rotary > 0 ? pairs_of_block(p.rope) : 0, rotary > 0 ? p.rope.rotary_offset : 0});
  const auto norm_over = [&](const HeadNorm& of, int64_t head_dim) {
    a.strides({head_dim / 2, of.weight_head_stride});
    for (const void* values : {of.weight, of.bias}) a.pointer(values, dtype_bits(of.weight_type));
  };
  if (q_normed(p)) norm_over(p.q_norm, p.head_dim);
  if (k_normed(p)) norm_over(p.k_norm, p.head_dim);
  const auto q8_out = [&](const QuantizedQuery& q8) {
    if (q8.data == nullptr || !heads) return;
    a.pointer(q8.data, 8);
    a.strides({q8.token_stride, q8.head_stride});
  };
  const auto rows = [&](const Rope& rope) {
    if (rope.rotary_dim == 0 || !rope_rows_are_given(rope.source)) return;
    for (const RopeColumns* columns : {&rope.cos, &rope.sin}) {
      a.pointer(columns->data, dtype_size(rope.type) * 8);
      a.strides({columns->row_stride});
    }
  };
  if (p.num_q_heads > 0) {
    a.heads(p.q, bits);
    a.heads(p.q_rope, bits);
    a.heads(as_input(p.q_out), bits);
    a.pointer(p.bias.q, bits);
    q8_out(p.q8_out);
  }
  if (has_k(p)) {
    a.heads(p.k, bits);
    a.heads(p.k_rope, bits);
    a.heads(as_input(p.k_out), bits);
    a.pointer(p.bias.k, bits);
    a.pages(p.cache.k);
  }
  if (has_v(p)) {
    a.strides({v_head_dim(p)});
    if (p.v_norm.placement != NormPlacement::none) a.strides({v_head_dim(p) / 2});
    a.heads(p.v, bits);
    a.heads(as_input(p.v_out), bits);
    a.pointer(p.bias.v, bits);
    a.pages(p.cache.v);
  }
  rows(p.rope);
  for (int64_t i = 0; i < p.num_groups; ++i) {
    const HeadGroup group = group_of(p, i);
    const Rope& rope = group.rope;
    const bool rotates = rope.rotary_dim > 0;
    a.strides({group.head_dim, rope.rotary_dim, rotates ? pairs_of_block(rope) : 0, rotates ? rope.rotary_offset : 0});
    if (normed(group.norm)) norm_over(group.norm, group.head_dim);
    a.heads(group.in, bits);
    a.heads(as_input(group.out), bits);
    q8_out(group.q8_out);
    a.pointer(group.bias, bits);
    a.pages(group.cache);
    rows(rope);
  }
  return a.ok;
}

// ---- what a lean instance must be able to do --------------------------------------------------------------------------------

constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();

bool whole_heads(const AttentionPrologueParams& p) {
  return p.rope.rotary_dim == 0 || (p.rope.rotary_dim == p.head_dim && p.rope.style == RopeStyle::neox);
}

// Returns true if the call needs nothing that lean kernels cannot do.
bool lean(const AttentionPrologueParams& p) {
  const Rope& r = p.rope;
  if (p.num_groups > 0) return false;
  if (p.num_q_heads + 2 * p.num_kv_heads > kMaxBlocksOfToken) return false;
  const bool no_cache = (has_k(p) && p.cache.k.data == nullptr) || (has_v(p) && p.cache.v.data == nullptr);
  const HeadPlans plans = head_plans(p);
  if (!lean_kernels_have(plans.q) || !lean_kernels_have(plans.k) || !lean_kernels_have(plans.v)) return false;
  if (no_cache || (r.rotary_dim > 0 && (!one_table(r) || r.num_blocks > 1))) return false;
  if (p.q_rope.data != nullptr || p.k_rope.data != nullptr) return false;
  return !has_v(p) || v_head_dim(p) == p.head_dim;
}

// Returns whether something other than norms and biases needs kMostSteps.
bool has_most_steps(const AttentionPrologueParams& p) {
  const bool scaled = p.q_scale.constant != 1.0f || p.q_scale.by_position != PositionScale::none;
  const bool both_outputs = p.k_out.data != nullptr || p.v_out.data != nullptr;
  const bool in_ring = derives_slots(p) && p.places.ring_size > 0;
  return (p.num_q_heads > 0 && scaled) || both_outputs || p.rope.inverse != 0 || in_ring || (has_v(p) && normed(p.v_norm));
}

// Returns whether something needs kEveryStep.
bool has_every_step(const AttentionPrologueParams& p) {
  return p.hadamard_block != 0 || (has_v(p) && p.v_hadamard_block != 0) || p.rounding == Rounding::per_step ||
         (p.rope.past_table == PastTable::identity && p.rope.max_position > 0);
}

// Returns whether the norm is the one that kNorm stands for.
bool is_usual(const HeadNorm& norm, DType dtype) {
  return norm.placement == NormPlacement::before_rope && norm.kind == NormKind::rms && norm.scope == NormScope::head &&
         norm.weight != nullptr && norm.weight_head_stride == 0 && norm.weight_type == dtype;
}

// The features that a scaling asks for.
int scales_of(KvScaling scaling) { return scaling == KvScaling::token_head ? kComputedScales : kGivenScales; }

}  // namespace

int64_t widest_vector(const AttentionPrologueParams& p) {
  int64_t vector = 16 / dtype_size(p.dtype);
  while (vector > 1 && !fits(p, vector, true)) vector /= 2;
  return vector;
}

int64_t widest_described_vector(const AttentionPrologueParams& p) {
  int64_t vector = 16 / dtype_size(p.dtype);
  while (vector > 1 && !fits(p, vector, false)) vector /= 2;
  return vector;
}

int64_t units_of_all(const AttentionPrologueParams& p, int64_t vector) {
  const auto units = [&](int64_t head_dim, const Rope& rope) {
    return units_of({static_cast<int32_t>(head_dim), static_cast<int32_t>(rope.rotary_dim)}, vector);
  };
  int64_t most = std::max(units(p.head_dim, p.rope), has_v(p) ? units(v_head_dim(p), {}) : 0);
  for (int64_t i = 0; i < p.num_groups; ++i) most = std::max(most, units(p.groups[i].head_dim, p.groups[i].rope));
  return most;
}

bool has_few_heads(const AttentionPrologueParams& p) {
  constexpr int64_t kFewChannels = 24 * 128;
  const int64_t heads = p.num_q_heads + p.num_kv_heads * ((has_k(p) ? 1 : 0) + (has_v(p) ? 1 : 0));
  return heads * p.head_dim <= kFewChannels && std::max(p.num_q_heads, p.num_kv_heads) <= kMaxHeadsOfGroup;
}

bool packs_whole_vectors(const PagedHeads& side, int64_t vector) {
  for (const int64_t stride : {side.strides.page, side.strides.token, side.strides.head}) {
    if (stride % vector != 0) return false;
  }
  return vector >= 2 && reinterpret_cast<uintptr_t>(side.data) % static_cast<uintptr_t>(vector / 2) == 0;
}

bool fits_32_bits(const AttentionPrologueParams& p) {
  for (const int64_t stride : {p.q.token_stride, p.k.token_stride, p.v.token_stride, p.q_out.token_stride, p.q8_out.token_stride,
                               p.cache.k.strides.page, p.cache.k.strides.token, p.cache.v.strides.page, p.cache.v.strides.token,
                               p.cache.k.scale_strides.page, p.cache.k.scale_strides.token, p.cache.v.scale_strides.page,
                               p.cache.v.scale_strides.token, p.places.page_table.block_table_stride, p.k_out.token_stride,
                               p.v_out.token_stride, p.q_rope.token_stride, p.k_rope.token_stride}) {
    if (stride > kMost / 4) return false;
  }
  const int64_t heads = std::max<int64_t>({p.num_q_heads, p.num_kv_heads, 1});
  for (const int64_t stride :
       {p.q.head_stride, p.k.head_stride, p.v.head_stride, p.q_out.head_stride, p.q8_out.head_stride, p.cache.k.strides.head,
        p.cache.v.strides.head, p.cache.k.scale_strides.head, p.cache.v.scale_strides.head, p.head_dim, p.k_out.head_stride,
        p.v_out.head_stride, p.q_norm.weight_head_stride, p.k_norm.weight_head_stride, p.v_norm.weight_head_stride,
        p.q_rope.head_stride, p.k_rope.head_stride}) {
    if (stride > kMost / 4 / heads) return false;
  }
  return !(writes_cache(p) && num_slots(p.cache) > kMost / 2) && p.rope.max_position <= kMost / 2;
}

int features_of(const AttentionPrologueParams& p, int64_t vector) {
  if (!lean(p) || !fits_32_bits(p)) return -1;
  const auto q_and_k_have = [&](const void* q, const void* k) {
    return (p.num_q_heads == 0 || q != nullptr) && (!has_k(p) || k != nullptr);
  };
  int features = has_most_steps(p) ? kMostSteps : 0;
  if (has_every_step(p)) features |= kMostSteps | kEveryStep;
  if (!whole_heads(p) || (p.head_dim / 2) % vector != 0) features |= kLayouts;
  if (p.bias.q != nullptr || p.bias.k != nullptr || p.bias.v != nullptr) {
    const bool all = q_and_k_have(p.bias.q, p.bias.k) && (!has_v(p) || p.bias.v != nullptr);
    features |= all ? kBias : kMostSteps;
  }
  if (q_normed(p) || k_normed(p)) {
    const HeadNorm &q = p.q_norm, &k = p.k_norm;
    const bool both = p.num_q_heads > 0 && has_k(p);
    const bool usual = (p.num_q_heads == 0 || is_usual(q, p.dtype)) && (!has_k(p) || is_usual(k, p.dtype)) &&
                       (!both || (q.eps == k.eps && q.weight_offset == k.weight_offset));
    features |= usual && (features & kLayouts) == 0 ? kNorm : kMostSteps;
    if (normed_over_token(p)) features |= kTokenNorm;
  }
  if (p.q8_out.data != nullptr) features |= scales_of(p.q8_out.scaling);
  const auto store = [&](const PagedHeads& side) {
    if (side.format.type == p.dtype) return true;
    if (is_block_scaled(side.format)) return false;
    features |= scales_of(side.format.scaling);
    if (dtype_bits(side.format.type) == 4) features |= kFourBits;
    return dtype_bits(side.format.type) == 8 || (dtype_bits(side.format.type) == 4 && packs_whole_vectors(side, vector));
  };
  if ((has_k(p) && !store(p.cache.k)) || (has_v(p) && !store(p.cache.v))) return -1;
  if (derives_positions(p) != derives_slots(p) && writes_cache(p)) return -1;
  if (lacks_slots(p)) return -1;
  if (derives_slots(p)) {
    const TokenPlaces& places = p.places;
    if (places.ring_size > std::numeric_limits<int32_t>::max() || places.position_offsets.data != nullptr) return -1;
    if (places.page_table.kv_indptr != nullptr) return -1;
    if (places.num_seqs < 1 || places.page_table.max_pages_per_seq < 1) return -1;
    features |= kDerived;
  } else if (derives_positions(p)) {
    return -1;
  } else if (p.rope.num_axes > 1) {
    const uint8_t* axes = p.rope.pair_axis;
    if (p.rope.rotary_dim == 0 || axes == nullptr || p.rope.source != RopeSource::table) return -1;
    if (reinterpret_cast<uintptr_t>(axes) % static_cast<uintptr_t>(vector) != 0) return -1;
    features |= kAxes;
  }
  if (!has_steps(features)) {
    if (p.rope.rotary_dim == 0) features |= kLayouts;
    if (p.rope.rotary_dim > 0 && p.rope.source == RopeSource::per_token) features |= kPerToken;
  }
  return features;
}

}  // namespace prologue::cuda
