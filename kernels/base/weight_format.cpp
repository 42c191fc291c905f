#include <prologue/kernels/base/weight_format.h>

#include <algorithm>
#include <cstring>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/host/packed_weight.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/shared/quantize.h>

namespace prologue {

namespace {

// A field of a block has so many bytes, of which `piece` neighbouring bytes of a row stay together.
struct Field {
  int64_t bytes;
  int64_t piece;
};

constexpr int64_t kMaxFields = 5;
constexpr int64_t kMaxBlockBytes = 210;

// The fields are in the order of the file; the list ends with an empty one.
struct Layout {
  Field fields[kMaxFields + 1];
};

constexpr Layout layout_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::q8_0: return {{{2, 2}, {32, 4}}};
    case WeightFormat::q4_0: return {{{2, 2}, {16, 4}}};
    case WeightFormat::q4_1: return {{{2, 2}, {2, 2}, {16, 4}}};
    case WeightFormat::q5_0: return {{{2, 2}, {4, 4}, {16, 4}}};
    case WeightFormat::q5_1: return {{{2, 2}, {2, 2}, {4, 4}, {16, 4}}};
    case WeightFormat::q4_k: return {{{2, 2}, {2, 2}, {12, 1}, {128, 4}}};
    case WeightFormat::q5_k: return {{{2, 2}, {2, 2}, {12, 1}, {32, 4}, {128, 4}}};
    case WeightFormat::q6_k: return {{{128, 4}, {64, 4}, {16, 1}, {2, 2}}};
    case WeightFormat::f8_e4m3: return {{{4, 4}, {128, 4}}};
    case WeightFormat::i8: return {{{4, 4}, {128, 4}}};
    case WeightFormat::q2_k: return {{{16, 1}, {64, 4}, {2, 2}, {2, 2}}};
    case WeightFormat::q3_k: return {{{32, 4}, {64, 4}, {12, 1}, {2, 2}}};
    case WeightFormat::iq4_nl: return {{{2, 2}, {16, 4}}};
    case WeightFormat::iq4_xs: return {{{2, 2}, {2, 1}, {4, 1}, {128, 4}}};
    case WeightFormat::mxfp4: return {{{1, 1}, {16, 4}}};
    case WeightFormat::i4_32: return {{{2, 2}, {1, 1}, {16, 4}}};
    case WeightFormat::i4_64: return {{{2, 2}, {1, 1}, {32, 4}}};
    case WeightFormat::i4_128: return {{{2, 2}, {1, 1}, {64, 4}}};
    case WeightFormat::nvfp4: return {{{4, 4}, {16, 1}, {128, 4}}};
    case WeightFormat::dense: break;
  }
  return {};
}

// Calls copy(bytes of the block, bytes of the group) for each piece of one row, as offsets.
template <class Copy>
void for_each_piece(WeightFormat format, int64_t row, const Copy& copy) {
  int64_t at = 0;  // of the field, in the block
  for (const Field& field : layout_of(format).fields) {
    if (field.bytes == 0) break;
    const int64_t in_group = at * kPackedGroupRows + row * field.piece;
    for (int64_t i = 0; i < field.bytes; i += field.piece) copy(at + i, in_group + i * kPackedGroupRows, field.piece);
    at += field.bytes;
  }
}

// Packs blocks of up to 16 rows into a group; rows that are missing become zeros.
void pack_group(const PackWeightParams& p, int64_t group) {
  const int64_t num_blocks = p.cols / weight_block_elements(p.format), block_bytes = weight_block_bytes(p.format);
  const int64_t first = group * kPackedGroupRows, num_rows = std::min(kPackedGroupRows, p.rows - first);
  const int64_t row_bytes = num_blocks * block_bytes;
  const auto* blocks = static_cast<const uint8_t*>(p.blocks) + first * row_bytes;
  auto* packed = static_cast<uint8_t*>(p.packed) + first * row_bytes;
  if (num_rows < kPackedGroupRows) std::memset(packed, 0, static_cast<size_t>(kPackedGroupRows * row_bytes));
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const uint8_t* block = blocks + row * row_bytes + b * block_bytes;
      uint8_t* target = packed + b * block_bytes * kPackedGroupRows;
      for_each_piece(p.format, row, [&](int64_t from, int64_t to, int64_t size) {
        std::memcpy(target + to, block + from, static_cast<size_t>(size));
      });
    }
  }
}

float half_at(const uint8_t* bytes) {
  Float16 half;
  std::memcpy(&half.bits, bytes, sizeof half.bits);
  return to_float(half);
}

// Decodes blocks of 32 values: the low nibbles are the first 16 values, the high ones the last 16.
void decode_32(WeightFormat format, const uint8_t* block, float* out) {
  const float scale = half_at(block);
  if (format == WeightFormat::q8_0) {
    for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    return;
  }
  const bool has_minimum = format == WeightFormat::q4_1 || format == WeightFormat::q5_1;
  const bool has_fifth = format == WeightFormat::q5_0 || format == WeightFormat::q5_1;
  const float minimum = has_minimum ? half_at(block + 2) : 0.0f;
  block += has_minimum ? 4 : 2;
  uint32_t fifth = 0;
  if (has_fifth) {
    std::memcpy(&fifth, block, sizeof fifth);
    block += sizeof fifth;
  }
  const int offset = has_minimum ? 0 : has_fifth ? 16 : 8;
  for (int i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? block[i] & 15 : block[i - 16] >> 4;
    const int code = nibble + static_cast<int>(fifth >> i & 1u) * 16;
    out[i] = scale * static_cast<float>(code - offset);
    if (has_minimum) out[i] += minimum;
  }
}

// Decodes blocks of eight parts of 32 values. Bytes 0..3 of `packed` have the scales of parts 0..3 in six bits, bytes 4..7 their minimums;
// bytes 8..11 have four bits of the scales (low) and minimums (high) of parts 4..7, whose other two bits are above the former.
void decode_parts(WeightFormat format, const uint8_t* block, float* out) {
  const float block_scale = half_at(block), block_minimum = half_at(block + 2);
  const uint8_t* packed = block + 4;
  const uint8_t* fifth = block + 16;
  const uint8_t* nibbles = format == WeightFormat::q5_k ? block + 48 : block + 16;
  for (int part = 0; part < 8; ++part) {
    const int low = part % 4;
    const int scale_code = part < 4 ? packed[low] & 63 : (packed[8 + low] & 15) | (packed[low] >> 6 << 4);
    const int minimum_code = part < 4 ? packed[4 + low] & 63 : (packed[8 + low] >> 4) | (packed[4 + low] >> 6 << 4);
    const float scale = block_scale * static_cast<float>(scale_code);
    const float minimum = block_minimum * static_cast<float>(minimum_code);
    for (int i = 0; i < 32; ++i) {
      const int byte = nibbles[part / 2 * 32 + i];
      int code = part % 2 == 0 ? byte & 15 : byte >> 4;
      if (format == WeightFormat::q5_k) code += (fifth[i] >> part & 1) * 16;
      out[32 * part + i] = scale * static_cast<float>(code) - minimum;
    }
  }
}

// Two halves of four runs of 32 values; each 16 values have a scale.
void decode_q6_k(const uint8_t* block, float* out) {
  const float block_scale = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, run = i / 32 % 4, at = i % 32;
    const int byte = block[64 * half + 32 * (run % 2) + at];
    const int nibble = run < 2 ? byte & 15 : byte >> 4;
    const int code = nibble | (block[128 + 32 * half + at] >> (2 * run) & 3) << 4;
    const float scale = block_scale * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
    out[i] = scale * static_cast<float>(code - 32);
  }
}

// Two halves of four runs of 32 values, of two bits each in the same 32 bytes; each 16 values have a scale and a minimum of four bits.
void decode_q2_k(const uint8_t* block, float* out) {
  const float block_scale = half_at(block + 80), block_minimum = half_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const int code = block[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3, part = block[i / 16];
    const float scale = block_scale * static_cast<float>(part & 15), minimum = block_minimum * static_cast<float>(part >> 4);
    out[i] = scale * static_cast<float>(code) - minimum;
  }
}

// The same with a third bit, bit i / 32 of the 32 bytes before, and a scale of six bits: byte i % 8 of twelve has four of scale i, in the low
// nibble if i < 8; byte 8 + i % 4 has two more, at 2 (i / 4).
void decode_q3_k(const uint8_t* block, float* out) {
  const float block_scale = half_at(block + 108);
  const uint8_t* parts = block + 96;
  for (int i = 0; i < 256; ++i) {
    const int two = block[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3, third = block[i % 32] >> (i / 32) & 1;
    const int part = i / 16;
    const int six = (parts[part % 8] >> (part / 8 * 4) & 15) | (parts[8 + part % 4] >> (part / 4 * 2) & 3) << 4;
    out[i] = block_scale * static_cast<float>(six - 32) * static_cast<float>(two + 4 * third - 4);
  }
}

// The values of the codes of IQ4_NL and IQ4_XS, and twice those of MXFP4 and NVFP4.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kDoubledFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Decodes 32 values, of which the low nibbles are the first 16.
void decode_nibbles(const uint8_t* nibbles, const int8_t (&values)[16], float scale, float* out) {
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(values[i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4]);
  }
}

// Eight parts of 32 values, each with a scale of six bits.
void decode_iq4_xs(const uint8_t* block, float* out) {
  const float block_scale = half_at(block);
  for (int part = 0; part < 8; ++part) {
    const int four = block[4 + part / 2] >> (part % 2 * 4) & 15, two = block[2 + part / 4] >> (part % 4 * 2) & 3;
    decode_nibbles(block + 8 + 16 * part, kIq4Values, block_scale * static_cast<float>((four | two << 4) - 32), out + 32 * part);
  }
}

// Returns 2^(e - 128). The last two exponents are those of numbers below float32's normal ones.
float half_power(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x200000u << e : (e - 1u) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}

// Returns the value of a code of float8_e4m3fn; 0x7f and 0xff are 480 and -480.
float e4m3_value(uint8_t code) {
  const bool is_nan = (code & 0x7f) == 0x7f;
  return !is_nan ? from_fp8_e4m3(code) : code < 128 ? 480.0f : -480.0f;
}

// Sixteen scales of 16 values each, times the tensor's. Of each 32 values the low nibbles are the first 16.
void decode_nvfp4(const uint8_t* block, float* out) {
  float of_tensor;
  std::memcpy(&of_tensor, block, sizeof of_tensor);
  for (int i = 0; i < 256; ++i) {
    const int byte = block[20 + i / 32 * 16 + i % 16], code = i % 32 < 16 ? byte & 15 : byte >> 4;
    const float scale = e4m3_value(block[4 + i / 16]) * of_tensor;
    out[i] = scale * (0.5f * static_cast<float>(kDoubledFp4Values[code]));
  }
}

void decode_128(WeightFormat format, const uint8_t* block, float* out) {
  float scale;
  std::memcpy(&scale, block, sizeof scale);
  for (int i = 0; i < 128; ++i) {
    const uint8_t code = block[4 + i];
    out[i] = scale * (format == WeightFormat::f8_e4m3 ? e4m3_value(code) : static_cast<float>(static_cast<int8_t>(code)));
  }
}

bool is_int4(WeightFormat format) {
  return format == WeightFormat::i4_32 || format == WeightFormat::i4_64 || format == WeightFormat::i4_128;
}

// Both products are exact in float32, and so is their difference.
void decode_int4(int64_t elements, const uint8_t* block, float* out) {
  const float scale = half_at(block), minimum = scale * static_cast<float>(block[2]);
  for (int64_t i = 0; i < elements; ++i) {
    const int byte = block[3 + i / 32 * 16 + i % 16];
    out[i] = scale * static_cast<float>(i % 32 < 16 ? byte & 15 : byte >> 4) - minimum;
  }
}

}  // namespace

void unpack_block(WeightFormat format, const void* packed, int64_t cols, int64_t row, int64_t block, float* out) {
  const int64_t elements = weight_block_elements(format), block_bytes = weight_block_bytes(format);
  const int64_t group = row / kPackedGroupRows * (cols / elements) + block;  // in blocks of 16 rows
  const uint8_t* source = static_cast<const uint8_t*>(packed) + group * kPackedGroupRows * block_bytes;
  uint8_t bytes[kMaxBlockBytes];
  for_each_piece(format, row % kPackedGroupRows, [&](int64_t at, int64_t in_group, int64_t size) {
    std::memcpy(bytes + at, source + in_group, static_cast<size_t>(size));
  });
  switch (format) {
    case WeightFormat::q2_k: return decode_q2_k(bytes, out);
    case WeightFormat::q3_k: return decode_q3_k(bytes, out);
    case WeightFormat::q6_k: return decode_q6_k(bytes, out);
    case WeightFormat::iq4_nl: return decode_nibbles(bytes + 2, kIq4Values, half_at(bytes), out);
    case WeightFormat::iq4_xs: return decode_iq4_xs(bytes, out);
    case WeightFormat::mxfp4: return decode_nibbles(bytes + 1, kDoubledFp4Values, half_power(bytes[0]), out);
    case WeightFormat::nvfp4: return decode_nvfp4(bytes, out);
    default: break;
  }
  if (is_int4(format)) return decode_int4(elements, bytes, out);
  if (elements == 32) return decode_32(format, bytes, out);
  if (elements == 128) return decode_128(format, bytes, out);
  decode_parts(format, bytes, out);
}

Status check_packed_weight(const char* operation, const PackedWeight& packed, const void* weight, int64_t n, int64_t k,
                           Device device) {
  constexpr int64_t kMaxRows = int64_t{1} << 31;
  if (packed.num_segments < 0 || packed.num_segments > kMaxWeightSegments) {
    return invalid_argument(operation, ": packed.num_segments is ", packed.num_segments, ": it must be 0 to ",
                            kMaxWeightSegments);
  }
  if (packed.num_segments == 0) return {};
  if (weight != nullptr) {
    return invalid_argument(operation, ": packed.num_segments is ", packed.num_segments,
                            ": the weights are the segments, and weight must be null");
  }
  if (k > kMaxPackedK) {
    return unsupported(operation, ": k is ", k, ": with packed weights it must be at most ", kMaxPackedK);
  }
  int64_t rows = 0;
  for (int32_t s = 0; s < packed.num_segments; ++s) {
    const PackedRows& segment = packed.segments[s];
    if (!weight_format_is_packed(segment.format)) {
      return invalid_argument(operation, ": packed.segments[", s, "].format is ", weight_format_name(segment.format),
                              ": it must be one of the block formats");
    }
    if (k % weight_block_elements(segment.format) != 0) {
      return invalid_argument(operation, ": k is ", k, ": ", weight_format_name(segment.format), " needs a multiple of ",
                              weight_block_elements(segment.format));
    }
    if (segment.rows < 0 || segment.rows > kMaxRows) {
      return invalid_argument(operation, ": packed.segments[", s, "].rows is ", segment.rows, ": it must be 0 to ", kMaxRows);
    }
    if (segment.scaling < WeightScaling::blocks || segment.scaling > WeightScaling::squares) {
      return invalid_argument(operation, ": packed.segments[", s, "].scaling is unknown: it must be blocks, rows or squares");
    }
    if (segment.scaling != WeightScaling::blocks && segment.format != WeightFormat::f8_e4m3) {
      return invalid_argument(operation, ": packed.segments[", s, "].scaling is ", weight_scaling_name(segment.scaling),
                              ": with ", weight_format_name(segment.format), " it must be blocks");
    }
    PROLOGUE_RETURN_IF_ERROR(check_packed_alignment(operation, segment.data, device));
    rows += segment.rows;
  }
  if (rows != n) return invalid_argument(operation, ": the segments have ", rows, " rows: n is ", n);
  return {};
}

Status pack_weight(const PackWeightParams& p, const Execution& execution) {
  constexpr const char* kName = "pack_weight";
  constexpr int64_t kMaxExtent = int64_t{1} << 31;
  if (execution.device != Device::cpu) {
    return unsupported("pack_weight: device is ", device_name(execution.device), ": weights are packed on the CPU only");
  }
  if (!weight_format_is_packed(p.format)) {
    return invalid_argument("pack_weight: format is ", weight_format_name(p.format), ": it must be one of the block formats");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "rows", p.rows, 0, kMaxExtent - kPackedGroupRows));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "cols", p.cols, 0, kMaxExtent));
  const int64_t elements = weight_block_elements(p.format);
  if (p.cols % elements != 0) {
    return invalid_argument("pack_weight: cols is ", p.cols, ": ", weight_format_name(p.format), " needs a multiple of ",
                            elements);
  }
  if (p.rows == 0 || p.cols == 0) return {};
  const int64_t bytes = p.rows * (p.cols / elements) * weight_block_bytes(p.format);
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("blocks", p.blocks, bytes, 1)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("packed", p.packed, packed_weight_bytes(p.format, p.rows, p.cols), 1)));
  PROLOGUE_RETURN_IF_ERROR(regions.check_all_apart());
  const int64_t num_groups = divide_up(p.rows, kPackedGroupRows);
  parallel_for(num_groups, execution.num_threads, [&](int64_t group) { pack_group(p, group); });
  return {};
}

}  // namespace prologue
