// Generates prologue cases for the random tests, the differential of CPU and CUDA, and the fuzz targets. What differs is where decisions
// come from (a Random, or the bytes of a fuzzer), how often an option is chosen, and how large the case is.
#pragma once

#include <cstdint>

#include "tests/support/prologue_case.h"
#include "tests/support/types.h"

namespace prologue::test {

// With `any`, each option is likely, with every other. With `models`, few are, as in models, so that lean kernels run.
enum class CaseOdds { any, models };

struct CaseSizes {
  int64_t num_tokens, num_q_heads, num_kv_heads, head_dim, v_head_dim;
};

// Chooses a block that head_dim, which is even, allows.
template <class Source>
int64_t any_hadamard_block(Source& source, int64_t head_dim) {
  int64_t most = 1;
  while (head_dim % (2 << most) == 0 && most < 9) ++most;
  return int64_t{1} << source.integer(1, most);
}

// Chooses the options of a case. source.integer(low, high) is a number in [low, high].
template <class Source>
PrologueCase choose_case(Source& source, CaseOdds odds, const CaseSizes& sizes) {
  const bool models = odds == CaseOdds::models;
  const auto percent = [&](int64_t chance) { return source.integer(0, 99) < chance; };
  // These are true in one of two cases, of eight, of about four; with the odds of models, in so many percent of the cases.
  const auto coin = [&](int64_t in_models) { return models ? percent(in_models) : source.integer(0, 1) == 1; };
  const auto rarely = [&](int64_t in_models) { return models ? percent(in_models) : source.integer(0, 7) == 0; };
  const auto seldom = [&](int64_t in_models) { return models ? percent(in_models) : rarely(0) || rarely(0); };
  const auto any = [&](auto last) { return static_cast<decltype(last)>(source.integer(0, static_cast<int64_t>(last))); };

  PrologueCase c;
  c.num_tokens = sizes.num_tokens;
  c.num_q_heads = sizes.num_q_heads, c.num_kv_heads = sizes.num_kv_heads;
  c.head_dim = sizes.head_dim, c.v_head_dim = sizes.v_head_dim;
  c.with_k = !rarely(0);
  c.with_v = !c.with_k || !rarely(10);
  c.v_is_k = c.with_k && c.with_v && c.v_head_dim == 0 && rarely(0);

  c.bias_q = coin(25);
  c.bias_k = models ? c.bias_q : coin(0), c.bias_v = models ? c.bias_q : coin(0);
  if (!models) {
    c.norm = any(NormPlacement::after_rope);
  } else if (percent(40)) {
    c.norm = percent(80) ? NormPlacement::before_rope : NormPlacement::after_rope;
  }
  if (!models) c.norm_kind = any(NormKind::layer);
  c.norm_scope = c.norm_kind == NormKind::rms && rarely(0) ? NormScope::token : NormScope::head;
  if (!models) c.weights = any(Weights::per_head);
  if (rarely(0)) c.k_weights = any(Weights::per_head);
  c.norm_bias = c.norm_kind == NormKind::layer && coin(0);
  c.float_weights = seldom(20);
  c.weight_offset = coin(20) ? 1.0f : 0.0f;
  if (!models) c.eps = coin(0) ? 1e-5f : 0.01f;
  if (models) {  // only one of Q and K has a norm
    if (percent(10)) c.k_norm.emplace();
    if (percent(10)) c.k_norm = c.norm_of_q(), c.norm = NormPlacement::none;
  } else if (seldom(0)) {
    CaseNorm& k = c.k_norm.emplace();
    k.placement = any(NormPlacement::after_rope);
    k.kind = any(NormKind::layer);
    k.scope = k.kind == NormKind::rms && rarely(0) ? NormScope::token : NormScope::head;
    k.weights = any(Weights::per_head);
    k.bias = k.kind == NormKind::layer && coin(0);
    k.float_weights = rarely(0);
    k.weight_offset = coin(0) ? c.weight_offset : 0.5f;
    k.eps = coin(0) ? c.eps : 0.3f;
  }
  c.v_norm = rarely(0);

  c.rotary_dim = coin(67) ? c.head_dim : 2 * source.integer(0, c.head_dim / 2);
  if (models && c.head_dim == 576 && percent(50)) c.rotary_dim = 64;
  c.rotary_offset = coin(33) ? 2 * source.integer(0, (c.head_dim - c.rotary_dim) / 2) : 0;
  c.style = models && percent(40) ? RopeStyle::neox : any(RopeStyle::interleaved);
  c.inverse = rarely(0);
  c.source = models && percent(55) ? RopeSource::table : any(RopeSource::inv_freq);
  if (c.source == RopeSource::inv_freq) {
    c.max_position = coin(50) ? 1 << 20 : 100;
    c.attention_factor = coin(100) ? 1.0f : 0.8f;
  }
  c.num_axes = coin(85) ? 1 : source.integer(1, 4);
  c.interleaved_axes = coin(50);

  if (coin(0)) c.q_scale.constant = 0.088388f;
  if (rarely(0)) c.q_scale = {1.0f, PositionScale::llama4, 0.1f, 4.0f};
  if (rarely(0)) c.q_scale = {2.0f, PositionScale::logn, 0.0f, 16.0f};
  c.per_step = rarely(0);

  c.derive_positions = seldom(30);
  c.derive_slots = models ? c.derive_positions : rarely(0) || (c.derive_positions && coin(0));
  if (c.derive_slots) c.ring_size = seldom(0) ? source.integer(1, 20) : 0;
  if (c.derive_positions && !models) c.offsets = any(Offsets::per_sequence);
  c.int64_positions = coin(50), c.int64_slots = coin(50);
  c.bad_indices = coin(50);

  c.packed = coin(70);
  c.in_place = coin(40);
  c.row_padding = coin(0) ? source.integer(0, 9) : 0;
  c.head_padding = !c.packed && coin(0) ? source.integer(0, 9) : 0;
  c.heads_first = !c.packed && coin(30);
  c.misalign = coin(0) ? source.integer(0, 16) : 0;
  if (c.num_q_heads > 0 && rarely(10)) c.q8 = coin(50) ? KvScaling::tensor : KvScaling::token_head, c.q8_e5m2 = coin(50);
  if (c.q8) c.in_place = false;
  c.k_out = seldom(0), c.v_out = seldom(0);
  c.kv_in_place = !c.v_is_k && rarely(0);
  c.cached = !rarely(0);
  if (!c.cached) c.k_out = c.v_out = true;

  if (coin(50)) c.kv_type = kKvTypes[source.integer(0, 7)];
  if (c.kv_type && !dtype_is_activation(*c.kv_type)) {
    const bool fp8 = *c.kv_type == DType::fp8_e4m3 || *c.kv_type == DType::fp8_e5m2;
    c.scaling = static_cast<KvScaling>(*c.kv_type == DType::uint4 ? 3 : source.integer(fp8 ? 0 : 1, 3));
  }
  const int64_t of_blocks = c.head_dim % 32 + (c.v_head_dim > 0 ? c.v_head_dim % 32 : 0);
  if (!c.v_type && of_blocks == 0 && seldom(10)) {
    c.kv_type = coin(50) ? DType::fp8_e4m3 : DType::fp4_e2m1;
    c.scaling = *c.kv_type == DType::fp4_e2m1 && coin(50) ? KvScaling::nv : KvScaling::mx;
  }
  if (!models) c.page_size = rarely(0) ? source.integer(1, 64) : source.integer(1, 8);
  c.layout = models && percent(40) ? CacheLayout::nhd : any(models ? CacheLayout::interleaved : CacheLayout::odd);
  c.token_faults = coin(0);
  if (coin(0)) c.past_table = any(PastTable::identity);
  c.no_faults = c.past_table != PastTable::record && rarely(0);
  if (rarely(10)) c.tokens_without_slot = source.integer(1, models ? 40 : 5);
  c.lengths_after = coin(50);
  if (!models || percent(45)) c.page_form = any(PageForm::csr_with_lengths);
  if (c.page_form == PageForm::csr_with_lengths && c.ring_size > 0) c.page_form = PageForm::csr;
  c.extremes = c.has_sequences() && c.q_scale.by_position == PositionScale::none && rarely(0);

  if (coin(20)) c.rope_type = coin(50) ? DType::f16 : DType::bf16;
  c.rope_apart = coin(10);
  c.rope_holes = rarely(0) ? source.integer(0, 9) : 0;
  c.num_blocks = seldom(10) ? source.integer(2, models ? 2 : 4) : 1;
  c.block_axes = c.num_blocks > 1 && coin(50);
  c.split_q = seldom(10);
  c.split_k = models ? c.split_q : seldom(0);
  c.one_k_rope = coin(70);
  c = fit_rotation(c);
  if (seldom(17)) c.hadamard_block = any_hadamard_block(source, c.head_dim);
  if (seldom(10)) c.v_hadamard_block = any_hadamard_block(source, c.v_width());
  if (seldom(10)) c.k_constant = coin(50) ? 1.2f : -0.0883f;
  if (seldom(10)) c.v_constant = coin(50) ? 0.707f : -3.0f;
  return c;
}

// Chooses another group of heads of a case.
template <class Source>
PrologueCase choose_group(Source& source, const PrologueCase& c) {
  const auto one_in = [&](int64_t count) { return source.integer(1, count) == 1; };
  const auto any = [&](auto last) { return static_cast<decltype(last)>(source.integer(0, static_cast<int64_t>(last))); };
  PrologueCase g = plain_group(source.integer(1, 5), one_in(3) ? source.integer(1, 9) : 2 * source.integer(1, 70));
  const bool even = g.head_dim % 2 == 0;
  g.bias_q = one_in(2);
  if (even) g.norm = any(NormPlacement::after_rope);
  g.norm_kind = any(NormKind::layer);
  g.weights = any(Weights::per_head);
  g.norm_bias = g.norm_kind == NormKind::layer && one_in(2);
  g.float_weights = one_in(4);
  g.weight_offset = one_in(4) ? 1.0f : 0.0f;
  g.eps = one_in(2) ? 1e-5f : 0.01f;

  if (even && !one_in(3)) g.rotary_dim = one_in(2) ? g.head_dim : 2 * source.integer(0, g.head_dim / 2);
  if (one_in(3)) g.rotary_offset = 2 * source.integer(0, (g.head_dim - g.rotary_dim) / 2);
  g.style = any(RopeStyle::interleaved);
  g.inverse = one_in(8);
  g.source = any(RopeSource::inv_freq);
  g.rope_type = one_in(4) ? DType::bf16 : DType::f32;
  g.rope_apart = one_in(4);
  g.num_blocks = one_in(6) ? 2 : 1;
  g.num_axes = one_in(2) ? c.num_axes : 1;
  g.interleaved_axes = one_in(2);
  g.max_position =
      g.rotary_dim == 0 && one_in(2) ? 0 : source.integer(1, 2 * std::max<int64_t>(std::min<int64_t>(c.max_position, 100), 1));
  g.past_table = c.no_faults ? (one_in(2) ? PastTable::zero : PastTable::identity) : any(PastTable::identity);
  g = fit_rotation(g);
  if (even && one_in(3)) g.hadamard_block = any_hadamard_block(source, g.head_dim);
  if (one_in(3)) g.q_scale.constant = one_in(2) ? 1.2f : -0.0883f;
  g.sigmoid = one_in(4);

  g.packed = one_in(2);
  g.heads_first = one_in(4);
  g.row_padding = one_in(4) ? source.integer(0, 9) : 0;
  g.head_padding = one_in(4) ? source.integer(0, 9) : 0;
  g.misalign = one_in(3) ? source.integer(0, 16) : 0;
  if (one_in(3)) {
    g.q8 = one_in(2) ? KvScaling::tensor : KvScaling::token_head, g.q8_e5m2 = one_in(2);
    return g;
  }
  g.cached = one_in(2);
  g.k_out = !g.cached || one_in(2);
  g.in_place = g.k_out && one_in(3);
  if (!g.cached) return g;
  g.page_size = one_in(2) ? c.page_size : source.integer(1, 9);
  g.layout = one_in(2) ? CacheLayout::odd : any(CacheLayout::hnd);
  if (one_in(3)) return g;
  g.kv_type = kKvTypes[source.integer(0, even ? 7 : 5)];
  if (dtype_is_activation(*g.kv_type)) return g;
  const bool fp8 = dtype_is_fp8(*g.kv_type);
  g.scaling = static_cast<KvScaling>(*g.kv_type == DType::uint4 ? 3 : source.integer(fp8 ? 0 : 1, 3));
  return g;
}

// Gives a case groups of heads; sometimes it has nothing else.
template <class Source>
void choose_groups(Source& source, PrologueCase& c) {
  const int64_t count = source.integer(1, kMaxHeadGroups);
  for (int64_t i = 0; i < count; ++i) c.groups.push_back(choose_group(source, c));
  if (source.integer(0, 4) != 0) return;
  c.num_q_heads = c.num_kv_heads = 0;
  c.q8.reset();
}

}  // namespace prologue::test
