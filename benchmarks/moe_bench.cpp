// Measures the operations of a mixture of experts on the shapes of Mixtral 8x7B, Qwen3-30B-A3B and GPT-OSS-20B. The bytes of moe_gemm are
// those of the experts that the tokens use, once; tokens choose experts evenly.
#include <prologue/kernels/moe/moe_combine.h>
#include <prologue/kernels/moe/moe_gemm.h>
#include <prologue/kernels/moe/moe_route.h>

#include <algorithm>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

struct Model {
  const char* name;
  int64_t num_experts, top_k, hidden, intermediate;
  ExpertWeighting weighting;
};
constexpr Model kModels[] = {{"mixtral", 8, 2, 4096, 14336, ExpertWeighting::softmax_then_top_k},
                             {"qwen3", 128, 8, 2048, 768, ExpertWeighting::softmax_then_top_k},
                             {"gpt-oss", 32, 4, 2880, 2880, ExpertWeighting::top_k_then_softmax}};

// Returns the experts of each token, evenly spread: token t has t * top_k + j, scrambled.
std::vector<int32_t> even_experts(const Model& model, int64_t num_tokens) {
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < num_tokens * model.top_k; ++r) ids.push_back(static_cast<int32_t>(r * 5 % model.num_experts));
  return ids;
}

// `format` is that of packed weights, or dense.
void bench_gemm(bench::Bench& bench, GemmContext& context, DType dtype, WeightFormat format, const Model& model, bool down,
                int64_t num_tokens) {
  const bool packed = format != WeightFormat::dense;
  const std::string name = str_cat("moe_gemm ", dtype_name(dtype), packed ? str_cat(" ", weight_format_name(format)) : "", " ",
                                   model.name, down ? " down" : " gate_up", " T=", num_tokens);
  bench.run(name, [&](bench::Setup& setup) {
    MoeGemmParams p;
    p.num_tokens = num_tokens;
    p.top_k = model.top_k;
    p.num_experts = model.num_experts;
    p.n = down ? model.hidden : 2 * model.intermediate;
    p.k = down ? model.intermediate : model.hidden;
    p.dtype = dtype;
    p.x_per_choice = down;
    const int64_t size = dtype_size(dtype), rows = num_tokens * p.top_k;
    const int64_t bytes_of_expert = packed ? packed_weight_bytes(format, p.n, p.k) : p.n * p.k * size;
    const int64_t used_bytes = std::min(rows, p.num_experts) * bytes_of_expert;
    setup.rotate(used_bytes);
    const auto weights = setup.rotated(p.num_experts * bytes_of_expert, dtype);
    if (packed) p.packed.num_segments = 1, p.packed.segments[0] = {weights[0], format, p.n};
    p.x = setup.shared((down ? rows : num_tokens) * p.k * size, dtype);
    p.expert_ids = setup.values(even_experts(model, num_tokens));
    p.y = setup.shared(rows * p.n * size, dtype);
    p.workspace_bytes = moe_gemm_workspace_bytes(p, context.device());
    p.workspace = setup.shared(p.workspace_bytes, DType::f32);
    const int64_t row_bytes = ((down ? rows : num_tokens) * p.k + rows * p.n) * size;
    return bench::Case{used_bytes + row_bytes,
                       [=, &context](const Execution& execution, int64_t rotation) mutable {
                         (packed ? p.packed.segments[0].data : p.weight) = weights[static_cast<size_t>(rotation)];
                         return moe_gemm(p, context, execution);
                       },
                       2.0 * static_cast<double>(rows * p.n * p.k)};
  });
}

void bench_rows(bench::Bench& bench, const Model& model, int64_t num_tokens) {
  const int64_t choices = num_tokens * model.top_k;
  bench.run(str_cat("moe_route float32 ", model.name, " T=", num_tokens), [&](bench::Setup& setup) {
    MoeRouteParams p;
    p.num_tokens = num_tokens;
    p.num_experts = p.logits_stride = model.num_experts;
    p.top_k = model.top_k;
    p.dtype = DType::f32;
    p.weighting = model.weighting;
    p.logits = setup.shared(num_tokens * p.num_experts * 4, DType::f32);
    p.expert_ids = static_cast<int32_t*>(setup.shared(choices * 4, DType::f32));
    p.expert_weights = static_cast<float*>(setup.shared(choices * 4, DType::f32));
    return bench::Case{(num_tokens * p.num_experts + 2 * choices) * 4,
                       [=](const Execution& execution, int64_t) { return moe_route(p, execution); }};
  });
  bench.run(str_cat("moe_combine bfloat16 ", model.name, " T=", num_tokens), [&](bench::Setup& setup) {
    MoeCombineParams p;
    p.num_tokens = num_tokens;
    p.top_k = model.top_k;
    p.width = model.hidden;
    p.dtype = DType::bf16;
    const int64_t bytes = (choices + num_tokens) * model.hidden * 2;
    setup.rotate(bytes);
    const auto y = setup.rotated(choices * model.hidden * 2, DType::bf16),
               out = setup.rotated(num_tokens * model.hidden * 2, DType::bf16);
    p.expert_weights = static_cast<float*>(setup.shared(choices * 4, DType::f32));
    return bench::Case{bytes, [=](const Execution& execution, int64_t rotation) mutable {
                         p.y = y[static_cast<size_t>(rotation)], p.out = out[static_cast<size_t>(rotation)];
                         return moe_combine(p, execution);
                       }};
  });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  const auto created = bench.gemm_context();
  for (const Model& model : kModels) {
    for (const int64_t num_tokens : {1, 16, 64, 512, 4096}) {
      bench_rows(bench, model, num_tokens);
      for (const bool down : {false, true}) {
        for (const WeightFormat format : {WeightFormat::dense, WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_k,
                                          WeightFormat::mxfp4, WeightFormat::nvfp4}) {
          const int64_t k = down ? model.intermediate : model.hidden;
          if (k % weight_block_elements(format) == 0) bench_gemm(bench, *created, DType::bf16, format, model, down, num_tokens);
        }
      }
    }
  }
  return bench.finish();
}
