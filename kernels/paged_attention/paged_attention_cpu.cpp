// Tasks are blocks of query rows: (sequence, kv head, up to kBlockRows rows), a row being one q head of one token, so that the
// q heads that share a kv head share its tiles. For every kTileKeys positions of the cache, in order:
//   1. gather K (transposed) and V from the pages into float32 tiles,
//   2. scores [rows, keys] = scale * Q K^T,
//   3. online softmax: p = exp(score - running maximum); what was summed under a smaller maximum is scaled down,
//   4. running sums [rows, head_dim] += p V.
// Every row takes the same steps in the same order whatever block it lies in, so its bits depend on neither the batch, nor the
// chunking of a prompt, nor the number of threads. Tiles live on the stack (240 KiB at head_dim 256).
#include <algorithm>
#include <cstring>
#include <limits>

#include <prologue/kernels/base/convert_cpu.h>
#include <prologue/kernels/base/exp.h>
#include <prologue/kernels/base/lanes.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kWidth = Lanes::kWidth;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kTileKeys = 64;
constexpr int kTileRows = 6;  // rows whose sums stay in registers together
constexpr int64_t kBlockRows = 8 * kTileRows;
constexpr int kTileVectors = Lanes::kRegisters >= 32 ? 4 : 2;  // registers of a row's sums
constexpr int64_t kSumLanes = 16;                              // a row's sum of p is kept in this many parts
constexpr double kSerialWork = 65536.0;                        // multiply-adds below which starting threads costs more
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One sequence of the batch, its indices checked.
struct Sequence {
  int64_t row_begin = 0;              // token index of its first query row
  int64_t num_rows = 0;               // query tokens
  int64_t first_limit = 0;            // the last position that the first row attends to; one more for each further row
  int64_t readable = 0;               // positions below this lie in pages that exist
  FaultCode fault = FaultCode::none;  // of the rows that attend further
  const int32_t* pages = nullptr;
};

Sequence sequence_at(const PagedAttentionParams& p, int64_t s) {
  Sequence sequence;
  // cu_seqlens_q lies on the device and is not checked there: a wrong one must not lead outside of q.
  sequence.row_begin = std::clamp<int64_t>(p.cu_seqlens_q[s], 0, p.num_tokens);
  sequence.num_rows = std::clamp<int64_t>(p.cu_seqlens_q[s + 1], sequence.row_begin, p.num_tokens) - sequence.row_begin;
  const int64_t seq_len = p.seq_lens[s];
  sequence.first_limit = seq_len - sequence.num_rows;
  sequence.pages = p.block_table + s * p.block_table_stride;
  if (seq_len > p.max_pages_per_seq * p.kv.page_size || seq_len > p.max_seq_len) {
    sequence.fault = FaultCode::sequence_too_long;
    sequence.first_limit = sequence.readable = 0;
    return sequence;
  }
  int64_t page = 0;
  const int64_t num_pages = divide_up(std::max<int64_t>(seq_len, 0), p.kv.page_size);
  while (page < num_pages && sequence.pages[page] >= 0 && sequence.pages[page] < p.kv.num_pages) ++page;
  sequence.readable = page * p.kv.page_size;
  if (page < num_pages) sequence.fault = FaultCode::page_out_of_range;
  return sequence;
}

// sums[row, 0 .. VECTORS * kWidth) += a[row, 0 .. count) b[0 .. count, ...)
template <int ROWS, int VECTORS>
void add_products(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t count, float* sums,
                  int64_t sums_stride) {
  Lanes acc[ROWS][VECTORS];
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; ++v) acc[r][v] = Lanes::load(sums + r * sums_stride + v * kWidth);
  }
  for (int64_t i = 0; i < count; ++i) {
    Lanes row[VECTORS];
    for (int v = 0; v < VECTORS; ++v) row[v] = Lanes::load(b + i * b_stride + v * kWidth);
    for (int r = 0; r < ROWS; ++r) {
      const Lanes factor = Lanes::broadcast(a[r * a_stride + i]);
      for (int v = 0; v < VECTORS; ++v) acc[r][v] = multiply_add(factor, row[v], acc[r][v]);
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; ++v) acc[r][v].store(sums + r * sums_stride + v * kWidth);
  }
}

// The same over all columns (a multiple of kWidth).
template <int ROWS>
void add_products(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t count, float* sums,
                  int64_t sums_stride, int64_t columns) {
  int64_t column = 0;
  for (; column + kTileVectors * kWidth <= columns; column += kTileVectors * kWidth) {
    add_products<ROWS, kTileVectors>(a, a_stride, b + column, b_stride, count, sums + column, sums_stride);
  }
  for (; column < columns; column += kWidth) {
    add_products<ROWS, 1>(a, a_stride, b + column, b_stride, count, sums + column, sums_stride);
  }
}

// `rows` <= kTileRows of them.
void add_products(int64_t rows, const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t count, float* sums,
                  int64_t sums_stride, int64_t columns) {
  static_assert(kTileRows == 6);
  constexpr decltype(&add_products<1>) kByRows[] = {add_products<1>, add_products<2>, add_products<3>,
                                                    add_products<4>, add_products<5>, add_products<6>};
  kByRows[rows - 1](a, a_stride, b, b_stride, count, sums, sums_stride, columns);
}

// columns[channel, row] of 8 rows and 8 channels: three rounds of exchanging halves, one per bit of the index.
template <class T>
void transpose_8x8(const T* const* rows, int64_t channel, float* columns, int64_t column_stride) {
  using Vector = float __attribute__((vector_size(32)));
  Vector x[8], y[8];
  for (int i = 0; i < 8; ++i) {
    float row[8];
    widen8(rows[i] + channel, row);
    std::memcpy(&x[i], row, sizeof row);
  }
  const auto exchange = [](const Vector(&from)[8], Vector(&to)[8]) {
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __builtin_shufflevector(from[i], from[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      to[2 * i + 1] = __builtin_shufflevector(from[i], from[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
  };
  exchange(x, y);
  exchange(y, x);
  exchange(x, y);
  for (int i = 0; i < 8; ++i) std::memcpy(columns + i * column_stride, &y[i], sizeof y[i]);
}

template <class T>
class BlockAttention {
 public:
  BlockAttention(const PagedAttentionParams& p, const Sequence& sequence, int64_t kv_head)
      : p_(p),
        sequence_(sequence),
        kv_head_(kv_head),
        group_(p.num_q_heads / p.kv.num_kv_heads),
        columns_(divide_up(p.head_dim, kWidth) * kWidth) {}

  // Rows [begin, end) of the sequence's num_rows * group.
  void run(int64_t begin, int64_t end) {
    // Limits grow with the row: first those that attend to nothing, then those to compute, then those with a fault.
    const int64_t first = std::clamp(-sequence_.first_limit * group_, begin, end);
    const int64_t last =
        sequence_.fault == FaultCode::none ? end : std::clamp((sequence_.readable - sequence_.first_limit) * group_, first, end);
    for (int64_t i = begin; i < first; ++i) std::fill_n(out_row(i), p_.head_dim, T{});
    if (first < last) attend(first, last);
    for (int64_t i = last; i < end; ++i) {
      std::fill_n(out_row(i), p_.head_dim, T{});
      if (kv_head_ == 0 && i % group_ == 0) record_fault(p_.faults, token(i), sequence_.fault);
    }
  }

 private:
  int64_t token(int64_t i) const { return sequence_.row_begin + i / group_; }
  int64_t q_head(int64_t i) const { return kv_head_ * group_ + i % group_; }
  int64_t limit(int64_t i) const { return sequence_.first_limit + i / group_; }
  const T* q_row(int64_t i) const {
    return static_cast<const T*>(p_.q.data) + token(i) * p_.q.token_stride + q_head(i) * p_.q.head_stride;
  }
  T* out_row(int64_t i) const {
    return static_cast<T*>(p_.out.data) + token(i) * p_.out.token_stride + q_head(i) * p_.out.head_stride;
  }

  void attend(int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    for (int64_t r = 0; r < rows; ++r) {
      widen(q_row(begin + r), p_.head_dim, q_ + r * columns_);
      maximum_[r] = -kInfinity;
      limits_[r] = limit(begin + r);
    }
    if (columns_ > p_.head_dim) std::fill_n(v_, kTileKeys * columns_, 0.0f);
    std::fill_n(sums_, rows * columns_, 0.0f);
    std::fill_n(probability_sums_, rows * kSumLanes, 0.0f);

    const int64_t num_positions = limits_[rows - 1] + 1;
    for (int64_t position = 0; position < num_positions; position += kTileKeys) {
      gather(position, std::min(kTileKeys, num_positions - position));
      const auto visible_keys = [&](int64_t r) { return std::clamp<int64_t>(limits_[r] + 1 - position, 0, kTileKeys); };
      std::fill_n(scores_, rows * kTileKeys, 0.0f);
      for (int64_t r = 0; r < rows; r += kTileRows) {
        add_products(std::min<int64_t>(kTileRows, rows - r), q_ + r * columns_, columns_, k_, kTileKeys, p_.head_dim,
                     scores_ + r * kTileKeys, kTileKeys, kTileKeys);
      }
      for (int64_t r = 0; r < rows; ++r) tile_maximum_[r] = scale_and_hide(r, visible_keys(r));
      for (int64_t r = 0; r < rows; ++r) {
        const float maximum = tile_maximum_[r] > maximum_[r] ? tile_maximum_[r] : maximum_[r];
        correction_[r] = exp_nonpositive(maximum_[r] - maximum);
        maximum_[r] = maximum;
      }
      for (int64_t r = 0; r < rows; ++r) {
        if (visible_keys(r) > 0) exponentiate(r);
      }
      // Rows go together as long as they see the same keys: a hidden V, which may be anything, is never multiplied by 0.
      for (int64_t r = 0, count = 1; r < rows; r += count, count = 1) {
        const int64_t keys = visible_keys(r);
        while (count < kTileRows && r + count < rows && visible_keys(r + count) == keys) ++count;
        add_products(count, scores_ + r * kTileKeys, kTileKeys, v_, columns_, keys, sums_ + r * columns_, columns_, columns_);
      }
    }
    for (int64_t r = 0; r < rows; ++r) store(begin + r, r);
  }

  // K and V of `count` positions; K has zeros behind them.
  void gather(int64_t position, int64_t count) {
    if (count < kTileKeys) std::fill_n(k_, p_.head_dim * kTileKeys, 0.0f);
    const T* k_rows[kTileKeys];
    int64_t page = position / p_.kv.page_size, offset = position % p_.kv.page_size;
    for (int64_t key = 0; key < count; ++key) {
      const int64_t entry = sequence_.pages[page];
      const PageStrides &k = p_.kv.k_strides, &v = p_.kv.v_strides;
      k_rows[key] = static_cast<const T*>(p_.kv.k) + entry * k.page + offset * k.token + kv_head_ * k.head;
      widen(static_cast<const T*>(p_.kv.v) + entry * v.page + offset * v.token + kv_head_ * v.head, p_.head_dim,
            v_ + key * columns_);
      if (++offset == p_.kv.page_size) ++page, offset = 0;
    }
    const int64_t whole_channels = p_.head_dim / 8 * 8, whole_keys = count / 8 * 8;
    for (int64_t key = 0; key < whole_keys; key += 8) {
      for (int64_t channel = 0; channel < whole_channels; channel += 8) {
        transpose_8x8(k_rows + key, channel, k_ + channel * kTileKeys + key, kTileKeys);
      }
    }
    for (int64_t key = 0; key < count; ++key) {
      for (int64_t channel = key < whole_keys ? whole_channels : 0; channel < p_.head_dim; ++channel) {
        k_[channel * kTileKeys + key] = to_float(k_rows[key][channel]);
      }
    }
  }

  // Scores times scale, -infinity for hidden keys; returns the largest.
  float scale_and_hide(int64_t r, int64_t visible) {
    float* scores = scores_ + r * kTileKeys;
    const float scale = p_.scale;
    for (int64_t key = 0; key < kTileKeys; ++key) scores[key] *= scale;
    for (int64_t key = visible; key < kTileKeys; ++key) scores[key] = -kInfinity;
    float lanes[kSumLanes];
    std::copy_n(scores, kSumLanes, lanes);
    for (int64_t key = kSumLanes; key < kTileKeys; key += kSumLanes) {
      for (int64_t i = 0; i < kSumLanes; ++i) lanes[i] = scores[key + i] > lanes[i] ? scores[key + i] : lanes[i];
    }
    for (int64_t width = kSumLanes / 2; width > 0; width /= 2) {
      for (int64_t i = 0; i < width; ++i) lanes[i] = lanes[i + width] > lanes[i] ? lanes[i + width] : lanes[i];
    }
    return lanes[0];
  }

  // Scores become probabilities relative to the new maximum (0 for hidden keys); the sums so far are scaled to it.
  void exponentiate(int64_t r) {
    float* __restrict sums = probability_sums_ + r * kSumLanes;
    if (const float correction = correction_[r]; correction != 1.0f) {
      for (int64_t i = 0; i < columns_; ++i) sums_[r * columns_ + i] *= correction;
      for (int64_t i = 0; i < kSumLanes; ++i) sums[i] *= correction;
    }
    float* __restrict scores = scores_ + r * kTileKeys;
    const float maximum = maximum_[r];
    for (int64_t key = 0; key < kTileKeys; ++key) scores[key] = exp_nonpositive(scores[key] - maximum);
    for (int64_t i = 0; i < kSumLanes; i += kWidth) {
      Lanes sum = Lanes::load(sums + i);
      for (int64_t key = i; key < kTileKeys; key += kSumLanes) sum = sum + Lanes::load(scores + key);
      sum.store(sums + i);
    }
  }

  void store(int64_t i, int64_t r) {
    float* sums = probability_sums_ + r * kSumLanes;
    for (int64_t width = kSumLanes / 2; width > 0; width /= 2) {
      for (int64_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    }
    const float inverse = 1.0f / sums[0];
    for (int64_t channel = 0; channel < p_.head_dim; ++channel) sums_[r * columns_ + channel] *= inverse;
    narrow(sums_ + r * columns_, p_.head_dim, out_row(i));
  }

  const PagedAttentionParams& p_;
  const Sequence& sequence_;
  const int64_t kv_head_;
  const int64_t group_;
  const int64_t columns_;  // head_dim, rounded up to whole registers: the row stride of q_, v_ and sums_

  alignas(64) float q_[kBlockRows * kMaxHeadDim];
  alignas(64) float sums_[kBlockRows * kMaxHeadDim];
  alignas(64) float scores_[kBlockRows * kTileKeys];
  alignas(64) float k_[kMaxHeadDim * kTileKeys];  // [channel, key]
  alignas(64) float v_[kTileKeys * kMaxHeadDim];  // [key, channel]
  alignas(64) float probability_sums_[kBlockRows * kSumLanes];
  float maximum_[kBlockRows];  // of the scores so far
  float tile_maximum_[kBlockRows];
  float correction_[kBlockRows];
  int64_t limits_[kBlockRows];  // the last position that a row attends to
};

}  // namespace

Status paged_attention(const PagedAttentionParams& params, const Execution& execution) {
  const int64_t group = params.num_q_heads / params.kv.num_kv_heads;
  const int64_t blocks = divide_up(std::min(params.max_seqlen_q, params.num_tokens) * group, kBlockRows);
  const int64_t tasks = params.num_seqs * blocks * params.kv.num_kv_heads;
  const double work =
      static_cast<double>(params.num_tokens * params.num_q_heads * params.head_dim) * static_cast<double>(params.max_seq_len);
  const bool serial = work <= kSerialWork;
  [[maybe_unused]] const int num_threads = serial ? 1 : std::max(1, execution.num_threads);
  with_host_type(params.dtype, [&](auto type) {
  // The longest first: within a sequence, later rows attend to more.
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
    for (int64_t task = tasks - 1; task >= 0; --task) {
      const int64_t kv_head = task % params.kv.num_kv_heads;
      const Sequence sequence = sequence_at(params, task / params.kv.num_kv_heads % params.num_seqs);
      const int64_t begin = task / params.kv.num_kv_heads / params.num_seqs * kBlockRows;
      const int64_t end = std::min(begin + kBlockRows, sequence.num_rows * group);
      if (begin < end) BlockAttention<decltype(type)>(params, sequence, kv_head).run(begin, end);
    }
  });
  return {};
}

}  // namespace prologue::cpu
