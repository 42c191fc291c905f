#include "tests/support/arena.h"

#include <algorithm>

#ifdef PROLOGUE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace prologue::test {

namespace {

constexpr int64_t kGuardBytes = 512;  // a multiple of 256, so that payloads keep the alignment of the allocation

}  // namespace

const char* backend_name(Backend backend) {
  switch (backend) {
    case Backend::cpu: return "cpu";
    case Backend::cpu_threads: return "cpu_threads";
    case Backend::cuda: return "cuda";
    case Backend::cuda_graph: return "cuda_graph";
  }
  return "unknown";
}

Device backend_device(Backend backend) {
  return backend == Backend::cpu || backend == Backend::cpu_threads ? Device::cpu : Device::cuda;
}

std::string backend_unavailable(Backend backend) {
  if (backend_device(backend) == Device::cpu) return {};
#ifdef PROLOGUE_HAS_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return {};
  cudaGetLastError();
  return "no GPU on this machine";
#else
  return "built without CUDA";
#endif
}

std::vector<Backend> all_backends() { return {Backend::cpu, Backend::cpu_threads, Backend::cuda, Backend::cuda_graph}; }

Arena::Arena(Backend backend) : backend_(backend) {
  execution_.device = backend_device(backend);
  execution_.num_threads = backend == Backend::cpu_threads ? 3 : 1;
#ifdef PROLOGUE_HAS_CUDA
  if (execution_.device == Device::cuda) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    execution_.stream = stream;
  }
#endif
}

Arena::~Arena() {
#ifdef PROLOGUE_HAS_CUDA
  if (execution_.stream != nullptr) cudaStreamDestroy(execution_.stream);
#endif
}

void* Arena::add(const void* bytes, int64_t num_bytes, Kind kind, int64_t misalign) {
  auto array = std::make_unique<Array>();
  array->kind = kind;
  array->offset = kGuardBytes + misalign;
  array->size = num_bytes;
  array->before.assign(static_cast<size_t>(array->offset + num_bytes + kGuardBytes), kPoison);
  if (num_bytes > 0) std::memcpy(array->before.data() + array->offset, bytes, static_cast<size_t>(num_bytes));
  array->after = array->before;
  auto device = Buffer::allocate(execution_.device, static_cast<int64_t>(array->before.size()));
  if (!device.ok()) {
    ADD_FAILURE() << device.status().message();
    std::abort();
  }
  array->device = std::move(device).value();
  void* pointer = array->device.as<unsigned char>() + array->offset;
  upload(*array, array->before);  // so that a test may look at its inputs through the pointer on the CPU
  EXPECT_TRUE(synchronize(execution_).ok());
  arrays_.push_back(std::move(array));
  return pointer;
}

void Arena::upload(const Array& array, const std::vector<unsigned char>& bytes) {
  const Status status = copy_to_device(array.device.data(), bytes.data(), static_cast<int64_t>(bytes.size()), execution_);
  EXPECT_TRUE(status.ok()) << status.message();
}

void Arena::upload(bool decoy) {
  std::vector<std::vector<unsigned char>> decoys;  // until they have been copied
  for (const auto& array : arrays_) {
    if (!decoy || array->kind != Kind::input) {
      upload(*array, array->before);
      continue;
    }
    std::vector<unsigned char>& bytes = decoys.emplace_back(array->before);
    std::fill_n(bytes.begin() + array->offset, array->size, static_cast<unsigned char>(0));
    upload(*array, bytes);
  }
  EXPECT_TRUE(synchronize(execution_).ok());
}

Status Arena::run(const Operation& operation) {
  Status status;
  if (backend_ == Backend::cuda_graph) {
#ifdef PROLOGUE_HAS_CUDA
    upload(true);
    cudaStream_t stream = execution_.stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t instance = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    status = operation(execution_);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    upload(!status.ok());
    if (status.ok()) {
      EXPECT_EQ(cudaGraphInstantiate(&instance, graph, 0), cudaSuccess);
      upload(true);
      EXPECT_EQ(cudaGraphLaunch(instance, stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      upload(false);
      EXPECT_EQ(cudaGraphLaunch(instance, stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      cudaGraphExecDestroy(instance);
    } else {
      upload(false);
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
#endif
  } else {
    upload(false);
    status = operation(execution_);
    const Status done = synchronize(execution_);
    EXPECT_TRUE(done.ok()) << done.message();
  }
  download_and_check();
  return status;
}

void Arena::download_and_check() {
  for (size_t i = 0; i < arrays_.size(); ++i) {
    Array& array = *arrays_[i];
    const Status status =
        copy_to_host(array.after.data(), array.device.data(), static_cast<int64_t>(array.after.size()), execution_);
    EXPECT_TRUE(status.ok()) << status.message();
    const auto expect_unchanged = [&](int64_t begin, int64_t end, const char* what) {
      const auto first = array.after.begin() + begin, last = array.after.begin() + end, before = array.before.begin() + begin;
      if (std::equal(first, last, before)) return;  // much quicker than std::mismatch
      const int64_t changed = std::mismatch(first, last, before).first - array.after.begin();
      ADD_FAILURE() << backend_name(backend_) << ": array " << i << ": " << what << " byte " << changed - array.offset << " of "
                    << array.size << " was overwritten";
    };
    const int64_t end = array.offset + array.size;
    expect_unchanged(0, array.offset, "guard");
    if (array.kind == Kind::input) expect_unchanged(array.offset, end, "input");
    expect_unchanged(end, static_cast<int64_t>(array.after.size()), "guard");
  }
}

const std::vector<unsigned char>& Arena::contents(const void* pointer) const {
  for (const auto& array : arrays_) {
    if (array->device.as<unsigned char>() + array->offset != pointer) continue;
    array->payload.assign(array->after.begin() + array->offset, array->after.begin() + array->offset + array->size);
    return array->payload;
  }
  ADD_FAILURE() << "read() of a pointer that is not the arena's";
  std::abort();
}

std::vector<Arena::Written> Arena::written() const {
  std::vector<Written> list;
  for (const auto& array : arrays_) {
    if (array->kind != Kind::inout) continue;
    const auto from = array->after.begin() + array->offset;
    list.push_back({array->device.as<unsigned char>() + array->offset, {from, from + array->size}});
  }
  return list;
}

bool Arena::untouched() const {
  return std::all_of(arrays_.begin(), arrays_.end(), [](const auto& array) { return array->before == array->after; });
}

}  // namespace prologue::test
