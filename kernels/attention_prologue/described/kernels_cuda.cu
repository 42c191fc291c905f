#include <prologue/kernels/attention_prologue/described/kernels.h>

#ifdef PROLOGUE_CUDA_EMULATED
#include <prologue/kernels/attention_prologue/described/schedule.cuh>
#else
#include <prologue/kernels/base/compile/compiler.h>
#endif

namespace prologue::cuda {

#ifdef PROLOGUE_CUDA_EMULATED

namespace {

struct Emulated {
  DType dtype;
  int vector, units;
  bool together;
  void (*kernel)(ArgsWithFacts);
};

template <class T, int V, int kUnits = 1, bool kTogether = false>
constexpr Emulated emulated(DType dtype) {
  return {dtype, V, kUnits, kTogether,
          described_prologue_kernel<T, V, kUnits, kTogether, kNoHints, kMaxTokenThreads, 1, FactsOfArgs>};
}

constexpr Emulated kEmulated[] = {
    emulated<__half, 8>(DType::f16),
    emulated<__half, 8, 2>(DType::f16),
    emulated<__half, 8, 2, true>(DType::f16),
    emulated<__half, 4>(DType::f16),
    emulated<__half, 2>(DType::f16),
    emulated<__half, 1>(DType::f16),
    emulated<__nv_bfloat16, 8>(DType::bf16),
    emulated<__nv_bfloat16, 8, 2>(DType::bf16),
    emulated<__nv_bfloat16, 8, 2, true>(DType::bf16),
    emulated<__nv_bfloat16, 4>(DType::bf16),
    emulated<__nv_bfloat16, 2>(DType::bf16),
    emulated<__nv_bfloat16, 1>(DType::bf16),
    emulated<float, 4>(DType::f32),
    emulated<float, 4, 2>(DType::f32),
    emulated<float, 2>(DType::f32),
    emulated<float, 1>(DType::f32),
};

}  // namespace

Result<DescribedKernel> make_kernel(DType dtype, const CallFacts&, const DescribedSize& size) {
  for (const Emulated& kernel : kEmulated) {
    if (kernel.dtype == dtype && kernel.vector == size.vector && kernel.units == size.units && kernel.together == size.together) {
      return DescribedKernel{reinterpret_cast<const void*>(kernel.kernel)};
    }
  }
  return unsupported("attention_prologue: the emulator has no kernel of ", size.vector, " channels and ", size.units, " heads");
}

Status launch_described(const DescribedKernel& kernel, const CallFacts& facts, const LaunchShape& shape, cudaStream_t stream,
                        const DescribedArgs& args) {
  return launch("attention_prologue", reinterpret_cast<void (*)(ArgsWithFacts)>(kernel.kernel), shape, stream,
                ArgsWithFacts{args, facts});
}

#else

Result<DescribedKernel> make_kernel(DType dtype, const CallFacts& facts, const DescribedSize& size) {
  KernelSource source;
  source.text = "#include <prologue/kernels/attention_prologue/described/schedule.cuh>\n";
  source.expression = described_name(dtype, facts, size);
  PROLOGUE_ASSIGN_OR_RETURN(const void* kernel, compile(source));
  return DescribedKernel{kernel};
}

Status launch_described(const DescribedKernel& kernel, const CallFacts&, const LaunchShape& shape, cudaStream_t stream,
                        const DescribedArgs& args) {
  return launch("attention_prologue", kernel.kernel, shape, stream, args);
}

#endif

}  // namespace prologue::cuda
