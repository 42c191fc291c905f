// This file has the storage types of tensors: those of GGUF files that this library reads, the names of those that it does not support, and types
// of its own for other checkpoints.
#pragma once

#include <cstdint>
#include <string>

namespace prologue {

inline constexpr uint32_t kFirstOwnGgmlType = 0x10000;

// The numbers are those of the file format. A quantised row is a sequence of blocks of `block_elements` values.
enum class GgmlType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  f64 = 28,
  bf16 = 30,
  mxfp4 = 39,
  nvfp4 = 40,  // without the scale of the tensor, which is a tensor of its own
  // Blocks of 128 codes after their scale (float32), as WeightFormat has them. No GGUF file has these and those that follow: HuggingFaceDirectory
  // makes them.
  f8_e4m3 = kFirstOwnGgmlType,
  i8,
  // Blocks of 32, 64 and 128 codes of 4 bits with a scale (float16) and a zero point.
  i4_32,
  i4_64,
  i4_128,
  // Blocks of 256 codes of 4 bits with their scales and the tensor's, as WeightFormat::nvfp4 has them. GgufCheckpoint makes them, too.
  nvfp4_blocks,
};

struct GgmlTypeInfo {
  GgmlType type;
  const char* name;  // as in the format: "Q4_K"
  int64_t block_elements;
  int64_t block_bytes;
};

// Whether GGUF files may have tensors of this type.
constexpr bool is_type_of_gguf(GgmlType type) { return static_cast<uint32_t>(type) < kFirstOwnGgmlType; }

// Returns null for a type that this library does not read.
const GgmlTypeInfo* ggml_type_info(GgmlType type);

// Returns "Q4_K"; for a number that no version of the format defines, "unknown type 77".
std::string ggml_type_name(GgmlType type);

// Returns "F32, F16, ...", for error messages: types of GGUF files.
std::string supported_ggml_types();

}  // namespace prologue
