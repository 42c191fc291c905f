#include <prologue/kernels/token_ops/end_step.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <prologue/kernels/base/faults.h>

#include "tests/oracle/token_ops.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"

namespace prologue::test {
namespace {

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
constexpr int64_t kNoSlot = std::numeric_limits<int64_t>::max();

class EndStepTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, EndStepTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

// Holds the state in the arrays of a call. Rows of positions and of block tables have gaps, whose contents must not change.
struct PlacedStep {
  EndStepParams p;
  Arena arena;

  PlacedStep(Backend backend, const oracle::StepState& step, bool advance, int64_t padding, bool with_rows) : arena(backend) {
    const int64_t num_seqs = static_cast<int64_t>(step.seq_faults.size());
    p.num_tokens = static_cast<int64_t>(step.token_faults.size());
    p.num_seqs = num_seqs;
    p.cu_seqlens_q = arena.input(step.cu_seqlens_q);
    p.token_faults = arena.inout(step.token_faults);
    p.seq_faults = arena.output<uint8_t>(num_seqs);
    if (!advance) return;
    p.advance = 1;
    p.tokens = arena.input(step.tokens);
    p.token_ids = arena.inout(step.token_ids);
    p.num_position_axes = static_cast<int64_t>(step.positions.size());
    p.position_axis_stride = num_seqs + padding;
    p.positions = arena.inout(strided_positions(step));
    p.seq_lens = arena.inout(step.seq_lens);
    if (with_rows) p.rows = arena.inout(sampling_rows(step));
    p.num_groups = static_cast<int64_t>(step.groups.size());
    for (int64_t g = 0; g < p.num_groups; ++g) {
      const oracle::StepGroup& from = step.groups[static_cast<size_t>(g)];
      EndStepGroup& group = p.groups[g];
      group.slot_mapping = arena.inout(from.slot_mapping);
      group.max_pages = static_cast<int64_t>(from.pages[0].size());
      group.block_table_stride = group.max_pages + padding;
      std::vector<int32_t> table;
      for (const std::vector<int32_t>& pages : from.pages) {
        table.insert(table.end(), pages.begin(), pages.end());
        table.resize(table.size() + static_cast<size_t>(padding), 0);
      }
      group.block_table = arena.input(table);
      group.page_size = from.page_size;
      group.num_pages = from.num_pages;
    }
  }

  std::vector<int32_t> strided_positions(const oracle::StepState& step) const {
    std::vector<int32_t> positions;
    for (const std::vector<int32_t>& axis : step.positions) {
      positions.insert(positions.end(), axis.begin(), axis.end());
      positions.resize(positions.size() + static_cast<size_t>(p.position_axis_stride - p.num_seqs), -77);
    }
    return positions;
  }
  static std::vector<SamplingRow> sampling_rows(const oracle::StepState& step) {
    std::vector<SamplingRow> rows;
    for (const int64_t position : step.row_positions) rows.push_back({0.5f, 3, 0.25f, 0.125f, 99, position});
    return rows;
  }

  void run_and_expect(const oracle::StepState& want) {
    const Status status = arena.run([&](const Execution& execution) { return end_step(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(arena.read(p.token_faults), want.token_faults);
    EXPECT_EQ(arena.read(p.seq_faults), want.seq_faults);
    if (p.advance == 0) return;
    EXPECT_EQ(arena.read(p.token_ids), want.token_ids);
    EXPECT_EQ(arena.read(p.positions), strided_positions(want));
    EXPECT_EQ(arena.read(p.seq_lens), want.seq_lens);
    for (int64_t g = 0; g < p.num_groups; ++g) {
      EXPECT_EQ(arena.read(p.groups[g].slot_mapping), want.groups[static_cast<size_t>(g)].slot_mapping) << "group " << g;
    }
    if (p.rows == nullptr) return;
    const std::vector<SamplingRow> rows = arena.read(p.rows), want_rows = sampling_rows(want);
    EXPECT_EQ(std::memcmp(rows.data(), want_rows.data(), rows.size() * sizeof(SamplingRow)), 0);
  }
};

void check(Backend backend, const oracle::StepState& step, bool advance, int64_t padding = 0, bool with_rows = true) {
  oracle::StepState want = step;
  oracle::end_step(want, advance);
  PlacedStep placed(backend, step, advance, padding, with_rows);
  placed.run_and_expect(want);
}

oracle::StepState faults_only(const std::vector<int32_t>& cu_seqlens_q, const std::vector<uint8_t>& token_faults) {
  oracle::StepState step;
  step.cu_seqlens_q = cu_seqlens_q;
  step.token_faults = token_faults;
  step.seq_faults.resize(cu_seqlens_q.size() - 1);
  return step;
}

// num_seqs sequences of one token each.
oracle::StepState decode_step(Random& random, int64_t num_seqs, int64_t num_axes, int64_t num_groups) {
  oracle::StepState step;
  const size_t size = static_cast<size_t>(num_seqs);
  step.cu_seqlens_q.push_back(0);
  for (int64_t s = 0; s < num_seqs; ++s) {
    step.cu_seqlens_q.push_back(static_cast<int32_t>(s) + 1);
    step.token_faults.push_back(random.integer(0, 9) == 0 ? static_cast<uint8_t>(random.integer(1, 7)) : uint8_t{0});
    step.tokens.push_back(static_cast<int32_t>(random.integer(0, 99999)));
    step.token_ids.push_back(static_cast<int32_t>(random.integer(0, 99999)));
    step.seq_lens.push_back(random.integer(0, 5) == 0 ? 0 : static_cast<int32_t>(random.integer(1, 70)));
    step.row_positions.push_back(random.integer(0, 99999));
  }
  step.seq_faults.resize(size);
  step.positions.resize(static_cast<size_t>(num_axes));
  for (std::vector<int32_t>& axis : step.positions) {
    for (int64_t s = 0; s < num_seqs; ++s) axis.push_back(static_cast<int32_t>(random.integer(-2, 99999)));
  }
  constexpr int64_t kPageSizes[] = {16, 1, 64, 7, 32, 128, 3, 256};
  for (int64_t g = 0; g < num_groups; ++g) {
    oracle::StepGroup group;
    group.page_size = kPageSizes[g];
    group.num_pages = random.integer(1, 1000);
    for (int64_t s = 0; s < num_seqs; ++s) {
      group.slot_mapping.push_back(random.integer(0, 99999));
      std::vector<int32_t>& pages = group.pages.emplace_back();
      for (int64_t i = 0; i < 64 / group.page_size + 1; ++i) {
        pages.push_back(static_cast<int32_t>(random.integer(0, 9) > 0 ? random.integer(0, group.num_pages - 1)
                                                                      : random.integer(0, 1) * (group.num_pages + 1) - 1));
      }
    }
    step.groups.push_back(group);
  }
  return step;
}

TEST_P(EndStepTest, CollectsTheFirstFaultOfEachSequence) {
  const auto run = [&](const std::vector<int32_t>& cu_seqlens_q, const std::vector<uint8_t>& token_faults) {
    check(GetParam(), faults_only(cu_seqlens_q, token_faults), false);
  };
  run({0, 1}, {0});
  run({0, 1}, {3});
  run({0, 2, 2, 5}, {0, 4, 2, 0, 1});
  run({0, 2, 4}, {0, 0, 0, 0, 9});  // the fault of a token that no sequence has
  run({0, 0, 0}, {});
  run({0, 3}, {0, 0, 255});
  oracle::StepState none;
  none.cu_seqlens_q = {0};
  none.token_faults = {1, 2, 3};
  check(GetParam(), none, false);
}

TEST_P(EndStepTest, ClampsBadRows) {
  const std::vector<uint8_t> faults = {0, 1, 0, 2, 3, 0};
  for (const std::vector<int32_t>& cu_seqlens_q :
       {std::vector<int32_t>{-5, 3, 99}, {kMost, -kMost - 1, kMost}, {0, 6, 2, 4, 1}, {2, 0, 6, 3, 6}, {6, 6, 7}}) {
    check(GetParam(), faults_only(cu_seqlens_q, faults), false);
  }
}

// Sizes round those of a warp and a block, long sequences with a fault anywhere.
TEST_P(EndStepTest, CollectsFaultsOfManyTokens) {
  Random random(1);
  for (const int64_t num_seqs : {1, 3, 31, 33, 1100}) {
    for (const int64_t one_in : {0, 2, 50, 1000}) {
      oracle::StepState step = faults_only(std::vector<int32_t>(static_cast<size_t>(num_seqs) + 1), {});
      for (size_t s = 0; s < static_cast<size_t>(num_seqs); ++s) {
        const int64_t count = random.integer(0, num_seqs > 100 ? 5 : 900);
        for (int64_t i = 0; i < count; ++i) {
          const bool faulty = one_in > 0 && random.integer(1, one_in) == 1;
          step.token_faults.push_back(faulty ? static_cast<uint8_t>(random.integer(1, 7)) : uint8_t{0});
        }
        step.cu_seqlens_q[s + 1] = static_cast<int32_t>(step.token_faults.size());
      }
      check(GetParam(), step, false);
    }
  }
}

TEST_P(EndStepTest, AdvancesDecodeSteps) {
  Random random(2);
  for (const int64_t num_seqs : {1, 2, 31, 257, 1025}) {
    for (const int64_t num_axes : {1, 3}) {
      for (const int64_t num_groups : {1, 2, 8}) {
        const oracle::StepState step = decode_step(random, num_seqs, num_axes, num_groups);
        check(GetParam(), step, true, num_groups == 2 ? 5 : 0, num_axes == 1);
      }
    }
  }
}

// Tests each rule for one sequence, with its result written out.
TEST_P(EndStepTest, RulesOfOneSequence) {
  struct Case {
    int32_t seq_len;
    std::vector<int32_t> pages;
    int64_t slot;
    bool advanced = true;
  };
  constexpr int64_t kBefore = 1234;
  for (const Case& c : std::vector<Case>{{1, {5, 6, 7}, 21},
                                         {3, {5, 6, 7}, 23},
                                         {4, {5, 6, 7}, 24},
                                         {11, {5, 6, 7}, 31},
                                         {12, {5, 6, 7}, kNoSlot},  // past the last page
                                         {4, {5, 10, 7}, kNoSlot},  // no such page
                                         {4, {5, -1, 7}, kNoSlot},
                                         {4, {5, 9, 7}, 36},
                                         {kMost - 1, {5, 6, 7}, kNoSlot},
                                         {kMost, {5, 6, 7}, kBefore, false},
                                         {0, {5, 6, 7}, kBefore, false},
                                         {-1, {5, 6, 7}, kBefore, false}}) {
    SCOPED_TRACE(c.seq_len);
    oracle::StepState step = faults_only({0, 1}, {0});
    step.tokens = {50};
    step.token_ids = {40};
    step.seq_lens = {c.seq_len};
    step.positions = {{7}, {kMost - 1}};
    step.row_positions = {9};
    step.groups = {{4, 10, {c.pages}, {kBefore}}};
    oracle::StepState want = step;
    want.groups[0].slot_mapping = {c.slot};
    if (c.advanced) {
      want.token_ids = {50};
      want.seq_lens = {c.seq_len + 1};
      want.positions = {{8}, {kMost}};
      want.row_positions = {10};
    }
    PlacedStep placed(GetParam(), step, true, 2, true);
    placed.run_and_expect(want);
  }
}

// Slots are beyond 2^31; positions wrap.
TEST_P(EndStepTest, LargeNumbers) {
  oracle::StepState step = faults_only({0, 1}, {0});
  step.tokens = step.token_ids = {1};
  step.seq_lens = {(1 << 21) - 1};
  step.positions = {{kMost}};
  step.row_positions = {std::numeric_limits<int64_t>::max()};
  step.groups = {{1 << 20, int64_t{1} << 40, {{3, kMost}}, {0}}};
  oracle::StepState want = step;
  want.seq_lens = {1 << 21};
  want.positions = {{-kMost - 1}};
  want.row_positions = {std::numeric_limits<int64_t>::min()};
  want.groups[0].slot_mapping = {(int64_t{kMost} << 20) + (1 << 20) - 1};
  PlacedStep(GetParam(), step, true, 0, true).run_and_expect(want);
}

// Each step begins with the outputs of the one before it, as a replayed graph does.
TEST_P(EndStepTest, StepAfterStep) {
  Random random(3);
  oracle::StepState want = decode_step(random, 9, 2, 2);
  PlacedStep placed(GetParam(), want, true, 0, true);
  constexpr int kSteps = 40;
  const Status status = placed.arena.run([&](const Execution& execution) -> Status {
    for (int i = 0; i < kSteps; ++i) PROLOGUE_RETURN_IF_ERROR(end_step(placed.p, execution));
    return {};
  });
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < kSteps; ++i) oracle::end_step(want, true);
  EXPECT_EQ(placed.arena.read(placed.p.seq_lens), want.seq_lens);
  EXPECT_EQ(placed.arena.read(placed.p.positions), placed.strided_positions(want));
  EXPECT_EQ(placed.arena.read(placed.p.groups[0].slot_mapping), want.groups[0].slot_mapping);
  EXPECT_EQ(placed.arena.read(placed.p.groups[1].slot_mapping), want.groups[1].slot_mapping);
  EXPECT_EQ(placed.arena.read(placed.p.seq_faults), want.seq_faults);
}

// The tokens of a chain are counted up to the first row that has not sampled the next draft.
TEST_P(EndStepTest, CountsTheAcceptedRowsOfChains) {
  struct Chain {
    std::vector<int32_t> drafts;   // of rows 1, 2, ...
    std::vector<int32_t> sampled;  // of rows 0, 1, ...
    std::vector<int32_t> counts;   // after the step
  };
  constexpr int32_t kVocab = 5;
  const std::vector<Chain> chains = {
      {{1, 2, 3}, {1, 2, 3, 1}, {0, 4, 2, 2, 0}},         // all drafts are accepted
      {{1, 2, 3}, {1, 4, 3, 1}, {0, 2, 0, 0, 2}},         // the first one
      {{1, 2, 3}, {0, 2, 3, 1}, {2, 0, 0, 0, 0}},         // none
      {{}, {3}, {0, 0, 0, 2, 0}},                         // there are none
      {{4, 4, 4, 4}, {4, 4, 4, 4, 7}, {0, 0, 0, 0, 8}}};  // the last token is none of the vocabulary
  Arena arena(GetParam());
  std::vector<SamplingRow> rows;
  std::vector<int32_t> tokens, token_ids, logit_rows;
  std::vector<int32_t*> counts;
  for (const Chain& chain : chains) {
    counts.push_back(arena.inout(std::vector<int32_t>(kVocab, 0)));
    token_ids.push_back(9);  // a token without a row
    for (size_t i = 0; i < chain.sampled.size(); ++i) {
      logit_rows.push_back(static_cast<int32_t>(token_ids.size()));
      token_ids.push_back(i == 0 ? 0 : chain.drafts[i - 1]);
      tokens.push_back(chain.sampled[i]);
      rows.emplace_back();
      rows.back().chain = static_cast<int32_t>(i) + 1;
      rows.back().counts = counts.back();
    }
  }
  rows.emplace_back();  // in no chain: sample() has counted it
  counts.push_back(arena.inout(std::vector<int32_t>(kVocab, 0)));
  rows.back().counts = counts.back();
  tokens.push_back(2);
  logit_rows.push_back(0);
  EndStepParams p;
  p.num_tokens = static_cast<int64_t>(token_ids.size());
  p.token_faults = arena.inout(std::vector<uint8_t>(token_ids.size(), 0));
  p.num_rows = static_cast<int64_t>(rows.size());
  p.vocab_size = kVocab;
  p.rows = arena.inout(rows);
  p.tokens = arena.input(tokens);
  p.token_ids = arena.inout(token_ids);
  p.logit_rows = arena.input(logit_rows);
  const Status status = arena.run([&](const Execution& execution) { return end_step(p, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t c = 0; c < chains.size(); ++c) EXPECT_EQ(arena.read(counts[c]), chains[c].counts) << "chain " << c;
  EXPECT_EQ(arena.read(counts.back()), std::vector<int32_t>(kVocab, 0));
  EXPECT_EQ(arena.read(p.token_ids), token_ids);
  const auto message_of = [&](auto change) {
    EndStepParams changed = p;
    change(changed);
    return arena.run([&](const Execution& execution) { return end_step(changed, execution); }).message();
  };
  EXPECT_EQ(message_of([](EndStepParams& q) { q.vocab_size = 0; }), "end_step: vocab_size is 0: it must lie in 1..2147483647");
  EXPECT_EQ(message_of([](EndStepParams& q) { q.logit_rows = nullptr; }), "end_step: logit_rows is null");
  EXPECT_EQ(message_of([](EndStepParams& q) { q.rows = nullptr; }), "end_step: rows is null");
  EXPECT_EQ(message_of([](EndStepParams& q) { q.advance = 1; }).find("end_step: num_rows is "), 0u);
}

TEST_P(EndStepTest, RefusesWhatTheContractForbids) {
  using P = EndStepParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.num_tokens = -1; }, "num_tokens is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.num_seqs = -1; }, "num_seqs is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.cu_seqlens_q = nullptr; }, "cu_seqlens_q is null"},
      {[](P& p) { p.token_faults = nullptr; }, "token_faults is null"},
      {[](P& p) { p.seq_faults = nullptr; }, "seq_faults is null"},
      {[](P& p) { p.seq_faults = p.token_faults; }, "token_faults overlaps seq_faults"},
      {[](P& p) { p.num_position_axes = 0; }, "num_position_axes is 0: it must lie in 1..4"},
      {[](P& p) { p.num_position_axes = 5; }, "num_position_axes is 5: it must lie in 1..4"},
      {[](P& p) { p.position_axis_stride = kUnsetStride; },
       "position_axis_stride is not set, but num_position_axes is 2: set it, to 0 where all share one row"},
      {[](P& p) { p.position_axis_stride = 2; },
       "positions has the stride 2 where 3 elements lie: rows that are written must not overlap"},
      {[](P& p) { p.num_groups = 0; }, "num_groups is 0: it must lie in 1..8"},
      {[](P& p) { p.num_groups = 9; }, "num_groups is 9: it must lie in 1..8"},
      {[](P& p) { p.groups[1].max_pages = 0; }, "groups[1].max_pages is 0: it must lie in 1..2147483647"},
      {[](P& p) { p.groups[0].page_size = 0; }, "groups[0].page_size is 0: it must lie in 1..1048576"},
      {[](P& p) { p.groups[1].page_size = (1 << 20) + 1; }, "groups[1].page_size is 1048577: it must lie in 1..1048576"},
      {[](P& p) { p.groups[1].num_pages = 0; }, "groups[1].num_pages is 0: it must lie in 1..1099511627776"},
      {[](P& p) { p.groups[1].block_table_stride = 1; }, "groups[1].block_table_stride is 1: it must be at least max_pages, 2"},
      {[](P& p) { p.groups[0].block_table_stride = int64_t{1} << 62; },
       "groups[0].block_table reaches further than 2^60 bytes: its strides are too large"},
      {[](P& p) { p.tokens = nullptr; }, "tokens is null"},
      {[](P& p) { p.token_ids = nullptr; }, "token_ids is null"},
      {[](P& p) { p.positions = nullptr; }, "positions is null"},
      {[](P& p) { p.seq_lens = nullptr; }, "seq_lens is null"},
      {[](P& p) { p.groups[1].slot_mapping = nullptr; }, "groups[1].slot_mapping is null"},
      {[](P& p) { p.groups[0].block_table = nullptr; }, "groups[0].block_table is null"},
      {[](P& p) { p.groups[1].slot_mapping = p.groups[0].slot_mapping; },
       "groups[0].slot_mapping overlaps groups[1].slot_mapping"},
      {[](P& p) { p.token_ids = const_cast<int32_t*>(p.tokens); }, "token_ids overlaps tokens"},
      {[](P& p) { p.seq_lens = p.token_ids; }, "token_ids overlaps seq_lens"},
      {[](P& p) { p.positions = const_cast<int32_t*>(p.groups[1].block_table); }, "positions overlaps groups[1].block_table"},
      {[](P& p) { p.seq_lens = const_cast<int32_t*>(p.cu_seqlens_q); }, "seq_lens overlaps cu_seqlens_q"},
      {[](P& p) { p.rows = reinterpret_cast<SamplingRow*>(p.groups[0].slot_mapping); }, "groups[0].slot_mapping overlaps rows"},
  };
  expect_refusals("end_step", refusals, [&](const auto& change) {
    Random random(4);
    PlacedStep placed(GetParam(), decode_step(random, 3, 2, 2), true, 0, true);
    for (EndStepGroup& group : placed.p.groups) group.max_pages = group.block_table_stride = 2;
    change(placed.p);
    return refused(placed.arena.run([&](const Execution& execution) { return end_step(placed.p, execution); }), placed.arena);
  });
}

// Without advance the members for it are not looked at; groups may share a block table.
TEST_P(EndStepTest, AcceptsWhatTheContractAllows) {
  Random random(5);
  const oracle::StepState step = decode_step(random, 3, 1, 2);
  {
    PlacedStep placed(GetParam(), faults_only(step.cu_seqlens_q, step.token_faults), false, 0, false);
    placed.p.num_groups = -1, placed.p.num_position_axes = 99;
    placed.p.seq_lens = reinterpret_cast<int32_t*>(placed.p.token_faults);
    EXPECT_TRUE(placed.arena.run([&](const Execution& execution) { return end_step(placed.p, execution); }).ok());
  }
  {
    PlacedStep placed(GetParam(), step, true, 0, true);
    placed.p.groups[1].block_table = placed.p.groups[0].block_table;
    placed.p.groups[1].max_pages = placed.p.groups[1].block_table_stride = placed.p.groups[0].max_pages;
    placed.p.position_axis_stride = kUnsetStride;
    EXPECT_TRUE(placed.arena.run([&](const Execution& execution) { return end_step(placed.p, execution); }).ok());
  }
  Arena arena(GetParam());
  arena.output<int32_t>(1);
  EndStepParams nothing;
  EXPECT_TRUE(arena.run([&](const Execution& execution) { return end_step(nothing, execution); }).ok());
  EXPECT_TRUE(arena.untouched());
}

}  // namespace
}  // namespace prologue::test
