// On the device a head is cut into *units* of two vectors of V channels. One thread holds a unit: V rotary pairs (both halves in one
// thread, so that no value crosses lanes), or two vectors of the channels that are not rotated. The threads of a head are its lanes. The
// steps below work on values in registers.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/shared/head_layout.h>
#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/base/views.h>
#include <prologue/kernels/base/device/cuda_types.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

// ---- which channels a unit has ----------------------------------------------------------------------------------------------

// Says which channels a unit's two vectors start at, and which pair is its first (negative: not rotated).
struct UnitChannels {
  int a;
  int b;
  int pair;
  bool has_a;
  bool has_b;  // the channels that are not rotated may end with a single vector
};

template <int V>
__device__ inline UnitChannels channels_of_unit(int unit, const HeadLayout& layout) {
  const int rotated = layout.rotary_dim / (2 * V);
  if (unit < rotated) {
    if (layout.style == RopeStyle::neox) {
      const int a = layout.rotary_offset + unit * V;
      return {a, a + layout.rotary_dim / 2, unit * V, true, true};
    }
    const int a = layout.rotary_offset + 2 * unit * V;
    return {a, a + V, unit * V, true, true};
  }
  const auto beside = [&](int channel) { return channel < layout.rotary_offset ? channel : channel + layout.rotary_dim; };
  const int a = beside(2 * (unit - rotated) * V);
  const int b = beside((2 * (unit - rotated) + 1) * V);
  return {a, b, -1, a < layout.head_dim, b < layout.head_dim};
}

// Says where a channel of a unit is if the rotated channels and the others are in two arrays.
__device__ inline int channel_apart(const UnitChannels& place, int channel, const HeadLayout& layout) {
  if (place.pair >= 0) return channel - layout.rotary_offset;
  return channel < layout.rotary_offset ? channel : channel - layout.rotary_dim;
}

// Returns the layout of a head of which only this block of several is rotated.
__device__ inline HeadLayout one_block(const BlockLayout& layout, int block) {
  const int width = layout.rotary_dim / layout.num_blocks;
  return {layout.head_dim, width, layout.rotary_offset + block * width, layout.style};
}

// V divides the pairs of a block, so each block is a whole number of units, one block after the other.
template <int V>
__device__ inline UnitChannels channels_of_unit(int unit, const BlockLayout& layout) {
  const int rotated = layout.rotary_dim / (2 * V);
  if (layout.num_blocks == 1 || unit >= rotated) return channels_of_unit<V>(unit, static_cast<const HeadLayout&>(layout));
  const int units = rotated / layout.num_blocks, block = unit / units;
  UnitChannels place = channels_of_unit<V>(unit % units, one_block(layout, block));
  place.pair += block * units * V;
  return place;
}

// owner_of() is the inverse of channels_of_unit(): it returns which unit holds the vector that starts at `channel`, and whether that is its
// vector b.
struct VectorOwner {
  int unit;
  bool is_b;
};

template <int V>
__device__ inline VectorOwner owner_of(int channel, const HeadLayout& layout) {
  const int rotated = layout.rotary_dim / (2 * V);
  const int inside = channel - layout.rotary_offset;
  if (inside >= 0 && inside < layout.rotary_dim) {
    const int vector = inside / V;
    if (layout.style == RopeStyle::neox)
      return vector < rotated ? VectorOwner{vector, false} : VectorOwner{vector - rotated, true};
    return {vector / 2, vector % 2 != 0};
  }
  const int vector = (inside < 0 ? channel : channel - layout.rotary_dim) / V;
  return {rotated + vector / 2, vector % 2 != 0};
}

template <int V>
__device__ inline VectorOwner owner_of(int channel, const BlockLayout& layout) {
  const int inside = channel - layout.rotary_offset;
  if (layout.num_blocks == 1 || inside < 0 || inside >= layout.rotary_dim) {
    return owner_of<V>(channel, static_cast<const HeadLayout&>(layout));
  }
  const int width = layout.rotary_dim / layout.num_blocks, block = inside / width;
  VectorOwner owner = owner_of<V>(channel, one_block(layout, block));
  owner.unit += block * (width / (2 * V));
  return owner;
}

// ---- vectors in memory ------------------------------------------------------------------------------------------------------

// Holds kBytes consecutive bytes, kept in 32-bit words until they are used: 16-bit values in registers of their own would have to be
// unpacked where they arrive, and every load would be waited for.
template <int kBytes>
struct Bytes {
  static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
  uint32_t words[kWords];
};

template <int kBytes>
using VectorWord = std::conditional_t<
    kBytes == 16, uint4,
    std::conditional_t<kBytes == 8, uint2,
                       std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>>;

// kEvictFirst gives the cache the hint that the data is not read again soon.
template <int kBytes, bool kEvictFirst>
__device__ inline Bytes<kBytes> load_bytes(const void* from) {
  if constexpr (kBytes > 16) {
    const auto low = load_bytes<kBytes / 2, kEvictFirst>(from);
    const auto high = load_bytes<kBytes / 2, kEvictFirst>(static_cast<const char*>(from) + kBytes / 2);
    Bytes<kBytes> bytes;
#pragma unroll
    for (int i = 0; i < kBytes / 8; ++i) bytes.words[i] = low.words[i], bytes.words[kBytes / 8 + i] = high.words[i];
    return bytes;
  } else {
    const auto* source = static_cast<const VectorWord<kBytes>*>(from);
    const VectorWord<kBytes> word = kEvictFirst ? __ldcs(source) : *source;
    if constexpr (kBytes == 16) {
      return {{word.x, word.y, word.z, word.w}};
    } else if constexpr (kBytes == 8) {
      return {{word.x, word.y}};
    } else {
      return {{word}};
    }
  }
}

template <int kBytes, bool kEvictFirst>
__device__ inline void store_bytes(void* to, const Bytes<kBytes>& bytes) {
  if constexpr (kBytes > 16) {
    Bytes<kBytes / 2> low, high;
#pragma unroll
    for (int i = 0; i < kBytes / 8; ++i) low.words[i] = bytes.words[i], high.words[i] = bytes.words[kBytes / 8 + i];
    store_bytes<kBytes / 2, kEvictFirst>(to, low);
    store_bytes<kBytes / 2, kEvictFirst>(static_cast<char*>(to) + kBytes / 2, high);
  } else {
    using Word = VectorWord<kBytes>;
    Word word;
    if constexpr (kBytes == 16) {
      word = make_uint4(bytes.words[0], bytes.words[1], bytes.words[2], bytes.words[3]);
    } else if constexpr (kBytes == 8) {
      word = make_uint2(bytes.words[0], bytes.words[1]);
    } else {
      word = static_cast<Word>(bytes.words[0]);
    }
    if (kEvictFirst) {
      __stcs(static_cast<Word*>(to), word);
    } else {
      *static_cast<Word*>(to) = word;
    }
  }
}

// The same from and to addresses that may be aligned to fewer bytes (a power of two): in pieces of so many.
template <int kBytes, bool kEvictFirst, int kPiece>
__device__ inline Bytes<kBytes> load_pieces(const void* from) {
  if constexpr (kPiece >= kBytes || kPiece == 16) {
    return load_bytes<kBytes, kEvictFirst>(from);
  } else {
    Bytes<kBytes> bytes = Bytes<kBytes>();
#pragma unroll
    for (int at = 0; at < kBytes; at += kPiece) {
      const Bytes<kPiece> piece = load_bytes<kPiece, kEvictFirst>(static_cast<const char*>(from) + at);
      if constexpr (kPiece >= 4) {
#pragma unroll
        for (int i = 0; i < kPiece / 4; ++i) bytes.words[at / 4 + i] = piece.words[i];
      } else {
        bytes.words[at / 4] |= piece.words[0] << (at % 4 * 8);
      }
    }
    return bytes;
  }
}

template <int kBytes, bool kEvictFirst, int kPiece>
__device__ inline void store_pieces(void* to, const Bytes<kBytes>& bytes) {
  if constexpr (kPiece >= kBytes || kPiece == 16) {
    store_bytes<kBytes, kEvictFirst>(to, bytes);
  } else {
#pragma unroll
    for (int at = 0; at < kBytes; at += kPiece) {
      Bytes<kPiece> piece = Bytes<kPiece>();
      if constexpr (kPiece >= 4) {
#pragma unroll
        for (int i = 0; i < kPiece / 4; ++i) piece.words[i] = bytes.words[at / 4 + i];
      } else {
        piece.words[0] = bytes.words[at / 4] >> (at % 4 * 8);
      }
      store_bytes<kPiece, kEvictFirst>(static_cast<char*>(to) + at, piece);
    }
  }
}

// Calls f with the number of bytes that an address is aligned to, as a constant.
template <class F>
__device__ inline auto with_alignment(int alignment, const F& f) {
  switch (alignment) {
    case 16: return f(std::integral_constant<int, 16>());
    case 8: return f(std::integral_constant<int, 8>());
    case 4: return f(std::integral_constant<int, 4>());
    case 2: return f(std::integral_constant<int, 2>());
    default: return f(std::integral_constant<int, 1>());
  }
}

template <class T, int V>
using Packed = Bytes<V* static_cast<int>(sizeof(T))>;

template <class T, int V>
__device__ inline float element(const Packed<T, V>& packed, int i) {
  if constexpr (std::is_same_v<T, float>) {
    return __uint_as_float(packed.words[i]);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __uint_as_float(i % 2 == 0 ? packed.words[i / 2] << 16 : packed.words[i / 2] & 0xffff0000u);
  } else {
    const __half2 pair = *reinterpret_cast<const __half2*>(&packed.words[i / 2]);
    return i % 2 == 0 ? __low2float(pair) : __high2float(pair);
  }
}

// Returns V values, each rounded once.
template <class T, int V>
__device__ inline Packed<T, V> pack(const float* values) {
  Packed<T, V> packed;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < V; ++i) packed.words[i] = __float_as_uint(values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 2) {
      const float second = V > 1 ? values[V > 1 ? i + 1 : 0] : 0.0f;
      if constexpr (std::is_same_v<T, __half>) {
        const __half2 pair = __floats2half2_rn(values[i], second);
        packed.words[i / 2] = *reinterpret_cast<const uint32_t*>(&pair);
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], second);
        packed.words[i / 2] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
  }
  return packed;
}

template <class T, int V>
struct Unit {
  Packed<T, V> a;
  Packed<T, V> b;
};

template <bool kEvictFirst, class T, int V>
__device__ inline Unit<T, V> load_unit(const void* head, const UnitChannels& place) {
  Unit<T, V> unit = {};
  const T* from = static_cast<const T*>(head);
  if (place.has_a) unit.a = load_bytes<V* static_cast<int>(sizeof(T)), kEvictFirst>(from + place.a);
  if (place.has_b) unit.b = load_bytes<V* static_cast<int>(sizeof(T)), kEvictFirst>(from + place.b);
  return unit;
}

template <bool kEvictFirst, class T, int V>
__device__ inline void store_unit(void* head, const UnitChannels& place, const Unit<T, V>& unit) {
  T* to = static_cast<T*>(head);
  if (place.has_a) store_bytes<V* static_cast<int>(sizeof(T)), kEvictFirst>(to + place.a, unit.a);
  if (place.has_b) store_bytes<V* static_cast<int>(sizeof(T)), kEvictFirst>(to + place.b, unit.b);
}

// The same where a head may be aligned to fewer bytes than a vector has.
template <bool kEvictFirst, class T, int V>
__device__ inline Unit<T, V> load_unit(const void* head, const UnitChannels& place, int alignment) {
  constexpr int kBytes = V * static_cast<int>(sizeof(T));
  return with_alignment(alignment, [&](auto piece) {
    Unit<T, V> unit = {};
    const T* from = static_cast<const T*>(head);
    if (place.has_a) unit.a = load_pieces<kBytes, kEvictFirst, decltype(piece)::value>(from + place.a);
    if (place.has_b) unit.b = load_pieces<kBytes, kEvictFirst, decltype(piece)::value>(from + place.b);
    return unit;
  });
}

template <bool kEvictFirst, class T, int V>
__device__ inline void store_unit(void* head, const UnitChannels& place, const Unit<T, V>& unit, int alignment) {
  constexpr int kBytes = V * static_cast<int>(sizeof(T));
  with_alignment(alignment, [&](auto piece) {
    T* to = static_cast<T*>(head);
    if (place.has_a) store_pieces<kBytes, kEvictFirst, decltype(piece)::value>(to + place.a, unit.a);
    if (place.has_b) store_pieces<kBytes, kEvictFirst, decltype(piece)::value>(to + place.b, unit.b);
  });
}

// ---- values in float32 ------------------------------------------------------------------------------------------------------

// Holds a unit in float32: x[0 .. V) is vector a, x[V .. 2V) vector b.
template <int V>
struct UnitValues {
  float x[2 * V];
};

template <class T, int V>
__device__ inline UnitValues<V> widen(const Unit<T, V>& unit) {
  UnitValues<V> values;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    values.x[i] = element<T, V>(unit.a, i);
    values.x[V + i] = element<T, V>(unit.b, i);
  }
  return values;
}

template <class T, int V>
__device__ inline Unit<T, V> narrow(const UnitValues<V>& values) {
  return {pack<T, V>(values.x), pack<T, V>(values.x + V)};
}

template <int V>
__device__ inline void add(UnitValues<V>& values, const UnitValues<V>& terms) {
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) values.x[i] = add_rounded(values.x[i], terms.x[i]);
}

template <class T, int V>
__device__ inline void add_bias(UnitValues<V>& values, const Unit<T, V>& bias) {
  add<V>(values, widen<T, V>(bias));
}

// Holds cos and sin of a unit's V pairs.
template <int V>
struct UnitAngles {
  float cos[V];
  float sin[V];
};

// Loads up to 16 bytes that are read again and again.
template <int kBytes>
__device__ inline Bytes<kBytes> load_kept(const void* from) {
  if constexpr (kBytes == 16) {
    Bytes<16> bytes;
    load_kept(from, bytes.words);
    return bytes;
  } else {
    return load_bytes<kBytes, false>(from);
  }
}

// Loads from rows of any type that element() knows: kRuns runs of neighbours, `apart` columns from one run to the next.
template <int V, bool kKeep = false, int kRuns = 1, class Stored>
__device__ inline UnitAngles<V> load_angles(const Stored* cos_row, const Stored* sin_row, int apart = 0) {
  constexpr int kSize = static_cast<int>(sizeof(Stored)), kRun = V / kRuns, kEach = kRun * kSize < 16 ? kRun : 16 / kSize;
  const auto load = [](const Stored* from) {
    return kKeep ? load_kept<kEach * kSize>(from) : load_bytes<kEach * kSize, false>(from);
  };
  UnitAngles<V> angles;
#pragma unroll
  for (int i = 0; i < V; i += kEach) {
    const int column = i % kRun + i / kRun * apart;
    const Packed<Stored, kEach> cos = load(cos_row + column);
    const Packed<Stored, kEach> sin = load(sin_row + column);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      angles.cos[i + j] = element<Stored, kEach>(cos, j);
      angles.sin[i + j] = element<Stored, kEach>(sin, j);
    }
  }
  return angles;
}

// Rotates the V pairs of x[0 .. 2V), the values of a unit; `rotation(i)` is that of pair i.
template <int V, class A, class Rotation>
__device__ inline void rotate(A* x, RopeStyle style, const Rotation& rotation) {
  if (style == RopeStyle::neox) {
#pragma unroll
    for (int i = 0; i < V; ++i) rotate_pair<A>(x[i], x[V + i], rotation(i));
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) rotate_pair<A>(x[2 * i], x[2 * i + 1], rotation(i));
  }
}

template <int V>
__device__ inline void rotate(UnitValues<V>& values, const UnitAngles<V>& by, RopeStyle style) {
  rotate<V>(values.x, style, [&](int i) { return PairRotation<float>{by.cos[i], by.sin[i], by.cos[i], by.sin[i]}; });
}

template <int V>
__device__ inline void add(UnitValues<V>& values, float term) {
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) values.x[i] = add_rounded(values.x[i], term);
}

template <int V>
__device__ inline void multiply(UnitValues<V>& values, float factor) {
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) values.x[i] = multiply_rounded(values.x[i], factor);
}

template <int V>
__device__ inline void multiply(UnitValues<V>& values, const UnitValues<V>& factors) {
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) values.x[i] = multiply_rounded(values.x[i], factors.x[i]);
}

// ---- quantised vectors ------------------------------------------------------------------------------------------------------

// Magnitudes are compared as bits. NaN counts as the largest, so the result is then a NaN.
template <int V>
__device__ inline uint32_t largest_magnitude(const UnitValues<V>& values) {
  float largest[V];
#pragma unroll
  for (int i = 0; i < V; ++i) largest[i] = larger_magnitude(values.x[i], values.x[V + i]);
#pragma unroll
  for (int step = V / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; ++i) largest[i] = larger_magnitude(largest[i], largest[i + step]);
  }
  return magnitude_bits(largest[0]);
}

template <int V>
struct UnitBytes {
  Bytes<V> a;
  Bytes<V> b;
};

template <int V, class F>
__device__ inline UnitBytes<V> pack_pairs(const UnitValues<V>& values, const F& pair_to_bits) {
  UnitBytes<V> bytes = {};
#pragma unroll
  for (int i = 0; i < V; i += 2) {
    constexpr int kNext = V > 1 ? 1 : 0;
    bytes.a.words[i / 4] |= pair_to_bits(values.x[i], values.x[i + kNext]) << (i % 4 * 8);
    bytes.b.words[i / 4] |= pair_to_bits(values.x[V + i], values.x[V + i + kNext]) << (i % 4 * 8);
  }
  return bytes;
}

// Converts values that are already multiplied by the reciprocal of their scale to bytes of an 8-bit type.
template <int V>
__device__ inline UnitBytes<V> to_8_bits(const UnitValues<V>& scaled, DType type) {
  const auto fp8 = [](__nv_fp8_interpretation_t format) {
    return [format](float low, float high) {
      return static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, format));
    };
  };
  if (type == DType::fp8_e4m3) return pack_pairs<V>(scaled, fp8(__NV_E4M3));
  if (type == DType::fp8_e5m2) return pack_pairs<V>(scaled, fp8(__NV_E5M2));
  const auto code = [](float x) { return static_cast<uint32_t>(min(max(__float2int_rn(x), -127), 127)); };  // NaN becomes 0
  return pack_pairs<V>(scaled, [&](float low, float high) { return __byte_perm(code(low), code(high), 0x7740) & 0xffffu; });
}

// Converts values to bytes of an 8-bit type. With reciprocal 0 they are zeros, whatever the values are.
template <int V>
__device__ inline UnitBytes<V> quantise(UnitValues<V> values, float reciprocal, DType type) {
  multiply<V>(values, reciprocal);
  UnitBytes<V> bytes = to_8_bits<V>(values, type);
  if (reciprocal == 0.0f) bytes = UnitBytes<V>();
  return bytes;
}

template <int V>
__device__ inline void store_unit_8(void* head, const UnitChannels& place, const UnitBytes<V>& bytes) {
  char* to = static_cast<char*>(head);
  if (place.has_a) store_bytes<V, false>(to + place.a, bytes.a);
  if (place.has_b) store_bytes<V, false>(to + place.b, bytes.b);
}

template <int V>
__device__ inline void store_unit_8(void* head, const UnitChannels& place, const UnitBytes<V>& bytes, int alignment) {
  with_alignment(alignment, [&](auto piece) {
    char* to = static_cast<char*>(head);
    if (place.has_a) store_pieces<V, false, decltype(piece)::value>(to + place.a, bytes.a);
    if (place.has_b) store_pieces<V, false, decltype(piece)::value>(to + place.b, bytes.b);
  });
}

// Whether a byte of the type holds two channels of 4 bits.
__device__ inline bool is_packed(DType type) { return type == DType::int4 || type == DType::uint4; }

// Returns V / 2 bytes.
template <int V>
__device__ inline void store_unit_4(void* head, const UnitChannels& place, const UnitValues<V>& values, const AsymmetricScale& by,
                                    DType type) {
  static_assert(V >= 2);
  const int smallest = type == DType::uint4 ? 0 : -7, largest = type == DType::uint4 ? 15 : 7;
  const auto code = [&](float x) {  // NaN becomes 0
    const float steps = multiply_rounded(add_rounded(x, -by.zero_point), by.reciprocal);
    return static_cast<uint32_t>(min(max(__float2int_rn(steps), smallest), largest)) & 0xfu;
  };
  const auto pack_codes = [&](const float* x) {
    Bytes<V / 2> bytes = {};
#pragma unroll
    for (int i = 0; i < V; ++i) bytes.words[0] |= code(x[i]) << (4 * i);
    if (by.reciprocal == 0.0f) bytes = Bytes<V / 2>();
    return bytes;
  };
  char* to = static_cast<char*>(head);
  if (place.has_a) store_bytes<V / 2, false>(to + place.a / 2, pack_codes(values.x));
  if (place.has_b) store_bytes<V / 2, false>(to + place.b / 2, pack_codes(values.x + V));
}

}  // namespace prologue::cuda
