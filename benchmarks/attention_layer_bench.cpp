// Measures the attention layer over raw pointers, as another engine calls it: hidden states to hidden states, decoding and prompts, beside
// the same four operations called one after another. The weights are rotated, so that they come from memory.
#include <string>
#include <vector>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/layers/attention_layer.h>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

constexpr int64_t kPageSize = 16, kMaxPosition = 8192;

struct Model {
  const char* name;
  int64_t hidden_size, num_q_heads, num_kv_heads, head_dim;
};
constexpr Model kModels[] = {{"8B", 4096, 32, 8, 128}, {"1B", 2048, 32, 8, 64}, {"SmolLM2", 576, 9, 3, 64}};

// Describes sequences with so many cached tokens, and as many new ones.
struct Batch {
  int64_t num_seqs, cached, rows;
};
constexpr Batch kBatches[] = {{1, 511, 1},  {4, 511, 1}, {8, 511, 1},  {16, 511, 1}, {32, 511, 1},
                              {64, 511, 1}, {1, 0, 512}, {1, 0, 2048}, {4, 0, 2048}};

struct Problem {
  AttentionLayerParams params;
  std::vector<void*> qkv_weights, output_weights;
  void* qkv = nullptr;  // of the separate operations
  void* attended = nullptr;
  int64_t bytes = 0;
};

Problem make_problem(const Model& m, const Batch& batch, bench::Setup& setup) {
  Problem problem;
  AttentionLayerParams& p = problem.params;
  AttentionPrologueParams& a = p.prologue;
  const int64_t num_tokens = batch.num_seqs * batch.rows, length = batch.cached + batch.rows;
  const int64_t q_width = m.num_q_heads * m.head_dim, width = q_width + 2 * m.num_kv_heads * m.head_dim;
  const int64_t pages_per_seq = divide_up(length, kPageSize), num_pages = batch.num_seqs * pages_per_seq;
  problem.bytes = (width + q_width) * m.hidden_size * 2;
  setup.rotate_cold(problem.bytes);
  problem.qkv_weights = setup.rotated(width * m.hidden_size * 2, DType::bf16);
  problem.output_weights = setup.rotated(q_width * m.hidden_size * 2, DType::bf16);
  problem.qkv = setup.shared(num_tokens * width * 2, DType::bf16);
  problem.attended = setup.shared(num_tokens * q_width * 2, DType::bf16);

  p.hidden_size = p.hidden_stride = p.out_stride = m.hidden_size;
  p.hidden_states = setup.shared(num_tokens * m.hidden_size * 2, DType::bf16);
  p.out = setup.shared(num_tokens * m.hidden_size * 2, DType::bf16);
  p.qkv_weight = problem.qkv_weights.front();
  p.output_weight = problem.output_weights.front();
  a.num_tokens = num_tokens;
  a.num_q_heads = m.num_q_heads;
  a.num_kv_heads = m.num_kv_heads;
  a.head_dim = m.head_dim;
  a.dtype = DType::bf16;
  a.rope.rotary_dim = m.head_dim;
  set_cos_sin_table(a.rope, setup.shared(kMaxPosition * m.head_dim * 4, DType::f32), DType::f32, kMaxPosition);
  a.cache.num_pages = num_pages;
  a.cache.page_size = kPageSize;
  a.cache.num_kv_heads = m.num_kv_heads;
  for (PagedHeads* side : {&a.cache.k, &a.cache.v}) {
    side->data = setup.shared(num_pages * kPageSize * m.num_kv_heads * m.head_dim * 2, DType::bf16);
    side->head_dim = m.head_dim;
    side->format = {DType::bf16, KvScaling::none};
    side->strides = nhd_strides(kPageSize, m.num_kv_heads, m.head_dim);
  }
  std::vector<int32_t> block_table, cu_seqlens_q = {0};
  std::vector<int64_t> positions, slots;
  for (int64_t page = 0; page < num_pages; ++page) block_table.push_back(static_cast<int32_t>(page));
  for (int64_t s = 0; s < batch.num_seqs; ++s) {
    cu_seqlens_q.push_back(static_cast<int32_t>((s + 1) * batch.rows));
    for (int64_t i = batch.cached; i < length; ++i) {
      positions.push_back(i);
      slots.push_back(s * pages_per_seq * kPageSize + i);
    }
  }
  TokenPlaces& places = a.places;
  places.positions = index_view(setup.values(positions));
  places.slot_mapping = index_view(setup.values(slots));
  places.num_seqs = batch.num_seqs;
  places.cu_seqlens_q = setup.values(cu_seqlens_q);
  places.page_table.block_table = setup.values(block_table);
  places.page_table.block_table_stride = places.page_table.max_pages_per_seq = pages_per_seq;
  places.seq_lens = setup.values(std::vector<int32_t>(static_cast<size_t>(batch.num_seqs), static_cast<int32_t>(length)));
  a.faults = setup.values(std::vector<FaultRecord>(1));
  p.attention.scale = 0.1f;
  p.attention.max_seqlen_q = batch.rows;
  p.attention.max_seq_len = length;
  p.attention.counters = setup.values(std::vector<uint32_t>(kPagedAttentionCounters));
  p.workspace_bytes = attention_layer_workspace_bytes(p, setup.execution().device).value();
  p.workspace = setup.shared(p.workspace_bytes, DType::bf16);
  return problem;
}

Status run_separately(const Problem& problem, const AttentionLayerParams& p, GemmContext& context, const Execution& execution) {
  AttentionPrologueParams prologue = p.prologue;
  const int64_t q_width = prologue.num_q_heads * prologue.head_dim;
  GemmParams projection;
  projection.m = prologue.num_tokens;
  projection.n = projection.y_stride = q_width + 2 * prologue.num_kv_heads * prologue.head_dim;
  projection.k = projection.x_stride = p.hidden_size;
  projection.dtype = projection.y_dtype = prologue.dtype;
  projection.x = p.hidden_states, projection.weight = p.qkv_weight, projection.y = problem.qkv;
  PROLOGUE_RETURN_IF_ERROR(gemm(projection, context, execution));
  set_packed_qkv(prologue, problem.qkv, projection.n);
  prologue.q_out = {problem.qkv, projection.n, prologue.head_dim};
  PROLOGUE_RETURN_IF_ERROR(attention_prologue(prologue, execution));
  PagedAttentionParams attention = p.attention;
  attention.num_tokens = prologue.num_tokens;
  attention.num_seqs = prologue.places.num_seqs;
  attention.num_q_heads = prologue.num_q_heads;
  attention.head_dim = prologue.head_dim;
  attention.dtype = prologue.dtype;
  attention.q = as_input(prologue.q_out);
  attention.kv = prologue.cache;
  attention.page_table = prologue.places.page_table;
  attention.cu_seqlens_q = prologue.places.cu_seqlens_q;
  attention.seq_lens = prologue.places.seq_lens;
  attention.out = {problem.attended, q_width, prologue.head_dim};
  attention.workspace_bytes = paged_attention_workspace_bytes(attention, execution.device);
  attention.workspace = attention.workspace_bytes > 0 ? p.workspace : nullptr;
  PROLOGUE_RETURN_IF_ERROR(paged_attention(attention, execution));
  projection.n = projection.y_stride = p.hidden_size;
  projection.k = projection.x_stride = q_width;
  projection.x = problem.attended, projection.weight = p.output_weight, projection.y = p.out;
  return gemm(projection, context, execution);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  const auto created = bench.gemm_context();
  GemmContext& context = *created;
  for (const Model& model : kModels) {
    for (const Batch& batch : kBatches) {
      const std::string name =
          str_cat("layer ", model.name, " seqs=", batch.num_seqs, " cached=", batch.cached, " rows=", batch.rows, ": ");
      for (const char* const way :
           {"four operations", "attention_layer", "attention_layer, past_is_ready", "attention_layer, past_is_ready, overlaps"}) {
        const bool separate = way == std::string("four operations");
        bench.run(name + way, [&](bench::Setup& setup) {
          Problem problem = make_problem(model, batch, setup);
          problem.params.attention.past_is_ready = std::string(way).find("past_is_ready") != std::string::npos;
          problem.params.overlaps = std::string(way).ends_with("overlaps");
          return bench::Case{problem.bytes,
                             [=, &context](const Execution& execution, int64_t rotation) {
                               AttentionLayerParams p = problem.params;
                               p.qkv_weight = problem.qkv_weights[static_cast<size_t>(rotation)];
                               p.output_weight = problem.output_weights[static_cast<size_t>(rotation)];
                               return separate ? run_separately(problem, p, context, execution)
                                               : attention_layer(p, context, execution);
                             },
                             0.0, separate ? std::string() : name + "four operations"};
        });
      }
    }
  }
  return bench.finish();
}
