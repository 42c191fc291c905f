// Finds the positions and the slot of a token, given or derived (TokenPlaces in attention_prologue.h), and what may be done for it, for the
// CPU and for the general kernel. Whatever the arrays hold, nothing is read outside their stated shapes. The lean kernels load the same in
// an order of their own (lean/token.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/shared/page_table.h>
#include <prologue/kernels/base/shared/token.h>

namespace prologue {

// Says what the length of a sequence counts: its tokens before or after the step, or those of its last page after the step.
enum class LengthOf : int32_t { before = 0, after, last_page };

struct SequenceArgs {
  int32_t num_seqs = 0;
  LengthOf length_of = LengthOf::before;
  const int32_t* cu_seqlens_q = nullptr;  // null: nothing is derived
  const int32_t* lengths = nullptr;       // cache_lens, seq_lens or kv_last_page_len
};

struct TokenSequence {
  int32_t index;  // num_seqs for a token behind the last sequence
  int32_t begin;
  int32_t end;
  int32_t length;
};

PROLOGUE_HOST_DEVICE inline TokenSequence sequence_at(const SequenceArgs& p, int32_t i) {
  return {i, p.cu_seqlens_q[i], p.cu_seqlens_q[i + 1], p.lengths[i]};
}

// Of token t of a sequence whose length, before or after the step, is known.
PROLOGUE_HOST_DEVICE inline int64_t cache_position(const SequenceArgs& p, const TokenSequence& sequence, int64_t length,
                                                   int64_t t) {
  return length + (t - (p.length_of != LengthOf::before ? sequence.end : sequence.begin));
}

// Holds AttentionPrologueParams, as far as they say where tokens are. Arrays that a call does not use are null.
struct TokenArgs {
  IndexView positions;
  IndexView slots;
  int64_t slots_given = 0;  // tokens from here on have none
  int64_t position_axis_stride = 0;
  int64_t max_position = 0;
  int64_t num_slots = 0;
  int32_t narrow_slots = 0;  // there are at most 2^31
  int32_t num_axes = 1;
  PastTable past_table = PastTable::record;
  int32_t derive_position = 0;
  int32_t derive_slot = 0;
  SequenceArgs sequences;
  int32_t needs_pages = 0;  // of the sequence, for the slot or the length
  PageTable page_table;
  int64_t num_pages = 0;
  int64_t ring_size = 0;
  PageDivider pages;
  IndexView position_offsets;
  int32_t position_offset_per_seq = 0;
};

// Returns true if K or V is written to the cache.
inline bool writes_kv(const AttentionPrologueParams& p) {
  return p.num_kv_heads > 0 &&
         ((p.k.data != nullptr && p.cache.k.data != nullptr) || (p.v.data != nullptr && p.cache.v.data != nullptr));
}
// Returns true if something is written to a cache, so that slots are needed.
inline bool writes_cache(const AttentionPrologueParams& p) {
  bool writes = writes_kv(p);
  for (int64_t i = 0; i < p.num_groups; ++i) writes = writes || p.groups[i].cache.data != nullptr;
  return writes;
}
inline bool derives_slots(const AttentionPrologueParams& p) {
  return p.places.cu_seqlens_q != nullptr && p.places.slot_mapping.data == nullptr && writes_cache(p);
}
inline bool derives_positions(const AttentionPrologueParams& p) {
  return p.places.cu_seqlens_q != nullptr && p.places.positions.data == nullptr;
}

// Returns the number of tokens that slot_mapping has an entry for.
inline int64_t slots_given(int64_t slot_mapping_len, int64_t num_tokens) {
  return slot_mapping_len > 0 ? slot_mapping_len : num_tokens;
}
// Returns true if some tokens are past the end of slot_mapping.
inline bool lacks_slots(const AttentionPrologueParams& p) {
  return p.places.slot_mapping_len > 0 && p.places.slot_mapping_len < p.num_tokens && writes_cache(p);
}

inline SequenceArgs sequence_args(const TokenPlaces& t) {
  const auto num_seqs = static_cast<int32_t>(t.num_seqs);
  if (t.cache_lens != nullptr) return {num_seqs, LengthOf::before, t.cu_seqlens_q, t.cache_lens};
  if (t.seq_lens != nullptr) return {num_seqs, LengthOf::after, t.cu_seqlens_q, t.seq_lens};
  return {num_seqs, LengthOf::last_page, t.cu_seqlens_q, t.page_table.kv_last_page_len};
}

inline TokenArgs token_args(const AttentionPrologueParams& p) {
  const TokenPlaces& t = p.places;
  TokenArgs args;
  args.positions = t.positions;
  args.position_axis_stride = t.position_axis_stride;
  args.max_position = p.rope.max_position;
  args.num_axes = static_cast<int32_t>(p.rope.num_axes);
  args.past_table = p.rope.past_table;
  args.derive_position = derives_positions(p) ? 1 : 0;
  args.derive_slot = derives_slots(p) ? 1 : 0;
  if (writes_cache(p)) {
    args.slots = t.slot_mapping;
    args.slots_given = slots_given(t.slot_mapping_len, p.num_tokens);
    args.num_slots = num_slots(p.cache);
    args.narrow_slots = args.num_slots <= int64_t{1} << 31 ? 1 : 0;
    args.num_pages = p.cache.num_pages;
    args.pages = page_divider(p.cache.page_size);
  }
  if (args.derive_position != 0 || args.derive_slot != 0) {
    args.sequences = sequence_args(t);
    args.page_table = t.page_table;
    args.needs_pages = args.derive_slot != 0 || args.sequences.length_of == LengthOf::last_page ? 1 : 0;
    if (args.needs_pages != 0) args.pages = page_divider(p.cache.page_size);
    args.ring_size = t.ring_size;
    args.position_offsets = t.position_offsets;
    args.position_offset_per_seq = t.position_offset_per_seq;
  }
  return args;
}

struct ResolvedToken : Token {
  int64_t positions[kMaxAxes] = {};  // on axes that there are not: as on axis 0
  int64_t page = 0;                  // of the slot, if it reaches the cache
  uint32_t offset = 0;
  SlotFacts slot;
};

// Returns what may be done for heads that have a rotation, or a bound on positions, of their own. The token is no padding.
PROLOGUE_HOST_DEVICE inline Token token_of_rope(const ResolvedToken& token, const Rope& rope) {
  PositionFacts position;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    // A negative position that is no padding is a derived one.
    if (axis < rope.num_axes) add_position(token.positions[axis], true, rope.max_position, position);
  }
  Token of_heads = decide_position(position, rope.past_table);
  decide_slot(token.slot, of_heads);
  return of_heads;
}

// Finds the page and the offset of the token's slot in a cache whose pages have another size.
PROLOGUE_HOST_DEVICE inline void split_again(const PageDivider& from, const PageDivider& to, int64_t& page, uint32_t& offset) {
  if (from.page_size != to.page_size) split_slot(to, page * from.page_size + offset, page, offset);
}

PROLOGUE_HOST_DEVICE inline int64_t position_offset_of(const TokenArgs& p, const TokenSequence& sequence) {
  return index_at(p.position_offsets, p.position_offset_per_seq != 0 ? sequence.index : 0);
}

// Finds the slot of token t of a sequence with these pages, where `cached` is its cache position. Whether the page is one of the cache is for
// resolve_slot(): here its load is not waited for.
PROLOGUE_HOST_DEVICE inline SlotFacts derived_slot(const TokenArgs& p, const TokenSequence& sequence, const PageRow& row,
                                                   int64_t t, int64_t cached, ResolvedToken& token) {
  SlotFacts slot;
  slot.absent = p.ring_size > 0 && p.ring_size < sequence.end - t;  // a later token of this step writes it
  if (slot.absent) return slot;
  const bool negative = cached < 0;
  if (p.narrow_slots != 0) {  // then so are the positions of a sequence that has pages for them
    const int64_t room = row.count * p.pages.page_size, at = p.ring_size > 0 && !negative ? cached % p.ring_size : cached;
    slot.too_long = negative || at >= (room < INT32_MAX ? room : int64_t{INT32_MAX});
    const uint32_t narrow = slot.too_long ? 0 : static_cast<uint32_t>(at), page_of_sequence = page_of(p.pages, narrow);
    token.offset = narrow - page_of_sequence * p.pages.page_size;
    if (!slot.too_long) token.page = row.pages[page_of_sequence];
    return slot;
  }
  int64_t page_of_sequence = 0;
  if (!negative) split_slot(p.pages, p.ring_size > 0 ? cached % p.ring_size : cached, page_of_sequence, token.offset);
  slot.too_long = negative || page_of_sequence >= row.count;
  if (!slot.too_long) token.page = row.pages[page_of_sequence];
  return slot;
}

// `indices` has the entries of token t: position(axis) (0 if positions are not given), slot() (-1 if slots are not given, or
// end before t), sequence(), its page_row(), and its position_offset(). The rows of cos and sin can be loaded before the slot is known, so the
// slot is resolved after the positions: `slot` says what is true of one that is derived.
template <class Indices>
PROLOGUE_HOST_DEVICE ResolvedToken resolve_positions(const TokenArgs& p, const Indices& indices, int64_t t, SlotFacts& slot) {
  ResolvedToken token;
  PositionFacts position;
  int64_t derived = 0;
  if (p.sequences.cu_seqlens_q != nullptr) {
    const TokenSequence sequence = indices.sequence();
    if (sequence.index >= p.sequences.num_seqs) {
      token.padding = true;
      return token;
    }
    PageRow row;
    if (p.needs_pages != 0) row = indices.page_row(sequence);
    int64_t length = sequence.length;
    if (p.sequences.length_of == LengthOf::last_page) length = length_of_pages(row, length, p.pages.page_size);
    // With INT64_MIN no offset makes the position good.
    const int64_t cached = length == kUnknownLength ? INT64_MIN : cache_position(p.sequences, sequence, length, t);
    ExactSum sum = cached;
    if (p.position_offsets.data != nullptr) sum += indices.position_offset(sequence);
    derived = derived_position(sum);
    if (p.derive_slot != 0) slot = derived_slot(p, sequence, row, t, cached, token);
  }
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    token.positions[axis] = p.derive_position != 0 ? derived : indices.position(axis);
    add_position(token.positions[axis], p.derive_position != 0, p.max_position, position);
  }
  static_cast<Token&>(token) = decide_position(position, p.past_table);
  return token;
}

template <class Indices>
PROLOGUE_HOST_DEVICE void resolve_slot(const TokenArgs& p, const Indices& indices, SlotFacts slot, ResolvedToken& token) {
  if (token.padding) return;
  if (p.derive_slot == 0) {
    const int64_t at = indices.slot();
    slot = given_slot(at, p.num_slots);
    if (p.narrow_slots != 0) {
      const auto narrow = static_cast<uint32_t>(at);  // used only if the slot is one of the cache
      token.page = page_of(p.pages, narrow);
      token.offset = narrow - static_cast<uint32_t>(token.page) * p.pages.page_size;
    } else if (!slot.absent && !slot.beyond) {
      split_slot(p.pages, at, token.page, token.offset);
    }
  } else {
    slot.no_page = !slot.absent && !slot.too_long && (token.page < 0 || token.page >= p.num_pages);
  }
  token.slot = slot;
  decide_slot(slot, token);
}

template <class Indices>
PROLOGUE_HOST_DEVICE ResolvedToken resolve_token(const TokenArgs& p, const Indices& indices, int64_t t) {
  SlotFacts slot;
  ResolvedToken token = resolve_positions(p, indices, t, slot);
  resolve_slot(p, indices, slot, token);
  return token;
}

}  // namespace prologue
