// This file converts elements and scales of block-scaled caches: MXFP8, MXFP4 and NVFP4. It is written once for host and device. KvFormat in
// views.h states the rules.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// Returns the nearest number of four bits, ties to the even code: 0, 0.5, 1, 1.5, 2, 3, 4 or 6, with the sign in bit 3. It saturates. x is
// not NaN.
PROLOGUE_HOST_DEVICE inline uint8_t to_fp4_e2m1(float x) {
  const float magnitude = detail::float_of(magnitude_bits(x));
  // A tie is in the interval of the even code.
  const int code = (magnitude > 0.25f ? 1 : 0) + (magnitude >= 0.75f ? 1 : 0) + (magnitude > 1.25f ? 1 : 0) +
                   (magnitude >= 1.75f ? 1 : 0) + (magnitude > 2.5f ? 1 : 0) + (magnitude >= 3.5f ? 1 : 0) +
                   (magnitude > 5.0f ? 1 : 0);
  return static_cast<uint8_t>(code | (detail::bits_of(x) >> 31 != 0 ? 8 : 0));
}

// Reads the low four bits.
PROLOGUE_HOST_DEVICE inline float from_fp4_e2m1(uint8_t code) {
  const uint32_t exponent = code >> 1 & 3u, mantissa = code & 1u, sign = static_cast<uint32_t>(code & 8u) << 28;
  if (exponent == 0) return detail::float_of(sign | (mantissa != 0 ? 0x3f000000u : 0u));
  return detail::float_of(sign | (exponent + 126u) << 23 | mantissa << 22);
}

// Returns 2^(code - 127), or NaN for 255.
PROLOGUE_HOST_DEVICE inline float from_ue8m0(uint8_t code) {
  if (code == 0xff) return detail::float_of(0x7fc00000u);
  return detail::float_of(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}

struct BlockScale {
  uint8_t code = 0;         // as it is stored
  float reciprocal = 0.0f;  // 0: the block's data are zeros
};

// Makes the scale of a block from the bits of its largest magnitude. `tensor_scale` counts only for nv.
PROLOGUE_HOST_DEVICE inline BlockScale block_scale_of(uint32_t largest_magnitude_bits, const KvFormat& format,
                                                      float tensor_scale) {
  const bool finite = largest_magnitude_bits < detail::kInfinityBits;
  if (format.scaling == KvScaling::mx) {
    if (!finite) return {0xff, 0.0f};
    const int largest_exponent = format.type == DType::fp8_e4m3 ? 8 : 2;
    const int exponent = static_cast<int>(largest_magnitude_bits >> 23) - largest_exponent;  // of subnormals: less than 0
    const int code = exponent > 0 ? exponent : 0;
    return {static_cast<uint8_t>(code), from_ue8m0(static_cast<uint8_t>(254 - code))};  // 2^(127 - code)
  }
  if (!finite) return {0x7f, 0.0f};
  const float sixth = divide_rounded(detail::float_of(largest_magnitude_bits), 6.0f);
  const uint8_t code = to_fp8_e4m3(multiply_rounded(sixth, divide_rounded(1.0f, tensor_scale)));
  const float reciprocal = divide_rounded(1.0f, multiply_rounded(tensor_scale, from_fp8_e4m3(code)));
  if (magnitude_bits(reciprocal) >= detail::kInfinityBits) return {0, 0.0f};
  return {code, reciprocal};
}

// Returns what the codes of a block are multiplied by.
PROLOGUE_HOST_DEVICE inline float block_factor(uint8_t scale_code, const KvFormat& format, float tensor_scale) {
  if (format.scaling == KvScaling::mx) return from_ue8m0(scale_code);
  return multiply_rounded(from_fp8_e4m3(scale_code), tensor_scale);
}

// Returns the code of x: a byte, or the low four bits of one.
PROLOGUE_HOST_DEVICE inline uint8_t quantize_in_block(float x, float reciprocal, DType type) {
  if (reciprocal == 0.0f) return 0;
  const float scaled = multiply_rounded(x, reciprocal);
  return type == DType::fp8_e4m3 ? to_fp8_e4m3(scaled) : to_fp4_e2m1(scaled);
}

// Returns the offset in bytes of the scale of block `block`, of `num_blocks` of its head, from the first of the page and head.
PROLOGUE_HOST_DEVICE inline int64_t block_scale_offset(BlockScaleLayout layout, int64_t token_stride, int64_t offset,
                                                       int64_t block, int64_t num_blocks) {
  if (layout == BlockScaleLayout::linear) return offset * token_stride + block;
  const int64_t quarter = num_blocks / 4;
  return (offset / 4 * 4 + block / quarter) * token_stride + block % quarter * 4 + offset % 4;
}

// The scale of the whole tensor: 1 if none is given.
PROLOGUE_HOST_DEVICE inline float tensor_scale_of(const KvFormat& format, const float* scale) {
  return format.scaling == KvScaling::nv && scale != nullptr ? scale[0] : 1.0f;
}

}  // namespace prologue
