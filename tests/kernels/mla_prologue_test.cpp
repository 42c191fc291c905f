#include <prologue/kernels/mla_prologue/mla_prologue.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/rotary/rotary.h>

#include "tests/support/arena.h"
#include "tests/support/placed_mla.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/source_path.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class MlaPrologueTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

template <class T>
void expect_oracle(Backend backend, const MlaCase& c) {
  SCOPED_TRACE(describe(c));
  PlacedMla<T> placed(backend, c);
  const Status status = placed.run();
  ASSERT_TRUE(status.ok()) << status.message();
  placed.expect_matches();
}

// Tests the case in each of the three types; float32 has no records.
void expect_oracle_in_every_type(Backend backend, const MlaCase& c) {
  expect_oracle<BFloat16>(backend, c);
  expect_oracle<Float16>(backend, c);
  if (c.cache != MlaCacheKind::record) expect_oracle<float>(backend, c);
}

MlaCase usual(int64_t num_tokens, int64_t num_q_heads, MlaCacheKind cache = MlaCacheKind::of_dtype) {
  MlaCase c;
  c.num_tokens = num_tokens;
  c.num_q_heads = num_q_heads;
  c.cache = cache;
  return c;
}

TEST_P(MlaPrologueTest, EveryCache) {
  for (const MlaCacheKind kind : kMlaCacheKinds) {
    for (const int64_t tokens : {1, 2, 33}) expect_oracle_in_every_type(GetParam(), usual(tokens, 5, kind));
    MlaCase odd = usual(35, 3, kind);
    odd.misaligned = true, odd.padding = 3, odd.page_size = 7, odd.int64_slots = odd.int64_positions = false;
    expect_oracle_in_every_type(GetParam(), odd);
  }
}

// Reaches every instance: types, ranks up to 512 and above, aligned or not.
TEST_P(MlaPrologueTest, EveryInstance) {
  for (const int64_t rank : {512, 1024}) {
    for (const bool misaligned : {false, true}) {
      MlaCase c = usual(65, 16, MlaCacheKind::fp8_tensor);
      c.kv_lora_rank = rank;
      c.misaligned = misaligned;
      expect_oracle_in_every_type(GetParam(), c);
      c.cache = MlaCacheKind::record;
      expect_oracle_in_every_type(GetParam(), c);
    }
  }
}

TEST_P(MlaPrologueTest, EverySize) {
  for (const int64_t rank : {16, 48, 256, 496, 512, 528, 768, 1008, 1024}) {
    MlaCase c = usual(9, 2);
    c.kv_lora_rank = rank;
    expect_oracle_in_every_type(GetParam(), c);
    c.cache = MlaCacheKind::record;
    if (rank % 256 == 0) expect_oracle_in_every_type(GetParam(), c);
  }
  for (const int64_t rope : {16, 32, 48, 80, 128, 256, 1024}) {
    for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
      MlaCase c = usual(7, 11);
      c.qk_rope_head_dim = rope;
      c.style = style;
      expect_oracle_in_every_type(GetParam(), c);
    }
  }
}

TEST_P(MlaPrologueTest, EveryNorm) {
  for (const MlaNorm norm : {MlaNorm::none, MlaNorm::weight, MlaNorm::float_weight, MlaNorm::no_weight}) {
    for (const int64_t rank : {512, 1024}) {
      for (const bool misaligned : {false, true}) {
        MlaCase c = usual(17, 1);
        c.norm = norm;
        c.kv_lora_rank = rank;
        c.misaligned = misaligned;
        expect_oracle_in_every_type(GetParam(), c);
      }
    }
  }
  MlaCase gemma = usual(17, 1);
  gemma.weight_offset = 1.0f;
  expect_oracle_in_every_type(GetParam(), gemma);
}

TEST_P(MlaPrologueTest, EveryRope) {
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    for (const RopeSource source : {RopeSource::table, RopeSource::per_token, RopeSource::inv_freq}) {
      for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
        for (const bool inverse : {false, true}) {
          MlaCase c = usual(13, 9);
          c.style = style, c.source = source, c.table_type = type, c.inverse = inverse;
          expect_oracle_in_every_type(GetParam(), c);
          c.misaligned = true;
          expect_oracle_in_every_type(GetParam(), c);
          if (source == RopeSource::inv_freq && type == DType::f32) {
            c.max_position = int64_t{1} << 20;
            expect_oracle_in_every_type(GetParam(), c);
          }
        }
      }
    }
  }
  MlaCase none = usual(13, 9);
  none.rotates = false;
  expect_oracle_in_every_type(GetParam(), none);
  none.positions = false;
  expect_oracle_in_every_type(GetParam(), none);
  MlaCase gathered = usual(13, 9);
  gathered.source = RopeSource::per_token, gathered.positions = false;
  expect_oracle_in_every_type(GetParam(), gathered);
}

TEST_P(MlaPrologueTest, EveryPart) {
  for (const bool latent : {true, false}) {
    for (const bool k : {true, false}) {
      for (const int64_t heads : {0, 1, 128}) {
        MlaCase c = usual(5, heads);
        c.latent = latent, c.k = k;
        expect_oracle_in_every_type(GetParam(), c);
      }
    }
  }
}

TEST_P(MlaPrologueTest, PastTheTable) {
  for (const PastTable past : {PastTable::record, PastTable::zero, PastTable::identity}) {
    for (const MlaCacheKind kind : {MlaCacheKind::of_dtype, MlaCacheKind::record}) {
      MlaCase c = usual(90, 4, kind);
      c.past_table = past;
      expect_oracle_in_every_type(GetParam(), c);
    }
  }
}

TEST_P(MlaPrologueTest, InPlaceAndStrides) {
  for (const int64_t padding : {0, 3, 512}) {
    for (const bool in_place : {false, true}) {
      MlaCase c = usual(31, 6);
      c.padding = padding, c.in_place = in_place;
      expect_oracle_in_every_type(GetParam(), c);
    }
  }
}

TEST_P(MlaPrologueTest, AShortSlotMapping) {
  MlaCase c = usual(31, 6);
  c.missing_slots = 9;
  expect_oracle_in_every_type(GetParam(), c);
}

TEST_P(MlaPrologueTest, RealSizes) {
  for (const auto& [tokens, heads, kind] : {std::tuple{int64_t{128}, int64_t{128}, MlaCacheKind::record},
                                            {2049, 16, MlaCacheKind::of_dtype},
                                            {257, 128, MlaCacheKind::fp8_tensor}}) {
    MlaCase c = usual(tokens, heads, kind);
    c.page_size = 64;
    c.max_position = 4096;
    expect_oracle<BFloat16>(GetParam(), c);
  }
}

// There are more tokens than a grid has rows.
TEST_P(MlaPrologueTest, ManyTokens) {
  MlaCase c = usual(65539, 1);
  c.kv_lora_rank = c.qk_rope_head_dim = 16;
  expect_oracle<BFloat16>(GetParam(), c);
}

// What is cached does not depend on whether it is also returned.
TEST_P(MlaPrologueTest, OutputsChangeNothing) {
  for (const MlaCacheKind kind : kMlaCacheKinds) {
    MlaCase c = usual(33, 3, kind);
    PlacedMla<BFloat16> with(GetParam(), c);
    ASSERT_TRUE(with.run().ok());
    PlacedMla<BFloat16> without(GetParam(), c);
    without.params().kv_c_out = without.params().k_pe_out = nullptr;
    ASSERT_TRUE(without.run().ok());
    for (const auto& [a, b] : {std::pair{with.entries(), without.entries()}, {with.rope_entries(), without.rope_entries()}}) {
      if (a == nullptr) continue;
      EXPECT_EQ(with.arena().read(static_cast<const uint8_t*>(a)), without.arena().read(static_cast<const uint8_t*>(b)))
          << describe(c);
    }
    EXPECT_EQ(with.arena().read(static_cast<const BFloat16*>(with.params().q_pe_out.data)).size(), size_t{33 * 3 * 64});
  }
}

// A launch may overlap the one before it in the stream: two run in a row, the second on the results of the first.
TEST_P(MlaPrologueTest, MayOverlapTheKernelBefore) {
  MlaCase c = usual(65, 16);
  c.overlaps = true;
  expect_oracle_in_every_type(GetParam(), c);
  for (const bool overlaps : {false, true}) {
    c.overlaps = overlaps, c.in_place = true, c.bad_tokens = false;
    PlacedMla<BFloat16> twice(GetParam(), c);
    const Status status = twice.arena().run([&](const Execution& execution) {
      PROLOGUE_RETURN_IF_ERROR(mla_prologue(twice.params(), execution));
      return mla_prologue(twice.params(), execution);
    });
    ASSERT_TRUE(status.ok()) << status.message();
    static std::vector<unsigned char> first;
    if (!overlaps) {
      first = twice.bytes();
    } else {
      EXPECT_EQ(twice.bytes(), first);
    }
  }
}

// A token's bits depend on no other token.
TEST_P(MlaPrologueTest, IsBatchInvariant) {
  for (const MlaCacheKind kind : {MlaCacheKind::of_dtype, MlaCacheKind::record}) {
    MlaCase c = usual(37, 16, kind);
    c.bad_tokens = false;
    PlacedMla<BFloat16> together(GetParam(), c), apart(GetParam(), c);
    ASSERT_TRUE(together.run().ok());
    const Status status = apart.arena().run([&](const Execution& execution) {
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        MlaPrologueParams one = apart.params();
        const auto move = [&](auto*& data, int64_t stride, int64_t size) {
          using Bytes = std::conditional_t<std::is_const_v<std::remove_pointer_t<std::remove_reference_t<decltype(data)>>>,
                                           const char, char>;
          data = static_cast<Bytes*>(data) + t * stride * size;
        };
        one.num_tokens = 1;
        move(one.kv_c, one.kv_c_stride, 2), move(one.k_pe, one.k_pe_stride, 2), move(one.q_pe.data, one.q_pe.token_stride, 2);
        move(one.kv_c_out, one.kv_c_out_stride, 2), move(one.k_pe_out, one.k_pe_out_stride, 2);
        move(one.q_pe_out.data, one.q_pe_out.token_stride, 2);
        move(one.positions.data, 1, 8), move(one.slot_mapping.data, 1, 8);
        one.token_faults += t;
        PROLOGUE_RETURN_IF_ERROR(mla_prologue(one, execution));
      }
      return Status();
    });
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(together.bytes(), apart.bytes());
  }
}

// k_pe has a norm of its own, before its rotation (dots3).
TEST_P(MlaPrologueTest, ANormOfK) {
  for (const MlaNorm norm : {MlaNorm::weight, MlaNorm::float_weight, MlaNorm::no_weight}) {
    for (const RopeStyle style : {RopeStyle::interleaved, RopeStyle::neox}) {
      for (const int64_t width : {16, 48, 64, 512}) {
        for (const int64_t heads : {0, 5}) {
          MlaCase c = usual(9, heads);
          c.k_norm = norm, c.style = style, c.qk_rope_head_dim = width;
          c.misaligned = width == 48, c.weight_offset = heads == 0 ? 1.0f : 0.0f, c.latent = width != 16;
          c.past_table = width == 64 ? PastTable::identity : PastTable::record;
          expect_oracle_in_every_type(GetParam(), c);
        }
      }
    }
  }
  MlaCase c = usual(9, 2);
  c.k_norm = MlaNorm::weight, c.rotates = false;
  expect_oracle_in_every_type(GetParam(), c);
}

// Compares with the separate operations, bit for bit.
template <class T>
void expect_separate(Backend backend, MlaCacheKind kind, RopeSource source, MlaNorm k_norm = MlaNorm::none) {
  MlaCase c = usual(77, 12, kind);
  c.source = source;
  c.k_norm = k_norm;
  c.bad_tokens = false;
  SCOPED_TRACE(describe(c));
  PlacedMla<T> fused(backend, c), separate(backend, c);
  ASSERT_TRUE(fused.run().ok());
  const Status status = separate.arena().run([&](const Execution& execution) {
    const MlaPrologueParams& p = separate.params();
    QkNormParams norm;
    norm.num_tokens = p.num_tokens, norm.num_heads = 1, norm.head_dim = p.kv_lora_rank, norm.dtype = p.dtype;
    norm.x = {p.kv_c, p.kv_c_stride, 0};
    norm.y = {p.kv_c_out, p.kv_c_out_stride, 0};
    norm.norm = p.kv_c_norm;
    PROLOGUE_RETURN_IF_ERROR(qk_norm(norm, execution));
    HeadsView k_pe = {p.k_pe, p.k_pe_stride, 0};
    if (k_norm != MlaNorm::none) {
      norm.head_dim = p.qk_rope_head_dim, norm.x = k_pe, norm.y = {p.k_pe_out, p.k_pe_out_stride, 0}, norm.norm = p.k_pe_norm;
      PROLOGUE_RETURN_IF_ERROR(qk_norm(norm, execution));
      k_pe = as_input(norm.y);
    }
    RotaryParams rotation;
    rotation.seq_len = p.num_tokens, rotation.head_dim = p.qk_rope_head_dim, rotation.dtype = p.dtype;
    rotation.num_tensors = 2;
    rotation.tensors[0] = rotary_tensor(p.q_pe, p.q_pe_out, p.num_q_heads);
    rotation.tensors[1] = rotary_tensor(k_pe, MutableHeadsView{p.k_pe_out, p.k_pe_out_stride, 0}, 1);
    rotation.rope = p.rope;
    rotation.positions.ids = p.positions;
    rotation.faults = p.faults;
    PROLOGUE_RETURN_IF_ERROR(rotary(rotation, execution));
    KvWriteParams write;
    write.num_tokens = p.num_tokens, write.num_kv_heads = 1, write.head_dim = p.kv_lora_rank, write.dtype = p.dtype;
    write.k = {p.kv_c_out, p.kv_c_out_stride, 0}, write.v = {p.k_pe_out, p.k_pe_out_stride, 0};
    const auto part = [](const MlaCachePart& from, int64_t width, PagedHeads& to) {
      to.data = from.data, to.head_dim = width, to.format = from.format;
      to.strides = {from.page_stride, from.token_stride, width};
      to.scale = const_cast<float*>(from.scale);
    };
    part(p.cache.latent, p.kv_lora_rank, write.cache.k);
    part(p.cache.rope, p.qk_rope_head_dim, write.cache.v);
    write.cache.num_pages = p.cache.num_pages, write.cache.page_size = p.cache.page_size, write.cache.num_kv_heads = 1;
    write.slot_mapping = p.slot_mapping;
    return kv_write(write, execution);
  });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(fused.bytes(), separate.bytes());
}

TEST_P(MlaPrologueTest, EqualsTheSeparateOperations) {
  for (const MlaCacheKind kind : {MlaCacheKind::of_dtype, MlaCacheKind::fp8_tensor, MlaCacheKind::e5m2_tensor}) {
    for (const RopeSource source : {RopeSource::table, RopeSource::inv_freq}) {
      expect_separate<float>(GetParam(), kind, source);
      expect_separate<BFloat16>(GetParam(), kind, source);
      expect_separate<Float16>(GetParam(), kind, source);
      expect_separate<BFloat16>(GetParam(), kind, source, MlaNorm::weight);
      expect_separate<Float16>(GetParam(), kind, source, MlaNorm::float_weight);
    }
  }
}

// Compares the CPU and CUDA bit for bit, also where the oracle has a tolerance.
TEST_P(MlaPrologueTest, EqualsTheCpu) {
  if (backend_device(GetParam()) == Device::cpu && GetParam() == Backend::cpu) GTEST_SKIP() << "it is the CPU";
  for (const MlaCacheKind kind : kMlaCacheKinds) {
    for (const int64_t rank : {512, 768}) {
      for (const bool misaligned : {false, true}) {
        MlaCase c = usual(257, 7, kind);
        c.kv_lora_rank = rank, c.misaligned = misaligned;
        if (rank == 512) c.k_norm = MlaNorm::weight;
        PlacedMla<BFloat16> here(GetParam(), c), cpu(Backend::cpu, c);
        ASSERT_TRUE(here.run().ok() && cpu.run().ok());
        EXPECT_EQ(here.bytes(), cpu.bytes()) << describe(c);
      }
    }
  }
}

// Tests what is special in a record: a scale that is exact, tiny numbers, a NaN and an infinity, each in a tile of its own.
TEST_P(MlaPrologueTest, SpecialNumbersInRecords) {
  std::vector<BFloat16> x(512, to_bfloat16(448.0f)), k(64, to_bfloat16(1.0f));
  for (size_t i = 128; i < 256; ++i) x[i] = to_bfloat16(i < 200 ? 0x1p-20f : 0.0f);
  for (size_t i = 256; i < 512; ++i) x[i] = to_bfloat16(2.0f);
  x[300] = to_bfloat16(std::numeric_limits<float>::quiet_NaN());
  x[400] = to_bfloat16(-std::numeric_limits<float>::infinity());
  Arena arena(GetParam());
  MlaPrologueParams p;
  p.num_tokens = 1, p.kv_lora_rank = 512, p.qk_rope_head_dim = 64, p.dtype = DType::bf16;
  p.kv_c = arena.input(x), p.kv_c_stride = 512, p.k_pe = arena.input(k), p.k_pe_stride = 64;
  p.slot_mapping = index_view(arena.input(std::vector<int64_t>{0}));
  uint8_t* const cache = arena.output<uint8_t>(656);
  p.cache.num_pages = p.cache.page_size = 1;
  set_mla_records(p, cache, 656, 656);
  const Status status = arena.run([&](const Execution& execution) { return mla_prologue(p, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<uint8_t> got = arena.read(cache);
  float scales[4];
  std::memcpy(scales, got.data() + 512, sizeof scales);
  EXPECT_EQ(scales[0], 1.0f);
  EXPECT_EQ(scales[1], 0x1p-13f);
  EXPECT_NE(scales[2], scales[2]);
  EXPECT_NE(scales[3], scales[3]);
  // 448, and 2^-7.
  for (size_t i = 0; i < 512; ++i) EXPECT_EQ(got[i], i < 128 ? 0x7e : i < 200 ? 0x04 : 0) << i;
  EXPECT_EQ(std::memcmp(got.data() + 528, k.data(), 128), 0);
}

TEST_P(MlaPrologueTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument, kUnsupported = StatusCode::unsupported;
  using P = MlaPrologueParams;
  const auto writable = [](const void* data) { return const_cast<void*>(data); };
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.num_tokens = -1; }, kInvalid, "num_tokens is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.num_q_heads = -1; }, kInvalid, "num_q_heads is -1: it must lie in 0..65536"},
      {[](P& p) { p.dtype = DType::f64; }, kUnsupported, "dtype is float64: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.kv_lora_rank = 520; }, kUnsupported, "kv_lora_rank is 520: supported is every multiple of 16 in 16..1024"},
      {[](P& p) { p.qk_rope_head_dim = 1040; }, kUnsupported,
       "qk_rope_head_dim is 1040: supported is every multiple of 16 in 16..1024"},
      {[](P& p) { p.kv_c_norm.placement = NormPlacement::none; }, kInvalid, "kv_c_norm has a weight, but its placement is none"},
      {[](P& p) { p.kv_c_norm.placement = NormPlacement::after_rope; }, kUnsupported,
       "kv_c_norm has the placement 2, kind 0 and scope 0: supported is rms over a head, before_rope"},
      {[](P& p) { p.kv_c_norm.kind = NormKind::layer; }, kUnsupported,
       "kv_c_norm has the placement 1, kind 1 and scope 0: supported is rms over a head, before_rope"},
      {[](P& p) { p.kv_c_norm.scope = NormScope::token; }, kUnsupported,
       "kv_c_norm has the placement 1, kind 0 and scope 1: supported is rms over a head, before_rope"},
      {[](P& p) { p.kv_c_norm.bias = p.kv_c_norm.weight; }, kInvalid, "kv_c_norm has a bias, but its kind is rms"},
      {[](P& p) { p.k_pe_norm.weight = p.kv_c_norm.weight; }, kInvalid, "k_pe_norm has a weight, but its placement is none"},
      {[](P& p) { p.k_pe_norm.placement = NormPlacement::after_rope; }, kUnsupported,
       "k_pe_norm has the placement 2, kind 0 and scope 0: supported is rms over a head, before_rope"},
      {[](P& p) { p.k_pe_norm.placement = NormPlacement::before_rope, p.qk_rope_head_dim = 528; }, kUnsupported,
       "qk_rope_head_dim is 528: with k_pe_norm supported is up to 512"},
      {[](P& p) { p.kv_c_norm.weight_type = DType::f16; }, kUnsupported,
       "kv_c_norm.weight_type is float16: supported are float32 and dtype, bfloat16"},
      {[](P& p) { p.kv_c_norm.eps = 0.0f; }, kInvalid, "kv_c_norm.eps is 0: it must be finite and greater than 0"},
      {[](P& p) { p.kv_c_norm.weight_offset = std::numeric_limits<float>::infinity(); }, kInvalid,
       "kv_c_norm.weight_offset is inf: it must be finite"},
      {[](P& p) { p.rope.style = static_cast<RopeStyle>(9); }, kUnsupported,
       "the rope style is 9: supported are neox and interleaved"},
      {[](P& p) { p.rope.rotary_dim = 32; }, kInvalid, "rope.rotary_dim is 32: it must be 0 or qk_rope_head_dim, 64"},
      {[](P& p) { p.rope.rotary_offset = 2; }, kUnsupported,
       "rope has the rotary_offset 2, 1 blocks and 1 axes: supported are 0, 1 and 1"},
      {[](P& p) { p.rope.num_blocks = 2; }, kUnsupported,
       "rope has the rotary_offset 0, 2 blocks and 1 axes: supported are 0, 1 and 1"},
      {[](P& p) { p.rope.num_axes = 3; }, kUnsupported,
       "rope has the rotary_offset 0, 1 blocks and 3 axes: supported are 0, 1 and 1"},
      {[](P& p) { p.rope.source = RopeSource::theta; }, kUnsupported,
       "rope.source is 3: supported are table, per_token and inv_freq"},
      {[](P& p) { p.rope.attention_factor = 2.0; }, kInvalid, "rope.attention_factor is 2: it must be 1, a table includes it"},
      {[](P& p) { p.rope.rotary_dim = 0; }, kInvalid,
       "rope.rotary_dim is 0, but rope.cos is given: set rotary_dim, or leave it null"},
      {[](P& p) { p.rope = {}, p.rope.theta = 1e4; }, kInvalid,
       "rope.rotary_dim is 0, but rope.theta is given: set rotary_dim, or leave it null"},
      {[](P& p) { p.rope.source = RopeSource::inv_freq, p.rope.type = DType::f64; }, kUnsupported,
       "rope.type is float64: for inv_freq supported is float32"},
      {[](P& p) { p.rope.type = DType::f64; }, kUnsupported, "rope.type is float64: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.rope.width = RopeWidth::full; }, kUnsupported,
       "rope has the width 2 and the column strides 1 and 1: supported is half, with column stride 1"},
      {[](P& p) { p.rope.sin.column_stride = 2; }, kUnsupported,
       "rope has the width 1 and the column strides 1 and 2: supported is half, with column stride 1"},
      {[](P& p) { p.rope.max_position = 0; }, kInvalid, "rope.max_position is 0: it must lie in 1..1099511627776"},
      {[](P& p) { p.rope.past_table = static_cast<PastTable>(3); }, kUnsupported,
       "past_table is 3: supported are record, zero and identity"},
      {[](P& p) { p.faults = nullptr; }, kInvalid,
       "faults is null, but max_position is 8: give a FaultRecord, or set past_table to zero or identity"},
      {[](P& p) { p.cache.latent.format.type = DType::int8; }, kUnsupported,
       "cache.latent.format.type is int8: supported are float32, float16, bfloat16, fp8_e4m3 and fp8_e5m2"},
      {[](P& p) { p.cache.latent.format.scaling = KvScaling::tensor; }, kUnsupported,
       "cache.latent.format.scaling is 1 for bfloat16: supported are none, tensor for fp8, and token_head for a latent of "
       "fp8_e4m3"},
      {[](P& p) {
         p.cache.rope.format = {DType::fp8_e4m3, KvScaling::token_head};
       },
       kUnsupported,
       "cache.rope.format.scaling is 3 for fp8_e4m3: supported are none, tensor for fp8, and token_head for a latent of "
       "fp8_e4m3"},
      {[](P& p) {
         p.cache.latent.format = {DType::fp8_e5m2, KvScaling::token_head};
       },
       kUnsupported,
       "cache.latent.format is fp8_e5m2 with scaling token_head, dtype is bfloat16 and kv_lora_rank 512: these records are of "
       "fp8_e4m3, from float16 or bfloat16, with a rank that is a multiple of 256"},
      {[](P& p) { p.kv_lora_rank = 384, set_mla_records(p, p.cache.latent.data, 4096, 656); }, kUnsupported,
       "cache.latent.format is fp8_e4m3 with scaling token_head, dtype is bfloat16 and kv_lora_rank 384: these records are of "
       "fp8_e4m3, from float16 or bfloat16, with a rank that is a multiple of 256"},
      {[](P& p) {  // a helper before what it needs
         p.kv_lora_rank = 0, set_mla_entries(p, p.cache.latent.data, DType::unset, nullptr, 576, 576), p.kv_lora_rank = 512;
       },
       kInvalid,
       "the strides of cache.latent are not set: set_mla_entries and set_mla_records need kv_lora_rank and dtype first"},
      {[](P& p) { p.kv_lora_rank = 0, set_mla_records(p, p.cache.latent.data, 656, 656), p.kv_lora_rank = 512; }, kInvalid,
       "the strides of cache.latent are not set: set_mla_entries and set_mla_records need kv_lora_rank and dtype first"},
      {[](P& p) {
         const MlaCachePart latent = p.cache.latent;
         p.dtype = DType::unset, set_mla_entries(p, p.cache.latent.data, DType::unset, nullptr, 576, 576), p.dtype = DType::bf16;
         p.cache.latent = latent;
       },
       kInvalid, "the strides of cache.rope are not set: set_mla_entries and set_mla_records need kv_lora_rank and dtype first"},
      {[](P& p) { p.rope.rotary_dim = 0, set_cos_sin_table(p.rope, p.rope.cos.data, DType::f32, 8), p.rope.rotary_dim = 64; },
       kInvalid, "rope.width is not set: supported is half; set_cos_sin_table needs rope.rotary_dim first"},
      {[](P& p) { p.cache.num_pages = 0; }, kInvalid, "cache.num_pages is 0: it must lie in 1..1099511627776"},
      {[](P& p) { p.cache.page_size = 0; }, kInvalid, "cache.page_size is 0: it must lie in 1..1048576"},
      {[](P& p) { p.positions.type = DType::int16; }, kInvalid, "positions.type is int16: it must be int32 or int64"},
      {[](P& p) { p.slot_mapping.type = DType::f32; }, kInvalid, "slot_mapping.type is float32: it must be int32 or int64"},
      {[](P& p) { p.slot_mapping_len = 3; }, kInvalid, "slot_mapping_len is 3: it must lie in 0..num_tokens, 2"},
      {[](P& p) { p.positions.data = nullptr; }, kInvalid, "positions is null"},
      {[](P& p) { p.slot_mapping.data = nullptr; }, kInvalid, "slot_mapping is null"},
      {[](P& p) { p.q_pe.data = nullptr; }, kInvalid, "q_pe is null"},
      {[](P& p) { p.q_pe_out.data = nullptr; }, kInvalid, "q_pe_out is null"},
      {[](P& p) { p.rope.sin.data = nullptr; }, kInvalid, "rope.sin is null"},
      {[](P& p) {
         p.cache.rope.format = {DType::fp8_e4m3, KvScaling::tensor};
       },
       kInvalid, "cache.rope.scale is null"},
      {[](P& p) { p.kv_c_stride = -1; }, kInvalid, "kv_c has the stride -1: strides must not be negative"},
      {[](P& p) { p.kv_c_out_stride = 256; }, kInvalid,
       "kv_c_out has the stride 256 where 512 elements lie: rows that are written must not overlap"},
      {[](P& p) { p.cache.latent.token_stride = 500; }, kInvalid,
       "cache.latent has the stride 500 where 512 elements lie: rows that are written must not overlap"},
      {[](P& p) { p.cache.rope.data = static_cast<char*>(p.cache.latent.data) + 1022; }, kInvalid,
       "cache.latent overlaps cache.rope"},
      {[&](P& p) { p.kv_c_out = static_cast<char*>(writable(p.kv_c)) + 2; }, kInvalid, "kv_c_out overlaps kv_c"},
      {[&](P& p) { p.k_pe_out = writable(p.kv_c); }, kInvalid, "k_pe_out overlaps kv_c"},
      {[&](P& p) { p.q_pe_out.data = writable(p.k_pe); }, kInvalid, "q_pe_out overlaps k_pe"},
      {[&](P& p) {
         p.cache.latent.data = writable(p.kv_c_norm.weight), p.cache.rope.data = nullptr,
         p.cache.num_pages = p.cache.page_size = 1;
       },
       kInvalid, "cache.latent overlaps kv_c_norm.weight"},
      {[](P& p) { p.token_faults = static_cast<uint8_t*>(p.kv_c_out); }, kInvalid, "kv_c_out overlaps token_faults"},
      {[](P& p) { p.faults = static_cast<FaultRecord*>(p.q_pe_out.data); }, kInvalid, "q_pe_out overlaps faults"},
  };
  expect_refusals("mla_prologue", refusals, [&](const auto& change) {
    MlaCase c = usual(2, 2);
    c.max_position = 8;
    PlacedMla<BFloat16> placed(GetParam(), c);
    change(placed.params());
    return refused(placed.run(), placed.arena());
  });
}

TEST_P(MlaPrologueTest, RecordsAreAlignedToTheirScales) {
  PlacedMla<BFloat16> placed(GetParam(), usual(2, 2, MlaCacheKind::record));
  placed.params().cache.latent.token_stride += 2;
  const Status status = placed.run();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(
      status.message().find("with the strides 10496 and 658: records have float32 scales, so all must be multiples of 4 bytes"),
      std::string::npos)
      << status.message();
  EXPECT_TRUE(placed.arena().untouched());
}

TEST(MlaPrologueCpuTest, CudaWithoutCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  PlacedMla<float> placed(Backend::cpu, usual(1, 1));
  const Status status = placed.arena().run([&](Execution execution) {
    execution.device = Device::cuda;
    return mla_prologue(placed.params(), execution);
  });
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "mla_prologue: device is cuda, but this library was built without CUDA");
  EXPECT_TRUE(placed.arena().untouched());
}

// Every row of the page names a test of this file.
TEST(MlaPrologueFeatures, ThePageNamesTests) {
  std::ifstream page(source_path("docs/features.md"));
  const testing::TestSuite* suite = nullptr;
  for (int i = 0; i < testing::UnitTest::GetInstance()->total_test_suite_count(); ++i) {
    const testing::TestSuite* const one = testing::UnitTest::GetInstance()->GetTestSuite(i);
    if (std::string(one->name()) == "Backends/MlaPrologueTest") suite = one;
  }
  ASSERT_NE(suite, nullptr);
  int rows = 0;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("<!-- ", 0) == 0) inside = line.rfind("<!-- mla features", 0) == 0;
    if (!inside || line.rfind("| ", 0) != 0 || line.rfind("| feature", 0) == 0 || line.rfind("| ---", 0) == 0) continue;
    const size_t end = line.rfind(" |"), begin = line.rfind("| ", end - 1) + 2;
    const std::string name = line.substr(begin, end - begin) + "/cpu";
    bool found = false;
    for (int i = 0; i < suite->total_test_count(); ++i) found = found || name == suite->GetTestInfo(i)->name();
    EXPECT_TRUE(found) << name;
    ++rows;
  }
  EXPECT_EQ(rows, 13);
}

INSTANTIATE_TEST_SUITE_P(Backends, MlaPrologueTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
