// This is the kernel test kit: one suite, every backend.
//
// A test names its inputs and outputs in an Arena, then runs the operation. The arena surrounds every array with guard bands,
// poisons outputs, and after the run checks that no guard byte and no input has changed. On the `cuda_graph` backend the
// operation is captured once over decoy inputs (all zero), replayed, and replayed again over the real ones: a kernel that
// reads anything at capture time fails.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/memory.h>

namespace prologue::test {

enum class Backend { cpu, cpu_threads, cuda, cuda_graph };

const char* backend_name(Backend backend);
inline void PrintTo(Backend backend, std::ostream* out) { *out << backend_name(backend); }
Device backend_device(Backend backend);
// Returns an empty string if the backend can run here; otherwise the reason why it cannot.
std::string backend_unavailable(Backend backend);

// All backends, for INSTANTIATE_TEST_SUITE_P; GPU rows skip themselves with the reason (PROLOGUE_REQUIRE_BACKEND).
std::vector<Backend> all_backends();

#define PROLOGUE_REQUIRE_BACKEND(backend)                                                                    \
  do {                                                                                                       \
    if (const std::string reason_ = ::prologue::test::backend_unavailable(backend); !reason_.empty()) {      \
      GTEST_SKIP() << reason_;                                                                               \
    }                                                                                                        \
  } while (false)

// For tests of many kernels that take long: where kernels are emulated, those of a graph are those of the backend cuda, once more.
#if defined(PROLOGUE_CUDA_EMULATED)
#define PROLOGUE_EMULATE_ONCE(backend) \
  if ((backend) == ::prologue::test::Backend::cuda_graph) GTEST_SKIP() << "emulated on the backend cuda"
#else
#define PROLOGUE_EMULATE_ONCE(backend) static_cast<void>(backend)
#endif

// Outputs and guard bands are filled with this byte: as float, bf16 or f16 it is a NaN, as an index absurd.
inline constexpr unsigned char kPoison = 0xff;

// Returns `count` elements that nothing has been written to.
template <class T>
std::vector<T> poisoned(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  if (count > 0) std::memset(static_cast<void*>(values.data()), kPoison, values.size() * sizeof(T));
  return values;
}

class Arena {
 public:
  explicit Arena(Backend backend);
  ~Arena();

  // Adds arrays on the backend's device. `misalign` shifts the start by that many bytes from a 256-byte boundary.
  template <class T>
  T* input(const std::vector<T>& values, int64_t misalign = 0) {
    return static_cast<T*>(add(values.data(), static_cast<int64_t>(values.size() * sizeof(T)), Kind::input, misalign));
  }
  template <class T>
  T* inout(const std::vector<T>& values, int64_t misalign = 0) {
    return static_cast<T*>(add(values.data(), static_cast<int64_t>(values.size() * sizeof(T)), Kind::inout, misalign));
  }
  template <class T>
  T* output(int64_t count, int64_t misalign = 0) {  // poisoned
    const std::vector<unsigned char> poison(static_cast<size_t>(count) * sizeof(T), kPoison);
    return static_cast<T*>(add(poison.data(), count * static_cast<int64_t>(sizeof(T)), Kind::inout, misalign));
  }
  // Adds scratch memory: it is poisoned before the run, may change, and its guards are checked.
  void* workspace(int64_t num_bytes) {
    const std::vector<unsigned char> poison(static_cast<size_t>(num_bytes), kPoison);
    return add(poison.data(), num_bytes, Kind::scratch, 0);
  }

  using Operation = std::function<Status(const Execution&)>;
  // Runs the operation and collects what it wrote. Guard bands and inputs are checked with EXPECT. A failing Status is returned
  // (nothing may then have been written: check with untouched()).
  Status run(const Operation& operation);

  // Returns what an array holds after run().
  template <class T>
  std::vector<T> read(const T* pointer) const {
    const std::vector<unsigned char>& bytes = contents(pointer);
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(static_cast<void*>(values.data()), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  // Returns true if run() changed no byte of any array.
  bool untouched() const;

  // Holds every array that a run may write and that is not scratch, in the order in which they were added, as run() left it.
  struct Written {
    const void* pointer;
    std::vector<unsigned char> bytes;
  };
  std::vector<Written> written() const;

 private:
  enum class Kind { input, inout, scratch };
  struct Array {
    Kind kind;
    Buffer device;
    std::vector<unsigned char> before;  // with guard bands
    std::vector<unsigned char> after;
    int64_t offset = 0;  // of the payload in both
    int64_t size = 0;
    mutable std::vector<unsigned char> payload;
  };
  void* add(const void* bytes, int64_t num_bytes, Kind kind, int64_t misalign);
  const std::vector<unsigned char>& contents(const void* pointer) const;
  void upload(const Array& array, const std::vector<unsigned char>& bytes);
  void upload(bool decoy);
  void download_and_check();

  Backend backend_;
  Execution execution_;
  std::vector<std::unique_ptr<Array>> arrays_;
};

}  // namespace prologue::test
