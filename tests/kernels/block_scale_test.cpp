// Block-scaled caches (MXFP8, MXFP4, NVFP4): the conversions against tables of all codes, what kv_write and the prologue store, bit for bit,
// and what attention reads.
#include <prologue/kernels/base/shared/block_scale.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/base/kv_types.h>
#include <prologue/kernels/paged_attention/paged_attention.h>
#include <prologue/kernels/rerope/rerope.h>

#include "tests/support/arena.h"
#include "tests/support/block_scale_cache.h"
#include "tests/support/prologue_results.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- conversions ----------------------------------------------------------------------------------------------------------------

TEST(Fp4, ReadsEveryCode) {
  for (int code = 0; code < 16; ++code) {
    const float got = from_fp4_e2m1(static_cast<uint8_t>(code));
    EXPECT_EQ(static_cast<double>(got), value_of(static_cast<uint8_t>(code), DType::fp4_e2m1)) << code;
    EXPECT_EQ(std::signbit(got), code >= 8) << code;
  }
}

TEST(Fp4, RoundsEveryValueAndMidpointToNearestEven) {
  const std::vector<double>& values = magnitudes(DType::fp4_e2m1);
  for (size_t code = 0; code + 1 < values.size(); ++code) {
    const auto low = static_cast<float>(values[code]), high = static_cast<float>(values[code + 1]), middle = 0.5f * (low + high);
    for (const uint8_t sign : {0, 8}) {
      const auto to = [&](float x) { return to_fp4_e2m1(sign != 0 ? -x : x); };
      EXPECT_EQ(to(low), code | sign);
      EXPECT_EQ(to(std::nextafter(middle, 0.0f)), code | sign);
      EXPECT_EQ(to(middle), (code % 2 == 0 ? code : code + 1) | sign) << middle;
      EXPECT_EQ(to(std::nextafter(middle, kInf)), (code + 1) | sign);
    }
  }
  for (const float x : {6.0f, 7.0f, 8.0f, 1e38f, kInf}) {
    EXPECT_EQ(to_fp4_e2m1(x), 7);
    EXPECT_EQ(to_fp4_e2m1(-x), 15);
  }
}

TEST(Ue8m0, ReadsEveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(from_ue8m0(static_cast<uint8_t>(code))), std::ldexp(1.0, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(from_ue8m0(255)));
}

TEST(BlockScale, OfEveryExponentIsThatOfTheSpecification) {
  for (const KvFormat& format : {kMxfp8, kMxfp4}) {
    const int largest_exponent = format.type == DType::fp8_e4m3 ? 8 : 2;
    for (int exponent = -149; exponent < 128; ++exponent) {
      const float first = std::ldexp(1.0f, exponent), last = std::nextafter(2.0f * first, 0.0f);
      for (const float amax : {first, 1.5f * first, last}) {
        if (!std::isfinite(amax) || std::ilogb(amax) != exponent) continue;
        const BlockScale scale = block_scale_of(magnitude_bits(amax), format, 1.0f);
        const int want = std::max(0, exponent - largest_exponent + 127);
        EXPECT_EQ(scale.code, want) << amax;
        EXPECT_EQ(static_cast<double>(scale.reciprocal), std::ldexp(1.0, 127 - want)) << amax;
        EXPECT_EQ(static_cast<double>(block_factor(scale.code, format, 3.0f)), std::ldexp(1.0, want - 127)) << amax;
      }
    }
  }
  EXPECT_EQ(block_scale_of(magnitude_bits(6.0f * 448.0f), kNvfp4, 1.0f).code, 0x7e);
  EXPECT_EQ(block_scale_of(magnitude_bits(1e30f), kNvfp4, 1.0f).code, 0x7e);
  EXPECT_EQ(block_scale_of(magnitude_bits(6.0f), kNvfp4, 0.5f).code, nearest_code(2.0, DType::fp8_e4m3));
  for (const KvFormat& format : {kMxfp8, kMxfp4, kNvfp4}) {
    for (const float x : {kNan, kInf, -kInf}) {
      const BlockScale scale = block_scale_of(magnitude_bits(x), format, 1.0f);
      EXPECT_EQ(scale.code, format.scaling == KvScaling::mx ? 0xff : 0x7f);
      EXPECT_EQ(scale.reciprocal, 0.0f);
      EXPECT_TRUE(std::isnan(block_factor(scale.code, format, 1.0f)));
    }
    EXPECT_EQ(block_scale_of(0, format, 1.0f).code, 0);
  }
}

TEST(KvFormats, AreFoundByTheirNames) {
  const std::pair<const char*, KvFormat> named[] = {{"mxfp8", kMxfp8}, {"mxfp4", kMxfp4}, {"nvfp4", kNvfp4}};
  for (const auto& [name, format] : named) {
    EXPECT_EQ(kv_format_of(name).type, format.type);
    EXPECT_EQ(kv_format_of(name).scaling, format.scaling);
    EXPECT_STREQ(kv_format_name(format), name);
  }
}

class BlockScaleTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, BlockScaleTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

// Heads of all kinds of blocks: usual ones, of one large number, zeros of both signs, subnormal ones, huge ones, with NaN and infinities.
template <class T>
std::vector<T> heads_of_all_kinds(int64_t count, Random& random) {
  std::vector<T> x = random.normals<T>(count);
  const auto whole = [&](int64_t block, const auto& value) {
    for (int64_t i = 0; i < 16 && block * 16 + i < count; ++i) x[static_cast<size_t>(block * 16 + i)] = from_float<T>(value(i));
  };
  for (int64_t block = 0; block * 16 < count; ++block) {
    switch (random.integer(0, 11)) {
      case 0: whole(block, [&](int64_t i) { return i == 5 ? 300.0f : 0.01f; }); break;
      case 1: whole(block, [&](int64_t i) { return i % 2 == 0 ? 0.0f : -0.0f; }); break;
      case 2: whole(block, [&](int64_t i) { return static_cast<float>(i) * 1e-39f; }); break;
      case 3: whole(block, [&](int64_t i) { return i == 3 ? -3.3e38f : static_cast<float>(i) * 1e37f; }); break;
      case 4: whole(block, [&](int64_t i) { return i == 7 ? kNan : 1.0f; }); break;
      case 5: whole(block, [&](int64_t i) { return i == 9 ? -kInf : 1.0f; }); break;
      case 6: whole(block, [&](int64_t i) { return static_cast<float>(i - 8) * 0.25f; }); break;  // ties
      default: break;
    }
  }
  return x;
}

const std::vector<FormatCase>& format_cases() {
  static const std::vector<FormatCase> cases = {{kMxfp8, kMxfp8, 64, 64, Layout::nhd},
                                                {kMxfp4, kMxfp4, 128, 128, Layout::hnd},
                                                {kNvfp4, kNvfp4, 128, 128, Layout::nhd},
                                                {kNvfp4, kNvfp4, 64, 64, Layout::vllm_page},
                                                {kNvfp4, kNvfp4, 128, 128, Layout::vllm_page_interleaved},
                                                {kMxfp8, kNvfp4, 96, 64, Layout::vllm_page_interleaved},
                                                {kMxfp4, kMxfp8, 256, 256, Layout::hnd},
                                                {kNvfp4, kMxfp4, 48, 32, Layout::nhd},
                                                {kMxfp8, kMxfp4, 512, 512, Layout::nhd}};
  return cases;
}

// Some slots, in any order, and one token without a slot.
const std::vector<int64_t> kSlots = {11, 0, 23, -1, 4, 5, 6, 7, 16};

// On CUDA a plan compiles a kernel, where a call runs the general one.
Status run_planned(const AttentionPrologueParams& p, const Execution& execution) {
  PROLOGUE_ASSIGN_OR_RETURN(const AttentionProloguePlan plan, AttentionProloguePlan::create(p, p.num_tokens, execution));
  return plan.run(p, execution);
}

enum class Way { kv_write, call, plan };

template <class T>
void check_writes(Backend backend, const FormatCase& c, Way way) {
  const bool fused = way != Way::kv_write;
  Random random(3);
  const auto tokens = static_cast<int64_t>(kSlots.size());
  constexpr int64_t kHeads = HostCache::kHeads;
  HostCache host(c.k, c.v, c.k_dim, c.v_dim, c.layout);
  const std::vector<T> k = heads_of_all_kinds<T>(tokens * kHeads * c.k_dim, random),
                       v = heads_of_all_kinds<T>(tokens * kHeads * c.v_dim, random);
  Arena arena(backend);
  const PlacedCache placed(arena, host);
  const HeadsView k_view = {arena.input(k), kHeads * c.k_dim, c.k_dim}, v_view = {arena.input(v), kHeads * c.v_dim, c.v_dim};
  const IndexView slots = index_view(arena.input(kSlots));
  const Status status = arena.run([&](const Execution& execution) {
    if (!fused) {
      KvWriteParams p;
      p.num_tokens = tokens, p.num_kv_heads = kHeads, p.head_dim = c.k_dim, p.dtype = FloatFormat<T>::dtype;
      p.k = k_view, p.v = v_view, p.cache = placed.view, p.slot_mapping = slots;
      return kv_write(p, execution);
    }
    AttentionPrologueParams p;
    p.num_tokens = tokens, p.num_kv_heads = kHeads, p.head_dim = c.k_dim, p.dtype = FloatFormat<T>::dtype;
    p.k = k_view, p.v = v_view, p.cache = placed.view, p.places.slot_mapping = slots;
    p.k_constant = p.v_constant = 2.0f;
    return way == Way::plan ? run_planned(p, execution) : attention_prologue(p, execution);
  });
  ASSERT_TRUE(status.ok()) << status.message();
  for (int64_t t = 0; t < tokens; ++t) {
    if (kSlots[static_cast<size_t>(t)] < 0) continue;
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto store = [&](HostSide& side, const std::vector<T>& heads) {
        std::vector<float> x;
        for (int64_t i = 0; i < side.head_dim; ++i) {
          x.push_back(to_float(heads[static_cast<size_t>((t * kHeads + h) * side.head_dim + i)]) * (fused ? 2.0f : 1.0f));
        }
        host.store(side, kSlots[static_cast<size_t>(t)], h, x.data());
      };
      store(host.k, k);
      store(host.v, v);
    }
  }
  if (placed.buffer != nullptr) {
    EXPECT_EQ(arena.read(placed.buffer), host.page_buffer);
    return;
  }
  EXPECT_EQ(arena.read(placed.k_scale), host.k.block_scale);
  EXPECT_EQ(arena.read(placed.v_scale), host.v.block_scale);
  EXPECT_EQ(arena.read(placed.k), host.k.data);
  EXPECT_EQ(arena.read(placed.v), host.v.data);
}

TEST_P(BlockScaleTest, StoresTheBitsOfTheRules) {
  for (const FormatCase& c : format_cases()) {
    SCOPED_TRACE(str_cat(kv_format_name(c.k), " ", kv_format_name(c.v), " ", c.k_dim, " ", c.v_dim, " layout ",
                         static_cast<int>(c.layout)));
    for_each_type([&](auto type) {
      for (const Way way : {Way::kv_write, Way::call, Way::plan}) check_writes<decltype(type)>(GetParam(), c, way);
    });
  }
}

// Q, K and V have transforms; lanes of heads of several tensors work in one block. The last two are other kernels on CUDA.
TEST_P(BlockScaleTest, OneSideMayBeOfAnotherFormat) {
  for (const auto& [k_format, v_format] : {std::pair{kNvfp4, KvFormat{DType::int4, KvScaling::token_head}},
                                           {KvFormat{DType::int8, KvScaling::token_head}, kMxfp4},
                                           {KvFormat{DType::f32, KvScaling::none}, kMxfp8},
                                           {computed_format(DType::f32), computed_format(DType::f32)},
                                           {computed_format(DType::int8), computed_format(DType::int8)}}) {
    SCOPED_TRACE(str_cat(kv_format_name(k_format), " ", kv_format_name(v_format)));
    Random random(5);
    constexpr int64_t kTokens = 7, kHeads = 2, kDim = 64, kQHeads = 4;
    const std::vector<float> q = random.normals<float>(kTokens * kQHeads * kDim),
                             k = random.normals<float>(kTokens * kHeads * kDim),
                             v = random.normals<float>(kTokens * kHeads * kDim);
    const std::vector<int64_t> slots = {3, 1, 4, 15, 9, 2, 6};
    const auto run = [&, k_format = k_format, v_format = v_format](Backend backend, Way way) {
      Arena arena(backend);
      AttentionPrologueParams p;
      p.num_tokens = kTokens, p.num_q_heads = kQHeads, p.num_kv_heads = kHeads, p.head_dim = kDim, p.dtype = DType::f32;
      p.q = {arena.input(q), kQHeads * kDim, kDim}, p.k = {arena.input(k), kHeads * kDim, kDim},
      p.v = {arena.input(v), kHeads * kDim, kDim};
      p.hadamard_block = 32, p.v_hadamard_block = 16;
      float* const q_out = arena.output<float>(kTokens * kQHeads * kDim);
      p.q_out = {q_out, kQHeads * kDim, kDim};
      p.places.slot_mapping = index_view(arena.input(slots));
      p.cache.num_pages = 2, p.cache.page_size = 8, p.cache.num_kv_heads = kHeads;
      for (PagedHeads* side : {&p.cache.k, &p.cache.v}) {
        side->format = side == &p.cache.k ? k_format : v_format;
        side->head_dim = kDim;
        side->strides = nhd_strides(8, kHeads, kDim);
        side->data = arena.output<uint8_t>(16 * kHeads * kDim * dtype_bits(side->format.type) / 8);
        if (is_block_scaled(side->format)) {
          const int64_t n = kDim / block_channels(side->format);
          side->scale_strides = nhd_strides(8, kHeads, n);
          side->block_scale = arena.output<uint8_t>(16 * kHeads * n);
        } else if (side->format.scaling == KvScaling::token_head) {
          side->scale_strides = nhd_strides(8, kHeads, 1);
          side->scale = arena.output<float>(16 * kHeads);
        }
      }
      const Status status = arena.run([&](const Execution& execution) {
        return way == Way::plan ? run_planned(p, execution) : attention_prologue(p, execution);
      });
      EXPECT_TRUE(status.ok()) << status.message();
      std::vector<std::vector<unsigned char>> written;
      for (const Arena::Written& each : arena.written()) written.push_back(each.bytes);
      return written;
    };
    EXPECT_EQ(run(GetParam(), Way::call), run(Backend::cpu, Way::call));
    EXPECT_EQ(run(GetParam(), Way::plan), run(Backend::cpu, Way::call));
  }
}

// ---- the Hadamard transform of V ------------------------------------------------------------------------------------------------

TEST_P(BlockScaleTest, TheTransformOfVIsThatOfTheStageAndItsOwnInverse) {
  for (const int64_t dim : {64, 256}) {
    for (const int64_t block : {int64_t{2}, int64_t{16}, int64_t{32}, dim}) {
      SCOPED_TRACE(str_cat(dim, " ", block));
      Random random(9);
      constexpr int64_t kTokens = 5, kHeads = 3;
      const std::vector<float> v = random.normals<float>(kTokens * kHeads * dim);
      Arena arena(GetParam());
      const HeadsView view = {arena.input(v), kHeads * dim, dim};
      const auto out = [&] { return MutableHeadsView{arena.output<float>(kTokens * kHeads * dim), kHeads * dim, dim}; };
      const MutableHeadsView of_prologue = out(), of_stage = out(), back = out();
      const Status status = arena.run([&](const Execution& execution) {
        AttentionPrologueParams p;
        p.num_tokens = kTokens, p.num_kv_heads = kHeads, p.head_dim = dim, p.dtype = DType::f32, p.v = view,
        p.v_out = of_prologue;
        p.v_hadamard_block = block;
        HadamardParams h;
        h.num_tokens = kTokens, h.num_heads = kHeads, h.head_dim = dim, h.dtype = DType::f32, h.block = block;
        h.x = view, h.y = of_stage;
        Status done = attention_prologue(p, execution);
        if (done.ok()) done = hadamard(h, execution);
        h.x = as_input(of_stage), h.y = back;
        return done.ok() ? hadamard(h, execution) : done;
      });
      ASSERT_TRUE(status.ok()) << status.message();
      const auto read = [&](const MutableHeadsView& from) { return arena.read(static_cast<const float*>(from.data)); };
      EXPECT_EQ(read(of_prologue), read(of_stage));
      EXPECT_NE(read(of_prologue), v);
      const std::vector<float> undone = read(back);
      for (size_t i = 0; i < v.size(); ++i) EXPECT_NEAR(undone[i], v[i], 1e-5f);
    }
  }
}

// ---- attention ------------------------------------------------------------------------------------------------------------------

template <class T>
void check_attention(Backend backend, const FormatCase& c, int64_t rows) {
  constexpr int64_t kHeads = HostCache::kHeads, kQHeads = 6, kLength = 19, kGroup = kQHeads / kHeads;
  Random random(static_cast<uint64_t>(17 + rows));
  HostCache host(c.k, c.v, c.k_dim, c.v_dim, c.layout);
  const std::vector<int32_t> pages = {2, 0, 1};
  const auto slot_of = [&](int64_t position) {
    return pages[static_cast<size_t>(position / host.page_size)] * host.page_size + position % host.page_size;
  };
  for (int64_t position = 0; position < kLength; ++position) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (HostSide* side : {&host.k, &host.v}) {
        const std::vector<float> x = random.normals<float>(side->head_dim);
        if (is_block_scaled(side->format)) {
          host.store(*side, slot_of(position), h, x.data());
        } else {
          for (int64_t i = 0; i < side->head_dim; ++i) {
            host.set_code(*side, slot_of(position), h, i,
                          static_cast<uint8_t>(static_cast<int8_t>(std::lround(20.0f * x[static_cast<size_t>(i)]))));
          }
        }
      }
    }
  }
  const std::vector<T> q = random.normals<T>(rows * kQHeads * c.k_dim);
  Arena arena(backend);
  PagedAttentionParams p;
  p.num_tokens = rows, p.num_seqs = 1, p.num_q_heads = kQHeads, p.head_dim = c.k_dim, p.dtype = FloatFormat<T>::dtype;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.k_dim));
  p.q = {arena.input(q), kQHeads * c.k_dim, c.k_dim};
  const PlacedCache placed(arena, host);
  p.kv = placed.view;
  p.page_table.block_table = arena.input(pages);
  p.page_table.block_table_stride = p.page_table.max_pages_per_seq = 3;
  p.cu_seqlens_q = arena.input(std::vector<int32_t>{0, static_cast<int32_t>(rows)});
  p.seq_lens = arena.input(std::vector<int32_t>{kLength});
  p.max_seqlen_q = rows, p.max_seq_len = kLength;
  T* const out = arena.output<T>(rows * kQHeads * c.v_dim);
  p.out = {out, kQHeads * c.v_dim, c.v_dim};
  p.workspace_bytes = paged_attention_workspace_bytes(p, backend_device(backend));
  if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
  const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<Reference> want;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t q_head = 0; q_head < kQHeads; ++q_head) {
      const int64_t keys = kLength - rows + row + 1, h = q_head / kGroup;
      std::vector<double> weights;
      double sum = 0.0;
      for (int64_t key = 0; key < keys; ++key) {
        double score = 0.0;
        for (int64_t i = 0; i < c.k_dim; ++i) {
          score += static_cast<double>(to_float(q[static_cast<size_t>((row * kQHeads + q_head) * c.k_dim + i)])) *
                   host.value(host.k, slot_of(key), h, i);
        }
        weights.push_back(std::exp(score * static_cast<double>(p.scale)));
        sum += weights.back();
      }
      for (int64_t i = 0; i < c.v_dim; ++i) {
        Reference of_channel;
        for (int64_t key = 0; key < keys; ++key) {
          const double term = weights[static_cast<size_t>(key)] / sum * host.value(host.v, slot_of(key), h, i);
          of_channel.value += term;
          of_channel.scale += 4.0 * std::fabs(term);
        }
        want.push_back(of_channel);
      }
    }
  }
  expect_close(arena.read(out), want, c.v_dim, "out", steps_of<T>(backend), false);
}

TEST_P(BlockScaleTest, AttentionReadsWhatIsStored) {
  std::vector<FormatCase> cases = format_cases();
  cases.push_back({{DType::int8, KvScaling::token_head}, kNvfp4, 64, 64, Layout::nhd});
  cases.push_back({kNvfp4, {DType::int8, KvScaling::token_head}, 128, 64, Layout::nhd});
  for (const FormatCase& c : cases) {
    SCOPED_TRACE(str_cat(kv_format_name(c.k), " ", kv_format_name(c.v), " ", c.k_dim, " ", c.v_dim, " layout ",
                         static_cast<int>(c.layout)));
    for (const int64_t rows : {1, 2, 19}) {
      check_attention<float>(GetParam(), c, rows);
      check_attention<BFloat16>(GetParam(), c, rows);
    }
  }
}

// ---- refusals -------------------------------------------------------------------------------------------------------------------

TEST(BlockScale, BadFormatsAreRefused) {
  HostCache host(kNvfp4, kNvfp4, 64, 64, Layout::nhd);
  std::vector<float> heads(64 * 2 * 2, 1.0f);
  std::vector<int64_t> slots = {0, 1};
  KvWriteParams valid;
  valid.num_tokens = 2, valid.num_kv_heads = 2, valid.head_dim = 64, valid.dtype = DType::f32;
  valid.k = valid.v = {heads.data(), 128, 64};
  valid.slot_mapping = index_view(slots.data());
  Arena arena(Backend::cpu);
  valid.cache = PlacedCache(arena, host).view;
  using P = KvWriteParams;
  const struct {
    void (*change)(P&);
    const char* message;
  } refusals[] = {
      {[](P& p) {
         p.cache.k.format = {DType::int8, KvScaling::mx};
       },
       "cache.k.format.scaling is mx, but the type is int8: supported are fp8_e4m3 and fp4_e2m1"},
      {[](P& p) {
         p.cache.v.format = {DType::fp8_e4m3, KvScaling::nv};
       },
       "cache.v.format.scaling is nv, but the type is fp8_e4m3: supported is fp4_e2m1"},
      {[](P& p) {
         p.cache.v.format = {DType::fp4_e2m1, KvScaling::token_head};
       },
       "cache.v.format.type is fp4_e2m1, but the scaling is neither mx nor nv"},
      {[](P& p) { p.cache.v.head_dim = 24; },
       "cache.v.head_dim is 24: it must be a multiple of 16, the channels of a block of scaling nv"},
      {[](P& p) { p.cache.k.format.scaling = KvScaling::mx, p.head_dim = p.cache.k.head_dim = 48; },
       "cache.k.head_dim is 48: it must be a multiple of 32, the channels of a block of scaling mx"},
      {[](P& p) { p.cache.k.block_scale = nullptr; }, "cache.k.block_scale is null"},
      {[](P& p) { p.cache.v.scale_strides.head = 3; }, "cache.v.block_scale has the stride 3 where 4 elements lie"},
      {[](P& p) { p.cache.v.block_scale = p.cache.k.block_scale; }, "cache.k.block_scale overlaps cache.v.block_scale"},
      {[](P& p) { p.cache.v.strides.head = 63; },
       "a stride of cache.v is 63: it must be even, two channels of fp4_e2m1 share a byte"},
      {[](P& p) { p.cache.k.block_scale_layout = static_cast<BlockScaleLayout>(2); },
       "cache.k.block_scale_layout is 2: supported are linear and interleaved_4_tokens"},
      {[](P& p) { p.cache.v.block_scale_layout = BlockScaleLayout::interleaved_4_tokens, p.cache.page_size = 6; },
       "cache.v.block_scale_layout is interleaved_4_tokens, the page size 6 and a head has 4 blocks: both must be multiples of "
       "4"},
  };
  for (const auto& [change, message] : refusals) {
    P p = valid;
    change(p);
    const Status status = kv_write(p, {});
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message() << "\n" << message;
  }
  EXPECT_TRUE(kv_write(valid, {}).ok());

  std::vector<float> inv_freq(32, 0.5f);
  ReropeParams moved;
  moved.num_keys = 2;
  moved.cache = valid.cache;
  moved.rope.rotary_dim = 64, moved.rope.source = RopeSource::inv_freq, moved.rope.type = DType::f32,
  moved.rope.inv_freq = inv_freq.data();
  moved.slot_mapping = moved.from_positions = moved.to_positions = index_view(slots.data());
  moved.rope.past_table = PastTable::identity;
  const Status status = rerope(moved, {});
  EXPECT_NE(status.message().find("cache.k.format is nvfp4: keys of block-scaled formats cannot be moved"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace prologue::test
