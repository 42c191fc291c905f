#include <prologue/kernels/paged_attention/paged_attention.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tests/oracle/paged_attention.h"
#include "tests/support/arena.h"
#include "tests/support/attention_pages.h"
#include "tests/support/bits.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

constexpr size_t kSmallStack = 112 * 1024;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Sequence {
  int64_t rows;
  int64_t length;
};

struct Case {
  int64_t num_q_heads, num_kv_heads, head_dim, page_size;
  std::vector<Sequence> sequences;
  int64_t padding_rows = 0;
  bool odd_strides = false;    // of q, out, the cache and the block table
  bool heads_outside = false;  // pages are [heads, page_size, head_dim]
};

using oracle::AttentionInputs;

// Makes a batch in a cache of shuffled pages, a third of them unused. Every slot that no sequence owns holds NaN, and every block_table
// entry past a sequence's pages holds an absurd number.
template <class T>
AttentionInputs<T> make_inputs(const Case& c, uint64_t seed, uint64_t page_seed = 1) {
  Random random(seed);
  AttentionInputs<T> in;
  in.num_q_heads = c.num_q_heads;
  in.num_kv_heads = c.num_kv_heads;
  in.head_dim = c.head_dim;
  in.page_size = c.page_size;
  in.scale = static_cast<double>(static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim))));
  in.cu_seqlens_q.push_back(0);
  int64_t used_pages = 0, most_pages = 1;
  for (const Sequence& s : c.sequences) {
    in.num_tokens += s.rows;
    in.cu_seqlens_q.push_back(static_cast<int32_t>(in.num_tokens));
    in.seq_lens.push_back(static_cast<int32_t>(s.length));
    const int64_t pages = (s.length + c.page_size - 1) / c.page_size;
    used_pages += pages;
    most_pages = std::max(most_pages, pages);
  }
  in.num_tokens += c.padding_rows;
  in.num_pages = used_pages + used_pages / 2 + 1;
  in.max_pages_per_seq = most_pages + 1;
  in.block_table_stride = in.max_pages_per_seq + (c.odd_strides ? 3 : 0);

  in.q_head_stride = c.head_dim + (c.odd_strides ? 3 : 0);
  in.q_token_stride = c.num_q_heads * in.q_head_stride + (c.odd_strides ? 5 : 0);
  const int64_t inner = c.head_dim + (c.odd_strides ? 1 : 0);
  in.token_stride = c.heads_outside ? inner : c.num_kv_heads * inner + (c.odd_strides ? 7 : 0);
  in.head_stride = c.heads_outside ? c.page_size * inner + (c.odd_strides ? 7 : 0) : inner;
  in.page_stride = (c.heads_outside ? c.num_kv_heads * in.head_stride : c.page_size * in.token_stride) + (c.odd_strides ? 11 : 0);

  const T nan = from_float<T>(kNan);
  in.q.assign(static_cast<size_t>(in.num_tokens * in.q_token_stride), nan);
  for (int64_t t = 0; t < in.cu_seqlens_q.back(); ++t) {
    for (int64_t h = 0; h < c.num_q_heads; ++h) {
      for (int64_t d = 0; d < c.head_dim; ++d) {
        in.q[static_cast<size_t>(t * in.q_token_stride + h * in.q_head_stride + d)] =
            from_float<T>(static_cast<float>(random.normal()));
      }
    }
  }
  in.k.assign(static_cast<size_t>(in.num_pages * in.page_stride), nan);
  in.v = in.k;
  std::vector<int32_t> pages(static_cast<size_t>(in.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  Random(page_seed).shuffle(pages);
  in.block_table.assign(c.sequences.size() * static_cast<size_t>(in.block_table_stride), std::numeric_limits<int32_t>::min() + 7);
  size_t next_page = 0;
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    for (int64_t p = 0; p < c.sequences[s].length; ++p) {
      int32_t& entry = in.block_table[s * static_cast<size_t>(in.block_table_stride) + static_cast<size_t>(p / c.page_size)];
      if (p % c.page_size == 0) entry = pages[next_page++];
      for (int64_t h = 0; h < c.num_kv_heads; ++h) {
        const int64_t place = entry * in.page_stride + p % c.page_size * in.token_stride + h * in.head_stride;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          in.k[static_cast<size_t>(place + d)] = from_float<T>(static_cast<float>(random.normal()));
          in.v[static_cast<size_t>(place + d)] = from_float<T>(static_cast<float>(random.normal()));
        }
      }
    }
  }
  return in;
}

// Returns the parameters over an arena's arrays; the output has the strides of q.
template <class T>
PagedAttentionParams make_params(Arena& arena, const AttentionInputs<T>& in, Device device) {
  PagedAttentionParams p;
  p.num_tokens = in.num_tokens;
  p.num_seqs = static_cast<int64_t>(in.seq_lens.size());
  p.num_q_heads = in.num_q_heads;
  p.head_dim = in.head_dim;
  p.dtype = FloatFormat<T>::dtype;
  p.scale = static_cast<float>(in.scale);
  p.q = {arena.input(in.q), in.q_token_stride, in.q_head_stride};
  const PageStrides strides{in.page_stride, in.token_stride, in.head_stride};
  p.kv.k.data = arena.input(in.k);
  p.kv.v.data = arena.input(in.v);
  p.kv.num_pages = in.num_pages;
  p.kv.page_size = in.page_size;
  p.kv.num_kv_heads = in.num_kv_heads;
  p.kv.k.head_dim = in.head_dim;
  p.kv.k.strides = p.kv.v.strides = strides;
  p.page_table = place_pages(arena, in);
  p.cu_seqlens_q = arena.input(in.cu_seqlens_q);
  if (in.kv_last_page_len.empty()) p.seq_lens = arena.input(in.seq_lens);
  p.max_seqlen_q = p.max_seq_len = 1;
  for (size_t s = 0; s < in.seq_lens.size(); ++s) {
    p.max_seqlen_q = std::max(p.max_seqlen_q, int64_t{in.cu_seqlens_q[s + 1]} - in.cu_seqlens_q[s]);
    p.max_seq_len = std::max<int64_t>(p.max_seq_len, in.seq_lens[s]);
  }
  p.out = {arena.output<T>(in.num_tokens * in.q_token_stride), in.q_token_stride, in.q_head_stride};
  p.workspace_bytes = paged_attention_workspace_bytes(p, device);
  if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
  return p;
}

template <class T>
bool is_poison(const T& value) {
  T poison;
  std::memset(static_cast<void*>(&poison), kPoison, sizeof poison);
  return std::memcmp(&value, &poison, sizeof poison) == 0;
}

struct Call {
  FaultRecord faults;
  std::vector<uint8_t> token_faults;
  std::function<void(PagedAttentionParams&)> change;  // of the parameters, before the call
};

// The output without its strides; checks that padding rows and the gaps between rows are still poison.
template <class T>
std::vector<T> run_attention(Backend backend, const AttentionInputs<T>& in, Call* call = nullptr) {
  Arena arena(backend);
  PagedAttentionParams p = make_params(arena, in, backend_device(backend));
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  p.faults = faults;
  uint8_t* token_faults = p.token_faults = arena.inout(std::vector<uint8_t>(static_cast<size_t>(in.num_tokens)));
  if (call != nullptr && call->change) call->change(p);
  const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  if (call != nullptr) {
    call->faults = arena.read(faults)[0];
    call->token_faults = arena.read(token_faults);
  } else {
    EXPECT_EQ(arena.read(token_faults), std::vector<uint8_t>(static_cast<size_t>(in.num_tokens)));
    EXPECT_EQ(arena.read(faults)[0].first, 0u);
    EXPECT_EQ(arena.read(faults)[0].count, 0u);
  }

  std::vector<T> padded = arena.read(static_cast<const T*>(p.out.data));
  std::vector<T> result;
  for (int64_t t = 0; t < in.num_tokens; ++t) {
    for (int64_t h = 0; h < in.num_q_heads; ++h) {
      const auto row = padded.begin() + t * in.q_token_stride + h * in.q_head_stride;
      result.insert(result.end(), row, row + in.head_dim);
      if (t < in.cu_seqlens_q.back())
        std::memset(static_cast<void*>(&*row), kPoison, static_cast<size_t>(in.head_dim) * sizeof(T));
    }
  }
  EXPECT_TRUE(std::all_of(padded.begin(), padded.end(), is_poison<T>)) << "something beside the rows was written";
  result.resize(static_cast<size_t>(in.cu_seqlens_q.back() * in.num_q_heads * in.head_dim));
  return result;
}

// On CUDA probabilities may be rounded to 16 bits before the second product.
template <class T>
double probability_error(Backend backend) {
  const bool rounds = sizeof(T) == 2 && backend_device(backend) == Device::cuda;
  return rounds ? std::ldexp(1.0, -FloatFormat<T>::mantissa_bits - 1) : 0.0;
}

// The last sum adds as many terms as the sequence is long: sqrt(length) steps as a random walk, and never fewer than 16.
template <class T>
void expect_matches_oracle(Backend backend, const AttentionInputs<T>& in, const std::vector<T>& got, const char* what) {
  std::vector<Reference> want = oracle::paged_attention(in, {.probability = probability_error<T>(backend)});
  want.resize(got.size());
  const int64_t longest = in.seq_lens.empty() ? 0 : *std::max_element(in.seq_lens.begin(), in.seq_lens.end());
  expect_close(got, want, in.head_dim, what, std::max(kDefaultSteps, std::sqrt(static_cast<double>(longest))),
               probability_error<T>(backend) == 0.0);
}

class PagedAttentionTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

const std::vector<Case>& curated_cases() {
  static const std::vector<Case> cases = {
      // Prefill of every length round the block and tile sizes; MHA, GQA 3, 4 and 8, MQA; page sizes 1, 16, 64 and an odd one.
      {4, 4, 64, 16, {{1, 1}}},
      {4, 1, 64, 16, {{2, 2}}},
      {9, 3, 64, 16, {{31, 31}}},
      {8, 2, 64, 16, {{32, 32}}},
      {8, 1, 64, 1, {{33, 33}}},
      {9, 3, 64, 64, {{257, 257}}},
      {2, 2, 128, 16, {{257, 257}}, 0, true},
      // This is a prompt in chunks: the rows are the last of a longer sequence.
      {9, 3, 64, 16, {{32, 97}}},
      {4, 1, 64, 7, {{33, 128}}, 0, true},
      {3, 1, 64, 16, {{64, 1500}}},
      // These are decode steps: one row each, with lengths at and beside the borders of tiles and pages.
      {9, 3, 64, 16, {{1, 1}, {1, 2}, {1, 15}, {1, 16}, {1, 17}, {1, 63}, {1, 64}, {1, 65}, {1, 257}}},
      {8, 1, 128, 64, {{1, 300}, {1, 64}, {1, 1}}},
      {9, 3, 64, 16, {{1, 1500}}},
      {8, 8, 64, 1, {{1, 130}}, 0, true},
      // Mixed batches with empty sequences and padding rows.
      {9, 3, 64, 16, {{1, 40}, {20, 20}, {0, 0}, {1, 129}, {7, 70}, {0, 33}, {2, 2}}, 5},
      {8, 2, 64, 7, {{0, 0}, {3, 3}, {1, 100}}, 1, true},
      {6, 2, 64, 16, {{5, 80}, {1, 17}}, 0, true, true},
      {6, 2, 64, 16, {{33, 80}, {1, 17}}, 3, false, true},
      {4, 2, 64, 16, {{0, 10}}, 4},
      // Head sizes.
      {4, 2, 2, 16, {{33, 40}, {1, 70}}},
      {2, 1, 6, 16, {{5, 9}, {1, 20}}, 0, true},
      {4, 2, 80, 16, {{33, 40}, {1, 70}}},
      {4, 2, 96, 16, {{9, 40}, {1, 70}}, 0, true},
      {4, 2, 128, 16, {{33, 40}, {1, 70}}},
      {2, 1, 254, 16, {{17, 40}, {1, 70}}, 0, true},
      {16, 2, 256, 16, {{33, 40}, {1, 70}}},
      // Rows before the start of their sequence attend to nothing.
      {4, 2, 64, 16, {{5, 3}, {2, 0}, {1, 5}}},
      // A kv head has more q heads than a block has rows.
      {71, 1, 64, 16, {{3, 20}, {1, 50}}},
  };
  return cases;
}

template <class T>
void check_curated_cases(Backend backend) {
  for (size_t i = 0; i < curated_cases().size(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i << ", " << dtype_name(FloatFormat<T>::dtype));
    const AttentionInputs<T> in = make_inputs<T>(curated_cases()[i], 100 + i);
    expect_matches_oracle(backend, in, run_attention(backend, in), "out");
  }
}

TEST_P(PagedAttentionTest, MatchesOracleFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(PagedAttentionTest, MatchesOracleBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(PagedAttentionTest, MatchesOracleFloat16) { check_curated_cases<Float16>(GetParam()); }

TEST_P(PagedAttentionTest, NothingToDo) {
  for (const bool without_tokens : {true, false}) {
    AttentionInputs<float> in = make_inputs<float>({2, 1, 8, 4, {{2, 2}}}, 1);
    Arena arena(GetParam());
    PagedAttentionParams p = make_params(arena, in, backend_device(GetParam()));
    (without_tokens ? p.num_tokens : p.num_seqs) = 0;
    const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(arena.untouched());
  }
}

// A row that sees only one position returns that position's V, whatever the score.
TEST_P(PagedAttentionTest, OnePositionIsItsValue) {
  AttentionInputs<BFloat16> in = make_inputs<BFloat16>({4, 2, 64, 16, {{1, 1}, {1, 1}, {1, 1}}}, 3);
  const std::vector<BFloat16> got = run_attention(GetParam(), in);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      const int64_t page = in.block_table[static_cast<size_t>(t * in.block_table_stride)];
      const BFloat16* v = &in.v[static_cast<size_t>(page * in.page_stride + h / 2 * in.head_stride)];
      EXPECT_EQ(std::memcmp(&got[static_cast<size_t>((t * 4 + h) * 64)], v, 64 * sizeof(BFloat16)), 0) << t << ", " << h;
    }
  }
}

// Scores in the millions, rising or falling along the sequence: the softmax is one-hot and the result the bits of one V.
TEST_P(PagedAttentionTest, HugeScoresDoNotOverflow) {
  for (const bool rising : {true, false}) {
    for (const int64_t rows : {1, 70}) {
      AttentionInputs<float> in = make_inputs<float>({2, 1, 64, 16, {{rows, 200}}}, 4);
      std::fill(in.q.begin(), in.q.end(), 0.0f);
      for (int64_t i = 0; i < rows * 2; ++i) in.q[static_cast<size_t>(i * 64)] = 3e4f;
      const auto place = [&](int64_t p) { return in.block_table[static_cast<size_t>(p / 16)] * in.page_stride + p % 16 * 64; };
      for (int64_t p = 0; p < 200; ++p) {
        std::fill_n(&in.k[static_cast<size_t>(place(p))], 64, 0.0f);
        in.k[static_cast<size_t>(place(p))] = 1e3f * static_cast<float>(rising ? p : -p);
      }
      const std::vector<float> got = run_attention(GetParam(), in);
      for (int64_t t = 0; t < rows; ++t) {
        const int64_t winner = rising ? 200 - rows + t : 0;
        for (int64_t h = 0; h < 2; ++h) {
          EXPECT_EQ(std::memcmp(&got[static_cast<size_t>((t * 2 + h) * 64)], &in.v[static_cast<size_t>(place(winner))], 64 * 4),
                    0)
              << (rising ? "rising, " : "falling, ") << t << ", " << h;
        }
      }
    }
  }
}

// In 16 bits, a scaled maximum of some millions is off by a fraction of a power of two: the weights of a row are, too, and their sum with
// them.
template <class T>
void check_huge_scores(Backend backend, int64_t page_size) {
  for (const bool rising : {true, false}) {
    AttentionInputs<T> in = make_inputs<T>({2, 1, 64, page_size, {{70, 120}}}, 8);
    std::fill(in.q.begin(), in.q.end(), from_float<T>(0.0f));
    for (int64_t i = 0; i < 70 * 2; ++i) in.q[static_cast<size_t>(i * 64)] = from_float<T>(32768.0f);
    for (int64_t p = 0; p < 120; ++p) {
      const int64_t page = in.block_table[static_cast<size_t>(p / page_size)];
      T* const key = &in.k[static_cast<size_t>(page * in.page_stride + p % page_size * 64)];
      std::fill_n(key, 64, from_float<T>(0.0f));
      key[0] = from_float<T>(8.0f * static_cast<float>(rising ? p : -p));
    }
    expect_matches_oracle(backend, in, run_attention(backend, in), "out");
  }
}

TEST_P(PagedAttentionTest, HugeScoresOfSixteenBitsDoNotOverflow) {
  for (const int64_t page_size : {16, 7}) {  // wgmma on Hopper GPUs, mma.sync
    check_huge_scores<BFloat16>(GetParam(), page_size);
    check_huge_scores<Float16>(GetParam(), page_size);
  }
}

// With a negative scale the largest score is that of the smallest product; with 0 all keys weigh the same.
template <class T>
void check_scales(Backend backend) {
  for (const float scale : {-0.3f, 0.0f, 0.002f}) {
    SCOPED_TRACE(testing::Message() << "scale " << scale);
    AttentionInputs<T> in = make_inputs<T>({8, 2, 64, 16, {{70, 130}, {1, 90}, {3, 40}}}, 7);
    in.scale = double{scale};
    expect_matches_oracle(backend, in, run_attention(backend, in), "out");
  }
}

TEST_P(PagedAttentionTest, AnyScale) {
  check_scales<float>(GetParam());
  check_scales<BFloat16>(GetParam());
}

// What later positions hold does not reach earlier rows, not even NaN. (In V only on the CPU: a tensor core multiplies a hidden
// value by 0.)
TEST_P(PagedAttentionTest, TheFutureIsInvisible) {
  AttentionInputs<float> in = make_inputs<float>({6, 2, 64, 16, {{70, 130}}}, 5);
  const std::vector<float> before = run_attention(GetParam(), in);
  constexpr int64_t kBroken = 100;  // = row 40
  const int64_t place = in.block_table[kBroken / 16] * in.page_stride + kBroken % 16 * in.token_stride;
  std::fill_n(&in.k[static_cast<size_t>(place)], 128, kNan);
  if (backend_device(GetParam()) == Device::cpu) std::fill_n(&in.v[static_cast<size_t>(place)], 128, kNan);
  const std::vector<float> after = run_attention(GetParam(), in);
  const size_t first = 40 * 6 * 64;
  EXPECT_EQ(std::memcmp(before.data(), after.data(), first * sizeof(float)), 0);
  EXPECT_TRUE(std::all_of(after.begin() + first, after.end(), [](float x) { return std::isnan(x); }));
}

TEST_P(PagedAttentionTest, RelabellingPagesChangesNothing) {
  const Case c{9, 3, 64, 16, {{1, 300}, {40, 70}, {1, 17}}};
  const auto run = [&](uint64_t page_seed) { return run_attention(GetParam(), make_inputs<BFloat16>(c, 6, page_seed)); };
  const std::vector<BFloat16> first = run(1);
  EXPECT_TRUE(same_bits(first, run(2)));
  EXPECT_TRUE(same_bits(first, run(3)));
}

TEST_P(PagedAttentionTest, TwoRunsAgree) {
  const auto in = make_inputs<float>({9, 3, 64, 16, {{1, 700}, {40, 70}, {1, 17}}}, 7);
  EXPECT_TRUE(same_bits(run_attention(GetParam(), in), run_attention(GetParam(), in)));
}

// The sequence's rows [begin, end), as a call of their own at the time when the sequence ended there.
AttentionInputs<float> part_of_prompt(const AttentionInputs<float>& in, int64_t begin, int64_t end) {
  AttentionInputs<float> part = in;
  part.num_tokens = end - begin;
  part.q.assign(in.q.begin() + begin * in.q_token_stride, in.q.begin() + end * in.q_token_stride);
  part.cu_seqlens_q = {0, static_cast<int32_t>(end - begin)};
  part.seq_lens = {static_cast<int32_t>(end)};
  return part;
}

// The bits are the same on the CPU; on CUDA decoding sums in another order.
TEST_P(PagedAttentionTest, TokenByTokenEqualsAllAtOnce) {
  const auto in = make_inputs<float>({9, 3, 64, 16, {{150, 150}}}, 8);
  const std::vector<float> at_once = run_attention(GetParam(), in);
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 64, 100, 150}, std::vector<int64_t>{}}) {
    std::vector<int64_t> ends = cuts;
    if (ends.empty()) {
      ends.resize(151);
      std::iota(ends.begin(), ends.end(), 0);
    }
    std::vector<float> in_parts;
    for (size_t i = 0; i + 1 < ends.size(); ++i) {
      const std::vector<float> part = run_attention(GetParam(), part_of_prompt(in, ends[i], ends[i + 1]));
      in_parts.insert(in_parts.end(), part.begin(), part.end());
    }
    expect_matches_oracle(GetParam(), in, in_parts, "in parts");
    if (backend_device(GetParam()) == Device::cpu) {
      EXPECT_TRUE(same_bits(at_once, in_parts));
    }
  }
}

// The CPU gives the same bits alone and in a batch, with any number of threads.
TEST(PagedAttentionCpuTest, IndependentOfBatchAndThreads) {
  const auto batch = make_inputs<float>({9, 3, 64, 16, {{1, 300}, {40, 70}, {1, 17}, {100, 100}}}, 9);
  const std::vector<float> together = run_attention(Backend::cpu, batch);
  EXPECT_TRUE(same_bits(together, run_attention(Backend::cpu_threads, batch)));
  for (size_t s = 0; s < batch.seq_lens.size(); ++s) {
    AttentionInputs<float> alone = batch;
    const int64_t begin = batch.cu_seqlens_q[s], end = batch.cu_seqlens_q[s + 1];
    alone.num_tokens = end - begin;
    alone.q.assign(batch.q.begin() + begin * batch.q_token_stride, batch.q.begin() + end * batch.q_token_stride);
    alone.block_table.assign(batch.block_table.begin() + static_cast<int64_t>(s) * batch.block_table_stride,
                             batch.block_table.begin() + static_cast<int64_t>(s + 1) * batch.block_table_stride);
    alone.cu_seqlens_q = {0, static_cast<int32_t>(end - begin)};
    alone.seq_lens = {batch.seq_lens[s]};
    const std::vector<float> got = run_attention(Backend::cpu, alone);
    EXPECT_TRUE(same_bits(got, std::vector<float>(together.begin() + begin * 9 * 64, together.begin() + end * 9 * 64))) << s;
  }
}

// q and out are columns of one packed buffer, K and V are columns of another.
TEST_P(PagedAttentionTest, PackedBuffers) {
  const auto in = make_inputs<float>({4, 2, 64, 16, {{5, 30}, {1, 3}}}, 11);
  const std::vector<float> want = run_attention(GetParam(), in);
  Arena arena(GetParam());
  PagedAttentionParams p = make_params(arena, in, backend_device(GetParam()));
  constexpr int64_t kRow = 4 * 64;
  std::vector<float> rows(static_cast<size_t>(in.num_tokens * 2 * kRow), kNan);
  for (int64_t t = 0; t < in.num_tokens; ++t)
    std::copy_n(&in.q[static_cast<size_t>(t * kRow)], kRow, &rows[static_cast<size_t>(t * 2 * kRow)]);
  std::vector<float> cache(in.k.size() * 2);
  const int64_t slot = in.token_stride, slots = static_cast<int64_t>(in.k.size()) / slot;
  for (int64_t i = 0; i < slots; ++i) {
    std::copy_n(&in.k[static_cast<size_t>(i * slot)], slot, &cache[static_cast<size_t>(2 * i * slot)]);
    std::copy_n(&in.v[static_cast<size_t>(i * slot)], slot, &cache[static_cast<size_t>((2 * i + 1) * slot)]);
  }
  float* both = arena.inout(rows);
  float* kv = arena.input(cache);
  p.q = {both, 2 * kRow, 64};
  p.out = {both + kRow, 2 * kRow, 64};
  p.kv.k.data = kv;
  p.kv.v.data = kv + slot;
  p.kv.k.strides = p.kv.v.strides = {2 * in.page_stride, 2 * in.token_stride, in.head_stride};
  const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<float> after = arena.read(both);
  for (int64_t t = 0; t < in.num_tokens; ++t) {
    EXPECT_EQ(std::memcmp(&after[static_cast<size_t>(t * 2 * kRow)], &rows[static_cast<size_t>(t * 2 * kRow)], kRow * 4), 0);
    EXPECT_EQ(std::memcmp(&after[static_cast<size_t>((t * 2 + 1) * kRow)], &want[static_cast<size_t>(t * kRow)], kRow * 4), 0);
  }
}

// Where indices are bad, the rows concerned are zeros and recorded, and the others are not changed by it.

// expect_matches_oracle knows zero rows; what the fault record and the faults of the rows say is checked here.
template <class T>
void expect_fault(Backend backend, const AttentionInputs<T>& in, FaultCode code, int64_t token, uint64_t count,
                  const std::function<void(PagedAttentionParams&)>& change = {}) {
  Call call;
  call.change = change;
  const std::vector<T> got = run_attention(backend, in, &call);
  if (!change) expect_matches_oracle(backend, in, got, "out");
  const Fault fault = decode_fault(call.faults);
  EXPECT_EQ(fault.code, code);
  EXPECT_EQ(fault.token, token);
  EXPECT_EQ(fault.count, count);
  const auto faulty = [](uint8_t byte) { return byte != 0; };
  const std::vector<uint8_t>& rows = call.token_faults;
  EXPECT_EQ(static_cast<uint64_t>(std::count_if(rows.begin(), rows.end(), faulty)), count);
  EXPECT_EQ(std::find_if(rows.begin(), rows.end(), faulty) - rows.begin(), count > 0 ? token : static_cast<int64_t>(rows.size()));
  EXPECT_TRUE(
      std::all_of(rows.begin(), rows.end(), [&](uint8_t byte) { return byte == 0 || byte == static_cast<uint8_t>(code); }));
}

TEST_P(PagedAttentionTest, BadPagesAreRecorded) {
  for (const int32_t bad : {-1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), 1 << 20}) {
    auto in = make_inputs<float>({6, 2, 64, 16, {{2, 40}, {60, 90}, {1, 100}}, 2}, 12);
    in.block_table[static_cast<size_t>(in.block_table_stride) + 4] = bad;  // positions 64..79 of the second sequence, rows 34 on
    expect_fault(GetParam(), in, FaultCode::page_out_of_range, 2 + 34, 60 - 34);
  }
  auto in = make_inputs<float>({6, 2, 64, 16, {{2, 40}, {60, 90}, {1, 100}}}, 13);
  in.block_table[static_cast<size_t>(in.block_table_stride)] = static_cast<int32_t>(in.num_pages);  // one past the last
  in.block_table[static_cast<size_t>(2 * in.block_table_stride)] = -7;
  expect_fault(GetParam(), in, FaultCode::page_out_of_range, 2, 61);
}

// On CUDA by tensor cores: pages that rows copied together have in common, of one token, and of a head that blocks share.
TEST_P(PagedAttentionTest, BadPagesOfDecodeRowsAreRecorded) {
  for (const int64_t page_size : {1, 16}) {
    for (const int64_t head_dim : {64, 128}) {
      const auto good = make_inputs<BFloat16>({6, 2, head_dim, page_size, {{1, 40}, {1, 1500}, {1, 100}}, 3}, 12);
      const auto num_pages = static_cast<int32_t>(good.num_pages);
      for (const int32_t bad : {-1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), num_pages}) {
        for (const int64_t position : {0, 700, 1499}) {
          auto in = good;
          in.block_table[static_cast<size_t>(in.block_table_stride + position / page_size)] = bad;
          SCOPED_TRACE(testing::Message() << head_dim << " channels, pages of " << page_size << ", " << bad << " at "
                                          << position);
          expect_fault(GetParam(), in, FaultCode::page_out_of_range, 1, 1);
        }
      }
    }
  }
}

// CSR is another way to write the same table.
TEST_P(PagedAttentionTest, CsrPagesGiveTheSameBits) {
  const auto check = [&](auto type) {
    using T = decltype(type);
    for (const Case& c : curated_cases()) {
      auto in = make_inputs<T>(c, 40);
      if (in.seq_lens.empty()) continue;
      const std::vector<T> want = run_attention(GetParam(), in);
      for (const bool lengths : {false, true}) {
        use_csr(in, lengths);
        EXPECT_TRUE(same_bits(run_attention(GetParam(), in), want)) << "lengths " << lengths;
      }
    }
  };
  check(float());
  check(BFloat16());
}

TEST_P(PagedAttentionTest, BadCsrPagesAreRecorded) {
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();
  const Case small = {6, 2, 64, 16, {{2, 40}, {2, 90}, {1, 100}}, 2}, large = {6, 2, 64, 16, {{2, 40}, {60, 90}, {1, 100}}};
  for (const bool lengths : {false, true}) {
    for (const Case& c : {small, large}) {
      const auto rows = static_cast<uint64_t>(c.sequences[1].rows);
      auto good = make_inputs<float>(c, 12);
      use_csr(good, lengths);
      const auto num_indices = static_cast<int32_t>(good.kv_indices.size());
      expect_fault(GetParam(), good, FaultCode::none, -1, 0);
      // The second sequence has no end, and the third no beginning.
      for (const int32_t bad : {-1, kLeast, kMost, num_indices + 1}) {
        auto in = good;
        in.kv_indptr[2] = bad;
        expect_fault(GetParam(), in, FaultCode::sequence_too_long, 2, rows + 1);
      }
      auto decreasing = good;
      decreasing.kv_indptr[2] = decreasing.kv_indptr[3] = good.kv_indptr[1] - 1;  // the third has no page
      expect_fault(GetParam(), decreasing, FaultCode::sequence_too_long, 2, rows + (lengths ? 0 : 1));
      for (const int32_t bad : {-1, kLeast, kMost, static_cast<int32_t>(good.num_pages)}) {
        auto in = good;
        in.kv_indices[static_cast<size_t>(in.kv_indptr[1])] = bad;
        expect_fault(GetParam(), in, FaultCode::page_out_of_range, 2, rows);
      }
      auto in = good;
      in.kv_indptr[3] = in.kv_indptr[2];  // a sequence of 100 tokens without a page: too long, or of no tokens
      expect_fault(GetParam(), in, lengths ? FaultCode::none : FaultCode::sequence_too_long,
                   lengths ? -1 : 2 + c.sequences[1].rows, lengths ? 0 : 1);
      if (!lengths) continue;
      for (const int32_t bad : {0, -1, kLeast, kMost, 17}) {
        auto length = good;
        length.kv_last_page_len[1] = bad;
        expect_fault(GetParam(), length, FaultCode::sequence_too_long, 2, rows);
      }
    }
  }
}

TEST_P(PagedAttentionTest, TooLongSequencesAreRecorded) {
  auto in = make_inputs<float>({6, 2, 64, 16, {{3, 40}, {2, 50}, {1, 100}}}, 14);
  in.seq_lens[1] = static_cast<int32_t>(in.max_pages_per_seq * 16 + 1);
  expect_fault(GetParam(), in, FaultCode::sequence_too_long, 3, 2, [&](PagedAttentionParams& p) { p.max_seq_len = 1 << 20; });
  in.seq_lens[1] = std::numeric_limits<int32_t>::max();
  expect_fault(GetParam(), in, FaultCode::sequence_too_long, 3, 2, [&](PagedAttentionParams& p) { p.max_seq_len = 1 << 20; });
  in.seq_lens[1] = 50;
  expect_fault(GetParam(), in, FaultCode::sequence_too_long, 5, 1, [&](PagedAttentionParams& p) { p.max_seq_len = 99; });

  // The rows concerned are zeros, the others as always.
  auto without = make_inputs<float>({6, 2, 64, 16, {{3, 40}, {2, 50}, {1, 100}}}, 14);
  const std::vector<float> want = run_attention(GetParam(), without);
  Call call;
  call.change = [](PagedAttentionParams& p) { p.max_seq_len = 99; };
  const std::vector<float> got = run_attention(GetParam(), without, &call);
  expect_close(
      std::vector<float>(got.begin(), got.begin() + 5 * 6 * 64),
      [&] {
        std::vector<Reference> reference = oracle::paged_attention(without);
        reference.resize(5 * 6 * 64);
        return reference;
      }(),
      64, "other sequences");
  EXPECT_TRUE(std::all_of(got.begin() + 5 * 6 * 64, got.end(), [](float x) { return x == 0.0f; }));
}

struct MalformedRows {
  const char* what;
  std::vector<int32_t> cu_seqlens_q;
  int64_t max_seqlen_q;
};

// cu_seqlens_q, for 50 rows, is wrong in every way that it can be: the rows concerned are zeros and have a fault, the others are as always,
// and rows past the largest entry are untouched.
template <class T>
void check_malformed_rows(Backend backend) {
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();
  const std::vector<MalformedRows> cases = {
      {"more rows than max_seqlen_q, in decoding", {0, 1, 6, 8, 10}, 2},
      {"one row more", {0, 3, 7, 8, 11}, 3},
      {"more rows than max_seqlen_q, in prefill", {0, 10, 40, 45, 50}, 12},
      {"many more", {0, 40, 41, 42, 43}, 1},
      {"rows before the first entry", {5, 7, 9, 10, 10}, 3},
      {"rows before the first entry, in prefill", {5, 27, 29, 40, 41}, 30},
      {"rows before a sequence without any", {20, 20, 20, 30, 31}, 12},
      {"all rows before the first entry", {50, 50, 50, 50, 50}, 2},
      {"a first entry past all rows", {kMost, kMost, kMost, kMost, kMost}, 20},
      {"a negative first entry", {-5, 3, 6, 7, 8}, 4},
      {"a negative first entry, in prefill", {kLeast, 30, 33, 40, 50}, 30},
      {"only negative entries", {kLeast, -7, -7, -2, -1}, 20},
      {"a last entry past all rows", {0, 2, 4, 6, kMost}, 2},
      {"a last entry one past all rows", {0, 30, 40, 45, 51}, 30},
      {"a sequence past all rows", {0, 20, 60, 70, 80}, 40},
      {"everything", {kLeast, kMost, kMost, kMost, kMost}, kMost},
      {"a decrease", {0, 3, 1, 2, 4}, 3},
      {"a decrease, in prefill", {0, 20, 10, 30, 50}, 25},
      {"a decrease to a negative entry", {0, 20, kLeast, 30, 50}, 30},
      {"a decrease from the largest to the smallest", {0, 3, kMost, kLeast, 0}, kMost},
      {"the same rows again and again", {0, 50, 0, 50, 0}, 50},
      {"only a decrease", {kMost, kMost, 3, 0, kLeast}, 3},
  };
  for (const MalformedRows& c : cases) {
    for (const auto& [length, num_decode_seqs] : {std::pair<int64_t, int64_t>{33, 0}, {300, 0}, {300, 1}, {33, 3}, {300, 4}}) {
      SCOPED_TRACE(testing::Message() << c.what << ", sequences of " << length << ", " << num_decode_seqs << " of them decode");
      auto in = make_inputs<T>({4, 2, 32, 16, {{20, length}, {10, length}, {10, length}, {10, length}}}, 20);
      in.cu_seqlens_q = c.cu_seqlens_q;
      in.max_seqlen_q = c.max_seqlen_q, in.num_decode_seqs = num_decode_seqs;
      Arena arena(backend);
      PagedAttentionParams p = make_params(arena, in, backend_device(backend));
      p.max_seqlen_q = c.max_seqlen_q, p.num_decode_seqs = num_decode_seqs;
      p.workspace_bytes = paged_attention_workspace_bytes(p, backend_device(backend));
      if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
      FaultRecord* faults = p.faults = arena.inout(std::vector<FaultRecord>(1));
      p.token_faults = arena.inout(std::vector<uint8_t>(static_cast<size_t>(in.num_tokens)));
      const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
      ASSERT_TRUE(status.ok()) << status.message();

      const oracle::QueryRowFaults bad = oracle::query_row_faults(in);
      const std::vector<uint8_t> token_faults = arena.read(p.token_faults);
      for (int64_t t = 0; t < bad.unspecified; ++t) {
        const FaultCode code = bad.rows.count(t) > 0 ? FaultCode::query_rows_out_of_range : FaultCode::none;
        EXPECT_EQ(token_faults[static_cast<size_t>(t)], static_cast<uint8_t>(code)) << t;
      }
      const bool decreases = !std::is_sorted(in.cu_seqlens_q.begin(), in.cu_seqlens_q.end());
      std::vector<int64_t> tokens(bad.rows.begin(), bad.rows.end());
      tokens.insert(tokens.end(), bad.sequences.begin(), bad.sequences.end());
      ASSERT_FALSE(tokens.empty());
      const Fault fault = decode_fault(arena.read(faults)[0]);
      EXPECT_EQ(fault.code, FaultCode::query_rows_out_of_range);
      if (!decreases) {
        EXPECT_EQ(fault.token, *std::min_element(tokens.begin(), tokens.end()));
        EXPECT_EQ(fault.count, tokens.size());
      }
      const std::vector<Reference> want = oracle::paged_attention(in, {.probability = probability_error<T>(backend)});
      const std::vector<T> got = arena.read(static_cast<const T*>(p.out.data));
      const int64_t width = in.num_q_heads * in.head_dim,
                    padding = in.cu_seqlens_q.empty()
                                  ? 0
                                  : std::clamp<int64_t>(*std::max_element(in.cu_seqlens_q.begin(), in.cu_seqlens_q.end()), 0,
                                                        in.num_tokens);
      const auto compared = static_cast<size_t>(std::min(bad.unspecified, padding) * width);
      expect_close(std::vector<T>(got.begin(), got.begin() + static_cast<int64_t>(compared)),
                   std::vector<Reference>(want.begin(), want.begin() + static_cast<int64_t>(compared)), width, "out",
                   std::sqrt(300.0), false);
      EXPECT_TRUE(std::all_of(got.begin() + padding * width, got.end(), is_poison<T>)) << "padding was written";
    }
  }
}

TEST_P(PagedAttentionTest, MalformedQueryRowsAreRecorded) {
  check_malformed_rows<float>(GetParam());
  check_malformed_rows<BFloat16>(GetParam());
}

TEST_P(PagedAttentionTest, NegativeLengthsAttendToNothing) {
  for (const int64_t rows : {2, 30}) {
    for (const int32_t length : {-1, std::numeric_limits<int32_t>::min()}) {
      auto in = make_inputs<float>({6, 2, 64, 16, {{3, 40}, {rows, 50}, {1, 100}}}, 21);
      in.seq_lens[1] = length;
      expect_matches_oracle(GetParam(), in, run_attention(GetParam(), in), "out");
    }
  }
}

// The largest lengths that there are, in few pages of many tokens: positions are counted without overflow.
TEST_P(PagedAttentionTest, TheLongestSequence) {
  constexpr int64_t kPage = int64_t{1} << 16, kLength = int64_t{1} << 30;
  for (const int64_t rows : {1, 40}) {
    AttentionInputs<float> in;
    in.num_tokens = rows, in.num_q_heads = 2, in.num_kv_heads = 1, in.head_dim = 8, in.page_size = kPage, in.num_pages = 1;
    in.scale = 0.35, in.window = 20;
    in.q_head_stride = 8, in.q_token_stride = 16;
    in.q = Random(22).normals<float>(rows * 16);
    in.k = Random(23).normals<float>(kPage * 8);
    in.v = Random(24).normals<float>(kPage * 8);
    in.page_stride = kPage * 8, in.token_stride = 8, in.head_stride = 8;
    in.max_pages_per_seq = in.block_table_stride = kLength / kPage;
    in.block_table.assign(static_cast<size_t>(in.max_pages_per_seq), -1);
    in.block_table.back() = 0;
    in.cu_seqlens_q = {0, static_cast<int32_t>(rows)};
    in.seq_lens = {static_cast<int32_t>(kLength)};
    Call call;
    call.change = [](PagedAttentionParams& p) { p.window = 20; };
    const std::vector<float> got = run_attention(GetParam(), in, &call);
    EXPECT_EQ(call.faults.count, 0u);
    expect_close(got, oracle::paged_attention(in), 8, "out");
  }
}

#ifdef PROLOGUE_CUDA_EMULATED
constexpr int64_t kLongOnCuda = 200;
#else
constexpr int64_t kLongOnCuda = 8192;  // some 15 us
#endif

// With past_is_ready, the second launch waits for what the launch before it writes. That launch is attention, too, over so many keys that
// it runs long after the second one may begin, or lets it begin late; its (last) row is the first of q, or K or V at the last position, of
// the second one. `rows` are those of both launches: one to decode, more to prefill.
template <class T>
void check_past_is_ready(Backend backend, DType cache, KvScaling scaling, std::array<int64_t, 2> rows = {1, 1}) {
  constexpr int64_t kHeads = 8, kHeadDim = 128, kPage = 16, kWidth = kHeads * kHeadDim;
  const int64_t lengths[] = {backend_device(backend) == Device::cuda ? kLongOnCuda : 200, 300};
  for (const char* const target : {"q", "k", "v"}) {
    if (*target != 'q' && (cache != FloatFormat<T>::dtype || rows[0] > 1)) continue;
    SCOPED_TRACE(target);
    const auto run = [&](bool past_is_ready, bool late_signal, bool early_signal) {
      Arena arena(backend);
      Random random(25);
      PagedAttentionParams calls[2];
      T* q[2];
      unsigned char *k[2], *v[2];
      for (int i = 0; i < 2; ++i) {
        PagedAttentionParams& p = calls[i];
        const int64_t kv_heads = i == 0 ? 2 : kHeads, pages = (lengths[i] + kPage - 1) / kPage;
        const KvFormat format = i == 0 ? KvFormat{FloatFormat<T>::dtype, KvScaling::none} : KvFormat{cache, scaling};
        const int64_t row_bytes = kv_heads * kHeadDim * dtype_bits(format.type) / 8;
        const auto elements = [&] {  // of codes any small numbers
          std::vector<unsigned char> bytes(static_cast<size_t>(pages * kPage * row_bytes));
          if (format.type == FloatFormat<T>::dtype) {
            const std::vector<T> values = random.normals<T>(pages * kPage * kv_heads * kHeadDim);
            std::memcpy(bytes.data(), values.data(), bytes.size());
          } else {
            for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random.integer(0, 15));
          }
          return bytes;
        };
        p.num_seqs = 1;
        p.num_tokens = p.max_seqlen_q = rows[i];
        p.num_q_heads = kHeads, p.head_dim = kHeadDim, p.dtype = FloatFormat<T>::dtype;
        p.scale = 0.3f;
        q[i] = arena.inout(random.normals<T>((rows[0] + rows[1]) * kWidth));
        k[i] = arena.inout(elements()), v[i] = arena.inout(elements());
        p.q = {q[i] + (i == 0 ? 0 : (rows[0] - 1) * kWidth), kWidth, kHeadDim};
        p.kv.num_pages = pages, p.kv.page_size = kPage, p.kv.num_kv_heads = kv_heads;
        for (PagedHeads* side : {&p.kv.k, &p.kv.v}) {
          side->data = side == &p.kv.k ? k[i] : v[i];
          side->format = format;
          side->head_dim = kHeadDim;
          side->strides = nhd_strides(kPage, kv_heads, kHeadDim);
          side->scale_strides = nhd_strides(kPage, kv_heads, scales_of_head(format));
          if (format.scaling == KvScaling::tensor) side->scale = arena.inout(std::vector<float>{0.1f});
          if (format.scaling == KvScaling::token_head) {
            side->scale =
                arena.inout(std::vector<float>(static_cast<size_t>(pages * kPage * kv_heads * scales_of_head(format)), 0.1f));
          }
        }
        std::vector<int32_t> block_table(static_cast<size_t>(pages));
        std::iota(block_table.begin(), block_table.end(), 0);
        p.page_table.block_table = arena.input(block_table);
        p.page_table.block_table_stride = p.page_table.max_pages_per_seq = pages;
        p.cu_seqlens_q = arena.input(std::vector<int32_t>{0, static_cast<int32_t>(rows[i])});
        p.seq_lens = arena.input(std::vector<int32_t>{static_cast<int32_t>(lengths[i])});
        p.max_seq_len = lengths[i];
        p.out = {arena.output<T>(rows[i] * kWidth), kWidth, kHeadDim};
        p.workspace_bytes = paged_attention_workspace_bytes(p, backend_device(backend));
        if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
        p.counters = arena.inout(std::vector<uint32_t>(kPagedAttentionCounters));
      }
      const int64_t last = (lengths[1] - 1) * kWidth * dtype_bits(cache) / 8;
      calls[0].out.data = *target == 'q' ? static_cast<void*>(q[1]) : (*target == 'k' ? k[1] : v[1]) + last;
      calls[0].late_signal = late_signal, calls[0].early_signal = early_signal;
      calls[1].past_is_ready = past_is_ready;
      const Status status = arena.run([&](const Execution& execution) {
        const Status first = paged_attention(calls[0], execution);
        return first.ok() ? paged_attention(calls[1], execution) : first;
      });
      EXPECT_TRUE(status.ok()) << status.message();
      return arena.read(static_cast<const T*>(calls[1].out.data));
    };
    const std::vector<T> want = run(false, false, false);
    EXPECT_TRUE(std::none_of(want.begin(), want.end(), is_poison<T>));
    for (const auto& [late, early] : {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
      const std::vector<T> got = run(true, late, early);
      EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(T)), 0) << late << early;
    }
  }
}

TEST_P(PagedAttentionTest, WaitsForWhatTheLaunchBeforeItWrites) {
  check_past_is_ready<BFloat16>(GetParam(), DType::bf16, KvScaling::none);
  check_past_is_ready<Float16>(GetParam(), DType::f16, KvScaling::none);
  check_past_is_ready<BFloat16>(GetParam(), DType::fp8_e4m3, KvScaling::tensor);
  check_past_is_ready<BFloat16>(GetParam(), DType::int8, KvScaling::token_head);
  check_past_is_ready<BFloat16>(GetParam(), DType::bf16, KvScaling::none, {1, 70});  // wgmma
  check_past_is_ready<BFloat16>(GetParam(), DType::bf16, KvScaling::none, {70, 1});
  check_past_is_ready<BFloat16>(GetParam(), DType::bf16, KvScaling::none, {70, 70});
  check_past_is_ready<BFloat16>(GetParam(), DType::int8, KvScaling::token_head, {1, 70});  // mma.sync
  check_past_is_ready<BFloat16>(GetParam(), DType::int8, KvScaling::token_head, {70, 70});
  check_past_is_ready<float>(GetParam(), DType::f32, KvScaling::none, {1, 70});
}

TEST_P(PagedAttentionTest, FaultsMayGoUnrecorded) {
  auto in = make_inputs<float>({2, 1, 64, 16, {{2, 40}}}, 15);
  in.block_table[0] = -1;
  Call call;
  call.change = [](PagedAttentionParams& p) { p.faults = nullptr; };
  expect_matches_oracle(GetParam(), in, run_attention(GetParam(), in, &call), "out");
  EXPECT_EQ(call.faults.count, 0u);
  const auto code = static_cast<uint8_t>(FaultCode::page_out_of_range);
  EXPECT_EQ(call.token_faults, (std::vector<uint8_t>{code, code}));
  call.change = [](PagedAttentionParams& p) { p.token_faults = nullptr; };
  expect_matches_oracle(GetParam(), in, run_attention(GetParam(), in, &call), "out");
  EXPECT_EQ(call.faults.count, 2u);
  EXPECT_EQ(call.token_faults, (std::vector<uint8_t>{0, 0}));
}

// There is one refusal per check.

TEST_P(PagedAttentionTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument, kUnsupported = StatusCode::unsupported;
  using P = PagedAttentionParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, kUnsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_tokens = -1; }, kInvalid, "num_tokens is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.num_seqs = -1; }, kInvalid, "num_seqs is -1: it must lie in 0..2147483646"},
      {[](P& p) { p.num_decode_seqs = -1; }, kInvalid, "num_decode_seqs is -1: it must lie in 0..2"},
      {[](P& p) { p.num_decode_seqs = 3; }, kInvalid, "num_decode_seqs is 3: it must lie in 0..2"},
      {[](P& p) { p.head_dim = 7; }, kUnsupported, "head_dim is 7: supported is every even number in 2..576"},
      {[](P& p) { p.head_dim = 0; }, kUnsupported, "head_dim is 0: supported is every even number in 2..576"},
      {[](P& p) { p.head_dim = 578; }, kUnsupported, "head_dim is 578: supported is every even number in 2..576"},
      {[](P& p) { p.num_q_heads = 0; }, kInvalid, "num_q_heads is 0: it must lie in 1..65536"},
      {[](P& p) { p.kv.num_kv_heads = 0; }, kInvalid, "cache.num_kv_heads is 0: it must lie in 1..65536"},
      {[](P& p) { p.kv.num_kv_heads = 3; }, kInvalid, "num_q_heads is 4: it must be a multiple of cache.num_kv_heads, 3"},
      {[](P& p) { p.scale = kNan; }, kInvalid, "scale is nan: it must be finite"},
      {[](P& p) { p.scale = -std::numeric_limits<float>::infinity(); }, kInvalid, "scale is -inf: it must be finite"},
      {[](P& p) { p.page_table.max_pages_per_seq = 0; }, kInvalid, "max_pages_per_seq is 0: it must lie in 1..2147483647"},
      {[](P& p) { p.page_table.block_table_stride = 2; }, kInvalid,
       "block_table_stride is 2: it must be at least max_pages_per_seq, 3"},
      {[](P& p) { p.max_seqlen_q = 0; }, kInvalid, "max_seqlen_q is 0: it must lie in 1..2147483647"},
      {[](P& p) { p.max_seq_len = 0; }, kInvalid, "max_seq_len is 0: it must lie in 1..1073741824"},
      {[](P& p) { p.max_seq_len = (1 << 30) + 1; }, kInvalid, "max_seq_len is 1073741825: it must lie in 1..1073741824"},
      {[](P& p) { p.soft_cap = -1.0f; }, kInvalid, "soft_cap is -1: it must be finite and positive, or 0 for none"},
      {[](P& p) { p.soft_cap = kNan; }, kInvalid, "soft_cap is nan: it must be finite and positive, or 0 for none"},
      {[](P& p) { p.window = -1; }, kInvalid, "window is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.chunk = -1; }, kInvalid, "chunk is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.chunk = int64_t{1} << 31; }, kInvalid, "chunk is 2147483648: it must lie in 0..2147483647"},
      {[](P& p) { p.ring_size = -1; }, kInvalid, "ring_size is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.ring_size = 1; }, kInvalid,
       "ring_size is 1: it must be at least max_seqlen_q, 2, where max_seq_len, 5, is larger than the ring"},
      {[](P& p) { p.ring_size = 4; }, kInvalid,
       "window is 0: it must lie in 1..3 where max_seq_len, 5, is larger than the ring of 4 tokens and max_seqlen_q is 2"},
      {[](P& p) { p.ring_size = 4, p.window = 4; }, kInvalid,
       "window is 4: it must lie in 1..3 where max_seq_len, 5, is larger than the ring of 4 tokens and max_seqlen_q is 2"},
      {[](P& p) { p.ring_size = 4, p.chunk = 4; }, kInvalid,
       "chunk is 4: it must lie in 1..3 where max_seq_len, 5, is larger than the ring of 4 tokens and max_seqlen_q is 2"},
      {[](P& p) { p.ring_size = 4, p.chunk = 4, p.window = 5; }, kInvalid,
       "chunk is 4: it must lie in 1..3 where max_seq_len, 5, is larger than the ring of 4 tokens and max_seqlen_q is 2"},
      {[](P& p) { p.ring_size = 4, p.chunk = 5, p.window = 4; }, kInvalid,
       "window is 4: it must lie in 1..3 where max_seq_len, 5, is larger than the ring of 4 tokens and max_seqlen_q is 2"},
      {[](P& p) { p.sinks = p.seq_lens, p.sinks_type = kNoType; }, kUnsupported,
       "sinks_type is the unknown type 99: supported is float32"},
      {[](P& p) { p.sinks = p.seq_lens, p.sinks_type = DType::bf16; }, kUnsupported,
       "sinks_type is bfloat16: supported is float32"},
      {[](P& p) { p.dtype = DType::f16, p.sinks = p.seq_lens, p.sinks_type = DType::bf16; }, kUnsupported,
       "sinks_type is bfloat16: supported are float32 and dtype, float16"},
      {[](P& p) { p.kv.k.format.type = p.kv.v.format.type = kNoType; }, kUnsupported,
       "cache.k.format.type is the unknown type 99: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4, "
       "uint4 and fp4_e2m1"},
      {[](P& p) { p.kv.k.format.scaling = p.kv.v.format.scaling = static_cast<KvScaling>(6); }, kUnsupported,
       "cache.k.format.scaling is 6: supported are none, tensor, head, token_head, mx and nv"},
      {[](P& p) { p.kv.k.format.scaling = p.kv.v.format.scaling = KvScaling::tensor; }, kInvalid,
       "cache.k.format.scaling is given, but the type is float32: float types have no scales"},
      {[](P& p) { p.kv.k.format.type = p.kv.v.format.type = DType::int8; }, kInvalid,
       "cache.k.format.scaling is none, but the type is int8: integer types need scales"},
      {[](P& p) {
         p.kv.k.format.type = p.kv.v.format.type = DType::int8, p.kv.k.format.scaling = p.kv.v.format.scaling = KvScaling::head;
       },
       kInvalid, "cache.k.scale is null"},
      {[](P& p) {
         p.kv.k.format.type = p.kv.v.format.type = DType::fp8_e4m3,
         p.kv.k.format.scaling = p.kv.v.format.scaling = KvScaling::token_head;
         p.kv.k.scale = static_cast<float*>(p.kv.k.data), p.kv.k.scale_strides = {8, 2, 1};
       },
       kInvalid, "cache.v.scale is null"},
      {[](P& p) {
         p.kv.k.format.type = p.kv.v.format.type = DType::int4, p.kv.k.format.scaling = p.kv.v.format.scaling = KvScaling::tensor;
         p.kv.k.scale = p.kv.v.scale = static_cast<float*>(p.kv.k.data), p.kv.v.strides.head = 7;
       },
       kInvalid, "a stride of cache.v is 7: it must be even, two channels of int4 share a byte"},
      {[](P& p) { p.kv.v.head_dim = 7; }, kUnsupported,
       "cache.v.head_dim is 7: supported is every even number in 2..576, or 0 = head_dim"},
      {[](P& p) { p.kv.v.head_dim = 578; }, kUnsupported,
       "cache.v.head_dim is 578: supported is every even number in 2..576, or 0 = head_dim"},
      {[](P& p) { p.kv.k.head_dim = 6; }, kInvalid, "cache.k.head_dim is 6: it must be head_dim, 8"},
      {[](P& p) { p.kv.num_pages = 0; }, kInvalid, "cache.num_pages is 0: it must lie in 1..1099511627776"},
      {[](P& p) { p.kv.page_size = 0; }, kInvalid, "cache.page_size is 0: it must lie in 1..1048576"},
      {[](P& p) { p.kv.k.data = nullptr; }, kInvalid, "cache.k is null"},
      {[](P& p) { p.kv.v.data = nullptr; }, kInvalid, "cache.v is null"},
      {[](P& p) { p.kv.v.strides.token = -16; }, kInvalid, "cache.v has the stride -16: strides must not be negative"},
      {[](P& p) { p.q.data = nullptr; }, kInvalid, "q is null"},
      {[](P& p) { p.q.head_stride = -8; }, kInvalid, "q has the stride -8: strides must not be negative"},
      {[](P& p) { p.q.token_stride = int64_t{1} << 60; }, kInvalid,
       "q reaches further than 2^60 bytes: its strides are too large"},
      {[](P& p) { p.out.data = nullptr; }, kInvalid, "out is null"},
      {[](P& p) { p.out.head_stride = 7; }, kInvalid,
       "out has the stride 7 where 8 elements lie: rows that are written must not overlap"},
      {[](P& p) { p.out.token_stride = 31; }, kInvalid,
       "out has the stride 31 where 32 elements lie: rows that are written must not overlap"},
      {[](P& p) { p.page_table = {}; }, kInvalid,
       "block_table is null, and so is kv_indptr: page_table must have one of the two forms"},
      {[](P& p) { p.page_table.block_table = nullptr; }, kInvalid,
       "block_table is null, and so is kv_indptr: page_table must have one of the two forms"},
      {[](P& p) { p.page_table.kv_indptr = p.seq_lens; }, kInvalid,
       "block_table and kv_indptr are both given: page_table has one of the two forms"},
      {[](P& p) { p.page_table.kv_last_page_len = p.seq_lens; }, kInvalid, "kv_last_page_len is given, but kv_indptr is null"},
      {[](P& p) { p.page_table = {}, p.page_table.kv_indptr = p.seq_lens, p.page_table.num_kv_indices = -1; }, kInvalid,
       "num_kv_indices is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.page_table = {}, p.page_table.kv_indptr = p.seq_lens, p.page_table.num_kv_indices = 2; }, kInvalid,
       "kv_indices is null"},
      {[](P& p) { p.page_table = {}, p.page_table.kv_indptr = p.page_table.kv_last_page_len = p.seq_lens; }, kInvalid,
       "seq_lens and kv_last_page_len are both given: a sequence has one length"},
      {[](P& p) {
         p.page_table = {}, p.page_table.kv_indptr = p.page_table.kv_last_page_len = p.seq_lens;
         p.seq_lens = nullptr, p.ring_size = 8;
       },
       kInvalid,
       "ring_size is 8, but lengths come from kv_last_page_len: the pages of a ring do not tell how long a sequence is"},
      {[](P& p) { p.page_table = {}, p.page_table.kv_indptr = static_cast<int32_t*>(p.out.data); }, kInvalid,
       "out overlaps kv_indptr"},
      {[](P& p) { p.cu_seqlens_q = nullptr; }, kInvalid, "cu_seqlens_q is null"},
      {[](P& p) { p.seq_lens = nullptr; }, kInvalid, "seq_lens is null"},
      {[](P& p) { p.out.data = const_cast<void*>(p.q.data); }, kInvalid, "out overlaps q"},
      {[](P& p) { p.out.data = p.kv.k.data; }, kInvalid, "out overlaps cache.k"},
      {[](P& p) { p.token_faults = static_cast<uint8_t*>(p.out.data) + 5; }, kInvalid, "out overlaps token_faults"},
      {[](P& p) { p.counters = static_cast<uint32_t*>(p.out.data); }, kInvalid, "out overlaps counters"},
      {[](P& p) { p.counters = reinterpret_cast<uint32_t*>(2); }, kInvalid,
       "counters lies at 0x2: it must be aligned to 4 bytes"},
      {[](P& p) { p.token_faults = reinterpret_cast<uint8_t*>(const_cast<int32_t*>(p.seq_lens)) + 7; }, kInvalid,
       "token_faults overlaps seq_lens"},
      {[](P& p) { p.out.data = p.kv.v.data; }, kInvalid, "out overlaps cache.v"},
      {[](P& p) { p.sinks = static_cast<float*>(p.out.data) + 63; }, kInvalid, "out overlaps sinks"},
      {[](P& p) {
         p.kv.k.format.type = p.kv.v.format.type = DType::int8, p.kv.k.format.scaling = p.kv.v.format.scaling = KvScaling::tensor;
         p.kv.k.scale = p.kv.v.scale = static_cast<float*>(p.out.data);
       },
       kInvalid, "out overlaps cache.k.scale"},
  };
  expect_refusals("paged_attention", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    PagedAttentionParams p =
        make_params(arena, make_inputs<float>({4, 2, 8, 4, {{2, 5}, {1, 3}}}, 16), backend_device(GetParam()));
    change(p);
    return refused(arena.run([&](const Execution& execution) { return paged_attention(p, execution); }), arena);
  });
}

TEST_P(PagedAttentionTest, RefusesMisalignedPointersAndDevices) {
  Arena arena(GetParam());
  PagedAttentionParams p = make_params(arena, make_inputs<float>({4, 2, 8, 4, {{2, 5}}}, 17), backend_device(GetParam()));
  PagedAttentionParams misaligned = p;
  misaligned.sinks = static_cast<const char*>(p.q.data) + 2;
  EXPECT_NE(validate(misaligned, backend_device(GetParam())).message().find("sinks lies at"), std::string::npos);
  misaligned.sinks = nullptr;
  misaligned.q.data = static_cast<const char*>(p.q.data) + 1;
  Status status = arena.run([&](const Execution& execution) { return paged_attention(misaligned, execution); });
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("it must be aligned to 4 bytes"), std::string::npos) << status.message();
  EXPECT_TRUE(arena.untouched());
  status = arena.run([&](Execution execution) {
    execution.device = static_cast<Device>(9);
    return paged_attention(p, execution);
  });
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "paged_attention: device is 9: it must be cpu or cuda");
  EXPECT_TRUE(arena.untouched());
}

TEST_P(PagedAttentionTest, RefusesTooSmallAWorkspace) {
  Arena arena(GetParam());
  PagedAttentionParams p = make_params(arena, make_inputs<float>({9, 3, 64, 16, {{1, 4000}}}, 18), backend_device(GetParam()));
  const int64_t needed = p.workspace_bytes;
  if (needed == 0) GTEST_SKIP() << "this call needs no workspace here";
  for (const bool null : {true, false}) {
    PagedAttentionParams small = p;
    if (null) {
      small.workspace = nullptr;
    } else {
      small.workspace_bytes = needed - 1;
    }
    const Status status = arena.run([&](const Execution& execution) { return paged_attention(small, execution); });
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), "paged_attention: workspace has " + std::to_string(null ? 0 : needed - 1) +
                                    " bytes: this call needs " + std::to_string(needed));
    EXPECT_TRUE(arena.untouched());
  }
}

// Calls `work` on a stack of so many bytes, below which nothing can be read or written. A thread's would also hold the thread-local variables
// of every library that the program is linked with.
void on_a_stack_of(size_t bytes, const std::function<void()>& work) {
  const size_t guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, guard + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory, guard, PROT_NONE), 0);
  static ucontext_t caller, callee;
  static const std::function<void()>* to_call;
  to_call = &work;
  ASSERT_EQ(getcontext(&callee), 0);
  callee.uc_stack.ss_sp = static_cast<char*>(memory) + guard;
  callee.uc_stack.ss_size = bytes;
  callee.uc_link = &caller;
  makecontext(&callee, [] { (*to_call)(); }, 0);
  EXPECT_EQ(swapcontext(&caller, &callee), 0);
  munmap(memory, guard + bytes);
}

// An engine may call the CPU backend from a thread with little stack. All of the kernel's memory is there, whatever the head dims are.
TEST(PagedAttentionCpuTest, RunsOnASmallStack) {
#ifdef PROLOGUE_ADDRESS_SANITIZER
  GTEST_SKIP() << "AddressSanitizer surrounds every array on the stack";
#endif
  for (const int64_t head_dim : {64, 128, 256, 576}) {
    const auto in = make_inputs<BFloat16>({12, 1, head_dim, 16, {{20, 200}, {1, 70}}}, 25);
    Arena arena(Backend::cpu);
    PagedAttentionParams p = make_params(arena, in, Device::cpu);
    const auto call = [&](const Execution& execution) {
      Status status;
      on_a_stack_of(kSmallStack, [&] { status = paged_attention(p, execution); });
      return status;
    };
    const Status status = arena.run(call);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(same_bits(arena.read(static_cast<const BFloat16*>(p.out.data)), run_attention(Backend::cpu, in)));
  }
}

TEST_P(PagedAttentionTest, RefusesAWorkspaceOverItsArrays) {
  Arena arena(GetParam());
  const PagedAttentionParams p =
      make_params(arena, make_inputs<float>({9, 3, 64, 16, {{1, 4000}}}, 18), backend_device(GetParam()));
  if (p.workspace_bytes == 0) GTEST_SKIP() << "this call needs no workspace here";
  for (const void* array : {p.q.data, static_cast<const void*>(p.kv.v.data), static_cast<const void*>(p.out.data)}) {
    PagedAttentionParams over = p;
    over.workspace = const_cast<void*>(array);  // and over some arrays behind it: any of them may be named
    const Status status = arena.run([&](const Execution& execution) { return paged_attention(over, execution); });
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("overlaps"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("workspace"), std::string::npos) << status.message();
    EXPECT_TRUE(arena.untouched());
  }
}

TEST(PagedAttentionCpuTest, CudaWithoutCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  Arena arena(Backend::cpu);
  const PagedAttentionParams p = make_params(arena, make_inputs<float>({4, 2, 8, 4, {{2, 5}}}, 19), Device::cpu);
  const Status status = arena.run([&](Execution execution) {
    execution.device = Device::cuda;
    return paged_attention(p, execution);
  });
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "paged_attention: device is cuda, but this library was built without CUDA");
  EXPECT_TRUE(arena.untouched());
}

INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
