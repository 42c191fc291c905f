// The operations of a mixture of experts in float64, from their definitions.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/tolerance.h"

namespace prologue::test::oracle {

enum class Weighting { softmax_then_top_k, top_k_then_softmax, sigmoid };

struct Route {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

// The logits are those of one token, all finite.
Route route(const std::vector<double>& logits, int64_t top_k, Weighting weighting, bool normalize);

// Computes one row of moe_gemm: x [k], weight [n, k] of its expert, bias [n] or null.
template <class T, class W>
std::vector<Reference> expert_row(const T* x, const W* weight, const T* bias, int64_t n, int64_t k, double scale);

}  // namespace prologue::test::oracle
