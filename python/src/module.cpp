// The functions that run no operation.
#include <prologue/kernels/base/faults.h>

#include <vector>

#include "arguments.h"

namespace prologue::python {
namespace {

tvm::ffi::Any get_num_threads(Arguments&) { return int64_t{num_threads()}; }

tvm::ffi::Any change_num_threads(Arguments& arguments) {
  set_num_threads(arguments.integer("num_threads"));
  return {};
}

tvm::ffi::Any is_built_with_cuda(Arguments&) { return built_with_cuda(); }

// (name, token, count) as text of a record that was copied to the host; empty without a fault.
tvm::ffi::Any decode_faults(Arguments& arguments) {
  FaultRecord record;
  record.first = static_cast<uint64_t>(arguments.integer("first"));
  record.count = static_cast<uint64_t>(arguments.integer("count"));
  const Fault fault = decode_fault(record);
  if (fault.code == FaultCode::none) return tvm::ffi::String("");
  return tvm::ffi::String(str_cat(fault_code_name(fault.code), " ", fault.token, " ", fault.count));
}

// The same memory with another dtype of the same size, which NumPy has no DLPack name for (bfloat16, fp8).
tvm::ffi::Any reinterpret(Arguments& arguments) {
  const TVMFFIAny& value = arguments.raw("array");
  if (value.type_index != tvm::ffi::TypeIndex::kTVMFFITensor) fail_type("array is not a tensor");
  struct Owned {
    tvm::ffi::Tensor tensor;
    DLManagedTensorVersioned managed;
  };
  auto* owned = new Owned{reinterpret_cast<const tvm::ffi::AnyView&>(value).cast<tvm::ffi::Tensor>(), {}};
  owned->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  owned->managed.manager_ctx = owned;
  owned->managed.deleter = [](DLManagedTensorVersioned* self) { delete static_cast<Owned*>(self->manager_ctx); };
  owned->managed.dl_tensor = *owned->tensor.GetDLTensorPtr();
  const std::string_view type = arguments.string("dtype");
  DLDataType& target = owned->managed.dl_tensor.dtype;
  if (type == "bfloat16") target = {kDLBfloat, 16, 1};
  if (type == "float8_e4m3fn") target = {kDLFloat8_e4m3fn, 8, 1};
  if (type == "float8_e5m2") target = {kDLFloat8_e5m2, 8, 1};
  return tvm::ffi::Tensor::FromDLPackVersioned(&owned->managed);
}

}  // namespace
}  // namespace prologue::python

// declare(name, items ..): see declare_layout.
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_declare(void*, const TVMFFIAny* arguments, int32_t count, TVMFFIAny*) {
  TVM_FFI_SAFE_CALL_BEGIN();
  std::vector<std::string_view> texts;
  for (int32_t i = 0; i < count; ++i) texts.push_back(prologue::python::text_of(arguments[i], "a name"));
  if (texts.empty()) prologue::python::fail_type("declare needs a name");
  prologue::python::declare_layout(texts[0], {texts.begin() + 1, texts.end()});
  TVM_FFI_SAFE_CALL_END();
}

PROLOGUE_PYTHON_FUNCTION(get_num_threads, prologue::python::get_num_threads)
PROLOGUE_PYTHON_FUNCTION(set_num_threads, prologue::python::change_num_threads)
PROLOGUE_PYTHON_FUNCTION(built_with_cuda, prologue::python::is_built_with_cuda)
PROLOGUE_PYTHON_FUNCTION(decode_faults, prologue::python::decode_faults)
PROLOGUE_PYTHON_FUNCTION(reinterpret, prologue::python::reinterpret)
