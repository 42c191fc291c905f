// Attention over block-scaled caches (MXFP8, MXFP4, NVFP4), in every kernel that reads them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <prologue/kernels/base/kv_types.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

#include "tests/support/arena.h"
#include "tests/support/attention_instances.h"
#include "tests/support/block_scale_cache.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class BlockScaleAttention : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, BlockScaleAttention, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

// Sequences of a batch, whose blocks differ by up to 2^21 where the format allows it. One sequence has a NaN as the scale of a block of K,
// another as that of V.
template <class T>
void check_batch(Backend backend, const FormatCase& c, int64_t group, int64_t page_size, const std::vector<int64_t>& lengths) {
  constexpr int64_t kHeads = HostCache::kHeads;
  const int64_t num_q_heads = group * kHeads;
  Random random(static_cast<uint64_t>(c.k_dim + group));
  const auto num_seqs = static_cast<int64_t>(lengths.size());
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const int64_t pages_per_seq = (longest + page_size - 1) / page_size, num_pages = num_seqs * pages_per_seq + 1;
  std::vector<int32_t> pages(static_cast<size_t>(num_pages - 1)), cu_seqlens_q = {0}, seq_lens;
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i + 1);
  random.shuffle(pages);
  HostCache host(c.k, c.v, c.k_dim, c.v_dim, c.layout, num_pages, page_size);
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t length = lengths[static_cast<size_t>(s)];
    cu_seqlens_q.push_back(cu_seqlens_q.back() + static_cast<int32_t>(std::min<int64_t>(length, s % 2 == 0 ? 1 : 4)));
    seq_lens.push_back(static_cast<int32_t>(length));
  }
  const int64_t num_tokens = cu_seqlens_q.back();
  const auto slot_of = [&](int64_t s, int64_t position) {
    return pages[static_cast<size_t>(s * pages_per_seq + position / page_size)] * page_size + position % page_size;
  };
  for (int64_t s = 0; s < num_seqs; ++s) {
    for (int64_t position = 0; position < lengths[static_cast<size_t>(s)]; ++position) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (HostSide* side : {&host.k, &host.v}) {
          std::vector<float> x = random.normals<float>(side->head_dim);
          for (int64_t i = 0; i < side->head_dim; ++i) {
            const int64_t exponent = (i / 16 * 5 + s) % 8 * (side == &host.k ? -1 : -3);
            x[static_cast<size_t>(i)] = std::ldexp(x[static_cast<size_t>(i)], static_cast<int>(exponent - position % 3));
          }
          host.store(*side, slot_of(s, position), h, x.data());
        }
      }
    }
  }
  for (HostSide* side : {&host.k, &host.v}) {
    const int64_t s = side == &host.k ? 2 : 4, position = lengths[static_cast<size_t>(s)] / 2;
    host.scale_of(*side, slot_of(s, position), 1, 1) = side->format.scaling == KvScaling::mx ? 255 : 0x7f;
  }
  const std::vector<T> q = random.normals<T>(num_tokens * num_q_heads * c.k_dim);

  Arena arena(backend);
  PagedAttentionParams p;
  p.num_tokens = num_tokens, p.num_seqs = num_seqs, p.num_q_heads = num_q_heads, p.head_dim = c.k_dim;
  p.dtype = FloatFormat<T>::dtype;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.k_dim));
  p.q = {arena.input(q), num_q_heads * c.k_dim, c.k_dim};
  const PlacedCache placed(arena, host);
  p.kv = placed.view;
  p.page_table.block_table = arena.input(pages);
  p.page_table.block_table_stride = p.page_table.max_pages_per_seq = pages_per_seq;
  p.cu_seqlens_q = arena.input(cu_seqlens_q);
  p.seq_lens = arena.input(seq_lens);
  p.max_seqlen_q = 4, p.max_seq_len = longest;
  T* const out = arena.output<T>(num_tokens * num_q_heads * c.v_dim);
  p.out = {out, num_q_heads * c.v_dim, c.v_dim};
  p.workspace_bytes = paged_attention_workspace_bytes(p, backend_device(backend));
  if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
  const Status valid = validate(p, backend_device(backend));
  ASSERT_TRUE(valid.ok()) << valid.message();

  std::vector<Reference> want;
  std::vector<std::vector<double>> keys, values;  // of a sequence and a head
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t length = lengths[static_cast<size_t>(s)], first_row = cu_seqlens_q[static_cast<size_t>(s)],
                  rows = cu_seqlens_q[static_cast<size_t>(s) + 1] - first_row;
    for (int64_t h = 0; h < kHeads; ++h) {
      keys.emplace_back(), values.emplace_back();
      for (int64_t position = 0; position < length; ++position) {
        for (int64_t i = 0; i < c.k_dim; ++i) keys.back().push_back(host.value(host.k, slot_of(s, position), h, i));
        for (int64_t i = 0; i < c.v_dim; ++i) values.back().push_back(host.value(host.v, slot_of(s, position), h, i));
      }
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t q_head = 0; q_head < num_q_heads; ++q_head) {
        const std::vector<double>&k = keys[static_cast<size_t>(s * kHeads + q_head / group)],
              &v = values[static_cast<size_t>(s * kHeads + q_head / group)];
        const int64_t visible = length - rows + row + 1;
        std::vector<double> scores, weights;
        double largest = -std::numeric_limits<double>::infinity(), sum = 0.0;
        for (int64_t key = 0; key < visible; ++key) {
          double score = 0.0;
          for (int64_t i = 0; i < c.k_dim; ++i) {
            score +=
                static_cast<double>(to_float(q[static_cast<size_t>(((first_row + row) * num_q_heads + q_head) * c.k_dim + i)])) *
                k[static_cast<size_t>(key * c.k_dim + i)];
          }
          scores.push_back(score * static_cast<double>(p.scale));
          largest = std::max(largest, scores.back());
        }
        for (const double score : scores) weights.push_back(std::exp(score - largest)), sum += weights.back();
        for (int64_t i = 0; i < c.v_dim; ++i) {
          Reference of_channel;
          double of_all = 0.0;
          for (int64_t key = 0; key < visible; ++key) {
            const double value = v[static_cast<size_t>(key * c.v_dim + i)], weight = weights[static_cast<size_t>(key)] / sum;
            of_channel.value += weight * value;
            of_channel.scale += weight * std::fabs(value);
            of_all += std::fabs(value);
          }
          // A weight moves the mean, too; and in 16 bits it is a multiple of 2^-24.
          of_channel.scale += std::fabs(of_channel.value) + std::ldexp(of_all / sum, -13);
          want.push_back(of_channel);
        }
      }
    }
  }
  const std::vector<NamedCall> calls = calls_of(p, backend_device(backend));
  ASSERT_FALSE(calls.empty());
  for (const NamedCall& call : calls) {
    SCOPED_TRACE(call.name);
    const Status status = arena.run(call.run);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_close(arena.read(out), want, c.v_dim, "out", steps_of<T>(backend), false);
  }
}

// Every kernel that can run them: formats, widths of heads, layouts, groups of up to 8 and of more rows, pages of whole groups of keys.
TEST_P(BlockScaleAttention, BatchesInEveryKernel) {
  const std::vector<FormatCase> cases = {
      {kMxfp8, kMxfp8, 64, 64, Layout::nhd},         {kMxfp8, kMxfp8, 128, 128, Layout::hnd},
      {kMxfp8, kMxfp8, 96, 64, Layout::vllm_page},   {kMxfp8, kMxfp8, 256, 256, Layout::vllm_page_interleaved},
      {kMxfp4, kMxfp4, 64, 128, Layout::nhd},        {kMxfp4, kMxfp4, 128, 128, Layout::vllm_page_interleaved},
      {kMxfp4, kMxfp4, 256, 256, Layout::hnd},       {kNvfp4, kNvfp4, 64, 64, Layout::vllm_page_interleaved},
      {kNvfp4, kNvfp4, 128, 128, Layout::nhd},       {kNvfp4, kNvfp4, 96, 192, Layout::vllm_page_interleaved},
      {kNvfp4, kNvfp4, 256, 256, Layout::vllm_page}, {kNvfp4, kMxfp4, 128, 96, Layout::hnd}};
  int64_t n = 0;
  for (const FormatCase& c : cases) {
    SCOPED_TRACE(str_cat(kv_format_name(c.k), " ", kv_format_name(c.v), " ", c.k_dim, " ", c.v_dim, " layout ",
                         static_cast<int>(c.layout)));
    const std::vector<int64_t> lengths = {1, 40, 77, 3, 20, n % 2 == 0 ? 290 : 150};
    check_batch<BFloat16>(GetParam(), c, n % 3 == 0 ? 6 : 2, n % 2 == 0 ? 16 : 8, lengths);
    if (n % 4 == 0) check_batch<Float16>(GetParam(), c, 8, 16, lengths);
    ++n;
  }
}

}  // namespace
}  // namespace prologue::test
