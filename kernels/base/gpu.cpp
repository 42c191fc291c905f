#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/base/host/backends.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

Status cuda_not_built(const char* operation) {
  return unsupported(operation, ": device is cuda, but this library was built without CUDA");
}

Status check_gpu() { return cuda::check_gpu(); }
Result<std::string> gpu_name() {
  return catch_out_of_memory([] { return cuda::gpu_name(); });
}
Result<int32_t> num_gpus() { return cuda::num_gpus(); }

Status use_gpu(int32_t gpu) {
  PROLOGUE_ASSIGN_OR_RETURN(const int32_t count, num_gpus());
  if (gpu < 0 || gpu >= count) return invalid_argument("GPU ", gpu, ": this process sees ", count, ", numbered from 0");
  return cuda::use_gpu(gpu);
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
