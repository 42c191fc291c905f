#include "arguments.h"

#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#if PROLOGUE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace prologue::python {

using tvm::ffi::TypeIndex;

void fail(const char* exception, const std::string& message) { throw tvm::ffi::Error(exception, message, ""); }

void check(const Status& status) {
  if (status.ok()) return;
  switch (status.code()) {
    case StatusCode::invalid_argument: fail("ValueError", status.message());
    case StatusCode::unsupported: fail("NotImplementedError", status.message());
    case StatusCode::resource_exhausted: fail("MemoryError", status.message());
    default: fail("RuntimeError", status.message());
  }
}

int64_t Array::stride(int axis) const {
  if (tensor_->shape[axis] > 1 && tensor_->strides != nullptr && num_elements() > 0) return tensor_->strides[axis];
  for (int inner = axis + 1; inner < tensor_->ndim; ++inner) {
    if (tensor_->shape[inner] > 1) return stride(inner) * tensor_->shape[inner];
  }
  return 1;
}

int64_t Array::num_elements() const {
  int64_t count = 1;
  for (int axis = 0; axis < tensor_->ndim; ++axis) count *= tensor_->shape[axis];
  return count;
}

DType Array::dtype() const {
  const DLDataType type = tensor_->dtype;
  if (type.lanes == 1) {
    switch (type.code) {
      case kDLFloat:
        return type.bits == 32 ? DType::f32 : type.bits == 16 ? DType::f16 : type.bits == 64 ? DType::f64 : DType::unset;
      case kDLBfloat: return type.bits == 16 ? DType::bf16 : DType::unset;
      case kDLFloat8_e4m3fn: return DType::fp8_e4m3;
      case kDLFloat8_e5m2: return DType::fp8_e5m2;
      case kDLInt:
        return type.bits == 64   ? DType::int64
               : type.bits == 32 ? DType::int32
               : type.bits == 16 ? DType::int16
               : type.bits == 8  ? DType::int8
                                 : DType::unset;
      case kDLUInt:
        return type.bits == 64   ? DType::uint64
               : type.bits == 32 ? DType::uint32
               : type.bits == 16 ? DType::uint16
               : type.bits == 8  ? DType::uint8
                                 : DType::unset;
      case kDLBool: fail_type(name_, " is bool: no operation takes bool");
      default: break;
    }
  }
  fail_type(name_, " has a dtype that is not supported (DLPack code ", int{type.code}, ", ", int{type.bits}, " bits)");
}

void* Array::data() const {
  alignas(64) static char nothing[64];  // frameworks give arrays without elements no address
  if (tensor_ == nullptr) return nullptr;
  if (num_elements() == 0) return nothing;
  return static_cast<char*>(tensor_->data) + tensor_->byte_offset;
}

const Array& Array::require(DType type) const {
  if (*this && dtype() != type) fail_type(name_, " is ", dtype_name(dtype()), ": it must be ", dtype_name(type));
  return *this;
}

const Array& Array::require_rank(int low, int high) const {
  if (*this && (rank() < low || rank() > high)) {
    if (low == high) fail_value(name_, " has the shape ", shape_text(), ": it must have ", low, " axes");
    fail_value(name_, " has the shape ", shape_text(), ": it must have ", low, " to ", high, " axes");
  }
  return *this;
}

const Array& Array::require_size(int axis, int64_t wanted, const char* what) const {
  if (*this && size(axis) != wanted) {
    fail_value(name_, " has the shape ", shape_text(), ": axis ", axis, " must have ", wanted, " elements, ", what);
  }
  return *this;
}

const Array& Array::require_contiguous(int axis) const {
  if (*this && size(axis) > 1 && stride(axis) != 1) {
    fail_value(name_, " has a stride of ", stride(axis), " along axis ", axis, ": it must be 1");
  }
  return *this;
}

bool Array::has_shape(std::initializer_list<int64_t> shape) const {
  return std::equal(shape.begin(), shape.end(), tensor_->shape, tensor_->shape + tensor_->ndim);
}

const Array& Array::require_one_number() const {
  if (*this && !has_shape({}) && !has_shape({1})) fail_value(name_, " has the shape ", shape_text(), ": it must be one number");
  return *this;
}

const Array& Array::require_dense() const {
  if (!*this || num_elements() == 0) return *this;
  int64_t dense = 1;
  for (int axis = rank() - 1; axis >= 0; --axis) {
    if (size(axis) > 1 && stride(axis) != dense) fail_value(name_, " with the shape ", shape_text(), " must be contiguous");
    dense *= size(axis);
  }
  return *this;
}

std::string Array::shape_text() const {
  std::string text = "[";
  for (int axis = 0; axis < rank(); ++axis) text += str_cat(axis > 0 ? ", " : "", size(axis));
  return text + "]";
}

const TVMFFIAny& Arguments::next(const char* name) {
  if (next_ == end_) fail_type(name, " is missing: the Python files and the extension are of different versions");
  return *next_++;
}

bool Arguments::none() {
  if (next_ == end_ || next_->type_index != TypeIndex::kTVMFFINone) return false;
  ++next_;
  return true;
}

bool Arguments::given(const char* name, int32_t type) {
  if (none()) return false;
  const TVMFFIAny& value = next(name);
  if (value.type_index != type) fail_type(name, " is not what the extension expects: see the docstring");
  return value.v_int64 != 0;
}

Array Arguments::optional_array(const char* name) {
  if (none()) return {};
  const TVMFFIAny& value = next(name);
  const DLTensor* tensor = nullptr;
  if (value.type_index == TypeIndex::kTVMFFITensor) {
    tensor = tvm::ffi::details::ObjectUnsafe::RawObjectPtrFromUnowned<tvm::ffi::TensorObj>(value.v_obj);
  } else if (value.type_index == TypeIndex::kTVMFFIDLTensorPtr) {
    tensor = static_cast<const DLTensor*>(value.v_ptr);
  } else {
    fail_type(name, " is not an array: it must be a tensor with DLPack (torch, NumPy, CuPy)");
  }
  DLDevice device = tensor->device;
  if (device.device_type == kDLCUDAManaged) device.device_type = kDLCUDA;
  if (device.device_type == kDLCUDAHost) device = {kDLCPU, 0};
  if (device.device_type != kDLCPU && device.device_type != kDLCUDA) {
    fail_type(name, " is on a device of DLPack type ", int{device.device_type}, ": supported are the CPU and CUDA");
  }
  if (device_of_ == nullptr) {
    device_ = device;
    device_of_ = name;
  } else if (device.device_type != device_.device_type || device.device_id != device_.device_id) {
    const auto text = [](DLDevice d) { return d.device_type == kDLCPU ? std::string("the CPU") : str_cat("cuda:", d.device_id); };
    fail_value(name, " is on ", text(device), ", but ", device_of_, " is on ", text(device_),
               ": all arrays must be on one device");
  }
  return {tensor, name};
}

Array Arguments::array(const char* name) {
  const Array result = optional_array(name);
  if (!result) fail_type(name, " is None: it must be given");
  return result;
}

int64_t Arguments::integer(const char* name) {
  const TVMFFIAny& value = next(name);
  if (value.type_index == TypeIndex::kTVMFFIInt || value.type_index == TypeIndex::kTVMFFIBool) return value.v_int64;
  fail_type(name, " is not an integer of 64 bits");
}

int64_t Arguments::integer(const char* name, int64_t otherwise) { return none() ? otherwise : integer(name); }

double Arguments::number(const char* name) {
  const TVMFFIAny& value = next(name);
  if (value.type_index == TypeIndex::kTVMFFIFloat) return value.v_float64;
  if (value.type_index == TypeIndex::kTVMFFIInt) return static_cast<double>(value.v_int64);
  fail_type(name, " is not a number");
}

double Arguments::number(const char* name, double otherwise) { return none() ? otherwise : number(name); }

bool Arguments::flag(const char* name) {
  const TVMFFIAny& value = next(name);
  if (value.type_index == TypeIndex::kTVMFFIBool || value.type_index == TypeIndex::kTVMFFIInt) return value.v_int64 != 0;
  fail_type(name, " is not True or False");
}

std::string_view Arguments::string(const char* name) {
  const TVMFFIAny& value = next(name);
  if (value.type_index == TypeIndex::kTVMFFISmallStr) {
    const TVMFFIByteArray bytes = TVMFFISmallBytesGetContentByteArray(&value);
    return {bytes.data, bytes.size};
  }
  if (value.type_index == TypeIndex::kTVMFFIStr) {
    const TVMFFIByteArray* bytes = TVMFFIBytesGetByteArrayPtr(value.v_obj);
    return {bytes->data, bytes->size};
  }
  if (value.type_index == TypeIndex::kTVMFFIRawStr) return value.v_c_str;
  fail_type(name, " is not a string");
}

DType Arguments::dtype(const char* name) {
  if (none()) return DType::unset;
  const std::string_view text = string(name);
  for (int32_t type = 1; dtype_valid(static_cast<DType>(type)); ++type) {
    if (text == dtype_name(static_cast<DType>(type))) return static_cast<DType>(type);
  }
  fail_value(name, " is '", text,
             "': it must be the name of a dtype, such as 'float32', 'bfloat16', 'fp8_e4m3', 'int8' or 'int4'");
}

namespace {

int32_t default_threads() {
  const unsigned threads = std::thread::hardware_concurrency();
  return threads < 1 ? 1 : static_cast<int32_t>(threads);
}

std::atomic<int32_t> g_num_threads = default_threads();

}  // namespace

int32_t num_threads() { return g_num_threads.load(std::memory_order_relaxed); }

void set_num_threads(int64_t count) {
  if (count < 1 || count > 512) fail_value("num_threads is ", count, ": it must lie in 1..512");
  g_num_threads = static_cast<int32_t>(count);
}

Call::Call(const Arguments& arguments, const Array& faults) {
  if (faults) {
    if (!faults.has_shape({2}) || (faults.dtype() != DType::int64 && faults.dtype() != DType::uint64)) {
      fail_value("faults is ", dtype_name(faults.dtype()), " ", faults.shape_text(), ": it must be two int64, zeros at first");
    }
    faults_ = static_cast<FaultRecord*>(faults.require_dense().data());
  }
  if (arguments.on_cuda()) {
    execution_.device = Device::cuda;
    const DLDevice device = arguments.device();
    execution_.stream = static_cast<CUstream_st*>(TVMFFIEnvGetStream(device.device_type, device.device_id));
#if PROLOGUE_HAS_CUDA
    int current = 0;
    if (cudaGetDevice(&current) == cudaSuccess && current != device.device_id) {
      if (const cudaError_t error = cudaSetDevice(device.device_id); error != cudaSuccess) {
        fail("RuntimeError", str_cat("cudaSetDevice(", device.device_id, ") failed: ", cudaGetErrorString(error)));
      }
      previous_device_ = current;
    }
#endif
    return;
  }
  execution_.num_threads = num_threads();
  if (faults_ == nullptr) faults_ = &own_faults_;
}

Call::~Call() {
#if PROLOGUE_HAS_CUDA
  if (previous_device_ >= 0) static_cast<void>(cudaSetDevice(previous_device_));
#endif
}

void Call::finish(const Status& status, PastTable past_table) const {
  check(status);
  if (own_faults_.first == 0) return;
  const Fault fault = decode_fault(own_faults_);
  if (past_table == PastTable::zero && fault.code == FaultCode::position_out_of_range) return;
  fail("IndexError", str_cat(fault_code_name(fault.code), " at token ", fault.token, "; ", fault.count,
                             fault.count == 1 ? " token was" : " tokens were", " skipped, the others are done"));
}

Scratch::Scratch(const Arguments& arguments, const Array& given, int64_t bytes) : bytes_(bytes) {
  if (given) {
    data_ = given.require_dense().data();
    bytes_ = given.num_elements() * dtype_size(given.dtype());
    return;
  }
  if (bytes == 0) return;
  if (!arguments.on_cuda()) {
    auto buffer = Buffer::allocate(Device::cpu, bytes);
    check(buffer.status());
    buffer_ = std::move(buffer).value();
    data_ = buffer_.data();
    return;
  }
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr) {
    fail_value("workspace is None, and the arrays' framework has no allocator for it: give ", bytes, " bytes");
  }
  const int64_t shape[1] = {bytes};
  tensor_ = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {shape, 1}, {kDLUInt, 8, 1}, arguments.device());
  data_ = tensor_.data_ptr();
}

void Scratch::clear(const Execution& execution, int64_t begin, int64_t bytes) const {
  char* const first = static_cast<char*>(data_) + begin;
  if (bytes == 0) return;
  if (execution.device == Device::cpu) {
    std::memset(first, 0, static_cast<size_t>(bytes));
    return;
  }
#if PROLOGUE_HAS_CUDA
  const cudaError_t error = cudaMemsetAsync(first, 0, static_cast<size_t>(bytes), execution.stream);
  if (error != cudaSuccess) fail("RuntimeError", str_cat("cudaMemsetAsync failed: ", cudaGetErrorString(error)));
#endif
}

}  // namespace prologue::python
