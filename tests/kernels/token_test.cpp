// The rules for padding and bad indices, one by one. That every operation follows them is tested in each operation's suite.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>

#include <prologue/kernels/base/shared/token.h>

namespace prologue {
namespace {

constexpr int64_t kBound = 100;

Token decide(std::initializer_list<int64_t> positions, bool derived, PastTable past_table, int64_t bound = kBound) {
  PositionFacts facts;
  for (const int64_t position : positions) add_position(position, derived, bound, facts);
  return decide_position(facts, past_table);
}

TEST(Token, IsPaddingIfAGivenPositionIsNegative) {
  for (const PastTable past_table : {PastTable::record, PastTable::zero, PastTable::identity}) {
    EXPECT_TRUE(decide({-1}, false, past_table).padding);
    EXPECT_TRUE(decide({3, 4, -7}, false, past_table).padding);
    EXPECT_TRUE(decide({-1, kBound}, false, past_table).padding);
    EXPECT_FALSE(decide({0, kBound}, false, past_table).padding);
  }
}

TEST(Token, IsNeverPaddingForADerivedPosition) {
  const Token token = decide({-1}, true, PastTable::identity);
  EXPECT_FALSE(token.padding);
  EXPECT_TRUE(token.zero);
  EXPECT_EQ(token.fault, FaultCode::position_out_of_range);
}

TEST(Token, PastTheTableIsWhatThePolicySays) {
  for (const PastTable past_table : {PastTable::record, PastTable::zero}) {
    const Token token = decide({kBound}, false, past_table);
    EXPECT_TRUE(token.zero);
    EXPECT_EQ(token.fault, FaultCode::position_out_of_range);
  }
  const Token identity = decide({5, kBound}, false, PastTable::identity);
  EXPECT_FALSE(identity.zero);
  EXPECT_FALSE(identity.rotated);
  EXPECT_EQ(identity.fault, FaultCode::none);
  const Token last = decide({kBound - 1}, false, PastTable::record);
  EXPECT_TRUE(last.rotated);
  EXPECT_FALSE(last.zero);
  EXPECT_FALSE(decide({std::numeric_limits<int64_t>::max()}, false, PastTable::record, 0).zero) << "no bound";
}

TEST(Token, TooLongIsAFaultOfItsOwn) {
  PositionFacts facts;
  facts.too_long = true;
  const Token token = decide_position(facts, PastTable::identity);
  EXPECT_TRUE(token.zero);
  EXPECT_EQ(token.fault, FaultCode::sequence_too_long);
}

TEST(Token, ReachesTheCacheOnlyThroughASlotThatIsThere) {
  struct Row {
    SlotFacts facts;
    bool reaches;
    FaultCode fault;
  };
  SlotFacts absent, beyond, too_long, no_page, negative;
  absent.absent = beyond.beyond = too_long.too_long = no_page.no_page = true;
  negative.absent = negative.beyond = true;  // a negative slot, compared as an unsigned number
  for (const Row& row : {Row{{}, true, FaultCode::none}, Row{absent, false, FaultCode::none},
                         Row{beyond, false, FaultCode::slot_out_of_range}, Row{too_long, false, FaultCode::sequence_too_long},
                         Row{no_page, false, FaultCode::page_out_of_range}, Row{negative, false, FaultCode::none}}) {
    Token token = decide({5}, false, PastTable::record);
    decide_slot(row.facts, token);
    EXPECT_EQ(token.reaches_cache, row.reaches);
    EXPECT_EQ(token.fault, row.fault);
    Token zero = decide({kBound}, false, PastTable::record);
    decide_slot(row.facts, zero);
    EXPECT_FALSE(zero.reaches_cache);
    EXPECT_EQ(zero.fault, FaultCode::position_out_of_range) << "the position's fault comes first";
  }
}

TEST(Token, GivenSlots) {
  EXPECT_TRUE(given_slot(-1, 8).absent);
  EXPECT_FALSE(given_slot(0, 8).absent);
  EXPECT_FALSE(given_slot(7, 8).beyond);
  EXPECT_TRUE(given_slot(8, 8).beyond);
}

TEST(Token, DerivedPositionsFitInt64OrAreBad) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(derived_position(ExactSum{kMost}), kMost);
  EXPECT_EQ(derived_position(ExactSum{kMost} + 1), -1);
  EXPECT_EQ(derived_position(ExactSum{-5}), -1);
  EXPECT_EQ(derived_position(ExactSum{0}), 0);
}

TEST(Token, AxesBeyondTheThirdAreTheFirst) {
  const int64_t positions[kMaxAxes] = {10, 11, 12, 13};
  for (int64_t axis = 0; axis < kMaxAxes; ++axis) EXPECT_EQ(position_on_axis(positions, axis), 10 + axis);
  EXPECT_EQ(position_on_axis(positions, int64_t{4}), 10);
  EXPECT_EQ(position_on_axis(positions, uint32_t{255}), 10);
}

TEST(Token, SequencesAreFound) {
  const int32_t begins[] = {0, 3, 3, 7, 9};  // the second is empty
  const auto begin = [&](int64_t i) { return begins[i]; };
  const int64_t expected[] = {0, 0, 0, 2, 2, 2, 2, 3, 3};
  for (int64_t token = 0; token < 9; ++token) EXPECT_EQ(sequence_of(token, 4, begin), expected[token]) << token;
}

TEST(Token, PagesAndOffsetsAreThoseOfADivision) {
  constexpr int64_t kNarrow = int64_t{1} << 31;
  for (const int64_t page_size : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{16}, int64_t{48}, int64_t{1000}, int64_t{65536},
                                  (int64_t{1} << 20) - 1, int64_t{1} << 20}) {
    const PageDivider pages = page_divider(page_size);
    for (const int64_t at : {int64_t{0}, page_size - 1, page_size, 7 * page_size - 1, 7 * page_size,
                             kNarrow / page_size * page_size - 1, kNarrow - 1, kNarrow, kNarrow + page_size, int64_t{1} << 40}) {
      int64_t page = -1;
      uint32_t offset = 0;
      split_slot(pages, at, page, offset);
      EXPECT_EQ(page, at / page_size) << at << " / " << page_size;
      EXPECT_EQ(static_cast<int64_t>(offset), at % page_size) << at << " % " << page_size;
    }
  }
}

}  // namespace
}  // namespace prologue
