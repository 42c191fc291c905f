// Tests what users of other prologue, rope and cache kernels have run into. docs/testing.md names the threads, which of them the case lists
// of attention_prologue_test.cpp cover already, and which do not apply here.
#include <gtest/gtest.h>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "tests/oracle/quantize.h"
#include "tests/support/prologue_results.h"
#include "tests/support/random.h"
#include "tests/support/sparse_memory.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class PrologueThreadsTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, PrologueThreadsTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
void expect_oracle(Backend backend, const PrologueCase& c, const PrologueData<T>& data) {
  SCOPED_TRACE(c.describe());
  PlacedPrologue<T> placed(backend, c, data);
  const Status status = placed.run();
  ASSERT_TRUE(status.ok()) << status.message();
  expect_matches(placed, oracle::attention_prologue(oracle_input(c, data)));
}

// This case only copies K and V of one head each.
PrologueCase copying_case(int64_t num_tokens, int64_t head_dim) {
  PrologueCase c;
  c.num_tokens = num_tokens;
  c.num_q_heads = c.num_kv_heads = 1;
  c.head_dim = head_dim;
  c.rotary_dim = 0;
  c.max_position = 64;
  c.bad_indices = false;
  return c;
}

// ---- shapes -----------------------------------------------------------------------------------------------------------------

// vllm#45466, sglang#4064, flashinfer#2104, FlyDSL#1113, LightLLM#1459, vllm-ascend#15688, flash-attention#1195, vllm#43676 and others like
// them: every head size is rotated in every part, in both styles; packed in place, apart, and as [heads, tokens, channels] with every base
// (the cache's too) 2 bytes off. Tables end with their last row, which is the position of one token; what follows is NaN.
TEST_P(PrologueThreadsTest, EveryHeadSizeRotatesInEveryPart) {
  uint64_t number = 0;
  for (const int64_t d : {46, 64, 72, 80, 96, 112, 128, 160, 192, 256, 512, 576, 1024}) {
    for (const int64_t r : {int64_t{2}, int64_t{16}, int64_t{32}, int64_t{64}, int64_t{72}, int64_t{96}, d}) {
      for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
        for (const int layout : {0, 1, 2}) {
          if (r > d) continue;
          PrologueCase c;
          c.num_tokens = 3, c.num_q_heads = 2, c.num_kv_heads = 1, c.head_dim = d, c.rotary_dim = r, c.style = style;
          c.max_position = 5, c.bad_indices = false, c.page_size = 2, c.seed = ++number;
          if (layout == 0) c.in_place = true;
          if (layout == 1) c.packed = false, c.row_padding = 3, c.layout = CacheLayout::odd;
          if (layout == 2) c.packed = false, c.heads_first = true, c.head_padding = 5, c.misalign = 6;
          with_host_type(kFloatTypes[number % 3], [&](auto type) {
            using T = decltype(type);
            c = fit_to_type<T>(c);
            expect_oracle(GetParam(), c, make_data<T>(c));
          });
          if (HasFailure()) return;
        }
      }
    }
  }
}

// flash-attention#1579, vllm#47056: no page size is special.
TEST_P(PrologueThreadsTest, AnyPageSize) {
  for (const int64_t page_size : {1, 2, 7, 16, 17, 100, 255, 256, 1000, 1024}) {
    for (const bool derived : {false, true}) {
      PrologueCase c = copying_case(12, 64);
      c.rotary_dim = 64, c.page_size = page_size, c.derive_positions = c.derive_slots = derived, c.max_position = 4000;
      expect_oracle(GetParam(), c, make_data<BFloat16>(c));
    }
  }
}

// vllm#53918: K and V come from one projection at head_dim 512, K is rotated after its norm, V is normed and not rotated; frequencies of
// which most are 0 (vllm#39914) rotate nothing.
TEST_P(PrologueThreadsTest, Gemma4Layer) {
  PrologueCase c = copying_case(9, 512);
  c.num_q_heads = 4, c.rotary_dim = 512, c.norm = NormPlacement::before_rope, c.v_is_k = c.v_norm = true;
  c.source = RopeSource::inv_freq, c.max_position = 1 << 20;
  PrologueData<BFloat16> data = make_data<BFloat16>(c);
  std::fill(data.inv_freq.begin() + 64, data.inv_freq.end(), 0.0f);
  expect_oracle(GetParam(), c, data);
}

// ---- offsets ----------------------------------------------------------------------------------------------------------------

// vllm#1486, vllm#50427, tokenspeed#501, aiter#2517: the slots themselves are beyond 2^31, given and derived.
TEST_P(PrologueThreadsTest, SlotsBeyondTwoToThe31) {
  constexpr int64_t kPages = (int64_t{1} << 25) + 3, kPageSize = 64,
                    kSlots = kPages * kPageSize;  // int4, 2 channels: a byte each
  SparseMemory k_cache(GetParam(), kSlots), v_cache(GetParam(), kSlots);
  if (k_cache.data() == nullptr || v_cache.data() == nullptr) GTEST_SKIP() << "no room for two arrays of 2 GiB";
  for (const bool derived : {false, true}) {
    SCOPED_TRACE(str_cat("derived=", derived));
    Arena arena(GetParam() == Backend::cuda_graph ? Backend::cuda : GetParam());
    const std::vector<float> k = {1.0f, -7.0f}, v = {3.0f, 2.0f};
    AttentionPrologueParams p;
    p.num_tokens = 1, p.num_kv_heads = 1, p.head_dim = 2, p.dtype = DType::f32;
    p.k = {arena.input(k), 2, 2};
    p.v = {arena.input(v), 2, 2};
    const int64_t slot = (kPages - 2) * kPageSize + (derived ? 5 : 9);
    if (derived) {
      p.places.num_seqs = p.places.page_table.max_pages_per_seq = p.places.page_table.block_table_stride = 1;
      p.places.cu_seqlens_q = arena.input(std::vector<int32_t>{0, 1});
      p.places.cache_lens = arena.input(std::vector<int32_t>{5});
      p.places.page_table.block_table = arena.input(std::vector<int32_t>{static_cast<int32_t>(kPages - 2)});
    } else {
      p.places.slot_mapping = index_view(arena.input(std::vector<int64_t>{slot}));
    }
    PagedKvView& c = p.cache;
    c.k.data = k_cache.data(), c.v.data = v_cache.data();
    c.k.format = c.v.format = {DType::int4, KvScaling::tensor};
    c.num_pages = kPages, c.page_size = kPageSize, c.num_kv_heads = 1, c.k.head_dim = 2;
    c.k.strides = c.v.strides = {2 * kPageSize, 2, 2};
    c.k.scale = c.v.scale = arena.input(std::vector<float>{1.0f});
    const Status status = arena.run([&](const Execution& e) { return attention_prologue(p, e); });
    ASSERT_TRUE(status.ok()) << status.message();
    Execution execution;
    execution.device = backend_device(GetParam());
    unsigned char got[2] = {};
    ASSERT_TRUE(copy_to_host(&got[0], static_cast<unsigned char*>(c.k.data) + slot, 1, execution).ok());
    ASSERT_TRUE(copy_to_host(&got[1], static_cast<unsigned char*>(c.v.data) + slot, 1, execution).ok());
    EXPECT_EQ(got[0], 0x91);  // low nibble = even channel
    EXPECT_EQ(got[1], 0x23);
  }
}

// tokenspeed#501, aiter#2517: pages have one latent row each (512 channels, and 64 that rotate), and there are more than 2^31 elements of
// them; the scales are as far apart.
TEST_P(PrologueThreadsTest, LatentRowsBeyondTwoToThe31) {
  constexpr int64_t kDim = 576, kPages = 3800000, kFar = (int64_t{1} << 31) + 512;
  SparseMemory rows(GetParam(), kPages * kDim), scales(GetParam(), (kFar + 2) * 4);
  if (rows.data() == nullptr || scales.data() == nullptr) GTEST_SKIP() << "no room for arrays of 2 and 8 GiB";
  const std::vector<float> table = make_table(8, 64);
  Arena arena(GetParam() == Backend::cuda_graph ? Backend::cuda : GetParam());
  const auto write = [&](const std::vector<float>& k, const std::vector<int64_t>& slots, bool far_scales) {
    AttentionPrologueParams p;
    p.num_tokens = 1, p.num_kv_heads = 1, p.head_dim = kDim, p.dtype = DType::f32;
    p.k = {arena.input(k), kDim, kDim};
    p.rope.rotary_dim = 64, p.rope.rotary_offset = 512, p.rope.max_position = 8;
    p.rope.past_table = PastTable::zero;
    set_cos_sin_table(p.rope, arena.input(table), DType::f32, p.rope.max_position);
    p.places.positions = index_view(arena.input(std::vector<int32_t>{0}));
    p.places.slot_mapping = index_view(arena.input(slots));
    PagedKvView& c = p.cache;
    c.k.data = rows.data(), c.k.format = {DType::int8, KvScaling::token_head};
    c.num_pages = far_scales ? 2 : kPages, c.page_size = 1, c.num_kv_heads = 1, c.k.head_dim = kDim;
    c.k.strides = {kDim, kDim, kDim};
    c.k.scale = static_cast<float*>(scales.data()), c.k.scale_strides = {far_scales ? kFar : 1, 1, 1};
    const Status status = arena.run([&](const Execution& e) { return attention_prologue(p, e); });
    EXPECT_TRUE(status.ok()) << status.message();
  };
  std::vector<float> k(kDim, -1.0f);
  k[7] = 127.0f;
  write(k, {kPages - 2}, false);
  k[7] = 254.0f;
  write(k, {1}, true);

  Execution execution;
  execution.device = backend_device(GetParam());
  const auto read = [&](const auto* from, auto value) {
    EXPECT_TRUE(copy_to_host(&value, from, sizeof value, execution).ok());
    return value;
  };
  const auto* codes = static_cast<const int8_t*>(rows.data()) + (kPages - 2) * kDim;
  EXPECT_EQ(read(codes + 7, int8_t{}), 127);
  EXPECT_EQ(read(codes + kDim - 1, int8_t{}), -1);
  EXPECT_EQ(read(static_cast<const float*>(scales.data()) + kPages - 2, 0.0f), 1.0f);
  EXPECT_EQ(read(static_cast<const float*>(scales.data()) + kFar, 0.0f), 2.0f);
}

// ---- positions --------------------------------------------------------------------------------------------------------------

// imp#1316, imp#1325, transformers#29285, vllm#863: long contexts and large bases in every type; no table, no float32 angle.
TEST_P(PrologueThreadsTest, PositionsUpToAMillionInEveryType) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    PrologueCase c = copying_case(40, 128);
    c.rotary_dim = 128, c.source = RopeSource::inv_freq, c.max_position = 1 << 20;
    PrologueData<T> data = make_data<T>(c);
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      data.positions[static_cast<size_t>(t)] = t < 20 ? (int64_t{1} << t) - 1 : (int64_t{1} << 20) - 1 - (t - 20);
    }
    expect_oracle(GetParam(), c, data);
  });
}

// sglang#10788, pegainfer#220, nanochat#520, onnxruntime#27597: positions are the last row of the table, and the first after it.
TEST_P(PrologueThreadsTest, PositionsBehindTheTableAreRefusedOneByOne) {
  PrologueCase c = copying_case(6, 64);
  c.rotary_dim = 64, c.token_faults = true, c.int64_positions = true, c.k_out = true;
  PrologueData<float> data = make_data<float>(c);
  data.positions = {c.max_position - 1, c.max_position, 0, INT64_MAX, -1, INT64_MIN};
  expect_oracle(GetParam(), c, data);
}

// sgl-kernel-xpu#202, sglang#34446, #35744: positions are [3, T] with three different rows.
TEST_P(PrologueThreadsTest, EveryAxisRotatesItsOwnPairs) {
  PrologueCase c = copying_case(9, 128);
  c.rotary_dim = 128, c.num_axes = 3;
  for (const bool interleaved : {false, true}) {
    c.interleaved_axes = interleaved;
    PrologueData<float> data = make_data<float>(c);
    for (int64_t i = 0; i < 27; ++i) data.positions[static_cast<size_t>(i)] = 7 * (i / 9) + i % 9;
    expect_oracle(GetParam(), c, data);
  }
}

// TensorRT-LLM#15661: in decoding the delta of MRoPE is negative and is used as it is; vllm#54498: the slot comes from the cache position.
TEST_P(PrologueThreadsTest, RopePositionIsNotTheCachePosition) {
  PrologueCase c = copying_case(3, 64);
  c.rotary_dim = 64, c.num_axes = 3, c.derive_positions = c.derive_slots = true, c.offsets = Offsets::per_sequence,
  c.page_size = 4;
  PrologueData<float> data = make_data<float>(c);
  data.cu_seqlens = {0, 1, 2, 3};
  data.cache_lens = {9, 2, 7};
  data.offsets = {-6, 4, -8};  // the last one stands before the beginning: a fault, not padding
  data.block_table = {{5, 1, 4}, {0, 2, 6}, {7, 3, 8}};
  data.num_pages = 9;
  expect_oracle(GetParam(), c, data);
  PlacedPrologue<float> placed(GetParam(), c, data);
  ASSERT_TRUE(placed.run().ok());
  const Fault fault = decode_fault(placed.faults());
  EXPECT_EQ(fault.code, FaultCode::position_out_of_range);
  EXPECT_EQ(fault.token, 2);
}

// A pair of an axis that does not exist takes the first axis, although there are numbers where its positions would be.
TEST_P(PrologueThreadsTest, AxesThatAreNoneCountAsTheFirst) {
  PrologueCase c = copying_case(5, 64);
  c.rotary_dim = 64, c.num_axes = 3;
  const PrologueData<BFloat16> data = make_data<BFloat16>(c);
  PlacedPrologue<BFloat16> placed(GetParam(), c, data);
  placed.params().rope.num_axes = 2;
  ASSERT_TRUE(placed.run().ok());
  oracle::PrologueInput in = oracle_input(c, data);
  in.num_axes = 2;
  in.positions.resize(static_cast<size_t>(2 * c.num_tokens));
  std::replace(in.pair_axis.begin(), in.pair_axis.end(), int64_t{2}, int64_t{0});
  expect_matches(placed, oracle::attention_prologue(in));
}

// A layer without rotation needs no positions.
TEST_P(PrologueThreadsTest, NoPositionsWhereNothingRotates) {
  const PrologueCase c = copying_case(5, 64);
  const PrologueData<float> data = make_data<float>(c);
  PlacedPrologue<float> placed(GetParam(), c, data);
  placed.params().places.positions = {};
  placed.params().rope.max_position = 0;
  ASSERT_TRUE(placed.run().ok());
  expect_matches(placed, oracle::attention_prologue(oracle_input(c, data)), true);
}

// Derived positions know the end of the table as given ones do: there are tokens on both sides of it, and the cache has room for all.
TEST_P(PrologueThreadsTest, DerivedPositionsEndWithTheTable) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    PrologueCase c = copying_case(9, 64);
    c.rotary_dim = 64, c.page_size = 4, c.max_position = 8, c.derive_positions = c.derive_slots = c.token_faults = true,
    c.seed = seed;
    expect_oracle(GetParam(), c, make_data<BFloat16>(c));
  }
}

// ---- slots and padding ------------------------------------------------------------------------------------------------------

// vllm#43810, vllm#47056: -1 is no index from the end, and a slot of a larger cache is none of this one.
TEST_P(PrologueThreadsTest, SlotsThatAreNoneTouchNothing) {
  PrologueCase c = copying_case(5, 64);
  c.rotary_dim = 64, c.token_faults = true;
  PrologueData<BFloat16> data = make_data<BFloat16>(c);
  const int64_t slots = data.num_pages * c.page_size;
  data.slots = {-1, slots, INT64_MIN, INT64_MAX, slots - 1};
  expect_oracle(GetParam(), c, data);
}

// sglang#32477, sglang#35351, vllm#57156: whatever a padding row holds reaches neither the cache nor a scale.
TEST_P(PrologueThreadsTest, PaddingRowsOfNanReachNothing) {
  for (const bool derived : {false, true}) {
    PrologueCase c = copying_case(7, 64);
    c.rotary_dim = 64, c.norm = NormPlacement::before_rope, c.kv_type = DType::fp8_e4m3, c.scaling = KvScaling::token_head;
    c.q8 = KvScaling::token_head, c.derive_positions = c.derive_slots = derived;
    PrologueData<float> data = make_data<float>(c);
    if (derived) {
      data.cu_seqlens.assign(data.cu_seqlens.size(), 0);
      data.cu_seqlens.back() = 4;
      data.cache_lens.assign(data.cache_lens.size(), 0);
    } else {
      for (size_t t = 4; t < 7; ++t) data.positions[t] = -1, data.slots[t] = 0;
      std::replace(data.slots.begin(), data.slots.begin() + 4, int64_t{0}, data.num_pages * c.page_size - 1);
    }
    for (auto* tensor : {&data.q, &data.k, &data.v}) std::fill(tensor->begin() + 4 * 64, tensor->end(), kNan);
    expect_oracle(GetParam(), c, data);
  }
}

// tt-metal#54744: the padding after a chunk needs no room in the cache.
TEST_P(PrologueThreadsTest, PaddingNeedsNoRoomInTheCache) {
  PrologueCase c = copying_case(16, 64);
  c.derive_positions = c.derive_slots = true, c.page_size = 4, c.token_faults = true;
  PrologueData<float> data = make_data<float>(c);
  data.cu_seqlens = {0, 6};
  data.cache_lens = {2};  // 2 + 6 tokens fill the two pages
  data.block_table = {{1, 0}};
  data.num_pages = 2;
  expect_oracle(GetParam(), c, data);
  data.cu_seqlens = {0, 7};  // one too many: that one alone is a fault
  expect_oracle(GetParam(), c, data);
}

// tt-metal#54935, and windows: a prompt longer than the ring leaves its last tokens there, each at its own place.
TEST_P(PrologueThreadsTest, RingKeepsTheLastTokens) {
  PrologueCase c = copying_case(30, 64);
  c.derive_positions = c.derive_slots = true, c.page_size = 4, c.ring_size = 10, c.rotary_dim = 64, c.v_out = true;
  PrologueData<float> data = make_data<float>(c);
  data.cu_seqlens = {0, 4, 29, 30};
  data.cache_lens = {9, 0, 23};
  data.block_table = {{0, 4, 2}, {6, 1, 3}, {7, 8, 5}};
  data.num_pages = 9;
  expect_oracle(GetParam(), c, data);
}

// tokenspeed#667, rtp-llm#1337, imp#1648, TensorRT-LLM#13124, vllm#25513, vllm#22758: a launch of 64 rows serves 1, 63 and 64 tokens. On
// cuda_graph it is captured over zeros and replayed over other lengths, pages, tables and scales.
TEST_P(PrologueThreadsTest, SixtyFourRowsServeFewerTokens) {
  for (const int32_t used : {1, 63, 64}) {
    for (const KvScaling scaling : {KvScaling::head, KvScaling::token_head}) {
      PrologueCase c = copying_case(64, 64);
      c.num_q_heads = 4, c.num_kv_heads = 2, c.rotary_dim = 64, c.derive_positions = c.derive_slots = true, c.page_size = 4;
      c.kv_type = DType::fp8_e4m3, c.scaling = scaling, c.q8 = KvScaling::tensor, c.token_faults = true;
      c.seed = static_cast<uint64_t>(used);
      PrologueData<BFloat16> data = make_data<BFloat16>(c);
      for (int32_t& end : data.cu_seqlens) end = std::min(end, used);
      expect_oracle(GetParam(), c, data);
    }
  }
}

// With slot_mapping, padding rows of a decode step may hold slots (0, as engines fill them) as long as their position is negative.
TEST_P(PrologueThreadsTest, PaddingMayNameARealSlot) {
  PrologueCase c = copying_case(8, 64);
  c.rotary_dim = 64, c.token_faults = true;
  PrologueData<BFloat16> data = make_data<BFloat16>(c);
  data.slots = {5, 0, 9, 0, 0, 0, 0, 0};
  data.positions = {1, 2, 3, -1, -1, -1, -1, -1};
  expect_oracle(GetParam(), c, data);
}

// Arrays that break their contract may give any result, but nothing outside the named arrays is touched.
TEST_P(PrologueThreadsTest, GarbageInTheSequenceArraysStaysInside) {
  Random random(8);
  for (int round = 0; round < 60; ++round) {
    PrologueCase c = copying_case(20, 16);
    c.derive_positions = c.derive_slots = true, c.offsets = Offsets::per_sequence, c.page_size = 3, c.rotary_dim = 16;
    c.int64_positions = round % 2 == 0, c.ring_size = round % 3;
    PrologueData<float> data = make_data<float>(c);
    const auto number = [&] {
      return random.integer(0, 3) == 0 ? random.integer(INT32_MIN, INT32_MAX) : random.integer(-30, 30);
    };
    for (int32_t& x : data.cu_seqlens) x = static_cast<int32_t>(number());
    for (int32_t& x : data.cache_lens) x = static_cast<int32_t>(number());
    for (int64_t& x : data.offsets)
      x = c.int64_positions && random.integer(0, 1) == 0 ? (number() < 0 ? INT64_MIN : INT64_MAX) : number();
    for (auto& row : data.block_table) {
      for (int32_t& x : row) x = static_cast<int32_t>(number());
    }
    PlacedPrologue<float> placed(GetParam(), c, data);
    EXPECT_TRUE(placed.run().ok());
  }
}

// ---- repetition -------------------------------------------------------------------------------------------------------------

// vllm#48872, helion#3080, exllamav3#363: the call runs in place, with a norm over heads that several warps share, again and again.
TEST_P(PrologueThreadsTest, RepeatedRunsAgree) {
  for (const NormScope scope : {NormScope::head, NormScope::token}) {
    PrologueCase c;
    c.num_tokens = 33, c.num_q_heads = 32, c.num_kv_heads = 8, c.head_dim = c.rotary_dim = 128;
    c.in_place = true, c.norm = NormPlacement::before_rope, c.norm_scope = scope, c.style = RopeStyle::interleaved;
    const PrologueData<BFloat16> data = make_data<BFloat16>(c);
    PlacedPrologue<BFloat16> first(GetParam(), c, data);
    ASSERT_TRUE(first.run().ok());
    for (int repeat = 0; repeat < 5; ++repeat) {
      PlacedPrologue<BFloat16> again(GetParam(), c, data);
      ASSERT_TRUE(again.run().ok());
      expect_same_bits(again, first);
    }
  }
}

// LMCache#4144, vllm#43374, vllm#45103, llama.cpp#24162: the inverse undoes the rotation, also that of only the last channels.
TEST_P(PrologueThreadsTest, InverseUndoes) {
  for (const int64_t offset : {0, 32, 64}) {
    for (const RopeSource source : {RopeSource::table, RopeSource::inv_freq}) {
      PrologueCase c = copying_case(33, 128);
      c.rotary_dim = 64, c.rotary_offset = offset, c.source = source, c.num_q_heads = 4;
      const PrologueData<float> data = make_data<float>(c);
      PlacedPrologue<float> placed(GetParam(), c, data);
      const AttentionPrologueParams forth = placed.params();
      AttentionPrologueParams back = forth;
      back.q = as_input(forth.q_out);
      back.rope.inverse = true;
      const Status status = placed.run([&](const Execution& execution) {
        PROLOGUE_RETURN_IF_ERROR(attention_prologue(forth, execution));
        return attention_prologue(back, execution);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        const std::vector<float> row = placed.q_row(t);
        for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(row[i], data.q[static_cast<size_t>(t) * row.size() + i], 2e-6f) << t;
      }
    }
  }
}

// ---- scales -----------------------------------------------------------------------------------------------------------------

// sglang#26852, vllm#42580, vllm-xpu-kernels#475: K and V have a scale each, and it divides.
TEST_P(PrologueThreadsTest, ScalesDivideAndAreNotShared) {
  for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2, DType::int8, DType::int4}) {
    SCOPED_TRACE(dtype_name(type));
    PrologueCase c = copying_case(1, 2);
    c.kv_type = type, c.scaling = KvScaling::tensor;
    PrologueData<float> data = make_data<float>(c);
    data.k = {6.0f, -4.0f}, data.v = {1.0f, -0.75f};
    data.k_scale = {2.0f}, data.v_scale = {0.25f};  // 3, -2 and 4, -3
    PlacedPrologue<float> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    const auto bytes = [&](bool is_v) { return placed.cache_bytes(is_v, data.slots[0], 0); };
    using Bytes = std::vector<unsigned char>;
    const Bytes k = type == DType::fp8_e4m3   ? Bytes{0x44, 0xc0}
                    : type == DType::fp8_e5m2 ? Bytes{0x42, 0xc0}
                    : type == DType::int8     ? Bytes{3, 0xfe}
                                              : Bytes{0xe3};
    const Bytes v = type == DType::fp8_e4m3   ? Bytes{0x48, 0xc4}
                    : type == DType::fp8_e5m2 ? Bytes{0x44, 0xc2}
                    : type == DType::int8     ? Bytes{4, 0xfd}
                                              : Bytes{0xd4};
    EXPECT_EQ(bytes(false), k);
    EXPECT_EQ(bytes(true), v);
  }
}

// FreeToken#103: there is one rounding, to nearest even, at every midpoint and its neighbours; openvino#36751, ml_dtypes#400: 448, 464, 465
// and infinity saturate, NaN stays. All of it goes through the whole kernel.
TEST_P(PrologueThreadsTest, Fp8RoundsOnceAndSaturates) {
  for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2}) {
    SCOPED_TRACE(dtype_name(type));
    const auto format = type == DType::fp8_e4m3 ? oracle::Quantized::e4m3 : oracle::Quantized::e5m2;
    const std::vector<double>& values = oracle::code_values(format);
    std::vector<float> x;
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      const float middle = static_cast<float>(0.5 * (values[i] + values[i + 1]));
      for (const float near :
           {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInf), static_cast<float>(values[i])}) {
        x.push_back(near);
        x.push_back(-near);
      }
    }
    for (const float large : {448.0f, 464.0f, 465.0f, 57344.0f, 61440.0f, 61441.0f, 3e38f, kInf, -448.0f, -465.0f, -kInf})
      x.push_back(large);
    while (x.size() % 64 != 0) x.push_back(kNan);
    PrologueCase c = copying_case(static_cast<int64_t>(x.size()) / 64, 64);
    c.kv_type = type;
    PrologueData<float> data = make_data<float>(c);
    data.k = data.v = x;
    PlacedPrologue<float> placed(GetParam(), c, data);
    ASSERT_TRUE(placed.run().ok());
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (const bool is_v : {false, true}) {
        const std::vector<unsigned char> bytes = placed.cache_bytes(is_v, data.slots[static_cast<size_t>(t)], 0);
        for (size_t i = 0; i < 64; ++i) {
          const float value = x[static_cast<size_t>(t) * 64 + i];
          if (std::isnan(value)) {
            EXPECT_EQ(bytes[i], 0x7f);
          } else {
            EXPECT_EQ(oracle::value_of_code(bytes[i], format), oracle::nearest_value(static_cast<double>(value), format))
                << value;
          }
        }
      }
    }
  }
}

// There are NaN and infinity under given scales, and in heads whose scale is computed.
TEST_P(PrologueThreadsTest, NanAndInfinityInQuantizedHeads) {
  for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2, DType::int8, DType::int4}) {
    for (const KvScaling scaling : {KvScaling::head, KvScaling::token_head}) {
      SCOPED_TRACE(str_cat(dtype_name(type), ", ", scaling == KvScaling::head ? "given" : "computed"));
      PrologueCase c = copying_case(4, 46);
      c.kv_type = type, c.scaling = scaling;
      PrologueData<float> data = make_data<float>(c);
      data.k_scale.assign(data.k_scale.size(), 0.5f);
      data.k[3] = kNan, data.k[46 + 7] = kInf, data.k[2 * 46 + 45] = -kInf, data.k[2 * 46] = -kNan;
      std::fill(data.k.begin() + 3 * 46, data.k.end(), 0.0f);
      PlacedPrologue<float> placed(GetParam(), c, data);
      ASSERT_TRUE(placed.run().ok());
      const auto format = static_cast<oracle::Quantized>(static_cast<int>(type) - static_cast<int>(DType::fp8_e4m3));
      const auto value = [&](int64_t t, int64_t i) {
        const std::vector<unsigned char> bytes = placed.cache_bytes(false, data.slots[static_cast<size_t>(t)], 0);
        if (type != DType::int4) return oracle::value_of_code(bytes[static_cast<size_t>(i)], format);
        return oracle::value_of_code(static_cast<uint8_t>(bytes[static_cast<size_t>(i / 2)] >> (4 * (i % 2))), format);
      };
      if (scaling == KvScaling::head) {
        const bool fp8 = type == DType::fp8_e4m3 || type == DType::fp8_e5m2;
        EXPECT_TRUE(fp8 ? std::isnan(value(0, 3)) : value(0, 3) == 0.0);
        EXPECT_EQ(value(1, 7), oracle::largest_value(format));
        EXPECT_EQ(value(2, 45), -oracle::largest_value(format));
        for (int64_t i = 4; i < 46; ++i) {
          EXPECT_EQ(value(0, i), oracle::nearest_value(static_cast<double>(data.k[static_cast<size_t>(i)]) / 0.5, format)) << i;
        }
      } else {
        for (int64_t t = 0; t < 4; ++t) {
          const float scale = placed.cache_scale(false, data.slots[static_cast<size_t>(t)], 0);
          EXPECT_TRUE(t == 3 ? scale == 0.0f : std::isnan(scale)) << t;
          for (int64_t i = 0; i < 46; ++i) EXPECT_EQ(value(t, i), 0.0) << t << ", " << i;
        }
        for (int64_t t = 0; t < 4; ++t) EXPECT_GT(placed.cache_scale(true, data.slots[static_cast<size_t>(t)], 0), 0.0f);
      }
    }
  }
}

// imp#91: an amax sees the head's own channels and nothing else, at widths that fill no vector; everything around them is NaN.
TEST_P(PrologueThreadsTest, ComputedScalesSeeTheirHeadAlone) {
  for_each_type([&](auto type) {
    using T = decltype(type);
    for (const int64_t d : {2, 6, 46, 72, 80, 90, 258}) {
      PrologueCase c = copying_case(9, d);
      c.num_q_heads = 3, c.num_kv_heads = 3, c.packed = false, c.head_padding = 6, c.row_padding = 2;
      c.kv_type = DType::int8, c.scaling = KvScaling::token_head, c.q8 = KvScaling::token_head;
      PrologueData<T> data = make_data<T>(c);
      for (int64_t i = 0; i < d; ++i) data.k[static_cast<size_t>(d + i)] = T{};  // an all-zero head among others
      expect_oracle(GetParam(), c, data);
    }
  });
}

// Constant heads, zeros, NaN and infinity in heads that get a scale and a zero point.
TEST_P(PrologueThreadsTest, HeadsWithoutARangeAndZeroPoints) {
  PrologueCase c = copying_case(5, 46);
  c.kv_type = DType::uint4, c.scaling = KvScaling::token_head;
  PrologueData<float> data = make_data<float>(c);
  const auto k = [&](int64_t t) { return data.k.begin() + t * 46; };
  std::fill_n(k(0), 46, 0.0f);
  std::fill_n(k(1), 46, -2.5f);
  k(2)[45] = kNan;
  k(3)[0] = -kInf;
  k(4)[7] = -3e38f, k(4)[30] = 3e38f;
  PlacedPrologue<float> placed(GetParam(), c, data);
  ASSERT_TRUE(placed.run().ok());
  for (int64_t t = 0; t < 5; ++t) {
    const int64_t slot = data.slots[static_cast<size_t>(t)];
    const float scale = placed.cache_scale(false, slot, 0), zero_point = placed.cache_zero_point(false, slot, 0);
    EXPECT_TRUE(t < 2 ? scale == 0.0f : std::isnan(scale)) << t;
    EXPECT_TRUE(t < 2 ? zero_point == (t == 0 ? 0.0f : -2.5f) : std::isnan(zero_point)) << t;
    EXPECT_EQ(placed.cache_bytes(false, slot, 0), std::vector<unsigned char>(23, 0)) << t;
    EXPECT_GT(placed.cache_scale(true, slot, 0), 0.0f);
  }
}

// vllm#39668, kvcached#424, flashinfer#3617: a scale is right after each head's data, in the same buffer.
TEST_P(PrologueThreadsTest, ScalesInlineBehindEachHead) {
  PrologueCase c = copying_case(8, 64);
  c.num_kv_heads = 2, c.page_size = 4;
  const PrologueData<float> data = make_data<float>(c);
  constexpr int64_t kRow = 64 + 4;  // bytes of a head
  Arena arena(GetParam());
  const int64_t slots = data.num_pages * c.page_size;
  unsigned char* buffer = arena.output<unsigned char>(slots * 2 * 2 * kRow);  // K and V of a head side by side
  AttentionPrologueParams p;
  p.num_tokens = 8, p.num_kv_heads = 2, p.head_dim = 64, p.dtype = DType::f32;
  p.k = {arena.input(data.k), 128, 64};
  p.v = {arena.input(data.v), 128, 64};
  p.places.slot_mapping = index_view(arena.input(data.slots));
  PagedKvView& cache = p.cache;
  cache.k.data = buffer, cache.v.data = buffer + kRow;
  cache.k.format.type = cache.v.format.type = DType::int8,
  cache.k.format.scaling = cache.v.format.scaling = KvScaling::token_head;
  cache.num_pages = data.num_pages, cache.page_size = 4, cache.num_kv_heads = 2, cache.k.head_dim = 64;
  cache.k.strides = cache.v.strides = {4 * 4 * kRow, 4 * kRow, 2 * kRow};
  cache.k.scale = reinterpret_cast<float*>(buffer + 64);
  cache.v.scale = reinterpret_cast<float*>(buffer + kRow + 64);
  cache.k.scale_strides = cache.v.scale_strides = {4 * kRow, kRow, kRow / 2};
  const Status status = arena.run([&](const Execution& e) { return attention_prologue(p, e); });
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<unsigned char> got = arena.read(buffer);
  for (int64_t t = 0; t < 8; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      for (const bool is_v : {false, true}) {
        const unsigned char* row = got.data() + (data.slots[static_cast<size_t>(t)] * 4 + h * 2 + (is_v ? 1 : 0)) * kRow;
        float scale;
        std::memcpy(&scale, row + 64, 4);
        for (int64_t i = 0; i < 64; ++i) {
          const float x = (is_v ? data.v : data.k)[static_cast<size_t>((t * 2 + h) * 64 + i)];
          EXPECT_NEAR(scale * static_cast<float>(static_cast<int8_t>(row[i])), x, 0.501f * scale) << t << ", " << h << ", " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace prologue::test
