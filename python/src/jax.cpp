// JAX calls a function with a text, the inputs and the outputs. The text says what the values of the operation's arguments are.
#include <charconv>
#include <cstdlib>
#include <vector>

#include "arguments.h"

extern "C" {
int __tvm_ffi_rotary(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
int __tvm_ffi_gather_cos_sin(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
int __tvm_ffi_attention_prologue(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
int __tvm_ffi_paged_attention(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
}

namespace prologue::python {
namespace {

// One line for each argument: "n" None, "t<i>" tensor i of the call, "i<integer>", "b0", "b1", "f<number>", "s<text>".
std::vector<TVMFFIAny> arguments_of(std::string_view text, const TVMFFIAny* tensors, int32_t num_tensors) {
  std::vector<TVMFFIAny> values;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    TVMFFIAny value = {};
    const std::string_view rest = line.substr(1);
    int64_t integer = 0;
    std::from_chars(rest.data(), rest.data() + rest.size(), integer);
    switch (line[0]) {
      case 'n': value.type_index = tvm::ffi::TypeIndex::kTVMFFINone; break;
      case 't':
        if (integer < 0 || integer >= num_tensors) fail_type("a tensor of the call is missing");
        value = tensors[integer];
        break;
      case 'i': value.type_index = tvm::ffi::TypeIndex::kTVMFFIInt, value.v_int64 = integer; break;
      case 'b': value.type_index = tvm::ffi::TypeIndex::kTVMFFIBool, value.v_int64 = integer; break;
      case 'f':
        value.type_index = tvm::ffi::TypeIndex::kTVMFFIFloat, value.v_float64 = std::strtod(std::string(rest).c_str(), nullptr);
        break;
      default: {  // short texts are in the value itself
        if (rest.size() > 7) {
          value.type_index = tvm::ffi::TypeIndex::kTVMFFIRawStr;
          value.v_c_str = rest.data();  // ends at the line's end, see below
        } else {
          value.type_index = tvm::ffi::TypeIndex::kTVMFFISmallStr;
          value.small_str_len = static_cast<uint32_t>(rest.size());
          std::copy(rest.begin(), rest.end(), value.v_bytes);
        }
      }
    }
    values.push_back(value);
  }
  return values;
}

}  // namespace
}  // namespace prologue::python

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_jax(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  using Function = int (*)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
  Function function = nullptr;
  std::string text;
  std::vector<TVMFFIAny> values;
  const auto parse = [&]() -> int {
    TVM_FFI_SAFE_CALL_BEGIN();
    if (count == 0) prologue::python::fail_type("the call is missing");
    text = prologue::python::text_of(arguments[0], "call");
    const size_t end = text.find('\n');
    const std::string name = text.substr(0, end);
    function = name == "rotary"               ? __tvm_ffi_rotary
               : name == "gather_cos_sin"     ? __tvm_ffi_gather_cos_sin
               : name == "attention_prologue" ? __tvm_ffi_attention_prologue
               : name == "paged_attention"    ? __tvm_ffi_paged_attention
                                              : nullptr;
    if (function == nullptr) prologue::python::fail_value("call is '", name, "'");
    values = prologue::python::arguments_of(std::string_view(text).substr(end + 1), arguments + 1, count - 1);
    for (char& letter : text) letter = letter == '\n' ? '\0' : letter;  // so that a text ends where its line does
    TVM_FFI_SAFE_CALL_END();
  };
  if (const int error = parse(); error != 0) return error;
  return function(self, values.data(), static_cast<int32_t>(values.size()), result);
}
