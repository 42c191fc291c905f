// The six orders of a KV cache that vLLM has since 0.33 (KVCacheLayout, vllm#42082), by the strides that docs/coming-from.md gives: the prologue
// writes every layer, attention reads it, and each byte stands where vLLM's name of the order says.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

#include "tests/support/attention_batch.h"
#include "tests/support/bits.h"
#include "tests/support/random.h"

namespace prologue::test {
namespace {

constexpr int64_t kQHeads = 4, kHeadDim = 64;
// The axes, as vLLM calls them: layers, blocks, heads, tokens of a block, and the content of a head of a token, its K and then its V.
constexpr int64_t L = 3, B = 5, H = 2, N = 8, C = 2 * kHeadDim;

// The strides in elements, as on the page.
struct Order {
  const char* name;
  int64_t layer, page, token, head;
};

std::vector<Order> vllm_orders() {
  std::vector<Order> orders;
  const auto add = [&](const char* name, int64_t layer, int64_t page, int64_t token, int64_t head) {
    orders.push_back({name, layer, page, token, head});
  };
  add("LBHNC", B * H * N * C, H * N * C, C, N * C);
  add("LBNHC", B * N * H * C, N * H * C, H * C, C);
  add("LHBNC", H * B * N * C, N * C, C, B * N * C);
  add("BLHNC", H * N * C, L * H * N * C, C, N * C);
  add("BLNHC", N * H * C, L * N * H * C, H * C, C);
  add("BHLNC", N * C, H * L * N * C, C, L * N * C);
  return orders;
}

// Returns which element of a dense array with the axes of `name` this is.
size_t element(std::string_view name, int64_t layer, int64_t block, int64_t head, int64_t token, int64_t channel) {
  int64_t at = 0;
  for (const char axis : name) {
    switch (axis) {
      case 'L': at = at * L + layer; break;
      case 'B': at = at * B + block; break;
      case 'H': at = at * H + head; break;
      case 'N': at = at * N + token; break;
      default: at = at * C + channel; break;
    }
  }
  return static_cast<size_t>(at);
}

template <class T>
PagedKvView cache_of(const Order& order, T* kv_cache, int64_t layer) {
  const int64_t num_blocks = B, block_size = N, num_kv_heads = H, head_dim = kHeadDim;
  // snippet: kv_cache_order
  PagedKvView cache;
  cache.num_pages = num_blocks, cache.page_size = block_size, cache.num_kv_heads = num_kv_heads;
  cache.k.head_dim = cache.v.head_dim = head_dim;
  cache.k.data = kv_cache + layer * order.layer;
  cache.v.data = kv_cache + layer * order.layer + head_dim;
  cache.k.strides = cache.v.strides = {order.page, order.token, order.head};
  // end snippet
  return cache;
}

class KvCacheOrders : public testing::TestWithParam<std::tuple<Order, Backend>> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(backend()); }
  static const Order& order() { return std::get<0>(GetParam()); }
  static Backend backend() { return std::get<1>(GetParam()); }

  // Two sequences, of 11 and 3 tokens.
  static constexpr int64_t kTokens = 14, kRows = kTokens * H * kHeadDim;
  const std::vector<int32_t> block_table_ = {3, 1, 4, 0}, lengths_ = {11, 3};
  std::vector<int64_t> positions_, slots_;

  template <class T>
  void run() {
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int64_t p = 0; p < lengths_[s]; ++p) {
        positions_.push_back(p);
        slots_.push_back(block_table_[2 * s + static_cast<size_t>(p / N)] * N + p % N);
      }
    }
    Random random(42);
    const std::vector<T> q = random.normals<T>(kTokens * kQHeads * kHeadDim);
    const std::vector<T> k = random.normals<T>(L * kRows), v = random.normals<T>(L * kRows);
    const std::vector<T> kv_cache = written(q, k, v);
    for (int64_t layer = 0; layer < L; ++layer) {
      expect_attended(kv_cache, layer, q, {0, 11, 14});
      expect_attended(kv_cache, layer, {q.begin(), q.begin() + 2 * kQHeads * kHeadDim}, {0, 1, 2});  // decode
    }
  }

  // Returns the cache after the prologue of every layer, having checked all of it.
  template <class T>
  std::vector<T> written(const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v) {
    Arena arena(backend());
    T* kv_cache = arena.output<T>(L * B * H * N * C);
    T* k_out = arena.output<T>(L * kRows);
    AttentionPrologueParams p;
    p.num_tokens = kTokens, p.num_q_heads = kQHeads, p.num_kv_heads = H, p.head_dim = kHeadDim;
    p.dtype = FloatFormat<T>::dtype;
    p.q = {arena.input(q), kQHeads * kHeadDim, kHeadDim};
    p.q_out = {arena.output<T>(kTokens * kQHeads * kHeadDim), kQHeads * kHeadDim, kHeadDim};
    p.rope.rotary_dim = kHeadDim;
    set_cos_sin_table(p.rope, arena.input(Random(43).normals<float>(16 * kHeadDim)), DType::f32, 16);
    p.places.positions = index_view(arena.input(positions_));
    p.places.slot_mapping = index_view(arena.input(slots_));
    p.faults = arena.inout(std::vector<FaultRecord>(1));
    const T *const k_in = arena.input(k), *const v_in = arena.input(v);
    const Status status = arena.run([&](const Execution& execution) {
      for (int64_t layer = 0; layer < L; ++layer) {
        p.k = {k_in + layer * kRows, H * kHeadDim, kHeadDim}, p.v = {v_in + layer * kRows, H * kHeadDim, kHeadDim};
        p.k_out = {k_out + layer * kRows, H * kHeadDim, kHeadDim};
        p.cache = cache_of(order(), kv_cache, layer);
        PROLOGUE_RETURN_IF_ERROR(attention_prologue(p, execution));
      }
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();

    const std::vector<T> rotated = arena.read(static_cast<const T*>(k_out)), got = arena.read(static_cast<const T*>(kv_cache));
    std::vector<T> want = poisoned<T>(L * B * H * N * C);
    for (int64_t layer = 0; layer < L; ++layer) {
      for (int64_t t = 0; t < kTokens; ++t) {
        const int64_t slot = slots_[static_cast<size_t>(t)];
        for (int64_t i = 0; i < H * kHeadDim; ++i) {
          const auto from = static_cast<size_t>(layer * kRows + t * H * kHeadDim + i);
          const auto at = [&](int64_t channel) {
            return element(order().name, layer, slot / N, i / kHeadDim, slot % N, channel);
          };
          want[at(i % kHeadDim)] = rotated[from];
          want[at(kHeadDim + i % kHeadDim)] = v[from];
        }
      }
    }
    EXPECT_TRUE(same_bits(got, want));
    return got;
  }

  template <class T>
  void expect_attended(const std::vector<T>& kv_cache, int64_t layer, const std::vector<T>& q,
                       const std::vector<int32_t>& cu_seqlens_q) {
    Arena arena(backend());
    AttentionInputs<T> in;
    in.num_tokens = cu_seqlens_q.back(), in.num_q_heads = kQHeads, in.num_kv_heads = H, in.head_dim = kHeadDim;
    in.page_size = N, in.num_pages = B, in.max_pages_per_seq = in.block_table_stride = 2;
    in.scale = 0.125;
    in.q = q;
    in.q_token_stride = kQHeads * kHeadDim, in.q_head_stride = kHeadDim;
    in.block_table = block_table_, in.cu_seqlens_q = cu_seqlens_q, in.seq_lens = lengths_;
    const auto value = [&](int64_t page, int64_t offset, int64_t head, int64_t channel) {
      return static_cast<double>(to_float(kv_cache[element(order().name, layer, page, head, offset, channel)]));
    };
    in.key = value;
    in.value = [&](int64_t page, int64_t offset, int64_t head, int64_t d) { return value(page, offset, head, kHeadDim + d); };
    T* const cache = arena.inout(kv_cache);
    const PagedAttentionParams p = place_attention(arena, in, cache_of(order(), cache, layer), backend_device(backend()));
    const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_matches_oracle(backend(), in, p.kv, rows_of(arena, in, p));
  }
};

TEST_P(KvCacheOrders, WrittenAndReadInFloat32) { run<float>(); }
TEST_P(KvCacheOrders, WrittenAndReadInBFloat16) { run<BFloat16>(); }

INSTANTIATE_TEST_SUITE_P(Vllm, KvCacheOrders,
                         testing::Combine(testing::ValuesIn(vllm_orders()), testing::ValuesIn(all_backends())),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + backend_name(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace prologue::test
