// Which instance of the prologue a call runs in depends on its number of tokens. Here every instance that ships runs, whatever it
// is meant for, with tensors missing and with head counts that divide nothing; then calls of real sizes, on both sides of every
// limit of the tables. Each must give the bits of the CPU, and touch nothing else.
#include <gtest/gtest.h>

#ifdef PROLOGUE_HAS_CUDA

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <prologue/kernels/attention_prologue/instances.h>
#include <prologue/kernels/attention_prologue/stages/stages.h>

#include "tests/support/prologue_results.h"
#include "tests/support/random.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

// ---- the calls --------------------------------------------------------------------------------------------------------------

struct Call {
  const char* name;
  std::function<void(PrologueCase&)> change;
};

void add_bias(PrologueCase& c) { c.bias_q = c.bias_k = c.bias_v = true; }
void add_norm(PrologueCase& c) { c.norm = NormPlacement::before_rope; }
void give_scales(PrologueCase& c) { c.kv_type = DType::fp8_e4m3, c.scaling = KvScaling::head; }
void compute_scales(PrologueCase& c) { c.kv_type = DType::int8, c.scaling = KvScaling::token_head; }
void derive(PrologueCase& c) { c.derive_positions = c.derive_slots = true; }
void use_axes(PrologueCase& c) { c.num_axes = 3; }
void interleave(PrologueCase& c) { c.style = RopeStyle::interleaved; }

// Returns one or more calls for every row of the tables.
const std::vector<Call>& calls() {
  using C = PrologueCase;
  static const std::vector<Call> list = {
      {"plain", [](C&) {}},
      {"per_token", [](C& c) { c.source = RopeSource::per_token; }},
      {"interleaved", interleave},
      {"unrotated", [](C& c) { c.rotary_dim = 0; }},
      {"bias", add_bias},
      {"bias_interleaved", [](C& c) { add_bias(c), interleave(c); }},
      {"norm", add_norm},
      {"norm_per_token", [](C& c) { add_norm(c), c.source = RopeSource::per_token; }},
      {"bias_norm", [](C& c) { add_bias(c), add_norm(c); }},
      {"given", give_scales},
      {"computed", compute_scales},
      {"axes", use_axes},
      {"derived", derive},
      {"norm_given", [](C& c) { add_norm(c), give_scales(c); }},
      {"norm_computed", [](C& c) { add_norm(c), compute_scales(c); }},
      {"norm_derived", [](C& c) { add_norm(c), derive(c); }},
      {"given_derived", [](C& c) { give_scales(c), derive(c); }},
      {"norm_given_derived", [](C& c) { add_norm(c), give_scales(c), derive(c); }},
      {"norm_axes", [](C& c) { add_norm(c), use_axes(c); }},
      {"bias_axes", [](C& c) { add_bias(c), use_axes(c); }},
      {"bias_norm_given_derived", [](C& c) { add_bias(c), add_norm(c), give_scales(c), derive(c); }},
      {"int4", [](C& c) { compute_scales(c), c.kv_type = DType::int4; }},
      {"int4_given", [](C& c) { give_scales(c), c.kv_type = DType::int4; }},
      {"uint4", [](C& c) { compute_scales(c), c.kv_type = DType::uint4; }},
      {"int8_uint4", [](C& c) { compute_scales(c), c.v_type = DType::uint4; }},
      {"all_steps_int8_int4", [](C& c) { add_bias(c), add_norm(c), compute_scales(c), c.v_type = DType::int4; }},
      {"after_rope", [](C& c) { c.norm = NormPlacement::after_rope, c.v_norm = true; }},
      {"layer", [](C& c) { add_norm(c), c.norm_kind = NormKind::layer, c.norm_bias = true, c.weights = Weights::per_head; }},
      {"float_weights_uint4", [](C& c) { add_norm(c), compute_scales(c), c.float_weights = true, c.kv_type = DType::uint4; }},
      {"no_weights", [](C& c) { add_norm(c), c.weights = Weights::none, c.v_norm = true, c.inverse = true; }},
      {"q_scale",
       [](C& c) {
         c.q_scale = QueryScale{0.5f, PositionScale::llama4, 0.1f, 16.0f}, c.v_norm = true, c.bias_k = true;
       }},
      {"both_outputs", [](C& c) { c.k_out = c.v_out = c.inverse = true; }},
      {"ring", [](C& c) { derive(c), c.ring_size = 20, c.k_out = true; }},
      {"ring_norm_int4", [](C& c) { derive(c), add_norm(c), compute_scales(c), c.ring_size = 20, c.kv_type = DType::int4; }},
      {"norm_interleaved", [](C& c) { add_norm(c), interleave(c), c.v_norm = true; }},
      {"norm_half", [](C& c) { add_norm(c), c.rotary_dim = c.head_dim / 2, c.rotary_offset = 16, c.v_norm = true; }},
      {"layer_half_uint4",
       [](C& c) {
         add_norm(c), compute_scales(c), c.rotary_dim = c.head_dim / 2, c.norm_kind = NormKind::layer, c.v_norm = true;
         c.kv_type = DType::uint4;
       }},
      {"norm_interleaved_derived", [](C& c) { add_norm(c), interleave(c), derive(c), c.v_norm = true; }},
      {"token_norm", [](C& c) { add_norm(c), c.norm_scope = NormScope::token; }},
      {"token_norm_derived", [](C& c) { add_norm(c), derive(c), c.norm_scope = NormScope::token, c.v_norm = true; }},
      {"token_norm_of_q",
       [](C& c) {
         add_norm(c), give_scales(c), c.norm_scope = NormScope::token, c.k_norm = CaseNorm{NormPlacement::after_rope};
       }},
      {"per_step",
       [](C& c) {
         add_bias(c), add_norm(c), c.per_step = true, c.q_scale.constant = 0.3f, c.v_norm = true, c.hadamard_block = 16;
       }},
      {"hadamard", [](C& c) { compute_scales(c), c.hadamard_block = c.head_dim == 96 ? 16 : c.head_dim; }},
      {"identity", [](C& c) { c.past_table = PastTable::identity, c.max_position = 20; }},
      {"per_step_derived",
       [](C& c) { derive(c), add_norm(c), c.per_step = true, c.hadamard_block = 16, c.past_table = PastTable::identity; }},
      {"per_step_interleaved",
       [](C& c) { add_norm(c), interleave(c), c.per_step = true, c.hadamard_block = 16, c.past_table = PastTable::identity; }},
      {"hadamard_half",
       [](C& c) {
         compute_scales(c), c.rotary_dim = c.head_dim / 2, c.rotary_offset = 8,
                            c.hadamard_block = c.head_dim == 96 ? 16 : c.head_dim;
       }},
      {"all_steps", [](C& c) { add_bias(c), add_norm(c), compute_scales(c); }},
      {"all_steps_axes", [](C& c) { add_bias(c), add_norm(c), compute_scales(c), use_axes(c); }},
      {"all_steps_derived", [](C& c) { add_bias(c), add_norm(c), compute_scales(c), derive(c); }},
      {"all_steps_interleaved", [](C& c) { add_bias(c), compute_scales(c), interleave(c); }},
      {"all_steps_interleaved_axes", [](C& c) { add_bias(c), compute_scales(c), interleave(c), use_axes(c); }},
      {"all_steps_interleaved_derived", [](C& c) { add_bias(c), compute_scales(c), interleave(c), derive(c); }},
  };
  return list;
}

// Says which of Q, K and V a call has.
struct Parts {
  const char* name;
  bool q, k, v;
};
constexpr Parts kParts[] = {{"all", true, true, true},  {"q", true, false, false},   {"k", false, true, false},
                            {"v", false, false, true},  {"no_q", false, true, true}, {"no_k", true, false, true},
                            {"no_v", true, true, false}};

PrologueCase make_case(const Call& call, const Parts& parts, int64_t q_heads, int64_t kv_heads, int64_t head_dim) {
  PrologueCase c;
  c.num_q_heads = q_heads, c.num_kv_heads = kv_heads, c.head_dim = c.rotary_dim = head_dim;
  call.change(c);
  if (c.scaling != KvScaling::none) c.q8 = c.scaling == KvScaling::token_head ? KvScaling::token_head : KvScaling::tensor;
  c.q8_e5m2 = (q_heads + kv_heads) % 2 != 0;
  if (!parts.q) c.num_q_heads = 0, c.q8.reset(), c.bias_q = false;
  if (!parts.k && !parts.v) c.num_kv_heads = 0;
  if (!parts.k) c.with_k = c.bias_k = false;
  if (!parts.v) c.with_v = c.bias_v = false;
  if (!parts.q && !parts.k) c.norm = NormPlacement::none;
  return c;
}

// With two heads a thread, in blocks of 64 and of 192 threads, some of these have rows left over in the last block in every instance,
// also where Q is alone or V is missing.
struct Heads {
  int64_t q, kv, head_dim;
};
constexpr Heads kHeads[] = {{24, 8, 128}, {71, 9, 128}, {57, 9, 64}, {3, 1, 96}};

template <class T>
std::vector<cuda::KernelInstance<AttentionPrologueParams>> instances_of_case(const PrologueCase& c) {
  PlacedPrologue<T> placed(Backend::cpu, c, make_data<T>(c));
  const Status status = validate(placed.params());
  EXPECT_TRUE(status.ok()) << status.message() << "\n" << c.describe();
  return status.ok() ? cuda::instances_of(placed.params()) : std::vector<cuda::KernelInstance<AttentionPrologueParams>>();
}

// Where kernels are emulated, none must be compiled.
#ifdef PROLOGUE_CUDA_EMULATED
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

// Runs every instance that can do a case, and those that are made for it if `makes`.
template <class T>
void check_all_instances(const PrologueCase& listed, bool makes) {
  const PrologueCase c = fit_to_type<T>(listed);
  SCOPED_TRACE(c.describe());
  const PrologueData<T> data = make_data<T>(c);
  PlacedPrologue<T> cpu(Backend::cpu, c, data);
  const Status status = cpu.run();
  ASSERT_TRUE(status.ok()) << status.message();
  PlacedPrologue<T> placed(Backend::cuda, c, data);
  auto instances = cuda::instances_of(placed.params());
  if (makes) {
    for (auto& instance : cuda::described_instances_of(placed.params())) instances.push_back(std::move(instance));
  }
  for (const auto& instance : instances) {
    SCOPED_TRACE(instance.name);
    const Status done =
        placed.run([&](const Execution& execution) { return instance.launch(placed.params(), execution.stream); });
    ASSERT_TRUE(done.ok()) << done.message();
    expect_same_bits(placed, cpu);
    if (::testing::Test::HasFailure()) return;
  }
}

// ---- the walk ---------------------------------------------------------------------------------------------------------------

using Row = std::tuple<DType, size_t>;

class PrologueInstancesTest : public ::testing::TestWithParam<Row> {};

INSTANTIATE_TEST_SUITE_P(Rows, PrologueInstancesTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::f16, DType::bf16),
                                            ::testing::Range(size_t{0}, std::size(kParts))),
                         [](const ::testing::TestParamInfo<Row>& row) {
                           return str_cat(dtype_name(std::get<0>(row.param)), "_", kParts[std::get<1>(row.param)].name, "_cuda");
                         });

TEST_P(PrologueInstancesTest, EachGivesTheBitsOfTheCpu) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  const Parts& parts = kParts[std::get<1>(GetParam())];
  with_host_type(std::get<0>(GetParam()), [&](auto type) {
    for (const Call& call : calls()) {
      SCOPED_TRACE(call.name);
      for (const Heads& heads : kHeads) {
        check_all_instances<decltype(type)>(make_case(call, parts, heads.q, heads.kv, heads.head_dim), kEmulated);
        if (HasFailure()) return;
      }
    }
  });
}

// Anything with anything, in whatever can do it: the general kernel with vectors of every width above all.
TEST(PrologueInstances, EachGivesTheBitsOfTheCpuOnRandomStructs_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  for (uint64_t seed = 9001; seed <= 9200 && !::testing::Test::HasFailure(); ++seed) {
    const PrologueCase c = random_case(seed);
    if (c.num_tokens == 0) continue;  // nothing is launched
    with_host_type(kFloatTypes[seed % 3],
                   [&](auto type) { check_all_instances<decltype(type)>(c, kEmulated || seed % 10 == 1); });
  }
}

// Compares what the walk reaches with the tables. No GPU is needed for that.
TEST(PrologueInstances, TheWalkReachesEachWithEveryPartMissing) {
  std::map<std::string, std::set<std::string>> reached;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    with_host_type(dtype, [&](auto type) {
      for (const Parts& parts : kParts) {
        for (const Call& call : calls()) {
          for (const Heads& heads : kHeads) {
            const PrologueCase c = make_case(call, parts, heads.q, heads.kv, heads.head_dim);
            for (const auto& instance : instances_of_case<decltype(type)>(c)) reached[instance.name].insert(parts.name);
          }
        }
      }
    });
  }
  const std::vector<std::string> shipped = cuda::attention_prologue_instances();
  EXPECT_EQ(reached.size(), shipped.size()) << "two instances share a name, or one that does not ship was reached";
  for (const std::string& name : shipped) {
    for (const Parts& parts : kParts) {
      // Positions and slots are derived for a cache, which alone has elements of 4 bits; what normalises has Q or K.
      const bool fixed = name.find("common_steps") == std::string::npos;
      const bool cached = name.find("derived") != std::string::npos || name.find("four_bits") != std::string::npos;
      if (cached && !parts.k && !parts.v) continue;
      if (fixed && name.find("norm") != std::string::npos && !parts.q && !parts.k) continue;
      EXPECT_TRUE(reached[name].contains(parts.name)) << name << " with parts " << parts.name;
    }
  }
}

// ---- real sizes -------------------------------------------------------------------------------------------------------------

template <class T>
void check_call(const PrologueCase& c) {
  SCOPED_TRACE(c.describe());
  const PrologueData<T> data = make_data<T>(c);
  PlacedPrologue<T> cpu(Backend::cpu_threads, c, data);
  PlacedPrologue<T> placed(Backend::cuda, c, data);
  ASSERT_TRUE(cpu.run().ok());
  const Status status = placed.run();
  ASSERT_TRUE(status.ok()) << status.message();
  expect_same_bits(placed, cpu);
}

class PrologueSizesTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, PrologueSizesTest, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& row) { return str_cat(dtype_name(row.param), "_cuda"); });

// One token more, and another instance takes the call: the limits come from the tables. Calls with few heads have lower ones only.
TEST_P(PrologueSizesTest, BothSidesOfEveryLimit) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  with_host_type(GetParam(), [&](auto type) {
    using T = decltype(type);
    int row = 0;
    const auto check = [&](const Call& call, int64_t q_heads, int64_t kv_heads) {
      PrologueCase c = make_case(call, kParts[++row % 2 == 0 ? 0 : 6], q_heads, kv_heads, 64);
      c.values = Values::coarse, c.max_position = 200;
      for (const auto& instance : instances_of_case<T>(c)) {
        if (instance.max_tokens == INT64_MAX) break;  // what takes a call by itself ends here
        for (const int64_t num_tokens : {instance.max_tokens, instance.max_tokens + 1}) {
          c.num_tokens = num_tokens;
          check_call<T>(c);
          if (HasFailure()) return;
        }
      }
    };
    for (const Call& call : calls()) {
      check(call, 7, 2);
      const std::string name = call.name;
      if (name == "plain" || name == "norm") check(call, 48, 3);
      if (HasFailure()) return;
    }
  });
}

// Head counts of known models, and lengths of prompts.
TEST(PrologueSizes, OfRealModels_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  struct Size {
    int64_t q_heads, kv_heads;
    const char* parts;
    const char* call;
    int64_t num_tokens;
  };
  constexpr Size kSizes[] = {
      {32, 8, "all", "plain", 7000},     {32, 8, "all", "norm", 3000},       {32, 8, "no_v", "norm", 3000},
      {24, 8, "q", "norm", 3000},        {40, 8, "q", "norm", 5000},         {64, 8, "no_v", "norm", 7000},
      {40, 8, "no_v", "all_steps", 513}, {32, 8, "no_v", "all_steps", 3000}, {24, 8, "q", "all_steps", 3000},
      {32, 8, "k", "norm_given", 5000},  {32, 8, "no_k", "bias", 7000},      {24, 3, "no_v", "bias_interleaved", 7000},
      {8, 1, "all", "plain", 3001},      {8, 1, "all", "norm", 3001},        {7, 1, "no_v", "norm", 2003},
  };
  for (const Size& size : kSizes) {
    const auto call =
        std::find_if(calls().begin(), calls().end(), [&](const Call& c) { return std::string(c.name) == size.call; });
    const auto parts =
        std::find_if(std::begin(kParts), std::end(kParts), [&](const Parts& p) { return std::string(p.name) == size.parts; });
    ASSERT_TRUE(call != calls().end() && parts != std::end(kParts));
    PrologueCase c = make_case(*call, *parts, size.q_heads, size.kv_heads, 128);
    c.num_tokens = size.num_tokens, c.max_position = 2000, c.values = Values::coarse;
    check_call<BFloat16>(c);
    if (::testing::Test::HasFailure()) return;
  }
}

// A head of 576 channels has a block to itself, and a grid fewer rows than a call may have heads.
TEST(PrologueSizes, MoreHeadsThanAGridHasRows_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
    PrologueCase c;
    c.num_tokens = 1, c.num_q_heads = 65536, c.num_kv_heads = 0, c.head_dim = c.rotary_dim = 576, c.values = Values::coarse;
    if (kind == NormKind::layer) c.norm = NormPlacement::before_rope, c.norm_kind = kind;
    check_call<Float16>(c);
  }
}

// Runs the stage, which is the fused kernel with Q alone: a long prompt in an unfused graph.
TEST(PrologueSizes, QkNormOfLongPrompts_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  constexpr int64_t kHeadDim = 128;
  for (const auto& [num_tokens, num_heads] : {std::pair<int64_t, int64_t>{6100, 24}, {8000, 40}, {8000, 8}, {513, 5}}) {
    SCOPED_TRACE(str_cat(num_tokens, " tokens of ", num_heads, " heads"));
    Random random(static_cast<uint64_t>(num_tokens));
    std::vector<BFloat16> x(static_cast<size_t>(num_tokens * num_heads * kHeadDim));
    for (BFloat16& value : x) value = from_float<BFloat16>(static_cast<float>(random.integer(-128, 127)) * 0x1p-6f);
    const std::vector<BFloat16> weight = random.normals<BFloat16>(kHeadDim);
    std::vector<std::vector<BFloat16>> results;
    for (const Backend backend : {Backend::cpu_threads, Backend::cuda}) {
      Arena arena(backend);
      QkNormParams p;
      p.num_tokens = num_tokens, p.num_heads = num_heads, p.head_dim = kHeadDim, p.dtype = DType::bf16;
      p.x = {arena.input(x), num_heads * kHeadDim, kHeadDim};
      BFloat16* y = arena.output<BFloat16>(static_cast<int64_t>(x.size()));
      p.y = {y, num_heads * kHeadDim, kHeadDim};
      p.norm.weight = arena.input(weight);
      const Status status = arena.run([&](const Execution& execution) { return qk_norm(p, execution); });
      ASSERT_TRUE(status.ok()) << status.message();
      results.push_back(arena.read(y));
    }
    expect_bits(results[1], results[0], "y");
  }
}

}  // namespace
}  // namespace prologue::test

#endif
