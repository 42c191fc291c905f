#include <prologue/engine/gguf/dequantize.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/internal/run.h>

namespace prologue {
namespace {

using Bytes = const uint8_t*;

float half_at(Bytes bytes) {
  Float16 half;
  std::memcpy(&half.bits, bytes, sizeof half.bits);
  return to_float(half);
}

uint32_t word_at(Bytes bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// ---- One block of each format. In blocks of 32 the low nibbles are the first 16 values, the high nibbles the last 16. ----

struct Q8_0 {  // scale | 32 x int8
  static constexpr int64_t kElements = 32, kBytes = 34;
  static void decode(Bytes block, float* out) {
    const float scale = half_at(block);
    for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
  }
};

struct Q4_0 {  // scale | 32 x 4 bits, offset 8
  static constexpr int64_t kElements = 32, kBytes = 18;
  static void decode(Bytes block, float* out) {
    const float scale = half_at(block);
    const Bytes nibbles = block + 2;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>((nibbles[i] & 15) - 8);
      out[i + 16] = scale * static_cast<float>((nibbles[i] >> 4) - 8);
    }
  }
};

struct Q4_1 {  // scale | minimum | 32 x 4 bits
  static constexpr int64_t kElements = 32, kBytes = 20;
  static void decode(Bytes block, float* out) {
    const float scale = half_at(block);
    const float minimum = half_at(block + 2);
    const Bytes nibbles = block + 4;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(nibbles[i] & 15) + minimum;
      out[i + 16] = scale * static_cast<float>(nibbles[i] >> 4) + minimum;
    }
  }
};

struct Q5_0 {  // scale | fifth bits | 32 x 4 bits, offset 16
  static constexpr int64_t kElements = 32, kBytes = 22;
  static void decode(Bytes block, float* out) {
    const float scale = half_at(block);
    const uint32_t fifth = word_at(block + 2);
    const Bytes nibbles = block + 6;
    for (int i = 0; i < 16; ++i) {
      const int low = static_cast<int>((nibbles[i] & 15u) | ((fifth >> i & 1u) << 4));
      const int high = static_cast<int>((nibbles[i] >> 4) | ((fifth >> (i + 16) & 1u) << 4));
      out[i] = scale * static_cast<float>(low - 16);
      out[i + 16] = scale * static_cast<float>(high - 16);
    }
  }
};

struct Q5_1 {  // scale | minimum | fifth bits | 32 x 4 bits
  static constexpr int64_t kElements = 32, kBytes = 24;
  static void decode(Bytes block, float* out) {
    const float scale = half_at(block);
    const float minimum = half_at(block + 2);
    const uint32_t fifth = word_at(block + 4);
    const Bytes nibbles = block + 8;
    for (int i = 0; i < 16; ++i) {
      const int low = static_cast<int>((nibbles[i] & 15u) | ((fifth >> i & 1u) << 4));
      const int high = static_cast<int>((nibbles[i] >> 4) | ((fifth >> (i + 16) & 1u) << 4));
      out[i] = scale * static_cast<float>(low) + minimum;
      out[i + 16] = scale * static_cast<float>(high) + minimum;
    }
  }
};

// Holds the 6-bit scale and minimum of each of the eight groups of 32 values in a Q4_K or Q5_K block. Groups 0..3 have theirs in the low
// six bits of bytes 0..3 and 4..7; groups 4..7 have four bits in bytes 8..11 and the upper two in the top of the former.
struct GroupScales {
  float scale[8];
  float minimum[8];

  explicit GroupScales(Bytes block) {
    const float block_scale = half_at(block);
    const float block_minimum = half_at(block + 2);
    const Bytes packed = block + 4;
    for (int i = 0; i < 4; ++i) {
      scale[i] = block_scale * static_cast<float>(packed[i] & 63);
      minimum[i] = block_minimum * static_cast<float>(packed[i + 4] & 63);
      scale[i + 4] = block_scale * static_cast<float>((packed[i + 8] & 15) | ((packed[i] >> 6) << 4));
      minimum[i + 4] = block_minimum * static_cast<float>((packed[i + 8] >> 4) | ((packed[i + 4] >> 6) << 4));
    }
  }
};

struct Q4K {  // scale | minimum | group scales | 256 x 4 bits: per 32 bytes, the low nibbles are one group, the high ones the
              // next
  static constexpr int64_t kElements = 256, kBytes = 144;
  static void decode(Bytes block, float* out) {
    const GroupScales groups(block);
    for (int pair = 0; pair < 4; ++pair) {
      const Bytes nibbles = block + 16 + 32 * pair;
      float* low = out + 64 * pair;
      float* high = low + 32;
      for (int i = 0; i < 32; ++i) {
        low[i] = groups.scale[2 * pair] * static_cast<float>(nibbles[i] & 15) - groups.minimum[2 * pair];
        high[i] = groups.scale[2 * pair + 1] * static_cast<float>(nibbles[i] >> 4) - groups.minimum[2 * pair + 1];
      }
    }
  }
};

struct Q5K {  // as Q4_K, with 32 bytes of fifth bits before the nibbles: bit g of byte i belongs to value i of group g
  static constexpr int64_t kElements = 256, kBytes = 176;
  static void decode(Bytes block, float* out) {
    const GroupScales groups(block);
    const Bytes fifth = block + 16;
    for (int pair = 0; pair < 4; ++pair) {
      const Bytes nibbles = block + 48 + 32 * pair;
      float* low = out + 64 * pair;
      float* high = low + 32;
      for (int i = 0; i < 32; ++i) {
        const int low_value = (nibbles[i] & 15) | ((fifth[i] >> (2 * pair) & 1) << 4);
        const int high_value = (nibbles[i] >> 4) | ((fifth[i] >> (2 * pair + 1) & 1) << 4);
        low[i] = groups.scale[2 * pair] * static_cast<float>(low_value) - groups.minimum[2 * pair];
        high[i] = groups.scale[2 * pair + 1] * static_cast<float>(high_value) - groups.minimum[2 * pair + 1];
      }
    }
  }
};

struct Q6K {  // 128 x 2 low nibbles | 64 x 4 upper bit pairs | 16 x int8 scale, one per 16 values | scale; offset 32
  static constexpr int64_t kElements = 256, kBytes = 210;
  static void decode(Bytes block, float* out) {
    const float block_scale = half_at(block + 208);
    float scale[16];
    for (int i = 0; i < 16; ++i) scale[i] = block_scale * static_cast<float>(static_cast<int8_t>(block[192 + i]));
    for (int half = 0; half < 2; ++half) {  // 128 values each, as four runs of 32
      for (int run = 0; run < 4; ++run) {
        const Bytes nibbles = block + 64 * half + 32 * (run & 1);
        const Bytes pairs = block + 128 + 32 * half;
        const int nibble_shift = run < 2 ? 0 : 4;
        float* values = out + 128 * half + 32 * run;
        for (int i = 0; i < 32; ++i) {
          const int value = (nibbles[i] >> nibble_shift & 15) | ((pairs[i] >> (2 * run) & 3) << 4);
          values[i] = scale[8 * half + 2 * run + i / 16] * static_cast<float>(value - 32);
        }
      }
    }
  }
};

struct Q2K {  // 16 scales (low nibbles) and minimums of 16 values each | 2 x 32 bytes of bit pairs | scale | minimum
  static constexpr int64_t kElements = 256, kBytes = 84;
  static void decode(Bytes block, float* out) {
    const float block_scale = half_at(block + 80), block_minimum = half_at(block + 82);
    for (int part = 0; part < 16; ++part) {  // part 8 h + 2 r + s is half s of run r, which is pair r of the 32 bytes of half h
      const float scale = block_scale * static_cast<float>(block[part] & 15);
      const float minimum = block_minimum * static_cast<float>(block[part] >> 4);
      const Bytes pairs = block + 16 + 32 * (part / 8) + 16 * (part % 2);
      const int shift = part % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) out[16 * part + i] = scale * static_cast<float>(pairs[i] >> shift & 3) - minimum;
    }
  }
};

struct Q3K {  // 32 bytes of third bits | 2 x 32 bytes of bit pairs | 16 scales of 6 bits | scale; offset 4, of scales 32
  static constexpr int64_t kElements = 256, kBytes = 110;
  static void decode(Bytes block, float* out) {
    const float block_scale = half_at(block + 108);
    const Bytes scales = block + 96;
    for (int part = 0; part < 16; ++part) {  // in the order of Q2_K; bit r of a byte of third bits is of run r of the first half
      const int low = part < 8 ? scales[part] & 15 : scales[part - 8] >> 4;
      const int high = scales[8 + part % 4] >> (part / 4 * 2) & 3;
      const float scale = block_scale * static_cast<float>((low | high << 4) - 32);
      const Bytes thirds = block + 16 * (part % 2), pairs = block + 32 + 32 * (part / 8) + 16 * (part % 2);
      for (int i = 0; i < 16; ++i) {
        const int value = (pairs[i] >> (part % 8 / 2 * 2) & 3) | (thirds[i] >> (part / 2) & 1) << 2;
        out[16 * part + i] = scale * static_cast<float>(value - 4);
      }
    }
  }
};

// Decodes 16 bytes, whose low nibbles are the first 16 values.
void decode_nibbles(Bytes nibbles, const int8_t (&values)[16], float scale, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(values[nibbles[i] & 15]);
    out[i + 16] = scale * static_cast<float>(values[nibbles[i] >> 4]);
  }
}

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct Iq4Nl {  // scale | 32 x 4 bits, numbers of a value each
  static constexpr int64_t kElements = 32, kBytes = 18;
  static void decode(Bytes block, float* out) { decode_nibbles(block + 2, kIq4Values, half_at(block), out); }
};

struct Iq4Xs {  // scale | upper bit pairs of 8 scales | their nibbles | 8 x 32 x 4 bits; scales have the offset 32
  static constexpr int64_t kElements = 256, kBytes = 136;
  static void decode(Bytes block, float* out) {
    const float block_scale = half_at(block);
    for (int part = 0; part < 8; ++part) {
      const int scale = (block[4 + part / 2] >> (part % 2 * 4) & 15) | (block[2 + part / 4] >> (part % 4 * 2) & 3) << 4;
      decode_nibbles(block + 8 + 16 * part, kIq4Values, block_scale * static_cast<float>(scale - 32), out + 32 * part);
    }
  }
};

struct Mxfp4 {  // exponent of the scale | 32 x 4 bits: a sign, 2 bits of exponent, 1 of mantissa
  static constexpr int64_t kElements = 32, kBytes = 17;
  static void decode(Bytes block, float* out) {
    // Twice the values, so that they are whole, with half of the scale: 2^(e - 128). The smallest two are below the normal numbers.
    constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint32_t e = block[0];
    decode_nibbles(block + 1, kDoubled, std::bit_cast<float>(e < 2 ? 0x200000u << e : (e - 1) << 23), out);
  }
};

// 4 scales, float8_e4m3fn | of each 16 values 8 bytes, whose low nibbles are the first 8. The tensor's scale is not in it.
struct Nvfp4 {
  static constexpr int64_t kElements = 64, kBytes = 36;
  static void decode(Bytes block, float* out) {
    for (int i = 0; i < 64; ++i) {
      const uint8_t both = block[4 + i / 16 * 8 + i % 8];
      out[i] = e4m3_value(block[i / 16]) * e2m1_value(i % 16 < 8 ? both & 15 : both >> 4);
    }
  }
};

// Scale of the tensor (float32) | 16 scales | of each 32 values 16 bytes, whose low nibbles are the first 16.
struct Nvfp4Blocks {
  static constexpr int64_t kElements = 256, kBytes = 148;
  static void decode(Bytes block, float* out) {
    float of_tensor;
    std::memcpy(&of_tensor, block, sizeof of_tensor);
    for (int part = 0; part < 16; ++part) {
      const float scale = e4m3_value(block[4 + part]) * of_tensor;
      const Bytes bytes = block + 20 + part / 2 * 16;
      for (int i = 0; i < 16; ++i) out[16 * part + i] = scale * e2m1_value(part % 2 == 0 ? bytes[i] & 15 : bytes[i] >> 4);
    }
  }
};

// ---- Many blocks, to each output type. ----

using Decode = void (*)(Bytes blocks, int64_t num_blocks, void* out);

template <class Block, class Out>
void decode_blocks(Bytes blocks, int64_t num_blocks, void* out) {
  Out* values = static_cast<Out*>(out);
  for (int64_t b = 0; b < num_blocks; ++b, blocks += Block::kBytes, values += Block::kElements) {
    if constexpr (std::is_same_v<Out, float>) {
      Block::decode(blocks, values);
    } else {
      float decoded[Block::kElements];
      Block::decode(blocks, decoded);
      for (int64_t i = 0; i < Block::kElements; ++i) values[i] = from_float<Out>(decoded[i]);
    }
  }
}

template <bool FLOAT>
struct Bytes128 {  // scale (float32) | 128 x float8_e4m3fn or int8
  static constexpr int64_t kElements = 128, kBytes = 132;
  static void decode(Bytes block, float* out) {
    float scale;
    std::memcpy(&scale, block, sizeof scale);
    for (int i = 0; i < 128; ++i) {
      const uint8_t code = block[4 + i];
      out[i] = scale * (FLOAT ? e4m3_value(code) : static_cast<float>(static_cast<int8_t>(code)));
    }
  }
};

template <int64_t ELEMENTS>
struct Int4 {  // scale (float16) | zero point | 4 bits each: of each 32 values the low nibbles are the first 16
  static constexpr int64_t kElements = ELEMENTS, kBytes = 2 + 1 + ELEMENTS / 2;
  static void decode(Bytes block, float* out) {
    const float scale = half_at(block), minimum = scale * static_cast<float>(block[2]);
    for (int64_t run = 0; run < ELEMENTS / 32; ++run) {
      for (int64_t i = 0; i < 16; ++i) {
        const uint8_t both = block[3 + 16 * run + i];
        out[32 * run + i] = scale * static_cast<float>(both & 15) - minimum;
        out[32 * run + i + 16] = scale * static_cast<float>(both >> 4) - minimum;
      }
    }
  }
};

template <class In, class Out>
void convert(Bytes values, int64_t count, void* out) {
  if constexpr (std::is_same_v<In, Out>) {
    std::memcpy(out, values, static_cast<size_t>(count) * sizeof(Out));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      In value;
      std::memcpy(&value, values + i * static_cast<int64_t>(sizeof value), sizeof value);
      if constexpr (std::is_same_v<In, double>) {
        static_cast<Out*>(out)[i] = from_float<Out>(static_cast<float>(value));
      } else {
        static_cast<Out*>(out)[i] = from_float<Out>(to_float(value));
      }
    }
  }
}

struct Instance {
  GgmlType type;
  Decode to_f32, to_f16, to_bf16;
};

template <class Block>
constexpr Instance blocks_of(GgmlType type) {
  return {type, decode_blocks<Block, float>, decode_blocks<Block, Float16>, decode_blocks<Block, BFloat16>};
}
template <class In>
constexpr Instance plain(GgmlType type) {
  return {type, convert<In, float>, convert<In, Float16>, convert<In, BFloat16>};
}

constexpr Instance kInstances[] = {
    plain<float>(GgmlType::f32),
    plain<Float16>(GgmlType::f16),
    plain<BFloat16>(GgmlType::bf16),
    plain<double>(GgmlType::f64),
    blocks_of<Q8_0>(GgmlType::q8_0),
    blocks_of<Q4_0>(GgmlType::q4_0),
    blocks_of<Q4_1>(GgmlType::q4_1),
    blocks_of<Q5_0>(GgmlType::q5_0),
    blocks_of<Q5_1>(GgmlType::q5_1),
    blocks_of<Q4K>(GgmlType::q4_k),
    blocks_of<Q5K>(GgmlType::q5_k),
    blocks_of<Q6K>(GgmlType::q6_k),
    blocks_of<Q2K>(GgmlType::q2_k),
    blocks_of<Q3K>(GgmlType::q3_k),
    blocks_of<Iq4Nl>(GgmlType::iq4_nl),
    blocks_of<Iq4Xs>(GgmlType::iq4_xs),
    blocks_of<Mxfp4>(GgmlType::mxfp4),
    blocks_of<Nvfp4>(GgmlType::nvfp4),
    blocks_of<Bytes128<true>>(GgmlType::f8_e4m3),
    blocks_of<Bytes128<false>>(GgmlType::i8),
    blocks_of<Int4<32>>(GgmlType::i4_32),
    blocks_of<Int4<64>>(GgmlType::i4_64),
    blocks_of<Int4<128>>(GgmlType::i4_128),
    blocks_of<Nvfp4Blocks>(GgmlType::nvfp4_blocks),
};

Decode find_decode(GgmlType type, DType out_type) {
  for (const Instance& instance : kInstances) {
    if (instance.type != type) continue;
    return out_type == DType::f32 ? instance.to_f32 : out_type == DType::f16 ? instance.to_f16 : instance.to_bf16;
  }
  return nullptr;
}

}  // namespace

float e4m3_value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  // Bits of a float32: 120 more is its exponent. Without an exponent, a value is a multiple of 2^-9.
  const float magnitude =
      exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                    : std::bit_cast<float>(static_cast<uint32_t>(exponent + 120) << 23 | static_cast<uint32_t>(mantissa) << 20);
  return code < 128 ? magnitude : -magnitude;
}

// A sign, two bits of exponent, one of mantissa.
float e2m1_value(int code) {
  constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return code > 8 ? -kValues[code - 8] : code == 8 ? 0.0f : kValues[code];
}

Status dequantize_rows(GgmlType type, const void* src, int64_t num_rows, int64_t row_elements, DType out_type, void* out,
                       int num_threads) {
  const GgmlTypeInfo* info = ggml_type_info(type);
  if (info == nullptr) {
    return unsupported("dequantize_rows: type is ", ggml_type_name(type), ": supported are ", supported_ggml_types());
  }
  if (!dtype_is_activation(out_type))
    return invalid_argument("dequantize_rows: out_type is ", dtype_name(out_type), ": it must be float32, float16 or bfloat16");
  if (num_rows < 0) return invalid_argument("dequantize_rows: num_rows is ", num_rows, ": must not be negative");
  if (row_elements < 0 || row_elements % info->block_elements != 0) {
    return invalid_argument("dequantize_rows: row_elements is ", row_elements, ": ", info->name, " needs a multiple of ",
                            info->block_elements);
  }
  if (num_threads < 1) return invalid_argument("dequantize_rows: num_threads is ", num_threads, ": must be at least 1");
  if (row_elements > 0 && num_rows > std::numeric_limits<int64_t>::max() / 4 / row_elements) {
    return invalid_argument("dequantize_rows: ", num_rows, " rows of ", row_elements, " elements overflow 64 bits");
  }
  if (num_rows * row_elements == 0) return ok_status();
  if (src == nullptr) return invalid_argument("dequantize_rows: src is null");
  if (out == nullptr) return invalid_argument("dequantize_rows: out is null");

  // Rows are whole blocks without padding, so the tensor is one array of blocks. It is divided between threads by blocks, not by rows,
  // so that a tensor with one row is divided too.
  const Decode decode = find_decode(type, out_type);
  const int64_t num_blocks = num_rows * row_elements / info->block_elements;
  const int64_t piece_blocks = 32768 / info->block_elements;
  const int64_t num_pieces = divide_up(num_blocks, piece_blocks);
  const int64_t out_block_bytes = info->block_elements * dtype_size(out_type);
  parallel_for(num_pieces, num_threads, [&](int64_t piece) {
    const int64_t first = piece * piece_blocks;
    decode(static_cast<Bytes>(src) + first * info->block_bytes, std::min(piece_blocks, num_blocks - first),
           static_cast<uint8_t*>(out) + first * out_block_bytes);
  });
  return ok_status();
}

}  // namespace prologue
