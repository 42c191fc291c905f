// Tests the QKV projection and the prologue in one operation against the prologue alone. The hidden states and weights are small whole
// numbers, so that every order of a sum gives the same projection, exactly: then every output must have the bits of attention_prologue()
// over that projection, whatever the prologue does. A second test holds the sums of ordinary numbers to float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <prologue/kernels/qkv_prologue/backends.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>
#ifdef PROLOGUE_HAS_CUDA
#include <prologue/kernels/qkv_prologue/instances.h>
#endif

#include "tests/support/combinations.h"
#include "tests/support/placed_qkv_prologue.h"
#include "tests/support/prologue_features.h"
#include "tests/support/prologue_results.h"
#include "tests/support/random.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

// Returns [num_tokens, qkv_width] in float64.
std::vector<double> project(const PrologueCase& c, const Projection& p) {
  std::vector<double> out;
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const float* const h = p.hidden.data() + t * p.hidden_size;
    double squares = 0.0;
    for (int64_t i = 0; i < p.hidden_size; ++i) squares += double{h[i]} * h[i];
    const double inverse =
        p.normed ? 1.0 / std::sqrt(squares / static_cast<double>(p.hidden_size) + static_cast<double>(p.eps)) : 1.0;
    for (int64_t row = 0; row < qkv_width(c); ++row) {
      const float* const w = p.weight.data() + row * p.hidden_size;
      double sum = 0.0;
      for (int64_t i = 0; i < p.hidden_size; ++i) {
        const double x = p.normed && p.weighted ? double{h[i]} * p.norm_weight[static_cast<size_t>(i)] : double{h[i]};
        sum += x * w[i];
      }
      out.push_back(inverse * sum);
    }
  }
  return out;
}

// Holds the case with q, k and v from the projection, in one buffer.
template <class T>
PrologueData<T> projected_data(const PrologueCase& c, const std::vector<double>& qkv) {
  PrologueData<T> data = make_data<T>(c);
  const int64_t width = qkv_width(c), k_at = c.num_q_heads * c.head_dim, v_at = k_at + c.num_kv_heads * c.head_dim;
  const auto columns = [&](int64_t begin, int64_t end) {
    std::vector<T> values;
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t i = begin; i < end; ++i)
        values.push_back(from_float<T>(static_cast<float>(qkv[static_cast<size_t>(t * width + i)])));
    }
    return values;
  };
  data.q = columns(0, k_at);
  data.k = columns(k_at, v_at);
  data.v = columns(v_at, width);
  return data;
}

enum class Operations { automatic, separate };

template <class T>
void expect_prologue_of_projection(Backend backend, const PrologueCase& c, const Projection& p, Operations operations) {
  const PrologueData<T> data = projected_data<T>(c, project(c, p));
  PlacedPrologue<T> want(backend, c, data), got(backend, c, data);
  const Status alone = want.run();
  ASSERT_TRUE(alone.ok()) << alone.message();
  const QkvPrologueParams params = place_projection(got, p);
  const auto context = GemmContext::create(backend_device(backend));
  ASSERT_TRUE(context.ok()) << context.status().message();
  const Status status = got.run([&](const Execution& execution) -> Status {
    PROLOGUE_RETURN_IF_ERROR(validate(params, **context, execution));
    return operations == Operations::automatic ? run_validated(params, **context, execution)
                                               : run_separately(params, **context, execution);
  });
  ASSERT_TRUE(status.ok()) << status.message();
  expect_same_bits(got, want);
}

// ---- every feature of the prologue ------------------------------------------------------------------------------------------

using Row = std::tuple<size_t, Backend>;

class QkvPrologueFeatureTest : public ::testing::TestWithParam<Row> {};

std::string row_name(const ::testing::TestParamInfo<Row>& info) {
  return str_cat(prologue_features()[std::get<0>(info.param)].name, "_", backend_name(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Rows, QkvPrologueFeatureTest,
                         ::testing::Combine(::testing::Range(size_t{0}, prologue_features().size()),
                                            ::testing::ValuesIn(all_backends())),
                         row_name);

TEST_P(QkvPrologueFeatureTest, HasTheBitsOfThePrologueAlone) {
  const auto& [row, backend] = GetParam();
  PROLOGUE_REQUIRE_BACKEND(backend);
  int number = 0;
  for (const auto& [label, listed] : prologue_features()[row].cases) {
    const PrologueCase c = fit_to_projection(listed);
    const bool normed = ++number % 2 == 0;
    for (const DType dtype : {DType::f16, DType::bf16}) {
      if (backend == Backend::cuda_graph && dtype == DType::f16) continue;
      with_host_type(dtype, [&, on = backend](auto type) {
        using T = decltype(type);
        SCOPED_TRACE(str_cat(dtype_name(dtype), normed ? " normed " : " ", c.describe()));
        expect_prologue_of_projection<T>(on, c, whole_numbers(c, 288, normed), Operations::automatic);
      });
    }
  }
}

// ---- every instance of the one kernel ---------------------------------------------------------------------------------------

#ifdef PROLOGUE_HAS_CUDA

struct Call {
  const char* name;
  void (*change)(PrologueCase&);
};

constexpr Call kCalls[] = {
    {"plain", [](PrologueCase&) {}},
    {"bias_norm_fp8",
     [](PrologueCase& c) {
       c.bias_q = c.bias_k = c.bias_v = true, c.norm = NormPlacement::before_rope;
       c.kv_type = DType::fp8_e4m3, c.scaling = KvScaling::head, c.q8 = KvScaling::tensor;
     }},
    {"norm_int8",
     [](PrologueCase& c) { c.norm = NormPlacement::before_rope, c.kv_type = DType::int8, c.scaling = KvScaling::token_head; }},
    {"half_interleaved", [](PrologueCase& c) { c.rotary_dim = c.head_dim / 2, c.style = RopeStyle::interleaved; }},
    {"hadamard_uint4",
     [](PrologueCase& c) {
       c.hadamard_block = c.head_dim % 32 == 0 ? 16 : 8, c.kv_type = DType::uint4, c.scaling = KvScaling::token_head,
       c.per_step = true, c.v_norm = true;
     }},
    {"derived", [](PrologueCase& c) { c.derive_positions = c.derive_slots = true, c.bias_q = true; }},
    {"derived_ring_norm",
     [](PrologueCase& c) {
       c.derive_positions = c.derive_slots = true, c.ring_size = 20, c.norm = NormPlacement::after_rope, c.k_out = c.v_out = true;
     }},
    {"axes", [](PrologueCase& c) { c.num_axes = 3, c.norm = NormPlacement::before_rope; }},
    {"axes_int8", [](PrologueCase& c) { c.num_axes = 3, c.kv_type = DType::int8, c.scaling = KvScaling::token_head; }},
};

const std::vector<DType> kTypes = {DType::f16, DType::bf16};
const std::vector<bool> kNormed = {false, true};

template <class T, size_t n>
std::vector<T> list(const T (&values)[n]) {
  return {values, values + n};
}

struct Sizes {
  int64_t num_tokens, num_q_heads, num_kv_heads, head_dim, hidden_size;
};
PrologueCase case_of(const Sizes& sizes) {
  PrologueCase c;
  c.num_tokens = sizes.num_tokens, c.num_q_heads = sizes.num_q_heads, c.num_kv_heads = sizes.num_kv_heads;
  c.head_dim = c.rotary_dim = sizes.head_dim;
  return c;
}
// Head dims that fill the warps and some that do not; hidden sizes that the blocks of a cluster share evenly and that they do not, less
// than a unit for each of them too. The last has more tokens than a block has warps.
constexpr Sizes kSizes[] = {{1, 3, 1, 128, 512}, {8, 2, 1, 64, 96},   {9, 2, 1, 80, 544},  {16, 1, 1, 96, 288},
                            {5, 1, 1, 256, 640}, {11, 1, 1, 128, 32}, {12, 1, 1, 64, 288}, {15, 1, 1, 256, 96},
                            {8, 1, 1, 80, 288},  {7, 2, 1, 64, 1024}, {14, 1, 1, 256, 768}};

// Returns the name without what is after the last comma: how a launch divides its work.
std::string without_division(const std::string& name) { return name.substr(0, name.rfind(',')); }

// The instances of a way that `runs(name, number)` picks have the bits of the prologue alone. `ran` receives their names, as they are and
// without the division of work.
template <class T, class Runs>
void expect_bits_of_instances(std::string_view way, const PrologueCase& c, const PrologueData<T>& data, const Projection& p,
                              const Runs& runs, std::set<std::string>& ran) {
  PlacedPrologue<T> want(Backend::cuda, c, data), probe(Backend::cuda, c, data);
  std::vector<size_t> chosen;
  {
    const auto instances = cuda::instances_of(way, place_projection(probe, p));
    EXPECT_GT(instances.size(), 0u) << "no instance runs this call";
    for (size_t i = 0; i < instances.size(); ++i) {
      if (runs(instances[i].name, i)) chosen.push_back(i);
    }
  }
  if (chosen.empty()) return;
  const Status alone = want.run();
  ASSERT_TRUE(alone.ok()) << alone.message();
  for (const size_t i : chosen) {
    PlacedPrologue<T> got(Backend::cuda, c, data);
    const QkvPrologueParams params = place_projection(got, p);
    const auto instance = cuda::instances_of(way, params)[i];
    SCOPED_TRACE(instance.name);
    const Status status = got.run([&](const Execution& execution) { return instance.launch(params, execution.stream); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_same_bits(got, want);
    ran.insert(instance.name);
    ran.insert(without_division(instance.name));
  }
}

// Walks the pairs of the values, of which kTypes are one: check(combination, runs) runs every `every`-th instance in turn. Then, until every
// kernel of the way has run, their other combinations, for kernels that have not.
template <class Check, class... T>
void walk_instances(std::string_view way, DType dtype, size_t every, std::set<std::string>& ran, const Check& check,
                    const std::vector<T>&... values) {
  size_t number = 0;
  for (const auto& combination : combinations(values...)) {
    ++number;
    if (std::get<DType>(combination) == dtype)
      check(combination, [&](const std::string&, size_t i) { return (i + number) % every == 0; });
  }
  const std::vector<std::string> shipped = cuda::qkv_prologue_instances(way, dtype);
  EXPECT_FALSE(shipped.empty());
  std::set<std::string> missing;
  const auto all_ran = [&] {
    missing.clear();
    for (const std::string& name : shipped) {
      if (!ran.contains(name)) missing.insert(name);
    }
    return missing.empty();
  };
  const auto is_missing = [&](const std::string& name, size_t) {
    return missing.contains(name) || missing.contains(without_division(name));
  };
  for (const auto& combination : product(values...)) {
    if (std::get<DType>(combination) == dtype && !all_ran()) check(combination, is_missing);
  }
  EXPECT_TRUE(all_ran()) << *missing.begin() << " did not run";
}

// A new way needs a test of its own in this file.
TEST(QkvPrologueWays, AreTheseFive) {
  EXPECT_EQ(cuda::qkv_prologue_ways(), (std::vector<std::string>{"vector", "ring", "integer", "registers", "tiles"}));
}

class QkvPrologueInstanceTest : public ::testing::TestWithParam<DType> {};
std::string type_name(const ::testing::TestParamInfo<DType>& info) { return str_cat(dtype_name(info.param), "_cuda"); }
INSTANTIATE_TEST_SUITE_P(Types, QkvPrologueInstanceTest, ::testing::Values(DType::f16, DType::bf16), type_name);

// Of packed weights: of all heads, or of those of q, k and v. None: they are dense.
using Formats = std::vector<WeightFormat>;
const std::vector<Formats> kPacked = {
    {},
    {WeightFormat::q8_0},
    {WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q5_0},
    {WeightFormat::q5_1},
    {WeightFormat::q4_k, WeightFormat::q4_k, WeightFormat::q6_k},
    {WeightFormat::q5_k},
    {WeightFormat::f8_e4m3, WeightFormat::i8, WeightFormat::f8_e4m3},
    {WeightFormat::q2_k, WeightFormat::q3_k, WeightFormat::iq4_xs},
    {WeightFormat::mxfp4, WeightFormat::iq4_nl, WeightFormat::mxfp4},
    {WeightFormat::nvfp4, WeightFormat::nvfp4, WeightFormat::q6_k},
    {WeightFormat::i4_32, WeightFormat::i4_64, WeightFormat::i4_128},
};
bool have_blocks(const Formats& formats, int64_t hidden_size) {
  return std::ranges::all_of(formats, [&](WeightFormat format) { return hidden_size % weight_block_elements(format) == 0; });
}

// Returns a check of a combination of a call, sizes, a type, whether there is a norm, and formats, for walk_instances().
auto check_of_instances(std::string_view way, std::set<std::string>& ran) {
  return [way, &ran](const auto& combination, const auto& runs) {
    const auto& [call, sizes, dtype, normed, packed] = combination;
    if (!have_blocks(packed, sizes.hidden_size)) return;
    PrologueCase c = case_of(sizes);
    call.change(c);
    with_host_type(dtype, [&, call = call, sizes = sizes, normed = normed, packed = packed](auto type) {
      using T = decltype(type);
      SCOPED_TRACE(str_cat(call.name, " hidden ", sizes.hidden_size, normed ? " normed " : " ", c.describe(), " packed ",
                           packed.empty() ? "" : weight_format_name(packed.front())));
      Projection p = whole_numbers(c, sizes.hidden_size, normed);
      if (!packed.empty()) pack(p, c, packed);
      p.float_weights = sizes.num_tokens % 2 != 0;
      p.weighted = sizes.num_tokens != 9;
      const PrologueData<T> data = projected_data<T>(c, project(c, p));
      expect_bits_of_instances<T>(way, c, data, p, runs, ran);
    });
  };
}

TEST_P(QkvPrologueInstanceTest, EveryOneHasTheBitsOfThePrologueAlone) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  std::set<std::string> ran;
  walk_instances("registers", GetParam(), 4, ran, check_of_instances("registers", ran), list(kCalls), list(kSizes), kTypes,
                 kNormed, kPacked);
}

// Of packed weights that are whole numbers, with one and two tokens.
TEST_P(QkvPrologueInstanceTest, EveryOneOfWholeNumbersHasTheBitsOfThePrologueAlone) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  constexpr Sizes kFew[] = {{1, 3, 1, 128, 512}, {2, 2, 1, 64, 96},   {1, 2, 1, 80, 544}, {2, 1, 1, 96, 288},
                            {1, 1, 1, 128, 32},  {2, 4, 2, 128, 768}, {1, 2, 2, 64, 1280}};
  std::vector<Call> calls;
  for (const Call& call : kCalls) {
    PrologueCase c = case_of(kFew[0]);
    call.change(c);
    if (!c.derive_positions && !c.derive_slots && c.num_axes <= 1) calls.push_back(call);
  }
  std::vector<Formats> formats;
  for (const Formats& each : kPacked) {
    if (!each.empty() && std::ranges::count(each, WeightFormat::f8_e4m3) == 0) formats.push_back(each);
  }
  formats.push_back({WeightFormat::i8});
  std::set<std::string> ran;
  walk_instances("integer", GetParam(), 2, ran, check_of_instances("integer", ran), calls, list(kFew), kTypes, kNormed, formats);
}

// With more tokens than one kernel takes there are several, or the weights are made dense first.
TEST(QkvPrologueTest, PackedWeightsOfManyTokensHaveTheBitsOfThePrologueAlone_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  for (const int64_t num_tokens : {17, 40, 64, 70}) {
    for (const bool normed : kNormed) {
      PrologueCase c = case_of({num_tokens, 2, 1, 64, 512});
      c.norm = NormPlacement::before_rope;
      Projection p = whole_numbers(c, 512, normed);
      pack(p, c,
           normed ? Formats{WeightFormat::q4_k, WeightFormat::q5_0, WeightFormat::q6_k}
                  : Formats{WeightFormat::f8_e4m3, WeightFormat::q5_1, WeightFormat::i8});
      SCOPED_TRACE(c.describe());
      expect_prologue_of_projection<BFloat16>(Backend::cuda, c, p, Operations::automatic);
    }
  }
}

// ---- every instance of the kernel of one token ------------------------------------------------------------------------------

constexpr Call kWithoutAxes[] = {
    kCalls[0],
    kCalls[1],
    kCalls[2],
    kCalls[3],
    kCalls[4],
    kCalls[5],
    kCalls[6],
    {"interleaved", [](PrologueCase& c) { c.style = RopeStyle::interleaved; }},
    {"derived_interleaved",
     [](PrologueCase& c) { c.style = RopeStyle::interleaved, c.derive_positions = c.derive_slots = true; }},
    {"bias", [](PrologueCase& c) { c.bias_q = c.bias_k = c.bias_v = true; }},
    {"norm", [](PrologueCase& c) { c.norm = NormPlacement::before_rope; }},
    {"fp8", [](PrologueCase& c) { c.kv_type = DType::fp8_e4m3, c.scaling = KvScaling::head; }},
    {"unrotated", [](PrologueCase& c) { c.rotary_dim = 0; }},
    {"inverse_scaled_q_k_out",
     [](PrologueCase& c) {
       c.inverse = c.k_out = c.v_out = true, c.q_scale.constant = 0.375f, c.norm = NormPlacement::after_rope;
     }},
};

// The rows take less than a part of a warp, several parts, one or more warps.
constexpr Sizes kOneTokenSizes[] = {{1, 3, 1, 64, 576},  {1, 2, 1, 128, 1024}, {1, 1, 1, 256, 640}, {1, 2, 1, 64, 2048},
                                    {1, 1, 1, 64, 4064}, {1, 1, 1, 64, 96},    {1, 1, 1, 128, 32}};

// Says what is wrong with the token, if anything.
enum class Damage { none, no_slot, slot_beyond, padding, past_table };
const std::vector<Damage> kDamages = {Damage::none, Damage::no_slot, Damage::slot_beyond, Damage::padding, Damage::past_table};

template <class T>
void damage(PrologueData<T>& data, const PrologueCase& c, Damage with) {
  if (data.positions.empty() || data.slots.empty()) return;
  if (with == Damage::no_slot) data.slots[0] = -1;
  if (with == Damage::slot_beyond) data.slots[0] = data.num_pages * c.page_size;
  if (with == Damage::padding) data.positions[0] = -1;
  if (with == Damage::past_table) data.positions[0] = c.max_position;
}

class QkvVectorInstanceTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, QkvVectorInstanceTest, ::testing::Values(DType::f16, DType::bf16), type_name);

TEST_P(QkvVectorInstanceTest, EveryOneHasTheBitsOfThePrologueAlone) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  std::set<std::string> ran;
  int number = 0;
  const auto check = [&](const auto& combination, const auto& runs) {
    const auto& [call, sizes, dtype, normed, with] = combination;
    ++number;
    PrologueCase c = case_of(sizes);
    call.change(c);
    with_host_type(dtype, [&, call = call, sizes = sizes, normed = normed, with = with](auto type) {
      using T = decltype(type);
      SCOPED_TRACE(str_cat(call.name, " hidden ", sizes.hidden_size, normed ? " normed " : " ", c.describe(), " damage ",
                           static_cast<int>(with)));
      Projection p = whole_numbers(c, sizes.hidden_size, normed);
      p.float_weights = number % 3 == 0;
      p.weighted = number % 5 != 0;
      PrologueData<T> data = projected_data<T>(c, project(c, p));
      damage(data, c, with);
      expect_bits_of_instances<T>("vector", c, data, p, runs, ran);
    });
  };
  walk_instances("vector", GetParam(), 1, ran, check, list(kWithoutAxes), list(kOneTokenSizes), kTypes, kNormed, kDamages);
}

// ---- every instance of the kernel with a weight ring ------------------------------------------------------------------------

// There are fewer tokens than a cluster has blocks, more than a block has warps, and whole tiles of them; rings are filled once and several
// times.
constexpr Sizes kRingSizes[] = {{3, 2, 1, 128, 448},  {9, 3, 1, 64, 64},    {16, 2, 1, 64, 1984},
                                {12, 1, 1, 256, 640}, {33, 1, 1, 128, 320}, {64, 2, 1, 64, 576},
                                {15, 1, 1, 96, 192},  {50, 1, 1, 256, 128}, {10, 1, 1, 80, 128}};

// Runs, in turn, one of every `every` instances that can do a call.
void run_ring_instances(DType dtype, const std::vector<Call>& calls, const std::vector<Sizes>& all_sizes, size_t every) {
  std::set<std::string> ran;
  size_t number = 0;
  const auto check = [&](const auto& combination, const auto& runs) {
    const auto& [call, sizes, of, normed] = combination;
    ++number;
    PrologueCase c = case_of(sizes);
    call.change(c);
    with_host_type(dtype, [&, call = call, sizes = sizes, normed = normed](auto type) {
      using T = decltype(type);
      SCOPED_TRACE(str_cat(call.name, " hidden ", sizes.hidden_size, normed ? " normed " : " ", c.describe()));
      Projection p = whole_numbers(c, sizes.hidden_size, normed);
      p.float_weights = number % 3 == 0;
      p.weighted = number % 5 != 0;
      const PrologueData<T> data = projected_data<T>(c, project(c, p));
      expect_bits_of_instances<T>("ring", c, data, p, runs, ran);
    });
  };
  walk_instances("ring", dtype, every, ran, check, calls, all_sizes, kTypes, kNormed);
}

class QkvRingInstanceTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, QkvRingInstanceTest, ::testing::Values(DType::f16, DType::bf16), type_name);

TEST_P(QkvRingInstanceTest, EveryOneHasTheBitsOfThePrologueAlone) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  if (!has_qkv_gemm(Device::cuda)) GTEST_SKIP() << "this GPU has none of the kernels of Hopper";
  run_ring_instances(GetParam(), list(kWithoutAxes), list(kRingSizes), 3);
}

// Few calls, for compute-sanitizer.
TEST(QkvRingTest, IsFilledSeveralTimes_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
#ifdef PROLOGUE_CUDA_EMULATED
  GTEST_SKIP() << "for a GPU: the walk over every instance fills rings several times, too";
#endif
  if (!has_qkv_gemm(Device::cuda)) GTEST_SKIP() << "this GPU has none of the kernels of Hopper";
  constexpr Sizes kFew[] = {
      {12, 1, 1, 128, 1088}, {16, 1, 1, 128, 4096}, {36, 1, 1, 128, 2112}, {9, 1, 1, 256, 320}, {64, 1, 1, 256, 832}};
  std::vector<Call> calls;
  for (const char* name : {"plain", "hadamard_uint4", "interleaved", "bias", "norm", "fp8"}) {
    calls.push_back(*std::ranges::find_if(kWithoutAxes, [&](const Call& each) { return std::string(each.name) == name; }));
  }
  run_ring_instances(DType::bf16, calls, list(kFew), 1);
}

// ---- every instance of the kernel of prompts --------------------------------------------------------------------------------

constexpr Call kPrompts[] = {
    kCalls[0],
    kCalls[1],
    kCalls[2],
    kCalls[3],
    kCalls[4],
    kCalls[5],
    kCalls[6],
    {"derived_only", [](PrologueCase& c) { c.derive_positions = c.derive_slots = true; }},
    {"bias", [](PrologueCase& c) { c.bias_q = c.bias_k = c.bias_v = true; }},
    {"norm", [](PrologueCase& c) { c.norm = NormPlacement::before_rope; }},
    {"fp8", [](PrologueCase& c) { c.kv_type = DType::fp8_e4m3, c.scaling = KvScaling::head; }},
    {"unrotated_uint4",
     [](PrologueCase& c) { c.rotary_dim = 0, c.kv_type = DType::uint4, c.scaling = KvScaling::token_head, c.bias_k = true; }},
    {"inverse_scaled_q_k_out",
     [](PrologueCase& c) {
       c.inverse = c.k_out = c.v_out = true, c.q_scale.constant = 0.375f, c.norm = NormPlacement::after_rope;
     }},
};

// Tiles that are full and not, along both sides; tiles in which q ends and k begins; k of less than a stage, and of more than the ring
// holds.
constexpr Sizes kPromptSizes[] = {{130, 3, 2, 128, 520}, {140, 4, 2, 128, 72},   {257, 9, 3, 64, 64}, {260, 8, 2, 64, 104},
                                  {300, 1, 1, 256, 40},  {129, 2, 2, 128, 1032}, {260, 5, 1, 32, 104}};

class QkvGemmInstanceTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, QkvGemmInstanceTest, ::testing::Values(DType::f16, DType::bf16), type_name);

TEST_P(QkvGemmInstanceTest, EveryOneHasTheBitsOfThePrologueAlone) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  if (!has_qkv_gemm(Device::cuda)) GTEST_SKIP() << "this GPU does not have the kernel";
  std::set<std::string> ran;
  const auto check = [&](const auto& combination, const auto& runs) {
    const auto& [call, sizes, dtype] = combination;
    PrologueCase c = case_of(sizes);
    call.change(c);
    with_host_type(dtype, [&, call = call, sizes = sizes](auto type) {
      using T = decltype(type);
      SCOPED_TRACE(str_cat(call.name, " hidden ", sizes.hidden_size, " ", c.describe()));
      const Projection p = whole_numbers(c, sizes.hidden_size, false);
      const PrologueData<T> data = projected_data<T>(c, project(c, p));
      expect_bits_of_instances<T>("tiles", c, data, p, runs, ran);
    });
  };
  walk_instances("tiles", GetParam(), 1, ran, check, list(kPrompts), list(kPromptSizes), kTypes);
}

// Of whole numbers, too, so separate kernels have the same bits.
void expect_bits_of_separate_kernels(const Sizes& sizes, NormPlacement norm, RopeStyle style, bool normed) {
  using T = BFloat16;
  PrologueCase c = case_of(sizes);
  c.norm = norm, c.style = style;
  SCOPED_TRACE(c.describe());
  const Projection p = whole_numbers(c, sizes.hidden_size, normed);
  const PrologueData<T> data = make_data<T>(c);
  const auto context = GemmContext::create(Device::cuda);
  ASSERT_TRUE(context.ok()) << context.status().message();
  PlacedPrologue<T> want(Backend::cuda, c, data), got(Backend::cuda, c, data);
  const QkvPrologueParams separate = place_projection(want, p), chosen = place_projection(got, p);
  const std::optional<cuda::Launch> launch = choose(chosen);
  EXPECT_EQ(launch && launch->way == std::string_view("tiles"), sizes.num_tokens > 64);
  const Status alone = want.run([&](const Execution& execution) { return run_separately(separate, **context, execution); });
  ASSERT_TRUE(alone.ok()) << alone.message();
  const Status status = got.run([&](const Execution& execution) { return run_validated(chosen, **context, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  expect_same_bits(got, want);
}

// Rounds of tiles that are full, divided, and neither.
TEST(QkvGemmTest, HasTheBitsOfSeparateKernelsAtRealSizes) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
#ifdef PROLOGUE_CUDA_EMULATED
  GTEST_SKIP() << "for a GPU";
#endif
  if (!has_qkv_gemm(Device::cuda)) GTEST_SKIP() << "this GPU does not have the kernel";
  for (const Sizes& sizes : {Sizes{1024, 32, 8, 128, 4096}, Sizes{1531, 32, 8, 128, 4096}, Sizes{4095, 32, 8, 128, 4096},
                             Sizes{4096, 32, 8, 64, 2048}}) {
    const NormPlacement norm = sizes.num_tokens % 2 != 0 ? NormPlacement::before_rope : NormPlacement::none;
    expect_bits_of_separate_kernels(sizes, norm, RopeStyle::neox, sizes.num_tokens != 1024);
  }
  // These take tiles of 192 columns, and of 128.
  for (const Sizes& sizes : {Sizes{512, 32, 8, 128, 4096}, Sizes{1000, 32, 8, 128, 4096}, Sizes{1024, 32, 8, 64, 2048},
                             Sizes{768, 32, 8, 128, 4096}}) {
    for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
      expect_bits_of_separate_kernels(sizes, NormPlacement::none, style, true);
    }
  }
}

// Few tokens of 8B, 1B, SmolLM2 135M and Gemma 3 270M, whatever kernel it is.
void expect_bits_of_separate_kernels_for(int64_t num_tokens) {
  const int64_t t = num_tokens;
  for (const Sizes& sizes :
       {Sizes{t, 32, 8, 128, 4096}, Sizes{t, 32, 8, 64, 2048}, Sizes{t, 9, 3, 64, 576}, Sizes{t, 4, 1, 256, 640}}) {
    for (const NormPlacement norm : {NormPlacement::none, NormPlacement::before_rope}) {
      for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
        expect_bits_of_separate_kernels(sizes, norm, style, true);
      }
    }
  }
}
TEST(QkvVectorTest, HasTheBitsOfSeparateKernelsAtRealSizes) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
#ifdef PROLOGUE_CUDA_EMULATED
  GTEST_SKIP() << "for a GPU";
#endif
  expect_bits_of_separate_kernels_for(1);
}
TEST(QkvRingTest, HasTheBitsOfSeparateKernelsAtRealSizes) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
#ifdef PROLOGUE_CUDA_EMULATED
  GTEST_SKIP() << "for a GPU";
#endif
  for (const int64_t num_tokens : {8, 9, 16, 17, 40, 64}) expect_bits_of_separate_kernels_for(num_tokens);
}

#endif

// ---- ordinary numbers -------------------------------------------------------------------------------------------------------

class QkvPrologueSumTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, QkvPrologueSumTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return std::string(backend_name(backend.param)); });

// Where the prologue has no steps, q_out is the projection. Its error is that of a sum of n products in float32, each with an error of
// 2^-24 of the sum of their magnitudes, of a norm whose products are rounded to dtype once or twice, and of one rounding of the result.
TEST_P(QkvPrologueSumTest, IsTheProductOfTheNorm) {
  PROLOGUE_REQUIRE_BACKEND(GetParam());
  for (const bool normed : {false, true}) {
    for (const int64_t num_tokens : {1, 7, 40}) {
      PrologueCase c;
      c.num_tokens = num_tokens, c.num_q_heads = 2, c.num_kv_heads = 1, c.head_dim = 64, c.rotary_dim = 0;
      c.bad_indices = false;
      with_host_type(DType::bf16, [&](auto type) {
        using T = decltype(type);
        Projection p;
        p.hidden_size = 480;
        p.normed = normed;
        p.eps = 0.3f;
        Random random(5);
        const auto normals = [&](int64_t count) {
          std::vector<float> values = random.normals<float>(count);
          for (float& value : values) value = to_float(from_float<T>(value));
          return values;
        };
        p.hidden = normals(num_tokens * p.hidden_size);
        p.weight = normals(qkv_width(c) * p.hidden_size);
        p.norm_weight = normals(p.hidden_size);
        const std::vector<double> want = project(c, p);
        Projection sizes = p;
        for (std::vector<float>* values : {&sizes.hidden, &sizes.weight, &sizes.norm_weight}) {
          for (float& value : *values) value = std::fabs(value);
        }
        const std::vector<double> magnitudes = project(c, sizes);
        PlacedPrologue<T> placed(GetParam(), c, make_data<T>(c));
        const QkvPrologueParams params = place_projection(placed, p);
        const auto context = GemmContext::create(backend_device(GetParam()));
        ASSERT_TRUE(context.ok());
        const Status status = placed.run([&](const Execution& execution) { return qkv_prologue(params, **context, execution); });
        ASSERT_TRUE(status.ok()) << status.message();
        for (int64_t t = 0; t < num_tokens; ++t) {
          const std::vector<T> row = placed.q_row(t);
          for (size_t i = 0; i < row.size(); ++i) {
            const size_t at = static_cast<size_t>(t * qkv_width(c)) + i;
            const double rounding = std::ldexp(1.0, -8), sum = std::ldexp(480.0, -24);
            // The norm's roundings are random: their sum is far below that of their magnitudes.
            const double bound = std::fabs(want[at]) * rounding + magnitudes[at] * (sum + (normed ? rounding / 4 : 0.0)) + 1e-6;
            ASSERT_NEAR(static_cast<double>(to_float(row[i])), want[at], bound) << "token " << t << ", channel " << i;
          }
        }
      });
    }
  }
}

// The bits of a token do not depend on how many there are.
TEST_P(QkvPrologueSumTest, IsBatchInvariantWhereAskedToBe) {
  PROLOGUE_REQUIRE_BACKEND(GetParam());
  PrologueCase c;
  c.num_tokens = 64, c.num_q_heads = 2, c.num_kv_heads = 1, c.head_dim = 64, c.bad_indices = false;
  using T = BFloat16;
  Projection p;
  p.hidden_size = 480;
  p.normed = true;
  p.eps = 1e-5f;
  Random random(6);
  p.hidden = random.normals<float>(c.num_tokens * p.hidden_size);
  p.weight = random.normals<float>(qkv_width(c) * p.hidden_size);
  p.norm_weight = random.normals<float>(p.hidden_size);
  const PrologueData<T> data = make_data<T>(c);
  std::vector<std::vector<T>> all;
  for (const int64_t num_tokens : {64, 33, 32, 17, 9, 3, 1}) {
    PlacedPrologue<T> placed(GetParam(), c, data);
    QkvPrologueParams params = place_projection(placed, p);
    params.prologue.num_tokens = num_tokens;
    params.batch_invariant = true;
    const auto context = GemmContext::create(backend_device(GetParam()));
    ASSERT_TRUE(context.ok());
    const Status status = placed.run([&](const Execution& execution) { return qkv_prologue(params, **context, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t t = 0; t < num_tokens; ++t) {
      if (num_tokens == 64) {
        all.push_back(placed.q_row(t));
      } else {
        expect_bits(placed.q_row(t), all[static_cast<size_t>(t)], "q_out");
      }
    }
  }
}

// ---- bad calls --------------------------------------------------------------------------------------------------------------

TEST(QkvPrologueRefusals, NameTheValueAndTheRule) {
  using T = BFloat16;
  PrologueCase c = plain_case(4);
  const auto refuse = [&](const char* sentence, const std::function<void(QkvPrologueParams&)>& change) {
    SCOPED_TRACE(sentence);
    PlacedPrologue<T> placed(Backend::cpu, c, make_data<T>(c));
    QkvPrologueParams params = place_projection(placed, whole_numbers(c, 64, true));
    change(params);
    const auto context = GemmContext::create(Device::cpu);
    const Status status = placed.run([&](const Execution& execution) { return qkv_prologue(params, **context, execution); });
    EXPECT_NE(status.message().find(sentence), std::string::npos) << status.message();
    EXPECT_TRUE(placed.arena().untouched());
  };
  using P = QkvPrologueParams;
  refuse("hidden_size is 0", [](P& p) { p.hidden_size = 0; });
  refuse("hidden_stride is 63", [](P& p) { p.hidden_stride = 63; });
  refuse("hidden_stride is 72", [](P& p) { p.hidden_stride = 72; });
  refuse("prologue.num_groups is 1", [](P& p) { p.prologue.num_groups = 1; });
  refuse("prologue.q is given", [](P& p) { p.prologue.q.data = p.hidden_states; });
  refuse("workspace has 0 bytes", [](P& p) { p.workspace = nullptr; });
  refuse("workspace has 100 bytes", [](P& p) { p.workspace_bytes = 100; });
  refuse("it must be aligned to 16 bytes",
         [](P& p) { p.workspace = static_cast<char*>(p.workspace) + 2, p.workspace_bytes += 2; });
  refuse("hidden_states is null", [](P& p) { p.norm.given = 0, p.hidden_states = nullptr; });
  refuse("weight is null", [](P& p) { p.weight = nullptr; });
  refuse("eps is -1", [](P& p) { p.norm.eps = -1.0f; });
  refuse("weight_type is int4", [](P& p) { p.norm.weight_type = DType::int4; });
  refuse("num_q_heads is -1", [](P& p) { p.prologue.num_q_heads = -1; });
  refuse("overlap", [](P& p) { p.prologue.q_out.data = const_cast<void*>(p.hidden_states); });
  refuse("overlap", [](P& p) { p.prologue.q_out.data = const_cast<void*>(p.weight); });
  refuse("overlap", [](P& p) { p.prologue.q_out.data = p.workspace; });
}

}  // namespace
}  // namespace prologue::test
