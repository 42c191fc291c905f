#include <prologue/kernels/gemm/quantized_cpu.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/shared/quantize.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kGroupRows = kPackedGroupRows;
constexpr int64_t kScaleElements = weight_block_elements(WeightFormat::f8_e4m3);  // that a scale of x in e4m3 is stored for

// A second thread costs so much, in multiply-adds and in values to quantise.
constexpr int64_t kSerialWork = int64_t{1} << 18;
constexpr int64_t kSerialValues = int64_t{1} << 14;
constexpr int64_t kPartsPerThread = 4;  // other threads take the parts of one that does not run

// Holds a quantised block of x.
template <int64_t BLOCK>
struct QuantizedBlock {
  static constexpr int64_t kSum = BLOCK == 32 ? 32 : 16;
  int8_t codes[BLOCK];
  int32_t sums[BLOCK / kSum];  // of adjacent codes
  float scale;
};

// Adds 8 adjacent codes: as bytes code + 128, then in four fields of 16 bits.
int32_t sum_of_eight(const int8_t* codes) {
  constexpr uint64_t kEvenBytes = 0x00ff00ff00ff00ff;
  uint64_t bytes;
  std::memcpy(&bytes, codes, sizeof bytes);
  bytes ^= 0x8080808080808080;
  const uint64_t pairs = (bytes & kEvenBytes) + (bytes >> 8 & kEvenBytes);
  return static_cast<int32_t>(pairs * 0x0001000100010001 >> 48) - 8 * 128;
}

// Quantises one block of x. Below 2^-100 the reciprocal of the scale would not be a float.
template <int64_t BLOCK>
void quantize_block(const float* x, QuantizedBlock<BLOCK>& block) {
  constexpr int32_t kInfinity = 0x7f800000, kSmallest = (127 - 100) << 23;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum's last bits are the integer
  const auto bits_of = [](float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  };
  int32_t largest_bits = 0;
  for (int64_t i = 0; i < BLOCK; ++i) largest_bits = std::max(largest_bits, bits_of(x[i]) & 0x7fffffff);
  if (largest_bits >= kInfinity) {
    block = {};
    block.scale = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  const bool is_zero = largest_bits < kSmallest;
  const float to_code = is_zero ? 0.0f : 127.0f / largest;
  block.scale = is_zero ? 0.0f : largest / 127.0f;
  for (int64_t first = 0; first < BLOCK; first += 32) {
    int32_t sum = 0;
    for (int64_t i = first; i < first + 32; ++i) {
      const int32_t code = bits_of(x[i] * to_code + kRound) - bits_of(kRound);
      block.codes[i] = static_cast<int8_t>(code);
      sum += code;
    }
    if constexpr (BLOCK == 32) {
      block.sums[0] = sum;
    } else {
      const int32_t first_sum = sum_of_eight(block.codes + first) + sum_of_eight(block.codes + first + 8);
      block.sums[first / 16] = first_sum;
      block.sums[first / 16 + 1] = sum - first_sum;
    }
  }
}

// Says where a row of x is: row `index` of a tile of `height` rows, of which the first one is `first`.
struct TileRow {
  int64_t first, height, index;
};
TileRow tile_row(int64_t row, int64_t num_rows) {
  const int64_t first = row - row % kMaxTileRows;
  return {first, std::min(kMaxTileRows, num_rows - first), row - first};
}

template <class T, int64_t BLOCK>
void quantize_row(const T* x, const TileRow& row, const QuantizedRows& rows) {
  const int64_t k = rows.k, height = row.height;
  int8_t* const codes = rows.codes + row.first * k + 4 * row.index;
  float* const scales = rows.scales + row.first * (k / BLOCK) + row.index;
  for (int64_t i = 0; i < k; i += BLOCK) {
    QuantizedBlock<BLOCK> block;
    if constexpr (std::is_same_v<T, float>) {
      quantize_block<BLOCK>(x + i, block);
    } else {
      float values[BLOCK];
      for (int64_t j = 0; j < BLOCK; j += 8) widen8(x + i + j, values + j);
      quantize_block<BLOCK>(values, block);
    }
    for (int64_t j = 0; j < BLOCK; j += 4) std::memcpy(codes + (i + j) * height, block.codes + j, 4);
    scales[i / BLOCK * height] = block.scale;
    if constexpr (BLOCK == 32) {
      rows.sums[row.first * (k / 32) + i / 32 * height + row.index] = block.sums[0];
    } else {
      int16_t* const sums = rows.sums_of_16 + row.first * (k / 16) + i / 16 * height + 2 * row.index;
      for (int64_t j = 0; j < BLOCK / 16; j += 2) {
        for (int64_t one = 0; one < 2; ++one) sums[j * height + one] = static_cast<int16_t>(block.sums[j + one]);
      }
    }
  }
}

// Stores 8 values from x[i] on of a row.
void store_values(const float (&values)[8], int64_t i, const TileRow& row, const QuantizedRows& rows) {
  float* const to = rows.values + row.first * rows.k + i * row.height + row.index;
  for (int64_t j = 0; j < 8; ++j) to[j * row.height] = values[j];
}

template <class T>
void widen_row(const T* x, const TileRow& row, const QuantizedRows& rows) {
  for (int64_t i = 0; i < rows.k; i += 8) {
    float values[8];
    widen8(x + i, values);
    store_values(values, i, row, rows);
  }
}

// Quantises a row to e4m3, in groups of `group` elements: the codes as the numbers that they stand for, and a scale for each 128 of them.
template <class T>
void quantize_row_e4m3(const T* x, const TileRow& row, int64_t group, const QuantizedRows& rows) {
  float* const scales = rows.scales + row.first * (rows.k / kScaleElements) + row.index;
  for (int64_t first = 0; first < rows.k; first += group) {
    float values[8];
    uint32_t largest = 0;
    for (int64_t i = first; i < first + group; i += 8) {
      widen8(x + i, values);
      for (const float value : values) largest = std::max(largest, magnitude_bits(value));
    }
    const HeadScale scale = computed_scale(largest, kv_largest(DType::fp8_e4m3));
    for (int64_t i = first; i < first + group; i += 8) {
      widen8(x + i, values);
      for (float& value : values) value = from_fp8_e4m3(quantize(value, scale.reciprocal, DType::fp8_e4m3));
      store_values(values, i, row, rows);
    }
    for (int64_t i = first; i < first + group; i += kScaleElements) scales[i / kScaleElements * row.height] = scale.scale;
  }
}

// Says in which form x is multiplied by a segment.
enum class XForm { as_it_is, blocks_of_32, blocks_of_256, e4m3_rows, e4m3_blocks };
constexpr int kNumXForms = 5;

XForm form_of_x(const GemmParams& p, const PackedRows& segment) {
  if (p.quantize_x == DType::fp8_e4m3) {
    return segment.scaling == WeightScaling::rows ? XForm::e4m3_rows : XForm::e4m3_blocks;
  }
  const int64_t block = x_block_elements(segment.format);
  return block == 1 ? XForm::as_it_is : block == 32 ? XForm::blocks_of_32 : XForm::blocks_of_256;
}

template <class T>
void quantize_rows(const GemmParams& p, int64_t first, int64_t count, XForm form, const QuantizedRows& rows,
                   int64_t num_threads) {
  const T* x = static_cast<const T*>(p.x) + first * p.x_stride;
  parallel_for(count, count * p.k < kSerialValues ? 1 : num_threads, [&](int64_t i) {
    const T* const from = x + i * p.x_stride;
    const TileRow row = tile_row(i, count);
    switch (form) {
      case XForm::as_it_is: return widen_row<T>(from, row, rows);
      case XForm::blocks_of_32: return quantize_row<T, 32>(from, row, rows);
      case XForm::blocks_of_256: return quantize_row<T, 256>(from, row, rows);
      case XForm::e4m3_rows: return quantize_row_e4m3<T>(from, row, p.k, rows);
      case XForm::e4m3_blocks: return quantize_row_e4m3<T>(from, row, kScaleElements, rows);
    }
  });
}

// Holds rows of x in each form that the weights need.
struct Operand {
  QuantizedRows rows[kNumXForms];
  int64_t num_rows = 0;  // that the scratch has room for

  const QuantizedRows& of(XForm form) const { return rows[static_cast<int>(form)]; }
};

constexpr int64_t bytes_of_row(int64_t k, XForm form) {
  switch (form) {
    case XForm::as_it_is: return k * 4;
    case XForm::blocks_of_32: return k + k / 32 * 4 + k / 32 * 4;
    case XForm::blocks_of_256: return k + k / 256 * 4 + k / 16 * 2;
    case XForm::e4m3_rows:
    case XForm::e4m3_blocks: break;
  }
  return k * 4 + k / kScaleElements * 4;
}
static_assert(bytes_of_row(kMaxQuantizedK, XForm::as_it_is) + bytes_of_row(kMaxQuantizedK, XForm::blocks_of_32) +
                  bytes_of_row(kMaxQuantizedK, XForm::blocks_of_256) <=
              kQuantizedScratchBytes);
static_assert(2 * bytes_of_row(kMaxQuantizedK, XForm::e4m3_rows) <= kQuantizedScratchBytes);

Operand place_operand(const GemmParams& p, void* scratch) {
  bool needs[kNumXForms] = {};
  for (int32_t s = 0; s < p.packed.num_segments; ++s) needs[static_cast<int>(form_of_x(p, p.packed.segments[s]))] = true;
  int64_t row_bytes = 0;
  for (int i = 0; i < kNumXForms; ++i) row_bytes += needs[i] ? bytes_of_row(p.k, static_cast<XForm>(i)) : 0;
  Operand operand;
  operand.num_rows = std::min(p.m, std::max(int64_t{1}, kQuantizedRowsBytes / row_bytes));
  if (operand.num_rows < p.m) operand.num_rows -= operand.num_rows > kMaxTileRows ? operand.num_rows % kMaxTileRows : 0;
  auto* next = static_cast<unsigned char*>(scratch);
  const auto take = [&](auto*& array, int64_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(next);
    next += count * static_cast<int64_t>(sizeof *array);
  };
  for (int i = 0; i < kNumXForms; ++i) {
    if (!needs[i]) continue;
    const auto form = static_cast<XForm>(i);
    QuantizedRows& rows = operand.rows[i];
    rows.k = p.k;
    if (form == XForm::blocks_of_32 || form == XForm::blocks_of_256) {
      const bool of_32 = form == XForm::blocks_of_32;
      take(rows.scales, operand.num_rows * (p.k / (of_32 ? 32 : 256)));
      if (of_32) take(rows.sums, operand.num_rows * (p.k / 32));
      if (!of_32) take(rows.sums_of_16, operand.num_rows * (p.k / 16));
      take(rows.codes, operand.num_rows * p.k);
      continue;
    }
    take(rows.values, operand.num_rows * p.k);
    if (form != XForm::as_it_is) take(rows.scales, operand.num_rows * (p.k / kScaleElements));
  }
  return operand;
}

// Computes y[rows, columns] = round(sums + bias); sums [rows, 16].
template <class T, class Y>
void store_sums(const GemmParams& p, int64_t row, int64_t rows, int64_t column, int64_t columns, float* sums) {
  const T* bias = static_cast<const T*>(p.bias);
  for (int64_t r = 0; r < rows; ++r, sums += kGroupRows) {
    if (bias != nullptr) {
      for (int64_t n = 0; n < columns; ++n) sums[n] += to_float(bias[column + n]);
    }
    narrow(sums, columns, static_cast<Y*>(p.y) + (row + r) * p.y_stride + column);
  }
}

// Computes columns of y from one group of weights, for `count` rows from row `first` on.
template <class T>
void multiply_group(const GemmParams& p, const QuantizedKernels& kernels, const Operand& operand, const PackedRows& weights,
                    int64_t group, int64_t column, int64_t first, int64_t count) {
  const auto& products =
      p.quantize_x == DType::fp8_e4m3 ? kernels.float8_products : kernels.products[static_cast<int64_t>(weights.format) - 1];
  const QuantizedRows& x = operand.of(form_of_x(p, weights));
  const int64_t group_bytes = packed_weight_bytes(weights.format, kGroupRows, p.k);
  const auto* packed = static_cast<const uint8_t*>(weights.data) + group * group_bytes;
  const int64_t columns = std::min(kGroupRows, weights.rows - group * kGroupRows);
  for (int64_t row = 0; row < count; row += kMaxTileRows) {
    const int64_t height = std::min(kMaxTileRows, count - row);
    alignas(64) float sums[kMaxTileRows * kGroupRows];
    products[height - 1](packed, x, row, sums);
    if (p.y_dtype == p.dtype) {
      store_sums<T, T>(p, first + row, height, column, columns, sums);
    } else {
      store_sums<T, float>(p, first + row, height, column, columns, sums);
    }
  }
}

template <class T>
void run(const GemmParams& p, const QuantizedKernels& kernels, void* scratch, int64_t num_threads) {
  const Operand operand = place_operand(p, scratch);
  int64_t num_groups = 0;
  for (int32_t s = 0; s < p.packed.num_segments; ++s) num_groups += divide_up(p.packed.segments[s].rows, kGroupRows);
  for (int64_t first = 0; first < p.m; first += operand.num_rows) {
    const int64_t count = std::min(operand.num_rows, p.m - first);
    for (int i = 0; i < kNumXForms; ++i) {
      if (operand.rows[i].k > 0) quantize_rows<T>(p, first, count, static_cast<XForm>(i), operand.rows[i], num_threads);
    }
    const int64_t threads = count * num_groups * kGroupRows * p.k < kSerialWork ? 1 : num_threads;
    const int64_t parts = threads > 1 ? std::min(threads * kPartsPerThread, num_groups) : 1;
    parallel_for(parts, threads, [&](int64_t part) {
      const int64_t begin = num_groups * part / parts, end = num_groups * (part + 1) / parts;
      int64_t group = 0, column = 0;  // where the segment begins
      for (int32_t s = 0; s < p.packed.num_segments; ++s) {
        const PackedRows& weights = p.packed.segments[s];
        const int64_t groups = divide_up(weights.rows, kGroupRows);
        for (int64_t i = std::max(begin, group); i < std::min(end, group + groups); ++i) {
          multiply_group<T>(p, kernels, operand, weights, i - group, column + (i - group) * kGroupRows, first, count);
        }
        group += groups;
        column += weights.rows;
      }
    });
  }
}

}  // namespace

const QuantizedKernels& fastest_kernels() {
  if (const QuantizedKernels* kernels = avx512_kernels()) return *kernels;
  if (const QuantizedKernels* kernels = avx2_kernels()) return *kernels;
  return kScalarKernels;
}

void quantized_gemm(const GemmParams& params, const QuantizedKernels& kernels, void* scratch, int64_t num_threads) {
  with_host_type(params.dtype, [&](auto type) { run<decltype(type)>(params, kernels, scratch, num_threads); });
}

}  // namespace prologue::cpu
