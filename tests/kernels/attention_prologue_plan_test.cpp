// Plans of the prologue: a plan is validated once, and its runs give the bits of the operation.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "tests/support/changed_members.h"
#include "tests/support/prologue_results.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class AttentionPrologueTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, AttentionPrologueTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

// A plan is the operation without its checks: the same bits, for any number of tokens up to its own.
TEST_P(AttentionPrologueTest, RunsAsPlanned) {
  for (uint64_t seed = 20001; seed <= 20060; ++seed) {
    PrologueCase c = random_case(seed);
    if (c.num_tokens == 0) continue;
    SCOPED_TRACE(c.describe());
    with_host_type(kFloatTypes[seed % 3], [&](auto type) {
      using T = decltype(type);
      c = fit_to_type<T>(c);
      const PrologueData<T> data = make_data<T>(c);
      PlacedPrologue<T> direct(GetParam(), c, data), planned(GetParam(), c, data);
      ASSERT_TRUE(direct.run().ok());
      Execution execution;
      execution.device = backend_device(GetParam());
      auto plan = AttentionProloguePlan::create(planned.params(), c.num_tokens, execution);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const std::string kernel = plan->kernel();
      EXPECT_TRUE(execution.device == Device::cpu ? kernel == "cpu"
                                                  : kernel == "lean" || kernel == "compiled" || kernel == "general")
          << kernel;
      const Status status = planned.run([&](const Execution& e) { return plan->run(planned.params(), e); });
      ASSERT_TRUE(status.ok()) << status.message();
      expect_same_bits(planned, direct);
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(AttentionPrologueTest, PlansForFewerTokensToo) {
  const PrologueCase c = plain_case(64);
  const PrologueData<BFloat16> data = make_data<BFloat16>(c);
  for (const int64_t tokens : {0, 1, 63, 64}) {
    PlacedPrologue<BFloat16> direct(GetParam(), c, data), planned(GetParam(), c, data);
    Execution execution;
    execution.device = backend_device(GetParam());
    auto plan = AttentionProloguePlan::create(planned.params(), 64, execution);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    direct.params().num_tokens = planned.params().num_tokens = tokens;
    ASSERT_TRUE(direct.run().ok());
    ASSERT_TRUE(planned.run([&](const Execution& e) { return plan->run(planned.params(), e); }).ok());
    expect_same_bits(planned, direct);
  }
}

// A run may give fewer slots than the plan was made with, whatever kernel the plan has.
TEST_P(AttentionPrologueTest, ARunMayGiveFewerSlots) {
  for (const int64_t missing_in_plan : {0, 3}) {
    PrologueCase c = plain_case(9);
    c.tokens_without_slot = missing_in_plan;
    const PrologueData<BFloat16> data = make_data<BFloat16>(c);
    PlacedPrologue<BFloat16> made(GetParam(), c, data);
    Execution execution;
    execution.device = backend_device(GetParam());
    const auto plan = AttentionProloguePlan::create(made.params(), 9, execution);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    for (const int64_t missing : {0, 1, 8}) {
      c.tokens_without_slot = missing;
      PlacedPrologue<BFloat16> planned(GetParam(), c, data);
      const Status status = planned.run([&](const Execution& e) { return plan->run(planned.params(), e); });
      ASSERT_TRUE(status.ok()) << status.message();
      expect_matches(planned, oracle::attention_prologue(oracle_input(c, data)));
    }
    AttentionPrologueParams& p = made.params();
    EXPECT_TRUE(made.run([&](const Execution& e) {
                      p.places.slot_mapping_len = 10;
                      EXPECT_EQ(plan->run(p, e).message(),
                                "attention_prologue plan: slot_mapping_len is 10: it must lie in 0..num_tokens, 9");
                      return Status();
                    })
                    .ok());
  }
}

TEST_P(AttentionPrologueTest, PlansOnlyWhatIsValid) {
  const PrologueCase c = plain_case(4);
  PlacedPrologue<float> placed(GetParam(), c, make_data<float>(c));
  Execution execution;
  execution.device = backend_device(GetParam());
  AttentionPrologueParams& p = placed.params();
  const auto message = [&](int64_t max_tokens) {
    return AttentionProloguePlan::create(p, max_tokens, execution).status().message();
  };
  EXPECT_EQ(message(0), "attention_prologue plan: max_tokens is 0: it must lie in 1..2147483647");
  auto plan = AttentionProloguePlan::create(p, 4, execution);
  ASSERT_TRUE(plan.ok());
  p.head_dim = 3;
  EXPECT_EQ(message(4), "attention_prologue: head_dim is 3: supported is every even number in 2..1024");
  p.head_dim = 64;
  const Status status = placed.run([&](const Execution& e) {
    p.num_tokens = 5;
    EXPECT_EQ(plan->run(p, e).message(), "attention_prologue plan: num_tokens is 5: it must lie in 0..4, that of the plan");
    p.num_tokens = 4;
    Execution on_cpu;
    EXPECT_EQ(AttentionProloguePlan().run(p, on_cpu).message(),
              "attention_prologue plan: num_q_heads is 8: it must be that of the plan, 0");
    Execution other = e;
    other.device = e.device == Device::cpu ? Device::cuda : Device::cpu;
    EXPECT_EQ(plan->run(p, other).message(), str_cat("attention_prologue plan: device is ", device_name(other.device),
                                                     ": the plan was made for ", device_name(e.device)));
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(placed.arena().untouched());
}

// A run with other constants than the plan's, or with a pointer more or less: an error that names it, and nothing is written.
TEST_P(AttentionPrologueTest, PlansCheckWhatARunBrings) {
  using P = AttentionPrologueParams;
  PrologueCase c = plain_case(4);
  c.norm = NormPlacement::before_rope;
  c.derive_positions = c.derive_slots = true;
  PlacedPrologue<float> placed(GetParam(), c, make_data<float>(c));
  const P good = placed.params();
  Execution made_on;
  made_on.device = backend_device(GetParam());
  const auto plan = AttentionProloguePlan::create(good, 4, made_on);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const struct {
    std::function<void(P&)> change;
    std::string message;
  } runs[] = {
      {[](P& p) { p.num_q_heads = 4; }, "num_q_heads is 4: it must be that of the plan, 8"},
      {[](P& p) { p.dtype = DType::bf16; }, "dtype is bfloat16: it must be that of the plan, float32"},
      {[](P& p) { p.q.head_stride = 128; }, "q.head_stride is 128: it must be that of the plan, 64"},
      {[](P& p) { p.q.data = nullptr; }, "q is null, but the plan was made with it"},
      {[](P& p) { p.q_out.data = nullptr; }, "q_out is null, but the plan was made with it"},
      {[](P& p) { p.k_out = p.q_out; }, "k_out is given, but the plan was made without it"},
      {[](P& p) { p.k_norm.bias = p.k.data; }, "k_norm.bias is given, but the plan was made without it"},
      {[](P& p) { p.q_norm.eps = p.k_norm.eps = 0.5f; }, "q_norm.eps is 0.5: it must be that of the plan, 1e-06"},
      {[](P& p) { p.k_norm.weight_type = DType::bf16; }, "k_norm.weight_type is bfloat16: it must be that of the plan, float32"},
      {[](P& p) { p.q_norm.weight = nullptr; }, "q_norm.weight is null, but the plan was made with it"},
      {[](P& p) { p.v_norm.placement = NormPlacement::before_rope; }, "v_norm.placement is 1: it must be that of the plan, 0"},
      {[](P& p) { p.rope.rotary_dim = 32; }, "rope.rotary_dim is 32: it must be that of the plan, 64"},
      {[](P& p) { p.rope.cos.data = nullptr; }, "rope.cos is null, but the plan was made with it"},
      {[](P& p) { p.rope.sin.data = p.rope.cos.data; }, "rope.sin is 0 bytes from rope.cos: it must be as in the plan, 128"},
      {[](P& p) { p.rope.cos.row_stride = 128; }, "rope.cos.row_stride is 128: it must be that of the plan, 64"},
      {[](P& p) { p.rope.type = DType::f16; }, "rope.type is float16: it must be that of the plan, float32"},
      {[](P& p) { p.rope.num_blocks = 2; }, "rope.num_blocks is 2: it must be that of the plan, 1"},
      {[](P& p) { p.q_rope = p.q; }, "q_rope is given, but the plan was made without it"},
      {[](P& p) { p.k_rope.head_stride = 1; }, "k_rope.head_stride is 1: it must be that of the plan, 0"},
      {[](P& p) { p.rope.max_position = 99; }, "rope.max_position is 99: it must be that of the plan, 40"},
      {[](P& p) { p.rope.past_table = PastTable::identity; }, "rope.past_table is 2: it must be that of the plan, 0"},
      {[](P& p) { p.places.page_table.block_table = nullptr; },
       "places.page_table.block_table is null, but the plan was made with it"},
      {[](P& p) { p.places.seq_lens = p.places.cache_lens, p.places.cache_lens = nullptr; },
       "places.cache_lens is null, but the plan was made with it"},
      {[](P& p) { p.places.seq_lens = p.places.cache_lens; }, "places.seq_lens is given, but the plan was made without it"},
      {[](P& p) { p.places.page_table.kv_indptr = p.places.cache_lens; },
       "places.page_table.kv_indptr is given, but the plan was made without it"},
      {[](P& p) { p.places.page_table.num_kv_indices = 1; },
       "places.page_table.num_kv_indices is 1: it must lie in 0..0, that of the plan"},
      {[](P& p) { p.places.num_seqs += 1; }, "@places.num_seqs"},
      {[](P& p) { p.places.num_seqs = 0; }, "@places.num_seqs"},
      {[](P& p) { p.hadamard_block = 8; }, "hadamard_block is 8: it must be that of the plan, 0"},
      {[](P& p) { p.q_scale.constant = 2.0f; }, "q_scale.constant is 2: it must be that of the plan, 1"},
      {[](P& p) { p.k_constant = 2.0f; }, "k_constant is 2: it must be that of the plan, 1"},
      {[](P& p) { p.v_constant = 0.5f; }, "v_constant is 0.5: it must be that of the plan, 1"},
      {[](P& p) { p.cache.k.format.type = p.cache.v.format.type = DType::int8; },
       "cache.k.format.type is int8: it must be that of the plan, float32"},
      {[](P& p) { p.q8_out.type = DType::fp8_e5m2; }, "q8_out.type is fp8_e5m2: it must be that of the plan, fp8_e4m3"},
      {[](P& p) { p.cache.k.data = nullptr; }, "cache.k is null, but the plan was made with it"},
      {[](P& p) { p.cache.v.strides.page *= 2; }, "@cache.v.strides.page"},
      {[](P& p) { p.faults = nullptr; }, "faults is null, but the plan was made with it"},
  };
  const Status status = placed.run([&](const Execution& e) {
    for (const auto& run : runs) {
      P p = good;
      run.change(p);
      const Status refused = plan->run(p, e);
      EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
      if (run.message[0] != '@') {
        EXPECT_EQ(refused.message(), "attention_prologue plan: " + run.message);
      } else {
        EXPECT_EQ(refused.message().rfind("attention_prologue plan: " + run.message.substr(1) + " is ", 0), 0u)
            << refused.message();
      }
    }
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(placed.arena().untouched());
}

// Every member that a run must not change is compared, also one that the struct gains later.
TEST_P(AttentionPrologueTest, PlansCheckEveryMember) {
  for (const bool derived : {false, true}) {
    PrologueCase c = plain_case(4);
    c.derive_positions = c.derive_slots = derived;
    PlacedPrologue<BFloat16> placed(GetParam(), c, make_data<BFloat16>(c));
    placed.params().cache.k.format.type = placed.params().cache.v.format.type = DType::bf16;
    Execution made_on;
    made_on.device = backend_device(GetParam());
    const auto plan = AttentionProloguePlan::create(placed.params(), 4, made_on);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::set<std::string> may_change;
    const Status status = placed.run([&](const Execution& e) {
      may_change.clear();
      with_each_member_changed(placed.params(), [&](const std::string& name, const AttentionPrologueParams& changed) {
        const Status refused = plan->run(changed, e);
        const std::string shown = name == "places.slot_mapping_len" ? "slot_mapping_len" : name;
        if (refused.ok()) {
          may_change.insert(name);
        } else {
          EXPECT_EQ(refused.message().rfind("attention_prologue plan: " + shown + " is ", 0), 0u) << refused.message();
        }
      });
      return Status();
    });
    ASSERT_TRUE(status.ok());
    const std::set<std::string> given = {"places.num_seqs", "places.position_axis_stride", "places.slot_mapping_len"};
    EXPECT_EQ(may_change, derived ? std::set<std::string>{"places.position_axis_stride"} : given);
  }
}

// So is every member of a group; its pointers may change.
TEST_P(AttentionPrologueTest, PlansCheckEveryMemberOfAGroup) {
  PrologueCase c = plain_case(4);
  c.groups = deepseek_indexer();
  PlacedPrologue<BFloat16> placed(GetParam(), c, make_data<BFloat16>(c));
  Execution made_on;
  made_on.device = backend_device(GetParam());
  const AttentionPrologueParams given = placed.params();
  std::vector<HeadGroup> groups(given.groups, given.groups + given.num_groups);
  Result<AttentionProloguePlan> made = [&] {
    AttentionPrologueParams params = given;  // neither it nor the array is needed after this
    std::vector<HeadGroup> of_plan = groups;
    params.groups = of_plan.data();
    auto plan = AttentionProloguePlan::create(params, 4, made_on);
    std::fill(of_plan.begin(), of_plan.end(), HeadGroup());
    return plan;
  }();
  ASSERT_TRUE(made.ok()) << made.status().message();
  const AttentionProloguePlan plan = *made;
  int64_t refused = 0;
  const Status status = placed.run([&](const Execution& e) {
    for (size_t i = 0; i < groups.size(); ++i) {
      with_each_member_changed(groups[i], [&](const std::string& name, const HeadGroup& changed) {
        std::vector<HeadGroup> run = groups;
        run[i] = changed;
        AttentionPrologueParams params = given;
        params.groups = run.data();
        const std::string message(plan.run(params, e).message());
        EXPECT_EQ(message.rfind(str_cat("attention_prologue plan: groups[", i, "]: ", name, " is "), 0), 0u)
            << name << ": " << message;
        ++refused;
      });
    }
    AttentionPrologueParams fewer = given;
    fewer.num_groups = 1;
    EXPECT_EQ(plan.run(fewer, e).message(), "attention_prologue plan: num_groups is 1: it must be that of the plan, 2");
    return Status();
  });
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(placed.arena().untouched());
  EXPECT_GT(refused, 100);
  const Status ran = placed.run([&](const Execution& e) { return plan.run(given, e); });
  EXPECT_TRUE(ran.ok()) << ran.message();
}

}  // namespace
}  // namespace prologue::test
