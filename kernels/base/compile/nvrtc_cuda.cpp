#include <prologue/kernels/base/compile/nvrtc.h>

#include <cuda_runtime_api.h>

#include <cstdlib>

#include <prologue/kernels/base/compile/sources.h>
#include <prologue/kernels/base/host/open_library.h>

namespace prologue::cuda {

namespace {

constexpr const char* kWhat = "compiling kernels: NVRTC";

Result<Nvrtc> search_nvrtc() {
  if (const char* const named = std::getenv("PROLOGUE_NVRTC"); named != nullptr && *named != '\0') return open_nvrtc(named);
  int runtime = 0;  // the driver can load what this version makes
  cudaRuntimeGetVersion(&runtime);
  for (const std::string& path :
       {str_cat("libnvrtc.so.", runtime / 1000), std::string("libnvrtc.so.13"), std::string("libnvrtc.so.12"),
        std::string("libnvrtc.so"), std::string(PROLOGUE_CUDA_LIBRARY_DIR "/libnvrtc.so")}) {
    Result<Nvrtc> found = open_nvrtc(path.c_str());
    if (found.ok()) return found;
  }
  return unsupported(
      "compiling kernels: NVRTC was not found: install the CUDA toolkit's libnvrtc, or set PROLOGUE_NVRTC to its path");
}

// Destroys the program at the end.
class Program {
 public:
  explicit Program(const Nvrtc& nvrtc) : nvrtc_(nvrtc) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (program_ != nullptr) nvrtc_.destroy_program(&program_);
  }
  Nvrtc::Program* address() { return &program_; }
  Nvrtc::Program get() const { return program_; }

  std::string log() const {
    size_t size = 0;
    if (nvrtc_.program_log_size(program_, &size) != 0) return {};
    std::string text(size, '\0');
    if (nvrtc_.program_log(program_, text.data()) != 0) return {};
    constexpr size_t kMost = 4000;  // errors in templates can be long
    text.resize(text.find('\0') < kMost ? text.find('\0') : std::min(text.size(), kMost));
    return text;
  }

 private:
  const Nvrtc& nvrtc_;
  Nvrtc::Program program_ = nullptr;
};

}  // namespace

Result<Nvrtc> open_nvrtc(const char* path) {
  PROLOGUE_ASSIGN_OR_RETURN(const OpenLibrary library, open_library(kWhat, {path}));
  Nvrtc nvrtc = {};
  const auto find = [&](const char* name, auto& function) { return find_function(kWhat, library, name, function); };
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcVersion", nvrtc.version));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcGetNumSupportedArchs", nvrtc.num_supported_archs));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcGetSupportedArchs", nvrtc.supported_archs));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcCreateProgram", nvrtc.create_program));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcDestroyProgram", nvrtc.destroy_program));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcAddNameExpression", nvrtc.add_name_expression));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcCompileProgram", nvrtc.compile_program));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcGetProgramLogSize", nvrtc.program_log_size));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcGetProgramLog", nvrtc.program_log));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcGetCUBINSize", nvrtc.cubin_size));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcGetCUBIN", nvrtc.cubin));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcGetLoweredName", nvrtc.lowered_name));
  PROLOGUE_RETURN_IF_ERROR(find("nvrtcGetErrorString", nvrtc.error_string));
  return nvrtc;
}

Result<const Nvrtc*> nvrtc() {
  static const Result<Nvrtc> found = search_nvrtc();
  if (!found.ok()) return found.status();
  return &*found;
}

std::string version_of(const Nvrtc& nvrtc) {
  int major = 0, minor = 0;
  nvrtc.version(&major, &minor);
  return str_cat(major, ".", minor);
}

Result<std::string> architecture_for(const Nvrtc& nvrtc, int major, int minor) {
  int count = 0;
  std::vector<int> known;
  if (nvrtc.num_supported_archs(&count) == 0 && count > 0) {
    known.resize(static_cast<size_t>(count));
    if (nvrtc.supported_archs(known.data()) != 0) known.clear();
  }
  int nearest = -1;
  for (const int arch : known) {
    if (arch / 10 == major && arch % 10 <= minor && arch > nearest) nearest = arch;
  }
  if (nearest < 0) {
    return unsupported("compiling kernels: NVRTC ", version_of(nvrtc), " does not know the GPU's compute capability, ", major,
                       ".", minor);
  }
  return str_cat("sm_", nearest, nearest == 90 ? "a" : "");  // as the library is built
}

const std::vector<const char*>& compiler_options() {
  // For floating point NVRTC has the defaults of nvcc, and the build changes none, so the bits are the same. A function that is marked neither
  // __host__ nor __device__ counts as a __device__ one: the headers have functions of the host, too, and no kernel calls them.
  static const std::vector<const char*> options = {"--std=c++20", "--device-as-default-execution-space", "--device-int128"};
  return options;
}

Result<CompiledKernel> compile_with(const Nvrtc& nvrtc, const KernelSource& source, const std::string& architecture) {
  std::vector<const char*> texts, names, options = compiler_options();
  for (const SourceHeader& header : source_headers()) texts.push_back(header.text), names.push_back(header.name);
  const std::string option = "--gpu-architecture=" + architecture;
  options.push_back(option.c_str());

  Program program(nvrtc);
  int error = nvrtc.create_program(program.address(), source.text.c_str(), "kernel.cu", static_cast<int>(texts.size()),
                                   texts.data(), names.data());
  if (error == 0) error = nvrtc.add_name_expression(program.get(), source.expression.c_str());
  if (error == 0) error = nvrtc.compile_program(program.get(), static_cast<int>(options.size()), options.data());
  CompiledKernel kernel;
  const char* symbol = nullptr;
  size_t size = 0;
  if (error == 0) error = nvrtc.lowered_name(program.get(), source.expression.c_str(), &symbol);
  if (error == 0) error = nvrtc.cubin_size(program.get(), &size);
  if (error == 0) {
    kernel.symbol = symbol;
    kernel.cubin.resize(size);
    error = nvrtc.cubin(program.get(), kernel.cubin.data());
  }
  if (error == 0) return kernel;
  return device_error("NVRTC ", version_of(nvrtc), " could not compile ", source.expression, " for ", architecture, ": ",
                      nvrtc.error_string(error), "\n", program.get() == nullptr ? "" : program.log());
}

}  // namespace prologue::cuda
