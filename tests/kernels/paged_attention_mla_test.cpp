// Tests decode of multi-head latent attention on Hopper: every call here runs in decode_mla_kernel and again in the kernel of other GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/attention_batch.h"
#include "tests/support/attention_pages.h"

#ifdef PROLOGUE_HAS_CUDA

#include <prologue/kernels/paged_attention/instances.h>

namespace prologue::test {
namespace {

constexpr int64_t kSharedBytes = 227 * 1024;

std::string chosen(const PagedAttentionParams& p, bool wgmma = true) {
  PagedAttentionParams resolved = p;
  resolved.kv.k.format.type = resolve_dtype(p.kv.k.format.type, p.dtype);
  resolved.kv.v.format.type = resolve_dtype(p.kv.v.format.type, p.dtype);
  return cuda::chosen_decode_instance(resolved, kSharedBytes, wgmma);
}

bool is_mla(const std::string& name) { return name.find("decode mla") == 0; }

AttentionCase mla_case(int64_t num_q_heads, std::vector<AttentionSequence> sequences) {
  AttentionCase c;
  c.num_q_heads = num_q_heads, c.num_kv_heads = 1, c.head_dim = 576, c.v_head_dim = 512, c.v_within_k = true;
  c.sequences = std::move(sequences);
  return c;
}

struct How {
  bool counters = true, past_is_ready = false, csr = false;
};

class PagedAttentionMla : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    if (!cuda::runs_wgmma()) GTEST_SKIP() << "this device has no wgmma, or the library no code for it";
  }
  void TearDown() override { cuda::allow_wgmma(true); }
};

template <class T>
std::vector<T> run(Backend backend, const AttentionBatch<T>& batch, const How& how, uint64_t want_faults = 0) {
  Arena arena(backend);
  PagedAttentionParams p = place_attention(arena, batch.in, batch.cache.place(arena), backend_device(backend));
  p.max_seqlen_q = std::min(p.max_seqlen_q, batch.in.max_seqlen_q);
  p.past_is_ready = how.past_is_ready;
  EXPECT_TRUE(is_mla(chosen(p)));
  const std::vector<uint32_t> zeros(kPagedAttentionCounters);
  if (how.counters) p.counters = arena.inout(zeros);
  FaultRecord* faults = p.faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(arena.read(faults)[0].count, want_faults);
  if (how.counters) {
    EXPECT_EQ(arena.read(p.counters), zeros);
  }
  return rows_of(arena, batch.in, p);
}

template <class T>
void check_type(Backend backend, AttentionCase c, uint64_t seed, const How& how) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dtype_name(FloatFormat<T>::dtype) << ", pages of " << c.page_size
                                  << ", " << c.num_q_heads << " heads, window " << c.window << ", chunk " << c.chunk << ", ring "
                                  << c.ring_size << ", counters " << how.counters << ", CSR " << how.csr);
  c.type = FloatFormat<T>::dtype;
  AttentionBatch<T> batch(c, seed);
  if (how.csr) use_csr(batch.in, seed % 4 < 2 && c.ring_size == 0);
  for (const bool wgmma : {true, false}) {
    cuda::allow_wgmma(wgmma);
    expect_matches_oracle(backend, batch.in, batch.cache.view, run(backend, batch, how));
  }
  cuda::allow_wgmma(true);
}

void check(Backend backend, const AttentionCase& c, uint64_t seed, const How& how = {}) {
  seed % 2 == 0 ? check_type<BFloat16>(backend, c, seed, how) : check_type<Float16>(backend, c, seed, how);
}

// Lengths around the ends of tiles, boxes and pages; pages of one box and of many, and of no power of two.
TEST_P(PagedAttentionMla, AnyLengthAndPageSize) {
  uint64_t seed = 0;
  for (const int64_t page_size : {16, 32, 48, 64, 128}) {
    AttentionCase c = mla_case(16, {{1, 1}, {1, 63}, {1, 64}, {1, 65}, {1, 129}, {0, 9}, {1, 200}});
    c.page_size = page_size, c.padding_rows = 2;
    check(GetParam(), c, seed, {.counters = seed % 2 == 0, .past_is_ready = seed % 3 == 0, .csr = seed % 2 == 1});
    ++seed;
  }
}

// The rows fill no work item, one, and several; a work item may begin within a token.
TEST_P(PagedAttentionMla, AnyGroupAndRows) {
  uint64_t seed = 20;
  for (const auto& [heads, rows] :
       {std::pair<int64_t, int64_t>{1, 1}, {5, 4}, {16, 4}, {20, 4}, {64, 1}, {64, 3}, {100, 2}, {128, 2}}) {
    AttentionCase c = mla_case(heads, {{rows, 150}, {1, 70}, {rows, rows}, {rows, 1}});
    c.page_size = seed % 2 == 0 ? 16 : 64;
    check(GetParam(), c, seed++);
  }
}

TEST_P(PagedAttentionMla, Masks) {
  struct Mask {
    int64_t window, chunk;
    float soft_cap;
    Sinks sinks;
  };
  const Mask masks[] = {{1, 0, 0.0f, Sinks::of_float},    {5, 0, 3.0f, Sinks::none},   {64, 0, 0.0f, Sinks::of_dtype},
                        {200, 0, 20.0f, Sinks::of_float}, {0, 100, 0.0f, Sinks::none}, {0, 64, 0.0f, Sinks::of_float},
                        {150, 170, 5.0f, Sinks::none}};
  uint64_t seed = 40;
  for (const Mask& mask : masks) {
    AttentionCase c = mla_case(seed % 2 == 0 ? 16 : 20, {{4, 300}, {1, 257}, {2, 65}, {4, 3}, {3, 130}});
    c.page_size = seed % 3 == 0 ? 64 : 16;
    c.window = mask.window, c.chunk = mask.chunk, c.soft_cap = mask.soft_cap, c.sinks = mask.sinks;
    check(GetParam(), c, seed++);
  }
}

TEST_P(PagedAttentionMla, Rings) {
  uint64_t seed = 60;
  for (const auto& [page_size, ring_size] : {std::pair<int64_t, int64_t>{16, 112}, {64, 112}, {32, 192}}) {
    AttentionCase c = mla_case(16, {{4, 500}, {1, 20}, {2, 230}});
    c.page_size = page_size, c.window = 100, c.ring_size = ring_size;
    check(GetParam(), c, seed++, {.csr = seed % 2 == 0});
  }
}

// There are sequences of many blocks, whose parts a second launch adds up, blocks of many sequences, and both in one launch; with counters
// and without.
TEST_P(PagedAttentionMla, SharedSequences) {
  check(GetParam(), mla_case(16, {{1, 1500}}), 80, {.counters = false});
  check(GetParam(), mla_case(16, {{1, 1501}, {1, 17}, {2, 700}}), 81, {.past_is_ready = true});
  AttentionCase many = mla_case(16, {});
  for (int64_t s = 0; s < 150; ++s) many.sequences.push_back({s % 7 == 3 ? 0 : 1, 1 + s * 37 % 200});
  check(GetParam(), many, 82);
  many.sequences.resize(40);  // more than a lane for each, and units that begin at multiples of a share
  many.sequences[5].length = 900;
  check(GetParam(), many, 83);
  check(GetParam(), many, 85, {.counters = false, .past_is_ready = true});
  check(GetParam(), mla_case(16, {{4, 1030}, {1, 300}, {4, 2}, {0, 30}, {2, 777}}), 86,
        {.counters = false, .past_is_ready = true});
  AttentionCase wide = mla_case(128, {{1, 700}, {2, 450}});
  wide.page_size = 64, wide.sinks = Sinks::of_float;
  check(GetParam(), wide, 84);
}

// The lengths of a real step; few heads, for the oracle's sake.
TEST_P(PagedAttentionMla, EightThousandKeys) {
  AttentionCase c = mla_case(4, {{1, 8192}, {1, 8191}, {1, 4097}});
  c.page_size = 64;
  check(GetParam(), c, 90, {.past_is_ready = true});
  c.sequences = {{4, 8190}};
  check(GetParam(), c, 91);
}

// A bad page is a fault of the rows that see it, wherever it is, and of nobody else.
TEST_P(PagedAttentionMla, BadPages) {
  for (const auto& [window, bad_page] : {std::pair<int64_t, int64_t>{300, 20}, {300, 50}, {300, 61}, {0, 0}, {0, 20}, {0, 61}}) {
    AttentionCase c = mla_case(20, {{4, 990}, {1, 40}});
    c.type = DType::bf16, c.window = window;
    AttentionBatch<BFloat16> batch(c, 100);
    batch.in.block_table[static_cast<size_t>(bad_page)] = bad_page == 61 ? static_cast<int32_t>(batch.in.num_pages) : -7;
    const uint64_t faulty = window > 0 && bad_page == 20 ? 0 : 4;
    for (const bool wgmma : {true, false}) {
      cuda::allow_wgmma(wgmma);
      expect_matches_oracle(GetParam(), batch.in, batch.cache.view, run(GetParam(), batch, {}, faulty));
    }
  }
}

// Bad are the first page of a window, which only the first row sees, and the last page, which it does not see.
TEST_P(PagedAttentionMla, ABadPageOfSomeRows) {
  for (const auto& [bad_page, faulty] : {std::pair<size_t, uint64_t>{18, 0}, {19, 1}, {24, 2}}) {
    AttentionCase c = mla_case(20, {{4, 386}});
    c.type = DType::bf16, c.window = 64;
    AttentionBatch<BFloat16> batch(c, 105);
    batch.in.block_table[bad_page] = -1;
    for (const bool wgmma : {true, false}) {
      cuda::allow_wgmma(wgmma);
      expect_matches_oracle(GetParam(), batch.in, batch.cache.view, run(GetParam(), batch, {}, faulty));
    }
  }
}

TEST_P(PagedAttentionMla, TooManyRowsAndTooLong) {
  AttentionCase c = mla_case(16, {{2, 100}, {4, 100}, {1, 90}, {1, 700}});
  c.type = DType::bf16;
  AttentionBatch<BFloat16> batch(c, 110);
  batch.in.max_seqlen_q = 3;
  batch.in.max_pages_per_seq = 30;  // 700 tokens need 44
  for (const bool wgmma : {true, false}) {
    cuda::allow_wgmma(wgmma);
    expect_matches_oracle(GetParam(), batch.in, batch.cache.view, run(GetParam(), batch, {}, 5));
  }
}

// Decode rows before a prompt have the bits that they have alone.
TEST_P(PagedAttentionMla, BesideAPrompt) {
  AttentionCase c = mla_case(16, {{1, 300}, {1, 70}, {9, 40}});
  c.type = DType::bf16;
  const AttentionBatch<BFloat16> batch(c, 120);
  const auto rows = [&](int64_t num_seqs) {
    Arena arena(GetParam());
    PagedAttentionParams p = place_attention(arena, batch.in, batch.cache.place(arena), backend_device(GetParam()));
    p.num_seqs = num_seqs, p.num_decode_seqs = 2;
    if (num_seqs == 2) p.max_seqlen_q = 1;
    EXPECT_TRUE(is_mla(chosen(p)));
    const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
    EXPECT_TRUE(status.ok()) << status.message();
    return arena.read(static_cast<const BFloat16*>(p.out.data));
  };
  const std::vector<BFloat16> all = rows(3), alone = rows(2);
  const auto bytes = static_cast<size_t>(2 * batch.in.q_token_stride) * sizeof(BFloat16);
  EXPECT_EQ(std::memcmp(all.data(), alone.data(), bytes), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionMla, testing::Values(Backend::cuda, Backend::cuda_graph),
                         [](const auto& backend) { return backend_name(backend.param); });

// What TMA cannot express, other shapes and other GPUs have the kernels that were there before.
TEST(PagedAttentionMlaChoice, TakesWhatItCanCopy) {
  PagedAttentionParams p;
  p.num_tokens = p.num_seqs = 8, p.max_seqlen_q = 1, p.max_seq_len = 100;
  p.num_q_heads = 16, p.head_dim = p.kv.k.head_dim = 576, p.kv.v.head_dim = 512, p.scale = 0.1f;
  p.dtype = p.kv.k.format.type = p.kv.v.format.type = DType::bf16;
  p.kv.num_kv_heads = 1, p.kv.page_size = 16, p.kv.num_pages = 10;
  p.q.token_stride = p.out.token_stride = 16 * 576, p.q.head_stride = p.out.head_stride = 576;
  p.kv.k.strides = p.kv.v.strides = nhd_strides(16, 1, 576);
  const auto with = [&](auto change) {
    PagedAttentionParams changed = p;
    change(changed);
    return is_mla(chosen(changed));
  };
  EXPECT_EQ(chosen(p), "decode mla cache=bfloat16 head_dim=576 rows=64");
  EXPECT_FALSE(is_mla(chosen(p, false)));
  for (const int64_t page_size : {32, 48, 64, 256, 1 << 20}) EXPECT_TRUE(with([&](auto& c) { c.kv.page_size = page_size; }));
  for (const int64_t page_size : {1, 8, 24, 100}) EXPECT_FALSE(with([&](auto& c) { c.kv.page_size = page_size; }));
  EXPECT_TRUE(with([](auto& c) { c.soft_cap = 3.0f, c.window = 17, c.chunk = 50, c.num_q_heads = 128; }));
  EXPECT_TRUE(with([](auto& c) { c.ring_size = 112; }));
  EXPECT_FALSE(with([](auto& c) { c.ring_size = 120; }));
  EXPECT_FALSE(with([](auto& c) { c.scale = -0.1f; }));
  EXPECT_FALSE(with([](auto& c) { c.kv.num_kv_heads = 2; }));
  EXPECT_FALSE(with([](auto& c) { c.kv.v.head_dim = 576; }));
  EXPECT_FALSE(with([](auto& c) { c.kv.v.strides.token += 8; }));
  EXPECT_FALSE(with([](auto& c) { c.kv.v.data = &c; }));
  EXPECT_FALSE(with([](auto& c) { c.kv.k.strides.token = c.kv.v.strides.token = 580; }));
  EXPECT_FALSE(with([](auto& c) { c.kv.k.format.type = c.kv.v.format.type = DType::fp8_e4m3; }));
  EXPECT_FALSE(with([](auto& c) { c.batch_invariant = true; }));
  EXPECT_TRUE(with([](auto& c) { c.max_seqlen_q = 4; }));
  EXPECT_FALSE(with([](auto& c) { c.max_seqlen_q = 5; }));
  EXPECT_TRUE(with([](auto& c) { c.max_seqlen_q = 5, c.num_decode_seqs = 7; }));
}

}  // namespace
}  // namespace prologue::test

#endif
