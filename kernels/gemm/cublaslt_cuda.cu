#include <prologue/kernels/gemm/cublaslt.cuh>

#include <prologue/kernels/base/host/open_library.h>
#include <prologue/kernels/base/str_cat.h>

namespace prologue::cuda {

namespace {

constexpr const char* kWhat = "gemm: cuBLASLt";

}  // namespace

Result<CublasLt> open_cublaslt(const std::vector<std::string>& names) {
  PROLOGUE_ASSIGN_OR_RETURN(const OpenLibrary library, open_library(kWhat, names));
  CublasLt lt = {};
  const auto find = [&](const char* name, auto& function) { return find_function(kWhat, library, name, function); };
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtCreate", lt.create));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtDestroy", lt.destroy));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtGetStatusName", lt.status_name));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtGetStatusString", lt.status_string));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtGetVersion", lt.version));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtMatmul", lt.matmul));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtMatmulAlgoCheck", lt.check_algorithm));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtMatmulAlgoConfigGetAttribute", lt.algorithm_attribute));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtMatmulAlgoGetHeuristic", lt.heuristic));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtMatmulDescInit_internal", lt.init_operation));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtMatmulDescSetAttribute", lt.set_operation));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtMatmulPreferenceInit_internal", lt.init_preference));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtMatmulPreferenceSetAttribute", lt.set_preference));
  PROLOGUE_RETURN_IF_ERROR(find("cublasLtMatrixLayoutInit_internal", lt.init_layout));
  return lt;
}

Result<CublasLt> cublaslt() {
  static const Result<CublasLt> found = [] {
    const std::string name = str_cat("libcublasLt.so.", CUBLAS_VER_MAJOR);
    return open_cublaslt({name, PROLOGUE_CUDA_LIBRARY_DIR "/" + name});
  }();
  return found;
}

}  // namespace prologue::cuda
