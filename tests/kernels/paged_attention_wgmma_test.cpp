// Tests what is particular to prefill on Hopper: to copies by TMA, to codes, to tiles of 128 rows and 128 keys, and to blocks that share a
// tile. The suites beside this one reach its kernels, too, where the device has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/attention_batch.h"

#ifdef PROLOGUE_HAS_CUDA

#include <prologue/kernels/paged_attention/instances.h>

namespace prologue::test {
namespace {

constexpr int64_t kSharedBytes = 227 * 1024;

class PagedAttentionWgmma : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    if (!cuda::runs_wgmma()) GTEST_SKIP() << "this device has no wgmma, or the library no code for it";
  }
  void TearDown() override { cuda::allow_wgmma(true); }
};

bool runs_on_hopper(const PagedAttentionParams& p) {
  PagedAttentionParams resolved = p;
  resolved.kv.k.format.type = resolve_dtype(p.kv.k.format.type, p.dtype);
  resolved.kv.v.format.type = resolve_dtype(p.kv.v.format.type, p.dtype);
  return cuda::chosen_prefill_instance(resolved, kSharedBytes, true).find("prefill wgmma") == 0;
}

template <class T>
std::vector<T> run(Backend backend, const AttentionBatch<T>& batch, bool with_counters, uint64_t want_faults = 0) {
  Arena arena(backend);
  PagedAttentionParams p = place_attention(arena, batch.in, batch.cache.place(arena), backend_device(backend));
  p.max_seqlen_q = std::min(std::max<int64_t>(p.max_seqlen_q, 5), batch.in.max_seqlen_q);  // up to 4 decode runs
  EXPECT_TRUE(runs_on_hopper(p));
  p.workspace = nullptr;
  p.workspace_bytes = paged_attention_workspace_bytes(p, backend_device(backend));
  if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
  const std::vector<uint32_t> zeros(kPagedAttentionCounters);
  if (with_counters) p.counters = arena.inout(zeros);
  FaultRecord* faults = p.faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(arena.read(faults)[0].count, want_faults);
  if (with_counters) {
    EXPECT_EQ(arena.read(p.counters), zeros);
  }
  return rows_of(arena, batch.in, p);
}

// Runs the case with a cache of this format (unset: that of T), by wgmma and without.
template <class T>
void check_both_ways(Backend backend, const AttentionCase& c, uint64_t seed, bool with_counters = false) {
  AttentionCase typed = c;
  if (c.type == DType::unset) typed.type = FloatFormat<T>::dtype;
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dtype_name(FloatFormat<T>::dtype) << ", cache of "
                                  << dtype_name(typed.format(true).type) << " and " << dtype_name(typed.format(false).type)
                                  << ", head dims " << c.head_dim << " and " << c.v_width() << ", pages of " << c.page_size
                                  << ", " << c.num_q_heads << " heads over " << c.num_kv_heads << ", window " << c.window
                                  << ", chunk " << c.chunk << ", ring " << c.ring_size << ", layout "
                                  << static_cast<int>(c.layout));
  const AttentionBatch<T> batch(typed, seed);
  for (const bool wgmma : {true, false}) {
    cuda::allow_wgmma(wgmma);
    expect_matches_oracle(backend, batch.in, batch.cache.view, run(backend, batch, with_counters));
  }
  cuda::allow_wgmma(true);
}

struct CodeFormats {
  KvFormat k, v;
};
constexpr CodeFormats kCodeFormats[] = {{{DType::fp8_e4m3, KvScaling::token_head}, {DType::fp8_e4m3, KvScaling::token_head}},
                                        {{DType::int8, KvScaling::tensor}, {DType::int8, KvScaling::tensor}},
                                        {{DType::uint4, KvScaling::token_head}, {DType::uint4, KvScaling::token_head}},
                                        {{DType::fp8_e5m2, KvScaling::head}, {DType::fp8_e5m2, KvScaling::head}},
                                        {{DType::int4, KvScaling::token_head}, {DType::int4, KvScaling::token_head}},
                                        {{DType::int8, KvScaling::token_head}, {DType::uint4, KvScaling::token_head}},
                                        {{DType::fp8_e4m3, KvScaling::tensor}, {DType::int4, KvScaling::head}},
                                        {{DType::uint4, KvScaling::token_head}, {DType::fp8_e4m3, KvScaling::tensor}},
                                        {{DType::int4, KvScaling::tensor}, {DType::int8, KvScaling::token_head}}};

void with_codes(AttentionCase& c, const CodeFormats& formats) {
  c.type = formats.k.type, c.scaling = formats.k.scaling, c.v_format = formats.v;
}

// Runs a cache of the type of q, and one of codes if they come in whole groups.
void check_caches(Backend backend, AttentionCase c, uint64_t seed, bool with_counters = false) {
  const auto check = [&] {
    seed % 2 == 0 ? check_both_ways<BFloat16>(backend, c, seed, with_counters)
                  : check_both_ways<Float16>(backend, c, seed, with_counters);
  };
  c.type = DType::unset;
  check();
  if (c.head_dim % 16 != 0 || c.v_width() % 16 != 0) return;
  with_codes(c, kCodeFormats[seed % std::size(kCodeFormats)]);
  check();
}

// A page is one box or several, and a tile of keys several or a part of one; lengths end within boxes.
TEST_P(PagedAttentionWgmma, AnyPageSize) {
  uint64_t seed = 0;
  for (const int64_t page_size : {8, 16, 32, 64, 128, 256}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      AttentionCase c;
      c.page_size = page_size, c.head_dim = head_dim, c.num_q_heads = 4, c.num_kv_heads = seed % 3 == 0 ? 1 : 2;
      c.sequences = {{50, 201}, {7, 150}};
      c.layout = kKvLayouts[seed % 4];
      check_caches(GetParam(), c, seed++);
    }
  }
}

// Heads fill neither 64 channels nor a panel; V is narrower than K, and wider.
TEST_P(PagedAttentionWgmma, AnyHeadDim) {
  const std::pair<int64_t, int64_t> dims[] = {{8, 0}, {40, 0}, {80, 0}, {96, 120}, {128, 64}, {192, 128}, {64, 200}, {248, 0}};
  uint64_t seed = 20;
  for (const auto& [head_dim, v_head_dim] : dims) {
    AttentionCase c;
    c.head_dim = head_dim, c.v_head_dim = v_head_dim;
    c.sequences = {{40, 90}, {1, 1}};
    c.layout = kKvLayouts[seed % 4];
    check_caches(GetParam(), c, seed++);
  }
}

// Tiles hold whole tokens: of 128 rows some are left over if the group does not divide 128.
TEST_P(PagedAttentionWgmma, AnyGroup) {
  uint64_t seed = 40;
  for (const auto& [q_heads, kv_heads] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 1}, {10, 2}, {8, 1}, {48, 1}, {100, 1}, {128, 1}}) {
    AttentionCase c;
    c.num_q_heads = q_heads, c.num_kv_heads = kv_heads, c.head_dim = 64;
    c.sequences = {{q_heads > 40 ? 3 : 140, 150}, {9, 40}};
    check_caches(GetParam(), c, seed++);
  }
}

// Windows and chunks that begin and end in any place of a box and of a tile; sinks; a soft cap.
TEST_P(PagedAttentionWgmma, Masks) {
  struct Mask {
    int64_t window, chunk;
    float soft_cap;
    Sinks sinks;
  };
  const Mask masks[] = {{1, 0, 0.0f, Sinks::none},       {5, 0, 0.0f, Sinks::of_float}, {128, 0, 3.0f, Sinks::none},
                        {200, 0, 0.0f, Sinks::of_dtype}, {0, 100, 0.0f, Sinks::none},   {0, 128, 20.0f, Sinks::of_float},
                        {150, 170, 0.0f, Sinks::none}};
  uint64_t seed = 60;
  for (const Mask& mask : masks) {
    AttentionCase c;
    c.head_dim = seed % 3 == 0 ? 128 : 64, c.page_size = seed % 2 == 0 ? 16 : 64, c.num_q_heads = 8;
    c.window = mask.window, c.chunk = mask.chunk, c.soft_cap = mask.soft_cap, c.sinks = mask.sinks;
    // The first row of the last one sees all keys of a tile but one.
    c.sequences = {{70, 300}, {130, 130}, {1, 257}, {0, 5}, {6, 3}, {9, 135}};
    check_caches(GetParam(), c, seed++);
  }
}

// A ring consists of whole boxes.
TEST_P(PagedAttentionWgmma, Rings) {
  uint64_t seed = 80;
  for (const int64_t page_size : {16, 64}) {
    for (const int64_t ring_size : {192, 320}) {
      AttentionCase c;
      c.page_size = page_size, c.window = 100, c.ring_size = ring_size;
      c.sequences = {{60, 500}, {20, 20}, {30, 230}};
      check_caches(GetParam(), c, seed++);
    }
  }
}

// There are more tiles than blocks: every ring is used several times, and the last tiles have no work.
TEST_P(PagedAttentionWgmma, ManyTiles) {
  AttentionCase c;
  c.num_q_heads = 8, c.num_kv_heads = 2, c.head_dim = 64;
  c.sequences = {{200, 260}, {0, 0}, {33, 33}, {1, 130}, {64, 64}, {97, 140}};
  c.padding_rows = 3;
  check_caches(GetParam(), c, 90);
  c.head_dim = 128;
  check_caches(GetParam(), c, 91);
}

// Runs every kernel: for few tiles and many keys, where several blocks share a tile, and for few keys; with counters and without.
TEST_P(PagedAttentionWgmma, EveryKernel) {
  uint64_t seed = 100;
  for (const int64_t head_dim : {64, 128, 256}) {
    for (const float soft_cap : {0.0f, 10.0f}) {
      AttentionCase c;
      c.num_q_heads = 4, c.num_kv_heads = 1, c.head_dim = head_dim, c.soft_cap = soft_cap;
      for (int i = 0; i < 2; ++i, ++seed) {  // both types of q
        c.sequences = {{40, 1700}, {20, 900}, {5, 30}};
        check_caches(GetParam(), c, seed, seed % 3 != 0);
        c.sequences = {{40, 150}, {20, 20}};
        check_caches(GetParam(), c, seed);
      }
    }
  }
  AttentionCase c;
  c.num_q_heads = 4, c.num_kv_heads = 1, c.head_dim = 256, c.v_head_dim = 48;
  c.sinks = Sinks::of_float, c.window = 700, c.soft_cap = 10.0f;
  c.sequences = {{40, 1700}, {20, 900}, {5, 30}};
  check_caches(GetParam(), c, 113, true);
}

// Tiles are divided in every way: clusters of 2, 3, 4 and 6 blocks, one for a tile and several. The launch chooses by its tiles and their
// keys.
TEST_P(PagedAttentionWgmma, Divisions) {
  struct Shape {
    int64_t num_kv_heads, keys, head_dim;
  };
  uint64_t seed = 116;
  for (const auto& [num_kv_heads, keys, head_dim] : {Shape{40, 700, 64},
                                                     {31, 2200, 64},
                                                     {24, 500, 128},
                                                     {12, 1250, 128},
                                                     {20, 3800, 64},
                                                     {13, 5700, 64},
                                                     {6, 2040, 128},
                                                     {1, 4600, 128},
                                                     {1, 2300, 256}}) {
    AttentionCase c;
    c.num_q_heads = c.num_kv_heads = num_kv_heads, c.head_dim = head_dim, c.type = DType::bf16;
    c.sequences = {{8, keys}};
    if (seed % 4 == 0) with_codes(c, kCodeFormats[0]);
    SCOPED_TRACE(testing::Message() << num_kv_heads << " kv heads, " << keys << " keys, head_dim " << head_dim);
    const AttentionBatch<BFloat16> batch(c, seed++);
    expect_matches_oracle(GetParam(), batch.in, batch.cache.view, run(GetParam(), batch, true));
  }
}

// Codes of every format, each with its ways to be scaled, by heads of every size; pages of any size, which TMA does not take.
TEST_P(PagedAttentionWgmma, CodesOfAnyFormat) {
  uint64_t seed = 140;
  for (const CodeFormats& formats : kCodeFormats) {
    for (const int64_t head_dim : {64, 112, 128, 256}) {
      const int64_t page_sizes[] = {1, 5, 16, 24, 100};
      AttentionCase c;
      with_codes(c, formats);
      c.head_dim = head_dim, c.v_head_dim = seed % 3 == 1 ? 64 : 0;
      c.page_size = page_sizes[seed % std::size(page_sizes)], c.layout = kKvLayouts[seed % 4];
      c.sequences = {{50, 270}, {7, 150}, {1, 3}};
      seed % 2 == 0 ? check_both_ways<BFloat16>(GetParam(), c, seed) : check_both_ways<Float16>(GetParam(), c, seed);
      ++seed;
    }
  }
}

// With these scales the largest product is not the largest score.
TEST_P(PagedAttentionWgmma, CodesOfAnyScale) {
  for (const float scale : {0.0f, -0.01f, 0.02f}) {
    for (const float soft_cap : {0.0f, 4.0f}) {
      AttentionCase c;
      c.type = DType::int8, c.scaling = KvScaling::tensor, c.soft_cap = soft_cap;
      c.sequences = {{60, 200}, {9, 9}};
      AttentionBatch<BFloat16> batch(c, 180);
      batch.cache.k_scale.assign(batch.cache.k_scale.size(), scale);
      for (const bool wgmma : {true, false}) {
        cuda::allow_wgmma(wgmma);
        expect_matches_oracle(GetParam(), batch.in, batch.cache.view, run(GetParam(), batch, false));
      }
    }
  }
}

// A bad page is a fault of the rows that see it, in every part of a tile, and of nobody else.
TEST_P(PagedAttentionWgmma, BadPages) {
  for (const int64_t bad_page : {0, 20, 58}) {
    for (const auto& [window, codes] : {std::pair{0, false}, {300, false}, {0, true}, {300, true}}) {
      AttentionCase c;
      c.type = DType::bf16, c.window = window;
      if (codes) with_codes(c, kCodeFormats[bad_page % 3]);
      c.sequences = {{70, 990}, {9, 40}};
      AttentionBatch<BFloat16> batch(c, 110);
      int32_t& entry = batch.in.block_table[static_cast<size_t>(bad_page)];
      if (window > 0 && bad_page == 0) continue;  // nobody needs it
      entry = bad_page == 20 ? static_cast<int32_t>(batch.in.num_pages) : -7;
      uint64_t faulty = 0;
      for (int64_t j = 0; j < 70; ++j) {
        const int64_t limit = 990 - 70 + j + 1, first = window > 0 ? std::max<int64_t>(0, limit - window) : 0;
        faulty += std::max(first, bad_page * 16) < std::min(limit, bad_page * 16 + 16) ? 1 : 0;
      }
      for (const bool wgmma : {true, false}) {
        cuda::allow_wgmma(wgmma);
        const std::vector<BFloat16> got = run(GetParam(), batch, false, faulty);
        std::vector<Reference> want =
            oracle::paged_attention(batch.in, attention_allowance(GetParam(), batch.in, batch.cache.view));
        want.resize(got.size());
        expect_close(got, want, batch.in.v_width(), "out", 32.0, false);
      }
    }
  }
}

// Rows of a sequence that has too many are zeros, in every tile that they would have had; other rows are not touched.
TEST_P(PagedAttentionWgmma, TooManyRows) {
  AttentionCase c;
  c.type = DType::bf16;
  c.sequences = {{20, 900}, {90, 100}, {8, 30}};
  AttentionBatch<BFloat16> batch(c, 115);
  batch.in.max_seqlen_q = 40;
  for (const bool wgmma : {true, false}) {
    cuda::allow_wgmma(wgmma);
    expect_matches_oracle(GetParam(), batch.in, batch.cache.view, run(GetParam(), batch, true, 90));
  }
}

// The rows of a sequence have their bits beside any others, and in steps of any size, if the call is batch-invariant.
TEST_P(PagedAttentionWgmma, BatchInvariance) {
  for (const bool codes : {false, true}) {
    AttentionCase c;
    c.type = DType::bf16, c.head_dim = 128, c.num_q_heads = 6;
    if (codes) with_codes(c, kCodeFormats[0]);
    c.sequences = {{90, 700}, {30, 35}};
    const AttentionBatch<BFloat16> batch(c, 120);
    const AttentionInputs<BFloat16>& in = batch.in;
    const int64_t width = in.num_q_heads * in.v_width();
    const auto rows_as_a_step = [&](int64_t begin, int64_t end) {  // of the first sequence, alone
      AttentionInputs<BFloat16> step = in;
      step.cu_seqlens_q = {0, static_cast<int32_t>(end - begin)};
      step.seq_lens = {static_cast<int32_t>(700 - 90 + end)};
      step.num_tokens = end - begin;
      step.q.assign(in.q.begin() + begin * in.q_token_stride, in.q.begin() + end * in.q_token_stride);
      return step;
    };
    const auto run_invariant = [&](const AttentionInputs<BFloat16>& inputs) {
      Arena arena(GetParam());
      PagedAttentionParams p = place_attention(arena, inputs, batch.cache.place(arena), backend_device(GetParam()));
      p.batch_invariant = true;
      EXPECT_TRUE(runs_on_hopper(p));
      const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
      EXPECT_TRUE(status.ok()) << status.message();
      return rows_of(arena, inputs, p);
    };
    const std::vector<BFloat16> all = run_invariant(in);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {44, 45}, {89, 90}, {13, 60}, {0, 90}}) {
      const std::vector<BFloat16> got = run_invariant(rows_as_a_step(begin, end));
      EXPECT_EQ(std::memcmp(got.data(), &all[static_cast<size_t>(begin * width)], got.size() * sizeof(BFloat16)), 0)
          << "rows " << begin << " to " << end;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionWgmma, testing::Values(Backend::cuda, Backend::cuda_graph),
                         [](const auto& backend) { return backend_name(backend.param); });

// What TMA cannot express, other types and other GPUs have the kernels that were there before.
TEST(PagedAttentionWgmmaChoice, TakesWhatTmaCanExpress) {
  PagedAttentionParams p;
  p.num_tokens = p.max_seqlen_q = p.max_seq_len = 100, p.num_seqs = 1;
  p.num_q_heads = 8, p.head_dim = p.kv.k.head_dim = 128, p.scale = 0.1f;
  p.dtype = p.kv.k.format.type = p.kv.v.format.type = DType::bf16;
  p.kv.num_kv_heads = 2, p.kv.page_size = 16, p.kv.num_pages = 10;
  p.q.token_stride = p.out.token_stride = 8 * 128, p.q.head_stride = p.out.head_stride = 128;
  p.kv.k.strides = p.kv.v.strides = nhd_strides(16, 2, 128);
  const auto name = [](const PagedAttentionParams& call) { return cuda::chosen_prefill_instance(call, kSharedBytes, true); };
  const auto with = [&](auto change) {
    PagedAttentionParams changed = p;
    change(changed);
    return name(changed);
  };
  const std::string wgmma = "prefill wgmma q=bfloat16 cache=same head_dim=128 keys=128";
  const std::string mma = "prefill mma q=bfloat16 cache=same head_dim=128 rows=64 keys=64";
  EXPECT_EQ(name(p), wgmma);
  EXPECT_EQ(cuda::chosen_prefill_instance(p, kSharedBytes, false), mma);
  EXPECT_EQ(with([](auto& c) { c.soft_cap = 3.0f, c.window = 17, c.chunk = 50, c.batch_invariant = true; }), wgmma);
  for (const int64_t page_size : {8, 128, 1 << 20}) EXPECT_EQ(with([&](auto& c) { c.kv.page_size = page_size; }), wgmma);
  for (const int64_t page_size : {1, 4, 24, 100}) EXPECT_EQ(with([&](auto& c) { c.kv.page_size = page_size; }), mma);
  EXPECT_EQ(with([](auto& c) { c.ring_size = 160; }), wgmma);
  EXPECT_EQ(with([](auto& c) { c.ring_size = 168; }), mma);
  EXPECT_EQ(with([](auto& c) { c.kv.page_size = 64, c.ring_size = 160; }), mma);
  EXPECT_EQ(with([](auto& c) { c.scale = -0.1f; }), mma);
  EXPECT_EQ(with([](auto& c) { c.num_q_heads = 256; }), wgmma);
  EXPECT_EQ(with([](auto& c) { c.num_q_heads = 258; }), mma);
  EXPECT_EQ(with([](auto& c) { c.kv.v.strides.page = int64_t{1} << 39; }), mma);
  EXPECT_EQ(with([](auto& c) { c.kv.k.strides.token += 4; }).substr(0, 14), "prefill simple");
  EXPECT_EQ(with([](auto& c) { c.kv.v.format.type = DType::int8; }).find("wgmma"), std::string::npos);
  const std::string wgmma_codes = "prefill wgmma q=bfloat16 cache=codes head_dim=128 keys=128";
  const std::string mma_codes = "prefill mma q=bfloat16 cache=codes head_dim=128 rows=64 keys=64";
  const auto with_codes = [&](auto change, DType k = DType::int8, DType v = DType::int8) {
    return with([&](auto& c) {
      c.kv.k.format.type = k, c.kv.v.format.type = v;
      change(c);
    });
  };
  const auto as_it_is = [](auto&) {};
  EXPECT_EQ(with_codes(as_it_is), wgmma_codes);
  EXPECT_EQ(with_codes(as_it_is, DType::uint4, DType::uint4), wgmma_codes);
  EXPECT_EQ(with_codes(as_it_is, DType::fp8_e4m3, DType::int4), wgmma_codes);
  EXPECT_EQ(with_codes([](auto& c) { c.kv.page_size = 1, c.ring_size = 123; }), wgmma_codes);
  EXPECT_EQ(with_codes([](auto& c) { c.head_dim = c.kv.k.head_dim = 120; }), mma_codes);
  EXPECT_EQ(with_codes([](auto& c) { c.kv.v.strides.token += 8; }), mma_codes);
  EXPECT_EQ(with_codes([](auto& c) { c.kv.num_pages = 1 << 30, c.kv.k.strides.page = c.kv.v.strides.page = 32; }), mma_codes);
  EXPECT_EQ(with_codes([](auto& c) { c.kv.num_pages = 1 << 29, c.kv.k.strides.page = c.kv.v.strides.page = 32; }), wgmma_codes);
  EXPECT_EQ(with_codes([](auto& c) { c.scale = -0.1f; }), mma_codes);
  EXPECT_EQ(with([](auto& c) { c.head_dim = c.kv.k.head_dim = 264; }).find("wgmma"), std::string::npos);
  EXPECT_EQ(with([](auto& c) { c.head_dim = c.kv.k.head_dim = 72; }), wgmma);
  EXPECT_EQ(with([](auto& c) { c.kv.v.head_dim = 136; }), "prefill wgmma q=bfloat16 cache=same head_dim=256 keys=64");
}

}  // namespace
}  // namespace prologue::test

#endif
