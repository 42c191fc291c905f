#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>

#include <prologue/kernels/attention_prologue/stages.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/rotary/rotary.h>

#include "tests/golden/rotary/rotary_goldens.h"
#include "tests/support/prologue_case.h"

namespace prologue::test {
namespace {

class AttentionPrologueTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, AttentionPrologueTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

template <class F>
void for_each_type(F&& f) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(dtype_name(dtype));
    with_host_type(dtype, f);
  }
}

// ---- the oracle itself ------------------------------------------------------------------------------------------------------

TEST(AttentionPrologueOracle, AgreesWithTheReferenceFormulas) {
  for (const golden::RotaryGolden& g : golden::kRotaryGoldens) {
    SCOPED_TRACE(g.name);
    oracle::PrologueInput in;
    in.num_tokens = static_cast<int64_t>(g.table.size()) / g.rotary_dim;
    in.num_q_heads = g.num_heads;
    in.head_dim = g.head_dim;
    in.rotary_dim = g.rotary_dim;
    in.interleaved = g.interleaved;
    in.q = to_doubles(g.x);
    in.table = to_doubles(g.table);
    in.max_position = in.num_tokens;
    for (int64_t t = 0; t < in.num_tokens; ++t) in.positions.push_back(t);
    const oracle::PrologueOutput out = oracle::attention_prologue(in);
    for (int64_t t = 0; t < in.num_tokens; ++t) {
      for (int64_t i = 0; i < g.num_heads * g.head_dim; ++i) {
        const oracle::Element& want = out.q[static_cast<size_t>(t)][static_cast<size_t>(i)];
        const double got = static_cast<double>(g.y[static_cast<size_t>(t * g.num_heads * g.head_dim + i)]);
        EXPECT_NEAR(got, want.value, 2.0 * 0x1p-24 * want.scale) << t << ", " << i;
      }
    }
  }
}

// ---- every case against the oracle ------------------------------------------------------------------------------------------

TEST_P(AttentionPrologueTest, MatchesTheOracle) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    for (const PrologueCase& listed : prologue_cases()) {
      const PrologueCase c = fit_to_type<T>(listed);
      SCOPED_TRACE(c.describe());
      const PrologueData<T> data = make_data<T>(c);
      PlacedPrologue<T> placed(GetParam(), c, data);
      const Status status = placed.run();
      ASSERT_TRUE(status.ok()) << status.message();
      placed.expect_matches(oracle::attention_prologue(oracle_input(c, data)));
      if (::testing::Test::HasFailure()) return;
    }
  });
}

// The CPU is the reference of every other backend, and of itself with more threads: the same bits.
TEST_P(AttentionPrologueTest, EqualsTheCpuBitForBit) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    for (const PrologueCase& listed : prologue_cases()) {
      const PrologueCase c = fit_to_type<T>(listed);
      SCOPED_TRACE(c.describe());
      const PrologueData<T> data = make_data<T>(c);
      PlacedPrologue<T> cpu(Backend::cpu, c, data);
      PlacedPrologue<T> placed(GetParam(), c, data);
      ASSERT_TRUE(cpu.run().ok());
      ASSERT_TRUE(placed.run().ok());
      placed.expect_bits(placed.q_bits(), cpu.q_bits(), "q");
      placed.expect_bits(placed.k_bits(), cpu.k_bits(), "k");
      placed.expect_bits(placed.v_bits(), cpu.v_bits(), "v");
      if (::testing::Test::HasFailure()) return;
    }
  });
}

// Fused against add_bias + rotary(q) + rotary(k) + kv_write: the same bits where the stages' stores do not round (float32), and
// in 16-bit types where there is no bias to be rounded before the rotation.
TEST_P(AttentionPrologueTest, EqualsTheUnfusedStagesBitForBit) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    for (const PrologueCase& listed : prologue_cases()) {
      const PrologueCase c = fit_to_type<T>(listed);
      if (sizeof(T) == 2 && (c.bias_q || c.bias_k)) continue;
      SCOPED_TRACE(c.describe());
      const PrologueData<T> data = make_data<T>(c);
      PlacedPrologue<T> fused(GetParam(), c, data);
      ASSERT_TRUE(fused.run().ok());

      PlacedPrologue<T> unfused(GetParam(), c, data);
      Arena& arena = unfused.arena();
      const AttentionPrologueParams p = unfused.params();
      T* q = arena.inout(data.q);
      T* k = arena.inout(data.k);
      T* v = arena.inout(data.v);
      const Status status = unfused.run([&](const Execution& execution) {
        const auto bias = [&](T* x, int64_t heads, const void* terms) {
          const int64_t width = heads * c.head_dim;
          if (terms == nullptr) return Status();
          return add_bias({c.num_tokens, width, p.dtype, x, width, terms, x, width}, execution);
        };
        const auto turn = [&](T* x, int64_t heads, const MutableHeadsView& y) {
          const HeadsView from = {x, heads * c.head_dim, c.head_dim};
          return rotary({c.num_tokens, heads, c.head_dim, p.dtype, from, y, c.style, c.rotary_dim, p.rotation.cos_sin,
                         c.max_position, p.places.positions, nullptr},
                        execution);
        };
        const int64_t kv_stride = c.num_kv_heads * c.head_dim;
        PROLOGUE_RETURN_IF_ERROR(bias(q, c.num_q_heads, p.bias.q));
        PROLOGUE_RETURN_IF_ERROR(bias(k, c.num_kv_heads, p.bias.k));
        PROLOGUE_RETURN_IF_ERROR(bias(v, c.num_kv_heads, p.bias.v));
        PROLOGUE_RETURN_IF_ERROR(turn(q, c.num_q_heads, p.q_out));
        PROLOGUE_RETURN_IF_ERROR(turn(k, c.num_kv_heads, {k, kv_stride, c.head_dim}));
        return kv_write({c.num_tokens,
                         c.num_kv_heads,
                         c.head_dim,
                         p.dtype,
                         {k, kv_stride, c.head_dim},
                         {v, kv_stride, c.head_dim},
                         p.cache,
                         p.places.slot_mapping,
                         p.places.positions,
                         c.max_position,
                         p.faults},
                        execution);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      fused.expect_bits(unfused.q_bits(), fused.q_bits(), "q");
      fused.expect_bits(unfused.k_bits(), fused.k_bits(), "k");
      fused.expect_bits(unfused.v_bits(), fused.v_bits(), "v");
      EXPECT_EQ(unfused.faults().first, fused.faults().first);
      EXPECT_EQ(unfused.faults().count, fused.faults().count);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

// ---- properties -------------------------------------------------------------------------------------------------------------

PrologueCase plain_case(int64_t num_tokens) {
  PrologueCase c;
  c.num_tokens = num_tokens;
  c.bad_indices = false;
  c.bias_q = c.bias_k = c.bias_v = true;
  return c;
}

TEST_P(AttentionPrologueTest, PositionZeroIsTheIdentity) {
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    PrologueCase c = plain_case(7);
    c.style = style;
    c.bias_q = c.bias_k = c.bias_v = false;
    PrologueData<float> data = make_data<float>(c);
    std::fill(data.positions.begin(), data.positions.end(), 0);
    PlacedPrologue<float> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      const auto q = data.q.begin() + t * c.num_q_heads * c.head_dim;
      EXPECT_EQ(placed.q_row(t), std::vector<float>(q, q + c.num_q_heads * c.head_dim)) << t;
      const auto k = data.k.begin() + t * c.num_kv_heads * c.head_dim;
      EXPECT_EQ(placed.cache_row(false, data.slots[static_cast<size_t>(t)]),
                std::vector<float>(k, k + c.num_kv_heads * c.head_dim))
          << t;
    }
  }
}

TEST_P(AttentionPrologueTest, KeepsTheNormOfEveryPair) {
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    PrologueCase c = plain_case(33);
    c.style = style;
    c.rotary_dim = 48;
    c.bias_q = false;
    const PrologueData<float> data = make_data<float>(c);
    PlacedPrologue<float> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    const bool neox = style == RopeStyle::neox;
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      const std::vector<float> row = placed.q_row(t);
      for (int64_t h = 0; h < c.num_q_heads; ++h) {
        for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
          const size_t a = static_cast<size_t>(h * c.head_dim + (neox ? i : 2 * i));
          const size_t b = static_cast<size_t>(h * c.head_dim + (neox ? i + c.rotary_dim / 2 : 2 * i + 1));
          const size_t base = static_cast<size_t>(t * c.num_q_heads * c.head_dim);
          const double before = std::hypot(static_cast<double>(data.q[base + a]), static_cast<double>(data.q[base + b]));
          const double after = std::hypot(static_cast<double>(row[a]), static_cast<double>(row[b]));
          EXPECT_NEAR(after, before, 1e-6 * before);
        }
      }
    }
  }
}

// <R_m q, R_n k> depends on m - n only: the same q and k, moved along together.
TEST_P(AttentionPrologueTest, ScoresDependOnTheDistance) {
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    PrologueCase c = plain_case(9);
    c.style = style;
    c.num_q_heads = c.num_kv_heads = 1;
    PrologueData<float> data = make_data<float>(c);
    for (int64_t t = 1; t < c.num_tokens; ++t) {
      std::copy_n(data.q.begin(), c.head_dim, data.q.begin() + t * c.head_dim);
      std::copy_n(data.k.begin(), c.head_dim, data.k.begin() + t * c.head_dim);
    }
    for (int64_t t = 0; t < c.num_tokens; ++t) data.positions[static_cast<size_t>(t)] = 3 * t + 2;
    PlacedPrologue<float> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    const auto score = [&](int64_t m, int64_t n) {
      const std::vector<float> q = placed.q_row(m);
      const std::vector<float> k = placed.cache_row(false, data.slots[static_cast<size_t>(n)]);
      double sum = 0.0;
      for (size_t i = 0; i < q.size(); ++i) sum += static_cast<double>(q[i]) * static_cast<double>(k[i]);
      return sum;
    };
    for (int64_t t = 0; t + 4 < c.num_tokens; ++t) EXPECT_NEAR(score(t + 4, t), score(4, 0), 2e-5) << t;
    EXPECT_GT(std::fabs(score(4, 0) - score(5, 0)), 1e-3);  // and it does depend on it
  }
}

template <class T>
void expect_same_rows(PlacedPrologue<T>& a, int64_t token_a, PlacedPrologue<T>& b, int64_t token_b, int64_t slot_a,
                      int64_t slot_b) {
  PlacedPrologue<T>::expect_bits(a.q_row(token_a), b.q_row(token_b), "q");
  PlacedPrologue<T>::expect_bits(a.cache_row(false, slot_a), b.cache_row(false, slot_b), "k");
  PlacedPrologue<T>::expect_bits(a.cache_row(true, slot_a), b.cache_row(true, slot_b), "v");
}

// The tokens [first, last) of a case as a case of their own, in the order given.
template <class T>
PrologueData<T> select_tokens(const PrologueCase& c, const PrologueData<T>& data, const std::vector<int64_t>& tokens) {
  PrologueData<T> out = data;
  out.q.clear(), out.k.clear(), out.v.clear(), out.positions.clear(), out.slots.clear();
  const auto append = [](std::vector<T>& to, const std::vector<T>& from, int64_t width, int64_t t) {
    to.insert(to.end(), from.begin() + t * width, from.begin() + (t + 1) * width);
  };
  for (const int64_t t : tokens) {
    append(out.q, data.q, c.num_q_heads * c.head_dim, t);
    append(out.k, data.k, c.num_kv_heads * c.head_dim, t);
    append(out.v, data.v, c.num_kv_heads * c.head_dim, t);
    out.positions.push_back(data.positions[static_cast<size_t>(t)]);
    out.slots.push_back(data.slots[static_cast<size_t>(t)]);
  }
  return out;
}

// A token's bits depend on nothing but the token: permuted, in two batches, and one by one they are the same.
TEST_P(AttentionPrologueTest, IsBatchInvariant) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    const PrologueCase c = plain_case(600);  // more than one mapping of the CUDA backend
    const PrologueData<T> data = make_data<T>(c);
    PlacedPrologue<T> whole(GetParam(), c, data);
    ASSERT_TRUE(whole.run().ok());

    const auto check = [&](const std::vector<int64_t>& tokens) {
      PrologueCase part = c;
      part.num_tokens = static_cast<int64_t>(tokens.size());
      PlacedPrologue<T> placed(GetParam(), part, select_tokens(c, data, tokens));
      ASSERT_TRUE(placed.run().ok());
      for (size_t i = 0; i < tokens.size(); i += 1 + tokens.size() / 16) {
        const int64_t slot = data.slots[static_cast<size_t>(tokens[i])];
        expect_same_rows(placed, static_cast<int64_t>(i), whole, tokens[i], slot, slot);
      }
    };
    std::vector<int64_t> order(static_cast<size_t>(c.num_tokens));
    std::iota(order.begin(), order.end(), 0);
    check(order);  // twice the same
    check({order.begin(), order.begin() + 100});
    check({order.begin() + 100, order.end()});
    for (const int64_t t : {0, 7, 599}) check({t});
    Random(5).shuffle(order);
    check(order);
  });
}

TEST_P(AttentionPrologueTest, KeepsNanAndInfinityInTheirPairs) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    PrologueCase c = plain_case(3);
    c.rotary_dim = 32;
    c.bias_q = c.bias_k = c.bias_v = false;
    PrologueData<T> data = make_data<T>(c);
    const float inf = std::numeric_limits<float>::infinity();
    data.q[5] = from_float<T>(inf);                                       // pair (5, 21) of head 0
    data.q[40] = from_float<T>(std::numeric_limits<float>::quiet_NaN());  // behind rotary_dim
    data.v[1] = from_float<T>(-inf);
    PlacedPrologue<T> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    const std::vector<T> q = placed.q_row(0);
    for (size_t i = 0; i < q.size(); ++i) EXPECT_EQ(std::isfinite(to_float(q[i])), i != 5 && i != 21 && i != 40) << i;
    EXPECT_EQ(to_float(placed.cache_row(true, data.slots[0])[1]), -inf);
  });
}

// ---- far apart --------------------------------------------------------------------------------------------------------------

// Memory that is reserved but, on the CPU, only committed where it is touched.
class SparseMemory {
 public:
  SparseMemory(Backend backend, int64_t num_bytes) : device_(backend_device(backend)), size_(num_bytes) {
    if (device_ == Device::cpu) {
      void* data = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      data_ = data == MAP_FAILED ? nullptr : data;
    } else if (auto buffer = Buffer::allocate(device_, num_bytes); buffer.ok()) {
      buffer_ = std::move(buffer).value();
      data_ = buffer_.data();
    }
  }
  ~SparseMemory() {
    if (device_ == Device::cpu && data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  void* data() const { return data_; }

 private:
  Device device_;
  int64_t size_;
  Buffer buffer_;
  void* data_ = nullptr;
};

TEST_P(AttentionPrologueTest, ReachesBeyondTwoToThe31Elements) {
  constexpr int64_t kFar = (int64_t{1} << 31) + 64;  // elements of bfloat16: 4 GiB between tokens, and between pages
  constexpr int64_t kHeads = 2, kDim = 64, kTokens = 2;
  using T = BFloat16;
  SparseMemory qkv(GetParam(), (kFar + 4096) * 2), cache(GetParam(), (kFar + 4096) * 2);
  if (qkv.data() == nullptr || cache.data() == nullptr) GTEST_SKIP() << "no room for two arrays of 4 GiB";

  const Backend backend = GetParam();
  Execution execution;
  execution.device = backend_device(backend);
  Random random(3);
  const std::vector<T> values = random.normals<T>(kTokens * 3 * kHeads * kDim);
  const std::vector<float> table = make_table(8, kDim);
  PrologueCase c;  // only to have the oracle's input
  c.num_tokens = kTokens, c.num_q_heads = c.num_kv_heads = kHeads, c.max_position = 8;
  PrologueData<T> data;
  data.table = table;
  data.positions = {3, 7};
  data.slots = {16, 3};  // page 1, offset 0; page 0, offset 3
  data.num_pages = 2;
  for (int64_t t = 0; t < kTokens; ++t) {
    const T* row = values.data() + t * 3 * kHeads * kDim;
    data.q.insert(data.q.end(), row, row + kHeads * kDim);
    data.k.insert(data.k.end(), row + kHeads * kDim, row + 2 * kHeads * kDim);
    data.v.insert(data.v.end(), row + 2 * kHeads * kDim, row + 3 * kHeads * kDim);
    ASSERT_TRUE(copy_to_device(static_cast<T*>(qkv.data()) + t * kFar, row, 3 * kHeads * kDim * 2, execution).ok());
  }
  const oracle::PrologueOutput want = oracle::attention_prologue(oracle_input(c, data));

  Arena arena(backend == Backend::cuda_graph ? Backend::cuda
                                             : backend);  // a capture replays over the same memory: nothing new here
  AttentionPrologueParams p;
  p.num_tokens = kTokens, p.num_q_heads = p.num_kv_heads = kHeads, p.head_dim = kDim, p.dtype = DType::bf16;
  set_packed_qkv(p, qkv.data(), kFar);
  p.q_out = {qkv.data(), kFar, kDim};
  p.rotation.rotary_dim = kDim;
  p.rotation.cos_sin = arena.input(table);
  p.rotation.max_position = 8;
  p.places.positions = arena.input(data.positions);
  p.places.slot_mapping = arena.input(data.slots);
  T* cache_base = static_cast<T*>(cache.data());
  p.cache.k = cache_base;
  p.cache.v = cache_base + 16 * kHeads * kDim;
  p.cache.type = KvType::bf16;
  p.cache.num_pages = 2;
  p.cache.page_size = 16;
  p.cache.num_kv_heads = kHeads;
  p.cache.head_dim = kDim;
  p.cache.k_strides = p.cache.v_strides = {kFar - 4096, kHeads * kDim, kDim};
  const Status status = arena.run([&](const Execution& e) { return attention_prologue(p, e); });
  ASSERT_TRUE(status.ok()) << status.message();

  const auto expect_row = [&](const T* from, const oracle::Row& row, const char* what) {
    std::vector<T> got(row.size());
    ASSERT_TRUE(copy_to_host(got.data(), from, static_cast<int64_t>(got.size()) * 2, execution).ok());
    std::vector<Reference> reference;
    for (const oracle::Element& element : row) reference.push_back({element.value, element.scale});
    expect_close(got, reference, kDim, what);
  };
  for (int64_t t = 0; t < kTokens; ++t) {
    expect_row(static_cast<T*>(qkv.data()) + t * kFar, want.q[static_cast<size_t>(t)], "q");
    const int64_t slot = data.slots[static_cast<size_t>(t)];
    const int64_t at = slot / 16 * (kFar - 4096) + slot % 16 * kHeads * kDim;
    expect_row(static_cast<T*>(p.cache.k) + at, want.k.at(slot), "k");
    expect_row(static_cast<T*>(p.cache.v) + at, want.v.at(slot), "v");
  }
}

// ---- refusals ---------------------------------------------------------------------------------------------------------------

struct Refusal {
  const char* name;
  std::function<void(AttentionPrologueParams&)> change;
  StatusCode code;
  std::string message;  // what follows "attention_prologue: "
};

std::vector<Refusal> refusals() {
  using P = AttentionPrologueParams;
  const auto invalid = StatusCode::invalid_argument;
  const auto missing = StatusCode::unsupported;
  const auto shifted = [](const void* data, int64_t bytes) { return static_cast<const char*>(data) + bytes; };
  return {
      {"negative token count", [](P& p) { p.num_tokens = -1; }, invalid, "num_tokens is -1: it must lie in 0..2147483647"},
      {"no q heads", [](P& p) { p.num_q_heads = 0; }, invalid, "num_q_heads is 0: it must lie in 1..65536"},
      {"no kv heads", [](P& p) { p.num_kv_heads = 0; }, invalid, "num_kv_heads is 0: it must lie in 1..65536"},
      {"unknown type", [](P& p) { p.dtype = static_cast<DType>(9); }, missing,
       "dtype is the unknown type 9: supported are float32, float16 and bfloat16"},
      {"odd head_dim", [](P& p) { p.head_dim = 63; }, missing, "head_dim is 63: supported is every even number in 2..576"},
      {"large head_dim", [](P& p) { p.head_dim = 578; }, missing, "head_dim is 578: supported is every even number in 2..576"},
      {"unknown style", [](P& p) { p.rotation.style = static_cast<RopeStyle>(2); }, missing,
       "the rope style is 2: supported are neox and interleaved"},
      {"odd rotary_dim", [](P& p) { p.rotation.rotary_dim = 7; }, invalid,
       "rotary_dim is 7: it must be even and lie in 0..head_dim, 64"},
      {"rotary_dim above head_dim", [](P& p) { p.rotation.rotary_dim = 66; }, invalid,
       "rotary_dim is 66: it must be even and lie in 0..head_dim, 64"},
      {"no table rows", [](P& p) { p.rotation.max_position = 0; }, invalid, "max_position is 0: it must lie in 1..1099511627776"},
      {"no table", [](P& p) { p.rotation.cos_sin = nullptr; }, invalid, "cos_sin_cache is null"},
      {"table aligned to 2",
       [=](P& p) { p.rotation.cos_sin = reinterpret_cast<const float*>(shifted(p.rotation.cos_sin, 2)); }, invalid,
       "cos_sin_cache lies at @: it must be aligned to 4 bytes"},
      {"no positions", [](P& p) { p.places.positions = nullptr; }, invalid, "positions is null"},
      {"positions of no type", [](P& p) { p.places.positions.type = static_cast<IndexType>(5); }, invalid,
       "positions.type is 5: it must be int32 or int64"},
      {"no q", [](P& p) { p.q.data = nullptr; }, invalid, "q is null"},
      {"no k", [](P& p) { p.k.data = nullptr; }, invalid, "k is null"},
      {"no v", [](P& p) { p.v.data = nullptr; }, invalid, "v is null"},
      {"negative stride", [](P& p) { p.q.token_stride = -64; }, invalid, "q has the stride -64: strides must not be negative"},
      {"endless stride", [](P& p) { p.v.head_stride = INT64_MAX / 3; }, invalid,
       "v reaches further than 2^60 bytes: its strides are too large"},
      {"bias at an odd byte", [=](P& p) { p.bias.k = shifted(p.bias.k, 1); }, invalid,
       "bias.k lies at @: it must be aligned to 4 bytes"},
      {"no slots", [](P& p) { p.places.slot_mapping = nullptr; }, invalid, "slot_mapping is null"},
      {"slots of no type", [](P& p) { p.places.slot_mapping.type = static_cast<IndexType>(2); }, invalid,
       "slot_mapping.type is 2: it must be int32 or int64"},
      {"no q_out", [](P& p) { p.q_out.data = nullptr; }, invalid, "q_out is null"},
      {"q_out heads overlap", [](P& p) { p.q_out.head_stride = 32; }, invalid,
       "q_out has the stride 32 where 64 elements lie: rows that are written must not overlap"},
      {"q_out tokens overlap", [](P& p) { p.q_out.token_stride = 100; }, invalid,
       "q_out has the stride 100 where 512 elements lie: rows that are written must not overlap"},
      {"another cache type", [](P& p) { p.cache.type = KvType::bf16; }, missing,
       "cache.type is bfloat16: it must be dtype, float32"},
      {"unknown cache type", [](P& p) { p.cache.type = static_cast<KvType>(-1); }, missing,
       "cache.type is the unknown type -1"},
      {"no pages", [](P& p) { p.cache.num_pages = 0; }, invalid, "cache.num_pages is 0: it must lie in 1..1099511627776"},
      {"empty pages", [](P& p) { p.cache.page_size = 0; }, invalid, "cache.page_size is 0: it must lie in 1..1048576"},
      {"cache of other heads", [](P& p) { p.cache.num_kv_heads = 3; }, invalid,
       "cache.num_kv_heads is 3: it must be num_kv_heads, 2"},
      {"cache of another head_dim", [](P& p) { p.cache.head_dim = 128; }, invalid,
       "cache.head_dim is 128: it must be head_dim, 64"},
      {"no K cache", [](P& p) { p.cache.k = nullptr; }, invalid, "cache.k is null"},
      {"no V cache", [](P& p) { p.cache.v = nullptr; }, invalid, "cache.v is null"},
      {"pages overlap", [](P& p) { p.cache.k_strides.page = 64; }, invalid,
       "cache.k has the stride 64 where 128 elements lie: rows that are written must not overlap"},
      {"K is V", [](P& p) { p.cache.v = p.cache.k; }, invalid, "cache.k and cache.v are the same memory"},
      {"fault record at an odd byte",
       [=](P& p) { p.faults = reinterpret_cast<FaultRecord*>(reinterpret_cast<char*>(p.faults) + 8); }, invalid,
       "faults lies at @: it must be aligned to 16 bytes"},
      {"q_out over k", [](P& p) { p.q_out.data = const_cast<void*>(p.k.data); }, invalid, "q_out overlaps q"},
      {"q_out half over q",
       [](P& p) {
         p.q_out = {const_cast<void*>(p.q.data), p.q.token_stride, p.q.head_stride};
         p.q_out.data = static_cast<char*>(p.q_out.data) + 64 * 4;
       },
       invalid, "q_out overlaps q"},
      {"q_out over K's columns",
       [](P& p) {
         p.q.data = p.v.data;
         p.num_q_heads = 2;
         p.q_out = {const_cast<void*>(p.k.data), p.k.token_stride, p.k.head_stride};
       },
       invalid, "q_out overlaps k"},
      {"cache over v", [](P& p) { p.cache.v = const_cast<void*>(p.v.data); }, invalid, "cache.v overlaps q"},
      {"cache over the table",
       [](P& p) {
         p.rotation.max_position = 1;
         p.rotation.cos_sin = static_cast<const float*>(p.cache.k);
       },
       invalid, "cache.k overlaps cos_sin_cache"},
      {"q_out over the slots", [](P& p) { p.places.slot_mapping.data = p.q_out.data; }, invalid, "q_out overlaps slot_mapping"},
      {"q_out over the positions", [](P& p) { p.places.positions.data = p.q_out.data; }, invalid, "q_out overlaps positions"},
      {"cache over a bias", [](P& p) { p.bias.v = p.cache.v; }, invalid, "cache.v overlaps bias.v"},
  };
}

TEST_P(AttentionPrologueTest, RefusesWithASentence) {
  PrologueCase c = plain_case(4);
  const PrologueData<float> data = make_data<float>(c);
  for (const Refusal& refusal : refusals()) {
    SCOPED_TRACE(refusal.name);
    PlacedPrologue<float> placed(GetParam(), c, data);
    refusal.change(placed.params());
    const Status status = placed.run();
    EXPECT_EQ(status.code(), refusal.code);
    std::string message = status.message();
    if (const size_t at = message.find("lies at 0x"); at != std::string::npos && refusal.message.find('@') != std::string::npos) {
      message = message.substr(0, at + 8) + "@" + message.substr(message.find(':', at));  // an address
    }
    EXPECT_EQ(message, "attention_prologue: " + refusal.message);
    EXPECT_TRUE(placed.arena().untouched());
  }
}

TEST(AttentionPrologue, RefusesAnUnknownDevice) {
  Execution execution;
  execution.device = static_cast<Device>(4);
  const Status status = attention_prologue({}, execution);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "attention_prologue: device is 4: it must be cpu or cuda");
}

TEST(AttentionPrologue, SaysWhenCudaIsNotBuilt) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  const PrologueCase c = plain_case(1);
  PlacedPrologue<float> placed(Backend::cpu, c, make_data<float>(c));
  Execution execution;
  execution.device = Device::cuda;
  const Status status = attention_prologue(placed.params(), execution);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "attention_prologue: device is cuda, but this library was built without CUDA");
}

// No tokens: nothing is looked at, not even pointers that are null.
TEST_P(AttentionPrologueTest, AcceptsNoTokensAtAll) {
  AttentionPrologueParams p;
  p.num_q_heads = p.num_kv_heads = 1;
  p.head_dim = p.rotation.rotary_dim = 64;
  Execution execution;
  execution.device = backend_device(GetParam());
  const Status status = attention_prologue(p, execution);
  EXPECT_TRUE(status.ok()) << status.message();
}

// Columns of one packed buffer are no overlap, in place or into another row's free columns.
TEST_P(AttentionPrologueTest, AcceptsColumnsOfOneBuffer) {
  PrologueCase c = plain_case(6);
  c.row_padding = c.num_q_heads * c.head_dim;  // q_out behind v in the same rows
  c.in_place = true;
  const PrologueData<float> data = make_data<float>(c);
  PlacedPrologue<float> placed(GetParam(), c, data);
  AttentionPrologueParams& p = placed.params();
  p.q_out.data = static_cast<float*>(p.q_out.data) + (c.num_q_heads + 2 * c.num_kv_heads) * c.head_dim;
  const Status status = placed.run();
  EXPECT_TRUE(status.ok()) << status.message();
}

// Thousands of structs with a few absurd members: refused or accepted, never a crash. What validate() accepts is not run: its
// memory does not exist.
TEST(AttentionPrologue, RandomStructsNeverCrash) {
  const PrologueCase c = plain_case(4);
  const PrologueData<float> data = make_data<float>(c);
  PlacedPrologue<float> placed(Backend::cpu, c, data);
  const AttentionPrologueParams good = placed.params();
  Random random(77);
  const auto number = [&]() -> int64_t {
    switch (random.integer(0, 4)) {
      case 0: return random.integer(-3, 3);
      case 1: return random.integer(0, 1) == 0 ? INT64_MAX : INT64_MIN;
      case 2: return int64_t{1} << random.integer(0, 62);
      case 3: return static_cast<int64_t>(random.bits());
      default: return random.integer(0, 300);
    }
  };
  const auto pointer = [&](const void* old) -> void* {
    const auto at = reinterpret_cast<uintptr_t>(old);
    switch (random.integer(0, 3)) {
      case 0: return nullptr;
      case 1: return reinterpret_cast<void*>(at + static_cast<uintptr_t>(random.integer(0, 5)));
      case 2: return reinterpret_cast<void*>(UINTPTR_MAX - static_cast<uintptr_t>(random.integer(0, 64)));
      default: return const_cast<void*>(good.q.data);
    }
  };
  int refused = 0;
  const auto try_one = [&](const Execution& execution) {
    AttentionPrologueParams p = good;
    const std::vector<int64_t*> numbers = {
        &p.num_tokens,           &p.num_q_heads,           &p.num_kv_heads,          &p.head_dim,
        &p.q.token_stride,       &p.q.head_stride,         &p.k.token_stride,        &p.k.head_stride,
        &p.v.token_stride,       &p.v.head_stride,         &p.q_out.token_stride,    &p.q_out.head_stride,
        &p.rotation.rotary_dim,  &p.rotation.max_position, &p.cache.num_pages,       &p.cache.page_size,
        &p.cache.num_kv_heads,   &p.cache.head_dim,        &p.cache.k_strides.page,  &p.cache.k_strides.token,
        &p.cache.k_strides.head, &p.cache.v_strides.page,  &p.cache.v_strides.token, &p.cache.v_strides.head};
    for (int64_t changes = random.integer(1, 3); changes > 0; --changes) {
      const int64_t kind = random.integer(0, 9);
      if (kind < 5) {
        *numbers[static_cast<size_t>(random.integer(0, static_cast<int64_t>(numbers.size()) - 1))] = number();
      } else if (kind < 8) {
        switch (random.integer(0, 9)) {
          case 0: p.q.data = pointer(p.q.data); break;
          case 1: p.k.data = pointer(p.k.data); break;
          case 2: p.v.data = pointer(p.v.data); break;
          case 3: p.q_out.data = pointer(p.q_out.data); break;
          case 4: p.cache.k = pointer(p.cache.k); break;
          case 5: p.cache.v = pointer(p.cache.v); break;
          case 6: p.rotation.cos_sin = static_cast<const float*>(pointer(p.rotation.cos_sin)); break;
          case 7: p.places.positions.data = pointer(p.places.positions.data); break;
          case 8: p.places.slot_mapping.data = pointer(p.places.slot_mapping.data); break;
          default: p.bias.q = pointer(p.bias.q); break;
        }
      } else {
        const int32_t value = static_cast<int32_t>(random.integer(-2, 5));
        switch (random.integer(0, 3)) {
          case 0: p.dtype = static_cast<DType>(value); break;
          case 1: p.cache.type = static_cast<KvType>(value); break;
          case 2: p.places.positions.type = static_cast<IndexType>(value); break;
          default: p.rotation.style = static_cast<RopeStyle>(value); break;
        }
      }
    }
    const Status verdict = validate(p);
    if (verdict.ok()) return;
    ++refused;
    const Status status = attention_prologue(p, execution);
    EXPECT_EQ(status.code(), verdict.code());
    EXPECT_EQ(status.message(), verdict.message());
  };
  const Status status = placed.run([&](const Execution& execution) {
    for (int round = 0; round < 20000; ++round) try_one(execution);
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(placed.arena().untouched());
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace prologue::test
