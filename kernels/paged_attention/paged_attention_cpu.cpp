// A task is a block of query rows: (sequence, kv head, up to block_rows() rows). A row is one q head of one token, so that all q heads of a
// kv head use the same tiles. For every kTileKeys positions of the cache, in order:
//   1. scores [rows, keys] = scale * Q K^T, capped: kChunk channels at a time, of which K is gathered from the pages (transposed)
//      into a float32 tile, quantised numbers multiplied by their scales,
//   2. online softmax: p = exp(score - running maximum); what was summed under a smaller maximum is scaled down; a sink is the
//      first score,
//   3. running sums [rows, v_head_dim] += p V, V gathered kChunk channels at a time into the same tile.
// Every row takes the same steps in the same order whatever block it is in (tiles start at multiples of kTileKeys), so its bits
// depend on neither the batch, nor the chunking of a prompt, nor the number of threads. All of a block's memory is on the stack,
// less than 112 KiB of it: heads that are wide have fewer rows in a block.
#include <algorithm>
#include <cstring>
#include <limits>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/lanes.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/shared/block_scale.h>
#include <prologue/kernels/base/shared/exp.h>
#include <prologue/kernels/base/shared/page_table.h>
#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/base/shared/tanh.h>
#include <prologue/kernels/paged_attention/backends.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kWidth = Lanes::kWidth;
constexpr int64_t kTileKeys = 64;
constexpr int64_t kChunk = 128;  // channels of K or V in a tile
constexpr int kTileRows = 6;     // rows whose sums stay in registers together
constexpr int64_t kMaxBlockRows = 8 * kTileRows;
constexpr int64_t kMaxSums = 12 * 576;                         // of all rows of a block
constexpr int kTileVectors = Lanes::kRegisters >= 32 ? 4 : 2;  // registers of a row's sums
constexpr int64_t kSumLanes = 16;                              // a row's sum of p is kept in this many parts
constexpr double kSerialWork = 65536.0;                        // multiply-adds below which starting threads costs more
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr int64_t columns_of(int64_t head_dim) { return round_up(head_dim, kWidth); }

int64_t block_rows(const PagedAttentionParams& p) {
  return std::min(kMaxBlockRows, kMaxSums / columns_of(v_head_dim(p.kv)) / kTileRows * kTileRows);
}

// Whether the entries of a sequence in cu_seqlens_q, not checked before this, are valid rows.
bool has_valid_rows(const PagedAttentionParams& p, int64_t s) {
  const int64_t first = p.cu_seqlens_q[s], end = p.cu_seqlens_q[s + 1];
  const int64_t max_rows = s < p.num_decode_seqs ? 1 : p.max_seqlen_q;
  return first >= 0 && first <= end && end <= p.num_tokens && end - first <= max_rows;
}

// Holds one sequence of the batch after its indices are checked. It has no rows if they are not valid.
struct Sequence {
  int64_t row_begin = 0;    // token index of its first query row
  int64_t num_rows = 0;     // query tokens
  int64_t first_limit = 0;  // the last position that the first row attends to; one more for each further row
  bool too_long = false;
  const int32_t* pages = nullptr;
};

// Returns the length of a sequence, or kUnknownLength if the entries that it follows from are bad.
int64_t sequence_length(const PagedAttentionParams& p, const PageRow& row, int64_t s) {
  return p.seq_lens != nullptr ? p.seq_lens[s] : length_of_pages(row, p.page_table.kv_last_page_len[s], p.kv.page_size);
}

Sequence sequence_at(const PagedAttentionParams& p, int64_t s) {
  Sequence sequence;
  if (has_valid_rows(p, s)) {
    sequence.row_begin = p.cu_seqlens_q[s];
    sequence.num_rows = p.cu_seqlens_q[s + 1] - sequence.row_begin;
  }
  const PageRow row = page_row(p.page_table, s);
  const int64_t seq_len = sequence_length(p, row, s);
  const int64_t slots = p.ring_size > 0 ? std::min(seq_len, p.ring_size) : seq_len;
  sequence.too_long = seq_len == kUnknownLength || seq_len > p.max_seq_len || slots > row.count * p.kv.page_size;
  sequence.first_limit = (seq_len == kUnknownLength ? 0 : seq_len) - sequence.num_rows;
  sequence.pages = row.pages;
  return sequence;
}

// Writes zeros and records a fault for the rows that are not valid: those of such a sequence, and those before the first sequence.
template <class T>
void clear_bad_rows(const PagedAttentionParams& p, int64_t s, int64_t kv_head) {
  const bool valid = has_valid_rows(p, s);
  if (valid && (s > 0 || p.cu_seqlens_q[0] == 0)) return;
  const int64_t first = std::clamp<int64_t>(p.cu_seqlens_q[s], 0, p.num_tokens);
  const int64_t end = std::clamp<int64_t>(p.cu_seqlens_q[s + 1], 0, p.num_tokens);
  const int64_t bad_begin = s == 0 ? 0 : first, bad_end = valid ? first : std::max(first, end);
  const int64_t group = p.num_q_heads / p.kv.num_kv_heads;
  for (int64_t row = bad_begin; row < bad_end; ++row) {
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      std::fill_n(static_cast<T*>(p.out.data) + row * p.out.token_stride + h * p.out.head_stride, v_head_dim(p.kv), T{});
    }
    if (kv_head == 0) record_fault(p.faults, p.token_faults, row, FaultCode::query_rows_out_of_range);
  }
  if (bad_begin >= bad_end && kv_head == 0) record_fault(p.faults, end, FaultCode::query_rows_out_of_range);
}

// Holds the numbers that the codes of a quantised type stand for, without a scale. A load from the table replaces the branches of the
// formats.
class CodeTable {
 public:
  explicit CodeTable(DType type) {
    for (int code = 0; code < 256; ++code) {
      const auto byte = static_cast<uint8_t>(code);
      values_[code] = type == DType::fp4_e2m1 ? from_fp4_e2m1(byte) : dequantize(byte, 1.0f, type);
    }
  }
  float operator[](int code) const { return values_[code]; }

 private:
  float values_[256];
};

const CodeTable& code_table(DType type) {
  static const CodeTable tables[] = {CodeTable(DType::fp8_e4m3), CodeTable(DType::fp8_e5m2), CodeTable(DType::int8),
                                     CodeTable(DType::int4)};
  static const CodeTable e2m1(DType::fp4_e2m1);
  if (type == DType::fp4_e2m1) return e2m1;
  return tables[static_cast<int>(type) - static_cast<int>(DType::fp8_e4m3)];
}

// Reads K or V of one head of one layer's cache as float32.
class HeadReader {
 public:
  HeadReader(const PagedHeads& side, int64_t head_dim, int64_t kv_head)
      : data_(static_cast<const unsigned char*>(side.data)),
        format_(side.format),
        type_(side.format.type),
        strides_(side.strides),
        scale_(side.scale),
        table_(dtype_is_quantized(type_) && type_ != DType::uint4 ? &code_table(type_) : nullptr) {
    data_ += kv_head * strides_.head * dtype_bits(type_) / 8;
    if (is_block_scaled(format_)) {
      tensor_scale_ = tensor_scale_of(format_, scale_);
      scale_ = nullptr;
      block_scale_ = side.block_scale + kv_head * side.scale_strides.head;
      block_layout_ = side.block_scale_layout;
      scale_strides_ = side.scale_strides;
      num_blocks_ = head_dim / block_channels(format_);
    }
    if (side.format.scaling == KvScaling::none) scale_ = nullptr;
    if (side.format.scaling == KvScaling::head) scale_ += kv_head;
    if (side.format.scaling == KvScaling::token_head) {
      scale_strides_ = side.scale_strides;
      scale_ += kv_head * scale_strides_.head;
    }
  }

  // Returns channels [first, first + count) of token `offset` of `page`: where they are if they are float32 already, otherwise in `buffer`.
  // `first` is even, and in a block-scaled format both are multiples of its blocks.
  const float* read(int64_t page, int64_t offset, int64_t first, int64_t count, float* buffer) const {
    const unsigned char* from = data_ + (page * strides_.page + offset * strides_.token + first) * dtype_bits(type_) / 8;
    if (type_ == DType::f32) return reinterpret_cast<const float*>(from);
    if (type_ == DType::f16) {
      widen(reinterpret_cast<const Float16*>(from), count, buffer);
    } else if (type_ == DType::bf16) {
      widen(reinterpret_cast<const BFloat16*>(from), count, buffer);
    } else if (block_scale_ != nullptr) {
      read_blocks(page, offset, first, count, from, buffer);
    } else {
      const float* const at = scale_ + page * scale_strides_.page + offset * scale_strides_.token;
      const float scale = scale_ == nullptr ? 1.0f : at[0];
      if (type_ == DType::uint4) {
        float values[16];  // the zero point is applied to the codes that there are, not to each channel
        for (int code = 0; code < 16; ++code) {
          values[code] = static_cast<float>(static_cast<double>(code) * static_cast<double>(scale) + static_cast<double>(at[1]));
        }
        for (int64_t i = 0; i < count / 2; ++i) {
          buffer[2 * i] = values[from[i] & 15];
          buffer[2 * i + 1] = values[from[i] >> 4];
        }
      } else if (type_ == DType::int4) {
        for (int64_t i = 0; i < count / 2; ++i) {
          buffer[2 * i] = (*table_)[from[i] & 15] * scale;
          buffer[2 * i + 1] = (*table_)[from[i] >> 4] * scale;
        }
      } else {
        for (int64_t i = 0; i < count; ++i) buffer[i] = (*table_)[from[i]] * scale;
      }
    }
    return buffer;
  }

 private:
  void read_blocks(int64_t page, int64_t offset, int64_t first, int64_t count, const unsigned char* from, float* buffer) const {
    const int64_t channels = block_channels(format_);
    const uint8_t* const scales = block_scale_ + page * scale_strides_.page;
    for (int64_t begin = 0; begin < count; begin += channels) {
      const int64_t at = block_scale_offset(block_layout_, scale_strides_.token, offset, (first + begin) / channels, num_blocks_);
      const float factor = block_factor(scales[at], format_, tensor_scale_);
      if (type_ == DType::fp4_e2m1) {
        for (int64_t i = begin; i < begin + channels; i += 2) {
          buffer[i] = (*table_)[from[i / 2] & 15] * factor;
          buffer[i + 1] = (*table_)[from[i / 2] >> 4] * factor;
        }
      } else {
        for (int64_t i = begin; i < begin + channels; ++i) buffer[i] = (*table_)[from[i]] * factor;
      }
    }
  }

  const unsigned char* data_;
  KvFormat format_;
  DType type_;
  PageStrides strides_;
  const float* scale_;
  PageStrides scale_strides_;
  const CodeTable* table_;
  const uint8_t* block_scale_ = nullptr;  // of the head, in block-scaled formats
  BlockScaleLayout block_layout_ = BlockScaleLayout::linear;
  float tensor_scale_ = 1.0f;
  int64_t num_blocks_ = 0;  // of a head
};

// Computes sums[row, 0 .. VECTORS * kWidth) += a[row, 0 .. count) b[0 .. count, ...)
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

// Does the same over all columns (a multiple of kWidth).
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

// Does the same for `rows` rows, at most kTileRows.
void add_products(int64_t rows, const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t count, float* sums,
                  int64_t sums_stride, int64_t columns) {
  static_assert(kTileRows == 6);
  constexpr decltype(&add_products<1>) kByRows[] = {add_products<1>, add_products<2>, add_products<3>,
                                                    add_products<4>, add_products<5>, add_products<6>};
  kByRows[rows - 1](a, a_stride, b, b_stride, count, sums, sums_stride, columns);
}

// Transposes 8 rows and 8 channels to columns[channel, row]: three rounds of exchanging halves, one per bit of the index.
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
        k_reader_(p.kv.k, p.head_dim, kv_head),
        v_reader_(p.kv.v, v_head_dim(p.kv), kv_head),
        kv_head_(kv_head),
        group_(p.num_q_heads / p.kv.num_kv_heads),
        v_columns_(columns_of(v_head_dim(p.kv))) {}

  // Runs rows [begin, end) of the sequence's num_rows * group rows. Those that attend to nothing come first, then runs without a fault.
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
        record_fault(p_.faults, p_.token_faults, token(row),
                     sequence_.too_long ? FaultCode::sequence_too_long : FaultCode::page_out_of_range);
      }
    }
    if (first < end) attend(first, end);
  }

 private:
  int64_t token(int64_t i) const { return sequence_.row_begin + i / group_; }
  int64_t q_head(int64_t i) const { return kv_head_ * group_ + i % group_; }
  // limit() is the last position that a row attends to, lowest() the first.
  int64_t limit(int64_t i) const { return sequence_.first_limit + i / group_; }
  int64_t lowest(int64_t i) const {
    const int64_t of_window = p_.window > 0 ? limit(i) - p_.window + 1 : 0;
    const int64_t of_chunk = p_.chunk > 0 ? limit(i) / p_.chunk * p_.chunk : 0;
    return std::max({int64_t{0}, of_window, of_chunk});
  }
  int64_t logical_slot(int64_t position) const { return p_.ring_size > 0 ? position % p_.ring_size : position; }
  // Returns how many positions, from this one on, are adjacent in a page.
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
  // Returns the sink of a row's head, or -infinity if there is none.
  float sink(int64_t i) const {
    if (p_.sinks == nullptr) return -kInfinity;
    if (p_.sinks_type == DType::f32) return static_cast<const float*>(p_.sinks)[q_head(i)];
    return to_float(static_cast<const T*>(p_.sinks)[q_head(i)]);
  }
  void clear(int64_t i) const { std::fill_n(out_row(i), v_head_dim(p_.kv), T{}); }

  // Whether a row needs a page that does not exist. Called for one row after the other, so every position is looked up once.
  bool needs_bad_page(int64_t i) {
    while (checked_ < limit(i)) {
      const int64_t at = logical_slot(checked_ + 1);
      const int32_t page = sequence_.pages[at / p_.kv.page_size];
      checked_ = std::min(checked_ + run_length(at), limit(i));
      if (page < 0 || page >= p_.kv.num_pages) last_bad_ = checked_;
    }
    return last_bad_ >= lowest(i);
  }

  void attend(int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    std::fill_n(sums_, rows * v_columns_, 0.0f);
    std::fill_n(probability_sums_, rows * kSumLanes, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      maximum_[r] = sink(begin + r);  // the first score, whose value is zero
      if (p_.sinks != nullptr) probability_sums_[r * kSumLanes] = 1.0f;
      limits_[r] = limit(begin + r);
      lowest_[r] = lowest(begin + r);
    }
    q_chunk_ = -1;

    const int64_t num_positions = limits_[rows - 1] + 1;
    for (int64_t position = lowest_[0] / kTileKeys * kTileKeys; position < num_positions; position += kTileKeys) {
      const int64_t first = std::max<int64_t>(lowest_[0] - position, 0), last = std::min(kTileKeys, num_positions - position);
      find_keys(position, first, last);
      const auto first_key = [&](int64_t r) { return std::clamp<int64_t>(lowest_[r] - position, 0, kTileKeys); };
      const auto end_key = [&](int64_t r) { return std::clamp<int64_t>(limits_[r] + 1 - position, 0, kTileKeys); };
      std::fill_n(scores_, rows * kTileKeys, 0.0f);
      for (int64_t channel = 0; channel < p_.head_dim; channel += kChunk) {
        const int64_t count = std::min(kChunk, p_.head_dim - channel);
        widen_queries(begin, rows, channel, count);
        gather_keys(first, last, channel, count);
        for (int64_t r = 0; r < rows; r += kTileRows) {
          add_products(std::min<int64_t>(kTileRows, rows - r), q_ + r * kChunk, kChunk, tile_, kTileKeys, count,
                       scores_ + r * kTileKeys, kTileKeys, kTileKeys);
        }
      }
      for (int64_t r = 0; r < rows; ++r) tile_maximum_[r] = scale_and_hide(r, first_key(r), end_key(r));
      for (int64_t r = 0; r < rows; ++r) {
        const float maximum = tile_maximum_[r] > maximum_[r] ? tile_maximum_[r] : maximum_[r];
        correction_[r] = exp_nonpositive(maximum_[r] - shift_of(maximum));
        maximum_[r] = maximum;
      }
      for (int64_t r = 0; r < rows; ++r) {
        if (first_key(r) < end_key(r)) exponentiate(r);
      }
      for (int64_t channel = 0; channel < v_columns_; channel += kChunk) {
        const int64_t columns = std::min(kChunk, v_columns_ - channel);
        gather_values(first, last, channel, std::min(kChunk, v_head_dim(p_.kv) - channel), columns);
        // Rows go together as long as they see the same keys: a hidden V, which may be anything, is never multiplied by 0.
        for (int64_t r = 0, count = 1; r < rows; r += count, count = 1) {
          const int64_t begin_key = first_key(r), stop_key = end_key(r);
          while (count < kTileRows && r + count < rows && first_key(r + count) == begin_key && end_key(r + count) == stop_key)
            ++count;
          if (begin_key >= stop_key) continue;
          add_products(count, scores_ + r * kTileKeys + begin_key, kTileKeys, tile_ + begin_key * kChunk, kChunk,
                       stop_key - begin_key, sums_ + r * v_columns_ + channel, v_columns_, columns);
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) store(begin + r, r);
  }

  // Finds where keys [first, last) of the tile at `position` are.
  void find_keys(int64_t position, int64_t first, int64_t last) {
    int64_t at = logical_slot(position + first), left = run_length(at);
    for (int64_t key = first; key < last; ++key) {
      pages_[key] = sequence_.pages[at / p_.kv.page_size];
      offsets_[key] = static_cast<int32_t>(at % p_.kv.page_size);
      ++at;
      if (--left == 0) at = logical_slot(position + key + 1), left = run_length(at);
    }
  }

  // Converts channels of the block's queries to float32. They stay in q_ if the head has only one chunk.
  void widen_queries(int64_t begin, int64_t rows, int64_t channel, int64_t count) {
    if (q_chunk_ == channel) return;
    q_chunk_ = channel;
    for (int64_t r = 0; r < rows; ++r) widen(q_row(begin + r) + channel, count, q_ + r * kChunk);
  }

  // Gathers channels of keys [first, last) as [channel, key], with zeros around them.
  void gather_keys(int64_t first, int64_t last, int64_t channel, int64_t count) {
    if (first > 0 || last < kTileKeys) std::fill_n(tile_, count * kTileKeys, 0.0f);
    const int64_t whole_channels = count / 8 * 8;
    const float* rows[8];
    for (int64_t key = first, batch = 0; key < last; ++key) {
      rows[batch] = k_reader_.read(pages_[key], offsets_[key], channel, count, row_buffer_ + batch * kChunk);
      if (++batch < 8 && key + 1 < last) continue;
      float* columns = tile_ + key + 1 - batch;
      int64_t c = 0;
      if (batch == 8) {
        for (; c < whole_channels; c += 8) transpose_8x8(rows, c, columns + c * kTileKeys, kTileKeys);
      }
      for (; c < count; ++c) {
        for (int64_t i = 0; i < batch; ++i) columns[c * kTileKeys + i] = rows[i][c];
      }
      batch = 0;
    }
  }

  // Gathers channels of values [first, last) as [key, channel], with zeros up to `columns`.
  void gather_values(int64_t first, int64_t last, int64_t channel, int64_t count, int64_t columns) {
    for (int64_t key = first; key < last; ++key) {
      float* row = tile_ + key * kChunk;
      if (const float* v = v_reader_.read(pages_[key], offsets_[key], channel, count, row); v != row) std::copy_n(v, count, row);
      std::fill(row + count, row + columns, 0.0f);
    }
  }

  // Multiplies scores by the scale and caps them; keys outside [first, end) get -infinity. Returns the largest score.
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

  // Returns the number that scores are relative to. As long as all of them are -infinity, their probabilities are 0.
  static float shift_of(float maximum) { return maximum == -kInfinity ? 0.0f : maximum; }

  // Converts scores to probabilities relative to the new maximum (0 for hidden keys), and scales the sums so far to it.
  void exponentiate(int64_t r) {
    float* __restrict sums = probability_sums_ + r * kSumLanes;
    if (const float correction = correction_[r]; correction != 1.0f) {
      for (int64_t i = 0; i < v_columns_; ++i) sums_[r * v_columns_ + i] *= correction;
      for (int64_t i = 0; i < kSumLanes; ++i) sums[i] *= correction;
    }
    float* __restrict scores = scores_ + r * kTileKeys;
    const float shift = shift_of(maximum_[r]);
    for (int64_t key = 0; key < kTileKeys; ++key) scores[key] = exp_nonpositive(scores[key] - shift);
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
    const float inverse = maximum_[r] == -kInfinity ? 0.0f : 1.0f / sums[0];
    for (int64_t channel = 0; channel < v_head_dim(p_.kv); ++channel) sums_[r * v_columns_ + channel] *= inverse;
    narrow(sums_ + r * v_columns_, v_head_dim(p_.kv), out_row(i));
  }

  const PagedAttentionParams& p_;
  const Sequence& sequence_;
  const HeadReader k_reader_;
  const HeadReader v_reader_;
  const int64_t kv_head_;
  const int64_t group_;
  const int64_t v_columns_;  // v_head_dim, rounded up to whole registers: the row stride of sums_
  int64_t q_chunk_ = -1;     // the first channel of what q_ holds
  int64_t checked_ = -1;     // positions up to this one have been looked up,
  int64_t last_bad_ = -1;    // and this is the last of them whose page does not exist

  alignas(64) float q_[kMaxBlockRows * kChunk];
  alignas(64) float sums_[kMaxSums];
  alignas(64) float scores_[kMaxBlockRows * kTileKeys];
  alignas(64) float tile_[kTileKeys * kChunk];  // K as [channel, key], then V as [key, channel]
  alignas(64) float row_buffer_[8 * kChunk];
  alignas(64) float probability_sums_[kMaxBlockRows * kSumLanes];
  int32_t pages_[kTileKeys];
  int32_t offsets_[kTileKeys];
  float maximum_[kMaxBlockRows];  // of the scores so far
  float tile_maximum_[kMaxBlockRows];
  float correction_[kMaxBlockRows];
  int64_t limits_[kMaxBlockRows];  // the last and
  int64_t lowest_[kMaxBlockRows];  // the first position that a row attends to
};

}  // namespace

Status paged_attention(const PagedAttentionParams& params, const Execution& execution) {
  const int64_t rows_of_block = block_rows(params);
  const int64_t group = params.num_q_heads / params.kv.num_kv_heads;
  const int64_t blocks = divide_up(std::min(params.max_seqlen_q, params.num_tokens) * group, rows_of_block);
  const int64_t tasks = params.num_seqs * blocks * params.kv.num_kv_heads;
  const double work =
      static_cast<double>(params.num_tokens * params.num_q_heads * params.head_dim) * static_cast<double>(params.max_seq_len);
  // Where cu_seqlens_q decreases, two sequences may have the same rows: one thread writes them, one after the other.
  const bool serial = work <= kSerialWork || !std::is_sorted(params.cu_seqlens_q, params.cu_seqlens_q + params.num_seqs + 1);
  with_host_type(params.dtype, [&](auto type) {
    parallel_for(tasks, serial ? 1 : execution.num_threads, [&](int64_t i) {
      const int64_t task = tasks - 1 - i;  // the longest first: within a sequence, later rows attend to more
      const int64_t kv_head = task % params.kv.num_kv_heads;
      const int64_t s = task / params.kv.num_kv_heads % params.num_seqs;
      const Sequence sequence = sequence_at(params, s);
      const int64_t begin = task / params.kv.num_kv_heads / params.num_seqs * rows_of_block;
      const int64_t end = std::min(begin + rows_of_block, sequence.num_rows * group);
      if (begin == 0) clear_bad_rows<decltype(type)>(params, s, kv_head);
      if (begin < end) BlockAttention<decltype(type)>(params, sequence, kv_head).run(begin, end);
    });
  });
  return {};
}

}  // namespace prologue::cpu
