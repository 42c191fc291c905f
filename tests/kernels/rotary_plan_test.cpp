// Plans of the rotary operation: validated once, run with other pointers and fewer tokens.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include <prologue/kernels/rotary/rotary.h>

#include "tests/support/changed_members.h"
#include "tests/support/rotary_results.h"

namespace prologue::test {
namespace {

class RotaryTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, RotaryTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

TEST_P(RotaryTest, PlanRunsWithOtherPointersAndFewerTokens) {
  RotaryCase c;
  c.batch = 2;
  c.seq_len = 7;
  PlacedRotary<float> large(GetParam(), c);
  c.seed = 2, c.seq_len = 3;
  PlacedRotary<float> small(GetParam(), c);
  const Execution execution{backend_device(GetParam())};
  const Result<RotaryPlan> plan = RotaryPlan::create(large.params(), execution);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(RotaryPlan::workspace_bytes(), 0);
  EXPECT_EQ(plan->params().seq_len, 7);
  const Status status = small.arena().run([&](const Execution& e) { return plan->run(small.params(), e); });
  ASSERT_TRUE(status.ok()) << status.message();
  expect_matches(small);

  RotaryParams longer = large.params();
  longer.seq_len = 8;
  EXPECT_EQ(plan->run(longer, execution).message(), "rotary plan: seq_len is 8: it must lie in 0..7, that of the plan");
  longer.seq_len = 7, longer.batch = 3;
  EXPECT_EQ(plan->run(longer, execution).message(), "rotary plan: batch is 3: it must be that of the plan, 2");
  const struct {
    std::function<void(RotaryParams&)> change;
    const char* message;
  } runs[] = {
      {[](RotaryParams& p) { p.num_tensors = 9; }, "num_tensors is 9: it must be that of the plan, 2"},
      {[](RotaryParams& p) { p.tensors[1].num_heads = 7; }, "tensors[1].num_heads is 7: it must be that of the plan, 1"},
      {[](RotaryParams& p) { p.tensors[0].x = nullptr; }, "tensors[0].x is null, but the plan was made with it"},
      {[](RotaryParams& p) { p.tensors[1].y = nullptr; }, "tensors[1].y is null, but the plan was made with it"},
      {[](RotaryParams& p) { p.tensors[0].y_strides.token = 3; },
       "tensors[0].y_strides.token is 3: it must be that of the plan, 32"},
      {[](RotaryParams& p) { p.tensors[0].x_strides.head = -1; },
       "tensors[0].x_strides.head is -1: it must lie in 0..1099511627776"},
      {[](RotaryParams& p) { p.rope.style = RopeStyle::interleaved; }, "rope.style is 1: it must be that of the plan, 0"},
      {[](RotaryParams& p) { p.rope.rotary_dim = 8; }, "rope.rotary_dim is 8: it must be that of the plan, 16"},
      {[](RotaryParams& p) { p.rope.inverse = true; }, "rope.inverse is 1: it must be that of the plan, 0"},
      {[](RotaryParams& p) { p.rope.width = RopeWidth::full; }, "rope.width is 2: it must be that of the plan, 1"},
      {[](RotaryParams& p) { p.rope.cos.data = nullptr; }, "rope.cos is null, but the plan was made with it"},
      {[](RotaryParams& p) { p.rope.max_position = 25; }, "rope.max_position is 25: it must be that of the plan, 24"},
      {[](RotaryParams& p) { p.rope.past_table = PastTable::zero; }, "rope.past_table is 1: it must be that of the plan, 0"},
      {[](RotaryParams& p) { p.positions.ids.data = nullptr; }, "positions.ids is null, but the plan was made with it"},
      {[](RotaryParams& p) { p.positions.ids.type = DType::uint64; },
       "positions.ids.type is uint64: it must be that of the plan, int32"},
      {[](RotaryParams& p) { p.positions.batch_stride = INT64_MAX; },
       "positions.batch_stride is 9223372036854775807: it must lie in 0..1099511627776"},
      {[](RotaryParams& p) { p.faults = nullptr; }, "faults is null, but the plan was made with it"},
  };
  for (const auto& run : runs) {
    RotaryParams changed = large.params();
    run.change(changed);
    EXPECT_EQ(plan->run(changed, execution).message(), str_cat("rotary plan: ", run.message));
  }
  const Device other = execution.device == Device::cpu ? Device::cuda : Device::cpu;
  const Status elsewhere = plan->run(large.params(), Execution{other});
  EXPECT_EQ(elsewhere.message(),
            str_cat("rotary plan: device is ", device_name(other), ": the plan was made for ", device_name(execution.device)));
  longer = large.params();
  longer.num_tensors = 9;
  EXPECT_EQ(RotaryPlan::create(longer, execution).status().message(), "rotary: num_tensors is 9: it must lie in 1..4");
  longer.num_tensors = 1, longer.seq_len = 0;
  EXPECT_EQ(RotaryPlan::create(longer, execution).status().message(),
            "rotary plan: batch * seq_len is 0: it must lie in 1..2147483647");
}

// Every member that a run must not change is compared, also one that the struct gains later.
TEST_P(RotaryTest, PlansCheckEveryMember) {
  RotaryCase c;
  PlacedRotary<float> placed(GetParam(), c);
  const RotaryParams& params = placed.params();
  ASSERT_EQ(params.num_tensors, 2);
  const Execution execution{backend_device(GetParam())};
  const Result<RotaryPlan> plan = RotaryPlan::create(params, execution);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::set<std::string> may_change;
  const Status status = placed.arena().run([&](const Execution& e) {
    may_change.clear();
    with_each_member_changed(params, [&](const std::string& name, const RotaryParams& changed) {
      // The stride is free, because there are several heads; but the data of this test has other strides.
      if (name == "tensors[0].x_strides.head" || name == "tensors[0].y_strides.head") return;
      const Status refused = plan->run(changed, e);
      if (refused.ok()) {
        if (name.rfind("tensors[2]", 0) != 0 && name.rfind("tensors[3]", 0) != 0) may_change.insert(name);
      } else {
        EXPECT_EQ(refused.message().rfind("rotary plan: " + name + " is ", 0), 0u) << refused.message();
      }
    });
    return Status();
  });
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(may_change,
            (std::set<std::string>{"positions.axis_stride", "positions.batch_stride", "positions.num_seqs",
                                   "rope.angles.batch_stride", "rope.cos.batch_stride", "rope.sin.batch_stride",
                                   "tensors[0].x_strides.batch", "tensors[0].y_strides.batch", "tensors[1].x_strides.batch",
                                   "tensors[1].x_strides.head", "tensors[1].y_strides.batch", "tensors[1].y_strides.head"}));
}

// Sizes, types and strides are checked when the plan is made, pointers when it runs.
TEST_P(RotaryTest, PlanIsMadeBeforeThereIsMemory) {
  RotaryCase c;
  c.batch = 2;
  PlacedRotary<float> placed(GetParam(), c);
  RotaryParams shapes = placed.params();
  for (RotaryTensor& tensor : shapes.tensors) tensor.x = tensor.y = nullptr;
  shapes.rope.cos.data = shapes.rope.sin.data = nullptr;
  shapes.positions.ids.data = nullptr;
  shapes.faults = nullptr;
  shapes.token_faults = nullptr;
  const Execution execution{backend_device(GetParam())};
  const Result<RotaryPlan> plan = RotaryPlan::create(shapes, execution);
  ASSERT_TRUE(plan.ok()) << plan.status().message();

  RotaryParams wrong = shapes;
  wrong.tensors[1].x_strides.token = -1;
  EXPECT_EQ(RotaryPlan::create(wrong, execution).status().message(),
            "rotary: tensors[1].x has the stride -1: strides must not be negative");
  wrong = shapes;
  wrong.tensors[0].y_strides.head = 3;
  EXPECT_EQ(RotaryPlan::create(wrong, execution).status().message(),
            "rotary: tensors[0].y has the stride 3 where 16 elements lie: rows that are written must not overlap");
  wrong = shapes;
  wrong.rope.max_position = 0;
  EXPECT_EQ(RotaryPlan::create(wrong, execution).status().code(), StatusCode::invalid_argument);

  RotaryParams missing = placed.params();
  missing.tensors[0].x = nullptr;
  EXPECT_EQ(plan->run(missing, execution).message(), "rotary: tensors[0].x is null");
  RotaryParams overlapping = placed.params();
  overlapping.tensors[1].y = const_cast<void*>(overlapping.tensors[0].x);
  EXPECT_EQ(plan->run(overlapping, execution).message(), "rotary: tensors[1].y overlaps tensors[0].x");
  EXPECT_TRUE(placed.arena().untouched());
  const Status status = placed.arena().run([&](const Execution& e) { return plan->run(placed.params(), e); });
  ASSERT_TRUE(status.ok()) << status.message();
  expect_matches(placed);
}

}  // namespace
}  // namespace prologue::test
