// Finds the position and slot of a token, for the lean instances: 32-bit selections from indices that are loaded first and used last. Bad
// indices are rare: they cost a few selections, and a branch to the code that records them. resolve_token() in token_args.h does the same
// for all calls; the rules are those of base/token.h.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/base/shared/token.h>
#include <prologue/kernels/attention_prologue/sequence_search.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/pending_index.cuh>

namespace prologue::cuda {

struct LeanToken : Token {
  uint32_t row = 0;  // of cos and sin
  uint32_t page = 0;
  uint32_t offset = 0;
};

// Only calls with kEveryStep have PastTable::identity.
template <int kFeatures>
__device__ inline LeanToken lean_token(const ArgsOf<kFeatures>& p, const PositionFacts& facts) {
  if constexpr ((kFeatures & kEveryStep) != 0) {
    return {decide_position(facts, p.past_table)};
  } else {
    return {decide_position(facts, PastTable::record)};
  }
}

// Says whether the token's position is a row of the table.
template <int kFeatures>
__device__ inline bool in_table(const LeanToken& token) {
  return !token.zero & ((kFeatures & kEveryStep) == 0 || token.rotated);
}

// `kKeep` is a cache hint (evict last), so that the data of many tokens do not replace the row in the L2. kRuns is as in load_angles().
template <int V, bool kKeep = false, int kRuns = 1, class Args>
__device__ inline UnitAngles<V> load_row(const Args& p, uint32_t row, int pair, int apart = 0) {
  const char* cos =
      reinterpret_cast<const char*>(p.cos_sin + pair) + wide_product(row, static_cast<uint32_t>(p.layout.rotary_dim * 4));
  return load_angles<V, kKeep, kRuns>(reinterpret_cast<const float*>(cos),
                                      reinterpret_cast<const float*>(cos + p.layout.rotary_dim * 2), apart);
}

// Chooses the row of cos and sin: one for each token, or one for each position. Instances without kPerToken know which at compile time.
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

// Here positions and slots are given. Rotation by a table bounds the positions by its rows, and without a cache the positions are read in
// place of the slots; otherwise either may be missing, and then its step and its bound are 0.
template <int kFeatures>
struct GivenIndices {
  static constexpr bool kComplete = kFeatures == 0;
  PendingIndex position, slot;

  __device__ void ask(const ArgsOf<kFeatures>& p, uint32_t t) { position = load_index(p.positions, p.position_step, t); }
  __device__ void ask_slot(const ArgsOf<kFeatures>& p, uint32_t t) { ask_low_slot(p, t), ask_high_slot(p, t); }
  __device__ void ask_low_slot(const ArgsOf<kFeatures>& p, uint32_t t) { slot.low = load_low(p.slots, p.slot_step, t); }
  __device__ void ask_high_slot(const ArgsOf<kFeatures>& p, uint32_t t) { slot.high = load_high(p.slots, p.slot_step, t); }

  __device__ static void add(const ArgsOf<kFeatures>& p, const PendingIndex& index, PositionFacts& facts) {
    facts.padding |= (kComplete || p.position_step != 0) & index.negative();
    facts.past_table |= (kComplete || p.max_position != 0) & index.at_least(p.max_position, p.position_step);
  }

  // Returns the position as a number, for what needs it: 0 if there are none.
  __device__ int64_t position_value(const ArgsOf<kFeatures>& p) const {
    return p.position_step == 0 ? 0 : position.value(p.position_step);
  }

  __device__ void resolve_slot(const ArgsOf<kFeatures>& p, LeanToken& token) const {
    SlotFacts facts;
    facts.absent = slot.negative();
    facts.beyond = (kComplete || p.num_slots != 0) & slot.at_least(p.num_slots, p.slot_step);
    decide_slot(facts, token);
    token.page = page_of(p.pages, slot.low);
    token.offset = slot.low - token.page * p.pages.page_size;
  }
};

// This is the common case; the others are below it.
template <int kFeatures, int V, bool kKeep>
struct PendingToken : GivenIndices<kFeatures> {
  __device__ LeanToken resolve_position(const ArgsOf<kFeatures>& p, uint32_t t, int) const {
    PositionFacts facts;
    this->add(p, this->position, facts);
    LeanToken token = lean_token<kFeatures>(p, facts);
    token.row = choose_row<kFeatures>(p, t, in_table<kFeatures>(token) ? this->position.low : 0);
    return token;
  }

  template <int kRuns = 1>
  __device__ UnitAngles<V> angles(const ArgsOf<kFeatures>& p, const LeanToken& token, int pair, int apart = 0) const {
    return load_row<V, kKeep, kRuns>(p, token.row, pair, apart);
  }
};

// Here there are several position axes. Mostly all pairs of a unit are rotated by the same one.
template <int kFeatures, int V, bool kKeep>
requires((kFeatures & kAxes) != 0) struct PendingToken<kFeatures, V, kKeep> : GivenIndices<kFeatures> {
  PendingIndex others[kMaxAxes - 1];  // on an axis that there is not: as on axis 0
  Bytes<V> axes;                      // of the unit's pairs

  __device__ void ask(const ArgsOf<kFeatures>& p, uint32_t t) {
    GivenIndices<kFeatures>::ask(p, t);
#pragma unroll
    for (int i = 0; i < kMaxAxes - 1; ++i) others[i] = load_index(p.positions + p.axes.offset[i], p.position_step, t);
  }
  __device__ void ask_axes(const ArgsOf<kFeatures>& p, int pair) { axes = load_bytes<V, false>(p.axes.pair_axis + pair); }

  __device__ LeanToken resolve_position(const ArgsOf<kFeatures>& p, uint32_t, int) const {
    PositionFacts facts;
    this->add(p, this->position, facts);
    for (const PendingIndex& other : others) this->add(p, other, facts);
    facts.past_table |= facts.padding;  // one test for angles()
    return lean_token<kFeatures>(p, facts);
  }

  __device__ UnitAngles<V> angles(const ArgsOf<kFeatures>& p, const LeanToken& token, int pair) const {
    const uint32_t rows[kMaxAxes] = {this->position.low, others[0].low, others[1].low, others[2].low};
    const auto axis = [&](int i) { return axes.words[i / 4] >> (i % 4 * 8) & 0xffu; };
    bool one = true;
#pragma unroll
    for (int i = 1; i < V; ++i) one &= axis(i) == axis(0);
    if (one) return load_row<V, kKeep>(p, token.zero ? 0 : position_on_axis(rows, axis(0)), pair);
    UnitAngles<V> angles;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const uint32_t row_of_pair = token.zero ? 0 : position_on_axis(rows, axis(i));
      const float* row = p.cos_sin + wide_product(row_of_pair, static_cast<uint32_t>(p.layout.rotary_dim)) + pair + i;
      angles.cos[i] = row[0];
      angles.sin[i] = row[p.layout.rotary_dim / 2];
    }
    return angles;
  }
};

// Here positions and slots are derived. All threads of a warp must be here, with the same t, unless they resolve it each alone.
template <int kFeatures, int V, bool kKeep>
requires((kFeatures & kDerived) != 0) struct PendingToken<kFeatures, V, kKeep> {
  using Args = ArgsOf<kFeatures>;
  int t;
  TokenSequence sequence;
  int64_t cached;
  bool too_long;
  bool overwritten = false;  // in a ring, by a later token of this step
  uint32_t page, offset;

  __device__ void ask(const Args& p, uint32_t token) {
    t = static_cast<int>(token);
    sequence = sequence_at(p.sequences, min(t, p.sequences.num_seqs - 1));
  }

  __device__ int64_t position_value(const Args&) const { return cached; }

  __device__ LeanToken resolve_position(const Args& p, uint32_t, int lane_of_warp) {
    if ((t < sequence.begin) | (t >= sequence.end)) sequence = search_sequence(p.sequences, t, lane_of_warp);
    return resolve_in_sequence(p);
  }
  __device__ LeanToken resolve_position_alone(const Args& p) {
    if ((t < sequence.begin) | (t >= sequence.end)) sequence = bisect_sequences(p.sequences, t);
    return resolve_in_sequence(p);
  }
  __device__ LeanToken resolve_in_sequence(const Args& p) {
    cached = cache_position(p.sequences, sequence, sequence.length, t);
    const PendingIndex position = {static_cast<uint32_t>(cached), static_cast<uint32_t>(cached >> 32)};
    PositionFacts facts;
    facts.padding = sequence.index >= p.sequences.num_seqs;
    facts.impossible = position.negative();
    facts.past_table = (p.max_position != 0) & position.at_least(p.max_position, 8);
    LeanToken token = lean_token<kFeatures>(p, facts);
    token.row = choose_row<kFeatures>(p, static_cast<uint32_t>(t), in_table<kFeatures>(token) ? position.low : 0);
    PendingIndex at = position;
    if constexpr ((kFeatures & kMostSteps) != 0) {
      if (p.ring_size > 0) {
        overwritten = static_cast<int>(p.ring_size) < sequence.end - t;
        const bool narrow = position.high == 0;
        if (!position.negative()) {
          at = {narrow ? position.low % p.ring_size : static_cast<uint32_t>(static_cast<uint64_t>(cached) % p.ring_size), 0};
        }
      }
    }
    too_long = at.negative() | at.at_least(p.page_table.max_cached, 8);
    const uint32_t page_of_sequence = too_long ? 0 : page_of(p.pages, at.low);
    offset = at.low - page_of_sequence * p.pages.page_size;
    const uint32_t row = token.padding ? 0 : static_cast<uint32_t>(sequence.index);
    page = static_cast<uint32_t>(p.page_table.pages[wide_product(row, p.page_table.stride) + page_of_sequence]);
    return token;
  }

  __device__ void ask_slot(const Args&, uint32_t) {}

  __device__ void resolve_slot(const Args& p, LeanToken& token) const {
    SlotFacts facts;
    facts.absent = overwritten;
    facts.too_long = !overwritten & too_long;
    facts.no_page = !overwritten & (page >= p.page_table.num_pages);
    decide_slot(facts, token);
    token.page = page;
    token.offset = offset;
  }

  __device__ UnitAngles<V> angles(const Args& p, const LeanToken& token, int pair) const {
    return load_row<V, kKeep>(p, token.row, pair);
  }
};

}  // namespace prologue::cuda
