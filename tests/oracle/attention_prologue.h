// The attention prologue in float64, straight from its formulas; shares no code with the library. Tensors are dense
// [num_tokens, heads, head_dim]; where things lie in memory is the test's business.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

namespace prologue::oracle {

struct PrologueInput {
  int64_t num_tokens = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  bool interleaved = false;
  std::vector<double> q, k, v;
  std::vector<double> q_bias, k_bias, v_bias;  // empty: none
  std::vector<double> table;                   // [max_position, rotary_dim], cos then sin
  int64_t max_position = 0;                    // 0: positions have no upper bound
  std::vector<int64_t> positions;              // empty: all 0
  std::vector<int64_t> slots;                  // empty: K and V go nowhere
  int64_t num_slots = 0;
};

// A value and the sum of the absolute terms that made it.
struct Element {
  double value = 0.0;
  double scale = 0.0;
};
using Row = std::vector<Element>;

enum class QRow { untouched, zero, written };

struct PrologueOutput {
  std::vector<QRow> q_state;              // per token
  std::vector<Row> q;                     // [num_tokens], each num_q_heads * head_dim
  std::map<int64_t, Row> k, v;            // slot -> num_kv_heads * head_dim
  std::map<int64_t, int64_t> slot_token;  // slot -> the token that filled it
  int64_t fault_token = -1;               // the first token with a bad index
  bool fault_is_position = false;
  int64_t fault_count = 0;
};

// One tensor of heads: x + bias, then each pair of the first rotary_dim channels as a complex number times cos + i sin.
inline Row transform(const std::vector<double>& x, const std::vector<double>& bias, int64_t token, int64_t heads,
                     const PrologueInput& in, bool rotated) {
  const int64_t width = heads * in.head_dim;
  Row row(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    const double value = x[static_cast<size_t>(token * width + i)];
    const double term = bias.empty() ? 0.0 : bias[static_cast<size_t>(i)];
    row[static_cast<size_t>(i)] = {value + term, std::fabs(value) + std::fabs(term)};
  }
  if (!rotated) return row;
  const int64_t position = in.positions.empty() ? 0 : in.positions[static_cast<size_t>(token)];
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t pair = 0; pair < in.rotary_dim / 2; ++pair) {
      const int64_t base = h * in.head_dim;
      Element& first = row[static_cast<size_t>(base + (in.interleaved ? 2 * pair : pair))];
      Element& second = row[static_cast<size_t>(base + (in.interleaved ? 2 * pair + 1 : pair + in.rotary_dim / 2))];
      const double c = in.table[static_cast<size_t>(position * in.rotary_dim + pair)];
      const double s = in.table[static_cast<size_t>(position * in.rotary_dim + in.rotary_dim / 2 + pair)];
      const double re = first.value;
      const double im = second.value;
      first = {re * c - im * s, std::fabs(re * c) + std::fabs(im * s)};
      second = {re * s + im * c, std::fabs(re * s) + std::fabs(im * c)};
    }
  }
  return row;
}

inline PrologueOutput attention_prologue(const PrologueInput& in) {
  PrologueOutput out;
  for (int64_t t = 0; t < in.num_tokens; ++t) {
    const int64_t position = in.positions.empty() ? 0 : in.positions[static_cast<size_t>(t)];
    const int64_t slot = in.slots.empty() ? -1 : in.slots[static_cast<size_t>(t)];
    const auto fault = [&](bool is_position) {
      if (out.fault_count++ == 0) {
        out.fault_token = t;
        out.fault_is_position = is_position;
      }
    };
    out.q.emplace_back();
    if (position < 0) {
      out.q_state.push_back(QRow::untouched);
      continue;
    }
    if (in.max_position > 0 && position >= in.max_position) {
      out.q_state.push_back(QRow::zero);
      fault(true);
      continue;
    }
    out.q_state.push_back(QRow::written);
    out.q.back() = transform(in.q, in.q_bias, t, in.num_q_heads, in, true);
    if (slot < 0) continue;
    if (slot >= in.num_slots) {
      fault(false);
      continue;
    }
    out.k[slot] = transform(in.k, in.k_bias, t, in.num_kv_heads, in, true);
    out.v[slot] = transform(in.v, in.v_bias, t, in.num_kv_heads, in, false);
    out.slot_token[slot] = t;
  }
  return out;
}

}  // namespace prologue::oracle
