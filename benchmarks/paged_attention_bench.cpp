// Measures paged_attention of SmolLM2-135M (9 q heads, 3 kv heads, head_dim 64: the demo model) and of an 8B model (32, 8, 128): a prompt
// at once, one decoding step of one sequence and of a batch; bfloat16 also over quantised caches with a scale for each token and head, K
// and V of one type or of two, and with a window and a soft cap. With past_is_ready each call begins while the one before it runs, as in a
// graph after the prologue. "verify": several rows of each sequence, beside one row of each in the same run. Bytes: q and out, and every
// K, V, scale and zero point that a row sees once. "mla": decoding of DeepSeek's latent attention with 16 heads (an eighth of them) and
// all 128, on Hopper's kernel and on that of other GPUs; V is in K, so its bytes are K's.
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/kv_types.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "benchmarks/harness.h"

#ifdef PROLOGUE_HAS_CUDA
#include <prologue/kernels/paged_attention/instances.h>
#endif

using namespace prologue;

namespace {

struct Model {
  const char* name;
  int64_t num_q_heads, num_kv_heads, head_dim;
};

struct Load {
  const char* name;
  int64_t num_seqs, rows, length;
};

// The models after the first two have other heads, and run only as in a graph.
constexpr Model kModels[] = {
    {"135m", 9, 3, 64}, {"8b", 32, 8, 128}, {"h64", 32, 8, 64}, {"h96", 32, 8, 96}, {"h256", 32, 8, 256}};
constexpr int kModelsOfAllVariants = 2;
constexpr Load kLoads[] = {
    {"prefill", 1, 128, 128}, {"prefill", 1, 512, 512}, {"prefill", 1, 2048, 2048}, {"prefill", 1, 8192, 8192},
    {"chunk", 1, 16, 4096},   {"chunk", 1, 64, 512},    {"chunk", 1, 64, 2048},     {"chunk", 1, 64, 8192},
    {"chunk", 1, 32, 32768},  {"chunk", 1, 128, 4096},  {"chunk", 4, 16, 2048},     {"chunk", 1, 512, 8192},
    {"decode", 1, 1, 128},    {"decode", 1, 1, 1500},   {"decode", 1, 1, 121},  // the last keys are no whole 16, as in most steps
    {"decode", 1, 1, 8192},   {"decode", 16, 1, 512},   {"decode", 64, 1, 512},     {"decode", 128, 1, 2048},
    {"decode", 64, 1, 1500},  {"decode", 16, 1, 8192},  {"decode", 8, 1, 32768},    {"decode", 1, 1, 32768},
    {"decode", 16, 1, 2048},  {"verify", 1, 4, 8192},   {"verify", 1, 8, 8192},     {"verify", 1, 16, 8192},
    {"verify", 16, 4, 2048},  {"verify", 16, 8, 2048},  {"verify", 64, 4, 512},     {"verify", 64, 8, 512}};
constexpr int64_t kPageSize = 16;

struct Variant {
  DType dtype;
  DType cache;
  DType v_cache = DType::unset;  // unset: that of K
  int64_t window = 0;
  float soft_cap = 0.0f;
  KvScaling scaling = KvScaling::token_head;  // of a quantised cache
  bool mma_sync = false;                      // prefill as on GPUs that are not Hopper's
  bool past_is_ready = false;                 // as in a graph, after the prologue
};

constexpr Variant kVariants[] = {{DType::f32, DType::f32},
                                 {DType::bf16, DType::bf16},
                                 {DType::f16, DType::f16},
                                 {DType::bf16, DType::fp8_e4m3},
                                 {DType::bf16, DType::fp8_e5m2},
                                 {DType::bf16, DType::int8},
                                 {DType::bf16, DType::int4},
                                 {DType::bf16, DType::uint4},
                                 {DType::bf16, DType::fp8_e4m3, DType::unset, 0, 0.0f, KvScaling::mx},
                                 {DType::bf16, DType::fp4_e2m1, DType::unset, 0, 0.0f, KvScaling::mx},
                                 {DType::bf16, DType::fp4_e2m1, DType::unset, 0, 0.0f, KvScaling::nv},
                                 {DType::bf16, DType::int8, DType::uint4},
                                 {DType::bf16, DType::fp8_e4m3, DType::int4},
                                 {DType::bf16, DType::bf16, DType::unset, 1024},
                                 {DType::bf16, DType::bf16, DType::unset, 0, 50.0f},
                                 {DType::bf16, DType::fp8_e4m3, DType::unset, 0, 0.0f, KvScaling::tensor},
                                 {DType::bf16, DType::int8, DType::unset, 0, 0.0f, KvScaling::tensor},
                                 {DType::bf16, DType::bf16, DType::unset, 0, 0.0f, KvScaling::none, true},
                                 {DType::bf16, DType::bf16, DType::unset, 0, 0.0f, KvScaling::none, false, true},
                                 {DType::bf16, DType::fp8_e4m3, DType::unset, 0, 0.0f, KvScaling::tensor, false, true}};

void allow_wgmma([[maybe_unused]] bool allowed) {
#ifdef PROLOGUE_HAS_CUDA
  cuda::allow_wgmma(allowed);
#endif
}

KvFormat format_of(DType type, KvScaling scaling) { return {type, dtype_is_quantized(type) ? scaling : KvScaling::none}; }

// Page i of the batch is far from page i + 1.
std::vector<int32_t> scattered_pages(int64_t num_pages) {
  std::vector<int32_t> pages(static_cast<size_t>(num_pages));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>((i * 7919) % pages.size());
  if (std::gcd<int64_t>(7919, num_pages) != 1) std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

constexpr Load kMlaLoads[] = {{"decode", 1, 1, 1500},  {"decode", 1, 1, 8192},  {"decode", 16, 1, 8192},
                              {"decode", 64, 1, 1500}, {"decode", 8, 1, 32768}, {"decode", 128, 1, 2048}};

void bench_mla(bench::Bench& bench, int64_t num_q_heads, int64_t page_size, const Load& load, bool wgmma = true) {
  const std::string name = str_cat("bfloat16 mla h", num_q_heads, wgmma ? "" : " other GPUs", " page=", page_size,
                                   " seqs=", load.num_seqs, " length=", load.length);
  bench.run(name, [&](bench::Setup& setup) {
    constexpr int64_t kHeadDim = 576, kValueDim = 512, kSize = 2;
    const int64_t pages_per_seq = divide_up(load.length, page_size), num_pages = load.num_seqs * pages_per_seq;
    const int64_t q_bytes = load.num_seqs * num_q_heads * kHeadDim * kSize;
    const int64_t out_bytes = load.num_seqs * num_q_heads * kValueDim * kSize;
    setup.rotate(num_pages * page_size * kHeadDim * kSize + q_bytes);
    const auto q = setup.rotated(q_bytes, DType::bf16);
    const auto k = setup.rotated(num_pages * page_size * kHeadDim * kSize, DType::bf16);
    std::vector<int32_t> cu_seqlens_q(static_cast<size_t>(load.num_seqs) + 1);
    std::iota(cu_seqlens_q.begin(), cu_seqlens_q.end(), 0);

    PagedAttentionParams p;
    p.num_tokens = p.num_seqs = load.num_seqs;
    p.num_q_heads = num_q_heads;
    p.head_dim = p.kv.k.head_dim = kHeadDim;
    p.kv.v.head_dim = kValueDim;
    p.dtype = p.kv.k.format.type = p.kv.v.format.type = DType::bf16;
    p.scale = 1.0f / std::sqrt(192.0f);
    p.past_is_ready = true;
    p.q.head_stride = kHeadDim, p.q.token_stride = num_q_heads * kHeadDim;
    p.out.head_stride = kValueDim, p.out.token_stride = num_q_heads * kValueDim;
    p.kv.num_pages = num_pages;
    p.kv.page_size = page_size;
    p.kv.num_kv_heads = 1;
    p.kv.k.strides = p.kv.v.strides = nhd_strides(page_size, 1, kHeadDim);
    p.page_table.block_table = setup.values(scattered_pages(num_pages));
    p.page_table.block_table_stride = p.page_table.max_pages_per_seq = pages_per_seq;
    p.cu_seqlens_q = setup.values(cu_seqlens_q);
    p.seq_lens = setup.values(std::vector<int32_t>(static_cast<size_t>(load.num_seqs), static_cast<int32_t>(load.length)));
    p.max_seqlen_q = 1;
    p.max_seq_len = load.length;
    p.out.data = setup.shared(out_bytes, DType::bf16);
    allow_wgmma(wgmma);
    p.workspace_bytes = paged_attention_workspace_bytes(p, setup.execution().device);
    if (p.workspace_bytes > 0) p.workspace = setup.shared(p.workspace_bytes, DType::f32);
    p.counters = setup.values(std::vector<uint32_t>(kPagedAttentionCounters));
    const int64_t keys = load.num_seqs * load.length;
    const double flops = 2.0 * static_cast<double>(keys * num_q_heads * (kHeadDim + kValueDim));
    return bench::Case{q_bytes + out_bytes + keys * kHeadDim * kSize,
                       [=](const Execution& execution, int64_t rotation) mutable {
                         p.q.data = q[static_cast<size_t>(rotation)];
                         p.kv.k.data = p.kv.v.data = k[static_cast<size_t>(rotation)];
                         allow_wgmma(wgmma);
                         return paged_attention(p, execution);
                       },
                       flops, std::string()};
  });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  for (const Variant& variant : kVariants) {
    const DType dtype = variant.dtype;
    const bool plain =
        !variant.mma_sync && !variant.past_is_ready && variant.cache == dtype && variant.window == 0 && variant.soft_cap == 0.0f;
    const bool quantised = !dtype_is_activation(variant.cache);
    const bool mixed = variant.v_cache != DType::unset;
    const KvFormat k_format = format_of(variant.cache, variant.scaling),
                   v_format = format_of(mixed ? variant.v_cache : variant.cache, variant.scaling);
    const bool per_token = quantised && variant.scaling == KvScaling::token_head, blocks = is_block_scaled(k_format);
    for (const Model& model : kModels) {
      for (const Load& load : kLoads) {
        if (variant.mma_sync && load.rows == 1) continue;
        if (&model - kModels >= kModelsOfAllVariants && !variant.past_is_ready) continue;
        const auto shape_of = [&](const char* kind, int64_t rows) {
          return str_cat(" ", model.name, " ", kind, " seqs=", load.num_seqs, " rows=", rows, " length=", load.length);
        };
        const std::string shape = shape_of(load.name, load.rows);
        const std::string type = dtype_name(dtype);
        const std::string kind =
            str_cat(type, quantised ? "/" : "",
                    blocks      ? kv_format_name(k_format)
                    : quantised ? dtype_name(variant.cache)
                                : "",
                    mixed ? "," : "", mixed ? dtype_name(variant.v_cache) : "", variant.window > 0 ? " window=1024" : "",
                    variant.soft_cap > 0.0f ? " cap=50" : "", quantised && !per_token && !blocks ? " scale=tensor" : "",
                    variant.mma_sync ? " mma.sync" : "", variant.past_is_ready ? " past_is_ready" : "");
        const std::string name = kind + shape;
        const bool verifies = load.name == std::string("verify");  // beside one row of each sequence
        bench.run(name, [&](bench::Setup& setup) {
          const int64_t size = dtype_size(dtype), num_tokens = load.num_seqs * load.rows;
          const int64_t pages_per_seq = divide_up(load.length, kPageSize), num_pages = load.num_seqs * pages_per_seq;
          const int64_t heads_bytes = num_tokens * model.num_q_heads * model.head_dim * size;
          const int64_t num_heads = num_pages * kPageSize * model.num_kv_heads;
          const auto data_bytes = [&](const KvFormat& format) { return model.head_dim * dtype_bits(format.type) / 8; };
          const auto scales_of = [&](const KvFormat& format) {
            return blocks ? model.head_dim / block_channels(format) : int64_t{scales_of_head(format)};
          };
          const auto scale_bytes = [&](const KvFormat& format) { return scales_of(format) * (blocks ? 1 : 4); };
          setup.rotate(num_heads * (data_bytes(k_format) + data_bytes(v_format) + scale_bytes(k_format) + scale_bytes(v_format)) +
                       heads_bytes);
          const auto q = setup.rotated(heads_bytes, dtype);
          const auto k = setup.rotated(num_heads * data_bytes(k_format), dtype);
          const auto v = setup.rotated(num_heads * data_bytes(v_format), dtype);
          const auto scales = [&](const KvFormat& format) {
            return setup.rotated(num_heads * scale_bytes(format), blocks ? DType::fp8_e4m3 : DType::f32);
          };
          const auto k_scale = scales(k_format), v_scale = scales(v_format);

          std::vector<int32_t> cu_seqlens_q(static_cast<size_t>(load.num_seqs) + 1);
          for (size_t s = 0; s < cu_seqlens_q.size(); ++s)
            cu_seqlens_q[s] = static_cast<int32_t>(s) * static_cast<int32_t>(load.rows);

          PagedAttentionParams p;
          p.num_tokens = num_tokens;
          p.num_seqs = load.num_seqs;
          p.num_q_heads = model.num_q_heads;
          p.head_dim = model.head_dim;
          p.dtype = dtype;
          p.scale = 1.0f / std::sqrt(static_cast<float>(model.head_dim));
          p.q.token_stride = p.out.token_stride = model.num_q_heads * model.head_dim;
          p.q.head_stride = p.out.head_stride = model.head_dim;
          const PageStrides strides = nhd_strides(kPageSize, model.num_kv_heads, model.head_dim);
          p.soft_cap = variant.soft_cap;
          p.window = variant.window;
          p.past_is_ready = variant.past_is_ready;
          p.kv.k.format = k_format;
          p.kv.v.format = v_format;
          p.kv.k.scale_strides = nhd_strides(kPageSize, model.num_kv_heads, scales_of(k_format));
          p.kv.v.scale_strides = nhd_strides(kPageSize, model.num_kv_heads, scales_of(v_format));
          if (quantised && !per_token && variant.scaling != KvScaling::mx)
            p.kv.k.scale = p.kv.v.scale = setup.values(std::vector<float>{1.0f});
          p.kv.num_pages = num_pages;
          p.kv.page_size = kPageSize;
          p.kv.num_kv_heads = model.num_kv_heads;
          p.kv.k.head_dim = model.head_dim;
          p.kv.k.strides = p.kv.v.strides = strides;
          p.page_table.block_table = setup.values(scattered_pages(num_pages));
          p.page_table.block_table_stride = p.page_table.max_pages_per_seq = pages_per_seq;
          p.cu_seqlens_q = setup.values(cu_seqlens_q);
          p.seq_lens = setup.values(std::vector<int32_t>(static_cast<size_t>(load.num_seqs), static_cast<int32_t>(load.length)));
          p.max_seqlen_q = load.rows;
          p.max_seq_len = load.length;
          p.out.data = setup.shared(heads_bytes, dtype);
          p.workspace_bytes = paged_attention_workspace_bytes(p, setup.execution().device);
          if (p.workspace_bytes > 0) p.workspace = setup.shared(p.workspace_bytes, DType::f32);

          p.counters = setup.values(std::vector<uint32_t>(kPagedAttentionCounters));

          // There are two products over the positions that a row sees.
          double visible = 0.0;
          const int64_t window = variant.window > 0 ? variant.window : load.length;
          for (int64_t r = 0; r < load.rows; ++r)
            visible += static_cast<double>(std::min(window, load.length - load.rows + r + 1));
          const double flops = 4.0 * static_cast<double>(load.num_seqs * model.num_q_heads * model.head_dim) * visible;
          const int64_t seen = std::min(load.length, window + load.rows - 1) * load.num_seqs * model.num_kv_heads;
          const int64_t bytes_of_both =
              data_bytes(k_format) + data_bytes(v_format) + scale_bytes(k_format) + scale_bytes(v_format);
          return bench::Case{2 * heads_bytes + seen * bytes_of_both,
                             [=](const Execution& execution, int64_t rotation) mutable {
                               const size_t i = static_cast<size_t>(rotation);
                               p.q.data = q[i];
                               p.kv.k.data = k[i];
                               p.kv.v.data = v[i];
                               if (per_token) p.kv.k.scale = static_cast<float*>(k_scale[i]);
                               if (per_token) p.kv.v.scale = static_cast<float*>(v_scale[i]);
                               if (blocks) p.kv.k.block_scale = static_cast<uint8_t*>(k_scale[i]);
                               if (blocks) p.kv.v.block_scale = static_cast<uint8_t*>(v_scale[i]);
                               allow_wgmma(!variant.mma_sync);
                               return paged_attention(p, execution);
                             },
                             flops,
                             verifies ? kind + shape_of("decode", 1)
                             : plain  ? std::string()
                                      : type + shape};
        });
      }
    }
  }
  for (const int64_t num_q_heads : {16, 128}) {
    for (const int64_t page_size : {64, 16}) {
      for (const Load& load : kMlaLoads) bench_mla(bench, num_q_heads, page_size, load);
    }
    for (const Load& load : kMlaLoads) bench_mla(bench, num_q_heads, 64, load, false);
  }
  return bench.finish();
}
