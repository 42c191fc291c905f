// Reads the arguments of a call from Python, one after another, and throws a Python exception for a bad one. Python passes them in the
// order in which an operation reads them. A group (a Rope, for example) is its members in order after True, or one None in its place.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/views.h>

namespace prologue::python {

// Throw ValueError or TypeError with the parts as its message.
[[noreturn]] void fail(const char* exception, const std::string& message);
template <class... Parts>
[[noreturn]] void fail_value(const Parts&... parts) {
  fail("ValueError", str_cat(parts...));
}
template <class... Parts>
[[noreturn]] void fail_type(const Parts&... parts) {
  fail("TypeError", str_cat(parts...));
}
// Throws the exception that belongs to an error's code.
void check(const Status& status);

// A tensor of the caller, or null. Strides count elements. The stride of an axis of size 1, and every stride of a tensor without elements,
// is that of a dense tensor, whatever the caller's framework says.
class Array {
 public:
  Array() = default;
  Array(const DLTensor* tensor, const char* name) : tensor_(tensor), name_(name) {}
  explicit operator bool() const { return tensor_ != nullptr; }

  const char* name() const { return name_; }
  int rank() const { return tensor_->ndim; }
  int64_t size(int axis) const { return tensor_->shape[axis]; }
  int64_t stride(int axis) const;
  int64_t num_elements() const;
  DType dtype() const;
  // Null only if the array is. An array without elements has an address that must not be read.
  void* data() const;
  template <class T>
  T* as(DType type) const {
    require(type);
    return static_cast<T*>(data());
  }

  const Array& require(DType type) const;  // this dtype
  const Array& require_rank(int low, int high) const;
  const Array& require_size(int axis, int64_t size, const char* what) const;
  const Array& require_dense() const;               // contiguous
  const Array& require_contiguous(int axis) const;  // stride 1 along the axis
  const Array& require_one_number() const;          // of the shape [] or [1]
  bool has_shape(std::initializer_list<int64_t> shape) const;
  std::string shape_text() const;

 private:
  const DLTensor* tensor_ = nullptr;
  const char* name_ = "";
};

template <class T>
struct Choice {
  const char* name;
  T value;
};

class Arguments {
 public:
  Arguments(const TVMFFIAny* arguments, int32_t count) : next_(arguments), end_(arguments + count) {}

  bool group(const char* name) { return given(name, tvm::ffi::TypeIndex::kTVMFFIBool); }  // whether a group follows
  Array array(const char* name);                                                          // None is an error
  Array optional_array(const char* name);                                                 // None: a null Array
  int64_t integer(const char* name);
  int64_t integer(const char* name, int64_t none);  // with the value that None stands for
  double number(const char* name);
  double number(const char* name, double none);
  bool flag(const char* name);
  template <class T>
  T choice(const char* name, std::initializer_list<Choice<T>> choices) {
    const std::string_view text = string(name);
    for (const Choice<T>& choice : choices) {
      if (text == choice.name) return choice.value;
    }
    std::string known;
    for (const Choice<T>& choice : choices) known += str_cat(known.empty() ? "'" : ", '", choice.name, "'");
    fail_value(name, " is '", text, "': it must be one of ", known);
  }
  bool none();  // the next argument is None, which is then taken
  std::string_view string(const char* name);
  DType dtype(const char* name);  // None: unset

  const TVMFFIAny& raw(const char* name) { return next(name); }

  // That of all arrays so far.
  DLDevice device() const { return device_; }
  bool on_cuda() const { return device_.device_type == kDLCUDA; }

 private:
  const TVMFFIAny& next(const char* name);
  bool given(const char* name, int32_t type);

  const TVMFFIAny* next_;
  const TVMFFIAny* end_;
  DLDevice device_ = {kDLCPU, 0};
  const char* device_of_ = nullptr;  // the array that it was taken from
};

// Where a call runs, and where its faults go. On CUDA: the caller's stream and device, for the lifetime of this object.
class Call {
 public:
  // `faults`: [2] int64, the caller's record, or null. Without it the CPU has a record of its own, and run() throws what is in it.
  Call(const Arguments& arguments, const Array& faults);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const Execution& execution() const { return execution_; }
  FaultRecord* faults() { return faults_; }
  // Throws if `status` is an error, or if a fault was recorded on the CPU and the caller gave no record. With PastTable::zero a
  // position past the table is no fault.
  void finish(const Status& status, PastTable past_table = PastTable::record) const;

 private:
  Execution execution_;
  FaultRecord own_faults_;
  FaultRecord* faults_ = nullptr;
  int previous_device_ = -1;
};

// Threads of an operation on the CPU.
int32_t num_threads();
void set_num_threads(int64_t count);

// Scratch memory for one call: from the caller's framework on CUDA (in stream order, so a captured graph may use it), else a Buffer.
class Scratch {
 public:
  Scratch(const Arguments& arguments, const Array& given, int64_t bytes);
  void* data() const { return data_; }
  int64_t size_bytes() const { return bytes_; }
  void clear(const Execution& execution, int64_t begin, int64_t bytes) const;  // zeros, in stream order

 private:
  tvm::ffi::Tensor tensor_;
  Buffer buffer_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace prologue::python

// Exports `operation(Arguments&)` as the TVM-FFI function `name`.
#define PROLOGUE_PYTHON_FUNCTION(name, operation)                                                                           \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) { \
    TVM_FFI_SAFE_CALL_BEGIN();                                                                                              \
    prologue::python::Arguments reader(arguments, count);                                                                   \
    *reinterpret_cast<tvm::ffi::Any*>(result) = operation(reader);                                                          \
    TVM_FFI_SAFE_CALL_END();                                                                                                \
  }
