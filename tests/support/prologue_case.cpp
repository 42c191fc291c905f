#include "tests/support/prologue_case.h"

namespace prologue::test {

CaseNorm PrologueCase::norm_of_k() const {
  CaseNorm of_k = norm_of_q();
  of_k.weights = k_weights.value_or(weights);
  return k_norm.value_or(of_k);
}

std::string PrologueCase::describe() const {
  std::string text = str_cat("T=", num_tokens, " Hq=", num_q_heads, " Hkv=", num_kv_heads, " D=", head_dim, " Dv=", v_head_dim,
                             " k=", with_k, " v=", with_v, " v_is_k=", v_is_k, " bias=", bias_q, bias_k, bias_v);
  const auto add_norm = [&](const char* name, const CaseNorm& n) {
    text += str_cat(name, static_cast<int>(n.placement), "/", static_cast<int>(n.kind), "/", static_cast<int>(n.scope), "/",
                    static_cast<int>(n.weights), "/", n.bias, n.float_weights ? "f32" : "", "/", n.weight_offset, "/", n.eps);
  };
  add_norm(" q_norm=", norm_of_q());
  add_norm(" k_norm=", norm_of_k());
  text += str_cat(" v_norm=", v_norm);
  text += str_cat(" r=", rotary_dim, "@", rotary_offset, " ", rope_style_name(style), " inverse=", inverse,
                  " source=", static_cast<int>(source), "/", dtype_name(rope_type), rope_apart, "+", rope_holes,
                  " blocks=", num_blocks, block_axes, " factor=", attention_factor, " axes=", num_axes,
                  interleaved_axes ? "i" : "s", " max=", max_position, "/", static_cast<int>(past_table),
                  " hadamard=", hadamard_block, "/", v_hadamard_block, " q_scale=", q_scale.constant, "/", static_cast<int>(q_scale.by_position),
                  " kv_constants=", k_constant, "/", v_constant);
  text += str_cat(" per_step=", per_step, " derive=", derive_positions, derive_slots, " after=", lengths_after,
                  " pages=", static_cast<int>(page_form), " ring=", ring_size, " offsets=", static_cast<int>(offsets),
                  " pos64=", int64_positions, " slot64=", int64_slots, " no_slot=", tokens_without_slot, " bad=", bad_indices,
                  extremes);
  text +=
      str_cat(" packed=", packed, " split=", split_q, split_k, one_k_rope, " in_place=", in_place, kv_in_place,
              " row_padding=", row_padding, " head_padding=", head_padding, " heads_first=", heads_first, " misalign=", misalign);
  text += str_cat(" q8=", q8 ? static_cast<int>(*q8) : -1, q8_e5m2 ? "e5m2" : "", " out=", k_out, v_out, " cached=", cached,
                  " kv=", kv_type ? dtype_name(*kv_type) : "dtype", v_type ? str_cat(",", dtype_name(*v_type)) : std::string(),
                  "/", static_cast<int>(scaling), " page=", page_size, " layout=", static_cast<int>(layout),
                  " flags=", token_faults, " values=", static_cast<int>(values), " seed=", seed);
  if (sigmoid) text += " sigmoid";
  for (const PrologueCase& group : groups) text += str_cat("\n  group ", group.describe());
  return text;
}

PrologueCase plain_case(int64_t num_tokens) {
  PrologueCase c;
  c.num_tokens = num_tokens;
  c.bad_indices = false;
  c.bias_q = c.bias_k = c.bias_v = true;
  return c;
}

PrologueCase plain_group(int64_t num_heads, int64_t head_dim) {
  PrologueCase c;
  c.num_q_heads = num_heads, c.num_kv_heads = 0, c.head_dim = head_dim;
  c.rotary_dim = 0, c.max_position = 0;
  c.packed = c.cached = false, c.k_out = true;
  return c;
}

PrologueCase gate_of_heads(const PrologueCase& c) {
  PrologueCase gate = plain_group(c.num_q_heads, c.head_dim);
  gate.packed = true;
  return gate;
}

std::vector<PrologueCase> deepseek_indexer() {
  PrologueCase q = plain_group(8, 128);
  q.rotary_dim = 64, q.max_position = 40;
  q.hadamard_block = 128;
  PrologueCase k = q;
  q.q8 = KvScaling::token_head, q.k_out = false;
  k.num_q_heads = 1;
  k.norm = NormPlacement::before_rope, k.norm_kind = NormKind::layer, k.norm_bias = k.float_weights = true;
  k.cached = k.scales_in_page = true, k.k_out = false;
  k.kv_type = DType::fp8_e4m3, k.scaling = KvScaling::token_head, k.page_size = 64;
  return {q, k};
}

std::vector<PrologueCase> minimax_indexer() {
  PrologueCase q = plain_group(4, 64);
  q.rotary_dim = 32, q.max_position = 40;
  q.norm = NormPlacement::before_rope;
  PrologueCase k = q;
  k.num_q_heads = 1;
  k.cached = true, k.k_out = false;
  return {q, k};
}

PrologueCase fit_rotation(PrologueCase c) {
  c.rotary_dim -= c.rotary_dim % (2 * c.num_blocks);
  if (c.block_axes) c.num_axes = c.num_blocks;
  c.split_k = c.split_k && !c.v_is_k;
  if (c.rotary_dim == 0 || c.rotary_dim == c.head_dim) c.split_q = c.split_k = false;
  c.one_k_rope = c.one_k_rope && c.split_k;
  if (!c.split_q && !c.split_k) return c;
  c.rotary_offset = c.rotary_offset > 0 ? c.head_dim - c.rotary_dim : 0;
  c.packed = false;
  c.in_place = c.in_place && !c.split_q;
  c.kv_in_place = c.kv_in_place && !c.split_k;
  return c;
}

namespace {

void set_norm(const CaseNorm& of, int64_t head_dim, HeadNorm& norm) {
  norm.placement = of.placement;
  norm.kind = of.kind;
  norm.scope = of.scope;
  norm.eps = of.eps;
  norm.weight_offset = of.weight_offset;
  norm.weight_head_stride = of.weights == Weights::per_head ? head_dim : 0;
  norm.weight_type = of.float_weights ? DType::f32 : DType::unset;
}

void set_rope(const PrologueCase& c, Rope& r) {
  r.style = c.style;
  r.rotary_dim = c.rotary_dim;
  r.rotary_offset = c.rotary_offset;
  r.num_blocks = c.num_blocks;
  r.inverse = c.inverse;
  r.source = c.source;
  if (c.source == RopeSource::inv_freq) r.attention_factor = static_cast<double>(c.attention_factor);
  r.past_table = c.past_table;
  r.num_axes = c.num_axes;
}

}  // namespace

void set_options(const PrologueCase& c, AttentionPrologueParams& params) {
  set_norm(c.norm_of_q(), c.head_dim, params.q_norm);
  set_norm(c.norm_of_k(), c.head_dim, params.k_norm);
  if (c.v_norm) params.v_norm.placement = NormPlacement::before_rope, params.v_norm.eps = c.v_eps;
  set_rope(c, params.rope);
  params.hadamard_block = c.hadamard_block;
  params.v_hadamard_block = c.v_hadamard_block;
  params.q_scale = c.q_scale;
  params.k_constant = c.k_constant;
  params.v_constant = c.v_constant;
  params.rounding = c.per_step ? Rounding::per_step : Rounding::once;
}

void set_options(const PrologueCase& c, HeadGroup& group) {
  set_norm(c.norm_of_q(), c.head_dim, group.norm);
  set_rope(c, group.rope);
  group.hadamard_block = c.hadamard_block;
  group.constant = c.q_scale.constant;
  group.activation = c.sigmoid ? HeadActivation::sigmoid : HeadActivation::none;
}

}  // namespace prologue::test
