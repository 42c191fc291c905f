// Whether a GPU can be used, its name, and CUDA streams.
#pragma once

#include <string>
#include <utility>

#include <prologue/kernels/base/execution.h>

namespace prologue {

// Returns OK if the current CUDA device can run this build's kernels. Otherwise the error says why not: no GPU, a driver too old for the
// CUDA runtime, or a compute capability that the build has no code for.
PROLOGUE_API Status check_gpu();

// Returns the GPU's name, for example "NVIDIA H200", or the error of check_gpu() without a usable GPU.
PROLOGUE_API Result<std::string> gpu_name();

// Returns how many GPUs this process sees, or the error of check_gpu() if it can use none.
PROLOGUE_API Result<int32_t> num_gpus();

// Makes a GPU the current CUDA device of the calling thread. invalid_argument: there is none of this number.
PROLOGUE_API Status use_gpu(int32_t gpu);

// Owns a CUDA stream. It can be moved, not copied.
class PROLOGUE_API Stream {
 public:
  Stream() = default;
  Stream(Stream&& other) noexcept { std::swap(stream_, other.stream_); }
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  static Result<Stream> create();
  CUstream_st* get() const { return stream_; }

 private:
  CUstream_st* stream_ = nullptr;
};

}  // namespace prologue
