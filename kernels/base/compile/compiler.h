// Compiles CUDA kernels while the program runs, by NVRTC, from the library's own headers, which are in the library as text (sources.h). So a
// kernel can be made for exactly what a call asks for. Internal; only in builds with CUDA.
//
// Compiling takes from a tenth of a second to seconds: it is done when something is prepared (a plan, an executor), never in a launch. What
// was compiled is kept: in the process, and in files (kernel_cache.h). NVRTC is opened when it is first needed and never linked. A program
// runs without it, too; then these functions return the error that says so. The environment variables are in docs/embedding.md.
#pragma once

#include <cstdint>
#include <string>

#include <prologue/kernels/base/compile/kernel_cache.h>
#include <prologue/kernels/base/status.h>

namespace prologue::cuda {

struct KernelSource {
  std::string text;        // includes headers as <prologue/kernels/...>, as all device code does
  std::string expression;  // names the kernel, with its namespaces: "prologue::cuda::some_kernel<float, 4>"
};

// Returns the kernel for the current device, for launch() in cuda_launch.cuh. It is good for the life of the process. Threads that ask for
// the same kernel wait for one compilation. Not to be called while a stream of this thread is captured.
PROLOGUE_API Result<const void*> compile(const KernelSource& source);

// Returns machine code for an architecture, for example "sm_90a". Needs no GPU.
PROLOGUE_API Result<CompiledKernel> compile_to_cubin(const KernelSource& source, const std::string& architecture);

// Whether compile() can work here: it is not turned off, NVRTC is found, and the driver can load what it makes. Otherwise check_compiler()
// says why not.
PROLOGUE_API Status check_compiler();
inline bool compiler_available() { return check_compiler().ok(); }

// Returns how many kernels NVRTC has compiled in this process, for tests: not those that were found in files.
PROLOGUE_API int64_t kernels_compiled();

}  // namespace prologue::cuda
