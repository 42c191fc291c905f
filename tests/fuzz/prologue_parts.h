// The parts of the prologue's parameters, for the targets that have them: decoded, declared, filled, and what they permit to be
// written, all from the words of attention_prologue.h and views.h.
#pragma once

#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "tests/fuzz/operation.h"
#include "tests/support/prologue_choices.h"

namespace prologue::fuzz {

inline int64_t bits_of(DType type) { return 8 * dtype_size(type); }

inline Extent cache_extent(const PagedKvView& c, const PageStrides& s, int64_t width, int64_t bits) {
  return {times(width, bits) / 8,
          std::max<int64_t>(bits / 8, 1),
          {{c.num_pages, times(s.page, bits) / 8},
           {c.page_size, times(s.token, bits) / 8},
           {c.num_kv_heads, times(s.head, bits) / 8}}};
}

// Chooses a type and a scaling that fits it.
inline KvFormat decode_format(Choices& choices, DType dtype) {
  constexpr DType kTypes[] = {DType::unset,    DType::f32,  DType::f16,  DType::bf16, DType::fp8_e4m3,
                              DType::fp8_e5m2, DType::int8, DType::int4, DType::uint4};
  KvFormat format;
  format.type = type_of(choices, kTypes);
  const bool is_integer = format.type == DType::int8 || format.type == DType::int4;
  if (!dtype_is_activation(resolve_dtype(format.type, dtype))) {
    format.scaling = static_cast<KvScaling>(choices.integer(is_integer ? 1 : 0, 3));
  }
  if (format.type == DType::uint4) format.scaling = KvScaling::token_head;
  if (choices.hostile()) format.scaling = choices.enumerator(KvScaling::token_head);
  return format;
}

inline int64_t hadamard_block(Choices& choices, int64_t head_dim) {
  return choices.hostile() ? choices.absurd() : test::any_hadamard_block(choices, head_dim);
}

// Chooses formats, sizes and strides; num_kv_heads and head_dim are given. K and V are apart, or side by side in one buffer.
inline void decode_cache(Choices& choices, MemoryMap& map, PagedKvView& c, DType dtype, int64_t num_kv_heads, int64_t head_dim,
                         bool with_k, bool with_v, Use use) {
  c.k.format = c.v.format = decode_format(choices, dtype);
  if (choices.chance(4)) c.v.format = decode_format(choices, dtype);
  c.num_pages = choices.size(1, 4);
  c.page_size = choices.size(1, 5);
  c.num_kv_heads = choices.hostile() ? choices.absurd() : num_kv_heads;
  c.k.head_dim = choices.hostile() ? choices.absurd() : head_dim;
  c.v.head_dim = choices.chance(3) ? choices.head_dim() : 0;
  const int64_t v_width = v_head_dim(c);
  const auto bits_of_side = [&](const PagedHeads& side) {
    const DType type = resolve_dtype(side.format.type, dtype);
    return dtype_is_kv(type) ? dtype_bits(type) : 8;
  };
  const int64_t k_bits = bits_of_side(c.k), v_bits = bits_of_side(c.v);
  const int64_t layout = k_bits == v_bits ? choices.integer(0, 3) : choices.integer(0, 1);
  const bool beside = layout == 2, paired = layout == 3;  // V beside K in each head; V's page behind K's
  const int64_t heads_of = times(c.page_size, c.num_kv_heads);
  const auto strides = [&](int64_t width) -> PageStrides {
    const int64_t both = beside ? plus(c.k.head_dim, v_width) : width;
    if (layout == 1) {
      const int64_t head = choices.stride(times(c.page_size, width));
      return {choices.stride(times(c.num_kv_heads, head)), width, head};
    }
    const int64_t head = beside ? both : choices.stride(both);
    const int64_t token = times(c.num_kv_heads, head), page = times(c.page_size, token);
    if (paired) return {plus(times(heads_of, c.k.head_dim), times(heads_of, v_width)), times(c.num_kv_heads, width), width};
    return {beside ? page : choices.stride(page), token, head};
  };
  c.k.strides = strides(c.k.head_dim);
  c.v.strides = strides(v_width);
  int k = -1;
  if (with_k) k = map.optional("cache.k", c.k.data, cache_extent(c, c.k.strides, c.k.head_dim, k_bits), use);
  if (with_v) {
    const int v = map.optional("cache.v", c.v.data, cache_extent(c, c.v.strides, v_width, v_bits), use);
    if (k >= 0 && beside) map.place(v, k, times(c.k.head_dim, k_bits) / 8);
    if (k >= 0 && paired) map.place(v, k, times(times(heads_of, c.k.head_dim), k_bits) / 8);
  }
  const auto scale = [&](const char* name, PagedHeads& side) {
    if (side.format.scaling == KvScaling::tensor) map.array(name, side.scale, dense(1, 4), Use::read);
    if (side.format.scaling == KvScaling::head) map.array(name, side.scale, dense(c.num_kv_heads, 4), Use::read);
    if (side.format.scaling != KvScaling::token_head) return;
    const int64_t floats = scales_of_head(side.format), token = choices.stride(times(c.num_kv_heads, floats));
    side.scale_strides = {choices.stride(times(c.page_size, token)), token, floats};
    map.array(name, side.scale, cache_extent(c, side.scale_strides, floats, 32), use);
  };
  if (with_k) scale("cache.k.scale", c.k);
  if (with_v) scale("cache.v.scale", c.v);
}

inline void permit_slot(MemoryMap& map, const PagedKvView& c, DType dtype, int64_t slot, bool with_k, bool with_v) {
  const int64_t page = slot / c.page_size, offset = slot % c.page_size;
  const auto permit = [&](void* data, const PageStrides& s, int64_t width, int64_t each) {
    if (data == nullptr) return;
    for (int64_t h = 0; h < c.num_kv_heads; ++h) {
      const int64_t at = plus(plus(times(page, s.page), times(offset, s.token)), times(h, s.head));
      map.permit(data, times(at, each) / 8, times(width, each) / 8);
    }
  };
  const auto permit_side = [&](const PagedHeads& side, int64_t width) {
    permit(side.data, side.strides, width, dtype_bits(resolve_dtype(side.format.type, dtype)));
    if (side.format.scaling == KvScaling::token_head) permit(side.scale, side.scale_strides, scales_of_head(side.format), 32);
  };
  if (with_k) permit_side(c.k, c.k.head_dim);
  if (with_v) permit_side(c.v, v_head_dim(c));
}

struct HeadStrides {
  int64_t token;
  int64_t head;
};
// Puts tokens before heads, or heads before tokens.
inline HeadStrides head_strides(Choices& choices, int64_t num_tokens, int64_t num_heads, int64_t width) {
  if (choices.chance(4)) return {width, choices.stride(times(num_tokens, width))};
  const int64_t head = choices.stride(width);
  return {choices.stride(times(num_heads, head)), head};
}

template <class View>
Extent view_extent(const View& view, int64_t num_tokens, int64_t num_heads, int64_t width, int64_t bits) {
  return heads(num_tokens, view.token_stride, num_heads, view.head_stride, width, bits);
}

inline void permit_rows(MemoryMap& map, void* data, int64_t token, int64_t token_stride, int64_t num_heads, int64_t head_stride,
                        int64_t width, int64_t bits) {
  if (!present(data)) return;
  for (int64_t h = 0; h < num_heads; ++h)
    map.permit(data, times(plus(times(token, token_stride), times(h, head_stride)), bits) / 8, times(width, bits) / 8);
}

// Returns mostly 0, which means all of the tokens.
inline int64_t slot_mapping_len(Choices& choices, int64_t num_tokens) {
  if (!choices.chance(3)) return 0;
  return choices.size(0, std::clamp<int64_t>(num_tokens, 0, 6));
}
inline int64_t slots_given_of(int64_t slot_mapping_len, int64_t num_tokens) {
  return slot_mapping_len > 0 ? slot_mapping_len : num_tokens;
}

// Makes a block table, or CSR, with the tokens of the last pages if `lengths`.
inline void decode_page_table(Choices& choices, MemoryMap& map, PageTable& table, int64_t num_seqs, int64_t widest,
                              bool lengths) {
  const bool both = choices.hostile(), csr = lengths || choices.chance(3);
  if (!csr || both) {
    table.max_pages_per_seq = choices.size(1, widest);
    table.block_table_stride = choices.stride(table.max_pages_per_seq);
    map.optional("block_table", table.block_table, rows(num_seqs, table.block_table_stride, table.max_pages_per_seq, 32),
                 Use::read);
  }
  if (csr || both) {
    table.num_kv_indices = choices.size(0, 9);
    map.optional("kv_indptr", table.kv_indptr, dense(plus(num_seqs, 1), 4), Use::read);
    map.optional("kv_indices", table.kv_indices, dense(table.num_kv_indices, 4), Use::read);
  }
  if (lengths) map.optional("kv_last_page_len", table.kv_last_page_len, dense(num_seqs, 4), Use::read);
}

inline void fill_page_table(Choices& choices, const PageTable& table, int64_t num_seqs, int64_t num_pages, int64_t page_size) {
  const int64_t last_page = plus(num_pages, -1);
  for (int64_t s = 0; present(table.block_table) && s < num_seqs; ++s) {
    for (int64_t i = 0; i < table.max_pages_per_seq; ++i)
      set_index(table.block_table, 4, s * table.block_table_stride + i, index_value(choices, 0, last_page));
  }
  int64_t at = 0;
  for (int64_t s = 0; present(table.kv_indptr) && s <= num_seqs; ++s) {
    set_index(table.kv_indptr, 4, s, choices.hostile() ? choices.absurd() : at);
    at = std::min(table.num_kv_indices, at + choices.integer(0, 4));
  }
  for (int64_t i = 0; present(table.kv_indices) && i < table.num_kv_indices; ++i)
    set_index(table.kv_indices, 4, i, index_value(choices, 0, last_page));
  for (int64_t s = 0; present(table.kv_last_page_len) && s < num_seqs; ++s)
    set_index(table.kv_last_page_len, 4, s, index_value(choices, 1, std::clamp<int64_t>(page_size, 1, 8)));
}

// Holds the entries of a sequence: from `begin` on, in kv_indices or block_table.
struct PagesOf {
  int64_t begin, count;
  bool valid;
};
inline PagesOf pages_of(const PageTable& table, int64_t s) {
  if (table.kv_indptr == nullptr) return {s * table.block_table_stride, table.max_pages_per_seq, true};
  const int64_t begin = get_index(table.kv_indptr, 4, s), end = get_index(table.kv_indptr, 4, s + 1);
  const bool valid = begin >= 0 && end >= begin && end <= table.num_kv_indices;
  return {begin, valid ? end - begin : 0, valid};
}

// Fills the arrays that describe a batch: cu_seqlens_q (which fits num_tokens, unless the case is hostile) and lengths.
inline void fill_batch(Choices& choices, const int32_t* cu_seqlens, int64_t num_seqs, int64_t num_tokens, const int32_t* lengths,
                       int64_t longest) {
  int64_t at = 0;
  for (int64_t s = 0; present(cu_seqlens) && s <= num_seqs; ++s) {
    set_index(cu_seqlens, 4, s, choices.hostile() ? choices.absurd() : at);
    at = std::min(num_tokens, at + choices.integer(0, 4));
  }
  for (int64_t s = 0; present(lengths) && s < num_seqs; ++s) set_index(lengths, 4, s, index_value(choices, 0, longest));
}

inline bool valid_seqlens(const int32_t* cu_seqlens, int64_t num_seqs) {
  if (get_index(cu_seqlens, 4, 0) != 0) return false;
  for (int64_t s = 0; s < num_seqs; ++s)
    if (get_index(cu_seqlens, 4, s) > get_index(cu_seqlens, 4, s + 1)) return false;
  return true;
}

// Chooses the type of a norm's weights: unset, or float32.
inline DType weight_type(Choices& choices) {
  if (choices.hostile()) return choices.enumerator(DType::uint64);
  return choices.chance(3) ? DType::f32 : DType::unset;
}

// Changes an option now and then so that it breaks the contract: to one that does not exist, or that does not fit the others.
template <class T>
void damage(Choices& choices, T& option) {
  if constexpr (std::is_floating_point_v<T>) {
    option = choices.real(static_cast<float>(option));
  } else if constexpr (std::is_enum_v<T>) {
    if (choices.hostile())
      option = static_cast<T>(choices.chance(2) ? choices.integer(0, 3) : static_cast<int32_t>(choices.bits(5)));
  } else {
    if (choices.hostile()) option = choices.absurd();
  }
}

inline void damage_options(Choices& choices, AttentionPrologueParams& p) {
  for (HeadNorm* norm : {&p.q_norm, &p.k_norm, &p.v_norm}) {
    damage(choices, norm->placement), damage(choices, norm->kind), damage(choices, norm->scope);
    damage(choices, norm->eps), damage(choices, norm->weight_offset);
    damage(choices, norm->weight_head_stride), damage(choices, norm->weight_type);
  }
  Rope& r = p.rope;
  damage(choices, r.style), damage(choices, r.source), damage(choices, r.past_table), damage(choices, r.attention_factor);
  damage(choices, r.rotary_dim), damage(choices, r.rotary_offset), damage(choices, r.num_blocks), damage(choices, r.num_axes);
  damage(choices, p.hadamard_block), damage(choices, p.v_hadamard_block), damage(choices, p.rounding);
  damage(choices, p.q_scale.constant), damage(choices, p.q_scale.by_position);
  damage(choices, p.q_scale.a), damage(choices, p.q_scale.b);
  damage(choices, p.k_constant), damage(choices, p.v_constant);
}

// Decodes all parameters of the prologue. The options are those of a case (tests/support/prologue_choices.h); sizes and arrays are decoded
// here. In a layer q, k, v and q_out are the layer's own, and the batch's arrays are always there. Returns true if they have the lengths
// after the step, so that attention needs none of its own.
inline bool decode_prologue(Choices& choices, MemoryMap& map, AttentionPrologueParams& p, bool layer) {
  p.num_tokens = choices.size(0, 6);
  p.num_q_heads = choices.chance(8) && !layer ? 0 : choices.size(1, 4);
  p.num_kv_heads = choices.chance(8) && !layer ? 0 : choices.size(1, 3);
  p.head_dim = choices.head_dim();
  p.dtype = activation_type(choices);
  const int64_t bits = bits_of(p.dtype);
  const DType type = float_type_of(p.dtype);
  if (layer && p.num_kv_heads > 0) p.num_q_heads = times(p.num_kv_heads, choices.integer(1, 3));
  const int64_t head_dim = p.head_dim >= 2 && p.head_dim <= kMaxHeadDim ? p.head_dim / 2 * 2 : 64;
  test::PrologueCase c = test::choose_case(choices, test::CaseOdds::any, {6, 4, 3, head_dim, 0});
  if (layer) c.with_k = c.with_v = c.cached = true, c.v_is_k = c.split_q = c.split_k = false;
  test::set_options(c, p);
  for (HeadNorm* norm : {&p.q_norm, &p.k_norm}) {
    if (norm->weight_type == DType::unset && choices.chance(8)) norm->weight_type = p.dtype;  // the same
  }
  damage_options(choices, p);

  // Decides what there is of K and V, and where it goes.
  const bool any_kv = p.num_kv_heads != 0, has_k = any_kv && c.with_k, has_v = any_kv && c.with_v;
  const bool cache_k = has_k && c.cached && (layer || !choices.chance(8));
  const bool cache_v = has_v && c.cached && (layer || !choices.chance(8));
  const bool cached = cache_k || cache_v;
  if (cached || layer) {
    decode_cache(choices, map, p.cache, p.dtype, p.num_kv_heads, p.head_dim, cache_k, cache_v, Use::write);
  } else if (any_kv && choices.chance(2)) {
    p.cache.v.head_dim = choices.head_dim();
  }
  const int64_t v_width = p.cache.v.head_dim > 0 ? p.cache.v.head_dim : p.head_dim;
  Rope& r = p.rope;

  if (!layer) {
    int q = -1, k = -1, v = -1;
    int64_t q_width = p.head_dim, k_width = p.head_dim;
    if (c.packed) {  // three views of one buffer
      const int64_t q_columns = times(p.num_q_heads, p.head_dim), k_columns = times(p.num_kv_heads, p.head_dim);
      const int64_t row = choices.stride(plus(plus(q_columns, k_columns), times(p.num_kv_heads, v_width)));
      p.q = {nullptr, row, p.head_dim};
      p.k = {nullptr, row, p.head_dim};
      p.v = {nullptr, row, v_width};
      q = map.array("q", p.q.data, view_extent(p.q, p.num_tokens, p.num_q_heads, p.head_dim, bits), Use::read, type);
      if (has_k) {
        k = map.optional("k", p.k.data, view_extent(p.k, p.num_tokens, p.num_kv_heads, p.head_dim, bits), Use::read, type);
        if (p.num_q_heads > 0) map.place(k, q, times(q_columns, bits) / 8);
      }
      if (has_v) {
        v = map.optional("v", p.v.data, view_extent(p.v, p.num_tokens, p.num_kv_heads, v_width, bits), Use::read, type);
        if (p.num_q_heads > 0) map.place(v, q, times(plus(q_columns, k_columns), bits) / 8);
      }
    } else {
      const auto input = [&](const char* name, HeadsView& view, int64_t num_heads, int64_t width) {
        const HeadStrides s = head_strides(choices, p.num_tokens, num_heads, width);
        view = {nullptr, s.token, s.head};
        return map.optional(name, view.data, view_extent(view, p.num_tokens, num_heads, width, bits), Use::read, type);
      };
      // The rotated channels of Q and of K are in arrays of their own.
      const int64_t unrotated = plus(p.head_dim, -std::max<int64_t>(r.rotary_dim, 0));
      const auto rotated = [&](bool is_split, const char* name, HeadsView& view, int64_t num_heads) -> int64_t {
        if (!is_split) return p.head_dim;
        const HeadStrides s = head_strides(choices, p.num_tokens, num_heads, r.rotary_dim);
        view = {nullptr, s.token, choices.chance(3) ? 0 : s.head};
        map.never_null(
            map.array(name, view.data, view_extent(view, p.num_tokens, num_heads, r.rotary_dim, bits), Use::read, type));
        return unrotated;
      };
      q_width = rotated(c.split_q || choices.hostile(), "q_rope", p.q_rope, p.num_q_heads);
      k_width = rotated(has_k && (c.split_k || choices.hostile()), "k_rope", p.k_rope, p.num_kv_heads);
      q = input("q", p.q, p.num_q_heads, q_width);
      k = has_k ? input("k", p.k, p.num_kv_heads, k_width) : -1;
      if (c.v_is_k && has_k && has_v && v_width == k_width) {
        p.v = p.k;
        v = map.optional("v", p.v.data, view_extent(p.v, p.num_tokens, p.num_kv_heads, v_width, bits), Use::read, type);
        map.place(v, k, 0);
      } else {
        v = has_v ? input("v", p.v, p.num_kv_heads, v_width) : -1;
      }
    }
    // An output may be its input only where both have the same width.
    const auto output = [&](const char* name, MutableHeadsView& view, const HeadsView& in, int in_array, int64_t in_width,
                            int64_t num_heads, int64_t width, bool in_place) {
      const bool same = in_array >= 0 && (in_width == width || choices.hostile()) && in_place;
      const HeadStrides s = head_strides(choices, p.num_tokens, num_heads, width);
      view = {nullptr, same ? in.token_stride : s.token, same ? in.head_stride : s.head};
      const int array = map.optional(name, view.data, view_extent(view, p.num_tokens, num_heads, width, bits), Use::write);
      if (in_array >= 0) map.in_place(array, in_array, same);
    };
    if (has_k && (!cache_k || c.k_out)) {
      output("k_out", p.k_out, p.k, k, k_width, p.num_kv_heads, p.head_dim, !c.v_is_k && choices.chance(3));
    }
    if (has_v && (!cache_v || c.v_out)) {
      output("v_out", p.v_out, p.v, v, v_width, p.num_kv_heads, v_width, !c.v_is_k && choices.chance(3));
    }
    if (c.q8 && p.num_q_heads > 0) {
      const HeadStrides s = head_strides(choices, p.num_tokens, p.num_q_heads, p.head_dim);
      p.q8_out = {nullptr, s.token, s.head, *c.q8, nullptr};
      damage(choices, p.q8_out.scaling);
      constexpr DType kTypes[] = {DType::unset, DType::fp8_e4m3, DType::fp8_e5m2};
      p.q8_out.type = type_of(choices, kTypes);
      map.array("q8_out", p.q8_out.data, view_extent(p.q8_out, p.num_tokens, p.num_q_heads, p.head_dim, 8), Use::write);
      const bool computed = p.q8_out.scaling == KvScaling::token_head;
      map.array("q8_out.scale", p.q8_out.scale, dense(computed ? times(p.num_tokens, p.num_q_heads) : 1, 4),
                computed ? Use::write : Use::read);
    }
    if ((!c.q8 && p.num_q_heads > 0) || choices.hostile()) {
      output("q_out", p.q_out, p.q, q, q_width, p.num_q_heads, p.head_dim, c.in_place);
    }
  }

  const auto bias = [&](bool given, const char* name, const void*& data, int64_t count) {
    if (given) map.optional(name, data, dense(count, bits / 8), Use::read, type);
  };
  bias(c.bias_q, "bias.q", p.bias.q, times(p.num_q_heads, p.head_dim));
  bias(c.bias_k && has_k, "bias.k", p.bias.k, times(p.num_kv_heads, p.head_dim));
  bias(c.bias_v && has_v, "bias.v", p.bias.v, times(p.num_kv_heads, v_width));
  const auto weights = [&](const test::CaseNorm& of, const char* weight, const char* norm_bias, HeadNorm& norm, int64_t heads) {
    if (norm.placement == NormPlacement::none) return;
    const int64_t count = times(norm.weight_head_stride == 0 ? 1 : heads, p.head_dim);
    const DType as = float_type_of(resolve_dtype(norm.weight_type, p.dtype));
    const auto add = [&](const char* name, const void*& data) {
      map.optional(name, data, dense(count, dtype_size(as)), Use::read, as);
    };
    if (of.weights != test::Weights::none) add(weight, norm.weight);
    if (of.bias || choices.hostile()) add(norm_bias, norm.bias);
  };
  weights(c.norm_of_q(), "q_norm.weight", "q_norm.bias", p.q_norm, p.num_q_heads);
  weights(c.norm_of_k(), "k_norm.weight", "k_norm.bias", p.k_norm, p.num_kv_heads);

  const bool by_token = r.source == RopeSource::per_token;
  r.type = r.source == RopeSource::inv_freq && !choices.hostile() ? DType::f32 : activation_type(choices);
  r.max_position = (by_token || r.rotary_dim == 0) && choices.chance(2) ? 0 : choices.size(1, 12);
  if (r.rotary_dim > 0) {
    const int64_t columns = r.num_blocks > 0 && r.num_blocks <= 4 ? r.rotary_dim / (2 * r.num_blocks) : 1;
    if (r.source == RopeSource::inv_freq) {
      map.array("inv_freq", r.inv_freq, dense(columns, 4), Use::read);
    } else {
      const DType stored = float_type_of(r.type);
      const int64_t rope_bits = bits_of(stored), count = by_token ? p.num_tokens : r.max_position;
      const bool one_table = !c.rope_apart;
      r.width = choices.hostile() ? choices.enumerator(RopeWidth::full) : RopeWidth::half;
      if (choices.hostile()) r.sin.column_stride = choices.absurd();
      r.cos.row_stride = choices.chance(8) ? 0 : choices.stride(one_table ? times(2, columns) : columns);
      r.sin.row_stride = one_table ? r.cos.row_stride : choices.stride(columns);
      const int cos =
          map.array("cos", r.cos.data, rows(count, r.cos.row_stride, one_table ? times(2, columns) : columns, rope_bits),
                    Use::read, stored);
      const int sin = map.array("sin", r.sin.data, rows(count, r.sin.row_stride, columns, rope_bits), Use::read, stored);
      if (one_table) map.place(sin, cos, times(columns, rope_bits) / 8);
    }
    if (!by_token && r.num_axes > 1) {
      const Extent axes = dense(r.rotary_dim / 2, 1);
      if (r.num_axes != r.num_blocks) {
        map.array("pair_axis", r.pair_axis, axes, Use::read);
      } else if (!c.block_axes) {  // otherwise each block takes the axis of its own number
        map.optional("pair_axis", r.pair_axis, axes, Use::read);
      }
    }
  }

  TokenPlaces& places = p.places;
  const bool positions_given = !c.derive_positions, slots_given = !c.derive_slots;
  if (positions_given) {
    places.positions.type = index_type(choices);
    places.position_axis_stride = choices.stride(p.num_tokens);
    map.optional("positions", places.positions.data,
                 rows(r.num_axes, places.position_axis_stride, p.num_tokens, 8 * index_size(places.positions)), Use::read);
  }
  if (slots_given && cached) {
    places.slot_mapping.type = index_type(choices);
    places.slot_mapping_len = slot_mapping_len(choices, p.num_tokens);
    map.optional("slot_mapping", places.slot_mapping.data,
                 dense(slots_given_of(places.slot_mapping_len, p.num_tokens), index_size(places.slot_mapping)), Use::read);
  }
  if (!layer && positions_given && (slots_given || !cached)) return false;
  places.num_seqs = choices.size(1, 3);
  places.ring_size = choices.chance(3) ? choices.size(0, 12) : 0;
  map.optional("cu_seqlens_q", places.cu_seqlens_q, dense(plus(places.num_seqs, 1), 4), Use::read);
  const bool of_last_pages = c.page_form == test::PageForm::csr_with_lengths, after = !of_last_pages && c.lengths_after;
  if (!positions_given || (cached && !slots_given)) {
    const bool all = choices.hostile();
    if ((!of_last_pages && !after) || all) map.optional("cache_lens", places.cache_lens, dense(places.num_seqs, 4), Use::read);
    if (after || all) map.optional("seq_lens", places.seq_lens, dense(places.num_seqs, 4), Use::read);
  }
  if (layer || (cached && !slots_given) || (of_last_pages && !positions_given)) {
    decode_page_table(choices, map, places.page_table, places.num_seqs, 3, of_last_pages);
  }
  if (of_last_pages && !choices.hostile()) places.ring_size = 0;
  if (!positions_given && c.offsets != test::Offsets::none) {
    places.position_offsets.type = index_type(choices);
    places.position_offset_per_seq = c.offsets == test::Offsets::per_sequence;
    map.optional("position_offsets", places.position_offsets.data,
                 dense(places.position_offset_per_seq ? places.num_seqs : 1, index_size(places.position_offsets)), Use::read);
  }
  return of_last_pages || (after && (!positions_given || (cached && !slots_given)));
}

// Decodes groups of heads, for a call whose other parameters are decoded. Some are cached only where the call has slots for K or V.
inline void decode_groups(Choices& choices, MemoryMap& map, AttentionPrologueParams& p, HeadGroup (&groups)[kMaxHeadGroups]) {
  if (!choices.chance(3)) return;
  p.groups = groups;
  p.num_groups = choices.hostile() ? choices.absurd() : choices.integer(1, kMaxHeadGroups);
  const int64_t bits = bits_of(p.dtype), tokens = p.num_tokens;
  const DType type = float_type_of(p.dtype);
  test::PrologueCase call;
  call.num_axes = std::clamp<int64_t>(p.rope.num_axes, 1, 4);
  for (int64_t i = 0; i < p.num_groups && i < kMaxHeadGroups; ++i) {
    HeadGroup& g = groups[i];
    const test::PrologueCase c = test::choose_group(choices, call);
    test::set_options(c, g);
    g.num_heads = choices.size(1, 4), g.head_dim = choices.hostile() ? choices.absurd() : c.head_dim;
    HeadNorm& norm = g.norm;
    damage(choices, norm.placement), damage(choices, norm.kind), damage(choices, norm.scope), damage(choices, norm.eps);
    damage(choices, norm.weight_head_stride), damage(choices, norm.weight_type);
    Rope& r = g.rope;
    damage(choices, r.style), damage(choices, r.source), damage(choices, r.past_table), damage(choices, r.attention_factor);
    damage(choices, r.rotary_dim), damage(choices, r.rotary_offset), damage(choices, r.num_blocks), damage(choices, r.num_axes);
    damage(choices, g.hadamard_block), damage(choices, g.constant), damage(choices, g.activation);

    const HeadStrides of_in = head_strides(choices, tokens, g.num_heads, g.head_dim);
    g.in = {nullptr, of_in.token, of_in.head};
    const int in =
        map.optional("groups.in", g.in.data, view_extent(g.in, tokens, g.num_heads, g.head_dim, bits), Use::read, type);
    if (c.bias_q) map.optional("groups.bias", g.bias, dense(times(g.num_heads, g.head_dim), bits / 8), Use::read, type);
    if (norm.placement != NormPlacement::none) {
      const int64_t count = times(norm.weight_head_stride == 0 ? 1 : g.num_heads, g.head_dim);
      const DType as = float_type_of(resolve_dtype(norm.weight_type, p.dtype));
      if (c.weights != test::Weights::none)
        map.optional("groups.norm.weight", norm.weight, dense(count, dtype_size(as)), Use::read, as);
      if (c.norm_bias) map.optional("groups.norm.bias", norm.bias, dense(count, dtype_size(as)), Use::read, as);
    }
    const bool by_token = r.source == RopeSource::per_token;
    r.type = r.source == RopeSource::inv_freq ? DType::f32 : activation_type(choices);
    r.max_position = (by_token || r.rotary_dim == 0) && choices.chance(2) ? 0 : choices.size(1, 12);
    if (r.rotary_dim > 0) {
      const int64_t columns = r.num_blocks > 0 && r.num_blocks <= 4 ? r.rotary_dim / (2 * r.num_blocks) : 1;
      if (r.source == RopeSource::inv_freq) {
        map.array("groups.rope.inv_freq", r.inv_freq, dense(columns, 4), Use::read);
      } else {
        const DType stored = float_type_of(r.type);
        r.width = RopeWidth::half;
        for (RopeColumns* of : {&r.cos, &r.sin}) {
          of->row_stride = choices.stride(columns);
          map.array("groups.rope.cos", of->data,
                    rows(by_token ? tokens : r.max_position, of->row_stride, columns, bits_of(stored)), Use::read, stored);
        }
      }
      if (!by_token && r.num_axes > 1) map.array("groups.rope.pair_axis", r.pair_axis, dense(r.rotary_dim / 2, 1), Use::read);
    }

    const HeadStrides of_out = head_strides(choices, tokens, g.num_heads, g.head_dim);
    if (c.q8) {
      g.q8_out = {nullptr, of_out.token, of_out.head, *c.q8, nullptr};
      damage(choices, g.q8_out.scaling);
      const Extent extent = view_extent(g.q8_out, tokens, g.num_heads, g.head_dim, 8);
      map.never_null(map.array("groups.q8_out", g.q8_out.data, extent, Use::write));
      const bool computed = g.q8_out.scaling == KvScaling::token_head;
      map.array("groups.q8_out.scale", g.q8_out.scale, dense(computed ? times(tokens, g.num_heads) : 1, 4),
                computed ? Use::write : Use::read);
    }
    if (c.k_out || choices.hostile()) {
      g.out = {nullptr, c.in_place ? of_in.token : of_out.token, c.in_place ? of_in.head : of_out.head};
      const int out =
          map.optional("groups.out", g.out.data, view_extent(g.out, tokens, g.num_heads, g.head_dim, bits), Use::write);
      map.in_place(out, in, c.in_place);
    }
    if (!(c.cached && p.cache.num_pages > 0) && !choices.hostile()) continue;
    PagedKvView view;
    view.num_kv_heads = g.num_heads;
    if (choices.chance(2)) g.page_size = choices.size(1, 5);
    view.page_size = g.page_size > 0 ? g.page_size : p.cache.page_size;
    if (g.page_size > 0 || choices.chance(4)) {
      const int64_t slots = times(p.cache.num_pages, p.cache.page_size);
      g.num_pages = choices.hostile() ? choices.absurd() : plus(slots / std::max<int64_t>(view.page_size, 1), 1);
    }
    view.num_pages = g.num_pages > 0 ? g.num_pages : p.cache.num_pages;
    g.cache.format = decode_format(choices, p.dtype);
    g.cache.head_dim = choices.chance(2) ? g.head_dim : 0;
    const DType stored = resolve_dtype(g.cache.format.type, p.dtype);
    const int64_t head = choices.stride(g.head_dim), token = choices.stride(times(g.num_heads, head));
    g.cache.strides = {choices.stride(times(view.page_size, token)), token, head};
    const Extent extent = cache_extent(view, g.cache.strides, g.head_dim, dtype_is_kv(stored) ? dtype_bits(stored) : 8);
    const int cache = map.optional("groups.cache", g.cache.data, extent, Use::write);
    if (g.cache.format.scaling != KvScaling::none) map.never_null(cache);
    if (g.cache.format.scaling == KvScaling::tensor) map.array("groups.cache.scale", g.cache.scale, dense(1, 4), Use::read);
    if (g.cache.format.scaling == KvScaling::head)
      map.array("groups.cache.scale", g.cache.scale, dense(g.num_heads, 4), Use::read);
    if (g.cache.format.scaling != KvScaling::token_head) continue;
    const int64_t floats = scales_of_head(g.cache.format), of_token = choices.stride(times(g.num_heads, floats));
    g.cache.scale_strides = {choices.stride(times(view.page_size, of_token)), of_token, floats};
    map.array("groups.cache.scale", g.cache.scale, cache_extent(view, g.cache.scale_strides, floats, 32), Use::write);
  }
}

inline void decode_fault_records(Choices& choices, MemoryMap& map, AttentionPrologueParams& p) {
  if (!choices.chance(8)) map.optional("faults", p.faults, dense(1, sizeof(FaultRecord)), Use::write);
  if (choices.chance(2)) map.optional("token_faults", p.token_faults, dense(p.num_tokens, 1), Use::write);
}

inline void fill_prologue(Choices& choices, const AttentionPrologueParams& p) {
  const TokenPlaces& places = p.places;
  if (present(places.positions.data)) {
    for (int64_t axis = 0; axis < p.rope.num_axes; ++axis)
      for (int64_t t = 0; t < p.num_tokens; ++t)
        set_index(places.positions.data, index_size(places.positions), axis * places.position_axis_stride + t,
                  index_value(choices, choices.chance(4) ? -1 : 0, p.rope.max_position > 0 ? p.rope.max_position : 9));
  }
  fill_indices(choices, places.slot_mapping, slots_given_of(places.slot_mapping_len, p.num_tokens), -1,
               times(p.cache.num_pages, p.cache.page_size));
  fill_batch(choices, places.cu_seqlens_q, places.num_seqs, p.num_tokens, places.cache_lens, 9);
  fill_page_table(choices, places.page_table, places.num_seqs, p.cache.num_pages, p.cache.page_size);
  for (int64_t s = 0; present(places.seq_lens) && s < places.num_seqs; ++s)
    set_index(places.seq_lens, 4, s, index_value(choices, 0, 12));
  fill_indices(choices, places.position_offsets, places.position_offset_per_seq ? places.num_seqs : 1, -2, 2);
}

// Permits what the contract names, token by token.
inline void permit_prologue(MemoryMap& map, const AttentionPrologueParams& p) {
  const TokenPlaces& places = p.places;
  if (p.num_tokens == 0) return;
  const Rope& r = p.rope;
  const bool has_k = p.num_kv_heads > 0 && p.k.data != nullptr, has_v = p.num_kv_heads > 0 && p.v.data != nullptr;
  const bool cache_k = has_k && p.cache.k.data != nullptr, cache_v = has_v && p.cache.v.data != nullptr;
  const bool positions_given = places.positions.data != nullptr, slots_given = places.slot_mapping.data != nullptr;
  bool caches = cache_k || cache_v;
  for (int64_t i = 0; i < p.num_groups; ++i) caches = caches || p.groups[i].cache.data != nullptr;
  const bool derives_slot = caches && !slots_given;
  const bool derived = places.cu_seqlens_q != nullptr && (!positions_given || derives_slot);
  const auto unreal = [](const void* array) { return array != nullptr && !present(array); };  // such a call is refused
  if (unreal(places.positions.data) || unreal(places.slot_mapping.data)) return;
  const PageTable& table = places.page_table;
  if (derived &&
      (unreal(places.cu_seqlens_q) || unreal(places.cache_lens) || unreal(places.seq_lens) || unreal(table.block_table) ||
       unreal(table.kv_indptr) || (table.kv_indptr != nullptr && table.num_kv_indices > 0 && !present(table.kv_indices)) ||
       unreal(table.kv_last_page_len) || unreal(places.position_offsets.data)))
    return;
  const int lengths = (places.cache_lens != nullptr) + (places.seq_lens != nullptr) + (table.kv_last_page_len != nullptr);
  const bool one_form = (table.block_table == nullptr) != (table.kv_indptr == nullptr);
  if ((derived && (lengths != 1 || (table.kv_last_page_len != nullptr && table.kv_indptr == nullptr))) ||
      (derives_slot && (!derived || !one_form)))
    return;
  if ((cache_k || cache_v) && (p.cache.page_size < 1 || p.cache.num_kv_heads != p.num_kv_heads)) return;
  if ((cache_k && !present(p.cache.k.data)) || (cache_v && !present(p.cache.v.data))) return;
  const bool sane = !derived || valid_seqlens(places.cu_seqlens_q, places.num_seqs);
  const int64_t bits = bits_of(p.dtype), v_width = p.cache.v.head_dim > 0 ? p.cache.v.head_dim : p.head_dim;
  const int64_t num_slots = caches ? times(p.cache.num_pages, p.cache.page_size) : 0;
  map.permit(p.faults, 0, sizeof(FaultRecord));
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    bool padding = false, position_ok = true;
    for (int64_t axis = 0; positions_given && axis < r.num_axes; ++axis) {
      const int64_t position =
          get_index(places.positions.data, index_size(places.positions), axis * places.position_axis_stride + t);
      padding = padding || position < 0;
      position_ok = position_ok && (r.max_position == 0 || position < r.max_position || r.past_table == PastTable::identity);
    }
    int64_t sequence = 0, cache_position = 0;
    if (derived && sane) {
      padding = padding || t >= get_index(places.cu_seqlens_q, 4, places.num_seqs);
      while (sequence + 1 < places.num_seqs && get_index(places.cu_seqlens_q, 4, sequence + 1) <= t) ++sequence;
      const int64_t from_begin = t - get_index(places.cu_seqlens_q, 4, sequence),
                    from_end = t - get_index(places.cu_seqlens_q, 4, sequence + 1);
      if (places.cache_lens != nullptr) {
        cache_position = get_index(places.cache_lens, 4, sequence) + from_begin;
      } else if (places.seq_lens != nullptr) {
        cache_position = get_index(places.seq_lens, 4, sequence) + from_end;
      } else {
        const PagesOf pages = pages_of(table, sequence);
        const int64_t last = pages.count == 0 ? 0 : get_index(table.kv_last_page_len, 4, sequence);
        const bool known = pages.valid && (pages.count == 0 || (last >= 1 && last <= p.cache.page_size));
        const int64_t before_last = times(std::max<int64_t>(pages.count - 1, 0), p.cache.page_size);
        cache_position = known ? plus(before_last, last + from_end) : INT64_MIN;
      }
      if (!positions_given) {
        const IndexView& offsets = places.position_offsets;
        const int64_t offset = offsets.data == nullptr
                                   ? 0
                                   : get_index(offsets.data, index_size(offsets), places.position_offset_per_seq ? sequence : 0);
        int64_t position = 0;
        position_ok = !__builtin_add_overflow(cache_position, offset, &position) && position >= 0 &&
                      (r.max_position == 0 || position < r.max_position || r.past_table == PastTable::identity);
      }
    }
    if (padding) continue;
    permit_rows(map, p.q_out.data, t, p.q_out.token_stride, p.num_q_heads, p.q_out.head_stride, p.head_dim, bits);
    permit_rows(map, p.q8_out.data, t, p.q8_out.token_stride, p.num_q_heads, p.q8_out.head_stride, p.head_dim, 8);
    if (p.q8_out.scaling == KvScaling::token_head) permit_rows(map, p.q8_out.scale, t, p.num_q_heads, 1, 0, p.num_q_heads, 32);
    permit_rows(map, p.k_out.data, t, p.k_out.token_stride, p.num_kv_heads, p.k_out.head_stride, p.head_dim, bits);
    permit_rows(map, p.v_out.data, t, p.v_out.token_stride, p.num_kv_heads, p.v_out.head_stride, v_width, bits);
    if (p.token_faults != nullptr) map.permit(p.token_faults, t, 1);
    for (int64_t i = 0; i < p.num_groups; ++i) {
      const HeadGroup& g = p.groups[i];
      permit_rows(map, g.out.data, t, g.out.token_stride, g.num_heads, g.out.head_stride, g.head_dim, bits);
      permit_rows(map, g.q8_out.data, t, g.q8_out.token_stride, g.num_heads, g.q8_out.head_stride, g.head_dim, 8);
      if (g.q8_out.scaling == KvScaling::token_head) permit_rows(map, g.q8_out.scale, t, g.num_heads, 1, 0, g.num_heads, 32);
    }
    const auto permit = [&](int64_t slot) {
      if (position_ok && (cache_k || cache_v)) permit_slot(map, p.cache, p.dtype, slot, cache_k, cache_v);
      for (int64_t i = 0; i < p.num_groups; ++i) {
        const HeadGroup& g = p.groups[i];
        if (g.cache.data == nullptr) continue;
        PagedKvView cache;
        cache.k = g.cache, cache.k.head_dim = g.head_dim, cache.num_kv_heads = g.num_heads;
        cache.page_size = g.page_size > 0 ? g.page_size : p.cache.page_size;
        permit_slot(map, cache, p.dtype, slot, true, false);
      }
    };
    if (!caches) continue;
    int64_t slot = -1;
    if (slots_given && t >= slots_given_of(places.slot_mapping_len, p.num_tokens)) continue;
    if (slots_given) {
      slot = get_index(places.slot_mapping.data, index_size(places.slot_mapping), t);
    } else if (sane && cache_position >= 0 &&
               (places.ring_size == 0 || t >= get_index(places.cu_seqlens_q, 4, sequence + 1) - places.ring_size)) {
      const int64_t at = places.ring_size > 0 ? cache_position % places.ring_size : cache_position;
      const int64_t page = at / p.cache.page_size;
      const PagesOf pages = pages_of(table, sequence);
      if (page < pages.count) {
        const int64_t number =
            get_index(table.kv_indptr != nullptr ? table.kv_indices : table.block_table, 4, pages.begin + page);
        if (number >= 0 && number < p.cache.num_pages) slot = number * p.cache.page_size + at % p.cache.page_size;
      }
    }
    for (int64_t any = 0; !sane && !slots_given && any < num_slots; ++any) permit(any);
    if (slot >= 0 && slot < num_slots) permit(slot);
  }
}

}  // namespace prologue::fuzz
