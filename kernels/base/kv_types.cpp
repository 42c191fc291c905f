#include <prologue/kernels/base/kv_types.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

std::string kv_type_names() {
  std::string names;
  for (auto type = DType::f32; dtype_valid(type); type = static_cast<DType>(static_cast<int32_t>(type) + 1)) {
    if (!dtype_is_kv(type)) continue;
    const bool last = !dtype_is_kv(static_cast<DType>(static_cast<int32_t>(type) + 1));
    names += str_cat(names.empty() ? "" : last && type != DType::bf16 ? " and " : ", ", dtype_name(type));
  }
  return names;
}

DType kv_type_of(std::string_view name) {
  for (auto type = DType::f32; dtype_valid(type); type = static_cast<DType>(static_cast<int32_t>(type) + 1)) {
    if (dtype_is_kv(type) && name == dtype_name(type)) return type;
  }
  return DType::unset;
}

}  // namespace prologue
