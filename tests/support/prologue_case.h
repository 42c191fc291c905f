// This file has a case for the prologue and its stages: shapes, features, memory layout and indices. And the lists of cases.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

namespace prologue::test {

enum class Values { normal, coarse, denormal, huge };   // coarse: as normal, of few bits, and made much faster
enum class CacheLayout { nhd, hnd, interleaved, odd };  // interleaved: K and V of a head side by side; odd: strides with holes
enum class Weights { none, shared, per_head };
enum class Offsets { none, one, per_sequence };
enum class PageForm { rows, csr, csr_with_lengths };  // with lengths: they come from kv_last_page_len

// Describes the norm of Q or of K.
struct CaseNorm {
  NormPlacement placement = NormPlacement::none;
  NormKind kind = NormKind::rms;
  NormScope scope = NormScope::head;
  Weights weights = Weights::shared;
  bool bias = false;
  bool float_weights = false;
  float weight_offset = 0.0f, eps = 1e-6f;
};

struct PrologueCase {
  int64_t num_tokens = 5;
  int64_t num_q_heads = 8;  // 0: no Q
  int64_t num_kv_heads = 2;
  int64_t head_dim = 64;
  int64_t v_head_dim = 0;  // 0: head_dim
  bool with_k = true, with_v = true;
  bool v_is_k = false;  // V taken from K

  bool bias_q = false, bias_k = false, bias_v = false;
  NormPlacement norm = NormPlacement::none;
  NormKind norm_kind = NormKind::rms;
  NormScope norm_scope = NormScope::head;
  Weights weights = Weights::shared;
  std::optional<Weights> k_weights;  // none: as Q's
  bool norm_bias = false;
  bool float_weights = false;  // of Q's and K's norms, in float32 whatever the type of the case is
  float weight_offset = 0.0f, eps = 1e-6f;
  std::optional<CaseNorm> k_norm;  // of K, instead of all above
  bool v_norm = false;
  float v_eps = 1e-3f;

  int64_t rotary_dim = 64;
  int64_t rotary_offset = 0;
  RopeStyle style = RopeStyle::neox;
  bool inverse = false;
  RopeSource source = RopeSource::table;
  DType rope_type = DType::f32;  // of cos and sin
  bool rope_apart = false;       // cos and sin in two arrays
  int64_t rope_holes = 0;        // elements after each of their rows
  float attention_factor = 1.0f;
  int64_t num_blocks = 1;
  bool block_axes = false;  // each block takes the axis of its own number (num_axes = num_blocks); otherwise pairs say theirs
  int64_t num_axes = 1;
  bool interleaved_axes = false;  // pair i takes axis i % num_axes; otherwise axes have sections
  int64_t max_position = 40;
  PastTable past_table = PastTable::record;
  bool no_faults = false;  // `faults` is null

  int64_t hadamard_block = 0, v_hadamard_block = 0;
  QueryScale q_scale;
  float k_constant = 1.0f, v_constant = 1.0f;
  bool per_step = false;

  bool derive_positions = false, derive_slots = false;
  bool lengths_after = false;  // seq_lens; otherwise cache_lens
  PageForm page_form = PageForm::rows;
  int64_t ring_size = 0;
  Offsets offsets = Offsets::none;
  bool int64_positions = false, int64_slots = true;  // and offsets as positions
  int64_t tokens_without_slot = 0;                   // slot_mapping ends before the last tokens
  bool bad_indices = true;                           // negative and too large ones among the good ones, axes too
  bool extremes = false;                             // the ends of the types in cu_seqlens_q, cache_lens and offsets

  // The rotated channels are in q_rope, in k_rope (not packed), and k_rope is one head for all.
  bool split_q = false, split_k = false, one_k_rope = false;

  bool packed = true;
  bool in_place = false;     // q_out is q
  int64_t row_padding = 0;   // elements after each packed row, or each row of q, k, v, q_out
  int64_t head_padding = 0;  // elements after each head (separate buffers)
  bool heads_first = false;  // q, k, v, q_out as [heads, tokens, head_dim] (separate buffers)
  int64_t misalign = 0;      // bytes, of every buffer but the index arrays
  std::optional<KvScaling> q8;
  bool q8_e5m2 = false;  // otherwise e4m3
  bool k_out = false, v_out = false;
  bool kv_in_place = false;  // k_out is k, v_out is v
  bool cached = true;

  std::optional<DType> kv_type;  // none: the type of the case
  std::optional<DType> v_type;   // none: that of K; then the layout is not `interleaved`
  KvScaling scaling = KvScaling::none;
  int64_t page_size = 16;
  CacheLayout layout = CacheLayout::nhd;
  bool token_faults = false;

  // Other heads of the same tokens: each as the Q of a case without K and V. Of a group count the heads and their steps (q_scale.constant is
  // its constant), the rotation with its bound, the layout of its arrays, q8, k_out (it has an output), in_place, cached (as K, in a cache with
  // a type, scaling, layout and page size of its own), values and seed. `packed`: rows [other | in] of each head.
  std::vector<PrologueCase> groups;
  bool sigmoid = false;         // of a group
  bool scales_in_page = false;  // of a group: a page of its cache has the codes of its tokens, and then their scales

  Values values = Values::normal;
  uint64_t seed = 1;

  int64_t v_width() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  int64_t k_heads() const { return with_k ? num_kv_heads : 0; }
  int64_t v_heads() const { return with_v ? num_kv_heads : 0; }
  bool writes_kv() const { return cached && num_kv_heads > 0 && (with_k || with_v); }
  bool writes_cache() const {
    return writes_kv() || std::any_of(groups.begin(), groups.end(), [](const PrologueCase& group) { return group.cached; });
  }
  bool gives_slots() const { return writes_cache() && !derive_slots; }
  // 0: all of them.
  int64_t slot_mapping_len() const {
    return gives_slots() && tokens_without_slot > 0 ? std::max<int64_t>(num_tokens - tokens_without_slot, 0) : 0;
  }
  bool has_sequences() const { return derive_positions || derive_slots; }
  CaseNorm norm_of_q() const { return {norm, norm_kind, norm_scope, weights, norm_bias, float_weights, weight_offset, eps}; }
  CaseNorm norm_of_k() const;
  bool copies_v() const { return !bias_v && !v_norm && v_hadamard_block == 0 && v_constant == 1.0f; }
  int64_t rope_columns() const { return rotary_dim / (2 * num_blocks); }

  std::string describe() const;
};

// Returns a small case of the usual options: bias, rotation and cache, and no bad index.
PrologueCase plain_case(int64_t num_tokens);

// Elements of 32 bits need addresses that are multiples of 4.
template <class T>
PrologueCase fit_to_type(PrologueCase c) {
  c.misalign = c.misalign / static_cast<int64_t>(sizeof(T)) * static_cast<int64_t>(sizeof(T));
  for (PrologueCase& group : c.groups) group = fit_to_type<T>(group);
  return c;
}

// Returns a group of so many heads, without any step, that has an output.
PrologueCase plain_group(int64_t num_heads, int64_t head_dim);
// Returns the gate of Qwen3-Next and Qwen3.5: the second half of each head's row [q | gate].
PrologueCase gate_of_heads(const PrologueCase& c);
// Return the groups of an indexer: q heads and the k head, in a cache of its own. DeepSeek V3.2: the first half of a head rotated, LayerNorm of
// k with a bias, Hadamard transform, e4m3 with a scale for the 128 channels. MiniMax: norm and rotation.
std::vector<PrologueCase> deepseek_indexer();
std::vector<PrologueCase> minimax_indexer();

// Returns the case with sizes of the rotation that blocks and splits allow.
PrologueCase fit_rotation(PrologueCase c);

// Stores the options in the parameters: all members that say what is computed. Sizes, arrays, types that go with an array, and bounds on
// indices are the caller's.
void set_options(const PrologueCase& c, AttentionPrologueParams& params);
void set_options(const PrologueCase& c, HeadGroup& group);

// Return the lists of prologue_cases.cpp: the cases of rotary and kv_write, one or more for every feature, and small random ones over
// the whole struct (prologue_choices.h).
const std::vector<PrologueCase>& prologue_cases();
const std::vector<PrologueCase>& feature_cases();
PrologueCase random_case(uint64_t seed);

}  // namespace prologue::test
