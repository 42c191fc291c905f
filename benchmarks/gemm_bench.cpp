// Measures gemm on the shapes of SmolLM2-135M (the demo model) and of the QKV projection of an 8B model, and the same batch-invariant.
#include <prologue/kernels/gemm/gemm.h>


#include "benchmarks/harness.h"

using namespace prologue;

namespace {

struct Shape {
  const char* name;
  int64_t n, k;
  int64_t max_m;
};

constexpr Shape kShapes[] = {
    {"qkv", 960, 576, 512},   {"o", 576, 576, 512},        {"gate_up", 3072, 576, 512},
    {"down", 576, 1536, 512}, {"lm_head", 49152, 576, 64}, {"8b_qkv", 6144, 4096, 512},
};

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  const auto created = bench.gemm_context();
  GemmContext& context = *created;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const Shape& shape : kShapes) {
      for (const int64_t m : {1, 4, 8, 16, 64, 512}) {
        if (m > shape.max_m) continue;
        const std::string name = str_cat(dtype_name(dtype), " ", shape.name, " ", shape.n, "x", shape.k, " M=", m);
        for (const bool batch_invariant : {false, true}) {
          bench.run(batch_invariant ? name + " batch-invariant" : name, [&](bench::Setup& setup) {
            const int64_t n = shape.n, k = shape.k, size = dtype_size(dtype);
            const int64_t weight_bytes = n * k * size;
            setup.rotate(weight_bytes);
            const auto weights = setup.rotated(weight_bytes, dtype);
            GemmParams p;
            p.m = m;
            p.n = n;
            p.k = k;
            p.dtype = p.y_dtype = dtype;
            p.x = setup.shared(m * k * size, dtype);
            p.x_stride = k;
            p.y = setup.shared(m * n * size, dtype);
            p.y_stride = n;
            p.batch_invariant = batch_invariant;
            return bench::Case{weight_bytes + m * (k + n) * size,
                               [=, &context](const Execution& execution, int64_t rotation) mutable {
                                 p.weight = weights[static_cast<size_t>(rotation)];
                                 return gemm(p, context, execution);
                               },
                               2.0 * static_cast<double>(m * n * k)};
          });
        }
      }
    }
  }
  return bench.finish();
}
