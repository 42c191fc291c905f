// The element types that a KV cache may have, by their names.
#pragma once

#include <string>
#include <string_view>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/export.h>

namespace prologue {

// All of them, for messages: "float32, ... and uint4".
PROLOGUE_API std::string kv_type_names();
// The one that has this dtype_name; unset if there is none.
PROLOGUE_API DType kv_type_of(std::string_view name);

}  // namespace prologue
