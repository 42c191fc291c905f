// This file names the formats that a KV cache may be stored in.
#pragma once

#include <string>
#include <string_view>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// Returns how a cache of this type is stored if all its scales are computed: a quantised type has a scale for each token and head.
PROLOGUE_API KvFormat computed_format(DType type);

// Returns "float32", "int8" .. for types, and "mxfp8", "mxfp4" and "nvfp4" for the block-scaled formats.
PROLOGUE_API const char* kv_format_name(const KvFormat& format);
// Return all types, or all formats with computed scales, for messages: "float32, ... and fp4_e2m1", "float32, ... and nvfp4".
PROLOGUE_API std::string kv_type_names();
PROLOGUE_API std::string kv_format_names();
// Returns the format that has this name, with computed scales. Its type is unset if there is none.
PROLOGUE_API KvFormat kv_format_of(std::string_view name);

}  // namespace prologue
