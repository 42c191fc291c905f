// This file names the element types that a KV cache may have.
#pragma once

#include <string>
#include <string_view>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/export.h>

namespace prologue {

// Returns all of them, for messages: "float32, ... and uint4".
PROLOGUE_API std::string kv_type_names();
// Returns the type that has this dtype_name, or unset if there is none.
PROLOGUE_API DType kv_type_of(std::string_view name);

}  // namespace prologue
