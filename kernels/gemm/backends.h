// Internal functions that gemm() calls after validate() of gemm.h has made all checks.
//   run_validated   runs a call that validate() accepts; checks nothing
//   check_float8_gemm  unsupported, with what is missing, if products with quantize_x are slow on this GPU: cuBLASLt does not make them. CPU: OK
//   cpu::, cuda::   the backends; the call is valid and not empty
#pragma once

#include <memory>

#include <prologue/kernels/gemm/gemm.h>

namespace prologue {

PROLOGUE_API Status run_validated(const GemmParams& params, GemmContext& context, const Execution& execution);
PROLOGUE_API Status check_float8_gemm(Device device);

namespace cpu {
struct QuantizedKernels;
Result<std::unique_ptr<GemmContext>> create_gemm_context();
// Packed weights are multiplied with these kernels (quantized_cpu.h), whatever the processor has: for tests.
PROLOGUE_API Result<std::unique_ptr<GemmContext>> create_gemm_context(const QuantizedKernels& kernels);
Status gemm(const GemmParams& params, GemmContext& context, const Execution& execution);
}  // namespace cpu
namespace cuda {
Result<std::unique_ptr<GemmContext>> create_gemm_context(bool own_workspace);
Status gemm(const GemmParams& params, GemmContext& context, const Execution& execution);
Status check_float8_gemm();
}  // namespace cuda

}  // namespace prologue
