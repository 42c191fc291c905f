// Measures gemm with packed weights on the CPU: every format, on two shapes of the demo model and two of an 8B model, beside a plain read
// of as many bytes; and the other instruction sets that this processor has.
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/gemm/quantized_cpu.h>

#include <atomic>
#include <cstdio>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

struct Shape {
  const char* name;
  int64_t n, k;
};

constexpr Shape kShapes[] = {{"gate_up", 3072, 576}, {"lm_head", 49152, 576}, {"8b_qkv", 6144, 4096}, {"8b_down", 4096, 14336}};
constexpr WeightFormat kFormats[] = {WeightFormat::q8_0,    WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q5_0,
                                     WeightFormat::q5_1,    WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k,
                                     WeightFormat::f8_e4m3, WeightFormat::i8};

// Reads every word, on all threads.
Status read_all(const void* data, int64_t num_bytes, const Execution& execution) {
  static std::atomic<uint64_t> sink;
  constexpr int64_t kParts = 16;
  const auto* words = static_cast<const uint64_t*>(data);
  const int64_t count = num_bytes / 8;
  parallel_for(kParts, execution.num_threads, [&](int64_t part) {
    uint64_t sums[8] = {};
    for (int64_t i = count * part / kParts; i + 8 <= count * (part + 1) / kParts; i += 8) {
      for (int64_t j = 0; j < 8; ++j) sums[j] += words[i + j];
    }
    for (const uint64_t sum : sums) sink.fetch_add(sum, std::memory_order_relaxed);
  });
  return {};
}

// x and y count as bytes too, but for one row they are few.
bench::Case product(bench::Setup& setup, GemmContext& context, WeightFormat format, const Shape& shape, int64_t m,
                    const std::string& reference) {
  const int64_t bytes = packed_weight_bytes(format, shape.n, shape.k);
  setup.rotate(bytes);
  const auto weights = setup.rotated(bytes, DType::f16);
  GemmParams p;
  p.m = m;
  p.n = shape.n;
  p.k = shape.k;
  p.dtype = p.y_dtype = DType::f32;
  p.x = setup.shared(m * p.k * 4, DType::f32);
  p.x_stride = p.k;
  p.y = setup.shared(m * p.n * 4, DType::f32);
  p.y_stride = p.n;
  p.packed = {1, {{nullptr, format, p.n}}};
  return {bytes + m * (p.k + p.n) * 4,
          [=, &context](const Execution& execution, int64_t rotation) mutable {
            p.packed.segments[0].data = weights[static_cast<size_t>(rotation)];
            return gemm(p, context, execution);
          },
          2.0 * static_cast<double>(m * p.n * p.k), reference};
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  if (bench.execution().device != Device::cpu) {
    std::fprintf(stderr, "packed weights are multiplied on the CPU only: --device cpu\n");
    return 1;
  }
  for (const Shape& shape : kShapes) {
    for (const WeightFormat format : kFormats) {
      if (shape.k % weight_block_elements(format) != 0) continue;
      const std::string name = str_cat(weight_format_name(format), " ", shape.name, " ", shape.n, "x", shape.k);
      const std::string read = name + " read";
      bench.run(read, [&](bench::Setup& setup) {
        const int64_t bytes = packed_weight_bytes(format, shape.n, shape.k);
        setup.rotate(bytes);
        const auto data = setup.rotated(bytes, DType::f16);
        return bench::Case{bytes, [=](const Execution& execution, int64_t rotation) {
                             return read_all(data[static_cast<size_t>(rotation)], bytes, execution);
                           }};
      });
      for (const cpu::QuantizedKernels* kernels : {cpu::avx512_kernels(), cpu::avx2_kernels(), &cpu::kScalarKernels}) {
        if (kernels == nullptr) continue;
        const auto context = std::move(cpu::create_gemm_context(*kernels)).value();
        for (const int64_t m : {1, 4, 16, 64, 512}) {
          if (m > 1 && (kernels == &cpu::kScalarKernels || shape.n > 40000)) continue;
          bench.run(str_cat(name, " M=", m, " ", kernels->instructions),
                    [&](bench::Setup& setup) { return product(setup, *context, format, shape, m, m == 1 ? read : ""); });
        }
      }
    }
  }
  return bench.finish();
}
