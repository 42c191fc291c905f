#include <prologue/kernels/base/host/backends.h>

#include <cuda_runtime.h>

#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

Result<cudaGraphExec_t> capture_graph(cudaStream_t stream, const std::function<Status()>& enqueue) {
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  cudaGraphExec_t executable = nullptr;
  cudaError_t made = cudaSuccess;
  if (enqueued.ok() && ended == cudaSuccess) made = cudaGraphInstantiate(&executable, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!enqueued.ok()) {
    cudaGetLastError();  // a failed capture leaves one; cuda_launch.cuh says why it is cleared
    return enqueued;
  }
  PROLOGUE_CUDA_RETURN_IF_ERROR(ended);
  PROLOGUE_CUDA_RETURN_IF_ERROR(made);
  return executable;
}

Status launch_graph(cudaGraphExec_t graph, cudaStream_t stream) {
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(graph, stream));
  return {};
}

void destroy_graph(cudaGraphExec_t graph) { cudaGraphExecDestroy(graph); }

}  // namespace prologue::cuda
