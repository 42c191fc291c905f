#include <algorithm>
#include <cstring>

#include <prologue/kernels/token_ops/embedding.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kSerialElements = 1 << 15;  // below this, starting threads costs more than the copy

template <class T>
void embed(const EmbeddingParams& p, [[maybe_unused]] int num_threads) {
  const T* table = static_cast<const T*>(p.table);
#pragma omp parallel for num_threads(num_threads)
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    T* out = static_cast<T*>(p.out) + t * p.width;
    const int64_t index = index_at(p.indices, t);
    if (index < 0 || index >= p.num_rows) {
      std::fill_n(out, p.width, T{});
      record_fault(p.faults, t, FaultCode::token_id_out_of_range);
      continue;
    }
    const T* row = table + index * p.width;
    if (p.scale == 1.0f) {
      std::memcpy(out, row, static_cast<size_t>(p.width) * sizeof(T));
    } else {
      for (int64_t i = 0; i < p.width; ++i) out[i] = from_float<T>(to_float(row[i]) * p.scale);
    }
  }
}

}  // namespace

Status embedding(const EmbeddingParams& params, const Execution& execution) {
  const bool serial = params.num_tokens * params.width <= kSerialElements;
  [[maybe_unused]] const int num_threads = serial ? 1 : std::max(1, execution.num_threads);
  with_host_type(params.dtype, [&](auto type) { embed<decltype(type)>(params, num_threads); });
  return {};
}

}  // namespace prologue::cpu
