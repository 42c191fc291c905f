// Tests what a row's neighbours in a call may and may not change: decode rows beside prompts, and batch-invariant calls.
#include <prologue/kernels/paged_attention/paged_attention.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/support/attention_batch.h"
#include "tests/support/bits.h"

namespace prologue::test {
namespace {

// Rows [begin, end) of a sequence, as a step that ended there.
struct Piece {
  size_t sequence;
  int64_t begin, end;

  int64_t rows() const { return end - begin; }
};

// Returns all rows of sequences [first, end).
template <class T>
std::vector<Piece> whole_sequences(const AttentionInputs<T>& in, size_t first, size_t end) {
  std::vector<Piece> pieces;
  for (size_t s = first; s < end; ++s) pieces.push_back({s, 0, in.cu_seqlens_q[s + 1] - in.cu_seqlens_q[s]});
  return pieces;
}

// Pieces of the sequences of `in`, as a batch.
template <class T>
AttentionInputs<T> batch_of(const AttentionInputs<T>& in, const std::vector<Piece>& pieces) {
  AttentionInputs<T> batch = in;
  batch.num_tokens = 0;
  batch.q.clear(), batch.block_table.clear(), batch.seq_lens.clear();
  batch.cu_seqlens_q = {0};
  for (const Piece& piece : pieces) {
    const int64_t first = in.cu_seqlens_q[piece.sequence], rows = in.cu_seqlens_q[piece.sequence + 1] - first;
    const auto q = in.q.begin() + first * in.q_token_stride;
    batch.q.insert(batch.q.end(), q + piece.begin * in.q_token_stride, q + piece.end * in.q_token_stride);
    const auto table = in.block_table.begin() + static_cast<int64_t>(piece.sequence) * in.block_table_stride;
    batch.block_table.insert(batch.block_table.end(), table, table + in.block_table_stride);
    batch.seq_lens.push_back(static_cast<int32_t>(in.seq_lens[piece.sequence] - rows + piece.end));
    batch.num_tokens += piece.rows();
    batch.cu_seqlens_q.push_back(static_cast<int32_t>(batch.num_tokens));
  }
  return batch;
}

using Change = std::function<void(PagedAttentionParams&)>;

template <class T>
std::vector<T> run_attention(Backend backend, const AttentionInputs<T>& in, const AttentionCache& cache, const Change& change) {
  if (in.num_tokens == 0) return {};
  Arena arena(backend);
  PagedAttentionParams p = place_attention(arena, in, cache.place(arena), backend_device(backend));
  change(p);
  p.workspace = nullptr;
  p.workspace_bytes = paged_attention_workspace_bytes(p, backend_device(backend));
  if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
  FaultRecord* faults = p.faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(arena.read(faults)[0].count, 0u);
  return rows_of(arena, in, p);
}

constexpr int64_t kHeadDims[] = {64, 128, 80, 66, 256, 192, 576, 2};

const std::pair<KvFormat, KvFormat> kFormats[] = {
    {{DType::bf16, KvScaling::none}, {DType::bf16, KvScaling::none}},
    {{DType::f32, KvScaling::none}, {DType::f32, KvScaling::none}},
    {{DType::f16, KvScaling::none}, {DType::f16, KvScaling::none}},
    {{DType::int8, KvScaling::token_head}, {DType::int8, KvScaling::token_head}},
    {{DType::fp8_e4m3, KvScaling::tensor}, {DType::fp8_e4m3, KvScaling::tensor}},
    {{DType::uint4, KvScaling::token_head}, {DType::uint4, KvScaling::token_head}},
    {{DType::int8, KvScaling::token_head}, {DType::int4, KvScaling::head}},
};

// Chooses everything but the sequences; consecutive seeds go through all formats and head sizes.
AttentionCase random_case(Random& random, uint64_t seed) {
  AttentionCase c;
  const auto& [k, v] = kFormats[seed % std::size(kFormats)];
  c.type = k.type, c.scaling = k.scaling, c.v_format = v;
  c.head_dim = kHeadDims[seed % std::size(kHeadDims)];
  if (c.head_dim == 576) c.v_head_dim = 512;
  c.num_kv_heads = c.head_dim > 128 ? 1 : random.integer(1, 2);
  c.num_q_heads = c.num_kv_heads * random.integer(1, c.head_dim > 128 ? 3 : 5);
  c.page_size = random.integer(0, 1) == 0 ? 16 : random.integer(1, 40);
  c.layout = random.integer(0, 3) == 0 ? KvLayout::odd : KvLayout::nhd;
  c.soft_cap = random.integer(0, 3) == 0 ? 5.0f : 0.0f;
  c.chunk = random.integer(0, 3) == 0 ? random.integer(1, 130) : 0;
  if (random.integer(0, 2) == 0) c.sinks = random.integer(0, 1) == 0 ? Sinks::of_dtype : Sinks::of_float;
  return c;
}

void with_dtype(uint64_t seed, const auto& call) {
  switch (seed % 3) {
    case 0: return call(BFloat16());
    case 1: return call(float());
    default: return call(Float16());
  }
}

class PagedAttentionBatches : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

// ---------------------------------------------------------------------------------------------------------------------
// num_decode_seqs

// The first sequences and the others have the bits that they have without each other.
template <class T>
void check_mixed_batch(Backend backend, uint64_t seed) {
  Random random(seed);
  AttentionCase c = random_case(random, seed);
  const int64_t num_decode_seqs = random.integer(0, 3), num_seqs = num_decode_seqs + random.integer(num_decode_seqs == 0, 2);
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t length = random.integer(1, random.integer(0, 1) == 0 ? 20 : 500);
    const int64_t rows = s < num_decode_seqs ? random.integer(random.integer(0, 3) == 0 ? 0 : 1, 1)
                                             : random.integer(0, std::min<int64_t>(length, 40));
    c.sequences.push_back({rows, length});
  }
  if (random.integer(0, 2) == 0) c.window = random.integer(1, 200);
  c.padding_rows = random.integer(0, 2);
  const AttentionBatch<T> batch(c, seed);
  const AttentionInputs<T>& in = batch.in;
  const int64_t max_seqlen_q = random.integer(0, 4) == 0 ? 40 : random.integer(5, 100) + 40;
  const auto run = [&](const AttentionInputs<T>& inputs, int64_t decode_seqs, int64_t max_rows) {
    return run_attention(backend, inputs, batch.cache, [&](PagedAttentionParams& p) {
      p.num_decode_seqs = decode_seqs, p.max_seqlen_q = max_rows, p.max_seq_len = 700;
    });
  };
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dtype_name(FloatFormat<T>::dtype) << " over "
                                  << dtype_name(c.type) << ", head_dim " << c.head_dim << ", " << num_decode_seqs << " of "
                                  << num_seqs << " sequences decode, window " << c.window << ", chunk " << c.chunk << ", sinks "
                                  << static_cast<int>(c.sinks));
  const std::vector<T> together = run(in, num_decode_seqs, max_seqlen_q);
  expect_matches_oracle(backend, in, batch.cache.view, together);
  const auto border = static_cast<size_t>(num_decode_seqs);
  std::vector<T> apart = run(batch_of(in, whole_sequences(in, 0, border)), 0, 1);
  const std::vector<T> prefill = run(batch_of(in, whole_sequences(in, border, in.seq_lens.size())), 0, max_seqlen_q);
  apart.insert(apart.end(), prefill.begin(), prefill.end());
  EXPECT_TRUE(same_bits(together, apart));
}

TEST_P(PagedAttentionBatches, DecodeRowsBesidePromptsHaveTheBitsOfDecodeRowsAlone) {
  for (uint64_t seed = 0; seed < 48; ++seed) {
    with_dtype(seed, [&](auto type) { check_mixed_batch<decltype(type)>(GetParam(), seed); });
  }
}

// The number of decode sequences is a hint for speed: any that is true gives the same values, if not bits.
TEST_P(PagedAttentionBatches, AnyNumberOfDecodeSequences) {
  AttentionCase c;
  c.sequences = {{1, 300}, {1, 40}, {0, 7}, {1, 1}, {30, 90}, {1, 200}}, c.num_q_heads = 6;
  for (const int64_t max_seqlen_q : {30, 60}) {
    const AttentionBatch<BFloat16> batch(c, 77);
    for (int64_t num_decode_seqs = 0; num_decode_seqs <= 4; ++num_decode_seqs) {
      const std::vector<BFloat16> got = run_attention(GetParam(), batch.in, batch.cache, [&](PagedAttentionParams& p) {
        p.num_decode_seqs = num_decode_seqs, p.max_seqlen_q = max_seqlen_q;
      });
      expect_matches_oracle(GetParam(), batch.in, batch.cache.view, got);
    }
  }
}

// Counters save a node in the stream, and are zeros again after every call.
TEST_P(PagedAttentionBatches, CountersChangeNothingAndStayZeros) {
  AttentionCase c;
  c.num_q_heads = 6, c.num_kv_heads = 2, c.head_dim = 128;
  c.sequences = {{1, 3000}, {2, 700}, {1, 0}, {4, 1500}, {0, 20}};
  for (const DType type : {DType::bf16, DType::uint4}) {
    c.type = type, c.scaling = type == DType::uint4 ? KvScaling::token_head : KvScaling::none;
    const AttentionBatch<BFloat16> batch(c, 79);
    const auto without = run_attention(GetParam(), batch.in, batch.cache, [](PagedAttentionParams&) {});
    Arena arena(GetParam());
    PagedAttentionParams p = place_attention(arena, batch.in, batch.cache.place(arena), backend_device(GetParam()));
    const std::vector<uint32_t> zeros(kPagedAttentionCounters);
    p.counters = arena.inout(zeros);
    for (int call = 0; call < 2; ++call) {
      const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(same_bits(rows_of(arena, batch.in, p), without));
      EXPECT_EQ(arena.read(p.counters), zeros);
    }
  }
}

// On CUDA the keys of a kv head are shared out to blocks, 128 or more to each, whose parts meet in the workspace.
TEST_P(PagedAttentionBatches, AnyNumberOfBlocksMayShareAHead) {
  uint64_t seed = 200;
  for (const int64_t length : {256, 257, 300, 384, 400, 512, 513, 640, 1000, 1100, 1700}) {
    for (const int64_t rows : {1, 4}) {
      AttentionCase c;
      c.num_q_heads = 6, c.num_kv_heads = 2;
      c.head_dim = std::array{64, 128, 256}[seed % 3];
      c.sequences = {{rows, length}};
      if (seed % 4 >= 2) c.sequences.insert(c.sequences.begin(), {1, 300});
      if (seed % 4 == 3) c.sequences.push_back({1, 900});
      if (seed % 5 == 0) c.type = DType::int8, c.scaling = KvScaling::token_head;
      if (seed % 2 == 0) c.sinks = Sinks::of_float;
      const AttentionBatch<BFloat16> batch(c, seed);
      const auto run = [&] { return run_attention(GetParam(), batch.in, batch.cache, [](PagedAttentionParams&) {}); };
      const std::vector<BFloat16> got = run();
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << rows << " rows at " << length);
      expect_matches_oracle(GetParam(), batch.in, batch.cache.view, got);
      EXPECT_TRUE(same_bits(run(), got));
      ++seed;
    }
  }
}

// A head has more parts than the warp has lanes that adds up a row of them, and there are heads of every number of registers.
TEST_P(PagedAttentionBatches, ManyBlocksMayShareAHead) {
  for (const int64_t head_dim : {64, 80, 128, 256}) {
    for (const int64_t rows : {1, 3}) {
      AttentionCase c;
      c.num_q_heads = 5, c.num_kv_heads = 1;
      c.head_dim = head_dim;
      c.type = DType::bf16;
      c.sequences = {{rows, 9001}};
      if (rows > 1) c.sequences.push_back({1, 4444});
      SCOPED_TRACE(testing::Message() << head_dim << " channels, " << rows << " rows");
      const AttentionBatch<BFloat16> batch(c, 81);
      const std::vector<BFloat16> got = run_attention(GetParam(), batch.in, batch.cache, [](PagedAttentionParams&) {});
      expect_matches_oracle(GetParam(), batch.in, batch.cache.view, got);
    }
  }
}

// Each of 100 kv heads has five tiles, and a block gets two of them, so that blocks have parts of two heads, for one sequence and for two.
TEST_P(PagedAttentionBatches, BlocksMayHavePartsOfTwoHeads) {
  for (const bool two : {false, true}) {
    AttentionCase c;
    c.num_q_heads = c.num_kv_heads = 100;
    c.type = DType::bf16;
    c.head_dim = 128;
    c.sequences = {{1, 300}};
    if (two) c.sequences.push_back({1, 20});
    const AttentionBatch<BFloat16> batch(c, 77);
    const std::vector<BFloat16> got = run_attention(GetParam(), batch.in, batch.cache, [](PagedAttentionParams&) {});
    expect_matches_oracle(GetParam(), batch.in, batch.cache.view, got);
  }
}

// There are more than 32 tiles for each block, so that blocks cooperate: equally long sequences, whose ranges are made even, and others;
// each of the cooperating blocks has one head, or two.
TEST_P(PagedAttentionBatches, TeamsMatchTheOracle) {
  if (GetParam() != Backend::cuda) GTEST_SKIP() << "once is enough";
#ifdef PROLOGUE_CUDA_EMULATED
  constexpr int64_t kHeadDim = 16, kTileKeys = 128;
#else
  constexpr int64_t kHeadDim = 128, kTileKeys = 64;
#endif
  struct Heads {
    int64_t num_kv_heads;
    std::vector<int64_t> lengths;
  };
  const Heads kCases[] = {{8, std::vector<int64_t>(8, 132 * kTileKeys + 50)},
                          {8, {30011, 17, 20000, 1, 25000}},
                          {40, {93 * kTileKeys, 46 * kTileKeys, 78 * kTileKeys + 21}}};
  for (const Heads& heads : kCases) {
    AttentionCase c;
    c.num_q_heads = c.num_kv_heads = heads.num_kv_heads;
    c.type = DType::bf16;
    c.head_dim = kHeadDim;
    c.sequences.clear();
    for (const int64_t length : heads.lengths) c.sequences.push_back({1, length});
    SCOPED_TRACE(testing::Message() << heads.num_kv_heads << " kv heads, " << heads.lengths[1] << " tokens");
    const AttentionBatch<BFloat16> batch(c, 79);
    const std::vector<BFloat16> got = run_attention(GetParam(), batch.in, batch.cache, [](PagedAttentionParams&) {});
    expect_matches_oracle(GetParam(), batch.in, batch.cache.view, got);
  }
}

TEST_P(PagedAttentionBatches, TheWorkspaceIsAligned) {
  AttentionCase c;
  c.sequences = {{1, 3000}};
  const AttentionBatch<float> batch(c, 80);
  Arena arena(GetParam());
  PagedAttentionParams p = place_attention(arena, batch.in, batch.cache.place(arena), backend_device(GetParam()));
  if (p.workspace == nullptr) return;  // the CPU needs none
  p.workspace = static_cast<char*>(p.workspace) + 8;
  const Status status = validate(p, backend_device(GetParam()));
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find(": it must be aligned to 16 bytes"), std::string::npos) << status.message();
}

// The workspace of the largest call is enough for any smaller one, whatever num_decode_seqs is.
TEST_P(PagedAttentionBatches, WorkspaceSizeIgnoresTheNumberOfDecodeSequences) {
  const Device device = backend_device(GetParam());
  AttentionCase c;
  c.sequences = {{1, 3000}, {1, 3000}, {9, 30}};
  for (const int64_t window : {0, 100, 120, 128, 129}) {
    c.window = window;
    const AttentionBatch<float> batch(c, 78);
    Arena arena(GetParam());
    PagedAttentionParams p = place_attention(arena, batch.in, batch.cache.place(arena), device);
    p.max_seqlen_q = 40;
    const int64_t enough = paged_attention_workspace_bytes(p, device);
    for (const int64_t max_seqlen_q : {1, 4, 9, 40}) {
      for (int64_t num_decode_seqs = 0; num_decode_seqs <= 2; ++num_decode_seqs) {
        p.max_seqlen_q = max_seqlen_q, p.num_decode_seqs = num_decode_seqs;
        EXPECT_LE(paged_attention_workspace_bytes(p, device), enough);
      }
    }
    p.batch_invariant = true;
    EXPECT_EQ(paged_attention_workspace_bytes(p, device), 0);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// batch_invariant

// Runs pieces of a batch as one batch-invariant call, and compares its rows with those of the whole batch.
template <class T>
class Pieces {
 public:
  Pieces(Backend backend, const AttentionBatch<T>& batch) : backend_(backend), batch_(batch) {
    all_ = run(whole_sequences(batch.in, 0, batch.in.seq_lens.size()), 0, 0, 0);
  }

  const std::vector<T>& all() const { return all_; }

  // The bounds are larger than needed by more_rows and more_length.
  void expect_same_bits(const std::vector<Piece>& pieces, int64_t num_decode_seqs, int64_t more_rows, int64_t more_length) {
    const AttentionInputs<T>& in = batch_.in;
    const int64_t width = in.num_q_heads * in.v_width();
    const std::vector<T> got = run(pieces, num_decode_seqs, more_rows, more_length);
    int64_t row = 0;
    for (const Piece& piece : pieces) {
      for (int64_t j = piece.begin; j < piece.end; ++j, ++row) {
        const T* want = &all_[static_cast<size_t>((in.cu_seqlens_q[piece.sequence] + j) * width)];
        ASSERT_EQ(std::memcmp(&got[static_cast<size_t>(row * width)], want, static_cast<size_t>(width) * sizeof(T)), 0)
            << "row " << j << " of sequence " << piece.sequence << " in a step of rows " << piece.begin << " to " << piece.end
            << ", one of " << pieces.size() << " sequences";
      }
    }
  }

 private:
  std::vector<T> run(const std::vector<Piece>& pieces, int64_t num_decode_seqs, int64_t more_rows, int64_t more_length) const {
    return run_attention(backend_, batch_of(batch_.in, pieces), batch_.cache, [&](PagedAttentionParams& p) {
      p.batch_invariant = true, p.num_decode_seqs = num_decode_seqs;
      p.max_seqlen_q += more_rows, p.max_seq_len += more_length;
    });
  }

  Backend backend_;
  const AttentionBatch<T>& batch_;
  std::vector<T> all_;
};

// Every sequence all at once against its rows one by one (some of them), in random chunks, and in batches mixed of all these.
template <class T>
void check_batch_invariance(Backend backend, uint64_t seed) {
  Random random(seed + 1000);
  AttentionCase c = random_case(random, seed);
  const int64_t window = random.integer(0, 2) == 0 ? 0 : random.integer(1, random.integer(0, 1) == 0 ? 20 : 150);
  c.window = window;
  int64_t most_rows = 1;
  for (int64_t s = random.integer(1, 3); s > 0; --s) {
    const int64_t length = random.integer(1, random.integer(0, 2) == 0 ? 20 : 220);
    c.sequences.push_back({std::min<int64_t>(length + random.integer(0, 1), random.integer(1, 90)), length});
    most_rows = std::max(most_rows, c.sequences.back().rows);
  }
  const int64_t keys = c.chunk > 0 && (window == 0 || c.chunk < window) ? c.chunk : window;
  const bool ring = keys > 0 && random.integer(0, 1) == 0;
  if (ring) c.ring_size = keys + most_rows - 1 + random.integer(0, 9);
  const int64_t more_rows = ring ? 0 : random.integer(0, 60);
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dtype_name(FloatFormat<T>::dtype) << " over "
                                  << dtype_name(c.type) << ", head_dim " << c.head_dim << ", window " << c.window << ", chunk "
                                  << c.chunk << ", sinks " << static_cast<int>(c.sinks) << ", ring " << c.ring_size << ", cap "
                                  << c.soft_cap);
  const AttentionBatch<T> batch(c, seed);
  Pieces<T> pieces(backend, batch);
  expect_matches_oracle(backend, batch.in, batch.cache.view, pieces.all());

  for (size_t s = 0; s < c.sequences.size(); ++s) {
    const int64_t rows = c.sequences[s].rows;
    pieces.expect_same_bits({{s, 0, rows}}, 0, more_rows, 100);
    for (const int64_t j : {int64_t{0}, random.integer(0, rows - 1), random.integer(0, rows - 1), rows - 1}) {
      pieces.expect_same_bits({{s, j, j + 1}}, random.integer(0, 1), more_rows, 0);
    }
    for (int64_t begin = 0, end = 0; begin < rows; begin = end) {
      end = begin + random.integer(1, rows - begin);
      pieces.expect_same_bits({{s, begin, end}}, 0, 0, random.integer(0, 5));
    }
  }
  for (int i = 0; i < 2; ++i) {
    std::vector<Piece> mixed;
    const int64_t num_decode_seqs = random.integer(0, 4);
    for (int64_t k = 0; k < num_decode_seqs + 3; ++k) {
      const auto s = static_cast<size_t>(random.integer(0, static_cast<int64_t>(c.sequences.size()) - 1));
      const int64_t rows = c.sequences[s].rows, begin = random.integer(0, rows - 1);
      const int64_t end = k < num_decode_seqs ? begin + random.integer(0, 1) : random.integer(begin, rows);
      mixed.push_back({s, begin, end});
    }
    pieces.expect_same_bits(mixed, num_decode_seqs, more_rows, random.integer(0, 1000));
  }
}

TEST_P(PagedAttentionBatches, ARowHasTheSameBitsInAnyBatch) {
  for (uint64_t seed = 0; seed < 42; ++seed) {
    with_dtype(seed, [&](auto type) { check_batch_invariance<decltype(type)>(GetParam(), seed); });
  }
}

// What a row must not see, and a row of the same tile does, is as large as its type can be: its weight is 0 nevertheless.
template <class T>
void check_huge_hidden_values(Backend backend, DType type, int64_t head_dim) {
  AttentionCase c;
  c.type = type, c.head_dim = head_dim, c.sequences = {{40, 100}};
  AttentionBatch<T> batch(c, 90);
  for (int64_t p = 80; p < 100; ++p) {
    const int64_t page = batch.in.block_table[static_cast<size_t>(p / c.page_size)];
    for (int64_t h = 0; h < c.num_kv_heads; ++h) {
      std::vector<float> values;
      for (int64_t d = 0; d < head_dim; ++d) {
        values.push_back((d % 2 == 0 ? 1.0f : -1.0f) * (type == DType::f16 ? 65504.0f : 1.5e38f));
      }
      batch.cache.store(false, page, p % c.page_size, h, values);
    }
  }
  Pieces<T> pieces(backend, batch);
  for (int64_t j = 0; j < 20; ++j) pieces.expect_same_bits({{0, j, j + 1}}, 0, 0, 0);
  pieces.expect_same_bits({{0, 0, 20}}, 0, 0, 0);
}

TEST_P(PagedAttentionBatches, HugeHiddenValuesLeaveNoTrace) {
  for (const int64_t head_dim : {64, 66}) {
    check_huge_hidden_values<BFloat16>(GetParam(), DType::bf16, head_dim);
    check_huge_hidden_values<Float16>(GetParam(), DType::f16, head_dim);
    check_huge_hidden_values<float>(GetParam(), DType::f32, head_dim);
  }
}

// A sum is 0: V of the keys that matter is -0, those before have weights that vanish, and hidden ones are positive.
template <class T>
void check_signs_of_zero(Backend backend, DType type) {
  AttentionCase c;
  c.type = type, c.head_dim = 64, c.sequences = {{60, 130}}, c.scale = 1.0f;
  AttentionBatch<T> batch(c, 91);
  for (size_t i = 0; i < batch.in.q.size(); ++i) batch.in.q[i] = from_float<T>(100.0f);
  for (int64_t p = 0; p < 130; ++p) {
    const int64_t page = batch.in.block_table[static_cast<size_t>(p / c.page_size)];
    for (int64_t h = 0; h < c.num_kv_heads; ++h) {
      batch.cache.store(true, page, p % c.page_size, h, std::vector<float>(64, p < 64 ? -1.0f : 0.0f));
      batch.cache.store(false, page, p % c.page_size, h, std::vector<float>(64, p < 64 ? -1.0f : p < 100 ? -0.0f : 1.0f));
    }
  }
  Pieces<T> pieces(backend, batch);
  for (int64_t j = 0; j < 30; ++j) pieces.expect_same_bits({{0, j, j + 1}}, 0, 0, 0);
}

TEST_P(PagedAttentionBatches, ZerosHaveTheSameSignInAnyBatch) {
  check_signs_of_zero<BFloat16>(GetParam(), DType::bf16);
  check_signs_of_zero<float>(GetParam(), DType::f32);
}

INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionBatches, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
