#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace {

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<int> captures{0}, blocking_captures{0};  // of the mode `global`: they concern all host threads
thread_local int own_captures = 0;                   // of this host thread
thread_local int current_device = 0;
constexpr int kDevices = 4;

constexpr size_t kMemory = size_t{80} << 30;  // what the "GPU" says it has; a request for more fails

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t allocate(void** data, size_t num_bytes) {
  *data = nullptr;
  if (captures > 0 || own_captures > 0) return result(cudaErrorStreamCaptureUnsupported);
  if (num_bytes == 0) return cudaSuccess;
  if (num_bytes > kMemory) return result(cudaErrorMemoryAllocation);
  constexpr size_t kAlignment = 256;
  *data = std::aligned_alloc(kAlignment, (num_bytes + kAlignment - 1) / kAlignment * kAlignment);
  return result(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t release(void* data) {
  if (captures > 0 || own_captures > 0) return result(cudaErrorStreamCaptureUnsupported);
  std::free(data);
  return cudaSuccess;
}

}  // namespace

namespace emulator {

cudaError_t submit(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr && blocking_captures > 0) return result(cudaErrorStreamCaptureImplicit);
  if (stream != nullptr && stream->captured) {
    stream->capture.work.push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

}  // namespace emulator

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorStreamCaptureImplicit: return "operation would make the legacy stream depend on a capturing blocking stream";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: return "an error of another kind";
  }
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  static std::atomic<bool> enabled[kDevices][kDevices] = {};
  if (peer < 0 || peer >= kDevices || peer == current_device) return result(cudaErrorInvalidDevice);
  return result(enabled[current_device][peer].exchange(true) ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const cudaDeviceProp properties;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// The rules of the manual.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  constexpr uint64_t kMaxSize = uint64_t{1} << 32, kMaxStride = uint64_t{1} << 40;
  constexpr uint32_t kMaxBox = 256, kElement = 2, kRow = 128;
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || address % 16 != 0 || rank < 3 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  if (swizzle != CU_TENSOR_MAP_SWIZZLE_128B || box[0] * kElement != kRow) return CUDA_ERROR_INVALID_VALUE;
  *map = {.data = address, .strides = {}, .sizes = {}, .box = {}, .rank = rank};
  for (uint32_t i = 0; i < rank; ++i) {
    if (sizes[i] < 1 || sizes[i] > kMaxSize || box[i] < 1 || box[i] > kMaxBox || steps[i] != 1) return CUDA_ERROR_INVALID_VALUE;
    map->sizes[i] = sizes[i];
    map->box[i] = box[i];
    if (i + 1 == rank) break;
    if (strides[i] % 16 != 0 || strides[i] >= kMaxStride) return CUDA_ERROR_INVALID_VALUE;
    map->strides[i] = strides[i];
  }
  return CUDA_SUCCESS;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaMalloc(void** data, size_t num_bytes) { return allocate(data, num_bytes); }
cudaError_t cudaFree(void* data) { return release(data); }
cudaError_t cudaMallocHost(void** data, size_t num_bytes) { return allocate(data, num_bytes); }
cudaError_t cudaHostAlloc(void** data, size_t num_bytes, unsigned) { return allocate(data, num_bytes); }
cudaError_t cudaFreeHost(void* data) { return release(data); }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, cudaMemcpyKind, cudaStream_t stream) {
  return emulator::submit(stream, [=] {
    if (num_bytes > 0) std::memcpy(to, from, num_bytes);
  });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch || to_pitch > INT32_MAX || from_pitch > INT32_MAX)
    return result(cudaErrorInvalidValue);
  return emulator::submit(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, num_bytes, kind, nullptr);
}
cudaError_t cudaMemset(void* to, int value, size_t num_bytes) { return cudaMemsetAsync(to, value, num_bytes, nullptr); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t num_bytes, cudaStream_t stream) {
  return emulator::submit(stream, [=] {
    if (num_bytes > 0) std::memset(to, value, num_bytes);
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  *stream = new CUstream_st;
  (*stream)->blocking = (flags & cudaStreamNonBlocking) == 0;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return result(stream != nullptr && stream->captured ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream != nullptr && stream->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr || stream->captured) return result(cudaErrorInvalidValue);
  stream->captured = true;
  stream->mode = mode;
  if (mode == cudaStreamCaptureModeGlobal) ++captures;
  if (mode == cudaStreamCaptureModeThreadLocal) ++own_captures;
  if (stream->blocking) ++blocking_captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream == nullptr || !stream->captured) return result(cudaErrorInvalidValue);
  stream->captured = false;
  if (stream->mode == cudaStreamCaptureModeGlobal) --captures;
  if (stream->mode == cudaStreamCaptureModeThreadLocal) --own_captures;
  if (stream->blocking) --blocking_captures;
  *graph = new CUgraph_st(std::move(stream->capture));
  stream->capture = {};
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  return emulator::submit(stream, [=] { function(data); });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return emulator::submit(stream, [executable] {
    for (const auto& work : executable->work) work();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return emulator::submit(stream, [event] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    event->milliseconds = std::chrono::duration<double, std::milli>(now).count();
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = static_cast<float>(end->milliseconds - start->milliseconds);
  return cudaSuccess;
}
