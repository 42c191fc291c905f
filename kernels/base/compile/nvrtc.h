// NVRTC, opened at run time. Internal.
#pragma once

#include <string>
#include <vector>

#include <prologue/kernels/base/compile/compiler.h>

namespace prologue::cuda {

// Has the functions of NVRTC that we use: its C interface, which has been the same since CUDA 11.2. (The toolkit may be installed without nvrtc.h.)
struct Nvrtc {
  using Program = void*;
  int (*version)(int* major, int* minor);
  int (*num_supported_archs)(int* count);
  int (*supported_archs)(int* archs);
  int (*create_program)(Program* program, const char* text, const char* name, int num_headers, const char* const* headers,
                        const char* const* header_names);
  int (*destroy_program)(Program* program);
  int (*add_name_expression)(Program program, const char* expression);
  int (*compile_program)(Program program, int num_options, const char* const* options);
  int (*program_log_size)(Program program, size_t* size);
  int (*program_log)(Program program, char* log);
  int (*cubin_size)(Program program, size_t* size);
  int (*cubin)(Program program, char* cubin);
  int (*lowered_name)(Program program, const char* expression, const char** name);
  const char* (*error_string)(int error);
};

// Opens the library at `path`. Nothing ever closes it.
Result<Nvrtc> open_nvrtc(const char* path);

// Returns the NVRTC of this process: that of PROLOGUE_NVRTC, or else the first that is found. It is searched for once.
Result<const Nvrtc*> nvrtc();

// "13.0"
std::string version_of(const Nvrtc& nvrtc);

// Returns the architecture that `nvrtc` compiles for, for a GPU of this compute capability: the nearest that it knows of the same major version,
// whose code such a GPU runs.
PROLOGUE_API Result<std::string> architecture_for(const Nvrtc& nvrtc, int major, int minor);

// Returns the options of every compilation but the architecture.
const std::vector<const char*>& compiler_options();

Result<CompiledKernel> compile_with(const Nvrtc& nvrtc, const KernelSource& source, const std::string& architecture);

}  // namespace prologue::cuda
