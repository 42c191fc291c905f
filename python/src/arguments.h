// Reads the arguments of a call from Python by name. A call has only the values; their names, in the order of the values, Python has
// declared at import, for each operation and for each group (a Rope, for example). A group is True and its members, or one None; where
// there may be several, as the tensors of rotary, their number is in place of True.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/views.h>

#include "names.h"

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

  // This dtype. `as`: the array that has it, for the message.
  const Array& require(DType type, const char* as = nullptr) const;
  const Array& require_rank(int low, int high) const;
  // One tensor of heads, [num_tokens, heads, head_dim]. The message has the reshape that makes it so.
  const Array& require_heads() const;
  const Array& require_size(int axis, int64_t size, const char* what) const;
  const Array& require_dense() const;               // contiguous
  const Array& require_contiguous(int axis) const;  // stride 1 along the axis
  const Array& require_one_number() const;          // of the shape [] or [1]
  bool has_shape(std::initializer_list<int64_t> shape) const;
  std::string shape_text() const;
  // With `axes` the axes that the shape should have: what to do about a shape with fewer or more of them.
  [[noreturn]] void fail_heads(const char* axes) const;

 private:
  const DLTensor* tensor_ = nullptr;
  const char* name_ = "";
};

template <class T>
struct Choice {
  const char* name;
  T value;
};

// The names that Python has declared for the values of an operation or of a group, in the order of the values.
struct Layout {
  static constexpr size_t kMostItems = 64;
  struct Item {
    size_t name;          // index in kNames
    const Layout* group;  // null: one value
  };
  std::string name;
  std::vector<Item> items;
  bool has_groups = false;
  std::bitset<kNumNames> names;
  int16_t item_of[kNumNames];  // by name; -1: not declared
};

// Declares the items of an operation or a group: "NAME" for one value, "NAME GROUP" for a group, which is declared before.
void declare_layout(std::string_view name, const std::vector<std::string_view>& items);
// Throws if it is not declared.
const Layout& layout_of(std::string_view name);

// The text of a value; throws if it is none.
std::string_view text_of(const TVMFFIAny& value, const char* name);

// What is read by a name that Python has not declared is an error that names it, and so is a declared name that is not read: see
// require_all_read.
class Arguments {
 public:
  Arguments(const Layout& layout, const TVMFFIAny* values, int32_t count);  // of an operation
  Arguments(Arguments& of, Name group, int64_t index = 0);                  // of a group; false if there is none
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  explicit operator bool() const { return values_ != nullptr; }

  bool given(Name name) { return take(name).type_index != tvm::ffi::TypeIndex::kTVMFFINone; }
  int64_t num_groups(Name name);
  // `label`: what messages call it.
  Array array(Name name) { return array(name, name.text()); }  // None is an error
  Array array(Name name, const char* label);
  Array optional_array(Name name) { return optional_array(name, name.text()); }  // None: a null Array
  Array optional_array(Name name, const char* label);
  int64_t integer(Name name);
  int64_t integer(Name name, int64_t none) { return given(name) ? integer(name) : none; }  // with the value that None stands for
  double number(Name name);
  bool flag(Name name);
  template <class T>
  T choice(Name name, std::initializer_list<Choice<T>> choices) {
    const std::string_view text = string(name);
    for (const Choice<T>& choice : choices) {
      if (text == choice.name) return choice.value;
    }
    std::string known;
    for (const Choice<T>& choice : choices) known += str_cat(known.empty() ? "'" : ", '", choice.name, "'");
    fail_value(name.text(), " is '", text, "': it must be one of ", known);
  }
  std::string_view string(Name name) { return text_of(take(name), name.text()); }
  DType dtype(Name name);  // None: unset
  const TVMFFIAny& raw(Name name) { return take(name); }

  // Throws if a declared name was not read.
  void require_all_read() const;

  // That of all arrays so far, also those of groups.
  DLDevice device() const { return root_->device_; }
  bool on_cuda() const { return device().device_type == kDLCUDA; }

 private:
  size_t number_of(Name name) const;  // in the layout's items
  const Layout& group_layout(Name name) const;
  void find_items();
  const TVMFFIAny& take(Name name);

  const Layout& layout_;
  Arguments* root_;  // the operation's
  const TVMFFIAny* values_ = nullptr;
  const TVMFFIAny* end_ = nullptr;             // of the operation's values
  const TVMFFIAny* item_[Layout::kMostItems];  // the first value of each; not used if no item is a group: then each is one value
  std::bitset<kNumNames> read_;
  DLDevice device_ = {kDLCPU, 0};
  const char* device_of_ = nullptr;  // the array that it was taken from
};

// Where a call runs, and where its faults go. On CUDA: the caller's stream and device, for the lifetime of this object.
class Call {
 public:
  // `faults`: the caller's record, or null. Without it the CPU has a record of its own, and finish() throws what is in it.
  Call(DLDevice device, FaultRecord* faults);
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

// The caller's record of faults, [2] int64, or null.
FaultRecord* fault_record_of(const Array& faults);

// Threads of an operation on the CPU.
int32_t num_threads();
void set_num_threads(int64_t count);

// Scratch memory for one call: from the caller's framework on CUDA (in stream order, so a captured graph may use it), else a Buffer.
class Scratch {
 public:
  Scratch(DLDevice device, const Array& given, int64_t bytes);
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
    static const prologue::python::Layout& layout = prologue::python::layout_of(#name);                                     \
    prologue::python::Arguments reader(layout, arguments, count);                                                           \
    *reinterpret_cast<tvm::ffi::Any*>(result) = operation(reader);                                                          \
    TVM_FFI_SAFE_CALL_END();                                                                                                \
  }
