// Where a token stands, for the lean instances: 32-bit selections from indices that are asked for first and looked at last. What
// is wrong with an index is rare: it costs a few selections, and a branch to where it is recorded. token_place.cuh is the same in
// full generality.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.cuh>
#include <prologue/kernels/attention_prologue/token_place.cuh>
#include <prologue/kernels/base/head_unit.cuh>

namespace prologue::cuda {

// 32 x 32 -> 64 bits, one instruction.
__device__ inline uint64_t times(uint32_t x, uint32_t y) { return static_cast<uint64_t>(x) * y; }

struct LeanPlace {
  bool outside = false;        // the position is: rows become zeros
  bool reaches_cache = false;  // there is a slot
  FaultCode fault = FaultCode::none;
  uint32_t row = 0;  // of cos and sin
  uint32_t page = 0;
  uint32_t offset = 0;
};

template <int V>
__device__ inline UnitAngles<V> load_row(const CoreArgs<uint32_t>& p, uint32_t row, int pair) {
  const char* cos = reinterpret_cast<const char*>(p.cos_sin + pair) + times(row, static_cast<uint32_t>(p.layout.rotary_dim * 4));
  return load_angles<V>(reinterpret_cast<const float*>(cos), reinterpret_cast<const float*>(cos + p.layout.rotary_dim * 2));
}

// 0 as bound: there is none.
__device__ inline bool at_least(const PendingIndex& index, uint32_t step, uint32_t bound) {
  return (bound != 0) & index.at_least(bound, step);
}

// Positions and slots given.
struct GivenIndices {
  PendingIndex position, slot;

  __device__ void ask(const CoreArgs<uint32_t>& p, uint32_t t) {
    position = load_index(p.positions, p.position_step, t);
    slot = load_index(p.slots, p.slot_step, t);
  }

  // Waits for the position.
  __device__ bool padding(const CoreArgs<uint32_t>& p) const { return (p.position_step != 0) & position.negative(); }

  __device__ LeanPlace resolve(const CoreArgs<uint32_t>& p, bool outside) const {
    LeanPlace place;
    place.outside = outside;
    const bool beyond = !slot.negative() & at_least(slot, p.slot_step, p.num_slots);
    place.reaches_cache = !(outside | beyond | slot.negative());
    if (outside | beyond) place.fault = outside ? FaultCode::position_out_of_range : FaultCode::slot_out_of_range;
    place.page = page_of(p, slot.low);
    place.offset = slot.low - place.page * p.page_size;
    return place;
  }
};

// The common case, and below it the others.
template <int kFeatures, int V>
struct PendingPlace : GivenIndices {
  __device__ LeanPlace resolve(const CoreArgs<uint32_t>& p, uint32_t t) const {
    LeanPlace place = GivenIndices::resolve(p, at_least(position, p.position_step, p.max_position));
    place.row = p.row_is_token != 0 ? t : place.outside ? 0 : position.low;
    return place;
  }

  __device__ UnitAngles<V> angles(const CoreArgs<uint32_t>& p, const LeanPlace& place, int pair) const {
    return load_row<V>(p, place.row, pair);
  }
};

// Several position streams: the pairs of a unit mostly turn by one of them.
template <int kFeatures, int V>
  requires((kFeatures & kStreams) != 0)
struct PendingPlace<kFeatures, V> : GivenIndices {
  PendingIndex others[kMaxAxes - 1];
  Bytes<V> axes;  // of the unit's pairs

  __device__ void ask(const LeanArgs& p, uint32_t t) {
    GivenIndices::ask(p, t);
#pragma unroll
    for (int i = 0; i < kMaxAxes - 1; ++i) others[i] = load_index(p.positions + p.places.axis_offset[i], p.position_step, t);
  }
  __device__ bool padding(const CoreArgs<uint32_t>& p) const { return (p.position_step != 0) & position.negative(); }
  __device__ void ask_axes(const LeanArgs& p, int pair) { axes = load_bytes<V, false>(p.places.pair_axis + pair); }

  __device__ bool padding(const LeanArgs& p) const {
    bool any = GivenIndices::padding(p);
    for (const PendingIndex& other : others) any |= other.negative();
    return any;
  }

  __device__ LeanPlace resolve(const LeanArgs& p, uint32_t) const {
    bool outside = at_least(position, p.position_step, p.max_position);
    for (const PendingIndex& other : others) outside |= at_least(other, p.position_step, p.max_position);
    return GivenIndices::resolve(p, outside);
  }

  // For others than 1 to 3 the first stream; of a stream that does not exist ask() made the first.
  __device__ uint32_t row_of(uint32_t axis) const {
    uint32_t row = position.low;
#pragma unroll
    for (uint32_t i = 1; i < kMaxAxes; ++i) row = axis == i ? others[i - 1].low : row;
    return row;
  }

  __device__ UnitAngles<V> angles(const LeanArgs& p, const LeanPlace& place, int pair) const {
    const auto axis = [&](int i) { return axes.words[i / 4] >> (i % 4 * 8) & 0xffu; };
    bool one = true;
#pragma unroll
    for (int i = 1; i < V; ++i) one &= axis(i) == axis(0);
    if (one) return load_row<V>(p, place.outside ? 0 : row_of(axis(0)), pair);
    UnitAngles<V> angles;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float* row = p.cos_sin + times(place.outside ? 0 : row_of(axis(i)), static_cast<uint32_t>(p.layout.rotary_dim)) + pair + i;
      angles.cos[i] = row[0];
      angles.sin[i] = row[p.layout.rotary_dim / 2];
    }
    return angles;
  }
};

// Positions and slots derived. All threads of a warp must be here, with the same t.
template <int kFeatures, int V>
  requires((kFeatures & kDerived) != 0)
struct PendingPlace<kFeatures, V> {
  TokenSequence sequence;
  int token;

  __device__ void ask(const LeanArgs& p, uint32_t t) {
    token = static_cast<int>(t);
    sequence = sequence_at(p.places.sequences, min(token, p.places.sequences.num_seqs - 1));
  }

  __device__ bool padding(const LeanArgs& p) {
    if ((token < sequence.begin) | (token >= sequence.end)) sequence = search_sequence(p.places.sequences, token);
    return sequence.index >= p.places.sequences.num_seqs;
  }

  __device__ LeanPlace resolve(const LeanArgs& p, uint32_t t) const {
    const int64_t cached = static_cast<int64_t>(sequence.cached) + (token - sequence.begin);
    const PendingIndex position = {static_cast<uint32_t>(cached), static_cast<uint32_t>(cached >> 32)};
    LeanPlace place;
    place.outside = position.negative() | at_least(position, 8, p.max_position);
    place.row = p.row_is_token != 0 ? t : place.outside ? 0 : position.low;
    const bool too_long = position.negative() | position.at_least(p.places.max_cached, 8);
    const uint32_t page_of_sequence = too_long ? 0 : page_of(p, position.low);
    place.offset = position.low - page_of_sequence * p.page_size;
    const int32_t* pages = p.places.block_table + times(static_cast<uint32_t>(sequence.index), p.places.block_table_stride);
    place.page = static_cast<uint32_t>(pages[page_of_sequence]);
    const bool missing = place.page >= p.places.num_pages;
    place.reaches_cache = !(place.outside | too_long | missing);
    place.fault = place.outside ? FaultCode::position_out_of_range
                  : too_long    ? FaultCode::sequence_too_long
                  : missing     ? FaultCode::page_out_of_range
                                : FaultCode::none;
    return place;
  }

  __device__ UnitAngles<V> angles(const LeanArgs& p, const LeanPlace& place, int pair) const {
    return load_row<V>(p, place.row, pair);
  }
};

}  // namespace prologue::cuda
