#include <prologue/kernels/base/compile/compiler.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include <prologue/kernels/base/compile/nvrtc.h>
#include <prologue/kernels/base/compile/once_per_key.h>
#include <prologue/kernels/base/compile/sources.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/base/device/device_limits.cuh>
#include <prologue/kernels/base/device/driver_function.cuh>

namespace prologue::cuda {

namespace {

std::atomic<int64_t> compilations = 0;

// Loads machine code: cuLibraryLoadData and cuLibraryGetKernel, which drivers have since CUDA 12.0. A library belongs to no device: its
// kernels run on every device that can run the code.
struct Loader {
  int (*load)(void** library, const void* code, void* options, void* option_values, unsigned num_options, void* library_options,
              void* library_option_values, unsigned num_library_options) = nullptr;
  int (*get_kernel)(void** kernel, void* library, const char* symbol) = nullptr;
  int (*error_string)(int error, const char** text) = nullptr;
};

Result<Loader> loader() {
  static const Loader found = [] {
    constexpr unsigned kSince = 12000;
    Loader functions;
    functions.load = driver_function<decltype(functions.load)>("cuLibraryLoadData", kSince);
    functions.get_kernel = driver_function<decltype(functions.get_kernel)>("cuLibraryGetKernel", kSince);
    functions.error_string = driver_function<decltype(functions.error_string)>("cuGetErrorString", kSince);
    return functions;
  }();
  if (found.load == nullptr || found.get_kernel == nullptr || found.error_string == nullptr) {
    return unsupported("compiling kernels: there is no driver that can load them: it needs one of CUDA 12.0 or later");
  }
  return found;
}

Status check_turned_on() {
  const char* const value = std::getenv("PROLOGUE_COMPILE");
  if (value == nullptr || std::strcmp(value, "0") != 0) return {};
  return unsupported("compiling kernels: PROLOGUE_COMPILE=0 has turned it off");
}

Result<const void*> load(const Loader& driver, const CompiledKernel& kernel) {
  void *library = nullptr, *function = nullptr;
  int error = driver.load(&library, kernel.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error == 0) error = driver.get_kernel(&function, library, kernel.symbol.c_str());
  if (error == 0) return static_cast<const void*>(function);
  constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
  const char* text = nullptr;
  if (driver.error_string(error, &text) != 0 || text == nullptr) text = "an unknown error";
  return error_status(error == kOutOfMemory ? StatusCode::resource_exhausted : StatusCode::device_error,
                      "loading the compiled kernel ", kernel.symbol, " failed: ", text);
}

Result<CompiledKernel> find_or_compile(const Nvrtc& nvrtc, const KernelSource& source, const std::string& architecture) {
  std::string key = str_cat("NVRTC ", version_of(nvrtc), "\n", architecture, "\n", source_digest(), "\n");
  for (const char* option : compiler_options()) key.append(option).append("\n");
  key.append(source.expression).append("\n").append(source.text);
  const std::string folder = kernel_cache_folder();
  if (std::optional<CompiledKernel> found = find_kernel(folder, key)) return *std::move(found);
  ++compilations;
  PROLOGUE_ASSIGN_OR_RETURN(CompiledKernel kernel, compile_with(nvrtc, source, architecture));
  store_kernel(folder, key, kernel);
  return kernel;
}

}  // namespace

Status check_compiler() {
  return catch_out_of_memory([]() -> Status {
    PROLOGUE_RETURN_IF_ERROR(check_turned_on());
    PROLOGUE_RETURN_IF_ERROR(loader().status());
    return nvrtc().status();
  });
}

Result<CompiledKernel> compile_to_cubin(const KernelSource& source, const std::string& architecture) {
  return catch_out_of_memory([&]() -> Result<CompiledKernel> {
    PROLOGUE_RETURN_IF_ERROR(check_turned_on());
    PROLOGUE_ASSIGN_OR_RETURN(const Nvrtc* const compiler, nvrtc());
    return find_or_compile(*compiler, source, architecture);
  });
}

Result<const void*> compile(const KernelSource& source) {
  return catch_out_of_memory([&]() -> Result<const void*> {
    PROLOGUE_RETURN_IF_ERROR(check_turned_on());
    PROLOGUE_ASSIGN_OR_RETURN(const Loader functions, loader());
    PROLOGUE_ASSIGN_OR_RETURN(const Nvrtc* const compiler, nvrtc());
    PROLOGUE_ASSIGN_OR_RETURN(const DeviceLimits device, current_device());
    PROLOGUE_ASSIGN_OR_RETURN(const std::string architecture, architecture_for(*compiler, device.major, device.minor));
    static OncePerKey<const void*> kernels;
    return kernels.get(str_cat(architecture, "\n", source.expression, "\n", source.text), [&]() -> Result<const void*> {
      PROLOGUE_ASSIGN_OR_RETURN(const CompiledKernel kernel, find_or_compile(*compiler, source, architecture));
      return load(functions, kernel);
    });
  });
}

int64_t kernels_compiled() { return compilations; }

}  // namespace prologue::cuda
