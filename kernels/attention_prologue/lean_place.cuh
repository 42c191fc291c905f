// The position and slot of a token, for the lean instances: 32-bit selections from indices that are loaded first and used last.
// Bad indices are rare: they cost a few selections, and a branch to the code that records them. token_place.cuh does the same for
// all calls.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.cuh>
#include <prologue/kernels/attention_prologue/token_place.cuh>
#include <prologue/kernels/base/head_unit.cuh>

namespace prologue::cuda {

// 32 x 32 -> 64 bits, one instruction.
__device__ inline uint64_t times(uint32_t x, uint32_t y) { return static_cast<uint64_t>(x) * y; }

// What the position says ...
struct LeanPosition {
  bool padding = false;  // touch nothing
  bool outside = false;  // rows become zeros
  uint32_t row = 0;      // of cos and sin
};

// ... and the slot.
struct LeanSlot {
  bool reaches_cache = false;
  FaultCode fault = FaultCode::none;  // where the position has none
  uint32_t page = 0;
  uint32_t offset = 0;
};

// `kKeep`: a cache hint (evict last), so that the data of many tokens do not replace the row in the L2.
template <int V, bool kKeep = false, class Args>
__device__ inline UnitAngles<V> load_row(const Args& p, uint32_t row, int pair) {
  const char* cos = reinterpret_cast<const char*>(p.cos_sin + pair) + times(row, static_cast<uint32_t>(p.layout.rotary_dim * 4));
  return load_angles<V, kKeep>(reinterpret_cast<const float*>(cos),
                               reinterpret_cast<const float*>(cos + p.layout.rotary_dim * 2));
}

// The row of cos and sin: one for each token, or one for each position. Instances without kPerToken know which at compile time.
template <int kFeatures>
__device__ inline uint32_t choose_row(const ArgsOf<kFeatures>& p, uint32_t t, uint32_t of_position) {
  if constexpr ((kFeatures & kPerToken) != 0) {
    return t;
  } else if constexpr (has_steps(kFeatures)) {
    return p.row_is_token != 0 ? t : of_position;
  } else {
    return of_position;
  }
}

// Positions and slots given. Rotation by a table bounds the positions by its rows, and without a cache the positions are read in
// place of the slots; otherwise either may be missing, and then its step and its bound are 0.
template <int kFeatures>
struct GivenIndices {
  static constexpr bool kComplete = kFeatures == 0;
  PendingIndex position, slot;

  __device__ void ask(const ArgsOf<kFeatures>& p, uint32_t t) { position = load_index(p.positions, p.position_step, t); }
  __device__ void ask_slot(const ArgsOf<kFeatures>& p, uint32_t t) { slot = load_index(p.slots, p.slot_step, t); }

  __device__ static bool is_padding(const ArgsOf<kFeatures>& p, const PendingIndex& index) {
    return (kComplete || p.position_step != 0) & index.negative();
  }
  __device__ static bool is_outside(const ArgsOf<kFeatures>& p, const PendingIndex& index) {
    return (kComplete || p.max_position != 0) & index.at_least(p.max_position, p.position_step);
  }

  __device__ LeanSlot resolve_slot(const ArgsOf<kFeatures>& p) const {
    LeanSlot place;
    const bool beyond = (kComplete || p.num_slots != 0) & !slot.negative() & slot.at_least(p.num_slots, p.slot_step);
    place.reaches_cache = !(beyond | slot.negative());
    if (beyond) place.fault = FaultCode::slot_out_of_range;
    place.page = page_of(p, slot.low);
    place.offset = slot.low - place.page * p.page_size;
    return place;
  }
};

// The common case, and below it the others.
template <int kFeatures, int V, bool kKeep>
struct PendingPlace : GivenIndices<kFeatures> {
  __device__ LeanPosition resolve_position(const ArgsOf<kFeatures>& p, uint32_t t) const {
    LeanPosition place;
    place.padding = this->is_padding(p, this->position);
    place.outside = this->is_outside(p, this->position);
    place.row = choose_row<kFeatures>(p, t, place.outside ? 0 : this->position.low);
    return place;
  }

  __device__ UnitAngles<V> angles(const ArgsOf<kFeatures>& p, const LeanPosition& place, int pair) const {
    return load_row<V, kKeep>(p, place.row, pair);
  }
};

// Several position axes. Mostly all pairs of a unit are rotated by the same one.
template <int kFeatures, int V, bool kKeep>
requires((kFeatures & kStreams) != 0) struct PendingPlace<kFeatures, V, kKeep> : GivenIndices<kFeatures> {
  using GivenIndices<kFeatures>::position, GivenIndices<kFeatures>::is_padding, GivenIndices<kFeatures>::is_outside;
  PendingIndex others[kMaxAxes - 1];
  Bytes<V> axes;  // of the unit's pairs

  __device__ void ask(const LeanArgs& p, uint32_t t) {
    GivenIndices<kFeatures>::ask(p, t);
#pragma unroll
    for (int i = 0; i < kMaxAxes - 1; ++i) others[i] = load_index(p.positions + p.streams.offset[i], p.position_step, t);
  }
  __device__ void ask_axes(const LeanArgs& p, int pair) { axes = load_bytes<V, false>(p.streams.pair_axis + pair); }

  __device__ LeanPosition resolve_position(const LeanArgs& p, uint32_t) const {
    LeanPosition place;
    place.padding = is_padding(p, position);
    place.outside = is_outside(p, position);
    for (const PendingIndex& other : others) {
      place.padding |= is_padding(p, other);
      place.outside |= is_outside(p, other);
    }
    place.outside |= place.padding;
    return place;
  }

  // Values other than 1 to 3 mean axis 0. For an axis that does not exist, ask() loaded axis 0.
  __device__ uint32_t row_of(uint32_t axis) const {
    uint32_t row = position.low;
#pragma unroll
    for (uint32_t i = 1; i < kMaxAxes; ++i) row = axis == i ? others[i - 1].low : row;
    return row;
  }

  __device__ UnitAngles<V> angles(const LeanArgs& p, const LeanPosition& place, int pair) const {
    const auto axis = [&](int i) { return axes.words[i / 4] >> (i % 4 * 8) & 0xffu; };
    bool one = true;
#pragma unroll
    for (int i = 1; i < V; ++i) one &= axis(i) == axis(0);
    if (one) return load_row<V, kKeep>(p, place.outside ? 0 : row_of(axis(0)), pair);
    UnitAngles<V> angles;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float* row =
          p.cos_sin + times(place.outside ? 0 : row_of(axis(i)), static_cast<uint32_t>(p.layout.rotary_dim)) + pair + i;
      angles.cos[i] = row[0];
      angles.sin[i] = row[p.layout.rotary_dim / 2];
    }
    return angles;
  }
};

// Positions and slots derived. All threads of a warp must be here, with the same t.
template <int kFeatures, int V, bool kKeep>
requires((kFeatures & kDerived) != 0) struct PendingPlace<kFeatures, V, kKeep> {
  int token;
  TokenSequence sequence;
  PendingIndex position;
  bool too_long;
  uint32_t page, offset;

  __device__ void ask(const LeanArgs& p, uint32_t t) {
    token = static_cast<int>(t);
    sequence = sequence_at(p.sequences, min(token, p.sequences.num_seqs - 1));
  }

  __device__ LeanPosition resolve_position(const LeanArgs& p, uint32_t t) {
    if ((token < sequence.begin) | (token >= sequence.end)) sequence = search_sequence(p.sequences, token);
    const int64_t cached = static_cast<int64_t>(sequence.cached) + token - sequence.begin;
    position = {static_cast<uint32_t>(cached), static_cast<uint32_t>(cached >> 32)};
    LeanPosition place;
    place.padding = sequence.index >= p.sequences.num_seqs;
    place.outside = position.negative() | ((p.max_position != 0) & position.at_least(p.max_position, 8));
    place.row = choose_row<kFeatures>(p, t, place.outside ? 0 : position.low);
    too_long = position.negative() | position.at_least(p.page_table.max_cached, 8);
    const uint32_t page_of_sequence = too_long ? 0 : page_of(p, position.low);
    offset = position.low - page_of_sequence * p.page_size;
    const uint32_t row = place.padding ? 0 : static_cast<uint32_t>(sequence.index);
    page = static_cast<uint32_t>(p.page_table.pages[times(row, p.page_table.stride) + page_of_sequence]);
    return place;
  }

  __device__ void ask_slot(const LeanArgs&, uint32_t) {}

  __device__ LeanSlot resolve_slot(const LeanArgs& p) const {
    const bool missing = page >= p.page_table.num_pages;
    LeanSlot place;
    place.reaches_cache = !(too_long | missing);
    if (!place.reaches_cache) place.fault = too_long ? FaultCode::sequence_too_long : FaultCode::page_out_of_range;
    place.page = page;
    place.offset = offset;
    return place;
  }

  __device__ UnitAngles<V> angles(const LeanArgs& p, const LeanPosition& place, int pair) const {
    return load_row<V, kKeep>(p, place.row, pair);
  }
};

}  // namespace prologue::cuda
