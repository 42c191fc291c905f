// cuBLASLt, opened at run time: a program that makes no product on a GPU does not load it (0.08 s of CPU at each start). Internal.
#pragma once

#include <cublasLt.h>

#include <string>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue::cuda {

// Has the functions of cuBLASLt that we use. The toolkit's header defines the three init functions inline: what they call is here.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusName) status_name;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_attribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescInit_internal) init_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout;
};

// Opens the first of `names` that can be opened (base/host/open_library.h).
PROLOGUE_API Result<CublasLt> open_cublaslt(const std::vector<std::string>& names);

// Returns the cuBLASLt of this process: of the major version that the build used, wherever the loader finds it, or else in the toolkit of the
// build. It is searched for once.
PROLOGUE_API Result<CublasLt> cublaslt();

}  // namespace prologue::cuda
