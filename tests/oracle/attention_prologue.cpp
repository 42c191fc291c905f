#include "tests/oracle/attention_prologue.h"

#include <algorithm>
#include <cmath>

namespace prologue::test::oracle {
namespace {

void round_step(Row& row, const PrologueInput& in) {
  if (in.step_rounding == 0.0) return;
  for (Element& e : row) e.scale += 0x1p20 * (in.step_rounding * std::fabs(e.value) + in.step_floor);  // 16 * 2^-24 to one
}

void normalize(Row& row, const NormInput& norm, int64_t width) {
  const int64_t group = norm.over_token ? static_cast<int64_t>(row.size()) : width;
  for (int64_t begin = 0; begin < static_cast<int64_t>(row.size()); begin += group) {
    double mean = 0.0, mean_scale = 0.0;
    if (norm.layer) {
      for (int64_t i = begin; i < begin + group; ++i) {
        mean += row[static_cast<size_t>(i)].value / static_cast<double>(group);
        mean_scale += row[static_cast<size_t>(i)].scale / static_cast<double>(group);
      }
    }
    double squares = 0.0, squares_scale = 0.0;
    for (int64_t i = begin; i < begin + group; ++i) {
      Element& e = row[static_cast<size_t>(i)];
      e = {e.value - mean, e.scale + mean_scale + std::fabs(mean)};
      squares += e.value * e.value;
      squares_scale += std::fabs(e.value) * e.scale;
    }
    const double count = static_cast<double>(group);
    const double inverse = 1.0 / std::sqrt(squares / count + norm.eps);
    const double relative = 1.0 + squares_scale / (squares + count * norm.eps);  // of the inverse's error
    for (int64_t i = begin; i < begin + group; ++i) {
      Element& e = row[static_cast<size_t>(i)];
      const size_t at = static_cast<size_t>(static_cast<int64_t>(norm.weight.size()) > width ? i : i % width);
      const double w = norm.weight.empty() ? 1.0 : norm.weight_offset + norm.weight[at];
      const double w_scale = norm.weight.empty() ? 1.0 : std::fabs(norm.weight_offset) + std::fabs(norm.weight[at]);
      const double b = norm.bias.empty()
                           ? 0.0
                           : norm.bias[static_cast<int64_t>(norm.bias.size()) > width ? static_cast<size_t>(i)
                                                                                      : static_cast<size_t>(i % width)];
      e.scale = (e.scale * std::fabs(w) + std::fabs(e.value) * (relative * std::fabs(w) + w_scale)) * inverse + std::fabs(b);
      e.value = e.value * inverse * w + b;
    }
  }
}

// Multiplies each pair of the rotated channels, as a complex number, by cos + i sin; `positions` has one for each axis.
void rotate(Row& row, int64_t heads, const PrologueInput& in, int64_t token, const std::vector<int64_t>& positions) {
  const int64_t width = in.rotary_dim / in.num_blocks;  // of a block
  for (int64_t pair = 0; pair < in.rotary_dim / 2; ++pair) {
    const int64_t block = 2 * pair / width, column = pair - block * width / 2;
    const size_t axis = static_cast<size_t>(!in.pair_axis.empty() ? in.pair_axis[static_cast<size_t>(pair)] : block);
    const int64_t position = positions[axis < positions.size() ? axis : 0];
    double c = 0.0, s = 0.0;
    if (!in.inv_freq.empty()) {
      const double angle = static_cast<double>(position) * in.inv_freq[static_cast<size_t>(column)];
      c = std::cos(angle) * in.attention_factor;
      s = std::sin(angle) * in.attention_factor;
    } else {
      const int64_t table_row = in.table_per_token ? token : position;
      c = in.table[static_cast<size_t>(table_row * width + column)];
      s = in.table[static_cast<size_t>(table_row * width + width / 2 + column)];
    }
    if (in.inverse) s = -s;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t base = h * in.head_dim + in.rotary_offset + block * width;
      Element& first = row[static_cast<size_t>(base + (in.interleaved ? 2 * column : column))];
      Element& second = row[static_cast<size_t>(base + (in.interleaved ? 2 * column + 1 : column + width / 2))];
      const Element re = first, im = second;
      first = {re.value * c - im.value * s, re.scale * std::fabs(c) + im.scale * std::fabs(s)};
      second = {re.value * s + im.value * c, re.scale * std::fabs(s) + im.scale * std::fabs(c)};
    }
  }
  if (in.rotary_dim > 0) round_step(row, in);
}

// Each block of channels times the Hadamard matrix, whose element (i, j) is 1 if i and j have an even number of bits in common, else
// -1, over the square root of the block: one bit after the other.
void hadamard(Row& row, int64_t block, const PrologueInput& in) {
  if (block == 0) return;
  const double root = std::sqrt(static_cast<double>(block));
  const double sums =
      (std::log2(static_cast<double>(block)) + 2.0) / 16.0;  // how often sums and product round; 16 * 2^-24 to one
  for (auto begin = row.begin(); begin != row.end(); begin += block) {
    double scale = 0.0;  // the same for all
    for (auto e = begin; e != begin + block; ++e) scale += e->scale + sums * std::fabs(e->value);
    for (int64_t bit = 1; bit < block; bit *= 2) {
      for (int64_t i = 0; i < block; ++i) {
        if ((i & bit) != 0) continue;
        const double without = begin[i].value, with = begin[i + bit].value;
        begin[i].value = without + with;
        begin[i + bit].value = without - with;
      }
    }
    for (auto e = begin; e != begin + block; ++e) *e = {e->value / root, scale / root};
  }
  round_step(row, in);
}

Row load(const std::vector<double>& x, const std::vector<double>& bias, int64_t token, int64_t width, const PrologueInput& in) {
  Row row(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    const double value = x[static_cast<size_t>(token * width + i)];
    const double term = bias.empty() ? 0.0 : bias[static_cast<size_t>(i)];
    row[static_cast<size_t>(i)] = {value + term, std::fabs(value) + std::fabs(term)};
  }
  if (!bias.empty()) round_step(row, in);
  return row;
}

void multiply(Row& row, double factor, const PrologueInput& in) {
  if (factor == 1.0) return;
  for (Element& e : row) e = {e.value * factor, e.scale * std::fabs(factor)};
  round_step(row, in);
}

void apply_sigmoid(Row& row, const PrologueInput& in) {
  for (Element& e : row) {
    const double y = 1.0 / (1.0 + std::exp(-e.value));
    e = {y, 1.25 * e.scale * y * (1.0 - y) + y};
  }
  round_step(row, in);
}

double query_factor(const PrologueInput& in, int64_t position) {
  const double next = static_cast<double>(position) + 1.0;
  if (in.q_by_position == 1) return in.q_constant * (1.0 + in.q_a * std::log(1.0 + std::floor(next / in.q_b)));
  if (in.q_by_position == 2) return in.q_constant * std::max(1.0, std::log(next) / std::log(in.q_b));
  return in.q_constant;
}

// Of the groups, and of the faults of the whole: a token has the first.
template <class Compute>
void add_groups(const PrologueInput& in, PrologueOutput& out, const Compute& compute) {
  for (PrologueInput group : in.groups) {
    group.num_tokens = in.num_tokens;
    group.positions = in.positions;
    if (!in.positions.empty()) group.positions.resize(static_cast<size_t>(group.num_axes * in.num_tokens));
    group.slots = in.slots, group.derive_slots = in.derive_slots;
    group.cu_seqlens = in.cu_seqlens, group.cache_lens = in.cache_lens, group.seq_lens = in.seq_lens;
    group.block_table = in.block_table, group.kv_indptr = in.kv_indptr, group.kv_indices = in.kv_indices;
    group.kv_last_page_len = in.kv_last_page_len;
    group.ring_size = in.ring_size, group.position_offsets = in.position_offsets;
    group.num_pages = in.num_pages, group.page_size = in.page_size;
    group.step_rounding = in.step_rounding, group.step_floor = in.step_floor;
    PrologueOutput& of_group = out.groups.emplace_back(compute(group));
    for (size_t t = 0; t < out.state.size(); ++t) {
      if (out.state[t] == TokenState::untouched) {  // on an axis that the group does not have
        of_group.state[t] = TokenState::untouched;
        std::erase_if(of_group.slot_token, [&](const auto& entry) { return entry.second == static_cast<int64_t>(t); });
      } else if (out.faults[t] == TokenFault::none) {
        out.faults[t] = of_group.faults[t];
      }
    }
  }
}

}  // namespace

PrologueOutput attention_prologue(const PrologueInput& in) {
  PrologueOutput out;
  for (int64_t t = 0; t < in.num_tokens; ++t) {
    out.state.push_back(TokenState::untouched);
    out.faults.push_back(TokenFault::none);
    out.q.emplace_back();
    out.k.emplace_back();
    out.v.emplace_back();

    // Returns the token's sequence, if there are any.
    int64_t sequence = -1, cache_position = 0;
    bool bad_length = false;     // then there is no cache position
    std::vector<int64_t> pages;  // of the sequence
    const bool derives = !in.cu_seqlens.empty() && (in.positions.empty() || in.derive_slots);
    if (derives) {
      for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
        if (in.cu_seqlens[s] <= t && t < in.cu_seqlens[s + 1]) sequence = static_cast<int64_t>(s);
      }
      if (sequence < 0) continue;
      const auto s = static_cast<size_t>(sequence);
      if (in.kv_indptr.empty()) {
        if (!in.block_table.empty()) pages = in.block_table[s];
      } else {
        const int64_t from = in.kv_indptr[s], to = in.kv_indptr[s + 1];
        bad_length = from < 0 || to < from || to > static_cast<int64_t>(in.kv_indices.size());
        if (!bad_length) pages.assign(in.kv_indices.begin() + from, in.kv_indices.begin() + to);
      }
      const int64_t rows = in.cu_seqlens[s + 1] - in.cu_seqlens[s];
      int64_t before = 0;
      if (!in.kv_last_page_len.empty()) {
        const int64_t last = in.kv_last_page_len[s];
        if (!pages.empty()) before = (static_cast<int64_t>(pages.size()) - 1) * in.page_size + last;
        bad_length = bad_length || (!pages.empty() && (last < 1 || last > in.page_size));
        before -= rows;
      } else {
        bad_length = false;
        before = in.seq_lens.empty() ? in.cache_lens[s] : in.seq_lens[s] - rows;
      }
      cache_position = before + t - in.cu_seqlens[s];
    }

    std::vector<int64_t> positions(static_cast<size_t>(in.num_axes), 0);
    bool padding = false, bad_position = false, past_table = false;
    for (size_t axis = 0; axis < positions.size(); ++axis) {
      if (!in.positions.empty()) {
        positions[axis] = in.positions[axis * static_cast<size_t>(in.num_tokens) + static_cast<size_t>(t)];
        padding = padding || positions[axis] < 0;
      } else if (derives) {
        positions[axis] = cache_position;
        if (!in.position_offsets.empty()) {
          const int64_t offset = in.position_offsets[in.position_offsets.size() > 1 ? static_cast<size_t>(sequence) : 0];
          const long double sum = static_cast<long double>(cache_position) + static_cast<long double>(offset);
          positions[axis] = sum >= 0.0L && sum < 0x1p63L ? static_cast<int64_t>(sum) : -1;
        }
        bad_position = bad_position || bad_length || positions[axis] < 0;
      }
      past_table = past_table || (in.max_position > 0 && positions[axis] >= in.max_position);
    }
    if (padding) continue;
    if (bad_position || (past_table && !in.identity_past_table)) {
      out.state.back() = TokenState::zero;
      out.faults.back() = TokenFault::position;
      continue;
    }
    out.state.back() = TokenState::written;

    const auto transform = [&](Row row, const NormInput& norm, int64_t heads) {
      if (norm.enabled && !norm.after_rotation) normalize(row, norm, in.head_dim), round_step(row, in);
      if (!past_table) rotate(row, heads, in, t, positions);
      if (norm.enabled && norm.after_rotation) normalize(row, norm, in.head_dim), round_step(row, in);
      hadamard(row, in.hadamard_block, in);
      return row;
    };
    out.q.back() = transform(load(in.q, in.q_bias, t, in.num_q_heads * in.head_dim, in), in.q_norm, in.num_q_heads);
    multiply(out.q.back(), query_factor(in, positions[0]), in);
    if (in.sigmoid) apply_sigmoid(out.q.back(), in);
    if (in.with_k) {
      out.k.back() = transform(load(in.k, in.k_bias, t, in.num_kv_heads * in.head_dim, in), in.k_norm, in.num_kv_heads);
      multiply(out.k.back(), in.k_constant, in);
    }
    if (in.with_v) {
      const int64_t v_dim = in.v_head_dim > 0 ? in.v_head_dim : in.head_dim;
      Row row = load(in.v, in.v_bias, t, in.num_kv_heads * v_dim, in);
      if (in.v_norm.enabled) normalize(row, in.v_norm, v_dim), round_step(row, in);
      hadamard(row, in.v_hadamard_block, in);
      multiply(row, in.v_constant, in);
      out.v.back() = row;
    }

    int64_t slot = -1;
    if (!in.slots.empty()) {
      if (t < static_cast<int64_t>(in.slots.size())) slot = in.slots[static_cast<size_t>(t)];
      if (slot >= in.num_pages * in.page_size) {
        out.faults.back() = TokenFault::slot;
        continue;
      }
    } else if (in.derive_slots) {
      const int64_t end = in.cu_seqlens[static_cast<size_t>(sequence) + 1];
      if (in.ring_size > 0 && t + in.ring_size < end) continue;  // a later token of the step takes its place
      int64_t r = cache_position;
      if (in.ring_size > 0 && r >= 0) r %= in.ring_size;
      if (bad_length || r < 0 || r >= static_cast<int64_t>(pages.size()) * in.page_size) {
        out.faults.back() = TokenFault::too_long;
        continue;
      }
      const int64_t page = pages[static_cast<size_t>(r / in.page_size)];
      if (page < 0 || page >= in.num_pages) {
        out.faults.back() = TokenFault::page;
        continue;
      }
      slot = page * in.page_size + r % in.page_size;
    }
    if (slot >= 0) out.slot_token[slot] = t;
  }
  add_groups(in, out, attention_prologue);
  return out;
}

}  // namespace prologue::test::oracle
