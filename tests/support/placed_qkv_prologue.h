// This file has a call of qkv_prologue: a placed prologue whose q, k and v the operation makes itself.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/qkv_prologue/qkv_prologue.h>

#include "tests/oracle/weight_blocks.h"
#include "tests/support/placed_prologue.h"
#include "tests/support/random.h"
#include "tests/support/weight_blocks.h"

namespace prologue::test {

// Says what is projected: hidden states, weights, and the norm before, as float32.
struct Projection {
  int64_t hidden_size = 288;
  bool normed = false, weighted = true, float_weights = false;
  float eps = 0.0f;
  std::vector<float> hidden, weight, norm_weight;
  // Segments of packed weights, whose values `weight` has; none: they are dense.
  struct Segment {
    WeightFormat format;
    int64_t rows;
    std::vector<uint8_t> blocks;
  };
  std::vector<Segment> packed;
};

inline int64_t qkv_width(const PrologueCase& c) {
  return (c.num_q_heads + c.num_kv_heads) * c.head_dim + c.num_kv_heads * c.v_width();
}

// Returns whole numbers: a row of hidden states has one magnitude, so 1 / sqrt(mean of squares) is a power of two.
inline Projection whole_numbers(const PrologueCase& c, int64_t hidden_size, bool normed) {
  Projection p;
  p.hidden_size = hidden_size;
  p.normed = normed;
  Random random(c.seed + 77);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const float magnitude = normed && t % 2 != 0 ? 4.0f : 1.0f;
    for (int64_t i = 0; i < hidden_size; ++i) p.hidden.push_back(random.integer(0, 1) == 0 ? magnitude : -magnitude);
  }
  // A few in a row are not 0, so that no sum is beyond what 8 bits hold.
  p.weight.resize(static_cast<size_t>(qkv_width(c) * hidden_size));
  for (int64_t row = 0; row < qkv_width(c); ++row) {
    for (int i = 0; i < 24; ++i) {
      p.weight[static_cast<size_t>(row * hidden_size + random.integer(0, hidden_size - 1))] =
          static_cast<float>(random.integer(-2, 2));
    }
  }
  for (int64_t i = 0; i < hidden_size; ++i) p.norm_weight.push_back(static_cast<float>(random.integer(1, 2)));
  return p;
}

// Makes the weights of q, k and v packed ones of these formats, of whole numbers; one format: of all of them together.
inline void pack(Projection& p, const PrologueCase& c, const std::vector<WeightFormat>& formats) {
  const int64_t rows[] = {c.num_q_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.v_width()};
  p.weight.clear();
  for (size_t s = 0; s < formats.size(); ++s) {
    const int64_t count = formats.size() == 1 ? qkv_width(c) : rows[s];
    p.packed.push_back({formats[s], count, whole_blocks(formats[s], count, p.hidden_size, c.seed + s)});
    const int64_t row_bytes = p.hidden_size / weight_block_elements(formats[s]) * weight_block_bytes(formats[s]);
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t i = 0; i < p.hidden_size; ++i) {
        const uint8_t* const blocks = p.packed.back().blocks.data() + row * row_bytes;
        p.weight.push_back(static_cast<float>(oracle::weight_value(formats[s], blocks, i).value()));
      }
    }
  }
}

template <class T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> out;
  for (const float value : values) out.push_back(from_float<T>(value));
  return out;
}

// Holds the call of a placed prologue whose q, k and v the operation makes itself.
template <class T>
QkvPrologueParams place_projection(PlacedPrologue<T>& placed, const Projection& p) {
  QkvPrologueParams params;
  params.hidden_size = params.hidden_stride = p.hidden_size;
  params.hidden_states = placed.arena().input(rounded<T>(p.hidden));
  for (const Projection::Segment& s : p.packed) {
    constexpr int64_t kOffAlignment = 16;  // not aligned to more
    params.packed.segments[params.packed.num_segments++] = {
        placed.arena().input(packed_blocks(s.format, s.rows, p.hidden_size, s.blocks), kOffAlignment), s.format, s.rows};
  }
  if (p.packed.empty()) params.weight = placed.arena().input(rounded<T>(p.weight));
  params.norm.given = p.normed ? 1 : 0;
  params.norm.eps = p.eps;
  if (p.normed && p.weighted) {
    params.norm.weight_type = p.float_weights ? DType::f32 : DType::unset;
    params.norm.weight = p.float_weights ? static_cast<const void*>(placed.arena().input(p.norm_weight))
                                         : placed.arena().input(rounded<T>(p.norm_weight));
  }
  params.prologue = placed.params();
  for (HeadsView* view : {&params.prologue.q, &params.prologue.k, &params.prologue.v}) *view = {};
  params.workspace_bytes = qkv_prologue_workspace_bytes(params);
  params.workspace = placed.arena().workspace(params.workspace_bytes);
  return params;
}

// Returns a case that the projection can make.
inline PrologueCase fit_to_projection(PrologueCase c) {
  c.packed = true;
  c.in_place = c.kv_in_place = c.v_is_k = c.split_q = c.split_k = c.one_k_rope = false;
  c.row_padding = c.head_padding = c.misalign = 0;
  c.heads_first = false;
  c.with_k = c.with_v = c.num_kv_heads > 0;
  if (c.with_k && !c.cached) c.k_out = c.v_out = true;
  c.values = Values::normal;
  c.groups.clear();  // the projection makes Q, K and V only
  if (c.num_q_heads == 0 && c.num_kv_heads == 0) c.num_q_heads = 4;
  return c;
}

}  // namespace prologue::test
