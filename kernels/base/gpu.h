// Whether a GPU can be used, its name, and CUDA streams.
#pragma once

#include <string>
#include <utility>

#include <prologue/kernels/base/execution.h>

namespace prologue {

// OK if the current CUDA device can run this build's kernels. Otherwise an error that says why not: no GPU, a driver too old for
// the CUDA runtime, or a compute capability that the build has no code for.
PROLOGUE_API Status check_gpu();

// For example "NVIDIA H200". Without a usable GPU: the error of check_gpu().
PROLOGUE_API Result<std::string> gpu_name();

// An owned CUDA stream. Move-only.
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
