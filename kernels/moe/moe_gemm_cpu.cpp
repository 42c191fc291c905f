// Each expert is one matrix product, by the loop nests of gemm(): the rows of an expert are copied side by side, at most kChunk at a time,
// multiplied, and stored where they belong.
#include <algorithm>
#include <cstring>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/moe/backends.h>

namespace prologue::cpu {

namespace {

constexpr int64_t kAlignment = 64;            // bytes
constexpr int64_t kChunk = 256;               // rows
constexpr int64_t kSerialElements = 1 << 15;  // that are copied; below this, starting threads costs more than the work

// Lays out the parts of the workspace.
struct Scratch {
  int32_t* order;  // [rows] the rows of y by expert
  char* x;         // [chunk, k] of dtype
  float* sums;     // [chunk, n]

  static int64_t rows(const MoeGemmParams& p) { return p.num_tokens * p.top_k; }
  static int64_t order_bytes(const MoeGemmParams& p) {
    return round_up(rows(p) * static_cast<int64_t>(sizeof(int32_t)), kAlignment);
  }
  static int64_t x_bytes(const MoeGemmParams& p) {
    return round_up(std::min(kChunk, rows(p)) * p.k * dtype_size(p.dtype), kAlignment);
  }
  static int64_t sums_bytes(const MoeGemmParams& p) {
    return round_up(std::min(kChunk, rows(p)) * p.n * static_cast<int64_t>(sizeof(float)), kAlignment);
  }
  explicit Scratch(const MoeGemmParams& p) {
    char* const begin = static_cast<char*>(p.workspace);
    order = reinterpret_cast<int32_t*>(begin);
    x = begin + order_bytes(p);
    sums = reinterpret_cast<float*>(x + x_bytes(p));
  }
};

// Computes y[r] = round(row_scale[r] * sums + bias). The sums are overwritten.
template <class T>
void store_row(const MoeGemmParams& p, int64_t r, int64_t expert, float* sums) {
  if (p.row_scale != nullptr) {
    for (int64_t n = 0; n < p.n; ++n) sums[n] *= p.row_scale[r];
  }
  if (p.bias != nullptr) {
    const T* bias = static_cast<const T*>(p.bias) + expert * p.n;
    for (int64_t n = 0; n < p.n; ++n) sums[n] += to_float(bias[n]);
  }
  narrow(sums, p.n, static_cast<T*>(p.y) + r * p.n);
}

template <class T>
Status multiply_rows(const MoeGemmParams& p, const Scratch& scratch, int64_t expert, const int32_t* rows, int64_t count,
                     GemmContext& context, const Execution& execution) {
  const auto x_of = [&](int64_t r) { return static_cast<const T*>(p.x) + (p.x_per_choice ? r : r / p.top_k) * p.k; };
  const auto threads_for = [&](int64_t width) { return count * width <= kSerialElements ? 1 : execution.num_threads; };
  T* const gathered = reinterpret_cast<T*>(scratch.x);
  if (count > 1) {
    parallel_for(count, threads_for(p.k), [&](int64_t i) {
      std::memcpy(static_cast<void*>(gathered + i * p.k), x_of(rows[i]), static_cast<size_t>(p.k) * sizeof(T));
    });
  }
  GemmParams product;
  product.m = count;
  product.n = p.n;
  product.k = p.k;
  product.dtype = p.dtype;
  product.y_dtype = DType::f32;
  product.x = count > 1 ? gathered : x_of(rows[0]);
  product.x_stride = p.k;
  if (p.packed.num_segments == 0) product.weight = static_cast<const T*>(p.weight) + expert * p.n * p.k;
  product.packed = p.packed;
  for (int32_t s = 0; s < p.packed.num_segments; ++s) {
    PackedRows& of = product.packed.segments[s];
    of.data = static_cast<const unsigned char*>(of.data) + expert * packed_weight_bytes(of.format, of.rows, p.k);
  }
  product.y = scratch.sums;
  product.y_stride = p.n;
  product.batch_invariant = true;
  PROLOGUE_RETURN_IF_ERROR(cpu::gemm(product, context, execution));
  parallel_for(count, threads_for(p.n), [&](int64_t i) { store_row<T>(p, rows[i], expert, scratch.sums + i * p.n); });
  return {};
}

template <class T>
Status multiply(const MoeGemmParams& p, GemmContext& context, const Execution& execution) {
  const Scratch scratch(p);
  const int64_t num_rows = Scratch::rows(p);
  const auto is_expert = [&](int32_t id) { return id >= 0 && id < p.num_experts; };
  int32_t begins[kMaxExperts + 1] = {};  // [e]: how many rows expert e has, then where they end in `order`, then where they begin
  for (int64_t r = 0; r < num_rows; ++r) {
    if (is_expert(p.expert_ids[r])) {
      ++begins[p.expert_ids[r]];
    } else {
      std::memset(static_cast<void*>(static_cast<T*>(p.y) + r * p.n), 0, static_cast<size_t>(p.n) * sizeof(T));
    }
  }
  for (int64_t e = 1; e <= p.num_experts; ++e) begins[e] += begins[e - 1];
  for (int64_t r = num_rows - 1; r >= 0; --r) {
    if (is_expert(p.expert_ids[r])) scratch.order[--begins[p.expert_ids[r]]] = static_cast<int32_t>(r);
  }
  for (int64_t e = 0; e < p.num_experts; ++e) {
    for (int64_t begin = begins[e]; begin < begins[e + 1]; begin += kChunk) {
      const int64_t count = std::min(kChunk, begins[e + 1] - begin);
      PROLOGUE_RETURN_IF_ERROR(multiply_rows<T>(p, scratch, e, scratch.order + begin, count, context, execution));
    }
  }
  return {};
}

}  // namespace

int64_t moe_gemm_workspace_bytes(const MoeGemmParams& p) {
  return Scratch::order_bytes(p) + Scratch::x_bytes(p) + Scratch::sums_bytes(p);
}

Status moe_gemm(const MoeGemmParams& params, GemmContext& context, const Execution& execution) {
  return with_host_type(params.dtype, [&](auto type) { return multiply<decltype(type)>(params, context, execution); });
}

}  // namespace prologue::cpu
