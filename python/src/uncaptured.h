#pragma once

#if PROLOGUE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace prologue::python {

// In its lifetime this thread may make CUDA calls that another stream's capture forbids, such as those of a library that is loaded.
class Uncaptured {
 public:
  Uncaptured() { exchange(); }
  ~Uncaptured() { exchange(); }
  Uncaptured(const Uncaptured&) = delete;
  Uncaptured& operator=(const Uncaptured&) = delete;

 private:
#if PROLOGUE_HAS_CUDA
  void exchange() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
#else
  void exchange() {}
#endif
};

}  // namespace prologue::python
