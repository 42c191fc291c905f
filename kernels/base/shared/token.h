// This file decides what may be done for a token: the rules for padding and bad indices of attention_prologue.h, rotary.h and stages.h,
// once for every operation and both backends. The caller loads the indices, in its own order and width, and says here what it found. The
// rules are selections without branches, so that nothing waits for an index before its last use.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/host_device.h>
#include <prologue/kernels/base/rope.h>

namespace prologue {

inline constexpr int kMaxAxes = 4;  // of positions

struct Token {
  bool padding = false;               // touch nothing; then the other members mean nothing
  bool zero = false;                  // its rows become zeros, and it does not reach the cache
  bool rotated = true;                // otherwise past the table, and the rows are not rotated
  bool reaches_cache = false;         // it has a slot that K and V are written to
  FaultCode fault = FaultCode::none;  // to be recorded
};

// Says what is true of a token's position on any axis.
struct PositionFacts {
  bool padding = false;     // a given position is negative, or the token is after the last sequence
  bool impossible = false;  // a derived position is negative, or int64 cannot hold it
  bool past_table = false;  // it is not below the bound
  bool too_long = false;    // the token's number in its sequence is not below the bound of sequences
};

struct SlotFacts {
  bool absent = false;    // negative, or none; or a later token of the step writes it
  bool beyond = false;    // not below the number of slots
  bool too_long = false;  // its cache position is negative, or beyond its sequence's row of the block table
  bool no_page = false;   // the block table's entry is not a page of the cache
};

PROLOGUE_HOST_DEVICE inline Token decide_position(const PositionFacts& facts, PastTable past_table) {
  Token token;
  token.padding = facts.padding;
  token.rotated = !facts.past_table;
  token.zero = facts.too_long | facts.impossible | (facts.past_table & (past_table != PastTable::identity));
  if (token.zero) token.fault = facts.too_long ? FaultCode::sequence_too_long : FaultCode::position_out_of_range;
  return token;
}

// The first fact that is true decides.
PROLOGUE_HOST_DEVICE inline void decide_slot(const SlotFacts& facts, Token& token) {
  const bool beyond = facts.beyond & !facts.absent;
  FaultCode fault = FaultCode::none;
  if (facts.no_page) fault = FaultCode::page_out_of_range;
  if (facts.too_long) fault = FaultCode::sequence_too_long;
  if (beyond) fault = FaultCode::slot_out_of_range;
  token.reaches_cache = !(facts.absent | beyond | facts.too_long | facts.no_page) & !token.zero;
  if (!token.zero) token.fault = fault;
}

// ---- facts from 64-bit indices ----------------------------------------------------------------------------------------------

// max_position = 0: no bound.
PROLOGUE_HOST_DEVICE inline void add_position(int64_t position, bool derived, int64_t max_position, PositionFacts& facts) {
  facts.padding |= (position < 0) & !derived;
  facts.impossible |= (position < 0) & derived;
  facts.past_table |= (max_position > 0) & (position >= max_position);
}

PROLOGUE_HOST_DEVICE inline SlotFacts given_slot(int64_t slot, int64_t num_slots) {
  SlotFacts facts;
  facts.absent = slot < 0;
  facts.beyond = slot >= num_slots;
  return facts;
}

// The sum is exact, whatever an array holds.
__extension__ typedef __int128 ExactSum;

// Returns the position, or -1 (a bad position) if it is negative or int64 cannot hold it.
PROLOGUE_HOST_DEVICE inline int64_t derived_position(ExactSum sum) {
  return sum >= 0 && sum <= INT64_MAX ? static_cast<int64_t>(sum) : -1;
}

// Returns the position of a pair whose axis is `axis`: values other than 1 to 3 mean axis 0. An axis that a call does not have holds the
// position on axis 0. (A selection: an array that is indexed would leave the registers.)
template <class Position, class Axis>
PROLOGUE_HOST_DEVICE Position position_on_axis(const Position* positions, Axis axis) {
  Position position = positions[0];
  position = axis == 1 ? positions[1] : position;
  position = axis == 2 ? positions[2] : position;
  return axis == 3 ? positions[3] : position;
}

// ---- sequences and pages ----------------------------------------------------------------------------------------------------

// Returns the last s with begin(s) <= token, in [0, num_seqs).
template <class Begin>
PROLOGUE_HOST_DEVICE int64_t sequence_of(int64_t token, int64_t num_seqs, const Begin& begin) {
  int64_t low = 0, high = num_seqs;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

// Divides slots, and positions in a sequence, by the page size: below 2^31 by a product. (A 64-bit division costs a GPU as much
// as a trip to the L2, and is hardly ever needed.)
struct PageDivider {
  uint32_t magic = 0;  // page = slot * magic >> shift
  uint32_t shift = 0;
  uint32_t page_size = 1;
};

inline PageDivider page_divider(int64_t page_size) {
  PageDivider pages;
  pages.page_size = static_cast<uint32_t>(page_size);
  uint32_t ceil_log2 = 0;
  while ((int64_t{1} << ceil_log2) < page_size) ++ceil_log2;
  pages.shift = 31 + ceil_log2;
  pages.magic = static_cast<uint32_t>(((uint64_t{1} << pages.shift) + pages.page_size - 1) / pages.page_size);
  return pages;
}

PROLOGUE_HOST_DEVICE inline uint32_t page_of(const PageDivider& pages, uint32_t narrow_slot) {
  return static_cast<uint32_t>((static_cast<uint64_t>(narrow_slot) * pages.magic) >> pages.shift);
}

// Splits a slot that is not negative into its page and the offset there.
PROLOGUE_HOST_DEVICE inline void split_slot(const PageDivider& pages, int64_t slot, int64_t& page, uint32_t& offset) {
  if (static_cast<uint64_t>(slot) >> 31 == 0) {
    page = page_of(pages, static_cast<uint32_t>(slot));
    offset = static_cast<uint32_t>(slot) - static_cast<uint32_t>(page) * pages.page_size;
  } else {
    page = slot / pages.page_size;
    offset = static_cast<uint32_t>(slot % pages.page_size);
  }
}

}  // namespace prologue
