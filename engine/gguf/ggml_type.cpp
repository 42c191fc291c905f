#include <prologue/engine/gguf/ggml_type.h>

#include <iterator>

#include <prologue/kernels/base/status.h>

namespace prologue {
namespace {

constexpr GgmlTypeInfo kSupported[] = {
    {GgmlType::f32, "F32", 1, 4},
    {GgmlType::f16, "F16", 1, 2},
    {GgmlType::bf16, "BF16", 1, 2},
    {GgmlType::f64, "F64", 1, 8},
    {GgmlType::q8_0, "Q8_0", 32, 2 + 32},
    {GgmlType::q4_0, "Q4_0", 32, 2 + 16},
    {GgmlType::q4_1, "Q4_1", 32, 2 + 2 + 16},
    {GgmlType::q5_0, "Q5_0", 32, 2 + 4 + 16},
    {GgmlType::q5_1, "Q5_1", 32, 2 + 2 + 4 + 16},
    {GgmlType::q4_k, "Q4_K", 256, 2 + 2 + 12 + 128},
    {GgmlType::q5_k, "Q5_K", 256, 2 + 2 + 12 + 32 + 128},
    {GgmlType::q6_k, "Q6_K", 256, 128 + 64 + 16 + 2},
    {GgmlType::q2_k, "Q2_K", 256, 16 + 64 + 2 + 2},
    {GgmlType::q3_k, "Q3_K", 256, 32 + 64 + 12 + 2},
    {GgmlType::iq4_nl, "IQ4_NL", 32, 2 + 16},
    {GgmlType::iq4_xs, "IQ4_XS", 256, 2 + 2 + 4 + 128},
    {GgmlType::mxfp4, "MXFP4", 32, 1 + 16},
    {GgmlType::nvfp4, "NVFP4", 64, 4 + 32},
    {GgmlType::f8_e4m3, "F8_E4M3", 128, 4 + 128},
    {GgmlType::i8, "I8", 128, 4 + 128},
    {GgmlType::i4_32, "I4_32", 32, 2 + 1 + 16},
    {GgmlType::i4_64, "I4_64", 64, 2 + 1 + 32},
    {GgmlType::i4_128, "I4_128", 128, 2 + 1 + 64},
    {GgmlType::nvfp4_blocks, "NVFP4", 256, 4 + 16 + 128},
};

// The names are indexed by number, whether supported, unsupported or withdrawn.
constexpr const char* kNames[] = {
    "F32",      "F16",    "Q4_0",  "Q4_1",       "Q4_2",       "Q4_3",       "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",     "Q2_K",
    "Q3_K",     "Q4_K",   "Q5_K",  "Q6_K",       "Q8_K",       "IQ2_XXS",    "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",   "IQ3_S",
    "IQ2_S",    "IQ4_XS", "I8",    "I16",        "I32",        "I64",        "F64",    "IQ1_M",   "BF16",  "Q4_0_4_4", "Q4_0_4_8",
    "Q4_0_8_8", "TQ1_0",  "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",  "NVFP4",   "Q1_0",
};

}  // namespace

const GgmlTypeInfo* ggml_type_info(GgmlType type) {
  for (const GgmlTypeInfo& info : kSupported) {
    if (info.type == type) return &info;
  }
  return nullptr;
}

std::string ggml_type_name(GgmlType type) {
  const uint32_t number = static_cast<uint32_t>(type);
  return number < std::size(kNames) ? kNames[number] : str_cat("unknown type ", number);
}

std::string supported_ggml_types() {
  std::string names;
  for (const GgmlTypeInfo& info : kSupported) {
    if (is_type_of_gguf(info.type)) names += (names.empty() ? "" : ", ") + std::string(info.name);
  }
  return names;
}

}  // namespace prologue
