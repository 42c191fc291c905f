// The GPU as a whole: whether one can be used, and a stream on it.
#pragma once

#include <string>
#include <utility>

#include <prologue/kernels/base/execution.h>

namespace prologue {

// OK where the current CUDA device can run this build's kernels; otherwise one sentence: no GPU, a driver that is too old for the
// CUDA runtime, or a compute capability that the build has no code for.
PROLOGUE_API Status check_gpu();

// "NVIDIA H200"; the error of check_gpu where there is none.
PROLOGUE_API Result<std::string> gpu_name();

// A CUDA stream of one's own. Move-only.
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
