// The CPU's product replaces gemm_cuda.cu, which needs cuBLASLt.
#include <prologue/kernels/gemm/backends.h>

#include <cuda_runtime.h>

namespace prologue::cuda {

namespace {

class Context : public GemmContext {
 public:
  explicit Context(std::unique_ptr<GemmContext> cpu) : GemmContext(Device::cuda), cpu_(std::move(cpu)) {}
  GemmContext& cpu() { return *cpu_; }

 private:
  std::unique_ptr<GemmContext> cpu_;
};

}  // namespace

Result<std::unique_ptr<GemmContext>> create_gemm_context(bool own_workspace) {
  PROLOGUE_ASSIGN_OR_RETURN(std::unique_ptr<GemmContext> of_cpu, cpu::create_gemm_context());
  auto context = std::make_unique<Context>(std::move(of_cpu));
  if (own_workspace) context->set_workspace(context.get());  // not used
  return std::unique_ptr<GemmContext>(std::move(context));
}

Status gemm(const GemmParams& params, GemmContext& context, const Execution& execution) {
  Execution on_cpu = execution;
  on_cpu.device = Device::cpu;
  GemmContext& of_cpu = static_cast<Context&>(context).cpu();
  emulator::submit(execution.stream, [=, &of_cpu] { static_cast<void>(cpu::gemm(params, of_cpu, on_cpu)); });
  return {};
}

}  // namespace prologue::cuda
