// Measures gemm with packed weights. On the CPU: every format, on two shapes of the demo model and two of an 8B model, beside a plain read
// of as many bytes; and the other instruction sets that this processor has. Then ("rows of x") 1 to 16 rows in turn, as a step verifies drafts:
// four formats, and all that a --prefix asks for. On CUDA, where weights are made dense for many rows of x: making
// a piece of them dense alone, and whole products beside those of dense weights; and float8 weights by quantised x (w8a8), with its parts.
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/gemm/float8.h>
#include <prologue/kernels/gemm/quantized_cpu.h>
#include <prologue/kernels/gemm/unpack.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>
#include <vector>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

struct Shape {
  const char* name;
  int64_t n, k;
};

constexpr Shape kShapes[] = {{"gate_up", 3072, 576}, {"lm_head", 49152, 576}, {"8b_qkv", 6144, 4096}, {"8b_down", 4096, 14336}};
constexpr WeightFormat kFormats[] = {WeightFormat::q8_0,    WeightFormat::q4_0,   WeightFormat::q4_1,  WeightFormat::q5_0,
                                     WeightFormat::q5_1,    WeightFormat::q4_k,   WeightFormat::q5_k,  WeightFormat::q6_k,
                                     WeightFormat::f8_e4m3, WeightFormat::i8,     WeightFormat::q2_k,  WeightFormat::q3_k,
                                     WeightFormat::iq4_nl,  WeightFormat::iq4_xs, WeightFormat::mxfp4, WeightFormat::i4_64,
                                     WeightFormat::i4_128,  WeightFormat::nvfp4};

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

// The shapes of a layer of an 8B model, and one of a 1B model.
constexpr Shape kShapesOfRows[] = {{"8b", 4096, 4096}, {"8b", 14336, 4096}, {"8b", 4096, 14336}, {"1b", 2048, 2048}};
constexpr WeightFormat kFormatsOfRows[] = {WeightFormat::q4_k, WeightFormat::q4_0, WeightFormat::q6_k, WeightFormat::q8_0};

std::vector<void*> rotated_weights(bench::Setup& setup, WeightFormat format, const Shape& shape) {
  const int64_t bytes = packed_weight_bytes(format, shape.n, shape.k);
  setup.rotate(bytes);
  return setup.rotated(bytes, DType::f16);
}

// x and y count as bytes too, but for one row they are few.
bench::Case product(bench::Setup& setup, GemmContext& context, WeightFormat format, const Shape& shape, int64_t m,
                    const std::vector<void*>& weights, const std::string& reference) {
  const int64_t bytes = packed_weight_bytes(format, shape.n, shape.k);
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

#ifdef PROLOGUE_HAS_CUDA

// Rows of 4096 and of 14336 channels: 16 MiB of bfloat16, which stay in the L2 here, a third of what a product makes dense at a time. The
// packed rows come from memory.
void run_unpack(bench::Bench& bench, WeightFormat format) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2048, 4096}, {512, 14336}}) {
    bench.run(str_cat("unpack ", weight_format_name(format), " ", n, "x", k), [&, n = n, k = k](bench::Setup& setup) {
      const int64_t bytes = packed_weight_bytes(format, n, k);
      setup.rotate_cold(bytes);
      const auto data = setup.rotated(bytes, DType::f16);
      void* const dense = setup.shared(n * k * 2, DType::bf16);
      return bench::Case{bytes + n * k * 2, [=](const Execution& execution, int64_t rotation) {
                           const PackedRows rows = {data[static_cast<size_t>(rotation)], format, n};
                           return cuda::unpack_rows(rows, k, 0, n, DType::bf16, dense, execution.stream);
                         }};
    });
  }
}

// The parts of a product of float8 by float8: codes of 8192 or 2048 rows of weights, and of 2048 tokens.
void run_float8_parts(bench::Bench& bench) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8192, 4096}, {2048, 14336}}) {
    for (const WeightScaling scaling : {WeightScaling::rows, WeightScaling::squares, WeightScaling::blocks}) {
      bench.run(str_cat("unpack_float8 ", weight_scaling_name(scaling), " ", n, "x", k), [&, n = n, k = k](bench::Setup& setup) {
        const int64_t bytes = packed_weight_bytes(WeightFormat::f8_e4m3, n, k);
        setup.rotate_cold(bytes);
        const auto data = setup.rotated(bytes, DType::f16);
        auto* const codes = static_cast<uint8_t*>(setup.shared(n * k, DType::f16));
        auto* const scales = static_cast<float*>(setup.shared(n * (k / 128 + 4) * 4, DType::f32));
        return bench::Case{bytes + n * k, [=](const Execution& execution, int64_t rotation) {
                             const PackedRows rows = {data[static_cast<size_t>(rotation)], WeightFormat::f8_e4m3, n, scaling};
                             return cuda::unpack_float8(rows, scaling, k, 0, n, codes, scales, n, execution.stream);
                           }};
      });
    }
  }
  for (const int64_t k : {4096, 14336}) {
    for (const bool whole_rows : {true, false}) {
      bench.run(str_cat("quantize_x ", whole_rows ? "rows" : "blocks", " 2048x", k), [&](bench::Setup& setup) {
        cuda::QuantizeXParams p;
        p.m = 2048;
        p.k = p.x_stride = k;
        p.dtype = DType::bf16;
        p.x = setup.shared(p.m * k * 2, DType::bf16);
        p.whole_rows = whole_rows;
        p.codes = static_cast<uint8_t*>(setup.shared(p.m * k, DType::f16));
        p.scales = static_cast<float*>(setup.shared(p.m * (k / 128) * 4, DType::f32));
        return bench::Case{p.m * k * 3,
                           [=](const Execution& execution, int64_t) { return cuda::quantize_x(p, execution.stream); }};
      });
    }
  }
}

// Bytes are those of the weights as they are in memory, x and y. A product of packed weights is compared with that of dense ones.
bench::Case product_on_cuda(bench::Setup& setup, GemmContext& context, WeightFormat format, const Shape& shape, int64_t m,
                            const std::string& reference, DType quantize_x = DType::unset,
                            WeightScaling scaling = WeightScaling::blocks) {
  const bool packed = format != WeightFormat::dense;
  const int64_t bytes = packed ? packed_weight_bytes(format, shape.n, shape.k) : shape.n * shape.k * 2;
  setup.rotate(bytes);
  const auto weights = setup.rotated(bytes, DType::bf16);
  GemmParams p;
  p.m = m;
  p.n = shape.n;
  p.k = p.x_stride = shape.k;
  p.dtype = p.y_dtype = DType::bf16;
  p.x = setup.shared(m * p.k * 2, DType::bf16);
  p.y = setup.shared(m * p.n * 2, DType::bf16);
  p.y_stride = shape.n;
  if (packed) p.packed = {1, {{nullptr, format, p.n, scaling}}};
  p.quantize_x = quantize_x;
  return {bytes + m * (p.k + p.n) * 2,
          [=, &context](const Execution& execution, int64_t rotation) mutable {
            (packed ? p.packed.segments[0].data : p.weight) = weights[static_cast<size_t>(rotation)];
            return gemm(p, context, execution);
          },
          2.0 * static_cast<double>(m * p.n * p.k), reference};
}

void run_cuda(bench::Bench& bench) {
  for (const WeightFormat format : kFormats) run_unpack(bench, format);
  run_float8_parts(bench);
  const auto context = bench.gemm_context();
  for (const Shape& shape : {Shape{"8b_qkv", 6144, 4096}, Shape{"8b_gate_up", 28672, 4096}, Shape{"8b_down", 4096, 14336}}) {
    // 2047: products with scales of blocks are of multiples of 4, and the last rows are one by themselves.
    for (const int64_t m : {128, 512, 2047, 2048, 8192}) {
      if (m == 2047 && shape.n != 28672) continue;
      const auto name = [&](WeightFormat format) {
        return str_cat(weight_format_name(format), " ", shape.name, " ", shape.n, "x", shape.k, " M=", m);
      };
      const std::string dense = name(WeightFormat::dense);
      for (const WeightFormat format : {WeightFormat::dense, WeightFormat::q8_0, WeightFormat::q4_k, WeightFormat::f8_e4m3}) {
        bench.run(name(format), [&](bench::Setup& setup) { return product_on_cuda(setup, *context, format, shape, m, dense); });
      }
      for (const WeightScaling scaling : {WeightScaling::rows, WeightScaling::squares, WeightScaling::blocks}) {
        bench.run(str_cat("w8a8 ", weight_scaling_name(scaling), " ", shape.name, " ", shape.n, "x", shape.k, " M=", m),
                  [&](bench::Setup& setup) {
                    return product_on_cuda(setup, *context, WeightFormat::f8_e4m3, shape, m, dense, DType::fp8_e4m3, scaling);
                  });
      }
    }
  }
}

#endif

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
#ifdef PROLOGUE_HAS_CUDA
  if (bench.execution().device == Device::cuda) {
    run_cuda(bench);
    return bench.finish();
  }
#endif
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
          bench.run(str_cat(name, " M=", m, " ", kernels->instructions), [&](bench::Setup& setup) {
            return product(setup, *context, format, shape, m, rotated_weights(setup, format, shape), m == 1 ? read : "");
          });
        }
      }
    }
  }
  for (const cpu::QuantizedKernels* kernels : {cpu::avx512_kernels(), cpu::avx2_kernels()}) {
    if (kernels == nullptr) continue;
    const auto context = std::move(cpu::create_gemm_context(*kernels)).value();
    for (const Shape& shape : kShapesOfRows) {
      for (const WeightFormat format : kFormats) {
        const std::string name =
            str_cat("rows of x ", weight_format_name(format), " ", shape.n, "x", shape.k, " ", kernels->instructions);
        const bool one_of_four =
            std::find(std::begin(kFormatsOfRows), std::end(kFormatsOfRows), format) != std::end(kFormatsOfRows);
        if (!one_of_four && !bench.asked_for(name)) continue;
        bench.run_in_turn(name, [&](bench::Setup& setup) {
          const auto weights = rotated_weights(setup, format, shape);
          std::vector<bench::NamedCase> cases;
          for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
            cases.push_back({str_cat("M=", m), product(setup, *context, format, shape, m, weights, "")});
          }
          return cases;
        });
      }
    }
  }
  return bench.finish();
}
