// Tasks are blocks of query rows: (sequence, kv head, up to kBlockRows rows), a row being one q head of one token, so that the
// q heads that share a kv head share its tiles. For every kTileKeys positions of the cache, in order:
//   1. gather K (transposed) and V from the pages into float32 tiles, quantised ones multiplied by their scales,
//   2. scores [rows, keys] = scale * Q K^T, capped,
//   3. online softmax: p = exp(score - running maximum); what was summed under a smaller maximum is scaled down,
//   4. running sums [rows, v_head_dim] += p V.
// Every row takes the same steps in the same order whatever block it lies in (tiles start at multiples of kTileKeys), so its bits
// depend on neither the batch, nor the chunking of a prompt, nor the number of threads. Tiles live on the stack: 550 KiB, of
// which only as much as the head dims need is touched.
#include <algorithm>
#include <cstring>
#include <limits>

#include <prologue/kernels/base/convert_cpu.h>
#include <prologue/kernels/base/exp.h>
#include <prologue/kernels/base/lanes.h>
#include <prologue/kernels/base/parallel.h>
#include <prologue/kernels/base/quantize.h>
#include <prologue/kernels/base/tanh.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kWidth = Lanes::kWidth;
constexpr int64_t kMaxHeadDim = 576;
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
  int64_t row_begin = 0;    // token index of its first query row
  int64_t num_rows = 0;     // query tokens
  int64_t first_limit = 0;  // the last position that the first row attends to; one more for each further row
  bool too_long = false;
  const int32_t* pages = nullptr;
};

Sequence sequence_at(const PagedAttentionParams& p, int64_t s) {
  Sequence sequence;
  // cu_seqlens_q lies on the device and is not checked there: a wrong one must not lead outside of q.
  sequence.row_begin = std::clamp<int64_t>(p.cu_seqlens_q[s], 0, p.num_tokens);
  sequence.num_rows = std::clamp<int64_t>(p.cu_seqlens_q[s + 1], sequence.row_begin, p.num_tokens) - sequence.row_begin;
  const int64_t seq_len = p.seq_lens[s];
  const int64_t slots = p.ring_size > 0 ? std::min(seq_len, p.ring_size) : seq_len;
  sequence.first_limit = seq_len - sequence.num_rows;
  sequence.too_long = seq_len > p.max_seq_len || slots > p.max_pages_per_seq * p.kv.page_size;
  sequence.pages = p.block_table + s * p.block_table_stride;
  return sequence;
}

// The numbers of a quantised head, without its scale. A table of all codes turns the formats' branches into a load.
class CodeTable {
 public:
  explicit CodeTable(KvType type) {
    for (int code = 0; code < 256; ++code) values_[code] = dequantize(static_cast<uint8_t>(code), 1.0f, type);
  }
  float operator[](int code) const { return values_[code]; }

 private:
  float values_[256];
};

const CodeTable& code_table(KvType type) {
  static const CodeTable tables[] = {CodeTable(KvType::fp8_e4m3), CodeTable(KvType::fp8_e5m2), CodeTable(KvType::int8),
                                     CodeTable(KvType::int4)};
  return tables[static_cast<int>(type) - static_cast<int>(KvType::fp8_e4m3)];
}

// K or V of one head of one layer's cache, as float32.
class HeadReader {
 public:
  HeadReader(const PagedKvView& kv, bool is_k, int64_t kv_head)
      : data_(static_cast<const unsigned char*>(is_k ? kv.k : kv.v)),
        type_(kv.type),
        width_(is_k ? kv.head_dim : kv.v_width()),
        strides_(is_k ? kv.k_strides : kv.v_strides),
        scale_(is_k ? kv.k_scale : kv.v_scale),
        table_(kv_type_is_float(kv.type) ? nullptr : &code_table(kv.type)) {
    data_ += kv_head * strides_.head * kv_type_bits(type_) / 8;
    if (kv.scaling == KvScaling::none) scale_ = nullptr;
    if (kv.scaling == KvScaling::head) scale_ += kv_head;
    if (kv.scaling == KvScaling::token_head) {
      scale_strides_ = is_k ? kv.k_scale_strides : kv.v_scale_strides;
      scale_ += kv_head * scale_strides_.head;
    }
  }

  // The head of token `offset` of `page`: where it lies, if it is float32 already, otherwise in `buffer`.
  const float* read(int64_t page, int64_t offset, float* buffer) const {
    const unsigned char* from = data_ + (page * strides_.page + offset * strides_.token) * kv_type_bits(type_) / 8;
    if (type_ == KvType::f32) return reinterpret_cast<const float*>(from);
    if (type_ == KvType::f16) {
      widen(reinterpret_cast<const Float16*>(from), width_, buffer);
    } else if (type_ == KvType::bf16) {
      widen(reinterpret_cast<const BFloat16*>(from), width_, buffer);
    } else {
      const float scale = scale_ == nullptr ? 1.0f : scale_[page * scale_strides_.page + offset * scale_strides_.token];
      if (type_ == KvType::int4) {
        for (int64_t i = 0; i < width_ / 2; ++i) {
          buffer[2 * i] = (*table_)[from[i] & 15] * scale;
          buffer[2 * i + 1] = (*table_)[from[i] >> 4] * scale;
        }
      } else {
        for (int64_t i = 0; i < width_; ++i) buffer[i] = (*table_)[from[i]] * scale;
      }
    }
    return buffer;
  }

 private:
  const unsigned char* data_;
  KvType type_;
  int64_t width_;
  PageStrides strides_;
  const float* scale_;
  PageStrides scale_strides_;
  const CodeTable* table_;
};

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
void transpose_8x8(const float* const* rows, int64_t channel, float* columns, int64_t column_stride) {
  using Vector = float __attribute__((vector_size(32)));
  Vector x[8], y[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&x[i], rows[i] + channel, sizeof x[i]);
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
        k_reader_(p.kv, true, kv_head),
        v_reader_(p.kv, false, kv_head),
        kv_head_(kv_head),
        group_(p.num_q_heads / p.kv.num_kv_heads),
        q_columns_(divide_up(p.head_dim, kWidth) * kWidth),
        v_columns_(divide_up(p.kv.v_width(), kWidth) * kWidth) {}

  // Rows [begin, end) of the sequence's num_rows * group: those that attend to nothing come first, then runs without a fault.
  void run(int64_t begin, int64_t end) {
    int64_t row = begin;
    for (; row < end && limit(row) < 0 && !sequence_.too_long; ++row) clear(row);
    checked_ = lowest(row) - 1;
    int64_t first = row;
    for (; row < end; ++row) {
      if (!sequence_.too_long && !needs_bad_page(row)) continue;
      if (first < row) attend(first, row);
      first = row + 1;
      clear(row);
      if (kv_head_ == 0 && row % group_ == 0) {
        record_fault(p_.faults, token(row), sequence_.too_long ? FaultCode::sequence_too_long : FaultCode::page_out_of_range);
      }
    }
    if (first < end) attend(first, end);
  }

 private:
  int64_t token(int64_t i) const { return sequence_.row_begin + i / group_; }
  int64_t q_head(int64_t i) const { return kv_head_ * group_ + i % group_; }
  // The last and the first position that a row attends to.
  int64_t limit(int64_t i) const { return sequence_.first_limit + i / group_; }
  int64_t lowest(int64_t i) const { return p_.window > 0 ? std::max<int64_t>(0, limit(i) - p_.window + 1) : 0; }
  int64_t place(int64_t position) const { return p_.ring_size > 0 ? position % p_.ring_size : position; }
  // How many positions from this one on lie one after the other in a page.
  int64_t run_length(int64_t at) const {
    const int64_t in_page = p_.kv.page_size - at % p_.kv.page_size;
    return p_.ring_size > 0 ? std::min(in_page, p_.ring_size - at) : in_page;
  }
  const T* q_row(int64_t i) const {
    return static_cast<const T*>(p_.q.data) + token(i) * p_.q.token_stride + q_head(i) * p_.q.head_stride;
  }
  T* out_row(int64_t i) const {
    return static_cast<T*>(p_.out.data) + token(i) * p_.out.token_stride + q_head(i) * p_.out.head_stride;
  }
  void clear(int64_t i) const { std::fill_n(out_row(i), p_.kv.v_width(), T{}); }

  // Asked row after row: every position is looked at once.
  bool needs_bad_page(int64_t i) {
    while (checked_ < limit(i)) {
      const int64_t at = place(checked_ + 1);
      const int32_t page = sequence_.pages[at / p_.kv.page_size];
      checked_ = std::min(checked_ + run_length(at), limit(i));
      if (page < 0 || page >= p_.kv.num_pages) last_bad_ = checked_;
    }
    return last_bad_ >= lowest(i);
  }

  void attend(int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    for (int64_t r = 0; r < rows; ++r) {
      widen(q_row(begin + r), p_.head_dim, q_ + r * q_columns_);
      maximum_[r] = -kInfinity;
      limits_[r] = limit(begin + r);
      lowest_[r] = lowest(begin + r);
    }
    if (v_columns_ > p_.kv.v_width()) std::fill_n(v_, kTileKeys * v_columns_, 0.0f);
    std::fill_n(sums_, rows * v_columns_, 0.0f);
    std::fill_n(probability_sums_, rows * kSumLanes, 0.0f);

    const int64_t num_positions = limits_[rows - 1] + 1;
    for (int64_t position = lowest_[0] / kTileKeys * kTileKeys; position < num_positions; position += kTileKeys) {
      gather(position, std::max<int64_t>(lowest_[0] - position, 0), std::min(kTileKeys, num_positions - position));
      const auto first_key = [&](int64_t r) { return std::clamp<int64_t>(lowest_[r] - position, 0, kTileKeys); };
      const auto end_key = [&](int64_t r) { return std::clamp<int64_t>(limits_[r] + 1 - position, 0, kTileKeys); };
      std::fill_n(scores_, rows * kTileKeys, 0.0f);
      for (int64_t r = 0; r < rows; r += kTileRows) {
        add_products(std::min<int64_t>(kTileRows, rows - r), q_ + r * q_columns_, q_columns_, k_, kTileKeys, p_.head_dim,
                     scores_ + r * kTileKeys, kTileKeys, kTileKeys);
      }
      for (int64_t r = 0; r < rows; ++r) tile_maximum_[r] = scale_and_hide(r, first_key(r), end_key(r));
      for (int64_t r = 0; r < rows; ++r) {
        const float maximum = tile_maximum_[r] > maximum_[r] ? tile_maximum_[r] : maximum_[r];
        correction_[r] = exp_nonpositive(maximum_[r] - maximum);
        maximum_[r] = maximum;
      }
      for (int64_t r = 0; r < rows; ++r) {
        if (first_key(r) < end_key(r)) exponentiate(r);
      }
      // Rows go together as long as they see the same keys: a hidden V, which may be anything, is never multiplied by 0.
      for (int64_t r = 0, count = 1; r < rows; r += count, count = 1) {
        const int64_t first = first_key(r), last = end_key(r);
        while (count < kTileRows && r + count < rows && first_key(r + count) == first && end_key(r + count) == last) ++count;
        if (first >= last) continue;
        add_products(count, scores_ + r * kTileKeys + first, kTileKeys, v_ + first * v_columns_, v_columns_, last - first,
                     sums_ + r * v_columns_, v_columns_, v_columns_);
      }
    }
    for (int64_t r = 0; r < rows; ++r) store(begin + r, r);
  }

  // K and V of keys [first, end) of the tile at `position`; K has zeros round them.
  void gather(int64_t position, int64_t first, int64_t end) {
    if (first > 0 || end < kTileKeys) std::fill_n(k_, p_.head_dim * kTileKeys, 0.0f);
    const int64_t whole_channels = p_.head_dim / 8 * 8;
    const float* k_rows[8];
    int64_t at = place(position + first), left = run_length(at);
    for (int64_t key = first, batch = 0; key < end; ++key) {
      const int64_t page = sequence_.pages[at / p_.kv.page_size], offset = at % p_.kv.page_size;
      k_rows[batch] = k_reader_.read(page, offset, k_row_buffer_ + batch * kMaxHeadDim);
      float* v_row = v_ + key * v_columns_;
      if (const float* v = v_reader_.read(page, offset, v_row); v != v_row) std::copy_n(v, p_.kv.v_width(), v_row);
      ++at;
      if (--left == 0) at = place(position + key + 1), left = run_length(at);
      if (++batch < 8 && key + 1 < end) continue;
      float* columns = k_ + key + 1 - batch;
      int64_t channel = 0;
      if (batch == 8) {
        for (; channel < whole_channels; channel += 8) transpose_8x8(k_rows, channel, columns + channel * kTileKeys, kTileKeys);
      }
      for (; channel < p_.head_dim; ++channel) {
        for (int64_t i = 0; i < batch; ++i) columns[channel * kTileKeys + i] = k_rows[i][channel];
      }
      batch = 0;
    }
  }

  // Scores times scale, capped, -infinity for keys outside [first, end); returns the largest.
  float scale_and_hide(int64_t r, int64_t first, int64_t end) {
    float* scores = scores_ + r * kTileKeys;
    const float scale = p_.scale;
    for (int64_t key = 0; key < kTileKeys; ++key) scores[key] *= scale;
    if (const float cap = p_.soft_cap; cap > 0.0f) {
      for (int64_t key = 0; key < kTileKeys; ++key) scores[key] = cap * tanh_f32(scores[key] / cap);
    }
    for (int64_t key = 0; key < first; ++key) scores[key] = -kInfinity;
    for (int64_t key = end; key < kTileKeys; ++key) scores[key] = -kInfinity;
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
      for (int64_t i = 0; i < v_columns_; ++i) sums_[r * v_columns_ + i] *= correction;
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
    for (int64_t channel = 0; channel < p_.kv.v_width(); ++channel) sums_[r * v_columns_ + channel] *= inverse;
    narrow(sums_ + r * v_columns_, p_.kv.v_width(), out_row(i));
  }

  const PagedAttentionParams& p_;
  const Sequence& sequence_;
  const HeadReader k_reader_;
  const HeadReader v_reader_;
  const int64_t kv_head_;
  const int64_t group_;
  const int64_t q_columns_;  // head_dim, rounded up to whole registers: the row stride of q_
  const int64_t v_columns_;  // v_head_dim likewise: of v_ and sums_
  int64_t checked_ = -1;     // positions up to this one have been looked up,
  int64_t last_bad_ = -1;    // and this is the last of them whose page does not exist

  alignas(64) float q_[kBlockRows * kMaxHeadDim];
  alignas(64) float sums_[kBlockRows * kMaxHeadDim];
  alignas(64) float scores_[kBlockRows * kTileKeys];
  alignas(64) float k_[kMaxHeadDim * kTileKeys];  // [channel, key]
  alignas(64) float v_[kTileKeys * kMaxHeadDim];  // [key, channel]
  alignas(64) float k_row_buffer_[8 * kMaxHeadDim];
  alignas(64) float probability_sums_[kBlockRows * kSumLanes];
  float maximum_[kBlockRows];  // of the scores so far
  float tile_maximum_[kBlockRows];
  float correction_[kBlockRows];
  int64_t limits_[kBlockRows];  // the last and
  int64_t lowest_[kBlockRows];  // the first position that a row attends to
};

}  // namespace

Status paged_attention(const PagedAttentionParams& params, const Execution& execution) {
  const int64_t group = params.num_q_heads / params.kv.num_kv_heads;
  const int64_t blocks = divide_up(std::min(params.max_seqlen_q, params.num_tokens) * group, kBlockRows);
  const int64_t tasks = params.num_seqs * blocks * params.kv.num_kv_heads;
  const double work =
      static_cast<double>(params.num_tokens * params.num_q_heads * params.head_dim) * static_cast<double>(params.max_seq_len);
  const bool serial = work <= kSerialWork;
  with_host_type(params.dtype, [&](auto type) {
    parallel_for(tasks, serial ? 1 : execution.num_threads, [&](int64_t i) {
      const int64_t task = tasks - 1 - i;  // the longest first: within a sequence, later rows attend to more
      const int64_t kv_head = task % params.kv.num_kv_heads;
      const Sequence sequence = sequence_at(params, task / params.kv.num_kv_heads % params.num_seqs);
      const int64_t begin = task / params.kv.num_kv_heads / params.num_seqs * kBlockRows;
      const int64_t end = std::min(begin + kBlockRows, sequence.num_rows * group);
      if (begin < end) BlockAttention<decltype(type)>(params, sequence, kv_head).run(begin, end);
    });
  });
  return {};
}

}  // namespace prologue::cpu
