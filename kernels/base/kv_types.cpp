#include <prologue/kernels/base/kv_types.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

namespace {

constexpr KvFormat kFormats[] = {{DType::f32, KvScaling::none},
                                 {DType::f16, KvScaling::none},
                                 {DType::bf16, KvScaling::none},
                                 {DType::fp8_e4m3, KvScaling::token_head},
                                 {DType::fp8_e5m2, KvScaling::token_head},
                                 {DType::int8, KvScaling::token_head},
                                 {DType::int4, KvScaling::token_head},
                                 {DType::uint4, KvScaling::token_head},
                                 {DType::fp8_e4m3, KvScaling::mx},
                                 {DType::fp4_e2m1, KvScaling::mx},
                                 {DType::fp4_e2m1, KvScaling::nv}};

}  // namespace

KvFormat computed_format(DType type) { return {type, dtype_is_quantized(type) ? KvScaling::token_head : KvScaling::none}; }

const char* kv_format_name(const KvFormat& format) {
  if (format.scaling == KvScaling::nv) return "nvfp4";
  if (format.scaling == KvScaling::mx) return format.type == DType::fp8_e4m3 ? "mxfp8" : "mxfp4";
  return dtype_name(format.type);
}

std::string kv_type_names() {
  std::string names;
  for (const KvFormat& format : kFormats) {
    if (!is_block_scaled(format)) names += str_cat(dtype_name(format.type), format.type == DType::uint4 ? " and " : ", ");
  }
  return names + dtype_name(DType::fp4_e2m1);
}

std::string kv_format_names() {
  std::string names;
  for (const KvFormat& format : kFormats) {
    const bool last = format.scaling == KvScaling::nv;
    names += str_cat(names.empty() ? "" : last ? " and " : ", ", kv_format_name(format));
  }
  return names;
}

KvFormat kv_format_of(std::string_view name) {
  for (const KvFormat& format : kFormats) {
    if (name == kv_format_name(format)) return format;
  }
  return {};
}

}  // namespace prologue
