// Tests the attention layer over raw pointers against float64 end to end, and bit for bit against its four operations called by hand.
#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>
#include <prologue/layers/attention_layer.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/oracle/attention_layer.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"

namespace prologue::test {
namespace {

constexpr int64_t kHidden = 24, kQHeads = 4, kKvHeads = 2, kHeadDim = 16, kPageSize = 4, kMaxPosition = 64;
constexpr int64_t kQWidth = kQHeads * kHeadDim, kKvWidth = kKvHeads * kHeadDim;

// Which arrays of lengths there are: cache_lens for the prologue and seq_lens for attention, or one of the operations' seq_lens, or
// kv_last_page_len beside pages as CSR.
enum class Lengths { both, of_prologue, of_attention, of_pages };

struct Case {
  std::vector<int64_t> rows, cached;  // of each sequence: new tokens, and tokens that the cache holds already
  int64_t padding = 0;
  bool options = false;       // bias, QK-norm, a scaled Q, positions and slots given
  bool in_place = false;      // out is hidden_states
  bool shares_cache = false;  // no K and V of its own
  Lengths lengths = Lengths::both;
};

// Holds a batch, its weights, and a cache of shuffled pages of which a third belongs to no sequence.
template <class T>
struct Batch {
  Case c;
  int64_t num_tokens = 0, num_pages = 0, max_pages = 1;
  oracle::AttentionLayerInput<T> in;
  std::vector<T> bias, norm_weight;
  std::vector<float> table;
  std::vector<int32_t> cu_seqlens, cache_lens, seq_lens, block_table;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<T> k, v;  // the cache, [num_pages, page_size, kv_heads, head_dim]

  explicit Batch(const Case& which, uint64_t seed = 1) : c(which) {
    Random random(seed);
    cu_seqlens = {0};
    int64_t pages = 0;
    for (size_t s = 0; s < c.rows.size(); ++s) {
      const int64_t length = c.rows[s] + c.cached[s], own = (length + kPageSize - 1) / kPageSize;
      num_tokens += c.rows[s];
      pages += own;
      max_pages = std::max(max_pages, own + 1);
      cu_seqlens.push_back(static_cast<int32_t>(num_tokens));
      cache_lens.push_back(static_cast<int32_t>(c.cached[s]));
      seq_lens.push_back(static_cast<int32_t>(length));
    }
    num_tokens += c.padding;
    num_pages = pages + pages / 2 + 1;

    // Small integers: every sum of the first GEMM is exact in every type.
    const auto integers = [&](int64_t count, int64_t reach) {
      std::vector<T> values(static_cast<size_t>(count));
      for (T& x : values) x = from_float<T>(static_cast<float>(random.integer(-reach, reach)));
      return values;
    };
    const int64_t qkv_width = kQWidth + (c.shares_cache ? 0 : 2 * kKvWidth);
    in.hidden_size = kHidden;
    in.hidden_states = integers(num_tokens * kHidden, 2);
    in.qkv_weight = integers(qkv_width * kHidden, 1);
    for (T& x : in.qkv_weight) x = from_float<T>(to_float(x) / 8.0f);
    in.output_weight = random.normals<T>(kHidden * kQWidth, 0.2);
    table = random.normals<float>(kMaxPosition * kHeadDim);
    if (c.options) {
      in.output_bias = random.normals<T>(kHidden);
      bias = random.normals<T>(qkv_width);
      norm_weight = random.normals<T>(kHeadDim);
    }

    k.assign(static_cast<size_t>(num_pages * kPageSize * kKvWidth), from_float<T>(std::numeric_limits<float>::quiet_NaN()));
    v = k;
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(order);
    block_table.assign(c.rows.size() * static_cast<size_t>(max_pages), INT32_MAX);
    for (size_t s = 0; s < c.rows.size(); ++s) {
      in.cached_k.push_back(random.normals<T>(c.cached[s] * kKvWidth));
      in.cached_v.push_back(random.normals<T>(c.cached[s] * kKvWidth));
      for (int64_t p = 0; p < seq_lens[s]; ++p) {
        int32_t& page = block_table[s * static_cast<size_t>(max_pages) + static_cast<size_t>(p / kPageSize)];
        if (p % kPageSize == 0) page = order.back(), order.pop_back();
        const int64_t slot = page * kPageSize + p % kPageSize;
        if (p < c.cached[s]) {
          std::copy_n(in.cached_k[s].begin() + p * kKvWidth, kKvWidth, k.begin() + slot * kKvWidth);
          std::copy_n(in.cached_v[s].begin() + p * kKvWidth, kKvWidth, v.begin() + slot * kKvWidth);
        } else {
          positions.push_back(static_cast<int32_t>(p));
          slots.push_back(slot);
        }
      }
    }
    positions.resize(static_cast<size_t>(num_tokens), -1);
    slots.resize(static_cast<size_t>(num_tokens), -1);
  }

  // What the float64 oracle makes of it.
  std::vector<Reference> reference(double probability_error) const {
    const auto doubles = [](const auto& values) {
      std::vector<double> result;
      for (const auto& x : values) result.push_back(static_cast<double>(to_float(x)));
      return result;
    };
    oracle::AttentionLayerInput<T> layer = in;
    oracle::PrologueInput& p = layer.prologue;
    p.num_tokens = num_tokens;
    p.num_q_heads = kQHeads;
    p.num_kv_heads = kKvHeads;
    p.head_dim = kHeadDim;
    p.rotary_dim = kHeadDim;
    p.table = doubles(table);
    p.max_position = kMaxPosition;
    p.positions.assign(positions.begin(), positions.end());
    layer.scale = 0.25;
    layer.cu_seqlens_q.assign(cu_seqlens.begin(), cu_seqlens.end());
    layer.cache_lens.assign(cache_lens.begin(), cache_lens.end());
    if (c.options) {
      const std::vector<double> all = doubles(bias);
      p.q_bias.assign(all.begin(), all.begin() + kQWidth);
      p.k_bias.assign(all.begin() + kQWidth, all.begin() + kQWidth + kKvWidth);
      p.v_bias.assign(all.begin() + kQWidth + kKvWidth, all.end());
      p.q_norm.enabled = p.k_norm.enabled = true;
      p.q_norm.eps = p.k_norm.eps = static_cast<double>(1e-6f);
      p.q_norm.weight = p.k_norm.weight = doubles(norm_weight);
      p.hadamard_block = 8;
      p.q_constant = 0.5;
    }
    return oracle::attention_layer(layer, probability_error);
  }
};

// Holds the batch in an arena.
template <class T>
AttentionLayerParams place(Arena& arena, const Batch<T>& b, Device device) {
  AttentionLayerParams p;
  p.hidden_size = kHidden;
  p.hidden_stride = kHidden + 5;
  p.out_stride = b.c.in_place ? p.hidden_stride : kHidden + 3;
  std::vector<T> rows(static_cast<size_t>(b.num_tokens * p.hidden_stride));
  for (int64_t t = 0; t < b.num_tokens; ++t) {
    std::copy_n(b.in.hidden_states.begin() + t * kHidden, kHidden, rows.begin() + t * p.hidden_stride);
  }
  p.hidden_states = b.c.in_place ? arena.inout(rows) : arena.input(rows);
  p.out = b.c.in_place ? const_cast<void*>(p.hidden_states) : arena.output<T>(b.num_tokens * p.out_stride);
  p.qkv_weight = arena.input(b.in.qkv_weight);
  p.output_weight = arena.input(b.in.output_weight);
  if (!b.in.output_bias.empty()) p.output_bias = arena.input(b.in.output_bias);

  AttentionPrologueParams& prologue = p.prologue;
  prologue.num_tokens = b.num_tokens;
  prologue.num_q_heads = kQHeads;
  prologue.num_kv_heads = b.c.shares_cache ? 0 : kKvHeads;
  prologue.head_dim = kHeadDim;
  prologue.dtype = FloatFormat<T>::dtype;
  prologue.rope.rotary_dim = kHeadDim;
  set_cos_sin_table(prologue.rope, arena.input(b.table), DType::f32, prologue.rope.max_position);
  prologue.rope.max_position = kMaxPosition;
  prologue.places.num_seqs = static_cast<int64_t>(b.seq_lens.size());
  prologue.places.cu_seqlens_q = arena.input(b.cu_seqlens);
  if (b.c.lengths == Lengths::both) prologue.places.cache_lens = arena.input(b.cache_lens);
  if (b.c.lengths == Lengths::of_prologue) prologue.places.seq_lens = arena.input(b.seq_lens);
  PageTable& table = prologue.places.page_table;
  if (b.c.lengths == Lengths::of_pages) {
    std::vector<int32_t> indptr = {0}, indices, last_page_len;
    for (size_t s = 0; s < b.seq_lens.size(); ++s) {
      const int64_t pages = (b.seq_lens[s] + kPageSize - 1) / kPageSize;
      const auto row = b.block_table.begin() + static_cast<int64_t>(s) * b.max_pages;
      indices.insert(indices.end(), row, row + pages);
      indptr.push_back(static_cast<int32_t>(indices.size()));
      last_page_len.push_back(static_cast<int32_t>(b.seq_lens[s] - (pages - 1) * kPageSize));
    }
    table.kv_indptr = arena.input(indptr);
    table.kv_indices = arena.input(indices);
    table.num_kv_indices = static_cast<int64_t>(indices.size());
    table.kv_last_page_len = arena.input(last_page_len);
  } else {
    table.block_table = arena.input(b.block_table);
    table.block_table_stride = table.max_pages_per_seq = b.max_pages;
  }
  if (b.c.options) {
    prologue.places.positions = index_view(arena.input(b.positions));
    prologue.places.slot_mapping = index_view(arena.input(b.slots));
    const T* bias = arena.input(b.bias);
    prologue.bias = {bias, bias + kQWidth, bias + kQWidth + kKvWidth};
    prologue.q_norm.placement = prologue.k_norm.placement = NormPlacement::before_rope;
    prologue.q_norm.weight = prologue.k_norm.weight = arena.input(b.norm_weight);
    prologue.hadamard_block = 8;
    prologue.q_scale.constant = 0.5f;
  }
  prologue.cache.k.data = arena.inout(b.k);
  prologue.cache.v.data = arena.inout(b.v);
  prologue.cache.num_pages = b.num_pages;
  prologue.cache.page_size = kPageSize;
  prologue.cache.num_kv_heads = kKvHeads;
  prologue.cache.k.head_dim = kHeadDim;
  prologue.cache.k.strides = prologue.cache.v.strides = nhd_strides(kPageSize, kKvHeads, kHeadDim);
  prologue.faults = arena.inout(std::vector<FaultRecord>(1));

  p.attention.scale = 0.25f;
  if (b.c.lengths == Lengths::both || b.c.lengths == Lengths::of_attention) p.attention.seq_lens = arena.input(b.seq_lens);
  p.attention.max_seqlen_q = std::max<int64_t>(1, *std::max_element(b.c.rows.begin(), b.c.rows.end()));
  p.attention.max_seq_len = b.max_pages * kPageSize;
  p.workspace_bytes = attention_layer_workspace_bytes(p, device).value();
  p.workspace = arena.workspace(p.workspace_bytes);
  return p;
}

// `out` without its strides, tokens of the sequences only.
template <class T>
std::vector<T> rows_of(const Arena& arena, const AttentionLayerParams& p, int64_t num_rows) {
  const std::vector<T> all = arena.read(static_cast<const T*>(p.out));
  std::vector<T> rows;
  for (int64_t t = 0; t < num_rows; ++t) {
    const auto row = all.begin() + t * p.out_stride;
    rows.insert(rows.end(), row, row + kHidden);
  }
  return rows;
}

void* mutable_at_offset(const void* at, int64_t bytes) { return static_cast<unsigned char*>(const_cast<void*>(at)) + bytes; }

// This comes after what the first two operations write there.
void* near_end_of_workspace(const AttentionLayerParams& p) { return mutable_at_offset(p.workspace, p.workspace_bytes - 1024); }

class AttentionLayerTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    auto context = GemmContext::create(device());
    ASSERT_TRUE(context.ok()) << context.status().message();
    context_ = std::move(context).value();
  }
  Device device() const { return backend_device(GetParam()); }
  Arena::Operation layer(const AttentionLayerParams& p) {
    return [&](const Execution& execution) { return attention_layer(p, *context_, execution); };
  }
  template <class T>
  void check_against_float64();
  template <class T>
  void check_against_operations();

  std::unique_ptr<GemmContext> context_;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{1}, {0}},
      {{11}, {0}},                       // prefill
      {{1, 1, 1}, {3, 4, 30}},           // decode
      {{1, 9, 1, 3}, {17, 0, 7, 5}, 2},  // both, and padding
      {{5, 0, 1}, {2, 6, 12}, 1, true},  // every option
      {{2, 1}, {1, 8}, 0, false, true},  // in place
      {{33}, {20}, 0, true, true},       // a long chunk
      {{1, 9, 1, 3}, {17, 0, 7, 5}, 2, false, false, false, Lengths::of_prologue},
      {{1, 9, 0, 3}, {17, 0, 7, 5}, 2, false, false, false, Lengths::of_attention},
      {{5, 0, 1}, {2, 6, 12}, 1, true, false, false, Lengths::of_prologue},
      {{1, 9, 0, 3}, {17, 0, 7, 5}, 2, false, false, false, Lengths::of_pages},
      {{5, 0, 1}, {2, 6, 12}, 1, true, false, false, Lengths::of_pages},
  };
  return all;
}

template <class T>
void AttentionLayerTest::check_against_float64() {
  const double probability_error =
      sizeof(T) == 2 && device() == Device::cuda ? std::ldexp(1.0, -FloatFormat<T>::mantissa_bits - 1) : 0;
  for (size_t i = 0; i < cases().size(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i << ", " << dtype_name(FloatFormat<T>::dtype));
    const Batch<T> batch(cases()[i], i + 1);
    Arena arena(GetParam());
    const AttentionLayerParams p = place(arena, batch, device());
    const Status status = arena.run(layer(p));
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(arena.read(p.prologue.faults)[0].count, 0u);
    std::vector<Reference> want = batch.reference(probability_error);
    want.resize(static_cast<size_t>(batch.cu_seqlens.back() * kHidden));
    expect_close(rows_of<T>(arena, p, batch.cu_seqlens.back()), want, kHidden, "out", kDefaultSteps, false);
  }
}

TEST_P(AttentionLayerTest, MatchesFloat64InFloat32) { check_against_float64<float>(); }
TEST_P(AttentionLayerTest, MatchesFloat64InBFloat16) { check_against_float64<BFloat16>(); }
TEST_P(AttentionLayerTest, MatchesFloat64InFloat16) { check_against_float64<Float16>(); }

// The layer is its four operations and nothing else: the same bits in `out` and in the cache.
template <class T>
void AttentionLayerTest::check_against_operations() {
  for (Case c : {cases()[3], cases()[4], cases()[7], cases()[8], cases()[10], Case{{4, 1}, {3, 9}, 0, false, false, true},
                 Case{{1}, {9}, 0, false, false, true}}) {
    const Batch<T> batch(c, 9);
    Arena arena(GetParam());
    AttentionLayerParams p = place(arena, batch, device());
    p.overlaps = true;
    const Status status = arena.run(layer(p));
    ASSERT_TRUE(status.ok()) << status.message();

    Arena by_hand(GetParam());
    const AttentionLayerParams same = place(by_hand, batch, device());
    AttentionPrologueParams prologue = same.prologue;
    const int64_t num_tokens = batch.num_tokens;
    T* q = by_hand.output<T>(num_tokens * kQWidth);
    T* attended = by_hand.output<T>(num_tokens * kQWidth);
    ProjectionParams last;
    last.num_tokens = num_tokens;
    last.n = kHidden;
    last.k = last.x_stride = kQWidth;
    last.dtype = prologue.dtype;
    last.x = attended;
    last.weight = same.output_weight;
    last.bias = same.output_bias;
    last.y = same.out;
    last.y_stride = same.out_stride;
    prologue.q_out = {q, kQWidth, kHeadDim};
    PagedAttentionParams attention = same.attention;
    if (batch.c.lengths == Lengths::of_prologue) attention.seq_lens = prologue.places.seq_lens;
    if (batch.c.lengths == Lengths::of_attention) prologue.places.seq_lens = attention.seq_lens;
    attention.num_tokens = num_tokens;
    attention.num_seqs = prologue.places.num_seqs;
    attention.num_q_heads = kQHeads;
    attention.head_dim = kHeadDim;
    attention.dtype = prologue.dtype;
    attention.q = as_input(prologue.q_out);
    attention.kv = prologue.cache;
    attention.page_table = prologue.places.page_table;
    attention.cu_seqlens_q = prologue.places.cu_seqlens_q;
    attention.out = {attended, kQWidth, kHeadDim};
    attention.workspace_bytes = paged_attention_workspace_bytes(attention, device());
    attention.workspace = by_hand.workspace(attention.workspace_bytes);
    QkvPrologueParams first;
    first.hidden_size = kHidden;
    first.hidden_states = same.hidden_states;
    first.hidden_stride = same.hidden_stride;
    first.weight = same.qkv_weight;
    first.overlaps = true;
    first.prologue = prologue;
    first.workspace_bytes = qkv_prologue_workspace_bytes(first);
    first.workspace = by_hand.workspace(first.workspace_bytes);
    const Status done = by_hand.run([&](const Execution& execution) -> Status {
      PROLOGUE_RETURN_IF_ERROR(qkv_prologue(first, *context_, execution));
      PROLOGUE_RETURN_IF_ERROR(paged_attention(attention, execution));
      return projection(last, *context_, execution);
    });
    ASSERT_TRUE(done.ok()) << done.message();
    const auto bits = [](const std::vector<T>& values) {
      return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    };
    const int64_t rows = batch.cu_seqlens.back();
    EXPECT_EQ(bits(rows_of<T>(arena, p, rows)), bits(rows_of<T>(by_hand, same, rows)));
    EXPECT_EQ(bits(arena.read(static_cast<const T*>(p.prologue.cache.k.data))),
              bits(by_hand.read(static_cast<const T*>(prologue.cache.k.data))));
    EXPECT_EQ(bits(arena.read(static_cast<const T*>(p.prologue.cache.v.data))),
              bits(by_hand.read(static_cast<const T*>(prologue.cache.v.data))));
  }
}

TEST_P(AttentionLayerTest, IsItsOperationsInFloat32) { check_against_operations<float>(); }
TEST_P(AttentionLayerTest, IsItsOperationsInBFloat16) { check_against_operations<BFloat16>(); }

// Two layers of real sizes run one after the other in one workspace, each launch as early as it may begin, and again as separate
// operations. The sums have other orders, so results differ by rounding; what is read too early would differ by more.
struct RealSizes {
  int64_t hidden_size, num_q_heads, num_kv_heads, head_dim;
};

void expect_what_separate_operations_give(const RealSizes& m, int64_t num_tokens, GemmContext& context) {
  using T = BFloat16;
  constexpr int64_t kCached = 300, kPage = 16, kPagesOfSequence = (kCached + kPage) / kPage;
  const int64_t q_width = m.num_q_heads * m.head_dim, kv_width = m.num_kv_heads * m.head_dim, width = q_width + 2 * kv_width;
  const int64_t num_pages = num_tokens * kPagesOfSequence;
  Random random(5);
  const auto qkv_weight = random.normals<T>(width * m.hidden_size, 1.0 / std::sqrt(m.hidden_size));
  const auto output_weight = random.normals<T>(m.hidden_size * q_width, 1.0 / std::sqrt(q_width));
  const auto hidden_states = random.normals<T>(num_tokens * m.hidden_size);
  const auto table = random.normals<float>((kCached + 1) * m.head_dim);
  std::vector<std::vector<T>> caches;  // K and V of both layers
  for (int i = 0; i < 4; ++i) caches.push_back(random.normals<T>(num_pages * kPage * kv_width));
  std::vector<int32_t> cu_seqlens(static_cast<size_t>(num_tokens) + 1), block_table(static_cast<size_t>(num_pages));
  std::iota(cu_seqlens.begin(), cu_seqlens.end(), 0);
  std::iota(block_table.rbegin(), block_table.rend(), 0);

  const auto run = [&](bool separate) {
    Arena arena(Backend::cuda);
    AttentionLayerParams layers[2];
    T* const out = arena.output<T>(2 * num_tokens * m.hidden_size);
    for (int l = 0; l < 2; ++l) {
      AttentionLayerParams& p = layers[l];
      if (l == 1) p = layers[0];
      p.out = out + l * num_tokens * m.hidden_size;
      AttentionPrologueParams& a = p.prologue;
      a.cache.k.data = arena.inout(caches[static_cast<size_t>(2 * l)]);
      a.cache.v.data = arena.inout(caches[static_cast<size_t>(2 * l + 1)]);
      if (l == 1) {
        p.hidden_states = out;
        continue;
      }
      p.hidden_size = p.hidden_stride = p.out_stride = m.hidden_size;
      p.hidden_states = arena.input(hidden_states);
      p.qkv_weight = arena.input(qkv_weight);
      p.output_weight = arena.input(output_weight);
      p.overlaps = true;
      a.num_tokens = num_tokens;
      a.num_q_heads = m.num_q_heads;
      a.num_kv_heads = a.cache.num_kv_heads = m.num_kv_heads;
      a.head_dim = a.cache.k.head_dim = a.rope.rotary_dim = m.head_dim;
      a.dtype = DType::bf16;
      set_cos_sin_table(a.rope, arena.input(table), DType::f32, kCached + 1);
      a.cache.num_pages = num_pages;
      a.cache.page_size = kPage;
      a.cache.k.strides = a.cache.v.strides = nhd_strides(kPage, m.num_kv_heads, m.head_dim);
      a.places.num_seqs = num_tokens;
      a.places.cu_seqlens_q = arena.input(cu_seqlens);
      a.places.seq_lens = arena.input(std::vector<int32_t>(static_cast<size_t>(num_tokens), kCached + 1));
      a.places.page_table.block_table = arena.input(block_table);
      a.places.page_table.block_table_stride = a.places.page_table.max_pages_per_seq = kPagesOfSequence;
      a.faults = arena.inout(std::vector<FaultRecord>(1));
      p.attention.scale = static_cast<float>(1.0 / std::sqrt(m.head_dim));
      p.attention.max_seqlen_q = 1;
      p.attention.max_seq_len = kCached + 1;
      p.attention.counters = arena.inout(std::vector<uint32_t>(kPagedAttentionCounters));
      p.attention.past_is_ready = !separate;
      p.workspace_bytes = attention_layer_workspace_bytes(p, Device::cuda).value();
      p.workspace = arena.workspace(p.workspace_bytes);
    }
    T* const qkv = arena.output<T>(num_tokens * width);
    T* const attended = arena.output<T>(num_tokens * q_width);
    const Status status = arena.run([&](const Execution& execution) -> Status {
      for (const AttentionLayerParams& p : layers) {
        if (!separate) {
          PROLOGUE_RETURN_IF_ERROR(attention_layer(p, context, execution));
          continue;
        }
        AttentionPrologueParams prologue = p.prologue;
        set_packed_qkv(prologue, qkv, width);
        prologue.q_out = {qkv, width, m.head_dim};
        PagedAttentionParams attention = p.attention;
        attention.num_tokens = attention.num_seqs = num_tokens;
        attention.num_q_heads = m.num_q_heads;
        attention.head_dim = m.head_dim;
        attention.dtype = DType::bf16;
        attention.q = as_input(prologue.q_out);
        attention.kv = prologue.cache;
        attention.page_table = prologue.places.page_table;
        attention.cu_seqlens_q = prologue.places.cu_seqlens_q;
        attention.seq_lens = prologue.places.seq_lens;
        attention.out = {attended, q_width, m.head_dim};
        attention.workspace_bytes = paged_attention_workspace_bytes(attention, Device::cuda);
        attention.workspace = attention.workspace_bytes > 0 ? p.workspace : nullptr;
        const GemmParams first = {num_tokens,    width,        m.hidden_size, DType::bf16, DType::bf16, p.hidden_states,
                                  m.hidden_size, p.qkv_weight, nullptr,       qkv,         width};
        const GemmParams last = {num_tokens, m.hidden_size,   q_width, DType::bf16, DType::bf16,  attended,
                                 q_width,    p.output_weight, nullptr, p.out,       m.hidden_size};
        PROLOGUE_RETURN_IF_ERROR(gemm(first, context, execution));
        PROLOGUE_RETURN_IF_ERROR(attention_prologue(prologue, execution));
        PROLOGUE_RETURN_IF_ERROR(paged_attention(attention, execution));
        PROLOGUE_RETURN_IF_ERROR(gemm(last, context, execution));
      }
      return {};
    });
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(arena.read(layers[0].prologue.faults)[0].count, 0u);
    return arena.read(out);
  };
  const std::vector<T> want = run(true), got = run(false);
  double squares = 0.0;
  for (const T x : want) squares += static_cast<double>(to_float(x)) * static_cast<double>(to_float(x));
  const double bound = 0.06 * std::sqrt(squares / static_cast<double>(want.size()));
  int64_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(std::abs(static_cast<double>(to_float(want[i])) - static_cast<double>(to_float(got[i]))) <= bound)) ++wrong;
  }
  EXPECT_EQ(wrong, 0) << "of " << want.size() << ": " << num_tokens << " tokens of " << m.hidden_size;
}

TEST(AttentionLayer, BeginsEarlyAtRealSizes_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
#ifdef PROLOGUE_CUDA_EMULATED
  GTEST_SKIP() << "for a GPU";
#endif
  const auto context = GemmContext::create(Device::cuda);
  ASSERT_TRUE(context.ok()) << context.status().message();
  for (const RealSizes& m : {RealSizes{4096, 32, 8, 128}, RealSizes{2048, 32, 8, 64}, RealSizes{576, 9, 3, 64}}) {
    for (const int64_t num_tokens : {1, 4, 12, 40, 64}) expect_what_separate_operations_give(m, num_tokens, **context);
  }
}

TEST_P(AttentionLayerTest, NoTokensNoWork) {
  Arena arena(GetParam());
  const AttentionLayerParams p = place(arena, Batch<float>({{0}, {3}}), device());
  const Status status = arena.run(layer(p));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(arena.untouched());
}

// One page does not exist: the sequence's own rows are of no use and the fault is recorded, the others are as they were.
TEST_P(AttentionLayerTest, FaultsAreRecorded) {
  Batch<float> batch({{2, 3}, {6, 2}});
  Arena good(GetParam());
  const AttentionLayerParams before = place(good, batch, device());
  ASSERT_TRUE(good.run(layer(before)).ok());
  batch.block_table[0] = -7;
  batch.block_table[1] = INT32_MAX;
  Arena bad(GetParam());
  const AttentionLayerParams after = place(bad, batch, device());
  ASSERT_TRUE(bad.run(layer(after)).ok());
  const Fault fault = decode_fault(bad.read(after.prologue.faults)[0]);
  EXPECT_EQ(fault.code, FaultCode::page_out_of_range);
  EXPECT_EQ(fault.token, 0);
  EXPECT_EQ(fault.count, 4u);  // both tokens, by both operations
  const std::vector<float> a = rows_of<float>(good, before, 5), b = rows_of<float>(bad, after, 5);
  EXPECT_TRUE(std::equal(a.begin() + 2 * kHidden, a.end(), b.begin() + 2 * kHidden));
}

TEST_P(AttentionLayerTest, RefusesBeforeAnythingRuns) {
  using P = AttentionLayerParams;
  constexpr StatusCode kInvalid = StatusCode::invalid_argument, kUnsupported = StatusCode::unsupported;
  Arena sizes(GetParam());
  const int64_t needed = place(sizes, Batch<float>({{5, 1}, {2, 9}}), device()).workspace_bytes;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.hidden_size = 0; }, kInvalid, "attention_layer: hidden_size is 0: it must lie in 1..2147483647"},
      {[](P& p) { p.prologue.num_tokens = -1; }, kInvalid,
       "attention_layer: prologue.num_tokens is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.prologue.q8_out.data = p.workspace; }, kUnsupported,
       "attention_layer: prologue.q8_out is given: attention takes Q in dtype"},
      {[](P& p) { p.prologue.num_groups = 1; }, kUnsupported,
       "attention_layer: prologue.num_groups is 1: the projection makes Q, K and V only, and it must be 0"},
      {[](P& p) { p.prologue.q_rope.data = p.workspace; }, kUnsupported,
       "attention_layer: prologue.q_rope is given: the projection makes whole heads"},
      {[](P& p) { p.prologue.k_rope.data = p.workspace; }, kUnsupported,
       "attention_layer: prologue.k_rope is given: the projection makes whole heads"},
      {[&](P& p) { p.workspace_bytes -= 1; }, kInvalid,
       str_cat("attention_layer: workspace has ", needed - 1, " bytes: this call needs ", needed)},
      {[&](P& p) { p.workspace = nullptr; }, kInvalid,
       str_cat("attention_layer: workspace has 0 bytes: this call needs ", needed)},
      {[](P& p) { p.hidden_stride = 23; }, kInvalid,
       "attention_layer: qkv projection: gemm: x_stride is 23: it must be at least k, which is 24"},
      {[](P& p) { p.out_stride = 23; }, kInvalid,
       "attention_layer: output projection: projection: y_stride is 23: it must be at least n, which is 24"},
      {[](P& p) { p.qkv_weight = nullptr; }, kInvalid,
       "attention_layer: qkv projection: gemm: weight is null, but m, n, k are 6, 128, 24"},
      {[](P& p) { p.out = nullptr; }, kInvalid, "attention_layer: output projection: projection: y is null"},
      {[](P& p) { p.prologue.head_dim = 15; }, kUnsupported,
       "attention_prologue: head_dim is 15: supported is every even number in 2..1024"},
      {[](P& p) { p.prologue.rope.cos.data = nullptr; }, kInvalid, "attention_prologue: rope.cos is null"},
      {[](P& p) { p.prologue.num_q_heads = 3; }, kInvalid,
       "paged_attention: num_q_heads is 3: it must be a multiple of cache.num_kv_heads, 2"},
      {[](P& p) { p.attention.scale = std::numeric_limits<float>::infinity(); }, kInvalid,
       "paged_attention: scale is inf: it must be finite"},
      {[](P& p) { p.attention.seq_lens = nullptr; }, kInvalid, "paged_attention: seq_lens is null"},
      {[](P& p) { p.prologue.places.seq_lens = p.prologue.places.cache_lens; }, kInvalid,
       "attention_layer: prologue.places.seq_lens and attention.seq_lens are different arrays: give one of them"},
      {[](P& p) { p.prologue.places.seq_lens = p.attention.seq_lens; }, kInvalid,
       "attention_prologue: cache_lens and seq_lens are both given: a sequence has one length"},
      {[](P& p) { p.prologue.places.cache_lens = p.attention.seq_lens = nullptr; }, kInvalid,
       "attention_prologue: cache_lens, seq_lens and kv_last_page_len are all null: what is derived needs the lengths of "
       "sequences"},
      {[](P& p) { p.prologue.places.page_table.kv_indptr = p.attention.seq_lens; }, kInvalid,
       "attention_prologue: block_table and kv_indptr are both given: page_table has one of the two forms"},
  };
  expect_refusals("", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    AttentionLayerParams p = place(arena, Batch<float>({{5, 1}, {2, 9}}), device());
    change(p);
    return refused(arena.run(layer(p)), arena);
  });

  Arena arena(GetParam());
  AttentionLayerParams p = place(arena, Batch<float>({{5, 1}, {2, 9}}), device());
  p.workspace = static_cast<char*>(p.workspace) + 32;
  const Status status = arena.run(layer(p));
  EXPECT_NE(status.message().find("it must be aligned to 64 bytes"), std::string::npos) << status.message();
  EXPECT_TRUE(arena.untouched());
}

// What one operation writes over what another reads: each of them alone sees nothing wrong.
TEST_P(AttentionLayerTest, RefusesToWriteOverWhatAnotherOperationReads) {
  using P = AttentionLayerParams;
  const auto mutable_at = [](const void* at) { return const_cast<void*>(at); };
  const std::vector<Refusal<P>> refusals = {
      {[&](P& p) { p.out = mutable_at(p.qkv_weight); }, "out overlaps qkv_weight"},
      {[](P& p) { p.out = p.prologue.cache.k.data; }, "out overlaps cache.k"},
      {[](P& p) { p.out = p.prologue.cache.v.data; }, "out overlaps cache.v"},
      {[&](P& p) { p.out = mutable_at(p.prologue.rope.cos.data); }, "out overlaps rope.cos"},
      {[&](P& p) { p.out = mutable_at(p.prologue.places.page_table.block_table); }, "out overlaps block_table"},
      {[&](P& p) { p.out = mutable_at(p.attention.seq_lens); }, "out overlaps seq_lens"},
      {[&](P& p) { p.out = mutable_at(p.prologue.bias.k); }, "out overlaps bias.k"},
      {[](P& p) { p.out = mutable_at_offset(p.hidden_states, 4); }, "out overlaps hidden_states"},
      {[&](P& p) { p.workspace = mutable_at(p.output_weight); }, "workspace overlaps output_weight"},
      {[](P& p) { p.hidden_states = near_end_of_workspace(p); }, "workspace overlaps hidden_states"},
      {[](P& p) { p.workspace = p.out; }, "out overlaps workspace"},
      {[](P& p) { p.output_weight = mutable_at_offset(p.workspace, 64); }, "workspace overlaps output_weight"},
      {[](P& p) {
         set_cos_sin_table(p.prologue.rope, static_cast<const float*>(near_end_of_workspace(p)), DType::f32,
                           p.prologue.rope.max_position);
       },
       "workspace overlaps rope.cos"},
      {[](P& p) { p.hidden_states = p.prologue.cache.k.data; }, "cache.k overlaps hidden_states"},
      {[](P& p) { p.prologue.cache.v.data = const_cast<void*>(p.output_weight); }, "cache.v overlaps output_weight"},
      {[](P& p) { p.prologue.faults = static_cast<FaultRecord*>(const_cast<void*>(p.qkv_weight)); },
       "faults overlaps qkv_weight"},
      {[](P& p) { p.prologue.faults = static_cast<FaultRecord*>(p.out); }, "out overlaps faults"},
      {[](P& p) { p.prologue.token_faults = static_cast<uint8_t*>(near_end_of_workspace(p)); },
       "workspace overlaps token_faults"},
      {[](P& p) { p.prologue.token_faults = static_cast<uint8_t*>(const_cast<void*>(p.output_bias)); },
       "token_faults overlaps output_bias"},
      {[](P& p) { p.prologue.token_faults = reinterpret_cast<uint8_t*>(const_cast<int32_t*>(p.attention.seq_lens)); },
       "token_faults overlaps seq_lens"},
  };
  const Batch<float> batch({{5, 1}, {2, 9}, 0, true});
  for (const auto& refusal : refusals) {
    SCOPED_TRACE(refusal.message);
    Arena arena(GetParam());
    P p = place(arena, batch, device());
    refusal.change(p);
    const Status status = arena.run(layer(p));
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    const std::string& message = status.message();
    const std::string wanted = "attention_layer: " + refusal.message;
    const size_t at = wanted.find(" overlaps ");  // which of the two is named first is of no interest
    const std::string exchanged =
        "attention_layer: " + wanted.substr(at + 10) + " overlaps " + refusal.message.substr(0, refusal.message.find(' '));
    // On a GPU arrays are close to each other, and the workspace is larger than the output: what is moved may overlap several.
    if (device() == Device::cpu && refusal.message != "out overlaps workspace") {
      EXPECT_TRUE(message == wanted || message == exchanged) << message;
    } else {
      EXPECT_NE(message.find(" overlaps "), std::string::npos) << message;
    }
    EXPECT_TRUE(arena.untouched());
  }
}

// A layer that reads another's cache does not write it, and nothing may write over it either.
TEST_P(AttentionLayerTest, ACacheThatIsOnlyReadIsNotWrittenOver) {
  Arena arena(GetParam());
  AttentionLayerParams p = place(arena, Batch<float>({{4, 1}, {3, 9}, 0, false, false, true}), device());
  p.out = p.prologue.cache.v.data;
  EXPECT_EQ(arena.run(layer(p)).message(), "attention_layer: out overlaps cache.v");
  EXPECT_TRUE(arena.untouched());
}

TEST(AttentionLayer, WorkspaceGrowsWithTheTokensAndNeedsNoPointer) {
  AttentionLayerParams p;
  p.hidden_size = 64;
  p.prologue.dtype = DType::f32;
  p.prologue.num_q_heads = 4;
  p.prologue.num_kv_heads = p.prologue.cache.num_kv_heads = 2;
  p.prologue.head_dim = 16;
  p.prologue.places.page_table.block_table_stride = p.prologue.places.page_table.max_pages_per_seq = 8;
  p.attention.max_seqlen_q = p.attention.max_seq_len = 100;
  int64_t last = -1;
  for (const int64_t num_tokens : {0, 1, 2, 100, 1 << 20}) {
    p.prologue.num_tokens = num_tokens;
    const Result<int64_t> bytes = attention_layer_workspace_bytes(p, Device::cpu);
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    EXPECT_GT(*bytes, last);
    EXPECT_GE(*bytes, num_tokens * (128 + 64) * 4);
    last = *bytes;
  }
  p.prologue.head_dim = 0;
  EXPECT_EQ(attention_layer_workspace_bytes(p, Device::cpu).status().code(), StatusCode::unsupported);
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionLayerTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
// Two ranks have half of the heads each: what they return is what a layer with all heads does.
TEST(AttentionLayerOfRank, IsAPartOfTheLayer) {
  constexpr int64_t kRanks = 2, kOwnQ = kQHeads / kRanks * kHeadDim, kOwnKv = kKvHeads / kRanks * kHeadDim;
  const Batch<float> batch({{1, 9, 1, 3}, {17, 0, 7, 5}}, 5);
  Arena arena(Backend::cpu);
  const AttentionLayerParams whole = place(arena, batch, Device::cpu);
  const auto context = GemmContext::create(Device::cpu).value();
  ASSERT_TRUE(arena.run([&](const Execution& execution) { return attention_layer(whole, *context, execution); }).ok());
  const std::vector<float> want = rows_of<float>(arena, whole, batch.num_tokens);

  Arena arenas[kRanks] = {Arena(Backend::cpu), Arena(Backend::cpu)};
  AttentionLayerParams parts[kRanks];
  std::vector<std::vector<float>> outs(kRanks, std::vector<float>(static_cast<size_t>(batch.num_tokens * kHidden)));
  std::vector<std::vector<float>> qkv(kRanks), output(kRanks);
  for (int64_t r = 0; r < kRanks; ++r) {
    const auto rank = static_cast<size_t>(r);
    AttentionLayerParams& p = parts[r] = place(arenas[r], batch, Device::cpu);
    const auto add_rows = [&](int64_t first, int64_t count) {
      const auto begin = batch.in.qkv_weight.begin() + first * kHidden;
      qkv[rank].insert(qkv[rank].end(), begin, begin + count * kHidden);
    };
    add_rows(r * kOwnQ, kOwnQ);
    add_rows(kQWidth + r * kOwnKv, kOwnKv);
    add_rows(kQWidth + kKvWidth + r * kOwnKv, kOwnKv);
    for (int64_t row = 0; row < kHidden; ++row) {
      const auto begin = batch.in.output_weight.begin() + row * kQWidth + r * kOwnQ;
      output[rank].insert(output[rank].end(), begin, begin + kOwnQ);
    }
    p.qkv_weight = qkv[rank].data();
    p.output_weight = output[rank].data();
    p.out = outs[rank].data();
    p.out_stride = kHidden;
    p.prologue.num_q_heads = kQHeads / kRanks;
    p.prologue.num_kv_heads = p.prologue.cache.num_kv_heads = kKvHeads / kRanks;
    for (PagedHeads* heads : {&p.prologue.cache.k, &p.prologue.cache.v}) heads->data = mutable_at_offset(heads->data, r * kOwnKv * 4);
  }
  const auto ranks = create_communicators(Device::cpu, kRanks).value();
  const auto run_all = [&](const auto& run) {
    std::vector<Status> statuses(kRanks);
    std::vector<std::thread> threads;
    for (int64_t r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        const auto own = GemmContext::create(Device::cpu).value();
        statuses[static_cast<size_t>(r)] = run(parts[r], *own, *ranks[static_cast<size_t>(r)]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  };
  const auto run = [](const AttentionLayerParams& p, GemmContext& own, Communicator& rank) {
    return attention_layer_of_rank(p, own, rank, {Device::cpu, 1});
  };
  for (const Status& status : run_all(run)) ASSERT_TRUE(status.ok()) << status.message();
  for (const std::vector<float>& out : outs) {
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(out[i], want[i], 1e-4) << i;
  }
  EXPECT_EQ(outs[0], outs[1]);

  for (AttentionLayerParams& p : parts) p.out_stride = kHidden + 1;
  for (const Status& status : run_all(run)) {
    EXPECT_EQ(status.message(),
              "attention_layer: out_stride is 25: the sum over ranks needs contiguous rows, and 24 (hidden_size)");
  }
}

}  // namespace prologue::test
