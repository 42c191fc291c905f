// The same product is computed by one of two loop nests, both without any allocation. Which one runs depends only on M.
//
//   few rows:  dot products along k. Limited by memory: every weight is read once, in memory order, and used for up to kDotRows rows of
//              x while it is in a register.
//   many rows: outer products. Limited by arithmetic: 32 weight rows (2 registers) at a time are transposed and widened into the
//              context's scratch, so that the inner loop is one broadcast of x and two multiply-adds per row and k.
//
// In both, an element's additions come in an order that depends only on k: not on the number of threads, nor on where the element is in y.
// The two orders differ, except for a batch-invariant product, for which both use the same one: k is cut into blocks as for many rows, and
// within a block every kWidth-th product goes into the same partial sum, as for few rows.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/lanes.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/gemm/quantized_cpu.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kWidth = Lanes::kWidth;
constexpr bool kManyRegisters = Lanes::kRegisters >= 32;

// From this many rows on, transposing the weights pays (measured: gemm_bench).
constexpr int64_t kManyRows = 64;

// Few rows use a tile of kDotRows x 4 running sums, in blocks of kDotColumns outputs whose weights stay in the L2 cache.
constexpr int64_t kDotRows = kManyRegisters ? 6 : 2;
constexpr int64_t kDotColumns = 48;
constexpr int64_t kPrefetchBytes = 8192;

// Many rows use a tile of kOuterRows x kOuterColumns running sums. k and m are in blocks, so that the scratch has a fixed size.
constexpr int64_t kOuterRows = kManyRegisters ? 12 : 6;
constexpr int64_t kOuterColumns = 2 * kWidth;
constexpr int64_t kBlockK = 768;
constexpr int64_t kBlockRows = 48 * kOuterRows;

// Holds one thread's scratch for many rows.
struct alignas(64) Scratch {
  float weight[kBlockK * kOuterColumns];   // [k, column]
  float x[kOuterRows * kBlockK];           // rows widened from 16 bits
  float sums[kBlockRows * kOuterColumns];  // of the blocks of k so far
};

class CpuGemmContext final : public GemmContext {
 public:
  CpuGemmContext(Buffer scratch, int64_t num_threads, Buffer quantized, const QuantizedKernels& kernels)
      : GemmContext(Device::cpu),
        scratch_(std::move(scratch)),
        num_threads_(num_threads),
        quantized_(std::move(quantized)),
        kernels_(kernels) {}
  Scratch* scratch() const { return scratch_.as<Scratch>(); }  // [num_threads]
  int64_t num_threads() const { return num_threads_; }
  void* quantized_scratch() const { return quantized_.data(); }
  const QuantizedKernels& kernels() const { return kernels_; }

 private:
  Buffer scratch_;
  int64_t num_threads_;
  Buffer quantized_;
  const QuantizedKernels& kernels_;
};

// Returns part i of `count` items that are split into `parts` as evenly as possible.
struct Range {
  int64_t begin;
  int64_t end;
};
Range part(int64_t count, int64_t parts, int64_t i) { return {count * i / parts, count * (i + 1) / parts}; }

// Computes y[rows, columns] = round(sums + bias), for a block of y whose sums have row stride `sums_stride`. The sums are overwritten.
template <class T, class Y>
void store_block(const GemmParams& p, Range rows, Range columns, float* sums, int64_t sums_stride) {
  const int64_t count = columns.end - columns.begin;
  const T* bias = static_cast<const T*>(p.bias);
  for (int64_t m = rows.begin; m < rows.end; ++m, sums += sums_stride) {
    if (bias != nullptr) {
      for (int64_t n = 0; n < count; ++n) sums[n] += to_float(bias[columns.begin + n]);
    }
    narrow(sums, count, static_cast<Y*>(p.y) + m * p.y_stride + columns.begin);
  }
}

template <class T>
void store_block(const GemmParams& p, Range rows, Range columns, float* sums, int64_t sums_stride) {
  if (p.y_dtype == p.dtype) return store_block<T, T>(p, rows, columns, sums, sums_stride);
  return store_block<T, float>(p, rows, columns, sums, sums_stride);
}

// Computes sums[m * kDotColumns + n] = dot(x row m, weight row n) for ROWS rows of x and 4 rows of weights: the sum of those of all blocks
// of k.
template <class T, int ROWS>
void dot_tile(const T* x, int64_t x_stride, const T* const (&weight)[4], int64_t k, int64_t num_blocks, float* sums) {
  // The rows of a tile are adjacent in memory: while one tile is worked on, the next comes from memory to the L2 cache, in order.
  uintptr_t ahead =
      reinterpret_cast<uintptr_t>(weight[0]) + std::max<uintptr_t>(4 * static_cast<uintptr_t>(k) * sizeof(T), kPrefetchBytes);
  for (int64_t b = 0; b < num_blocks; ++b) {
    const Range block = part(k, num_blocks, b);
    Lanes acc[ROWS][4];
    for (auto& row : acc) {
      for (Lanes& lanes : row) lanes = Lanes::zero();
    }
    int64_t i = block.begin;
    for (; i + kWidth <= block.end; i += kWidth) {
      for (size_t line = 0; line < 4 * kWidth * sizeof(T); line += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(ahead + line), 0, 2);
      ahead += 4 * kWidth * sizeof(T);
      const Lanes w[4] = {Lanes::load(weight[0] + i), Lanes::load(weight[1] + i), Lanes::load(weight[2] + i),
                          Lanes::load(weight[3] + i)};
      for (int m = 0; m < ROWS; ++m) {
        const Lanes v = Lanes::load(x + m * x_stride + i);
        for (int n = 0; n < 4; ++n) acc[m][n] = multiply_add(v, w[n], acc[m][n]);
      }
    }
    if (i < block.end) {
      const int64_t rest = block.end - i;
      const Lanes w[4] = {load_partial(weight[0] + i, rest), load_partial(weight[1] + i, rest), load_partial(weight[2] + i, rest),
                          load_partial(weight[3] + i, rest)};
      for (int m = 0; m < ROWS; ++m) {
        const Lanes v = load_partial(x + m * x_stride + i, rest);
        for (int n = 0; n < 4; ++n) acc[m][n] = multiply_add(v, w[n], acc[m][n]);
      }
    }
    for (int m = 0; m < ROWS; ++m) {
      float* const row = sums + m * kDotColumns;
      if (b == 0) {
        sum_lanes_of_four(acc[m], row);
      } else {
        float block_sums[4];
        sum_lanes_of_four(acc[m], block_sums);
        for (int n = 0; n < 4; ++n) row[n] += block_sums[n];
      }
    }
  }
}

// Adds up every `step`-th product of a block of k, from `first` on: x rows at x + m * x_stride, weights as Scratch holds them.
template <int ROWS>
void outer_sums(const float* x, int64_t x_stride, const float* weight, int64_t k, int64_t first, int64_t step,
                Lanes (&acc)[ROWS][2]) {
  for (auto& row : acc) row[0] = row[1] = Lanes::zero();
  for (int64_t i = first; i < k; i += step) {
    const Lanes w[2] = {Lanes::load(weight + i * kOuterColumns), Lanes::load(weight + i * kOuterColumns + kWidth)};
    for (int m = 0; m < ROWS; ++m) {
      const Lanes v = Lanes::broadcast(x[m * x_stride + i]);
      acc[m][0] = multiply_add(v, w[0], acc[m][0]);
      acc[m][1] = multiply_add(v, w[1], acc[m][1]);
    }
  }
}

// Computes sums[m, column] of one block of k.
template <int ROWS>
void outer_tile(const float* x, int64_t x_stride, const float* weight, int64_t k, float* sums) {
  Lanes acc[ROWS][2];
  outer_sums<ROWS>(x, x_stride, weight, k, 0, 1, acc);
  for (int m = 0; m < ROWS; ++m) {
    acc[m][0].store(sums + m * kOuterColumns);
    acc[m][1].store(sums + m * kOuterColumns + kWidth);
  }
}

// Computes the same sums, rounded as dot_tile rounds them: partial sum i is what lane i of dot_tile's sums holds.
template <int ROWS>
void outer_tile_of_dots(const float* x, int64_t x_stride, const float* weight, int64_t k, float* sums) {
  Lanes parts[ROWS][2][kWidth];
  for (int64_t i = 0; i < kWidth; ++i) {
    Lanes acc[ROWS][2];
    outer_sums<ROWS>(x, x_stride, weight, k, i, kWidth, acc);
    const bool partial = k % kWidth != 0 && i >= k % kWidth;  // dot_tile adds a product of zeros: -0 becomes 0
    for (int m = 0; m < ROWS; ++m) {
      for (int half = 0; half < 2; ++half) {
        parts[m][half][i] = partial ? multiply_add(Lanes::zero(), Lanes::zero(), acc[m][half]) : acc[m][half];
      }
    }
  }
  for (int m = 0; m < ROWS; ++m) {
    for (int half = 0; half < 2; ++half) sum_like_lanes(parts[m][half]).store(sums + m * kOuterColumns + half * kWidth);
  }
}

// The tables have the tiles of 1, 2, ... rows.
template <class T, size_t... I>
constexpr auto dot_tiles(std::index_sequence<I...>) {
  return std::array{&dot_tile<T, static_cast<int>(I) + 1>...};
}
template <size_t... I>
constexpr auto outer_tiles(std::index_sequence<I...>) {
  return std::array{&outer_tile<static_cast<int>(I) + 1>...};
}
template <size_t... I>
constexpr auto outer_tiles_of_dots(std::index_sequence<I...>) {
  return std::array{&outer_tile_of_dots<static_cast<int>(I) + 1>...};
}

template <class T>
void few_rows(const GemmParams& p, Range columns) {
  static constexpr auto kTiles = dot_tiles<T>(std::make_index_sequence<kDotRows>());
  const T* x = static_cast<const T*>(p.x);
  const T* weight = static_cast<const T*>(p.weight);
  const int64_t num_tiles = divide_up(p.m, kDotRows);
  const int64_t num_blocks = p.batch_invariant ? std::max<int64_t>(1, divide_up(p.k, kBlockK)) : 1;
  float sums[kDotRows * kDotColumns];
  for (int64_t n = columns.begin; n < columns.end; n += kDotColumns) {
    const Range block{n, std::min(n + kDotColumns, columns.end)};
    for (int64_t t = 0; t < num_tiles; ++t) {
      const Range rows = part(p.m, num_tiles, t);
      const auto tile = kTiles[static_cast<size_t>(rows.end - rows.begin - 1)];
      for (int64_t i = block.begin; i < block.end; i += 4) {
        const auto row = [&](int64_t j) {
          return weight + std::min(i + j, p.n - 1) * p.k;
        };  // the last again where there are no more
        tile(x + rows.begin * p.x_stride, p.x_stride, {row(0), row(1), row(2), row(3)}, p.k, num_blocks,
             sums + (i - block.begin));
      }
      store_block<T>(p, rows, block, sums, kDotColumns);
    }
  }
}

// Transposes 4 x 4 floats, rows `stride` apart, into rows kOuterColumns apart.
void transpose_4x4(const float* source, int64_t stride, float* target) {
  using Quad = float __attribute__((vector_size(16)));
  Quad row[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&row[i], source + i * stride, sizeof row[i]);
  const Quad low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5),
             high01 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
  const Quad low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5),
             high23 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
  const Quad column[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5), __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                          __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                          __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) std::memcpy(target + i * kOuterColumns, &column[i], sizeof column[i]);
}

// Sets Scratch::weight to the transpose of weight[columns, k of the block], zeros where there are no more columns; rows up to the next
// multiple of kWidth are written.
template <class T>
void transpose_weights(const GemmParams& p, Range columns, Range block, float* transposed) {
  static_assert(kBlockK % kWidth == 0);
  for (int64_t n = 0; n < kOuterColumns; n += kWidth) {
    for (int64_t k = block.begin; k < block.end; k += kWidth) {
      const int64_t length = std::min(kWidth, block.end - k);
      float square[kWidth][kWidth];
      for (int64_t r = 0; r < kWidth; ++r) {
        const int64_t column = columns.begin + n + r;
        const T* source = static_cast<const T*>(p.weight) + column * p.k + k;
        const Lanes row = column >= columns.end ? Lanes::zero()
                          : length == kWidth    ? Lanes::load(source)
                                                : load_partial(source, length);
        row.store(square[r]);
      }
      float* target = transposed + (k - block.begin) * kOuterColumns + n;
      for (int64_t r = 0; r < kWidth; r += 4) {
        for (int64_t i = 0; i < kWidth; i += 4) transpose_4x4(&square[r][i], kWidth, target + i * kOuterColumns + r);
      }
    }
  }
}

// Holds the rows of x as float32: themselves, or widened into the scratch.
struct FloatRows {
  const float* data;
  int64_t stride;
};
FloatRows float_rows(const float* x, int64_t stride, int64_t, int64_t, float*) { return {x, stride}; }
template <class T>
FloatRows float_rows(const T* x, int64_t stride, int64_t num_rows, int64_t length, float* scratch) {
  for (int64_t m = 0; m < num_rows; ++m) widen(x + m * stride, length, scratch + m * kBlockK);
  return {scratch, kBlockK};
}

// Computes y[rows, columns] for at most kBlockRows rows and kOuterColumns columns.
template <class T>
void many_rows(const GemmParams& p, Range rows, Range columns, Scratch& scratch) {
  static constexpr auto kPlainTiles = outer_tiles(std::make_index_sequence<kOuterRows>());
  static constexpr auto kTilesOfDots = outer_tiles_of_dots(std::make_index_sequence<kOuterRows>());
  const auto& tiles = p.batch_invariant ? kTilesOfDots : kPlainTiles;
  const int64_t num_rows = rows.end - rows.begin;
  const int64_t num_tiles = divide_up(num_rows, kOuterRows);
  const int64_t num_blocks = divide_up(p.k, kBlockK);
  for (int64_t b = 0; b < num_blocks; ++b) {
    const Range block = part(p.k, num_blocks, b);
    const int64_t length = block.end - block.begin;
    transpose_weights<T>(p, columns, block, scratch.weight);
    for (int64_t t = 0; t < num_tiles; ++t) {
      const Range tile = part(num_rows, num_tiles, t);
      const int64_t tile_rows = tile.end - tile.begin;
      const T* x = static_cast<const T*>(p.x) + (rows.begin + tile.begin) * p.x_stride + block.begin;
      const FloatRows x_rows = float_rows(x, p.x_stride, tile_rows, length, scratch.x);
      float* sums = scratch.sums + tile.begin * kOuterColumns;
      if (b == 0) {
        tiles[static_cast<size_t>(tile_rows - 1)](x_rows.data, x_rows.stride, scratch.weight, length, sums);
      } else {  // block sums are added up one by one: shorter chains of additions, smaller errors
        float block_sums[kOuterRows * kOuterColumns];
        tiles[static_cast<size_t>(tile_rows - 1)](x_rows.data, x_rows.stride, scratch.weight, length, block_sums);
        for (int64_t i = 0; i < tile_rows * kOuterColumns; ++i) sums[i] += block_sums[i];
      }
    }
  }
  store_block<T>(p, rows, columns, scratch.sums, kOuterColumns);
}

constexpr int64_t kPartsPerThread = 4;  // of a product with few rows: other threads take the parts of one that does not run

template <class T>
void run(const GemmParams& p, const CpuGemmContext& context, int64_t num_threads) {
  if (p.m < kManyRows || p.k == 0) {
    const int64_t groups = divide_up(p.n, 4);
    const int64_t parts = num_threads > 1 ? std::min(num_threads * kPartsPerThread, groups) : 1;
    parallel_for(parts, num_threads, [&](int64_t i) {
      const Range range = part(groups, parts, i);
      few_rows<T>(p, {4 * range.begin, std::min(4 * range.end, p.n)});
    });
    return;
  }
  const int64_t row_blocks = divide_up(p.m, kBlockRows);
  const int64_t jobs = row_blocks * divide_up(p.n, kOuterColumns);
  const int64_t parts = std::clamp<int64_t>(num_threads, 1, std::min(context.num_threads(), jobs));
  parallel_for(parts, parts, [&](int64_t i) {
    const Range range = part(jobs, parts, i);
    for (int64_t job = range.begin; job < range.end; ++job) {
      const int64_t n = job / row_blocks * kOuterColumns;
      many_rows<T>(p, part(p.m, row_blocks, job % row_blocks), {n, std::min(n + kOuterColumns, p.n)}, context.scratch()[i]);
    }
  });
}

// Below this many multiply-adds a second thread costs more time than it saves.
constexpr double kSerialWork = 65536.0;

}  // namespace

Result<std::unique_ptr<GemmContext>> create_gemm_context() { return create_gemm_context(fastest_kernels()); }

Result<std::unique_ptr<GemmContext>> create_gemm_context(const QuantizedKernels& kernels) {
  const int64_t num_threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  PROLOGUE_ASSIGN_OR_RETURN(Buffer scratch, Buffer::allocate(Device::cpu, num_threads * static_cast<int64_t>(sizeof(Scratch))));
  PROLOGUE_ASSIGN_OR_RETURN(Buffer quantized, Buffer::allocate(Device::cpu, kQuantizedScratchBytes));
  return std::unique_ptr<GemmContext>(new CpuGemmContext(std::move(scratch), num_threads, std::move(quantized), kernels));
}

Status gemm(const GemmParams& params, GemmContext& context, const Execution& execution) {
  const auto& cpu_context = static_cast<const CpuGemmContext&>(context);
  GemmParams p = params;
  if (p.k == 0) {  // x may be null then: y = bias
    p.x_stride = 0;
    p.packed.num_segments = 0;
  }
  if (p.packed.num_segments > 0) {
    quantized_gemm(p, cpu_context.kernels(), cpu_context.quantized_scratch(), execution.num_threads);
    return {};
  }
  const double work = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const int64_t num_threads = work < kSerialWork ? 1 : execution.num_threads;
  with_host_type(p.dtype, [&](auto type) { run<decltype(type)>(p, cpu_context, num_threads); });
  return {};
}

}  // namespace prologue::cpu
