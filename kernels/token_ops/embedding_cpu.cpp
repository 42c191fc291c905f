#include <algorithm>
#include <cstring>

#include <prologue/kernels/base/host/packed_weight.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 15;  // below this, starting threads costs more than the copy

// Sets `out` to row `index` of a packed table.
template <class T>
void copy_packed_row(const EmbeddingParams& p, int64_t index, T* out) {
  const int64_t elements = weight_block_elements(p.table_format);
  float values[kMaxBlockElements];
  for (int64_t block = 0; block < p.width / elements; ++block, out += elements) {
    unpack_block(p.table_format, p.table, p.width, index, block, values);
    for (int64_t i = 0; i < elements; ++i) out[i] = from_float<T>(values[i] * p.scale);
  }
}

template <class T>
void embed(const EmbeddingParams& p, int64_t num_threads) {
  const T* table = static_cast<const T*>(p.table);
  parallel_for(p.num_tokens, num_threads, [&](int64_t t) {
    T* out = static_cast<T*>(p.out) + t * p.width;
    const int64_t index = index_at(p.indices, t);
    if (index < 0 || index >= p.num_rows) {
      std::fill_n(out, p.width, T{});
      record_fault(p.faults, p.token_faults, t, FaultCode::token_id_out_of_range);
      return;
    }
    if (p.table_format != WeightFormat::dense) return copy_packed_row(p, index, out);
    const T* row = table + index * p.width;
    if (p.scale == 1.0f) {
      std::memcpy(out, row, static_cast<size_t>(p.width) * sizeof(T));
    } else {
      for (int64_t i = 0; i < p.width; ++i) out[i] = from_float<T>(to_float(row[i]) * p.scale);
    }
  });
}

}  // namespace

Status embedding(const EmbeddingParams& params, const Execution& execution) {
  const bool serial = params.num_tokens * params.width <= kSerialElements;
  with_host_type(params.dtype, [&](auto type) { embed<decltype(type)>(params, serial ? 1 : execution.num_threads); });
  return {};
}

}  // namespace prologue::cpu
