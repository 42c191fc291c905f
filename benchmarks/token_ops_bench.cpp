// embedding, rms_norm, gated_activation and sampling on the shapes of SmolLM2-135M (the demo model: width 576, MLP 1536,
// vocabulary 49152) and of an 8B model (4096, 14336, 128256).
#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/gated_activation.h>
#include <prologue/kernels/token_ops/rms_norm.h>
#include <prologue/kernels/token_ops/sampling.h>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

struct Model {
  const char* name;
  int64_t width, mlp_width, vocab_size;
};
constexpr Model kModels[] = {{"135m", 576, 1536, 49152}, {"8b", 4096, 14336, 128256}};

struct Filters {
  const char* name;
  SamplingRow row;
};
const Filters kFilters[] = {
    {"greedy", {}},
    {"temperature", {0.8f, 0, 1.0f, 0.0f, 1, 1}},
    {"top_k=40", {0.8f, 40, 1.0f, 0.0f, 1, 1}},
    {"top_p=0.95", {0.8f, 0, 0.95f, 0.0f, 1, 1}},
    {"top_k=40 top_p=0.95 min_p=0.05", {0.8f, 40, 0.95f, 0.05f, 1, 1}},
};

void bench_rows(bench::Bench& bench, DType dtype, const Model& model, int64_t num_tokens) {
  const int64_t size = dtype_size(dtype);
  const std::string shape = str_cat(" ", dtype_name(dtype), " ", model.name, " T=", num_tokens);
  bench.run("embedding" + shape, [&](bench::Setup& setup) {
    EmbeddingParams p;
    p.num_tokens = num_tokens;
    p.num_rows = model.vocab_size;
    p.width = model.width;
    p.dtype = dtype;
    const int64_t bytes = num_tokens * model.width * size;
    p.table = setup.shared(model.vocab_size * model.width * size, dtype);
    std::vector<int32_t> ids(static_cast<size_t>(num_tokens));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(model.vocab_size));
    p.indices = index_view(setup.values(ids));
    p.out = setup.shared(bytes, dtype);
    return bench::Case{2 * bytes, [=](const Execution& execution, int64_t) { return embedding(p, execution); }};
  });
  for (const bool with_residual : {false, true}) {
    bench.run((with_residual ? "rms_norm + residual" : "rms_norm") + shape, [&](bench::Setup& setup) {
      RmsNormParams p;
      p.num_tokens = num_tokens;
      p.width = model.width;
      p.dtype = dtype;
      const int64_t bytes = num_tokens * model.width * size;
      setup.rotate((with_residual ? 3 : 2) * bytes);
      const auto x = setup.rotated(bytes, dtype);
      const auto residual = setup.rotated(with_residual ? bytes : 0, dtype);
      const auto out = setup.rotated(bytes, dtype);
      p.weight = setup.shared(model.width * size, dtype);
      return bench::Case{(with_residual ? 4 : 2) * bytes + model.width * size,
                         [=](const Execution& execution, int64_t rotation) mutable {
                           const size_t i = static_cast<size_t>(rotation);
                           p.x = x[i];
                           p.residual = with_residual ? residual[i] : nullptr;
                           p.out = out[i];
                           return rms_norm(p, execution);
                         }};
    });
  }
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    bench.run((activation == Activation::silu ? "silu" : "gelu_tanh") + shape, [&](bench::Setup& setup) {
      GatedActivationParams p;
      p.num_tokens = num_tokens;
      p.width = model.mlp_width;
      p.dtype = dtype;
      p.activation = activation;
      const int64_t bytes = num_tokens * model.mlp_width * size;
      setup.rotate(3 * bytes);
      const auto gate_up = setup.rotated(2 * bytes, dtype);
      const auto out = setup.rotated(bytes, dtype);
      return bench::Case{3 * bytes, [=](const Execution& execution, int64_t rotation) mutable {
                           p.gate_up = gate_up[static_cast<size_t>(rotation)];
                           p.out = out[static_cast<size_t>(rotation)];
                           return gated_activation(p, execution);
                         }};
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const Model& model : kModels) {
      for (const int64_t num_tokens : {1, 16, 512}) bench_rows(bench, dtype, model, num_tokens);
    }
  }
  for (const Model& model : kModels) {
    for (const int64_t num_rows : {1, 16}) {
      for (const Filters& filters : kFilters) {
        bench.run(str_cat("sample ", filters.name, " ", model.name, " rows=", num_rows), [&](bench::Setup& setup) {
          SamplingParams p;
          p.num_rows = num_rows;
          p.vocab_size = p.logits_stride = model.vocab_size;
          const int64_t bytes = num_rows * model.vocab_size * 4;
          setup.rotate(bytes);
          const auto logits = setup.rotated(bytes, DType::f32);
          p.rows = setup.values(std::vector<SamplingRow>(static_cast<size_t>(num_rows), filters.row));
          p.tokens = setup.values(std::vector<int32_t>(static_cast<size_t>(num_rows)));
          return bench::Case{bytes, [=](const Execution& execution, int64_t rotation) mutable {
                               p.logits = static_cast<const float*>(logits[static_cast<size_t>(rotation)]);
                               return sample(p, execution);
                             }};
        });
      }
    }
  }
  return bench.finish();
}
