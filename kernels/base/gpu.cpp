#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace cuda {
Status check_gpu();
Result<std::string> gpu_name();
Result<CUstream_st*> create_stream();
void destroy_stream(CUstream_st* stream);
}  // namespace cuda

#ifndef PROLOGUE_HAS_CUDA
namespace cuda {
Status check_gpu() { return unsupported("device is cuda, but this build has no CUDA kernels (it was configured without nvcc)"); }
Result<std::string> gpu_name() { return check_gpu(); }
Result<CUstream_st*> create_stream() { return check_gpu(); }
void destroy_stream(CUstream_st*) {}
}  // namespace cuda
#endif

Status check_gpu() { return cuda::check_gpu(); }
Result<std::string> gpu_name() {
  return catch_out_of_memory([] { return cuda::gpu_name(); });
}

Result<Stream> Stream::create() {
  Stream stream;
  PROLOGUE_ASSIGN_OR_RETURN(stream.stream_, cuda::create_stream());
  return stream;
}

Stream::~Stream() {
  if (stream_ != nullptr) cuda::destroy_stream(stream_);
}

}  // namespace prologue
