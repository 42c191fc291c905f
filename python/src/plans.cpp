#include "plans.h"

#include <tvm/ffi/container/array.h>

#include <map>
#include <string>

namespace prologue::python {

using tvm::ffi::TypeIndex;

const DLTensor* tensor_of(const TVMFFIAny& value) {
  if (value.type_index == TypeIndex::kTVMFFITensor) {
    return tvm::ffi::details::ObjectUnsafe::RawObjectPtrFromUnowned<tvm::ffi::TensorObj>(value.v_obj);
  }
  return value.type_index == TypeIndex::kTVMFFIDLTensorPtr ? static_cast<const DLTensor*>(value.v_ptr) : nullptr;
}

namespace {

void append_text(std::string_view text, std::vector<uint64_t>& signature) {
  for (size_t at = 0; at < text.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min<size_t>(8, text.size() - at));
    signature.push_back(word);
  }
}

void append_tensor(const DLTensor& tensor, std::vector<uint64_t>& signature) {
  const auto word = [](auto low, auto high) { return static_cast<uint64_t>(low) | static_cast<uint64_t>(high) << 32; };
  const uint64_t alignment = (reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset) % 16;
  signature.push_back(word(tensor.ndim, tensor.dtype.code | tensor.dtype.bits << 8 | tensor.dtype.lanes << 16));
  signature.push_back(word(tensor.device.device_type, tensor.device.device_id));
  signature.push_back(word(alignment, tensor.strides == nullptr));
  for (int axis = 0; axis < tensor.ndim; ++axis) signature.push_back(static_cast<uint64_t>(tensor.shape[axis]));
  if (tensor.strides == nullptr) return;
  for (int axis = 0; axis < tensor.ndim; ++axis) signature.push_back(static_cast<uint64_t>(tensor.strides[axis]));
}

}  // namespace

bool read_signature(const TVMFFIAny* values, int32_t count, std::vector<uint64_t>& signature, CallArrays& arrays) {
  for (int32_t i = 0; i < count; ++i) {
    const TVMFFIAny& value = values[i];
    const auto kind = static_cast<uint64_t>(static_cast<uint32_t>(value.type_index));
    switch (value.type_index) {
      case TypeIndex::kTVMFFINone: signature.push_back(kind); break;
      case TypeIndex::kTVMFFIInt:
      case TypeIndex::kTVMFFIBool:
      case TypeIndex::kTVMFFIFloat:
        signature.push_back(kind);
        signature.push_back(static_cast<uint64_t>(value.v_int64));
        break;
      case TypeIndex::kTVMFFISmallStr:
      case TypeIndex::kTVMFFIStr:
      case TypeIndex::kTVMFFIRawStr: {
        const std::string_view text = text_of(value, "");
        signature.push_back(kind | static_cast<uint64_t>(text.size()) << 32);
        append_text(text, signature);
        break;
      }
      case TypeIndex::kTVMFFITensor:
      case TypeIndex::kTVMFFIDLTensorPtr:
        if (arrays.count == CallArrays::kMost) return false;
        arrays.tensors[arrays.count++] = tensor_of(value);
        signature.push_back(kind);
        append_tensor(*tensor_of(value), signature);
        break;
      default: return false;
    }
  }
  return true;
}

uint64_t hash_of(const std::vector<uint64_t>& signature) {
  uint64_t hash = signature.size();
  for (const uint64_t word : signature) {
    hash = (hash ^ word) * 0x9E37'79B9'7F4A'7C15;
    hash ^= hash >> 32;
  }
  return hash;
}

bool is_capturing(const Execution& execution) {
#if PROLOGUE_HAS_CUDA
  if (execution.device == Device::cuda) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(execution.stream, &status) == cudaSuccess) return status != cudaStreamCaptureStatusNone;
    static_cast<void>(cudaGetLastError());  // the legacy stream, while another one is captured
    return true;
  }
#endif
  return execution.device != Device::cpu;
}

namespace {

constexpr int64_t kApart = INT64_MIN;

int64_t bytes_of(const DLTensor& tensor) {
  const int64_t bytes = (tensor.dtype.bits * tensor.dtype.lanes + 7) / 8;
  int64_t last = 0, dense = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] == 0) return 0;
    last += (tensor.shape[axis] - 1) * (tensor.strides == nullptr ? dense : tensor.strides[axis]);
    dense *= tensor.shape[axis];
  }
  return (last + 1) * bytes;
}

}  // namespace

template <class Visit>
bool Overlaps::all_pairs(const CallArrays& arrays, const Visit& visit) const {
  size_t pair = 0;
  for (int i = 1; i < arrays.count; ++i) {
    const int64_t bytes = bytes_[static_cast<size_t>(i)];
    for (int j = 0; j < i; ++j, ++pair) {
      const auto distance = static_cast<int64_t>(arrays.address(i) - arrays.address(j));
      const bool apart = distance >= bytes_[static_cast<size_t>(j)] || -distance >= bytes;
      if (!visit(pair, apart ? kApart : distance)) return false;
    }
  }
  return true;
}

Overlaps::Overlaps(const CallArrays& arrays) {
  for (int i = 0; i < arrays.count; ++i) bytes_.push_back(bytes_of(*arrays.tensors[i]));
  all_pairs(arrays, [&](size_t, int64_t distance) {
    distances_.push_back(distance);
    return true;
  });
}

bool Overlaps::same(const CallArrays& arrays) const {
  return all_pairs(arrays, [&](size_t pair, int64_t distance) { return distances_[pair] == distance; });
}

Placeholders::Placeholders(const TVMFFIAny* values, int32_t count, int set) : values_(values, values + count) {
  tensors_.reserve(CallArrays::kMost);
  for (TVMFFIAny& value : values_) {
    const DLTensor* const tensor = tensor_of(value);
    if (tensor == nullptr) continue;
    DLTensor copy = *tensor;
    copy.data = reinterpret_cast<void*>(address(static_cast<int>(tensors_.size()), set));
    copy.byte_offset = 0;
    tensors_.push_back(copy);
    value.type_index = TypeIndex::kTVMFFIDLTensorPtr;
    value.v_ptr = &tensors_.back();
  }
}

namespace {

std::map<std::string, MakeHeldPlan, std::less<>>& held_plans() {
  static std::map<std::string, MakeHeldPlan, std::less<>> all;
  return all;
}

std::string text_of_tensor(const DLTensor& tensor) {
  const Array array(&tensor, "");
  return str_cat(dtype_name(array.dtype()), " ", array.shape_text());
}

}  // namespace

bool register_held_plan(const char* operation, MakeHeldPlan make) { return held_plans().emplace(operation, make).second; }

HeldArrays::HeldArrays(const char* operation, std::vector<tvm::ffi::Any> values, std::vector<int64_t> changing)
    : operation_(operation), values_(std::move(values)) {
  std::vector<uint64_t> signature;
  if (!read_signature(this->values(), count(), signature, arrays_))
    fail_type("a value of the plan is of a type that no operation takes");
  for (const int64_t at : changing) {
    int array = 0;
    for (int64_t i = 0; i < at; ++i) array += tensor_of(this->values()[i]) != nullptr ? 1 : 0;
    changing_.push_back(array);
    append_tensor(*arrays_.tensors[array], signatures_.emplace_back());
  }
}

CallArrays HeldArrays::with(const TVMFFIAny* arguments, int32_t count) const {
  if (static_cast<size_t>(count) != changing_.size()) {
    fail_type("the plan of ", operation_, " was called with ", count, " arrays: it takes ", changing_.size());
  }
  CallArrays result = arrays_;
  std::vector<uint64_t> signature;
  for (size_t i = 0; i < changing_.size(); ++i) {
    const DLTensor* const tensor = tensor_of(arguments[i]);
    if (tensor == nullptr) fail_type("argument ", i, " of the plan of ", operation_, " is not an array");
    signature.clear();
    append_tensor(*tensor, signature);
    if (signature != signatures_[i]) {
      fail_value("argument ", i, " of the plan of ", operation_, " is ", text_of_tensor(*tensor), ": the plan was made with ",
                 text_of_tensor(*arrays_.tensors[changing_[i]]),
                 ", and strides, device and address modulo 16 must be equal, too");
    }
    result.tensors[changing_[i]] = tensor;
  }
  return result;
}

}  // namespace prologue::python

// make_plan(operation, changing, values ..): the plan of a call, a function of its arrays at `changing`.
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_make_plan(void*, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  using namespace prologue::python;  // NOLINT
  if (count < 2) fail_type("make_plan needs an operation and a list");
  const std::string_view name = text_of(arguments[0], "operation");
  const auto found = held_plans().find(name);
  if (found == held_plans().end()) fail_value("operation is '", name, "': there are no plans of it");
  const auto changing = reinterpret_cast<const tvm::ffi::AnyView&>(arguments[1]).cast<tvm::ffi::Array<int64_t>>();
  std::vector<tvm::ffi::Any> values;
  for (int32_t i = 2; i < count; ++i) values.emplace_back(reinterpret_cast<const tvm::ffi::AnyView&>(arguments[i]));
  *reinterpret_cast<tvm::ffi::Any*>(result) =
      found->second(layout_of(name), std::move(values), std::vector<int64_t>(changing.begin(), changing.end()));
  TVM_FFI_SAFE_CALL_END();
}
