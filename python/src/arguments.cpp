#include "arguments.h"

#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

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
      case kDLComplex: fail_type(name_, " is complex", int{type.bits}, ": no operation takes complex numbers");
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

const Array& Array::require(DType type, const char* as) const {
  if (*this && dtype() != type) {
    fail_type(name_, " is ", dtype_name(dtype()), ": it must be ", dtype_name(type), as == nullptr ? "" : ", the dtype of ",
              as == nullptr ? "" : as);
  }
  return *this;
}

const Array& Array::require_rank(int low, int high) const {
  if (*this && (rank() < low || rank() > high)) {
    if (low == high) fail_value(name_, " has the shape ", shape_text(), ": it must have ", low, " axes");
    fail_value(name_, " has the shape ", shape_text(), ": it must have ", low, " to ", high, " axes");
  }
  return *this;
}

const Array& Array::require_heads() const {
  if (*this && rank() != 3) fail_heads("3 axes, [num_tokens, heads, head_dim]");
  return *this;
}

void Array::fail_heads(const char* axes) const {
  const std::string must = str_cat(name_, " has the shape ", shape_text(), ": it must have ", axes);
  if (rank() == 1) fail_value(must, ". If it is one token, reshape(1, -1, head_dim) makes it so");
  if (rank() == 2) fail_value(must, ". If a row has all heads of a token, reshape(", size(0), ", -1, head_dim) makes it so");
  if (rank() != 4) fail_value(must);
  fail_value(must, ". If its axes are batch, seq_len, heads, head_dim, reshape(", size(0) * size(1), ", ", size(2), ", ", size(3),
             ") makes it so");
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

namespace {

std::map<std::string, Layout, std::less<>>& layouts() {
  static std::map<std::string, Layout, std::less<>> all;
  return all;
}

constexpr const char* kVersions = "the Python files and the extension are of different versions";

const TVMFFIAny* end_of_item(const Layout::Item& item, const TVMFFIAny* at, const TVMFFIAny* end);

// The end of the members that begin at `at`; null as below.
const TVMFFIAny* end_of_group(const Layout& group, const TVMFFIAny* at, const TVMFFIAny* end) {
  const auto num_items = static_cast<ptrdiff_t>(group.items.size());
  if (!group.has_groups) return end - at < num_items ? nullptr : at + num_items;
  for (const Layout::Item& item : group.items) {
    if (at != nullptr) at = end_of_item(item, at, end);
  }
  return at;
}

// The end of an item whose first value is at `at`; null if its values are not those of an item, or if there are too few of them.
const TVMFFIAny* end_of_item(const Layout::Item& item, const TVMFFIAny* at, const TVMFFIAny* end) {
  if (at >= end) return nullptr;
  const TVMFFIAny& value = *at++;
  if (item.group == nullptr || value.type_index == TypeIndex::kTVMFFINone) return at;
  if (value.type_index != TypeIndex::kTVMFFIBool && value.type_index != TypeIndex::kTVMFFIInt) return nullptr;
  for (int64_t i = 0; i < value.v_int64 && at != nullptr; ++i) at = end_of_group(*item.group, at, end);
  return at;
}

}  // namespace

void declare_layout(std::string_view name, const std::vector<std::string_view>& items) {
  Layout layout;
  layout.name = name;
  if (items.size() > Layout::kMostItems) fail_type(name, " has ", items.size(), " names: there may be ", Layout::kMostItems);
  std::fill(std::begin(layout.item_of), std::end(layout.item_of), int16_t{-1});
  for (const std::string_view item : items) {
    const size_t space = item.find(' ');
    const std::string_view text = item.substr(0, space);
    const size_t index = index_of_name(text);
    if (index == kNumNames) fail_type(name, " has '", text, "', which the extension does not know: ", kVersions);
    if (layout.names[index]) fail_type(name, " has '", text, "' twice");
    layout.names.set(index);
    layout.item_of[index] = static_cast<int16_t>(layout.items.size());
    layout.items.push_back({index, space == std::string_view::npos ? nullptr : &layout_of(item.substr(space + 1))});
    layout.has_groups |= layout.items.back().group != nullptr;
  }
  layouts()[layout.name] = std::move(layout);
}

const Layout& layout_of(std::string_view name) {
  const auto found = layouts().find(name);
  if (found == layouts().end()) fail_type("'", name, "' is not declared: ", kVersions);
  return found->second;
}

Arguments::Arguments(const Layout& layout, const TVMFFIAny* values, int32_t count)
    : layout_(layout), root_(this), values_(values), end_(values + count) {
  if (end_of_group(layout, values, end_) != end_) {
    fail_type(layout.name, " was called with ", count,
              " values, which are not those of its names: an argument is not of its class (Rope, PagedKv, ..), or ", kVersions);
  }
  find_items();
}

Arguments::Arguments(Arguments& of, Name group, int64_t index) : layout_(of.group_layout(group)), root_(of.root_) {
  const TVMFFIAny& first = of.take(group);
  if (first.type_index == TypeIndex::kTVMFFINone || index >= first.v_int64) return;
  values_ = &first + 1;
  for (int64_t i = 0; i < index; ++i) values_ = end_of_group(layout_, values_, root_->end_);
  find_items();
}

void Arguments::find_items() {
  if (!layout_.has_groups) return;
  const TVMFFIAny* at = values_;
  for (size_t i = 0; i < layout_.items.size(); ++i) {
    item_[i] = at;
    at = end_of_item(layout_.items[i], at, root_->end_);
  }
}

size_t Arguments::number_of(Name name) const {
  const int number = layout_.item_of[name.index()];
  if (number < 0) fail_type(layout_.name, " has no '", name.text(), "', which the extension reads: ", kVersions);
  return static_cast<size_t>(number);
}

const Layout& Arguments::group_layout(Name name) const {
  const Layout* const group = layout_.items[number_of(name)].group;
  if (group == nullptr)
    fail_type(layout_.name, " has one value as '", name.text(), "', which the extension reads as a group: ", kVersions);
  return *group;
}

const TVMFFIAny& Arguments::take(Name name) {
  const size_t number = number_of(name);
  read_.set(name.index());
  return layout_.has_groups ? *item_[number] : values_[number];
}

void Arguments::require_all_read() const {
  if (read_ == layout_.names) return;
  for (const Layout::Item& item : layout_.items) {
    if (!read_[item.name])
      fail_type(layout_.name, " has '", kNames[item.name], "', which the extension does not read: ", kVersions);
  }
}

int64_t Arguments::num_groups(Name name) {
  const TVMFFIAny& value = take(name);
  return value.type_index == TypeIndex::kTVMFFINone ? 0 : value.v_int64;
}

Array Arguments::optional_array(Name name, const char* label) {
  const TVMFFIAny& value = take(name);
  if (value.type_index == TypeIndex::kTVMFFINone) return {};
  const DLTensor* tensor = nullptr;
  if (value.type_index == TypeIndex::kTVMFFITensor) {
    tensor = tvm::ffi::details::ObjectUnsafe::RawObjectPtrFromUnowned<tvm::ffi::TensorObj>(value.v_obj);
  } else if (value.type_index == TypeIndex::kTVMFFIDLTensorPtr) {
    tensor = static_cast<const DLTensor*>(value.v_ptr);
  } else {
    fail_type(label, " is not an array: it must be a tensor with DLPack (torch, NumPy, CuPy)");
  }
  DLDevice device = tensor->device;
  if (device.device_type == kDLCUDAManaged) device.device_type = kDLCUDA;
  if (device.device_type == kDLCUDAHost) device = {kDLCPU, 0};
  if (device.device_type != kDLCPU && device.device_type != kDLCUDA) {
    fail_type(label, " is on a device of DLPack type ", int{device.device_type}, ": supported are the CPU and CUDA");
  }
  if (root_->device_of_ == nullptr) {
    root_->device_ = device;
    root_->device_of_ = label;
  } else if (const DLDevice known = root_->device_;
             device.device_type != known.device_type || device.device_id != known.device_id) {
    const auto text = [](DLDevice d) { return d.device_type == kDLCPU ? std::string("the CPU") : str_cat("cuda:", d.device_id); };
    fail_value(label, " is on ", text(device), ", but ", root_->device_of_, " is on ", text(known),
               ": all arrays must be on one device");
  }
  return {tensor, label};
}

Array Arguments::array(Name name, const char* label) {
  const Array result = optional_array(name, label);
  if (!result) fail_type(label, " is None: it must be given");
  return result;
}

int64_t Arguments::integer(Name name) {
  const TVMFFIAny& value = take(name);
  if (value.type_index == TypeIndex::kTVMFFIInt || value.type_index == TypeIndex::kTVMFFIBool) return value.v_int64;
  fail_type(name.text(), " is not an integer of 64 bits");
}

double Arguments::number(Name name) {
  const TVMFFIAny& value = take(name);
  if (value.type_index == TypeIndex::kTVMFFIFloat) return value.v_float64;
  if (value.type_index == TypeIndex::kTVMFFIInt) return static_cast<double>(value.v_int64);
  fail_type(name.text(), " is not a number");
}

bool Arguments::flag(Name name) {
  const TVMFFIAny& value = take(name);
  if (value.type_index == TypeIndex::kTVMFFIBool || value.type_index == TypeIndex::kTVMFFIInt) return value.v_int64 != 0;
  fail_type(name.text(), " is not True or False");
}

std::string_view text_of(const TVMFFIAny& value, const char* name) {
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

DType Arguments::dtype(Name name) {
  if (!given(name)) return DType::unset;
  const std::string_view text = string(name);
  for (int32_t type = 1; dtype_valid(static_cast<DType>(type)); ++type) {
    if (text == dtype_name(static_cast<DType>(type))) return static_cast<DType>(type);
  }
  fail_value(name.text(), " is '", text,
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

FaultRecord* fault_record_of(const Array& faults) {
  if (!faults) return nullptr;
  if (!faults.has_shape({2}) || (faults.dtype() != DType::int64 && faults.dtype() != DType::uint64)) {
    fail_value("faults is ", dtype_name(faults.dtype()), " ", faults.shape_text(), ": it must be two int64, zeros at first");
  }
  return static_cast<FaultRecord*>(faults.require_dense().data());
}

Call::Call(DLDevice device, FaultRecord* faults) : faults_(faults) {
  if (device.device_type == kDLCUDA) {
    execution_.device = Device::cuda;
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

Scratch::Scratch(DLDevice device, const Array& given, int64_t bytes) : bytes_(bytes) {
  if (given) {
    data_ = given.require_dense().data();
    bytes_ = given.num_elements() * dtype_size(given.dtype());
    return;
  }
  if (bytes == 0) return;
  if (device.device_type != kDLCUDA) {
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
  tensor_ = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {shape, 1}, {kDLUInt, 8, 1}, device);
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
