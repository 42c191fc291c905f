// This file has a case for paged attention: shapes, cache format and layout, and limits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

namespace prologue::test {

enum class KvLayout { nhd, hnd, interleaved, two_in_a_page, odd };
inline constexpr KvLayout kKvLayouts[] = {KvLayout::nhd, KvLayout::hnd, KvLayout::interleaved, KvLayout::two_in_a_page,
                                          KvLayout::odd};

struct AttentionSequence {
  int64_t rows;
  int64_t length;
};

enum class Sinks { none, of_dtype, of_float };

struct AttentionCase {
  int64_t num_q_heads = 4, num_kv_heads = 2, head_dim = 64, v_head_dim = 0, page_size = 16;
  std::vector<AttentionSequence> sequences;
  DType type = DType::f32;
  KvScaling scaling = KvScaling::none;
  KvFormat v_format;  // unset: that of K
  KvLayout layout = KvLayout::nhd;
  int64_t window = 0, chunk = 0, ring_size = 0;
  Sinks sinks = Sinks::none;
  float soft_cap = 0.0f;
  float scale = 0.0f;       // 0 = 1 / sqrt(head_dim)
  bool v_within_k = false;  // V is the first channels of K, as in MLA
  int64_t padding_rows = 0;

  int64_t v_width() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  // Returns the first position that a row sees whose own position is limit - 1.
  int64_t first_visible(int64_t limit) const {
    const int64_t of_window = window > 0 ? limit - window : 0,
                  of_chunk = chunk > 0 && limit > 0 ? (limit - 1) / chunk * chunk : 0;
    return std::max({int64_t{0}, of_window, of_chunk});
  }
  KvFormat format(bool is_k) const { return is_k || v_format.type == DType::unset ? KvFormat{type, scaling} : v_format; }
};

}  // namespace prologue::test
