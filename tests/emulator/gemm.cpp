// The CPU's product replaces gemm_cuda.cu, which needs cuBLASLt.
#include <prologue/kernels/gemm/backends.h>

#include <cuda_runtime.h>

#include <vector>

#include <prologue/kernels/gemm/unpack.h>

namespace prologue::cuda {

namespace {

class Context : public GemmContext {
 public:
  explicit Context(std::unique_ptr<GemmContext> cpu) : GemmContext(Device::cuda), cpu_(std::move(cpu)) {}
  GemmContext& cpu() { return *cpu_; }
  // For packed weights: of few rows, so that products take several pieces.
  std::vector<unsigned char> dense = std::vector<unsigned char>(size_t{1} << 17);

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

}  // namespace

Result<std::unique_ptr<GemmContext>> create_gemm_context(bool own_workspace) {
  PROLOGUE_ASSIGN_OR_RETURN(std::unique_ptr<GemmContext> of_cpu, cpu::create_gemm_context());
  auto context = std::make_unique<Context>(std::move(of_cpu));
  if (own_workspace) context->set_workspace(context.get());  // not used
  return std::unique_ptr<GemmContext>(std::move(context));
}

Status gemm(const GemmParams& params, GemmContext& context, const Execution& execution) {
  if (params.packed.num_segments == 0 || params.k == 0) return run_dense(params, context, execution);
  std::vector<unsigned char>& dense = static_cast<Context&>(context).dense;
  return run_packed(params, dense.data(), static_cast<int64_t>(dense.size()), execution.stream,
                    [&](const GemmParams& part) { return run_dense(part, context, execution); });
}

}  // namespace prologue::cuda
