// Measures embedding, norm, activation, add, scale_logits, sampling, logprobs and end_step on the shapes of SmolLM2-135M (the demo model:
// width 576, MLP 1536, vocabulary 49152) and of an 8B model (4096, 14336, 128256).
#include <prologue/kernels/token_ops/activation.h>
#include <prologue/kernels/token_ops/add.h>
#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/end_step.h>
#include <prologue/kernels/token_ops/logprobs.h>
#include <prologue/kernels/token_ops/norm.h>
#include <prologue/kernels/token_ops/sampling.h>
#include <prologue/kernels/token_ops/scale_logits.h>

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
  for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
    for (const bool with_residual : {false, true}) {
      const char* const name = kind == NormKind::rms ? "rms_norm" : "layer_norm";
      bench.run(str_cat(name, with_residual ? " + residual" : "", shape), [&](bench::Setup& setup) {
        NormParams p;
        p.num_tokens = num_tokens;
        p.width = model.width;
        p.dtype = dtype;
        p.kind = kind;
        const int64_t bytes = num_tokens * model.width * size, weights = model.width * size;
        setup.rotate((with_residual ? 3 : 2) * bytes);
        const auto x = setup.rotated(bytes, dtype);
        const auto residual = setup.rotated(with_residual ? bytes : 0, dtype);
        const auto out = setup.rotated(bytes, dtype);
        p.weight = setup.shared(weights, dtype);
        if (kind == NormKind::layer) p.bias = setup.shared(weights, dtype);
        return bench::Case{(with_residual ? 4 : 2) * bytes + (p.bias == nullptr ? 1 : 2) * weights,
                           [=](const Execution& execution, int64_t rotation) mutable {
                             const size_t i = static_cast<size_t>(rotation);
                             p.x = x[i];
                             p.residual = with_residual ? residual[i] : nullptr;
                             p.out = out[i];
                             return norm(p, execution);
                           }};
      });
    }
  }
  const struct {
    const char* name;
    Activation kind;
    bool gated;
  } activations[] = {{"silu", Activation::silu, true},        {"gelu_tanh", Activation::gelu_tanh, true},
                     {"gelu", Activation::gelu, true},        {"clamped_swiglu", Activation::clamped_swiglu, true},
                     {"plain gelu", Activation::gelu, false}, {"plain relu2", Activation::relu2, false}};
  for (const auto& each : activations) {
    bench.run(each.name + shape, [&](bench::Setup& setup) {
      ActivationParams p;
      p.num_tokens = num_tokens;
      p.width = model.mlp_width;
      p.dtype = dtype;
      p.kind = each.kind;
      p.gated = each.gated;
      p.x_stride = (p.gated ? 2 : 1) * p.width;
      const int64_t bytes = num_tokens * p.width * size, x_bytes = num_tokens * p.x_stride * size;
      setup.rotate(x_bytes + bytes);
      const auto x = setup.rotated(x_bytes, dtype);
      const auto out = setup.rotated(bytes, dtype);
      return bench::Case{x_bytes + bytes, [=](const Execution& execution, int64_t rotation) mutable {
                           p.x = x[static_cast<size_t>(rotation)];
                           p.out = out[static_cast<size_t>(rotation)];
                           return activation(p, execution);
                         }};
    });
  }
  bench.run("add" + shape, [&](bench::Setup& setup) {
    AddParams p;
    p.num_tokens = num_tokens;
    p.width = p.a_stride = p.b_stride = p.out_stride = model.width;
    p.dtype = dtype;
    const int64_t bytes = num_tokens * model.width * size;
    setup.rotate(3 * bytes);
    const auto a = setup.rotated(bytes, dtype), b = setup.rotated(bytes, dtype), out = setup.rotated(bytes, dtype);
    return bench::Case{3 * bytes, [=](const Execution& execution, int64_t rotation) mutable {
                         const size_t i = static_cast<size_t>(rotation);
                         p.a = a[i], p.b = b[i], p.out = out[i];
                         return add(p, execution);
                       }};
  });
}

void bench_scale_logits(bench::Bench& bench, const Model& model, int64_t num_rows) {
  bench.run(str_cat("scale_logits cap=30 ", model.name, " rows=", num_rows), [&](bench::Setup& setup) {
    ScaleLogitsParams p;
    p.num_rows = num_rows;
    p.width = model.vocab_size;
    p.soft_cap = 30.0f;
    const int64_t bytes = num_rows * model.vocab_size * 4;
    setup.rotate(2 * bytes);
    const auto x = setup.rotated(bytes, DType::f32), out = setup.rotated(bytes, DType::f32);
    return bench::Case{2 * bytes, [=](const Execution& execution, int64_t rotation) mutable {
                         p.x = static_cast<const float*>(x[static_cast<size_t>(rotation)]);
                         p.out = static_cast<float*>(out[static_cast<size_t>(rotation)]);
                         return scale_logits(p, execution);
                       }};
  });
}

// Logits and counts are read once at least; all rows use one bias.
void bench_penalties(bench::Bench& bench, const Model& model, int64_t num_rows, const Filters& filters, bool with_bias) {
  const std::string name = str_cat("sample ", filters.name, with_bias ? " penalties bias " : " penalties ", model.name, " rows=");
  bench.run(str_cat(name, num_rows), [&](bench::Setup& setup) {
    SamplingParams p;
    p.num_rows = num_rows;
    p.vocab_size = p.logits_stride = model.vocab_size;
    const int64_t bytes = num_rows * model.vocab_size * 4;
    setup.rotate(2 * bytes);
    const auto logits = setup.rotated(bytes, DType::f32);
    std::vector<int32_t> counts(static_cast<size_t>(model.vocab_size));
    for (size_t i = 0; i < counts.size(); i += 97) counts[i] = static_cast<int32_t>(i % 7);
    SamplingRow row = filters.row;
    row.repetition_penalty = 1.1f, row.presence_penalty = 0.2f, row.frequency_penalty = 0.1f;
    if (with_bias) row.bias = setup.values(std::vector<float>(static_cast<size_t>(model.vocab_size), 0.5f));
    std::vector<const SamplingRow*> rows;  // of each rotation
    for (int64_t i = 0; i < setup.rotations(); ++i) {
      std::vector<SamplingRow> of_rotation(static_cast<size_t>(num_rows), row);
      for (SamplingRow& each : of_rotation) each.counts = setup.values(counts);
      rows.push_back(setup.values(of_rotation));
    }
    p.tokens = setup.values(std::vector<int32_t>(static_cast<size_t>(num_rows)));
    return bench::Case{2 * bytes + (with_bias ? model.vocab_size * 4 : 0),
                       [=](const Execution& execution, int64_t rotation) mutable {
                         p.logits = static_cast<const float*>(logits[static_cast<size_t>(rotation)]);
                         p.rows = rows[static_cast<size_t>(rotation)];
                         return sample(p, execution);
                       }};
  });
}

void bench_logprobs(bench::Bench& bench, const Model& model, int64_t num_rows, int64_t top) {
  bench.run(str_cat("logprobs top=", top, " ", model.name, " rows=", num_rows), [&](bench::Setup& setup) {
    LogprobsParams p;
    p.num_rows = num_rows;
    p.vocab_size = p.logits_stride = model.vocab_size;
    p.top = top;
    const int64_t bytes = num_rows * model.vocab_size * 4;
    setup.rotate(bytes);
    const auto logits = setup.rotated(bytes, DType::f32);
    p.tokens = setup.values(std::vector<int32_t>(static_cast<size_t>(num_rows), 1));
    p.logprobs = setup.values(std::vector<float>(static_cast<size_t>(num_rows * (top + 1))));
    p.ids = setup.values(std::vector<int32_t>(static_cast<size_t>(num_rows * (top + 1))));
    return bench::Case{bytes, [=](const Execution& execution, int64_t rotation) mutable {
                         p.logits = static_cast<const float*>(logits[static_cast<size_t>(rotation)]);
                         return logprobs(p, execution);
                       }};
  });
}

// Measures a decode step without faults. Its sequences have pages for a million tokens: every call makes them longer.
void bench_end_step(bench::Bench& bench, int64_t num_seqs, int64_t num_groups, bool advance) {
  const std::string name = str_cat("end_step", advance ? " advance" : "", " sequences=", num_seqs);
  bench.run(advance ? str_cat(name, " groups=", num_groups) : name, [&](bench::Setup& setup) {
    const size_t size = static_cast<size_t>(num_seqs);
    EndStepParams p;
    p.num_tokens = p.num_seqs = num_seqs;
    std::vector<int32_t> rows(size + 1);
    for (size_t s = 0; s <= size; ++s) rows[s] = static_cast<int32_t>(s);
    p.cu_seqlens_q = setup.values(rows);
    p.token_faults = setup.values(std::vector<uint8_t>(size));
    p.seq_faults = setup.values(std::vector<uint8_t>(size));
    int64_t bytes = 2 * num_seqs;
    if (advance) {
      p.advance = 1;
      p.tokens = setup.values(std::vector<int32_t>(size));
      p.token_ids = setup.values(std::vector<int32_t>(size));
      p.positions = setup.values(std::vector<int32_t>(size, 1000));
      p.seq_lens = setup.values(std::vector<int32_t>(size, 1001));
      p.rows = setup.values(std::vector<SamplingRow>(size));
      p.num_groups = num_groups;
      for (int64_t g = 0; g < num_groups; ++g) {
        EndStepGroup& group = p.groups[g];
        group.max_pages = group.block_table_stride = 256;
        group.page_size = 4096;
        group.num_pages = 1;
        group.block_table = setup.values(std::vector<int32_t>(256 * size));
        group.slot_mapping = setup.values(std::vector<int64_t>(size));
      }
      bytes += num_seqs * (4 + 4 + 8 + 8 + 16 + num_groups * (4 + 8));
    }
    return bench::Case{bytes, [=](const Execution& execution, int64_t) { return end_step(p, execution); }};
  });
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
      for (const Filters& filters : {kFilters[0], kFilters[4]}) bench_penalties(bench, model, num_rows, filters, false);
      bench_penalties(bench, model, num_rows, kFilters[0], true);
      bench_scale_logits(bench, model, num_rows);
      for (const int64_t top : {0, 5, 20}) bench_logprobs(bench, model, num_rows, top);
    }
  }
  bench_end_step(bench, 256, 0, false);
  for (const int64_t num_groups : {1, 2}) bench_end_step(bench, 256, num_groups, true);
  return bench.finish();
}
