// The CPU's product replaces gemm_cuda.cu, which needs cuBLASLt. Products of float8 have a stand-in with cuBLASLt's layouts of scales and its rules.
#include <prologue/kernels/gemm/backends.h>

#include <cuda_runtime.h>

#include <vector>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/gemm/float8.h>
#include <prologue/kernels/gemm/unpack.h>

namespace prologue::cuda {

namespace {

class Context : public GemmContext {
 public:
  explicit Context(std::unique_ptr<GemmContext> cpu) : GemmContext(Device::cuda), cpu_(std::move(cpu)) {}
  GemmContext& cpu() { return *cpu_; }
  // For packed weights: of few rows, so that products take several pieces.
  std::vector<unsigned char> dense = std::vector<unsigned char>(size_t{1} << 17);
  // The same for products of float8: of few tokens, too.
  Buffer float8_rows, float8_tokens;

 private:
  std::unique_ptr<GemmContext> cpu_;
};

Status run_dense(const GemmParams& params, GemmContext& context, const Execution& execution) {
  Execution on_cpu = execution;
  on_cpu.device = Device::cpu;
  GemmParams dense = params;
  dense.packed = {};
  GemmContext& of_cpu = static_cast<Context&>(context).cpu();
  emulator::submit(execution.stream, [=, &of_cpu] { static_cast<void>(cpu::gemm(dense, of_cpu, on_cpu)); });
  return {};
}

constexpr int64_t kFloat8RowsBytes = 48 << 10, kFloat8TokensBytes = 24 << 10;

float element(DType dtype, const void* data, int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return dtype == DType::f16 ? to_float(Float16{bits}) : to_float(BFloat16{bits});
}

void store(DType dtype, void* data, int64_t i, float value) {
  if (dtype == DType::f32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] = dtype == DType::f16 ? to_float16(value).bits : to_bfloat16(value).bits;
  }
}

// What cublasLtMatmul computes, from its documentation: op(A) [n, k] are the weights, B [m, k] is x. OUTER_VEC_32F: scales [n] and [m].
// VEC128_32F: a scale for each 128 of k, those of all rows (of the matrix that is given) of a block beside each other. BLK128x128_32F: those
// of 128 rows beside each other, in a multiple of 4.
void multiply(const Float8Product& p) {
  constexpr int64_t kVector = 128;
  const int64_t blocks = divide_up(p.k, kVector);
  for (int64_t row = 0; row < p.m; ++row) {
    for (int64_t column = 0; column < p.n; ++column) {
      double sum = 0.0;
      for (int64_t b = 0; b < blocks; ++b) {
        double products = 0.0;
        for (int64_t k = b * kVector; k < (b + 1) * kVector; ++k) {
          products += static_cast<double>(from_fp8_e4m3(p.x[row * p.k + k])) *
                      static_cast<double>(from_fp8_e4m3(p.weight[column * p.k + k]));
        }
        if (p.scaling == WeightScaling::rows) {
          sum += products;
          continue;
        }
        const float x_scale = p.x_scales[b * p.m + row];
        const float weight_scale = p.scaling == WeightScaling::squares
                                       ? p.weight_scales[column / kVector * round_up(blocks, int64_t{4}) + b]
                                       : p.weight_scales[b * p.n + column];
        sum += products * static_cast<double>(x_scale) * static_cast<double>(weight_scale);
      }
      if (p.scaling == WeightScaling::rows) {
        sum *= static_cast<double>(p.x_scales[row]) * static_cast<double>(p.weight_scales[column]);
      }
      float value = static_cast<float>(sum);
      if (p.bias != nullptr) value += element(p.dtype, p.bias, column);
      store(p.y_dtype, p.y, row * p.y_stride + column, value);
    }
  }
}

// Of an odd number of rows it takes none, as if an old cuBLASLt did not, so that both ways are tested.
Result<bool> multiply_float8(const Float8Product& product, const Execution& execution) {
  const auto is_aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  if (!float8_product_is_aligned(product) || product.m % 2 != 0) return false;
  if (!is_aligned(product.x) || !is_aligned(product.weight) || !is_aligned(product.x_scales) ||
      !is_aligned(product.weight_scales)) {
    return invalid_argument("cuBLASLt: a matrix or scales are not aligned to 16 bytes");
  }
  emulator::submit(execution.stream, [=] { multiply(product); });
  return true;
}

}  // namespace

Status check_float8_gemm() { return {}; }

Result<std::unique_ptr<GemmContext>> create_gemm_context(bool own_workspace) {
  PROLOGUE_ASSIGN_OR_RETURN(std::unique_ptr<GemmContext> of_cpu, cpu::create_gemm_context());
  auto context = std::make_unique<Context>(std::move(of_cpu));
  PROLOGUE_ASSIGN_OR_RETURN(context->float8_rows, Buffer::allocate(Device::cpu, kFloat8RowsBytes));
  PROLOGUE_ASSIGN_OR_RETURN(context->float8_tokens, Buffer::allocate(Device::cpu, kFloat8TokensBytes));
  if (own_workspace) context->set_workspace(context.get());  // not used
  return std::unique_ptr<GemmContext>(std::move(context));
}

Status gemm(const GemmParams& params, GemmContext& context, const Execution& execution) {
  if (params.packed.num_segments == 0 || params.k == 0) return run_dense(params, context, execution);
  if (params.quantize_x == DType::fp8_e4m3) {
    const auto& of = static_cast<Context&>(context);
    const Float8Room room = {of.float8_rows.as<unsigned char>(), kFloat8RowsBytes, of.float8_tokens.as<unsigned char>(),
                             kFloat8TokensBytes};
    return run_float8(params, room, execution.stream,
                      [&](const Float8Product& product) { return multiply_float8(product, execution); });
  }
  std::vector<unsigned char>& dense = static_cast<Context&>(context).dense;
  return run_packed(params, dense.data(), static_cast<int64_t>(dense.size()), execution.stream,
                    [&](const GemmParams& part) { return run_dense(part, context, execution); });
}

}  // namespace prologue::cuda
